"""Single events of a recording, as PyTorch's `profile.events()` has them, and stacks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tinygrad_cuda.core.errors import Site
from tinygrad_cuda.core.observer import DTOH, HTOD
from tinygrad_cuda.graph.node import LeafOp, Node, Op, SameSpecOp
from tinygrad_cuda.tensors import base, math, promotion
from tinygrad_cuda.utils.profiling.memory_changes import timed_changes

if TYPE_CHECKING:
    from tinygrad_cuda.utils.profiling.recorder import HostSpan, KernelRun, ProfileRecorder
    from tinygrad_cuda.utils.profiling.work import Works

MEMORY = "[memory]"  # what is let go outside of an op, by PyTorch's name
_MICRO = 1e-3  # microseconds in a nanosecond
# What records an op: the methods of its class, and the functions that do without a call of them.
RECORDING: tuple[tuple[Any, str], ...] = (
    (Op, "__call__"), (SameSpecOp, "__call__"), (LeafOp, "leaf"), (LeafOp, "like"),
    (base, "node_made"), (math, "node_made"), (promotion, "node_made"),
)  # fmt: skip


class Interval(NamedTuple):
    """From when to when, in microseconds since the first event began."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Microseconds from start to end."""
        return self.end - self.start


class FunctionEvent:
    """One event: work of the host, a kernel, or ``[memory]`` that goes when a plan has run.

    Attributes:
        name: of the op, range, Module, copy or kernel.
        kind: ``op`` (recorded by the host), ``record``, ``module``, ``plan``, ``run``, ``copy``,
            ``user``, ``kernel`` or ``memory``.
        device: where; ``cpu`` of the host's work.
        thread: of the host's work.
        time_range: when.
        cpu_time_total, self_cpu_time_total: microseconds of the host.
        device_time_total, self_device_time_total: microseconds of a kernel.
        flops, nbytes: of a kernel by the model of cost; of a copy its bytes.
        self_cpu_memory_usage, self_device_memory_usage: bytes that a kernel took, less those that
            it let go, where memory was noted: of NumPy's steps, and of other devices' kernels.
        input_shapes: of a recorded op's operands.
        stack: what the event is in, outermost first: ranges, Modules, and the user's line where
            lines were recorded.
    """

    count = 1

    def __init__(self, name: str, kind: str, device: str, time_range: Interval) -> None:
        self.name, self.kind, self.device, self.time_range = name, kind, device, time_range
        self.thread = 0
        self.cpu_time_total = self.self_cpu_time_total = 0.0
        self.device_time_total = self.self_device_time_total = 0.0
        self.flops = self.nbytes = 0
        self.self_cpu_memory_usage = self.self_device_memory_usage = 0
        self.input_shapes: list[list[int]] = []
        self.stack: list[str] = []

    @property
    def key(self) -> str:
        """The name, by which `key_averages` groups."""
        return self.name

    @property
    def cpu_memory_usage(self) -> int:
        """`self_cpu_memory_usage`: the memory of what an event records is that of kernels."""
        return self.self_cpu_memory_usage

    @property
    def device_memory_usage(self) -> int:
        """`self_device_memory_usage`."""
        return self.self_device_memory_usage

    cuda_memory_usage = self_cuda_memory_usage = device_memory_usage

    def add_memory(self, nbytes: int) -> None:
        """Adds what it took, or let go, on its device."""
        if self.device == "cpu":
            self.self_cpu_memory_usage += nbytes
        else:
            self.self_device_memory_usage += nbytes

    @property
    def is_user_annotation(self) -> bool:
        """Whether it is a range of `record_function`, or an optimizer's step."""
        return self.kind == "user"

    def __repr__(self) -> str:
        return (
            f"<FunctionEvent {self.name} {self.kind} {self.device} "
            f"{self.time_range.elapsed_us():.3f}us>"
        )


def events(recorder: ProfileRecorder, works: Works) -> list[FunctionEvent]:
    """All events of a recording, in the order in which they began."""
    starts = [span.start for span in recorder.spans] + [run.start for run in recorder.kernels]
    began = min(starts, default=0)
    made = [_of_host(span, began) for span in recorder.spans]
    for event, outer in zip(made, _enclosing(recorder.spans)):
        event.stack[:0] = [span.name for span in outer]
    kernels = [_of_kernel(run, works, began) for run in recorder.kernels]
    made += [*kernels, *_of_memory(recorder, kernels, began)]
    return sorted(made, key=lambda event: event.time_range.start)


def _of_host(span: HostSpan, began: int) -> FunctionEvent:
    when = _interval(span.start - began, span.end - span.start)
    event = FunctionEvent(span.name, span.kind, "cpu", when)
    event.thread, event.nbytes = span.thread, span.nbytes
    event.cpu_time_total = (span.end - span.start) * _MICRO
    event.self_cpu_time_total = (span.end - span.start - span.inner) * _MICRO
    event.input_shapes = [list(shape) for shape in span.shapes]
    if span.site is not None:
        event.stack.append(str(Site(*span.site)))
    return event


