"""The prelude of all kernels, executed by the emulator and compiled by NVRTC.

Conversions are compared bit by bit with NumPy and ml_dtypes, arithmetic with NumPy's meaning.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import scipy.special
from emulation import C_NAMES, apply, elementwise, kernel, launch, module, numpy_dtype

from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.emu.runtime import EmulatedModule, prelude

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

INTEGERS = ["int8", "uint8", "int16", "int32", "int64"]
FLOATS = ["float32", "float64"]
HALVES = ["float16", "bfloat16"]
ALL_HALVES = np.arange(65536, dtype=np.uint16)


def same(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Equal bits, except that one NaN is as good as another."""
    assert got.dtype == expected.dtype
    bits = np.dtype(f"u{got.dtype.itemsize}")
    nan = np.isnan(expected.astype(np.float64))
    assert np.array_equal(np.isnan(got.astype(np.float64)), nan)
    np.testing.assert_array_equal(got.view(bits)[~nan], expected.view(bits)[~nan])


def random_floats(count: int) -> np.ndarray[Any, Any]:
    """Every exponent, subnormals, infinities and NaNs: random bit patterns."""
    return np.random.default_rng(1).integers(0, 2**32, count, np.uint32).view(np.float32)


# 16-bit floating types ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def conversions() -> EmulatedModule:
    kernels = []
    for half in HALVES:
        for wide in FLOATS:
            kernels.append(elementwise(f"{half}_to_{wide}", [half], wide, "a"))
            kernels.append(elementwise(f"{wide}_to_{half}", [wide], half, "a"))
        kernels.append(elementwise(f"round_{half}", ["float64"], "float32", _cast_to(half)))
    return module(*kernels)


def _cast_to(dtype: str) -> str:
    return f"tgc_cast<{C_NAMES[dtype]}>(a)"


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("wide", FLOATS)
def test_every_half_widens_exactly(conversions: EmulatedModule, half: str, wide: str) -> None:
    x = ALL_HALVES.view(numpy_dtype(half))
    same(apply(conversions, f"{half}_to_{wide}", wide, x), x.astype(wide))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("wide", FLOATS)
def test_every_half_survives_the_way_there_and_back(
    conversions: EmulatedModule, half: str, wide: str
) -> None:
    x = ALL_HALVES.view(numpy_dtype(half))
    same(apply(conversions, f"{wide}_to_{half}", half, x.astype(wide)), x)


@pytest.mark.parametrize("half", HALVES)
def test_random_bit_patterns_round_as_numpy_does(conversions: EmulatedModule, half: str) -> None:
    x = random_floats(100_000)
    same(apply(conversions, f"float32_to_{half}", half, x), x.astype(numpy_dtype(half)))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("wide", FLOATS)
def test_ties_go_to_even_and_their_neighbours_to_the_nearest(
    conversions: EmulatedModule, half: str, wide: str
) -> None:
    """For doubles the neighbours differ from the tie by less than a float can tell."""
    dtype = numpy_dtype(half)
    largest = 0x7BFF if half == "float16" else 0x7F7F
    low, high = (np.arange(start, largest + start, dtype=np.uint16).view(dtype) for start in (0, 1))
    tie = (low.astype(np.float64) + high.astype(np.float64)) / 2
    tie = tie.astype(wide)
    even = np.where(low.view(np.uint16) % 2 == 0, low, high)
    below, above = np.nextafter(tie, tie.dtype.type(0)), np.nextafter(tie, tie.dtype.type(np.inf))
    for x, expected in ((tie, even), (below, low), (above, high)):
        same(apply(conversions, f"{wide}_to_{half}", half, x), expected)
        same(apply(conversions, f"{wide}_to_{half}", half, -x), -expected)


def test_doubles_to_half_round_once(conversions: EmulatedModule) -> None:
    x = random_floats(50_000).astype(np.float64) * (1 + 1e-12)
    near = (
        np.random.default_rng(2).standard_normal(50_000)
        * 10.0 ** np.arange(-9, 6).repeat(3334)[:50_000]
    )
    for values in (x, near):
        same(apply(conversions, "float64_to_float16", "float16", values), values.astype(np.float16))


