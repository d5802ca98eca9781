"""Views: reshape, squeeze, permute, expand, narrow, split, diagonal, unfold, ...

An alias of the same cell with PyTorch's strides; only `reshape` copies where strides forbid.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import (
    as_int,
    as_shape,
    is_several,
    normalize_axes,
    normalize_axis,
    reshape_strides,
    resolve_reshape,
)
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.indexing import select

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "broadcast_to", "chunk", "diagonal", "flatten", "moveaxis", "movedim", "narrow", "permute",
    "reshape", "split", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unbind",
    "unflatten", "unsqueeze",
]  # fmt: skip


def integers(op: str, values: tuple[Any, ...], what: str) -> tuple[int, ...]:
    """Integers given as ``f(x, 2, 3)`` or ``f(x, (2, 3))``."""
    if len(values) == 1 and is_several(values[0]):
        values = tuple(values[0])
    return tuple([as_int(op, value, what) for value in values])


def _given(values: tuple[Any, ...], by_name: Any) -> tuple[Any, ...]:
    """Sizes or dims given one by one, or all by their name."""
    return values if by_name is None else (by_name,)


# Reshape ------------------------------------------------------------------------------------------


def reshape(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """The same elements in row-major order in another shape; a view where strides allow.

    Args:
        sizes: of the result; one of them may be -1 and is then computed.
        shape: the same by name.

    Raises:
        ShapeError: the element counts differ.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.arange(6, device="cpu").reshape(2, -1).tolist()
        [[0, 1, 2], [3, 4, 5]]
    """
    old = input.node.shape
    target = resolve_reshape("reshape", old, integers("reshape", _given(sizes, shape), "a size"))
    strides = reshape_strides(old, input.strides, target)
    if strides is None:
        return wrap(movement.reshape(input.node, shape=target))
    return input.alias(movement.reshape, strides=strides, shape=target)


def view(input: Tensor, *shape: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """`reshape` that is always a view of the same memory.

    Raises:
        ShapeError: the element counts differ, or the strides forbid a view.
    """
    old = input.node.shape
    shape = _given(shape, dtype if size is None else size)
    if len(shape) == 1 and isinstance(shape[0], DType):
        raise DTypeError(
            "view",
            "the bytes of a tensor cannot be seen as another dtype",
            expect="sizes",
            actual=f"{shape[0].name}, of a tensor of {input.node.dtype.name}",
            hint="to(dtype) converts the values; x.numpy().view(...) shows bytes on the host",
        )
    target = resolve_reshape("view", old, integers("view", shape, "a size"))
    strides = reshape_strides(old, input.strides, target)
    if strides is None:
        raise ShapeError(
            "view",
            "the strides do not allow a view of this shape",
            expect=f"dimensions that lie together in memory to become {target}",
            actual=f"shape {old}, strides {input.strides}",
            hint="use reshape(), which copies where it must",
        )
    return input.alias(movement.reshape, strides=strides, shape=target)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The dimensions from `start_dim` to `end_dim`, both included, as one."""
    shape = input.node.shape
    if not shape:
        return reshape(input, 1)
    start = normalize_axis("flatten", start_dim, len(shape))
    end = normalize_axis("flatten", end_dim, len(shape))
    if start > end:
        raise ShapeError(
            "flatten",
            "start_dim comes after end_dim",
            expect="start_dim <= end_dim",
            actual=f"{start_dim} and {end_dim}",
        )
    if start == end:
        return input
    merged = int(np.prod(shape[start : end + 1], dtype=np.int64))
    return reshape(input, shape[:start] + (merged,) + shape[end + 1 :])


def unflatten(input: Tensor, dim: int, sizes: Any) -> Tensor:
    """One dimension as several of `sizes`; one of them may be -1."""
    shape = input.node.shape
    if not shape:
        raise ShapeError(
            "unflatten", "a 0-d tensor has no dimension", expect="at least 1-d", actual="0-d"
        )
    dim = normalize_axis("unflatten", dim, len(shape))
    split_sizes = resolve_reshape(
        "unflatten", shape[dim : dim + 1], integers("unflatten", (sizes,), "a size")
    )
    return view(input, shape[:dim] + split_sizes + shape[dim + 1 :])


