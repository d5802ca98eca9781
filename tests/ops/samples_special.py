"""Samples of the special functions: formulas on Python numbers that share nothing with SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from samples_elementwise import Spec, Undefined, _exact, _of, by_element, signed, span
from sampling import (
    FLOATS,
    INTEGERS,
    VIEWS,
    Sample,
    cast,
    edge_pairs,
    edge_values,
    generator,
    plain,
)
from scipy.integrate import quad

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import special
from tinygrad_cuda.graph.ops.common import full_like

# Bernoulli numbers 2, 4, ... over factorials, for Euler and Maclaurin's sum.
BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)


def _lgamma(x: float) -> float:
    if x <= 0 and x == math.floor(x) and math.isfinite(x):
        return math.inf
    return math.lgamma(x)


def _erfinv(x: float) -> float:
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    if not abs(x) < 1:
        return math.nan
    if x == 0:
        return x
    if abs(x) < 1e-4:
        root = x * math.sqrt(math.pi) / 2
        return root + root**3 / 3
    guess = NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2)
    # The normal quantile has lost digits where x is small.
    return guess - (math.erf(guess) - x) * math.sqrt(math.pi) / 2 * math.exp(guess * guess)


def _polygamma(order: int, x: float) -> float:
    if x == math.inf:
        return math.inf if order == 0 else 0.0
    if math.isnan(x) or order < 0 or (x <= -1000 and order == 0):
        return math.nan
    if x <= -1000:  # too far for the series, but for poles
        whole = math.isinf(x) or x == math.floor(x)
        return (-1.0) ** (order + 1) * math.inf if whole else math.nan
    if x == 0:
        return -math.copysign(math.inf, x) if order == 0 else (-1.0) ** (order + 1) * math.inf
    if x < 0 and x == math.floor(x):
        return math.nan if order == 0 else (-1.0) ** (order + 1) * math.inf
    total, steps = 0.0, 20 + max(0, -math.floor(x))
    if order == 0:
        q = x + steps
        total = -math.fsum(1 / (x + k) for k in range(steps))
        total += math.log(q) - 1 / (2 * q)
        return total - math.fsum(
            b * math.factorial(2 * k + 1) / q ** (2 * k + 2) for k, b in enumerate(BERNOULLI)
        )
    s, q = order + 1, x + steps
    total = math.fsum((x + k) ** -s for k in range(steps))
    total += q ** (1 - s) / (s - 1) + q**-s / 2
    factor = s * q ** (-s - 1)
    for k, b in enumerate(BERNOULLI):
        total += b * factor
        factor *= (s + 2 * k + 1) * (s + 2 * k + 2) / q**2
    return (-1) ** s * math.factorial(order) * total


SPECS: dict[Op, Spec] = {
    special.asinh: Spec(math.asinh, span((-2, 2)), torch=lambda t, x: t.asinh(x)),
    special.acosh: Spec(math.acosh, span((1.3, 3)), torch=lambda t, x: t.acosh(x)),
    special.atanh: Spec(math.atanh, span((-0.8, 0.8)), torch=lambda t, x: t.atanh(x)),
    special.erfc: Spec(math.erfc, span((-2, 2)), torch=lambda t, x: t.erfc(x)),
    special.erfinv: Spec(_erfinv, span((-0.8, 0.8)), torch=lambda t, x: t.erfinv(x)),
    special.lgamma: Spec(_lgamma, span((0.3, 3)), torch=lambda t, x: t.lgamma(x)),
    special.hypot: Spec(
        math.hypot, signed((0.5, 2), (0.5, 2)), torch=lambda t, a, b: t.hypot(a, b)
    ),
    special.copysign: _exact(
        math.copysign, signed((0.2, 2), (0.2, 2)), FLOATS, torch=lambda t, a, b: t.copysign(a, b)
    ),
}


def samples() -> Iterator[Sample]:
    for op, spec in SPECS.items():
        yield from _of(op, spec)
    yield from _polygammas()
    yield from _neighbours()


def _polygammas() -> Iterator[Sample]:
    expected = by_element(_polygamma)

    def make(label: str, order: Any, x: Any, **more: Any) -> Sample:
        return Sample(special.polygamma, label, (order, x), expected=expected, **more)

    for dtype in FLOATS:
        x = edge_values(dtype)
        for order in (0, 1, 3):
            orders = np.full(x.shape, order, np.int64)
            yield make(f"{dtype.name} edges {order}", plain(orders), plain(x))
    for view, shape in (("transposed", (3, 4)), ("sliced", (5,)), ("plain", ()), ("plain", (0, 2))):
        rng = generator("polygamma", view, shape)
        orders = np.asarray(rng.integers(0, 3, shape))
        x = np.asarray(rng.uniform(0.5, 3, shape))
        yield make(f"smooth {view} {shape}", plain(orders), VIEWS[view](x), differentiate=True)
    x = generator("polygamma").uniform(-4, 30, (257,))
    yield make("both sides of zero", plain(np.arange(257) % 4), plain(x))


def _neighbours() -> Iterator[Sample]:
    expected = by_element(math.nextafter)
    for dtype in (dtypes.float32, dtypes.float64):
        x = cast(np.array([1.0, -1.0, 0.0, -0.0, 100.0, np.inf, np.nan, 0.1]), dtype)
        y = cast(np.array([2.0, 2.0, -1.0, 0.0, -np.inf, 1.0, 1.0, np.nan]), dtype)
        independent = {"expected": expected} if dtype is dtypes.float64 else {}
        yield Sample(
            special.nextafter, f"{dtype.name}", (plain(x), plain(y)), exact=True,
            torch=lambda t, a, b: t.nextafter(a, b), **independent,
        )  # fmt: skip
    x = np.linspace(-1.0, 1.0, 12).reshape(3, 4)
    yield Sample(
        special.nextafter, "smooth", (plain(x), plain(x + 3)), expected=expected,
        differentiate=True,
    )  # fmt: skip
    yield Sample(
        special.nextafter, "transposed", (VIEWS["transposed"](x), plain(-x)), exact=True,
        expected=expected,
    )  # fmt: skip


# Series, where they change over, and poles -----------------------------------------------------

BOTH_SIDES = [0, -0.0, 0.1, -0.5, 1, -2, 5, 8, -20, 29.9, -30.1, 100, math.inf, -math.inf, math.nan]
RIGHT = [0, 0.01, 0.5, 1, 2, 3.5, 8, 20, 60, math.nan]


class TableSpec(NamedTuple):
    """One row: values for each operand, where it is smooth, and torch's name for it."""

    values: tuple[list[float], ...]
    smooth: tuple[tuple[float, float], ...]
    torch: Callable[..., Any] | None


