"""Sums of a recording: by op, kernel, Module, line or phase; `table` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tinygrad_cuda.core.errors import ArgumentError, Site
from tinygrad_cuda.utils.profiling.events import MEMORY
from tinygrad_cuda.utils.profiling.memory_changes import RunChanges, works_of
from tinygrad_cuda.utils.profiling.pictures import RooflinePoint
from tinygrad_cuda.utils.profiling.work import KernelWork, Origin, Works

if TYPE_CHECKING:
    from tinygrad_cuda.core.device import Device
    from tinygrad_cuda.graph.node import Node
    from tinygrad_cuda.utils.profiling.events import FunctionEvent
    from tinygrad_cuda.utils.profiling.recorder import HostSpan, KernelRun, ProfileRecorder
    from tinygrad_cuda.utils.profiling.roofline import MeasuredRoof

GROUPS = ("op", "kernel", "module", "line", "phase")
_MICRO = 1e-3  # microseconds in a nanosecond


class FunctionEventAvg:
    """All events of one key.

    Attributes:
        key: what they have in common: an op, a kernel, a Module's path, a line, a phase.
        count: how often it began.
        cpu_time_total, self_cpu_time_total: microseconds of the host, without those of inner
            events in the latter.
        device_time_total, self_device_time_total: microseconds of the device; on cpu of NumPy.
        forward_time, backward_time: parts of `self_device_time_total`.
        flops, nbytes: by the model of cost.
        least_time: microseconds that the device needs for these at least, by its measured roof; 0
            where there is none.
        self_cpu_memory_usage, self_device_memory_usage: bytes of arrays that its steps made on
            cpu, less those that they let go; the same of kernels on ``emu`` and ``cuda``.
        cpu_memory_usage, device_memory_usage: with those of ops that were recorded inside of a
            range or a Module.
        input_shapes, stack: what they were grouped by, if they were.
        recorded: how often the host recorded the op.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.count = self.recorded = 0
        self.cpu_time_total = self.self_cpu_time_total = 0.0
        self.device_time_total = self.self_device_time_total = 0.0
        self.forward_time = self.backward_time = 0.0
        self.flops = 0.0
        self.nbytes = 0.0
        self.cpu_memory_usage = self.self_cpu_memory_usage = 0
        self.device_memory_usage = self.self_device_memory_usage = 0
        self.input_shapes = ""
        self.stack: list[str] = []
        self.limit = ""
        self.least_time = 0.0

    @property
    def cpu_time(self) -> float:
        """Microseconds of the host for each."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Microseconds of the device for each."""
        return self.device_time_total / self.count if self.count else 0.0

    @property
    def gflops_per_second(self) -> float:
        """10^9 FLOPs for each second of the device."""
        own = self.self_device_time_total
        return self.flops / own / 1e3 if own else 0.0

    @property
    def gbytes_per_second(self) -> float:
        """10^9 bytes for each second of the device."""
        own = self.self_device_time_total
        return self.nbytes / own / 1e3 if own else 0.0

    @property
    def share_of_roof(self) -> float | None:
        """The least time that the device could take, divided by what it took; None without roof."""
        own = self.self_device_time_total
        return self.least_time / own if self.least_time and own else None

    cuda_time = device_time

    @property
    def cuda_time_total(self) -> float:
        """`device_time_total`, by its older name."""
        return self.device_time_total

    @property
    def self_cuda_time_total(self) -> float:
        """`self_device_time_total`, by its older name."""
        return self.self_device_time_total

    @property
    def cuda_memory_usage(self) -> int:
        """`device_memory_usage`, by its older name."""
        return self.device_memory_usage

    @property
    def self_cuda_memory_usage(self) -> int:
        """`self_device_memory_usage`, by its older name."""
        return self.self_device_memory_usage

    def add_memory(self, on_cpu: bool, nbytes: int, own: bool = True) -> None:
        """Adds what an op took, or let go.

        Args:
            on_cpu: whether on cpu; else on another device.
            nbytes: how much; below 0 if it let them go.
            own: whether the op is one of this row's, not one inside.
        """
        if on_cpu:
            self.cpu_memory_usage += nbytes
            self.self_cpu_memory_usage += nbytes * own
        else:
            self.device_memory_usage += nbytes
            self.self_device_memory_usage += nbytes * own

    def __repr__(self) -> str:
        return (
            f"<FunctionEventAvg key={self.key} count={self.count} "
            f"cpu_time={self.cpu_time:.3f}us device_time={self.device_time:.3f}us>"
        )


