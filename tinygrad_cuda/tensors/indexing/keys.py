"""``x[key]`` and ``x[key] = value``: integers and slices alias, arrays gather and scatter.

The rules of placement are PyTorch's: integers and slices first, then all arrays together. A 0-d
integer Tensor is an integer; its value stays on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import bool_, int32, int64, number_of, uint8
from tinygrad_cuda.core.errors import DTypeError, IndexError, ShapeError
from tinygrad_cuda.core.shapes import (
    Shape,
    as_int,
    broadcast,
    contiguous_strides,
    elementwise_strides,
    normalize_axis,
    reshape_strides,
    slice_bounds,
)
from tinygrad_cuda.engine.realize import INDEX, SIGNED_INDEX, register_check
from tinygrad_cuda.graph.node import Node, Op, current_site
from tinygrad_cuda.graph.ops import common, elementwise, movement
from tinygrad_cuda.graph.ops import indexing as ops
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import buffer_node, tensor
from tinygrad_cuda.tensors.indexing.shared_rows import shared_rows
from tinygrad_cuda.tensors.promotion import to_dtype, to_shape
from tinygrad_cuda.tensors.transfer import to_device
from tinygrad_cuda.tensors.views import only_number, shows_repeats

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "masked_select", "nonzero", "select",
]  # fmt: skip


# Positions ----------------------------------------------------------------------------------------


def position_node(op: str, index: Any, size: int, like: Node, wrap_negative: bool = True) -> Node:
    """Positions below `size` as a checked int64 node: from a Tensor, a NumPy array or a list.

    Host values are checked now; a Tensor's values when they are computed, before negative ones
    are counted from the end, so that the error shows what the user wrote.
    """
    if not isinstance(index, TensorBase):
        return _host_positions(op, np.asarray(index), size, like, wrap_negative)
    node = index.node
    if node.dtype.category > 1:
        raise DTypeError(
            op,
            "an index is not an integer",
            expect="an integer dtype, or bool for a mask",
            actual=node.dtype.name,
            hint="use .long()",
        )
    node = to_dtype(to_device(node, like.device), int64)
    if wrap_negative:
        low = elementwise.ge(node, common.full_like(node, -size))
        negative = elementwise.lt(node, common.full_like(node, 0))
        moved = elementwise.add(node, common.full_like(node, size))
        node = elementwise.where(elementwise.logical_and(low, negative), moved, node)
    domain = SIGNED_INDEX if wrap_negative else INDEX
    code = register_check(op, "index", current_site(), domain)
    return ops.check_index(node, limit=size, what="index", code=code)


def _host_positions(op: str, array: Any, size: int, like: Node, wrap_negative: bool) -> Node:
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise DTypeError(
            op,
            "an index is not an integer",
            expect="integers, or bools for a mask",
            actual=f"{array.dtype} array",
        )
    array = array.astype(np.int64)
    low = -size if wrap_negative else 0
    bad = np.flatnonzero((array < low) | (array >= size))
    if bad.size:
        raise IndexError(
            op,
            f"index[{bad[0]}] is out of range",
            expect=f"{low} <= index < {size}",
            actual=str(array.reshape(-1)[bad[0]]),
        )
    return buffer_node(np.where(array < 0, array + size, array), like.device)


# Keys ---------------------------------------------------------------------------------------------


class _Key(NamedTuple):
    """A key, taken apart.

    Attributes:
        view: the input after integers, slices and None, as an alias.
        arrays: (dimension of `view`, index) of every array; a mask counts at its first dimension.
    """

    view: Tensor
    arrays: list[tuple[int, Any]]


def _is_array(entry: Any) -> bool:
    return isinstance(entry, TensorBase | np.ndarray | list)


def _as_array(op: str, entry: Any) -> Any:
    """A list, nested tuple or range as a NumPy array (of a Tensor's values, if it holds any)."""
    if isinstance(entry, range):
        return np.asarray(entry, np.int64)
    if not isinstance(entry, list | tuple):
        return entry
    return tensor(entry, device="cpu").array() if entry else np.zeros(0, np.int64)


def _index_of(op: str, entry: Any) -> Any:
    """An entry of a key; of Tensors, int8 and int16 are no index, as in PyTorch.

    Raises:
        IndexError: the dtype is int8 or int16.
    """
    if not isinstance(entry, TensorBase) or entry.dtype in (int64, int32, bool_, uint8):
        return entry
    if not entry.shape or not entry.dtype.is_integer:
        return entry
    raise IndexError(
        op, "the dtype is no index", expect="int64, int32, uint8 or bool", actual=entry.dtype.name,
        hint="use .long() for positions, .bool() for a mask",
    )  # fmt: skip


def _is_mask(entry: Any) -> bool:
    """Whether an array is a mask: of bools, or of bytes as in PyTorch."""
    return entry.dtype in (bool_, uint8) if isinstance(entry, TensorBase) else entry.dtype in _MASKS


_MASKS = (np.dtype(np.bool_), np.dtype(np.uint8))


def _is_position(entry: Any) -> bool:
    """Whether an entry of a key is a 0-d integer Tensor, which selects as an integer does."""
    return isinstance(entry, TensorBase) and not entry.node.shape and not _is_mask(entry)


def _consumed(entry: Any) -> int:
    """How many dimensions of the input an entry of the key stands for."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool | np.bool_):
        return 0
    return len(entry.shape) if _is_array(entry) and _is_mask(entry) else 1


# What makes a short list a key of several entries, as PyTorch has it; longer ones are positions.
_OF_TUPLES = TensorBase | np.ndarray | list | tuple | range | slice | type(None) | type(Ellipsis)
LONGEST = 31


def _entries(key: Any) -> Iterable[Any]:
    """The entries of a key; a list that holds more than numbers and bools is one, as a tuple is."""
    if isinstance(key, list) and len(key) <= LONGEST:
        return key if any(isinstance(entry, _OF_TUPLES) for entry in key) else (key,)
    return key if isinstance(key, tuple) else (key,)


def _items(op: str, key: Any, rank: int) -> list[Any]:
    """The key as a list with one entry for every dimension, Ellipsis written out."""
    parts = [_as_array(op, entry) for entry in _entries(key)]
    parts = [_index_of(op, part) for part in parts]
    used = sum(_consumed(part) for part in parts)
    ellipses = [position for position, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(
            op,
            "more than one Ellipsis",
            expect="at most one `...`",
            actual=f"{len(ellipses)} of them",
        )
    if used > rank:
        raise IndexError(
            op,
            "too many indices",
            expect=f"at most {rank} for a tensor of {rank} dimension{'s' if rank != 1 else ''}",
            actual=str(used),
        )
    position = ellipses[0] if ellipses else len(parts)
    return parts[:position] + [slice(None)] * (rank - used) + parts[position + 1 :]


def _read(op: str, input: Tensor, key: Any) -> _Key:
    """Applies integers, slices and None as an alias and collects the arrays."""
    shape, strides = input.described().shape, input.strides
    starts, lengths, steps = [], [], []
    sizes: list[int] = []
    new_strides: list[int] = []
    arrays: list[tuple[int, Any]] = []
    selects: list[tuple[int, Any]] = []
    axis = 0
    for entry in _items(op, key, len(shape)):
        if entry is None or isinstance(entry, bool | np.bool_):
            if entry is not None:
                arrays.append((len(sizes), np.zeros(int(entry), np.int64)))
            sizes.append(1)
            new_strides.append(shape[axis] * strides[axis] if axis < len(shape) else 1)
            continue
        if _is_array(entry) and (
            len(entry.shape) or _is_mask(entry) or isinstance(entry, TensorBase)
        ):
            indices = selects if _is_position(entry) else arrays
            indices.append((len(sizes), _mask_checked(op, entry, shape[axis:])))
            for size, stride in zip(shape[axis:], strides[axis : axis + _consumed(entry)]):
                starts.append(0)
                lengths.append(size)
                steps.append(1)
                sizes.append(size)
                new_strides.append(stride)
            if _is_mask(entry) and not entry.shape:
                sizes.append(1)
                new_strides.append(1)
            axis += _consumed(entry)
            continue
        start, length, step = _range(op, entry, shape[axis], axis)
        starts.append(start)
        lengths.append(length)
        steps.append(step)
        if isinstance(entry, slice):
            sizes.append(length)
            new_strides.append(strides[axis] * step)
        axis += 1
    view = input
    if tuple(lengths) != shape or any(step != 1 for step in steps):
        view = view.alias(
            movement.slice_,
            strides=tuple(stride * step for stride, step in zip(strides, steps)),
            starts=tuple(starts),
            shape=tuple(lengths),
            steps=tuple(steps),
        )
    if tuple(sizes) != tuple(lengths) or (view is input and not (arrays or selects)):
        view = view.alias(movement.reshape, strides=tuple(new_strides), shape=tuple(sizes))
    return _selected(op, _Key(view, arrays), selects)


def _selected(op: str, key: _Key, selects: list[tuple[int, Any]]) -> _Key:
    """The key after its 0-d integer Tensors, at (dimension of the view, index); still an alias."""
    view, arrays = key
    for gone, (axis, index) in enumerate(selects):
        axis -= gone
        node = view.node
        view = view.select_at(axis, _position(op, index, node.shape[axis], node.device))
        arrays = [(dimension - (dimension > axis), entry) for dimension, entry in arrays]
    return _Key(view, arrays)


def select(input: Tensor, dim: int, index: Any) -> Tensor:
    """A view of the slice at `index` along `dim`, without that dimension.

    Args:
        index: an integer, or an integer Tensor of one element, whose value stays on the device.

    Raises:
        IndexError: the index is out of range; for a Tensor when the value is computed.
    """
    shape, strides = input.described().shape, input.strides
    if not shape:
        raise IndexError(
            "select", "a 0-d tensor has no dimension to select", expect="at least 1-d", actual="0-d"
        )
    dim = normalize_axis("select", dim, len(shape))
    if isinstance(index, TensorBase) and prod(index.node.shape) == 1 and not _is_mask(index):
        number = wrap(movement.reshape(index.node, shape=()))
        return input.select_at(dim, _position("select", number, shape[dim], input.device))
    start, _, _ = _range("select", index, shape[dim], dim)
    rank = len(shape)
    part = input.alias(
        movement.slice_,
        strides=strides,
        starts=tuple(start if axis == dim else 0 for axis in range(rank)),
        shape=shape[:dim] + (1,) + shape[dim + 1 :],
        steps=(1,) * rank,
    )
    return part.alias(
        movement.reshape,
        strides=strides[:dim] + strides[dim + 1 :],
        shape=shape[:dim] + shape[dim + 1 :],
    )


def _position(op: str, index: Any, size: int, device: Device) -> Tensor:
    """A checked 0-d position as a Tensor of its own, which no later write to `index` changes."""
    here = index if index.device is device else wrap(to_device(index.node, device))
    return _checked_position(op, here, size)


@templated
def _checked_position(op: str, index: Tensor, size: int) -> Tensor:
    return wrap(position_node(op, index, size, index.node))


def _range(op: str, entry: Any, size: int, axis: int) -> tuple[int, int, int]:
    """Start, length and step of an integer or a slice."""
    if isinstance(entry, slice):
        bounds = slice(*(_plain(op, part) for part in (entry.start, entry.stop, entry.step)))
        start, length, step = slice_bounds(op, bounds, size)
        if step < 0:
            raise ShapeError(
                op,
                "a slice step is negative",
                expect="a step > 0",
                actual=str(step),
                hint="flip() reverses a dimension",
            )
        return start, length, step
    try:
        index = int(entry.__index__())
    except (AttributeError, TypeError) as error:
        raise IndexError(
            op,
            "not an index",
            expect="integers, slices, None, ..., and arrays of integers or bools",
            actual=f"{type(entry).__name__} {entry!r}",
        ) from error
    if not -size <= index < size:
        raise IndexError(
            op,
            f"the index is out of range for dim {axis}",
            expect=f"{-size} <= index < {size}" if size else "no index: the dimension is empty",
            actual=str(index),
        )
    return index % size, 1, 1


def _plain(op: str, value: Any) -> Any:
    return as_int(op, value, "a bound") if isinstance(value, TensorBase) else value


def _mask_checked(op: str, entry: Any, shape: Shape) -> Any:
    if _is_mask(entry) and tuple(entry.shape) != shape[: len(entry.shape)]:
        raise IndexError(
            op,
            "the mask does not fit",
            expect=f"shape {shape[: len(entry.shape)]}, the sizes that it masks",
            actual=f"shape {tuple(entry.shape)}",
        )
    return entry


# Arrays -------------------------------------------------------------------------------------------


class _Places(NamedTuple):
    """Where arrays of indices point.

    Attributes:
        axes: the dimensions that are indexed.
        flat: positions in those dimensions, flattened into one.
        order: all dimensions, the indexed ones first.
        front: how many dimensions of the result stand before those of the index.
    """

    axes: list[int]
    flat: Node
    order: tuple[int, ...]
    front: int


def _host_nonzero(mask: Any) -> tuple[Any, ...]:
    values = mask.array() if isinstance(mask, TensorBase) else np.asarray(mask)
    return tuple(np.nonzero(values))


def _places(op: str, node: Node, arrays: list[tuple[int, Any]]) -> _Places:
    """One flat index for all arrays of a key."""
    shape = node.shape
    axes: list[int] = []
    entries: list[Any] = []
    for axis, entry in arrays:
        parts = (entry,)
        if _is_mask(entry):
            parts = _host_nonzero(entry) if entry.shape else (np.zeros(int(bool(entry)), np.int64),)
        entries += parts
        axes += range(axis, axis + len(parts))
    common_shape = broadcast(op, *map(_shape_of, entries))
    rest = (size for axis, size in enumerate(shape) if axis not in axes)
    empty = not prod(common_shape) or (not all(rest) and all(shape[axis] for axis in axes))
    if empty:
        # Nothing is read: as in PyTorch no index is out of range.
        entries = [_no_positions(op, entry, node) for entry in entries]
    indices = [
        position_node(op, e, 1 if empty else shape[axis], node) for e, axis in zip(entries, axes)
    ]
    strides = contiguous_strides(tuple(shape[axis] for axis in axes))
    flat: Node | None = None
    for index, stride in zip(indices, strides):
        index = to_shape(index, common_shape)
        if stride != 1:
            index = elementwise.mul(index, common.full_like(index, stride))
        flat = index if flat is None else elementwise.add(flat, index)
    assert flat is not None
    order = (*axes, *(axis for axis in range(len(shape)) if axis not in axes))
    return _Places(axes, flat, order, _front(axes))


def _no_positions(op: str, entry: Any, like: Node) -> Any:
    """As many zeros as an index has; its dtype is checked, its values are not."""
    if isinstance(entry, TensorBase):
        if entry.dtype.category > 1:
            position_node(op, entry, 1, like)  # raises
    elif np.size(entry):
        position_node(op, np.zeros(1, np.asarray(entry).dtype), 1, like)
    return np.zeros(_shape_of(entry), np.int64)


def _shape_of(entry: Any) -> tuple[int, ...]:
    return tuple(entry.shape) if isinstance(entry, TensorBase) else np.shape(entry)


def _front(axes: list[int]) -> int:
    """Adjacent arrays leave their dimensions where they are, others move them to the front."""
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    return axes[0] if adjacent else 0


def _flattened(node: Node, target: _Places) -> Node:
    """The node with the indexed dimensions as one, in front."""
    moved = node if target.order == tuple(range(len(node.shape))) else movement.permute(
        node, axes=target.order
    )  # fmt: skip
    count = len(target.axes)
    shape = (prod(moved.shape[:count]), *moved.shape[count:])
    return movement.reshape(moved, shape=shape) if count != 1 else moved


def _result_axes(target: _Places, rank: int) -> tuple[int, ...]:
    """The permutation that moves the index's dimensions behind `front` others."""
    width = len(target.flat.shape)
    rest = range(width, rank)
    front = target.front
    return (*rest[:front], *range(width), *rest[front:])


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.argsort(axes))


