"""Special functions of the elementwise family: inverse hyperbolic, error and gamma functions, ...

They live apart from the everyday ones; the skeletons see no difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import float32, float64, int64
from tinygrad_cuda.core.errors import DTypeError
from tinygrad_cuda.graph.node import Node, Op, Outputs, SameSpecOp
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
    None,
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
    gradient=(lambda g, out, a, b: ew.where(ew.ne(a, b), g, full_like(g, 0)), None),
    cost=4,
)  # fmt: skip

ROWS: tuple[Op, ...] = (
    asinh, acosh, atanh, erfc, erfinv, lgamma, polygamma, hypot, copysign, nextafter,
)  # fmt: skip
