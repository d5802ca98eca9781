"""Gather, scatter and their kin, masked_fill, where, one_hot: choosing elements by other tensors.

Everything goes through two kernels that read or write rows at computed positions.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import bool_, int64, number_of, uint8
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import Shape, broadcast, contiguous_strides, normalize_axis
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise, movement
from tinygrad_cuda.graph.ops import indexing as ops
from tinygrad_cuda.tensors.autocast import in_widest
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import get_default_dtype
from tinygrad_cuda.tensors.indexing.keys import nonzero, position_node
from tinygrad_cuda.tensors.layout import keeps_layout, strides_like
from tinygrad_cuda.tensors.promotion import factor_of, promote, to_dtype, to_shape
from tinygrad_cuda.tensors.transfer import to_device

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "gather", "index_add", "index_copy", "index_fill", "index_select", "masked_fill", "one_hot",
    "scatter_add", "take", "take_along_dim", "where",
]  # fmt: skip


# Along one dimension, element by element ----------------------------------------------------------


def along_axis(shape: Shape, axis: int, like: Node, step: int = 1) -> Node:
    """The int64 node whose elements are ``step *`` their coordinate along `axis`."""
    coordinates = common.arange.leaf((shape[axis],), int64, like.device, start=0, step=step)
    expanded = tuple(size if k == axis else 1 for k, size in enumerate(shape))
    return to_shape(movement.reshape(coordinates, shape=expanded), shape)


def _flat_positions(op: str, node: Node, dim: int, index: Any, negative: bool = False) -> Node:
    """Positions in the flattened node of ``[i, .., index[i, .., j], .., j]``."""
    shape = node.shape
    chosen = position_node(op, index, shape[dim], node, wrap_negative=negative)
    if len(chosen.shape) != len(shape) or any(
        chosen.shape[k] > size for k, size in enumerate(shape) if k != dim
    ):
        raise ShapeError(
            op,
            "the index does not fit",
            expect=f"{len(shape)} dimensions, none but dim {dim} larger than in {shape}",
            actual=str(chosen.shape),
        )
    strides = contiguous_strides(shape)
    flat = chosen
    if strides[dim] != 1:
        flat = elementwise.mul(flat, common.full_like(flat, strides[dim]))
    for axis, stride in enumerate(strides):
        if axis != dim and chosen.shape[axis] > 1:
            flat = elementwise.add(flat, along_axis(chosen.shape, axis, node, stride))
    return flat


def _flat(node: Node) -> Node:
    return movement.reshape(node, shape=(prod(node.shape),))


def _with_axis(op: str, input: Tensor, dim: int, index: Any) -> tuple[Node, int, Any]:
    """0-d operands as vectors of one element."""
    node = input.node
    dim = normalize_axis(op, dim, len(node.shape))
    if not node.shape:
        node = movement.reshape(node, shape=(1,))
        if isinstance(index, TensorBase):
            index = wrap(_flat(index.node))
        else:
            index = np.reshape(index, (1,))
    return node, dim, index


def gather(input: Tensor, dim: int, index: Any) -> Tensor:
    """Elements chosen along a dimension: ``out[i][j] = input[index[i][j]][j]`` for dim 0.

    Args:
        input: any dtype.
        dim: the dimension along which `index` chooses.
        index: integers of as many dimensions as `input`; the result has its shape.

    Raises:
        ShapeError: the index is larger than the input in another dimension.
        IndexError: an index is out of range; of a Tensor, when its value is computed.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([[1, 2], [3, 4]], device="cpu")
        >>> tc.gather(x, 1, tc.tensor([[1], [0]], device="cpu")).tolist()
        [[2], [3]]
    """
    return _gathered("gather", input, dim, index, False)


def _gathered(op: str, input: Tensor, dim: int, index: Any, negative: bool) -> Tensor:
    shape = tuple(index.node.shape if isinstance(index, TensorBase) else np.shape(index))
    if not prod(shape):
        nothing = movement.slice_(_flat(input.node), starts=(0,), shape=(0,), steps=(1,))
        return wrap(movement.reshape(nothing, shape=shape))
    node, dim, index = _with_axis(op, input, dim, index)
    result = ops.gather(_flat(node), _flat_positions(op, node, dim, index, negative))
    return wrap(movement.reshape(result, shape=shape))


def take_along_dim(input: Tensor, indices: Any, dim: int | None = None) -> Tensor:
    """`gather` after broadcasting both outside `dim`; over the flattened input without `dim`."""
    if dim is None:
        flat = wrap(_flat(input.node))
        return _gathered("take_along_dim", flat, 0, indices.reshape(-1), True)
    shape, wanted = input.node.shape, tuple(indices.shape)
    dim = normalize_axis("take_along_dim", dim, len(shape))
    if len(shape) != len(wanted):
        raise ShapeError(
            "take_along_dim",
            "the index has another number of dimensions",
            expect=str(len(shape)),
            actual=str(len(wanted)),
        )
    one = (1,)
    common_shape = broadcast(
        "take_along_dim",
        shape[:dim] + one + shape[dim + 1 :],
        wanted[:dim] + one + wanted[dim + 1 :],
    )
    whole = common_shape[:dim] + (shape[dim],) + common_shape[dim + 1 :]
    target = common_shape[:dim] + (wanted[dim],) + common_shape[dim + 1 :]
    index = (
        wrap(to_shape(indices.node, target))
        if isinstance(indices, TensorBase)
        else np.broadcast_to(indices, target)
    )
    return _gathered("take_along_dim", wrap(to_shape(input.node, whole)), dim, index, True)


def take(input: Tensor, index: Any) -> Tensor:
    """Elements of the flattened input; the result has the shape of `index`."""
    flat = _flat(input.node)
    return wrap(ops.gather(flat, position_node("take", index, flat.shape[0], flat)))


def _source(op: str, node: Node, src: Any, shape: Shape) -> Node:
    """What to scatter: a number for every position, or the leading part of a Tensor."""
    if not isinstance(src, TensorBase):
        return common.full(number_of(op, src, node.dtype), shape, node)
    values = src.node
    if values.dtype is not node.dtype:
        raise DTypeError(
            op,
            "src and input have different dtypes",
            expect=node.dtype.name,
            actual=values.dtype.name,
        )
    if not values.shape and shape == (1,):
        values = movement.reshape(values, shape=(1,))
    if len(values.shape) != len(shape) or any(a > b for a, b in zip(shape, values.shape)):
        raise ShapeError(
            op,
            "src is smaller than index",
            expect=f"at least {shape} in every dimension",
            actual=str(values.shape),
        )
    if values.shape == shape:
        return values
    zeros, ones = (0,) * len(shape), (1,) * len(shape)
    return movement.slice_(values, starts=zeros, shape=shape, steps=ones)


def scattered(op: str, input: Tensor, dim: int, index: Any, src: Any, add: bool) -> Tensor:
    """The input with elements of `src` written, or added, where `index` says."""
    node, dim, index = _with_axis(op, input, dim, index)
    flat_index = _flat_positions(op, node, dim, index)
    values = _source(op, node, src, flat_index.shape)
    if not prod(flat_index.shape):
        whole = movement.reshape(node, shape=input.node.shape)
        return wrap(common.nothing_written(whole, values))
    row = ops.scatter_add if add else ops.scatter
    return wrap(movement.reshape(row(_flat(node), flat_index, values), shape=input.node.shape))


@in_widest
def scatter_add(input: Tensor, dim: int, index: Any, src: Tensor) -> Tensor:
    """The input with `src` added at chosen positions: ``out[index[i][j]][j] += src[i][j]``."""
    return scattered("scatter_add", input, dim, index, src, True)


# Along one dimension, row by row ------------------------------------------------------------------


def _rows(node: Node, dim: int) -> tuple[Node, tuple[int, ...]]:
    """The node with `dim` in front, and the permutation back."""
    if dim == 0:
        return node, tuple(range(len(node.shape)))
    axes = (dim, *(axis for axis in range(len(node.shape)) if axis != dim))
    return movement.permute(node, axes=axes), tuple(int(axis) for axis in np.argsort(axes))


def _row_positions(op: str, node: Node, dim: int, index: Any) -> Node:
    chosen = position_node(op, index, node.shape[dim], node, wrap_negative=False)
    if len(chosen.shape) > 1:
        raise ShapeError(op, "the index is not a vector", expect="1-d", actual=str(chosen.shape))
    return chosen if chosen.shape else movement.reshape(chosen, shape=(1,))


@templated
def index_select(input: Tensor, dim: int, index: Any) -> Tensor:
    """The slices of `input` along `dim` at the positions of a vector."""
    node, dim, index = _with_axis("index_select", input, dim, index)
    rows, back = _rows(node, dim)
    chosen = ops.gather(rows, _row_positions("index_select", node, dim, index))
    result = movement.permute(chosen, axes=back) if dim else chosen
    return wrap(result if input.node.shape else movement.reshape(result, shape=()))


def _index_rows(op: str, input: Tensor, dim: int, index: Any, source: Any, add: bool) -> Tensor:
    node, dim, index = _with_axis(op, input, dim, index)
    rows, back = _rows(node, dim)
    positions = _row_positions(op, node, dim, index)
    shape = positions.shape + rows.shape[1:]
    expected = tuple(shape[axis] for axis in back)
    if isinstance(source, TensorBase):
        values = source.node if source.node.shape else movement.reshape(source.node, shape=(1,))
        if values.shape != expected or values.dtype is not node.dtype:
            raise ShapeError(
                op,
                "the source does not fit",
                expect=f"{expected} {node.dtype.name}",
                actual=f"{values.shape} {values.dtype.name}",
            )
        values = _rows(values, dim)[0]
    else:
        values = common.full(number_of(op, source, node.dtype), shape, node)
    if not prod(shape):
        whole = movement.reshape(node, shape=input.node.shape)
        return wrap(common.nothing_written(whole, values))
    result = (ops.scatter_add if add else ops.scatter)(rows, positions, values)
    result = movement.permute(result, axes=back) if dim else result
    return wrap(movement.reshape(result, shape=input.node.shape))


def index_add(
    input: Tensor, dim: int, index: Any, source: Tensor, *, alpha: int | float = 1
) -> Tensor:
    """The input with ``alpha * source`` added to its slices along `dim` at the given positions."""
    if alpha != 1:
        node = source.node
        factor = factor_of("index_add", alpha, node.dtype, "alpha")
        source = wrap(elementwise.mul(node, common.full_like(node, factor)))
    return _index_rows("index_add", input, dim, index, source, True)


def index_copy(input: Tensor, dim: int, index: Any, source: Tensor) -> Tensor:
    """The input with its slices along `dim` at the given positions replaced by `source`'s."""
    return _index_rows("index_copy", input, dim, index, source, False)


