"""Backward passes of a known structure, recorded again from templates: no rule is called.

A rule sees shapes, dtypes and attributes alone, so equal histories have equal gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import RawSite, user_site
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.graph.compare import require_same
from tinygrad_cuda.graph.gradient import gradient_site, history, recorded, spend
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node, gradient_mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.replay.subgraph_template import Deferred, SubgraphTemplate, Unfit

# Passes kept; all are forgotten when there are more.
CAPACITY = 1024
# None where there can be no template.
_known: dict[Any, BackwardTemplate | None] = {}
_whole: dict[Any, WholeBackwardTemplate | None] = {}


def templated_pass(
    outputs: Sequence[Node],
    seeds: Sequence[Node],
    wanted: Sequence[Node] | None,
    retain_graph: bool,
) -> dict[Node, Node]:
    """`gradient.plain_pass` for passes of which most have come before."""
    if settings.validate:
        return _validated(outputs, seeds, wanted, retain_graph)
    return _recognised(outputs, seeds, wanted, retain_graph)


def _validated(
    outputs: Sequence[Node],
    seeds: Sequence[Node],
    wanted: Sequence[Node] | None,
    retain_graph: bool,
) -> dict[Node, Node]:
    """The gradients as templates give them, once the rules have given the same.

    Raises:
        TgcError: they have not.
    """
    found = _recognised(outputs, seeds, wanted, True)
    with uninterrupted, gradient_mode(False):
        result, passed = recorded(history(outputs), outputs, seeds, wanted)
    pairs = [(found[node], g) for node, g in result.items() if node in found]
    require_same("a template of a backward pass", pairs)
    assert found.keys() == result.keys()
    if not retain_graph:
        spend(passed)
    return found


def _recognised(
    outputs: Sequence[Node],
    seeds: Sequence[Node],
    wanted: Sequence[Node] | None,
    retain_graph: bool,
) -> dict[Node, Node]:
    whole = WholeOccasion(outputs, seeds, wanted)
    if (whole_pass := whole.known()) is not None:
        return whole_pass(whole, retain_graph, None if retain_graph else user_site())
    order = history(outputs)
    occasion = Occasion(order, outputs, seeds, wanted) if order else None
    known = None if occasion is None else occasion.known()
    if known is None:
        if occasion is not None and occasion.key is None:
            occasion = None
        at = gradient_site if occasion is None else occasion.at
        with uninterrupted, gradient_mode(False):
            result, passed = recorded(order, outputs, seeds, wanted, at)
        known = None if occasion is None else occasion.made(result, passed)
    if occasion is not None and known is not None:
        # The first pass as all that follow: a plan sees from which templates its nodes are.
        result, passed = known(occasion.inputs)
        if whole.key is not None:
            whole.learn(occasion, known)
    if not retain_graph:
        spend(passed)
    return result


def forget() -> None:
    """Drops all templates."""
    _known.clear()
    _whole.clear()


class Occasion:
    """One backward pass: its structure, and the nodes that differ from one such pass to the next.

    Args:
        order: the history, sources first.
        outputs, seeds, wanted: as `gradient.backward` takes them.

    Attributes:
        key: equal for passes that record the same nodes; None if no template is to be made.
        inputs: every node that a rule could take, by place.
        sites: the lines of nodes recorded so far, with the places of the nodes they belong to.
    """

    def __init__(
        self,
        order: list[Node],
        outputs: Sequence[Node],
        seeds: Sequence[Node],
        wanted: Sequence[Node] | None,
    ) -> None:
        self.places: dict[Node, int] = {}
        self.inputs: list[Node] = []
        self.key: Any = None
        self.sites: dict[int, tuple[RawSite | None, int]] = {}
        self.device = outputs[0].device
        key = self._structure(order, seeds)
        if key is not None:
            places = self.places
            key.append(tuple([places.get(node) for node in outputs]))
            key.append(tuple([places[node] for node in seeds]))
            key.append(None if wanted is None else tuple([places.get(node) for node in wanted]))
            self.key = tuple(key)

    def _structure(self, order: list[Node], seeds: Sequence[Node]) -> list[Any] | None:
        places, inputs, device = self.places, self.inputs, self.device
        variable, custom = common.variable, common.custom
        key: list[Any] = [device]
        for node in order:
            op = node.op
            if op is custom and not isinstance(node.attributes["function"], common.GradientRule):
                return None
            if op is variable:
                key += (op, node.outputs)
            else:
                for source in node.sources:
                    if source not in places:
                        places[source] = len(inputs)
                        inputs.append(source)
                        key.append(source.outputs)
                attributes = node.attributes
                key += (
                    op,
                    op.gradient,
                    None if attributes is NO_ATTRIBUTES else tuple(attributes.items()),
                    tuple([places[source] for source in node.sources]),
                )
            places[node] = len(inputs)
            inputs.append(node)
        for seed in seeds:
            if seed.device is not device:
                return None
            if seed not in places:
                places[seed] = len(inputs)
                inputs.append(seed)
        return key

    def known(self) -> BackwardTemplate | None:
        """The template of such a pass; None if it must be recorded by the rules."""
        if self.key is None:
            return None
        try:
            found = _known.get(self.key, _missing)
        except TypeError:
            # An attribute that cannot be part of a key.
            found = None
        if found is None:
            self.key = None
        return None if found is _missing else found

    # Recording it in the ordinary way -----------------------------------------------------------

    def at(self, node: Node) -> RawSite | None:
        """The line of what is recorded for a node of the history."""
        site = gradient_site(node)
        self.sites[id(site)] = site, self.places[node]
        return site

    def made(self, result: dict[Node, Node], passed: list[Node]) -> BackwardTemplate | None:
        """The template of a pass that has just been recorded, for all that follow."""
        places = self.places
        lines: dict[int, int] = {}

        def line(node: Node) -> int:
            known = self.sites.get(id(node.site))
            if known is None or node.device is not self.device or node.requires_grad:
                raise Unfit(node.op.name)
            return lines.setdefault(known[1], len(lines))

        found = None
        try:
            template = SubgraphTemplate(self.inputs, list(result.values()), line)
            wanted, used = [[places[node] for node in nodes] for nodes in (result, passed)]
            names = [(place, self.inputs[place].label) for place in lines]
            found = BackwardTemplate(template, names, wanted, used)
        except Unfit:
            pass
        if len(_known) >= CAPACITY:
            _known.clear()
        _known[self.key] = found
        return found


_missing: Any = object()


class BackwardTemplate:
    """A backward pass as a template.

    Args:
        template: of all gradients that are asked for.
        lines: the places of the nodes whose lines its nodes carry, with their names.
        wanted: the places of the nodes whose gradients it gives.
        passed: the places of the nodes whose rules it stands for.
    """

    __slots__ = ("template", "lines", "wanted", "passed")

    def __init__(
        self,
        template: SubgraphTemplate,
        lines: list[tuple[int, str]],
        wanted: list[int],
        passed: list[int],
    ) -> None:
        self.template = template
        self.lines = lines
        self.wanted = wanted
        self.passed = passed

    def __call__(self, inputs: list[Node]) -> tuple[dict[Node, Node], list[Node]]:
        """The gradients by node, and the nodes that the pass has used."""
        template = self.template
        # As `gradient_site` has it; the names are those of the nodes' structure.
        lines = [
            site if (site := inputs[place].site) is None or len(site) == 3 else (*site, label)
            for place, label in self.lines
        ]
        nodes = template(inputs, inputs[0].device, lines)
        chosen = zip(self.wanted, template.chosen)
        return (
            {inputs[place]: nodes[found] for place, found in chosen},
            [inputs[place] for place in self.passed],
        )


# Through calls that are not recorded yet ----------------------------------------------------------


class WholeOccasion:
    """One backward pass through calls that wait: its structure, a call being one unit of it.

    Args:
        outputs, seeds, wanted: as `gradient.backward` takes them.

    Attributes:
        key: equal for passes that record the same nodes; None if there is no call on the way, or
            no template is to be made.
        units: results of calls and single nodes, by place, with what they are computed from.
        calls: those that wait, with the places of their results.
    """

    def __init__(
        self, outputs: Sequence[Node], seeds: Sequence[Node], wanted: Sequence[Node] | None
    ) -> None:
        self.places: dict[Node, int] = {}
        self.units: list[Node] = []
        self.calls: list[Deferred] = []
        self.key: Any = None
        self.device = outputs[0].device if outputs else None
        key = self._structure(outputs)
        if key is None or not self.calls:
            return
        places = self.places
        for seed in seeds:
            if seed.device is not self.device:
                return
            if seed not in places:
                places[seed] = len(self.units)
                self.units.append(seed)
        key.append(tuple([places.get(node) for node in outputs]))
        key.append(tuple([places[node] for node in seeds]))
        key.append(None if wanted is None else tuple([places.get(node) for node in wanted]))
        self.key = tuple(key)

    def _structure(self, outputs: Sequence[Node]) -> list[Any] | None:
        places, units, calls = self.places, self.units, self.calls
        variable, custom = common.variable, common.custom
        key: list[Any] = [self.device]
        stack = [node for node in outputs if node.requires_grad]
        while stack:
            node = stack[-1]
            if node in places:
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
                waiting = [s for s in sources if s.requires_grad and s not in places]
                if waiting:
                    stack += waiting
                    continue
            stack.pop()
            if op is variable:
                key += (op, node.outputs)
            else:
                for source in sources:
                    if source not in places:
                        places[source] = len(units)
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
                    key += (
                        op,
                        op.gradient,
                        None if attributes is NO_ATTRIBUTES else tuple(attributes.items()),
                    )
                key.append(tuple([places[source] for source in sources]))
            places[node] = len(units)
            units.append(node)
        return key

    def known(self) -> WholeBackwardTemplate | None:
        """The template of such a pass; None if its calls must be recorded first."""
        if self.key is None:
            return None
        try:
            found = _whole.get(self.key, _missing)
        except TypeError:
            found = None
        if found is None:
            self.key = None
        return None if found is _missing else found

    def learn(self, occasion: Occasion, pullback: BackwardTemplate) -> None:
        """Keeps the pass that has just been recorded, node by node, for all that follow."""
        if len(_whole) >= CAPACITY:
            _whole.clear()
        where = {node: (place, -1) for place, node in enumerate(self.units)}
        for number, call in enumerate(self.calls):
            for place, node in enumerate(call.expand()):
                where.setdefault(node, (number, place))
        found = None
        if pullback.template.heads is not None and all(node in where for node in occasion.inputs):
            found = WholeBackwardTemplate(pullback, [where[node] for node in occasion.inputs], self)
        _whole[self.key] = found


class WholeBackwardTemplate:
    """A backward pass as a template, from results of calls that wait and what they are computed of.

    Args:
        pullback: the pass, node by node.
        where: where its inputs are found: a unit and -1, or a call and a place among its nodes.
        occasion: a pass with this structure, its calls recorded.
    """

    __slots__ = ("pullback", "template", "lines", "wanted", "single", "ends", "inside", "_where")

    def __init__(
        self, pullback: BackwardTemplate, where: list[tuple[int, int]], occasion: WholeOccasion
    ) -> None:
        self.pullback = pullback
        self.template = pullback.template
        self._where = where
        # A call's nodes carry its result's line.
        ends: dict[int, int] = {}
        for number, call in enumerate(occasion.calls):
            for place, node in enumerate(occasion.units):
                if any(end() is node for end in call.ends):
                    ends[number] = place
        units = [place if inside < 0 else ends[place] for place, inside in where]
        self.lines = [(units[place], label) for place, label in pullback.lines]
        self.wanted = [units[place] for place in pullback.wanted]
        # Of the nodes whose rules it stands for: single ones, results of calls, nodes of calls.
        results = set(ends.values())
        self.single: list[int] = []
        self.ends: list[int] = []
        self.inside: list[list[int]] = [[] for _ in occasion.calls]
        for place in pullback.passed:
            unit, inside = where[place]
            if inside >= 0:
                self.inside[unit].append(inside)
            elif unit not in results:
                self.single.append(unit)
            else:
                self.ends.append(unit)
        for number, unit in ends.items():
            if unit in self.ends:
                self.inside[number].append(occasion.calls[number].origin.template.chosen[0])

    def expanded(self, call: Deferred) -> list[Node]:
        """All nodes of such a pass that waits; those of the calls that it reads are recorded."""
        units, calls = call.inputs, call.calls
        inputs = [
            units[place] if inside < 0 else calls[place].expand()[inside]
            for place, inside in self._where
        ]
        return self.template(inputs, call.device, self._lines(units))

    def _lines(self, units: Sequence[Node]) -> list[RawSite | None]:
        # As `gradient_site` has it; the names are those of the nodes' structure.
        return [
            site if (site := units[place].site) is None or len(site) == 3 else (*site, label)
            for place, label in self.lines
        ]

    def __call__(
        self, occasion: WholeOccasion, retain_graph: bool, line: RawSite | None
    ) -> dict[Node, Node]:
        """The gradients by node."""
        units, calls = occasion.units, tuple(occasion.calls)
        assert occasion.device is not None and self.template.heads is not None
        waiting = Deferred(self, tuple(units), occasion.device, (), calls)
        found = waiting.results(self.template.heads, self._lines(units))
        if not retain_graph:
            for call, places in zip(calls, self.inside):
                call.used = line, places
            for place in self.ends:
                units[place].spent = line
            for place in self.single:
                common.spend(units[place], line)
        return {units[place]: node for place, node in zip(self.wanted, found)}
