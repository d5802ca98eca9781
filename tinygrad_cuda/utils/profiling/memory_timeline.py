"""What each plan holds in memory at each of its kernels, read off the plan before it runs."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tinygrad_cuda.backend.cpu.backend import CpuExecutable
from tinygrad_cuda.backend.cpu.pool import SMALLEST as SMALLEST_POOLED
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.observer import MemoryChange
from tinygrad_cuda.core.shapes import readable
from tinygrad_cuda.engine import realize
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering.schedule.peak_memory import lifetimes
from tinygrad_cuda.lowering.schedule.stored_values import nbytes_of
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.utils.profiling import pictures
from tinygrad_cuda.utils.profiling.memory_changes import most, planned_changes
from tinygrad_cuda.utils.profiling.work import origin

# In the order in which pictures stack them.
CATEGORIES = ("other", "input", "scratch", "forward", "backward", "update")


class ValueLife(NamedTuple):
    """A value in memory.

    Attributes:
        name: its op, shape and dtype.
        nbytes: its size.
        first, last: the numbers of the kernels between which it is there.
        category: ``input`` (it was there before), ``scratch`` (between a kernel's stages, such as
            parts of a split sum), or the phase that computes it.
        line: of the user's, that made it.
        module: the path of the Module that made it, where that was recorded.
    """

    name: str
    nbytes: int
    first: int
    last: int
    category: str
    line: str
    module: str

    def __str__(self) -> str:
        where = f"  {self.module}" if self.module else ""
        size = readable(self.nbytes)
        return f"{size:>12}  {self.category:<8}  {self.name:<36}  {self.line}{where}"


class PlanMemory:
    """One plan's memory, by its plan; what was measured in one run beside it.

    Args:
        executable: the compiled plan.

    Attributes:
        values: inputs, results and values between kernels.
        kernels: their names, in order of execution.
        predicted: bytes that a run holds, by the plan.
        scratch: bytes of that which are always there and no value's: gaps of the layout, numbers.
        measured: bytes of the memory that the run was given; None where nothing measures it.
        in_use: bytes that the device's allocator had given out then, to all.
        changes: what its kernels take and let go, in order: the table's columns of memory. Of
            a plan on cpu there are none before it ran.
    """

    def __init__(self, executable: Any) -> None:
        self.measured: int | None = None
        self.in_use: int | None = None
        self.changes: list[MemoryChange] = []
        self.values: list[ValueLife] = []
        self.kernels: list[str] = []
        self.predicted = self.scratch = 0
        if isinstance(executable, LoweredExecutable):
            self._read_launches(executable)
        elif isinstance(executable, CpuExecutable):
            self._read_steps(executable)

    @property
    def other(self) -> int:
        """Bytes in use that are not this plan's, where that was measured."""
        return 0 if self.in_use is None or self.measured is None else self.in_use - self.measured

    def held(self, kernel: int) -> dict[str, int]:
        """Bytes of each category while a kernel runs."""
        sums = dict.fromkeys(CATEGORIES, 0)
        sums["other"], sums["scratch"] = self.other, self.scratch
        for value in self.values:
            if value.first <= kernel <= value.last:
                sums[value.category] += value.nbytes
        return sums

    @property
    def peak(self) -> int:
        """The number of the kernel at which most is in memory."""
        return max(range(len(self.kernels)), key=lambda k: sum(self.held(k).values()), default=0)

    def alive(self, kernel: int) -> list[ValueLife]:
        """The values in memory while a kernel runs, largest first."""
        there = [v for v in self.values if v.first <= kernel <= v.last]
        return sorted(there, key=lambda value: -value.nbytes)

    @property
    def input_bytes(self) -> int:
        """Bytes that were there before."""
        return sum(value.nbytes for value in self.values if value.category == "input")

    def count(self, changes: list[MemoryChange]) -> None:
        """Enters what NumPy's steps took and let go."""
        self.changes = changes
        self.measured = self.input_bytes + most(changes)

    def _add(self, node: Node, nbytes: int, first: int, last: int, category: str = "") -> None:
        source = origin(node)
        label = "tensor" if node.op is common.buffer else node.label
        name = f"{label} {tuple(node.shape)} {node.dtype.name}"
        self.values.append(
            ValueLife(
                name, nbytes, first, last, category or source.phase, source.line, source.module
            )
        )

    def _read_launches(self, executable: LoweredExecutable) -> None:
        schedule, arena = executable.schedule, executable.arena
        self.kernels = [kernel.kind for kernel in schedule.kernels]
        end = max(len(self.kernels) - 1, 0)
        for node in executable.program.inputs:
            self._add(node, nbytes_of(node), 0, end, "input")
        for node, slot in zip(schedule.outputs, executable.results):
            if slot is None:
                self._add(node, nbytes_of(node), 0, end)
        between = lifetimes(schedule, arena)
        for owner, stop in between:
            category = "scratch" if owner.scratch else ""
            last = max(stop - 1, owner.writer)
            self._add(owner.node, owner.nbytes, owner.writer, last, category)
        use = executable.memory_use()
        own = executable.numbers.nbytes + executable.exchange_bytes
        self.predicted = use.inputs + use.outputs + use.arena + own
        fullest = use.peak.nbytes if use.peak is not None else 0
        self.scratch = use.arena - fullest + own
        self.changes = planned_changes(executable)

    def _read_steps(self, executable: CpuExecutable) -> None:
        """NumPy's values from the step that computes them to the last that reads them.

        Short ones stay to the end. An estimate: whether a step writes over an operand depends on
        how that lies in memory, too.
        """
        lowered, program = executable.lowered, executable.program
        steps = [nodes for nodes in lowered.members if nodes]
        self.kernels = ["+".join(node.op.name for node in nodes) for nodes in steps]
        end = max(len(steps) - 1, 0)
        writer = {node: k for k, nodes in enumerate(steps) for node in nodes}
        last: dict[Node, int] = dict.fromkeys(program.outputs, end)
        for number in range(end, -1, -1):
            for node in reversed(steps[number] if steps else []):
                views = node.op.kind == "movement"
                until = last.get(node, number) if views else number
                for source in node.sources:
                    if writer.get(source) != number or views:
                        last[source] = max(last.get(source, 0), until)
        taken = {source: max(writer[node] - 1, 0) for node, source in lowered.over.items()}
        for node in program.inputs:
            self._add(node, nbytes_of(node), 0, end, "input")
        for node, k in writer.items():
            if node in last and node.op.kind != "movement":
                nbytes = nbytes_of(node)
                until = end if nbytes < SMALLEST_POOLED else last[node]
                self._add(node, nbytes, k, taken.get(node, until))
        totals = (sum(self.held(k).values()) for k in range(len(self.kernels)))
        self.predicted = max(totals, default=0)


