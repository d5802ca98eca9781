"""mma.cuh: fragments of matrix units against NumPy, and machine code for every architecture.

Fragments are laid out here by the drawings of the PTX ISA, apart from what the twins do.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulation import kernel, launch

from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.emu.runtime import EmulatedModule, KernelFault, prelude
from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.lowering.codegen.pack import MMA_NAMES, mma_prelude

Array = np.ndarray[Any, Any]

ARCHITECTURES = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"]
LANES = np.arange(32)
GROUP, PAIR = LANES // 4, LANES % 4

MMA = """
unsigned a[4], b[2];
float d[4];
int lane = threadIdx.x;
for (int i = 0; i < 4; i++) a[i] = tgc_load(p.a, lane * 4 + i);
for (int i = 0; i < 2; i++) b[i] = tgc_load(p.b, lane * 2 + i);
for (int i = 0; i < 4; i++) d[i] = tgc_load(p.d, lane * 4 + i);
tgc_mma_%s(d, a, b);
for (int i = 0; i < 4; i++) tgc_store(p.d, lane * 4 + i, d[i]);
"""
MMA_FIELDS = "const unsigned* a; const unsigned* b; float* d;"
# 32 rows of 8 elements, of `stride` elements each, in the order that `rows` gives.
LDMATRIX = """
unsigned short* tile = reinterpret_cast<unsigned short*>(smem);
for (int i = threadIdx.x; i < p.count; i += blockDim.x) tile[i] = tgc_load(p.in, i);
__syncthreads();
unsigned r[4];
tgc_ldmatrix_x4%s(r, tile + tgc_load(p.rows, threadIdx.x));
for (int i = 0; i < 4; i++) tgc_store(p.out, threadIdx.x * 4 + i, r[i]);
"""
LDMATRIX_FIELDS = "const unsigned short* in; const int* rows; unsigned* out; long long count;"
ROUND = """
float low = tgc_load(p.in, threadIdx.x * 2), high = tgc_load(p.in, threadIdx.x * 2 + 1);
tgc_store(p.out, threadIdx.x * 3, tgc_tf32(low));
tgc_store(p.out, threadIdx.x * 3 + 1, tgc_pack_bf16(low, high));
tgc_store(p.out, threadIdx.x * 3 + 2, tgc_pack_fp16(low, high));
"""
SPLIT = """
unsigned high, low;
tgc_tf32_split%s(tgc_load(p.in, threadIdx.x), high, low);
tgc_store(p.out, threadIdx.x * 2, high);
tgc_store(p.out, threadIdx.x * 2 + 1, low);
"""
# Columns of a tile of 8 rows of 24 numbers: r[q] is 8 columns, then 4 rows, from the lane's own.
LOAD = """
unsigned* tile = reinterpret_cast<unsigned*>(smem);
for (int i = threadIdx.x; i < 192; i += blockDim.x) tile[i] = tgc_load(p.in, i);
__syncthreads();
unsigned r[4];
tgc_load_x4<32, 384>(r, tile + threadIdx.x % 4 * 24 + threadIdx.x / 4);
for (int i = 0; i < 4; i++) tgc_store(p.out, threadIdx.x * 4 + i, r[i]);
"""
# Neighbours in shared memory, read backwards.
NEIGHBOURS = """
float* values = reinterpret_cast<float*>(smem);
values[2 * threadIdx.x] = tgc_load(p.in, 2 * threadIdx.x);
values[2 * threadIdx.x + 1] = tgc_load(p.in, 2 * threadIdx.x + 1);
__syncthreads();
const auto pair = tgc_load_pair(values + 2 * (31 - threadIdx.x));
tgc_store(p.out, 2 * threadIdx.x, pair.at[0]);
tgc_store(p.out, 2 * threadIdx.x + 1, pair.at[1]);
"""
COPY = """
const float* from = p.in + threadIdx.x * 4;
tgc_copy_async16(smem + threadIdx.x * 16, from, (int)threadIdx.x < p.limit);
tgc_copy_commit();
tgc_copy_wait<0>();
__syncthreads();
float* values = reinterpret_cast<float*>(smem);
for (int i = threadIdx.x; i < (int)blockDim.x * 4; i += blockDim.x) tgc_store(p.out, i, values[i]);
"""
EVERYTHING = "".join(
    [
        *(kernel(f"mma_{name}", MMA_FIELDS, MMA % name) for name in ("bf16", "fp16", "tf32")),
        kernel("ldmatrix", LDMATRIX_FIELDS, LDMATRIX % ""),
        kernel("ldmatrix_trans", LDMATRIX_FIELDS, LDMATRIX % "_trans"),
        kernel("rounds", "const float* in; unsigned* out;", ROUND),
        kernel("splits", "const unsigned* in; unsigned* out;", SPLIT % ""),
        kernel("splits_unsaturated", "const unsigned* in; unsigned* out;", SPLIT % "_unsaturated"),
        kernel("loads", "const unsigned* in; unsigned* out;", LOAD),
        kernel("pairs", "const float* in; float* out;", NEIGHBOURS),
        kernel(
            "power",
            "const float* in; float* out;",
            "tgc_store(p.out, threadIdx.x, tgc_exp2_short(tgc_load(p.in, threadIdx.x)));",
        ),
        kernel(
            "marks",
            "const float* in; float* out;",
            """float x = tgc_load(p.in, threadIdx.x);
            tgc_store(p.out, 2 * threadIdx.x, tgc_unmarked(x));
            tgc_store(p.out, 2 * threadIdx.x + 1, tgc_is_marked(x) ? 1.0f : 0.0f);""",
        ),
        kernel("copy", "const float* in; float* out; long long limit;", COPY),
        kernel(
            "half_a_warp",
            "float* out;",
            "unsigned r[4]; if (threadIdx.x < 16) tgc_ldmatrix_x4(r, smem);",
        ),
        kernel(
            "two_operations",
            "float* out;",
            """unsigned r[4] = {}, b[2] = {}; float d[4] = {};
            if (threadIdx.x < 16) tgc_mma_bf16(d, r, b);
            else tgc_mma_fp16(d, r, b);""",
        ),
        kernel("row", "long long at;", "unsigned r[4]; tgc_ldmatrix_x4(r, smem + p.at);"),
        kernel(
            "to", "const float* in; long long at;", "tgc_copy_async16(smem + p.at, p.in, true);"
        ),
    ]
)


@pytest.fixture(scope="module")
def unit() -> EmulatedModule:
    return EmulatedModule(prelude() + mma_prelude() + EVERYTHING)


# Products -----------------------------------------------------------------------------------------


def packed(low: Array, high: Array) -> Array:
    """Two arrays of 16-bit numbers as registers."""
    return low.view(np.uint16).astype(np.uint32) | high.view(np.uint16).astype(np.uint32) << 16


def fragments(a: Array, b: Array) -> tuple[Array, Array]:
    """The registers of all lanes: (32, 4) of a and (32, 2) of b."""
    if a.dtype == np.float32:
        words = [a[GROUP + row, PAIR + k] for k in (0, 4) for row in (0, 8)]
        others = [b[PAIR + k, GROUP] for k in (0, 4)]
        return np.stack(words, 1).view(np.uint32), np.stack(others, 1).view(np.uint32)
    rows, columns = (0, 8, 0, 8), (0, 0, 8, 8)
    k = PAIR * 2
    words = [
        packed(a[GROUP + row, k + column], a[GROUP + row, k + column + 1])
        for row, column in zip(rows, columns)
    ]
    others = [packed(b[k + row, GROUP], b[k + row + 1, GROUP]) for row in (0, 8)]
    return np.stack(words, 1), np.stack(others, 1)


def of_matrix(d: Array) -> Array:
    """The (32, 4) registers of a 16 x 8 accumulator."""
    return np.stack(
        [d[GROUP + row, PAIR * 2 + column] for row in (0, 8) for column in (0, 1)], 1
    ).copy()


FORMATS = {
    "bf16": (np.dtype(ml_dtypes.bfloat16), 16),
    "fp16": (np.dtype(np.float16), 16),
    "tf32": (np.dtype(np.float32), 8),
}


def product(unit: EmulatedModule, name: str, a: Array, b: Array, d: Array, order: int) -> Array:
    """The registers of d + a @ b as the kernel leaves them."""
    registers = of_matrix(d)
    launch(unit, f"mma_{name}", *fragments(a, b), registers, order=order)
    return registers


@pytest.mark.parametrize("order", [0, 1, 5])
@pytest.mark.parametrize("name", FORMATS)
def test_products_of_integers_are_exact(unit: EmulatedModule, name: str, order: int) -> None:
    dtype, k = FORMATS[name]
    rng = np.random.default_rng(order)
    a, b = rng.integers(-9, 10, (16, k)), rng.integers(-9, 10, (k, 8))
    d = rng.integers(-99, 100, (16, 8)).astype(np.float32)
    got = product(unit, name, a.astype(dtype), b.astype(dtype), d, order)
    np.testing.assert_array_equal(got, of_matrix((d + a @ b).astype(np.float32)))


@pytest.mark.parametrize("name", FORMATS)
def test_products_of_numbers_are_those_of_float64(unit: EmulatedModule, name: str) -> None:
    dtype, k = FORMATS[name]
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((16, k), (k, 8)))
    if name == "tf32":
        a, b = (truncated(x) for x in (a, b))
    d = rng.standard_normal((16, 8)).astype(np.float32)
    exact = d + a.astype(np.float64) @ b.astype(np.float64)
    got = product(unit, name, a, b, d, 0)
    np.testing.assert_allclose(got, of_matrix(exact), rtol=0, atol=4e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_each_element_meets_its_own(unit: EmulatedModule, name: str) -> None:
    """One element of a and of b at a time: their product is in one element of d."""
    dtype, k = FORMATS[name]
    zero = np.zeros((16, 8), np.float32)
    for number in range(16 * k):
        row, inner, column = number // k, number % k, number * 5 % 8
        a, b = np.zeros((16, k), dtype), np.zeros((k, 8), dtype)
        a[row, inner], b[inner, column] = 3, 5
        expected = zero.copy()
        expected[row, column] = 15
        np.testing.assert_array_equal(product(unit, name, a, b, zero, 0), of_matrix(expected))


@pytest.mark.parametrize("name", FORMATS)
def test_infinities_and_nan_stay_in_their_row(unit: EmulatedModule, name: str) -> None:
    dtype, k = FORMATS[name]
    a, b = np.ones((16, k), dtype), np.ones((k, 8), dtype)
    a[2, 3], a[5, 1], a[9, 0], a[9, 1] = np.inf, np.nan, np.inf, -np.inf
    got = product(unit, name, a, b, np.zeros((16, 8), np.float32), 0)
    expected = np.full((16, 8), k, np.float32)
    expected[2], expected[5], expected[9] = np.inf, np.nan, np.nan
    np.testing.assert_array_equal(got, of_matrix(expected))


def truncated(x: Array) -> Array:
    """What a matrix unit reads of a float32 operand."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def test_the_lower_bits_of_a_tf32_operand_are_not_read(unit: EmulatedModule) -> None:
    a, b = (
        np.random.default_rng(3).standard_normal(s).astype(np.float32) for s in ((16, 8), (8, 8))
    )
    zero = np.zeros((16, 8), np.float32)
    got = product(unit, "tf32", a, b, zero, 0)
    np.testing.assert_array_equal(got, product(unit, "tf32", truncated(a), truncated(b), zero, 0))


