"""Which kernels become one whose rows all blocks of the GPU hold together: reductions of few long
rows, and those after them that would read the same values from memory again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

from tinygrad_cuda.graph.ops import common, indexing
from tinygrad_cuda.lowering.schedule.fusion import edges_of, lines_up, works
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule
from tinygrad_cuda.lowering.skeletons.grid_reduce import grid_reduce_stage
from tinygrad_cuda.lowering.target import Target

ENOUGH = 48 << 20  # bytes of what is read again: of less a cache keeps most


def fuse_grid_reduce(schedule: Schedule, target: Target) -> None:
    """Makes one kernel of a row kernel and those that go on with its rows, where that is possible.

    Two such kernels never run at one time: their blocks would wait for each other's room.

    Args:
        schedule: its kernels are replaced.
        target: without co-resident blocks it has no such kernels.
    """
    made: list[Kernel] = []
    for first in list(schedule.kernels) if target.co_resident else ():
        if first not in schedule.kernels or not _begins(first):
            continue
        parts, joined = [first], None
        for other in schedule.kernels:
            if _goes_on(parts, other):
                wider = _joined(schedule, [*parts, other], target)
                if _lines_up(wider) and grid_reduce_stage(wider) is not None:
                    parts, joined = [*parts, other], wider
        if joined is not None:
            schedule.replace(set(parts), joined)
            made.append(joined)
    schedule.put_before(())
    made.sort(key=schedule.kernels.index)
    schedule.put_before(pairwise(made))


def _begins(kernel: Kernel) -> bool:
    """Whether it reduces few long rows of more than a cache holds."""
    wide = [node for node in kernel.reads if prod(node.shape) == kernel.numel]
    again = sum(prod(node.shape) * node.dtype.itemsize for node in wide)
    return kernel.kind == "row" and kernel.one_phase and again >= ENOUGH and _plain(kernel)


def _plain(kernel: Kernel) -> bool:
    """Whether it writes nothing in place and checks nothing."""
    return not kernel.update and not any(
        node.op in (common.assign, *indexing.CHECKS) for node in kernel.nodes
    )


def _goes_on(parts: list[Kernel], other: Kernel) -> bool:
    """Whether a kernel walks over the same elements, and needs what the others make, and nothing
    that waits for them."""
    first = parts[0]
    same = other.sign == first.sign if other.kind == "row" else other.kind == "map"
    if other in parts or other.co_resident or not same or other.numel != first.numel:
        return False
    if not _plain(other) or not any(part in other.before for part in parts):
        return False
    outside = [kernel for kernel in other.before if kernel not in parts]
    return not any(kernel.waits_for(part) for kernel in outside for part in parts)


def _lines_up(kernel: Kernel) -> bool:
    """Whether each value is at hand where another one of the kernel needs it."""
    inside = set(kernel.nodes)
    stored = {node for node in kernel.nodes if not works(node)}
    return all(
        edge.base not in inside or lines_up(kernel, edge, node)
        for node in kernel.nodes
        for edge in edges_of(node, stored)
    )


def _joined(schedule: Schedule, parts: list[Kernel], target: Target) -> Kernel:
    others = [kernel for kernel in schedule.kernels if kernel not in parts]
    needed = {*schedule.outputs, *(node for kernel in others for node in kernel.reads)}
    nodes = list(dict.fromkeys(node for part in parts for node in part.nodes))
    return replace(
        parts[0],
        nodes=nodes,
        anchors=[node for part in parts for node in part.anchors],
        stores=[node for part in parts for node in part.stores if node in needed],
        reads=[
            node for node in dict.fromkeys(n for part in parts for n in part.reads)
            if node not in nodes
        ],
        before=list(dict.fromkeys(k for part in parts for k in part.before if k not in parts)),
        reason=f"{parts[0].reason}; it holds its rows, since others go on with them",
        room=target.block_shared,
        co_resident=dict(target.co_resident),
        reverse=False,
    )  # fmt: skip
