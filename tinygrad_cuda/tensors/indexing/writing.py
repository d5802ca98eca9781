"""Writing at chosen positions: scatter_reduce, index_put, masked_scatter, put, ..."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.dtypes import bool_, int64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import Shape, broadcast, may_overlap, normalize_axis
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import common, elementwise, movement, reduction
from tinygrad_cuda.graph.ops import indexing as ops
from tinygrad_cuda.tensors import shaping
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.autocast import in_widest
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import as_tensor
from tinygrad_cuda.tensors.indexing import keys, selecting
from tinygrad_cuda.tensors.indexing.selecting import along_axis, scatter_add
from tinygrad_cuda.tensors.layout import copied_strides
from tinygrad_cuda.tensors.math import store
from tinygrad_cuda.tensors.opmath import rounded, widened
from tinygrad_cuda.tensors.promotion import to_dtype, to_shape
from tinygrad_cuda.tensors.reductions import cumsum

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "argwhere", "diagonal_scatter", "index_put", "index_reduce", "masked_scatter",
    "nonzero_static", "put", "scatter", "scatter_reduce", "select_scatter", "slice_scatter",
    "unravel_index",
]  # fmt: skip


def argwhere(input: Tensor) -> Tensor:
    """The positions of elements other than zero, as rows; see `nonzero`."""
    coordinates: Tensor = keys.nonzero(input)
    return coordinates


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` rows of `nonzero`, filled up with rows of `fill_value`."""
    rows: Tensor = keys.nonzero(input)[:size]
    missing = size - rows.shape[0]
    if missing <= 0:
        return rows
    return shaping.cat([rows, rows.new_full((missing, rows.shape[1]), fill_value)], 0)


