"""More shapes: tensor_split and its kin, rot90, block_diag, atleast_1d, column_stack, diag_embed.

Compositions of the functions that view, join and rearrange.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations as _combinations
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.dtypes import int64, number_of
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import (
    as_shape,
    broadcast,
    contiguous_strides,
    elementwise_strides,
    is_several,
    normalize_axis,
)
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise, movement, reduction
from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.tensors import joining, rearranging, shaping
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import (
    DeviceLike,
    DTypeLike,
    as_tensor,
    buffer_node,
    resolve_device,
    zeros,
)
from tinygrad_cuda.tensors.layout import another, copied_strides
from tinygrad_cuda.tensors.promotion import to_dtype

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_shapes",
    "broadcast_tensors", "cartesian_prod", "column_stack", "combinations", "diag_embed",
    "diagflat", "diff", "dsplit", "dstack", "fliplr", "flipud", "hsplit", "ravel", "rot90",
    "split_with_sizes", "tensor_split", "trace", "tril_indices", "triu_indices", "vander",
    "vsplit",
]  # fmt: skip


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
    shape = input.node.shape
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
            shaping.narrow(input, dim, start, max(end - start, 0))
            for start, end in zip(starts, ends)
        )
    if cuts < 1:
        raise ArgumentError(
            "tensor_split", "the number is not positive", expect="at least 1", actual=str(cuts)
        )
    least, larger = divmod(size, cuts)
    return shaping.split(input, [least + (k < larger) for k in range(cuts)], dim)


def _split_of(op: str, input: Tensor, cuts: Any, dim: int, rank: int) -> tuple[Tensor, ...]:
    if input.ndim < rank:
        raise ShapeError(
            op, "too few dimensions", expect=f"at least {rank}", actual=str(input.ndim)
        )
    if isinstance(cuts, int) and (cuts < 1 or input.node.shape[dim] % cuts):
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
    return shaping.split(input, tuple(split_sizes), dim)


# Turn ---------------------------------------------------------------------------------------------


def fliplr(input: Tensor) -> Tensor:
    """A copy with the columns in reverse order."""
    if input.ndim < 2:
        raise ShapeError(
            "fliplr", "needs at least two dimensions", expect="at least 2-d", actual=str(input.ndim)
        )
    return rearranging.flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """A copy with the rows in reverse order."""
    if input.ndim < 1:
        raise ShapeError(
            "flipud", "needs at least one dimension", expect="at least 1-d", actual=str(input.ndim)
        )
    return rearranging.flip(input, 0)


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
        return rearranging.clone(input)
    if k % 4 == 2:
        return rearranging.flip(input, (first, second))
    turned = rearranging.flip(input, second if k % 4 == 1 else first)
    return shaping.transpose(turned, first, second)


# Join ---------------------------------------------------------------------------------------------


def _several(op: str, tensors: tuple[Any, ...]) -> tuple[Tensor, ...]:
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, TensorBase):
            raise DTypeError(
                op,
                f"argument {position} is not a tensor",
                expect="a Tensor",
                actual=type(tensor).__name__,
            )
    return tensors


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Views of all tensors in their common shape."""
    found = _several("broadcast_tensors", tensors)
    shape = broadcast("broadcast_tensors", *(tensor.node.shape for tensor in found))
    return tuple(shaping.expand(tensor, shape) for tensor in found)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The common shape of several shapes.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.broadcast_shapes((2, 1), (3,))
        (2, 3)
    """
    found = [as_shape("broadcast_shapes", (shape,)) for shape in shapes]
    return broadcast("broadcast_shapes", *found)


def _at_least(op: str, rank: int, tensors: tuple[Any, ...]) -> Any:
    found = []
    for tensor in _several(op, tensors):
        shape = tensor.node.shape
        if len(shape) < rank:
            # (n,) becomes (1, n) and (1, n, 1); (m, n) becomes (m, n, 1).
            front = 1 if len(shape) == 1 and rank > 1 else 0
            shape = (1,) * front + shape
            shape += (1,) * (rank - len(shape))
            tensor = shaping.reshape(tensor, shape)
        found.append(tensor)
    single = len(tensors) == 1 and isinstance(tensors[0], TensorBase)
    return found[0] if single else tuple(found)


def atleast_1d(*tensors: Any) -> Any:
    """Each tensor with at least one dimension."""
    return _at_least("atleast_1d", 1, tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Each tensor with at least two dimensions: a vector becomes a row."""
    return _at_least("atleast_2d", 2, tensors)


def atleast_3d(*tensors: Any) -> Any:
    """Each tensor with at least three dimensions: (n,) becomes (1, n, 1), (m, n) (m, n, 1)."""
    return _at_least("atleast_3d", 3, tensors)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as columns side by side; vectors become columns."""
    parts = [
        shaping.reshape(tensor, tensor.numel(), 1) if tensor.ndim < 2 else tensor
        for tensor in _several("column_stack", (tensors,))
    ]
    return joining.cat(parts, 1)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors one behind the other along the third dimension."""
    return joining.cat(list(_at_least("dstack", 3, (tensors,))), 2)


