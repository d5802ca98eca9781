"""Checks of values run although a rewrite or a slice has removed every reader of what they guard.

A check is an elementwise node, and kernels evaluate what they store. A check that no stored value
evaluates in full becomes a condition of an output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import prod

from tinygrad_cuda.graph.node import Node, gradient_mode, recorded_at, with_sources
from tinygrad_cuda.graph.ops import common, indexing, movement, reduction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.lowering.schedule.fusion import TRANSPARENT, is_identity_value
from tinygrad_cuda.lowering.schedule.kernel_dag import Schedule


def unread_checks(checks: Sequence[Node], schedule: Schedule) -> list[Node]:
    """Those of a program's checks of which no kernel evaluates every element."""
    roots = [node for kernel in schedule.kernels for node in (*kernel.stores, *kernel.anchors)]
    # Rewriting makes nodes anew; a check keeps its code.
    read = {n.attributes["code"] for n in _evaluated(roots) if n.op in indexing.CHECKS}
    return [node for node in checks if node.attributes["code"] not in read]


def _evaluated(roots: Iterable[Node]) -> set[Node]:
    """What is evaluated in full where the roots are."""
    stack = list(roots)
    seen = set(stack)
    while stack:
        new = [source for source in _whole_sources(stack.pop()) if source not in seen]
        seen.update(new)
        stack.extend(new)
    return seen


def _whole_sources(node: Node) -> Sequence[Node]:
    """The sources of which every element is read where every element of a node is made."""
    if not all(prod(shape) for shape, _ in node.outputs) or is_identity_value(node):
        return ()
    if node.op in TRANSPARENT:
        return node.sources[:1]
    if node.op in (common.assign, indexing.gather):
        return node.sources[1:]
    if isinstance(node.op, movement.MovementOp) and not node.op.whole:
        return ()
    return node.sources


def with_checks(outputs: Sequence[Node], checks: Sequence[Node]) -> tuple[Node, ...]:
    """The same values, the smallest of them chosen by a condition that evaluates the checks."""
    sizes = {number: prod(node.shape) for number, node in enumerate(outputs) if prod(node.shape)}
    if not checks or not sizes:
        return tuple(outputs)
    chosen = min(sizes, key=sizes.__getitem__)
    with gradient_mode(False), recorded_at(checks[0].site):
        output = _chosen(outputs[chosen], reduce(ew.logical_or, map(_negative, checks)))
    return (*outputs[:chosen], output, *outputs[chosen + 1 :])


def _negative(check: Node) -> Node:
    """False, a 0-d value that is computed from every element of a check's result."""
    below = ew.lt(check, common.full_like(check, 0))
    negative = reduction.any(below, axes=tuple(range(len(check.shape))))
    return movement.reshape(negative, shape=())


def _chosen(node: Node, condition: Node) -> Node:
    if node.op is common.assign:
        return with_sources(node, (node.sources[0], _chosen(node.sources[1], condition)))
    one = movement.reshape(condition, shape=(1,) * len(node.shape))
    return ew.where(movement.expand(one, shape=node.shape), node, node)
