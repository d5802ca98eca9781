"""From nodes to kernels: what each group of them stores and reads, and in which order they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, indexing, movement
from tinygrad_cuda.lowering.schedule.fusion import (
    FLAT,
    NO_CALLS,
    OTHER,
    TRANSPARENT,
    Edge,
    Group,
    Groups,
    LibraryCalls,
    Signature,
    is_identity_value,
)
from tinygrad_cuda.lowering.schedule.narrowing import narrowed_values
from tinygrad_cuda.lowering.schedule.order import Traffic, execution_order
from tinygrad_cuda.lowering.schedule.stored_values import is_copy, nbytes_of, stored_values
from tinygrad_cuda.lowering.target import Target

EACH = ("map", "contract", "winograd")  # kinds of kernels that store each element of their loop
SMALL = 1 << 15  # elements below which threads are worth more than vectors
BUSY = 16  # elements of a thread that has enough to do


class TileSums(NamedTuple):
    """The numbers that a tile publishes.

    Attributes:
        welford: of a row: mean and squared deviations, the first two numbers.
        partners: for each sum of ``a * (b - mean)``, `a`; None for other sums. A tile takes its own
            mean t, and sum(a (b - mean)) = sum(a (b - t)) + (t - mean) sum(a).
    """

    welford: Node | None
    partners: dict[Node, Node | None]

    @property
    def slots(self) -> dict[Node, int]:
        """The numbers of sums, and of partners that have no sum in the kernel."""
        pairs = self.partners.items()
        sums = ((self.sum_of(partner) if partner else node, node) for node, partner in pairs)
        order = dict.fromkeys(node for pair in sums for node in pair)
        return {node: k + 2 * (self.welford is not None) for k, node in enumerate(order)}

    @property
    def published(self) -> int:
        """Numbers of a tile, which are published two by two."""
        return (max(self.slots.values(), default=1) + 2) // 2 * 2

    def sum_of(self, partner: Node) -> Node:
        """The sum of a partner: one of the kernel's, or else the partner itself."""
        return next((n for n in self.partners if n.sources[0] is partner), partner)


class GridTiles(NamedTuple):
    """How all blocks of the machine share rows.

    Attributes:
        wide: operands of which each element of a row meets its own; the rest is one a row.
        sums: what each tile publishes.
        slices: tiles of each run of neighbours, of `tile` elements, in vectors of `width`.
        parts: tiles of a row.
        blocks_per_sm: blocks on a multiprocessor.
        blocks: in all.
        reducers: of them, those with a reducer warp.
        producers: warps that sum and map tiles.
    """

    wide: list[Node]
    sums: TileSums
    slices: int
    tile: int
    width: int
    parts: int
    blocks_per_sm: int
    blocks: int
    reducers: int
    producers: int


class OneHotGather(NamedTuple):
    """What a sum over a one-hot mask is: `value` at the column `position`, checked to lie there.

    Attributes:
        unchecked: what of `position` needs no check, and can be loaded early.
    """

    value: Node
    position: Node
    unchecked: Node


class Choice(NamedTuple):
    """Which kernel makes a product or a convolution.

    Attributes:
        tier: its name in the table of `algorithms`.
        cut: how the tier's skeleton divides the work.
        stages: those of a kernel with this cut; None of a tier that is several nodes.
        reason: the tier with its estimate, and why those before it were not taken.
        copies: whether operands are to be in memory as they are multiplied: even what is cheap
            to compute takes longer in each tile than in a kernel of its own.
        carries: whether the epilogue of a kernel with this cut has room for reductions of its
            columns; None of a tier whose epilogue has none.
    """

    tier: str
    cut: Any
    stages: Callable[[Kernel, Any], list[Any]] | None
    reason: str
    copies: bool = False
    carries: Callable[[Kernel, Sequence[Node], Collection[Node], Any], bool] | None = None


NO_CHOICES: Mapping[Node, Choice] = {}