class _Column(NamedTuple):
    title: str
    text: Callable[[FunctionEventAvg], str]


SORTS: dict[str, Callable[[FunctionEventAvg], float]] = {
    "cpu_time": lambda row: row.cpu_time,
    "cpu_time_total": lambda row: row.cpu_time_total,
    "self_cpu_time_total": lambda row: row.self_cpu_time_total,
    "device_time": lambda row: row.device_time,
    "device_time_total": lambda row: row.device_time_total,
    "self_device_time_total": lambda row: row.self_device_time_total,
    "cuda_time": lambda row: row.device_time,
    "cuda_time_total": lambda row: row.device_time_total,
    "self_cuda_time_total": lambda row: row.self_device_time_total,
    "cpu_memory_usage": lambda row: row.cpu_memory_usage,
    "self_cpu_memory_usage": lambda row: row.self_cpu_memory_usage,
    "device_memory_usage": lambda row: row.device_memory_usage,
    "self_device_memory_usage": lambda row: row.self_device_memory_usage,
    "cuda_memory_usage": lambda row: row.device_memory_usage,
    "self_cuda_memory_usage": lambda row: row.self_device_memory_usage,
    "count": lambda row: float(row.count),
    "flops": lambda row: row.flops,
    "bytes": lambda row: row.nbytes,
}


