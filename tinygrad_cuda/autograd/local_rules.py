"""Tests the gradient rule of each recorded op alone, to name the one that is wrong.

The op is computed by its NumPy reference at the values that it had, and moved by a little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.base import BadIndex
from tinygrad_cuda.backend.cpu.rows import evaluate
from tinygrad_cuda.core.dtypes import float64
from tinygrad_cuda.core.errors import RawSite, describe_site
from tinygrad_cuda.graph.gradient import history
from tinygrad_cuda.graph.node import Node, gradient_mode, recorded_at, topological
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.creation import tensor

Array = np.ndarray[Any, Any]
# Steps of the differences: where one of them agrees, rounding or curvature spoiled the others.
STEPS = (1e-5, 1e-6, 1e-7)
PROBES = 3  # random directions in which the rule of each operand is tried
# Of the size of the terms that are added up; a central difference of float64 is far better.
TOLERANCE = 1e-5
# Of the size of a change: above it the two one-sided differences are those of a kink.
KINK = 1e-2


class WrongRule(NamedTuple):
    """A gradient rule that differs from differences of its op alone.

    Attributes:
        op: the name of the op, or of the Function.
        operand: which of its operands the gradient is for.
        site: the user's line that recorded it.
        analytic, numeric: a directional derivative by the rule and by differences.
        relation: what the rule gives instead, in words.
    """

    op: str
    operand: int
    site: RawSite | None
    analytic: float
    numeric: float
    relation: str

    def __str__(self) -> str:
        return (
            f"the rule of {self.op} for operand {self.operand} is wrong: {self.relation}\n"
            f"recorded at {describe_site(self.site)}"
        )


class RuleTests(NamedTuple):
    """What testing the rules of a graph showed.

    Attributes:
        tested: how many rules were compared.
        wrong: those that differ, the one nearest to the output first; one an op and line.
        untested: descriptions of nodes that could not be compared.
    """

    tested: int
    wrong: list[WrongRule]
    untested: list[str]


class Graph:
    """The nodes that outputs depend on, computed on the host by their references.

    Taken before they are realized, as a realized node drops its sources.
    """

    def __init__(self, outputs: Sequence[Node]) -> None:
        self._sources = {node: node.sources for node in topological(outputs)}
        self._values: dict[Node, Any] = {}

    def value(self, root: Node) -> Any:
        """A node's value; a tuple for several results."""
        values = self._values
        stack = [root]
        while stack:
            node = stack[-1]
            sources = self._sources.get(node, node.sources)
            if _stored(node):
                sources = ()
            waiting = [source for source in sources if source not in values]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            if node not in values:
                values[node] = _computed(node, [values[source] for source in sources])
        return values[root]

    def moved(self, roots: Sequence[Node], given: dict[Node, Any]) -> list[Any] | None:
        """Values of nodes where others have these; None if none of them depends on those."""
        values = dict(given)
        for node in self._between(roots, given):
            sources = self._sources.get(node, node.sources)
            if any(source in values for source in sources):
                operands = [values.get(s) if s in values else self.value(s) for s in sources]
                values[node] = _computed(node, operands)
        if not any(root in values for root in roots):
            return None
        return [values[root] if root in values else self.value(root) for root in roots]

    def _between(self, roots: Sequence[Node], given: dict[Node, Any]) -> list[Node]:
        """Nodes behind these, sources first, up to those whose values are given."""
        order: list[Node] = []
        seen = set(given)
        stack = [(root, False) for root in roots]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack += [(source, False) for source in self._sources.get(node, node.sources)]
        return order


def _stored(node: Node) -> bool:
    """Whether a value can be read; of several results a plan stores those that are used."""
    return node.storage is not None and len(node.outputs) == 1


def _computed(node: Node, sources: list[Any]) -> Any:
    if not sources and _stored(node):
        return registry.get(node.device).to_host(node.storage, node.shape, node.dtype)
    if node.op is common.custom:
        results = tuple(sources[: node.attributes["results"]])
        return results[0] if len(node.outputs) == 1 else results
    return evaluate(node, sources)


def checked_rules(graph: Graph, outputs: Sequence[Node]) -> RuleTests:
    """Compares the rules of all nodes that a backward pass from the outputs would ask.

    Args:
        graph: taken when the outputs were recorded.
        outputs: of a function.
    """
    order = history([node for node in outputs if node.requires_grad])
    used: dict[Node, set[int]] = {}
    for node in order:
        if node.op is common.output:
            used.setdefault(node.sources[0], set()).add(node.attributes["index"])
    tested, untested = 0, list[str]()
    wrong: dict[tuple[str, int, str], WrongRule] = {}
    for node in reversed(order):
        if node.op is common.variable or node.op is common.output:
            continue
        try:
            results = list(_Rule(graph, node, sorted(used.get(node, {0}))).compared())
        except (_Untestable, BadIndex) as reason:
            if node.op is not common.custom or "name" in node.attributes:
                untested.append(f"{node.label} at {describe_site(node.site)}: {reason}")
            continue
        tested += len(results)
        for rule in filter(None, results):
            wrong.setdefault((rule.op, rule.operand, describe_site(rule.site)), rule)
    return RuleTests(tested, list(wrong.values()), untested)


class _Untestable(Exception):
    """A node whose rule cannot be compared, with the reason."""


