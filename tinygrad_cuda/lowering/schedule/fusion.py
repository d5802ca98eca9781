"""How values reach their readers, and which groups of nodes may share a kernel.

Everything is decided on shapes: a signature says how rows and reduced axes alternate in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple, Protocol

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction, convolution, indexing, movement, winograd
from tinygrad_cuda.graph.ops.reduction import ReductionOp
from tinygrad_cuda.lowering.target import Target

# How an operand's elements line up with those of its reader.
FLAT = "flat"  # element k of one meets element k of the other, row-major
BROADCAST = "broadcast"  # one element of the operand meets a line of the reader's
OTHER = "other"  # permuted, shifted, gathered: any element may meet any other

# ((size, reduced), ...): axes of size 1 dropped, neighbours of one sort merged.
Signature = tuple[tuple[int, bool], ...]

NODES_PER_OUTPUT = 64  # expressions a kernel evaluates for each value it stores
ANCHORS = 12  # reductions of a kernel: each phase makes again what registers do not hold
INLINE_COST = 64  # of values made from nothing: masks, positions, constants
CHEAP_COST = 6  # of values made from one input: casts, comparisons, scales
BROADCAST_COST = 16  # of small values that every reader broadcasts
LONG_ROW = 1 << 15  # a row longer than this, among few, is split, so that it has one phase
SHORT_PRODUCT = 1024  # of products this long at most an update is the epilogue
TRANSFORMS = winograd.ROWS
ALONE = {  # kinds of kernels that take elementwise readers of their results only
    "contract": "a contraction has a kernel of its own",
    "tile": "a transform of tiles has a kernel of its own",
}

TRANSPARENT = (common.variable, common.detach, common.custom)


class Edge(NamedTuple):
    """An operand behind its movement ops: the value really read, and how it lines up."""

    base: Node
    kind: str
    signature: Signature | None = None


def signature(shape: Shape, axes: Iterable[int]) -> Signature:
    """How kept and reduced axes alternate in `shape`.

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


def _keeps_order(node: Node) -> bool:
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
        if not _keeps_order(node):
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


def inline_values(order: list[Node], stop: set[Node], wanted: set[Node]) -> set[Node]:
    """Values that every reader computes for itself: cheaper than a trip through memory.

    They depend on inputs of the program and on nothing that a kernel stores.
    """
    readers: dict[Node, list[Edge]] = {}
    for node in order:
        if works(node) or node in stop:
            for edge in edges_of(node, stop):
                readers.setdefault(edge.base, []).append(edge)
    cost: dict[Node, tuple[int, frozenset[Node]]] = {}  # of the expression; inputs it loads
    found: set[Node] = set()
    for node in order:
        if node in wanted:
            continue
        known = _inline_cost(node, cost)
        if known is None:
            continue
        if node.op.kind == "elementwise":
            spread = all(edge.kind != FLAT for edge in readers.get(node, []))
            loads = len(known[1])
            limit = (INLINE_COST, CHEAP_COST)[loads] if loads < 2 else 0
            if known[0] > max(limit, BROADCAST_COST if spread and loads <= 4 else 0):
                continue
            found.add(node)
        cost[node] = known
    return found


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