class EventList(list[FunctionEventAvg]):
    """The rows of a table, in the order in which they first appeared.

    Args:
        rows: what is in it.
        by: what they were grouped by.
        notes: lines that stand below each table.
        device_times: microseconds of copies to the device, of kernels, and of copies back.
        with_flops: whether tables have a column of FLOPs.
        profile_memory: whether tables have columns of memory.
    """

    def __init__(
        self,
        rows: Iterable[FunctionEventAvg],
        by: str,
        notes: Sequence[str],
        device_times: tuple[float, float, float] = (0.0, 0.0, 0.0),
        with_flops: bool = False,
        profile_memory: bool = False,
    ) -> None:
        super().__init__(rows)
        self.by, self.notes = by, list(notes)
        self.device_times, self.with_flops = device_times, with_flops
        self.profile_memory = profile_memory

    def total_average(self) -> FunctionEventAvg:
        """All rows as one."""
        total = FunctionEventAvg("Total")
        for row in self:
            total.count += row.count
            total.cpu_time_total += row.self_cpu_time_total
            total.self_cpu_time_total += row.self_cpu_time_total
            total.device_time_total += row.self_device_time_total
            total.self_device_time_total += row.self_device_time_total
            total.flops += row.flops
            total.nbytes += row.nbytes
            total.add_memory(True, row.self_cpu_memory_usage)
            total.add_memory(False, row.self_device_memory_usage)
        return total

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
    ) -> str:
        """The rows as aligned text, with sums, rates and the share of the measured roof below.

        Args:
            sort_by: a name of `SORTS`, largest first; None leaves the order of appearance.
            row_limit: of rows at most; -1 for all.
            max_src_column_width, max_name_column_width, max_shapes_column_width: in letters;
                longer text is cut.
            header: a line above.
            top_level_events_only: accepted as in PyTorch.

        Raises:
            ArgumentError: `sort_by` is another name.
        """
        rows = list(self)
        if sort_by is not None:
            rows.sort(key=_sorting(sort_by), reverse=True)
        shown = rows if row_limit < 0 else rows[:row_limit]
        widths = max_name_column_width, max_src_column_width, max_shapes_column_width
        columns = self._columns(widths)
        cells = [[column.text(row) for column in columns] for row in shown]
        titles = [column.title for column in columns]
        sizes = [max(map(len, texts)) for texts in zip(titles, *cells)]
        rule = "  ".join("-" * size for size in sizes)
        lines = [] if header is None else [header]
        lines += [rule, _joined(titles, sizes), rule]
        lines += [_joined(row, sizes) for row in cells] + [rule]
        if left := len(rows) - len(shown):
            lines.append(f"{left} more rows")
        return "\n".join([*lines, *self._sums(), *self.notes]) + "\n"

    def _sums(self) -> list[str]:
        total = self.total_average()
        times = (*self.device_times, sum(self.device_times))
        to, kernels, back, whole = map(time_text, times)
        return [
            f"Self CPU time total: {time_text(total.self_cpu_time_total)}",
            f"Self device time total: {time_text(total.self_device_time_total)}",
            f"H2D {to}, kernels {kernels}, D2H {back}, total {whole}",
        ]

    def _columns(self, widths: tuple[int, int, int]) -> list[_Column]:
        total = self.total_average()
        name, source, shapes = widths
        host, device = total.self_cpu_time_total, total.self_device_time_total
        columns = [_Column("Name", lambda row: _cut(row.key, name))]
        if host:
            columns += [
                _Column("Self CPU %", lambda row: _percent(row.self_cpu_time_total, host)),
                _Column("Self CPU", lambda row: time_text(row.self_cpu_time_total)),
                _Column("CPU total", lambda row: time_text(row.cpu_time_total)),
                _Column("CPU time avg", lambda row: time_text(row.cpu_time)),
            ]
        columns += [
            _Column("Self device", lambda row: time_text(row.self_device_time_total)),
            _Column("Self device %", lambda row: _percent(row.self_device_time_total, device)),
            _Column("Device total", lambda row: time_text(row.device_time_total)),
            *(MEMORY_COLUMNS if self.profile_memory else ()),
            _Column("# of Calls", lambda row: str(row.count)),
        ]
        if self.by in ("module", "line"):
            columns[-1:-1] = [
                _Column("Forward", lambda row: time_text(row.forward_time)),
                _Column("Backward", lambda row: time_text(row.backward_time)),
            ]
        if any(row.input_shapes for row in self):
            columns.append(_Column("Input Shapes", lambda row: _cut(row.input_shapes, shapes)))
        if any(row.stack for row in self):
            columns.append(
                _Column("Source Location", lambda row: _cut(" ".join(row.stack), source))
            )
        if self.with_flops:
            columns.append(_Column("Total MFLOPs", lambda row: _rate(row.flops / 1e6)))
        columns += [
            _Column("GFLOP/s", lambda row: _rate(row.gflops_per_second)),
            _Column("GB/s", lambda row: _rate(row.gbytes_per_second)),
            _Column("% of roof", lambda row: _share(row.share_of_roof)),
        ]
        if self.by == "kernel":
            columns.append(_Column("Limited by", lambda row: row.limit))
        return columns


def _sorting(name: str) -> Callable[[FunctionEventAvg], float]:
    if name not in SORTS:
        raise ArgumentError(
            "table", "unknown order", expect=", ".join(SORTS), actual=repr(name)
        )  # fmt: skip
    return SORTS[name]


def time_text(microseconds: float) -> str:
    """A time in us, ms or s, as PyTorch's tables have it."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3f}s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.3f}ms"
    return f"{microseconds:.3f}us"


def memory_text(nbytes: int) -> str:
    """Bytes in B, KB, MB or GB, as PyTorch's tables have them."""
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} B"


MEMORY_COLUMNS = (
    _Column("CPU Mem", lambda row: memory_text(row.cpu_memory_usage)),
    _Column("Self CPU Mem", lambda row: memory_text(row.self_cpu_memory_usage)),
    _Column("CUDA Mem", lambda row: memory_text(row.device_memory_usage)),
    _Column("Self CUDA Mem", lambda row: memory_text(row.self_device_memory_usage)),
)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "0.00%"


def _rate(value: float) -> str:
    return f"{value:.3g}" if value else "--"


def _share(value: float | None) -> str:
    return "no roof" if value is None else f"{100 * value:.1f}%"


def _cut(text: str, width: int) -> str:
    return text if width < 0 or len(text) <= width else f"{text[: width - 3]}..."


def _joined(cells: Sequence[str], sizes: Sequence[int]) -> str:
    first = cells[0].ljust(sizes[0])
    return "  ".join([first, *(c.rjust(s) for c, s in zip(cells[1:], sizes[1:]))]).rstrip()


