"""Arithmetic, comparison and unary functions."""

from __future__ import annotations

import math as _math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import number_of
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import broadcast
from tinygrad_cuda.engine.capture import watching
from tinygrad_cuda.engine.cell import detached, local
from tinygrad_cuda.graph.node import (
    NO_ATTRIBUTES,
    Node,
    Op,
    SameSpecOp,
    node_made,
    same_spec,
    site_of,
)
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.tensors.arguments import checks_tensors, no_tensor, plain_number
from tinygrad_cuda.tensors.autocast import in_float32, in_widest
from tinygrad_cuda.tensors.autocast import state as autocast
from tinygrad_cuda.tensors.base import TensorBase, node_of, pending, wrap
from tinygrad_cuda.tensors.call_replay import templated_of_two
from tinygrad_cuda.tensors.layout import keeps_layout, strides_like
from tinygrad_cuda.tensors.opmath import (
    holds,
    rounded,
    rounded_once,
    widened,
)
from tinygrad_cuda.tensors.promotion import (
    as_float,
    factor_of,
    number_like,
    operand_of,
    promote,
    promoted,
    to_dtype,
    to_shape,
)

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "abs", "acos", "add", "addcdiv", "addcmul", "allclose", "asin", "atan", "atan2",
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp", "clip", "cos",
    "cosh", "div", "eq", "equal", "erf", "exp", "exp2", "expm1", "floor", "floor_divide",
    "fmod", "ge", "gt", "isclose", "isfinite", "isinf", "isnan", "le", "lerp", "log", "log10",
    "log1p", "log2", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "maximum",
    "minimum", "mul", "ne", "neg", "pow", "reciprocal", "relu", "remainder", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "trunc",
]  # fmt: skip

Scalar = bool | int | float | complex
Operand = "Tensor | Scalar"


# Elementwise functions ----------------------------------------------------------------------------


def _of_two(
    name: str, op: SameSpecOp, floating: bool = False, exact: bool = False
) -> Callable[..., Tensor]:
    """A function that records one op.

    Args:
        floating: the op takes floats only.
        exact: a number meets half types in float32; otherwise they round it, as in PyTorch.
    """

    @templated_of_two
    def brought_together(input: Any, other: Any) -> Tensor:
        nodes = promote(name, input, other, floating=floating)
        return strides_like(wrap(op(*nodes)), input, other)

    def function(input: Any, other: Any) -> Tensor:
        recorder = local.recorder
        mode = recorder.mode
        site = mode.site
        if isinstance(input, TensorBase) and isinstance(other, TensorBase):
            a, b = node_of(input, recorder), node_of(other, recorder)
            if (a.outputs is not b.outputs and not same_spec(a, b)) or a.device is not b.device:
                site = site or site_of(sys._getframe(1))
                together: Tensor = brought_together(input, other, a, b, recorder, site)
                return together
            strided = input._strides is not None or other._strides is not None
        else:
            site = site or site_of(sys._getframe(1))
            a, b = promoted(name, input, other, recorder, site, floating)
            if a.device is not b.device:  # an array's is cpu
                op.inferred((a, b))
            one = input if isinstance(input, TensorBase) else other
            strided = isinstance(one, TensorBase) and one._strides is not None
            if exact and a.dtype.is_half and isinstance(one, TensorBase):
                number = other if one is input else input
                if isinstance(number, int | float | np.generic) and not holds(a.dtype, number):
                    left = wrap(widened(a)) if one is input else number
                    right = number if one is input else wrap(widened(b))
                    narrow = rounded(function(left, right).node, a.dtype)
                    return strides_like(wrap(narrow), input, other)
        dtype = a.dtype
        if floating and dtype.category < 2:
            node = op(as_float(a), as_float(b))
        else:
            # What the op does when it is called, of two nodes of one shape and dtype.
            outputs = a.outputs if dtype in op.keeping else op.inferred((a, b))
            needs = a.requires_grad or b.requires_grad
            if needs:
                needs = mode.gradients and outputs[0][1].category > 1
            node = node_made(op, (a, b), NO_ATTRIBUTES, outputs, a.device, needs, site, 2)
        result = pending(node, recorder)
        return strides_like(result, input, other) if strided else result

    return function


