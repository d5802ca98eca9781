"""Search in ordered rows, and different elements: searchsorted, bucketize, isin, unique."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import int32, int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.shapes import normalize_axis
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise, movement
from tinygrad_cuda.graph.ops import reduction as ops
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import buffer_node
from tinygrad_cuda.tensors.promotion import to_dtype, to_shape

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

from tinygrad_cuda.tensors.ordering import taken

__all__ = [
    "bucketize", "isin", "searchsorted", "unique", "unique_consecutive",
]  # fmt: skip

# Search -------------------------------------------------------------------------------------------


def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where the values would be inserted to keep rows in order, by bisection.

    Args:
        sorted_sequence: a vector, or (.., n) with the leading dimensions of `input`.
        input: values, a Tensor or a number.
        right: behind equal elements (``side="right"``), else before them.
        sorter: positions that put `sorted_sequence` in order.

    Example:
        >>> import tinygrad_cuda as tc
        >>> edges = tc.tensor([1, 3, 5], device="cpu")
        >>> tc.searchsorted(edges, tc.tensor([3, 6], device="cpu")).tolist()
        [1, 3]
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError(
            "searchsorted",
            "side and right disagree",
            expect="side 'left' or 'right', the same as right",
            actual=f"side {side!r}, right {right}",
        )
    rows = detached(sorted_sequence.node)
    # The rows' dtype decides beside a value without a dimension, which is rounded to it.
    if isinstance(input, TensorBase):
        values = detached(input.node)
        kind = dtypes.result_type([(rows.dtype, 2), (values.dtype, 2 if values.shape else 1)])
    else:
        kind = dtypes.result_type([(rows.dtype, 2), (dtypes.scalar_dtype(input), 0)])
        values = common.full(input, (), rows, kind)
    if sorter is not None:
        rows = taken(rows, sorter.node)
    if len(rows.shape) > 1 and rows.shape[:-1] != values.shape[:-1]:
        raise ShapeError(
            "searchsorted",
            "the leading dimensions differ",
            expect=f"{rows.shape[:-1]} in front",
            actual=str(values.shape),
        )
    positions = _bisected(rows, to_dtype(values, kind), right or side == "right")
    return wrap(to_dtype(positions, int32) if out_int32 else positions)


def _bisected(rows: Node, values: Node, right: bool) -> Node:
    """The first position whose element, in the values' dtype, is not before the value."""
    shape, size = values.shape, rows.shape[-1]
    if len(rows.shape) == 1:
        values = movement.reshape(values, shape=(prod(shape),))
    low = common.full(0, values.shape, values, int64)
    high = common.full(size, values.shape, values, int64)
    if not prod(shape) or not size:
        return movement.reshape(low, shape=shape)
    for _ in range(size.bit_length()):
        middle = elementwise.floor_divide(elementwise.add(low, high), common.full_like(low, 2))
        inside = elementwise.minimum(middle, common.full_like(middle, size - 1))
        here = to_dtype(taken(rows, inside), values.dtype)
        if right:
            behind = elementwise.logical_not(elementwise.gt(here, values))
        else:
            behind = elementwise.logical_not(elementwise.ge(here, values))
        behind = elementwise.logical_and(behind, elementwise.lt(low, high))
        step = elementwise.add(middle, common.full_like(middle, 1))
        high = elementwise.where(behind, high, middle)
        low = elementwise.where(behind, step, low)
    return movement.reshape(low, shape=shape)


