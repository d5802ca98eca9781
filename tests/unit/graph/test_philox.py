"""Random numbers: Philox's published answers, the statistics of what is made from it, and the same
bits from NumPy and from the text that runs on a GPU, here compiled by a C++ compiler."""

from __future__ import annotations

import ctypes
import doctest
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import stats

from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.graph.ops import philox

PACKAGE = Path(philox.__file__).resolve().parents[2]
SKELETONS = PACKAGE / "lowering" / "skeletons"
TWIN = PACKAGE / "backend" / "emu" / "device_twin.h"
N = 200_000


# From the known-answer file of Random123 (Salmon et al., 2011).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: Any, key: Any, answer: list[int]) -> None:
    assert philox.philox(counter, key).tolist() == answer


def test_bits_place_index_and_node_number_in_the_counter_and_the_seed_in_the_key() -> None:
    block, number, seed = 0x3_00000007, 0xAB_000000CD, 0x12345678_9ABCDEF0
    wanted = philox.philox((7, 3, 0xCD, 0xAB), (0x9ABCDEF0, 0x12345678))
    np.testing.assert_array_equal(philox.bits(seed, number, 4, start=4 * block), wanted)
    pairs = philox.bits64(seed, number, 2, start=2 * block)
    assert [int(pair) >> 32 for pair in pairs] == wanted[0::2].tolist()
    assert [int(pair) & 0xFFFFFFFF for pair in pairs] == wanted[1::2].tolist()


def test_docstring_examples_run() -> None:
    result = doctest.testmod(philox)
    assert result.attempted >= 4
    assert result.failed == 0


@pytest.mark.parametrize("draw", [philox.bits, philox.bits64])
def test_an_element_does_not_depend_on_where_the_range_starts(draw: Any) -> None:
    whole = draw(7, 3, 64)
    for start in (0, 1, 2, 3, 5, 30):
        np.testing.assert_array_equal(draw(7, 3, 11, start), whole[start : start + 11])
    far = 2**34 + 3  # beyond 32 bits of block number
    np.testing.assert_array_equal(draw(7, 3, 5, far)[2:], draw(7, 3, 3, far + 2))
    assert draw(7, 3, 1, far) != draw(7, 3, 1, far - 2**34)


def test_a_longer_draw_begins_like_a_shorter_one() -> None:
    for dtype in (np.float32, np.float64, np.float16):
        for draw in (philox.uniform, philox.normal):
            longer = draw(1, 2, (5, 7), dtype).ravel()
            for n in (0, 1, 2, 3, 6):
                np.testing.assert_array_equal(draw(1, 2, (n,), dtype), longer[:n])


def test_seeds_wrap_at_64_bits() -> None:
    np.testing.assert_array_equal(philox.bits(-1, 0, 8), philox.bits(2**64 - 1, 0, 8))


# ---- what the numbers are like ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniforms_and_normals_pass_kolmogorov_smirnov(dtype: Any) -> None:
    for seed in (0, 1, 2**40 + 17):
        assert stats.kstest(philox.uniform(seed, 5, (N,), dtype), "uniform").pvalue > 1e-3
        normals = philox.normal(seed, 5, (N,), dtype)
        assert stats.kstest(normals, "norm").pvalue > 1e-3
        assert abs(normals.mean()) < 4 / np.sqrt(N)
        assert abs(normals.std() - 1) < 4 / np.sqrt(2 * N)
        assert abs(stats.skew(normals)) < 4 * np.sqrt(6 / N)
        assert abs(stats.kurtosis(normals)) < 4 * np.sqrt(24 / N)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neighbours_and_nodes_are_independent(dtype: Any) -> None:
    draws = [philox.normal(seed, number, (N,), dtype) for seed in (3, 4) for number in (0, 1, 2)]
    pairs = [(draws[0][:-lag], draws[0][lag:]) for lag in (1, 2, 3, 4)]
    pairs += [(draws[i], draws[j]) for i in range(6) for j in range(i)]
    pairs += [(draws[0][0::2] ** 2, draws[0][1::2] ** 2)]  # both halves of a Box-Muller pair
    for x, y in pairs:
        assert abs(np.corrcoef(x, y)[0, 1]) < 4.5 / np.sqrt(len(x))
    shared = np.intersect1d(philox.bits64(3, 0, 1000), philox.bits64(3, 1, 1000))
    assert shared.size == 0


