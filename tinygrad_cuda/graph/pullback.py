"""Backward passes of a known structure, recorded again from templates: no rule is called.

A rule sees shapes, dtypes and attributes alone, so equal histories have equal gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.errors import RawSite
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.template import Template, Unfit

# Passes kept; all are forgotten when there are more.
CAPACITY = 1024
# None where there can be no template.
_known: dict[Any, Pullback | None] = {}


def gradient_site(node: Node) -> RawSite | None:
    """Nodes of the gradient carry the line of the forward node, and its name."""
    site = node.site
    return site if site is None or len(site) == 3 else (*site, node.label)


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
            if op is custom and not isinstance(node.attributes["function"], common.Rule):
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

    def known(self) -> Pullback | None:
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

    def made(self, result: dict[Node, Node], passed: list[Node]) -> Pullback | None:
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
            template = Template(self.inputs, list(result.values()), line)
            wanted, used = [[places[node] for node in nodes] for nodes in (result, passed)]
            names = [(place, self.inputs[place].label) for place in lines]
            found = Pullback(template, names, wanted, used)
        except Unfit:
            pass
        if len(_known) >= CAPACITY:
            _known.clear()
        _known[self.key] = found
        return found


_missing: Any = object()


class Pullback:
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
        template: Template,
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
