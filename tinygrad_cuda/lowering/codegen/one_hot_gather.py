"""Sums over a one-hot mask, ``where(positions == place, value, 0)`` along a row: of all its
elements one counts, and a kernel that has the row loads that one alone."""

from __future__ import annotations

from typing import NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, indexing, movement, reduction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.program import Argument
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.index_rewrites import Coordinates, moved
from tinygrad_cuda.lowering.schedule.fusion import TRANSPARENT

_WALKED = (movement.reshape, movement.permute, movement.expand)


class Pick(NamedTuple):
    """What such a sum is: `value` at the column `place`, which is checked to lie in the row.

    Attributes:
        at: the coordinates of `place`.
        first: what of `place` needs no check, and can be loaded early.
    """

    value: Node
    place: Node
    first: Node
    at: Coordinates


def pick_of(node: Node, at: Coordinates, column: Index, memory: set[Node]) -> Pick | None:
    """How a sum over the elements `at`, along `column`, picks one of them, if it does."""
    if node.op is not reduction.sum:
        return None
    chosen, _ = _walk(node.sources[0], at, memory, ())
    if chosen in memory or chosen.op is not ew.where:
        return None
    condition, value, other = chosen.sources
    mask, at_mask = _walk(condition, at, memory)
    if mask in memory or mask.op is not ew.eq or not _is_zero(other):
        return None
    for positions, place in (mask.sources, mask.sources[::-1]):
        if not _is_column(positions, at_mask, column, memory):
            continue
        checked, at_place = _walk(place, at_mask, memory)
        core = checked
        while core not in memory and core.op is ew.cast and core.dtype.is_integer:
            core = core.sources[0]
        leaves = {leaf for part in at_place for leaf in part.leaves}
        inside = core not in memory and core.op is indexing.check_index
        inside = inside and int(core.attributes["limit"]) == column.high + 1
        if inside and leaves.isdisjoint(column.leaves):
            return Pick(value, checked, core.sources[0], at_place)
    return None


def _walk(
    node: Node, at: Coordinates, memory: set[Node], through: tuple[object, ...] = _WALKED
) -> tuple[Node, Coordinates]:
    """The value behind names and plain movements, and where it is read."""
    while node not in memory and (node.op in TRANSPARENT or node.op in through):
        if node.op in through:
            at = moved(node, at, lambda *_: Index((), 0))[0]
        node = node.sources[0]
    return node, at


def _is_zero(node: Node) -> bool:
    base, _ = _walk(node, (), set(), ())
    while base.op in _WALKED:
        base = base.sources[0]
    value = base.attributes.get("value")
    return base.op is common.constant and not isinstance(value, Argument) and value == 0


def _is_column(node: Node, at: Coordinates, column: Index, memory: set[Node]) -> bool:
    """Whether a value is the number of its column."""
    base, where = _walk(node, at, memory)
    if base in memory or base.op is not common.arange or not base.dtype.is_integer:
        return False
    start, step = base.attributes["start"], base.attributes["step"]
    plain = not isinstance(start, Argument) and not isinstance(step, Argument)
    return plain and start == 0 and step == 1 and where == (column,)


__all__ = ["Pick", "pick_of"]