def test_every_bit_is_fair() -> None:
    for values, width in ((philox.bits(11, 4, N), 32), (philox.bits64(11, 4, N), 64)):
        ones = [int(((values >> values.dtype.type(bit)) & 1).sum()) for bit in range(width)]
        assert max(abs(count - N / 2) for count in ones) < 4.5 * np.sqrt(N) / 2


@pytest.mark.parametrize(
    ("dtype", "width"), [(np.float16, 11), (ml_dtypes.bfloat16, 8), (np.float32, 24)]
)
def test_narrow_uniforms_stay_below_one_and_use_the_whole_significand(
    dtype: Any, width: int
) -> None:
    values = philox.uniform(0, 0, (N,), dtype)
    assert values.dtype == dtype
    scaled = values.astype(np.float64) * 2**width
    assert scaled.min() >= 0
    assert scaled.max() <= 2**width - 1
    np.testing.assert_array_equal(scaled, np.rint(scaled))
    assert np.any(scaled % 2 == 1)


def test_float64_uniforms_have_53_bits() -> None:
    scaled = philox.uniform(0, 0, (N,), np.float64) * 2**53
    np.testing.assert_array_equal(scaled, np.rint(scaled))
    assert np.any(scaled % 2 == 1)


def test_the_smallest_and_largest_words_give_finite_normals() -> None:
    least = np.float32(2.0**-33)
    most = np.float32(2**32 - 1) * np.float32(2.0**-32) + least
    assert most == 1
    assert philox.logarithm(np.array([most]))[0] == 0
    assert np.sqrt(-2 * philox.logarithm(np.array([least])))[0] == pytest.approx(6.764, abs=1e-3)
    tiny = np.array([2.0**-53])
    assert np.sqrt(-2 * philox.logarithm(tiny))[0] == pytest.approx(8.572, abs=1e-3)


def test_integers_fill_their_range_evenly() -> None:
    draws = philox.randint(5, 6, (N,), -3, 14)
    counts = np.bincount(draws + 3, minlength=17)
    assert draws.min() == -3
    assert draws.max() == 13
    assert stats.chisquare(counts).pvalue > 1e-3
    assert philox.randint(5, 6, (2, 3), 4, 5).tolist() == [[4] * 3] * 2


@pytest.mark.parametrize(
    ("low", "high"), [(0, 10), (-5, 2**32), (-(2**63), 2**63 - 1), (-(2**63), 2**63), (0, 2**63)]
)
def test_integers_are_the_high_word_of_the_exact_product(low: int, high: int) -> None:
    exact = [low + (int(draw) * (high - low) >> 64) for draw in philox.bits64(9, 9, 500)]
    assert philox.randint(9, 9, (500,), low, high).tolist() == exact


def test_permutations_hold_every_number_once_and_move_it_anywhere() -> None:
    assert sorted(philox.permutation(1, 2, 1000)) == list(range(1000))
    places = np.array([philox.permutation(1, number, 6) for number in range(6000)])
    for column in places.T:
        assert stats.chisquare(np.bincount(column, minlength=6)).pvalue > 1e-4


def test_errors_name_the_op() -> None:
    with pytest.raises(DTypeError, match=r"\[random_uniform\]"):
        philox.uniform(0, 0, (2,), np.int32)
    with pytest.raises(DTypeError, match=r"\[random_normal\]"):
        philox.normal(0, 0, (2,), np.int64)
    with pytest.raises(ArgumentError, match="range is empty"):
        philox.randint(0, 0, (2,), 3, 3)


