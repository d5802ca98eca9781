"""tma.cuh: boxes, mbarriers and clusters on emu against NumPy, and machine code from sm_90 on."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from emulation import kernel, launch

from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.emu.runtime import EmulatedModule, KernelFault, prelude
from tinygrad_cuda.backend.emu.tensor_map import tensor_map
from tinygrad_cuda.core.errors import ArgumentError, CompileError
from tinygrad_cuda.lowering.codegen.pack import TMA_NAMES, mma_prelude, tma_prelude

Array = np.ndarray[Any, Any]

ORDERS = range(5)  # 1 to 4 show every moment at which a copy may take effect

# Shared memory begins with the barriers; the box lies at byte 1024.
LOAD = """
auto* barrier = reinterpret_cast<unsigned long long*>(smem);
char* box = smem + 1024;
int at[%d];
for (int i = 0; i < %d; i++) at[i] = tgc_load(p.at, i);
if (threadIdx.x == 0) {
  tgc_barrier_init(barrier, 1);
  tgc_barrier_fence();
}
__syncthreads();
if (threadIdx.x == 0) {
  tgc_tma_prefetch(p.map);
  tgc_barrier_expect(barrier, (int)p.bytes);
  tgc_tma_load(box, p.map, barrier, at);
}
tgc_barrier_wait(barrier, 0);
for (int i = threadIdx.x; i < p.bytes; i += blockDim.x)
  tgc_store(p.out, i, (unsigned char)box[i]);
"""
PIXELS = (
    LOAD.replace("int at[%d];", "int at[4], tap[2];")
    .replace("for (int i = 0; i < %d; i++)", "for (int i = 0; i < 4; i++)")
    .replace("  tgc_tma_load(", "  for (int i = 0; i < 2; i++) tap[i] = tgc_load(p.at, 4 + i);\n"
             "  tgc_tma_load_pixels(")
    .replace(", at);", ", at, tap);")
)  # fmt: skip
STORE = """
char* box = smem + 1024;
int at[%d];
for (int i = 0; i < %d; i++) at[i] = tgc_load(p.at, i);
for (int i = threadIdx.x; i < p.bytes; i += blockDim.x) box[i] = (char)tgc_load(p.in, i);
tgc_proxy_fence();
__syncthreads();
if (threadIdx.x == 0) {
  tgc_tma_store(p.map, box, at);
  tgc_tma_store_commit();
  tgc_tma_store_wait<0>();
}
"""
LOAD_FIELDS = "const void* data; const tgc_tensor_map* map; const int* at; unsigned char* out; "
STORE_FIELDS = "void* data; const tgc_tensor_map* map; const int* at; const unsigned char* in; "
SIZE = "long long bytes;"

# A warp passes numbers to another through two slots.
RING = """
auto* full = reinterpret_cast<unsigned long long*>(smem);
auto* empty = full + 2;
int* slots = reinterpret_cast<int*>(smem + 64);
int lane = threadIdx.x % 32;
if (threadIdx.x == 0) {
  for (int slot = 0; slot < 2; slot++) {
    tgc_barrier_init(full + slot, 32);
    tgc_barrier_init(empty + slot, 32);
  }
  tgc_barrier_fence();
}
__syncthreads();
for (int i = 0; i < 9; i++) {
  int slot = i % 2;
  unsigned parity = i / 2 % 2;
  if (threadIdx.x < 32) {
    tgc_barrier_wait(empty + slot, parity ^ 1);
    slots[slot * 32 + lane] = i * 100 + lane;
    tgc_barrier_arrive(full + slot);
  } else {
    while (!tgc_barrier_try_wait(full + slot, parity)) {}
    tgc_store(p.out, i * 32 + lane, slots[slot * 32 + 31 - lane]);
    tgc_barrier_arrive(empty + slot);
  }
}
"""
# Three warps of four meet at barrier 1; the fourth arrives at barrier 2, where the first waits.
NAMED = """
int* values = reinterpret_cast<int*>(smem);
int warp = threadIdx.x / 32;
if (warp < 3) {
  values[threadIdx.x] = threadIdx.x;
  tgc_named_barrier(1, 96);
  tgc_store(p.out, threadIdx.x, values[95 - threadIdx.x]);
} else {
  values[threadIdx.x] = 7 * threadIdx.x;
  tgc_named_barrier_arrive(2, 64);
}
if (warp == 0) {
  tgc_named_barrier(2, 64);
  tgc_store(p.out, 96 + threadIdx.x, values[96 + threadIdx.x]);
}
"""
STMATRIX = """
unsigned r[4];
for (int i = 0; i < 4; i++) r[i] = tgc_load(p.in, threadIdx.x * 4 + i);
unsigned short* tile = reinterpret_cast<unsigned short*>(smem);
tgc_stmatrix_x4%s(tile + (threadIdx.x ^ 5) * 8, r);
__syncwarp();
for (int i = threadIdx.x; i < 256; i += 32) tgc_store(p.out, i, tile[i]);
"""
# Each block of a cluster sends its half of a box to all, and reads what all have sent.
MULTICAST = """
auto* barrier = reinterpret_cast<unsigned long long*>(smem);
float* box = reinterpret_cast<float*>(smem + 1024);
int rank = tgc_cluster_rank(), blocks = (int)p.blocks;
if (threadIdx.x == 0) {
  tgc_barrier_init(barrier, 1);
  tgc_barrier_fence();
}
tgc_cluster_sync();
if (threadIdx.x == 0) {
  tgc_barrier_expect(barrier, 128 * blocks);
  int at[2] = {0, virtual_block};
  tgc_tma_load_multicast(box + rank * 32, p.map, barrier, at, (unsigned short)((1 << blocks) - 1));
}
tgc_barrier_wait(barrier, 0);
int lane = threadIdx.x % 32;
for (int i = 0; i < blocks; i++)
  tgc_store(p.out, (virtual_block * blocks + i) * 32 + lane, box[i * 32 + lane]);
