"""The emulator: kernels run as on a GPU, and whatever a GPU would not forgive is an error."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from emulation import apply, elementwise, kernel, launch, module

from tinygrad_cuda.backend.emu.runtime import EmulatedModule, KernelFault
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError

ADD = elementwise("add", ["float32", "float32"], "float32", "a + b")

# Each thread reads its neighbour's value; without the barrier, perhaps before it is written.
NEIGHBOUR = """
int* values = reinterpret_cast<int*>(smem);
values[threadIdx.x] = threadIdx.x;
%s
tgc_store(p.out, threadIdx.x, values[threadIdx.x > 0 ? threadIdx.x - 1 : 0]);
"""


@pytest.fixture(scope="module")
def kernels() -> EmulatedModule:
    return module(
        ADD,
        kernel("barrier", "int* out;", NEIGHBOUR % "__syncthreads();"),
        kernel("no_barrier", "int* out;", NEIGHBOUR % ""),
        kernel(
            "tree",
            "const float* a; float* out;",
            """float* values = reinterpret_cast<float*>(smem);
            values[threadIdx.x] = tgc_load(p.a, virtual_block * (int)blockDim.x + threadIdx.x);
            int width = 1024;
            while (width >= (int)blockDim.x) width /= 2;
            for (; width > 0; width /= 2) {
              __syncthreads();
              int other = threadIdx.x + width;
              if ((int)threadIdx.x < width && other < (int)blockDim.x)
                values[threadIdx.x] += values[other];
            }
            if (threadIdx.x == 0) tgc_store(p.out, virtual_block, values[0]);""",
        ),
        kernel(
            "shuffles",
            "const float* a; float* out;",
            """float v = tgc_load(p.a, threadIdx.x);
            for (int step = 16; step > 0; step /= 2) v += __shfl_down_sync(0xffffffffu, v, step);
            if (threadIdx.x % 32 == 0) tgc_store(p.out, threadIdx.x / 32, v);""",
        ),
        kernel(
            "warp_operations",
            "unsigned* out;",
            """unsigned lane = threadIdx.x % 32, i = threadIdx.x * 8;
            tgc_store(p.out, i, __ballot_sync(0xffffffffu, lane % 3 == 0));
            tgc_store(p.out, i + 1, (unsigned)__any_sync(0xffffffffu, lane == 7));
            tgc_store(p.out, i + 2, (unsigned)__all_sync(0xffffffffu, lane < 31));
            tgc_store(p.out, i + 3, __shfl_up_sync(0xffffffffu, lane, 3));
            tgc_store(p.out, i + 4, __shfl_xor_sync(0xffffffffu, lane, 5));
            tgc_store(p.out, i + 5, __shfl_sync(0xffffffffu, lane, 9, 8));
            tgc_store(p.out, i + 6, __shfl_down_sync(0xffffffffu, lane, 2, 16));
            unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
            tgc_store(p.out, i + 7, lane < 16 ? __shfl_xor_sync(half, lane, 1) : 0u);
            if (lane >= 16) __syncwarp(half);""",
        ),
        kernel(
            "votes",
            "int* out;",
            """int i = threadIdx.x * 3;
            tgc_store(p.out, i, __syncthreads_count(threadIdx.x % 5 == 0));
            tgc_store(p.out, i + 1, __syncthreads_or(threadIdx.x == 40));
            tgc_store(p.out, i + 2, __syncthreads_and(threadIdx.x != 40));""",
        ),
        kernel(
            "leavers",
            "int* out;",
            """if (threadIdx.x % 2) return;  // ended threads count as arrived
            __syncthreads();
            tgc_store(p.out, threadIdx.x, 1);""",
        ),
        kernel(
            "histogram",
            "const int* a; int* out; unsigned long long* total;",
            """int* bins = reinterpret_cast<int*>(smem);
            if (threadIdx.x < 8) bins[threadIdx.x] = 0;
            __syncthreads();
            atomicAdd(&bins[tgc_load(p.a, threadIdx.x) & 7], 1);
            atomicMax(p.total, (unsigned long long)threadIdx.x);
            __syncthreads();
            if (threadIdx.x < 8) atomicAdd(&p.out[threadIdx.x], bins[threadIdx.x]);""",
        ),
        kernel("poison", "unsigned* out;", "tgc_store(p.out, 0, *(unsigned*)smem);"),
        kernel(
            "beyond",
            "long long offset;",
            "if (threadIdx.x == 0) smem[p.offset] = 1;",
        ),
        kernel(
            "reach",
            "const float* a; float* out; long long read; long long write;",
            """float v = tgc_load(p.a, threadIdx.x + p.read);
            tgc_store(p.out, threadIdx.x + p.write, v);""",
        ),
        kernel(
            "offset",
            "const float* a; float* out; long long start;",
            "tgc_store(p.out, threadIdx.x, tgc_load(p.a + p.start, threadIdx.x - p.start));",
        ),
        kernel(
            "vector",
            "const float* a; float* out; long long start;",
            """if (threadIdx.x == 0)
            tgc_store_vector(p.out, 0, tgc_load_vector<4>(p.a, p.start));""",
        ),
        kernel("atomic", "int* a; long long at;", "atomicAdd(p.a + p.at, 1);"),
        kernel(
            "half_waits",
            "int* out;",
            """if (threadIdx.x < 16) __syncthreads();
            else __shfl_sync(0xffffffffu, 1, 0);""",
        ),
        kernel(
            "missing_lane",
            "int* out;",
            "if (threadIdx.x != 3) __syncwarp();",
        ),
        kernel(
            "two_barriers",
            "int* out;",
            """if (threadIdx.x < 32) __syncthreads();
            else
              __syncthreads();""",
        ),
        kernel(
            "masks",
            "int* out;",
            "__ballot_sync(threadIdx.x < 16 ? 0xffffffffu : 0xfffffffeu, 1);",
        ),
        kernel("not_named", "int* out;", "__syncwarp(0xfffffffeu);"),
        kernel("small", "int* out;", "tgc_store(p.out, threadIdx.x, 1);", threads=64),
        kernel(
            "deep",
            "double* out;",
            """double values[2048];
            for (int i = 0; i < 2048; i++) values[i] = i * (threadIdx.x + 1.0);
            __syncthreads();
            double sum = 0;
            for (int i = 0; i < 2048; i++) sum += values[i];
            tgc_store(p.out, threadIdx.x, sum);""",
        ),
    )


# What works ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 3])
def test_map_over_many_blocks(kernels: EmulatedModule, order: int) -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 10_001)).astype(np.float32)
    out = np.zeros_like(a)
    launch(kernels, "add", a, b, out, a.size, grid=40, block=256, order=order)
    np.testing.assert_array_equal(out, a + b)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("block", [96, 1024])
def test_reduction_in_shared_memory(kernels: EmulatedModule, block: int, order: int) -> None:
    a = np.random.default_rng(0).integers(0, 100, (7, block)).astype(np.float32)
    out = np.zeros(7, np.float32)
    launch(kernels, "tree", a, out, grid=7, block=block, shared=block * 4, order=order)
    np.testing.assert_array_equal(out, a.sum(1))


@pytest.mark.parametrize("order", [0, 1])
def test_reduction_by_shuffles(kernels: EmulatedModule, order: int) -> None:
    a = np.random.default_rng(0).integers(0, 100, (3, 32)).astype(np.float32)
    out = np.zeros(3, np.float32)
    launch(kernels, "shuffles", a, out, block=96, order=order)
    np.testing.assert_array_equal(out, a.sum(1))


@pytest.mark.parametrize("order", [0, 1])
def test_warp_operations_and_widths(kernels: EmulatedModule, order: int) -> None:
    out = np.zeros((64, 8), np.uint32)
    launch(kernels, "warp_operations", out, block=64, order=order)
    lane = np.arange(64) % 32
    ballot = sum(1 << i for i in range(0, 32, 3))
    np.testing.assert_array_equal(out[:, 0], ballot)
    np.testing.assert_array_equal(out[:, 1:3], np.array([[1, 0]] * 64))
    np.testing.assert_array_equal(out[:, 3], np.where(lane < 3, lane, lane - 3))
    np.testing.assert_array_equal(out[:, 4], lane ^ 5)
    np.testing.assert_array_equal(out[:, 5], lane // 8 * 8 + 1)
    np.testing.assert_array_equal(out[:, 6], np.where(lane % 16 >= 14, lane, lane + 2))
    np.testing.assert_array_equal(out[:, 7], np.where(lane < 16, lane ^ 1, 0))


def test_barriers_that_count(kernels: EmulatedModule) -> None:
    out = np.zeros((96, 3), np.int32)
    launch(kernels, "votes", out, block=96)
    assert (out == [20, 1, 0]).all()


@pytest.mark.parametrize("order", [0, 1])
def test_ended_threads_count_as_arrived(kernels: EmulatedModule, order: int) -> None:
    out = np.zeros(64, np.int32)
    launch(kernels, "leavers", out, block=64, order=order)
    np.testing.assert_array_equal(out, [1, 0] * 32)


def test_atomics_in_shared_and_global_memory(kernels: EmulatedModule) -> None:
    a = np.random.default_rng(0).integers(0, 8, 256).astype(np.int32)
    out, total = np.zeros(8, np.int32), np.zeros(1, np.uint64)
    launch(kernels, "histogram", a, out, total, grid=3, block=256, shared=32, order=4)
    np.testing.assert_array_equal(out, 3 * np.bincount(a, minlength=8))
    assert total[0] == 255


def test_threads_have_room_for_local_arrays(kernels: EmulatedModule) -> None:
    out = np.zeros(1024)
    launch(kernels, "deep", out, block=1024)
    np.testing.assert_array_equal(out, 2047 * 1024 * np.arange(1, 1025.0))


def test_a_parameter_may_point_into_a_buffer(kernels: EmulatedModule) -> None:
    """A row of a larger buffer: the limit is the buffer's end, and its start lies below 0."""
    a = np.arange(96, dtype=np.float32)
    out = np.zeros(32, np.float32)
    launch(kernels, "offset", a, out, 64)
    np.testing.assert_array_equal(out, a[:32])