@pytest.mark.parametrize("half", HALVES)
def test_overflow_and_special_values(conversions: EmulatedModule, half: str) -> None:
    x = np.array([np.inf, -np.inf, 1e300, -1e300, 1e-300, -0.0, 65519.99, 65520, 3.3895e38])
    got = apply(conversions, f"float64_to_{half}", half, x).astype(np.float64)
    top = [65504, np.inf, np.inf] if half == "float16" else [65536, 65536, 3.3895313892515355e38]
    np.testing.assert_array_equal(got, [np.inf, -np.inf, np.inf, -np.inf, 0, 0, *top])
    assert np.signbit(got[5])
    nan = np.array([np.nan, -np.nan])
    assert np.isnan(apply(conversions, f"float64_to_{half}", half, nan).astype(float)).all()


@pytest.mark.parametrize("half", HALVES)
def test_cast_to_half_rounds_a_compute_value(conversions: EmulatedModule, half: str) -> None:
    x = np.random.default_rng(3).standard_normal(1000)
    expected = x.astype(numpy_dtype(half)).astype(np.float32)
    same(apply(conversions, f"round_{half}", "float32", x), expected)


# Other conversions --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def casts() -> EmulatedModule:
    names = [*FLOATS, *INTEGERS, "bool", *HALVES]
    return module(
        *(elementwise(f"{a}_{b}", [a], b, _cast_to_c(b)) for a in names for b in names if a != b)
    )


def _cast_to_c(dtype: str) -> str:
    return f"tgc_cast<{C_NAMES[dtype]}>(a)"


AWKWARD = np.array(
    [0, -0.0, 0.5, -0.5, 0.999, -0.999, 1.5, -1.5, 127.9, 128, 255.5, 256, -129, 32767.5, 65536.25]
    + [2147483647.0, 2147483648.0, -2147483648.0, -2147483648.5, -2147483649.0, 4294967296.0, 1e10]
    + [-1e10, 9.2e18, 9223372036854775808.0, -9223372036854775808.0, -9.3e18, 1e30, -1e30]
    + [np.inf, -np.inf, np.nan]
)


def truncated(value: float, dtype: str) -> int:
    """The meaning of a float's conversion to an integer, spelled out."""
    bits = 64 if dtype == "int64" else 32
    limit = 2 ** (bits - 1)
    number = -limit if value != value or abs(value) == np.inf else int(value)
    number = number if -limit <= number < limit else -limit
    return int(np.array(number).astype(np.int64).astype(dtype))


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_truncate_to_integers(casts: EmulatedModule, source: str, target: str) -> None:
    x = np.concatenate([AWKWARD, random_floats(2000)]).astype(source)
    got = apply(casts, f"{source}_{target}", target, x)
    np.testing.assert_array_equal(got, [truncated(float(value), target) for value in x])
    information = np.iinfo(target)
    inside = np.random.default_rng(4).uniform(information.min, information.max, 500).astype(source)
    inside = inside[np.abs(inside) < information.max]
    np.testing.assert_array_equal(
        apply(casts, f"{source}_{target}", target, inside), inside.astype(target)
    )


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", [*INTEGERS, *FLOATS, *HALVES, "bool"])
def test_integers_convert_as_numpy_does(casts: EmulatedModule, source: str, target: str) -> None:
    if source == target:
        return
    x = np.random.default_rng(5).integers(-(2**62), 2**62, 1000)
    x = np.concatenate([x >> shift for shift in (0, 20, 40, 50, 56)] + [np.arange(-70000, 70000)])
    x = x.astype(source)
    if target in HALVES:
        expected = x.astype(np.float32).astype(numpy_dtype(target))
    else:
        expected = x.astype(target)
    same(apply(casts, f"{source}_{target}", target, x), expected)


