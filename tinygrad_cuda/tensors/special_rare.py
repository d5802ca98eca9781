"""Bessel functions, incomplete gamma, zeta, erfcx, orthogonal polynomials, and gcd and lcm."""

from __future__ import annotations

import math as _math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.shapes import broadcast
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.graph.ops import special_rare as ops
from tinygrad_cuda.tensors import math, selecting
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import ones_like, zeros_like
from tinygrad_cuda.tensors.layout import keeps_layout
from tinygrad_cuda.tensors.math import _binary, _unary
from tinygrad_cuda.tensors.opmath import rounded_once
from tinygrad_cuda.tensors.promotion import as_float, promote, to_dtype, to_shape
from tinygrad_cuda.tensors.special import erfc

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "gcd", "i0", "igamma", "igammac", "lcm",
]  # fmt: skip

# Bessel functions ---------------------------------------------------------------------------------

i0 = _unary(ops.i0, "i0", "The modified Bessel function of the first kind of order 0.")
i1 = _unary(ops.i1, "i1", "The modified Bessel function of the first kind of order 1.")
i0e = _unary(ops.i0e, "i0e", "``exp(-|x|) * i0(x)``.")
i1e = _unary(ops.i1e, "i1e", "``exp(-|x|) * i1(x)``.")
bessel_j0 = _unary(ops.j0, "bessel_j0", "The Bessel function of the first kind of order 0.")
bessel_j1 = _unary(ops.j1, "bessel_j1", "The Bessel function of the first kind of order 1.")
bessel_y0 = _unary(ops.y0, "bessel_y0", "The Bessel function of the second kind of order 0.")
bessel_y1 = _unary(ops.y1, "bessel_y1", "The Bessel function of the second kind of order 1.")
scaled_modified_bessel_k0 = _unary(
    ops.k0e, "scaled_modified_bessel_k0", "``exp(x)`` times `modified_bessel_k0`."
)
scaled_modified_bessel_k1 = _unary(
    ops.k1e, "scaled_modified_bessel_k1", "``exp(x)`` times `modified_bessel_k1`."
)


@keeps_layout
def modified_bessel_k0(input: Tensor) -> Tensor:
    """The modified Bessel function of the second kind of order 0."""
    x = wrap(as_float(input.node))
    return math.mul(scaled_modified_bessel_k0(x), math.exp(math.neg(x)))


@keeps_layout
def modified_bessel_k1(input: Tensor) -> Tensor:
    """The modified Bessel function of the second kind of order 1."""
    x = wrap(as_float(input.node))
    return math.mul(scaled_modified_bessel_k1(x), math.exp(math.neg(x)))


@keeps_layout
def spherical_bessel_j0(input: Tensor) -> Tensor:
    """``sin(x) / x``, 1 at 0."""
    x = as_float(input.node)
    zero = elementwise.eq(x, common.full_like(x, 0))
    share = elementwise.div(elementwise.sin(x), elementwise.where(zero, common.full_like(x, 1), x))
    # The sine of infinity is NaN; the quotient is 0.
    far = elementwise.isfinite(x)
    share = elementwise.where(far, share, elementwise.div(common.full_like(x, 1), x))
    return wrap(elementwise.where(zero, common.full_like(x, 1), share))


# Gamma and error functions ------------------------------------------------------------------------

igamma = _binary(
    ops.igamma, "igamma",
    "The regularized lower incomplete gamma function; no gradient to its first operand.", True,
)  # fmt: skip
igammac = _binary(
    ops.igammac, "igammac",
    "The regularized upper incomplete gamma function; no gradient to its first operand.", True,
)  # fmt: skip
zeta = _binary(
    ops.hurwitz, "zeta", "The Hurwitz zeta function, the sum of ``(other + k) ** -input``.", True
)
erfcx = _unary(ops.erfcx, "erfcx", "``exp(x**2) * erfc(x)``, accurate where erfc is nearly 0.")
entr = _unary(ops.entr, "entr", "``-input * log(input)``; 0 at 0 and -inf below.")
ndtri = _unary(ops.ndtri, "ndtri", "The inverse of `tc.special.ndtr`; NaN outside of [0, 1].")
gammainc, gammaincc = igamma, igammac


@keeps_layout
@rounded_once
def log_ndtr(input: Tensor) -> Tensor:
    """The logarithm of `tc.special.ndtr`, accurate far left."""
    x = wrap(as_float(input.node))
    one = common.full_like(x.node, 1)
    left = elementwise.lt(x.node, common.full_like(x.node, 1))
    # Each branch sees only its own side, so that the other's overflow reaches no gradient.
    low = wrap(elementwise.where(left, x.node, one))
    high = wrap(elementwise.where(left, one, x.node))
    near = math.log(math.mul(erfcx(math.mul(low, -_math.sqrt(0.5))), 0.5))
    near = math.sub(near, math.mul(math.mul(low, low), 0.5))
    far = math.log1p(math.mul(erfc(math.mul(high, _math.sqrt(0.5))), -0.5))
    return wrap(elementwise.where(left, near.node, far.node))


