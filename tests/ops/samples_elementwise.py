"""Samples of the elementwise rows: a formula on Python numbers and a smooth domain for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from sampling import (
    ALL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    VIEWS,
    Array,
    Sample,
    Source,
    cast,
    edge_pairs,
    edge_values,
    generator,
    plain,
    some,
    variant,
    wide,
)

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType, from_numpy
from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops import elementwise as ew

Domain = Callable[[np.random.Generator, tuple[int, ...]], tuple[Array, ...]]


def span(*bounds: tuple[float, float]) -> Domain:
    """Each operand uniform between two bounds."""
    return lambda rng, shape: tuple(rng.uniform(low, high, shape) for low, high in bounds)


def signed(*bounds: tuple[float, float]) -> Domain:
    """Each operand of either sign, its magnitude between two bounds."""
    return lambda rng, shape: tuple(
        rng.uniform(low, high, shape) * rng.choice([-1.0, 1.0], shape) for low, high in bounds
    )


def between(low: float, high: float) -> Domain:
    """An integer plus a fraction: away from the steps of rounding."""
    return lambda rng, shape: (rng.integers(-4, 4, shape) + rng.uniform(low, high, shape),)


def divisible(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Pairs whose quotient is away from an integer and from zero."""
    (b,) = signed((0.5, 2))(rng, shape)
    return b * (rng.integers(1, 4, shape) + rng.uniform(0.2, 0.8, shape)) * rng.choice(
        [-1.0, 1.0], shape
    ), b