def test_quotients_by_one_number_are_quotients() -> None:
    """Random bit patterns and every pair of special values; only subnormals may be off, by one."""
    text = "tgc_divide(a, tgc_divisor_of(b))"
    unit = module(elementwise("quotient", ["float32", "float32"], "float32", text))
    special = np.float32([0, -0.0, 1, -3, 1e-45, 1e-39, 3e38, np.inf, -np.inf, np.nan])
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    x, by = np.concatenate([pairs, random_floats(400_000).reshape(2, -1)], axis=1)
    near = np.random.default_rng(6).uniform(0.5, 2, (2, 100_000)).astype(np.float32)
    for a, b in ((x, by), near):
        expected = a / b
        got = apply(unit, "quotient", "float32", a, b)
        normal = ~((np.abs(expected) < 1e-37) | (np.abs(a) < 1e-30) | (np.abs(b) < 1e-30))
        normal |= (a == 0) | np.isnan(expected) | np.isinf(a) | np.isinf(b)
        same(got[normal], expected[normal])
        np.testing.assert_allclose(got, expected, rtol=2e-7, atol=3e-45)


@pytest.mark.parametrize("source", [*FLOATS, *HALVES])
def test_true_is_what_is_not_zero(casts: EmulatedModule, source: str) -> None:
    x = np.array([0, -0.0, 1, 0.5, 1e-7, np.inf, np.nan]).astype(numpy_dtype(source))
    got = apply(casts, f"{source}_bool", "bool", x)
    np.testing.assert_array_equal(got, [False, False] + [True] * 5)


@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS, *HALVES])
def test_bool_becomes_zero_or_one(casts: EmulatedModule, target: str) -> None:
    got = apply(casts, f"bool_{target}", target, np.array([False, True]))
    np.testing.assert_array_equal(got.astype(float), [0, 1])


def test_double_to_float_rounds_to_nearest(casts: EmulatedModule) -> None:
    x = np.random.default_rng(6).standard_normal(5000) * 1e-3
    same(apply(casts, "float64_float32", "float32", x), x.astype(np.float32))


# Arithmetic ---------------------------------------------------------------------------------------

BINARY = ["max", "min", "remainder", "floor_divide", "fmod", "pow"]
SHIFTS = ["shift_left", "shift_right"]


@pytest.fixture(scope="module")
def arithmetic() -> EmulatedModule:
    kernels = []
    for dtype in [*FLOATS, *INTEGERS]:
        c = C_NAMES[dtype]
        for op in BINARY + (SHIFTS if dtype in INTEGERS else []):
            kernels.append(elementwise(f"{op}_{dtype}", [dtype] * 2, dtype, f"tgc_{op}<{c}>(a, b)"))
        for op in ("abs", "sign"):
            kernels.append(elementwise(f"{op}_{dtype}", [dtype], dtype, f"tgc_{op}(a)"))
        for op in ("isnan", "isinf", "isfinite"):
            kernels.append(elementwise(f"{op}_{dtype}", [dtype], "bool", f"tgc_{op}(a)"))
    text = "".join(kernels)
    for op in ("pow", "fmod"):  # overloads, not templates, for floating types
        for dtype in FLOATS:
            text = text.replace(f"tgc_{op}<{C_NAMES[dtype]}>", f"tgc_{op}")
    return module(text)


