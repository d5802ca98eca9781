"""Running sums and products: compositions of windowed reductions, block by block."""

from __future__ import annotations

from math import prod as count_of
from typing import TYPE_CHECKING

from tinygrad_cuda.core.shapes import normalize_axis
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import elementwise, movement
from tinygrad_cuda.graph.ops import reduction as ops
from tinygrad_cuda.tensor.autocast import in_float32
from tinygrad_cuda.tensor.base import wrap
from tinygrad_cuda.tensor.creation import DTypeLike
from tinygrad_cuda.tensor.joining import pad_axis
from tinygrad_cuda.tensor.layout import another
from tinygrad_cuda.tensor.opmath import rounded, widened
from tinygrad_cuda.tensor.promotion import to_shape
from tinygrad_cuda.tensor.reductions import summed_in

if TYPE_CHECKING:
    from tinygrad_cuda.tensor.tensor import Tensor

# Elements that one output of a running sum adds up directly; longer lines go block by block.
BLOCK = 64


def _running(node: Node, axis: int, row: Op, identity: int, combine: Op) -> Node:
    """The reduction of each prefix along `axis`: windows inside blocks, then whole blocks."""
    size = node.shape[axis]
    if size <= BLOCK:
        return _windowed(node, axis, row, identity)
    blocks = -(-size // BLOCK)
    node = pad_axis(node, axis, 0, blocks * BLOCK - size, identity)
    head, tail = node.shape[:axis], node.shape[axis + 1 :]
    apart = movement.reshape(node, shape=(*head, blocks, BLOCK, *tail))
    inside = _windowed(apart, axis + 1, row, identity)
    totals = _running(
        movement.reshape(row(apart, axes=(axis + 1,)), shape=(*head, blocks, *tail)),
        axis, row, identity, combine,
    )  # fmt: skip
    before = movement.shifted(totals, axis, 1, identity)
    carried = movement.reshape(before, shape=(*head, blocks, 1, *tail))
    joined = combine(inside, to_shape(carried, inside.shape))
    flat = movement.reshape(joined, shape=(*head, blocks * BLOCK, *tail))
    starts, ones = (0,) * len(flat.shape), (1,) * len(flat.shape)
    return movement.slice_(flat, starts=starts, shape=(*head, size, *tail), steps=ones)


def _windowed(node: Node, axis: int, row: Op, identity: int) -> Node:
    """Prefix reductions of a short line: one window of the whole length ends at each element."""
    shape, size, rank = node.shape, node.shape[axis], len(node.shape)
    padded = pad_axis(node, axis, size - 1, 0, identity) if size > 1 else node
    wide = movement.expand(
        movement.reshape(padded, shape=(*padded.shape, 1)), shape=(*padded.shape, size)
    )
    windows = movement.window(wide, axis=axis, over=rank, length=size, stride=1, dilation=1)
    return movement.reshape(row(windows, axes=(rank,)), shape=shape)


@in_float32
def cumsum(
    input: Tensor, dim: int = 0, *, dtype: DTypeLike = None, axis: int | None = None
) -> Tensor:
    """Running sums along `dim`: ``out[i] = x[0] + ... + x[i]``.

    Args:
        dtype: cast to this first; integers and bools are summed in int64 otherwise.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1, 2, 3], device="cpu").cumsum(0).tolist()
        [1, 3, 6]
    """
    return _cumulative("cumsum", input, dim if axis is None else axis, dtype, True)


@in_float32
def cumprod(
    input: Tensor, dim: int = 0, *, dtype: DTypeLike = None, axis: int | None = None
) -> Tensor:
    """Running products along `dim`: ``out[i] = x[0] * ... * x[i]``."""
    return _cumulative("cumprod", input, dim if axis is None else axis, dtype, False)


def _cumulative(op: str, input: Tensor, dim: int, dtype: DTypeLike, adds: bool) -> Tensor:
    node = summed_in(input.node, dtype)
    axis = normalize_axis(op, dim, len(node.shape))
    if not node.shape or not count_of(node.shape):
        return wrap(another(node))
    rows = (ops.sum, 0, elementwise.add) if adds else (ops.prod, 1, elementwise.mul)
    return wrap(rounded(_running(widened(node), axis, *rows), node.dtype))
