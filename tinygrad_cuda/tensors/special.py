"""Special functions: gamma, error, Bessel, zeta, orthogonal polynomials, and kin."""

from __future__ import annotations

import math as _math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType, float64, int64, uint64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.core.shapes import as_int, broadcast
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.graph.ops import special as ops
from tinygrad_cuda.graph.ops.common import require_dtype
from tinygrad_cuda.tensors import math
from tinygrad_cuda.tensors.arguments import plain_number, require_real
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import ones_like, zeros_like
from tinygrad_cuda.tensors.indexing import selecting
from tinygrad_cuda.tensors.layout import copied_strides, gives_rows, keeps_layout, strides_like
from tinygrad_cuda.tensors.math import _binary, _unary
from tinygrad_cuda.tensors.opmath import rounded_once
from tinygrad_cuda.tensors.promotion import as_float, promote, to_dtype, to_shape

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "acosh",
    "angle",
    "arccosh",
    "arcsinh",
    "arctanh",
    "asinh",
    "atanh",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "clamp_max",
    "clamp_min",
    "copysign",
    "deg2rad",
    "digamma",
    "erfc",
    "erfinv",
    "float_power",
    "fmax",
    "fmin",
    "frac",
    "frexp",
    "gcd",
    "heaviside",
    "hypot",
    "i0",
    "igamma",
    "igammac",
    "isneginf",
    "isposinf",
    "isreal",
    "lcm",
    "ldexp",
    "lgamma",
    "logaddexp",
    "logaddexp2",
    "logit",
    "mvlgamma",
    "nan_to_num",
    "nextafter",
    "polygamma",
    "positive",
    "rad2deg",
    "rsub",
    "sgn",
    "signbit",
    "sinc",
    "xlogy",
]


# Hyperbolic inverses and error functions ----------------------------------------------------------


asinh = _unary(ops.asinh, "asinh", "Inverse hyperbolic sine.")
acosh = _unary(ops.acosh, "acosh", "Inverse hyperbolic cosine.")
atanh = _unary(ops.atanh, "atanh", "Inverse hyperbolic tangent.")
erfc = _unary(ops.erfc, "erfc", "``1 - erf(input)``, accurate where erf is nearly 1.")
erfinv = in_float32(_unary(ops.erfinv, "erfinv", "The inverse of `erf` on (-1, 1)."))
lgamma = _unary(ops.lgamma, "lgamma", "The logarithm of the absolute gamma function.")
hypot = _binary(ops.hypot, "hypot", "``sqrt(input**2 + other**2)`` without overflow.")
copysign = _binary(ops.copysign, "copysign", "The magnitude of `input`, the sign of `other`.", True)
nextafter = _binary(ops.nextafter, "nextafter", "The next number from `input` towards `other`.")
arcsinh, arccosh, arctanh = asinh, acosh, atanh


# Gamma functions ----------------------------------------------------------------------------------


