"""Seals on cells and leaves: whoever looks at what they hold, or writes it, breaks them.

A loop that overwrites its state need not look at all of it in each turn: as long as no seal was
broken, everything is as the last turn left it, and nobody has got hold of a part of it.
Without it a compiled call of denoiser_sample takes 162 % longer (H200).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinygrad_cuda.engine.cell import Cell, Leaf
from tinygrad_cuda.graph.node import Node

# The slots under the properties of the same names: to look without breaking a seal. Whoever does
# so keeps nothing of what it finds.
_node: Any = Cell.__dict__["node"]
_grad: Any = Leaf.__dict__["grad"]
node_under = _node.__get__
grad_under = _grad.__get__


class _Trackers:
    """How many seals have been broken in this process, in all threads."""

    def __init__(self) -> None:
        self.broken = 0


seals = _Trackers()


class UnseenCell(Cell):
    """A Cell until somebody uses its value; then it is an ordinary one again."""

    __slots__ = ()

    @property
    def node(self) -> Node:
        """The value it holds now."""
        self.unseal()
        node: Node = node_under(self)
        return node

    @node.setter
    def node(self, node: Node) -> None:
        self.unseal()
        _node.__set__(self, node)

    def add_alias(self, alias: Any) -> None:
        """Has `alias.forget_node()` called at the next write."""
        self.unseal()
        Cell.add_alias(self, alias)

    def unseal(self) -> None:
        """Makes it an ordinary one."""
        _become(self, Cell)


class TrackedCell(UnseenCell):
    """The same, and whoever uses it is counted."""

    __slots__ = ()

    def unseal(self) -> None:
        """Makes it an ordinary one."""
        seals.broken += 1
        _become(self, Cell)


class TrackedLeaf(Leaf):
    """A Leaf until somebody uses its gradient; then it is an ordinary one again, and counted."""

    __slots__ = ()

    @property
    def grad(self) -> Any:
        """The accumulated gradient, a Tensor, or None."""
        self.unseal()
        return grad_under(self)

    @grad.setter
    def grad(self, gradient: Any) -> None:
        self.unseal()
        _grad.__set__(self, gradient)

    def unseal(self) -> None:
        """Makes it an ordinary one."""
        seals.broken += 1
        _become(self, Leaf)


def _become(cell: Any, kind: type) -> None:
    object.__setattr__(cell, "__class__", kind)


SEALABLE_CELLS, SEALABLE_LEAVES = {Cell, TrackedCell}, {Leaf, TrackedLeaf}


def track_writes(cells: Iterable[Cell], leaves: Iterable[Leaf]) -> None:
    """Seals cells and leaves of these kinds that are not."""
    for cell in cells:
        if type(cell) is Cell:
            _become(cell, TrackedCell)
    for leaf in leaves:
        if type(leaf) is Leaf:
            _become(leaf, TrackedLeaf)


def leave_unseen(cell: Cell) -> None:
    """Has an ordinary cell show by its class whether somebody uses its value from now on."""
    _become(cell, UnseenCell)
