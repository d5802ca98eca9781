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

    Comparisons, integers and roundings count as outputs: they turn an error into another value.

    Args:
        order: the program's nodes, sources first.
        outputs: those that are its results.
    """
    exact = {node for node in outputs if not node.dtype.is_half}
    for node in reversed(order):
        if node in exact or not node.dtype.is_floating or node.op in _STEPS:
            exact.update(source for source in node.sources if not source.dtype.is_half)
    return frozenset(node for node in order if node.dtype is float32 and node not in exact)


def is_power_below_one(node: Node) -> bool:
    """Whether a node is ``exp(x - max x)``: errors are relative, sums of such values at least 1."""
    if node.op is not ew.exp or node.sources[0].op is not ew.sub:
        return False
    value, largest = node.sources[0].sources
    return any(_unmoved(top.sources[0]) is _unmoved(value) for top in _maxima(largest))


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
