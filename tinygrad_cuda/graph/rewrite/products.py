"""A product that is only read transposed is computed transposed.

Unlike the rules of the table this one must know every reader of a value.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import contraction, movement
from tinygrad_cuda.graph.order import topological


def turn_products(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The same values; where all readers transpose a @ b, it becomes b.T @ a.T."""
    order = topological(outputs)
    readers: dict[Node, list[Node]] = {}
    for node in order:
        for source in node.sources:
            readers.setdefault(source, []).append(node)
    wanted = set(outputs)
    turned = {
        node
        for node in order
        if node.op is contraction.matmul
        and node not in wanted
        and all(_is_transpose(reader) for reader in readers[node])
    }
    if not turned:
        return tuple(outputs)
    new: dict[Node, Node] = {}
    for node in order:
        if node.sources and node.sources[0] in turned:
            a, b = (new[operand] for operand in node.sources[0].sources)
            new[node] = _product(node, _transposed(b), _transposed(a))
        else:
            sources = tuple(new[operand] for operand in node.sources)
            same = sources == node.sources
            new[node] = node if same else _copy(node, sources)
    return tuple(new[node] for node in outputs)


def _is_transpose(node: Node) -> bool:
    rank = len(node.shape)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    return node.op is movement.permute and node.attributes["axes"] == swapped


def _transposed(node: Node) -> Node:
    """The transpose; of a transpose the value itself."""
    return node.sources[0] if _is_transpose(node) else contraction.transpose(node)


def _product(like: Node, a: Node, b: Node) -> Node:
    outputs = like.outputs
    return Node(contraction.matmul, (a, b), {}, outputs, like.device, False, like.site)


def _copy(node: Node, sources: tuple[Node, ...]) -> Node:
    return Node(node.op, sources, node.attributes, node.outputs, node.device, False, node.site)
