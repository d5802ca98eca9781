"""Samples of the special functions: formulas on Python numbers that share nothing with SciPy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
from samples_elementwise import Spec, _exact, _of, by_element, signed, span
from sampling import FLOATS, VIEWS, Sample, cast, edge_values, generator, plain

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops import special

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
