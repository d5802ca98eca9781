"""Powers of a softmax whose quotients are in memory: readers multiply those by the sum again.

Products that copy their operands need the quotients of attention in memory; its gradient reads the
powers. Made of what the scores are, these would keep a second value of that size for the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinygrad_cuda.graph.node import Node, topological, with_sources
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.lowering.schedule.fusion import trace
from tinygrad_cuda.lowering.schedule.kernel_dag import Choice


def with_stored_quotients(
    outputs: Sequence[Node], choices: Mapping[Node, Choice]
) -> tuple[tuple[Node, ...], dict[Node, Choice]]:
    """The same values up to rounding: ``e`` is read as ``(e / t) t`` behind a stored ``e / t``.

    Args:
        outputs: of a plan.
        choices: the tiers of its products; those that copy operands need these in memory.
    """
    operands = [source for node, c in choices.items() if c.copies for source in node.sources]
    stored = dict.fromkeys(trace(source, set()).base for source in operands)
    quotients = [node for node in stored if node.op is ew.div and node.sources[0].op is ew.exp]
    if not quotients:
        return tuple(outputs), dict(choices)
    behind = {node: set(topological([node])) for node in quotients}
    new: dict[Node, Node] = {}
    again: dict[Node, Node] = {}
    for node in topological([*quotients, *outputs]):
        sources = [new[source] for source in node.sources]
        for quotient, before in behind.items():
            power, total = quotient.sources
            if power in node.sources and node not in before:
                if quotient not in again:
                    again[quotient] = ew.mul(new[quotient], new[total])
                sources = [
                    again[quotient] if source is power else made
                    for source, made in zip(node.sources, sources)
                ]
        new[node] = with_sources(node, tuple(sources))
    return tuple(new[node] for node in outputs), {new[n]: c for n, c in choices.items()}
