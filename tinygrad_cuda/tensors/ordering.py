"""Order: sort, topk, kthvalue, median, quantile, cummax, searchsorted, unique and their kin.

A rank in the order is counted, by comparing each element with all others of its row, where rows
are short: a composition that fuses and needs no kernel of its own. Longer rows are ordered on the
host, which realizes the input; the values are then gathered on the device, with gradients. On cpu
NumPy sorts.
"""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import bool_, int64
from tinygrad_cuda.core.errors import IndexError
from tinygrad_cuda.core.shapes import as_int, normalize_axis
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise, indexing, movement, numeric, scan
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import buffer_node
from tinygrad_cuda.tensors.indexing.selecting import along_axis
from tinygrad_cuda.tensors.layout import another, copied_strides
from tinygrad_cuda.tensors.promotion import to_dtype
from tinygrad_cuda.tensors.shaping import slice_axis

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "argsort", "cummax", "cummin", "kthvalue", "msort", "sort", "topk",
]  # fmt: skip

# Comparisons up to which the order is counted, by kind of device, and elements of the longest row
# for it. A kind that is not here sorts, or, as meta, has no values.
COUNTED = {"cuda": 2**32, "emu": 2**20}
LONGEST = 4096


class Ordered(NamedTuple):
    """What `sort`, `topk`, `kthvalue`, `median`, `mode`, `cummax` and `cummin` give."""

    values: Tensor
    indices: Tensor


# The order of rows --------------------------------------------------------------------------------


def rows_of(op: str, input: Tensor, dim: int) -> tuple[Node, int]:
    """The node, 0-d as a vector, and the dimension to order."""
    node = input.node
    axis = normalize_axis(op, dim, len(node.shape))
    return (node if node.shape else movement.reshape(node, shape=(1,))), axis


def as_last(node: Node, axis: int) -> Node:
    """The node with `axis` as the last."""
    rank = len(node.shape)
    if axis == rank - 1:
        return node
    return movement.permute(node, axes=(*(k for k in range(rank) if k != axis), axis))


def as_before(node: Node, axis: int) -> Node:
    """The adjoint of `as_last`."""
    rank = len(node.shape)
    if axis == rank - 1:
        return node
    return movement.permute(node, axes=(*range(axis), rank - 1, *range(axis, rank - 1)))


def order(rows: Node, descending: bool, count: int | None = None) -> Node:
    """The positions of each row (the last axis) in order: stable, NaN greatest.

    Args:
        rows: any dtype.
        descending: the greatest first, NaN before all; equal elements keep their order.
        count: only the first so many; all if left out.
    """
    size = rows.shape[-1]
    count = size if count is None else count
    rows = detached(rows)
    if rows.dtype is bool_:
        rows = to_dtype(rows, dtypes.uint8)
    most = COUNTED.get(rows.device.kind)
    if most is None or (size <= LONGEST and prod(rows.shape) * size <= most):
        return scan.order(rows, descending=descending, count=count)
    positions = numeric.order(wrap(rows).array(), descending, count)
    return buffer_node(positions, rows.device)


def taken(rows: Node, index: Node) -> Node:
    """The elements of each row at its positions; the gradient goes to these elements."""
    if not prod(index.shape):
        return common.full(0, index.shape, rows)
    flat = movement.reshape(rows, shape=(prod(rows.shape),))
    return indexing.gather(flat, scan.with_row_starts(index, rows.shape[-1]))


def pair_of(input: Tensor, rows: Node, index: Node, axis: int) -> Ordered:
    """Values and indices with the axis back in its position."""
    values = taken(rows, index)
    if not input.node.shape:
        values, index = (movement.reshape(node, shape=()) for node in (values, index))
        return Ordered(wrap(values), wrap(index))
    return Ordered(wrap(as_before(values, axis)), wrap(as_before(index, axis)))