def _binary(
    op: SameSpecOp, name: str, doc: str, floating: bool = False, exact: bool = False
) -> Callable[..., Tensor]:
    function = _of_two(name, op, floating, exact)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _only_operand(op: str, value: Any) -> Node:
    node = operand_of(op, value)
    if not isinstance(node, Node):
        raise no_tensor(op, "input", value)
    return node


def _unary(
    op: SameSpecOp, name: str, doc: str, floating: bool = True, wide: bool = False
) -> Callable[..., Tensor]:
    """A function that records one op.

    Args:
        floating: integers become floats.
        wide: under autocast it computes in float32.
    """

    def function(input: Tensor) -> Tensor:
        if wide and watching.on and autocast.on:
            return cast(input)
        if not isinstance(input, TensorBase):
            source = _only_operand(name, input)
            return wrap(op(as_float(source) if floating else source))
        recorder = local.recorder
        source = node_of(input, recorder)
        dtype = source.dtype
        if dtype in op.keeping:
            # What the op does when it is called.
            mode = recorder.mode
            needs = source.requires_grad and mode.gradients and dtype.category > 1
            outputs, device, site = source.outputs, source.device, mode.site
            node = node_made(op, (source,), NO_ATTRIBUTES, outputs, device, needs, site, 2)
        else:
            node = op(as_float(source) if floating and dtype.category < 2 else source)
        result = pending(node, recorder)
        return result if input._strides is None else strides_like(result, input)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    cast = in_float32(function)  # which the function calls itself: one call less without autocast
    if wide:
        function.autocast = cast.autocast  # type: ignore[attr-defined]
    return checks_tensors(function)


# The operators of Tensor, and what the functions with options come down to.
plus = _binary(elementwise.add, "add", "``input + other``.", exact=True)
minus = _binary(elementwise.sub, "sub", "``input - other``.", exact=True)
over = _binary(elementwise.div, "div", "``input / other``.", True, True)


def add(input: Any, other: Any, *, alpha: Scalar = 1) -> Tensor:
    """``input + alpha * other``, elementwise with broadcasting."""
    if alpha is not True and alpha == 1:
        return plus(input, other)
    return _scaled_sum("add", elementwise.add, input, other, alpha)


def sub(input: Any, other: Any, *, alpha: Scalar = 1) -> Tensor:
    """``input - alpha * other``, elementwise with broadcasting."""
    if alpha is not True and alpha == 1:
        return minus(input, other)
    return _scaled_sum("sub", elementwise.sub, input, other, alpha)


def _scaled_sum(name: str, op: SameSpecOp, input: Any, other: Any, alpha: Scalar) -> Tensor:
    """``input`` plus or minus ``alpha * other``, in the common dtype of both."""
    a, b = promote(name, input, other)
    alpha = plain_number(name, "alpha", alpha)
    factor = factor_of(name, alpha, b.dtype, "alpha")
    dtype, a, b = a.dtype, widened(a), widened(b)
    result = op(a, elementwise.mul(b, common.full_like(b, factor)))
    return strides_like(wrap(rounded(result, dtype)), input, other)


mul = _binary(
    elementwise.mul, "mul", "``input * other``, elementwise with broadcasting.", exact=True
)
maximum = _binary(elementwise.maximum, "maximum", "The larger of both; NaN wins.")
minimum = _binary(elementwise.minimum, "minimum", "The smaller of both; NaN wins.")
remainder = _binary(
    elementwise.remainder, "remainder", "Remainder with the sign of `other` (Python's ``%``)."
)
fmod = _binary(elementwise.fmod, "fmod", "Remainder with the sign of `input` (C's ``fmod``).")
_power = _binary(elementwise.pow, "pow", "", exact=True)


LARGEST_POWER = 64  # whole exponents up to which a complex power is made of products


def is_complex(value: Any) -> bool:
    """Whether an operand, a Tensor, an array or a number, is complex."""
    if isinstance(value, TensorBase):
        return value.dtype.is_complex
    return type(value) not in (int, float) and bool(np.iscomplexobj(value))


