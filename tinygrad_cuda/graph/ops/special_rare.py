"""Elementwise rows that few programs meet: Bessel functions, incomplete gamma, zeta, erfcx, gcd.

SciPy is the reference; the device functions stand in backend/cuda/skeletons/special.cuh.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad_cuda.graph.node import AlikeOp, Gradient, Node, Op
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.common import full_like
from tinygrad_cuda.graph.ops.special import lgamma


def _row(name: str, scipy: str, *gradient: Gradient | None, arity: int = 1) -> AlikeOp:
    places = ", ".join(f"{{{k}}}" for k in range(arity))
    return ew._op(
        name, ew._special(scipy), f"tgc_special_{name}({places})", *gradient,
        domain="float", cost=100,
    )  # fmt: skip


def _over(x: Node, value: Node, at_zero: float) -> Node:
    """``value / x``, and what it tends to at 0."""
    zero = ew.eq(x, full_like(x, 0))
    share = ew.div(value, ew.where(zero, full_like(x, 1), x))
    return ew.where(zero, full_like(x, at_zero), share)


# Modified Bessel functions times exp(-|x|), or exp(x).
i0e: AlikeOp = _row(
    "i0e", "i0e", lambda g, out, x: ew.mul(g, ew.sub(i1e(x), ew.mul(ew.sign(x), out)))
)
i1e: AlikeOp = _row(
    "i1e", "i1e",
    lambda g, out, x: ew.mul(
        g, ew.sub(ew.sub(i0e(x), ew.mul(ew.sign(x), out)), _over(x, out, 0.5))
    ),
)  # fmt: skip
k0e: AlikeOp = _row("k0e", "k0e", lambda g, out, x: ew.mul(g, ew.sub(out, k1e(x))))
k1e: AlikeOp = _row(
    "k1e", "k1e", lambda g, out, x: ew.mul(g, ew.sub(ew.sub(out, ew.div(out, x)), k0e(x)))
)
# Bessel functions of the first and the second kind.
j0: AlikeOp = _row("j0", "j0", lambda g, out, x: ew.neg(ew.mul(g, j1(x))))
j1: AlikeOp = _row("j1", "j1", lambda g, out, x: ew.mul(g, ew.sub(j0(x), _over(x, out, 0.5))))
y0: AlikeOp = _row("y0", "y0", lambda g, out, x: ew.neg(ew.mul(g, y1(x))))
y1: AlikeOp = _row("y1", "y1", lambda g, out, x: ew.mul(g, ew.sub(y0(x), ew.div(out, x))))

erfcx: AlikeOp = _row(
    "erfcx", "erfcx",
    lambda g, out, x: ew.mul(
        g,
        ew.sub(ew.mul(ew.mul(x, out), full_like(x, 2)), full_like(x, ew.TWO_OVER_SQRT_PI)),
    ),
)  # fmt: skip


def _density(a: Node, x: Node) -> Node:
    """The slope of the lower incomplete gamma function: x^(a - 1) exp(-x) / gamma(a)."""
    power = ew.mul(ew.sub(a, full_like(a, 1)), ew.log(x))
    return ew.exp(ew.sub(ew.sub(power, x), lgamma(a)))


igamma: AlikeOp = _row(
    "igamma", "gammainc", None, lambda g, out, a, x: ew.mul(g, _density(a, x)), arity=2
)
igammac: AlikeOp = _row(
    "igammac", "gammaincc", None, lambda g, out, a, x: ew.neg(ew.mul(g, _density(a, x))), arity=2
)


def _hurwitz(s: Any, q: Any) -> Any:
    # Far left of zero the sum has as many terms as q has units.
    near = np.where(q > -1000, q, np.nan)
    return np.asarray(ew._special("zeta")(s, near)).astype(q.dtype)


# The sum of (q + k)^-s over k >= 0, for q > -1000.
hurwitz: AlikeOp = ew._op(
    "hurwitz", _hurwitz, "tgc_special_hurwitz({0}, {1})",
    None,
    lambda g, out, s, q: ew.neg(ew.mul(g, ew.mul(s, hurwitz(ew.add(s, full_like(s, 1)), q)))),
    domain="float", cost=100,
)  # fmt: skip

# The greatest common divisor, 0 of two zeros.
gcd: AlikeOp = ew._op(
    "gcd", np.gcd, "tgc_special_gcd({0}, {1})", None, None, domain="integer", cost=100
)

ROWS: tuple[Op, ...] = (
    i0e, i1e, k0e, k1e, j0, j1, y0, y1, erfcx, igamma, igammac, hurwitz, gcd,
)  # fmt: skip