# Sort ---------------------------------------------------------------------------------------------


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Ordered:
    """The elements along `dim` in order, and where they stood; NaN counts as the greatest.

    Rows of up to 4096 elements are ordered on the device, longer ones on the host, which realizes
    the input.

    Args:
        stable: accepted; equal elements always keep their order.

    Example:
        >>> import tinygrad_cuda as tc
        >>> values, indices = tc.sort(tc.tensor([3, 1, 2], device="cpu"))
        >>> values.tolist(), indices.tolist()
        ([1, 2, 3], [1, 2, 0])
    """
    node, axis = rows_of("sort", input, dim)
    rows = as_last(node, axis)
    if not prod(rows.shape):
        empty = common.full(0, node.shape, node, int64)
        return Ordered(wrap(another(node)), wrap(empty))
    pair = pair_of(input, rows, order(rows, descending), axis)
    return Ordered(*(copied_strides(tensor, input) for tensor in pair))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The positions of the elements along `dim` in order; see `sort`."""
    return sort(input, dim, descending, stable).indices


def msort(input: Tensor) -> Tensor:
    """The elements along dim 0 in order."""
    return sort(input, 0).values


def topk(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Ordered:
    """The `k` largest (or smallest) elements along `dim`, in order, and where they stood.

    Raises:
        IndexError: `k` is negative or larger than the dimension.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.topk(tc.tensor([3, 1, 2], device="cpu"), 2).values.tolist()
        [3, 2]
    """
    node, axis = rows_of("topk", input, dim)
    k = as_int("topk", k, "k")
    if not input.node.shape and k == 0:
        k = 1  # PyTorch has a 0-d Tensor give its number here, too
    if not 0 <= k <= node.shape[axis]:
        raise IndexError(
            "topk", "k is out of range", expect=f"0 <= k <= {node.shape[axis]}", actual=str(k)
        )
    rows = as_last(node, axis)
    if not prod(rows.shape) or k == 0:
        shape, ones = (*rows.shape[:-1], k), (1,) * len(rows.shape)
        values = movement.slice_(rows, starts=(0,) * len(ones), shape=shape, steps=ones)
        index = common.full(0, shape, node, int64)
        if not input.node.shape:
            return Ordered(wrap(values), wrap(index))
        return Ordered(wrap(as_before(values, axis)), wrap(as_before(index, axis)))
    return pair_of(input, rows, order(rows, largest, k), axis)


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Ordered:
    """The k-th smallest element along `dim` (k counts from 1), and where it stood.

    Raises:
        IndexError: `k` is not between 1 and the size of the dimension.
    """
    node, axis = rows_of("kthvalue", input, dim)
    if not 1 <= k <= node.shape[axis]:
        raise IndexError(
            "kthvalue", "k is out of range", expect=f"1 <= k <= {node.shape[axis]}", actual=str(k)
        )
    if not prod(node.shape):
        return none_along("kthvalue", input, axis, keepdim)
    rows = as_last(node, axis)
    positions = order(rows, False, k)
    chosen = slice_axis(positions, len(positions.shape) - 1, k - 1, 1)
    return without(pair_of(input, rows, chosen, axis), axis, keepdim)


def without(pair: Ordered, axis: int, keepdim: bool) -> Ordered:
    if keepdim or not pair.values.ndim:
        return pair
    return Ordered(*(_dropped(tensor, axis) for tensor in pair))


def _dropped(tensor: Tensor, axis: int) -> Tensor:
    shape = tensor.node.shape
    return wrap(movement.reshape(tensor.node, shape=shape[:axis] + shape[axis + 1 :]))


def none_along(op: str, input: Tensor, axis: int, keepdim: bool) -> Ordered:
    """The result for an input without elements, whose rows have some."""
    node = input.node
    shape = node.shape[:axis] + ((1,) if keepdim else ()) + node.shape[axis + 1 :]
    if not node.shape[axis]:
        raise IndexError(
            op,
            "there is nothing to choose from",
            expect="at least one element",
            actual=str(node.shape),
        )
    values = movement.reshape(node, shape=shape)
    return Ordered(wrap(values), wrap(common.full(0, shape, node, int64)))


# Running extremes ---------------------------------------------------------------------------------


def _running_extreme(op: str, input: Tensor, dim: int, largest: bool) -> Ordered:
    """Values by doubling (Hillis and Steele, 1986), with the last of equal positions."""
    node, axis = rows_of(op, input, dim)
    if not prod(node.shape):
        return Ordered(wrap(another(node)), wrap(common.full(0, node.shape, node, int64)))
    rows = as_last(node, axis)
    plain = detached(rows)
    if plain.dtype is bool_:
        plain = to_dtype(plain, dtypes.uint8)
    combine = elementwise.maximum if largest else elementwise.minimum
    values = _scanned(plain, combine, _least(plain, largest))
    updates = elementwise.eq(plain, values)
    if plain.dtype.is_floating:
        updates = elementwise.logical_or(updates, elementwise.isnan(plain))
    positions = along_axis(rows.shape, len(rows.shape) - 1, rows)
    marked = elementwise.where(updates, positions, common.full_like(positions, 0))
    return pair_of(input, rows, _scanned(marked, elementwise.maximum, 0), axis)


def _scanned(rows: Node, combine: Any, identity: Any) -> Node:
    """Running `combine` along the last axis."""
    axis, distance = len(rows.shape) - 1, 1
    while distance < rows.shape[-1]:
        rows = combine(rows, movement.shifted(rows, axis, distance, identity))
        distance *= 2
    return rows


def _least(node: Node, largest: bool) -> Any:
    if node.dtype.is_floating:
        return -inf if largest else inf
    limits = np.iinfo(node.dtype.numpy)
    return int(limits.min if largest else limits.max)


def cummax(input: Tensor, dim: int) -> Ordered:
    """The largest element so far along `dim`, and where it last stood.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.cummax(tc.tensor([1, 3, 2], device="cpu"), 0).values.tolist()
        [1, 3, 3]
    """
    require_real("cummax", input)
    return _running_extreme("cummax", input, dim, True)


def cummin(input: Tensor, dim: int) -> Ordered:
    """The smallest element so far along `dim`, and where it last stood."""
    require_real("cummin", input)
    return _running_extreme("cummin", input, dim, False)