def _complex_power(input: Any, exponent: Any) -> Tensor:
    """``exp(exponent * log(input))``, for small whole numbers products.

    A power of zero is 0, or 1 of the exponent 0; no gradient passes there.
    """
    if isinstance(input, TensorBase) and type(exponent) in (int, float):
        if -LARGEST_POWER <= exponent <= LARGEST_POWER and exponent == int(exponent):
            return _whole_power(input, int(exponent))
        if exponent == 0.5:
            return sqrt(input)
    a, b = promote("pow", input, exponent)
    at_zero = elementwise.eq(a, common.full_like(a, 0))
    safe = elementwise.where(at_zero, common.full_like(a, 1), a)
    value = elementwise.exp(elementwise.mul(b, elementwise.log(safe)))
    none = elementwise.cast(elementwise.eq(b, common.full_like(b, 0)), dtype=a.dtype)
    return wrap(elementwise.where(at_zero, none, value))


def _whole_power(base: TensorBase, exponent: int) -> Tensor:
    """By repeated squares; at exponent 0 ones, whose gradient is zero."""
    node = base.node
    if exponent == 0:
        return strides_like(wrap(elementwise.where(
            common.full(False, node.shape, node, dtypes.bool_), node, common.full_like(node, 1)
        )), base)  # fmt: skip
    count, square, result = _math.floor(_math.fabs(exponent)), node, None
    while count:
        if count & 1:
            result = square if result is None else elementwise.mul(result, square)
        count >>= 1
        square = elementwise.mul(square, square) if count else square
    assert result is not None
    if exponent < 0:
        result = elementwise.reciprocal(result)
    return strides_like(wrap(elementwise.contiguous(result) if result is node else result), base)


@in_float32
def pow(input: Any, exponent: Any) -> Tensor:
    """``input ** exponent``, elementwise with broadcasting.

    Raises:
        ArgumentError: integers to a negative number, or one that their dtype cannot hold.
    """
    if isinstance(input, TensorBase) and type(exponent) is int and input.dtype.category < 2:
        if exponent < 0:
            raise ArgumentError(
                "pow", "integers have no negative powers", expect="an exponent >= 0",
                actual=str(exponent), hint="x.float() ** n",
            )  # fmt: skip
        number_of("pow", exponent, input.dtype)
    if type(exponent) is bool and isinstance(input, TensorBase) and input.dtype is dtypes.bool_:
        return logical_or(input, not exponent)
    if is_complex(input) or is_complex(exponent):
        return _complex_power(input, exponent)
    result = _power(input, exponent)
    if not isinstance(input, TensorBase):
        result._strides = None  # as PyTorch lays out a power of a number
    elif not isinstance(exponent, TensorBase) and input._strides is not None:
        # An operation of one operand: the number is none.
        strides_like(result, input)
    return result


atan2 = in_widest(
    _binary(elementwise.atan2, "atan2", "The angle of the point (other, input).", True)
)
eq = _binary(elementwise.eq, "eq", "``input == other`` as bool.")
ne = _binary(elementwise.ne, "ne", "``input != other`` as bool.")
lt = _binary(elementwise.lt, "lt", "``input < other`` as bool.")
le = _binary(elementwise.le, "le", "``input <= other`` as bool.")
gt = _binary(elementwise.gt, "gt", "``input > other`` as bool.")
ge = _binary(elementwise.ge, "ge", "``input >= other`` as bool.")
bitwise_and = _binary(elementwise.bitwise_and, "bitwise_and", "Bitwise and of integers or bools.")
bitwise_or = _binary(elementwise.bitwise_or, "bitwise_or", "Bitwise or of integers or bools.")
bitwise_xor = _binary(elementwise.bitwise_xor, "bitwise_xor", "Bitwise xor of integers or bools.")


def or_unlike(function: Callable[..., Tensor]) -> Callable[[Any, Any], Any]:
    """`==` and `!=`, which of None, a text, a list or another object is False and True."""

    def compare(input: Any, other: Any) -> Any:
        number = isinstance(other, np.generic) and not isinstance(other, np.flexible)
        if number or isinstance(other, TensorBase | bool | int | float | complex | np.ndarray):
            return function(input, other)
        return NotImplemented

    compare.__name__ = function.__name__
    return compare


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """``input / other``; integers give floats.

    Args:
        rounding_mode: None, ``"trunc"`` (towards zero) or ``"floor"``.
    """
    if rounding_mode is None:
        return over(input, other)
    if rounding_mode == "floor":
        return _of_tensor(_floored_flat, input, other)
    if rounding_mode != "trunc":
        raise ArgumentError(
            "div", "unknown rounding_mode", expect="None, 'trunc' or 'floor'",
            actual=repr(rounding_mode),
        )  # fmt: skip
    return _of_tensor(_truncated, input, other)


