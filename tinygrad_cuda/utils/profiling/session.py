"""`tc.profiler.profile` and what belongs to it: schedules, ranges, handlers of finished traces."""

from __future__ import annotations

import enum
import functools
import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Self, TypeVar

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.cupti import KernelActivity, kernel_activity
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.observer import LineScope, watched
from tinygrad_cuda.engine import realize
from tinygrad_cuda.engine.plan import forgetting
from tinygrad_cuda.graph.node import record_scopes
from tinygrad_cuda.utils.profiling import chrome_trace, pictures
from tinygrad_cuda.utils.profiling.averages import (
    GROUPS,
    Averages,
    EventList,
    roofline_points,
)
from tinygrad_cuda.utils.profiling.events import (
    FunctionEvent,
    copies_and_kernels,
    events,
    recorded_ops,
    stacks,
)
from tinygrad_cuda.utils.profiling.memory_timeline import MemoryTimeline, PlanMemory
from tinygrad_cuda.utils.profiling.recorder import HostSpan, ProfileRecorder
from tinygrad_cuda.utils.profiling.roofline import MeasuredRoof, roof_of
from tinygrad_cuda.utils.profiling.work import Works

F = TypeVar("F", bound=Callable[..., Any])
METRICS = "self_cpu_time_total", "self_cuda_time_total", "self_device_time_total"


class ProfilerActivity(enum.Enum):
    """What is profiled, by PyTorch's names: the host with NumPy's steps, and the other devices."""

    CPU = 0
    CUDA = 2


class ProfilerAction(enum.Enum):
    """What a profiler does in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def supported_activities() -> set[ProfilerActivity]:
    """What can be profiled: the host, and a GPU where one can be used.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.profiler.ProfilerActivity.CPU in tc.profiler.supported_activities()
        True
    """
    activities = {ProfilerActivity.CPU}
    return activities | {ProfilerActivity.CUDA} if registry.usable("cuda") else activities


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:
    """What to do in each step: wait, warm up, record, and the same again.

    Args:
        wait: steps of each cycle in which nothing is done.
        warmup: steps after them in which plans are made, and nothing is noted.
        active: steps after those that are recorded.
        repeat: cycles; 0 goes on to the end.
        skip_first: steps before the first cycle.
        skip_first_wait: 1 leaves out the wait of the first cycle.

    Raises:
        ArgumentError: a number is negative, or nothing is active.

    Example:
        >>> import tinygrad_cuda as tc
        >>> steps = tc.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
        >>> [steps(number).name for number in range(5)]
        ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        given = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
        raise ArgumentError(
            "schedule", "not a schedule", expect="active > 0, the others >= 0", actual=str(given)
        )

    def action(step: int) -> ProfilerAction:
        step -= skip_first
        if step < 0:
            return ProfilerAction.NONE
        if skip_first_wait:
            step += wait
        cycle = wait + warmup + active
        if 0 < repeat <= step // cycle:
            return ProfilerAction.NONE
        step %= cycle
        if step < wait:
            return ProfilerAction.NONE
        if step < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if step == cycle - 1 else ProfilerAction.RECORD

    return action


def _always(step: int) -> ProfilerAction:
    return ProfilerAction.RECORD


