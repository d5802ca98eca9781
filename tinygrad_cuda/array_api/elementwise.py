"""The standard's functions of each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad_cuda.array_api.operands import array, pair
from tinygrad_cuda.core.dtypes import bool_, iinfo
from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops import elementwise as ops
from tinygrad_cuda.graph.ops.common import require_dtype
from tinygrad_cuda.tensors import functions as F
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.math import atan2 as _atan2
from tinygrad_cuda.tensors.tensor import Tensor

Unary = Callable[[Tensor], Tensor]
Binary = Callable[[Tensor, Tensor], Tensor]


def _unary(name: str, function: Unary, text: str) -> Any:
    def wrapper(x: Tensor, /) -> Tensor:
        return function(array(name, x))

    return _named(wrapper, name, text)


def _rounding(name: str, function: Unary, text: str) -> Any:
    """A function that leaves integers as they are."""

    def wrapper(x: Tensor, /) -> Tensor:
        return x.clone() if array(name, x).dtype.category < 2 else function(x)

    return _named(wrapper, name, text)


def _binary(name: str, function: Binary, text: str) -> Any:
    def wrapper(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
        return function(*pair(name, x1, x2))

    return _named(wrapper, name, text)


def _part(op: Op, of_real: Unary) -> Unary:
    """A row of complex numbers, and what it is of real ones."""
    return lambda x: wrap(op(x.node)) if x.dtype.is_complex else of_real(x)


def _round(x: Tensor) -> Tensor:
    """Of a complex array each part is rounded."""
    if not x.dtype.is_complex:
        return F.round(x)
    return wrap(ops.complex_(*(ops.round(part(x.node)) for part in (ops.real, ops.imag))))


def _named(function: Any, name: str, text: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


abs = _unary("abs", F.abs, "The magnitude of each element.")
acos = _unary("acos", F.acos, "The inverse cosine of each element.")
acosh = _unary("acosh", F.acosh, "The inverse hyperbolic cosine of each element.")
asin = _unary("asin", F.asin, "The inverse sine of each element.")
asinh = _unary("asinh", F.asinh, "The inverse hyperbolic sine of each element.")
atan = _unary("atan", F.atan, "The inverse tangent of each element.")
atanh = _unary("atanh", F.atanh, "The inverse hyperbolic tangent of each element.")
bitwise_invert = _unary("bitwise_invert", F.bitwise_not, "The complement of each element's bits.")
ceil = _rounding("ceil", F.ceil, "The smallest whole number not below each element.")
conj = _unary("conj", _part(ops.conj, F.clone), "The conjugate of each element.")
cos = _unary("cos", F.cos, "The cosine of each element.")
cosh = _unary("cosh", F.cosh, "The hyperbolic cosine of each element.")
exp = _unary("exp", F.exp, "The exponential of each element.")
expm1 = _unary("expm1", F.expm1, "exp(x) - 1 of each element.")
floor = _rounding("floor", F.floor, "The largest whole number not above each element.")
imag = _unary("imag", _part(ops.imag, F.zeros_like), "The imaginary part: 0 of a real element.")
isfinite = _unary("isfinite", F.isfinite, "Whether each element is neither infinite nor NaN.")
isinf = _unary("isinf", F.isinf, "Whether each element is infinite.")
isnan = _unary("isnan", F.isnan, "Whether each element is NaN.")
log = _unary("log", F.log, "The natural logarithm of each element.")
log10 = _unary("log10", F.log10, "The logarithm to the base 10 of each element.")
log1p = _unary("log1p", F.log1p, "log(1 + x) of each element.")
log2 = _unary("log2", F.log2, "The logarithm to the base 2 of each element.")
logical_not = _unary("logical_not", F.logical_not, "The negation of each element.")
negative = _unary("negative", F.neg, "The negative of each element.")
positive = _unary("positive", lambda x: x.clone(), "Each element.")
real = _unary("real", _part(ops.real, F.clone), "The real part of each element.")
reciprocal = _unary("reciprocal", F.reciprocal, "1 / x of each element.")
round = _rounding("round", _round, "The nearest whole number, the even one of two.")
signbit = _unary("signbit", F.signbit, "Whether the sign of each element is set.")
sin = _unary("sin", F.sin, "The sine of each element.")
sinh = _unary("sinh", F.sinh, "The hyperbolic sine of each element.")
sqrt = _unary("sqrt", F.sqrt, "The square root of each element.")
square = _unary("square", lambda x: x * x, "The square of each element.")
tan = _unary("tan", F.tan, "The tangent of each element.")
tanh = _unary("tanh", F.tanh, "The hyperbolic tangent of each element.")
trunc = _rounding("trunc", F.trunc, "Each element without its fraction.")

add = _binary("add", F.add, "The sum of the elements.")
atan2 = _binary("atan2", _atan2, "The angle of the points (x2, x1).")
bitwise_and = _binary("bitwise_and", F.bitwise_and, "The bits that both have.")
bitwise_left_shift = _binary(
    "bitwise_left_shift", F.bitwise_left_shift, "The bits of x1 shifted to the left by x2."
)
bitwise_or = _binary("bitwise_or", F.bitwise_or, "The bits that either has.")
bitwise_right_shift = _binary(
    "bitwise_right_shift", F.bitwise_right_shift, "The bits of x1 shifted to the right by x2."
)
bitwise_xor = _binary("bitwise_xor", F.bitwise_xor, "The bits that one has and the other not.")
copysign = _binary("copysign", F.copysign, "The magnitude of x1 with the sign of x2.")
divide = _binary("divide", F.div, "The quotient of the elements.")
equal = _binary("equal", F.eq, "Whether the elements are equal.")
greater = _binary("greater", F.gt, "Whether x1 > x2.")
greater_equal = _binary("greater_equal", F.ge, "Whether x1 >= x2.")
hypot = _binary("hypot", F.hypot, "sqrt(x1^2 + x2^2).")
less = _binary("less", F.lt, "Whether x1 < x2.")
less_equal = _binary("less_equal", F.le, "Whether x1 <= x2.")
logaddexp = _binary("logaddexp", F.logaddexp, "log(exp(x1) + exp(x2)).")
logical_and = _binary("logical_and", F.logical_and, "Whether both are true.")
logical_or = _binary("logical_or", F.logical_or, "Whether either is true.")
logical_xor = _binary("logical_xor", F.logical_xor, "Whether one is true and the other not.")
maximum = _binary("maximum", F.maximum, "The larger of the elements, NaN if either is.")
minimum = _binary("minimum", F.minimum, "The smaller of the elements, NaN if either is.")
multiply = _binary("multiply", F.mul, "The product of the elements.")
nextafter = _binary("nextafter", F.nextafter, "The number next to x1 in the direction of x2.")
not_equal = _binary("not_equal", F.ne, "Whether the elements differ.")
pow = _binary("pow", F.pow, "x1 to the power of x2.")
remainder = _binary("remainder", F.remainder, "x1 - floor(x1 / x2) x2, with the sign of x2.")
subtract = _binary("subtract", F.sub, "The difference of the elements.")


def floor_divide(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """The quotient, rounded down; of infinite operands, unlike `//`, that of the quotient."""
    a, b = pair("floor_divide", x1, x2)
    result = F.floor_divide(a, b)
    if not result.dtype.is_floating:
        return result
    chosen: Tensor = F.where(F.isinf(a) | F.isinf(b), F.floor(a / b), result)
    return chosen


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1 by the sign of each element; of a complex one z / abs(z); NaN of NaN."""
    if array("sign", x).dtype.is_complex:
        of_complex: Tensor = F.where(x == 0, F.zeros_like(x), F.sgn(x))
        return of_complex
    result = F.sign(x)
    return F.where(F.isnan(x), x, result) if x.dtype.is_floating else result


