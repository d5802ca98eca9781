"""Special functions of the elementwise family: inverse hyperbolic, error, gamma, Bessel, zeta, ...

SciPy is the reference of most; device functions that CUDA lacks stand in
lowering/skeletons/special.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import float32, float64, int64
from tinygrad_cuda.core.errors import DTypeError
from tinygrad_cuda.graph.node import Gradient, Node, Op, Outputs, SameSpecOp
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.common import full, full_like, require_dtype


def _square_plus(x: Node, number: int) -> Node:
    return ew.add(ew.mul(x, x), full_like(x, number))


asinh: SameSpecOp = ew._op(
    "asinh", np.arcsinh, "asinh({0})",
    lambda g, out, x: ew.mul(g, ew.conjugated(ew.rsqrt(_square_plus(x, 1)))),
    domain="inexact", cost=16,
)  # fmt: skip


def _acosh_slope(x: Node) -> Node:
    """``1 / sqrt(x^2 - 1)``; of complex numbers the root is the product of two."""
    if not x.dtype.is_complex:
        return ew.rsqrt(_square_plus(x, -1))
    one = full_like(x, 1)
    return ew.conj(ew.mul(ew.rsqrt(ew.add(x, one)), ew.rsqrt(ew.sub(x, one))))


acosh: SameSpecOp = ew._op(
    "acosh", np.arccosh, "acosh({0})",
    lambda g, out, x: ew.mul(g, _acosh_slope(x)),
    domain="inexact", cost=16,
)  # fmt: skip
atanh: SameSpecOp = ew._op(
    "atanh", np.arctanh, "atanh({0})",
    lambda g, out, x: ew.div(g, ew.conjugated(ew.sub(full_like(x, 1), ew.mul(x, x)))),
    domain="inexact", cost=16,
)  # fmt: skip


def _bell(g: Node, exponent: Node, factor: float) -> Node:
    return ew.mul(g, ew.mul(ew.exp(exponent), full_like(exponent, factor)))


erfc: SameSpecOp = ew._op(
    "erfc", ew._special("erfc"), "erfc({0})",
    lambda g, out, x: _bell(g, ew.neg(ew.mul(x, x)), -ew.TWO_OVER_SQRT_PI),
    domain="float", cost=20,
)  # fmt: skip
erfinv: SameSpecOp = ew._op(
    "erfinv", ew._special("erfinv"), "erfinv({0})",
    lambda g, out, x: _bell(g, ew.mul(out, out), 1 / ew.TWO_OVER_SQRT_PI),
    domain="float", cost=24,
)  # fmt: skip


def _lgamma(x: Any) -> Any:
    # SciPy has -inf at -inf; the limit over the poles is inf, as in C. Nor does it know subnormals.
    with np.errstate(divide="ignore"):
        near = -np.log(np.abs(x))
    tiny = np.abs(x) < np.finfo(x.dtype).tiny
    return np.where(tiny, near, np.where(np.isneginf(x), -x, ew._special("gammaln")(x)))


lgamma: SameSpecOp = ew._op(
    "lgamma", _lgamma, "lgamma({0})",
    lambda g, out, x: ew.mul(g, polygamma(full(0, x.shape, x, int64), x)),
    domain="float", cost=40,
)  # fmt: skip


def _infer_polygamma(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    order, x = sources
    require_dtype("polygamma", x, "float")
    if order.dtype is not int64 or order.shape != x.shape:
        raise DTypeError(
            "polygamma",
            "the order does not fit x",
            expect=f"int64 {x.shape}",
            actual=f"{order.dtype.name} {order.shape}",
        )
    return x.outputs


def _polygamma(order: Any, x: Any) -> Any:
    values = ew._special("polygamma")
    # Far left of zero the series has as many terms as x has units.
    near = np.where(x > -1000, x, np.nan)
    result = np.asarray(values(order, near))
    # Every whole number is a pole, however far.
    pole = np.where(order == 0, np.nan, np.where(order % 2 == 1, np.inf, -np.inf))
    return np.where((x <= -1000) & (x == np.floor(x)), pole, result).astype(x.dtype)


# The derivative number n + 1 of lgamma; n = 0 is digamma. Defined for x > -1000 and at poles.
polygamma: Op = Op(
    "polygamma", "elementwise", _infer_polygamma, numpy=_polygamma,
    cuda="tgc_polygamma({0}, {1})",
    gradient=(
        None,
        lambda g, out, order, x: ew.mul(
            g, polygamma(ew.add(order, full_like(order, 1)), x)
        ),
    ),
    cost=100,
)  # fmt: skip

hypot: SameSpecOp = ew._op(
    "hypot", np.hypot, "hypot({0}, {1})",
    lambda g, out, a, b: ew.mul(g, ew.div(a, out)),
    lambda g, out, a, b: ew.mul(g, ew.div(b, out)),
    domain="float", cost=12,
)  # fmt: skip


def _over_or_zero(a: Node, b: Node) -> Node:
    zero = ew.eq(b, full_like(b, 0))
    share = ew.div(a, ew.where(zero, full_like(b, 1), b))
    return ew.where(zero, full_like(b, 0), share)


# The magnitude of a with the sign of b.
copysign: SameSpecOp = ew._op(
    "copysign", np.copysign, "copysign({0}, {1})",
    lambda g, out, a, b: ew.mul(g, _over_or_zero(out, a)),
    lambda g, out, a, b: full_like(g, 0),
    domain="float", cost=2,
)  # fmt: skip


def _infer_nextafter(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    if sources[0].dtype not in (float32, float64):
        raise DTypeError(
            "nextafter",
            "the dtype is not supported",
            expect="float32 or float64",
            actual=sources[0].dtype.name,
        )
    return ew._infer(op, sources, attributes)


nextafter: SameSpecOp = SameSpecOp(
    "nextafter", "elementwise", _infer_nextafter, numpy=np.nextafter,
    cuda="nextafter({0}, {1})",
    gradient=(
        lambda g, out, a, b: ew.where(ew.ne(a, b), g, full_like(g, 0)),
        lambda g, out, a, b: full_like(g, 0),
    ),
    cost=4,
)  # fmt: skip


# Bessel functions, incomplete gamma and zeta functions, and kin ----------------------------------

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
    asinh, acosh, atanh, erfc, erfinv, lgamma, polygamma, hypot, copysign, nextafter,
    i0, i1, i0e, i1e, k0e, k1e, j0, j1, y0, y1, erfcx, entr, ndtri, igamma, igammac, hurwitz, gcd,
)  # fmt: skip