def apart(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Pairs that are not nearly equal."""
    a = rng.uniform(-2, 2, shape)
    return a, a + rng.uniform(0.2, 1, shape) * rng.choice([-1.0, 1.0], shape)


class Spec(NamedTuple):
    """One row: a formula on Python numbers, where it is smooth, and what it takes."""

    formula: Callable[..., Any]
    domain: Domain
    accepts: tuple[DType, ...] = FLOATS
    exact: bool = False
    signs: bool = False
    torch: Callable[..., Any] | None = None


def _sign(x: Any) -> Any:
    return (x > 0) - (x < 0)  # 0 for NaN


def _maximum(a: Any, b: Any) -> Any:
    return a if a != a else b if b != b else max(a, b)


def _minimum(a: Any, b: Any) -> Any:
    return a if a != a else b if b != b else min(a, b)


def _power(a: Any, b: Any) -> Any:
    if isinstance(b, float):
        return math.pow(a, b)
    if b < 0:
        return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)
    return pow(a, b, 2**64)


def _floor_divide(a: Any, b: Any) -> Any:
    return 0 if b == 0 and isinstance(b, int) else a // b


def _remainder(a: Any, b: Any) -> Any:
    return 0 if b == 0 and isinstance(b, int) else a % b


def _fmod(a: Any, b: Any) -> Any:
    if isinstance(b, float):
        return math.fmod(a, b)
    return 0 if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)


def _not(x: Any) -> Any:
    return not x if isinstance(x, bool) else ~x


def _rounding(function: Callable[[float], int]) -> Callable[[float], float]:
    # math.floor makes an int of a float, which has no negative zero.
    return lambda x: x if not math.isfinite(x) else math.copysign(function(x), x)


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def _exact(
    formula: Any, domain: Domain, accepts: Any = NUMBERS, signs: bool = True, torch: Any = None
) -> Spec:
    return Spec(formula, domain, accepts, True, signs, torch)


_ANY1, _ANY2 = span((-2, 2)), span((-2, 2), (-2, 2))
_BITS = INTEGERS + (dtypes.bool_,)
_BOOL = (dtypes.bool_,)
_REAL = (-2.0, 2.0)

SPECS: dict[Op, Spec] = {
    ew.add: _exact(lambda a, b: a + b, _ANY2, ALL, torch=lambda t, a, b: a + b),
    ew.sub: _exact(lambda a, b: a - b, _ANY2, torch=lambda t, a, b: a - b),
    ew.mul: _exact(lambda a, b: a * b, _ANY2, ALL, torch=lambda t, a, b: a * b),
    ew.div: _exact(
        lambda a, b: a / b, signed((0.5, 2), (0.5, 2)), FLOATS, torch=lambda t, a, b: a / b
    ),
    ew.contiguous: _exact(lambda x: x, _ANY1, ALL, torch=lambda t, x: x.contiguous()),
    ew.neg: _exact(lambda x: -x, _ANY1, torch=lambda t, x: -x),
    ew.reciprocal: _exact(
        lambda x: 1 / x, signed((0.5, 2)), FLOATS, torch=lambda t, x: t.reciprocal(x)
    ),
    ew.floor_divide: Spec(
        _floor_divide, divisible, NUMBERS, torch=lambda t, a, b: t.floor_divide(a, b)
    ),
    ew.remainder: Spec(_remainder, divisible, NUMBERS, torch=lambda t, a, b: t.remainder(a, b)),
    ew.fmod: _exact(_fmod, divisible, signs=False, torch=lambda t, a, b: t.fmod(a, b)),
    ew.pow: Spec(_power, span((0.5, 2), (-2, 2)), NUMBERS, torch=lambda t, a, b: t.pow(a, b)),
    ew.maximum: _exact(_maximum, apart, ALL, False, torch=lambda t, a, b: t.maximum(a, b)),
    ew.minimum: _exact(_minimum, apart, ALL, False, torch=lambda t, a, b: t.minimum(a, b)),
    ew.eq: _exact(lambda a, b: a == b, apart, ALL, torch=lambda t, a, b: a == b),
    ew.ne: _exact(lambda a, b: a != b, apart, ALL, torch=lambda t, a, b: a != b),
    ew.lt: _exact(lambda a, b: a < b, apart, ALL, torch=lambda t, a, b: a < b),
    ew.le: _exact(lambda a, b: a <= b, apart, ALL, torch=lambda t, a, b: a <= b),
    ew.gt: _exact(lambda a, b: a > b, apart, ALL, torch=lambda t, a, b: a > b),
    ew.ge: _exact(lambda a, b: a >= b, apart, ALL, torch=lambda t, a, b: a >= b),
    ew.logical_and: _exact(lambda a, b: a and b, _ANY2, _BOOL, torch=lambda t, a, b: a & b),
    ew.logical_or: _exact(lambda a, b: a or b, _ANY2, _BOOL, torch=lambda t, a, b: a | b),
    ew.logical_xor: _exact(lambda a, b: a is not b, _ANY2, _BOOL, torch=lambda t, a, b: a ^ b),
    ew.logical_not: _exact(lambda x: not x, _ANY1, _BOOL, torch=lambda t, x: ~x),
    ew.bitwise_and: _exact(lambda a, b: a & b, _ANY2, _BITS, torch=lambda t, a, b: a & b),
    ew.bitwise_or: _exact(lambda a, b: a | b, _ANY2, _BITS, torch=lambda t, a, b: a | b),
    ew.bitwise_xor: _exact(lambda a, b: a ^ b, _ANY2, _BITS, torch=lambda t, a, b: a ^ b),
    ew.bitwise_not: _exact(_not, _ANY1, _BITS, torch=lambda t, x: ~x),
    ew.isnan: _exact(math.isnan, _ANY1, FLOATS, torch=lambda t, x: t.isnan(x)),
    ew.isfinite: _exact(math.isfinite, _ANY1, FLOATS, torch=lambda t, x: t.isfinite(x)),
    ew.floor: _exact(
        _rounding(math.floor), between(0.2, 0.8), FLOATS, torch=lambda t, x: t.floor(x)
    ),
    ew.ceil: _exact(_rounding(math.ceil), between(0.2, 0.8), FLOATS, torch=lambda t, x: t.ceil(x)),
    ew.trunc: _exact(
        _rounding(math.trunc), between(0.2, 0.8), FLOATS, torch=lambda t, x: t.trunc(x)
    ),
    ew.round: _exact(_rounding(round), between(-0.3, 0.3), FLOATS, torch=lambda t, x: t.round(x)),
    ew.abs: _exact(abs, signed((0.2, 2)), torch=lambda t, x: t.abs(x)),
    # torch's sign of NaN is 0; NumPy's is NaN.
    ew.sign: _exact(_sign, signed((0.2, 2)), signs=False),
    ew.exp: Spec(math.exp, _ANY1, torch=lambda t, x: t.exp(x)),
    ew.exp2: Spec(lambda x: 2.0**x, _ANY1, torch=lambda t, x: t.exp2(x)),
    ew.expm1: Spec(math.expm1, _ANY1, torch=lambda t, x: t.expm1(x)),
    ew.log: Spec(math.log, span((0.3, 3)), torch=lambda t, x: t.log(x)),
    ew.log2: Spec(math.log2, span((0.3, 3)), torch=lambda t, x: t.log2(x)),
    ew.log1p: Spec(math.log1p, span((-0.6, 3)), torch=lambda t, x: t.log1p(x)),
    ew.sqrt: _exact(math.sqrt, span((0.3, 3)), FLOATS, torch=lambda t, x: t.sqrt(x)),
    ew.rsqrt: Spec(lambda x: 1 / math.sqrt(x), span((0.3, 3)), torch=lambda t, x: t.rsqrt(x)),
    ew.sin: Spec(math.sin, _ANY1, torch=lambda t, x: t.sin(x)),
    ew.cos: Spec(math.cos, _ANY1, torch=lambda t, x: t.cos(x)),
    ew.tan: Spec(math.tan, span((-1, 1)), torch=lambda t, x: t.tan(x)),
    ew.asin: Spec(math.asin, span((-0.8, 0.8)), torch=lambda t, x: t.asin(x)),
    ew.acos: Spec(math.acos, span((-0.8, 0.8)), torch=lambda t, x: t.acos(x)),
    ew.atan: Spec(math.atan, _ANY1, torch=lambda t, x: t.atan(x)),
    ew.atan2: Spec(math.atan2, signed((0.5, 2), (0.5, 2)), torch=lambda t, a, b: t.atan2(a, b)),
    ew.sinh: Spec(math.sinh, _ANY1, torch=lambda t, x: t.sinh(x)),
    ew.cosh: Spec(math.cosh, _ANY1, torch=lambda t, x: t.cosh(x)),
    ew.tanh: Spec(math.tanh, _ANY1, torch=lambda t, x: t.tanh(x)),
    ew.sigmoid: Spec(_expit, _ANY1, torch=lambda t, x: t.sigmoid(x)),
    ew.erf: Spec(math.erf, _ANY1, torch=lambda t, x: t.erf(x)),
}
TO_BOOL = (ew.eq, ew.ne, ew.lt, ew.le, ew.gt, ew.ge, ew.isnan, ew.isfinite)
# Rows with rules but a derivative that is zero wherever it exists.
FLAT = (ew.floor, ew.ceil, ew.trunc, ew.round, ew.sign, ew.floor_divide)


class Undefined(Exception):
    """Python's arithmetic refuses where IEEE's gives infinity or NaN."""


def by_element(formula: Callable[..., Any], result: DType | None = None) -> Callable[..., Any]:
    """The formula on each element: the values, and where Python's arithmetic defines them."""

    def expected(*arrays: Array, **_: Any) -> tuple[Array, Array]:
        dtype = result or from_numpy(arrays[-1].dtype)
        first = np.broadcast_arrays(*arrays)[0]
        values = np.zeros(first.shape, dtype.numpy)
        defined = np.zeros(first.shape, bool)
        for index in np.ndindex(first.shape):
            operands = [wide(array)[index].item() for array in arrays]
            try:
                values[index] = stored(formula(*operands), dtype)
                defined[index] = True
            except (ArithmeticError, ValueError, Undefined):
                continue
        return values, defined

    return expected


def stored(number: Any, dtype: DType) -> Any:
    """A Python number as an element: integers wrap, floating numbers round."""
    if dtype is dtypes.bool_:
        return bool(number)
    if dtype.is_integer:
        bits = 8 * dtype.itemsize
        low = -(1 << (bits - 1)) if dtype.is_signed else 0
        return (int(number) - low) % (1 << bits) + low
    if isinstance(number, complex):
        raise Undefined
    return cast(np.float64(number), dtype)


def samples() -> Iterator[Sample]:
    for op, spec in SPECS.items():
        yield from _of(op, spec)
    yield from _where()
    yield from _casts()
    yield from _ties()


def _make(op: Op, spec: Spec, label: str, sources: tuple[Source, ...], **more: Any) -> Sample:
    result = dtypes.bool_ if op in TO_BOOL else None
    return Sample(
        op, label, sources, expected=by_element(spec.formula, result), exact=spec.exact,
        signs=spec.signs, torch=spec.torch, **more,
    )  # fmt: skip


def _of(op: Op, spec: Spec) -> Iterator[Sample]:
    arity = len(spec.domain(generator(0), (1,)))
    for dtype in spec.accepts:
        edges = edge_pairs(dtype) if arity == 2 else (edge_values(dtype),)
        sample = _make(op, spec, f"{dtype.name} edges", tuple(plain(edge) for edge in edges))
        if op in (ew.remainder, ew.fmod) and dtype.is_floating:
            # torch's vectorised fmod takes a subnormal divisor for zero.
            sample = variant(sample, torch=None)
        yield sample
    first = spec.accepts[0]
    for shape in ((), (0, 3), (1, 1), (257,)):
        yield _make(op, spec, f"{first.name} {shape}", _operands(op, spec, shape, first, "plain"))
    views = (("transposed", (7, 13)), ("sliced", (3, 1, 31)), ("expanded", (5, 13)),
             ("flipped", (13, 7)), ("reshaped", (3, 7, 5)))  # fmt: skip
    for number, (view, shape) in enumerate(views):
        dtype = spec.accepts[number % len(spec.accepts)]
        yield _make(op, spec, f"{dtype.name} {view}", _operands(op, spec, shape, dtype, view))
    if dtypes.float64 in spec.accepts and op not in TO_BOOL:
        for view, shape in (("plain", (2, 3)), ("transposed", (3, 4)), ("sliced", (5,)),
                            ("plain", ())):  # fmt: skip
            yield _make(
                op, spec, f"smooth {view} {shape}",
                _operands(op, spec, shape, dtypes.float64, view), differentiate=True,
            )  # fmt: skip


def _operands(
    op: Op, spec: Spec, shape: tuple[int, ...], dtype: DType, view: str
) -> tuple[Source, ...]:
    rng = generator(op.name, shape, dtype.name, view)
    arrays = spec.domain(rng, shape)
    if not dtype.is_floating:
        arrays = tuple(some(rng, shape, dtype) for _ in arrays)
    first, *rest = (cast(np.asarray(array), dtype) for array in arrays)
    # The other operand is contiguous: two different index expressions meet in one kernel.
    return (VIEWS[view](first), *(plain(array) for array in rest))


def _where() -> Iterator[Sample]:
    expected = by_element(lambda c, a, b: a if c else b)

    def make(label: str, c: Source, a: Source, b: Source, **more: Any) -> Sample:
        return Sample(
            ew.where, label, (c, a, b), expected=expected, exact=True, signs=True,
            torch=lambda t, c, a, b: t.where(c, a, b), **more,
        )  # fmt: skip

    for dtype in ALL:
        a, b = edge_pairs(dtype)
        c = some(generator("where", dtype.name), a.shape, dtypes.bool_)
        yield make(f"{dtype.name} edges", plain(c), plain(a), plain(b))
    for view, shape in (("transposed", (3, 4)), ("sliced", (5,)), ("plain", ()),
                        ("expanded", (3, 2)), ("plain", (0, 2))):  # fmt: skip
        rng = generator("where", view, shape)
        c, a, b = (some(rng, shape, t) for t in (dtypes.bool_, dtypes.float64, dtypes.float64))
        yield make(
            f"smooth {view} {shape}", VIEWS[view](c), VIEWS[view](a), plain(b), differentiate=True
        )


def _convert(to: DType) -> Callable[[Any], Any]:
    def formula(x: Any) -> Any:
        if isinstance(x, float) and to.is_integer:
            limit = 2.0 ** (63 if to.itemsize == 8 or to is dtypes.uint32 else 31)
            if not -limit <= x < (2.0**64 if to is dtypes.uint64 else limit):
                raise Undefined
        return x

    return formula


def _casts() -> Iterator[Sample]:
    for source in ALL:
        for to in ALL:
            yield Sample(
                ew.cast, f"{source.name} to {to.name}", (plain(edge_values(source)),),
                {"dtype": to}, expected=by_element(_convert(to), to), signs=True,
                exact=not (source is dtypes.float64 and to in FLOATS[2:]),
            )  # fmt: skip
    yield from _casts_to_unsigned()
    for view, shape in (("transposed", (3, 4)), ("plain", ()), ("plain", (0, 2))):
        x = some(generator("cast", view, shape), shape, dtypes.float64)
        yield Sample(
            ew.cast, f"smooth {view} {shape}", (VIEWS[view](x),), {"dtype": dtypes.float64},
            differentiate=True, exact=True,
        )  # fmt: skip


# Floating numbers around the limits of unsigned dtypes and of the integers they go through.
AROUND = tuple(
    sign * (2.0**bits + more)
    for bits in (8, 16, 31, 32, 63, 64, 70)
    for sign in (1, -1)
    for more in (-(2.0 ** (bits - 20)), 0, 300)
)  # fmt: skip


def _casts_to_unsigned() -> Iterator[Sample]:
    for source in FLOATS[:2]:
        for to in INTEGERS[-3:]:
            yield Sample(
                ew.cast, f"{source.name} around the limits of {to.name}",
                (plain(cast(np.array(AROUND), source)),), {"dtype": to}, exact=True,
                expected=by_element(_convert(to), to),
            )  # fmt: skip


def _ties() -> Iterator[Sample]:
    """Where both operands are equal the cotangent is halved, as in torch."""
    x = np.array([1.0, -2.0, 0.0, 3.0])
    for op in (ew.maximum, ew.minimum):
        spec = SPECS[op]
        yield _make(op, spec, "ties", (plain(x), plain(np.array([1.0, 5.0, 0.0, -3.0]))))
