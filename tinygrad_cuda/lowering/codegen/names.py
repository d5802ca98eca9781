"""What the variables of generated text are called: after the op, the parameter or the statistic."""

from __future__ import annotations

import re
from math import prod

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, reduction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.lowering.schedule.fusion import TRANSPARENT


def value_stem(node: Node) -> str:
    """What a value is called: a statistic's usual name, or its op's."""
    name = _statistic(node) or re.sub(r"\W|_$", "", node.op.name)
    return f"{name}_" if name[-1].isdigit() else name  # log2_0, not the third of log


def _statistic(node: Node) -> str:
    """The name of a mean, a variance, or the reciprocal of their root; else nothing."""
    if node.op is ew.rsqrt:
        shifted = _value(node.sources[0])
        parts = map(_value, shifted.sources) if shifted.op is ew.add else ()
        names = {_statistic(part) for part in parts}
        return "rstd" if "var" in names else "rrms" if "mean_square" in names else ""
    if node.op is ew.mul:
        for one, other in (node.sources, node.sources[::-1]):
            total, factor = _value(one), _value(other).attributes.get("value")
            if isinstance(factor, int | float):
                if total.op is common.output and total.sources[0].op is reduction.welford:
                    return "var"
                if total.op is reduction.sum and _is_reciprocal(factor, total):
                    return _mean_of(_value(total.sources[0]))
    return ""


def _mean_of(summed: Node) -> str:
    if summed.op is not ew.mul or summed.sources[0] is not summed.sources[1]:
        return "mean"
    return "var" if _value(summed.sources[0]).op is ew.sub else "mean_square"


def _is_reciprocal(factor: float, total: Node) -> bool:
    count = prod(total.sources[0].shape) // max(prod(total.shape), 1)
    return abs(factor * count - 1) < 1e-3


def _value(node: Node) -> Node:
    """The value behind movements, casts and names."""
    while node.op.kind == "movement" or node.op in TRANSPARENT or node.op is ew.cast:
        node = node.sources[0]
    return node
