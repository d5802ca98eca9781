"""Shapes: reshape and kin, joining, dividing, rearranging, windows by strides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations as _combinations
from itertools import combinations_with_replacement
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core import dtypes, layouts
from tinygrad_cuda.core.dtypes import DType, bool_, int32, int64, number_of
from tinygrad_cuda.core.errors import ArgumentError, DeviceError, DTypeError, IndexError, ShapeError
from tinygrad_cuda.core.shapes import (
    Shape,
    as_int,
    as_ints,
    as_shape,
    broadcast,
    channels_last_strides,
    contiguous_strides,
    elementwise_strides,
    is_dense,
    is_several,
    normalize_axes,
    normalize_axis,
    reshape_strides,
    resolve_reshape,
)
from tinygrad_cuda.engine.capture import watching
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node, mode
from tinygrad_cuda.graph.ops import common, elementwise, indexing, movement, reduction
from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.tensors import creation
from tinygrad_cuda.tensors.autocast import in_widest
from tinygrad_cuda.tensors.base import TensorBase, refuse_place, wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import (
    DeviceLike,
    DTypeLike,
    as_tensor,
    buffer_node,
    resolve_device,
    zeros,
)
from tinygrad_cuda.tensors.indexing.keys import select
from tinygrad_cuda.tensors.indexing.selecting import along_axis
from tinygrad_cuda.tensors.layout import (
    another,
    copied_strides,
    fresh,
    lies_channels_last,
    lies_in,
    stored_in_format,
)
from tinygrad_cuda.tensors.promotion import to_dtype, to_shape
from tinygrad_cuda.tensors.views import first_position, moves

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "alias_copy",
    "as_strided",
    "as_strided_",
    "as_strided_copy",
    "as_strided_scatter",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "broadcast_shapes",
    "broadcast_tensors",
    "broadcast_to",
    "cartesian_prod",
    "cat",
    "chunk",
    "clone",
    "column_stack",
    "combinations",
    "concat",
    "concatenate",
    "detach_copy",
    "diag",
    "diag_embed",
    "diagflat",
    "diagonal",
    "diagonal_copy",
    "diff",
    "dsplit",
    "dstack",
    "empty_permuted",
    "empty_strided",
    "expand_copy",
    "fill",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "hsplit",
    "hstack",
    "meshgrid",
    "moveaxis",
    "movedim",
    "narrow",
    "narrow_copy",
    "pad",
    "permute",
    "permute_copy",
    "ravel",
    "repeat_interleave",
    "reshape",
    "resize_as_",
    "roll",
    "rot90",
    "scalar_tensor",
    "select_copy",
    "split",
    "split_copy",
    "split_with_sizes",
    "split_with_sizes_copy",
    "squeeze",
    "squeeze_copy",
    "stack",
    "swapaxes",
    "swapdims",
    "t",
    "t_copy",
    "tensor_split",
    "tile",
    "trace",
    "transpose",
    "transpose_copy",
    "tril",
    "tril_indices",
    "triu",
    "triu_indices",
    "unbind",
    "unbind_copy",
    "unflatten",
    "unfold_copy",
    "unsqueeze",
    "unsqueeze_copy",
    "vander",
    "view_copy",
    "vsplit",
    "vstack",
    "zero_",
]


# Views --------------------------------------------------------------------------------------------


def integers(op: str, values: tuple[Any, ...], what: str) -> tuple[int, ...]:
    """Integers given as ``f(x, 2, 3)`` or ``f(x, (2, 3))``."""
    if len(values) == 1 and is_several(values[0]):
        values = tuple(values[0])
    return as_ints(op, values, what)


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
    old = input.described().shape
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
    old = input.described().shape
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
    shape = input.described().shape
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
    shape = input.described().shape
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
    shape, strides = input.described().shape, input.strides
    dropped: Iterable[int] = ()
    if dim is None:
        dropped = range(len(shape))
    elif dim != ():
        dropped = normalize_axes("squeeze", dim, len(shape))
    remaining = [axis for axis, size in enumerate(shape) if size != 1 or axis not in dropped]
    return input.alias(
        movement.reshape,
        strides=tuple(strides[axis] for axis in remaining),
        shape=tuple(shape[axis] for axis in remaining),
    )


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """With a dimension of size 1 at `dim`."""
    shape, strides = input.described().shape, input.strides
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
    rank = len(input.described().shape)
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
    rank = len(input.described().shape)
    first, second = (normalize_axis("transpose", dim, rank) for dim in (dim0, dim1))
    axes = list(range(rank))
    if rank:
        axes[first], axes[second] = second, first
    return permute(input, axes)


swapaxes = swapdims = transpose


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; vectors and 0-d tensors stay as they are."""
    rank = len(input.described().shape)
    if rank > 2:
        raise ShapeError(
            "t",
            "more than two dimensions",
            expect="at most 2-d",
            actual=str(input.described().shape),
            hint="transpose(dim0, dim1), or .mT for the last two",
        )
    return permute(input, tuple(reversed(range(rank))))


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """The dimensions `source` moved to the positions `destination`; the others stay in order."""
    rank = len(input.described().shape)
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
    shape, strides = input.described().shape, input.strides
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
    steps = [0] * len(target)
    for k in range(len(target) - 1, -1, -1):
        if target[k] == shape[k]:
            inner = target[k + 1] * steps[k + 1] if k + 1 < len(target) else 1
            steps[k] = strides[k - missing] if k >= missing else inner
    return result.alias(movement.expand, strides=tuple(steps), shape=tuple(target))


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
    shape = input.described().shape
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
    shape, strides = input.described().shape, input.strides
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
    shape = input.described().shape
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
    shape = input.described().shape
    size = shape[normalize_axis("chunk", dim, len(shape))] if shape else 0
    if size == 0 and shape:
        return split(input, [0] * chunks, dim)
    return split(input, -(-size // chunks), dim)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of all slices along `dim`, without that dimension."""
    shape = input.described().shape
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
    shape, strides = input.described().shape, input.strides
    rank, offset = len(shape), as_int("diagonal", offset, "offset")
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
    remaining = [axis for axis in range(rank) if axis not in (rows, columns)]
    square = permute(input, (*remaining, rows, columns))
    if length == 0:
        first_row = first_column = 0
    square = _slice_alias(square, rank - 2, first_row, length)
    square = _slice_alias(square, rank - 1, first_column, length)
    outer = tuple(shape[axis] for axis in remaining)
    outer_strides = tuple(strides[axis] for axis in remaining)
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
    shape, strides = input.described().shape, input.strides
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


# Joining and slicing of nodes ---------------------------------------------------------------------


def slice_axis(node: Node, axis: int, start: int, length: int, step: int = 1) -> Node:
    """`length` elements along `axis` from `start`, every `step`-th; all of the other axes."""
    rank = len(node.shape)
    starts, shape, steps = [0] * rank, list(node.shape), [1] * rank
    starts[axis], shape[axis], steps[axis] = start, length, step
    return movement.slice_(node, starts=tuple(starts), shape=tuple(shape), steps=tuple(steps))


def pad_axis(node: Node, axis: int, before: int, after: int, value: Any = 0) -> Node:
    """The node with `value` added before and after it along `axis`."""
    starts, shape = [0] * len(node.shape), list(node.shape)
    starts[axis] = before
    shape[axis] += before + after
    ones = (1,) * len(shape)
    return movement.pad(node, starts=tuple(starts), shape=tuple(shape), steps=ones, value=value)


def join(nodes: Sequence[Node], axis: int) -> Node:
    """The nodes one after the other along `axis`; their other axes are equal.

    Each is padded to the full length and chosen where it lies: no sum, so -0.0 and NaN stay.
    """
    # Without elements a node counts only by its history, through which its gradient comes.
    nodes = [node for node in nodes if node.shape[axis] or node.requires_grad] or list(nodes[:1])
    total = sum(node.shape[axis] for node in nodes)
    offset = nodes[0].shape[axis]
    result = nodes[0] if len(nodes) == 1 else pad_axis(nodes[0], axis, 0, total - offset)
    here = None
    for node in nodes[1:]:
        length = node.shape[axis]
        if here is None or here.shape != node.shape:
            here = common.constant.leaf(node.shape, bool_, node.device, value=True)
        after = total - offset - length
        result = elementwise.where(
            pad_axis(here, axis, offset, after, False), pad_axis(node, axis, offset, after), result
        )
        offset += length
    return result


# Joining ------------------------------------------------------------------------------------------


def _checked(op: str, values: Sequence[Any], what: str) -> tuple[Tensor, ...]:
    """The values, each a Tensor; `what` names one of them in the error."""
    for position, value in enumerate(values):
        if not isinstance(value, TensorBase):
            raise DTypeError(
                op,
                f"{what} {position} is not a tensor",
                expect="a Tensor",
                actual=type(value).__name__,
            )
    return tuple(values)


def _nodes(op: str, tensors: Any, least: int = 0) -> list[Node]:
    """The nodes of several Tensors, of at least `least` dimensions, in their common dtype."""
    if isinstance(tensors, TensorBase) or not isinstance(tensors, list | tuple) or not tensors:
        raise ArgumentError(
            op, "needs a list of tensors", expect="[x, y, ...]", actual=type(tensors).__name__
        )
    nodes: list[Node] = [tensor.node for tensor in _checked(op, tensors, "element")]
    device, dtype = nodes[0].device, nodes[0].dtype
    for position, node in enumerate(nodes):
        if node.device is not device:
            raise DeviceError(
                op,
                "the tensors are on different devices",
                expect=str(device),
                actual=f"{node.device}  (tensor {position})",
                hint=f'move it with .to("{device}")',
            )
    if any(node.dtype is not dtype for node in nodes):
        ranks = (2 if node.shape or least else 1 for node in nodes)
        dtype = dtypes.result_type([(node.dtype, rank) for node, rank in zip(nodes, ranks)])
    return [to_dtype(node, dtype) for node in nodes]


@templated
@in_widest
def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """The tensors one after the other along an existing dimension.

    Args:
        tensors: at least one; shapes agree in every other dimension, dtypes are promoted.
        dim: the dimension that grows.

    Raises:
        ShapeError: the shapes differ in another dimension.

    Example:
        >>> import tinygrad_cuda as tc
        >>> a = tc.tensor([[1, 2]], device="cpu")
        >>> tc.cat([a, a + 2]).tolist()
        [[1, 2], [3, 4]]
    """
    nodes = _nodes("cat", tensors)
    # As in PyTorch, an empty vector joins anything.
    solid = [node for node in nodes if node.shape != (0,)] or nodes
    first = solid[0].shape
    if not first:
        raise ShapeError(
            "cat",
            "a 0-d tensor has no dimension to join",
            expect="at least 1-d",
            actual="0-d",
            hint="use stack()",
        )
    dim = normalize_axis("cat", dim if axis is None else axis, len(first))
    for position, node in enumerate(solid):
        if _without(node.shape, dim) != _without(first, dim) or len(node.shape) != len(first):
            raise ShapeError(
                "cat",
                f"shapes differ outside dim {dim}",
                expect=f"{first} except in dim {dim}",
                actual=f"{node.shape}  (tensor {position})",
            )
    if len(solid) < len(nodes):
        solid += _remembered(nodes, first, dim)
    result = wrap(join(solid, dim) if len(solid) > 1 else another(solid[0]))
    inner = [lies_channels_last(tensor) for tensor in tensors]
    return fresh(result, tensors[0]) if all(inner) else result


concat = concatenate = cat


def _remembered(nodes: list[Node], shape: Shape, dim: int) -> list[Node]:
    """The empty vectors with a history, in a shape that joins others along `dim`."""
    empty = (*shape[:dim], 0, *shape[dim + 1 :])
    vectors = [node for node in nodes if node.shape == (0,) and node.requires_grad]
    return [movement.reshape(node, shape=empty) for node in vectors]


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


@templated
@in_widest
def stack(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """The tensors one after the other along a new dimension.

    Args:
        tensors: at least one, all of the same shape; dtypes are promoted.
        dim: where the new dimension stands in the result.

    Raises:
        ShapeError: the shapes differ.

    Example:
        >>> import tinygrad_cuda as tc
        >>> a = tc.tensor([1, 2], device="cpu")
        >>> tc.stack([a, a + 2], dim=1).tolist()
        [[1, 3], [2, 4]]
    """
    nodes = _nodes("stack", tensors)
    shape = nodes[0].shape
    dim = normalize_axis("stack", dim if axis is None else axis, len(shape) + 1)
    for position, node in enumerate(nodes):
        if node.shape != shape:
            raise ShapeError(
                "stack",
                "shapes differ",
                expect=str(shape),
                actual=f"{node.shape}  (tensor {position})",
            )
    placed = shape[:dim] + (1,) + shape[dim:]
    result = wrap(join([movement.reshape(node, shape=placed) for node in nodes], dim))
    if dim < len(shape) and all(lies_channels_last(tensor) for tensor in tensors):
        # PyTorch joins along the dimension before which the new one stands.
        size = shape[dim]
        whole = channels_last_strides((*shape[:dim], size * len(nodes), *shape[dim + 1 :]))
        result._strides = (*whole[:dim], whole[dim] * size, *whole[dim:])
    return result


def _at_least(op: str, tensors: Any, rank: int) -> list[Tensor]:
    """The Tensors with their strides, those of a lower rank with leading axes of size 1."""
    parts = []
    for node, tensor in zip(_nodes(op, tensors, rank), tensors):
        missing = rank - len(node.shape)
        if missing > 0:
            parts.append(wrap(movement.reshape(node, shape=(1,) * missing + node.shape)))
        else:
            parts.append(wrap(node))
            parts[-1]._strides = tensor._strides
    return parts


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors side by side: `cat` along dim 1, for vectors along dim 0.

    The dtypes are promoted as those of vectors: a 0-d tensor counts as one.
    """
    parts = _at_least("hstack", tensors, 1)
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as rows, one below the other: vectors become matrices of one row."""
    return cat(_at_least("vstack", tensors, 2), 0)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinate grids of vectors: ``grid_k[i_0, i_1, ...] = tensors[k][i_k]``.

    Args:
        tensors: vectors or 0-d tensors, as arguments or as one list.
        indexing: ``"ij"`` (rows first) or ``"xy"`` (the first two dimensions swapped).

    Example:
        >>> import tinygrad_cuda as tc
        >>> x, y = tc.meshgrid(tc.arange(2, device="cpu"), tc.arange(3, device="cpu"))
        >>> x.tolist(), y.tolist()
        ([[0, 0, 0], [1, 1, 1]], [[0, 1, 2], [0, 1, 2]])
    """
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    if indexing not in ("ij", "xy"):
        raise ArgumentError(
            "meshgrid", "unknown indexing", expect="'ij' or 'xy'", actual=repr(indexing)
        )
    for position, tensor in enumerate(tensors):
        if tensor.ndim > 1:
            raise ShapeError(
                "meshgrid",
                "the inputs must be vectors",
                expect="0-d or 1-d",
                actual=f"{tuple(tensor.shape)}  (tensor {position})",
            )
        if tensor.dtype is not tensors[0].dtype:
            raise DTypeError(
                "meshgrid",
                "the inputs have different dtypes",
                expect=tensors[0].dtype.name,
                actual=f"{tensor.dtype.name}  (tensor {position})",
            )
    order = list(range(len(tensors)))
    if indexing == "xy" and len(tensors) > 1:
        order[0], order[1] = 1, 0
    shape = tuple(tensors[k].numel() for k in order)
    grids = []
    for k, tensor in enumerate(tensors):
        axis_of = order.index(k)
        line = tuple(size if axis == axis_of else 1 for axis, size in enumerate(shape))
        grids.append(tensor.reshape(line).expand(shape))
    return tuple(grids)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    """The tensor with elements added (or, if negative, taken off) at its borders.

    Args:
        pad: pairs (before, after), the last dimension first.
        mode: ``"constant"``, ``"reflect"`` (mirrored without the border element), ``"replicate"``
            (the border element) or ``"circular"``.
        value: the constant; 0 when left out.

    Raises:
        ShapeError: too many pairs, or more elements reflected or wrapped than there are.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.pad(tc.tensor([1, 2], device="cpu"), (1, 2), value=9).tolist()
        [9, 1, 2, 9, 9]
    """
    node = input.node
    widths = [as_int("pad", width, "a width") for width in pad]
    if len(widths) % 2 or len(widths) > 2 * len(node.shape):
        raise ShapeError(
            "pad",
            "the widths do not fit the dimensions",
            expect=f"an even number, at most {2 * len(node.shape)}",
            actual=f"{len(widths)}: {tuple(widths)}",
        )
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ArgumentError(
            "pad",
            "unknown mode",
            expect="constant, reflect, replicate or circular",
            actual=repr(mode),
        )
    if mode != "constant" and value:
        raise ArgumentError(
            "pad", f"{mode} takes no value", expect="no value, or mode 'constant'",
            actual=f"value={value}",
        )  # fmt: skip
    for k in range(0, len(widths), 2):
        axis = len(node.shape) - 1 - k // 2
        before, after = widths[k], widths[k + 1]
        less, more = (min(before, 0), min(after, 0)), (max(before, 0), max(after, 0))
        # Only the border element may be repeated after it has itself been taken off.
        node = node if mode == "replicate" else _cropped(node, axis, *less)
        if any(more) and mode == "constant":
            # PyTorch takes the value as a float, which uint8 does not wrap.
            filling = 0 if value is None else number_of("pad", float(value), node.dtype)
            node = pad_axis(node, axis, *more, filling)
        elif any(more):
            node = _extended(node, axis, *more, mode)
        node = _cropped(node, axis, *less) if mode == "replicate" else node
    result = fresh(wrap(another(node) if node is input.node else node), input)
    if mode == "circular":
        result._strides = None
    elif max(widths, default=0) <= 0 and mode == "constant":
        # In PyTorch a copy of a view.
        result._strides = elementwise_strides(node.shape, ((node.shape, input.strides),))
    return result


def _cropped(node: Node, axis: int, before: int, after: int) -> Node:
    length = node.shape[axis] + before + after
    if length < 0:
        raise ShapeError(
            "pad",
            f"takes more off dim {axis} than there is",
            expect=f"at most {node.shape[axis]}",
            actual=str(-before - after),
        )
    return slice_axis(node, axis, -before if length else 0, length) if before or after else node


def _extended(node: Node, axis: int, before: int, after: int, mode: str) -> Node:
    size = node.shape[axis]
    limit = {"reflect": size - 1, "circular": size, "replicate": max(before, after)}[mode]
    if max(before, after) > limit or size == 0:
        raise ShapeError(
            "pad",
            f"the width is larger than dim {axis} allows in mode {mode!r}",
            expect=f"at most {max(limit, 0)}",
            actual=str(max(before, after)),
        )
    if mode == "replicate":
        left, right = slice_axis(node, axis, 0, 1), slice_axis(node, axis, size - 1, 1)
        left = movement.expand(left, shape=_with(node.shape, axis, before))
        right = movement.expand(right, shape=_with(node.shape, axis, after))
    elif mode == "circular":
        left = slice_axis(node, axis, size - before if before else 0, before)
        right = slice_axis(node, axis, 0, after)
    else:
        left = slice_axis(node, axis, 1 if before else 0, before)
        right = slice_axis(node, axis, size - 1 - after if after else 0, after)
        left, right = movement.flip(left, axes=(axis,)), movement.flip(right, axes=(axis,))
    return join([left, node, right], axis)


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return shape[:axis] + (size,) + shape[axis + 1 :]


# More shapes: tensor_split and its kin, rot90, block_diag, atleast_1d, column_stack, diag_embed


# Split --------------------------------------------------------------------------------------------


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of pieces along `dim`: so many of nearly equal size, or cut at given positions.

    Args:
        indices_or_sections: a number of pieces (the first ones are larger by one), or the
            positions of the cuts, as a list, a tuple or a Tensor on cpu.

    Example:
        >>> import tinygrad_cuda as tc
        >>> [part.tolist() for part in tc.tensor_split(tc.arange(5, device="cpu"), 3)]
        [[0, 1], [2, 3], [4]]
    """
    shape = input.described().shape
    if not shape:
        raise ShapeError(
            "tensor_split",
            "a 0-d tensor has no dimension to split",
            expect="at least 1-d",
            actual="shape ()",
        )
    dim = normalize_axis("tensor_split", dim, len(shape))
    size = shape[dim]
    cuts = indices_or_sections
    if isinstance(cuts, TensorBase):
        cuts = cuts.array().tolist()
    if is_several(cuts):
        ends = [*(int(cut) for cut in cuts), size]
        ends = [max(end + size, 0) if end < 0 else min(end, size) for end in ends]
        starts = [0, *ends[:-1]]
        return tuple(
            narrow(input, dim, start, max(end - start, 0)) for start, end in zip(starts, ends)
        )
    if cuts < 1:
        raise ArgumentError(
            "tensor_split", "the number is not positive", expect="at least 1", actual=str(cuts)
        )
    least, larger = divmod(size, cuts)
    return split(input, [least + (k < larger) for k in range(cuts)], dim)


def _split_of(op: str, input: Tensor, cuts: Any, dim: int, rank: int) -> tuple[Tensor, ...]:
    if input.ndim < rank:
        raise ShapeError(
            op, "too few dimensions", expect=f"at least {rank}", actual=str(input.ndim)
        )
    if isinstance(cuts, int) and (cuts < 1 or input.described().shape[dim] % cuts):
        raise ShapeError(
            op,
            "the dimension does not split into equal parts",
            expect=f"a divisor of {input.node.shape[dim]}",
            actual=str(cuts),
        )
    return tensor_split(input, cuts, dim)


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """`tensor_split` into equal parts, or at positions, along columns (dim 0 of a vector)."""
    return _split_of("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1, 1)


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """`tensor_split` into equal parts, or at positions, along rows."""
    return _split_of("vsplit", input, indices_or_sections, 0, 2)


def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """`tensor_split` into equal parts, or at positions, along the third dimension."""
    return _split_of("dsplit", input, indices_or_sections, 2, 3)


def split_with_sizes(input: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """`split` into pieces of the given sizes."""
    return split(input, tuple(split_sizes), dim)


# Turn ---------------------------------------------------------------------------------------------


def fliplr(input: Tensor) -> Tensor:
    """A copy with the columns in reverse order."""
    if input.ndim < 2:
        raise ShapeError(
            "fliplr", "needs at least two dimensions", expect="at least 2-d", actual=str(input.ndim)
        )
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """A copy with the rows in reverse order."""
    if input.ndim < 1:
        raise ShapeError(
            "flipud", "needs at least one dimension", expect="at least 1-d", actual=str(input.ndim)
        )
    return flip(input, 0)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """A copy turned by `k` quarters, from the first of `dims` towards the second.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.rot90(tc.tensor([[1, 2], [3, 4]], device="cpu")).tolist()
        [[2, 4], [1, 3]]
    """
    if len(dims) != 2:
        raise ArgumentError(
            "rot90", "needs two dims", expect="dims=(a, b)", actual=str(tuple(dims))
        )
    first, second = (normalize_axis("rot90", dim, input.ndim) for dim in dims)
    if first == second:
        raise ArgumentError(
            "rot90",
            "needs two different dims",
            expect="two different dims",
            actual=str(tuple(dims)),
        )
    if k % 4 == 0:
        return clone(input)
    if k % 4 == 2:
        return flip(input, (first, second))
    turned = flip(input, second if k % 4 == 1 else first)
    return transpose(turned, first, second)


# Join ---------------------------------------------------------------------------------------------


def _several(op: str, tensors: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Tensors given as arguments or as one list."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        return _checked(op, tensors[0], "element")
    return _checked(op, tensors, "argument")


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Views of all tensors in their common shape."""
    several = _several("broadcast_tensors", tensors)
    shape = broadcast("broadcast_tensors", *(tensor.node.shape for tensor in several))
    return tuple(expand(tensor, shape) for tensor in several)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The common shape of several shapes.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.broadcast_shapes((2, 1), (3,))
        (2, 3)
    """
    several = [as_shape("broadcast_shapes", (shape,)) for shape in shapes]
    return broadcast("broadcast_shapes", *several)


def _with_dimensions(op: str, rank: int, tensors: tuple[Any, ...]) -> Any:
    results = []
    for tensor in _several(op, tensors):
        shape = tensor.node.shape
        if len(shape) < rank:
            # (n,) becomes (1, n) and (1, n, 1); (m, n) becomes (m, n, 1).
            front = 1 if len(shape) == 1 and rank > 1 else 0
            shape = (1,) * front + shape
            shape += (1,) * (rank - len(shape))
            tensor = reshape(tensor, shape)
        results.append(tensor)
    single = len(tensors) == 1 and isinstance(tensors[0], TensorBase)
    return results[0] if single else tuple(results)


def atleast_1d(*tensors: Any) -> Any:
    """Each tensor with at least one dimension."""
    return _with_dimensions("atleast_1d", 1, tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Each tensor with at least two dimensions: a vector becomes a row."""
    return _with_dimensions("atleast_2d", 2, tensors)


def atleast_3d(*tensors: Any) -> Any:
    """Each tensor with at least three dimensions: (n,) becomes (1, n, 1), (m, n) (m, n, 1)."""
    return _with_dimensions("atleast_3d", 3, tensors)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as columns side by side; vectors become columns."""
    parts = [
        reshape(tensor, tensor.numel(), 1) if tensor.ndim < 2 else tensor
        for tensor in _several("column_stack", (tensors,))
    ]
    return cat(parts, 1)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors one behind the other along the third dimension."""
    return cat(list(_with_dimensions("dstack", 3, (tensors,))), 2)


def block_diag(*tensors: Any) -> Tensor:
    """A matrix with the given matrices on its diagonal and zeros elsewhere.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.block_diag(tc.ones(1, 2, device="cpu"), tc.ones(1, device="cpu")).tolist()
        [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    blocks = [wrap(node) for node in _nodes("block_diag", list(tensors))]
    for position, block in enumerate(blocks):
        if block.ndim > 2:
            raise ShapeError(
                "block_diag",
                f"argument {position} has more than two dimensions",
                expect="at most 2-d",
                actual=str(tuple(block.shape)),
            )
    blocks = [atleast_2d(block) for block in blocks]
    width = sum(block.shape[1] for block in blocks)
    rows, left = [], 0
    for block in blocks:
        right = width - left - block.shape[1]
        rows.append(pad(block, (left, right)))
        left += block.shape[1]
    return cat(rows, 0)


def ravel(input: Tensor) -> Tensor:
    """All elements as a vector; a view of a contiguous tensor."""
    rows = contiguous(input)
    return reshape(rows, -1) if rows.numel() else reshape(rows, 0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each vector, as rows.

    Raises:
        ShapeError: a Tensor is no vector.
    """
    for each in tensors:
        if each.ndim != 1:
            raise ShapeError(
                "cartesian_prod", "needs vectors", expect="1-d", actual=str(tuple(each.shape))
            )
    if len(tensors) == 1:
        return tensors[0]
    grids = meshgrid(*tensors, indexing="ij")
    return stack([reshape(grid, grid.numel()) for grid in grids], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of `r` elements of a vector, as rows."""
    if input.ndim != 1:
        raise ShapeError(
            "combinations", "needs a vector", expect="1-d", actual=str(tuple(input.shape))
        )
    choose = combinations_with_replacement if with_replacement else _combinations
    if not r:
        return zeros(0, dtype=input.dtype, device=input.device)
    rows = np.array(list(choose(range(input.numel()), r)), np.int64).reshape(-1, r)
    result: Tensor = input[rows]
    return result


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of each element as a row, the highest first unless `increasing`."""
    x = x if x.dtype.category > 1 else x.long()
    count = x.shape[-1] if N is None else N
    ones = x.new_ones(*x.shape, 1)
    powers = [ones]
    for _ in range(count - 1):
        powers.append(powers[-1] * x.unsqueeze(-1))
    order = powers[:count] if increasing else powers[:count][::-1]
    return cat(order, -1) if count else x.new_zeros(*x.shape, 0)


# Diagonals ----------------------------------------------------------------------------------------


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices in dimensions `dim1` and `dim2` with the last dimension on their diagonal."""
    node = input.node
    rank = len(node.shape) + 1
    rows, columns = (normalize_axis("diag_embed", dim, rank) for dim in (dim1, dim2))
    if rows == columns:
        raise ArgumentError(
            "diag_embed",
            "needs two different dims",
            expect="two different dims",
            actual=f"{dim1}, {dim2}",
        )
    length, offset = node.shape[-1], as_int("diag_embed", offset, "offset")
    size = length + abs(offset)
    start = max(-offset, 0) * size + max(offset, 0)
    outer = node.shape[:-1]
    rest = (0,) * len(outer)
    placed = movement.pad(
        node,
        starts=(*rest, start if length else 0),
        shape=(*outer, size * size),
        steps=(*(1 for _ in outer), size + 1),
        value=0,
    )
    square = wrap(movement.reshape(placed, shape=(*outer, size, size)))
    return wrap(movedim(square, (-2, -1), (rows, columns)).node)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements of the input on its diagonal."""
    return diag(ravel(input), offset)


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if input.ndim != 2:
        raise ShapeError("trace", "needs a matrix", expect="2-d", actual=str(tuple(input.shape)))
    return diagonal(input).sum()


def _indices(
    lower: bool, row: int, col: int, offset: int, dtype: DTypeLike, device: DeviceLike
) -> Tensor:
    where = np.tril_indices if lower else np.triu_indices
    row, col, offset = (as_int("tril_indices", n, "a size or offset") for n in (row, col, offset))
    positions = np.array(where(row, offset, col), np.int64).reshape(2, -1)
    return as_tensor(wrap(buffer_node(positions, resolve_device(device))), dtype)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: DTypeLike = int64, device: DeviceLike = None
) -> Tensor:
    """Row and column numbers of the lower triangle, as two rows."""
    return _indices(True, row, col, offset, dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: DTypeLike = int64, device: DeviceLike = None
) -> Tensor:
    """Row and column numbers of the upper triangle, as two rows."""
    return _indices(False, row, col, offset, dtype, device)


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """The adjoint of `expand`: sums over what a broadcast from `size` would repeat."""
    target = as_shape("sum_to_size", size)
    node = input.node
    missing = len(node.shape) - len(target)
    fits = missing >= 0 and all(
        want in (1, have) for want, have in zip(target, node.shape[max(missing, 0) :])
    )
    if not fits:
        raise ShapeError(
            "sum_to_size",
            "the size does not broadcast to the shape",
            expect=f"what expands to {node.shape}",
            actual=str(target),
        )
    padded = (1,) * missing + target
    axes = tuple(k for k, (a, b) in enumerate(zip(padded, node.shape)) if a != b)
    # As in PyTorch, a number is summed: integers become int64.
    if node.shape == target and (target or node.dtype.category > 1):
        return input
    node = to_dtype(node, int64) if node.dtype.category < 2 else node
    summed = reduction.sum(node, axes=axes) if axes else node
    return wrap(movement.reshape(summed, shape=target))


# In place -----------------------------------------------------------------------------------------


def become(op: str, input: Tensor, view: Tensor) -> Tensor:
    """Makes a Tensor show what a view of it shows (``squeeze_``, ``t_``, ...)."""
    leaf, chain = input.leaf, view.chain
    if leaf is not None and mode.now.gradients:
        raise ArgumentError(
            op,
            "a leaf that requires grad cannot change its shape in place",
            expect="a tensor without grad, a result, or no_grad()",
            actual="a leaf that requires grad",
            hint=f"use {op.rstrip('_')}()",
        )
    if leaf is not None:
        # It stays the leaf: of what it shows now.
        steps = tuple(step for step in chain if step[0] is not common.detach)
        chain = (*steps, (common.variable, leaf))
    input._own_form = not input._is_alias()
    if versions.on:
        versions.touched(input)
    input.cell.add_alias(input)
    node = view._node if leaf is None else None
    input.chain, input._strides, input._node = chain, view._strides, node
    return input


def squeeze_(input: Tensor, dim: Any = None) -> Tensor:
    """`squeeze` in place."""
    return become("squeeze_", input, squeeze(input, dim))


def unsqueeze_(input: Tensor, dim: int) -> Tensor:
    """`unsqueeze` in place."""
    return become("unsqueeze_", input, unsqueeze(input, dim))


def transpose_(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """`transpose` in place."""
    return become("transpose_", input, transpose(input, dim0, dim1))


def t_(input: Tensor) -> Tensor:
    """`t` in place."""
    return become("t_", input, t(input))


def fill_diagonal_(input: Tensor, fill_value: int | float, wrap: bool = False) -> Tensor:
    """Writes a number to the main diagonal.

    Args:
        wrap: of a tall matrix, begin again below the square part.
    """
    shape = input.node.shape
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) != 1):
        raise ShapeError(
            "fill_diagonal_",
            "needs a matrix, or equal dimensions",
            expect="2-d, or all sizes equal",
            actual=str(shape),
        )
    node = input.node
    rows = [_positions(node, axis) for axis in range(len(shape))]
    if len(shape) == 2 and wrap:
        rows[0] = elementwise.remainder(rows[0], common.full_like(rows[0], shape[1] + 1))
    here = elementwise.eq(rows[0], rows[1])
    for other in rows[2:]:
        here = elementwise.logical_and(here, elementwise.eq(rows[0], other))
    if isinstance(fill_value, TensorBase) and not fill_value.ndim:
        filled = to_shape(to_dtype(detached(fill_value.node), node.dtype), node.shape)
    else:
        filled = common.full_like(node, number_of("fill_diagonal_", fill_value, node.dtype))
    input.write(elementwise.where(here, filled, node), "fill_diagonal_")
    return input


def _positions(node: Node, axis: int) -> Node:
    line = common.arange.leaf((node.shape[axis],), int64, node.device, start=0, step=1)
    apart = tuple(size if k == axis else 1 for k, size in enumerate(node.shape))
    return movement.expand(movement.reshape(line, shape=apart), shape=node.shape)


def diff(
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """The n-th differences of neighbours along `dim`; of bools, whether they differ."""
    if not input.node.shape:
        raise ShapeError(
            "diff", "a 0-d tensor has no neighbours", expect="at least 1-d", actual="shape ()"
        )
    if n == 0:
        return copied_strides(wrap(another(input.node)), input)
    parts = [part for part in (prepend, input, append) if part is not None]
    joined = cat(parts, dim) if len(parts) > 1 else input
    node, strides = joined.node, joined.strides
    axis = normalize_axis("diff", dim, len(node.shape))
    for _ in range(n):
        length = max(node.shape[axis] - 1, 0)
        after = slice_axis(node, axis, 1 if length else 0, length)
        before = slice_axis(node, axis, 0, length)
        changes = node.dtype.category == 0
        node = (elementwise.logical_xor if changes else elementwise.sub)(after, before)
        common_strides = elementwise_strides(
            node.shape, ((node.shape, strides), (node.shape, strides))
        )
        strides = contiguous_strides(node.shape) if common_strides is None else common_strides
    result = wrap(to_dtype(node, joined.dtype))
    result._strides = strides
    return result


# Other orders -------------------------------------------------------------------------------------


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


def _require_given(op: str, name: str, values: tuple[Any, ...], by_name: Any) -> None:
    if not values and by_name is None:
        raise ArgumentError(op, f"{name} is missing", expect="integers", actual="None")


def tile(input: Tensor, *counts: Any, dims: Any = None) -> Tensor:
    """`repeat`, with ones put in front of too few counts."""
    _require_given("tile", "dims", counts, dims)
    counts = as_shape("tile", counts if dims is None else (dims,))
    return repeat(input, (1,) * (len(input.node.shape) - len(counts)) + counts)


def _indices_repeated(counts: Tensor) -> Tensor:
    """Each index of a line of counts as often as its count says."""
    if counts.node.dtype not in (int32, int64) or counts.ndim != 1:
        raise ArgumentError(
            "repeat_interleave", "no counts", expect="int64 or int32 counts in one dimension",
            actual=f"{counts.node.dtype.name} {counts.node.shape}",
        )  # fmt: skip
    indices = np.arange(counts.shape[0], dtype=counts.node.dtype.numpy)
    return repeat_interleave(as_tensor(indices, device=counts.node.device), counts, 0)


def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element along `dim` repeated in place; the flattened tensor without `dim`.

    Args:
        repeats: a count for all elements, or a tensor or list with one for each (read at the call).
            Without it `input` has the counts, of its own indices.
        output_size: accepted; the call computes the size of the result anyway.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1, 2], device="cpu").repeat_interleave(2).tolist()
        [1, 1, 2, 2]
    """
    if repeats is None:
        return _indices_repeated(input)
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
    _require_given("flip", "dims", positions, dims)
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
    node, diagonal = input.node, as_int(op, diagonal, "diagonal")
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
        return wrap(input.diagonal(diagonal).node)
    if len(node.shape) != 1:
        raise ShapeError(
            "diag",
            "the number of dimensions does not fit",
            expect="a vector or a matrix",
            actual=str(node.shape),
        )
    diagonal = as_int("diag", diagonal, "diagonal")
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
    return stored_in_format("contiguous", wrap(another(input.node)), memory_format)


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
    return stored_in_format("clone", copy, memory_format)


# Memory by stride, and views as copies: as_strided, resize_, permute_copy, narrow_copy, fill,


# Memory by stride ---------------------------------------------------------------------------------


def _memory(op: str, input: Tensor, offset: int | None) -> tuple[Node, int]:
    """The value of the whole cell, or of the leaf, as a vector, and where in it the Tensor begins.

    Without a view the vector follows the strides of the Tensor itself.

    Raises:
        CompileError: what it views is not there: it is an argument of a compiled function.
    """
    chain = input.chain
    if watching.on and input.stands_for_view():
        compact = not any(map(moves, chain)) and is_dense(input.node.shape, input.strides)
        if offset is not None or not compact:
            refuse_place(op, f"the memory behind a view of shape {tuple(input.shape)}")
    leaves = [position + 1 for position, step in enumerate(chain) if step[0] is common.variable]
    begin = max(leaves, default=0)
    views = [k for k in range(begin, len(chain)) if moves(chain[k])]
    if not views:
        node = input.node
        order = sorted(range(len(node.shape)), key=lambda axis: -input.strides[axis])
        if not begin and order != list(range(len(order))):
            node = movement.permute(node, axes=tuple(order))
        return movement.reshape(node, shape=(prod(node.shape),)), 0
    base = input._fold(chain[: views[0]])
    if any(step[0] is common.detach for step in chain[views[0] :]):
        base = detached(base)
    first = first_position(base.shape, chain[views[0] :])
    return movement.reshape(base, shape=(prod(base.shape),)), first


def storage_offset(input: Tensor) -> int:
    """Where in its memory the Tensor begins, in elements."""
    return input.first_position("storage_offset")


def _places(op: str, size: Shape, stride: Shape, offset: int, memory: Node) -> Node:
    """The int64 node of the positions that a geometry reads."""
    if len(size) != len(stride) or min((*size, *stride, offset), default=0) < 0:
        raise ShapeError(
            op,
            "the geometry is not one",
            expect="a stride for each size, none negative",
            actual=f"size {size}, stride {stride}, storage_offset {offset}",
        )
    last = offset + sum((n - 1) * step for n, step in zip(size, stride))
    if prod(size) and last >= memory.shape[0]:
        raise ShapeError(
            op,
            "the geometry leaves the memory",
            expect=f"places below {memory.shape[0]}",
            actual=f"{last} for size {size}, stride {stride}, storage_offset {offset}",
        )
    flat = common.full(offset, size, memory, int64)
    for axis, step in enumerate(stride):
        if size[axis] > 1 and step:
            flat = elementwise.add(flat, along_axis(size, axis, memory, step))
    return flat


def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Elements of the memory by stride: ``out[i, j] = memory[offset + i * s_0 + j * s_1]``.

    The result is a copy: writing to it leaves `input` alone.

    Args:
        input: its memory is the Tensor that it is a view of, row by row, else itself.
        size, stride: the geometry; strides in elements.
        storage_offset: that of `input` when left out.

    Raises:
        ShapeError: the geometry leaves the memory.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.as_strided(tc.arange(5, device="cpu"), (3, 2), (1, 2)).tolist()
        [[0, 2], [1, 3], [2, 4]]
    """
    memory, start = _memory("as_strided", input, storage_offset)
    sizes, strides = tuple(map(int, size)), tuple(map(int, stride))
    offset = start if storage_offset is None else storage_offset
    result = _read(memory, _places("as_strided", sizes, strides, offset, memory))
    result._strides = None if strides == contiguous_strides(sizes) else strides
    return result


def _read(memory: Node, positions: Node) -> Tensor:
    if not prod(positions.shape):
        return wrap(movement.reshape(_leading(memory, 0), shape=positions.shape))
    return wrap(indexing.gather(memory, positions))


def _leading(memory: Node, count: int) -> Node:
    return movement.slice_(memory, starts=(0,), shape=(count,), steps=(1,))


def as_strided_scatter(
    input: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """The input with `src` where `as_strided` would read; each position at most once."""
    memory, start = _memory("as_strided_scatter", input, storage_offset)
    sizes, strides = tuple(map(int, size)), tuple(map(int, stride))
    offset = start if storage_offset is None else storage_offset
    positions = _places("as_strided_scatter", sizes, strides, offset, memory)
    if src.node.shape != sizes:
        raise ShapeError(
            "as_strided_scatter",
            "src has another shape",
            expect=str(sizes),
            actual=str(src.node.shape),
        )
    values = to_dtype(src.node, input.node.dtype)
    written = indexing.scatter(memory, positions, values) if prod(sizes) else memory
    shape = input.node.shape
    return _read(written, _places("as_strided_scatter", shape, input.strides, start, memory))


def _replace(op: str, input: Tensor, value: Tensor) -> Tensor:
    """Gives a Tensor other memory; those that shared the old one keep it."""
    if input.requires_grad:
        raise ArgumentError(
            op,
            "a tensor with history cannot change its memory",
            expect="a tensor that does not require grad",
            actual="one that does",
            hint=f"use {op.rstrip('_')}() or reshape()",
        )
    if versions.on:
        versions.touched(input)
    input.cell, input.chain = value.cell, value.chain
    input._strides, input._node = value._strides, None
    return input


def as_strided_(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """`as_strided` in place."""
    return _replace("as_strided_", input, as_strided(input, size, stride, storage_offset))


def resize_(input: Tensor, *size: Any, memory_format: Any = None) -> Tensor:
    """Another shape in place: the first elements row by row, and zeros where there were none."""
    sizes = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    shape = integers("resize_", tuple(sizes), "sizes")
    node = input.node
    if shape == node.shape and not input.requires_grad:
        return input
    flat = movement.reshape(node, shape=(prod(node.shape),))
    count, wanted = prod(node.shape), prod(shape)
    if wanted <= count:
        flat = _leading(flat, wanted)
    else:
        flat = movement.pad(flat, value=0, starts=(0,), shape=(wanted,), steps=(1,))
    return _replace("resize_", input, wrap(movement.reshape(flat, shape=shape)))


def resize_as_(input: Tensor, the_template: Tensor, memory_format: Any = None) -> Tensor:
    """`resize_` to the shape of another Tensor."""
    return resize_(input, tuple(the_template.node.shape))


def empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> Tensor:
    """`empty`, with the elements laid out by stride, as `stride()` reports."""
    result = creation.empty(tuple(size), **options)
    strides = tuple(map(int, stride))
    if strides != contiguous_strides(result.node.shape):
        result._strides = strides
    return result


def new_empty_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], **options: Any
) -> Tensor:
    """`empty_strided` with the dtype and device of `input`."""
    options["dtype"] = options.get("dtype") or input.dtype
    options["device"] = options.get("device") or input.device
    return empty_strided(size, stride, **options)


def empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> Tensor:
    """`empty`, with the dimensions laid out in memory in the given order."""
    sizes = tuple(size)
    inner = contiguous_strides(tuple(sizes[axis] for axis in physical_layout))
    strides = dict(zip(physical_layout, inner))
    return empty_strided(sizes, [strides[axis] for axis in range(len(sizes))], **options)


# Views as copies ----------------------------------------------------------------------------------


def _copying(name: str, view: Callable[..., Any]) -> Callable[..., Any]:
    def function(input: Tensor, *args: Any, **options: Any) -> Any:
        result = view(input, *args, **options)
        if isinstance(result, TensorBase):
            return wrap(result.node)
        return tuple(wrap(part.node) for part in result)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name.removesuffix('_copy')}` as a copy: it shares no memory."
    return function


def _viewed(input: Tensor, size: Any) -> Tensor:
    if isinstance(size, list | tuple):
        return view(input, *size)
    return input.view(size)


def _expanded(input: Tensor, size: Any, *, implicit: bool = False) -> Tensor:
    return expand(input, *size)


alias_copy = _copying("alias_copy", lambda input: input)
as_strided_copy = _copying("as_strided_copy", as_strided)
detach_copy = _copying("detach_copy", lambda input: input.detach())
diagonal_copy = _copying("diagonal_copy", diagonal)
expand_copy = _copying("expand_copy", _expanded)
narrow_copy = _copying("narrow_copy", narrow)
permute_copy = _copying("permute_copy", permute)
select_copy = _copying("select_copy", select)
split_copy = _copying("split_copy", split)
split_with_sizes_copy = _copying("split_with_sizes_copy", split_with_sizes)
squeeze_copy = _copying("squeeze_copy", squeeze)
t_copy = _copying("t_copy", t)
transpose_copy = _copying("transpose_copy", transpose)
unbind_copy = _copying("unbind_copy", unbind)
unfold_copy = _copying("unfold_copy", unfold)
unsqueeze_copy = _copying("unsqueeze_copy", unsqueeze)
view_copy = _copying("view_copy", _viewed)


def fill(input: Tensor, value: Any) -> Tensor:
    """A copy of `input` with every element `value`, a number or a 0-d Tensor."""
    if isinstance(value, TensorBase) and value.node.shape:
        raise ShapeError("fill", "the value is not 0-d", expect="()", actual=str(value.node.shape))
    result: Tensor = clone(input).fill_(value)
    return result


def zero_(input: Tensor) -> Tensor:
    """Writes zero to every element."""
    return input.zero_()


def scalar_tensor(
    s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A number as a 0-d Tensor; the default floating dtype when `dtype` is left out."""
    chosen = dtype or creation.get_default_dtype()
    return creation.tensor(s, dtype=chosen, device=device, requires_grad=requires_grad)
