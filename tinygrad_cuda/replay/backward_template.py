"""Backward passes of a recorded structure, recorded again from templates: no rule is called.

A rule sees shapes, dtypes and attributes alone, so equal histories have equal gradients.
Without it a plain step of lenet takes 272 % longer (H200).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import RawSite, user_site
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.graph.compare import require_same
from tinygrad_cuda.graph.gradient import gradient_site, history, pass_by_rules, recorded, spend
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node, gradient_mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.replay.subgraph_template import Deferred, SubgraphTemplate, Unfit

# Templates at most; with one more, all are dropped.
CAPACITY = 1024
# None where there can be no template.
_templates: dict[Any, BackwardTemplate | None] = {}
_missing: Any = object()
Nodes = Sequence[Node]


def templated_pass(
    outputs: Nodes, seeds: Nodes, wanted: Nodes | None, retain_graph: bool
) -> dict[Node, Node]:
    """`gradient.plain_pass` for passes of which most have come before."""
    gradients = _validated if settings.validate else _recognised
    return gradients(outputs, seeds, wanted, retain_graph)


def _validated(
    outputs: Nodes, seeds: Nodes, wanted: Nodes | None, retain_graph: bool
) -> dict[Node, Node]:
    """The gradients as templates give them, once the rules have given the same.

    Raises:
        TgcError: they have not.
    """
    recognised = _recognised(outputs, seeds, wanted, True)
    order = history(outputs)
    with uninterrupted, gradient_mode(False):
        result, passed = recorded(order, outputs, seeds, wanted)
    pairs = [(recognised[node], g) for node, g in result.items() if node in recognised]
    given = {id(node.storage) for part in order for node in (part, *part.sources)}
    given |= {id(seed.storage) for seed in seeds}
    require_same("a template of a backward pass", pairs, equal=partial(_equal_on_host, given))
    assert recognised.keys() == result.keys()
    if not retain_graph:
        spend(passed)
    return recognised


def _equal_on_host(given: set[int], one: Node, other: Node) -> bool:
    """Whether two values that rules computed on the host, each recording its own, are equal.

    Args:
        given: ids of the storages that were there before, which must be the same.
    """
    if id(one.storage) in given or id(other.storage) in given:
        return False
    backend = registry.get(one.device)
    arrays = (backend.to_host(node.storage, node.shape, node.dtype) for node in (one, other))
    a, b = (array.tobytes() for array in arrays)
    return a == b


def _recognised(
    outputs: Nodes, seeds: Nodes, wanted: Nodes | None, retain_graph: bool
) -> dict[Node, Node]:
    occasion = Occasion(outputs, seeds, wanted)
    template = occasion.template()
    if template is None:
        return pass_by_rules(outputs, seeds, wanted, retain_graph)
    if template is not _missing:
        if occasion.calls and template.heads is not None:
            return template.deferred(occasion, retain_graph)
        return template.recorded(occasion, retain_graph)
    order = history(outputs)
    sites = _Sites()
    with uninterrupted, gradient_mode(False):
        result, passed = recorded(order, outputs, seeds, wanted, sites.at)
    template = occasion.learn(order, result, passed, sites)
    if template is not None:
        # The first pass as all that follow: a plan sees from which templates its nodes are.
        return template.recorded(occasion, retain_graph)
    if not retain_graph:
        spend(passed)
    return result


def forget() -> None:
    """Drops all templates."""
    _templates.clear()


class _Sites:
    """The lines of what is recorded, with the nodes of the history that they belong to."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[RawSite | None, Node]] = {}

    def at(self, node: Node) -> RawSite | None:
        """The line of what is recorded for a node of the history."""
        site = gradient_site(node)
        self._of[id(site)] = site, node
        return site

    def node(self, part: Node) -> Node | None:
        """For which node something was recorded."""
        entry = self._of.get(id(part.site))
        return None if entry is None else entry[1]


