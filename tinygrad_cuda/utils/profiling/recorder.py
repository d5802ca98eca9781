"""What an active profiler notes: spans of the host, kernels of the device, steps.

It only appends while the program runs; names, costs and sums are made afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from time import perf_counter_ns
from typing import Any, NamedTuple

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.cupti import TimedKernel
from tinygrad_cuda.core.device import Device, as_device
from tinygrad_cuda.core.errors import RawSite
from tinygrad_cuda.core.observer import LineScope, MemoryChange, scopes
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, Op, current_site


class HostSpan(NamedTuple):
    """Work of the host; times in nanoseconds of `perf_counter_ns`.

    Attributes:
        kind: see `Observer.span`; ``op`` where one was recorded.
        name: of a Module its path.
        thread: its number.
        start, end: when.
        inner: nanoseconds of the spans directly inside.
        nbytes: that a copy moved.
        site: the user's line, where lines are recorded.
        depth: how many spans of the thread are around it.
        shapes: of the operands of a recorded op.
    """

    kind: str
    name: str
    thread: int
    start: int
    end: int
    inner: int
    nbytes: int
    site: RawSite | None
    depth: int
    shapes: tuple[Shape, ...] = ()


class KernelRun(NamedTuple):
    """One kernel, or one NumPy step.

    Attributes:
        device: where.
        work: a `PackedLaunch`, or the nodes of a NumPy step.
        start, end: when the host started it and went on.
        nanoseconds: that the device took; of the host where the device has no clock.
        clock: ``host``; ``events`` of the device, which give lengths alone; or ``cupti``.
    """

    device: Device
    work: Any
    start: int
    end: int
    nanoseconds: float
    clock: str


class PlanRun(NamedTuple):
    """One run of a plan.

    Attributes:
        start: when it began.
        executable: the compiled plan.
        nbytes: of the memory that it was given; None where nothing measures it.
        in_use: bytes that the device's allocator had given out.
        changes: what its steps took and let go, where it ran on cpu.
    """

    start: int
    executable: Any
    nbytes: int | None
    in_use: int | None
    changes: list[MemoryChange] | None = None


class _OpenSpans(threading.local):
    """Of one thread: nanoseconds spent inside of each open span; the Module that is entered."""

    def __init__(self) -> None:
        self.inner: list[int] = []
        self.entering: Any = None


class ProfileRecorder:
    """The observer of a recording; see `core.observer.Observer`.

    Args:
        modules: note each Module's call.
        lines: note the user's line of each span.
        memory: note the memory of each plan that runs.
        single_launches: launch kernels of replayed programs one by one, to time each; those of
            an emulator are so in any case, since CUPTI sees a GPU's alone.
        host: note spans of the host, and NumPy's steps.
        device: note kernels and copies of other devices.

    Attributes:
        spans, kernels: in the order in which they ended.
        programs: the plans that ran, where memory is noted.
        keep: whether what happens is noted; a warm-up notes nothing.
    """

    def __init__(
        self,
        modules: bool,
        lines: bool,
        memory: bool = False,
        single_launches: bool = True,
        host: bool = True,
        device: bool = True,
    ) -> None:
        self.host, self.device = host, device
        self.modules, self.lines, self.memory = modules, lines, memory
        self.single_launches = single_launches
        self.spans: list[HostSpan] = []
        self.kernels: list[KernelRun] = []
        self.programs: list[PlanRun] = []
        self.keep = False
        self._open = _OpenSpans()
        self._launches: dict[str, tuple[Device, Any]] = {}  # by name, for what CUPTI notes

    def clear(self) -> None:
        """Drops what was noted."""
        self.spans, self.kernels, self.programs = [], [], []

    @contextmanager
    def span(self, kind: str, name: str, nbytes: int = 0) -> Iterator[None]:
        """Work of the host inside a `with` block."""
        outer = scopes.here if kind == "user" else None
        if outer is not None:
            scopes.here = outer.inner("user", name)
        try:
            with self._timed(kind, name, nbytes):
                yield
        finally:
            if outer is not None:
                scopes.here = outer

    @contextmanager
    def _timed(self, kind: str, name: str, nbytes: int = 0) -> Iterator[None]:
        self._open.inner.append(0)
        site = current_site() if self.lines and kind != "module" else None
        start = perf_counter_ns()
        try:
            yield
        finally:
            self._close(kind, name, start, nbytes, site)

    def _close(
        self, kind: str, name: str, start: int, nbytes: int = 0, site: RawSite | None = None,
        shapes: tuple[Shape, ...] = (),
    ) -> None:  # fmt: skip
        """The innermost open span ends."""
        end = perf_counter_ns()
        inner = self._open.inner
        within = inner.pop()
        if inner:
            inner[-1] += end - start
        if self.keep and (self.device if kind == "copy" else self.host):
            thread = threading.get_ident()
            span = kind, name, thread, start, end, within, nbytes, site, len(inner), shapes
            self.spans.append(HostSpan(*span))

    def record(
        self, method: Callable[..., Node], op: Op, sources: Any, attributes: dict[str, Any]
    ) -> Node:
        """Has an op recorded, and notes how long that took."""
        self._open.inner.append(0)
        node: Node | None = None
        start = perf_counter_ns()
        try:
            node = method(op, *sources, **attributes)
            return node
        finally:
            site = node.site if self.lines and node is not None else None
            shapes = () if node is None else tuple([source.shape for source in node.sources])
            self._close("op", op.name, start, 0, site, shapes)

    def call(self, module: Any) -> AbstractContextManager[Any] | None:
        """What a Module's call is to stand in; None from inside of it."""
        if not self.modules or self._open.entering is module:
            self._open.entering = None
            return None
        return self._called(module)

    def compiled_call(self, compiled: Any) -> AbstractContextManager[Any] | None:
        """What a call of a compiled function is to stand in; None from inside of it."""
        if self._open.entering is compiled:
            self._open.entering = None
            return None
        self._open.entering = compiled
        function = compiled.function
        name = getattr(function, "__qualname__", type(function).__name__)
        return self._timed("run", f"compiled {name}")

    @contextmanager
    def _called(self, module: Any) -> Iterator[None]:
        outer = scopes.here
        assert outer is not None
        scope = outer.inner("module", _name_below(outer, module), module)
        self._open.entering = module
        scopes.here = scope
        try:
            with self._timed("module", scope.module):
                yield
        finally:
            scopes.here = outer
            self._open.entering = None

    def kernel(
        self, device: Device, work: Any, start: int, end: int, nanoseconds: float | None = None
    ) -> None:
        """One kernel, or one NumPy step, has run."""
        if self.keep and (self.host if device.kind == "cpu" else self.device):
            took = float(end - start) if nanoseconds is None else nanoseconds
            clock = "host" if nanoseconds is None else "events"
            self.kernels.append(KernelRun(device, work, start, end, took, clock))

    def add_timed(self, kernels: Iterable[TimedKernel]) -> None:
        """Enters what CUPTI noted; kernels of others, such as a library's, have a name alone."""
        for name, number, start, end in kernels:
            device, launch = self._launches.get(name, (as_device(f"cuda:{number}"), name))
            self.kernels.append(KernelRun(device, launch, start, end, float(end - start), "cupti"))

    def launches_singly(self, device: Device) -> bool:
        """Whether kernels of this device are launched one by one, so that each can be timed."""
        return self.single_launches or (self.device and device.kind != "cuda")

    def ran(self, executable: Any, memory: Sequence[Any]) -> list[MemoryChange] | None:
        """A plan is about to run in this memory, which is empty on cpu."""
        device = executable.program.device
        if memory and not self.launches_singly(device):
            for launch in executable.launches:
                self._launches[launch.name] = device, launch
        if not (self.keep and self.memory):
            return None
        changes: list[MemoryChange] | None = [] if device.kind == "cpu" else None
        held = _held(executable, memory)
        self.programs.append(PlanRun(perf_counter_ns(), executable, *held, changes))
        return changes


def _held(executable: Any, memory: Sequence[Any]) -> tuple[int | None, int | None]:
    """Bytes of a run's memory, each counted once, and of all that the device has given out."""
    if not memory:
        return None, None
    backend: Any = registry.get(executable.program.device)
    total = end = 0
    for piece in sorted(memory, key=attrgetter("address")):
        if piece is not backend.error:
            first, end = max(piece.address, end), max(piece.address + piece.nbytes, end)
            total += max(end - first, 0)
    return total, backend.memory_in_use()


def _name_below(outer: LineScope, module: Any) -> str:
    """A Module's name inside the one that calls it; its class's where none of those has it."""
    for scope in outer.outwards():
        if scope.kind == "module":
            for name, child in scope.owner.named_modules():
                if child is module and name:
                    return str(name)
    return type(module).__name__
