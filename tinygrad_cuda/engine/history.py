"""What a realization keeps of the history that gradients will read, and what it lets go.

A realized node keeps its sources while an unspent gradient may still pass through them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from tinygrad_cuda.core.errors import RawSite, describe_site
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, reduction

DEAR = frozenset(("contraction", "reduction", "kernel"))


def keep_history(roots: list[Node]) -> list[Node]:
    """What an unspent gradient of the roots will read and is dear to recompute."""
    dear: list[Node] = []
    seen: set[Node] = set()
    unread: set[Node] = set()
    stack = [root for root in roots if root.requires_grad and root.spent is None]
    while stack:
        node = stack.pop()
        if node in seen or node.storage is not None:
            continue
        seen.add(node)
        if node.requires_grad and node.spent is not None:
            continue
        if node.op is common.custom:
            unread.update(_unread(node))
        if node.op.kind in DEAR and node not in unread:
            dear.append(node)
            if not node.requires_grad:
                continue
        if node.op is common.output and node.sources[0].storage is not None:
            continue
        stack.extend(node.sources)
    return dear


def _unread(node: Node) -> list[Node]:
    """Sums that stand behind a value for its gradient alone, which does not read what they are."""
    if not isinstance(node.attributes["function"], common.GradientRule):
        return []
    results = node.attributes["results"]
    values, others = node.sources[:results], node.sources[results:]
    return [source for source in others if source.op is reduction.sum and source not in values]


def release(realized: list[Node], inputs: Sequence[Node]) -> None:
    """Drops the sources of nodes through which no gradient can pass any more.

    Args:
        realized: nodes that have just got their value.
        inputs: the values they were computed from.
    """
    # A value of an earlier plan may have lost its history since: `total += loss` looked at
    # before `loss.backward()` does so in each turn.
    age = 0
    for node in inputs:
        if node.sources and node.storage is not None and not _let_go(node):
            age = max(age, ages.get(node, 1))
    for node in realized:
        if not _let_go(node):
            _grow_older(node, age + 1)


def _let_go(node: Node) -> bool:
    """Drops the node's sources, unless a gradient may still pass."""
    if node.requires_grad and node.op is not common.variable and node.spent is None:
        node.spent = _spent_behind(node)
        if node.spent is None:
            return False
    node.sources = ()
    return True


def _spent_behind(node: Node) -> RawSite | None:
    """The backward pass that used up a part of the history, so that a gradient would raise."""
    stack, seen = [node], {node}
    while stack:
        for source in stack.pop().sources:
            if source.requires_grad and source not in seen:
                if source.spent is not None:
                    return source.spent
                seen.add(source)
                if source.storage is None:
                    stack.append(source)
    return None


# Histories that grow without end ------------------------------------------------------------------

# How many plans the history behind a node spans.
ages: WeakKeyDictionary[Node, int] = WeakKeyDictionary()
OLD = 500  # plans that a history spans when a warning is due
_warned = False


def _grow_older(node: Node, age: int) -> None:
    global _warned
    if age > 1:
        ages[node] = age
    if age >= OLD and not _warned:
        _warned = True
        warnings.warn(
            f"the history of a {node.op.name} spans {age} plans and keeps all of them in memory\n"
            f"  at:     {describe_site(node.site)}\n"
            "  hint:   add loss.item() or loss.detach() to a running total, or use no_grad()",
            RuntimeWarning,
            stacklevel=2,
        )