def getitem(input: Tensor, key: Any) -> Tensor:
    """``input[key]``: a view for integers, slices, None and Ellipsis; a copy for arrays and masks.

    Args:
        key: one entry or a tuple of: int or 0-d integer Tensor, slice with positive step, None (a
            new dimension), Ellipsis, bool, an integer array (list, NumPy array or Tensor; several
            are broadcast together), or a bool or uint8 array (a mask, read at the call).

    Raises:
        IndexError: too many indices, one out of range, or a mask of another shape. Values of an
            integer Tensor are checked when they are computed.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.arange(6, device="cpu").reshape(2, 3)
        >>> x[1, ::2].tolist(), x[:, [2, 0]].tolist(), x[x > 3].tolist()
        ([3, 5], [[2, 0], [5, 3]], [4, 5])
    """
    entries = key if type(key) is tuple else (key,)
    if _PLAIN.issuperset(map(type, entries)):
        view = _at_plain(input, entries)
        if view is not None:
            return view
    if input.cell.shared and (rows := shared_rows(input, key)) is not None:
        return rows
    # A schedule at its time, say, is recorded from a template.
    if isinstance(key, TensorBase) and key.dtype.is_integer and key.dtype is not uint8:
        if key.node.shape:
            return _at_tensor(input, _index_of("index", key))
        if shape := input.described().shape:
            return input.select_at(0, _position("index", key, shape[0], input.device))
    return _at(input, key)