def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Positions in the flattened shape as one coordinate Tensor for each dimension."""
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    rest, coordinates = to_dtype(indices.node, int64), []
    for size in reversed(sizes):
        divisor = common.full_like(rest, size)
        coordinates.append(wrap(elementwise.remainder(rest, divisor)))
        rest = elementwise.floor_divide(rest, divisor)
    return tuple(reversed(coordinates))


def scatter(
    input: Tensor,
    dim: int,
    index: Any,
    src: Any = None,
    *,
    value: Any = None,
    reduce: str | None = None,
) -> Tensor:
    """The input with elements replaced: ``out[index[i][j]][j] = src[i][j]`` for dim 0.

    Args:
        dim: the dimension along which `index` chooses.
        index: integers, of as many dimensions as `input`; of repeated positions the last stays.
        src: a Tensor at least as large as `index`, or a number.
        value: a number, instead of `src`.
        reduce: ``"add"`` adds to the old elements, ``"multiply"`` multiplies them.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.scatter(tc.zeros(3, device="cpu"), 0, tc.tensor([2], device="cpu"), 1.0).tolist()
        [0.0, 0.0, 1.0]
    """
    if (src is None) == (value is None):
        raise ArgumentError(
            "scatter", "src and value exclude each other", expect="one of them",
            actual="neither" if src is None else "both",
        )  # fmt: skip
    if reduce not in (None, "add", "multiply"):
        raise ArgumentError(
            "scatter", "unknown reduction", expect="None, 'add' or 'multiply'",
            actual=repr(reduce), hint="scatter_reduce() has others",
        )  # fmt: skip
    given = value if src is None else src
    if reduce != "multiply":
        return selecting.scattered("scatter", input, dim, index, given, reduce == "add")
    if not isinstance(given, TensorBase):
        given = input.new_full(tuple(index.shape), given)
    return scatter_reduce(input, dim, index, given, "prod")


# Reductions of values with one index --------------------------------------------------------------

REDUCTIONS: dict[str, Op] = {
    "prod": reduction.prod,
    "amax": reduction.max,
    "amin": reduction.min,
}


def _identity(node: Node, reduce: str) -> Any:
    if reduce == "prod":
        return 1
    if node.dtype.is_floating:
        return -inf if reduce == "amax" else inf
    if node.dtype is bool_:
        return reduce == "amin"
    limits = np.iinfo(node.dtype.numpy)
    return int(limits.min if reduce == "amax" else limits.max)


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """The input with `src` reduced into chosen positions: ``out[index[i][j]][j]`` for dim 0.

    A sum or a mean is one scatter. The others compare every index with every position along `dim`.

    Args:
        index: integers, of as many dimensions as `input`; src is at least as large.
        reduce: ``"sum"``, ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``.
        include_self: whether the old elements take part.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x, index = tc.zeros(2, device="cpu"), tc.tensor([0, 0, 1], device="cpu")
        >>> src = tc.tensor([1.0, 5.0, 2.0], device="cpu")
        >>> tc.scatter_reduce(x, 0, index, src, "amax").tolist()
        [5.0, 2.0]
    """
    if reduce not in ("sum", "mean", *REDUCTIONS):
        raise ArgumentError(
            "scatter_reduce",
            "unknown reduction",
            expect="sum, prod, mean, amax or amin",
            actual=repr(reduce),
        )
    if reduce in ("amax", "amin"):
        require_real("scatter_reduce", input)
    if src.dtype is not input.dtype:
        raise DTypeError(
            "scatter_reduce",
            "src and input have different dtypes",
            expect=input.dtype.name,
            actual=src.dtype.name,
        )
    if not input.node.shape:
        line = scatter_reduce(
            input.reshape(1),
            0,
            index.reshape(-1),
            src.reshape(-1),
            reduce,
            include_self=include_self,
        )
        return line.reshape(())
    index = index.reshape(1) if not index.ndim else index
    src = src.reshape(1) if not src.ndim else src
    axis = normalize_axis("scatter_reduce", dim, input.ndim)
    if not index.numel():
        return _unwritten(input, src)
    if input.dtype is bool_ and reduce == "prod":
        reduce = "amin"
    if reduce in ("sum", "mean"):
        return _scattered_sum(input, axis, index, src, reduce == "mean", include_self)
    return _scattered_extreme(input, axis, index, src, reduce, include_self)


def _scattered_sum(
    input: Tensor, axis: int, index: Tensor, src: Tensor, mean: bool, include_self: bool
) -> Tensor:
    ones = input.new_ones(tuple(index.shape), dtype=int64)
    zeros = input.new_zeros(tuple(input.shape), dtype=int64)
    hits = scatter_add(zeros, axis, index, ones).node
    base, values = input.node, src.node
    if mean:
        # A half type holds neither every sum nor every count.
        base, values = widened(base), widened(values)
    if not include_self:
        fresh = elementwise.gt(hits, common.full_like(hits, 0))
        base = elementwise.where(fresh, common.full_like(base, 0), base)
    total = scatter_add(wrap(base), axis, index, wrap(values)).node
    if not mean:
        return wrap(total)
    count = elementwise.add(hits, common.full_like(hits, int(include_self)))
    count = to_dtype(elementwise.maximum(count, common.full_like(count, 1)), base.dtype)
    row = elementwise.div if base.dtype.category > 1 else elementwise.floor_divide
    return wrap(rounded(row(total, count), input.dtype))


def _last(node: Node, axis: int) -> Node:
    rank = len(node.shape)
    return movement.permute(node, axes=(*(k for k in range(rank) if k != axis), axis))


def _leading(node: Node, shape: Shape) -> Node:
    if node.shape == shape:
        return node
    zeros, ones = (0,) * len(shape), (1,) * len(shape)
    return movement.slice_(node, starts=zeros, shape=shape, steps=ones)


def _scattered_extreme(
    input: Tensor, axis: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> Tensor:
    """Every position reduces all sources whose index it is, and the old element."""
    whole = _last(input.node, axis)
    size, count = whole.shape[-1], index.node.shape[axis]
    checked = keys.position_node("scatter_reduce", index, size, input.node, wrap_negative=False)
    positions = _last(checked, axis)
    values = _leading(_last(src.node, axis), positions.shape)
    region = _leading(whole, (*positions.shape[:-1], size))
    wide = (*region.shape, count)
    here = elementwise.eq(_spread(positions, wide, -2), along_axis(wide, len(wide) - 2, positions))
    identity = common.full(_identity(values, reduce), wide, values)
    chosen = elementwise.where(here, _spread(values, wide, -2), identity)
    axes = (len(wide) - 1,)
    old = movement.reshape(region, shape=(*region.shape, 1))
    if include_self:
        chosen = shaping.join([chosen, old], len(wide) - 1)
    row = REDUCTIONS[reduce]
    reduced = row(chosen, axes=axes)
    if chosen.requires_grad and reduce != "prod":
        if include_self:
            self_here = common.full(True, old.shape, old, bool_)
            here_too = shaping.join([here, self_here], len(wide) - 1)
        else:
            here_too = here
        reduced = _shared_by_equals(chosen, detached(reduced), here_too)
    result = movement.reshape(reduced, shape=region.shape)
    hit = movement.reshape(reduction.any(here, axes=axes), shape=region.shape)
    result = elementwise.where(hit, result, region)
    return wrap(_put_back(whole, result, axis))


def _shared_by_equals(chosen: Node, extreme: Node, here: Node) -> Node:
    """The extreme of what is here, whose gradient all equal to it share."""
    axes = (len(chosen.shape) - 1,)
    plain = detached(chosen)
    equal = elementwise.eq(plain, movement.expand(extreme, shape=plain.shape))
    if plain.dtype.is_floating:
        equal = elementwise.logical_or(equal, elementwise.isnan(plain))
    equal = elementwise.logical_and(equal, here)
    wide = widened(chosen)  # for counts that a half type does not hold
    total = reduction.sum(elementwise.where(equal, wide, common.full_like(wide, 0)), axes=axes)
    count = reduction.sum(to_dtype(equal, wide.dtype), axes=axes)
    mean = elementwise.div(total, elementwise.maximum(count, common.full_like(count, 1)))
    return common.with_history(extreme, rounded(mean, chosen.dtype))


def _spread(node: Node, wide: Shape, at: int) -> Node:
    """A row of each line, compared with every position."""
    shape = (*node.shape[:-1], 1, node.shape[-1])
    return movement.expand(movement.reshape(node, shape=shape), shape=wide)


def _put_back(whole: Node, region: Node, axis: int) -> Node:
    rank = len(whole.shape)
    if whole.shape != region.shape:
        inner = {"starts": (0,) * rank, "shape": whole.shape, "steps": (1,) * rank}
        inside = common.full(True, region.shape, region, bool_)
        region = elementwise.where(
            movement.pad(inside, value=False, **inner),
            movement.pad(region, value=0, **inner),
            whole,
        )
    return movement.permute(region, axes=(*range(axis), rank - 1, *range(axis, rank - 1)))


def index_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """`scatter_reduce` of whole slices of `source` along `dim` at the positions of a vector.

    Args:
        reduce: ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``.
    """
    require_real("index_reduce", input, index, source)
    if not source.ndim:
        return scatter_reduce(input, 0, index, source, reduce, include_self=include_self)
    axis = normalize_axis("index_reduce", dim, source.ndim)
    line = index.reshape(tuple(-1 if k == axis else 1 for k in range(source.ndim)))
    wide = line.expand(tuple(source.shape))
    return scatter_reduce(input, dim, wide, source, reduce, include_self=include_self)


# By position --------------------------------------------------------------------------------------


def _unwritten(input: Tensor, source: Tensor) -> Tensor:
    """A copy of the input, which depends on what would be written elsewhere."""
    result: Tensor = shaping.clone(input)
    if not source.requires_grad:
        return result
    return copied_strides(wrap(common.nothing_written(result.node, source.node)), input)


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """The input with the elements of `source` at positions of its flattened form.

    Args:
        accumulate: add to the old elements instead of replacing them.
    """
    node = input.node
    size = prod(node.shape)
    if source.dtype is not input.dtype or source.numel() != index.numel():
        raise ShapeError(
            "put",
            "the source does not fit the index",
            expect=f"{index.numel()} elements of {input.dtype.name}",
            actual=f"{source.numel()} of {source.dtype.name}",
        )
    if not index.numel():
        return _unwritten(input, source)
    positions = keys.position_node("put", index, size, node)
    positions = movement.reshape(positions, shape=(prod(positions.shape),))
    values = movement.reshape(source.node, shape=positions.shape)
    row = ops.scatter_add if accumulate else ops.scatter
    flat = row(movement.reshape(node, shape=(size,)), positions, values)
    return wrap(movement.reshape(flat, shape=node.shape))


def put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`put` in place."""
    return store("put_", input, put(input, index, source, accumulate).node)


