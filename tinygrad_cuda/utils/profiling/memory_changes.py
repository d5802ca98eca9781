"""What each kernel of a run takes and lets go: planned ones by their plan, NumPy's as counted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.core.observer import MemoryChange
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.peak_memory import lifetimes

if TYPE_CHECKING:
    from tinygrad_cuda.utils.profiling.recorder import PlanRun

BEFORE, TAKEN, AFTER = range(3)  # within a kernel: what it stores over, its results, its operands


def planned_changes(executable: LoweredExecutable) -> list[MemoryChange]:
    """What the kernels of a plan take and let go, in order.

    A result counts for the kernel that stores it, a value between kernels from there to the last
    kernel that reads it, and its place in the arena is let go by the op that reads it there. What
    is stored over an input, or inside of a result's memory, takes nothing.
    """
    schedule = executable.schedule
    kernels = schedule.kernels
    writer = {node: number for number, kernel in enumerate(kernels) for node in kernel.stores}
    over = set(executable.arena.over.values())
    found: list[tuple[int, int, MemoryChange]] = []

    def note(number: int, moment: int, node: Node | None, nbytes: int) -> None:
        found.append((number, moment, MemoryChange(number, node, nbytes)))

    copied = {number for number, _ in executable.copies}
    for number, (node, slot) in enumerate(zip(schedule.outputs, executable.results)):
        if slot is None:
            nbytes = executable.sizes[number]
            note(writer.get(node, len(kernels)), TAKEN, node, nbytes)
            if number in copied:  # to the memory of an input, at the end
                note(len(kernels), AFTER, None, -nbytes)
    for owner, stop in lifetimes(schedule, executable.arena):
        note(owner.writer, TAKEN, owner.node, owner.nbytes)
        if owner.scratch:
            note(owner.writer, AFTER, owner.node, -owner.nbytes)
        elif owner.node in over:
            note(stop, BEFORE, _reader(kernels[stop], owner.node), -owner.nbytes)
        else:
            last = max(stop - 1, owner.writer)
            note(last, AFTER, _reader(kernels[last], owner.node), -owner.nbytes)
    found.sort(key=lambda entry: entry[:2])
    end = len(kernels)
    return [c._replace(kernel=-1) if number == end else c for number, _, c in found]


def _reader(kernel: Kernel, value: Node) -> Node:
    """The last op of a kernel that reads a value."""
    readers = [node for node in kernel.nodes if value in node.sources]
    return readers[-1] if readers else [*kernel.anchors, *kernel.stores][0]


class RunChanges:
    """The changes of each run of a recording; those of a plan are made once."""

    def __init__(self) -> None:
        self._planned: dict[int, tuple[Any, list[MemoryChange]]] = {}

    def of(self, run: PlanRun) -> list[MemoryChange]:
        """What the kernels of a run took and let go, in order."""
        if run.changes is not None:
            return run.changes
        executable = run.executable
        if not isinstance(executable, LoweredExecutable):
            return []
        if id(executable) not in self._planned:
            self._planned[id(executable)] = executable, planned_changes(executable)
        return self._planned[id(executable)][1]


def most(changes: Sequence[MemoryChange]) -> int:
    """The most bytes that a run had taken at once."""
    return max(accumulate((change.nbytes for change in changes), initial=0))