@keeps_layout
def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of `digamma`, for ``input > -1000`` (NaN below).

    Raises:
        ArgumentError: `n` is negative.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.polygamma(1, tc.tensor(1.0, device="cpu"))
        tensor(1.6449)
    """
    if isinstance(n, TensorBase) and not isinstance(input, TensorBase):  # as a method
        n, input = input, n
    n = as_int("polygamma", n, "n")
    if n < 0:
        raise ArgumentError("polygamma", "the order is negative", expect="n >= 0", actual=str(n))
    node = as_float(input.node)
    return wrap(ops.polygamma(common.full(n, node.shape, node, int64), node))


def digamma(input: Tensor) -> Tensor:
    """The derivative of `lgamma`, for ``input > -1000`` (NaN below)."""
    return polygamma(0, input)


@gives_rows
def mvlgamma(input: Tensor, p: int) -> Tensor:
    r"""The logarithm of the multivariate gamma function of dimension `p`."""
    constant = p * (p - 1) / 4 * _math.log(_math.pi)
    total = math.add(lgamma(input), constant)
    for k in range(1, p):
        total = math.add(total, lgamma(math.sub(input, k / 2)))
    return total


# Logarithms of sums and products ------------------------------------------------------------------


@keeps_layout
def _log_of_sum(name: str, input: Any, other: Any, base: float) -> Tensor:
    a, b = (wrap(node) for node in promote(name, input, other, floating=True))
    if a.dtype.is_complex and base == _math.e:
        return _complex_log_of_sum(a, b)
    largest = elementwise.maximum(a.node, b.node)
    # Equal infinities must not meet in a difference.
    same = elementwise.logical_and(
        elementwise.eq(a.node, b.node), elementwise.logical_not(elementwise.isfinite(a.node))
    )
    gap = elementwise.sub(elementwise.minimum(a.node, b.node), largest)
    gap = elementwise.where(same, common.full_like(gap, 0), gap)
    gap = gap if base == _math.e else elementwise.mul(gap, common.full_like(gap, _math.log(base)))
    tail = elementwise.log1p(elementwise.exp(gap))
    if base != _math.e:
        tail = elementwise.mul(tail, common.full_like(tail, 1 / _math.log(base)))
    return wrap(elementwise.where(same, largest, elementwise.add(largest, tail)))


def _complex_log_of_sum(a: Tensor, b: Tensor) -> Tensor:
    """By the exponential of the difference that has the smaller real part."""
    first = elementwise.ge(elementwise.real(a.node), elementwise.real(b.node))
    largest = elementwise.where(first, a.node, b.node)
    gap = elementwise.sub(elementwise.where(first, b.node, a.node), largest)
    return wrap(elementwise.add(largest, elementwise.log1p(elementwise.exp(gap))))


@rounded_once
def logaddexp(input: Any, other: Any) -> Tensor:
    """``log(exp(input) + exp(other))`` without overflow."""
    return _log_of_sum("logaddexp", input, other, _math.e)


@rounded_once
def logaddexp2(input: Any, other: Any) -> Tensor:
    """``log2(2**input + 2**other)`` without overflow."""
    return _log_of_sum("logaddexp2", input, other, 2.0)


@rounded_once
def xlogy(input: Any, other: Any) -> Tensor:
    """``input * log(other)``, which is 0 where input is 0 and other is not NaN."""
    return _times_log("xlogy", input, other, elementwise.log, 0)


@rounded_once
def xlog1py(input: Any, other: Any) -> Tensor:
    """``input * log1p(other)``, which is 0 where input is 0 and other is not NaN."""
    return _times_log("xlog1py", input, other, elementwise.log1p, -1)


@keeps_layout
def _times_log(name: str, input: Any, other: Any, log: Any, pole: float) -> Tensor:
    a, b = promote(name, input, other, floating=True)
    regular = elementwise.logical_and(
        elementwise.gt(b, common.full_like(b, pole)), elementwise.isfinite(b)
    )
    # Where the logarithm is finite the product is 0 by itself, and its slope is the logarithm.
    masked = elementwise.logical_and(
        elementwise.eq(a, common.full_like(a, 0)),
        elementwise.logical_not(elementwise.logical_or(regular, elementwise.isnan(b))),
    )
    safe = elementwise.where(masked, common.full_like(b, 1), b)
    product = elementwise.mul(a, log(safe))
    return wrap(elementwise.where(masked, common.full_like(a, 0), product))


@keeps_layout
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """``log(x / (1 - x))``, with x first clamped to [eps, 1 - eps] if `eps` is given."""
    return _log_odds(input, plain_number("logit", "eps", eps))


@rounded_once
def _log_odds(input: Tensor, eps: float | None) -> Tensor:
    x = wrap(as_float(input.node))
    if eps is not None:
        x = math.clamp(x, eps, 1 - eps)
    # One of the logarithms has a slope outside of [0, 1], where there is no value: NaN for both.
    inside = elementwise.logical_and(math.ge(x, 0.0).node, math.le(x, 1.0).node)
    zero, nan = common.full_like(x.node, 0), common.full_like(x.node, _math.nan)
    x = wrap(elementwise.add(x.node, elementwise.where(inside, zero, nan)))
    return math.sub(math.log(x), math.log1p(math.neg(x)))


def logit_(input: Tensor, eps: float | None = None) -> Tensor:
    """`logit` in place."""
    return math.store("logit_", input, logit(input, eps).node)


def expit(input: Tensor) -> Tensor:
    """The logistic function: `sigmoid`."""
    return math.sigmoid(input)


@rounded_once
def ndtr(input: Tensor) -> Tensor:
    """The standard normal distribution function: ``erfc(-x / sqrt(2)) / 2``."""
    return math.mul(erfc(math.mul(input, -_math.sqrt(0.5))), 0.5)


@keeps_layout
@rounded_once
def sinc(input: Tensor) -> Tensor:
    """``sin(pi x) / (pi x)``, 1 at 0."""
    angle = math.mul(wrap(as_float(input.node)), _math.pi)
    near = math.lt(math.abs(angle), 0.01).node
    zero, one = common.full_like(angle.node, 0), common.full_like(angle.node, 1)
    # The quotient's slope is a difference of large numbers near 0; Taylor's series is exact there.
    square = math.square(wrap(elementwise.where(near, angle.node, zero)))
    series = math.add(math.mul(math.sub(math.mul(square, 1 / 120), 1 / 6), square), 1.0)
    far = elementwise.where(near, one, angle.node)
    quotient = elementwise.div(elementwise.sin(far), far)
    return wrap(elementwise.where(near, series.node, quotient))


# Parts and signs ----------------------------------------------------------------------------------


def frac(input: Tensor) -> Tensor:
    """What `trunc` takes away: ``input - trunc(input)``."""
    if not input.dtype.is_floating:
        raise DTypeError(
            "frac",
            "needs a floating dtype",
            expect="float16, bfloat16, float32 or float64",
            actual=input.dtype.name,
        )
    return math.sub(input, math.trunc(input))


class Frexp(NamedTuple):
    """What `frexp` gives."""

    mantissa: Tensor
    exponent: Tensor


def frexp(input: Tensor) -> Frexp:
    """Mantissa in [0.5, 1) and int32 exponent: ``input == mantissa * 2**exponent``."""
    node = input.node
    if not node.dtype.is_floating:
        raise DTypeError(
            "frexp",
            "needs a floating dtype",
            expect="float16, bfloat16, float32 or float64",
            actual=node.dtype.name,
        )
    usable = elementwise.logical_and(
        elementwise.isfinite(node), elementwise.ne(node, common.full_like(node, 0))
    )
    size = elementwise.where(usable, elementwise.abs(node), common.full_like(node, 1))
    wide = elementwise.cast(size, dtype=float64)
    power = elementwise.floor(elementwise.log2(wide))
    power = elementwise.add(power, common.full_like(power, 1))
    power = elementwise.where(usable, power, common.full_like(power, 0))
    # In two factors, since the power of a subnormal number has no reciprocal.
    half = elementwise.trunc(elementwise.mul(power, common.full_like(power, 0.5)))
    scaled = to_dtype(node, float64)
    for part in (half, elementwise.sub(power, half)):
        scaled = elementwise.mul(scaled, elementwise.exp2(elementwise.neg(part)))
    # The logarithm of a number just below a power of two is rounded to that power's; that of the
    # power itself may be rounded below it on a GPU.
    half, one = common.full_like(scaled, 0.5), common.full_like(scaled, 1)
    magnitude = elementwise.abs(scaled)
    low = elementwise.logical_and(usable, elementwise.lt(magnitude, half))
    high = elementwise.logical_and(usable, elementwise.ge(magnitude, one))
    scaled = elementwise.where(low, elementwise.add(scaled, scaled), scaled)
    scaled = elementwise.where(high, elementwise.mul(scaled, half), scaled)
    power = elementwise.where(low, elementwise.sub(power, one), power)
    power = elementwise.where(high, elementwise.add(power, one), power)
    mantissa = elementwise.where(usable, to_dtype(scaled, node.dtype), node)
    exponent = wrap(to_dtype(power, dtypes.int32))
    return Frexp(strides_like(wrap(mantissa), input), strides_like(exponent, input))


@keeps_layout
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """``input * 2**other``."""
    if math.is_complex(input) or math.is_complex(other):
        return math.mul(input, math.pow(2.0, other))
    a, b = promote("ldexp", input, other, floating=True)
    # The power may be out of range where the product is not.
    wide = dtypes.float32 if a.dtype.itemsize == 2 else float64
    power = elementwise.exp2(to_dtype(b, wide))
    return wrap(to_dtype(elementwise.mul(to_dtype(a, wide), power), a.dtype))


@keeps_layout
def signbit(input: Tensor) -> Tensor:
    """Whether the sign bit is set: below zero, and -0.0."""
    node = input.node
    if node.dtype is dtypes.bool_:
        return wrap(common.full(False, node.shape, node))
    if node.dtype.is_floating:
        node = ops.copysign(common.full_like(node, 1), node)
    return wrap(elementwise.lt(node, common.full_like(node, 0)))


def sgn(input: Tensor) -> Tensor:
    """The sign, -1, 0 or 1; of complex numbers ``input / |input|``, and 0 of 0."""
    if input.dtype.is_complex:
        return strides_like(wrap(elementwise.direction(input.node)), input)
    return math.sign(input)


def positive(input: Tensor) -> Tensor:
    """The tensor itself.

    Raises:
        DTypeError: it is bool.
    """
    if input.dtype is dtypes.bool_:
        raise DTypeError(
            "positive", "the dtype is not supported", expect="a number, not bool", actual="bool"
        )
    return input


@keeps_layout
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below zero, `values` at zero, 1 above."""
    a, b = promote("heaviside", input, values)
    zero = common.full_like(a, 0)
    step = to_dtype(elementwise.gt(a, zero), a.dtype)
    return wrap(elementwise.where(elementwise.eq(a, zero), b, step))


