"""Whether two pending graphs are the same: for TGC_VALIDATE, one recognised and one recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops.movement import reshape

NO_STRUCTURE = frozenset({"code", "leaf"})  # of which each recording makes its own
Equal = Callable[[Node, Node], bool]


def _by_identity(one: Node, other: Node) -> bool:
    return one.storage is other.storage


def first_difference(
    pairs: Iterable[tuple[Node, Node]], matched: dict[Node, Node], equal: Equal = _by_identity
) -> Node | None:
    """The first node of two graphs, sources first, that is not as its counterpart; or None.

    Args:
        pairs: their results, the second the one that is returned where they differ.
        matched: nodes of the first graph with their counterparts in the second; is added to.
        equal: whether two leaves of different storage have the same value.
    """
    for pair in pairs:
        stack = [pair]
        while stack:
            one, other = stack[-1]
            if one is other or one in matched:
                if not _one_node(matched.get(one, one), other):
                    return other
                stack.pop()
                continue
            if not one.requires_grad and _one_value(one, other):
                matched[one] = other
                stack.pop()
                continue
            if not _same_operation(one, other, equal):
                return other
            sources = list(zip(one.sources, other.sources))
            waiting = [(a, b) for a, b in sources if a is not b and a not in matched]
            if waiting:
                stack += waiting[::-1]
                continue
            if not all(_one_node(matched.get(a, a), b) for a, b in sources):
                return other
            matched[one] = other
            stack.pop()
    return None


def require_same(
    what: str,
    pairs: Iterable[tuple[Node, Node]],
    matched: dict[Node, Node] | None = None,
    equal: Equal = _by_identity,
) -> None:
    """Raises if a graph that was recognised is not the one that is recorded now.

    Args:
        what: which recognised it.
        pairs, matched, equal: as of `first_difference`.

    Raises:
        TgcError: it names the operation and the line.
    """
    node = first_difference(pairs, {} if matched is None else matched, equal)
    if node is not None:
        raise TgcError(
            "validate", f"{what}: another graph was recognised than is recorded now",
            expect="the same operations on the same values",
            actual=f"they part at {node.label}, shape {node.shape}", site=node.site,
            hint="this is an error of tinygrad_cuda; TGC_FAST switches the fast path off",
        )  # fmt: skip


def _one_node(a: Node, b: Node) -> bool:
    """Whether two nodes of a graph are one, or equal: each read of a view may record its own."""
    return a is b or first_difference([(a, b)], {}) is None


def _one_value(one: Node, other: Node) -> bool:
    """Whether two nodes show one value that is there already, one of them perhaps pending."""
    storage = _storage_of(one)
    same = storage is not None and storage is _storage_of(other)
    return same and one.outputs == other.outputs and one.requires_grad is other.requires_grad


def _storage_of(node: Node) -> Any:
    """The memory of a value that is there already, behind a detach or a reshape to its shape."""
    while node.storage is None and (
        node.op is common.detach or (node.op is reshape and node.shape == node.sources[0].shape)
    ):
        node = node.sources[0]
    return node.storage


def _same_operation(one: Node, other: Node, equal: Equal) -> bool:
    """Whether two nodes do the same with their sources."""
    return (
        one.op is other.op
        and one.outputs == other.outputs
        and one.device is other.device
        and one.requires_grad is other.requires_grad
        and (
            one.storage is other.storage
            or _one_value(one, other)
            or (one.storage is not None and other.storage is not None and equal(one, other))
        )
        # A leaf without attributes stands for an argument: it is equal to itself alone.
        and (one.storage is not None or one.op.kind != "leaf" or bool(one.attributes))
        and len(one.sources) == len(other.sources)
        and one.attributes.keys() == other.attributes.keys()
        and all(
            name in NO_STRUCTURE or same_value(value, other.attributes[name])
            for name, value in one.attributes.items()
        )
    )


def same_value(a: Any, b: Any) -> bool:
    """Equality by which NaN is equal to itself, and 0.0 is not -0.0."""
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return repr(float(a)) == repr(float(b))
    return bool(type(a) is type(b) and a == b)
