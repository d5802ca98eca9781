"""The steps between a storage cell and what a Tensor shows of it: read, write, and as NumPy views.

A step is a movement with its attributes, `detach` with its Branch, `variable` with its Leaf,
`gather` with a `SelectAt` (one position of a dimension, at an index that stays on the device), or
`complex` with a `ComplexView`: real numbers as complex ones, or the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from tinygrad_cuda.core.dtypes import bool_, int64
from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.engine.cell import Branch, Leaf, detached
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import common, elementwise, indexing, movement

Step = tuple[Op, Any]

# Operations that write one number, wherever elements repeat.
FILLS = frozenset(("fill_", "masked_fill_", "index_fill_", "fill_diagonal_", "setitem"))


class DeviceIndex(Protocol):
    """A 0-d integer Tensor."""

    @property
    def node(self) -> Node:
        """Its value."""
        ...

    def array(self) -> Any:
        """Its value on the host."""
        ...


class SelectAt:
    """The step of ``x[t]`` for a 0-d integer Tensor; compared by identity.

    Args:
        axis: the dimension that is selected from.
        index: a 0-d int64 Tensor, checked against the size; never written.
    """

    __slots__ = ("axis", "index")

    def __init__(self, axis: int, index: DeviceIndex) -> None:
        self.axis, self.index = axis, index

    def __repr__(self) -> str:
        return f"SelectAt({self.axis}, {self.index.array()})"

    def read(self, base: Node) -> Node:
        """What the step shows of `base`."""
        return indexing.gather(_axis_first(base, self.axis), self.index.node)

    def write(self, base: Node, inner: Node) -> Node:
        """The base with `inner` at the index."""
        rows = _axis_first(base, self.axis)
        written = indexing.scatter(rows, self.index.node, inner)
        axes = (*range(1, self.axis + 1), 0, *range(self.axis + 1, len(base.shape)))
        return movement.permute(written, axes=axes) if self.axis else written

    def view(self, array: Any) -> Any:
        """The step as a NumPy view; reads the index on the host."""
        # With the Ellipsis it is an array even if no dimension is left.
        return array[(*[slice(None)] * self.axis, int(self.index.array()), ...)]


class ComplexView(NamedTuple):
    """The step between complex numbers and their parts, on the same memory.

    Attributes:
        name: in PyTorch.
        read: what it shows of a base.
        write: ``(base, inner)``, the base with `inner` written to that.
        view: the same as a NumPy view.
    """

    name: str
    read: Callable[[Node], Node]
    write: Callable[[Node, Node], Node]
    view: Callable[[Any], Any]


def _pairs(z: Node) -> Node:
    """Both parts as the last axis."""
    shape = (*z.shape, 2)
    first = common.arange.leaf((2,), int64, z.device, start=0, step=1)
    first = elementwise.eq(first, common.full_like(first, 0))
    first = movement.reshape(first, shape=(1,) * len(z.shape) + (2,))
    parts = (elementwise.real(z), elementwise.imag(z))
    wide = [
        movement.expand(movement.reshape(part, shape=(*z.shape, 1)), shape=shape) for part in parts
    ]
    return elementwise.where(movement.expand(first, shape=shape), *wide)


def _of_pairs(x: Node) -> Node:
    """The complex numbers whose parts are the last axis."""
    rest = x.shape[:-1]
    ones, shape = (1,) * len(x.shape), (*rest, 1)
    parts = (
        movement.slice_(x, starts=(*(0,) * len(rest), n), shape=shape, steps=ones) for n in (0, 1)
    )
    return elementwise.complex_(*(movement.reshape(part, shape=rest) for part in parts))


def _paired(array: Any) -> Any:
    part = array.real.dtype
    if array.ndim and array.strides[-1] == array.itemsize:
        return array.view(part).reshape(*array.shape, 2)
    return np.stack((array.real, array.imag), -1)


def _unpaired(array: Any) -> Any:
    array = array if array.strides[-1] == array.itemsize else np.ascontiguousarray(array)
    return array.view(np.result_type(array, np.complex64))[..., 0]


REAL = ComplexView(
    "real", elementwise.real,
    lambda base, inner: elementwise.complex_(inner, elementwise.imag(base)), lambda a: a.real,
)  # fmt: skip
IMAG = ComplexView(
    "imag", elementwise.imag,
    lambda base, inner: elementwise.complex_(elementwise.real(base), inner), lambda a: a.imag,
)  # fmt: skip
PAIRS = ComplexView("view_as_real", _pairs, lambda base, inner: _of_pairs(inner), _paired)
COMPLEX = ComplexView("view_as_complex", _of_pairs, lambda base, inner: _pairs(inner), _unpaired)


def _axis_first(node: Node, axis: int) -> Node:
    rest = (k for k in range(len(node.shape)) if k != axis)
    return movement.permute(node, axes=(axis, *rest)) if axis else node


def moves(step: Step) -> bool:
    """Whether a step shows other elements, or the same at another position."""
    op = step[0]
    return op.kind == "movement" or op is indexing.gather or op is elementwise.complex_


def apply_step(step: Step, node: Node) -> Node:
    """The node seen through one step."""
    op, detail = step
    if op is common.variable:
        leaf: Leaf = detail
        return leaf.variable(node)
    if op is common.detach:
        branch: Branch = detail
        return branch.value(node)
    if op is indexing.gather:
        select: SelectAt = detail
        return select.read(node)
    if op is elementwise.complex_:
        parts: ComplexView = detail
        return parts.read(node)
    return op(node, **detail)


def seen_through(chain: tuple[Step, ...], array: Any) -> Any:
    """An array of the base's shape through the steps, as NumPy's views."""
    for op, detail in chain:
        if op is indexing.gather or op is elementwise.complex_:
            array = detail.view(array)
        elif op.kind == "movement":
            assert op.numpy is not None
            array = op.numpy(array, **detail)
    return array


def shared_through(chain: tuple[Step, ...], memory: Any) -> Any:
    """What the chain shows of an array's memory: a write to one shows in the other.

    It is read-only where strides cannot express it, such as a flattened tensor whose strides are
    not those of its memory.
    """
    view = seen_through(chain, memory)
    if not view.size or (view.flags.writeable and np.may_share_memory(view, memory)):
        return view
    parts = [number for number, (op, _) in enumerate(chain) if op is elementwise.complex_]
    first = parts[-1] + 1 if parts else 0
    base = seen_through(chain[:first], memory)
    # A step that copies, such as the reshape of diagonal, copies the places in memory instead.
    bytes_at = _offsets(base.shape, base.strides)
    places = seen_through(chain[first:], bytes_at)
    start = places.flat[0]
    strides = tuple(
        int(places.take(1, axis).flat[0] - start) if size > 1 else 0
        for axis, size in enumerate(places.shape)
    )
    if not np.array_equal(start + _offsets(places.shape, strides), places):
        view.flags.writeable = False
        return view
    corner = np.unravel_index(int(np.argmax(bytes_at == start)), base.shape)
    at_start = base[tuple(slice(number, number + 1) for number in corner)]
    return np.lib.stride_tricks.as_strided(at_start, places.shape, strides)


def _offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Where each element lies, from the first one."""
    offsets = np.zeros(shape, np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides)):
        offsets += (np.arange(size) * stride).reshape(-1, *[1] * (len(shape) - axis - 1))
    return offsets