def test_launches_from_several_threads_take_turns(kernels: EmulatedModule) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        a = np.random.default_rng(seed).integers(0, 9, (50, 96)).astype(np.float32)
        out = np.zeros(50, np.float32)
        launch(kernels, "tree", a, out, grid=50, block=96, shared=384, order=seed)
        if not np.array_equal(out, a.sum(1)):
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# What a permuted order shows ----------------------------------------------------------------------


def test_a_missing_barrier_shows_in_another_order(kernels: EmulatedModule) -> None:
    """In order 0 each thread finds its neighbour's value by luck."""
    expected = np.maximum(np.arange(128) - 1, 0)
    wrong = 0
    for order in range(4):
        good, bad = np.zeros((2, 128), np.int32)
        launch(kernels, "barrier", good, block=128, shared=512, order=order)
        launch(kernels, "no_barrier", bad, block=128, shared=512, order=order)
        np.testing.assert_array_equal(good, expected)
        if order == 0:
            np.testing.assert_array_equal(bad, expected)
        wrong += not np.array_equal(bad, expected)
    assert wrong == 3


def test_the_setting_chooses_the_order(kernels: EmulatedModule) -> None:
    out = np.zeros(128, np.int32)
    words, ranges = np.array([out.ctypes.data], np.uint64), [(out.ctypes.data, out.nbytes)]
    results = []
    for order in (0, 1, 1, 2):
        with settings.override(emu_order=order):
            kernels.launch("no_barrier", 1, 128, 512, words, ranges)
        results.append(out.copy())
    assert not np.array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[1], results[2])
    assert not np.array_equal(results[1], results[3])


