"""Elementwise rows that few programs meet: Bessel functions, incomplete gamma, zeta, erfcx, gcd.

SciPy is the reference; the device functions stand in lowering/skeletons/special.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad_cuda.graph.node import Gradient, Node, Op, SameSpecOp
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.common import full_like
from tinygrad_cuda.graph.ops.special import lgamma

# The distance from 1 to the next number.
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def _row(name: str, scipy: str, *gradient: Gradient | None, arity: int = 1) -> SameSpecOp:
    operands = ", ".join(f"{{{k}}}" for k in range(arity))
    return ew._op(
        name, ew._special(scipy), f"tgc_special_{name}({operands})", *gradient,
        domain="float", cost=100,
    )  # fmt: skip


def _tiny(x: Node) -> Node:
    """Where ``|x|`` is below the dtype's epsilon, or NaN."""
    return ew.logical_not(ew.gt(ew.abs(x), full_like(x, EPSILON[x.dtype.name])))


def _over(x: Node, value: Node, at_zero: float) -> Node:
    """``value / x``, and what it tends to at 0, where both may be subnormal."""
    zero = _tiny(x)
    share = ew.div(value, ew.where(zero, full_like(x, 1), x))
    return ew.where(zero, full_like(x, at_zero), share)


def _half_near_zero(x: Node, slope: Node) -> Node:
    """The slope of i1 and i1e, which is 1/2 at 0 and, as in PyTorch, at NaN."""
    return ew.where(_tiny(x), full_like(x, 0.5), slope)


# Modified Bessel functions, then times exp(-|x|), or exp(x).
i0: SameSpecOp = _row("i0", "i0", lambda g, out, x: ew.mul(g, i1(x)))
i1: SameSpecOp = _row(
    "i1", "i1",
    lambda g, out, x: ew.mul(g, _half_near_zero(x, ew.sub(i0(x), _over(x, out, 0.5)))),
)  # fmt: skip
i0e: SameSpecOp = _row(
    "i0e", "i0e", lambda g, out, x: ew.mul(g, ew.sub(i1e(x), ew.mul(ew.sign(x), out)))
)
i1e: SameSpecOp = _row(
    "i1e", "i1e",
    lambda g, out, x: ew.mul(
        g,
        _half_near_zero(x, ew.sub(ew.sub(i0e(x), ew.mul(ew.sign(x), out)), _over(x, out, 0.5))),
    ),
)  # fmt: skip


def _scaled_k(name: str, subnormal: Callable[[Any], Any]) -> Callable[..., Any]:
    """SciPy's, which halves x, so that the least number becomes 0, and `subnormal` of these."""

    def reference(x: Any) -> Any:
        result = np.asarray(ew._special(name)(x))
        tiny = (x > 0) & (x < np.finfo(np.float64).tiny)
        if tiny.any():
            with np.errstate(over="ignore"):
                result[tiny] = subnormal(x[tiny])
        return result

    return reference


k0e: SameSpecOp = ew._op(
    "k0e", _scaled_k("k0e", lambda x: 0.11593151565841245 - np.log(x)), "tgc_special_k0e({0})",
    lambda g, out, x: ew.mul(g, ew.sub(out, k1e(x))), domain="float", cost=100,
)  # fmt: skip
k1e: SameSpecOp = ew._op(
    "k1e", _scaled_k("k1e", lambda x: 1 / x), "tgc_special_k1e({0})",
    lambda g, out, x: ew.mul(g, ew.sub(ew.sub(out, ew.div(out, x)), k0e(x))),
    domain="float", cost=100,
)  # fmt: skip
# Bessel functions of the first and the second kind.
j0: SameSpecOp = _row("j0", "j0", lambda g, out, x: ew.neg(ew.mul(g, j1(x))))
j1: SameSpecOp = _row("j1", "j1", lambda g, out, x: ew.mul(g, ew.sub(j0(x), _over(x, out, 0.5))))
y0: SameSpecOp = _row("y0", "y0", lambda g, out, x: ew.neg(ew.mul(g, y1(x))))
y1: SameSpecOp = _row("y1", "y1", lambda g, out, x: ew.mul(g, ew.sub(y0(x), ew.div(out, x))))

erfcx: SameSpecOp = _row(
    "erfcx", "erfcx",
    lambda g, out, x: ew.mul(
        g,
        ew.sub(ew.mul(ew.mul(x, out), full_like(x, 2)), full_like(x, ew.TWO_OVER_SQRT_PI)),
    ),
)  # fmt: skip