def first_position(shape: tuple[int, ...], chain: tuple[Step, ...]) -> int:
    """Where in the memory of a base of this shape the view begins, in elements."""
    # One byte an element, which nothing reads or writes; more where the element changes.
    first = next((detail for op, detail in chain if op is elementwise.complex_), None)
    kind = np.uint8 if first is None else np.float32 if first is COMPLEX else np.complex64
    base: Any = np.empty(shape, kind)
    view = seen_through(chain, base)
    if not view.size:
        return 0
    if np.may_share_memory(view, base):
        return int(view.ctypes.data - base.ctypes.data) // int(view.itemsize)
    # Here a reshape is a copy, since memory is row-major whatever the strides say.
    return int(seen_through(chain, np.arange(base.size).reshape(shape)).flat[0])


def put_through(
    base: Node, chain: tuple[Step, ...], value: Node, shown: Node | None = None
) -> Node:
    """The base with `value` written to what the chain shows of it.

    Args:
        shown: what the chain shows, as the value was computed from it, if the value may be a
            number for all or some of its elements.

    Raises:
        ShapeError: several elements of the view are one element of the base, and the value is
            not one number for all of them.
    """
    seen = [base]
    for step in chain[:-1]:
        seen.append(apply_step(step, seen[-1]))
    for position, (op, detail) in enumerate(chain):
        repeats = op is movement.expand and seen[position].shape != detail["shape"]
        if repeats or op is movement.window:
            value = _put_spread(seen[position], chain[position:], value, shown)
            chain = chain[:position]
            break
    for step, source in zip(reversed(chain), reversed(seen[: len(chain)])):
        value = _put_step(source, step, value)
    return value