def integer_pairs(dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    information = np.iinfo(dtype)
    edge = [information.min, information.min + 1, 0, 1, 2, 3, 7, information.max - 1]
    edge += [information.max] + ([-1, -2, -3, -7] if information.min < 0 else [])
    extra = np.random.default_rng(7).integers(-60, 60, 30).tolist()
    values = np.array([v for v in edge + extra if information.min <= v <= information.max], dtype)
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()


def float_pairs(dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    values = [0.0, -0.0, 1, -1, 0.1, -0.1, 0.3, 2.5, -2.5, 7, -7, 1e10, -1e10, 1e-10]
    values += [np.inf, -np.inf, np.nan, *np.random.default_rng(8).uniform(-9, 9, 40)]
    a, b = np.meshgrid(np.array(values, dtype), np.array(values, dtype))
    return a.ravel(), b.ravel()


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["max", "min", "remainder", "floor_divide", "fmod", *SHIFTS])
def test_integer_operations_are_numpys(arithmetic: EmulatedModule, dtype: str, op: str) -> None:
    a, b = integer_pairs(dtype)
    numpy_name = {"max": "maximum", "min": "minimum", "shift_left": "left_shift"}
    numpy_name["shift_right"] = "right_shift"
    expected = getattr(np, numpy_name.get(op, op))(a, b)
    np.testing.assert_array_equal(apply(arithmetic, f"{op}_{dtype}", dtype, a, b), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_power_wraps_and_truncates(arithmetic: EmulatedModule, dtype: str) -> None:
    a, b = integer_pairs(dtype)
    bits = np.iinfo(dtype).bits

    def power(base: int, exponent: int) -> int:
        if exponent < 0:
            return base ** (exponent % 2) if base in (1, -1) else 0
        return pow(base, exponent, 2**bits)

    expected = [power(int(x), int(y)) % 2**bits for x, y in zip(a, b)]
    got = apply(arithmetic, f"pow_{dtype}", dtype, a, b)
    np.testing.assert_array_equal(
        got.astype(np.uint64) % 2**bits if bits < 64 else got.view(np.uint64),
        np.array(expected, np.uint64),
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["max", "min", "remainder", "floor_divide", "fmod", "pow"])
def test_float_operations_are_numpys(arithmetic: EmulatedModule, dtype: str, op: str) -> None:
    a, b = float_pairs(dtype)
    function = getattr(np, {"max": "maximum", "min": "minimum", "pow": "power"}.get(op, op))
    got, expected = apply(arithmetic, f"{op}_{dtype}", dtype, a, b), function(a, b)
    if op == "pow":  # two libraries
        np.testing.assert_allclose(got, expected, rtol=1e-6 if dtype == "float32" else 1e-14)
    else:
        np.testing.assert_array_equal(got, expected)
    if op in ("remainder", "floor_divide", "fmod"):
        real = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[real]), np.signbit(expected[real]))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_sign_abs_and_kinds_of_number(arithmetic: EmulatedModule, dtype: str) -> None:
    x = (float_pairs if dtype in FLOATS else integer_pairs)(dtype)[0]
    np.testing.assert_array_equal(apply(arithmetic, f"abs_{dtype}", dtype, x), np.abs(x))
    # 0 for NaN, as in PyTorch.
    sign = np.where(x == x, np.sign(x), 0)
    np.testing.assert_array_equal(apply(arithmetic, f"sign_{dtype}", dtype, x), sign)
    for op in ("isnan", "isinf", "isfinite"):
        got = apply(arithmetic, f"{op}_{dtype}", "bool", x)
        np.testing.assert_array_equal(got, getattr(np, op)(x))


SAME_NAME = "exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh tanh floor ceil "
SAME_NAME += "trunc rint fabs"
ARCS = "sin cos tan sinh cosh tanh"
FUNCTIONS = {
    **{name: getattr(np, name) for name in SAME_NAME.split()},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ARCS.split()},
    **{name: getattr(scipy.special, name) for name in ("erf", "erfc", "erfinv")},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "lgamma": scipy.special.gammaln,
    "tgamma": scipy.special.gamma,
    "sigmoid": scipy.special.expit,
}
FUNCTIONS2 = ["atan2", "hypot", "copysign", "nextafter"]


@pytest.fixture(scope="module")
def functions() -> EmulatedModule:
    return module(
        *(
            elementwise(f"f_{name}_{dtype}", [dtype], dtype, f"tgc_{name}(a)")
            for name in FUNCTIONS
            for dtype in FLOATS
        ),
        *(
            elementwise(f"f_{name}_{dtype}", [dtype] * 2, dtype, f"tgc_{name}(a, b)")
            for name in FUNCTIONS2
            for dtype in FLOATS
        ),
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(functions: EmulatedModule, name: str, dtype: str) -> None:
    x = np.concatenate([np.linspace(-0.999, 0.999, 301), np.linspace(-20, 20, 301), [-1, 0, 1]])
    x = x.astype(dtype)
    expected = FUNCTIONS[name](x.astype(np.float64))
    if name == "tgamma":  # poles: SciPy and C disagree about the sign of infinity
        x, expected = x[x > 0], expected[x > 0]
    got = apply(functions, f"f_{name}_{dtype}", dtype, x)
    rtol, atol = (1e-5, 1e-6) if dtype == "float32" else (1e-12, 1e-13)
    np.testing.assert_allclose(got, expected, rtol, atol)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS2)
