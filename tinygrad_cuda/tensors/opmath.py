"""Half types in float32: what PyTorch computes as one operation rounds its result once.

A node of a half dtype rounds. A composition of several nodes is as exact as PyTorch's single
operation only if the nodes between its first cast and its last are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from tinygrad_cuda.core.dtypes import DType, float32
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import elementwise
from tinygrad_cuda.tensors.base import TensorBase, wrap

F = TypeVar("F", bound=Callable[..., Any])


def widened(node: Node) -> Node:
    """A half node in float32; any other as it is."""
    return elementwise.cast(node, dtype=float32) if node.dtype.is_half else node


def rounded(node: Node, dtype: DType) -> Node:
    """A result in float32 in the half type that its operands had."""
    return elementwise.cast(node, dtype=dtype) if dtype.is_half else node


def rounded_once(function: F) -> F:
    """A decorator: Tensors of one half type are computed in float32, results rounded to it.

    Tensors of other floating types beside them leave the function as it is.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        half = _common_half((*args, *options.values()))
        if half is None:
            return function(*args, **options)
        result = function(
            *[_recast(value, half, float32) for value in args],
            **{name: _recast(value, half, float32) for name, value in options.items()},
        )
        if type(result) is tuple:
            return tuple([_recast(part, float32, half) for part in result])
        return _recast(result, float32, half)

    return wrapper  # type: ignore[return-value]


def rounded_to_input(function: F) -> F:
    """`rounded_once` by the first operand alone: parameters may be float32 beside it."""

    @functools.wraps(function)
    def wrapper(input: Any, *args: Any, **options: Any) -> Any:
        half = _common_half((input,))
        if half is None:
            return function(input, *args, **options)
        result = function(
            _recast(input, half, float32),
            *[_recast(value, half, float32) for value in args],
            **{name: _recast(value, half, float32) for name, value in options.items()},
        )
        return _recast(result, float32, half)

    return wrapper  # type: ignore[return-value]


def _common_half(values: Iterable[Any]) -> DType | None:
    """The half type of all floating Tensors among some arguments."""
    half = None
    for value in values:
        if isinstance(value, TensorBase) and value.dtype.category > 1:
            dtype = value.dtype
            # A complex operand makes the result complex, or as wide as its parts.
            if not dtype.is_half or (half is not None and dtype is not half):
                return None
            half = dtype
    return half


def _recast(value: Any, old: DType, new: DType) -> Any:
    if not isinstance(value, TensorBase) or value.dtype is not old:
        return value
    result = wrap(elementwise.cast(value.node, dtype=new))
    result._strides = value._strides
    return result


def holds(dtype: DType, number: Any) -> bool:
    """Whether a dtype has a Python number; one that later calls may replace counts as not held."""
    if isinstance(number, np.generic):
        number = number.item()
    if type(number) is not float and type(number) is not int:
        return isinstance(number, bool)
    with np.errstate(over="ignore"):
        return float(dtype.numpy.type(number)) == number or number != number
