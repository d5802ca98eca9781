"""Movement ops as changes of coordinates, with the conditions under which they lead somewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod
from typing import Any

from tinygrad_cuda.core.shapes import Shape
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
    op, shape, attributes = node.op, node.sources[0].shape, node.attributes
    assert isinstance(op, MovementOp), node
    fill = attributes.get("value", 0)
    if op.fills and not prod(shape):
        return at, False, fill
    if any(map(_varies, attributes.values())):
        return *_rewritten(op, shape, attributes, at, symbol), fill
    # What fills is no part of the key, in which -0.0 and 0.0 would be equal.
    rest = tuple((name, value) for name, value in attributes.items() if name != "value")
    return *_rewritten_once(op, shape, rest, "value" in attributes, at), fill


def _varies(value: Any) -> bool:
    """Whether an attribute has a number that runs may change."""
    return isinstance(value, Argument) or (isinstance(value, tuple) and any(map(_varies, value)))


def _rewritten(
    op: MovementOp, shape: Shape, attributes: Mapping[str, Any], at: Coordinates, symbol: Symbols
) -> tuple[Coordinates, Guard | bool]:
    """The coordinates in a source of this shape, and when they are valid."""
    reading = _Reading(symbol)
    coordinates = op.cuda(at, reading, shape, **attributes)
    inner = (c if isinstance(c, Index) else ix.constant(c) for c in coordinates)
    guard = ix.all_of(reading.conditions)
    return tuple(c.within(0, size - 1) for c, size in zip(inner, shape, strict=True)), guard


@lru_cache(maxsize=1 << 13)
def _rewritten_once(
    op: MovementOp, shape: Shape, attributes: tuple[tuple[str, Any], ...], fills: bool,
    at: Coordinates,
) -> tuple[Coordinates, Guard | bool]:  # fmt: skip
    """The same without numbers that vary: repeated layers have the same."""
    values = {**dict(attributes), **({"value": 0} if fills else {})}
    return _rewritten(op, shape, values, at, _no_symbol)


def _no_symbol(argument: Argument, low: int, high: int) -> Index:
    raise AssertionError(f"{argument} was no attribute")