def test_functions_of_two(functions: EmulatedModule, name: str, dtype: str) -> None:
    a, b = np.random.default_rng(9).standard_normal((2, 500)).astype(dtype)
    expected = getattr(np, "arctan2" if name == "atan2" else name)(a, b)
    np.testing.assert_allclose(apply(functions, f"f_{name}_{dtype}", dtype, a, b), expected, 1e-6)


def test_erfinv_holds_its_digits_near_one(functions: EmulatedModule) -> None:
    x = 1 - np.logspace(-15, -1, 50)
    x = np.concatenate([x, -x, np.logspace(-300, -1, 50), [1, -1, 1.5, np.nan]])
    got = apply(functions, "f_erfinv_float64", "float64", x)
    np.testing.assert_allclose(got, scipy.special.erfinv(x), rtol=1e-12)


def test_sigmoid_never_overflows(functions: EmulatedModule) -> None:
    x = np.array([-1e4, -700, -100, 100, 1e4, np.inf, -np.inf, np.nan])
    np.testing.assert_allclose(
        apply(functions, "f_sigmoid_float64", "float64", x), scipy.special.expit(x), rtol=1e-14
    )


def test_separate_rounding_and_fused() -> None:
    """In float32 (1 + e)**2 - 1 - 2e is 0 with two roundings and e**2 with one."""
    unit = module(
        elementwise(
            "apart", ["float32"] * 2, "float32", "tgc_sub_rn(tgc_mul_rn(a, a), tgc_add_rn(b, b))"
        ),
        elementwise("plain", ["float32"] * 2, "float32", "a * a - (b + b)"),
        elementwise("fused", ["float32"] * 2, "float32", "tgc_fma(a, a, -(b + b))"),
        elementwise("added", ["float32"] * 2, "float32", "tgc_multiply_add(a, a, -(b + b))"),
        elementwise("bytes", ["int8"] * 2, "int8", "tgc_multiply_add(a, a, b)"),
        elementwise("apart64", ["float64"] * 2, "float64", "tgc_add_rn(tgc_mul_rn(a, a), -b)"),
    )
    e = np.float32(2.0**-12)
    a, b = np.array([1 + e], np.float32), np.array([0.5 + e], np.float32)
    assert apply(unit, "apart", "float32", a, b)[0] == 0
    assert apply(unit, "plain", "float32", a, b)[0] == 0
    assert apply(unit, "fused", "float32", a, b)[0] == e * e
    assert apply(unit, "added", "float32", a, b)[0] == e * e
    c = np.array([1 + 2.0**-27])
    hundreds = np.array([100], np.int8)
    assert (
        apply(unit, "bytes", "int8", hundreds, hundreds)[0] == (100 * 100 + 100 + 128) % 256 - 128
    )
    assert apply(unit, "apart64", "float64", c, np.array([1 + 2.0**-26]))[0] == 0


# Loads, stores, the error word --------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 4), ("float16", 8), ("int64", 2)])
def test_vectors_move_sixteen_bytes(dtype: str, lanes: int) -> None:
    c = C_NAMES[dtype]
    unit = module(
        kernel(
            "copy",
            f"const {c}* a; {c}* out;",
            f"""tgc_vector<{c}, {lanes}> v = tgc_load_vector<{lanes}>(p.a, threadIdx.x * {lanes});
            tgc_vector<{c}, {lanes}> w;
            for (int i = 0; i < {lanes}; i++) w.at[i] = v.at[{lanes - 1} - i];
            tgc_store_vector(p.out, threadIdx.x * {lanes}, w);""",
        )
    )
    a = np.arange(32 * lanes).astype(dtype)
    out = np.zeros_like(a)
    launch(unit, "copy", a, out)
    np.testing.assert_array_equal(out, a.reshape(32, lanes)[:, ::-1].ravel())


