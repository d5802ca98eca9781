"""Copies of one Tensor in another order: repeat, flip, roll, tril, diag, contiguous, clone, ...

All of them start a new cell; a clone copies memory only when one of both is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core import dtypes, layouts
from tinygrad_cuda.core.errors import IndexError, ShapeError
from tinygrad_cuda.core.shapes import as_shape, normalize_axes, normalize_axis
from tinygrad_cuda.graph.ops import common, elementwise, indexing, movement
from tinygrad_cuda.tensors import shaping
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import buffer_node
from tinygrad_cuda.tensors.joining import join, slice_axis
from tinygrad_cuda.tensors.layout import another, copied_strides, fresh, in_format, lies_in
from tinygrad_cuda.tensors.shaping import flatten, integers, reshape

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "clone", "diag", "flip", "repeat_interleave", "roll", "tile", "tril", "triu",
]  # fmt: skip


def repeat(input: Tensor, *counts: Any, repeats: Any = None) -> Tensor:
    """Copies of the tensor side by side, ``counts[k]`` along dimension k.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1, 2], device="cpu").repeat(2, 2).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    counts = as_shape("repeat", counts if repeats is None else (repeats,))
    node = input.node
    missing = len(counts) - len(node.shape)
    if missing < 0:
        raise ShapeError(
            "repeat",
            "fewer counts than dimensions",
            expect=f"at least {len(node.shape)}",
            actual=str(counts),
        )
    shape = (1,) * missing + node.shape
    apart = tuple(size for pair in zip((1,) * len(shape), shape) for size in pair)
    wide = tuple(size for pair in zip(counts, shape) for size in pair)
    node = movement.expand(movement.reshape(node, shape=apart), shape=wide)
    return wrap(
        movement.reshape(node, shape=tuple(count * size for count, size in zip(counts, shape)))
    )


def tile(input: Tensor, *counts: Any, dims: Any = None) -> Tensor:
    """`repeat`, with ones put in front of too few counts."""
    counts = as_shape("tile", counts if dims is None else (dims,))
    return repeat(input, (1,) * (len(input.node.shape) - len(counts)) + counts)