tgc_cluster_sync();
"""
MULTICAST_FIELDS = "const void* data; const tgc_tensor_map* map; float* out; long long blocks;"
# Block 0 counts the arrivals of all threads of the others.
REMOTE = """
auto* barrier = reinterpret_cast<unsigned long long*>(smem);
if (threadIdx.x == 0) {
  tgc_barrier_init(barrier, (int)p.blocks * 32);
  tgc_barrier_fence();
}
tgc_cluster_sync();
tgc_barrier_arrive_remote(barrier, 0);
if (tgc_cluster_rank() == 0) {
  tgc_barrier_wait(barrier, 0);
  tgc_store(p.out, virtual_block * 32 + threadIdx.x, virtual_block);
}
"""
# All arrive at the other block of two, and do not wait: its memory must outlive that.
LAST = """
auto* barrier = reinterpret_cast<unsigned long long*>(smem);
if (threadIdx.x == 0) {
  tgc_barrier_init(barrier, 32);
  tgc_barrier_fence();
}
tgc_cluster_sync();
tgc_barrier_arrive_remote(barrier, tgc_cluster_rank() ^ 1);
tgc_store(p.out, virtual_block * 32 + threadIdx.x, virtual_block);
tgc_cluster_sync();
"""

FIRST = "auto* barrier = reinterpret_cast<unsigned long long*>(smem);\n"
SET = "tgc_barrier_init(barrier, 1);\ntgc_barrier_fence();\n"
FAULTS = {
    "unset": (FIRST + "tgc_barrier_arrive(barrier);", "uses an mbarrier that is not set"),
    "too_often": (
        FIRST + "if (threadIdx.x == 0) {" + SET + "tgc_barrier_expect(barrier, 16);"
        "tgc_barrier_arrive(barrier); }",
        "arrives too often",
    ),
    "unfenced": (
        FIRST
        + "tgc_tensor_map map = {}; map.words[1] = 4 | 1 << 8; map.words[11] = 4; int at[1] = {0};"
        "if (threadIdx.x == 0) { tgc_barrier_init(barrier, 1);"
        "tgc_tma_load(smem + 128, &map, barrier, at); }",
        "copies before its mbarrier is fenced",
    ),
    "axes": (
        FIRST + "tgc_tensor_map map = {}; map.words[1] = 4 | 1 << 8; int at[2] = {0, 0};"
        "if (threadIdx.x == 0) {" + SET + "tgc_tma_load(smem + 128, &map, barrier, at); }",
        "copies a box of other axes than its tensor map",
    ),
    "never": (FIRST + "if (threadIdx.x == 0) {" + SET + "tgc_barrier_wait(barrier, 0); }", "hangs"),
    "other_threads": (
        "tgc_named_barrier(1, threadIdx.x < 32 ? 64 : 96);",
        "disagrees about a named barrier",
    ),
    "misaligned": (FIRST + "tgc_barrier_init(barrier + 1000, 1);", "not aligned in shared memory"),
}
EVERYTHING = "".join(
    [
        *(kernel(f"load_{n}", LOAD_FIELDS + SIZE, LOAD % (n, n)) for n in range(1, 6)),
        kernel("load_pixels", LOAD_FIELDS + SIZE, PIXELS),
        *(kernel(f"store_{n}", STORE_FIELDS + SIZE, STORE % (n, n)) for n in range(1, 6)),
        kernel("ring", "int* out;", RING),
        kernel("named", "int* out;", NAMED),
        kernel("stmatrix", "const unsigned* in; unsigned short* out;", STMATRIX % ""),
        kernel("stmatrix_trans", "const unsigned* in; unsigned short* out;", STMATRIX % "_trans"),
        kernel("multicast", MULTICAST_FIELDS, MULTICAST),
        kernel("multicast_3", MULTICAST_FIELDS, MULTICAST.replace("at[2] = {0,", "at[3] = {0, 0,")),
        kernel("remote", "int* out; long long blocks;", REMOTE),
    ]
)


# Parts of a copy's text, and what a fault makes of them.
PLANTED = {
    "load_without_wait": ("tgc_barrier_wait", "if (0) tgc_barrier_wait"),
    "load_of_the_other_phase": ("barrier, 0)", "barrier, 1)"),
    "load_of_fewer_bytes": ("(int)p.bytes", "(int)p.bytes - 16"),
    "store_without_proxy_fence": ("tgc_proxy_fence();", ""),
    "store_without_barrier": ("__syncthreads();", ""),
    "store_without_wait": ("tgc_tma_store_wait<0>();", ""),
    "store_without_commit": ("tgc_tma_store_commit();", ""),
}
SYNC = "tgc_cluster_sync();\n"


def planted(name: str) -> str:
    """A copy of two axes with the fault."""
    fields, text = (LOAD_FIELDS, LOAD) if name.startswith("load") else (STORE_FIELDS, STORE)
    before, after = PLANTED[name]
    assert before in text
    return kernel(name, fields + SIZE, (text % (2, 2)).replace(before, after))


@pytest.fixture(scope="module")
def unit() -> EmulatedModule:
    texts = [kernel(name, "int* out;", text) for name, (text, _) in FAULTS.items()]
    texts += [planted(name) for name in PLANTED]
    without_first = MULTICAST.replace(SYNC, "", 1)
    texts.append(kernel("no_first_sync", MULTICAST_FIELDS, without_first))
    texts.append(kernel("last", "int* out;", LAST))
    texts.append(kernel("no_last_sync", "int* out;", LAST.removesuffix(SYNC)))
    return EmulatedModule(prelude() + tma_prelude() + EVERYTHING + "".join(texts))


def aligned(x: Array) -> Array:
    """A copy of the array that begins at an address divisible by 128."""
    memory = np.zeros(x.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 128
    own = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    own[...] = x
    return own


def map_of(x: Array, box: tuple[int, ...], swizzle: int = 0) -> Array:
    """The map of a C-contiguous array; `box` as NumPy has it, outermost first."""
    strides = tuple(x.strides[::-1][1:])
    return tensor_map(x.ctypes.data, x.itemsize, x.shape[::-1], strides, box[::-1], swizzle)


def cut(x: Array, at: tuple[int, ...], box: tuple[int, ...]) -> Array:
    """The box at an element of the array, zeros outside."""
    index = np.meshgrid(*(np.arange(a, a + n) for a, n in zip(at, box)), indexing="ij")
    inside = np.all([(i >= 0) & (i < n) for i, n in zip(index, x.shape)], 0)
    return np.where(inside, x[tuple(np.where(inside, i, 0) for i in index)], x.dtype.type(0))


def swizzled(image: Array, swizzle: int) -> Array:
    """In each 128 bytes the pieces of 16 bytes change places, by the number of the 128 bytes."""
    period = max(swizzle // 16, 1)
    padded = np.zeros(-(-image.size // 128) * 128, np.uint8)
    padded[: image.size] = image
    pieces = padded.reshape(-1, 8, 16)
    lines = np.arange(len(pieces))[:, None]
    to = np.arange(8)[None] ^ (lines % period)
    out = np.empty_like(pieces)
    out[lines, to] = pieces
    return out.reshape(-1)[: image.size]


CASES = [
    ("uint8", (300,), (16,), (96,), 0),
    ("float32", (12, 20), (3, 4), (6, 8), 0),
    ("float32", (12, 20), (-2, -3), (6, 8), 32),
    ("uint16", (40, 64), (30, 40), (24, 64), 128),
    ("uint16", (40, 72), (-5, 8), (16, 32), 64),
    ("int64", (9, 6), (5, 3), (8, 4), 32),
    ("uint16", (3, 20, 64), (1, -4, 0), (2, 16, 64), 128),
    ("float32", (2, 3, 5, 8), (-1, 1, 2, 4), (3, 2, 4, 8), 32),
    ("uint8", (2, 3, 2, 5, 48), (1, 1, 0, 1, 16), (2, 2, 2, 3, 32), 0),
]


@pytest.mark.parametrize("order", [0, 1, 3, 4])
@pytest.mark.parametrize(("dtype", "shape", "at", "box", "swizzle"), CASES)
def test_a_box_reaches_shared_memory(
    unit: EmulatedModule,
    dtype: str,
    shape: tuple[int, ...],
    at: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int,
    order: int,
) -> None:
    x = aligned(np.random.default_rng(0).integers(1, 100, shape).astype(dtype))
    expected = swizzled(cut(x, at, box).reshape(-1).view(np.uint8), swizzle)
    out = np.zeros(expected.size, np.uint8)
    start = np.array(at[::-1], np.int32)
    arguments = (x, map_of(x, box, swizzle), start, out, out.size)
    launch(unit, f"load_{x.ndim}", *arguments, block=64, shared=1024 + 8192, order=order)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("dtype", "shape", "at", "box", "swizzle"), CASES)
def test_a_box_leaves_shared_memory(
    unit: EmulatedModule,
    dtype: str,
    shape: tuple[int, ...],
    at: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int,
    order: int,
) -> None:
    """What lies outside the tensor is not stored, the rest of the tensor stays."""
    x = aligned(np.zeros(shape, dtype))
    image = np.random.default_rng(0).integers(1, 100, box).astype(dtype)
    expected = x.copy()
    for index in np.ndindex(*box):
        to = tuple(a + i for a, i in zip(at, index))
        if all(0 <= i < n for i, n in zip(to, shape)):
            expected[to] = image[index]
    given = swizzled(image.reshape(-1).view(np.uint8), swizzle)
    start = np.array(at[::-1], np.int32)
    arguments = (x, map_of(x, box, swizzle), start, given, given.size)
    launch(unit, f"store_{x.ndim}", *arguments, block=64, shared=1024 + 8192, order=order)
    np.testing.assert_array_equal(x, expected)


def outcome(unit: EmulatedModule, name: str, order: int) -> bool:
    """Whether a kernel on one 8 x 32 box of float32 ends and gives it."""
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    source, target = aligned(x), aligned(np.zeros_like(x))
    tensor, other = (source, target) if name.startswith("load") else (target, source)
    arguments = (tensor, map_of(tensor, (8, 32)), np.zeros(2, np.int32), other.view(np.uint8))
    try:
        launch(unit, name, *arguments, x.nbytes, block=64, shared=2048, order=order)
    except KernelFault:
        return False
    return np.array_equal(target, x)


@pytest.mark.parametrize("name", PLANTED)
def test_each_fault_of_a_copy_shows(unit: EmulatedModule, name: str) -> None:
    assert all(outcome(unit, f"{name[: name.index('_')]}_2", order) for order in ORDERS)
    assert not all(outcome(unit, name, order) for order in ORDERS)


# Barriers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", range(9))
def test_a_ring_of_two_slots(unit: EmulatedModule, order: int) -> None:
    out = np.zeros((9, 32), np.int32)
    launch(unit, "ring", out, block=64, shared=512, order=order)
    np.testing.assert_array_equal(out, np.arange(9)[:, None] * 100 + np.arange(32)[::-1])


@pytest.mark.parametrize("order", range(5))
def test_barriers_of_some_warps(unit: EmulatedModule, order: int) -> None:
    out = np.zeros(128, np.int32)
    launch(unit, "named", out, block=128, shared=512, order=order)
    np.testing.assert_array_equal(out, [*range(95, -1, -1), *range(7 * 96, 7 * 128, 7)])


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("order", [0, 1])
def test_what_barriers_forbid(unit: EmulatedModule, name: str, order: int) -> None:
    with pytest.raises(KernelFault, match=re.escape(FAULTS[name][1])):
        launch(unit, name, np.zeros(1, np.int32), block=64, shared=2048, order=order)


@pytest.mark.parametrize("name", ["stmatrix", "stmatrix_trans"])
def test_four_matrices_to_shared_memory(unit: EmulatedModule, name: str) -> None:
    matrices = np.random.default_rng(0).permutation(256).astype(np.uint16).reshape(4, 8, 8)
    lanes = np.arange(32)
    rows, columns = lanes // 4, lanes % 4 * 2
    source = matrices.swapaxes(1, 2) if name.endswith("trans") else matrices
    low, high = (source[:, rows, columns + i].T.astype(np.uint32) for i in (0, 1))
    out = np.zeros((32, 8), np.uint16)
    launch(unit, name, np.ascontiguousarray(low | high << 16), out, shared=512)
    np.testing.assert_array_equal(out[lanes ^ 5], matrices.reshape(32, 8))


# Clusters -----------------------------------------------------------------------------------------


def run_cluster(unit: EmulatedModule, name: str, blocks: int, order: int) -> bool:
    x = aligned(np.random.default_rng(0).standard_normal((2 * blocks, 32)).astype(np.float32))
    out = np.zeros((2 * blocks, blocks, 32), np.float32)
    three = name.endswith("3")
    source = map_of(x[:, None] if three else x, (1, 1, 32) if three else (1, 32))
    words = np.array([v.ctypes.data for v in (x, source, out)] + [blocks], np.uint64)
    ranges = [(v.ctypes.data, v.nbytes) for v in (x, source, out)]
    try:
        unit.launch(name, 2 * blocks, 64, 2048, words, ranges, order, cluster=blocks)
    except KernelFault:
        return False
    expected = x.reshape(2, 1, blocks, 32).repeat(blocks, 1)
    return np.array_equal(out, expected.reshape(out.shape))


@pytest.mark.parametrize("name", ["multicast", "multicast_3"])
@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
@pytest.mark.parametrize("order", ORDERS)
def test_multicast_to_the_blocks_of_a_cluster(
    unit: EmulatedModule, blocks: int, order: int, name: str
) -> None:
    assert run_cluster(unit, name, blocks, order)


def test_a_missing_first_barrier_of_the_cluster_shows(unit: EmulatedModule) -> None:
    assert not all(run_cluster(unit, "no_first_sync", 2, order) for order in ORDERS)


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_last_barrier_of_the_cluster_shows(unit: EmulatedModule, order: int) -> None:
    out = np.zeros((4, 32), np.int32)
    words, ranges = np.array([out.ctypes.data], np.uint64), [(out.ctypes.data, out.nbytes)]
    unit.launch("last", 4, 32, 512, words, ranges, order, cluster=2)
    np.testing.assert_array_equal(out, np.arange(4)[:, None].repeat(32, 1))
    with pytest.raises(KernelFault, match="reaches a block of its cluster that has ended"):
        unit.launch("no_last_sync", 4, 32, 512, words, ranges, order, cluster=2)


@pytest.mark.parametrize("order", ORDERS)
def test_arrivals_from_other_blocks(unit: EmulatedModule, order: int) -> None:
    out = np.zeros((6, 32), np.int32)
    words, ranges = np.array([out.ctypes.data, 3], np.uint64), [(out.ctypes.data, out.nbytes)]
    unit.launch("remote", 6, 32, 512, words, ranges, order, cluster=3)
    np.testing.assert_array_equal(out, np.array([0, 0, 0, 3, 0, 0])[:, None].repeat(32, 1))


def test_clusters_that_the_emulator_does_not_run(unit: EmulatedModule) -> None:
    words = np.zeros(2, np.uint64)
    for grid, block, cluster in ((3, 32, 2), (2, 48, 2), (3, 1024, 3), (9, 32, 9)):
        with pytest.raises(ArgumentError, match="cluster"):
            unit.launch("remote", grid, block, 0, words, [], 0, cluster=cluster)


# Pixels -------------------------------------------------------------------------------------------


def pixels_by_tap(
    x: Array, at: tuple[int, int, int, int], tap: tuple[int, int], count: int, corners: Any
) -> Array:
    """`count` pixels of images (N, H, W, C) from {c, w, h, n} on, at a tap; zeros outside."""
    (left, top), (right, bottom), (across, down) = corners
    images, height, width, _ = x.shape
    columns, rows = range(left, width + right, across), range(top, height + bottom, down)
    order = [(n, h, w) for n in range(images + 2) for h in rows for w in columns]
    start = order.index((at[3], at[2], at[1]))
    out = np.zeros((count, 8), x.dtype)
    for number, (n, h, w) in enumerate(order[start : start + count]):
        y, z = h + tap[1], w + tap[0]
        if n < images and 0 <= y < height and 0 <= z < width:
            out[number] = x[n, y, z, at[0] : at[0] + 8]
    return out


PIXEL_CASES = [
    # first pixel, tap, corners and steps
    ((0, -1, -1, 0), (0, 0), ((-1, -1), (-1, -1), (1, 1))),
    ((8, 2, 3, 0), (2, 1), ((-1, -1), (-1, -1), (1, 1))),
    ((0, 1, -2, 1), (0, 3), ((-1, -2), (0, -1), (2, 3))),
    ((16, 0, 0, 1), (0, 0), ((0, 0), (0, 0), (1, 1))),
]


@pytest.mark.parametrize("order", [0, 1, 3, 4])
@pytest.mark.parametrize(("at", "tap", "corners"), PIXEL_CASES)
def test_pixels_of_windows_reach_shared_memory(
    unit: EmulatedModule, at: Any, tap: Any, corners: Any, order: int
) -> None:
    """Along rows, columns and images, beyond the last one, too."""
    x = aligned(np.random.default_rng(1).integers(1, 100, (2, 6, 5, 24)).astype("uint16"))
    expected = pixels_by_tap(x, at, tap, 70, corners).reshape(-1).view(np.uint8)
    out, start = np.zeros(expected.size, np.uint8), np.array((*at, *tap), np.int32)
    strides = tuple(x.strides[::-1][1:])
    pixels = tensor_map(x.ctypes.data, 2, x.shape[::-1], strides, (8, 70), 0, corners)
    arguments = (x, pixels, start, out, out.size)
    launch(unit, "load_pixels", *arguments, block=64, shared=1024 + 8192, order=order)
    np.testing.assert_array_equal(out, swizzled(expected, 0))


def test_a_map_of_pixels_is_no_map_of_boxes(unit: EmulatedModule) -> None:
    x = aligned(np.ones((2, 6, 5, 8), np.uint16))
    out, start = np.zeros(16 * 70, np.uint8), np.zeros(6, np.int32)
    boxes = map_of(x, (1, 2, 5, 8))
    with pytest.raises(KernelFault, match="of other axes"):
        launch(unit, "load_pixels", x, boxes, start, out, out.size, block=64, shared=9216, order=0)


# Maps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expect"),
    [
        ({"address": 8}, "divisible by 16"),
        ({"itemsize": 3}, "1, 2, 4 or 8 bytes"),
        ({"strides": (24,)}, "strides divisible by 16"),
        ({"strides": ()}, "1 strides"),
        ({"box": (64, 257)}, "1 to 256 elements"),
        ({"box": (4, 8), "swizzle": 0}, "rows of whole 16 bytes"),
        ({"box": (64,)}, "a box of 2 axes"),
        ({"swizzle": 64}, "rows of 64 bytes"),
        ({"swizzle": 48}, "a swizzle of"),
        ({"shape": (0, 7)}, "sizes from 1"),
        ({"shape": (1,) * 6}, "1 to 5 axes"),
    ],
)
def test_maps_that_a_gpu_refuses(change: dict[str, Any], expect: str) -> None:
    form: dict[str, Any] = {"address": 64, "itemsize": 2, "shape": (100, 7), "strides": (208,)}
    form |= {"box": (64, 8), "swizzle": 128}
    tensor_map(**form)
    with pytest.raises(ArgumentError, match=re.escape(expect)):
        tensor_map(**(form | change))


@pytest.mark.parametrize(
    ("change", "expect"),
    [
        ({"box": (64, 1025)}, "1 to 256 elements"),
        ({"box": (64, 8, 1, 1)}, "a box of 2 axes"),
        ({"pixels": ((-129, 0), (0, 0), (1, 1))}, "a pixel box in range"),
        ({"pixels": ((0, 0), (0, 128), (1, 1))}, "a pixel box in range"),
        ({"pixels": ((0, 0), (0, 0), (9, 1))}, "a pixel box in range"),
        ({"pixels": ((0,), (0,), (1,))}, "a pixel box in range"),
    ],
)
def test_maps_of_pixels_that_a_gpu_refuses(change: dict[str, Any], expect: str) -> None:
    form: dict[str, Any] = {"address": 64, "itemsize": 2, "shape": (64, 5, 6, 2), "box": (64, 1024)}
    form |= {"strides": (128, 640, 3840), "swizzle": 128, "pixels": ((-1, -1), (-1, 2), (1, 8))}
    tensor_map(**form)
    with pytest.raises(ArgumentError, match=re.escape(expect)):
        tensor_map(**(form | change))


# Machine code -------------------------------------------------------------------------------------


def test_the_kernels_above_use_every_function() -> None:
    names = set(re.findall(r"TGC_DEVICE \w+ (tgc_\w+)\(", tma_prelude())) - {"tgc_shared_address"}
    names |= set(re.findall(r"^TGC_STMATRIX\((\w+),", tma_prelude(), re.MULTILINE))
    assert len(names) == 21
    assert names <= set(re.findall(r"tgc_\w+", EVERYTHING))
    assert all(TMA_NAMES.search(f"  {name}(r);") for name in names)
    assert not TMA_NAMES.search(prelude() + mma_prelude())


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100", "sm_120"])
def test_nvrtc_compiles_every_function(arch: str) -> None:
    binary = compile_source(prelude() + tma_prelude() + EVERYTHING, arch)
    assert binary.cubin[:4] == b"\x7fELF"
    # The assembler advises against multicast where it would be slow.
    assert not [
        line for line in binary.log.splitlines() if "warning" in line and "multicast" not in line
    ]


def test_an_older_architecture_is_refused_in_words() -> None:
    with pytest.raises(CompileError, match=re.escape("tma.cuh needs sm_90")):
        compile_source(prelude() + tma_prelude() + EVERYTHING, "sm_89")