def test_shared_memory_is_poisoned_for_each_block(kernels: EmulatedModule) -> None:
    out = np.zeros(1, np.uint32)
    launch(kernels, "poison", out, shared=4)
    assert out[0] == 0xFFFFFFFF


# Faults -------------------------------------------------------------------------------------------


def fault(unit: EmulatedModule, name: str, *parameters: Any, **sizes: Any) -> str:
    with pytest.raises(KernelFault) as caught:
        launch(unit, name, *parameters, **sizes)
    return str(caught.value)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    ("read", "write", "words"),
    [
        (1, 0, ["reads outside", "a (word 0)", "index 32", "limit 32", "thread 31"]),
        (-2, 0, ["reads outside", "a (word 0)", "index -", "0 <= index < 32"]),
        (0, 1000, ["writes outside", "out (word 1)", "limit 32", "4 bytes"]),
        (0, 2**61, ["writes outside", "out (word 1)", f"index {2**61}"]),
    ],
)
def test_access_outside_a_buffer(
    kernels: EmulatedModule, read: int, write: int, words: list[str], order: int
) -> None:
    a, out = np.zeros((2, 32), np.float32)
    text = fault(kernels, "reach", a, out, read, write, order=order)
    for word in ["'reach'", "block 0", *words]:
        assert word in text or (order and word.startswith(("index", "thread")))
    assert "test_emulator.py" in text or "emulation.py" in text