@in_widest
def index_put(
    input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False
) -> Tensor:
    """The input with ``out[indices] = values``, or with the values added.

    Args:
        indices: a tuple of integer or bool Tensors or None, one for each dimension.
        accumulate: add the values; those of repeated positions all count.
    """
    if not isinstance(indices, list | tuple):
        raise ArgumentError(
            "index_put",
            "the indices are not a tuple of tensors",
            expect="(index, ..) of Tensors or None",
            actual=type(indices).__name__,
        )
    key = tuple(slice(None) if entry is None else entry for entry in indices)
    result = shaping.clone(input)
    if not accumulate:
        keys.setitem(result, key, values)
        return result
    positions = wrap(along_flat(input.node))
    chosen = keys.getitem(positions, key)
    added = wrap(to_shape(as_tensor(values).node, chosen.node.shape))
    return put(result, chosen, added, accumulate=True)


def along_flat(node: Node) -> Node:
    """The position of each element in the flattened node."""
    count = prod(node.shape)
    line = common.arange.leaf((count,), int64, node.device, start=0, step=1)
    return movement.reshape(line, shape=node.shape)


def index_put_(
    input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False
) -> Tensor:
    """`index_put` in place."""
    return store("index_put_", input, index_put(input, indices, values, accumulate).node)