# Tiles from shared memory -------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("stride", [8, 24])
@pytest.mark.parametrize("name", ["ldmatrix", "ldmatrix_trans"])
def test_four_matrices_from_shared_memory(
    unit: EmulatedModule, name: str, stride: int, order: int
) -> None:
    """Each lane names a row of its own: any rows, in any order."""
    tile = np.random.default_rng(0).permutation(2**16)[: 40 * stride].astype(np.uint16)
    starts = np.random.default_rng(1).permutation(40)[:32].astype(np.int32) * stride
    out = np.zeros((32, 4), np.uint32)
    launch(unit, name, tile, starts, out, tile.size, shared=tile.nbytes, order=order)
    for matrix in range(4):
        part = np.stack([tile[s : s + 8] for s in starts[matrix * 8 : matrix * 8 + 8]])
        part = part.T if name.endswith("trans") else part
        expected = packed(part[GROUP, PAIR * 2], part[GROUP, PAIR * 2 + 1])
        np.testing.assert_array_equal(out[:, matrix], expected)


@pytest.mark.parametrize("order", [0, 2])
def test_four_columns_of_numbers_of_32_bits(unit: EmulatedModule, order: int) -> None:
    """As fragments of a transposed tile: rows are k."""
    tile = np.random.default_rng(0).permutation(2**16)[:192].astype(np.uint32).reshape(8, 24)
    out = np.zeros((32, 4), np.uint32)
    launch(unit, "loads", tile, out, shared=tile.nbytes, order=order)
    expected = [tile[PAIR + k, GROUP + row] for k in (0, 4) for row in (0, 8)]
    np.testing.assert_array_equal(out, np.stack(expected, 1))


