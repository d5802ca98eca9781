"""A product that is only read transposed, or in another order, is computed so.

Unlike the rules of the table these must know every reader of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, node_made, topological, with_sources
from tinygrad_cuda.graph.ops import contraction, movement

RUN = 8  # elements that must stay neighbours in memory: they are stored together


def turn_products(outputs: Sequence[Node], arranged: bool = True) -> tuple[Node, ...]:
    """The same values; each product in the order in which all of its readers see it.

    Args:
        outputs: of a plan.
        arranged: whether products may be stored in any order, not in that of a matrix alone.
    """
    turned = _turned(outputs)
    return _arranged(turned) if arranged else turned


def _turned(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Where all readers transpose a @ b, it becomes b.T @ a.T."""
    order = topological(outputs)
    readers = readers_of(order)
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
            new[node] = with_sources(node, sources)
    return tuple(new[node] for node in outputs)


def _arranged(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """A product that is only read in another order is stored in that order.

    So heads of attention stand beside each other where readers expect them, and they can join it.
    """
    order = topological(outputs)
    readers = readers_of(order)
    wanted = set(outputs)
    ends: dict[Node, tuple[Node, Shape, Shape]] = {}
    for node in order:
        if node.op is contraction.matmul and not node.attributes:
            chain = _chain(node, readers, wanted)
            arrangement = _arrangement(chain) if chain else None
            if arrangement is not None:
                ends[chain[-1]] = (node, *arrangement)
    if not ends:
        return tuple(outputs)
    new: dict[Node, Node] = {}
    for node in order:
        if node in ends:
            product, split, axes = ends[node]
            sources = tuple(new[operand] for operand in product.sources)
            attributes = {"split": split, "axes": axes, "shape": node.shape}
            new[node] = node_made(
                contraction.matmul, sources, attributes, node.outputs, node.device, False,
                product.site,
            )  # fmt: skip
        else:
            sources = tuple(new[operand] for operand in node.sources)
            new[node] = with_sources(node, sources)
    return tuple(new[node] for node in outputs)


def _chain(node: Node, readers: dict[Node, list[Node]], wanted: set[Node]) -> list[Node]:
    """The reshapes and permutations behind a product up to the last one that is a permutation,
    and what gives its result a shape; each but the last is read by the next alone."""
    chain: list[Node] = []
    while node not in wanted and len(readers[node]) == 1:
        (node,) = readers[node]
        if node.op is not movement.reshape and node.op is not movement.permute:
            break
        chain.append(node)
    permutes = [n for n, link in enumerate(chain) if link.op is movement.permute]
    return chain[: permutes[0] + 2] if len(permutes) == 1 else []


def _arrangement(chain: list[Node]) -> tuple[Shape, Shape] | None:
    """How the product's elements are split into axes, and the order of these; fewest axes."""
    permuted = next(node for node in chain if node.op is movement.permute)
    source = permuted.sources[0].shape
    axes = [axis for axis in permuted.attributes["axes"] if source[axis] != 1]
    if axes == sorted(axes):
        return None
    remaining = sorted(axes)
    runs: list[list[int]] = []
    for axis in axes:
        if runs and remaining.index(axis) == remaining.index(runs[-1][-1]) + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    order = sorted(runs)
    split = tuple(prod(source[axis] for axis in run) for run in order)
    if order[-1] is not runs[-1] or split[-1] < RUN:
        return None
    return split, tuple(order.index(run) for run in runs)


def readers_of(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """For each node those that read it, once for each operand."""
    readers: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for source in node.sources:
            readers[source].append(node)
    return readers


def _is_transpose(node: Node) -> bool:
    rank = len(node.shape)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    return node.op is movement.permute and node.attributes["axes"] == swapped


def _transposed(node: Node) -> Node:
    """The transpose; of a transpose the value itself."""
    return node.sources[0] if _is_transpose(node) else contraction.transpose(node)


def _product(like: Node, a: Node, b: Node) -> Node:
    outputs = like.outputs
    return node_made(contraction.matmul, (a, b), {}, outputs, like.device, False, like.site)