# Tails down to subnormal numbers, both ends, and outside of them.
FRACTIONS = [0, 1, 0.5, 0.1, 0.9, 1e-7, 1e-30, 1e-40, 0.99, 0.999999, -0.5, 1.5, math.nan, 0.25]

TABLE_SPECS: dict[Op, TableSpec] = {
    special.i0: TableSpec((BOTH_SIDES,), ((0.5, 3),), lambda t, x: t.special.i0(x)),
    special.i1: TableSpec((BOTH_SIDES,), ((0.5, 3),), lambda t, x: t.special.i1(x)),
    special.entr: TableSpec(
        ([0, -0.0, 0.5, 1, 3, 1e-40, -1, 100, math.inf, -math.inf, math.nan],), ((0.5, 3),),
        lambda t, x: t.special.entr(x),
    ),
    special.ndtri: TableSpec((FRACTIONS,), ((0.1, 0.9),), lambda t, x: t.special.ndtri(x)),
    special.i0e: TableSpec((BOTH_SIDES,), ((0.5, 3),), lambda t, x: t.special.i0e(x)),
    special.i1e: TableSpec((BOTH_SIDES,), ((0.5, 3),), lambda t, x: t.special.i1e(x)),
    special.k0e: TableSpec(
        (RIGHT,), ((0.5, 3),), lambda t, x: t.special.scaled_modified_bessel_k0(x)
    ),
    special.k1e: TableSpec(
        (RIGHT,), ((0.5, 3),), lambda t, x: t.special.scaled_modified_bessel_k1(x)
    ),
    special.j0: TableSpec(([*RIGHT, -3],), ((0.5, 3),), lambda t, x: t.special.bessel_j0(x)),
    special.j1: TableSpec(([*RIGHT, -3],), ((0.5, 3),), lambda t, x: t.special.bessel_j1(x)),
    special.y0: TableSpec(([*RIGHT, -3],), ((0.5, 3),), lambda t, x: t.special.bessel_y0(x)),
    special.y1: TableSpec(([*RIGHT, -3],), ((0.5, 3),), lambda t, x: t.special.bessel_y1(x)),
    special.erfcx: TableSpec(
        ([0, 0.5, -1, 2, 7.9, 8.1, -5, 60, math.inf, math.nan],), ((-1, 2),),
        lambda t, x: t.special.erfcx(x),
    ),
    special.igamma: TableSpec(
        ([0, 0.5, 1, 3, 10, 10, 2, 2, 1, 1], [1, 0.2, 1, 9, 4, 30, 0, math.inf, -1, math.nan]),
        ((0.5, 3), (0.5, 3)), lambda t, a, x: t.igamma(a, x),
    ),
    special.igammac: TableSpec(
        ([0, 0.5, 1, 3, 10, 10, 2, 2, 1, 1], [1, 0.2, 1, 9, 4, 30, 0, math.inf, -1, math.nan]),
        ((0.5, 3), (0.5, 3)), lambda t, a, x: t.igammac(a, x),
    ),
    special.hurwitz: TableSpec(
        ([2, 3, 1.5, 1, 0.5, 2, 2, 3, 2.5, 2], [1, 0.5, 4, 1, 1, 0, -1.5, -2, -0.5, math.nan]),
        ((2, 4), (0.5, 3)), lambda t, s, q: t.special.zeta(s, q),
    ),
}  # fmt: skip

