"""Seals on cells and leaves: whoever looks at what they hold, or writes it, breaks them.

A loop that overwrites its state need not look at all of it in each turn: as long as no seal was
broken, everything is as the last turn left it, and nobody has got hold of a part of it.
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


class _Seals:
    """How many seals have been broken in this process, in all threads."""

    broken = 0


seals = _Seals()


class SealedCell(Cell):
    """A Cell until somebody uses its value; then it is an ordinary one again."""

    __slots__ = ()

    @property
    def node(self) -> Node:
        """The value it holds now."""
        _break(self, Cell)
        found: Node = node_under(self)
        return found

    @node.setter
    def node(self, node: Node) -> None:
        _break(self, Cell)
        _node.__set__(self, node)

    def add_alias(self, alias: Any) -> None:
        """Has `alias.forget_node()` called at the next write."""
        _break(self, Cell)
        Cell.add_alias(self, alias)


class SealedLeaf(Leaf):
    """A Leaf until somebody uses its gradient; then it is an ordinary one again."""

    __slots__ = ()

    @property
    def grad(self) -> Any:
        """The accumulated gradient, a Tensor, or None."""
        _break(self, Leaf)
        return grad_under(self)

    @grad.setter
    def grad(self, gradient: Any) -> None:
        _break(self, Leaf)
        _grad.__set__(self, gradient)


def _break(sealed: Any, kind: type) -> None:
    seals.broken += 1
    object.__setattr__(sealed, "__class__", kind)


SEALABLE_CELLS, SEALABLE_LEAVES = {Cell, SealedCell}, {Leaf, SealedLeaf}


def seal(cells: Iterable[Cell], leaves: Iterable[Leaf]) -> None:
    """Seals cells and leaves of these kinds that are not."""
    for cell in cells:
        if type(cell) is Cell:
            object.__setattr__(cell, "__class__", SealedCell)
    for leaf in leaves:
        if type(leaf) is Leaf:
            object.__setattr__(leaf, "__class__", SealedLeaf)