def index_fill(input: Tensor, dim: int, index: Any, value: Any) -> Tensor:
    """The input with its slices along `dim` at given positions filled with a number (or 0-d)."""
    node, dim, index = _with_axis("index_fill", input, dim, index)
    positions = _row_positions("index_fill", node, dim, index)
    if isinstance(value, TensorBase):
        if value.node.shape:
            raise ShapeError(
                "index_fill", "the value is not one number", expect="a number or a 0-d tensor",
                actual=str(value.node.shape),
            )  # fmt: skip
        number = to_shape(to_dtype(value.node, node.dtype), node.shape)
    else:
        number = common.full(number_of("index_fill", value, node.dtype), node.shape, node)
    if not prod(positions.shape) or not prod(node.shape):
        whole = movement.reshape(node, shape=input.node.shape)
        return strides_like(wrap(common.nothing_written(whole, number)), input)
    hit = common.full(True, positions.shape, node, bool_)
    chosen = ops.scatter(common.full(False, node.shape[dim : dim + 1], node, bool_), positions, hit)
    chosen = movement.reshape(chosen, shape=(node.shape[dim], *[1] * (len(node.shape) - dim - 1)))
    result = elementwise.where(to_shape(chosen, node.shape), number, node)
    if not input.node.shape:
        result = movement.reshape(result, shape=())
    return strides_like(wrap(result), input)