def rows_of(events: Iterable[FunctionEvent]) -> Iterator[FunctionEventAvg]:
    """A row for each single event."""
    for event in events:
        row = FunctionEventAvg(event.name)
        row.count, row.flops, row.nbytes = 1, event.flops, event.nbytes
        row.cpu_time_total = event.cpu_time_total
        row.self_cpu_time_total = event.self_cpu_time_total
        row.device_time_total = row.self_device_time_total = event.self_device_time_total
        row.input_shapes = str(event.input_shapes) if event.input_shapes else ""
        row.add_memory(True, event.self_cpu_memory_usage)
        row.add_memory(False, event.self_device_memory_usage)
        yield row


class Averages:
    """Makes the rows from a recording.

    Args:
        recorder: what was noted.
        works: descriptions of launches.
        roofs: measured ones, of the devices that have one.
    """

    def __init__(
        self, recorder: ProfileRecorder, works: Works, roofs: Mapping[Device, MeasuredRoof]
    ) -> None:
        self.recorder, self.works, self.roofs = recorder, works, roofs
        self.rows: dict[Any, FunctionEventAvg] = {}

    def row(self, key: str, *more: Any) -> FunctionEventAvg:
        """The row of a key, and of what else tells rows of that name apart."""
        whole = (key, *more)
        if whole not in self.rows:
            self.rows[whole] = FunctionEventAvg(key)
        return self.rows[whole]

    def by(self, group: str, shapes: bool = False, lines: bool = False) -> list[FunctionEventAvg]:
        """The rows of one grouping."""
        if group == "kernel":
            for run in self.recorder.kernels:
                self._add_kernel(run)
            self._add_memory(group, shapes, lines)
            return list(self.rows.values())
        if group == "op":
            for span in self.recorder.spans:
                self._add_span(span, shapes, lines)
        for run in self.recorder.kernels:
            work = self.works.of(run.work)
            for node, share in work.shares:
                self._add_node(group, run, work, node, share, shapes, lines)
        self._add_memory(group, shapes, lines)
        if group == "module":
            self._add_calls()
        for row in self.rows.values():
            row.count = row.count or row.recorded  # an op that was not computed
        return list(self.rows.values())

    def _add_span(self, span: HostSpan, shapes: bool, lines: bool) -> None:
        name = f"nn.Module: {span.name}" if span.kind == "module" else span.name
        stack, more = [], []
        if lines and span.site is not None:
            stack.append(str(Site(*span.site[:2] if span.kind == "op" else span.site)))
        if shapes and span.kind == "op":
            more.append(str([list(shape) for shape in span.shapes]))
        row = self.row(name, *more, *stack)
        row.stack, row.input_shapes = stack, more[0] if more else ""
        if span.kind == "op":
            row.recorded += 1  # `count` is how often the device computed it
        else:
            row.count += 1
        whole = (span.end - span.start) * _MICRO
        row.cpu_time_total += whole
        row.self_cpu_time_total += whole - span.inner * _MICRO
        row.nbytes += span.nbytes

    def _add_kernel(self, run: KernelRun) -> None:
        work = self.works.of(run.work)
        row = self.row(work.name, work.shape)
        row.input_shapes = work.shape
        row.count += 1
        time = run.nanoseconds * _MICRO
        row.self_device_time_total += time
        row.device_time_total += time
        row.flops += work.flops
        row.nbytes += work.nbytes
        row.least_time += self._least(run, work)
        roof = self.roofs.get(run.device)
        row.limit = limit_of(work, row.self_device_time_total / row.count, roof)

    def _add_node(
        self, group: str, run: KernelRun, work: KernelWork, node: Node, share: float,
        shapes: bool, lines: bool,
    ) -> None:  # fmt: skip
        origin = self.works.origin(node)
        time = run.nanoseconds * _MICRO * share
        row = self._node_row(group, node, shapes, lines)
        row.count += group != "module"
        row.self_device_time_total += time
        row.device_time_total += time
        row.flops += work.flops * share
        row.nbytes += work.nbytes * share
        row.least_time += self._least(run, work) * share
        if origin.phase == "backward":
            row.backward_time += time
        elif origin.phase == "forward":
            row.forward_time += time
        for around in self._around(group, origin):
            around.device_time_total += time

    def _node_row(self, group: str, node: Node, shapes: bool, lines: bool) -> FunctionEventAvg:
        """The row that an op belongs to."""
        origin = self.works.origin(node)
        more: list[str] = []
        if shapes:
            more.append(str([list(source.shape) for source in node.sources]))
        if lines:
            more.append(origin.line)
        key = {"op": node.op.name, "line": origin.line, "phase": origin.phase}.get(group)
        row = self.row(origin.module or "(outside of Modules)" if key is None else key, *more)
        row.input_shapes = more[0] if shapes else ""
        row.stack = [origin.line] if lines else []
        return row

    def _around(self, group: str, origin: Origin) -> Iterator[FunctionEventAvg]:
        """The rows of ranges and Modules inside of which an op was recorded."""
        if group == "op":
            yield from map(self.row, origin.ranges)
            yield from self._enclosing(origin.module, "nn.Module: ")
        elif group == "module":
            yield from self._enclosing(origin.module.rpartition(".")[0], "")

    def _add_memory(self, group: str, shapes: bool, lines: bool) -> None:
        """What the kernels took and let go; what ended with its run is nobody's."""
        changes = RunChanges()
        for run in self.recorder.programs:
            on_cpu = run.executable.program.device.kind == "cpu"
            works = works_of(run.executable) if group == "kernel" else []
            for kernel, node, nbytes in changes.of(run):
                if group == "kernel" and kernel >= 0:
                    work = self.works.of(works[kernel])
                    row = self.row(work.name, work.shape)
                elif group == "kernel" or node is None:
                    row = self.row(MEMORY)
                else:
                    row = self._node_row(group, node, shapes, lines)
                    for around in self._around(group, self.works.origin(node)):
                        around.add_memory(on_cpu, nbytes, own=False)
                row.add_memory(on_cpu, nbytes)

    def _least(self, run: KernelRun, work: KernelWork) -> float:
        """Microseconds that a kernel takes at least; 0 where there is no roof."""
        roof = self.roofs.get(run.device)
        return 0.0 if roof is None else 1e6 * roof.least_seconds(work)

    def _enclosing(self, path: str, prefix: str) -> Iterator[FunctionEventAvg]:
        while path:
            yield self.row(prefix + path)
            path = path.rpartition(".")[0]

    def _add_calls(self) -> None:
        """The host's side of each Module."""
        for span in self.recorder.spans:
            if span.kind == "module":
                row = self.row(span.name)
                row.count += 1
                row.cpu_time_total += (span.end - span.start) * _MICRO
                row.self_cpu_time_total += (span.end - span.start - span.inner) * _MICRO


