"""How values reach their readers, and which of them every reader computes for itself.

Everything is decided on shapes: a signature says how rows and reduced axes alternate in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple, Protocol

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction, convolution, indexing, movement
from tinygrad_cuda.graph.ops.reduction import ReductionOp

# How an operand's elements line up with those of its reader.
FLAT = "flat"  # element k of one meets element k of the other, row-major
BROADCAST = "broadcast"  # one element of the operand meets a line of the reader's
OTHER = "other"  # permuted, shifted, gathered: any element may meet any other

# ((size, reduced), ...): axes of size 1 dropped, neighbours of one sort merged.
Signature = tuple[tuple[int, bool], ...]

INLINE_COST = 64  # of values made from nothing: masks, positions, constants
CHEAP_COST = 6  # of values made from one input: casts, comparisons, scales
BROADCAST_COST = 16  # of small values that every reader broadcasts
LONG_ROW = 1 << 15  # a row longer than this, among few, is split, so that it has one phase
ALONE = {  # kinds of kernels that take elementwise readers of their results only
    "contract": "a contraction has a kernel of its own",
    "winograd": "a Winograd transform has a kernel of its own",
}

TRANSPARENT = (common.variable, common.detach, common.custom)


class Edge(NamedTuple):
    """An operand behind its movement ops: the value really read, and how it lines up."""

    base: Node
    kind: str
    signature: Signature | None = None


def signature(shape: Shape, axes: Iterable[int]) -> Signature:
    """How axes that stay and reduced ones alternate in `shape`.

    Example:
        >>> signature((8, 1, 3, 5, 7), (3, 4))
        ((24, False), (35, True))
    """
    reduced = set(axes)
    merged: list[tuple[int, bool]] = []
    for axis, size in enumerate(shape):
        flag = axis in reduced
        if size == 1:
            continue
        if merged and merged[-1][1] == flag:
            merged[-1] = (merged[-1][0] * size, flag)
        else:
            merged.append((size, flag))
    return tuple(merged)


def rows_of(sign: Signature) -> int:
    """How many lines are reduced, each to one value."""
    return prod(size for size, reduced in sign if not reduced)


def length_of(sign: Signature) -> int:
    """How many elements each reduced line has."""
    return prod(size for size, reduced in sign if reduced)


def keeps_order(node: Node) -> bool:
    """A movement that leaves every element at its row-major position."""
    source = node.sources[0]
    if node.op is movement.reshape:
        return True
    if node.op is movement.permute:
        axes = [axis for axis in node.attributes["axes"] if source.shape[axis] != 1]
        return axes == sorted(axes)
    if node.op is movement.flip:
        return all(source.shape[axis] == 1 for axis in node.attributes["axes"])
    if node.op in (movement.expand, movement.slice_, movement.pad):
        return node.shape == source.shape
    return False


def trace(node: Node, stop: set[Node]) -> Edge:
    """Walks from an operand back to the value that is really read."""
    kind = FLAT
    target: Shape | None = None  # of the outermost expand, whose axes still stand as recorded
    small: Shape = ()
    intact = True
    while node not in stop:
        if node.op in TRANSPARENT:
            node = node.sources[0]
            continue
        if node.op.kind != "movement":
            break
        source = node.sources[0]
        if not keeps_order(node):
            if node.op is movement.expand and kind == FLAT:
                kind, target, small, intact = BROADCAST, node.shape, source.shape, True
            elif node.op is movement.expand and kind == BROADCAST and intact:
                small = source.shape
            else:
                kind = OTHER
        elif kind == BROADCAST:
            intact = node.op is not movement.reshape and intact
        node = source
    if kind == BROADCAST:
        assert target is not None
        axes = [axis for axis, (a, b) in enumerate(zip(small, target)) if a != b]
        return Edge(node, BROADCAST, signature(target, axes))
    return Edge(node, kind)


def edges_of(node: Node, stop: set[Node]) -> list[Edge]:
    """The operands of a node that does work (`stop`: movements that are stored themselves)."""
    if node.op.kind == "movement":  # stored as it is: it reads what it moves
        return [trace(node, stop - {node})]
    if node.op is common.assign:
        return [trace(node.sources[1], stop)]
    if node.op is indexing.gather:
        source, index = (trace(operand, stop) for operand in node.sources)
        rank = len(node.sources[1].shape)
        inner = range(rank, len(node.shape))
        if prod(node.shape[rank:]) != 1:
            sign = signature(node.shape, inner)
            index = Edge(index.base, BROADCAST if index.kind == FLAT else OTHER, sign)
        return [Edge(source.base, OTHER), index]
    edges = [trace(source, stop) for source in node.sources]
    if node.op in convolution.ROWS:
        # Of images it reads windows; of a weight, rows that lie as they are multiplied.
        own = node.op is convolution.convolution
        return [Edge(edges[0].base, OTHER), edges[1] if own else Edge(edges[1].base, OTHER)]
    return edges


def works(node: Node) -> bool:
    """Whether the node computes something, rather than moving or naming a value."""
    return node.op.kind in ("elementwise", "reduction", "contraction", "kernel") or (
        node.op in (common.assign, common.output)
    )


def is_identity_value(node: Node) -> bool:
    """A reduction or product over nothing: a constant, its op's identity."""
    if node.op.kind == "reduction":
        return prod(node.sources[0].shape) == 0
    return node.op.kind == "contraction" and sum_length(node) == 0