_PLAIN = {int, slice}


def _at_plain(input: Tensor, key: tuple[int | slice, ...]) -> Tensor | None:
    """What `_read` gives for integers and slices alone; None of a key that it must look at."""
    shape: Shape = input.shape
    strides = input.strides
    if not 0 < len(key) <= len(shape):
        return None
    starts, lengths, steps = [0] * len(shape), list(shape), [1] * len(shape)
    remaining: list[int] = []
    sparse = False
    for axis, entry in enumerate(key):
        if isinstance(entry, int):
            size = shape[axis]
            if not -size <= entry < size:
                return None
            starts[axis] = entry if entry >= 0 else entry + size
            lengths[axis] = 1
            continue
        remaining.append(axis)
        if not (entry.start is entry.stop is entry.step is None):
            starts[axis], lengths[axis], steps[axis] = _range("index", entry, shape[axis], axis)
            sparse = sparse or steps[axis] != 1
    remaining.extend(range(len(key), len(shape)))
    if not remaining and (number := input.number_at(starts)) is not None:
        return number
    part = tuple(lengths)
    through: list[tuple[Op, Any, Shape]] = []
    if part != shape or sparse:
        detail = {"starts": tuple(starts), "shape": part, "steps": tuple(steps)}
        through.append((movement.slice_, detail, part))
    if len(remaining) < len(shape) or not through:
        left = tuple([lengths[axis] for axis in remaining])
        through.append((movement.reshape, {"shape": left}, left))
    return input.alias_as(through, tuple([strides[axis] * steps[axis] for axis in remaining]))