class Occasion:
    """One backward pass: its structure, a call that waits being one unit of it.

    Args:
        outputs, seeds, wanted: as `gradient.backward` takes them.

    Attributes:
        key: equal for passes that record the same nodes; None if no template is to be made.
        units: results of calls and single nodes, by number, with what they are computed from.
        calls: those that wait.
    """

    def __init__(self, outputs: Nodes, seeds: Nodes, wanted: Nodes | None) -> None:
        self.numbers: dict[Node, int] = {}
        self.units: list[Node] = []
        self.calls: list[Deferred] = []
        self.seeds = seeds
        self.key: Any = None
        self.device = outputs[0].device if outputs else None
        key = self._structure(outputs)
        if key is None or not self.units:
            return
        numbers = self.numbers
        for seed in seeds:
            if seed.device is not self.device:
                return
            if seed not in numbers:
                numbers[seed] = len(self.units)
                self.units.append(seed)
        key.append(tuple([numbers.get(node) for node in outputs]))
        key.append(tuple([numbers[node] for node in seeds]))
        key.append(None if wanted is None else tuple([numbers.get(node) for node in wanted]))
        self.key = tuple(key)

    def _structure(self, outputs: Nodes) -> list[Any] | None:
        numbers, units, calls = self.numbers, self.units, self.calls
        variable, custom = common.variable, common.custom
        key: list[Any] = [self.device]
        stack = [node for node in outputs if node.requires_grad]
        while stack:
            node = stack[-1]
            if node in numbers:
                stack.pop()
                continue
            op, piece = node.op, node.piece
            call: Deferred | None = None
            sources: tuple[Node, ...] = ()
            if op is not variable:
                if node.spent is not None:
                    return None
                if type(piece) is Deferred:
                    call = piece
                    sources = piece.inputs
                else:
                    sources = node.sources
                waiting = [s for s in sources if s.requires_grad and s not in numbers]
                if waiting:
                    stack += waiting
                    continue
            stack.pop()
            if op is variable:
                key += (op, node.outputs)
            else:
                for source in sources:
                    if source not in numbers:
                        numbers[source] = len(units)
                        units.append(source)
                        key.append(source.outputs)
                if call is not None:
                    calls.append(call)
                    key += (call.origin, call.origin.rules())
                elif op is custom and not isinstance(
                    node.attributes["function"], common.GradientRule
                ):
                    return None
                else:
                    attributes = node.attributes
                    described = None if attributes is NO_ATTRIBUTES else tuple(attributes.items())
                    key += (op, op.gradient, described)
                key.append(tuple([numbers[source] for source in sources]))
            numbers[node] = len(units)
            units.append(node)
        return key

    def template(self) -> BackwardTemplate | None:
        """The template of such a pass; `_missing` if it is to be made, None if it cannot be."""
        if self.key is None:
            return None
        try:
            template: BackwardTemplate | None = _templates.get(self.key, _missing)
        except TypeError:
            # An attribute that cannot be part of a key.
            return None
        return template

    def learn(
        self, order: list[Node], result: dict[Node, Node], passed: list[Node], sites: _Sites
    ) -> BackwardTemplate | None:
        """The template of a pass that the rules have just recorded, for all that follow.

        Args:
            order: its history, node by node: its calls are recorded.
            result, passed: as of `gradient.recorded`.
            sites: the lines of what was recorded.
        """
        # What a rule could take.
        taken: dict[Node, None] = {}
        for node in order:
            taken |= dict.fromkeys(node.sources if node.op is not common.variable else ())
            taken[node] = None
        inputs = [*(taken | dict.fromkeys(self.seeds))]
        numbers = {node: index for index, node in enumerate(inputs)}
        where = {node: (index, -1) for index, node in enumerate(self.units)}
        for number, call in enumerate(self.calls):
            for index, node in enumerate(call.expand()):
                where.setdefault(node, (number, index))
        lines: dict[int, int] = {}

        def line(part: Node) -> int:
            node = sites.node(part)
            if node is None or part.device is not self.device or part.requires_grad:
                raise Unfit(part.op.name)
            return lines.setdefault(numbers[node], len(lines))

        learned = None
        try:
            template = SubgraphTemplate(inputs, list(result.values()), line)
            names = [(index, inputs[index].label) for index in lines]
            ends = [numbers[node] for node in result], [numbers[node] for node in passed]
            learned = BackwardTemplate(template, [where[n] for n in inputs], names, ends, self)
        except Unfit:
            pass
        if len(_templates) >= CAPACITY:
            _templates.clear()
        _templates[self.key] = learned
        return learned