def _of_tensor(divided: Callable[..., Tensor], input: Any, other: Any) -> Tensor:
    """A quotient of a half Tensor in float32: the number by which it is divided is not half."""
    function = rounded_once(divided) if isinstance(input, TensorBase) else divided
    result: Tensor = function(input, other)
    return result


def _truncated(input: Any, other: Any) -> Tensor:
    a, b = promote("div", input, other)
    if a.dtype.is_floating:
        # Zero slopes, also where the quotient is infinite.
        result = elementwise.trunc(elementwise.div(detached(a), detached(b)))
        if a.requires_grad or b.requires_grad:
            result = common.with_history(result, elementwise.add(a, b), passes=False)
    else:
        # Floats would round integers; without the remainder the division is exact.
        result = elementwise.floor_divide(elementwise.sub(a, elementwise.fmod(a, b)), b)
    return strides_like(wrap(result), input, other)


def floor_divide(input: Any, other: Any) -> Tensor:
    """The largest whole number not above ``input / other``; a number is not rounded to half."""
    return _of_tensor(_floored, input, other)


def _floored(input: Any, other: Any) -> Tensor:
    a, b = promote("floor_divide", input, other)
    return strides_like(wrap(elementwise.floor_divide(a, b)), input, other)


def _floored_flat(input: Any, other: Any) -> Tensor:
    """The quotient, whose slopes are zero; those of `floor_divide` are none."""
    a, b = promote("div", input, other)
    flat = common.nothing_written(elementwise.floor_divide(detached(a), detached(b)), a, b)
    return strides_like(wrap(flat), input, other)


def _logical(op: SameSpecOp, name: str) -> Callable[..., Tensor]:
    @keeps_layout
    def function(input: Any, other: Any) -> Tensor:
        nodes = [to_dtype(node, dtypes.bool_) for node in promote(name, input, other)]
        return wrap(op(*nodes))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name.replace('_', ' ')} of the truth of the elements, as bool."
    return function


logical_and = _logical(elementwise.logical_and, "logical_and")
logical_or = _logical(elementwise.logical_or, "logical_or")
logical_xor = _logical(elementwise.logical_xor, "logical_xor")


@keeps_layout
def logical_not(input: Tensor) -> Tensor:
    """True where the element is zero."""
    return wrap(elementwise.logical_not(to_dtype(input.node, dtypes.bool_)))


neg = _unary(elementwise.neg, "neg", "``-input``.", False)
_abs = _unary(elementwise.abs, "abs", "", False)


@checks_tensors
def abs(input: Any) -> Tensor:
    """``|input|``, which is real also where `input` is complex."""
    if isinstance(input, TensorBase) and input.node.dtype.is_complex:
        return strides_like(wrap(elementwise.modulus(input.node)), input)
    return _abs(input)


_sign = _unary(elementwise.sign, "sign", "", False)