def clip(
    x: Tensor, /, min: Tensor | float | None = None, max: Tensor | float | None = None
) -> Tensor:
    """Each element, or the bound beyond which it lies; a NaN of either is NaN."""
    result = array("clip", x)
    require_dtype("clip", x.node, "real")
    if min is not None:
        result = F.maximum(*_bound(result, min))
    if max is not None:
        result = F.minimum(*_bound(result, max))
    return result.clone() if result is x else result


def _bound(x: Tensor, bound: Any) -> tuple[Tensor, Tensor]:
    if isinstance(bound, Tensor):
        return x, bound.to(x.dtype)
    if x.dtype.is_integer and isinstance(bound, float):
        limits = iinfo(x.dtype)
        infinite = bound in (float("inf"), -float("inf"))
        bound = (limits.max if bound > 0 else limits.min) if infinite else int(bound)
    return pair("clip", x, bound)


def where(condition: Tensor, x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Elements of x1 where the condition holds, of x2 elsewhere."""
    if isinstance(x1, Tensor) or isinstance(x2, Tensor):
        x1, x2 = pair("where", x1, x2)
    chosen: Tensor = F.where(array("where", condition).to(bool_), x1, x2)
    return chosen


__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp", "expm1", "floor",
    "floor_divide", "greater", "greater_equal", "hypot", "imag", "isfinite", "isinf", "isnan",
    "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round",
    "sign", "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc", "where",
]  # fmt: skip
