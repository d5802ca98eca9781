"""Intermediate values and scratch memory of a program, laid out in one piece of memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule
from tinygrad_cuda.lowering.schedule.memory import PlannedBuffer, PlannedRegion, plan_memory
from tinygrad_cuda.lowering.schedule.overwriting import overwritten_reads
from tinygrad_cuda.lowering.schedule.stored_values import nbytes_of

# Bytes of a result whose memory holds other values before. A result may come to lie elsewhere in
# each run, and so may these: words of more launches are written then.
WORTH_SHARING = 4 << 20


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
        inside: values that lie in the memory of a result until that is written, and which result.
    """

    slots: dict[Any, tuple[int, int]]
    nbytes: int
    over: dict[Any, Any]
    inside: dict[Any, Node]


EMPTY = Arena({}, 0, {}, {})  # of one kernel without scratch memory


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
    if not buffers:
        return EMPTY
    regions = [
        PlannedRegion(node, nbytes_of(node), kernel)
        for kernel in schedule.kernels
        for node in kernel.stores
        if node in outputs and node not in kernel.overwrites and nbytes_of(node) >= WORTH_SHARING
    ]
    plan = plan_memory(_Order(schedule.kernels), buffers, regions)
    schedule.put_before(
        (cast(Kernel, edge.before), cast(Kernel, edge.after)) for edge in plan.edges
    )
    sizes = {buffer.name: buffer.nbytes for buffer in buffers}
    slots = {name: (offset, sizes[name]) for name, offset in plan.offsets.items()}
    inside = {name: cast(Node, region) for name, region in plan.inside.items()}
    return Arena(slots, plan.peak, plan.over, inside)
