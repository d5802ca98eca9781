"""A cell over memory that others write as well, such as a NumPy array given to `from_numpy`.

A node stays a value all the same: it is a copy, made anew when the memory has changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import from_numpy
from tinygrad_cuda.engine.capture import capturing, watching
from tinygrad_cuda.engine.cell import Cell
from tinygrad_cuda.engine.realize import realize
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common

Array = np.ndarray[Any, Any]
# The slot of Cell, under the property of the same name.
_value: Any = Cell.__dict__["node"]


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


class SharedCell(Cell):
    """A place on cpu whose memory belongs to somebody else; a write to it is never pending.

    Args:
        memory: row-major without gaps, and writable.
    """

    __slots__ = ("memory",)

    def __init__(self, memory: Array) -> None:
        self.memory = memory
        self.aliases = self.recorder = self.error = None
        _value.__set__(self, _copied(memory))
        if watching.on and (capture := capturing()) is not None:
            capture.born.add(self)

    @property
    def node(self) -> Node:
        """What the memory holds now."""
        node: Node = _value.__get__(self)
        if not np.array_equal(_bytes(node.storage), _bytes(self.memory)):
            node = _copied(self.memory)
            self.forget_aliases()
            _value.__set__(self, node)
        return node

    @node.setter
    def node(self, node: Node) -> None:
        if node.storage is None:
            realize(node.device, (node,))
        self.memory[...] = node.storage
        _value.__set__(self, node)


def _copied(memory: Array) -> Node:
    node = common.buffer.leaf(tuple(memory.shape), from_numpy(memory.dtype), CPU)
    node.storage = memory.copy()
    return node