def bucketize(
    input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The number of the interval between `boundaries` in which each element lies."""
    if boundaries.ndim != 1:
        raise ShapeError(
            "bucketize",
            "the boundaries are not a vector",
            expect="1-d",
            actual=str(tuple(boundaries.shape)),
        )
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element is one of `test_elements`: each is compared with all of them."""
    require_real("isin", elements, test_elements)
    operands = [
        value.node if isinstance(value, TensorBase) else value
        for value in (elements, test_elements)
    ]
    like = next(value for value in operands if isinstance(value, Node))
    if any(isinstance(value, Node) and not prod(value.shape) for value in operands):
        # Of nothing, or none of it: no dtype has to hold the values of both.
        shape = operands[0].shape if isinstance(operands[0], Node) else ()
        return wrap(common.full(bool(invert), shape, like, dtypes.bool_))
    kind = dtypes.result_type(
        [
            (value.dtype, 2 if value.shape else 1)
            if isinstance(value, Node)
            else (dtypes.scalar_dtype(value), 0)
            for value in operands
        ]
    )
    a, b = (
        value if isinstance(value, Node) else common.full(value, (), like, kind)
        for value in operands
    )
    count = prod(b.shape)
    wide = (*a.shape, count)
    mine = to_shape(movement.reshape(to_dtype(a, kind), shape=(*a.shape, 1)), wide)
    there = to_shape(movement.reshape(to_dtype(b, kind), shape=(count,)), wide)
    axes = (len(wide) - 1,)
    result = movement.reshape(ops.any(elementwise.eq(mine, there), axes=axes), shape=a.shape)
    return wrap(elementwise.logical_not(result) if invert else result)


# Different elements -------------------------------------------------------------------------------


def _results(values: Tensor, inverse: Any, counts: Any, device: Any) -> Any:
    results = [values]
    results += [wrap(buffer_node(part, device)) for part in (inverse, counts) if part is not None]
    return results[0] if len(results) == 1 else tuple(results)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements in order (or slices along `dim`); realizes the input.

    Args:
        sorted: accepted; the result is always in order.
        return_inverse: where each element of the input is in the result.
        return_counts: how often each element of the result occurs.

    Returns:
        The values, as a gather from the input, and what else was asked for, as a tuple.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.unique(tc.tensor([2, 1, 2], device="cpu")).tolist()
        [1, 2]
    """
    require_real("unique", input)
    node = input.node
    array = input.array()
    if node.dtype.is_half:
        array = array.astype(np.float32)  # NumPy does not know where a bfloat16 nan stands
    axis = None if dim is None else normalize_axis("unique", dim, len(node.shape))
    _, first, inverse, counts = np.unique(
        array,
        return_index=True,
        return_inverse=True,
        return_counts=True,
        axis=axis,
        equal_nan=False,
    )
    index = wrap(buffer_node(first.astype(np.int64), node.device))
    if axis is None:
        flat = wrap(movement.reshape(node, shape=(prod(node.shape),)))
        values, inverse = flat[index], inverse.reshape(array.shape)
    else:
        values, inverse = input[(slice(None),) * axis + (index,)], inverse.reshape(-1)
    return _results(
        values,
        inverse.astype(np.int64) if return_inverse else None,
        counts.astype(np.int64) if return_counts else None,
        node.device,
    )


def unique_consecutive(
    input: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The input without elements (or slices along `dim`) equal to the one before; realizes it."""
    require_real("unique_consecutive", input)
    node = input.node
    axis = None if dim is None else normalize_axis("unique_consecutive", dim, len(node.shape))
    array = input.array()
    lines = array.reshape(-1, 1) if axis is None else np.moveaxis(array, axis, 0)
    lines = lines.reshape(lines.shape[0], -1) if lines.size else lines.reshape(lines.shape[0], 0)
    new = np.ones(lines.shape[0], bool)
    new[1:] = (lines[1:] != lines[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    inverse = np.cumsum(new) - 1
    counts = np.diff(np.append(first, lines.shape[0]))
    index = wrap(buffer_node(first.astype(np.int64), node.device))
    if axis is None:
        flat = wrap(movement.reshape(node, shape=(prod(node.shape),)))
        values, inverse = flat[index], inverse.reshape(array.shape)
    else:
        values = input[(slice(None),) * axis + (index,)]
    return _results(
        values,
        inverse.astype(np.int64) if return_inverse else None,
        counts.astype(np.int64) if return_counts else None,
        node.device,
    )
