"""Movement ops as changes of coordinates, with the conditions under which they lead somewhere."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops.movement import MovementOp
from tinygrad_cuda.graph.program import Argument
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.index import Condition, Index

Coordinates = tuple[Index, ...]
Guard = tuple[Condition, ...]
Symbols = Callable[[Argument, int, int], Index]


class _Reading:
    """Collects the conditions under which a movement's source has the element.

    Args:
        symbol: names a number that runs may change.
    """

    def __init__(self, symbol: Symbols) -> None:
        self._symbol = symbol
        self.conditions: list[Condition | bool] = []

    def number(self, value: Any, low: int, high: int) -> Index | int:
        if isinstance(value, Argument):
            return self._symbol(value, low, high)
        number: int = value
        return number

    def inside(self, coordinate: Index, limit: int) -> Index:
        self.conditions += [ix.nonnegative(coordinate), ix.below(coordinate, limit)]
        return coordinate.within(0, limit - 1)

    def divided(self, coordinate: Index, step: int) -> Index:
        quotient, rest = ix.divide(coordinate, step)
        self.conditions.append(ix.below(rest, 1))
        return quotient


def moved(node: Node, at: Coordinates, symbol: Symbols) -> tuple[Coordinates, Guard | bool, Any]:
    """The source's coordinates, when they are valid, and the value where they are not."""
    op, shape = node.op, node.sources[0].shape
    assert isinstance(op, MovementOp), node
    fill = node.attributes.get("value", 0)
    if op.fills and not prod(shape):
        return at, False, fill
    reading = _Reading(symbol)
    coordinates = op.cuda(at, reading, shape, **node.attributes)
    inner = (c if isinstance(c, Index) else ix.constant(c) for c in coordinates)
    guard = ix.all_of(reading.conditions)
    return tuple(c.within(0, size - 1) for c, size in zip(inner, shape, strict=True)), guard, fill