@pytest.mark.parametrize(("dtype", "lanes"), [("float16", 1), ("float16", 2), ("float64", 2)])
def test_what_lies_outside_is_zero_and_is_not_read(dtype: str, lanes: int) -> None:
    """The emulator refuses an address beyond the buffer, if it is read."""
    c = C_NAMES[dtype]
    unit = module(
        kernel(
            "copy",
            f"const {c}* a; {c}* out;",
            f"""const int i = threadIdx.x * {lanes};
            const bool inside = threadIdx.x % 3 == 1;
            auto v = tgc_load_vector_if<{lanes}>(inside, p.a, inside ? i : 1 << 20);
            v.at[0] = tgc_to_storage<{c}>(tgc_load_if(inside, p.a, inside ? i : -1));
            tgc_store_vector(p.out, i, v);""",
        )
    )
    a = np.arange(1, 32 * lanes + 1).astype(dtype)
    out = np.full_like(a, np.nan)
    launch(unit, "copy", a, out)
    inside = np.arange(32).repeat(lanes) % 3 == 1
    np.testing.assert_array_equal(out, np.where(inside, a, 0))


def test_check_index_records_the_first_bad_index() -> None:
    unit = module(
        kernel(
            "gather",
            "const long long* index; unsigned long long* error; long long* out; long long limit;",
            """long long i = tgc_load(p.index, threadIdx.x);
            tgc_store(p.out, threadIdx.x, tgc_check_index(i, p.limit, p.error, 6));""",
        )
    )
    index = np.arange(32)
    error, out = np.zeros(8, np.uint64), np.full(32, -1)
    mirror = np.zeros(4, np.int64)
    error[4] = mirror.ctypes.data
    launch(unit, "gather", index, error, out, 32)
    np.testing.assert_array_equal(out, index)
    assert not error[:4].any() and not mirror.any()
    index[[5, 9]] = [-3, 40]
    launch(unit, "gather", index, error, out, 32)
    assert error[:4].view(np.int64).tolist() == mirror.tolist() == [7, -3, 32, 0]
    np.testing.assert_array_equal(out, np.where((index < 0) | (index > 31), 0, index))


@pytest.mark.parametrize(("ctype", "dtype"), [("float", np.float32), ("double", np.float64)])
def test_check_unit_records_the_bits_of_the_first_bad_value(ctype: str, dtype: Any) -> None:
    unit = module(
        kernel(
            "chances",
            f"const {ctype}* x; unsigned long long* error; {ctype}* out;",
            """auto x = tgc_load(p.x, threadIdx.x);
            tgc_store(p.out, threadIdx.x, tgc_check_unit(x, p.error, 6, threadIdx.x));""",
        )
    )
    x = np.linspace(0, 1, 32).astype(dtype)
    error, out = np.zeros(8, np.uint64), np.zeros_like(x)
    launch(unit, "chances", x, error, out)
    assert not error.any()
    x[5] = np.nan
    launch(unit, "chances", x, error, out)
    np.testing.assert_array_equal(out, x)
    assert error[[0, 3]].tolist() == [7, 5] and np.isnan(error[1:2].view(np.float64)).all()


# NVRTC --------------------------------------------------------------------------------------------

