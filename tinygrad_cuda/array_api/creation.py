"""The standard's functions that make arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinygrad_cuda.array_api.operands import array
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.dtypes import DType, bool_, int64
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.tensors import creation as C
from tinygrad_cuda.tensors import exchange
from tinygrad_cuda.tensors import functions as F
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.tensor import Tensor

Shape = int | tuple[int, ...]


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *,
    dtype: DType | None = None, device: Any = None,
) -> Tensor:  # fmt: skip
    """Numbers from start to below stop; none where the step leads away from stop."""
    first, last = (0, start) if stop is None else (start, stop)
    if dtype is None:
        whole = all(isinstance(value, int) for value in (first, last, step))
        dtype = int64 if whole else C.get_default_dtype()
    if math.ceil((last - first) / step) <= 0:
        return C.zeros((0,), dtype=dtype, device=device)
    return C.arange(first, last, step, dtype=dtype, device=device)


def asarray(
    obj: Any, /, *, dtype: DType | None = None, device: Any = None, copy: bool | None = None
) -> Tensor:
    """An array of a number, nested sequences, an array, or what has a buffer or DLPack.

    Args:
        copy: True for memory of its own, False to refuse a copy; by default what is shared is.
    """
    if isinstance(obj, TensorBase):
        x: Any = obj
        same = dtype in (None, x.dtype) and (device is None or as_device(device) is x.device)
        if copy is False and not same:
            raise _must_copy()
        moved = x.to(dtype) if dtype is not None else x
        moved = moved.to(device) if device is not None else moved
        result: Tensor = moved.clone() if copy and moved is x else moved
        return result
    if (
        not isinstance(obj, bool | int | float | complex | list | tuple | np.generic)
        and copy is not True
    ):
        shared = _shared(obj)
        if shared is not None:
            return asarray(shared, dtype=dtype, device=device, copy=copy)
    if copy is False:
        raise _must_copy()
    if hasattr(obj, "__array__") or isinstance(obj, memoryview | bytearray):
        obj = np.array(obj)
    return C.tensor(obj, dtype=dtype, device=device)


def _must_copy() -> ArgumentError:
    return ArgumentError(
        "asarray", "this can only be copied", expect="an array of this dtype and device",
        actual="copy=False", hint="leave copy out",
    )  # fmt: skip


def _shared(obj: Any) -> Tensor | None:
    """The array over the memory of another one on cpu, where it can be shared."""
    if isinstance(obj, memoryview | bytearray):
        obj = np.asarray(obj)
    if hasattr(obj, "__dlpack__") and C.get_default_device().kind == "cpu":
        if isinstance(obj, np.ndarray) and min(obj.strides, default=0) < 0:
            return None
        return exchange.from_dlpack(obj)
    return None


def empty(shape: Shape, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array whose values do not matter."""
    return zeros(shape, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array of another's shape whose values do not matter."""
    return zeros_like(x, dtype=dtype, device=device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType | None = None,
    device: Any = None,
) -> Tensor:  # fmt: skip
    """Ones on the k-th diagonal, zeros elsewhere."""
    columns = n_rows if n_cols is None else n_cols
    k = max(-n_rows, min(k, columns))  # beyond them there is no element, as on them
    row = C.arange(n_rows, device=device).reshape(n_rows, 1)
    column = C.arange(columns, device=device).reshape(1, columns)
    result: Tensor = (column - row == k).to(dtype or C.get_default_dtype())
    return result


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """An array that shares memory with one of another library."""
    if device is None and copy is None and isinstance(x, TensorBase):
        return x.detach()  # type: ignore[attr-defined, no-any-return]
    return exchange.from_dlpack(x, device=device, copy=copy)


def full(
    shape: Shape, fill_value: complex, *, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """An array with every element equal to `fill_value`."""
    return C.full(shape, fill_value, dtype=dtype, device=device)


def full_like(
    x: Tensor, /, fill_value: complex, *, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """An array of another's shape with every element equal to `fill_value`."""
    dtype, device = dtype or x.dtype, x.device if device is None else device
    return C.full(tuple(array("full_like", x).shape), fill_value, dtype=dtype, device=device)


def linspace(
    start: complex, stop: complex, /, num: int, *, dtype: DType | None = None, device: Any = None,
    endpoint: bool = True,
) -> Tensor:  # fmt: skip
    """Numbers at equal distances, with or without the last."""
    made = isinstance(start, complex) or isinstance(stop, complex)
    wanted = dtype or (C.get_default_dtype().to_complex() if made else C.get_default_dtype())
    values = np.linspace(start, stop, num, endpoint=endpoint)
    return C.tensor(values.astype(wanted.numpy), dtype=wanted, device=device)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinates of a grid, one array for each axis."""
    return [x.clone() for x in F.meshgrid(*arrays, indexing=indexing)] if arrays else []


def ones(shape: Shape, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array of ones."""
    return full(shape, 1, dtype=dtype or C.get_default_dtype(), device=device)


def ones_like(x: Tensor, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array of ones of another's shape."""
    return full_like(x, 1, dtype=dtype, device=device)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The elements on and below the k-th diagonal, zeros above."""
    return _triangle(x, k, True)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The elements on and above the k-th diagonal, zeros below."""
    return _triangle(x, k, False)


def _triangle(x: Tensor, k: int, lower: bool) -> Tensor:
    rows, columns = x.shape[-2:]
    row = C.arange(rows, device=x.device).reshape(rows, 1)
    column = C.arange(columns, device=x.device).reshape(1, columns)
    inside = column - row <= k if lower else column - row >= k
    return x & inside if x.dtype is bool_ else F.where(inside, x, C.zeros_like(x))


def zeros(shape: Shape, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array of zeros."""
    return full(shape, 0, dtype=dtype or C.get_default_dtype(), device=device)


def zeros_like(x: Tensor, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array of zeros of another's shape."""
    return full_like(x, 0, dtype=dtype, device=device)


__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like",
    "linspace", "meshgrid", "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip
