"""Reverse mode over nodes; it knows no op by name besides those that carry autograd itself.

A gradient rule builds nodes from nodes, so higher derivatives need nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol
from weakref import WeakSet

from tinygrad_cuda.core.errors import GradientError, RawSite, describe_site, user_site
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.core.observer import watched
from tinygrad_cuda.graph.node import Node, gradient_mode, made_by, recorded_at
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.graph.versions import Check, versions

Cotangents = dict[Node, Any]

Watcher = Callable[[Node], "Node | None"]

# Nodes with watchers. The list itself belongs to the node, since a hook often refers to the
# Tensor that it watches: such a cycle can be collected.
_watched: WeakSet[Node] = WeakSet()


class Last:
    """A watcher that comes after the others and sees the cotangent as they leave it."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher

    def __call__(self, g: Node) -> Node | None:
        return self.watcher(g)


def watch(node: Node, watcher: Watcher) -> list[Watcher]:
    """Shows the node's whole cotangent to `watcher`, which may replace it (tensor hooks).

    Returns:
        All watchers of the node, in the order of their calls.
    """
    if node not in _watched:
        _watched.add(node)
        node.watchers = []
    place = len(node.watchers)
    while place and not isinstance(watcher, Last) and isinstance(node.watchers[place - 1], Last):
        place -= 1
    node.watchers.insert(place, watcher)
    return node.watchers


def ends_watched(node: Node) -> bool:
    """Whether a `Last` watcher sees the node's cotangent."""
    return node in _watched and any(isinstance(watcher, Last) for watcher in node.watchers)


def history(outputs: Iterable[Node]) -> list[Node]:
    """All nodes with history that the outputs depend on, sources before consumers."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [node for node in outputs if node.requires_grad]
    while stack:
        node = stack[-1]
        if node in seen:
            stack.pop()
            continue
        if node.op is not common.variable:
            if node.spent is not None:
                raise _spent_error(node)
            waiting = [s for s in node.sources if s.requires_grad and s not in seen]
            if waiting:
                stack += waiting
                continue
        seen.add(node)
        order.append(node)
        stack.pop()
    return order


def backward(
    outputs: Sequence[Node],
    seeds: Sequence[Node],
    wanted: Sequence[Node] | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool = False,
) -> dict[Node, Node]:
    """Cotangents of nodes from the cotangents of outputs.

    Args:
        outputs: nodes to differentiate.
        seeds: their cotangents, of the same shapes and dtypes.
        wanted: nodes whose cotangents are asked for; None for all variables reached.
        create_graph: record history for the gradient itself.
        retain_graph: leave the history for another pass.

    Returns:
        The cotangent of each wanted node that the outputs depend on.

    Raises:
        GradientError: an op between them has no gradient, or its history is spent.
    """
    if watched.observer is None:
        return _backward(outputs, seeds, wanted, create_graph, retain_graph)
    with watched.observer.span("record", "backward"):
        return _backward(outputs, seeds, wanted, create_graph, retain_graph)


def _backward(
    outputs: Sequence[Node], seeds: Sequence[Node], wanted: Sequence[Node] | None,
    create_graph: bool, retain_graph: bool,
) -> dict[Node, Node]:  # fmt: skip
    if not (create_graph or _watched or versions.on):
        return plain_pass(outputs, seeds, wanted, retain_graph)
    order = history(outputs)
    with uninterrupted, gradient_mode(create_graph):
        result, passed = recorded(order, outputs, seeds, wanted)
    if not retain_graph:
        spend(passed)
        for node in passed:
            if node in _watched:
                # Nothing more will come; a hook that refers to its own Tensor lets go of it.
                node.watchers.clear()
    return result


class PlainPass(Protocol):
    """A pass that records no history, which no hook watches."""

    def __call__(
        self,
        outputs: Sequence[Node],
        seeds: Sequence[Node],
        wanted: Sequence[Node] | None,
        retain_graph: bool,
    ) -> dict[Node, Node]:
        """As `backward`."""
        ...


def pass_by_rules(
    outputs: Sequence[Node],
    seeds: Sequence[Node],
    wanted: Sequence[Node] | None,
    retain_graph: bool,
) -> dict[Node, Node]:
    """A plain pass in which each node's rule is called."""
    with uninterrupted, gradient_mode(False):
        result, passed = recorded(history(outputs), outputs, seeds, wanted)
    if not retain_graph:
        spend(passed)
    return result


# The hook of what has seen such passes before.
plain_pass: PlainPass = pass_by_rules


def spend(passed: Iterable[Node]) -> None:
    """Notes that a pass has used the history of these nodes."""
    line = user_site()
    for node in passed:
        common.spend(node, line)


def gradient_site(node: Node) -> RawSite | None:
    """Nodes of the gradient carry the line of the forward node, and its name."""
    site = node.site
    return site if site is None or len(site) == 3 else (*site, node.label)


