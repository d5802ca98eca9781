"""Functions that put Tensors together or around: cat, stack, pad, meshgrid.

They start a new cell; each element comes from exactly one source, so the values are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import bool_, number_of
from tinygrad_cuda.core.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import (
    Shape,
    as_int,
    channels_last_strides,
    elementwise_strides,
    normalize_axis,
)
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise, movement
from tinygrad_cuda.tensors.autocast import in_widest
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.layout import another, fresh, lies_channels_last
from tinygrad_cuda.tensors.promotion import to_dtype
from tinygrad_cuda.tensors.templated_calls import templated

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "cat", "concat", "concatenate", "hstack", "meshgrid", "pad", "stack", "vstack",
]  # fmt: skip


# Nodes --------------------------------------------------------------------------------------------


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
    """The nodes one after the other along `axis`; they are alike in everything else.

    Each is padded to the full length and chosen where it lies: no sum, so -0.0 and NaN stay.
    """
    solid = [node for node in nodes if node.shape[axis]]
    if not any(node.requires_grad for node in solid):
        # The result has a history, if only of a node without elements.
        solid += [n for n in nodes if n.requires_grad and not n.shape[axis]][:1]
    nodes = solid or list(nodes[:1])
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


# Functions ----------------------------------------------------------------------------------------


def _nodes(op: str, tensors: Any, least: int = 0) -> list[Node]:
    """The nodes of several Tensors, of at least `least` dimensions, in their common dtype."""
    if isinstance(tensors, TensorBase) or not isinstance(tensors, list | tuple) or not tensors:
        raise ArgumentError(
            op, "needs a list of tensors", expect="[x, y, ...]", actual=type(tensors).__name__
        )
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, TensorBase):
            raise DTypeError(
                op,
                f"element {position} is not a tensor",
                expect="Tensors only",
                actual=type(tensor).__name__,
            )
    nodes: list[Node] = [tensor.node for tensor in tensors]
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
        place = order.index(k)
        line = tuple(size if axis == place else 1 for axis, size in enumerate(shape))
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