class record_function:
    """A range of the user's own: a ``with`` block or a decorator; nothing without a profiler.

    Its host time is that of the block. What is recorded inside is computed later; a profiler
    `with_modules` or `with_stack` gives the range the device's time of it.

    Args:
        name: what tables and traces show.
        args: accepted as in PyTorch.

    Example:
        >>> import tinygrad_cuda as tc
        >>> with tc.profiler.profile() as p:
        ...     with tc.profiler.record_function("double"):
        ...         y = 2 * tc.ones(3, device="cpu")
        >>> [row.count for row in p.key_averages() if row.key == "double"]
        [1]
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args
        self._span: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Self:
        observer = watched.observer
        if observer is not None:
            self._span = observer.span("user", self.name)
            self._span.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(*raised)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def ranged(*args: Any, **options: Any) -> Any:
            with record_function(self.name, self.args):
                return function(*args, **options)

        return ranged  # type: ignore[return-value]  # of the same signature


class profile:
    """Notes what runs inside a ``with`` block: on the host, and each kernel of the device.

    What is pending at the end of the block is computed inside of it. On ``cpu`` the device's time
    is that of NumPy's steps, on ``emu`` the emulator's (no GPU's), on ``cuda`` the GPU's own; there
    replayed CUDA graphs are launched kernel by kernel, behind a delay, to time each; with
    `cupti-python` (extra ``profile``) they are replayed, and CUPTI times their kernels.

    Args:
        activities: ``CPU`` for the host and NumPy's steps, ``CUDA`` for kernels and copies of
            ``cuda`` and ``emu``; both if left out. Without ``CUDA`` replayed graphs run as they do
            without a profiler.
        schedule: gives the action of each step; without it everything is recorded.
        on_trace_ready: called with the profiler when a recording is complete.
        record_shapes: whether `key_averages` can group by shapes of inputs.
        profile_memory: note the memory of each plan: tables get columns of what each op took and
            let go; for `memory_timeline` and traces.
        with_stack: note lines: programs are planned and traced anew, so that each has its own.
        with_flops: tables have a column of FLOPs, which are counted by the model of cost.
        with_modules: note the Module of each op, as `with_stack` does its line.
        use_cuda: adds ``CUDA`` to the activities, or takes it away.
        experimental_config, execution_trace_observer: accepted as in PyTorch.
        acc_events, custom_trace_id_callback: accepted as in PyTorch.

    Raises:
        ArgumentError: no activity is left, or one is no `ProfilerActivity`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> with tc.profiler.profile() as p:
        ...     x = (tc.ones(64, 64, device="cpu") @ tc.ones(64, 64, device="cpu")).sum()
        >>> "matmul" in p.key_averages().table(sort_by="device_time_total", row_limit=5)
        True
    """

    def __init__(
        self,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: Any = None,
        execution_trace_observer: Any = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Any = None,
    ) -> None:
        self._schedule = schedule or _always
        self._ready = on_trace_ready
        self.record_shapes, self.profile_memory = record_shapes, profile_memory
        self.with_stack, self.with_modules = with_stack, with_modules
        self.with_flops = with_flops
        self.activities = _activities(activities, use_cuda)
        host, device = (kind in self.activities for kind in ProfilerActivity)
        self.recorder = ProfileRecorder(
            with_modules, with_stack, profile_memory, device, host, device
        )
        self._ops: AbstractContextManager[None] = nullcontext()
        self.works = Works()
        self.step_num = 0
        self.current_action = ProfilerAction.NONE
        self._metadata: dict[str, Any] = {}
        self._began = 0
        self._lookup = realize.run_cached_plan
        self._activity: KernelActivity | None = None

    # Steps

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begins with step 0.

        Raises:
            ArgumentError: another profiler is active.
        """
        self._turn_to(self._schedule(self.step_num))

    def step(self) -> None:
        """The next step of the schedule begins."""
        self._end_step()
        before, self.step_num = self.current_action, self.step_num + 1
        if before is ProfilerAction.RECORD_AND_SAVE:
            self._turn_to(ProfilerAction.NONE)
            self._deliver()
        self._turn_to(self._schedule(self.step_num))

    def stop(self) -> None:
        """Ends the recording; what is pending is computed before."""
        recording = self.recorder.keep
        self._turn_to(ProfilerAction.NONE)
        if recording:
            self._deliver()

    def _deliver(self) -> None:
        if self._ready is not None:
            self._ready(self)

    def _turn_to(self, action: ProfilerAction) -> None:
        """Switches the observer on or off."""
        active = self.current_action is not ProfilerAction.NONE
        keep = action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if action is not ProfilerAction.NONE and not active:
            self._begin()
        if keep is not self.recorder.keep:
            settle()
            self._keep(keep)
        if action is ProfilerAction.NONE and active:
            self._end()
        self.current_action = action
        self._began = perf_counter_ns()

    def _keep(self, keep: bool) -> None:
        """Begins to note what happens, or ends it; the devices have finished."""
        if keep:
            self.recorder.clear()
            if self._activity is not None:
                self._activity.begin()
        elif self._activity is not None:
            self.recorder.add_timed(self._activity.end())
        self.recorder.keep = keep

    def _begin(self) -> None:
        refuse_second("profile")
        settle()
        if ProfilerActivity.CUDA in self.activities and registry.usable("cuda"):
            self._activity = kernel_activity()
            self.recorder.single_launches = self._activity is None
        if self.with_stack or self.with_modules:
            # What was planned or traced before has other lines, and no Modules.
            for forget in forgetting:
                forget()
            self._lookup = realize.run_cached_plan
            realize.run_cached_plan = realize.trace_always
            record_scopes(LineScope("user", "", None))
        watched.observer = self.recorder
        if self.recorder.host:
            self._ops = recorded_ops(self.recorder)
            self._ops.__enter__()

    def _end(self) -> None:
        watched.observer = None
        ops, self._ops = self._ops, nullcontext()
        ops.__exit__(None, None, None)
        if self.with_stack or self.with_modules:
            realize.run_cached_plan = self._lookup
            record_scopes(None)

    def _end_step(self) -> None:
        if self.recorder.keep and self._schedule is not _always:
            end, name = perf_counter_ns(), f"ProfilerStep#{self.step_num}"
            inner = end - self._began  # its own time is nobody's
            span = HostSpan("user", name, 0, self._began, end, inner, 0, None, 0)
            self.recorder.spans.append(span)

    # What was recorded

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        *,
        by: str = "op",
    ) -> EventList:
        """Sums over the recording; `table` prints them.

        The time of a kernel is divided among the ops that it fuses as the model of cost weighs
        them, so that the sums of all groupings are equal.

        Args:
            group_by_input_shape: a row for each shape of operands.
            group_by_stack_n: more than 0 makes a row for each line; needs `with_stack`.
            group_by_overload_name: accepted as in PyTorch.
            by: ``op`` (with the spans of the host), ``kernel``, ``module``, ``line`` or
                ``phase`` (forward, backward, update).

        Raises:
            ArgumentError: `by` is another word, or needs what was not recorded.
        """
        if by not in GROUPS:
            raise ArgumentError(
                "key_averages", "unknown grouping", expect=", ".join(GROUPS), actual=repr(by)
            )
        lacking = {
            "module": not self.with_modules,
            "line": not self.with_stack,
            "phase": not (self.with_modules or self.with_stack),
        }
        if lacking.get(by):
            option = "with_stack" if by == "line" else "with_modules"
            raise ArgumentError(
                "key_averages", f"nothing to group by {by} was recorded",
                expect=f"profile({option}=True)", actual=f"{option}=False",
            )  # fmt: skip
        averages = Averages(self.recorder, self.works, self.roofs())
        rows = averages.by(by, group_by_input_shape, group_by_stack_n > 0 and self.with_stack)
        times = copies_and_kernels(self.recorder)
        return EventList(rows, by, self.notes(), times, self.with_flops, self.profile_memory)

    def events(self) -> list[FunctionEvent]:
        """Each event by itself, in the order in which they began: work of the host, and kernels.

        An op of the host is one that was recorded; calls whose graph was recorded before, and
        compiled ones, are one event together.

        Example:
            >>> import tinygrad_cuda as tc
            >>> with tc.profiler.profile() as p:
            ...     x = tc.ones(4, device="cpu") * 2
            >>> [event.input_shapes for event in p.events() if event.kind == "op"][-1]
            [[4], [4]]
        """
        return events(self.recorder, self.works)

    def export_stacks(
        self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total"
    ) -> None:
        """Writes a line for each stack, ``outer;inner MICROSECONDS``: input of a flame graph.

        Frames are ranges, Modules, the line and the op.

        Args:
            path: of the file.
            metric: ``self_cpu_time_total`` of the host, or ``self_cuda_time_total`` (or
                ``self_device_time_total``) of kernels, divided among the ops that they fuse.

        Raises:
            ArgumentError: `with_stack` is not given, or another metric.
        """
        if metric not in METRICS or not self.with_stack:
            raise ArgumentError(
                "export_stacks", "nothing to write",
                expect=f"profile(with_stack=True), metric one of {', '.join(METRICS)}",
                actual=f"with_stack={self.with_stack}, metric={metric!r}",
            )  # fmt: skip
        sums = stacks(self.recorder, self.works, metric != METRICS[0])
        lines = [f"{stack} {time:.0f}\n" for stack, time in sums.items() if time >= 0.5]
        Path(path).write_text("".join(lines), encoding="utf-8")

    def roofs(self) -> dict[Device, MeasuredRoof]:
        """What the GPUs among the devices can do at most, each measured once."""
        roofs = {device: roof_of(device) for device in self.devices()}
        return {device: roof for device, roof in roofs.items() if roof is not None}

    def export_roofline(self, path: str | os.PathLike[str]) -> None:
        """Draws the kernels below the measured roof: FLOP/s over FLOPs for each byte.

        Args:
            path: of a ``.png`` or ``.svg`` file.

        Raises:
            ArgumentError: no device has a roof (``cpu``, ``emu``), or another ending.
        """
        roofs = self.roofs()
        kind = Path(path).suffix[1:]
        if not roofs or kind not in ("png", "svg"):
            raise ArgumentError(
                "export_roofline", "nothing to draw", expect="kernels of a GPU, .png or .svg",
                actual=f"devices {', '.join(map(str, self.devices())) or 'none'}, {path}",
            )  # fmt: skip
        device, roof = next(iter(roofs.items()))
        runs = [run for run in self.recorder.kernels if run.device is device]
        points = roofline_points(runs, self.works)
        with open(path, "wb") as file:
            pictures.roofline(file, kind, points, roof)

    def devices(self) -> list[Device]:
        """Where kernels ran."""
        return list(dict.fromkeys(run.device for run in self.recorder.kernels))

    def notes(self) -> list[str]:
        """What a reader of the times has to know."""
        texts = {
            "cpu": "device cpu: times of NumPy's steps; no roof",
            "emu": "device emu: times of the emulator, which say nothing about a GPU; no roof",
            "cuda": "device cuda: each kernel alone, by events; replayed graphs were launched "
            "kernel by kernel",
        }
        if self._activity is not None:
            texts["cuda"] = "device cuda: by CUPTI, replayed graphs as they run"
        return [texts[kind] for kind in dict.fromkeys(d.kind for d in self.devices())]

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the recording as JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.

        Args:
            path: of the file; compressed where it ends with ``.gz``.
        """
        metadata = {"notes": self.notes(), **self._metadata}
        chrome_trace.write(path, chrome_trace.trace(self.recorder, self.works, metadata))

    def memory_timeline(self) -> MemoryTimeline:
        """What each plan that ran holds in memory, kernel by kernel: by the plan, and measured.

        Raises:
            ArgumentError: `profile_memory` is not given.
        """
        if not self.profile_memory:
            raise ArgumentError(
                "memory_timeline", "no memory was recorded", expect="profile(profile_memory=True)",
                actual="profile_memory=False",
            )  # fmt: skip
        plans = []
        for run in self.recorder.programs:
            plan = PlanMemory(run.executable)
            plan.measured, plan.in_use = run.nbytes, run.in_use
            if run.changes is not None:
                plan.count(run.changes)
            plans.append(plan)
        return MemoryTimeline(plans)

    def export_memory_timeline(
        self, path: str | os.PathLike[str], device: str | None = None
    ) -> None:
        """Writes the memory timeline: see `MemoryTimeline.save`.

        Args:
            path: of a ``.json``, ``.png``, ``.svg`` or ``.html`` file.
            device: accepted as in PyTorch.
        """
        self.memory_timeline().save(path)

    def add_metadata(self, key: str, value: str) -> None:
        """Adds a text to the traces that are written."""
        self._metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a value, given as JSON, to the traces that are written."""
        self._metadata[key] = json.loads(value)

    def __repr__(self) -> str:
        return f"<profile {self.current_action.name}, step {self.step_num}>"


