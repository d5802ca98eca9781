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
from tinygrad_cuda.graph.order import topological

Pick = Callable[[list[Node]], tuple[Node, ...]]
Step = tuple[Op, Pick, dict[str, Any], Outputs]


class Template:
    """What computes some nodes from others, without history.

    Args:
        inputs: where it begins; each a node of its own.
        results: what it gives; may be among the inputs.
    """

    __slots__ = ("steps", "chosen")

    def __init__(self, inputs: Sequence[Node], results: Sequence[Node]) -> None:
        places = {node: place for place, node in enumerate(inputs)}
        self.steps: list[Step] = []
        for node in topological(results, stop=places.__contains__):
            if node not in places:
                pick = picking([places[source] for source in node.sources])
                places[node] = len(places)
                self.steps.append((node.op, pick, node.attributes, node.outputs))
        self.chosen = [places[node] for node in results]

    def __call__(self, inputs: list[Node], device: Device, site: RawSite | None) -> list[Node]:
        """Records the nodes for other inputs, all at one line."""
        nodes = inputs.copy()
        add = nodes.append
        for op, pick, attributes, outputs in self.steps:
            add(Node(op, pick(nodes), attributes, outputs, device, False, site))
        return [nodes[place] for place in self.chosen]


def picking(places: Sequence[int]) -> Pick:
    """The items at some places of a list, as a tuple."""
    if len(places) == 1:
        (place,) = places
        return lambda nodes: (nodes[place],)
    return itemgetter(*places) if places else _nothing


def _nothing(nodes: list[Node]) -> tuple[Node, ...]:
    return ()
