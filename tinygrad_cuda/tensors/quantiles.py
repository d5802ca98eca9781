"""Median, mode and quantiles: elements at chosen positions of ordered rows."""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.shapes import Shape, normalize_axis
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise, movement
from tinygrad_cuda.graph.ops import reduction as ops
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.indexing.selecting import along_axis
from tinygrad_cuda.tensors.math import lerp
from tinygrad_cuda.tensors.promotion import to_dtype, to_shape
from tinygrad_cuda.tensors.reductions import require_float

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

from tinygrad_cuda.tensors.ordering import (
    Ordered,
    as_last,
    none_along,
    order,
    pair_of,
    rows_of,
    taken,
    without,
)

__all__ = [
    "median", "mode", "nanmedian", "nanquantile", "quantile",
]  # fmt: skip

# Median, quantile, mode ---------------------------------------------------------------------------


def _median_of_all(input: Tensor, ignore_nan: bool) -> Tensor:
    node = input.node
    if not prod(node.shape):
        if not node.dtype.is_floating:
            cast = elementwise.cast_array(np.array(np.nan), node.dtype)
            return wrap(common.full(cast.item(), (), node))
        total = movement.reshape(ops.sum(node, axes=tuple(range(len(node.shape)))), shape=())
        return wrap(elementwise.mul(total, common.full_like(total, float("nan"))))
    flat = wrap(movement.reshape(node, shape=(prod(node.shape),)))
    middle: Tensor = _median(flat, 0, False, ignore_nan).values
    if not node.requires_grad:
        return middle
    return wrap(_shared(flat.node, detached(middle.node), middle.node))


def _shared(flat: Node, value: Node, middle: Node) -> Node:
    """The value as the extreme of those equal to it: like those of `max` they share its gradient.

    NaN is equal to none; the first one takes the gradient.
    """
    equal = elementwise.eq(flat, to_shape(value, flat.shape))
    low, high = (common.full_like(flat, bound) for bound in (-inf, inf))
    largest = movement.reshape(ops.max(elementwise.where(equal, flat, low), axes=(0,)), shape=())
    least = movement.reshape(ops.min(elementwise.where(equal, flat, high), axes=(0,)), shape=())
    lowest = elementwise.eq(value, common.full_like(value, -inf))
    result = elementwise.where(lowest, least, largest)
    return elementwise.where(elementwise.isnan(value), middle, result)