# ---- accuracy of our own functions --------------------------------------------------------------


@pytest.mark.parametrize(("kind", "bound"), [(np.float32, 2e-7), (np.float64, 1e-15)])
def test_logarithm_is_accurate(kind: Any, bound: float) -> None:
    rng = np.random.default_rng(0)
    lowest = -33 if kind is np.float32 else -53
    everywhere, near_one = 2.0 ** rng.uniform(lowest, 0, N), 1 - rng.uniform(1e-6, 0.5, N)
    where_exponents_change = 0.5**0.5 + 1e-9 * rng.normal(size=99)
    x = np.concatenate([everywhere, near_one, where_exponents_change]).astype(kind)
    exact = np.log(x.astype(np.longdouble))
    assert np.max(np.abs((philox.logarithm(x) - exact) / exact)) < bound


@pytest.mark.parametrize(("word", "bound"), [(np.uint32, 2e-7), (np.uint64, 1e-15)])
def test_cosine_and_sine_are_accurate(word: Any, bound: float) -> None:
    width = np.iinfo(word).bits
    turn = philox.bits64(2, 2, N).astype(word) if width == 64 else philox.bits(2, 2, N)
    edges = [k * 2 ** (width - 3) + d for k in range(8) for d in (-1, 0, 1)]
    turn = np.concatenate([turn, np.array([e % 2**width for e in edges], word)])
    angle = turn.astype(np.longdouble) * 2 * np.longdouble("3.14159265358979323846264338")
    angle = angle / np.longdouble(2) ** width
    cosine, sine = philox.cosine_sine(turn)
    assert np.max(np.abs(cosine - np.cos(angle))) < bound
    assert np.max(np.abs(sine - np.sin(angle))) < bound


# ---- the device text ----------------------------------------------------------------------------

