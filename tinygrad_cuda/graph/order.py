"""Orders over nodes, without recursion: graphs may be 100,000 nodes deep."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinygrad_cuda.graph.node import Node


def topological(roots: Iterable[Node], stop: Callable[[Node], bool] | None = None) -> list[Node]:
    """Every node the roots depend on, sources first; deterministic.

    Args:
        roots: where to start; they come in the order given as far as dependencies allow.
        stop: nodes that are taken but not looked behind.
    """
    order: list[Node] = []
    state: dict[Node, bool] = {}
    for root in roots:
        if root in state:
            continue
        stack = [root]
        while stack:
            node = stack[-1]
            done = state.get(node)
            if done is None:
                state[node] = False
                if stop is None or not stop(node):
                    for source in reversed(node.sources):
                        if source not in state:
                            stack.append(source)
            else:
                stack.pop()
                if not done:
                    state[node] = True
                    order.append(node)
    return order