def _at(input: Tensor, key: Any) -> Tensor:
    view, arrays = _read("index", input, key)
    if not arrays:
        return view
    node = view.node
    target = _places("index", node, arrays)
    result = ops.gather(_flattened(node, target), target.flat)
    if target.front and target.flat.shape:
        result = movement.permute(result, axes=_result_axes(target, len(result.shape)))
    read = wrap(result)
    indices = [
        entry for _, entry in arrays if isinstance(entry, TensorBase) and not _is_mask(entry)
    ]
    if view._strides is not None or any(index._strides is not None for index in indices):
        read._strides = _strides_of_read(view, target, indices)
    return read


def _strides_of_read(view: Tensor, target: _Places, indices: Sequence[Any]) -> Shape | None:
    """Strides of what arrays read: of the input where it is not indexed, else of the indices."""
    rest = target.order[len(target.axes) :]
    front, index = target.front, target.flat.shape

    def around(outer: Shape, inner: Shape) -> Shape:
        return (*outer[:front], *inner, *outer[front:])

    shape = around(tuple(view.node.shape[axis] for axis in rest), index)
    outer = tuple(view.strides[axis] for axis in rest)
    source = around(outer, (0,) * len(index))
    operands = [(shape, source)]
    for sizes, strides in [(x.node.shape, x.strides) for x in indices] or [
        (index, contiguous_strides(index))
    ]:
        missing = len(index) - len(sizes)
        spread = [t if n == m else 0 for n, m, t in zip(sizes, index[missing:], strides)]
        # PyTorch reshapes an index among ones, whose strides then count in the order of dimensions.
        among = around((1,) * len(outer), index)
        strides_among = reshape_strides(index, (*[0] * missing, *spread), among)
        assert strides_among is not None
        operands.append((among, strides_among))
    return elementwise_strides(shape, tuple(operands))


