"""The runtime on a real GPU: memory, copies, launches, faults, graphs with both kinds of edges."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import compiler
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, KernelNode
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError, CudaError, OutOfMemoryError
from tinygrad_cuda.lowering.target import Target

pytestmark = pytest.mark.usefixtures("cuda_device")
ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
struct params { float* out; const float* in; long long n; double scale; };

extern "C" __global__ void affine(const __grid_constant__ params p) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.out[i] = p.in[i] * (float)p.scale + 1.0f;
}

extern "C" __global__ void reverse(const __grid_constant__ params p) {  // one block, n floats
    extern __shared__ float line[];
    for (long long i = threadIdx.x; i < p.n; i += blockDim.x) line[i] = p.in[i];
    __syncthreads();
    for (long long i = threadIdx.x; i < p.n; i += blockDim.x) p.out[i] = line[p.n - 1 - i];
}

#if __CUDA_ARCH__ >= 900
#define WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
#define SIGNAL asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#else
#define WAIT
#define SIGNAL
#endif

extern "C" __global__ void chained(const __grid_constant__ params p) {  // spins, then affine
    SIGNAL;
    WAIT;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long start = clock64(); clock64() - start < 2000;) {}
    if (i < p.n) p.out[i] = p.in[i] * (float)p.scale + 1.0f;
}

struct join_params { float* out; const float* first; const float* second; long long n; };

extern "C" __global__ void joined(const __grid_constant__ join_params p) {  // first - second / 2
    SIGNAL;
    WAIT;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.out[i] = p.first[i] - p.second[i] * 0.5f;
}

struct spin_params { long long nanoseconds; };

extern "C" __global__ void spin(const __grid_constant__ spin_params p) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < p.nanoseconds);
}

struct check_params { unsigned long long* error; long long index; long long limit; };

extern "C" __global__ void checked(const __grid_constant__ check_params p) {
    if (p.index >= p.limit && atomicCAS(p.error, 0ull, 7ull) == 0ull) {
        p.error[1] = (unsigned long long)p.index;
        p.error[2] = (unsigned long long)p.limit;
    }
}
"""


@pytest.fixture(scope="module")
def gpu(cuda_device: str) -> runtime.DeviceHandle:
    return runtime.device(0)


@pytest.fixture(scope="module")
def module(gpu: runtime.DeviceHandle) -> runtime.LoadedModule:
    return gpu.load(compiler.compile_source(SOURCE, gpu.properties.arch).cubin)


def words(out: runtime.Allocation, source: runtime.Allocation, n: int, scale: float) -> bytes:
    return struct.pack("<QQqd", out.address, source.address, n, scale)


def on_gpu(gpu: runtime.DeviceHandle, values: npt.NDArray[np.float32]) -> runtime.Allocation:
    memory = gpu.allocate(values.nbytes)
    gpu.copy_in(memory.address, values)
    return memory


def from_gpu(
    gpu: runtime.DeviceHandle, memory: runtime.Allocation, n: int
) -> npt.NDArray[np.float32]:
    values = np.full(n, np.nan, np.float32)
    gpu.copy_out(memory.address, values)
    return values


