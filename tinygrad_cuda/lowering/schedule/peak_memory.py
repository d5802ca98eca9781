"""What a program holds in memory at most, and for whom: read off its plan, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.core.shapes import readable
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.schedule.arena import Arena
from tinygrad_cuda.lowering.schedule.kernel_dag import Schedule
from tinygrad_cuda.lowering.schedule.stored_values import nbytes_of

OWNERS = 8  # values that a description lists


class Owner(NamedTuple):
    """A value between kernels, or memory between the stages of one.

    Attributes:
        node: what is stored; of scratch memory, what its kernel computes.
        nbytes: its size.
        writer: the number of the kernel that stores it, in the schedule's order.
        reader: that of the last kernel that reads it.
        scratch: whether it is memory between stages, such as parts of a split sum.
    """

    node: Node
    nbytes: int
    writer: int
    reader: int
    scratch: bool = False

    def __str__(self) -> str:
        node, scratch = self.node, "scratch of " if self.scratch else ""
        return (
            f"{readable(self.nbytes):>12}  {scratch}{node.op.name} {node.shape} {node.dtype.name}, "
            f"kernels {self.writer} to {self.reader}, {describe_site(node.site)}"
        )


class Peak(NamedTuple):
    """The moment at which most is in memory between kernels.

    Attributes:
        kernel: the number of the kernel that runs then.
        nbytes: of the values in memory then, and of the kernel's scratch memory.
        owners: these, largest first.
    """

    kernel: int
    nbytes: int
    owners: list[Owner]


class MemoryUse(NamedTuple):
    """Bytes that a program takes.

    Attributes:
        inputs: of the values that it reads, those that it overwrites among them.
        outputs: of results in memory of their own.
        arena: between kernels; at least as much as `peak`, which no layout can go below.
        peak: None where nothing lies between kernels.
    """

    inputs: int
    outputs: int
    arena: int
    peak: Peak | None

    def __str__(self) -> str:
        first = (
            f"memory: inputs {readable(self.inputs)}, new outputs {readable(self.outputs)}, "
            f"between kernels {readable(self.arena)}"
        )
        if self.peak is None:
            return first
        kernel, nbytes, owners = self.peak
        lines = [f"{first}, most at kernel {kernel}: {readable(nbytes)}"]
        lines += map(str, owners[:OWNERS])
        if rest := owners[OWNERS:]:
            lines.append(f"{readable(sum(o.nbytes for o in rest)):>12}  {len(rest)} more values")
        return "\n".join(lines)


def memory_use(inputs: Sequence[Node], schedule: Schedule, arena: Arena) -> MemoryUse:
    """What a program takes, in the schedule's order of execution.

    Args:
        inputs: the values that it reads.
        schedule: its kernels.
        arena: where values between them lie.
    """
    placed = {node for kernel in schedule.kernels for node in kernel.overwrites}
    fresh = [node for node in schedule.outputs if node not in placed]
    return MemoryUse(
        sum(map(nbytes_of, inputs)),
        sum(map(nbytes_of, fresh)),
        arena.nbytes,
        _peak(schedule, arena) if arena.slots else None,
    )


def lifetimes(schedule: Schedule, arena: Arena) -> list[tuple[Owner, int]]:
    """What lies in the arena, each with the number of the first kernel that runs without it."""
    last = {node: k for k, kernel in enumerate(schedule.kernels) for node in kernel.reads}
    end = {old: last[old] for old in arena.over.values()}  # its bytes are another's from then on
    owners = [
        Owner(node, arena.slots[node][1], number, max(number, last.get(node, number)))
        for number, kernel in enumerate(schedule.kernels)
        for node in kernel.stores
        if node in arena.slots and node not in arena.inside
    ]
    numbers = {kernel: number for number, kernel in enumerate(schedule.kernels)}
    for name, kernel in arena.scratches.items():
        if name not in arena.inside:
            node, number = [*kernel.anchors, *kernel.stores][0], numbers[kernel]
            owners.append(Owner(node, arena.slots[name][1], number, number, True))
    return [
        (owner, owner.reader + 1 if owner.scratch else end.get(owner.node, owner.reader + 1))
        for owner in owners
    ]


def _peak(schedule: Schedule, arena: Arena) -> Peak:
    """The kernel at which most is in memory."""
    owners = lifetimes(schedule, arena)
    changes = [0] * (len(schedule.kernels) + 1)
    for owner, end in owners:
        changes[owner.writer] += owner.nbytes
        changes[end] -= owner.nbytes
    live_bytes = [changes[0]]
    for change in changes[1:-1]:
        live_bytes.append(live_bytes[-1] + change)
    worst = max(range(len(live_bytes)), key=live_bytes.__getitem__)
    alive = [owner for owner, end in owners if owner.writer <= worst < end]
    return Peak(worst, live_bytes[worst], sorted(alive, key=lambda owner: -owner.nbytes))