def isposinf(input: Tensor) -> Tensor:
    """True where the element is infinity."""
    return _is_value(input, _math.inf)


def isneginf(input: Tensor) -> Tensor:
    """True where the element is minus infinity."""
    return _is_value(input, -_math.inf)


@keeps_layout
def _is_value(input: Tensor, value: float) -> Tensor:
    node = input.node
    require_dtype("isposinf" if value > 0 else "isneginf", node, "real")
    if not node.dtype.is_floating:
        return wrap(common.full(False, node.shape, node, dtypes.bool_))
    return wrap(elementwise.eq(node, common.full_like(node, value)))


@keeps_layout
def isreal(input: Tensor) -> Tensor:
    """True where the imaginary part is zero: of real numbers everywhere."""
    node = input.node
    if node.dtype.is_complex:
        imag = elementwise.imag(node)
        return wrap(elementwise.eq(imag, common.full_like(imag, 0)))
    return wrap(common.full(True, node.shape, node, dtypes.bool_))


def nan_to_num(
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """The input with NaN and infinities replaced.

    Args:
        nan: 0 when left out.
        posinf, neginf: the largest and the lowest number of the dtype when left out.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([float("nan"), 1.0, float("inf")], device="cpu")
        >>> x.nan_to_num(posinf=9.0).tolist()
        [0.0, 1.0, 9.0]
    """
    node = input.node
    if node.dtype.is_complex:
        parts = (nan_to_num(part, nan, posinf, neginf).node for part in (input.real, input.imag))
        return copied_strides(wrap(elementwise.complex_(*parts)), input)
    if not node.dtype.is_floating:
        return copied_strides(wrap(node), input)
    limit = dtypes.FLOAT_LIMITS[node.dtype.name][1]
    for replaced, value in (
        (elementwise.isnan(node), 0.0 if nan is None else nan),
        (isposinf(input).node, limit if posinf is None else posinf),
        (isneginf(input).node, -limit if neginf is None else neginf),
    ):
        number = dtypes.number_of("nan_to_num", value, node.dtype)
        node = elementwise.where(replaced, common.full_like(node, number), node)
    return copied_strides(wrap(node), input)


def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
    require_real("deg2rad", input)
    return math.mul(input, _math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
    require_real("rad2deg", input)
    return math.mul(input, 180 / _math.pi)


@keeps_layout
def angle(input: Tensor) -> Tensor:
    """The angle on the complex plane, in radians; of real numbers 0, or pi below zero."""
    node = as_float(input.node)
    if node.dtype.is_complex:
        return wrap(elementwise.atan2(elementwise.imag(node), elementwise.real(node)))
    below = elementwise.lt(node, common.full_like(node, 0))
    result = elementwise.where(below, common.full_like(node, _math.pi), common.full_like(node, 0))
    value = elementwise.where(elementwise.isnan(node), detached(node), result)
    return wrap(common.with_history(value, node, passes=False))


# Two operands -------------------------------------------------------------------------------------


@keeps_layout
def _ignoring_nan(name: str, input: Tensor, other: Tensor, largest: bool) -> Tensor:
    a, b = promote(name, input, other)
    if not a.dtype.is_floating:
        return wrap((elementwise.maximum if largest else elementwise.minimum)(a, b))
    better = elementwise.ge(a, b) if largest else elementwise.le(a, b)
    first = elementwise.logical_or(better, elementwise.isnan(b))
    return wrap(elementwise.where(first, a, b))


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger of both; a number wins against NaN."""
    return _ignoring_nan("fmax", input, other, True)


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of both; a number wins against NaN."""
    return _ignoring_nan("fmin", input, other, False)


@in_float32
@keeps_layout
def float_power(input: Any, exponent: Any) -> Tensor:
    """``input ** exponent`` in float64, or in complex128."""
    if math.is_complex(input) or math.is_complex(exponent):
        if isinstance(input, TensorBase) and not isinstance(exponent, TensorBase):
            return math.pow(wrap(to_dtype(input.node, dtypes.complex128)), exponent)
        a, b = promote("float_power", input, exponent, dtype=dtypes.complex128)
        return math.pow(wrap(a), wrap(b))
    a, b = promote("float_power", input, exponent, dtype=float64)
    return wrap(elementwise.pow(a, b))


def float_power_(input: Tensor, exponent: Any) -> Tensor:
    """`float_power` in place, for tensors of its dtype, float64 or complex128."""
    result = float_power(input, exponent).node
    if input.dtype is not result.dtype:
        raise DTypeError(
            "float_power_", f"the result is {result.dtype.name}", expect=result.dtype.name,
            actual=input.dtype.name,
        )  # fmt: skip
    return math.store("float_power_", input, result)


def rsub(input: Any, other: Any, *, alpha: int | float = 1) -> Tensor:
    """``other - alpha * input``."""
    return math.sub(other, input, alpha=alpha)


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """`clamp` from below."""
    return math.clamp(input, min=min)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """`clamp` from above."""
    return math.clamp(input, max=max)


def _shift_operands(name: str, input: Any, other: Any) -> tuple[Node, Node, Node]:
    """The first operand, the power of two as `_shifted_in`, and where the distance is legal."""
    a, b = promote(name, input, other)
    if a.dtype.category != 1:
        raise DTypeError(name, "needs integers", expect="an integer dtype", actual=a.dtype.name)
    bits = 8 * a.dtype.itemsize
    legal = elementwise.logical_and(
        elementwise.ge(b, common.full_like(b, 0)), elementwise.lt(b, common.full_like(b, bits))
    )
    distance = elementwise.where(legal, b, common.full_like(b, 0))
    wide = _shifted_in(a)
    power = elementwise.pow(common.full(2, a.shape, a, wide), to_dtype(distance, wide))
    return a, power, legal


def _shifted_in(a: Node) -> DType:
    """The dtype of 64 bits in which integers are shifted."""
    return a.dtype if a.dtype is uint64 else int64


@keeps_layout
def bitwise_left_shift(input: Any, other: Any) -> Tensor:
    """``input << other``."""
    a, power, legal = _shift_operands("bitwise_left_shift", input, other)
    shifted = to_dtype(elementwise.mul(to_dtype(a, power.dtype), power), a.dtype)
    return wrap(elementwise.where(legal, shifted, common.full_like(a, 0)))


@keeps_layout
def bitwise_right_shift(input: Any, other: Any) -> Tensor:
    """``input >> other``; the sign stays."""
    a, power, legal = _shift_operands("bitwise_right_shift", input, other)
    below = elementwise.lt(a, common.full_like(a, 0))
    sign = elementwise.where(below, common.full_like(power, -1), common.full_like(power, 0))
    wide = elementwise.floor_divide(to_dtype(a, power.dtype), power)
    # 2**63 does not fit int64: the bit that is left is the sign.
    fits = elementwise.logical_and(legal, elementwise.gt(power, common.full_like(power, 0)))
    return wrap(to_dtype(elementwise.where(fits, wide, sign), a.dtype))


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
    ops.hurwitz,
    "zeta",
    "The Hurwitz zeta function, the sum of ``(other + k) ** -input``.",
    True,
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
        require_real(name, input)
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
        value: Tensor = result
        return value

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