def repeat_interleave(
    input: Tensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element along `dim` repeated in place; the flattened tensor without `dim`.

    Args:
        repeats: a count for all elements, or a tensor or list with one for each (read at the call).
        output_size: accepted; the size of the result is known at the call anyway.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1, 2], device="cpu").repeat_interleave(2).tolist()
        [1, 1, 2, 2]
    """
    if dim is None:
        return repeat_interleave(flatten(input), repeats, 0)
    node = input.node
    dim = normalize_axis("repeat_interleave", dim, len(node.shape))
    size = node.shape[dim]
    if isinstance(repeats, int):
        shape = as_shape("repeat_interleave", (repeats,))
        apart = node.shape[: dim + 1] + (1,) + node.shape[dim + 1 :]
        wide = node.shape[: dim + 1] + shape + node.shape[dim + 1 :]
        whole = node.shape[:dim] + (size * repeats,) + node.shape[dim + 1 :]
        node = movement.expand(movement.reshape(node, shape=apart), shape=wide)
        return wrap(movement.reshape(node, shape=whole))
    counts = repeats.array() if isinstance(repeats, TensorBase) else np.asarray(repeats)
    if counts.reshape(-1).shape not in ((size,), (1,)) or (counts < 0).any():
        raise ShapeError(
            "repeat_interleave",
            "the counts do not fit",
            expect=f"{size} counts >= 0",
            actual=f"shape {counts.shape}, least {counts.min(initial=0)}",
        )
    positions = np.repeat(np.arange(size), np.broadcast_to(counts.reshape(-1), (size,)))
    index = buffer_node(positions, node.device)
    axes = (dim, *(axis for axis in range(len(node.shape)) if axis != dim))
    taken = indexing.gather(movement.permute(node, axes=axes), index)
    back = tuple(int(axis) for axis in np.argsort(axes))
    return wrap(movement.permute(taken, axes=back))


def flip(input: Tensor, *positions: Any, dims: Any = None) -> Tensor:
    """A copy with the elements along `dims` (several, or one tuple) in reverse order."""
    rank = len(input.node.shape)
    named = integers("flip", positions if dims is None else (dims,), "dim")
    axes = normalize_axes("flip", named, rank) if named else ()
    flipped = movement.flip(input.node, axes=axes) if axes else another(input.node)
    return copied_strides(wrap(flipped), input)


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """A copy shifted along `dims`; what leaves at one end comes in at the other.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.arange(4, device="cpu").roll(1).tolist()
        [3, 0, 1, 2]
    """
    if dims is None:
        return reshape(roll(flatten(input), shifts, 0), input.node.shape)
    distances = integers("roll", (shifts,), "a shift")
    axes = integers("roll", (dims,), "dim")
    if len(distances) != len(axes):
        raise ShapeError(
            "roll", "one shift per dim", expect=str(len(axes)), actual=str(len(distances))
        )
    node = input.node
    if not node.shape:
        raise IndexError(
            "roll", "a 0-d tensor has no dimension", expect="at least 1-d", actual="()"
        )
    like: Tensor | None = input
    for distance, dim in zip(distances, axes):
        axis = normalize_axis("roll", dim, len(node.shape))
        size = node.shape[axis] if node.shape else 0
        if size and distance % size:
            tail = distance % size
            parts = (
                slice_axis(node, axis, size - tail, tail),
                slice_axis(node, axis, 0, size - tail),
            )
            node = join(parts, axis)
        elif 0 not in node.shape:
            like = None  # PyTorch joins an empty part to it, which is row-major
    return fresh(wrap(another(node) if node is input.node else node), like)


def _triangle(op: str, input: Tensor, diagonal: int, lower: bool) -> Tensor:
    node = input.node
    shape = node.shape
    if len(shape) < 2:
        raise ShapeError(op, "needs a matrix", expect="at least 2-d", actual=str(shape))
    ones = (1,) * (len(shape) - 2)
    row, column = (
        movement.expand(
            movement.reshape(
                common.arange.leaf((shape[axis],), dtypes.int64, node.device, start=first, step=1),
                shape=ones + ((shape[axis], 1) if axis == -2 else (1, shape[axis])),
            ),
            shape=shape,
        )
        for axis, first in ((-2, diagonal), (-1, 0))
    )
    keep = elementwise.le(column, row) if lower else elementwise.ge(column, row)
    return wrap(elementwise.where(keep, node, common.full_like(node, 0)))


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of matrices, ``j <= i + diagonal``; zeros elsewhere."""
    return _triangle("tril", input, diagonal, True)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of matrices, ``j >= i + diagonal``; zeros elsewhere."""
    return _triangle("triu", input, diagonal, False)


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or a matrix with a vector on its diagonal and zeros elsewhere.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.diag(tc.tensor([1, 2], device="cpu")).tolist()
        [[1, 0], [0, 2]]
    """
    node = input.node
    if len(node.shape) == 2:
        return wrap(shaping.diagonal(input, diagonal).node)
    if len(node.shape) != 1:
        raise ShapeError(
            "diag",
            "the number of dimensions does not fit",
            expect="a vector or a matrix",
            actual=str(node.shape),
        )
    size = node.shape[0] + abs(diagonal)
    start = max(-diagonal, 0) * size + max(diagonal, 0)
    placed = movement.pad(
        node,
        starts=(start if node.shape[0] else 0,),
        shape=(size * size,),
        steps=(size + 1,),
        value=0,
    )
    return wrap(movement.reshape(placed, shape=(size, size)))


# Copies -------------------------------------------------------------------------------------------


def contiguous(
    input: Tensor, memory_format: layouts.memory_format = layouts.contiguous_format
) -> Tensor:
    """The tensor itself where its strides are those of the format, else a copy that has them.

    Args:
        memory_format: `contiguous_format` (row-major) or `channels_last`, `channels_last_3d`.
    """
    if lies_in(input, memory_format):
        return input
    return in_format("contiguous", wrap(another(input.node)), memory_format)


def clone(
    input: Tensor, *, memory_format: layouts.memory_format = layouts.preserve_format
) -> Tensor:
    """A copy through which gradients flow; memory is copied when one of both is written.

    Args:
        memory_format: the order of dimensions in memory, the input's by default.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1, 2], device="cpu")
        >>> y = x.clone()
        >>> y[0] = 5
        >>> x.tolist(), y.tolist()
        ([1, 2], [5, 2])
    """
    copy = copied_strides(wrap(another(input.node)), input)
    return in_format("clone", copy, memory_format)