def random(n: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(n).standard_normal(n).astype(np.float32)


def test_properties(gpu: runtime.DeviceHandle) -> None:
    found = gpu.properties
    assert found.name
    assert found.arch == f"sm_{found.capability[0]}{found.capability[1]}"
    assert found.multiprocessors > 0
    assert found.memory_bytes > 1 << 30
    assert found.shared_bytes >= 48 << 10
    assert found.l2_bytes > 1 << 20
    free, total = gpu.memory_info()
    assert 0 < free <= total <= found.memory_bytes * 1.01
    assert runtime.device(0) is gpu


def test_an_h200_is_lowered_for_as_golden_files_are(gpu: runtime.DeviceHandle) -> None:
    """Whatever its L2 cache: the limits that follow from it are the same."""
    made: Any = registry.get(as_device("cuda"))
    if not made.target.name.startswith("NVIDIA H200"):
        pytest.skip(f"of an H200, not of {made.target.name}")
    expected = Target.h200()
    assert replace(made.target, name=expected.name, l2=expected.l2) == expected
    assert (made.target.large, made.target.cached) == (expected.large, expected.cached)


def test_a_loop_meets_the_same_addresses(gpu: runtime.DeviceHandle) -> None:
    turns = []
    for _ in range(4):
        pieces = [gpu.allocate(nbytes) for nbytes in (4, 10_000, 4, 9 << 20)]
        turns.append([piece.address for piece in pieces])
        while pieces:
            pieces.pop()
    assert turns[1:] == turns[:1] * 3
    assert all(address % 512 == 0 for address in turns[0])


def test_memory_counts(gpu: runtime.DeviceHandle) -> None:
    before = gpu.memory_allocated()
    piece = gpu.allocate(1 << 20)
    assert gpu.memory_allocated() == before + (1 << 20)
    assert gpu.max_memory_allocated() >= before + (1 << 20)
    del piece
    assert gpu.memory_allocated() == before


def test_empty_cache_gives_memory_back(gpu: runtime.DeviceHandle) -> None:
    """A third of what is free: more than other processes on the GPU take or give meanwhile."""
    gpu.empty_cache()
    free = gpu.memory_info()[0]
    nbytes = free // 3
    piece = gpu.allocate(nbytes)
    assert gpu.memory_info()[0] <= free - nbytes // 2
    del piece
    assert gpu.empty_cache() >= nbytes
    assert gpu.memory_info()[0] >= free - nbytes // 2


@pytest.mark.parametrize("nbytes", [0, 1, 3, 511, 65_535, 65_536, 65_537, 1_000_003, 33_554_433])
def test_copies_of_awkward_sizes(gpu: runtime.DeviceHandle, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    guard = 64
    first, second = gpu.allocate(nbytes + guard), gpu.allocate(nbytes + guard)
    for memory in (first, second):
        gpu.fill(memory.address, nbytes + guard, 0xA5)
    gpu.copy_in(first.address, data)
    gpu.copy(second.address, first.address, nbytes)
    back = np.zeros(nbytes + guard, np.uint8)
    gpu.copy_out(second.address, back)
    np.testing.assert_array_equal(back[:nbytes], data)
    assert (back[nbytes:] == 0xA5).all()  # nothing beyond the end was touched


@pytest.mark.parametrize("nbytes", [4, 4096, 65_536, 1 << 20, 48 << 20])
def test_the_source_of_a_copy_may_change_at_once(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule, nbytes: int
) -> None:
    """The copy waits behind 20 ms of work, and its source is overwritten as soon as it returns."""
    memory = gpu.allocate(3 * nbytes)
    scratch = np.zeros(nbytes, np.uint8)
    gpu.launch(module.function("spin"), 1, 1, 0, struct.pack("<q", 20_000_000))
    for turn in range(3):
        scratch[:] = turn + 1
        gpu.copy_in(memory.address + turn * nbytes, scratch)
        scratch[:] = 255
    back = np.zeros(3 * nbytes, np.uint8)
    gpu.copy_out(memory.address, back)
    np.testing.assert_array_equal(
        back.reshape(3, nbytes), np.array([[1], [2], [3]]).repeat(nbytes, 1)
    )


def test_a_pinned_source_may_change_at_once_too(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule
) -> None:
    nbytes = 1 << 20
    pointer = gpu.call("cuMemHostAlloc", nbytes, 0)
    scratch = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))
    scratch[:] = 7
    memory = gpu.allocate(nbytes)
    gpu.launch(module.function("spin"), 1, 1, 0, struct.pack("<q", 20_000_000))
    gpu.copy_in(memory.address, scratch)
    scratch[:] = 255
    back = np.zeros(nbytes, np.uint8)
    gpu.copy_out(memory.address, back)
    gpu.call("cuMemFreeHost", pointer)
    assert (back == 7).all()


