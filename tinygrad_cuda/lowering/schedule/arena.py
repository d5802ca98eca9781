"""Intermediate values and scratch memory of a program, laid out in one piece of memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule
from tinygrad_cuda.lowering.schedule.memory import PlannedBuffer, plan_memory
from tinygrad_cuda.lowering.schedule.overwriting import overwritten_reads
from tinygrad_cuda.lowering.schedule.stored_values import nbytes_of


class ArenaPiece(NamedTuple):
    """A part of an arena."""

    address: int
    nbytes: int


class Arena(NamedTuple):
    """Where values lie between kernels.

    Attributes:
        places: of each value or scratch memory the offset and bytes.
        nbytes: in all.
        over: values that are stored over one that their kernel reads, and that one.
    """

    places: dict[Any, tuple[int, int]]
    nbytes: int
    over: dict[Any, Any]


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
    kept = set(schedule.outputs)
    readers: dict[Node, list[Kernel]] = {}
    for kernel in schedule.kernels:
        for node in kernel.reads:
            readers.setdefault(node, []).append(kernel)
    buffers = []
    for kernel in schedule.kernels:
        between = [node for node in kernel.stores if node not in kept]
        over = overwritten_reads(kernel) if between else {}
        for node in between:
            own, users = tuple(over.get(node, ())), tuple(readers.get(node, ()))
            buffers.append(PlannedBuffer(node, nbytes_of(node), kernel, users, over=own))
        buffers += [PlannedBuffer(name, size, kernel) for name, size in scratches[kernel].items()]
    if not buffers:
        return Arena({}, 0, {})
    plan = plan_memory(_Order(schedule.kernels), buffers)
    schedule.put_before(
        (cast(Kernel, edge.before), cast(Kernel, edge.after)) for edge in plan.edges
    )
    sizes = {buffer.name: buffer.nbytes for buffer in buffers}
    places = {name: (offset, sizes[name]) for name, offset in plan.offsets.items()}
    return Arena(places, plan.peak, plan.over)