# By mask and by view ------------------------------------------------------------------------------


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The input with the elements of `source`, in order, where `mask` holds.

    Raises:
        IndexError: `source` has fewer elements than the mask has Trues; when it is computed.
    """
    if mask.dtype is not bool_:
        raise DTypeError(
            "masked_scatter", "the mask is not bool", expect="bool", actual=mask.dtype.name
        )
    if source.dtype is not input.dtype:
        raise DTypeError(
            "masked_scatter",
            "source and input have different dtypes",
            expect=input.dtype.name,
            actual=source.dtype.name,
        )
    shape = broadcast("masked_scatter", input.node.shape, mask.node.shape)
    chosen = to_shape(mask.node, shape)
    if not prod(shape) or not source.numel():
        return wrap(common.nothing_written(to_shape(input.node, shape), source.node))
    flat = movement.reshape(to_dtype(detached(chosen), int64), shape=(prod(shape),))
    number = cumsum(wrap(flat), 0).node
    number = elementwise.sub(number, common.full_like(number, 1))
    number = elementwise.where(
        movement.reshape(chosen, shape=flat.shape), number, common.full_like(number, 0)
    )
    positions = keys.position_node("masked_scatter", wrap(number), source.numel(), input.node)
    supply = movement.reshape(source.node, shape=(source.numel(),))
    taken = movement.reshape(ops.gather(supply, positions), shape=shape)
    return wrap(elementwise.where(chosen, taken, to_shape(input.node, shape)))


def _through(op: str, input: Tensor, view: Any, src: Tensor) -> Tensor:
    """A copy of the input with what a view of it shows replaced."""
    result = shaping.clone(input)
    shown = view(result)
    if shown.node.shape != src.node.shape:
        raise ShapeError(
            op, "src does not fit", expect=str(shown.node.shape), actual=str(src.node.shape)
        )
    shown.write(to_dtype(src.node, input.dtype), op)
    # The copy has the strides of the input, gaps included, but no two positions share an element.
    if not may_overlap(input.node.shape, input.strides):
        result._strides = input._strides
    return result


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy with the slice that `select` shows replaced by `src`."""
    return _through("select_scatter", input, lambda x: keys.select(x, dim, index), src)


def slice_scatter(
    input: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """A copy with ``[start:end:step]`` along `dim` replaced by `src`."""
    axis = normalize_axis("slice_scatter", dim, input.ndim)
    key = (slice(None),) * axis + (slice(start, end, step),)
    return _through("slice_scatter", input, lambda x: keys.getitem(x, key), src)


def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """A copy with the diagonal replaced by `src`."""
    return _through(
        "diagonal_scatter", input, lambda x: shaping.diagonal(x, offset, dim1, dim2), src
    )