_at_tensor = templated(_at)


def setitem(input: Tensor, key: Any, value: Any) -> None:
    """``input[key] = value``: writes to what the key shows; of repeated positions the last stays.

    Args:
        key: as for `getitem`.
        value: a number, or a Tensor or array that broadcasts to what the key shows.

    Raises:
        IndexError: as for `getitem`.
        ShapeError: the value does not broadcast.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.zeros(2, 3, device="cpu")
        >>> x[0, 1:] = 1
        >>> x[x == 0] = 5
        >>> x.tolist()
        [[5.0, 1.0, 1.0], [5.0, 5.0, 5.0]]
    """
    view, arrays = _read("index", input, key)
    node = view.node
    written = _value(value, node)
    fills = not written.shape
    if not arrays:
        own = isinstance(value, TensorBase) and _shows_same(view, value)
        # PyTorch copies here, a number too, and refuses expansions; a number fills windows.
        expands = any(n > 1 and t == 0 for n, t in zip(node.shape, view.strides))
        view.write(node if own else _fitted(written, node.shape), "setitem", fills and not expands)
        return
    if len(arrays) == 1 and _is_mask(arrays[0][1]):
        axis, mask = arrays[0]
        masked = _by_mask(node, axis, mask, written)
        if masked is not None:
            view.write(masked, "setitem", fills)
            return
    target = _places("index", node, arrays)
    base = _flattened(node, target)
    shape = target.flat.shape + base.shape[1:]
    axes = _result_axes(target, len(shape))
    written = _fitted(written, tuple(shape[axis] for axis in axes))
    if not prod(shape):
        # Which checks that it may be written.
        view.write(common.nothing_written(node, written), "setitem")
        return
    number = only_number(written) if fills and shows_repeats(view.chain) else None
    if number is not None:
        # A number for some elements of a view that repeats them, in whatever order.
        chosen = common.full(False, base.shape, base, bool_)
        chosen = ops.scatter(chosen, target.flat, common.full(True, shape, base, bool_))
        chosen = _moved_back(chosen, node, target)
        view.write(elementwise.where(chosen, to_shape(number, node.shape), node), "setitem")
        return
    written = movement.permute(written, axes=_inverse(axes)) if target.front else written
    result = ops.scatter(base, target.flat, written)
    view.write(_moved_back(result, node, target), "setitem")