def test_a_strided_array_is_refused(gpu: runtime.DeviceHandle) -> None:
    with pytest.raises(ArgumentError, match="only contiguous"):
        gpu.copy_in(gpu.allocate(400).address, np.zeros((10, 10), np.float32).T[::2])


@pytest.mark.parametrize("n", [1, 255, 256, 257, 100_003])
def test_launch(gpu: runtime.DeviceHandle, module: runtime.LoadedModule, n: int) -> None:
    data = random(n)
    source, out = on_gpu(gpu, data), gpu.allocate(4 * n)
    function = module.function("affine")
    gpu.launch(function, -(-n // 256), 256, 0, words(out, source, n, 2.5))
    np.testing.assert_allclose(from_gpu(gpu, out, n), data * 2.5 + 1, rtol=1e-6, atol=1e-6)


def test_large_shared_memory(gpu: runtime.DeviceHandle, module: runtime.LoadedModule) -> None:
    n = gpu.properties.shared_bytes // 4
    assert 4 * n > 48 << 10
    data = random(n)
    source, out = on_gpu(gpu, data), gpu.allocate(4 * n)
    gpu.launch(module.function("reverse"), 1, 256, 4 * n, words(out, source, n, 0))
    np.testing.assert_array_equal(from_gpu(gpu, out, n), data[::-1])
    with pytest.raises(CudaError, match="more shared memory than a block can have"):
        gpu.launch(module.function("reverse"), 1, 256, 4 * n + 4, words(out, source, n, 0))


def test_function_attributes(module: runtime.LoadedModule) -> None:
    assert 0 < module.function("affine").attribute("NUM_REGS") < 256
    assert module.function("affine").parameter_bytes == 32
    assert module.function("affine") is module.function("affine")


def test_wrong_words_are_refused(gpu: runtime.DeviceHandle, module: runtime.LoadedModule) -> None:
    with pytest.raises(ArgumentError, match="another size") as caught:
        gpu.launch(module.function("affine"), 1, 32, 0, bytes(24))
    assert "expect: 32 bytes" in str(caught.value)
    assert "actual: 24 bytes" in str(caught.value)


def test_a_missing_kernel_is_named(module: runtime.LoadedModule) -> None:
    with pytest.raises(CudaError, match="CUDA_ERROR_NOT_FOUND"):
        module.function("nobody")


def test_damaged_code_is_an_error(gpu: runtime.DeviceHandle) -> None:
    with pytest.raises(CudaError, match="cuModuleLoadData returned"):
        gpu.load(b"this is no machine code" * 10)


def test_an_impossible_launch_leaves_the_context_whole(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule
) -> None:
    data = random(10)
    source, out = on_gpu(gpu, data), gpu.allocate(40)
    with pytest.raises(CudaError, match=r"cuLaunchKernel\(affine, 1 x 4096\) returned 1,"):
        gpu.launch(module.function("affine"), 1, 4096, 0, words(out, source, 10, 1))
    gpu.launch(module.function("affine"), 1, 32, 0, words(out, source, 10, 1))
    np.testing.assert_allclose(from_gpu(gpu, out, 10), data + 1, rtol=1e-6, atol=1e-6)


def test_out_of_memory_under_a_limit(gpu: runtime.DeviceHandle) -> None:
    gpu.empty_cache()
    limit = gpu.pool.limit
    gpu.pool.limit = gpu.pool.reserved + (64 << 20)
    try:
        kept = gpu.allocate(60 << 20)
        with pytest.raises(OutOfMemoryError, match="no room for 60 MiB") as caught:
            gpu.allocate(60 << 20)
        assert "limit" in str(caught.value)
        address = kept.address
        del kept, caught
        assert gpu.allocate(60 << 20).address == address
    finally:
        gpu.pool.limit = limit


def test_out_of_memory_of_the_card_itself(gpu: runtime.DeviceHandle) -> None:
    with pytest.raises(OutOfMemoryError, match="free on the GPU"):
        gpu.allocate(gpu.properties.memory_bytes * 2)
    assert gpu.allocate(100).nbytes == 100


def test_an_error_word_survives_and_the_context_too(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule
) -> None:
    word = gpu.allocate(32)
    gpu.fill(word.address, 32)
    for index in (3, 12, 99):  # the first bad one is kept
        data = struct.pack("<Qqq", word.address, index, 10)
        gpu.launch(module.function("checked"), 4, 64, 0, data)
    back = np.zeros(4, np.uint64)
    gpu.copy_out(word.address, back)
    assert back.tolist() == [7, 12, 10, 0]
    gpu.synchronize()


def test_sync_mode_checks_each_launch(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule
) -> None:
    data = random(5)
    source, out = on_gpu(gpu, data), gpu.allocate(20)
    with settings.override(sync=True):
        gpu.launch(module.function("affine"), 1, 32, 0, words(out, source, 5, 1))
    assert gpu.driver.cuStreamQuery(gpu.stream)[0] == 0


def test_events_time_and_order(gpu: runtime.DeviceHandle, module: runtime.LoadedModule) -> None:
    source, out = on_gpu(gpu, random(1000)), gpu.allocate(4000)

    def work() -> None:
        for _ in range(10):
            gpu.launch(module.function("chained"), 4, 256, 0, words(out, source, 1000, 1))

    assert 1 < gpu.timed(work) < 1e6
    event = runtime.DriverEvent(gpu, timing=False).record()
    event.hold(gpu.copy_stream)
    gpu.call("cuStreamSynchronize", gpu.copy_stream)
    assert gpu.driver.cuStreamQuery(gpu.stream)[0] == 0


def chain(
    module: runtime.LoadedModule, buffers: list[runtime.Allocation], n: int, programmatic: bool
) -> list[KernelNode]:
    """buffers[i + 1] = 2 * buffers[i] + 1, one kernel each."""
    return [
        KernelNode(
            module.function("chained"),
            grid=-(-n // 256),
            block=256,
            shared_bytes=0,
            words=words(buffers[i + 1], buffers[i], n, 2.0),
            after=() if programmatic or i == 0 else (i - 1,),
            after_signal=(i - 1,) if programmatic and i > 0 else (),
        )
        for i in range(len(buffers) - 1)
    ]


def needs_programmatic(gpu: runtime.DeviceHandle, programmatic: bool) -> None:
    if programmatic and gpu.properties.capability < (9, 0):
        pytest.xfail("programmatic edges need sm_90")


@pytest.mark.parametrize("programmatic", [False, True])
def test_graph_chain_and_replay(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule, programmatic: bool
) -> None:
    needs_programmatic(gpu, programmatic)
    n, length = 100_003, 8
    data = random(n)
    buffers = [on_gpu(gpu, data), *(gpu.allocate(4 * n) for _ in range(length))]
    graph = CudaGraph(gpu, chain(module, buffers, n, programmatic))
    expected = data
    for _ in range(length):
        expected = expected * np.float32(2) + np.float32(1)
    for _ in range(20):
        for buffer in buffers[1:]:
            gpu.fill(buffer.address, 4 * n, 0xFF)
        graph.launch()
        np.testing.assert_allclose(from_gpu(gpu, buffers[-1], n), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("programmatic", [False, True])
def test_graph_update(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule, programmatic: bool
) -> None:
    needs_programmatic(gpu, programmatic)
    n = 1000
    data = random(n)
    buffers = [on_gpu(gpu, data), *(gpu.allocate(4 * n) for _ in range(3))]
    graph = CudaGraph(gpu, chain(module, buffers, n, programmatic))
    graph.launch()
    assert not graph.update(1, graph.words(1))
    assert graph.updates == 0
    other = on_gpu(gpu, -data)
    assert graph.update(0, words(buffers[1], other, n, 2.0))
    assert graph.update(2, words(buffers[3], buffers[2], n, 0.5))
    assert graph.updates == 2
    graph.launch()
    expected = ((-data * 2 + 1) * 2 + 1) * 0.5 + 1
    np.testing.assert_allclose(from_gpu(gpu, buffers[3], n), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ArgumentError, match="another size"):
        graph.update(0, bytes(8))


def test_an_update_leaves_a_launch_under_way_alone(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule
) -> None:
    n = 1_000_003
    data = random(n)
    source, first, second = on_gpu(gpu, data), gpu.allocate(4 * n), gpu.allocate(4 * n)
    graph = CudaGraph(gpu, chain(module, [source, first], n, False))
    for turn in range(50):
        target = (first, second)[turn % 2]
        graph.update(0, words(target, source, n, float(turn)))
        graph.launch()
    np.testing.assert_allclose(from_gpu(gpu, first, n), data * 48 + 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(from_gpu(gpu, second, n), data * 49 + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("programmatic", [False, True])
def test_graph_fork_and_join(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule, programmatic: bool
) -> None:
    """One kernel feeds two branches; a plain join follows both, whatever edges lead there."""
    needs_programmatic(gpu, programmatic)
    n = 5000
    data = random(n)
    start, left, right, out = (on_gpu(gpu, data) for _ in range(4))
    both = gpu.allocate(4 * n)
    function = module.function("chained")

    def node(
        target: runtime.Allocation, source: runtime.Allocation, *before: int, early: bool
    ) -> KernelNode:
        after, signal = ((), before) if early else (before, ())
        grid = -(-n // 256)
        return KernelNode(function, grid, 256, 0, words(target, source, n, 3.0), after, signal)

    graph = CudaGraph(
        gpu,
        [
            node(both, start, early=False),
            node(left, both, 0, early=programmatic),
            node(right, both, 0, early=programmatic),
            node(out, left, 1, 2, early=False),
        ],
    )
    for _ in range(5):
        for buffer in (both, left, right, out):
            gpu.fill(buffer.address, 4 * n, 0xFF)
        graph.launch()
        expected = data * 3 + 1
        expected = expected * 3 + 1
        np.testing.assert_allclose(from_gpu(gpu, right, n), expected, rtol=1e-5, atol=1e-5)
        expected = expected * 3 + 1
        np.testing.assert_allclose(from_gpu(gpu, out, n), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("programmatic", [False, True])
def test_graph_of_diamonds_joined_by_either_kind_of_edge(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule, programmatic: bool
) -> None:
    """x -> (2x + 1, 3x + 1) -> left - right / 2, eight times; each join reads both branches."""
    needs_programmatic(gpu, programmatic)
    n, diamonds = 60_001, 8
    data = random(n)
    buffers = [on_gpu(gpu, data), *(gpu.allocate(4 * n) for _ in range(3 * diamonds))]
    nodes: list[KernelNode] = []

    def add(name: str, parameters: bytes, *before: int) -> None:
        edges = ((), before) if programmatic else (before, ())
        nodes.append(KernelNode(module.function(name), -(-n // 256), 256, 0, parameters, *edges))

    for number in range(diamonds):
        start, left, right, end = buffers[3 * number : 3 * number + 4]
        before = (3 * number - 1,) if number else ()
        add("chained", words(left, start, n, 2.0), *before)
        add("chained", words(right, start, n, 3.0), *before)
        addresses = (memory.address for memory in (end, left, right))
        add("joined", struct.pack("<QQQq", *addresses, n), 3 * number, 3 * number + 1)
    graph = CudaGraph(gpu, nodes)
    expected = data.astype(np.float64)
    for _ in range(diamonds):
        expected = (2 * expected + 1) - (3 * expected + 1) * 0.5
    for _ in range(20):
        for buffer in buffers[1:]:
            gpu.fill(buffer.address, 4 * n, 0xFF)
        graph.launch()
        np.testing.assert_allclose(from_gpu(gpu, buffers[-1], n), expected, rtol=1e-4, atol=1e-4)


def test_a_graph_that_points_forward_is_refused(
    gpu: runtime.DeviceHandle, module: runtime.LoadedModule
) -> None:
    memory = gpu.allocate(4)
    node = KernelNode(module.function("affine"), 1, 32, 0, words(memory, memory, 1, 1), after=(0,))
    with pytest.raises(ArgumentError, match="not before it"):
        CudaGraph(gpu, [node])


def script(body: str) -> str:
    """Runs a program of its own, since it loses its context; returns what it printed."""
    program = (
        "import os, sys, struct\n"
        "from tinygrad_cuda.backend.cuda import compiler, driver as runtime\n"
        "from tinygrad_cuda.core.errors import CudaError, DeviceError\n"
        "gpu = runtime.device(0)\n" + body
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""  # nothing is complained of at exit either
    return result.stdout


FAULT = """
source = 'extern "C" __global__ void wild(const __grid_constant__ unsigned long long p)'
source += ' { *(volatile float*)p = 1.0f; }'
wild = gpu.load(compiler.compile_source(source, gpu.properties.arch).cubin).function("wild")
memory = gpu.allocate(4)
for turn in range(20):
    gpu.launch(wild, 1, 1, 0, struct.pack("<Q", memory.address), f"good.py:{turn}")
gpu.synchronize()
"""


def test_an_asynchronous_fault_names_the_last_launches() -> None:
    text = script(
        FAULT
        + """
try:
    gpu.launch(wild, 1, 1, 0, struct.pack("<Q", 8), "bad.py:41")
    gpu.synchronize()
except CudaError as error:
    print(error)
try:
    gpu.allocate(100)
except CudaError as error:
    print("AGAIN", error)
"""
    )
    first, again = text.split("AGAIN")
    assert "the context of GPU 0 is lost" in first
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in first
    assert "wild  bad.py:41" in first
    assert "wild  good.py:19" in first
    assert "wild  good.py:2\n" not in first  # only the last sixteen
    assert "the context of GPU 0 is lost" in again


def test_sync_mode_raises_at_the_launch() -> None:
    text = script(
        "os.environ['TGC_SYNC'] = '1'\n"
        "from tinygrad_cuda.core.config import settings\n"
        "settings.reload()\n"
        + FAULT
        + """
try:
    gpu.launch(wild, 1, 1, 0, struct.pack("<Q", 8), "bad.py:41")
except CudaError as error:
    print("at the launch", error)
"""
    )
    assert text.startswith("at the launch")
    assert "bad.py:41" in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_told_to_spawn() -> None:
    text = script(
        """
memory = gpu.allocate(100)
child = os.fork()
if child == 0:
    for attempt in (lambda: gpu.allocate(4), lambda: runtime.device(0), gpu.synchronize):
        try:
            attempt()
            os._exit(1)
        except DeviceError as error:
            text = str(error)
    del memory
    os.write(1, text.encode())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
gpu.synchronize()
print("parent lives")
"""
    )
    assert "forked after CUDA was initialised" in text
    assert "get_context('spawn')" in text
    assert "parent lives" in text


def test_objects_that_outlive_everything_end_quietly() -> None:
    """Allocations, events and graphs held by globals at exit."""
    assert (
        script(
            """
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, KernelNode
source = 'extern "C" __global__ void one(const __grid_constant__ unsigned long long p)'
source += ' { *(float*)p = 1.0f; }'
one = gpu.load(compiler.compile_source(source, gpu.properties.arch).cubin).function("one")
memory = gpu.allocate(4)
event = runtime.DriverEvent(gpu).record()
graph = CudaGraph(gpu, [KernelNode(one, 1, 1, 0, struct.pack("<Q", memory.address))])
graph.launch()
cycle = [memory, event, graph]
cycle.append(cycle)
print("done")
"""
        )
        == "done\n"
    )


def test_two_threads_use_one_gpu(gpu: runtime.DeviceHandle, module: runtime.LoadedModule) -> None:
    n, failures = 10_007, []
    function = module.function("affine")

    def work(seed: int) -> None:
        try:
            for turn in range(100):
                data = random(n) * seed
                source, out = on_gpu(gpu, data), gpu.allocate(4 * n)
                gpu.launch(function, -(-n // 256), 256, 0, words(out, source, n, float(turn)))
                result = from_gpu(gpu, out, n)
                np.testing.assert_allclose(result, data * turn + 1, rtol=1e-5, atol=1e-3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