# Integers -----------------------------------------------------------------------------------------

gcd = _binary(ops.gcd, "gcd", "The greatest common divisor of integers; 0 of two zeros.")


@keeps_layout
def lcm(input: Any, other: Any) -> Tensor:
    """The least common multiple of integers; 0 where one of them is."""
    a, b = promote("lcm", input, other)
    divisor = ops.gcd(a, b)
    none = elementwise.eq(divisor, common.full_like(divisor, 0))
    divisor = elementwise.where(none, common.full_like(divisor, 1), divisor)
    return wrap(elementwise.abs(elementwise.mul(elementwise.floor_divide(a, divisor), b)))


# Orthogonal polynomials ---------------------------------------------------------------------------

HIGHEST_DEGREE = 1000  # each degree is a few nodes
# (x, k, p_k, p_(k-1)) -> p_(k+1)
Step = Callable[[Any, int, Any, Any], Any]


def _polynomial(name: str, first: Callable[[Any], Any], step: Step, doc: str) -> Callable[..., Any]:
    def function(input: Any, n: Any) -> Tensor:
        x, degree = _operands(name, input, n)
        highest = int(degree.array().max(initial=0))
        if highest > HIGHEST_DEGREE:
            raise ArgumentError(
                name, "the degree is too high for a recurrence", expect=f"n <= {HIGHEST_DEGREE}",
                actual=str(highest),
            )  # fmt: skip
        older, newer = ones_like(x), first(x)
        result = selecting.where(degree < 0, zeros_like(x), older)
        for k in range(1, highest + 1):
            result = selecting.where(degree == k, newer, result)
            if k < highest:
                older, newer = newer, step(x, k, newer, older)
        found: Tensor = result
        return found

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc} of degree `n`, by its recurrence; realizes `n`."
    return function


def _operands(name: str, input: Any, n: Any) -> tuple[Any, Any]:
    """The variable and the int64 degrees, of one shape."""
    like = input if isinstance(input, TensorBase) else n
    x = wrap(as_float(input.node)) if isinstance(input, TensorBase) else input
    if isinstance(n, TensorBase):
        degree: Node = to_dtype(n.node, int64)
    else:
        degree = common.full(int(n), (), like.node, int64)
    if not isinstance(x, TensorBase):
        x = wrap(common.full(float(x), (), like.node, as_float(like.node).dtype))
    shape = broadcast(name, x.node.shape, degree.shape)
    return wrap(to_shape(x.node, shape)), wrap(to_shape(degree, shape))


def _chebyshev(x: Any, k: int, newer: Any, older: Any) -> Any:
    return 2 * x * newer - older


def _shifted(x: Any, k: int, newer: Any, older: Any) -> Any:
    return 2 * (2 * x - 1) * newer - older


_KINDS: dict[str, Callable[[Any], Any]] = {
    "t": lambda y: y,
    "u": lambda y: 2 * y,
    "v": lambda y: 2 * y - 1,
    "w": lambda y: 2 * y + 1,
}


def _shift(kind: str) -> Callable[[Any], Any]:
    return lambda x: _KINDS[kind](2 * x - 1)


(chebyshev_polynomial_t, chebyshev_polynomial_u, chebyshev_polynomial_v,
 chebyshev_polynomial_w) = (
    _polynomial(f"chebyshev_polynomial_{kind}", first, _chebyshev,
                f"The Chebyshev polynomial {kind.upper()}")
    for kind, first in _KINDS.items()
)  # fmt: skip
(shifted_chebyshev_polynomial_t, shifted_chebyshev_polynomial_u, shifted_chebyshev_polynomial_v,
 shifted_chebyshev_polynomial_w) = (
    _polynomial(f"shifted_chebyshev_polynomial_{kind}", _shift(kind), _shifted,
                f"The Chebyshev polynomial {kind.upper()} of ``2 x - 1``")
    for kind in _KINDS
)  # fmt: skip
hermite_polynomial_h = _polynomial(
    "hermite_polynomial_h", lambda x: 2 * x,
    lambda x, k, newer, older: 2 * x * newer - 2 * k * older,
    "The physicists' Hermite polynomial",
)  # fmt: skip
hermite_polynomial_he = _polynomial(
    "hermite_polynomial_he", lambda x: x, lambda x, k, newer, older: x * newer - k * older,
    "The probabilists' Hermite polynomial",
)  # fmt: skip
laguerre_polynomial_l = _polynomial(
    "laguerre_polynomial_l", lambda x: 1 - x,
    lambda x, k, newer, older: ((2 * k + 1 - x) * newer - k * older) / (k + 1),
    "The Laguerre polynomial",
)  # fmt: skip
legendre_polynomial_p = _polynomial(
    "legendre_polynomial_p", lambda x: x,
    lambda x, k, newer, older: ((2 * k + 1) * x * newer - k * older) / (k + 1),
    "The Legendre polynomial",
)  # fmt: skip
modified_bessel_i0, modified_bessel_i1 = i0, i1