def _shows_same(view: Tensor, value: TensorBase) -> bool:
    """Whether a view is the whole of another Tensor, as that of ``x[...]``."""
    if view.cell is not value.cell or view.node.shape != value.node.shape:
        return False
    return view.chain[:-1] == value.chain and view.chain[-1][0] is movement.reshape


def _moved_back(rows: Node, node: Node, target: _Places) -> Node:
    """What `_flattened` has made of a node, in the shape of the node again."""
    moved = movement.reshape(rows, shape=tuple(node.shape[axis] for axis in target.order))
    return movement.permute(moved, axes=_inverse(target.order))


def _value(value: Any, like: Node) -> Node:
    """The value to write as a node of the target's dtype and device."""
    if isinstance(value, bool | int | float | complex):
        if not like.dtype.is_floating or isinstance(value, complex):
            value = number_of("setitem", value, like.dtype)
        return common.full(value, (), like)
    if not isinstance(value, TensorBase):
        return tensor(value, dtype=like.dtype, device=like.device).node
    return to_dtype(to_device(value.node, like.device), like.dtype)


def _fitted(value: Node, shape: Shape) -> Node:
    """The value broadcast to the target; leading dimensions of size 1 may be too many."""
    while len(value.shape) > len(shape) and value.shape[0] == 1:
        value = movement.reshape(value, shape=value.shape[1:])
    if len(value.shape) > len(shape) or any(
        size not in (1, wanted) for size, wanted in zip(value.shape[::-1], shape[::-1])
    ):
        raise ShapeError(
            "setitem",
            "the value does not fit the selected elements",
            expect=f"a shape that broadcasts to {shape}",
            actual=str(value.shape),
        )
    return to_shape(value, shape)


