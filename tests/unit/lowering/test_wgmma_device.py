"""wgmma.cuh: products of warpgroups on emu against NumPy, a pipeline of them, and its faults."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulation import kernel

from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.emu.runtime import EmulatedModule, KernelFault, prelude
from tinygrad_cuda.backend.emu.tensor_map import tensor_map
from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.lowering.codegen.pack import (
    WGMMA_NAMES,
    mma_prelude,
    tma_prelude,
    wgmma_prelude,
)

Array = np.ndarray[Any, Any]

ORDERS = range(5)  # 1 to 4 show every moment at which a copy or a product may take effect
DTYPES = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
    "tf32": np.dtype(np.float32),
}

# One product: images of a at byte 0 and of b at byte 32768 of shared memory, made by the host.
ONE = """
for (int i = threadIdx.x; i < p.a_bytes; i += blockDim.x) smem[i] = (char)tgc_load(p.a, i);
for (int i = threadIdx.x; i < p.b_bytes; i += blockDim.x) smem[32768 + i] = (char)tgc_load(p.b, i);
tgc_proxy_fence();
__syncthreads();
float d[@n@ / 2];
for (int i = 0; i < @n@ / 2; i++) d[i] = tgc_load(p.d, threadIdx.x * (@n@ / 2) + i);
auto a = tgc_wgmma_descriptor(smem, (int)p.a_leading, (int)p.a_stride, (int)p.width);
auto b = tgc_wgmma_descriptor(smem + 32768, (int)p.b_leading, (int)p.b_stride, (int)p.width);
@registers@
tgc_wgmma_fence();
@product@
tgc_wgmma_commit();
tgc_wgmma_wait<0>();
tgc_wgmma_complete(d);
for (int i = 0; i < @n@ / 2; i++) tgc_store(p.d, threadIdx.x * (@n@ / 2) + i, d[i]);
"""
ONE_FIELDS = (
    "const unsigned char* a; const unsigned char* b; float* d; const unsigned* registers; "
    "long long a_bytes; long long b_bytes; long long a_leading; long long a_stride; "
    "long long b_leading; long long b_stride; long long width; long long accumulate;"
)
REGISTERS = """
unsigned r[4];
for (int i = 0; i < 4; i++) r[i] = tgc_load(p.registers, threadIdx.x * 4 + i);
"""


def one(name: str, n: int, a_mn: bool, b_mn: bool, in_registers: bool) -> str:
    """A kernel of one product of 64 x n."""
    form = "" if name == "tf32" else f", {int(b_mn)}" if in_registers else f", {a_mn:d}, {b_mn:d}"
    call, first = ("_rs", "r") if in_registers else ("", "a")
    product = f"tgc_wgmma_{name}{call}<{n}{form}>(d, {first}, b, p.accumulate);"
    text = ONE.replace("@n@", str(n)).replace("@product@", product)
    text = text.replace("@registers@", REGISTERS if in_registers else "")
    return kernel(f"{name}_{n}_{a_mn:d}{b_mn:d}{in_registers:d}", ONE_FIELDS, text, 128)


FORMS = [
    *((name, 64, a, b, False) for name in ("bf16", "fp16") for a in (0, 1) for b in (0, 1)),
    *(("bf16", 64, 0, b, True) for b in (0, 1)),
    ("fp16", 64, 0, 1, True),
    ("tf32", 64, 0, 0, False),
    ("tf32", 64, 0, 0, True),
    *(("bf16", n, 0, 0, False) for n in (8, 16, 32, 96, 128, 160, 192, 224, 256)),
    *(("bf16", n, 0, 1, True) for n in (8, 256)),
    *(("fp16", n, 1, 1, False) for n in (128, 256)),
    ("tf32", 256, 0, 0, False),
]

# d (64 blocks, 64) = a b^T over k in tiles of 64: warp 4 brings tiles of 64 x 64 bfloat16 to three
# slots of 16384 bytes, warps 0 to 3 multiply them, and the result leaves by TMA from the first slot
# once all products are done. In a cluster each block loads its share of b's rows for all blocks.
PIPELINE = """
constexpr int slots = 3, slot_bytes = 16384;
auto* full = reinterpret_cast<unsigned long long*>(smem + slots * slot_bytes);
auto* empty = full + slots;
int tiles = (int)p.tiles, rank = tgc_cluster_rank(), warp = threadIdx.x / 32;
if (threadIdx.x == 0) {
  for (int slot = 0; slot < slots; slot++) {
    tgc_barrier_init(full + slot, 1);
    tgc_barrier_init(empty + slot, @blocks@);
  }
  tgc_barrier_fence();
}
tgc_cluster_sync();  // first
if (warp == 4) {
  tgc_registers_give<24>();
  if (threadIdx.x % 32 == 0) {
    for (int tile = 0; tile < tiles; tile++) {
      int slot = tile % slots;
      tgc_barrier_wait(empty + slot, (unsigned)(tile / slots % 2 ^ 1));
      tgc_barrier_expect(full + slot, slot_bytes);
      int a_at[2] = {tile * 64, virtual_block * 64}, b_at[2] = {tile * 64, rank * 64 / @blocks@};
      tgc_tma_load(smem + slot * slot_bytes, p.a_map, full + slot, a_at);
      tgc_tma_load_multicast(smem + slot * slot_bytes + 8192 + rank * 8192 / @blocks@, p.b_map,
                             full + slot, b_at, (1 << @blocks@) - 1);
    }
  }
} else {
  tgc_registers_take<240>();
  float d[32];
  for (int i = 0; i < 32; i++) d[i] = 0;
  for (int tile = 0; tile < tiles; tile++) {
    int slot = tile % slots;
    tgc_barrier_wait(full + slot, (unsigned)(tile / slots % 2));
    auto a = tgc_wgmma_descriptor(smem + slot * slot_bytes, 0, 1024, 8);
    auto b = tgc_wgmma_descriptor(smem + slot * slot_bytes + 8192, 0, 1024, 8);
    tgc_wgmma_fence();
    for (int k = 0; k < 4; k++) tgc_wgmma_bf16<64>(d, a + 2 * k, b + 2 * k, tile + k > 0);
    tgc_wgmma_commit();
    tgc_wgmma_wait<1>();
    // The products of the tile before are complete in this warp, and after the barrier in all.
    tgc_named_barrier(1, 128);
    if (tile > 0 && threadIdx.x < @blocks@)
      tgc_barrier_arrive_remote(empty + (tile - 1) % slots, threadIdx.x);
  }
  tgc_wgmma_wait<0>();
  tgc_named_barrier(1, 128);  // last
  float* out = reinterpret_cast<float*>(smem);
  for (int i = 0; i < 32; i++) {
    int row = warp * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
    out[row * 64 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
  }
  tgc_proxy_fence();
  tgc_named_barrier(2, 128);
  if (threadIdx.x == 0) {
    int at[2] = {0, virtual_block * 64};
    tgc_tma_store(p.d_map, smem, at);
    tgc_tma_store_commit();
    tgc_tma_store_wait<0>();
  }
}
tgc_cluster_sync();  // end
"""
PIPELINE_FIELDS = (
    "const void* a; const void* b; void* d; const tgc_tensor_map* a_map; "
    "const tgc_tensor_map* b_map; const tgc_tensor_map* d_map; long long tiles;"
)
FULL = "tgc_barrier_wait(full + slot, (unsigned)(tile / slots % 2));"
EMPTY = "tgc_barrier_wait(empty + slot, (unsigned)(tile / slots % 2 ^ 1));"
LOOP = "    tgc_wgmma_wait<1>();\n"
# By name: the parts that are replaced, the blocks of a cluster.
FAULTS: dict[str, tuple[dict[str, str], int]] = {
    "no_wait_for_full": ({FULL: ""}, 1),
    "wrong_phase_of_full": ({FULL: FULL.replace("2)", "2 ^ 1)")}, 1),
    "no_wait_for_empty": ({EMPTY: ""}, 1),
    "wrong_phase_of_empty": ({EMPTY: EMPTY.replace(" ^ 1", "")}, 1),
    "slot_given_back_early": ({"tile > 0 &&": "", "(tile - 1) %": "tile %"}, 1),
    "no_wait_in_the_loop": ({LOOP: ""}, 1),
    "no_last_wait": ({"  tgc_wgmma_wait<0>();\n": ""}, 1),
    "no_last_barrier": ({"  tgc_named_barrier(1, 128);  // last\n": ""}, 1),
    "no_commit": ({"tgc_wgmma_commit();": ""}, 1),
    "no_fence": ({"tgc_wgmma_fence();": ""}, 1),
    "no_proxy_fence": ({"tgc_proxy_fence();": ""}, 1),
    "no_barrier_before_the_store": ({"tgc_named_barrier(2, 128);": ""}, 1),
    "no_wait_for_the_store": ({"tgc_tma_store_wait<0>();": ""}, 1),
    "fewer_bytes": ({"full + slot, slot_bytes)": "full + slot, slot_bytes - 64)"}, 1),
    "no_first_cluster_barrier": ({"tgc_cluster_sync();  // first": "__syncthreads();"}, 2),
    "no_last_cluster_barrier": ({"tgc_cluster_sync();  // end": ""}, 2),
    "arrives_at_its_own_block_alone": (
        {"threadIdx.x < 2": "threadIdx.x == rank", "(empty + slot, 2)": "(empty + slot, 1)"},
        2,
    ),
}


# The same product by the warpgroup alone: each thread copies 8 pieces of 16 bytes of a tile, two
# tiles ahead, to where the swizzle has them.
COPIES = """
constexpr int slots = 3, slot_bytes = 16384;
int tiles = (int)p.tiles, thread = threadIdx.x;
auto bring = [&](int tile) {
  for (int i = 0; i < 8; i++) {
    int row = thread / 8 + i % 4 * 16, piece = thread % 8;
    const unsigned short* from = i < 4 ? p.a + virtual_block * 64 * p.k : p.b;
    from += row * p.k + tile * 64 + piece * 8;
    int to = tile % slots * slot_bytes + i / 4 * 8192 + row * 128 + (piece ^ row % 8) * 16;
    tgc_copy_async16(smem + to, from, tile < tiles);
  }
  tgc_copy_commit();
};
float d[32];
for (int i = 0; i < 32; i++) d[i] = 0;
bring(0);
bring(1);
for (int tile = 0; tile < tiles; tile++) {
  tgc_copy_wait<1>();
  tgc_proxy_fence();
  __syncthreads();
  const char* slot = smem + tile % slots * slot_bytes;
  auto a = tgc_wgmma_descriptor(slot, 0, 1024, 8);
  auto b = tgc_wgmma_descriptor(slot + 8192, 0, 1024, 8);
  tgc_wgmma_fence();
  for (int k = 0; k < 4; k++) tgc_wgmma_bf16<64>(d, a + 2 * k, b + 2 * k, true);
  tgc_wgmma_commit();
  tgc_wgmma_wait<1>();
  __syncthreads();  // behind
  bring(tile + 2);
}
tgc_wgmma_wait<0>();
for (int i = 0; i < 32; i++) {
  int row = virtual_block * 64 + thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
  tgc_store(p.d, row * 64 + i / 4 * 8 + thread % 4 * 2 + i % 2, d[i]);
}
"""
COPIES_FIELDS = (
    "const unsigned short* a; const unsigned short* b; float* d; long long tiles; long long k;"
)
COPY_FAULTS = {
    "copies_not_waited_for": ("  tgc_copy_wait<1>();\n", ""),
    "copies_not_fenced": ("  tgc_proxy_fence();\n", ""),
    "fence_before_wait": (
        "  tgc_copy_wait<1>();\n  tgc_proxy_fence();\n",
        "  tgc_proxy_fence();\n  tgc_copy_wait<1>();\n",
    ),
    "no_barrier_after_the_fence": ("  __syncthreads();\n  const", "  const"),
    "slot_under_products": ("slots = 3", "slots = 2"),
    "no_wait_for_products": ("  tgc_wgmma_wait<1>();\n", ""),
    "no_barrier_behind_products": ("  __syncthreads();  // behind\n", ""),
}


def pipeline(blocks: int, changes: dict[str, str]) -> str:
    """The text, with parts replaced, of which each is there."""
    text = PIPELINE.replace("@blocks@", str(blocks))
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return text


PRELUDES = prelude() + mma_prelude() + tma_prelude() + wgmma_prelude()
KERNELS = "".join(
    [
        *(one(name, n, bool(a), bool(b), rs) for name, n, a, b, rs in FORMS),
        *(kernel(f"pipeline_{n}", PIPELINE_FIELDS, pipeline(n, {}), 160) for n in (1, 2, 4)),
        kernel("copies", COPIES_FIELDS, COPIES, 128),
    ]
)


@pytest.fixture(scope="module")
def unit() -> EmulatedModule:
    faults = "".join(
        kernel(name, PIPELINE_FIELDS, pipeline(blocks, changes), 160)
        for name, (changes, blocks) in FAULTS.items()
    )
    for name, (before, after) in COPY_FAULTS.items():
        assert before in COPIES
        faults += kernel(name, COPIES_FIELDS, COPIES.replace(before, after), 128)
    return EmulatedModule(PRELUDES + KERNELS + faults)


def run(unit: EmulatedModule, name: str, *values: Any, order: int = 0, **sizes: int) -> None:
    """Launches a kernel on arrays and integers."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    words = [v.ctypes.data if isinstance(v, np.ndarray) else v for v in values]
    ranges = [(array.ctypes.data, array.nbytes) for array in arrays]
    grid, block, shared = sizes.pop("grid", 1), sizes.pop("block"), sizes.pop("shared")
    unit.launch(name, grid, block, shared, np.array(words, np.uint64), ranges, order, **sizes)


def aligned(x: Array) -> Array:
    """A copy of the array that begins at an address divisible by 128."""
    memory = np.zeros(x.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 128
    own = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    own[...] = x
    return own


# One product --------------------------------------------------------------------------------------


def image(x: Array, mn_major: bool, width: int, leading: int, stride: int) -> Array:
    """The bytes of a tile (rows of k) in shared memory, as wgmma.cuh draws it."""
    piece = 16 // x.itemsize
    memory = np.zeros(65536, np.uint8)
    lines = x.T if mn_major else x
    for line, values in enumerate(np.ascontiguousarray(lines)):
        for number, part in enumerate(values.reshape(-1, piece)):
            group, block = divmod(number, width)
            if width == 1:
                apart = (leading, stride) if mn_major else (stride, leading)
            else:
                apart = (stride, leading)
            at = line // 8 * apart[0] + line % 8 * 16 * width + group * apart[1] + block * 16
            at ^= (at // 128 % width) * 16
            memory[at : at + 16] = part.view(np.uint8)
    return memory


def strides(mn_major: bool, width: int, rows: int, k: int) -> tuple[int, int]:
    """A leading and a stride that leave gaps between the parts of a tile."""
    atom = 128 * width
    if not mn_major:  # the next piece of k (no swizzle), the next 8 rows
        return (rows // 8 * atom + 256, atom) if width == 1 else (0, atom * 2)
    if width == 1:  # the next 8 k, the next 8 rows
        return rows // 8 * atom + 128, atom
    return atom * (k // 8 + 1), atom


def registers_of(a: Array) -> Array:
    """Each thread's part of a (64, k), in the fragments of mma."""
    packed = 4 // a.itemsize
    thread = np.arange(128)
    row, pair = thread // 32 * 16 + thread % 32 // 4, thread % 4 * packed
    words = []
    for column in (0, 4 * packed):
        for down in (0, 8):
            parts = [a[row + down, pair + column + i] for i in range(packed)]
            words.append(np.ascontiguousarray(np.stack(parts, 1)).view(np.uint32)[:, 0])
    return np.stack(words, 1)


def accumulator(d: Array) -> Array:
    """Each thread's part of d (64, n)."""
    thread, i = np.arange(128)[:, None], np.arange(d.shape[1] // 2)[None]
    row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    return np.ascontiguousarray(d[row, i // 4 * 8 + thread % 4 * 2 + i % 2])


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize(("name", "n", "a_mn", "b_mn", "in_registers"), FORMS)
def test_products_of_tiles_are_exact(
    unit: EmulatedModule, name: str, n: int, a_mn: int, b_mn: int, in_registers: bool, width: int
) -> None:
    """Of integers; a tile that is MN-major has at least 8 * width columns."""
    if b_mn and n < 8 * width:
        return
    dtype, k = DTYPES[name], 8 if name == "tf32" else 16
    rng = np.random.default_rng(n + width)
    a, b = rng.integers(-9, 10, (64, k)), rng.integers(-9, 10, (n, k))
    start = rng.integers(-99, 100, (64, n)).astype(np.float32)
    for accumulate in (0, 1):
        d = accumulator(start)
        a_strides, b_strides = (strides(bool(m), width, r, k) for m, r in ((a_mn, 64), (b_mn, n)))
        images = [
            image(x.astype(dtype), bool(m), width, *apart)
            for x, m, apart in ((a, a_mn, a_strides), (b, b_mn, b_strides))
        ]
        words = (32768, 65536, *a_strides, *b_strides, width, accumulate)
        call = f"{name}_{n}_{a_mn}{b_mn}{in_registers:d}"
        registers = registers_of(a.astype(dtype))
        run(unit, call, *images, d, registers, *words, order=width, block=128, shared=98304)
        np.testing.assert_array_equal(d, accumulator(start * accumulate + a @ b.T))


# The pipeline -------------------------------------------------------------------------------------


def product(unit: EmulatedModule, name: str, blocks: int, order: int, tiles: int = 7) -> bool:
    """Whether the kernel ends and gives the product of integers."""
    rng = np.random.default_rng(tiles)
    a = aligned(rng.integers(-4, 5, (128 * blocks, 64 * tiles)).astype(ml_dtypes.bfloat16))
    b = aligned(rng.integers(-4, 5, (64, 64 * tiles)).astype(ml_dtypes.bfloat16))
    d = aligned(np.zeros((len(a), 64), np.float32))
    maps = [
        tensor_map(x.ctypes.data, x.itemsize, x.shape[::-1], x.strides[:1], box, swizzle)
        for x, box, swizzle in ((a, (64, 64), 128), (b, (64, 64 // blocks), 128), (d, (64, 64), 0))
    ]
    sizes = {"grid": 2 * blocks, "block": 160, "shared": 3 * 16384 + 64, "cluster": blocks}
    try:
        run(unit, name, a, b, d, *maps, tiles, order=order, **sizes)
    except KernelFault:
        return False
    return np.array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("tiles", [1, 7, 8])
@pytest.mark.parametrize("blocks", [1, 2, 4])
@pytest.mark.parametrize("order", ORDERS)
def test_a_pipeline_is_right_whenever_its_parts_take_effect(
    unit: EmulatedModule, order: int, blocks: int, tiles: int
) -> None:
    assert product(unit, f"pipeline_{blocks}", blocks, order, tiles)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_a_pipeline_shows(unit: EmulatedModule, name: str) -> None:
    assert not all(product(unit, name, FAULTS[name][1], order) for order in ORDERS)


def copied(unit: EmulatedModule, name: str, order: int) -> bool:
    """Whether the kernel without TMA gives the product of integers."""
    a, b = np.random.default_rng(7).integers(-4, 5, (2, 128, 448)).astype(ml_dtypes.bfloat16)
    a, b = aligned(a), aligned(b[:64])
    d = np.zeros((128, 64), np.float32)
    sizes = {"grid": 2, "block": 128, "shared": 3 * 16384}
    run(unit, name, a, b, d, 7, 448, order=order, **sizes)
    return np.array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("order", range(9))
def test_tiles_that_threads_copy(unit: EmulatedModule, order: int) -> None:
    assert copied(unit, "copies", order)


@pytest.mark.parametrize("name", COPY_FAULTS)
def test_each_fault_of_copied_tiles_shows(unit: EmulatedModule, name: str) -> None:
    assert not all(copied(unit, name, order) for order in ORDERS)


# Machine code -------------------------------------------------------------------------------------


def test_the_kernels_above_use_every_function() -> None:
    text = wgmma_prelude()
    names = set(re.findall(r"TGC_DEVICE [a-z ]+ (tgc_\w+)\(", text))
    made = set(re.findall(r"^TGC_WGMMA\((\w+),", text, re.MULTILINE))
    names |= made | {f"{name}_rs" for name in made}
    assert len(names) == 13
    assert names <= set(re.findall(r"tgc_\w+", KERNELS))
    assert all(WGMMA_NAMES.search(f"  {name}(r);") for name in names)
    assert not WGMMA_NAMES.search(prelude() + tma_prelude())


def test_nvrtc_compiles_every_function() -> None:
    source = PRELUDES + KERNELS
    binary = compile_source(source, "sm_90a")
    assert binary.cubin[:4] == b"\x7fELF"
    assert "warning" not in binary.log
    for arch in ("sm_90", "sm_100"):
        with pytest.raises(CompileError, match=re.escape("wgmma.cuh needs sm_90a")):
            compile_source(source, arch)