EVERYTHING = kernel(
    "everything",
    "const float* f; const double* d; const tgc_half* h; const tgc_bfloat16* b; const bool* t; "
    "float* fo; double* dout; tgc_half* ho; tgc_bfloat16* bo; int* io; long long* lo; "
    "unsigned long long* error; long long n; double s;",
    r"""
  tgc_grid_wait();
  int i = virtual_block * 32 + threadIdx.x;
  float x = tgc_load(p.f, i) + tgc_load(p.h, i) + tgc_load(p.b, i) + float(tgc_load(p.t, i));
  double y = tgc_load(p.d, i);
#define ONE(NAME) x = tgc_##NAME(x); y = tgc_##NAME(y);
  ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sqrt) ONE(rsqrt)
  ONE(cbrt) ONE(sin) ONE(cos) ONE(tan) ONE(asin) ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh)
  ONE(asinh) ONE(acosh) ONE(atanh) ONE(erf) ONE(erfc) ONE(erfinv) ONE(lgamma) ONE(tgamma)
  ONE(floor) ONE(ceil) ONE(trunc) ONE(rint) ONE(fabs) ONE(abs) ONE(sign) ONE(sigmoid)
  x = tgc_polygamma(2, x); y = tgc_polygamma(0, y) + tgc_digamma(y) + tgc_zeta(2.0, y);
#define TWO(NAME) x = tgc_##NAME(x, 1.5f); y = tgc_##NAME(y, p.s);
  TWO(pow) TWO(atan2) TWO(fmod) TWO(hypot) TWO(copysign) TWO(nextafter) TWO(max) TWO(min)
  TWO(remainder) TWO(floor_divide) TWO(add_rn) TWO(sub_rn) TWO(mul_rn)
  x = tgc_fma(x, x, x); y = tgc_fma(y, y, y);
  bool odd = tgc_isnan(x) || tgc_isinf(y) || !tgc_isfinite(x);
  int k = tgc_to_int(x) + tgc_to_int(y);
  long long l = tgc_to_long(x) + tgc_to_long(y);
  l += tgc_to_unsigned_long(x) + tgc_to_unsigned_long(y);
  x = tgc_multiply_add(x, x, x); k = tgc_multiply_add(k, k, k);
#define INTEGER(TYPE) { typedef TYPE T; T a = T(k), c = T(l); \
  a = tgc_product(tgc_abs(a), c); a = tgc_sign(T(a + 3)); a = tgc_max(a, c); a = tgc_min(a, T(9)); \
  a = tgc_remainder(a, c); a = tgc_floor_divide(a, c); a = tgc_fmod(T(a + 7), c); \
  a = tgc_pow(a, c); a = tgc_shift_left(a, T(2)); a = tgc_shift_right(a, T(1)); \
  a = tgc_max(a, tgc_lowest<T>()); a = tgc_min(a, tgc_highest<T>()); k += a; }
  INTEGER(signed char) INTEGER(unsigned char) INTEGER(short) INTEGER(int) INTEGER(long long)
  INTEGER(unsigned short) INTEGER(unsigned) INTEGER(unsigned long long)
  x += tgc_lowest<float>() + tgc_highest<float>() + tgc_cast<tgc_half>(y) + INFINITY + NAN;
  y += tgc_cast<tgc_bfloat16>(y) + tgc_cast<short>(x) + tgc_cast<bool>(y) + tgc_round_to_odd(y);
  x += tgc_half_value(tgc_half_bits(x)) + tgc_to_compute(tgc_bfloat16{tgc_bfloat16_bits(x)});
  x = tgc_shuffle(x, 3) + tgc_shuffle_xor(x, 1) + tgc_shuffle_up(x, 1) + tgc_shuffle_down(x, 1);
  x = tgc_warp_reduce(x, tgc_sum_op()) + tgc_warp_reduce_first(x, tgc_max_op(), 7);
  x += tgc_warp_scan(x, tgc_product_op()) + tgc_block_scan(x, tgc_min_op(), smem);
  static_assert(tgc_block_reduce_bytes<double> == 256);
  k = tgc_block_reduce(k, tgc_and_op(), smem) + tgc_block_reduce(k, tgc_or_op(), smem);
  auto best = tgc_block_reduce(tgc_pair<double>{y, i}, tgc_argmax_op(), smem);
  auto least = tgc_block_reduce(tgc_pair<float>{x, i}, tgc_argmin_op(), smem);
  auto moments = tgc_welford_add(tgc_welford<float>{0, 0, 0}, x);
  moments = tgc_block_reduce(moments, tgc_welford_op(), smem);
  x += tgc_welford_mean(x, moments.mean, moments.m2);
  k += tgc_block_reduce_once(k, tgc_sum_op(), smem + 1024);
  float batch[4] = {x, 1, 2, x};
  tgc_block_send(tgc_welford_add(moments, batch), tgc_welford_op(), smem + 2048);
  __syncthreads();
  tgc_block_receive<1>(moments, tgc_welford_op(), smem + 2048);
  x += tgc_load_if(i < p.n, p.b, i) + tgc_element(tgc_load_vector_if<2>(i < p.n, p.b, i * 2), 1);
  x += tgc_element(tgc_load_vector<8>(p.b, i * 8), 3) + tgc_warp_reduce<4>(x, tgc_sum_op());
  x += tgc_strided_reduce<8>(x, tgc_sum_op());
  tgc_grid_signal();
  float* sums = reinterpret_cast<float*>(smem + 4096);
  tgc_columns_start<4>(sums, threadIdx.x, 32, 0.0f);
  tgc_columns_take(sums, threadIdx.x, 32, batch, tgc_sum_op());
  tgc_columns_keep<4>(sums, threadIdx.x, 32, p.fo, i * 4);
  x += tgc_columns_at<float, 4>(sums, threadIdx.x, 32, 0)->at[3];
  float own[4];
  tgc_columns_start(own, 0.0f);
  tgc_columns_take(own, batch, tgc_sum_op());
  tgc_columns_keep(own, p.fo, i * 4);
  auto* pieces = reinterpret_cast<tgc_vector<tgc_half, 4>*>(sums) + threadIdx.x;
  auto* wholes = reinterpret_cast<tgc_vector<float, 4>*>(sums) + threadIdx.x;
  tgc_copy_ahead(pieces, p.h, i * 4);
  tgc_copy_commit();
  tgc_copy_ahead_lasting(wholes, p.f, i * 4);
  tgc_copy_commit();
  tgc_copy_wait<1>();
  x += tgc_element(*pieces, 1);
  tgc_store_vector(p.ho, i * 4, tgc_rounded<tgc_half>(batch));
  tgc_store_vector(p.bo, i * 4, tgc_rounded<tgc_bfloat16>(batch));
  auto v = tgc_stage_vector(wholes, tgc_load_vector<4>(p.f, i * 4));
  v.at[1] += tgc_element(tgc_load_vector_lasting<8>(p.b, i * 8), 3);
  for (int j = 0; j < 4; j++) v.at[j] += tgc_divide(moments.mean, tgc_divisor_of(moments.n));
  v.at[0] += tgc_share_of(moments.n) + tgc_exp_short(x) * tgc_sigmoid_short(x);
  v.at[0] += tgc_exp_bfloat16(x) * tgc_sigmoid_bfloat16(x);
  v.at[1] = tgc_divide_short(x, tgc_divisor_of(best.value));
  tgc_store_vector(p.fo, i * 4, v);
  *tgc_address_write(p.dout, i) = *tgc_address(p.d, i) + best.value;
  tgc_store(p.ho, i, y); tgc_store(p.bo, i, y);
  *tgc_address_write(p.ho, i + 32) = tgc_to_storage<tgc_half>(x);
  tgc_store(p.io, i, tgc_again(k) + odd + tgc_lane() + tgc_warp());
  tgc_store(p.lo, i, tgc_check_index(l + best.index + least.index, p.n, p.error, 3));
  if (tgc_check_unit(x, p.error, 4, i) > tgc_check_unit((double)x, p.error, 5, i))
    tgc_report(l, p.n, p.error, 6, i);
""",
    threads=256,
)