def recorded(
    order: list[Node],
    outputs: Sequence[Node],
    seeds: Sequence[Node],
    wanted: Sequence[Node] | None,
    at: Callable[[Node], RawSite | None] = gradient_site,
) -> tuple[dict[Node, Node], list[Node]]:
    """The cotangents that are asked for, by the rules, and the nodes whose rules were called.

    Args:
        order: the history, sources first.
        outputs, seeds, wanted: as `backward` takes them.
        at: gives the line of what is recorded for a node.
    """
    needed = _needed(order, wanted)
    cotangents: Cotangents = {}
    passed: list[Node] = []
    result: dict[Node, Node] = {}
    keep = set(wanted or ())
    watching = bool(_watched)
    check = Check(order) if versions.on else None
    for node, seed in zip(outputs, seeds):
        _accumulate(cotangents, node, seed)
    for node in reversed(order):
        # A wanted node is an end: what lies behind it stays for another pass.
        passes = node.op is not common.variable and any(map(needed.__contains__, node.sources))
        if check is not None and passes:
            check.enter(node)
        g = cotangents.pop(node, None)
        if g is None:
            continue
        if watching and node in _watched:
            g = _shown(node, g)
        if node in keep or (wanted is None and node.op is common.variable):
            result[node] = g
        if passes:
            with recorded_at(at(node)):
                _propagate(node, g, cotangents, needed, check)
            passed.append(node)
    return result, passed


def _shown(node: Node, g: Node) -> Node:
    for watcher in list(node.watchers):
        replaced = watcher(g)
        g = g if replaced is None else replaced
    return g


def _needed(order: list[Node], wanted: Sequence[Node] | None) -> set[Node]:
    """Nodes through which a wanted node is reached."""
    if wanted is None:
        return set(order)
    targets = set(wanted)
    needed: set[Node] = set()
    for node in order:
        if node in targets or any(source in needed for source in node.sources):
            needed.add(node)
    return needed


def _accumulate(cotangents: Cotangents, node: Node, g: Node) -> None:
    old = cotangents.get(node)
    cotangents[node] = g if old is None else elementwise.add(old, g)


def _propagate(
    node: Node, g: Any, cotangents: Cotangents, needed: set[Node], check: Check | None
) -> None:
    op, sources = node.op, node.sources
    if op is common.output:
        _accumulate_result(cotangents, sources[0], node.attributes["index"], g)
        return
    if op is common.custom:
        first = node.attributes["results"]
        gs = g if isinstance(g, list) else [g]
        results = common.function_of(node)(*gs)
        for number, (source, part) in enumerate(zip(sources[first:], results, strict=True)):
            if part is not None and source in needed:
                if check is not None and check.named(node):
                    part = _checked(check, node, gs, part, number)
                _accumulate(cotangents, source, part)
        return
    if isinstance(op.gradient, str):
        raise GradientError(
            op.name,
            "the gradient does not exist",
            expect="an op with a gradient, since its input requires one",
            actual=f"{op.gradient}\nneeded by backward at {describe_site(user_site())}",
            site=node.site,
            hint="detach() its input if no gradient should pass",
        )
    rules = op.gradient if isinstance(op.gradient, tuple) else (op.gradient,) * len(sources)
    for number, (source, rule) in enumerate(zip(sources, rules, strict=True)):
        if rule is None or source not in needed:
            continue
        part = rule(tuple(g) if isinstance(g, list) else g, node, *sources, **node.attributes)
        if part is not None:
            if check is not None:
                part = _checked(check, node, g if isinstance(g, list) else (g,), part, number)
            _accumulate(cotangents, source, part)


def _checked(check: Check, node: Node, gs: Iterable[Any], part: Node, operand: int) -> Node:
    """What the rule of a node has made for an operand, and all that it depends on."""
    check.read(node, gs, part, operand)
    for behind in check.behind(node, operand):
        part = common.with_second_history(part, behind)
        check.belongs(part, node, operand)
    return part


def _accumulate_result(cotangents: Cotangents, node: Node, index: int, g: Node) -> None:
    """Cotangents of a node with several results wait in a list, one entry a result."""
    if node.op is common.custom and len(node.outputs) == 1:
        _accumulate(cotangents, node, g)
        return
    gs = cotangents.setdefault(node, [None] * len(node.outputs))
    gs[index] = g if gs[index] is None else elementwise.add(gs[index], g)


def _spent_error(node: Node) -> GradientError:
    return GradientError(
        "backward",
        "the history was already used by another backward pass",
        expect="a history that no pass has used yet",
        actual=f"{made_by(node)}\nwas used by the pass at {describe_site(node.spent)}",
        hint="pass retain_graph=True to the first of the two passes",
    )