LAUNCH_MICROSECONDS = 3.0  # a kernel below this is as long as its launch on any GPU


def limit_of(work: KernelWork, microseconds: float, roof: MeasuredRoof | None) -> str:
    """What keeps a kernel from being shorter: memory, arithmetic or its launch."""
    if roof is None:
        return "--"
    least = 1e6 * roof.least_seconds(work)
    if microseconds < LAUNCH_MICROSECONDS and least < microseconds / 2:
        return "launch"
    arithmetic = work.flops / roof.peak(work.half)
    return "memory" if work.nbytes / roof.bandwidth >= arithmetic else "arithmetic"


def roofline_points(runs: Iterable[KernelRun], works: Works) -> list[RooflinePoint]:
    """Kernels as points below a roof, those that take most of the time first."""
    times: dict[int, float] = {}
    described: dict[int, KernelWork] = {}
    counts: dict[int, int] = {}
    for run in runs:
        work = works.of(run.work)
        if work.flops and work.nbytes:
            described[id(work)] = work
            times[id(work)] = times.get(id(work), 0.0) + run.nanoseconds
            counts[id(work)] = counts.get(id(work), 0) + 1
    whole = sum(times.values())
    points = [
        RooflinePoint(
            f"{work.name} {work.shape}", work.flops / work.nbytes,
            1e9 * work.flops * counts[key] / times[key], times[key] / whole,
        )
        for key, work in described.items()
    ]  # fmt: skip
    return sorted(points, key=lambda point: -point.share)
