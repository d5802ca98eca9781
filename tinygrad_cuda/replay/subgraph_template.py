"""A piece of graph as a flat list, recorded again for other sources without any rule or check.

It holds no node: only ops, attributes, outputs, and the position of each node's sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from weakref import ref

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import RawSite
from tinygrad_cuda.core.trees import picking
from tinygrad_cuda.graph.node import Node, Op, Outputs, ResultNode, node_made, topological
from tinygrad_cuda.graph.ops import common, indexing

Pick = Callable[[list[Node]], tuple[Node, ...]]
# Op, sources, attributes, outputs, whether it has history, and which of the given lines is its.
Step = tuple[Op, Pick, dict[str, Any], Outputs, bool, int]


class Unfit(Exception):
    """A graph that cannot be recorded from a list: it depends on more than its inputs."""


class SubgraphTemplate:
    """What computes some nodes from others.

    Args:
        inputs: where it begins; each a node of its own.
        results: what it gives; may be among the inputs.
        line: which of the lines given to a call a node carries.

    Attributes:
        length: how many nodes it records.
        checks: the positions, among all nodes, of index checks, with their codes: each call has a
            code of its own.
        heads: of each result what a node has besides its sources; None where a result cannot be
            there before the others, since some of them read it, or it is an input.

    Raises:
        Unfit: it contains a value, a function, or a leaf that arrives from elsewhere.
    """

    __slots__ = ("steps", "chosen", "length", "checks", "heads", "_ruled")

    def __init__(
        self,
        inputs: Sequence[Node],
        results: Sequence[Node],
        line: Callable[[Node], int] = lambda node: 0,
    ) -> None:
        numbers = {node: number for number, node in enumerate(inputs)}
        self.steps: list[Step] = []
        self.checks: dict[int, int] = {}
        made: list[Node] = []
        for node in topological(results, stop=numbers.__contains__):
            if node in numbers:
                continue
            op = node.op
            is_rule = op is not common.custom or isinstance(
                node.attributes["function"], common.GradientRule
            )
            if op in _FOREIGN or not is_rule or node.storage is not None or node.spent is not None:
                raise Unfit(op.name)
            if op in indexing.CHECKS:
                self.checks[len(numbers)] = node.attributes["code"]
            elif op.arguments:
                raise Unfit(op.name)
            pick = picking([numbers[source] for source in node.sources])
            numbers[node] = len(numbers)
            made.append(node)
            step = op, pick, node.attributes, node.outputs, node.requires_grad, line(node)
            self.steps.append(step)
        self.chosen = [numbers[node] for node in results]
        self.length = len(made)
        ends = set(made).difference(*[node.sources for node in made])
        self.heads: Any = None
        if len(set(results)) == len(results) and set(results) == ends:
            self.heads = [
                (n.op, n.attributes, n.outputs, *n.outputs[0], n.requires_grad, line(n))
                for n in results
            ]
        self._ruled = tuple(dict.fromkeys(node.op for node in made if node.requires_grad))

    def rules(self) -> tuple[Any, ...]:
        """The gradients of its ops: part of what says how a backward pass through it looks."""
        return tuple(map(_gradient_of, self._ruled))

    def expanded(self, call: Deferred) -> list[Node]:
        """All nodes of a call that waits."""
        return self([*call.inputs], call.device, call.lines)

    def __call__(
        self, inputs: list[Node], device: Device, lines: Sequence[RawSite | None]
    ) -> list[Node]:
        """Records all its nodes for other inputs; they come after these."""
        nodes = inputs.copy()
        for op, pick, attributes, outputs, needs, line in self.steps:
            made = node_made(op, pick(nodes), attributes, outputs, device, needs, lines[line])
            nodes.append(made)
        return nodes


_gradient_of = attrgetter("gradient")
# Values, and cells' own nodes.
_FOREIGN = frozenset((common.buffer, common.variable))


# Calls that wait ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Deferred:
    """A call of a template whose nodes are recorded only when somebody looks at them.

    Its results are there, each a node with all but its sources; they refer to the call, and it to
    them weakly, so that there is no cycle. Who reads a result's sources has all nodes recorded, and
    what is there then is what would have been recorded at once. A plan lookup does not read them.

    Args:
        origin: a `SubgraphTemplate`, or a backward pass's: both have `heads` and `chosen`, and give
            all nodes by `expanded`.
        inputs: the nodes from which it begins.
        device: where.
        lines: those that its nodes carry.
        calls: other calls whose inner nodes it reads.

    Attributes:
        codes: of index checks, with their positions.
        ends: the results, weakly.
        used: the backward pass that used its history: its line, and the indices it has passed.
    """

    origin: Any
    inputs: tuple[Node, ...]
    device: Device
    lines: Sequence[RawSite | None]
    calls: tuple[Deferred, ...] = ()
    codes: Sequence[tuple[int, int]] = ()
    ends: Sequence[ref[Node]] = ()
    used: tuple[RawSite | None, Sequence[int]] | None = None
    _nodes: list[Node] | None = None

    def results(self, lines: Sequence[RawSite | None]) -> list[Node]:
        """The results, in the order of the template's `heads`, with their lines."""
        nodes: list[Node] = []
        add, new, device = nodes.append, object.__new__, self.device
        for op, attributes, outputs, shape, dtype, needs, line in self.origin.heads:
            node: Node = new(ResultNode)
            node.op, node.attributes, node.outputs = op, attributes, outputs
            node.shape, node.dtype, node.device = shape, dtype, device
            node.requires_grad, node.site, node.piece = needs, lines[line], self
            node.storage = node.spent = None
            add(node)
        self.ends = list(map(ref, nodes))
        return nodes

    def expand(self) -> list[Node]:
        """Records its nodes, once: the inputs first, then those of the template.

        They stay as long as the call does, since each call that reads them asks by itself.
        """
        if self._nodes is not None:
            return self._nodes
        nodes: list[Node] = self.origin.expanded(self)
        for index, code in self.codes:
            node = nodes[index]
            node.attributes = {**node.attributes, "code": code}
        if self.used is not None:
            line, indices = self.used
            for index in indices:
                common.spend(nodes[index], line)
        for index, reference in zip(self.origin.chosen, self.ends):
            end = reference()
            if end is not None:
                if end.storage is None:
                    made = nodes[index]
                    end.sources, end.attributes = made.sources, made.attributes
                    end.piece = None
                nodes[index] = end
        self._nodes = nodes
        self.inputs = self.calls = ()
        return nodes


def only_result(
    template: SubgraphTemplate, inputs: tuple[Node, ...], site: RawSite | None, codes: Any
) -> Node:
    """What `Deferred.results` gives for a template of one result, in one function.

    A plain step of denoiser_sample comes here 13 times: 8 % of its time on the host.
    """
    call: Deferred = _new(Deferred)
    node: Node = ResultNode()
    (head,) = template.heads
    call.origin, call.inputs, call.lines, call.calls = template, inputs, (site,), ()
    call.codes = codes
    node.op, node.attributes, node.outputs, node.shape, node.dtype, node.requires_grad, _ = head
    node.device = call.device = inputs[0].device
    node.site, node.piece, call.ends = site, call, (ref(node),)
    call.used = call._nodes = node.storage = node.spent = None
    return node


_new = object.__new__