def _put_step(base: Node, step: Step, inner: Node) -> Node:
    """The base with `inner` written to what one step shows of it."""
    op, detail = step
    if op is common.variable:
        return detached(inner)
    if op is common.detach:
        value = detached(inner)
        return common.with_history(value, base) if base.requires_grad else value
    if op is movement.expand:
        return inner  # to the shape that it has
    if op is movement.reshape:
        return movement.reshape(inner, shape=base.shape)
    if op is movement.permute:
        inverse = tuple(int(axis) for axis in np.argsort(detail["axes"]))
        return movement.permute(inner, axes=inverse)
    if op is indexing.gather:
        select: SelectAt = detail
        return select.write(base, inner)
    if op is elementwise.complex_:
        parts: ComplexView = detail
        return parts.write(base, inner)
    if op is movement.slice_:
        window = {"starts": detail["starts"], "shape": base.shape, "steps": detail["steps"]}
        inside = common.constant.leaf(inner.shape, bool_, base.device, value=True)
        return elementwise.where(
            movement.pad(inside, value=False, **window),
            movement.pad(inner, value=0, **window),
            base,
        )
    raise AssertionError(f"{op.name} is no step of a view")


def _put_spread(base: Node, chain: tuple[Step, ...], value: Node, shown: Node | None) -> Node:
    """The base with `value` written to what expansions, windows and further views show of it."""
    views = tuple(step for step in chain if moves(step))
    if any(op is elementwise.complex_ for op, _ in views):
        raise ShapeError(
            "write", "a part of repeated complex numbers is written",
            expect="a view that shows each element once", actual=f"shape {value.shape}",
            hint="clone() the tensor before writing to it",
        )  # fmt: skip
    detaches = [step for step in chain if step[0] is common.detach]
    whole = len(views) + len(detaches) == len(chain)
    once = whole and _each_once(base, views)
    fill = None if once or shown is None else _Fill.of(value, shown)
    if not once and (fill is None or not whole):
        raise ShapeError(
            "write",
            "several elements of this view are one element in memory",
            expect="a view that shows each element once",
            actual=f"a view of shape {value.shape} of a tensor of shape {base.shape}",
            hint="clone() the tensor before writing to it; fill_() writes one number everywhere",
        )
    count, size = prod(value.shape), prod(base.shape)
    if not count:
        return base
    index = common.arange.leaf((size,), int64, base.device, start=0, step=1)
    index = movement.reshape(index, shape=base.shape)
    for step in views:
        index = apply_step(step, index)
    flat = movement.reshape(base, shape=(size,))
    index = movement.reshape(index, shape=(count,))
    if fill is None:
        rows = movement.reshape(value, shape=(count,))
        written = indexing.scatter(flat, index, rows)
    else:
        written = fill.write(flat, index)
    written = movement.reshape(written, shape=base.shape)
    return _put_step(base, detaches[0], written) if detaches else written


