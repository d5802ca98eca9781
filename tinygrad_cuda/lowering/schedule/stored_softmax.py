"""Softmax probabilities kept for attention's gradient; numerators are recomputed from them.

Products that copy their operands need the probabilities of attention in memory; its gradient reads
the numerators. Made of what the scores are, these would keep a second value of that size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinygrad_cuda.graph.node import Node, topological, with_sources
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.lowering.schedule.fusion import trace
from tinygrad_cuda.lowering.schedule.kernel_dag import Choice


def with_stored_softmax(
    outputs: Sequence[Node], choices: Mapping[Node, Choice]
) -> tuple[tuple[Node, ...], dict[Node, Choice]]:
    """The same values up to rounding: downstream of a stored ``e / t``, ``e`` is ``(e / t) t``.

    Args:
        outputs: of a plan.
        choices: the tiers of its products; those that copy operands need these in memory.
    """
    operands = [source for node, c in choices.items() if c.copies for source in node.sources]
    stored = dict.fromkeys(trace(source, set()).base for source in operands)
    probabilities = [node for node in stored if node.op is ew.div and node.sources[0].op is ew.exp]
    if not probabilities:
        return tuple(outputs), dict(choices)
    upstream = {node: set(topological([node])) for node in probabilities}
    new: dict[Node, Node] = {}
    recomputed: dict[Node, Node] = {}  # numerators, by their probabilities
    for node in topological([*probabilities, *outputs]):
        sources = [new[source] for source in node.sources]
        for softmax, before in upstream.items():
            numerator, total = softmax.sources
            if numerator in node.sources and node not in before:
                if softmax not in recomputed:
                    recomputed[softmax] = ew.mul(new[softmax], new[total])
                sources = [
                    recomputed[softmax] if source is numerator else made
                    for source, made in zip(node.sources, sources)
                ]
        new[node] = with_sources(node, tuple(sources))
    return tuple(new[node] for node in outputs), {new[n]: c for n, c in choices.items()}
