"""A piece of graph as a flat list, recorded again for other sources without any rule or check.

It holds no node: only ops, attributes, outputs, and where each node's sources are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import RawSite
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import common, indexing
from tinygrad_cuda.graph.order import topological

Pick = Callable[[list[Node]], tuple[Node, ...]]
# Op, sources, attributes, outputs, whether it has history, and which of the given lines is its.
Step = tuple[Op, Pick, dict[str, Any], Outputs, bool, int]


class Unfit(Exception):
    """A graph that cannot be recorded from a list: it depends on more than its inputs."""


class Template:
    """What computes some nodes from others.

    Args:
        inputs: where it begins; each a node of its own.
        results: what it gives; may be among the inputs.
        line: which of the lines given to a call a node carries.

    Attributes:
        length: how many nodes it records.
        checks: the places, among all nodes, of index checks, with their codes: each call has a
            code of its own.

    Raises:
        Unfit: it contains a value, a function, or a leaf that arrives from elsewhere.
    """

    __slots__ = ("steps", "chosen", "length", "checks")

    def __init__(
        self,
        inputs: Sequence[Node],
        results: Sequence[Node],
        line: Callable[[Node], int] = lambda node: 0,
    ) -> None:
        places = {node: place for place, node in enumerate(inputs)}
        self.steps: list[Step] = []
        self.checks: dict[int, int] = {}
        for node in topological(results, stop=places.__contains__):
            if node in places:
                continue
            op = node.op
            known = op is not common.custom or isinstance(node.attributes["function"], common.Rule)
            if op in _FOREIGN or not known or node.storage is not None or node.spent is not None:
                raise Unfit(op.name)
            if op is indexing.check_index:
                self.checks[len(places)] = node.attributes["code"]
            elif op.arguments:
                raise Unfit(op.name)
            pick = picking([places[source] for source in node.sources])
            places[node] = len(places)
            self.steps.append(
                (op, pick, node.attributes, node.outputs, node.requires_grad, line(node))
            )
        self.chosen = [places[node] for node in results]
        self.length = len(self.steps)

    def __call__(
        self, inputs: list[Node], device: Device, lines: Sequence[RawSite | None]
    ) -> list[Node]:
        """Records all its nodes for other inputs; they come after these."""
        nodes = inputs.copy()
        add = nodes.append
        for op, pick, attributes, outputs, needs, line in self.steps:
            add(Node(op, pick(nodes), attributes, outputs, device, needs, lines[line]))
        return nodes


# Values, and cells' own nodes.
_FOREIGN = frozenset((common.buffer, common.variable))


def picking(places: Sequence[int]) -> Pick:
    """The items at some places of a list, as a tuple."""
    if len(places) == 1:
        (place,) = places
        return lambda nodes: (nodes[place],)
    return itemgetter(*places) if places else _nothing


def _nothing(nodes: list[Node]) -> tuple[Node, ...]:
    return ()