def block_diag(*tensors: Any) -> Tensor:
    """A matrix with the given matrices on its diagonal and zeros elsewhere.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.block_diag(tc.ones(1, 2, device="cpu"), tc.ones(1, device="cpu")).tolist()
        [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    blocks = [wrap(node) for node in joining._nodes("block_diag", list(tensors))]
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
        rows.append(joining.pad(block, (left, right)))
        left += block.shape[1]
    return joining.cat(rows, 0)


def ravel(input: Tensor) -> Tensor:
    """All elements as a vector; a view of a contiguous tensor."""
    rows = rearranging.contiguous(input)
    return shaping.reshape(rows, -1) if rows.numel() else shaping.reshape(rows, 0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each vector, as rows."""
    if len(tensors) == 1:
        return tensors[0]
    grids = joining.meshgrid(*tensors, indexing="ij")
    return joining.stack([shaping.reshape(grid, grid.numel()) for grid in grids], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of `r` elements of a vector, as rows."""
    if input.ndim != 1:
        raise ShapeError(
            "combinations", "needs a vector", expect="1-d", actual=str(tuple(input.shape))
        )
    choose = combinations_with_replacement if with_replacement else _combinations
    rows = np.array(list(choose(range(input.numel()), r)), np.int64).reshape(-1, r)
    result: Tensor = input[rows] if r else zeros(0, dtype=input.dtype, device=input.device)
    return result


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of each element as a row, the highest first unless `increasing`."""
    count = x.shape[-1] if N is None else N
    ones = x.new_ones(*x.shape, 1)
    powers = [ones]
    for _ in range(count - 1):
        powers.append(powers[-1] * x.unsqueeze(-1))
    order = powers[:count] if increasing else powers[:count][::-1]
    return joining.cat(order, -1) if count else x.new_zeros(*x.shape, 0)


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
    length = node.shape[-1]
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
    return wrap(shaping.movedim(square, (-2, -1), (rows, columns)).node)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements of the input on its diagonal."""
    return rearranging.diag(ravel(input), offset)


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if input.ndim != 2:
        raise ShapeError("trace", "needs a matrix", expect="2-d", actual=str(tuple(input.shape)))
    return shaping.diagonal(input).sum()


def _indices(
    lower: bool, row: int, col: int, offset: int, dtype: DTypeLike, device: DeviceLike
) -> Tensor:
    where = np.tril_indices if lower else np.triu_indices
    found = np.array(where(row, offset, col), np.int64).reshape(2, -1)
    return as_tensor(wrap(buffer_node(found, resolve_device(device))), dtype)


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
    if node.shape == target and (target or node.dtype.is_floating):
        return input
    node = to_dtype(node, int64) if not node.dtype.is_floating else node
    summed = reduction.sum(node, axes=axes) if axes else node
    return wrap(movement.reshape(summed, shape=target))


# In place -----------------------------------------------------------------------------------------


def become(op: str, input: Tensor, view: Tensor) -> Tensor:
    """Makes a Tensor show what a view of it shows (``squeeze_``, ``t_``, ...)."""
    if input.leaf is not None:
        raise ArgumentError(
            op,
            "a leaf that requires grad cannot change its shape in place",
            expect="a tensor without grad, or a result",
            actual="a leaf that requires grad",
            hint=f"use {op.rstrip('_')}()",
        )
    if versions.on:
        versions.touched(input)
    input.cell.add_alias(input)
    input.chain, input._strides, input._node = view.chain, view._strides, view._node
    return input


def squeeze_(input: Tensor, dim: Any = None) -> Tensor:
    """`squeeze` in place."""
    return become("squeeze_", input, shaping.squeeze(input, dim))


def unsqueeze_(input: Tensor, dim: int) -> Tensor:
    """`unsqueeze` in place."""
    return become("unsqueeze_", input, shaping.unsqueeze(input, dim))


def transpose_(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """`transpose` in place."""
    return become("transpose_", input, shaping.transpose(input, dim0, dim1))


def t_(input: Tensor) -> Tensor:
    """`t` in place."""
    return become("t_", input, shaping.t(input))


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
    joined = joining.cat(parts, dim) if len(parts) > 1 else input
    node, strides = joined.node, joined.strides
    axis = normalize_axis("diff", dim, len(node.shape))
    for _ in range(n):
        length = max(node.shape[axis] - 1, 0)
        after = joining.slice_axis(node, axis, 1 if length else 0, length)
        before = joining.slice_axis(node, axis, 0, length)
        changes = node.dtype.category == 0
        node = (elementwise.logical_xor if changes else elementwise.sub)(after, before)
        found = elementwise_strides(node.shape, ((node.shape, strides), (node.shape, strides)))
        strides = contiguous_strides(node.shape) if found is None else found
    result = wrap(to_dtype(node, joined.dtype))
    result._strides = strides
    return result