@dataclass(eq=False)
class Kernel:
    """Nodes that one kernel computes, and what it stores.

    Attributes:
        kind: which stages it gets: ``map``, ``row_reduce``, ... (`stages` of lowering/emit.py).
        nodes: what it evaluates, in topological order (movement ops stay unnamed).
        anchors: those of them that the skeleton itself computes: reductions, the contraction.
        stores: those that end up in memory.
        reads: values in memory that it reads: inputs of the program or stores of other kernels.
        overwrites: for a stored assign, the input whose storage it takes.
        sign: of a row_reduce or column_reduce kernel, how kept and reduced axes alternate.
        numel: elements of the space it walks.
        reason: why it is a kernel of its own.
        before: kernels that must be done first.
        update: it makes the new values of an optimizer's step.
        target: the machine that it is for.
        pair: the row kernel or product, and the column kernel, of which it was made, if it was.
        ahead: rows are loaded to shared memory while those before them are made.
        grid: how all blocks hold its rows together, if they do.
        one_hot: those of its sums that load one element of their row.
        reverse: it begins at the end of its space.
        choice: of a product or a convolution, its tier.
        narrowed: float32 values of the program that its outputs hold only rounded to 16 bits.
    """

    kind: str
    nodes: list[Node]
    anchors: list[Node]
    stores: list[Node]
    sign: Signature
    numel: int
    reason: str
    one_phase: bool
    update: bool
    target: Target
    reads: list[Node] = field(default_factory=list)
    overwrites: dict[Node, Node] = field(default_factory=dict)
    before: list[Kernel] = field(default_factory=list)
    pair: tuple[Kernel, Kernel] | None = None
    ahead: bool = False
    grid: GridTiles | None = None
    one_hot: dict[Node, OneHotGather] = field(default_factory=dict)
    reverse: bool = False
    choice: Choice | None = None
    narrowed: frozenset[Node] = frozenset()

    def is_line(self, node: Node) -> bool:
        """Whether a node of a row_reduce or column_reduce kernel has one value a row."""
        rows = prod(size for size, reduced in self.sign if not reduced)
        return self.kind in ("row_reduce", "column_reduce") and (
            node in self.anchors or prod(node.shape) == rows
        )

    @property
    def wide_stores(self) -> list[Node]:
        """Stores with more than one value a row."""
        return [node for node in self.stores if not self.is_line(node)]

    @property
    def full_size_reads(self) -> list[Node]:
        """Values that it reads, of at least as many elements as its space."""
        return [node for node in self.reads if prod(node.shape) >= self.numel]

    @property
    def full_size_values(self) -> list[Node]:
        """The stores and reads of so many elements."""
        return [n for n in (*self.stores, *self.reads) if prod(n.shape) >= self.numel]

    def vector_width(self, inner: int, threads: int = 0) -> int:
        """How many neighbours a thread takes: 16 bytes of the widest operand, dividing `inner`.

        `threads`: how many there will be, if that is settled; then vectors cost none.
        """
        large = self.full_size_values
        busy = 0 < threads * BUSY <= self.numel
        if not large or (self.numel < SMALL and not busy):
            return 1
        width: int = min(8, 16 // max(node.dtype.itemsize for node in large))
        while inner % width:
            width //= 2
        return width

    @cached_property
    def checks(self) -> bool:
        """Whether it may find a bad index."""
        return any(node.op in indexing.CHECKS for node in self.nodes_behind(self.stores))

    def nodes_behind(self, stores: Iterable[Node]) -> set[Node]:
        """What some of its stored values are made of, down to values in memory."""
        nodes, reads = set(self.nodes), set(self.reads)
        stack, seen = list(stores), set[Node]()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                inside = node in nodes or node not in reads
                sources = node.sources[1:] if node.op is common.assign else node.sources
                stack.extend(sources if inside else ())
        return seen

    def waits_for(self, other: Kernel) -> bool:
        """Whether it runs after another one, by any number of steps."""
        stack, seen = [self], {self}
        while stack:
            new = set(stack.pop().before) - seen
            seen |= new
            stack.extend(new)
        return other in seen

    def __repr__(self) -> str:
        names = " ".join(node.op.name for node in self.nodes)
        shapes = ", ".join(str(node.shape) for node in self.stores)
        return f"<{self.kind} kernel: {names} -> {shapes}>"


@dataclass(eq=False)
class Schedule:
    """Kernels in an order of execution; `outputs` name the stored node of each program output.

    Attributes:
        notes: rows for which the machine has no kernel, and why.
        decisions: of the choice of tiers by the tuning table, by the keys of their problems.
    """

    kernels: list[Kernel]
    outputs: tuple[Node, ...]
    notes: list[str] = field(default_factory=list)
    decisions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> dict[Node, Kernel]:
        """The kernel that stores each value."""
        return {node: kernel for kernel in self.kernels for node in kernel.stores}

    def replace(self, parts: set[Kernel], joined: Kernel) -> None:
        """Puts one kernel in the place of the first of some others that it was made of."""
        position = next(number for number, kernel in enumerate(self.kernels) if kernel in parts)
        self.kernels = [kernel for kernel in self.kernels if kernel not in parts]
        self.kernels.insert(position, joined)
        for kernel in self.kernels:
            before = (joined if other in parts else other for other in kernel.before)
            kernel.before = [other for other in dict.fromkeys(before) if other is not kernel]

    def put_before(self, pairs: Iterable[tuple[Kernel, Kernel]]) -> None:
        """Adds edges of order, which must close no circle, and keeps `kernels` in an order."""
        for earlier, later in pairs:
            if earlier not in later.before:
                later.before.append(earlier)
        order: list[Kernel] = []
        done: set[Kernel] = set()
        waiting = list(self.kernels)
        while waiting:
            ready = next(k for k in waiting if done.issuperset(k.before))
            waiting.remove(ready)
            done.add(ready)
            order.append(ready)
        self.kernels = order

    def graph(self) -> Any:
        """The kernels as a networkx DiGraph; an edge leads from a kernel to those after it."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(self.kernels)
        for kernel in self.kernels:
            graph.add_edges_from((earlier, kernel) for earlier in kernel.before)
        return graph


def schedule(
    outputs: Sequence[Node],
    target: Target,
    overwrites: Mapping[int, Node] | None = None,
    choices: Mapping[Node, Choice] = NO_CHOICES,
    calls: LibraryCalls = NO_CALLS,
) -> Schedule:
    """Cuts a graph into kernels.

    Args:
        outputs: the values wanted.
        target: the machine.
        overwrites: for an output's position, the input whose storage it shall take if it can.
        choices: the tiers of products and convolutions.
        calls: those of them that a library makes.
    """
    wanted = _distinct(outputs)
    builder = _ScheduleBuilder(wanted, target, {n for n, c in choices.items() if c.copies}, calls)
    builder.grow()
    builder.join_siblings()
    overwritten = {
        wanted[number]: buffer
        for number, buffer in (overwrites or {}).items()
        if wanted[number].op is common.assign
    }
    made = Schedule(builder.kernels(overwritten), wanted)
    if any(node.dtype.is_half for node in builder.nodes):
        narrowed = narrowed_values(builder.nodes, wanted)
        for kernel in made.kernels:
            kernel.narrowed = narrowed
    for kernel in made.kernels if choices else ():
        kernel.choice = next((choices[node] for node in kernel.anchors if node in choices), None)
    if len(made.kernels) > 1:
        _turn(made.kernels)
    return made


def _turn(kernels: Sequence[Kernel]) -> None:
    """Lets kernels begin where the one before them ended, if both touch the same large value.

    What that one touched last is still in the GPU's cache; what it began with no longer is.
    """
    last: Kernel | None = None
    for kernel in kernels:
        large = large_values(kernel)
        again = last is not None and not large.isdisjoint(large_values(last))
        if last is not None and again and kernel.kind in ("map", "row_reduce") and not last.reverse:
            kernel.reverse = True
            kernel.reason += "; it begins at the end, which is still in the cache"
        if large:
            last = kernel


def large_values(kernel: Kernel) -> set[Node]:
    """What it touches that a cache cannot hold beside what else there is."""
    nodes, large = {*kernel.reads, *kernel.stores}, kernel.target.large
    return {node for node in nodes if prod(node.shape) * node.dtype.itemsize >= large}


def _distinct(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Each output as a node that some kernel can store: copies of inputs, constants, doubles."""
    stored_nodes: dict[Node, None] = {}
    for node in outputs:
        stored = node.op.kind == "elementwise" or not (
            node.op.kind == "leaf" or node.op in TRANSPARENT or is_identity_value(node)
        )
        if not stored or node in stored_nodes:
            node = movement.reshape(node, shape=node.shape)
        stored_nodes[node] = None
    return tuple(stored_nodes)


class _ScheduleBuilder(Groups):
    """Kernels from groups that are grown.

    Attributes:
        stored: values that end up in memory.
        remade: values in memory that some groups make again.
    """

    def __init__(
        self, wanted: tuple[Node, ...], target: Target, copying: set[Node], calls: LibraryCalls
    ) -> None:
        super().__init__(wanted, target, copying, calls)
        self.stored: set[Node] = set()
        self.remade: dict[Group, Node] = {}

    def kernels(self, overwritten: dict[Node, Node]) -> list[Kernel]:
        """Kernels in an order of execution, assigns in place where that is safe."""
        if len(self.after) == 1:  # then no other reads what it makes
            self.stored = self.wanted.intersection(self.order)
        else:
            self.stored, self.remade = stored_values(self)
        living = [g for g in self.after if any(node in self.stored for node in g.members)]
        for group in living:
            group.members = self._needed(group)
        reads = {group: self._reads(group) for group in living}
        self.after = {group: set() for group in living}
        self.before = {group: set() for group in living}
        self._order_reads(reads)
        self._order_remade(reads)
        made = {
            group: Kernel(
                kind=group.kind,
                nodes=group.members,
                anchors=group.anchors,
                stores=[node for node in group.members if node in self.stored],
                sign=group.sign,
                numel=group.numel,
                reason=group.why or "no kernel before it to join",
                one_phase=group.one_phase,
                update=group.update,
                target=group.target,
                reads=list(dict.fromkeys(edge.base for _, edge in reads[group])),
            )
            for group in living
        }
        readers: dict[Node, dict[Group, None]] = {}
        for group, loads in reads.items() if overwritten else ():
            for _, edge in loads:
                readers.setdefault(edge.base, {})[group] = None
        for node, buffer in overwritten.items():
            if node in self.owner and self._order_in_place(node, buffer, reads, readers):
                made[self.owner[node]].overwrites[node] = buffer
        self._order_checks()
        for group, kernel in made.items():
            kernel.before = [made[other] for other in self.sorted(self.before[group])]
        return self._ordered(made)

    def _ordered(self, made: dict[Group, Kernel]) -> list[Kernel]:
        """The kernels in an order of execution."""
        if len(made) == 1:
            return list(made.values())
        kernels = [made[group] for group in self.sorted(made)]
        between = {node for node in self.stored if node in self.owner} - self.wanted
        traffic = {
            kernel: Traffic(
                [node for node in kernel.reads if node in between],
                [node for node in kernel.stores if node in between],
                is_copy(kernel.nodes),
            )
            for kernel in kernels
        }
        before = {kernel: set(kernel.before) for kernel in kernels}
        return execution_order(before, traffic, {node: nbytes_of(node) for node in between})

    def _needed(self, group: Group) -> list[Node]:
        """The members that its stored values are made of."""
        stack = [node for node in group.members if node in self.stored]
        needed = set(stack)
        while stack:
            for edge in self.edges[stack.pop()]:
                if edge.base not in needed and self.owner.get(edge.base) is group:
                    needed.add(edge.base)
                    stack.append(edge.base)
        return [node for node in group.members if node in needed]

    def _reads(self, group: Group) -> list[tuple[Node, Edge]]:
        """What the kernel loads: (the member that needs it, the value in memory)."""
        reads: list[tuple[Node, Edge]] = []
        for member in group.members:
            stack = list(self.edges[member])
            seen: set[Edge] = set()
            while stack:
                edge = stack.pop()
                if edge in seen:
                    continue
                seen.add(edge)
                owner = self.owner.get(edge.base)
                absent = edge.base not in self.stored or edge.base is self.remade.get(group)
                again = owner is not None and owner is not group and absent
                if again or (owner is None and edge.base.op is not common.buffer):
                    for inner in self.edges.get(edge.base, []):
                        kind = FLAT if edge.kind == inner.kind == FLAT else OTHER
                        stack.append(Edge(inner.base, kind))
                elif owner is not group:
                    reads.append((member, edge))
        return reads

    def _order_reads(self, reads: dict[Group, list[tuple[Node, Edge]]]) -> None:
        """What stores a value comes before what loads it."""
        for group, loads in reads.items():
            for _, edge in loads:
                if edge.base in self.owner:
                    self._put_before(self.owner[edge.base], group)

    def _order_remade(self, reads: dict[Group, list[tuple[Node, Edge]]]) -> None:
        """Lets what reads a value last wait for copies that make another one of it again.

        Such a copy is late, and what waits for it to overwrite a weight comes no later then.
        """
        for copy in self.remade:
            lasts = self.after[copy].copy()
            bases = {edge.base for _, edge in reads[copy]}
            large = {base for base in bases if prod(base.shape) >= copy.numel}
            for group, loads in reads.items():
                same = group is not copy and any(edge.base in large for _, edge in loads)
                if same and not any(self.reaches(group, last) for last in (copy, *lasts)):
                    self._put_before(copy, group)

    def _order_in_place(
        self,
        node: Node,
        buffer: Node,
        reads: dict[Group, list[tuple[Node, Edge]]],
        readers: dict[Node, dict[Group, None]],
    ) -> bool:
        """Whether `node` may be written over `buffer`; puts the other readers before it."""
        own = self.owner[node]
        # Each element of a contraction, each column of a column_reduce kernel, is stored by
        # who computes it.
        size = own.rows if own.kind == "column_reduce" else own.numel if own.kind in EACH else None
        for member, edge in reads[own]:
            same_place = edge.kind == FLAT and prod(member.shape) == size
            if edge.base is buffer and not same_place:
                return False
            if edge.base is buffer and member in own.anchors:
                return False
        others = [group for group in readers.get(buffer, ()) if group is not own]
        if any(self.reaches(own, group) for group in others):
            return False
        for group in others:
            self._put_before(group, own)
        return True

    def _order_checks(self) -> None:
        """A kernel that finds a bad index comes before those that must then change nothing.

        Where several kernels check all of the same values, the first one is enough.
        """
        assigns = {g for g in self.after if any(n.op is common.assign for n in g.members)}
        if not assigns:
            return
        checks: dict[Node, list[Group]] = {}
        complete: dict[Node, Group] = {}
        for group in self.sorted(self.after):
            for node, whole in self._checks(group).items():
                checks.setdefault(node, []).append(group)
                if whole and not any(self.reaches(later, group) for later in assigns):
                    complete.setdefault(node, group)
        first = [[complete[n]] if n in complete else groups for n, groups in checks.items()]
        for group in self.sorted({group for groups in first for group in groups}):
            for later in self.sorted(assigns):
                if group is not later and not self.reaches(later, group):
                    self._put_before(group, later)

    def _checks(self, group: Group) -> dict[Node, bool]:
        """The checks that a kernel makes, and whether of all their values."""
        stack = [(node, True) for node in group.members]
        visited: dict[Node, bool] = {}
        while stack:
            node, whole = stack.pop()
            if visited.get(node, False) or (node in visited and not whole):
                continue
            visited[node] = whole
            for edge in self.edges[node]:
                base = edge.base
                if base in self.inline or (base in self.owner and base not in self.stored):
                    stack.append((base, whole and edge.kind != OTHER))
        return {node: whole for node, whole in visited.items() if node.op in indexing.CHECKS}

    def _put_before(self, a: Group, b: Group) -> None:
        self.after[a].add(b)
        self.before[b].add(a)