def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1 by the sign; 0 for NaN, as in PyTorch."""
    if input.node.dtype is dtypes.bool_:
        return strides_like(wrap(input.node), input)
    return _sign(input)


bitwise_not = _unary(elementwise.bitwise_not, "bitwise_not", "Bitwise complement.", False)
reciprocal = _unary(elementwise.reciprocal, "reciprocal", "``1 / input``.", wide=True)
exp = _unary(elementwise.exp, "exp", "e to the power of each element.", wide=True)
_exp2 = _unary(elementwise.exp2, "exp2", "")


def exp2(input: Tensor) -> Tensor:
    """2 to the power of each element."""
    return exp(mul(input, _math.log(2))) if is_complex(input) else _exp2(input)


expm1 = _unary(elementwise.expm1, "expm1", "``exp(input) - 1``, accurate near 0.", wide=True)
log = _unary(elementwise.log, "log", "Natural logarithm.", wide=True)
log2 = _unary(elementwise.log2, "log2", "Logarithm to base 2.", wide=True)
log1p = _unary(elementwise.log1p, "log1p", "``log(1 + input)``, accurate near 0.", wide=True)
sqrt = _unary(elementwise.sqrt, "sqrt", "Square root.")
rsqrt = _unary(elementwise.rsqrt, "rsqrt", "``1 / sqrt(input)``.", wide=True)
sin = _unary(elementwise.sin, "sin", "Sine, in radians.")
cos = _unary(elementwise.cos, "cos", "Cosine, in radians.")
tan = _unary(elementwise.tan, "tan", "Tangent, in radians.", wide=True)
asin = _unary(elementwise.asin, "asin", "Inverse sine, in radians.", wide=True)
acos = _unary(elementwise.acos, "acos", "Inverse cosine, in radians.", wide=True)
atan = _unary(elementwise.atan, "atan", "Inverse tangent, in radians.")
sinh = _unary(elementwise.sinh, "sinh", "Hyperbolic sine.", wide=True)
cosh = _unary(elementwise.cosh, "cosh", "Hyperbolic cosine.", wide=True)
tanh = _unary(elementwise.tanh, "tanh", "Hyperbolic tangent.")
sigmoid = _unary(elementwise.sigmoid, "sigmoid", "``1 / (1 + exp(-input))``.")
erf = _unary(elementwise.erf, "erf", "The error function.")


def _rounding(op: SameSpecOp, name: str, doc: str) -> Callable[..., Tensor]:
    @keeps_layout
    def function(input: Tensor) -> Tensor:
        # Whole numbers are already rounded.
        node = input.node
        return wrap(op(node) if node.dtype.category > 1 else node)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


floor = _rounding(elementwise.floor, "floor", "The largest whole number not above the element.")
ceil = _rounding(elementwise.ceil, "ceil", "The smallest whole number not below the element.")
trunc = _rounding(elementwise.trunc, "trunc", "The element without its fraction.")
_round_whole = _rounding(elementwise.round, "round", "")


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest whole number, or with so many decimals; halves go to even."""
    if decimals == 0 or input.dtype.category < 2:
        return _round_whole(input)
    factor = 10.0 ** _math.fabs(decimals)
    if decimals > 0:
        return div(_round_whole(mul(input, factor)), factor)
    return mul(_round_whole(div(input, factor)), factor)


@in_float32
@rounded_once
def log10(input: Tensor) -> Tensor:
    """Logarithm to base 10."""
    if is_complex(input):  # a complex product with an infinite part has NaN
        natural, factor = elementwise.log(input.node), 1 / _math.log(10.0)
        return wrap(elementwise.complex_(*(
            elementwise.mul(x, common.full_like(x, factor))
            for x in (elementwise.real(natural), elementwise.imag(natural))
        )))  # fmt: skip
    return mul(log2(input), _math.log10(2.0))


def square(input: Tensor) -> Tensor:
    """``input * input``."""
    if input.dtype is dtypes.bool_:
        input = strides_like(wrap(to_dtype(input.node, dtypes.int64)), input)
    return mul(input, input)


@checks_tensors
def relu(input: Tensor) -> Tensor:
    """``max(input, 0)``; its derivative at 0 is 0.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.relu(tc.tensor([-1.0, 2.0], device="cpu")).tolist()
        [0.0, 2.0]
    """
    node = _only_operand("relu", input)
    if node.dtype is dtypes.bool_:
        raise DTypeError("relu", "bools have no sign", expect="a number dtype", actual="bool")
    zero = common.full_like(node, 0)
    # NaN is not <= 0 and passes, as in PyTorch.
    return strides_like(wrap(elementwise.where(elementwise.le(node, zero), zero, node)), input)


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """``min(max(input, min), max)``; a bound may be None, a number or a Tensor."""
    if min is None and max is None:
        raise ArgumentError(
            "clamp", "no bound is given", expect="min, max or both", actual="neither"
        )
    node = input.node
    limited = _limited(node, min, max)
    if limited is not None:
        result = wrap(limited)
        return result if input._strides is None else strides_like(result, input)
    if isinstance(min, TensorBase) and isinstance(max, TensorBase):
        return strides_like(wrap(_between(node, min, max)), input, min, max)
    if min is not None:
        node = _bounded(node, min, elementwise.ge, elementwise.lt, elementwise.maximum)
    if max is not None:
        node = _bounded(node, max, elementwise.le, elementwise.gt, elementwise.minimum)
    return strides_like(wrap(node), *[x for x in (input, min, max) if isinstance(x, TensorBase)])