# In torch right to ten digits only.
FLAWED = (special.j0, special.j1, special.y0, special.y1)


def _integral(function: Callable[[float], float], low: float, high: float) -> float:
    """A definite integral of something smooth, to twelve digits."""
    return float(quad(function, low, high, epsabs=1e-13, epsrel=1e-13, limit=200)[0])


def _within(low: float, high: float, x: float) -> None:
    """Beyond these bounds the integral is not smooth enough."""
    if not low <= x <= high:
        raise Undefined


def _bessel_i(order: int, x: float) -> float:
    """exp(-|x|) I(x), by Bessel's integral."""
    _within(-30, 30, x)
    return _integral(
        lambda t: math.exp(x * math.cos(t) - abs(x)) * math.cos(order * t) / math.pi, 0, math.pi
    )


def _unscaled(order: int, x: float) -> float:
    return _bessel_i(order, x) * math.exp(abs(x))


def _entr(x: float) -> float:
    """-x log x = -x int_1^x 1 / t dt."""
    if x <= 0:
        return -math.inf if x < 0 else 0.0
    _within(0.1, 10, x)
    return -x * _integral(lambda t: 1 / t, 1, x)


def _ndtri(p: float) -> float:
    """The root of the distribution function, by bisection."""
    _within(1e-12, 1 - 1e-4, p)
    low, high = -40.0, 40.0
    for _ in range(200):
        middle = (low + high) / 2
        below = math.erfc(-middle / math.sqrt(2)) / 2 < p
        low, high = (middle, high) if below else (low, middle)
    return low


def _bessel_k(order: int, x: float) -> float:
    """exp(x) K(x)."""
    _within(0.1, 20, x)
    return _integral(lambda t: math.exp(x - x * math.cosh(t)) * math.cosh(order * t), 0, 9)


def _bessel_j(order: int, x: float) -> float:
    _within(-20, 20, x)
    return _integral(lambda t: math.cos(order * t - x * math.sin(t)) / math.pi, 0, math.pi)