def test_neighbouring_buffers_are_apart(kernels: EmulatedModule) -> None:
    """One past the end of a buffer is an error even if another buffer begins there."""
    memory = np.zeros(64, np.float32)
    assert "limit 32" in fault(kernels, "reach", memory[:32], memory[32:], 1, 0)


def test_a_buffer_that_is_not_of_the_launch(kernels: EmulatedModule) -> None:
    a, out = np.zeros((2, 32), np.float32)
    words = np.array([a.ctypes.data, out.ctypes.data, 0, 0], np.uint64)
    with pytest.raises(KernelFault, match="a pointer into a buffer of this launch"):
        kernels.launch("reach", 1, 32, 0, words, [(out.ctypes.data, out.nbytes)])
    with pytest.raises(KernelFault, match="limit 0"):
        kernels.launch(
            "reach", 1, 32, 0, words, [(out.ctypes.data, out.nbytes), (a.ctypes.data, 0)]
        )


def test_atomics_are_checked_too(kernels: EmulatedModule) -> None:
    a = np.zeros(4, np.int32)
    launch(kernels, "atomic", a, 3)
    assert a.tolist() == [0, 0, 0, 32]
    assert "writes outside" in fault(kernels, "atomic", a, 4)


@pytest.mark.parametrize("start", [1, 2, 3])
def test_misaligned_vector(kernels: EmulatedModule, start: int) -> None:
    a = np.zeros(12, np.float32)
    out = np.zeros(12, np.float32)
    a, out = a[-a.ctypes.data % 16 // 4 :], out[-out.ctypes.data % 16 // 4 :]
    launch(kernels, "vector", a, out, 4)
    text = fault(kernels, "vector", a, out, start)
    for word in ("reads 16 bytes at a misaligned address", "a (word 0)", f"indices {start}"):
        assert word in text


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "block", "message"),
    [
        ("half_waits", 32, "hangs"),
        ("missing_lane", 32, "hangs"),
        ("missing_lane", 48, "hangs"),  # lanes 16 to 31 of the second warp do not exist
        ("two_barriers", 64, "different barriers"),
        ("masks", 32, "disagree"),
        ("not_named", 32, "disagree"),
    ],
)
def test_threads_that_do_not_meet(
    kernels: EmulatedModule, name: str, block: int, message: str, order: int
) -> None:
    out = np.zeros(64, np.int32)
    assert message in fault(kernels, name, out, block=block, order=order)


def test_a_hang_says_who_waits_where(kernels: EmulatedModule) -> None:
    text = fault(kernels, "half_waits", np.zeros(1, np.int32))
    lines = kernels.source.splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "< 16) __syncthreads" in text)
    assert f"16 threads wait at __syncthreads() in line {line}, 16 at a warp operation" in text


@pytest.mark.parametrize(("offset", "side"), [(64, "past the end"), (-1, "before the start")])
def test_writes_around_shared_memory(kernels: EmulatedModule, offset: int, side: str) -> None:
    launch(kernels, "beyond", 63, shared=64)
    text = fault(kernels, "beyond", offset, shared=64)
    assert f"writes {side} of shared memory" in text
    assert f"byte {offset} was changed" in text


def test_the_machine_survives_a_fault(kernels: EmulatedModule) -> None:
    a, b = np.ones((2, 256), np.float32)
    for name, block in (("half_waits", 32), ("two_barriers", 64), ("masks", 32)):
        for order in (0, 1):
            fault(kernels, name, np.zeros(1, np.int32), block=block, order=order)
            assert (apply(kernels, "add", "float32", a, b) == 2).all()


def test_launches_that_no_gpu_takes(kernels: EmulatedModule) -> None:
    out = np.zeros(1024, np.int32)
    assert "at most 64 threads" in fault(kernels, "small", out, block=96)
    assert "8 bytes" in fault(kernels, "small", out, 7, block=32)
    for sizes in ({"block": 1025}, {"block": 0}, {"grid": 0}, {"shared": 300_000}):
        with pytest.raises(ArgumentError, match=next(iter(sizes))):
            launch(kernels, "small", out, **sizes)
    with pytest.raises(ArgumentError, match="no such kernel"):
        launch(kernels, "nowhere", out)
