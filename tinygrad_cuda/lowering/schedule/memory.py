"""Where intermediate buffers of a kernel DAG lie in one arena, by lifetimes on paths of the DAG.

Two buffers share storage only where the DAG itself, in whatever order it runs, keeps them apart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

ALIGNMENT = 256  # bytes, of a buffer in the arena: that of cuMemAlloc

# An ordering edge is worth it from here on: a kernel that writes this much has work for the whole
# GPU, so running it beside another one gains little, while small kernels gain from parallelism
# and their buffers cost nothing.
WORTH_AN_EDGE = 1 << 20


# The share of the arena that a layout of large buffers by size must not exceed: it has more edges.
WORTH_A_LAYOUT = 0.95


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
) -> MemoryPlan:
    """Lays buffers out in one arena.

    Buffers are placed in a topological order of their writers, each into the smallest gap that
    fits among storage whose users all precede its writer on a path. Where there is none and the
    arena would grow by `worth_an_edge` bytes or more than with storage that is merely used earlier
    in that order, it takes the latter, and its writer waits for those users by new edges. Where
    even so the arena would grow by that much, it takes the storage of a buffer that its writer is
    the last to read, if the writer may store it there, or else a stretch of a region whose writers
    come after all its users. Where large buffers take less if they are laid out by size, for
    their lifetimes in that order, they are. All edges point forward in one topological order, so
    no cycle can arise.

    Args:
        kernels: the DAG, such as a networkx DiGraph; its order of insertion breaks ties.
        buffers: with distinct names; every reader follows the writer in `kernels`.
        regions: memory to use besides the arena.
        worth_an_edge: bytes that outweigh the parallelism an edge takes away.

    Raises:
        ValueError: a reader does not follow the writer of its buffer.
    """
    planned = _planned(_Planner(kernels, regions, worth_an_edge), buffers)
    planner = _Planner(kernels, regions, worth_an_edge)
    planner.fix(_layout(planner.position, buffers, regions, worth_an_edge))
    if planner.height >= planned.peak * WORTH_A_LAYOUT:
        return planned
    other = _planned(planner, buffers)
    return other if other.peak < planned.peak * WORTH_A_LAYOUT else planned


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
        self, kernels: KernelGraph, regions: Sequence[PlannedRegion], worth_an_edge: int
    ) -> None:
        self.kernels = kernels
        self.worth_an_edge = worth_an_edge
        self.order = _topological(kernels)
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
                    gap = relaxed = self.region_gap(region, size, self.users(buffer))
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
                self.awaited[writer] = self.awaited.get(writer, 0) | self.users(buffer)
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
        users = self.users(buffer)
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

    def users(self, buffer: PlannedBuffer) -> int:
        """Its writer and readers."""
        users = 1 << self.position[buffer.writer]
        for reader in buffer.readers:
            users |= 1 << self.position[reader]
        return users

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
        users = self.users(buffer)
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
    """Buffers that lie over each other one after another, and when the memory is theirs."""

    buffers: list[PlannedBuffer]
    size: int
    first: int
    last: int


def _layout(
    position: dict[Hashable, int],
    buffers: Sequence[PlannedBuffer],
    regions: Sequence[PlannedRegion],
    least: int,
) -> dict[Hashable, _Spot]:
    """Offsets of the buffers of `least` bytes, the largest first, each as low as it can lie.

    Lifetimes are those in one order of the kernels, so that edges must keep them apart.
    """
    taken: dict[PlannedRegion | None, list[tuple[int, int, _Span]]] = {None: []}
    taken |= {region: [] for region in sorted(regions, key=lambda region: region.nbytes)}
    spots: dict[Hashable, _Spot] = {}
    for span in sorted(_spans(position, buffers, least), key=lambda span: -span.size):
        for region in [*list(taken)[1:], None]:
            free = 0 if region is None else _free_from(region, position, span.last)
            start = _lowest([t for t in taken[region] if _together(t[2], span)], span.size, free)
            if region is None or start + span.size <= region.nbytes:
                taken[region].append((start, start + span.size, span))
                over: Hashable | None = None
                for buffer in span.buffers:
                    spots[buffer.name] = _Spot(region, start, span.size, over)
                    over = buffer.name
                break
    return spots


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
        last = last if buffer.reusable else len(position)
        ends = (name for name in buffer.over if name in spans and spans[name].last == first)
        old = next((name for name in ends if spans[name].size == size), None)
        before = spans.pop(old) if old is not None else _Span([], size, first, last)
        spans[buffer.name] = _Span([*before.buffers, buffer], size, before.first, last)
    return list(spans.values())


def _together(one: _Span, other: _Span) -> bool:
    return one.first <= other.last and other.first <= one.last


def _free_from(region: PlannedRegion, position: dict[Hashable, int], last: int) -> int:
    """From which offset on a region is written only after the kernel at position `last`."""
    first = end = 0
    for nbytes, writer in region.parts:
        end += nbytes
        if position[writer] <= last:
            first = end
    return first


def _lowest(taken: list[tuple[int, int, _Span]], size: int, start: int) -> int:
    """The lowest offset from `start` on with so many free bytes behind it."""
    for first, end, _ in sorted(taken, key=lambda piece: piece[:2]):
        if first - start >= size:
            break
        start = max(start, end)
    return start


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


def _start(segment: _ArenaSegment) -> int:
    return segment.start


def _end(segment: _ArenaSegment) -> int:
    return segment.end


def _rank(gap: _Gap) -> tuple[int, int, int]:
    return gap.growth, gap.size, gap.start


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