# By condition -------------------------------------------------------------------------------------


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """The input with `value` where `mask` holds; both are broadcast.

    Args:
        mask: bool.
        value: a number or a 0-d Tensor.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0, -1.0], device="cpu")
        >>> x.masked_fill(x < 0, 0.0).tolist()
        [1.0, 0.0]
    """
    node, chosen = input.node, mask.node
    if chosen.dtype is not bool_:
        raise DTypeError(
            "masked_fill", "the mask is not bool", expect="bool", actual=chosen.dtype.name
        )
    shape = broadcast("masked_fill", node.shape, chosen.shape)
    if not isinstance(value, TensorBase):
        filled = common.full(number_of("masked_fill", value, node.dtype), shape, node)
    elif value.node.shape:
        raise ShapeError(
            "masked_fill",
            "the value is not one number",
            expect="a number or a 0-d tensor",
            actual=str(value.node.shape),
        )
    else:
        moved = to_dtype(to_device(value.node, node.device), node.dtype)
        filled = to_shape(moved, shape)
    return wrap(elementwise.where(to_shape(chosen, shape), filled, to_shape(node, shape)))


@keeps_layout
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """``input`` where `condition` holds, else ``other``; all three are broadcast.

    With the condition alone: the positions where it holds, as ``nonzero(as_tuple=True)``.

    Args:
        condition: bool.
        input, other: Tensors or numbers, promoted to one dtype.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([-2.0, 3.0], device="cpu")
        >>> tc.where(x > 0, x, 0.0).tolist()
        [0.0, 3.0]
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        raise ArgumentError(
            "where",
            "one of the values is missing",
            expect="where(condition, a, b)",
            actual="None and one value",
        )
    chosen = condition.node
    if chosen.dtype is uint8:  # what comparisons gave before there was bool
        chosen = elementwise.cast(chosen, dtype=bool_)
    if chosen.dtype is not bool_:
        raise DTypeError(
            "where", "the condition is not bool", expect="bool", actual=chosen.dtype.name
        )
    numbers = (bool, int, float, complex)
    if isinstance(input, numbers) and isinstance(other, numbers):
        kind = dtypes.promote(
            *(dtypes.scalar_dtype(v, get_default_dtype()) for v in (input, other))
        )
        a, b = (common.full(value, chosen.shape, chosen, kind) for value in (input, other))
    else:
        a, b = promote("where", input, other)
        for value in (input, other):
            if isinstance(value, numbers) and a.dtype.category < 2:
                number_of("where", value, a.dtype)
        # A number in a 0-d tensor on the CPU goes to where the others are.
        if not a.shape and a.device.kind == "cpu":
            a, b = to_device(a, chosen.device), to_device(b, chosen.device)
        elif not chosen.shape and chosen.device.kind == "cpu":
            chosen = to_device(chosen, a.device)
    shape = broadcast("where", chosen.shape, a.shape)
    return wrap(elementwise.where(to_shape(chosen, shape), to_shape(a, shape), to_shape(b, shape)))


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 vectors that are 1 at the class and 0 elsewhere, in a new last dimension.

    Args:
        tensor: integer classes of any shape.
        num_classes: their number; -1 takes the largest class plus one, which realizes the tensor.

    Raises:
        IndexError: a class is out of range.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.one_hot(tc.tensor([0, 2], device="cpu"), 3).tolist()
        [[1, 0, 0], [0, 0, 1]]
    """
    if num_classes < -1 or (num_classes == 0 and not tensor.numel()):
        raise ArgumentError(
            "one_hot", "not a number of classes", expect="at least 1, or -1",
            actual=str(num_classes),
        )  # fmt: skip
    if num_classes == -1:
        values = tensor.array()
        if not values.size:
            raise ArgumentError(
                "one_hot",
                "no classes to count",
                expect="at least one label, or num_classes",
                actual="no labels",
                hint="pass num_classes for an empty tensor",
            )
        num_classes = int(values.max()) + 1
    classes = position_node("one_hot", tensor, num_classes, tensor.node, wrap_negative=False)
    shape = (*classes.shape, num_classes)
    wide = to_shape(movement.reshape(classes, shape=(*classes.shape, 1)), shape)
    hot = elementwise.eq(wide, along_axis(shape, len(shape) - 1, classes))
    return wrap(to_dtype(hot, int64))
