"""`_foreach_add`, `_foreach_mul_` and the like: an operation on each Tensor of a list.

Nothing is launched for each Tensor: all of them are recorded, and what can share a kernel does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.tensors import math
from tinygrad_cuda.tensors.base import TensorBase

PREFIX = "_foreach_"
# In both forms, of which one ends in "_"; and those that have one form.
BOTH = (
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min",
    "cos", "cosh", "div", "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log",
    "log10", "log1p", "log2", "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc",
)  # fmt: skip
NAMES = [*BOTH, *(f"{name}_" for name in BOTH), "clone", "copy_", "max", "mm", "norm", "zero_"]
OPTIONS = ("alpha", "dtype", "non_blocking", "value")  # other keywords are operands
OF_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}


def foreach(name: str) -> Callable[..., Any]:
    """The function of one of `NAMES`, with the prefix."""
    op = f"{PREFIX}{name}"

    def function(self: Any, *operands: Any, **options: Any) -> Any:
        if name == "pow" and operands and not isinstance(self, Iterable):
            return tuple([self**exponent for exponent in _tensors(op, operands[0])])
        tensors = _tensors(op, self)
        given = [*operands, *(value for key, value in options.items() if key not in OPTIONS)]
        rows = [_of_each(op, value, len(tensors)) for value in given]
        kept = {key: value for key, value in options.items() if key in OPTIONS}
        made = [_one(name, x, [row[k] for row in rows], kept) for k, x in enumerate(tensors)]
        return self if name.endswith("_") else tuple(made)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = f"`Tensor.{name}` of each Tensor of a list."
    return function


def _one(name: str, x: Any, operands: Sequence[Any], options: dict[str, Any]) -> Any:
    """The operation on one Tensor."""
    base, in_place = name.rstrip("_"), name.endswith("_")
    if base.startswith("addc") and len(operands) == 3:
        *operands, value = operands
        options = {"value": value.item() if isinstance(value, TensorBase) else value}
    elif base in OF_NUMBERS and operands:
        if not isinstance(operands[0], TensorBase):
            return getattr(x, OF_NUMBERS[base] + "_" * in_place)(*operands)
        made = getattr(math, base)(x, *operands)
        return x.copy_(made) if in_place else made
    return getattr(x, name)(*operands, **options)


def _tensors(op: str, value: Any) -> list[Any]:
    """The Tensors of a list.

    Raises:
        ArgumentError: it is none, or it is empty.
    """
    plural = isinstance(value, Iterable) and not isinstance(value, TensorBase | str)
    listed = list(value) if plural else []
    if not listed or not all(isinstance(x, TensorBase) for x in listed):
        raise ArgumentError(
            op, "it takes a list of Tensors", expect="a list or tuple with one Tensor at least",
            actual=f"{type(value).__name__} of {[type(x).__name__ for x in listed][:5]}",
        )  # fmt: skip
    return listed


def _of_each(op: str, value: Any, count: int) -> list[Any]:
    """An operand for each Tensor: one of a list, or one for all.

    Raises:
        ArgumentError: the list has another length.
    """
    given: Any = value
    if isinstance(value, TensorBase) and op.startswith(f"{PREFIX}addc") and given.ndim:
        value = given.unbind()  # a number for each
    if isinstance(value, TensorBase) or not isinstance(value, Iterable):
        return [value] * count
    listed = list(value)
    if len(listed) != count:
        raise ArgumentError(
            op, "the lists have different lengths", expect=f"{count} operands",
            actual=str(len(listed)),
        )  # fmt: skip
    return listed


__all__ = [f"{PREFIX}{name}" for name in NAMES]
globals().update({f"{PREFIX}{name}": foreach(name) for name in NAMES})
