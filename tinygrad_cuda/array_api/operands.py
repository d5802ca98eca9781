"""Operands of the standard's functions: arrays, and Python's numbers that take an array's dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.dtypes import DType, bool_, int64, promote
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import full, get_default_dtype
from tinygrad_cuda.tensors.tensor import Tensor

Axis = int | tuple[int, ...] | None


def array(op: str, value: Any) -> Tensor:
    """The argument, which must be an array of this namespace."""
    if not isinstance(value, TensorBase):
        raise DTypeError(
            op, "not an array of this namespace", expect="a Tensor", actual=type(value).__name__,
            hint="asarray(value) makes one",
        )  # fmt: skip
    return value  # type: ignore[return-value]


def pair(op: str, x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    """Two operands, of which one may be a Python number; both arrays promote, 0-d ones too."""
    if not isinstance(x1, TensorBase):
        return array(op, _number(array(op, x2), x1)), array(op, x2)
    if not isinstance(x2, TensorBase):
        return array(op, x1), array(op, _number(x1, x2))
    first, second = common(op, [array(op, x1), array(op, x2)])
    return first, second


def _number(like: Any, value: Any) -> Tensor:
    dtype: DType = like.dtype
    if isinstance(value, complex) and dtype.category >= 2:
        dtype = dtype.to_complex()
    elif isinstance(value, complex):
        dtype = get_default_dtype().to_complex()
    elif isinstance(value, float) and dtype.category < 2:
        dtype = get_default_dtype()
    elif isinstance(value, int) and not isinstance(value, bool) and dtype is bool_:
        dtype = int64
    return full((), value, dtype=dtype, device=like.device)


def common(op: str, arrays: Sequence[Tensor]) -> list[Tensor]:
    """Arrays in the dtype that all of them are promoted to."""
    dtype = array(op, arrays[0]).dtype
    for other in arrays[1:]:
        dtype = promote(dtype, array(op, other).dtype)
    return [x.to(dtype) for x in arrays]


def axes_of(x: Tensor, axis: Axis) -> tuple[int, ...]:
    """The axes of a reduction, each from 0 on; all of them for None."""
    if axis is None:
        return tuple(range(x.ndim))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    for one in given:
        if not -x.ndim <= one < x.ndim:
            raise ArgumentError(
                "axis", "there is no such axis", expect=f"from {-x.ndim} to {x.ndim - 1}",
                actual=str(one),
            )  # fmt: skip
    return tuple(one % x.ndim for one in given)


def joined_axes(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The array with the axes of a reduction made one, the last; of none it has the size 1."""
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    moved = x.permute([*rest, *axes]) if x.ndim else x
    return moved.reshape([*(x.shape[axis] for axis in rest), count])


def with_kept(result: Tensor, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """The result of a reduction, with axes of size 1 for those that it reduced where asked."""
    if not keepdims:
        return result
    return result.reshape([1 if axis in axes else n for axis, n in enumerate(x.shape)])