def _bessel_y(order: int, x: float) -> float:
    _within(0.5, 20, x)
    turning = _integral(lambda t: math.sin(x * math.sin(t) - order * t), 0, math.pi)
    sign = (-1) ** order

    def falling(t: float) -> float:
        rate = math.exp(order * t) + sign * math.exp(-order * t)
        return rate * math.exp(-x * math.sinh(t))

    return (turning - _integral(falling, 0, 7)) / math.pi


def _erfcx(x: float) -> float:
    """exp(x ** 2) erfc(x) = 2 / sqrt(pi) int exp(-t ** 2 - 2 x t) dt."""
    _within(-2, 8, x)
    return _integral(lambda t: math.exp(-t * t - 2 * x * t) * 2 / math.sqrt(math.pi), 0, 12)


def _igamma(a: float, x: float) -> float:
    _within(1, 20, a)
    _within(0, 40, x)
    return _integral(lambda t: t ** (a - 1) * math.exp(-t) / math.gamma(a), 0, x)


def _hurwitz(s: float, q: float) -> float:
    """The sum of (q + n) ** -s by its integral."""
    _within(1.5, 4, s)
    _within(-2.4, 8, q)
    if q < 0 and s != int(s):
        raise Undefined
    start, count = 0.0, 40
    for n in range(count):
        start += (q + n) ** -s
    edge = q + count
    corrections = edge**-s / 2 + s * edge ** (-s - 1) / 12
    corrections -= s * (s + 1) * (s + 2) * edge ** (-s - 3) / 720
    return start + edge ** (1 - s) / (s - 1) + corrections


FORMULAS: dict[Op, Callable[..., float]] = {
    special.i0: lambda x: _unscaled(0, x),
    special.i1: lambda x: _unscaled(1, x),
    special.entr: _entr,
    special.ndtri: _ndtri,
    special.i0e: lambda x: _bessel_i(0, x),
    special.i1e: lambda x: _bessel_i(1, x),
    special.k0e: lambda x: _bessel_k(0, x),
    special.k1e: lambda x: _bessel_k(1, x),
    special.j0: lambda x: _bessel_j(0, x),
    special.j1: lambda x: _bessel_j(1, x),
    special.y0: lambda x: _bessel_y(0, x),
    special.y1: lambda x: _bessel_y(1, x),
    special.erfcx: _erfcx,
    special.igamma: _igamma,
    special.igammac: lambda a, x: 1 - _igamma(a, x),
    special.hurwitz: _hurwitz,
}


def _of_the_last(op: Op, *held: np.ndarray[Any, Any]) -> Callable[..., tuple[Node, ...]]:
    """The row as a function of its last operand: there is no derivative by the others."""
    firsts = [float(array.flat[0]) for array in held]
    return lambda x: (op(*(full_like(x, value) for value in firsts), x),)


def rare() -> Iterator[Sample]:
    for op, spec in TABLE_SPECS.items():
        for dtype in FLOATS:
            known = (dtypes.float32,) if op in FLAWED else (dtypes.float32, dtypes.float64)
            arrays = (cast(np.array(values), dtype) for values in spec.values)
            yield Sample(
                op, f"{dtype.name} values", tuple(plain(x) for x in arrays),
                torch=spec.torch if dtype in known else None, loose=4.0,
                expected=by_element(FORMULAS[op]),
            )  # fmt: skip
        for view, shape in (("transposed", (3, 4)), ("plain", ())):
            rng = generator(op.name, view)
            *held, x = (np.asarray(rng.uniform(*bounds, shape)) for bounds in spec.smooth)
            yield Sample(
                op, f"smooth {view}", (VIEWS[view](x),), build=_of_the_last(op, *held),
                differentiate=True, loose=4.0,
            )  # fmt: skip
    for dtype in INTEGERS:
        a, b = edge_pairs(dtype)
        # The magnitude of the lowest number is no number of the dtype.
        kept = (a != np.iinfo(dtype.numpy).min) & (b != np.iinfo(dtype.numpy).min)
        a, b = (a[kept], b[kept]) if dtype.is_signed else (a, b)
        yield Sample(
            special.gcd, dtype.name, (plain(a), plain(b)), exact=True,
            expected=by_element(math.gcd),
            torch=lambda t, a, b: t.gcd(a, b),
        )  # fmt: skip
