"""Samples of the rare special functions: where series change over, poles, smooth places."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from samples_elementwise import Undefined, by_element
from sampling import FLOATS, INTEGERS, VIEWS, Sample, cast, edge_pairs, generator, plain
from scipy.integrate import quad

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import special_rare as rare
from tinygrad_cuda.graph.ops.common import full_like

BOTH_SIDES = [0, -0.0, 0.1, -0.5, 1, -2, 5, 8, -20, 29.9, -30.1, 100, math.inf, -math.inf, math.nan]
RIGHT = [0, 0.01, 0.5, 1, 2, 3.5, 8, 20, 60, math.nan]


class Spec(NamedTuple):
    """One row: values for each operand, where it is smooth, and torch's name for it."""

    values: tuple[list[float], ...]
    smooth: tuple[tuple[float, float], ...]
    torch: Callable[..., Any] | None


# Tails down to subnormal numbers, both ends, and outside of them.
FRACTIONS = [0, 1, 0.5, 0.1, 0.9, 1e-7, 1e-30, 1e-40, 0.99, 0.999999, -0.5, 1.5, math.nan, 0.25]

SPECS: dict[Op, Spec] = {
    rare.i0: Spec((BOTH_SIDES,), ((0.5, 3),), lambda t, x: t.special.i0(x)),
    rare.i1: Spec((BOTH_SIDES,), ((0.5, 3),), lambda t, x: t.special.i1(x)),
    rare.entr: Spec(
        ([0, -0.0, 0.5, 1, 3, 1e-40, -1, 100, math.inf, -math.inf, math.nan],), ((0.5, 3),),
        lambda t, x: t.special.entr(x),
    ),
    rare.ndtri: Spec((FRACTIONS,), ((0.1, 0.9),), lambda t, x: t.special.ndtri(x)),
    rare.i0e: Spec((BOTH_SIDES,), ((0.5, 3),), lambda t, x: t.special.i0e(x)),
    rare.i1e: Spec((BOTH_SIDES,), ((0.5, 3),), lambda t, x: t.special.i1e(x)),
    rare.k0e: Spec(
        (RIGHT,), ((0.5, 3),), lambda t, x: t.special.scaled_modified_bessel_k0(x)
    ),
    rare.k1e: Spec(
        (RIGHT,), ((0.5, 3),), lambda t, x: t.special.scaled_modified_bessel_k1(x)
    ),
    rare.j0: Spec(([*RIGHT, -3],), ((0.5, 3),), lambda t, x: t.special.bessel_j0(x)),
    rare.j1: Spec(([*RIGHT, -3],), ((0.5, 3),), lambda t, x: t.special.bessel_j1(x)),
    rare.y0: Spec(([*RIGHT, -3],), ((0.5, 3),), lambda t, x: t.special.bessel_y0(x)),
    rare.y1: Spec(([*RIGHT, -3],), ((0.5, 3),), lambda t, x: t.special.bessel_y1(x)),
    rare.erfcx: Spec(
        ([0, 0.5, -1, 2, 7.9, 8.1, -5, 60, math.inf, math.nan],), ((-1, 2),),
        lambda t, x: t.special.erfcx(x),
    ),
    rare.igamma: Spec(
        ([0, 0.5, 1, 3, 10, 10, 2, 2, 1, 1], [1, 0.2, 1, 9, 4, 30, 0, math.inf, -1, math.nan]),
        ((0.5, 3), (0.5, 3)), lambda t, a, x: t.igamma(a, x),
    ),
    rare.igammac: Spec(
        ([0, 0.5, 1, 3, 10, 10, 2, 2, 1, 1], [1, 0.2, 1, 9, 4, 30, 0, math.inf, -1, math.nan]),
        ((0.5, 3), (0.5, 3)), lambda t, a, x: t.igammac(a, x),
    ),
    rare.hurwitz: Spec(
        ([2, 3, 1.5, 1, 0.5, 2, 2, 3, 2.5, 2], [1, 0.5, 4, 1, 1, 0, -1.5, -2, -0.5, math.nan]),
        ((2, 4), (0.5, 3)), lambda t, s, q: t.special.zeta(s, q),
    ),
}  # fmt: skip

# In torch right to ten digits only.
FLAWED = (rare.j0, rare.j1, rare.y0, rare.y1)


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
    rare.i0: lambda x: _unscaled(0, x),
    rare.i1: lambda x: _unscaled(1, x),
    rare.entr: _entr,
    rare.ndtri: _ndtri,
    rare.i0e: lambda x: _bessel_i(0, x),
    rare.i1e: lambda x: _bessel_i(1, x),
    rare.k0e: lambda x: _bessel_k(0, x),
    rare.k1e: lambda x: _bessel_k(1, x),
    rare.j0: lambda x: _bessel_j(0, x),
    rare.j1: lambda x: _bessel_j(1, x),
    rare.y0: lambda x: _bessel_y(0, x),
    rare.y1: lambda x: _bessel_y(1, x),
    rare.erfcx: _erfcx,
    rare.igamma: _igamma,
    rare.igammac: lambda a, x: 1 - _igamma(a, x),
    rare.hurwitz: _hurwitz,
}


def _of_the_last(op: Op, *held: np.ndarray[Any, Any]) -> Callable[..., tuple[Node, ...]]:
    """The row as a function of its last operand: there is no derivative by the others."""
    firsts = [float(array.flat[0]) for array in held]
    return lambda x: (op(*(full_like(x, value) for value in firsts), x),)


def samples() -> Iterator[Sample]:
    for op, spec in SPECS.items():
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
        a, b = (a[kept], b[kept]) if dtype is not dtypes.uint8 else (a, b)
        yield Sample(
            rare.gcd, dtype.name, (plain(a), plain(b)), exact=True, expected=by_element(math.gcd),
            torch=lambda t, a, b: t.gcd(a, b),
        )  # fmt: skip