def base_chain(chain: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps of a view before the first one that may show an element several times."""
    ends = (k for k, (op, _) in enumerate(chain) if op is movement.expand or op is movement.window)
    return chain[: next(ends, len(chain))]


def shows_repeats(chain: tuple[Step, ...]) -> bool:
    """Whether a view may show an element of its base several times."""
    return any(op is movement.expand or op is movement.window for op, _ in chain)


def only_number(value: Node) -> Node | None:
    """The number, of shape (1,), that all elements of a node are by construction."""
    while value.op in (movement.expand, movement.reshape) and prod(value.shape) > 1:
        value = value.sources[0]
    if value.op in (common.constant, common.scalar, common.complex_constant):
        leaf: Any = value.op
        made: Node = leaf.leaf((1,), value.dtype, value.device, **value.attributes)
        return made
    return movement.reshape(value, shape=(1,)) if prod(value.shape) == 1 else None


class _Fill(NamedTuple):
    """A value that is one number wherever it differs from what was there before.

    It can be written to repeated elements, in whatever order.

    Attributes:
        number: a node of one element.
        where: a bool node of the view's shape; None for everywhere.
    """

    number: Node
    where: Node | None

    @classmethod
    def of(cls, value: Node, shown: Node) -> _Fill | None:
        """The fill that a value is, if it is one."""
        where = None
        if value.op is elementwise.where and value.sources[2] is shown:
            where, value = value.sources[0], value.sources[1]
        number = only_number(value)
        return None if number is None else cls(number, where)

    def write(self, flat: Node, index: Node) -> Node:
        """A vector with the number at the positions of a vector that may repeat."""
        chosen = common.full(True, index.shape, index, bool_)
        if self.where is not None:
            chosen = movement.reshape(self.where, shape=index.shape)
        hits = indexing.scatter_add(
            common.full(0, flat.shape, index), index, elementwise.cast(chosen, dtype=int64)
        )
        hit = elementwise.gt(hits, common.full_like(hits, 0))
        number = movement.expand(self.number, shape=flat.shape)
        return elementwise.where(hit, number, flat)


def _each_once(base: Node, views: tuple[Step, ...]) -> bool:
    """Whether views show each element of the base at most once, wherever a `SelectAt` points."""
    positions: Any = np.arange(prod(base.shape)).reshape(base.shape)
    for op, detail in views:
        if op is indexing.gather:
            # Positions differ by one number from index to index, so the first stands for all.
            positions = positions[(*[slice(None)] * detail.axis, slice(1))].sum(detail.axis)
            continue
        assert op.numpy is not None
        positions = op.numpy(positions, **detail)
    return bool(len(np.unique(positions)) == positions.size)


def joined(chain: tuple[Step, ...], op: Op, detail: dict[str, Any]) -> tuple[Step, ...]:
    """The chain with one more movement; two of a kind are one, so that chains stay short."""
    if not chain or chain[-1][0] is not op:
        return (*chain, (op, detail))
    last = chain[-1][1]
    if op is movement.permute:
        detail = {"axes": tuple(last["axes"][axis] for axis in detail["axes"])}
    elif op is movement.slice_:
        pairs = zip(last["starts"], detail["starts"], last["steps"])
        detail = {
            "starts": tuple(first + start * step for first, start, step in pairs),
            "shape": detail["shape"],
            "steps": tuple(a * b for a, b in zip(last["steps"], detail["steps"])),
        }
    elif op is not movement.reshape and op is not movement.expand:
        return (*chain, (op, detail))
    return (*chain[:-1], (op, detail))
