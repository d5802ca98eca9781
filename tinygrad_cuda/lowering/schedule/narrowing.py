"""Which float32 values reach a program's outputs only after they are rounded to 16 bits."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import reduction
from tinygrad_cuda.lowering.schedule.fusion import TRANSPARENT

# Where a small error of the operand may become a step of the result.
_STEPS = (ew.sign, ew.floor, ew.ceil, ew.trunc, ew.round)


def narrowed_values(order: Sequence[Node], outputs: Sequence[Node]) -> frozenset[Node]:
    """The float32 nodes whose every path to an output leads through a half type.

    Comparisons, integers and roundings count as outputs: they turn an error into another value. A
    sum of powers shows no error of theirs: see `_hides_errors`.

    Args:
        order: the program's nodes, sources first.
        outputs: those that are its results.
    """
    exact = {node for node in outputs if not node.dtype.is_half}
    for node in reversed(order):
        if node in exact or not node.dtype.is_floating or node.op in _STEPS:
            exact.update(
                source
                for source in node.sources
                if not source.dtype.is_half and not _hides_errors(node, source)
            )
    return frozenset(node for node in order if node.dtype is float32 and node not in exact)


def is_power_below_one(node: Node) -> bool:
    """Whether a node is ``exp(x - max x)``: errors are relative, sums of such values at least 1."""
    return bool(_tops_of_power(node))


def _tops_of_power(node: Node) -> list[Node]:
    """The maxima of x, of a node ``exp(x - max x)``; none of another node."""
    if node.op is not ew.exp or node.sources[0].op is not ew.sub:
        return []
    value, largest = node.sources[0].sources
    return [top for top in _maxima(largest) if _unmoved(top.sources[0]) is _unmoved(value)]


def _hides_errors(node: Node, power: Node) -> bool:
    """Whether a node is a sum of ``exp(x - max x)`` along the maximum's axes, x of a half type.

    One of its powers is 1, without an error. The error of another is e^y (a + b |y|), y <= 0, of a
    few parts in ten millions: of the sum, and of its logarithm, it is less than x was rounded by.
    """
    if node.op is not reduction.sum:
        return False
    axes = node.attributes["axes"]
    return any(
        top.attributes["axes"] == axes and _is_widened(_unmoved(top.sources[0]))
        for top in _tops_of_power(power)
    )


def _is_widened(node: Node) -> bool:
    """Whether a node is a half value as float32."""
    return node.op is ew.cast and node.sources[0].dtype.is_half


def _unmoved(node: Node) -> Node:
    while node.op in TRANSPARENT:
        node = node.sources[0]
    return node


def _maxima(node: Node) -> list[Node]:
    """The maximum that a node spreads; of a choice between one and a number, that one."""
    while node.op.kind == "movement" or node.op in TRANSPARENT:
        node = node.sources[0]
    if node.op is ew.where:
        return [*_maxima(node.sources[1]), *_maxima(node.sources[2])]
    return [node] if node.op is reduction.max else []