def _activities(
    given: Iterable[ProfilerActivity] | None, use_cuda: bool | None
) -> set[ProfilerActivity]:
    """What is to be recorded.

    Raises:
        ArgumentError: nothing, or something else.
    """
    chosen = set(ProfilerActivity if given is None else given)
    if use_cuda is not None:
        chosen = chosen - {ProfilerActivity.CUDA} | ({ProfilerActivity.CUDA} if use_cuda else set())
    if not chosen or not all(isinstance(kind, ProfilerActivity) for kind in chosen):
        raise ArgumentError(
            "profile", "no activities to record",
            expect="some of ProfilerActivity.CPU, ProfilerActivity.CUDA",
            actual=", ".join(map(str, chosen)) or "none",
        )  # fmt: skip
    return chosen


def refuse_second(op: str) -> None:
    """Raises where something observes this process already.

    Raises:
        ArgumentError: it does.
    """
    if watched.observer is not None:
        raise ArgumentError(
            op, "another profiler is active", expect="one at a time",
            actual=type(watched.observer).__name__, hint="end its block, or call its stop()",
        )  # fmt: skip


def settle() -> None:
    """Computes what is pending, and waits for it."""
    realize.realize_all()
    for backend in registry.used():
        backend.synchronize()


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """For `on_trace_ready`: each trace becomes a file of a folder, which TensorBoard shows.

    Args:
        dir_name: the folder; it is made if it is not there.
        worker_name: the beginning of the files' names; by default host and process.
        use_gzip: compress them.
    """

    def handle(profiler: profile) -> None:
        Path(dir_name).mkdir(parents=True, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json" + (".gz" if use_gzip else "")
        profiler.export_chrome_trace(Path(dir_name) / name)

    return handle