def test_the_kernel_below_uses_every_function_of_the_prelude() -> None:
    text = prelude()
    names = set(re.findall(r"TGC_DEVICE[^;{]*?\b(tgc_\w+)\(", text))
    names |= {f"tgc_{name}" for name in re.findall(r"TGC_MATH[12]\((\w+)\)", text)}
    names |= set(re.findall(r"TGC_SHUFFLE\((tgc_\w+)", text))
    names |= set(re.findall(r"struct (tgc_\w+_op)\b", text))
    names -= {"tgc_NAME", "tgc_"}
    used = set(re.findall(r"tgc_\w+", EVERYTHING))
    used |= {f"tgc_{name}" for name in re.findall(r"\b(?:ONE|TWO)\((\w+)\)", EVERYTHING)}
    assert len(names) > 80
    assert names <= used


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_nvrtc_compiles_every_function(arch: str) -> None:
    binary = compile_source(prelude() + EVERYTHING, arch)
    assert binary.cubin[:4] == b"\x7fELF"
    assert "warning" not in binary.log


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_what_leaves_the_cache_last_says_so_in_machine_code(arch: str) -> None:
    """The upper half of the policy, a constant of an instruction."""
    fields, load = "const float* in; float* out;", "tgc_load_vector_lasting<4>(p.in, i)"
    body = f"int i = threadIdx.x * 4; tgc_store_vector(p.out, i, {load});"
    marked, plain = (
        compile_source(prelude() + kernel("one", fields, text), arch).cubin.count(b"\0\0\xf0\x14")
        for text in (body, body.replace("_lasting", ""))
    )
    assert (marked > plain) is (arch != "sm_75")


def test_the_emulator_compiles_every_function() -> None:
    module(EVERYTHING)