def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """Without the dimensions of size 1, or without those of them that `dim` names."""
    shape, strides = input.node.shape, input.strides
    dropped: Iterable[int] = ()
    if dim is None:
        dropped = range(len(shape))
    elif dim != ():
        dropped = normalize_axes("squeeze", dim, len(shape))
    kept = [axis for axis, size in enumerate(shape) if size != 1 or axis not in dropped]
    return input.alias(
        movement.reshape,
        strides=tuple(strides[axis] for axis in kept),
        shape=tuple(shape[axis] for axis in kept),
    )


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """With a dimension of size 1 at `dim`."""
    shape, strides = input.node.shape, input.strides
    dim = normalize_axis("unsqueeze", dim, len(shape) + 1)
    stride = 1 if dim == len(shape) else shape[dim] * strides[dim]
    return input.alias(
        movement.reshape,
        strides=strides[:dim] + (stride,) + strides[dim:],
        shape=shape[:dim] + (1,) + shape[dim:],
    )


# Order of dimensions ------------------------------------------------------------------------------


def permute(input: Tensor, *order: Any, dims: Any = None) -> Tensor:
    """The dimensions in another order: dimension k of the result is dimension ``order[k]``.

    Raises:
        ShapeError: the order does not name each dimension once.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tuple(tc.zeros(2, 3, 4, device="cpu").permute(2, 0, 1).shape)
        (4, 2, 3)
    """
    rank = len(input.node.shape)
    axes = tuple(
        normalize_axis("permute", dim, rank)
        for dim in integers("permute", _given(order, dims), "dim")
    )
    if sorted(axes) != list(range(rank)):
        raise ShapeError(
            "permute",
            "the dims are not a permutation",
            expect=f"each of {rank} dimensions once",
            actual=str(axes),
        )
    strides = input.strides
    return input.alias(movement.permute, strides=tuple(strides[axis] for axis in axes), axes=axes)


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions swapped."""
    rank = len(input.node.shape)
    first, second = (normalize_axis("transpose", dim, rank) for dim in (dim0, dim1))
    axes = list(range(rank))
    if rank:
        axes[first], axes[second] = second, first
    return permute(input, axes)


swapaxes = swapdims = transpose


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; vectors and 0-d tensors stay as they are."""
    rank = len(input.node.shape)
    if rank > 2:
        raise ShapeError(
            "t",
            "more than two dimensions",
            expect="at most 2-d",
            actual=str(input.node.shape),
            hint="transpose(dim0, dim1), or .mT for the last two",
        )
    return permute(input, tuple(reversed(range(rank))))


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """The dimensions `source` moved to the places `destination`; the others keep their order."""
    rank = len(input.node.shape)
    sources = source if is_several(source) else (source,)
    destinations = destination if is_several(destination) else (destination,)
    from_axes = [normalize_axis("movedim", axis, rank) for axis in sources]
    to_axes = [normalize_axis("movedim", axis, rank) for axis in destinations]
    if len(set(from_axes)) != len(from_axes) or sorted(set(to_axes)) != sorted(to_axes):
        raise ShapeError(
            "movedim",
            "a dimension appears twice",
            expect="each dim once",
            actual=f"{source}, {destination}",
        )
    if len(from_axes) != len(to_axes):
        raise ShapeError(
            "movedim",
            "as many sources as destinations are needed",
            expect=str(len(from_axes)),
            actual=str(len(to_axes)),
        )
    rest = iter(axis for axis in range(rank) if axis not in from_axes)
    placed = dict(zip(to_axes, from_axes))
    return permute(input, [placed[k] if k in placed else next(rest) for k in range(rank)])


moveaxis = movedim

# Expand -----------------------------------------------------------------------------------------