def sum_length(node: Node) -> int:
    """How many products each result of a contraction is the sum of."""
    first, second = node.sources
    if node.op is convolution.convolution:
        return prod(second.shape[1:])
    if node.op is convolution.convolution_weight_gradient:
        return first.shape[0] * prod(first.shape[2:])
    assert node.op is contraction.matmul, f"{node} is computed as convolutions"
    return first.shape[-1]


def value_of_nothing(node: Node) -> float:
    """What a reduction or product over nothing is."""
    if not isinstance(node.op, ReductionOp):
        return 0
    value = node.op.cuda.of_nothing
    assert value is not None, f"{node} refuses an empty operand"
    return value


class Dataflow(NamedTuple):
    """What the values of a program are read through.

    Attributes:
        stop: movements that are stored themselves.
        inline: values that every reader computes for itself.
        edges: the operands of each node that does work.
        copied: those that products copy from memory.
    """

    stop: set[Node]
    inline: set[Node]
    edges: dict[Node, list[Edge]]
    copied: set[Node]


def dataflow(order: list[Node], wanted: set[Node], copying: set[Node]) -> Dataflow:
    """The values of a program without the movements between them.

    Args:
        order: its nodes, sources first.
        wanted: those that end up in memory.
        copying: products that copy their operands from memory.
    """
    stop = {node for node in wanted if not works(node)}
    edges = {node: edges_of(node, stop) for node in order if works(node) or node in stop}
    copied = {edge.base for node in copying if node in edges for edge in edges[node]}
    inline = _inline_values(order, edges, wanted | copied)
    for node in order:
        if is_identity_value(node) and node not in stop:
            edges.pop(node, None)
    return Dataflow(stop, inline, edges, copied)


def _inline_values(
    order: list[Node], edges: dict[Node, list[Edge]], wanted: set[Node]
) -> set[Node]:
    """Values that every reader computes for itself: cheaper than a trip through memory.

    They depend on inputs of the program and on nothing that a kernel stores.

    Args:
        wanted: values that end up in memory.
    """
    readers: dict[Node, list[Edge]] = {}
    for operands in edges.values():
        for edge in operands:
            readers.setdefault(edge.base, []).append(edge)
    cost: dict[Node, tuple[int, frozenset[Node]]] = {}  # of the expression; inputs it loads
    inline: set[Node] = set()
    for node in order:
        if node in wanted:
            continue
        inlined = _inline_cost(node, cost)
        if inlined is None:
            continue
        if node.op.kind == "elementwise":
            spread = all(edge.kind != FLAT for edge in readers.get(node, []))
            loads = len(inlined[1])
            limit = (INLINE_COST, CHEAP_COST)[loads] if loads < 2 else 0
            if inlined[0] > max(limit, BROADCAST_COST if spread and loads <= 4 else 0):
                continue
            inline.add(node)
        cost[node] = inlined
    return inline


def _inline_cost(
    node: Node, cost: dict[Node, tuple[int, frozenset[Node]]]
) -> tuple[int, frozenset[Node]] | None:
    nothing: frozenset[Node] = frozenset()
    if node.op is common.buffer:
        return 0, frozenset((node,))
    if node.op.kind == "leaf":
        return (node.op.cost if node.op.name.startswith("random") else 0), nothing
    if is_identity_value(node):
        return 0, nothing
    sources = node.sources
    if node.op.kind not in ("elementwise", "movement") and node.op not in TRANSPARENT:
        return None
    if node.op in TRANSPARENT:
        sources = sources[:1]
    parts = [cost.get(source) for source in sources]
    own = node.op.cost if node.op.kind == "elementwise" else 0
    total, loads = own, nothing
    for part in parts:
        if part is None:
            return None
        total, loads = total + part[0], loads | part[1]
    return total, loads


class IterationSpace(Protocol):
    """What a `Group` and a kernel that was made of it have in common."""

    kind: str
    sign: Signature
    anchors: list[Node]

    def is_line(self, node: Node) -> bool: ...


def lines_up(group: IterationSpace, edge: Edge, reader: Node) -> bool:
    """Whether a member's value is at hand where another member of the kernel needs it."""
    if group.kind == "map":
        return edge.kind == FLAT
    if group.kind in ALONE:
        return edge.kind == FLAT and reader not in group.anchors
    line = group.is_line(edge.base)
    if reader in group.anchors:
        wide = reader.op.kind == "reduction"
    else:
        wide = not group.is_line(reader)
    if not wide:
        return line and edge.kind == FLAT
    if not line:
        return edge.kind == FLAT
    if length_of(group.sign) == 1:
        return edge.kind == FLAT or edge.signature == group.sign
    return edge.kind == BROADCAST and edge.signature == group.sign
