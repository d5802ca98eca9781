"""Asynchronous copies on emu take effect late or early, so that each fault of a pipeline shows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulation import kernel, launch

from tinygrad_cuda.backend.emu.runtime import EmulatedModule, prelude
from tinygrad_cuda.lowering.codegen.pack import mma_prelude

Array = np.ndarray[Any, Any]

ORDERS = range(5)  # 1 to 4 show every moment of a copy

# d (16, 16) = a (16, k) b (16, k)^T: the first of two warps copies a, the second b, and each
# computes 8 columns from three slots of 1024 bytes: two tiles of 16 x 16 bfloat16.
PIPELINE = """
constexpr int slots = 3;
int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
const unsigned short* own = (warp ? p.b : p.a) + lane / 2 * p.k + lane % 2 * 8;
int tiles = int(p.k / 16);
float d[4] = {0, 0, 0, 0};
for (int tile = 0; tile < 2; tile++) {
  tgc_copy_async16(smem + tile * 1024 + thread * 16, own + tile * 16, tile < tiles);
  tgc_copy_commit();
}
for (int tile = 0; tile < tiles; tile++) {
  tgc_copy_wait<1>();
  __syncthreads();
  {  // ahead
    int next = tile + 2;
    tgc_copy_async16(smem + next % slots * 1024 + thread * 16, own + next * 16, next < tiles);
    tgc_copy_commit();
  }
  const char* slot = smem + tile % slots * 1024;
  unsigned a[4], both[4];
  tgc_ldmatrix_x4(a, slot + lane % 16 * 32 + lane / 16 * 16);
  tgc_ldmatrix_x4(both, slot + 512 + lane % 16 * 32 + lane / 16 * 16);
  unsigned b[2] = {both[warp], both[warp + 2]};
  tgc_mma_bf16(d, a, b);
}
for (int i = 0; i < 4; i++)
  tgc_store(p.d, (lane / 4 + i / 2 * 8) * 16 + warp * 8 + lane % 4 * 2 + i % 2, d[i]);
"""
FIELDS = "const unsigned short* a; const unsigned short* b; float* d; long long k;"

# What the thread's own target holds between issue and wait.
PEEK = """
int* values = reinterpret_cast<int*>(smem) + threadIdx.x * 4;
for (int i = 0; i < 4; i++) values[i] = 7;
tgc_copy_async16(values, p.in + threadIdx.x * 4, true);
tgc_copy_commit();
for (int i = 0; i < 4; i++) tgc_store(p.out, threadIdx.x * 4 + i, values[i]);
tgc_copy_wait<0>();
"""
MANY = """
for (int i = 0; i < p.count; i++) {
  tgc_copy_async16(smem, p.in, true);
  tgc_copy_commit();
}
tgc_copy_wait<0>();
const int* values = reinterpret_cast<const int*>(smem);
for (int i = 0; i < 4; i++) tgc_store(p.out, i, values[i]);
"""


def changed(*pairs: tuple[str, str]) -> str:
    """The pipeline with parts of its text replaced, each of which it has."""
    text = PIPELINE
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after)
    return text


AHEAD = PIPELINE[PIPELINE.index("  {  // ahead") : PIPELINE.index("  const char* slot")]
WAIT, BARRIER = "  tgc_copy_wait<1>();\n", "  __syncthreads();\n"
FAULTS = {
    "missing_wait": changed((WAIT, "")),
    "a_group_too_few": changed((WAIT, "  tgc_copy_wait<2>();\n")),
    "missing_barrier": changed((BARRIER, "")),
    "barrier_before_wait": changed((WAIT, ""), (BARRIER, BARRIER + WAIT)),
    "missing_commit": changed((AHEAD, AHEAD.replace("tgc_copy_commit();", ""))),
    "slot_reused_before_barrier": changed((AHEAD, ""), (WAIT, AHEAD + "  tgc_copy_wait<2>();\n")),
    "a_slot_too_few": changed(("slots = 3", "slots = 2")),
}


@pytest.fixture(scope="module")
def unit() -> EmulatedModule:
    texts = {"right": PIPELINE, **FAULTS}
    kernels = "".join(kernel(name, FIELDS, text) for name, text in texts.items())
    kernels += kernel("peek", "const int* in; int* out;", PEEK)
    kernels += kernel("many", "const int* in; int* out; long long count;", MANY)
    return EmulatedModule(prelude() + mma_prelude() + kernels)


def aligned(x: Array) -> Array:
    memory = np.zeros(x.nbytes + 16, np.uint8)
    start = -memory.ctypes.data % 16
    memory[start : start + x.nbytes] = x.view(np.uint8).ravel()
    return memory[start : start + x.nbytes]


def right(unit: EmulatedModule, name: str, order: int, k: int = 128) -> bool:
    """Whether the kernel gives the product of integers."""
    a, b = np.random.default_rng(k).integers(-8, 9, (2, 16, k)).astype(ml_dtypes.bfloat16)
    d = np.zeros((16, 16), np.float32)
    launch(unit, name, aligned(a), aligned(b), d, k, block=64, shared=3072, order=order)
    return np.array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("k", [16, 32, 48, 128])
@pytest.mark.parametrize("order", range(9))
def test_a_pipeline_is_right_whenever_copies_take_effect(
    unit: EmulatedModule, order: int, k: int
) -> None:
    assert right(unit, "right", order, k)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_a_pipeline_shows(unit: EmulatedModule, name: str) -> None:
    assert not all(right(unit, name, order) for order in ORDERS)


def test_what_a_copy_writes_before_it_takes_effect(unit: EmulatedModule) -> None:
    """By order: all ones, what was there, by chance one or the other, and the copy itself."""
    x = aligned(np.arange(1, 65, dtype=np.int32))
    seen = []
    for order in range(5):
        out = np.zeros(64, np.int32)
        launch(unit, "peek", x, out, block=16, shared=256, order=order)
        seen.append(out.reshape(16, 4))
    new, ones, old = x.view(np.int32).reshape(16, 4), -1, 7
    assert (seen[0] == ones).all() and (seen[1] == ones).all() and (seen[2] == old).all()
    assert (seen[4] == new).all()
    arrived = (seen[3] == new).all(1)
    assert ((seen[3] == old).all(1) | arrived).all()
    assert 0 < arrived.sum() < 16


def test_more_copies_than_can_be_in_flight(unit: EmulatedModule) -> None:
    """What does not fit takes effect at once, and the machine's memory stays whole."""
    x = aligned(np.arange(1, 5, dtype=np.int32))
    for order in range(5):
        out = np.zeros(4, np.int32)
        launch(unit, "many", x, out, 200_000, block=1, shared=16, order=order)
        np.testing.assert_array_equal(out, [1, 2, 3, 4])