def _of_kernel(run: KernelRun, works: Works, began: int) -> FunctionEvent:
    work = works.of(run.work)
    when = _interval(run.start - began, run.nanoseconds)
    event = FunctionEvent(work.name, "kernel", str(run.device), when)
    event.device_time_total = event.self_device_time_total = run.nanoseconds * _MICRO
    event.flops, event.nbytes = work.flops, work.nbytes
    lines = (works.origin(node).line for node in work.nodes)
    event.stack = list(dict.fromkeys(line for line in lines if line))
    return event


def _of_memory(
    recorder: ProfileRecorder, kernels: list[FunctionEvent], began: int
) -> Iterable[FunctionEvent]:
    """Adds to each kernel what it took and let go; of what was none's an event for each run."""
    others: dict[tuple[str, int], FunctionEvent] = {}
    for device, number, after, start, change in timed_changes(recorder):
        if number >= 0:
            kernels[number].add_memory(change.nbytes)
            continue
        if (str(device), start) not in others:
            at = kernels[after].time_range.end if after >= 0 else _interval(start - began, 0).end
            event = FunctionEvent(MEMORY, "memory", str(device), Interval(at, at))
            others[str(device), start] = event
        others[str(device), start].add_memory(change.nbytes)
    return others.values()


def _interval(start: float, nanoseconds: float) -> Interval:
    """Nanoseconds since the first event began, so that a machine long up rounds nothing away."""
    return Interval(start * _MICRO, (start + nanoseconds) * _MICRO)


def _enclosing(spans: list[HostSpan]) -> list[list[HostSpan]]:
    """The spans around each, outermost first."""
    around: dict[int, list[HostSpan]] = {}
    open_spans: dict[int, list[HostSpan]] = {}
    for number in sorted(range(len(spans)), key=lambda k: (spans[k].start, spans[k].depth)):
        span = spans[number]
        stack = open_spans.setdefault(span.thread, [])
        while stack and (stack[-1].depth >= span.depth or stack[-1].end <= span.start):
            stack.pop()
        around[number] = stack.copy()
        stack.append(span)
    return [around[number] for number in range(len(spans))]


def stacks(recorder: ProfileRecorder, works: Works, of_device: bool) -> dict[str, float]:
    """Microseconds by stack, its frames joined by semicolons: what a flame graph is drawn of.

    Args:
        recorder: what was noted.
        works: descriptions of launches.
        of_device: the time of kernels, divided among their ops; else that of the host.
    """
    sums: dict[str, float] = {}
    if of_device:
        for run in recorder.kernels:
            for node, share in works.of(run.work).shares:
                origin = works.origin(node)
                frames = [*reversed(origin.ranges), *_modules(origin.module), origin.line]
                stack = _joined([*frames, node.op.name])
                sums[stack] = sums.get(stack, 0.0) + run.nanoseconds * _MICRO * share
        return sums
    for event in events(recorder, works):
        if event.kind != "kernel":
            stack = _joined([*event.stack, event.name])
            sums[stack] = sums.get(stack, 0.0) + event.self_cpu_time_total
    return sums


def _modules(path: str) -> list[str]:
    """The paths of the Modules around, such as ``Net``, ``Net.body``, ``Net.body.0``."""
    names = path.split(".") if path else []
    return [".".join(names[: k + 1]) for k in range(len(names))]


def _joined(frames: list[str]) -> str:
    return ";".join(frame.replace(";", ",") for frame in frames if frame)


def copies_and_kernels(recorder: ProfileRecorder) -> tuple[float, float, float]:
    """Microseconds of copies to the device, of kernels, and of copies back."""
    spans = dict.fromkeys((HTOD, DTOH), 0.0)
    for span in recorder.spans:
        if span.kind == "copy":
            spans[span.name] += (span.end - span.start) * _MICRO
    kernels = sum(run.nanoseconds for run in recorder.kernels) * _MICRO
    return spans[HTOD], kernels, spans[DTOH]


@contextmanager
def recorded_ops(recorder: ProfileRecorder) -> Iterator[None]:
    """Has each op that is recorded noted: what records it is another function meanwhile.

    So it costs nothing where no profiler is on.
    """
    before = [(owner, name, vars(owner)[name]) for owner, name in RECORDING]
    for owner, name, method in before:
        setattr(owner, name, _noted(recorder, method))
    try:
        yield
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)


def _noted(recorder: ProfileRecorder, method: Callable[..., Node]) -> Callable[..., Node]:
    def noted(op: Op, *sources: Any, **attributes: Any) -> Node:
        return recorder.record(method, op, sources, attributes)

    return noted
