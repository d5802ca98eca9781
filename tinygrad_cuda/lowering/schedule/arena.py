"""Intermediate values and scratch memory of a program, laid out in one piece of memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple, cast

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule
from tinygrad_cuda.lowering.schedule.memory import PlannedBuffer, plan_memory


class ArenaPiece(NamedTuple):
    """A part of an arena."""

    address: int
    nbytes: int


class Arena(NamedTuple):
    """Where each value or scratch memory lies: (offset, bytes), and how much it takes in all."""

    places: dict[Any, tuple[int, int]]
    nbytes: int


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
        for node in kernel.stores:
            if node not in kept:
                nbytes = prod(node.shape) * node.dtype.itemsize
                buffers.append(PlannedBuffer(node, nbytes, kernel, tuple(readers.get(node, ()))))
        buffers += [PlannedBuffer(name, size, kernel) for name, size in scratches[kernel].items()]
    if not buffers:
        return Arena({}, 0)
    plan = plan_memory(_Order(schedule.kernels), buffers)
    schedule.put_before(
        (cast(Kernel, edge.before), cast(Kernel, edge.after)) for edge in plan.edges
    )
    sizes = {buffer.name: buffer.nbytes for buffer in buffers}
    return Arena({name: (offset, sizes[name]) for name, offset in plan.offsets.items()}, plan.peak)
