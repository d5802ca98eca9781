"""Intermediate values and scratch memory of a program, laid out in one piece of memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule
from tinygrad_cuda.lowering.schedule.memory import (
    MemoryPlan,
    PlannedBuffer,
    PlannedRegion,
    RegionPart,
    plan_memory,
)
from tinygrad_cuda.lowering.schedule.overwriting import overwritten_reads
from tinygrad_cuda.lowering.schedule.stored_values import nbytes_of

# Bytes of a result whose memory holds other values before. A result may come to lie elsewhere in
# each run, and so may these: words of more launches are written then.
WORTH_SHARING = 4 << 20

# Results of a block lie in one piece of memory without gaps, so each is a multiple of these bytes,
# as addresses of an allocator are; of smaller ones than the next many would have to be in place.
GRANULE = 512
WORTH_A_PART = 80 << 10

# A block is made where it saves these bytes, and the arena is at most this share of what it was:
# while the caller keeps a result, the values that would be in its memory lie behind the arena.
WORTH_A_BLOCK = 2 << 20
BLOCK_SHARE = 0.996
BLOCK = "block"


class ArenaPiece(NamedTuple):
    """A part of an arena."""

    address: int
    nbytes: int


class Arena(NamedTuple):
    """Where values lie between kernels.

    Attributes:
        slots: of each value or scratch memory the offset and bytes.
        nbytes: in all.
        over: values that are stored over one that their kernel reads, and that one.
        inside: values that lie in the memory of a result until that is written, and which result;
            `BLOCK` if it is that of several.
        block: results that lie behind one another in one piece of memory, and their offsets. A
            run whose results lie elsewhere needs other memory for the values inside.
        scratches: memory between the stages of kernels, and whose it is.
    """

    slots: dict[Any, tuple[int, int]]
    nbytes: int
    over: dict[Any, Any]
    inside: dict[Any, Any]
    block: dict[Node, int]
    scratches: dict[Any, Kernel]

    @property
    def block_bytes(self) -> int:
        """Of the piece of memory of the results in the block."""
        return max((start + nbytes_of(node) for node, start in self.block.items()), default=0)


EMPTY = Arena({}, 0, {}, {}, {}, {})  # of one kernel without scratch memory


class _Order:
    """The kernels as the planner wants them."""

    def __init__(self, kernels: list[Kernel]) -> None:
        self.kernels = kernels

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.kernels)

    def predecessors(self, kernel: Hashable) -> list[Kernel]:
        return cast(Kernel, kernel).before


def plan_arena(schedule: Schedule, scratches: Mapping[Kernel, Mapping[Hashable, int]]) -> Arena:
    """Lays out what no output keeps; kernels get the edges of order that sharing needs.

    Args:
        schedule: its kernels read and write values.
        scratches: memory between the stages of each kernel, by name, and its bytes.
    """
    buffers = _buffers(schedule, scratches)
    if not buffers:
        return EMPTY
    results = _results(schedule)
    members = [r for r in results if r.nbytes >= WORTH_A_PART and not r.nbytes % GRANULE]
    plan = _planned(schedule, buffers, results, members)
    schedule.put_before(
        (cast(Kernel, edge.before), cast(Kernel, edge.after)) for edge in plan.edges
    )
    sizes = {buffer.name: buffer.nbytes for buffer in buffers}
    slots = {name: (offset, sizes[name]) for name, offset in plan.offsets.items()}
    block: dict[Node, int] = {}
    if BLOCK in plan.inside.values():
        starts = accumulate((result.nbytes for result in members), initial=0)
        block = {cast(Node, result.name): start for result, start in zip(members, starts)}
    owners = {name: kernel for kernel, own in scratches.items() for name in own}
    return Arena(slots, plan.peak, plan.over, plan.inside, block, owners)


def _planned(
    schedule: Schedule,
    buffers: Sequence[PlannedBuffer],
    results: Sequence[PlannedRegion],
    members: Sequence[PlannedRegion],
) -> MemoryPlan:
    """With values in the memory of single results, or of many in a block where that is worth it."""
    kernels = _Order(schedule.kernels)
    single = [result for result in results if result.nbytes >= WORTH_SHARING]
    if len(members) < 2 or sum(buffer.nbytes for buffer in buffers) < WORTH_A_BLOCK:
        return plan_memory(kernels, buffers, single)
    block = PlannedRegion(BLOCK, tuple(part for result in members for part in result.parts))
    rest = [result for result in single if result not in members]
    plan = plan_memory(kernels, buffers, [block, *rest])
    worth = max(plan.peak + WORTH_A_BLOCK, plan.peak / BLOCK_SHARE)
    other = plan_memory(kernels, buffers, single, below=worth)
    return other if other.peak < worth else plan


def _buffers(
    schedule: Schedule, scratches: Mapping[Kernel, Mapping[Hashable, int]]
) -> list[PlannedBuffer]:
    """Values between kernels, and scratch memory."""
    outputs = set(schedule.outputs)
    readers: dict[Node, list[Kernel]] = {}
    for kernel in schedule.kernels:
        for node in kernel.reads:
            readers.setdefault(node, []).append(kernel)
    buffers = []
    for kernel in schedule.kernels:
        between = [node for node in kernel.stores if node not in outputs]
        over = overwritten_reads(kernel) if between else {}
        for node in between:
            own, users = tuple(over.get(node, ())), tuple(readers.get(node, ()))
            buffers.append(PlannedBuffer(node, nbytes_of(node), kernel, users, over=own))
        buffers += [PlannedBuffer(name, size, kernel) for name, size in scratches[kernel].items()]
    return buffers


def _results(schedule: Schedule) -> list[PlannedRegion]:
    """Results in memory of their own, in the order in which they are written."""
    outputs = set(schedule.outputs)
    return [
        PlannedRegion(node, (RegionPart(nbytes_of(node), kernel),))
        for kernel in schedule.kernels
        for node in kernel.stores
        if node in outputs and node not in kernel.overwrites
    ]