def test_pairs_of_neighbours(unit: EmulatedModule) -> None:
    x, out = np.random.default_rng(0).random((32, 2), np.float32), np.zeros((32, 2), np.float32)
    launch(unit, "pairs", x, out, block=32, shared=x.nbytes)
    np.testing.assert_array_equal(out, x[::-1])


# Rounding -----------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, np.inf, -np.inf, 1.0, 1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, 1 + 2**-10]
SPECIAL += [1 + 2**-11 - 2**-23, 65504, 65519.99, 65520, 3.4e38, 1e-40, 2**-24, 1 + 2**-8, 1e-8]


def test_rounding_to_the_formats(unit: EmulatedModule) -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 2048 - len(SPECIAL), np.uint32)
    x = np.concatenate([np.float32(SPECIAL), bits.view(np.float32)])
    out = np.zeros((1024, 3), np.uint32)
    launch(unit, "rounds", x, out, block=1024)
    low, high = x[::2], x[1::2]
    finite = np.isfinite(low)
    with np.errstate(over="ignore", invalid="ignore"):
        step = np.ldexp(np.float64(1), np.maximum(np.frexp(low.astype(np.float64))[1], -125) - 11)
        away = np.trunc(np.abs(low.astype(np.float64)) / step + 0.5) * step
        expected = np.copysign(away, low).astype(np.float32)
        halves = [x.astype(t) for t in (ml_dtypes.bfloat16, np.float16) for x in (low, high)]
    np.testing.assert_array_equal(out[finite, 0].view(np.float32), expected[finite])
    np.testing.assert_array_equal(out[~finite, 0].view(np.float32), low[~finite])
    for number, half in enumerate(halves):
        got = (out[:, 1 + number // 2] >> number % 2 * 16).astype(np.uint16).view(half.dtype)
        nan = np.isnan(half)
        np.testing.assert_array_equal(np.isnan(got), nan)
        np.testing.assert_array_equal(got[~nan].view(np.uint16), half[~nan].view(np.uint16))


def parts(unit: EmulatedModule, name: str) -> tuple[Array, Array, Array]:
    """Numbers of all kinds, some too large to be rounded up, and their two parts."""
    bits = np.random.default_rng(2).integers(0, 2**32, 1024, np.uint32)
    bits[: len(SPECIAL)] = np.float32(SPECIAL).view(np.uint32)
    bits[-4:] = 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7F7FFFFF
    bits[-8:-4] = 0xFF7FFFFF, 0x7F7FF000, 0xFF7FF000, 0x7F7FEFFF
    out = np.zeros((1024, 2), np.uint32)
    launch(unit, name, bits, out, block=1024)
    assert not (out[:, 0] & 0x1FFF).any()
    high, low = out.view(np.float32).T
    return bits.view(np.float32), high, low


@pytest.mark.parametrize("name", ["splits", "splits_unsaturated"])
def test_a_number_is_the_sum_of_its_parts(unit: EmulatedModule, name: str) -> None:
    """The first has 10 mantissa bits, the second is at most half of its last one."""
    x, high, low = parts(unit, name)
    with np.errstate(invalid="ignore", over="ignore"):
        rounds = np.isfinite(x) & (np.abs(x) < np.float32(2.0**128 - 2.0**116))
        both = high.astype(np.float64) + low
        np.testing.assert_array_equal(both[rounds], x.astype(np.float64)[rounds])
        normal = rounds & (np.abs(x) >= np.finfo(np.float32).tiny)
        assert (np.abs(low)[normal] <= np.abs(high)[normal] * 2.0**-11).all()
        if name == "splits_unsaturated":
            assert not np.isfinite(both[~rounds]).any()  # so that such sums are made again
        assert np.isnan(low[np.isnan(x)]).all()


def test_the_first_part_of_the_largest_numbers_is_finite(unit: EmulatedModule) -> None:
    """That of an infinity, too, so that its second part alone makes products infinite."""
    x, high, low = parts(unit, "splits")
    largest = np.copysign(np.array(0x7F7FE000, np.uint32).view(np.float32), x)
    close = np.isfinite(x) & (np.abs(x) >= np.float32(2.0**128 - 2.0**116))
    assert close.sum() >= 4
    np.testing.assert_array_equal(high[close], largest[close])
    np.testing.assert_array_equal(high[close].astype(np.float64) + low[close], x[close])
    infinite = np.isinf(x)
    np.testing.assert_array_equal(high[infinite], largest[infinite])
    np.testing.assert_array_equal(low[infinite], x[infinite])


# Copies -------------------------------------------------------------------------------------------


def aligned(x: Array) -> Array:
    """A copy that begins at an address divisible by 16."""
    memory = np.zeros(x.size + 3, np.float32)
    start = -memory.ctypes.data % 16 // 4
    memory[start : start + x.size] = x
    return memory[start : start + x.size]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("limit", [0, 5, 64])
def test_copies_fill_with_zeros_outside(unit: EmulatedModule, limit: int, order: int) -> None:
    """Where not inside nothing is read: the buffer ends at the limit."""
    x = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    x = aligned(x)
    out = np.ones(256, np.float32)
    launch(unit, "copy", x[: limit * 4], out, limit, block=64, shared=1024, order=order)
    expected = x[:256].copy()
    expected[limit * 4 :] = 0
    np.testing.assert_array_equal(out, expected)


# Faults -------------------------------------------------------------------------------------------


def fault(unit: EmulatedModule, name: str, *parameters: Any, **sizes: Any) -> str:
    with pytest.raises(KernelFault) as caught:
        launch(unit, name, *parameters, **sizes)
    return str(caught.value)


@pytest.mark.parametrize("order", [0, 3])
def test_a_warp_that_does_not_come_together(unit: EmulatedModule, order: int) -> None:
    out = np.zeros(4, np.float32)
    assert "hangs" in fault(unit, "half_a_warp", out, shared=64, order=order)
    assert "disagree" in fault(unit, "two_operations", out, shared=64, order=order)


@pytest.mark.parametrize("at", [-16, 8, 56, 64])
def test_addresses_that_are_no_aligned_row(unit: EmulatedModule, at: int) -> None:
    launch(unit, "row", 48, shared=64)
    text = fault(unit, "row", at, shared=64)
    assert "reads 16 bytes that are not aligned in shared memory" in text
    assert f"offset {at}, block 0" in text
    x = aligned(np.zeros(4, np.float32))
    assert "writes 16 bytes that" in fault(unit, "to", x, at, shared=64)


def test_copies_from_outside_a_buffer(unit: EmulatedModule) -> None:
    x = aligned(np.zeros(12, np.float32))
    launch(unit, "to", x[:4], 0, shared=64)
    assert "reads outside" in fault(unit, "to", x[:3], 0, shared=64)
    assert "misaligned" in fault(unit, "to", x[1:9], 0, shared=64)


# Machine code -------------------------------------------------------------------------------------


def test_powers_of_two(unit: EmulatedModule) -> None:
    """Within a few parts in a million; at minus infinity, a score that is hidden, exactly 0."""
    x = np.append(np.linspace(-120, 20, 255, dtype=np.float32), np.float32(-np.inf))
    out = np.zeros(256, np.float32)
    launch(unit, "power", x, out, block=256)
    np.testing.assert_allclose(out, np.exp2(x.astype(np.float64)), rtol=1e-5)


def test_marked_numbers_are_dropped(unit: EmulatedModule) -> None:
    """By their sign, which zeros and numbers that are none have, too."""
    x = np.array([1.5, -1.5, 0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan] * 4, np.float32)
    out = np.zeros((32, 2), np.float32)
    launch(unit, "marks", x, out, block=32)
    np.testing.assert_array_equal(out[:, 1], np.signbit(x))
    np.testing.assert_array_equal(out[:, 0], np.where(np.signbit(x), 0, x))


def test_the_kernels_above_use_every_function() -> None:
    names = set(re.findall(r"TGC_DEVICE .+? (tgc_\w+)\(", mma_prelude()))
    names |= set(re.findall(r"^TGC_MMA\((\w+),", mma_prelude(), re.MULTILINE))
    assert len(names) == 16
    assert names <= set(re.findall(r"tgc_\w+", EVERYTHING))
    assert all(MMA_NAMES.search(f"  {name}(r);") for name in names)  # what brings mma.cuh in
    assert not MMA_NAMES.search(prelude())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvrtc_compiles_every_function(arch: str) -> None:
    binary = compile_source(prelude() + mma_prelude() + EVERYTHING, arch)
    assert binary.cubin[:4] == b"\x7fELF"
    assert "warning" not in binary.log


def test_an_older_architecture_lacks_what_its_units_lack() -> None:
    with pytest.raises(CompileError, match="tgc_mma_bf16"):
        compile_source(prelude() + mma_prelude() + EVERYTHING, "sm_75")
