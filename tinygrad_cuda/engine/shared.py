"""Cells over memory that others write as well: arrays given to `from_numpy`, or got by `.numpy()`.

A node stays a value all the same: it is a copy, made again when the memory has changed. So whatever
else has the value (clones, recorded gradients, inputs of replays) keeps it.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import from_numpy
from tinygrad_cuda.engine.capture import capturing, structure, watching
from tinygrad_cuda.engine.cell import Cell
from tinygrad_cuda.engine.realize import realize
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common

Array = np.ndarray[Any, Any]
# The slot of Cell, under the property of the same name.
_value: Any = Cell.__dict__["node"]


# Bytes of memory of which parts are read without the rest; less is compared in 10 us.
LARGE = 64 << 10


def _same_bits(a: Array, b: Array) -> bool:
    one, other = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (a, b))
    # Eight bytes at a time, which takes a sixth of the time.
    whole = one.size // 8 * 8
    return np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64)) and (
        np.array_equal(one[whole:], other[whole:])
    )


class SharedCell(Cell):
    """A cell on cpu whose memory belongs to another library; a write to it is never pending.

    Args:
        memory: of any strides. A write to memory that is read-only goes to a copy of it.
    """

    __slots__ = ()
    shared = True

    def __init__(self, memory: Array) -> None:
        self.memory = memory
        self.aliases = self.recorder = self.error = None
        _value.__set__(self, holding_array(memory.copy()))
        if watching.on and (capture := capturing()) is not None:
            capture.born.add(self)

    @property
    def node(self) -> Node:
        """What the memory holds now."""
        node: Node = _value.__get__(self)
        return node if self.unchanged(node) else _renewed(self, node, self.memory.copy())

    @node.setter
    def node(self, node: Node) -> None:
        if node.storage is None:
            realize(node.device, (node,))
        if not self.memory.flags.writeable:
            self.memory = self.memory.copy()
        self.memory[...] = node.storage
        _value.__set__(self, node)

    def unchanged(self, node: Node) -> bool:
        """Whether the memory still holds the value of the node."""
        return _same_bits(node.storage, self.memory)

    def described(self) -> Node:
        """A node of its shape, dtype and device, which may hold what the memory held before."""
        node: Node = _value.__get__(self)
        return node


_shared: Any = SharedCell.__dict__["node"]


class _Holder:
    """Keeps memory alive for the arrays that NumPy makes of it: it dies with the last of them."""

    __slots__ = ("memory", "__weakref__")

    def __init__(self, memory: Array) -> None:
        self.memory = memory

    @property
    def __array_interface__(self) -> Any:
        return self.memory.__array_interface__


class ExportedCell(SharedCell):
    """A cell whose memory is shared with arrays from `.numpy()`; without them, a Cell again."""

    __slots__ = ()

    @property
    def node(self) -> Node:
        """What the memory holds now."""
        node: Node = _value.__get__(self)
        same, alone = self.unchanged(node), self.holder() is None
        if alone:
            memory = self._taken_back()
        if same:
            return node
        return _renewed(self, node, memory if alone else self.memory.copy())

    @node.setter
    def node(self, node: Node) -> None:
        if self.holder() is None:
            self._taken_back()
            self.node = node
        else:
            _shared.__set__(self, node)

    def _taken_back(self) -> Array:
        memory: Array = self.memory
        self.memory = self.holder = None
        self.__class__ = Cell  # type: ignore[assignment]
        return memory


def exported(cell: Cell) -> Array:
    """An array of the cell's memory: writes to one show in the other.

    Args:
        cell: on cpu.
    """
    if type(cell) is SharedCell:
        return np.asarray(cell.memory)
    node = cell.node
    if node.storage is None:
        realize(node.device, (node,))
    if isinstance(cell, ExportedCell):
        return _array_of(cell.holder())
    # Who else has the value keeps its buffer; replays look at the cell again.
    structure.version += 1
    holder = _Holder(np.array(node.storage, order="C"))
    cell.memory, cell.holder = holder.memory, ref(holder)
    cell.__class__ = ExportedCell
    return _array_of(holder)


def _array_of(holder: _Holder) -> Array:
    # The interface says nothing of NumPy's dtypes from elsewhere, such as bfloat16.
    return np.asarray(holder).view(holder.memory.dtype)


def _renewed(cell: Cell, old: Node, array: Array) -> Node:
    """The node of a new value, in the cell from now on; the history of the old one stays."""
    node = holding_array(array)
    if old.requires_grad:
        node = common.with_history(node, old)
        node.storage = array  # realized, and with its sources
    cell.forget_aliases()
    _value.__set__(cell, node)
    return node


def holding_array(array: Array) -> Node:
    """A realized node whose storage is this array, which nobody else writes."""
    node = common.buffer.leaf(tuple(array.shape), from_numpy(array.dtype), CPU)
    node.storage = np.asarray(array, order="C")
    return node
