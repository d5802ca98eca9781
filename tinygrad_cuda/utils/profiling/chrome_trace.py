"""A recording as JSON that Perfetto and chrome://tracing load: host above, device below."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.errors import Site
from tinygrad_cuda.utils.profiling.events import MEMORY
from tinygrad_cuda.utils.profiling.memory_changes import timed_changes

if TYPE_CHECKING:
    from tinygrad_cuda.utils.profiling.recorder import KernelRun, ProfileRecorder
    from tinygrad_cuda.utils.profiling.work import Works

_MICRO = 1e-3  # microseconds in a nanosecond
_CATEGORIES = {"module": "python_function", "user": "user_annotation", "copy": "gpu_memcpy"}


def trace(recorder: ProfileRecorder, works: Works, metadata: dict[str, Any]) -> dict[str, Any]:
    """The recording in the trace event format.

    Args:
        recorder: what was noted.
        works: descriptions of launches.
        metadata: entries of the file beside the events.
    """
    process = os.getpid()
    events: list[dict[str, Any]] = [_named("process_name", process, 0, "python")]
    for span in recorder.spans:
        arguments: dict[str, Any] = {}
        if span.nbytes:
            arguments["bytes"] = span.nbytes
        if span.site is not None:
            arguments["line"] = str(Site(*span.site))
        category = _CATEGORIES.get(span.kind, "cpu_op")
        events.append(
            _event(span.name, category, process, span.thread, span.start, span.end, arguments)
        )
    lanes: dict[str, int] = {}
    free: dict[tuple[int, int], float] = {}
    kernels: list[dict[str, Any]] = []
    for number, run in enumerate(recorder.kernels):
        lane = lanes.setdefault(str(run.device), process + 1 + len(lanes))
        kernel, *launched = _kernel(run, works, process, lane, number, free)
        kernels.append(kernel)
        events += launched
    events += [*kernels, *_memory(recorder, works, kernels, process)]
    for name, lane in lanes.items():
        events.append(_named("process_name", lane, 0, f"device {name}"))
        events.append(_named("thread_name", lane, 0, "kernels"))
    for plan in recorder.programs:
        if plan.in_use is not None:
            counter = {"ph": "C", "name": "memory in use", "cat": "memory", "pid": process}
            sizes = {"bytes": plan.in_use}
            events.append({**counter, "tid": 0, "ts": plan.start * _MICRO, "args": sizes})
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        **metadata,
        "traceEvents": sorted(events, key=lambda event: event.get("ts", 0.0)),
    }


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _event(
    name: str, category: str, process: int, thread: int, start: float, end: float,
    arguments: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    return {
        "ph": "X", "name": name, "cat": category, "pid": process, "tid": thread,
        "ts": start * _MICRO, "dur": (end - start) * _MICRO, "args": arguments,
    }  # fmt: skip


def _kernel(
    run: KernelRun,
    works: Works,
    process: int,
    lane: int,
    number: int,
    free: dict[tuple[int, int], float],
) -> list[dict[str, Any]]:
    """A kernel in its device's lane, with an arrow from its launch where the device has a clock.

    One whose length alone was measured begins when it was launched, or when the one before ended.
    """
    work = works.of(run.work)
    origins = [works.origin(node) for node in work.nodes]
    arguments: dict[str, Any] = {
        "ops": [node.op.name for node in work.nodes],
        "kind": work.kind,
        "shape": work.shape,
        "flops": work.flops,
        "bytes": work.nbytes,
        "lines": list(dict.fromkeys(o.line for o in origins if o.line)),
        "modules": list(dict.fromkeys(o.module for o in origins if o.module)),
        "phases": list(dict.fromkeys(o.phase for o in origins)),
    }
    if work.launch is not None:
        arguments |= {"blocks": work.launch.blocks, "threads": work.launch.threads}
    row, start = 0, float(run.start)
    if run.clock == "cupti":  # branches of a graph run side by side
        row = next(k for k in itertools.count() if free.get((lane, k), 0.0) <= start)
    else:
        start = max(start, free.get((lane, 0), 0.0))
    free[lane, row] = end = start + run.nanoseconds
    events = [_event(work.name, "kernel", lane, row, start, end, arguments)]
    if run.clock == "events":
        thread = 0
        events.append(_event("launch", "cuda_runtime", process, thread, run.start, run.end, {}))
        arrow = {"name": "ac2g", "cat": "ac2g", "id": number}
        events.append({**arrow, "ph": "s", "pid": process, "tid": thread, "ts": run.start * _MICRO})
        events.append({**arrow, "ph": "f", "bp": "e", "pid": lane, "tid": 0, "ts": start * _MICRO})
    return events


def _memory(
    recorder: ProfileRecorder, works: Works, kernels: list[dict[str, Any]], process: int
) -> list[dict[str, Any]]:
    """An instant for each value that a kernel took or let go, by PyTorch's names, in their order.

    A value is taken when its kernel begins, and let go when it ends.
    """
    events: list[dict[str, Any]] = []
    for device, number, after, start, change in timed_changes(recorder):
        noted = number if number >= 0 else after
        kernel = kernels[noted] if noted >= 0 else None
        at = start * _MICRO if kernel is None else kernel["ts"]
        if kernel is not None and (number < 0 or change.nbytes < 0):
            at += kernel["dur"]
        on_cpu = device.kind == "cpu"
        arguments: dict[str, Any] = {
            "Bytes": change.nbytes, "Device Type": int(not on_cpu),
            "Device Id": -1 if on_cpu else device.index, "device": str(device),
        }  # fmt: skip
        if change.node is not None:
            arguments |= {"op": change.node.op.name, "line": works.origin(change.node).line}
        lane = process if kernel is None else kernel["pid"]
        instant = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": MEMORY}
        events.append({**instant, "pid": lane, "tid": 0, "ts": at, "args": arguments})
    events.sort(key=lambda event: float(event["ts"]))
    totals: dict[str, int] = {}
    for event in events:
        arguments = event["args"]
        device_name = arguments["device"]
        totals[device_name] = totals.get(device_name, 0) + arguments["Bytes"]
        arguments["Total Allocated"] = totals[device_name]
    return events


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Writes JSON, compressed where the name ends with ``.gz``."""
    text = json.dumps(content)
    target = Path(path)
    if target.suffix == ".gz":
        with gzip.open(target, "wt", encoding="utf-8") as file:
            file.write(text)
    else:
        target.write_text(text, encoding="utf-8")