def _limited(node: Node, min: Any, max: Any) -> Node | None:
    """The node between bounds that are numbers, where no gradient is asked for; else None.

    The values of `_bounded` in a node or two for each bound, recorded in a tenth of the time.
    """
    recorder = local.recorder
    outputs, device = node.outputs, node.device
    if node.dtype not in _PLAIN_FLOATS or (node.requires_grad and recorder.mode.gradients):
        return None
    site = recorder.mode.site or site_of(sys._getframe(1))
    for bound, farther, beyond in (
        (min, elementwise.maximum, elementwise.lt), (max, elementwise.minimum, elementwise.gt)
    ):  # fmt: skip
        if bound is None:
            continue
        # Not NaN, and every one of them is a number of float32.
        if type(bound) not in (int, float) or not -1e38 < bound < 1e38:
            return None
        op: Op = farther
        sources: tuple[Node, ...] = (node, number_like(node, float(bound), site))
        if not bound:
            # Of two zeros the element stays. A comparison with NaN is false: it stays, too.
            kind = ((node.shape, dtypes.bool_),)
            outside = node_made(beyond, sources, NO_ATTRIBUTES, kind, device, False, site)
            op, sources = elementwise.where, (outside, *sources[::-1])
        node = node_made(op, sources, NO_ATTRIBUTES, outputs, device, False, site)
    return node


_PLAIN_FLOATS = (dtypes.float32, dtypes.float64)


def _bounded(
    node: Node, bound: Any, inside: SameSpecOp, beyond: SameSpecOp, farther: SameSpecOp
) -> Node:
    """The node with one bound; at the bound itself the gradient passes to the node alone.

    NaN in either wins, and no gradient passes through it.
    """
    node, limit = promote("clamp", wrap(node), bound)
    if not isinstance(bound, TensorBase):
        number_of("clamp", bound, limit.dtype)
    other = farther(detached(node), detached(limit))
    if limit.requires_grad:
        other = elementwise.where(beyond(node, limit), limit, other)
    return elementwise.where(inside(node, limit), node, other)


def _between(node: Node, min: TensorBase, max: TensorBase) -> Node:
    """The node within two Tensors; where they cross the upper one holds, with the gradient."""
    x, low, high = promote("clamp", wrap(node), min, max)
    value = elementwise.minimum(elementwise.maximum(detached(x), detached(low)), detached(high))
    if high.requires_grad:
        above = elementwise.logical_or(elementwise.gt(x, high), elementwise.lt(high, low))
        missing = elementwise.ne(value, value)
        upper = elementwise.where(missing, elementwise.add(high, value), high)
        value = elementwise.where(above, upper, value)
    if low.requires_grad:
        below = elementwise.logical_and(elementwise.lt(x, low), elementwise.lt(low, high))
        value = elementwise.where(below, low, value)
    if x.requires_grad:
        inside = elementwise.logical_and(elementwise.ge(x, low), elementwise.le(x, high))
        value = elementwise.where(inside, x, value)
    return value


clip = clamp


@keeps_layout
def isnan(input: Tensor) -> Tensor:
    """True where the element, or a part of it, is NaN."""
    node = input.node
    if node.dtype.is_complex:
        parts = [elementwise.isnan(part(node)) for part in (elementwise.real, elementwise.imag)]
        return wrap(elementwise.logical_or(*parts))
    if not node.dtype.is_floating:
        return wrap(common.full(False, node.shape, node, dtypes.bool_))
    return wrap(elementwise.isnan(node))


@keeps_layout
def isfinite(input: Tensor) -> Tensor:
    """True where the element is neither NaN nor infinite."""
    node = input.node
    if node.dtype.is_complex:
        parts = [elementwise.isfinite(part(node)) for part in (elementwise.real, elementwise.imag)]
        return wrap(elementwise.logical_and(*parts))
    if not node.dtype.is_floating:
        return wrap(common.full(True, node.shape, node, dtypes.bool_))
    return wrap(elementwise.isfinite(node))


def isinf(input: Tensor) -> Tensor:
    """True where the element, or a part of it, is infinite."""
    node = input.node
    if node.dtype.is_complex:
        return logical_or(isinf(wrap(elementwise.real(node))), isinf(wrap(elementwise.imag(node))))
    return logical_not(logical_or(isfinite(input), isnan(input)))


