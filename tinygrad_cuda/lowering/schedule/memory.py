"""Where intermediate buffers of a kernel DAG lie in one arena, by lifetimes on paths of the DAG.

Two buffers share storage only where the DAG itself, in whatever order it runs, keeps them apart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from typing import NamedTuple, Protocol

ALIGNMENT = 256  # bytes, of a buffer in the arena: that of cuMemAlloc

# An ordering edge is worth it from here on: a kernel that writes this much has work for the whole
# GPU, so running it beside another one gains little, while small kernels gain from parallelism
# and their buffers cost nothing.
WORTH_AN_EDGE = 1 << 20

# The share of the arena that a layout of large buffers by their lifetimes must not exceed.
WORTH_A_LAYOUT = 0.995

# The share of an arena that one edge less is worth: of two layouts as large, the one with fewer.
EDGE_SHARE = 0.001

# Rounds in which a layout gets lower at most, and pairs of buffers that they may compare in all;
# a layout is low enough at this multiple of the bytes that are in it at one time.
ROUNDS = 12
ROUNDS_WORK = 200_000
LOW_ENOUGH = 1.003

# Bytes from which on a smaller buffer lies among large ones where that needs no edge.
WORTH_A_HOLE = 60 << 10


class KernelGraph(Protocol):
    """What the planner asks of a kernel DAG; a networkx DiGraph has it, and takes long to load."""

    def __iter__(self) -> Iterator[Hashable]: ...
    def predecessors(self, kernel: Hashable, /) -> Iterable[Hashable]: ...


class PlannedBuffer(NamedTuple):
    """A value that one kernel writes and others read.

    Attributes:
        name: any hashable name.
        nbytes: its size.
        writer: the kernel that writes it.
        readers: the kernels that read it; none for scratch memory of its writer.
        reusable: whether others may have its storage once it is read for the last time.
        over: names of buffers of its size that the writer reads, and may store it over.
    """

    name: Hashable
    nbytes: int
    writer: Hashable
    readers: tuple[Hashable, ...] = ()
    reusable: bool = True
    over: tuple[Hashable, ...] = ()


class RegionPart(NamedTuple):
    """A part of a region, and the kernel that writes it."""

    nbytes: int
    writer: Hashable


class PlannedRegion(NamedTuple):
    """Memory outside of the arena that is free until kernels write there, such as that of results.

    Attributes:
        name: any hashable name.
        parts: in the order in which they lie behind one another.
    """

    name: Hashable
    parts: tuple[RegionPart, ...]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class OrderingEdge(NamedTuple):
    """`after` waits for `before` only because it writes over what `before` still uses."""

    before: Hashable
    after: Hashable
    reason: str


class MemoryPlan(NamedTuple):
    """The layout of one arena.

    Attributes:
        offsets: of each buffer, by name, in the arena or its region; multiples of 256 bytes.
        edges: which the kernel DAG must have besides its own; they close no cycle.
        peak: bytes of the arena.
        unshared: bytes it would have without any reuse.
        over: buffers that are stored over one that their writer reads, and that one.
        inside: buffers that lie in a region, and which.
    """

    offsets: dict[Hashable, int]
    edges: tuple[OrderingEdge, ...]
    peak: int
    unshared: int
    over: dict[Hashable, Hashable]
    inside: dict[Hashable, Hashable]


def plan_memory(
    kernels: KernelGraph,
    buffers: Sequence[PlannedBuffer],
    regions: Sequence[PlannedRegion] = (),
    *,
    worth_an_edge: int = WORTH_AN_EDGE,
    below: float = inf,
) -> MemoryPlan:
    """Lays buffers out in one arena.

    Buffers are placed in a topological order of their writers, each into the smallest gap that
    fits among storage whose users all precede its writer on a path. Where there is none and the
    arena would grow by `worth_an_edge` bytes or more than with storage that is merely used earlier
    in that order, it takes the latter, and its writer waits for those users by new edges. Where
    even so the arena would grow by that much, it takes the storage of a buffer that its writer is
    the last to read, if the writer may store it there, or else a stretch of a region whose writers
    come after all its users. Large buffers are also laid out for their lifetimes in that order, by
    size and by size times lifetime, as low as they can lie or where they need fewest edges. Of
    these layouts the smallest is taken, where an edge counts as `EDGE_SHARE` of it. All edges point
    forward in one topological order, so no cycle can arise.

    Args:
        kernels: the DAG, such as a networkx DiGraph; its order of insertion breaks ties.
        buffers: with distinct names; every reader follows the writer in `kernels`.
        regions: memory to use besides the arena.
        worth_an_edge: bytes that outweigh the parallelism an edge takes away.
        below: bytes that a layout by lifetimes must take less than.

    Raises:
        ValueError: a reader does not follow the writer of its buffer.
    """
    order = _topological(kernels)
    best = _planned(_Planner(kernels, order, regions, worth_an_edge), buffers)
    layouts = _Layouts(kernels, order, buffers, regions, worth_an_edge)
    limit = min(best.peak * WORTH_A_LAYOUT, below)
    if not layouts.large or layouts.least_height >= limit:
        return best
    for rank in (_size, _area):
        spans, lowest = layouts.arranged(rank)
        for few_edges in (True, False) if lowest < limit else ():
            planner = _Planner(kernels, order, regions, worth_an_edge)
            planner.fix(layouts.spots(spans, few_edges))
            if planner.height < min(limit, _weight(best)):
                best = min(best, _planned(planner, buffers), key=_weight)
            if planner.height <= lowest:
                break
    return best


def _weight(plan: MemoryPlan) -> float:
    """The bytes of a plan's arena, with what its edges count as."""
    return plan.peak * (1 + EDGE_SHARE * len(plan.edges))