def expand(input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """Dimensions of size 1 seen several times, without a copy; new ones come in front.

    Args:
        sizes: the shape of the result; -1 keeps the size of a dimension.
        size: the same by name.

    Raises:
        ShapeError: a dimension other than of size 1 would change.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([[1], [2]], device="cpu").expand(-1, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
    """
    target = list(integers("expand", _given(sizes, size), "a size"))
    shape, strides = input.node.shape, input.strides
    missing = len(target) - len(shape)
    for k, size in enumerate(target):
        old = shape[k - missing] if k >= missing else None
        if size == -1 and old is not None:
            target[k] = size = old
        if missing < 0 or size < 0 or (old is not None and old not in (1, size)):
            raise ShapeError(
                "expand",
                "only dimensions of size 1 expand",
                expect=f"{shape} with its ones replaced, more dimensions in front",
                actual=str(tuple(target)),
            )
    if missing < 0:
        raise ShapeError(
            "expand",
            "fewer dimensions than the tensor has",
            expect=f"at least {len(shape)}",
            actual=str(tuple(target)),
        )
    result = input
    if missing:
        shape = (1,) * missing + shape
        result = input.alias(movement.reshape, strides=(0,) * missing + strides, shape=shape)
    found = [0] * len(target)
    for k in range(len(target) - 1, -1, -1):
        if target[k] == shape[k]:
            inner = target[k + 1] * found[k + 1] if k + 1 < len(target) else 1
            found[k] = strides[k - missing] if k >= missing else inner
    return result.alias(movement.expand, strides=tuple(found), shape=tuple(target))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """`expand` to the shape of another Tensor."""
    return expand(input, other.node.shape)


def broadcast_to(input: Tensor, size: Any = None, *, shape: Any = None) -> Tensor:
    """`expand` to a shape, under either name."""
    return expand(input, size if shape is None else shape)


# Parts --------------------------------------------------------------------------------------------


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """The `length` elements along `dim` from `start`, as a view.

    Raises:
        IndexError: the range does not lie inside the dimension.
    """
    shape = input.node.shape
    if not shape:
        raise ShapeError(
            "narrow", "a 0-d tensor has no dimension to narrow", expect="at least 1-d", actual="0-d"
        )
    dim = normalize_axis("narrow", dim, len(shape))
    start, length = as_int("narrow", start, "start"), as_int("narrow", length, "length")
    size = shape[dim]
    first = start + size if start < 0 else start
    if not 0 <= first <= first + length <= size:
        raise ShapeError(
            "narrow",
            f"the range does not lie inside dim {dim}",
            expect=f"0 <= start <= start + length <= {size}",
            actual=f"start {start}, length {length}",
        )
    return _slice_alias(input, dim, first if length else 0, length)


def _slice_alias(input: Tensor, dim: int, start: int, length: int, step: int = 1) -> Tensor:
    shape, strides = input.node.shape, input.strides
    rank = len(shape)
    starts = tuple(start if axis == dim else 0 for axis in range(rank))
    return input.alias(
        movement.slice_,
        strides=strides[:dim] + (strides[dim] * step,) + strides[dim + 1 :],
        starts=starts,
        shape=shape[:dim] + (length,) + shape[dim + 1 :],
        steps=tuple(step if axis == dim else 1 for axis in range(rank)),
    )


def split(input: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of pieces along `dim`: of one size (the last may be shorter), or of given sizes.

    Raises:
        ShapeError: the sizes do not add up to the dimension.

    Example:
        >>> import tinygrad_cuda as tc
        >>> [part.tolist() for part in tc.arange(5, device="cpu").split(2)]
        [[0, 1], [2, 3], [4]]
    """
    shape = input.node.shape
    if not shape:
        raise ShapeError(
            "split", "a 0-d tensor has no dimension to split", expect="at least 1-d", actual="0-d"
        )
    dim = normalize_axis("split", dim, len(shape))
    size = shape[dim]
    if is_several(split_size_or_sections):
        sizes = as_shape("split", tuple(split_size_or_sections) or ((),))
        if sum(sizes) != size:
            raise ShapeError(
                "split",
                "the sizes do not add up",
                expect=f"a sum of {size}",
                actual=f"{sum(sizes)} = sum{sizes}",
            )
    else:
        each = as_int("split", split_size_or_sections, "split_size")
        if each < 0 or (each == 0 and size):
            raise ShapeError(
                "split", "the size is not positive", expect="split_size >= 1", actual=str(each)
            )
        sizes = tuple(min(each, size - start) for start in range(0, size, each or 1)) or (0,)
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    return tuple(narrow(input, dim, start, length) for start, length in zip(starts, sizes))


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of at most `chunks` pieces of equal size along `dim`; the last may be shorter."""
    chunks = as_int("chunk", chunks, "chunks")
    if chunks < 1:
        raise ArgumentError(
            "chunk",
            "the number of chunks is not positive",
            expect="chunks >= 1",
            actual=str(chunks),
        )
    shape = input.node.shape
    size = shape[normalize_axis("chunk", dim, len(shape))] if shape else 0
    if size == 0 and shape:
        return split(input, [0] * chunks, dim)
    return split(input, -(-size // chunks), dim)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of all slices along `dim`, without that dimension."""
    shape = input.node.shape
    if not shape:
        raise ShapeError(
            "unbind", "a 0-d tensor has no dimension to unbind", expect="at least 1-d", actual="0-d"
        )
    dim = normalize_axis("unbind", dim, len(shape))
    return tuple(select(input, dim, index) for index in range(shape[dim]))


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the elements ``x[.., i, .., i + offset, ..]``; their dimension comes last.

    Args:
        offset: above (positive) or below (negative) the main diagonal.
        dim1, dim2: the dimensions of rows and columns.
    """
    shape, strides = input.node.shape, input.strides
    rank = len(shape)
    rows, columns = normalize_axis("diagonal", dim1, rank), normalize_axis("diagonal", dim2, rank)
    if rows == columns or rank < 2:
        raise ShapeError(
            "diagonal",
            "the dims do not fit",
            expect="two different dimensions",
            actual=f"dims {dim1} and {dim2} of {rank}",
        )
    first_row, first_column = max(-offset, 0), max(offset, 0)
    length = max(min(shape[rows] - first_row, shape[columns] - first_column), 0)
    kept = [axis for axis in range(rank) if axis not in (rows, columns)]
    square = permute(input, (*kept, rows, columns))
    if length == 0:
        first_row = first_column = 0
    square = _slice_alias(square, rank - 2, first_row, length)
    square = _slice_alias(square, rank - 1, first_column, length)
    outer = tuple(shape[axis] for axis in kept)
    outer_strides = tuple(strides[axis] for axis in kept)
    flat = square.alias(
        movement.reshape, strides=(*outer_strides, 1), shape=(*outer, length * length)
    )
    line = _slice_alias(flat, rank - 2, 0, length, length + 1)
    line._strides = (*outer_strides, strides[rows] + strides[columns])
    return line


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """A view of all windows along a dimension: ``out[.., i, .., k] = x[.., i * step + k, ..]``.

    Args:
        dimension: where the windows slide; the windows' elements become a new last dimension.
        size, step: elements of a window, and from one window to the next.
    """
    shape, strides = input.node.shape, input.strides
    axis = normalize_axis("unfold", dimension, len(shape))
    size, step = as_int("unfold", size, "size"), as_int("unfold", step, "step")
    if not 0 <= size <= (shape[axis] if shape else 1) or step < 1:
        raise ShapeError(
            "unfold",
            "the window does not fit",
            expect=f"0 <= size <= {shape[axis] if shape else 1} and step >= 1",
            actual=f"size {size}, step {step}",
        )
    if not shape:
        return narrow(unsqueeze(input, 0), 0, 0, size)
    length = (shape[axis] - size) // step + 1
    wide = expand(unsqueeze(input, -1), (*shape, size))
    moved = strides[:axis] + (strides[axis] * step,) + strides[axis + 1 :]
    return wide.alias(
        movement.window,
        strides=(*moved, strides[axis]),
        axis=axis,
        over=len(shape),
        length=length,
        stride=step,
        dilation=1,
    )