# -x log(x); 0 at 0 and -inf below.
entr: SameSpecOp = _row(
    "entr", "entr", lambda g, out, x: ew.neg(ew.mul(g, ew.add(ew.log(x), full_like(x, 1))))
)


def _ndtri(p: Any) -> Any:
    # SciPy has infinities outside of [0, 1].
    return np.where((p >= 0) & (p <= 1), ew._special("ndtri")(p), np.nan).astype(p.dtype)


def _inverse_density(out: Node) -> Node:
    """``sqrt(2 pi) exp(out^2 / 2)``."""
    half_square = ew.mul(ew.mul(out, out), full_like(out, 0.5))
    return ew.mul(ew.exp(half_square), full_like(out, 2.5066282746310002))


# The inverse of the standard normal distribution function.
ndtri: SameSpecOp = ew._op(
    "ndtri", _ndtri, "tgc_special_ndtri({0})", lambda g, out, x: ew.mul(g, _inverse_density(out)),
    domain="float", cost=100,
)  # fmt: skip


def _density(a: Node, x: Node) -> Node:
    """The slope of the lower incomplete gamma function: x^(a - 1) exp(-x) / gamma(a)."""
    power = ew.mul(ew.sub(a, full_like(a, 1)), ew.log(x))
    return ew.exp(ew.sub(ew.sub(power, x), lgamma(a)))


def _incomplete_gamma(name: str, at_zero: float) -> Callable[..., Any]:
    def reference(a: Any, x: Any) -> Any:
        result = np.asarray(ew._special(name)(a, x))
        # SciPy's series underflows for the lower part of a subnormal a, and overflows for a huge
        # one, whose distribution lies at a.
        least = (a > 0) & (a < np.finfo(np.float64).tiny) & (x > 0)
        huge = (a > 1e300) & np.isfinite(a) & np.isfinite(x)
        lower = np.where(least | (x > a), 1.0, np.where(x == a, 0.5, 0.0))
        result = np.where(huge | (least & (at_zero == 0)), np.abs(at_zero - lower), result)
        # As in PyTorch, what does not depend on the other argument hides that one's NaN.
        low = (np.isnan(a) & (x == 0)) | (np.isposinf(a) & np.isnan(x))
        result = np.where(low, at_zero, result)
        return np.where(np.isnan(a) & np.isposinf(x), 1 - at_zero, result).astype(x.dtype)

    return reference


igamma: SameSpecOp = ew._op(
    "igamma", _incomplete_gamma("gammainc", 0), "tgc_special_igamma({0}, {1})",
    None, lambda g, out, a, x: ew.mul(g, _density(a, x)), domain="float", cost=100,
)  # fmt: skip
igammac: SameSpecOp = ew._op(
    "igammac", _incomplete_gamma("gammaincc", 1), "tgc_special_igammac({0}, {1})",
    None, lambda g, out, a, x: ew.neg(ew.mul(g, _density(a, x))), domain="float", cost=100,
)  # fmt: skip


def _hurwitz(s: Any, q: Any) -> Any:
    # Far left of zero the sum has as many terms as q has units.
    near = np.where(q > -1000, q, np.nan)
    result = np.asarray(ew._special("zeta")(s, near))
    pole = (q <= 0) & (q == np.floor(q)) & ~(s < 1)
    return np.where(pole, np.inf, result).astype(q.dtype)


# The sum of (q + k)^-s over k >= 0, for q > -1000 and at poles.
hurwitz: SameSpecOp = ew._op(
    "hurwitz", _hurwitz, "tgc_special_hurwitz({0}, {1})",
    None,
    lambda g, out, s, q: ew.neg(ew.mul(g, ew.mul(s, hurwitz(ew.add(s, full_like(s, 1)), q)))),
    domain="float", cost=100,
)  # fmt: skip

# The greatest common divisor, 0 of two zeros.
gcd: SameSpecOp = ew._op(
    "gcd", np.gcd, "tgc_special_gcd({0}, {1})", None, None, domain="integer", cost=100
)

ROWS: tuple[Op, ...] = (
    i0, i1, i0e, i1e, k0e, k1e, j0, j1, y0, y1, erfcx, entr, ndtri, igamma, igammac, hurwitz, gcd,
)  # fmt: skip