class _Rule:
    """The rules of one node at the values that its sources have.

    Args:
        graph: that has these values.
        node: of the recorded history.
        indices: which of its results are used.
    """

    def __init__(self, graph: Graph, node: Node, indices: list[int]) -> None:
        self.graph, self.node, self.indices = graph, node, indices
        self.sources = graph._sources.get(node, node.sources)
        first = node.attributes["results"] if node.op is common.custom else 0
        self.operands = self.sources[first:]
        self.results = self.sources[:first]
        self.values = [graph.value(source) for source in self.operands]
        self.random = np.random.default_rng(0)
        types = {node.outputs[index][1] for index in indices}
        types |= {source.dtype for source in self.operands if source.requires_grad}
        if types != {float64}:
            raise _Untestable("it is not float64")

    def compared(self) -> Iterable[WrongRule | None]:
        """For each operand that a gradient reaches the error of its rule, or None."""
        for position, source in enumerate(self.operands):
            if source.requires_grad:
                yield self._compared(position)

    def _compared(self, position: int) -> WrongRule | None:
        worst: tuple[float, float] | None = None
        ratios = []
        for _ in range(PROBES):
            gaps = self._probe(position)
            if gaps is None:
                continue
            analytic, numeric, scale = gaps
            ratios.append(analytic / numeric if numeric else np.inf)
            if not abs(analytic - numeric) <= TOLERANCE * scale:
                worst = worst or (analytic, numeric)
        if not ratios:
            raise _Untestable("its operands lie on a kink")
        if worst is None:
            return None
        label = self.node.label
        return WrongRule(label, position, self.node.site, *worst, _relation(ratios))

    def _probe(self, position: int) -> tuple[float, float, float] | None:
        """Both numbers of one random direction at the step where they agree best."""
        value = self.values[position]
        finite = np.isfinite(value)
        size = np.where(finite, np.maximum(1, np.abs(value)), 0)
        direction = self.random.standard_normal(value.shape) * size
        weights = [
            self.random.standard_normal(self.node.outputs[index][0]) for index in self.indices
        ]
        best: tuple[float, float, float] | None = None
        for step in STEPS:
            probe = self._at_step(position, step * direction, weights)
            if probe is not None and (best is None or _excess(probe) < _excess(best)):
                best = probe
        return best

    def _at_step(
        self, position: int, delta: Array, weights: list[Array]
    ) -> tuple[float, float, float] | None:
        value = self.values[position]
        above, middle, below = (self._outputs(position, value + k * delta) for k in (1, 0, -1))
        numeric, size, smooth = 0.0, 0.0, []
        for w, *ends in zip(weights, above, middle, below):
            mask, change = _smooth(w, *ends)
            smooth.append(mask)
            numeric += float((mask * change).sum())
            size += float(np.square(mask * change).sum())
        if not any(mask.any() for mask in smooth):
            return None
        gradient = self._gradient(position, smooth)
        terms = np.where(delta == 0, 0, gradient) * delta
        size += float(np.square(terms).sum())
        return float(terms.sum()), numeric, float(np.sqrt(size))

    def _outputs(self, position: int, value: Array) -> list[Array]:
        """The used results where one operand has another value."""
        if self.results:
            given = {s: v for s, v in zip(self.operands, self.values) if s.requires_grad}
            given[self.operands[position]] = value
            results = self.graph.moved(self.results, given)
            if results is None:
                raise _Untestable("its forward left the recorded graph")
        else:
            operands = list(self.values)
            operands[position] = value
            result = evaluate(self.node, operands)
            results = list(result) if len(self.node.outputs) > 1 else [result]
        return [np.asarray(results[index]) for index in self.indices]

    def _gradient(self, position: int, weights: list[Array]) -> Array:
        """What the rule makes of these cotangents, as an array."""
        node = self.node
        gs: list[Any] = [None] * len(node.outputs)
        for index, w in zip(self.indices, weights):
            gs[index] = tensor(w, dtype=float64, device=node.device).node
        with gradient_mode(False), recorded_at(node.site):
            part = self._part(position, gs)
        if part is None:
            return np.zeros_like(self.values[position])
        return np.asarray(self.graph.value(part))

    def _part(self, position: int, gs: list[Any]) -> Node | None:
        node = self.node
        if node.op is common.custom:
            return common.function_of(node)(*gs)[position]
        rules = node.op.gradient
        if isinstance(rules, str):
            raise _Untestable(rules)
        rule: Callable[..., Any] | None = rules[position] if isinstance(rules, tuple) else rules
        if rule is None:
            return None
        g = tuple(gs) if len(gs) > 1 else gs[0]
        made: Node | None = rule(g, node, *self.sources, **node.attributes)
        return made


def _smooth(w: Array, up: Array, here: Array, down: Array) -> tuple[Array, Array]:
    """The weights without results that are not finite or lie on a kink, and half the change."""
    finite = np.isfinite(up) & np.isfinite(here) & np.isfinite(down)
    up, here, down = (np.where(finite, part, 0) for part in (up, here, down))
    rise, fall = up - here, here - down
    straight = np.abs(rise - fall) <= KINK * (np.abs(rise) + np.abs(fall))
    return np.where(finite & straight, w, 0), (up - down) / 2


def _excess(probe: tuple[float, float, float]) -> float:
    analytic, numeric, scale = probe
    gap = abs(analytic - numeric) - TOLERANCE * scale
    return np.inf if np.isnan(gap) else gap / (scale or 1)


def _relation(ratios: list[float]) -> str:
    """What a rule gives for what it should give, from the ratios of several directions."""
    if not np.allclose(ratios, ratios[0], rtol=1e-4, atol=1e-6):
        return "it is not the derivative, nor a multiple of it"
    ratio = ratios[0]
    if abs(ratio) < 1e-6:
        return "it gives zero"
    if abs(ratio + 1) < 1e-4:
        return "its sign is flipped"
    return f"it gives {ratio:.6g} times the derivative"
