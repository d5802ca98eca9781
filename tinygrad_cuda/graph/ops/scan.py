"""Running sums and orders along an axis.

On cpu NumPy has a call for each. Elsewhere they are compositions that fuse: `as_nodes` of the row
replaces the node when a plan is simplified.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import indexing, numeric
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.common import arange, full, require_dtype

# Elements that one output of a running sum adds up directly; longer lines go block by block.
BLOCK = 64

# Running sums -------------------------------------------------------------------------------------


def _infer_cumsum(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    require_dtype("cumsum", sources[0], "arithmetic")
    return sources[0].outputs


def _backwards(g: Node, out: Node, x: Node, axis: int) -> Node:
    return mv.flip(cumsum(mv.flip(g, axes=(axis,)), axis=axis), axes=(axis,))


# out[.., i, ..] = x[.., 0, ..] + ... + x[.., i, ..] along an axis.
cumsum: Op = Op(
    "cumsum", "kernel", _infer_cumsum, numpy=numeric.cumsum, gradient=(_backwards,),
    batch=lambda size, sources, on, axis: cumsum(sources[0], axis=axis + 1), cost=2,
)  # fmt: skip


def running(node: Node, axis: int, row: Op, identity: int, combine: Op) -> Node:
    """The reduction of each prefix along `axis`: windows inside blocks, then whole blocks."""
    size = node.shape[axis]
    if size <= BLOCK:
        return _windowed(node, axis, row, identity)
    blocks = -(-size // BLOCK)
    node = _padded(node, axis, 0, blocks * BLOCK - size, identity)
    head, tail = node.shape[:axis], node.shape[axis + 1 :]
    apart = mv.reshape(node, shape=(*head, blocks, BLOCK, *tail))
    inside = _windowed(apart, axis + 1, row, identity)
    totals = running(
        mv.reshape(row(apart, axes=(axis + 1,)), shape=(*head, blocks, *tail)),
        axis, row, identity, combine,
    )  # fmt: skip
    before = mv.shifted(totals, axis, 1, identity)
    carried = mv.reshape(before, shape=(*head, blocks, 1, *tail))
    joined = combine(inside, mv.expand(carried, shape=inside.shape))
    flat = mv.reshape(joined, shape=(*head, blocks * BLOCK, *tail))
    starts, ones = (0,) * len(flat.shape), (1,) * len(flat.shape)
    return mv.slice_(flat, starts=starts, shape=(*head, size, *tail), steps=ones)


def _windowed(node: Node, axis: int, row: Op, identity: int) -> Node:
    """Prefix reductions of a short line: one window of the whole length ends at each element."""
    shape, size, rank = node.shape, node.shape[axis], len(node.shape)
    padded = _padded(node, axis, size - 1, 0, identity) if size > 1 else node
    wide = mv.expand(mv.reshape(padded, shape=(*padded.shape, 1)), shape=(*padded.shape, size))
    windows = mv.window(wide, axis=axis, over=rank, length=size, stride=1, dilation=1)
    return mv.reshape(row(windows, axes=(rank,)), shape=shape)


def _padded(node: Node, axis: int, before: int, after: int, value: int) -> Node:
    starts, shape = [0] * len(node.shape), list(node.shape)
    starts[axis] = before
    shape[axis] += before + after
    ones = (1,) * len(shape)
    return mv.pad(node, starts=tuple(starts), shape=tuple(shape), steps=ones, value=value)


# Orders -------------------------------------------------------------------------------------------


def _infer_order(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    require_dtype("sort", sources[0], "real")
    shape = sources[0].shape
    return (((*shape[:-1], attributes["count"]), int64),)


# The positions of the first `count` elements of each row (the last axis) in order: stable, NaN
# greatest, equal elements in their order also where it descends.
order: Op = Op(
    "order", "kernel", _infer_order, numpy=numeric.order, gradient=(None,),
    batch=lambda size, sources, on, **how: order(sources[0], **how), cost=8,
)  # fmt: skip


def counted(rows: Node, descending: bool, count: int) -> Node:
    """How many elements stand before each, and from that the positions in order."""
    size = rows.shape[-1]
    wide = (*rows.shape, size)
    last = len(wide) - 1
    mine = mv.expand(mv.reshape(rows, shape=(*rows.shape, 1)), shape=wide)
    other = mv.expand(mv.reshape(rows, shape=(*rows.shape[:-1], 1, size)), shape=wide)
    earlier = ew.lt(_numbers(wide, last, rows), _numbers(wide, last - 1, rows))
    before = ew.gt(other, mine) if descending else ew.lt(other, mine)
    equal = ew.eq(other, mine)
    if rows.dtype.is_floating:
        nan_here, nan_there = ew.isnan(mine), ew.isnan(other)
        equal = ew.logical_or(equal, ew.logical_and(nan_here, nan_there))
        first, second = (nan_there, nan_here) if descending else (nan_here, nan_there)
        alone = ew.logical_and(first, ew.logical_not(second))
        before = ew.logical_or(before, alone)
    before = ew.logical_or(before, ew.logical_and(equal, earlier))
    number = rd.sum(ew.cast(before, dtype=int64), axes=(last,))
    rank = mv.reshape(number, shape=rows.shape)
    # The inverse permutation of every row.
    positions = _numbers(rows.shape, last - 1, rows)
    flat = mv.reshape(with_row_starts(rank, size), shape=(prod(rows.shape),))
    zeros = full(0, flat.shape, flat)
    placed = indexing.scatter(zeros, flat, mv.reshape(positions, shape=flat.shape))
    whole = mv.reshape(placed, shape=rows.shape)
    starts, ones = (0,) * len(rows.shape), (1,) * len(rows.shape)
    return mv.slice_(whole, starts=starts, shape=(*rows.shape[:-1], count), steps=ones)


def with_row_starts(index: Node, size: int) -> Node:
    """Positions in rows of `size` elements as positions in the flattened whole."""
    count = prod(index.shape[:-1])
    starts = arange.leaf((count,), int64, index.device, start=0, step=size)
    starts = mv.reshape(starts, shape=(*index.shape[:-1], 1))
    return ew.add(index, mv.expand(starts, shape=index.shape))


def _numbers(shape: Shape, axis: int, like: Node) -> Node:
    """Each element's coordinate along an axis, int64."""
    line = arange.leaf((shape[axis],), int64, like.device, start=0, step=1)
    apart = tuple(size if k == axis else 1 for k, size in enumerate(shape))
    return mv.expand(mv.reshape(line, shape=apart), shape=shape)


def as_nodes(node: Node) -> Node:
    """The composition that a row stands for."""
    (x,), how = node.sources, node.attributes
    if not prod(node.shape):
        return full(0, node.shape, node)
    if node.op is cumsum:
        return running(x, how["axis"], rd.sum, 0, ew.add)
    return counted(x, how["descending"], how["count"])


ROWS: tuple[Op, ...] = (cumsum, order)