def _planned(planner: _Planner, buffers: Sequence[PlannedBuffer]) -> MemoryPlan:
    """The buffers in the order of their writers."""
    written: dict[Hashable, list[PlannedBuffer]] = {}
    for buffer in buffers:
        written.setdefault(buffer.writer, []).append(buffer)
    for kernel in planner.order:
        planner.enter(kernel)
        # The largest first: small ones fit into what it leaves.
        for buffer in sorted(written.get(kernel, ()), key=lambda b: -b.nbytes):
            planner.place(buffer)
    planner.check_readers(buffers)
    return MemoryPlan(
        {buffer.name: planner.offsets[buffer.name] for buffer in buffers},
        tuple(planner.edges),
        max((segment.end for segment in planner.segments), default=0),
        sum(_aligned(buffer.nbytes) for buffer in buffers),
        planner.over,
        planner.inside,
    )


class _ArenaSegment(NamedTuple):
    """A stretch of the arena and the last buffer that was put there.

    Earlier owners need no memory: their users precede the writer of this one, so whoever comes
    after all users of this one comes after theirs.
    """

    start: int
    end: int
    owner: PlannedBuffer | None  # None where a region was not used yet
    users: int


class _Gap(NamedTuple):
    """Neighbouring segments that are free, up to where the arena may grow."""

    growth: int
    size: int
    start: int
    segments: tuple[_ArenaSegment, ...]