def _by_mask(node: Node, axis: int, mask: Any, value: Node) -> Node | None:
    """A masked write as `where`; None where the value has one element for each True."""
    sizes = mask.shape or (1,)  # a mask without dimensions has one of its own in the view
    before, rest = node.shape[:axis], node.shape[axis + len(sizes) :]
    lead = value.shape[: max(len(value.shape) - len(rest), 0)]
    if lead and lead[-1] != 1:
        return None
    value = _fitted(value, (*before, 1, *rest))
    value = movement.reshape(value, shape=(*before, *(1,) * len(sizes), *rest))
    if isinstance(mask, TensorBase):
        chosen = to_dtype(to_device(mask.node, node.device), bool_)
    else:
        chosen = buffer_node(np.asarray(mask, np.bool_), node.device)
    chosen = movement.reshape(chosen, shape=(*(1,) * axis, *sizes, *(1,) * len(rest)))
    return elementwise.where(to_shape(chosen, node.shape), to_shape(value, node.shape), node)


# Masks --------------------------------------------------------------------------------------------


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The positions of elements other than zero; realizes the input.

    Returns:
        An int64 Tensor (count, dimensions); with `as_tuple` one vector for each dimension.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.nonzero(tc.tensor([0, 3, 0, 4], device="cpu")).tolist()
        [[1], [3]]
    """
    array, device = input.array(), input.device
    if as_tuple:
        coordinates = np.nonzero(np.atleast_1d(array))
        return tuple(wrap(buffer_node(part, device)) for part in coordinates)
    positions = np.argwhere(array).astype(np.int64)
    return wrap(buffer_node(positions, device))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where `mask` holds, as a vector; realizes the mask.

    Args:
        input, mask: broadcast together; the mask is bool.
    """
    if mask.dtype is not bool_:
        raise DTypeError(
            "masked_select",
            "the mask is not bool",
            expect="bool",
            actual=mask.dtype.name,
            hint="use mask.bool(), or a comparison",
        )
    shape = broadcast("masked_select", input.node.shape, mask.node.shape)
    chosen = np.flatnonzero(np.broadcast_to(mask.array(), shape))
    flat = movement.reshape(to_shape(input.node, shape), shape=(prod(shape),))
    return wrap(ops.gather(flat, buffer_node(chosen, input.device)))