class MemoryTimeline:
    """What plans hold in memory, kernel by kernel.

    Args:
        plans: in the order in which they ran.

    Attributes:
        plans: one entry for each run.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.rand(256, 256, device="cpu")
        >>> with tc.profiler.profile(profile_memory=True) as p:
        ...     y = ((x @ x).exp() @ x).sum()
        >>> p.memory_timeline().predicted >= x.nbytes
        True
    """

    def __init__(self, plans: Sequence[PlanMemory]) -> None:
        self.plans = list(plans)

    @property
    def peak(self) -> PlanMemory | None:
        """The run that holds most; None of nothing."""
        return max(self.plans, key=lambda plan: plan.other + plan.predicted, default=None)

    @property
    def predicted(self) -> int:
        """The most bytes that one run holds, by its plan."""
        return max((plan.predicted for plan in self.plans), default=0)

    @property
    def measured(self) -> int | None:
        """The most bytes that one run was given; None where nothing measures it."""
        return max((p.measured for p in self.plans if p.measured is not None), default=None)

    def points(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Name and bytes of each category of each kernel, in order of execution."""
        for plan in self.plans:
            for number, name in enumerate(plan.kernels):
                yield name, plan.held(number)

    def table(self, row_limit: int = 10) -> str:
        """What is in memory at the peak, and which line made it, as text.

        Args:
            row_limit: of values at most.
        """
        plan = self.peak
        if plan is None:
            return "nothing ran"
        measured = (
            "not measured" if plan.measured is None else f"measured {readable(plan.measured)}"
        )
        number = plan.peak
        kernel = f"kernel {number} of {len(plan.kernels)}"
        alive = plan.alive(number)
        lines = [
            f"peak: predicted {readable(plan.predicted)}, {measured}, other "
            f"{readable(plan.other)}; most at {kernel}",
            *map(str, alive[:row_limit]),
        ]
        if rest := alive[row_limit:]:
            lines.append(f"{readable(sum(v.nbytes for v in rest)):>12}  {len(rest)} more values")
        if plan.scratch:
            lines.append(f"{readable(plan.scratch):>12}  gaps and numbers")
        return "\n".join(lines)

    __str__ = table

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it: ``.json`` its numbers, ``.png``, ``.svg`` or ``.html`` a picture.

        Args:
            path: of the file.

        Raises:
            ArgumentError: another ending.
        """
        target = Path(path)
        kind = target.suffix[1:]
        if kind == "json":
            target.write_text(json.dumps(self._content()), encoding="utf-8")
        elif kind in ("png", "svg"):
            target.write_bytes(self._picture(kind))
        elif kind == "html":
            image = base64.b64encode(self._picture("png")).decode()
            page = f'<!doctype html><title>memory</title><img src="data:image/png;base64,{image}">'
            target.write_text(page, encoding="utf-8")
        else:
            raise ArgumentError(
                "export_memory_timeline", "unknown kind of file",
                expect=".json, .png, .svg or .html", actual=repr(target.name),
            )  # fmt: skip

    def _content(self) -> dict[str, Any]:
        return {
            "categories": CATEGORIES,
            "plans": [
                {
                    "predicted": plan.predicted, "measured": plan.measured, "other": plan.other,
                    "scratch": plan.scratch, "kernels": plan.kernels, "peak": plan.peak,
                    "values": [value._asdict() for value in plan.values],
                }
                for plan in self.plans
            ],
        }  # fmt: skip

    def _picture(self, kind: str) -> bytes:
        rows = [live_bytes for _, live_bytes in self.points()]
        series = {name: [row[name] for row in rows] for name in CATEGORIES}
        file = io.BytesIO()
        pictures.memory(file, kind, series, self.table(5))
        return file.getvalue()


def predict_memory(*tensors: TensorBase) -> MemoryTimeline:
    """What computing tensors would hold in memory, read off their plan; computes nothing.

    Args:
        tensors: without a value yet, all on one device.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.rand(64, 64, device="emu")
        >>> timeline = tc.profiler.predict_memory(x @ x)
        >>> timeline.predicted >= x.nbytes
        True
    """
    executable = realize.planned([tensor.node for tensor in tensors])
    return MemoryTimeline([] if executable is None else [PlanMemory(executable)])