class _Planner:
    """Sets of kernels are integers, one bit a kernel, by position in the order."""

    def __init__(
        self,
        kernels: KernelGraph,
        order: list[Hashable],
        regions: Sequence[PlannedRegion],
        worth_an_edge: int,
    ) -> None:
        self.kernels = kernels
        self.worth_an_edge = worth_an_edge
        self.order = order
        self.position = {kernel: position for position, kernel in enumerate(self.order)}
        self.before: list[int] = []
        self.offsets: dict[Hashable, int] = {}
        self.edges: list[OrderingEdge] = []
        self.over: dict[Hashable, Hashable] = {}
        self.inside: dict[Hashable, Hashable] = {}
        self.segments: list[_ArenaSegment] = []
        # The smallest first, each with its segments.
        self.regions = {
            region: [_ArenaSegment(0, region.nbytes // ALIGNMENT * ALIGNMENT, None, 0)]
            for region in sorted(regions, key=lambda region: region.nbytes)
        }
        self.awaited: dict[Hashable, int] = {}  # users of what lies in the writer's region
        self.fixed: dict[Hashable, _Spot] = {}  # of buffers whose offsets were chosen before
        self.zone: list[_ArenaSegment] = []  # the part of the arena that these share
        self.height = 0  # and its bytes; all else lies behind it

    def fix(self, layout: dict[Hashable, _Spot]) -> None:
        """Gives large buffers their offsets."""
        self.fixed = layout
        ends = (spot.start + spot.size for spot in layout.values() if spot.region is None)
        self.height = max(ends, default=0)
        if self.height:
            self.segments = [_ArenaSegment(0, self.height, None, 1 << len(self.order))]

    def enter(self, kernel: Hashable) -> None:
        """All kernels on paths to this one: the edges that lead here are complete by now."""
        before = 0
        for source in self.kernels.predecessors(kernel):
            position = self.position[source]
            before |= self.before[position] | (1 << position)
        self.before.append(before)
        self.wait(self.awaited.pop(kernel, 0), "it writes where other values were")

    def place(self, buffer: PlannedBuffer) -> None:
        now = len(self.before) - 1
        size = _aligned(buffer.nbytes)
        if not size:
            self.offsets[buffer.name] = 0
            return
        if buffer.name in self.fixed:
            self.place_fixed(buffer, self.fixed[buffer.name])
            return
        gap, segments = self.best_gap(self.segments, size, self.before[now]), self.segments
        if gap.growth >= self.worth_an_edge:
            relaxed = self.best_gap(segments, size, (1 << now) - 1)
            if relaxed.growth >= self.worth_an_edge:
                if (own := self.own_gap(buffer, size)) is not None:
                    gap = relaxed = own
                elif (region := self.region_of(buffer, size)) is not None:
                    segments = self.regions[region]
                    gap = relaxed = self.region_gap(region, size, _users(buffer, self.position))
                    self.hold(buffer, region, gap.start, size)
            if gap is relaxed or gap.growth - relaxed.growth >= self.worth_an_edge:
                gap = relaxed
                self.add_edges(buffer, gap, size)
        self.offsets[buffer.name] = gap.start
        self.occupy(segments, buffer, gap.start, gap.start + size)

    def place_fixed(self, buffer: PlannedBuffer, spot: _Spot) -> None:
        """Puts a buffer where it was to lie; its writer waits for all that was there."""
        segments = self.zone
        if spot.region is not None:
            segments = self.regions[spot.region]
            self.hold(buffer, spot.region, spot.start, spot.size)
        end = spot.start + spot.size
        there = tuple(s for s in segments if s.start < end and spot.start < s.end)
        self.add_edges(buffer, _Gap(0, spot.size, spot.start, there), spot.size)
        if spot.over is not None:
            self.over[buffer.name] = spot.over
        self.offsets[buffer.name] = spot.start
        self.occupy(segments, buffer, spot.start, end)

    def hold(self, buffer: PlannedBuffer, region: PlannedRegion, start: int, size: int) -> None:
        """Lets the writers of a stretch of a region wait for the users of a buffer there."""
        self.inside[buffer.name] = region.name
        first = 0
        for nbytes, writer in region.parts:
            if first < start + size and start < first + nbytes:
                self.awaited[writer] = self.awaited.get(writer, 0) | _users(buffer, self.position)
            first += nbytes

    @staticmethod
    def best_gap(segments: list[_ArenaSegment], size: int, finished: int) -> _Gap:
        """The gap that lets the arena grow least; of several the smallest, then the lowest."""
        end = segments[-1].end if segments else 0
        best = _Gap(size, 0, end, ())
        run: list[_ArenaSegment] = []
        for index, segment in enumerate(segments):
            if segment.users & ~finished:
                run = []
                continue
            run.append(segment)
            last = index + 1 == len(segments)
            if last or segments[index + 1].users & ~finished:
                length = segment.end - run[0].start
                growth = max(size - length, 0)
                if not growth or last:
                    best = min(best, _Gap(growth, length, run[0].start, tuple(run)), key=_rank)
        return best

    def own_gap(self, buffer: PlannedBuffer, size: int) -> _Gap | None:
        """The storage of a buffer that the writer uses last, and may store this one over."""
        now = len(self.before) - 1
        for name in buffer.over:
            start = self.offsets.get(name)
            matching = [s for s in self.segments if s.owner and s.owner.name == name]
            matching = [segment for segment in matching if segment.start == start]
            if (
                matching
                and not matching[0].users >> (now + 1)
                and matching[0].end - matching[0].start == size
            ):
                self.over[buffer.name] = name
                return _Gap(0, size, matching[0].start, (matching[0],))
        return None

    def region_of(self, buffer: PlannedBuffer, size: int) -> PlannedRegion | None:
        """The smallest region with room, whose writers there follow all users of the buffer."""
        users = _users(buffer, self.position)
        for region in self.regions:
            if not self.region_gap(region, size, users).growth:
                return region
        return None

    def region_gap(self, region: PlannedRegion, size: int, users: int) -> _Gap:
        """The best gap of a region where all is written after these users."""
        now = len(self.before) - 1
        first = _free_from(region, self.position, users.bit_length() - 1)
        segments = [s for s in self.regions[region] if s.end > first]
        segments[:1] = [s._replace(start=max(s.start, first)) for s in segments[:1]]
        return self.best_gap(segments, size, (1 << now) - 1)

    def add_edges(self, buffer: PlannedBuffer, gap: _Gap, size: int) -> None:
        """Lets the writer wait for the last users of what it overwrites, but for itself."""
        for segment in gap.segments:
            if segment.start >= gap.start + size:
                break
            if segment.owner is not None:
                self.wait(
                    segment.users,
                    f"{buffer.name} takes the storage of {segment.owner.name} "
                    f"({buffer.nbytes} bytes)",
                )

    def wait(self, users: int, reason: str) -> None:
        """Lets the kernel of now wait for others, from the latest back: paths need no edge."""
        now = len(self.before) - 1
        waiting = users & ~self.before[now] & ~(1 << now)
        while waiting:
            position = waiting.bit_length() - 1
            self.edges.append(OrderingEdge(self.order[position], self.order[now], reason))
            self.before[now] |= self.before[position] | (1 << position)
            waiting &= ~self.before[now]

    def occupy(
        self, segments: list[_ArenaSegment], buffer: PlannedBuffer, start: int, end: int
    ) -> None:
        users = _users(buffer, self.position)
        if not buffer.reusable:
            users |= 1 << len(self.order)
        first = bisect_right(segments, start, key=_end)
        last = bisect_left(segments, end, key=_start)
        cut = segments[first:last]
        rest = [s._replace(end=start) for s in cut[:1] if s.start < start]
        rest.append(_ArenaSegment(start, end, buffer, users))
        rest += [s._replace(start=end) for s in cut[-1:] if s.end > end]
        segments[first:last] = rest

    def check_readers(self, buffers: Sequence[PlannedBuffer]) -> None:
        for buffer in buffers:
            writer = self.position[buffer.writer]
            for reader in buffer.readers:
                if reader != buffer.writer and not self.before[self.position[reader]] >> writer & 1:
                    raise ValueError(
                        f"{reader} reads {buffer.name} but does not follow {buffer.writer}"
                    )


class _Spot(NamedTuple):
    """Where a buffer is to lie: in a region, or in the arena; and over which other one."""

    region: PlannedRegion | None
    start: int
    size: int
    over: Hashable | None


class _Span(NamedTuple):
    """Buffers that lie over each other one after another, when the memory is theirs, and whose."""

    buffers: list[PlannedBuffer]
    size: int
    first: int
    last: int
    users: int


class _Piece(NamedTuple):
    """A stretch of memory that a span has from its first kernel to its last one."""

    start: int
    end: int
    first: int
    last: int
    span: _Span


class _Pieces(NamedTuple):
    """Where pieces of one memory start and end, each sorted."""

    starts: list[int]
    ends: list[int]

    def met(self, start: int, end: int) -> int:
        """How many of them have memory of a stretch."""
        return bisect_left(self.starts, end) - bisect_right(self.ends, start)


def _size(span: _Span) -> int:
    return -span.size


def _area(span: _Span) -> int:
    return -span.size * (span.last - span.first + 1)


class _Layouts:
    """Layouts of buffers for their lifetimes in one order of the kernels.

    Edges must keep those apart that have the same memory at different times.

    Attributes:
        large: spans of `least` bytes.
        small: smaller ones that are worth a hole among them.
        least_height: bytes of the arena that no layout of the large ones goes below.
    """

    def __init__(
        self,
        kernels: KernelGraph,
        order: list[Hashable],
        buffers: Sequence[PlannedBuffer],
        regions: Sequence[PlannedRegion],
        least: int,
    ) -> None:
        self.position = {kernel: position for position, kernel in enumerate(order)}
        self.regions = sorted(regions, key=lambda region: region.nbytes)
        spans = _spans(self.position, buffers, min(least, WORTH_A_HOLE))
        self.large = [span for span in spans if span.size >= least]
        self.small = [span for span in spans if span.size < least]
        changes = [0] * (len(order) + 2)
        for span in self.large:
            changes[span.first] += span.size
            changes[span.last + 1] -= span.size
        outside = sum(region.nbytes for region in regions)
        self.least_height = max(accumulate(changes)) - outside
        self.before: list[int] = []  # kernels on paths to each one
        for kernel in order if self.large else ():
            sources = [self.position[source] for source in kernels.predecessors(kernel)]
            before = 0
            for source in sources:
                before |= self.before[source] | (1 << source)
            self.before.append(before)

    def arranged(self, rank: Callable[[_Span], int]) -> tuple[list[_Span], int]:
        """An order of the large spans in which they lie low, and the bytes that they take then.

        By `rank` at first. What then lies on top comes earlier, half as far behind, in rounds.
        """
        spans = best = sorted(self.large, key=rank)
        lowest = 0
        for number in range(max(2, min(ROUNDS, ROUNDS_WORK // len(spans) ** 2))):
            pieces = self.pieces(spans, False)[None]
            height = max((piece.end for piece in pieces), default=0)
            if not number or height < lowest:
                best, lowest = spans, height
            if height <= self.least_height * LOW_ENOUGH:
                break
            top = {id(piece.span) for piece in pieces if piece.end == height}
            spans = [*spans]
            for place, span in enumerate(spans):
                if id(span) in top:
                    del spans[place]
                    spans.insert(place // 2, span)
        return best, lowest

    def spots(self, spans: list[_Span], few_edges: bool) -> dict[Hashable, _Spot]:
        """Where the large spans lie, and the small ones that fit among them without an edge."""
        taken = self.pieces(spans, few_edges)
        height = max((piece.end for piece in taken[None]), default=0)
        for span in sorted(self.small, key=_size):
            others = self.unordered(taken[None], span)
            for start in self.free(taken[None], span, 0, height, others):
                if not others.met(start, start + span.size):
                    insort(taken[None], _piece(start, span), key=_start)
                    break
        spots: dict[Hashable, _Spot] = {}
        for region, pieces in taken.items():
            for start, end, _, _, span in pieces:
                over: Hashable | None = None
                for buffer in span.buffers:
                    spots[buffer.name] = _Spot(region, start, end - start, over)
                    over = buffer.name
        return spots

    def pieces(
        self, spans: list[_Span], few_edges: bool
    ) -> dict[PlannedRegion | None, list[_Piece]]:
        """The memory of span after span, each as low as it can lie.

        Args:
            spans: the large ones.
            few_edges: whether a span lies higher, up to what the others take, for fewer edges.
        """
        taken: dict[PlannedRegion | None, list[_Piece]] = {None: []}
        taken |= {region: [] for region in self.regions}
        height = 0
        for span in spans:
            for region in (*self.regions, None):
                free = 0 if region is None else _free_from(region, self.position, span.last)
                limit = height if region is None else region.nbytes
                if region is not None and free + span.size > limit:
                    continue
                start = self.place(taken[region], span, free, limit, few_edges)
                if region is None or start + span.size <= limit:
                    insort(taken[region], _piece(start, span), key=_start)
                    height = max(height, start + span.size) if region is None else height
                    break
        return taken

    def place(
        self, taken: list[_Piece], span: _Span, first: int, limit: int, few_edges: bool
    ) -> int:
        """Where a span lies lowest from `first` on, or with fewest edges if it ends by `limit`."""
        if few_edges:
            others = self.unordered(taken, span)
            best: tuple[int, int] | None = None
            for start in self.free(taken, span, first, limit, others):
                edges = others.met(start, start + span.size)
                best = min(best or (edges, start), (edges, start))
                if not edges:
                    break
            if best is not None:
                return best[1]
        return _lowest(taken, span, first)

    def unordered(self, taken: list[_Piece], span: _Span) -> _Pieces:
        """Pieces of other times that need an edge if the span has memory of theirs."""
        before, users = self.before[span.first], span.users
        pieces = [
            piece
            for piece in taken
            if (
                piece.span.users & ~before
                if piece.last < span.first
                else span.last < piece.first and users & ~self.before[piece.first]
            )
        ]
        return _Pieces([p.start for p in pieces], sorted(p.end for p in pieces))

    def free(
        self, taken: list[_Piece], span: _Span, first: int, limit: int, others: _Pieces
    ) -> list[int]:
        """Starts of free memory that ends by `limit`; behind one of `others` fewer are met."""
        starts: list[int] = []
        size, writer, reader = span.size, span.first, span.last
        busy = [p[:2] for p in taken if p[2] <= reader and writer <= p[3] and p[1] > first]
        for begin, end in [*busy, (limit, limit)]:
            last = min(begin, limit) - size
            if last >= first:
                starts.append(first)
                ends = others.ends
                starts += dict.fromkeys(ends[bisect_right(ends, first) : bisect_right(ends, last)])
            first = max(first, end)
        return starts


def _spans(
    position: dict[Hashable, int], buffers: Sequence[PlannedBuffer], least: int
) -> list[_Span]:
    """Large buffers with their lifetimes; those stored over another one lengthen its span."""
    spans: dict[Hashable, _Span] = {}  # by the name of its last buffer
    for buffer in sorted(buffers, key=lambda buffer: position[buffer.writer]):
        size = _aligned(buffer.nbytes)
        if size < least:
            continue
        first = position[buffer.writer]
        last = max([first, *(position[reader] for reader in buffer.readers)])
        users = _users(buffer, position)
        if not buffer.reusable:
            last, users = len(position), users | 1 << len(position)
        ends = (name for name in buffer.over if name in spans and spans[name].last == first)
        old = next((name for name in ends if spans[name].size == size), None)
        before = spans.pop(old) if old is not None else _Span([], size, first, last, 0)
        spans[buffer.name] = _Span(
            [*before.buffers, buffer], size, before.first, last, before.users | users
        )
    return list(spans.values())


def _users(buffer: PlannedBuffer, position: dict[Hashable, int]) -> int:
    """Its writer and readers."""
    users = 1 << position[buffer.writer]
    for reader in buffer.readers:
        users |= 1 << position[reader]
    return users


def _free_from(region: PlannedRegion, position: dict[Hashable, int], last: int) -> int:
    """From which offset on a region is written only after the kernel at position `last`."""
    first = end = 0
    for nbytes, writer in region.parts:
        end += nbytes
        if position[writer] <= last:
            first = end
    return first


def _lowest(taken: list[_Piece], span: _Span, start: int) -> int:
    """The lowest offset from `start` on that is free for a span, among pieces by their starts."""
    size, writer, reader = span.size, span.first, span.last
    for begin, end, first, last, _ in taken:
        if first <= reader and writer <= last and end > start:
            if begin - start >= size:
                break
            start = end
    return start


def _piece(start: int, span: _Span) -> _Piece:
    return _Piece(start, start + span.size, span.first, span.last, span)


def _topological(kernels: KernelGraph) -> list[Hashable]:
    """Sources first, otherwise as inserted.

    Raises:
        ValueError: there is a circle.
    """
    names = list(kernels)
    number = {kernel: position for position, kernel in enumerate(names)}
    after: list[list[int]] = [[] for _ in names]
    waiting = [0] * len(names)
    for position, kernel in enumerate(names):
        for source in kernels.predecessors(kernel):
            after[number[source]].append(position)
            waiting[position] += 1
    ready = [position for position, count in enumerate(waiting) if not count]
    order = []
    while ready:
        position = heappop(ready)
        order.append(names[position])
        for later in after[position]:
            waiting[later] -= 1
            if not waiting[later]:
                heappush(ready, later)
    if len(order) < len(names):
        raise ValueError("the kernels wait for each other in a circle")
    return order


def _start(stretch: _ArenaSegment | _Piece) -> int:
    return stretch.start


def _end(segment: _ArenaSegment) -> int:
    return segment.end


def _rank(gap: _Gap) -> tuple[int, int, int]:
    return gap.growth, gap.size, gap.start


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
