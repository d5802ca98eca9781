"""Which nodes share a kernel: how values reach their readers, and groups that grow along them.

Everything is decided on shapes: a signature says how rows and reduced axes alternate in memory.
Groups grow from producers to consumers; each records the reason why it did not grow further.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, Protocol

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, Op, topological
from tinygrad_cuda.graph.ops import (
    attention,
    common,
    contraction,
    convolution,
    elementwise,
    fft,
    indexing,
    movement,
    recurrence,
    winograd,
)
from tinygrad_cuda.graph.ops.reduction import ReductionOp
from tinygrad_cuda.lowering.target import Target

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
    "library": "a library's call takes a bias and an activation alone",
}
NODES_PER_OUTPUT = 64  # expressions a kernel evaluates for each value it stores
ANCHORS = 12  # reductions of a kernel: each phase makes again what registers do not hold
SHORT_PRODUCT = 1024  # of products this long at most an update is the epilogue
# Kinds of kernels of ops with a loop of their own. All but Winograd's take no other node.
KIND_OF: dict[Op, str] = {
    op: kind
    for kind, ops in (
        ("winograd", winograd.ROWS), ("scatter", (indexing.scatter, indexing.scatter_add)),
        ("attention", attention.ROWS), ("recurrence", recurrence.ROWS), ("fft", fft.ROWS),
    )
    for op in ops
}  # fmt: skip
WHOLE = ("scatter", "attention", "recurrence", "fft")
FEW_ELEMENTS = 1 << 14  # of a group that takes hardly longer than its launch
SIBLINGS = 64  # neighbouring groups of one space that are compared with each other

TRANSPARENT = (common.variable, common.detach, common.custom)


class LibraryEpilogue(NamedTuple):
    """What a library's call computes behind its product.

    Attributes:
        members: the product first, the value that is stored last.
        bias: a vector that is added to each row, as it is recorded.
        activation: ``relu``, ``gelu`` (by tanh) or empty.
    """

    members: tuple[Node, ...]
    bias: Node | None
    activation: str

    @property
    def name(self) -> str:
        """For a reader."""
        names = ["bias" if self.bias is not None else "", self.activation]
        return " and ".join(filter(None, names)) or "the product in another shape"


class LibraryCalls(NamedTuple):
    """The products, convolutions and transforms of a plan that a library makes.

    Attributes:
        products: all of them.
        epilogues: of those that have one.
    """

    products: frozenset[Node] = frozenset()
    epilogues: tuple[LibraryEpilogue, ...] = ()

    @property
    def copying(self) -> set[Node]:
        """Nodes whose operands a call reads from memory."""
        biased = {epilogue.members[1] for epilogue in self.epilogues if epilogue.bias is not None}
        return {*self.products, *biased}

    @property
    def stored(self) -> set[Node]:
        """What calls store."""
        return {*self.products, *(epilogue.members[-1] for epilogue in self.epilogues)}


NO_CALLS = LibraryCalls()


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
    if node.op is convolution.convolution_input_gradient:
        return prod(second.shape) // second.shape[1] if second.shape[1] else 0
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
        if node in wanted and node.op is not common.buffer:  # an input is in memory anyway
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


class Group:
    """Nodes that are to share a kernel.

    Attributes:
        kind: ``map``, ``row``, ``col``, ``contract``, ``library``, ``winograd``, ``scatter``,
            ``attention``, ``recurrence`` or ``fft``.
        numel: elements of the space the kernel walks.
        sign: of a row or col kernel, which reduces `rows` lines.
        members: in topological order; `anchors` are its reductions, contraction or scatter.
        reduction_dependent: members that depend on an anchor.
        one_phase: whether its operands are read once: of columns, and of few long rows, which are
            split over several blocks.
        update: it makes the new values of an optimizer's step.
        target: the machine; fewer rows than it has multiprocessors are split.
    """

    __slots__ = (
        "kind",
        "numel",
        "sign",
        "rows",
        "members",
        "anchors",
        "reduction_dependent",
        "one_phase",
        "update",
        "target",
        "why",
    )

    def __init__(self, node: Node, update: bool, target: Target) -> None:
        self.target = target
        self.numel = prod(node.shape)
        self.sign: Signature = ()
        self.rows = 1
        self.members = [node]
        self.anchors: list[Node] = []
        self.reduction_dependent: set[Node] = set()
        self.update = update
        self.why = ""
        if node.op.kind == "reduction":
            shape = node.sources[0].shape
            self.sign = signature(shape, node.attributes["axes"])
            self.kind = "row_reduce" if not self.sign or self.sign[-1][1] else "column_reduce"
            self.numel = prod(shape)
            self.rows = rows_of(self.sign)
        elif node.op.kind == "contraction":
            self.kind = "contract"
        else:
            self.kind = KIND_OF.get(node.op, "map")
        if self.kind != "map":
            self.anchors = [node]
            self.reduction_dependent = {node}
        self.one_phase = self.kind == "column_reduce" or (
            self.kind == "row_reduce"
            and self.rows < target.multiprocessors
            and length_of(self.sign) > LONG_ROW
        )

    def is_line(self, node: Node) -> bool:
        """Whether a member has one value for each row, rather than one for each element."""
        return self.kind in ("row_reduce", "column_reduce") and (
            node in self.anchors or prod(node.shape) == self.rows
        )


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
    result.kind, result.numel, result.sign, result.rows = a.kind, a.numel, a.sign, a.rows
    result.update, result.target, result.why = a.update, a.target, ""
    result.one_phase = a.one_phase
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
    return group.kind in ("column_reduce", "winograd")


def _spaces_differ(a: Group, b: Group, settled: bool) -> str:
    """Why the two cannot walk the same space, or nothing; a `map` is always b."""
    takes = _takes_updates(a) or (settled and a.kind == "contract")
    if a.update != b.update and not (b.update and takes):
        return "an update has a launch of its own"
    if a.kind in WHOLE:
        return f"{a.kind} has a kernel of its own"
    if b.kind != "map":
        if a.kind in ALONE or b.kind in ALONE:
            return ALONE[b.kind if b.kind in ALONE else a.kind]
        return "" if a.sign == b.sign and a.kind == b.kind else "they reduce along other axes"
    if a.numel == b.numel or (a.kind in ("row_reduce", "column_reduce") and b.numel == a.rows):
        return ""
    return "they have different numbers of elements"


class Groups:
    """The groups, the edges between them, and the rules for joining two."""

    def __init__(
        self,
        wanted: tuple[Node, ...],
        target: Target,
        copying: set[Node],
        calls: LibraryCalls = NO_CALLS,
    ) -> None:
        self.target, self.calls = target, calls
        self.call_of = {node: one.members for one in calls.epilogues for node in one.members}
        self.wanted = set(wanted)
        self.nodes = order = topological(wanted)
        self.position = {node: position for position, node in enumerate(order)}
        copying = copying | calls.copying
        self.stop, self.inline, self.edges, self.copied = dataflow(order, self.wanted, copying)
        self.copied |= calls.stored
        self.order = [
            node for node in order if node in self.edges and node not in self.inline
            and 0 not in node.shape
        ]  # fmt: skip
        self.readers: dict[Node, list[Node]] = {}
        for node, edges in self.edges.items():
            for edge in edges:
                self.readers.setdefault(edge.base, []).append(node)
        self.owner: dict[Node, Group] = {}
        self.after: dict[Group, set[Group]] = {}
        self.before: dict[Group, set[Group]] = {}
        self.depth: dict[Group, int] = {}  # kernels that a group waits for, one after another
        self.overwritten = {node.sources[0] for node in order if node.op is common.assign}
        self.updates = self._find_updates(order)
        self.grown = False  # whether each node has a group
        self.flat: dict[Group, set[Node]] = {}  # what groups read, from then on

    def _find_updates(self, order: list[Node]) -> set[Node]:
        """Elementwise nodes between the old value of an assign and the assign."""
        reaches = set(self.overwritten)
        for node in order:
            if node.op.kind in ("elementwise", "movement") or node.op is common.assign:
                values = node.sources[1:] if node.op is common.assign else node.sources
                if any(source in reaches for source in values):
                    reaches.add(node)
        readers: dict[Node, list[Node]] = {}
        for node in self.order:
            for edge in self.edges[node]:
                readers.setdefault(edge.base, []).append(node if edge.kind == FLAT else edge.base)
        updates: set[Node] = set()
        for node in reversed(self.order):
            if node.op is common.assign:
                # An assign of a value that has nothing to do with the old one is a store.
                if node in reaches:
                    updates.add(node)
            elif node.op.kind == "elementwise" and node not in self.wanted:
                own = node in reaches or all(
                    edge.base in self.wanted or edge.base not in self.edges
                    for edge in self.edges[node]
                )
                if own and all(reader in updates for reader in readers.get(node, [])):
                    updates.add(node)
        return updates

    def grow(self) -> None:
        """Each node joins the kernel of an operand if it can; that which waits longest first."""
        for node in self.order:
            if node.op is common.output and self._in_kernel_of_source(node):
                continue
            group = self._add(node)
            if isinstance(node.op, ReductionOp) and node.op.extreme is not None:
                group = self._with_extreme(node, node.op.extreme, group)
            tried: set[Group] = set()
            while True:
                candidates = sorted(
                    self.before[group] - tried,
                    key=lambda other: (self.depth[other], self.position[other.members[-1]]),
                    reverse=True,
                )
                if not candidates:
                    break
                tried.add(candidates[0])
                if node in self._adjacent(candidates[0], node):
                    group = self._join(candidates[0], group) or group

    def _in_kernel_of_source(self, node: Node) -> bool:
        """Puts one of several results into the kernel that has them all; no other can read it."""
        source = self.edges[node][0].base
        if source not in self.owner:
            return False
        group = self.owner[node] = self.owner[source]
        group.members.append(node)
        group.reduction_dependent.add(node)
        return True

    def _with_extreme(self, node: Node, extreme: Op, group: Group) -> Group:
        """The position of a row's extreme joins the extreme, rather than its gradient's kernel."""
        for reader in self.readers[self.edges[node][0].base]:
            same = reader.op is extreme and reader.sources == node.sources
            if same and reader in self.owner and self.owner[reader].sign == group.sign:
                return self._join(self.owner[reader], group, True) or group
        return group

    def _adjacent(self, group: Group, node: Node) -> list[Node]:
        """The node itself if it reads from the group (a group that grew has more producers)."""
        return [node] if any(self.owner.get(e.base) is group for e in self.edges[node]) else []

    def _add(self, node: Node) -> Group:
        group = Group(node, node in self.updates, self.target)
        if node in self.calls.products:
            group.kind = "library"
        self.owner[node] = group
        self.after[group] = set()
        self.before[group] = {
            self.owner[edge.base] for edge in self.edges[node] if edge.base in self.owner
        }
        for other in self.before[group]:
            self.after[other].add(group)
        self.depth[group] = 1 + max((self.depth[other] for other in self.before[group]), default=0)
        return group

    def _join(self, a: Group, b: Group, same_value: bool = False) -> Group | None:
        """Makes the two one, if their spaces agree and no third kernel stands between them.

        `same_value`: they reduce the same value.
        """
        if "library" in (a.kind, b.kind) and not self._of_one_call(a, b):
            b.why = b.why or ALONE["library"]
            return None
        settled = b.update and a.kind == "contract" and self._settled(a)
        result = merged(a, b, self.edges, self.position, settled)
        if isinstance(result, str):
            b.why = b.why or result
            return None
        # A few sums take longer to launch than to make.
        same_value = same_value or not (a.anchors and b.anchors) or result.numel <= FEW_ELEMENTS
        if not (same_value or self._share(a, b) or self._feeds(a, b)):
            b.why = b.why or "it reduces other values"
            return None
        if self._delays(a, b) or self._delays(b, a):
            b.why = b.why or "others need its values before"
            return None
        if self.reaches(a, b, directly=False) or self.reaches(b, a, directly=False):
            b.why = b.why or "another kernel stands between it and its operand"
            return None
        for member in result.members:
            self.owner[member] = result
        self.after[result] = (self.after.pop(a) | self.after.pop(b)) - {a, b}
        self.before[result] = (self.before.pop(a) | self.before.pop(b)) - {a, b}
        for other in self.after[result]:
            self.before[other] = (self.before[other] - {a, b}) | {result}
        for other in self.before[result]:
            self.after[other] = (self.after[other] - {a, b}) | {result}
        result.why = a.why or b.why
        self.depth[result] = 1 + max(
            (self.depth[other] for other in self.before[result]), default=0
        )
        return result

    def _of_one_call(self, a: Group, b: Group) -> bool:
        """Whether a library's call computes all nodes of both."""
        members = self.call_of.get(a.members[0], ())
        return all(node in members for node in (*a.members, *b.members))

    def _settled(self, product: Group) -> bool:
        """Whether all that reads the old values of a gradient's updates comes before it."""
        stack, seen = list(product.anchors), set[Node]()
        while stack:
            for reader in self.readers.get(stack.pop(), ()):
                follows = reader.op.kind in ("elementwise", "movement") or reader in self.updates
                if follows and reader not in seen:
                    seen.add(reader)
                    stack.append(reader)
        old = {edge.base for node in seen for edge in self.edges[node]} & self.overwritten
        others = {
            self.owner.get(reader)
            for buffer in old
            for reader in self.readers[buffer]
            if reader not in self.updates
        }
        return all(other is not None and self.reaches(other, product) for other in others)

    def _delays(self, early: Group, late: Group) -> bool:
        """Whether a few sums or gathered values would come later than others could use them.

        By themselves they cost little: a launch takes them along with whatever runs at that time.
        """
        few = early.numel <= FEW_ELEMENTS and self.depth[early] < self.depth[late]
        sums = early.kind in ("row_reduce", "column_reduce")
        if not few or not (sums or any(node.op is indexing.gather for node in early.members)):
            return False
        others = (self.before[early] | self.before[late]) - {early, late}
        if max((self.depth[other] for other in others), default=0) < self.depth[early]:
            return False
        inside = {*early.members, *late.members}
        return any(
            reader not in inside and not self._follows(reader, late)
            for member in early.members
            for reader in self.readers.get(member, ())
        )

    def _follows(self, node: Node, group: Group) -> bool:
        """Whether a node's value depends on the group's."""
        members = 0
        for member in group.members:
            members |= 1 << self.position[member]
        return bool(self._behind[node] & members)

    @cached_property
    def _behind(self) -> dict[Node, int]:
        """What each node depends on: a set of positions as bits, since it is asked for often."""
        behind: dict[Node, int] = {}
        for node in self.position:
            bits = 0
            for edge in self.edges.get(node, ()):
                bits |= behind[edge.base] | 1 << self.position[edge.base]
            behind[node] = bits
        return behind

    def reaches(self, a: Group, b: Group, directly: bool = True) -> bool:
        """Whether b depends on a, by a way that is more than one edge unless `directly`."""
        # Positions cannot end the search: a group of early and late nodes leads back.
        stack = [group for group in self.after[a] if directly or group is not b]
        seen = set(stack)
        while stack:
            group = stack.pop()
            if group is b:
                return True
            new = self.after[group] - seen
            seen |= new
            stack.extend(new)
        return False

    def sorted(self, groups: Iterable[Group]) -> list[Group]:
        """The groups in the order of their first members."""
        return sorted(groups, key=lambda group: self.position[group.members[0]])

    def join_siblings(self) -> None:
        """Groups that walk one space and read the same value read it once."""
        self.grown = True
        buckets: dict[Any, list[Group]] = {}
        for group in self.sorted(self.after):
            key = (group.kind, group.numel, group.sign, group.update)
            buckets.setdefault(key, []).append(group)
        for (kind, *_), groups in buckets.items():
            if kind in ("map", "row_reduce", "column_reduce"):
                for first in range(0, len(groups), SIBLINGS):
                    self._join_those_that_share(groups[first : first + SIBLINGS])

    def _join_those_that_share(self, groups: list[Group]) -> None:
        while groups:
            group = groups.pop(0)
            for other in list(groups):
                if self._share(group, other) and (joined := self._join(group, other)):
                    groups.remove(other)
                    group = joined

    def _feeds(self, a: Group, b: Group) -> bool:
        """Whether a's values enter b's loop, rather than what b makes of its results."""
        return any(
            edge.base in a.members
            for node in b.members
            if node in b.anchors or not b.is_line(node)
            for edge in self.edges[node]
        )

    def _share(self, a: Group, b: Group) -> bool:
        """Whether both read one value, or what the other may make of it again."""
        return not self._flat_values(a).isdisjoint(self._flat_values(b))

    def _flat_values(self, group: Group) -> set[Node]:
        """Values that a group reads element by element, and those that they are made of."""
        values = self.flat.get(group)
        if values is not None:
            return values
        values, nodes = set[Node](), list(group.members)
        for node in nodes:
            for edge in self.edges[node]:
                base = edge.base
                if edge.kind != FLAT or prod(base.shape) != group.numel or base in values:
                    continue
                if base in self.inline and base.op is elementwise.cast:
                    nodes.append(base)  # it costs nothing: what it casts is what is read
                elif base.op is common.buffer or base in self.owner:
                    values.add(base)
                    if base.op.kind == "elementwise" and self.owner.get(base) is not group:
                        nodes.append(base)
        if self.grown:
            self.flat[group] = values
        return values