FILLS = [
    ("bits", "unsigned", "tgc_random_bits(seed, node, i)"),
    ("bits64", "unsigned long long", "tgc_random_bits64(seed, node, i)"),
    ("integer", "long long", "tgc_random_integer(seed, node, i, low, high)"),
    ("uniform_f32", "float", "tgc_random_uniform<float>(seed, node, i)"),
    ("uniform_f64", "double", "tgc_random_uniform<double>(seed, node, i)"),
    ("uniform_f16", "float", "tgc_random_uniform<tgc_half>(seed, node, i)"),
    ("uniform_bf16", "float", "tgc_random_uniform<tgc_bfloat16>(seed, node, i)"),
    ("normal_f32", "float", "tgc_random_normal<float>(seed, node, i)"),
    ("normal_f64", "double", "tgc_random_normal<double>(seed, node, i)"),
    ("normal_f16", "float", "tgc_random_normal<tgc_half>(seed, node, i)"),
    ("normal_bf16", "float", "tgc_random_normal<tgc_bfloat16>(seed, node, i)"),
    ("uniform_x4", "float", "tgc_random_uniform_f32x4(seed, node, i & ~3ll).at[i & 3]"),
    ("normal_x4", "float", "tgc_random_normal_f32x4(seed, node, i & ~3ll).at[i & 3]"),
]
ARGUMENTS = "unsigned long long seed, unsigned long long node, long long low, long long high"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """random.cuh behind the emulator's header, with a loop over elements for each function."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("random")
    loops = [
        f'extern "C" void {name}({ARGUMENTS}, long long start, long long n, {kind}* out) '
        f"{{ for (long long i = start; i < start + n; i++) out[i - start] = {expression}; }}"
        for name, kind, expression in FILLS
    ]
    heads = [f'#include "{p}"' for p in (TWIN, SKELETONS / "device.cuh", SKELETONS / "random.cuh")]
    source = folder / "random.cpp"
    source.write_text("\n".join(["#define TGC_EMULATOR 1", *heads, *loops]))
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-nostdinc++", "-fPIC", "-shared", "-w"]
    output = folder / "random.so"
    subprocess.run([compiler, *flags, str(source), "-o", str(output)], check=True)
    return ctypes.CDLL(str(output))


def device(library: ctypes.CDLL, name: str, dtype: Any, n: int, **given: int) -> np.ndarray:
    out = np.empty(n, dtype)
    get = {"seed": 0, "node": 0, "low": 0, "high": 1, "start": 0} | given
    getattr(library, name)(
        ctypes.c_uint64(get["seed"]),
        ctypes.c_uint64(get["node"]),
        *(ctypes.c_int64(get[k]) for k in ("low", "high", "start")),
        ctypes.c_int64(n),
        ctypes.c_void_p(out.ctypes.data),
    )
    return out


STREAMS = [(0, 0), (1, 7), (2**64 - 1, 2**40 + 3), (0x299F31D0A4093822, 0x0370734413198A2E)]


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    word = {4: np.uint32, 8: np.uint64}[wanted.dtype.itemsize]
    np.testing.assert_array_equal(found.view(word), np.ascontiguousarray(wanted).view(word))


@pytest.mark.parametrize(("seed", "node"), STREAMS)
def test_device_bits_equal_numpy(library: ctypes.CDLL, seed: int, node: int) -> None:
    for start in (0, 5, 2**35 + 1):
        at = {"seed": seed, "node": node, "start": start}
        assert_same_bits(
            device(library, "bits", np.uint32, 1001, **at), philox.bits(seed, node, 1001, start)
        )
        assert_same_bits(
            device(library, "bits64", np.uint64, 1001, **at), philox.bits64(seed, node, 1001, start)
        )


@pytest.mark.parametrize(("seed", "node"), STREAMS)
@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [
        ("f32", np.float32),
        ("f64", np.float64),
        ("f16", np.float16),
        ("bf16", ml_dtypes.bfloat16),
        ("x4", np.float32),
    ],
)
def test_device_reals_equal_numpy(
    library: ctypes.CDLL, seed: int, node: int, kind: str, suffix: str, dtype: Any
) -> None:
    out = np.float64 if suffix == "f64" else np.float32
    found = device(library, f"{kind}_{suffix}", out, 100_003, seed=seed, node=node)
    wanted = getattr(philox, kind)(seed, node, (100_003,), dtype).astype(out)
    assert_same_bits(found, wanted)


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-7, 2**33), (-(2**63), 2**63 - 1)])
def test_device_integers_equal_numpy(library: ctypes.CDLL, low: int, high: int) -> None:
    found = device(library, "integer", np.int64, 5000, seed=3, node=1, low=low, high=high)
    np.testing.assert_array_equal(found, philox.randint(3, 1, (5000,), low, high))


def test_nvrtc_compiles_every_function(architectures: list[str]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    kernels = [
        f"struct fill_{name}_params {{ {kind}* out; unsigned long long seed, node; "
        "long long low, high; };\n"
        f"__device__ void fill_{name}_stage(int block, const fill_{name}_params& p, char*) {{\n"
        "  unsigned long long seed = p.seed, node = p.node; long long low = p.low, high = p.high;\n"
        "  long long i = block * 128ll + threadIdx.x;\n"
        f"  tgc_store(p.out, i, {expression});\n}}\nTGC_KERNEL(fill_{name}, 128)\n"
        for name, kind, expression in FILLS
    ]
    prelude = [(SKELETONS / name).read_text() for name in ("device.cuh", "random.cuh")]
    for arch in architectures:
        binary = compile_source("\n".join([*prelude, *kernels]), arch)
        assert binary.cubin[:4] == b"\x7fELF"
        assert all(f"fill_{name}".encode() in binary.cubin for name, _, _ in FILLS)