def _median(input: Tensor, dim: int, keepdim: bool, ignore_nan: bool) -> Ordered:
    node, axis = rows_of("median", input, dim)
    if not prod(node.shape):
        return none_along("median", input, axis, keepdim)
    rows = as_last(node, axis)
    positions, size = order(rows, False), rows.shape[-1]
    shape = (*rows.shape[:-1], 1)
    middle = common.full((size - 1) // 2, shape, rows, int64)
    if rows.dtype.is_floating:
        nans = to_dtype(elementwise.isnan(detached(rows)), int64)
        count = ops.sum(nans, axes=(len(rows.shape) - 1,))
        some = elementwise.sub(common.full_like(count, size - 1), count)
        if ignore_nan:
            half = elementwise.floor_divide(some, common.full_like(some, 2))
            middle = elementwise.maximum(half, common.full_like(half, 0))
        else:
            # NaN stands behind everything else: the first of them wins.
            first = elementwise.add(some, common.full_like(some, 1))
            none = elementwise.eq(count, common.full_like(count, 0))
            middle = elementwise.where(none, middle, first)
    return without(pair_of(input, rows, taken(positions, middle), axis), axis, keepdim)


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element (the lower one of two), of all or along `dim`; NaN wins.

    Returns:
        A 0-d Tensor without `dim`, else (values, indices).

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.median(tc.tensor([4.0, 1.0, 3.0, 2.0], device="cpu")).item()
        2.0
    """
    if dim is None:
        return _median_of_all(input, False)
    return _median(input, dim, keepdim, False)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """`median` of the elements that are not NaN."""
    if dim is None:
        return _median_of_all(input, True)
    return _median(input, dim, keepdim, True)


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Ordered:
    """The most frequent element along `dim`, the smallest of several, and where it last stands.

    Compares each element with all others of its row.
    """
    node, axis = rows_of("mode", input, dim)
    if not prod(node.shape):
        return none_along("mode", input, axis, keepdim)
    rows = as_last(node, axis)
    plain, size = detached(rows), rows.shape[-1]
    positions = order(rows, False)
    ordered = taken(plain, positions)
    wide = (*rows.shape, size)
    mine = movement.expand(movement.reshape(ordered, shape=(*rows.shape, 1)), shape=wide)
    other = movement.expand(movement.reshape(plain, shape=(*rows.shape[:-1], 1, size)), shape=wide)
    last_axis = (len(wide) - 1,)
    same = elementwise.eq(mine, other)
    count = ops.sum(to_dtype(same, int64), axes=last_axis)
    best = ops.argmax(movement.reshape(count, shape=rows.shape), axes=(len(rows.shape) - 1,))
    position = elementwise.where(
        same, along_axis(wide, len(wide) - 1, rows), common.full(-1, wide, rows, int64)
    )
    latest = movement.reshape(ops.max(position, axes=last_axis), shape=rows.shape)
    latest = elementwise.maximum(latest, positions)  # NaN is equal to none, not to itself either
    return without(pair_of(input, rows, taken(latest, best), axis), axis, keepdim)


INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The value below which the fraction `q` of the elements lies; NaN wins.

    Args:
        q: a number, or a vector, whose length becomes the first dimension of the result.
        dim: None flattens the input.
        interpolation: between neighbours: linear, lower, higher, midpoint or nearest.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.quantile(tc.tensor([0.0, 1.0, 2.0], device="cpu"), 0.25).item()
        0.5
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


def nanquantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """`quantile` of the elements that are not NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


def _quantile(
    op: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, between: str, ignore: bool
) -> Tensor:
    if between not in INTERPOLATIONS:
        raise ArgumentError(
            op, "unknown interpolation", expect=", ".join(INTERPOLATIONS), actual=repr(between)
        )
    node = require_float(op, input.node)
    rank = len(node.shape)
    axis = 0 if dim is None else normalize_axis(op, dim, rank)
    flat = node if dim is not None and rank else movement.reshape(node, shape=(prod(node.shape),))
    rows = as_last(flat, axis)
    size = rows.shape[-1]
    if not prod(rows.shape):
        raise ShapeError(
            op,
            "there is nothing to choose from",
            expect="at least one element",
            actual=str(node.shape),
        )
    parts = _fractions(op, q, node)
    ordered = taken(rows, order(rows, False))
    outer = rows.shape[:-1]
    shape = (*outer, *parts.shape)
    nans = to_dtype(elementwise.isnan(detached(rows)), int64)
    nan_count = ops.sum(nans, axes=(len(rows.shape) - 1,))
    last = common.full_like(nan_count, size - 1)
    if ignore:
        last = elementwise.sub(last, nan_count)
        last = elementwise.maximum(last, common.full_like(last, 0))
    position = elementwise.mul(to_shape(parts, shape), to_shape(to_dtype(last, node.dtype), shape))
    if not ignore:
        # NaN stands behind everything else: the last of them wins, and takes the gradient.
        missing = elementwise.gt(nan_count, common.full_like(nan_count, 0))
        behind = to_shape(to_dtype(last, node.dtype), shape)
        position = elementwise.where(to_shape(missing, shape), behind, position)
    result = _between(ordered, position, between)
    return _quantile_shape(result, q, dim, node.shape, axis, keepdim)


def _fractions(op: str, q: Any, like: Node) -> Node:
    """The fractions as a vector node, checked; a number is not realized for it."""
    if not isinstance(q, TensorBase):
        _require_fractions(op, np.asarray(float(q)))
        return common.full(float(q), (1,), like)
    node = q.node
    if len(node.shape) > 1 or node.dtype is not like.dtype:
        raise ArgumentError(
            op,
            "q is not a number or a vector of the input's dtype",
            expect=like.dtype.name,
            actual=f"{node.shape} {node.dtype.name}",
        )
    _require_fractions(op, q.array())
    return movement.reshape(node, shape=(prod(node.shape),))


def _require_fractions(op: str, values: Any) -> None:
    if not ((values >= 0) & (values <= 1)).all():
        raise ArgumentError(op, "q is not a fraction", expect="0 <= q <= 1", actual=str(values))


def _between(ordered: Node, position: Node, between: str) -> Node:
    below = elementwise.floor(detached(position))
    if between == "nearest":
        below = elementwise.round(detached(position))
    elif between == "higher":
        below = elementwise.ceil(detached(position))
    low = taken(ordered, to_dtype(below, int64))
    if between in ("lower", "higher", "nearest"):
        return low
    high = taken(ordered, to_dtype(elementwise.ceil(detached(position)), int64))
    weight = elementwise.sub(position, below)
    if between == "midpoint":
        weight = common.full_like(weight, 0.5)
    return lerp(wrap(low), wrap(high), wrap(weight)).node  # from the nearer one: it is infinite


def _quantile_shape(
    result: Node, q: Any, dim: int | None, shape: Shape, axis: int, keepdim: bool
) -> Tensor:
    """The fractions in front, the reduced dimension of size 1 or without it."""
    rank = len(result.shape)
    front = movement.permute(result, axes=(rank - 1, *range(rank - 1)))
    outer = front.shape[1:]
    if keepdim:
        outer = (1,) * len(shape) if dim is None else shape[:axis] + (1,) + shape[axis + 1 :]
        outer = outer if shape else ()
    single = not isinstance(q, TensorBase) or not q.node.shape
    return wrap(movement.reshape(front, shape=outer if single else (front.shape[0], *outer)))