class Group:
    """Nodes that are to share a kernel.

    Attributes:
        kind: ``map``, ``row``, ``col``, ``contract``, ``tile`` or ``scatter``.
        numel: elements of the space the kernel walks.
        sign: of a row or col kernel.
        members: in topological order; `anchors` are its reductions, contraction or scatter.
        reduction_dependent: members that depend on an anchor.
        update: it makes the new values of an optimizer's step.
        target: the machine; fewer rows than it has multiprocessors are split.
    """

    __slots__ = (
        "kind",
        "numel",
        "sign",
        "members",
        "anchors",
        "reduction_dependent",
        "update",
        "target",
        "why",
    )

    def __init__(self, node: Node, update: bool, target: Target) -> None:
        self.target = target
        self.kind = "map"
        self.numel = prod(node.shape)
        self.sign: Signature = ()
        self.members = [node]
        self.anchors: list[Node] = []
        self.reduction_dependent: set[Node] = set()
        self.update = update
        self.why = ""
        if node.op.kind == "reduction":
            shape = node.sources[0].shape
            self.sign = signature(shape, node.attributes["axes"])
            self.kind = "row" if not self.sign or self.sign[-1][1] else "col"
            self.numel = prod(shape)
        elif node.op.kind == "contraction":
            self.kind = "contract"
        elif node.op in TRANSFORMS:
            self.kind = "tile"
        elif node.op in (indexing.scatter, indexing.scatter_add):
            self.kind = "scatter"
        if self.kind != "map":
            self.anchors = [node]
            self.reduction_dependent = {node}

    @property
    def rows(self) -> int:
        return rows_of(self.sign)

    @property
    def one_phase(self) -> bool:
        """Whether each element is visited once: a long line is split over several blocks."""
        few = self.rows < self.target.multiprocessors
        return self.kind == "col" or (
            self.kind == "row" and few and length_of(self.sign) > LONG_ROW
        )

    def is_line(self, node: Node) -> bool:
        """Whether a member has one value for each row, rather than one for each element."""
        return self.kind in ("row", "col") and (
            node in self.anchors or prod(node.shape) == self.rows
        )


class IterationSpace(Protocol):
    """What a `Group` and a kernel that was made of it have in common."""

    kind: str
    sign: Signature
    anchors: list[Node]

    def is_line(self, node: Node) -> bool: ...


def merged(
    a: Group,
    b: Group,
    edges: dict[Node, list[Edge]],
    position: dict[Node, int],
    settled: bool = False,
) -> Group | str:
    """The two groups as one kernel, or why not. Cycles are the caller's business.

    `settled`: whatever reads the old value that an update replaces is done before the gradient.
    """
    if a.kind == "map" and b.kind != "map":
        a, b = b, a
    refusal = _spaces_differ(a, b, settled)
    if refusal:
        return refusal
    anchors = len(a.anchors) + len(b.anchors)
    if anchors > ANCHORS:
        return f"more than {ANCHORS} reductions"
    limit = NODES_PER_OUTPUT * min(max(1, anchors), 3)
    if len(a.members) + len(b.members) > limit:
        return f"more than {limit} expressions"
    result = Group.__new__(Group)
    result.kind, result.numel, result.sign = a.kind, a.numel, a.sign
    result.update, result.target, result.why = a.update, a.target, ""
    result.members = sorted(a.members + b.members, key=position.__getitem__)
    result.anchors = [node for node in result.members if node in a.anchors or node in b.anchors]
    inside = set(result.members)
    result.reduction_dependent = set(result.anchors)
    for node in result.members:
        for edge in edges[node]:
            if edge.base in inside:
                if not lines_up(result, edge, node):
                    return f"{edge.base.op.name} does not line up with {node.op.name}"
                if edge.base in result.reduction_dependent:
                    result.reduction_dependent.add(node)
                    if result.one_phase and (node in result.anchors or not result.is_line(node)):
                        return f"{node.op.name} needs a finished {edge.base.op.name}"
    return result


def _takes_updates(group: Group) -> bool:
    """Whether an update in place may be the epilogue of a gradient.

    It waits for all that reads the old value, and the gradient with it: where that is long work,
    it had better share a launch with the readers.
    """
    if group.kind == "contract":
        return all(sum_length(node) <= SHORT_PRODUCT for node in group.anchors)
    return group.kind in ("col", "tile")


def _spaces_differ(a: Group, b: Group, settled: bool) -> str:
    """Why the two cannot walk the same space, or nothing; a `map` is always b."""
    takes = _takes_updates(a) or (settled and a.kind == "contract")
    if a.update != b.update and not (b.update and takes):
        return "an update has a launch of its own"
    if a.kind == "scatter":
        return "a scatter has a kernel of its own"
    if b.kind != "map":
        if a.kind in ALONE or b.kind in ALONE:
            return ALONE[b.kind if b.kind in ALONE else a.kind]
        return "" if a.sign == b.sign and a.kind == b.kind else "they reduce along other axes"
    if a.numel == b.numel or (a.kind in ("row", "col") and b.numel == a.rows):
        return ""
    return "they have different numbers of elements"


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
