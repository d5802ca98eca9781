"""What each kernel of a run takes and lets go: planned ones by their plan, NumPy's as counted."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.observer import MemoryChange
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.peak_memory import lifetimes

if TYPE_CHECKING:
    from tinygrad_cuda.utils.profiling.recorder import PlanRun, ProfileRecorder

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


def works_of(executable: Any) -> list[Any]:
    """The launch, or the nodes of the NumPy step, of each number of a kernel."""
    if not isinstance(executable, LoweredExecutable):
        return [nodes for nodes in executable.lowered.members if nodes]
    launches = {stage.kernel: launch for launch in executable.launches for stage in launch.stages}
    return [launches[kernel] for kernel in executable.schedule.kernels]


class TimedChange(NamedTuple):
    """What a kernel of a recording took or let go.

    Attributes:
        device: where.
        run: the number of the noted kernel; -1 where none was, and at the end of a plan's run.
        after: of those the number of the last noted kernel of that run; -1 if there is none.
        start: when that run began, in nanoseconds.
        change: what it took or let go.
    """

    device: Device
    run: int
    after: int
    start: int
    change: MemoryChange


def timed_changes(recorder: ProfileRecorder) -> Iterator[TimedChange]:
    """The changes of all runs of a recording, each with the noted kernel that made it.

    A kernel belongs to the first run of its plan that has none for it yet: kernels that CUPTI times
    are noted at the end.
    """
    noted: dict[Any, deque[int]] = defaultdict(deque)
    for number, kernel in enumerate(recorder.kernels):
        noted[kernel.device, _identity(kernel.work)].append(number)
    changes = RunChanges()
    for run in recorder.programs:
        device = run.executable.program.device
        works = works_of(run.executable)
        own: dict[Any, int] = {}
        for key in dict.fromkeys(map(_identity, works)):
            waiting = noted[device, key]
            own[key] = waiting.popleft() if waiting else -1
        last = max(own.values(), default=-1)
        for change in changes.of(run):
            number = own[_identity(works[change.kernel])] if change.kernel >= 0 else -1
            yield TimedChange(device, number, last, run.start, change)


def _identity(work: Any) -> Any:
    """What a launch has in common with its runs: its name; a NumPy step's nodes are one object."""
    return id(work) if isinstance(work, tuple | list) else getattr(work, "name", work)


def most(changes: Sequence[MemoryChange]) -> int:
    """The most bytes that a run had taken at once."""
    return max(accumulate((change.nbytes for change in changes), initial=0))