class BackwardTemplate:
    """A backward pass as a template.

    Args:
        template: of all gradients that are asked for, node by node.
        where: the origin of its inputs: a unit and -1, or a call and an index among its nodes.
        lines: the indices of the nodes whose lines its nodes carry, with their names.
        ends: the indices of the nodes whose gradients it gives, and of those whose rules it stands
            for.
        occasion: a pass with this structure, its calls recorded.
    """

    def __init__(
        self,
        template: SubgraphTemplate,
        where: list[tuple[int, int]],
        lines: list[tuple[int, str]],
        ends: tuple[list[int], list[int]],
        occasion: Occasion,
    ) -> None:
        self.template, self._where = template, where
        self.heads, self.chosen = template.heads, template.chosen
        wanted, self.passed = ends
        # A call's nodes carry its result's line.
        results: dict[int, int] = {}
        numbers = occasion.numbers
        for number, call in enumerate(occasion.calls):
            own = [numbers[end] for reference in call.ends if (end := reference()) in numbers]
            if own:
                results[number] = max(own)
        units = [index if inside < 0 else results[index] for index, inside in where]
        self.lines = [(units[index], label) for index, label in lines]
        self.wanted = [units[index] for index in wanted]
        # Of the nodes whose rules it stands for: single ones, results of calls, nodes of calls.
        self.single: list[int] = []
        self.ends: list[int] = []
        self.inside: list[list[int]] = [[] for _ in occasion.calls]
        for index in self.passed:
            unit, inside = where[index]
            if inside >= 0:
                self.inside[unit].append(inside)
            elif unit not in results.values():
                self.single.append(unit)
            else:
                self.ends.append(unit)
        for number, unit in results.items():
            if unit in self.ends:
                self.inside[number].append(occasion.calls[number].origin.chosen[0])

    def expanded(self, call: Deferred) -> list[Node]:
        """All nodes of such a pass that waits; those of the calls that it reads are recorded."""
        inputs = self._inputs(call.inputs, call.calls)
        return self.template(inputs, call.device, self._lines(call.inputs))

    def _inputs(self, units: Nodes, calls: Sequence[Deferred]) -> list[Node]:
        return [
            units[index] if inside < 0 else calls[index].expand()[inside]
            for index, inside in self._where
        ]

    def _lines(self, units: Nodes) -> list[RawSite | None]:
        # As `gradient_site` has it; the names are those of the nodes' structure.
        return [
            site if (site := units[index].site) is None or len(site) == 3 else (*site, label)
            for index, label in self.lines
        ]

    def recorded(self, occasion: Occasion, retain_graph: bool) -> dict[Node, Node]:
        """The gradients by node, all nodes recorded at once."""
        units, device = occasion.units, occasion.device
        assert device is not None
        inputs = self._inputs(units, occasion.calls)
        nodes = self.template(inputs, device, self._lines(units))
        if not retain_graph:
            spend([inputs[index] for index in self.passed])
        chosen = zip(self.wanted, self.chosen)
        return {units[index]: nodes[position] for index, position in chosen}

    def deferred(self, occasion: Occasion, retain_graph: bool) -> dict[Node, Node]:
        """The gradients by node, whose sources are recorded when somebody looks at them."""
        units, calls = occasion.units, tuple(occasion.calls)
        assert occasion.device is not None
        waiting = Deferred(self, tuple(units), occasion.device, (), calls)
        results = waiting.results(self._lines(units))
        if not retain_graph:
            line = user_site()
            for call, positions in zip(calls, self.inside):
                call.used = line, positions
            for index in self.ends:
                units[index].spent = line
            for index in self.single:
                common.spend(units[index], line)
        return {units[index]: node for index, node in zip(self.wanted, results)}