@keeps_layout
@rounded_once
def lerp(input: Tensor, end: Any, weight: Any) -> Tensor:
    """``input + weight * (end - input)``; from `end` where that is nearer."""
    # A 0-d Tensor of another dtype, too, counts as a number, whose complement must not wrap.
    if isinstance(weight, np.generic):
        weight = weight.item()
    elif isinstance(weight, TensorBase) and weight.dtype.category < 2:
        weight = wrap(as_float(weight.node))
    distance = sub(end, input)
    from_start = add(input, mul(weight, distance))
    rest = sub(1, weight) if isinstance(weight, TensorBase) else 1 - weight
    from_end = sub(end, mul(distance, rest))
    if not isinstance(weight, TensorBase):
        return from_start if _math.fabs(weight) < 0.5 else from_end
    a, b = promote("lerp", from_start, from_end)
    near = to_shape(lt(abs(weight), 0.5).node, a.shape)
    return wrap(elementwise.where(near, a, b))


@keeps_layout
@in_widest
@rounded_once
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """``input + value * tensor1 * tensor2``."""
    a, b, c = promote("addcmul", input, tensor1, tensor2)
    return wrap(elementwise.add(a, elementwise.mul(_times_value("addcmul", b, value), c)))


def _times_value(op: str, node: Node, value: Scalar) -> Node:
    if value == 1:
        return node
    factor = factor_of(op, value, node.dtype)
    return elementwise.mul(node, common.full_like(node, factor))


@keeps_layout
@in_widest
@rounded_once
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """``input + value * tensor1 / tensor2``.

    Raises:
        DTypeError: both factors are integers or bools.
    """
    if tensor1.dtype.category < 2 and tensor2.dtype.category < 2:
        raise DTypeError(
            "addcdiv", "integers are not divided", expect="a floating tensor1 or tensor2",
            actual=f"{tensor1.dtype.name} and {tensor2.dtype.name}", hint="cast one with .float()",
        )  # fmt: skip
    a, b, c = promote("addcdiv", input, tensor1, tensor2, floating=True)
    return wrap(elementwise.add(a, elementwise.div(_times_value("addcdiv", b, value), c)))


def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """``|input - other| <= atol + rtol * |other|``, or equal."""
    if input.dtype is dtypes.bool_ and other.dtype is dtypes.bool_:
        return eq(input, other)
    # In floats: the distance of two integers may be out of their range.
    distance = sub(wrap(as_float(input.node)), wrap(as_float(other.node)))
    near = le(abs(distance), add(mul(abs(wrap(as_float(other.node))), rtol), atol))
    result = logical_or(eq(input, other), logical_and(near, isfinite(distance)))
    return logical_or(result, logical_and(isnan(input), isnan(other))) if equal_nan else result


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close; see `isclose`."""
    return bool(isclose(input, other, rtol, atol, equal_nan).array().all())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are equal."""
    if input.node.shape != other.node.shape:
        return False
    return bool(eq(input, other).array().all())


# In-place forms -----------------------------------------------------------------------------------


def in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The form with a trailing underscore: the result goes into the first argument's cell."""
    name = f"{function.__name__}_"

    def method(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return store(name, self, function(self, *args, **options).node)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`{function.__name__}` in place; every alias sees it."
    return method


def store(op: str, target: Tensor, value: Node) -> Tensor:
    """Writes a node to a Tensor, after the checks PyTorch makes.

    Raises:
        ShapeError: the value does not broadcast to the target's shape.
        DTypeError: the value's kind (float) does not fit the target's (integer).
    """
    node = target.node
    if value.shape != node.shape:
        if broadcast(op, value.shape, node.shape) != node.shape:
            raise ShapeError(
                op,
                "the result does not fit in place",
                expect=f"a result of shape {node.shape}, that of the tensor",
                actual=f"shape {value.shape}",
                hint=f"use {op.rstrip('_')}, which makes a new tensor",
            )
        value = to_shape(value, node.shape)
    if value.dtype.category > node.dtype.category:
        raise DTypeError(
            op,
            "the result does not fit in place",
            expect=node.dtype.name,
            actual=value.dtype.name,
            hint="use the form without underscore",
        )
    target.write(to_dtype(value, node.dtype), op)
    return target
