"""Programs that are looked at: under the profiler, drawn and summarized, they give the same bits.

A seed's program is one of `graphs`. It runs plainly; under a profiler that notes all it can, whose
tables, events and files are then made; drawn before any value is looked at, where each node must
be there once; and as the forward pass of a Module that `summary` takes.
"""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from math import isclose
from pathlib import Path
from typing import Any

import graphs
import repeats

Program = list[tuple[Any, ...]]

LONG = {"cpu": 3_000, "emu": 300, "cuda": 300}
GROUPS = ("op", "kernel", "module", "line", "phase")

# What was drawn and noted; the driver sums it over a campaign.
events: dict[str, int] = {}


def generate(seed: int) -> Program:
    """The program of `graphs`."""
    return graphs.generate(seed)


class Looked(repeats.Run):
    """A run that calls a function with its Tensors before it reads the first value at its end."""

    def __init__(self, device: str, look: Callable[[list[Any]], None]) -> None:
        super().__init__(device)
        self.before_values: Callable[[list[Any]], None] | None = look

    def write(self, what: str, x: Any) -> None:
        look, self.before_values = self.before_values, None
        if look is not None:
            look([*self.pool.values(), *(g.grad for g in self.leaves if g.grad is not None)])
        super().write(what, x)


def profiled(first: graphs.Torch, device: str) -> tuple[repeats.Trail, str | None]:
    """The trail of a run under a profiler, and what is wrong with what that noted."""
    from tinygrad_cuda.profiler import profile, record_function

    options = ("with_modules", "with_stack", "record_shapes", "profile_memory", "with_flops")
    with profile(**dict.fromkeys(options, True)) as p, record_function("program"):
        trail = repeats.Run(device).program(first)
    sums = []
    for by in GROUPS:
        rows = p.key_averages(by=by, group_by_input_shape=by == "op")
        rows.table(sort_by="device_time_total", row_limit=-1)
        sums.append(rows.total_average().self_device_time_total)
    if not all(isclose(one, sums[0], rel_tol=1e-6, abs_tol=1e-6) for one in sums):
        return trail, f"profile: times {dict(zip(GROUPS, sums))} differ"
    noted = p.events()
    events["events"] = events.get("events", 0) + len(noted)
    own = sum(event.self_cpu_time_total for event in noted)
    host = p.key_averages().total_average().self_cpu_time_total
    if not isclose(own, host, rel_tol=1e-6):
        return trail, f"profile: events take {own} us of the host, rows {host}"
    p.memory_timeline().table()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        p.export_chrome_trace(path)
        spans = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
        p.export_stacks(path)
        p.export_stacks(path, "self_device_time_total")
    launches = sum(span["name"] == "launch" for span in spans)
    lasting = sum(event.kind != "memory" for event in noted)  # memory goes in an instant
    if len(spans) - launches != lasting:
        return trail, f"profile: {lasting} events, {len(spans) - launches} in the trace"
    return trail, None


def misdrawn(tensors: list[Any]) -> str | None:
    """Which node is in no picture, or twice in one."""
    import tinygrad_cuda as tc
    from tinygrad_cuda.graph.node import topological
    from tinygrad_cuda.utils import drawing

    nodes = [tensor.node for tensor in tensors]
    order = topological(nodes)
    events["nodes"] = events.get("nodes", 0) + len(order)
    shown = re.findall(r"^[│├─ ]*(\d+) ", tc.draw(tensors), re.MULTILINE)
    if sorted(map(int, shown)) != list(range(1, len(order) + 1)):
        twice = [number for number, count in Counter(shown).items() if count > 1]
        return f"drawn: {len(shown)} lines for {len(order)} nodes, twice: {twice}"
    graph = drawing.joined([drawing.DrawnPlan(nodes)])
    boxes = Counter(data["node"] for _, data in graph.nodes(data=True))
    # What a value that is there was computed from is history, and is not drawn.
    pending = topological(nodes, stop=lambda node: node.storage is not None)
    lacking = [n for n in pending if n.storage is None and n.op not in drawing.HIDDEN]
    lacking = [node for node in lacking if boxes[node] != 1]
    if lacking:
        return f"drawn: {lacking[0]} is in {boxes[lacking[0]]} boxes"
    with tempfile.TemporaryDirectory() as folder:
        page = tc.draw(tensors, Path(folder, "graph.html")).read_text(encoding="utf-8")
        tc.draw(tensors, Path(folder, "graph.svg"))
        tc.draw(tensors, Path(folder, "graph.dot"))
    numbers = sorted(map(int, re.findall(r'"i":(\d+)[,}]', page)))
    if numbers != list(range(len(graph))):
        return f"drawn: boxes {numbers} of a page for {len(graph)}"
    return None


def summarized(first: graphs.Torch, device: str) -> str | None:
    """What is wrong with a Module's summary whose forward pass is the program."""
    import tinygrad_cuda as tc

    class Program(tc.nn.Module):
        def forward(self, x: Any) -> Any:
            run = repeats.Run(device)
            for done in first.done:
                recorded = done.step[0] in ("leaf", "op")
                if recorded and all(key in run.pool for key in done.keys):
                    run.one(done)
            return [x, *run.pool.values()]

    result = tc.summary(Program(), input_size=(2,))
    (row,) = result.rows
    shapes = [tuple(shape) for shape in row.output_shapes]
    if shapes[0] != (2,) or row.flops < 0 or row.path not in str(result):
        return f"summary: {result}"
    return None


def check(program: Program, device: str) -> str | None:
    """None, or the first result that depends on who looks on, or what is wrong with a look."""
    import tinygrad_cuda as tc

    first = graphs.Torch()
    wrong: list[str | None] = []
    tc.set_default_device(device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first.first(program)
            plain = repeats.Run(device).program(first)
            seen, fault = profiled(first, device)
            drawn = Looked(device, lambda tensors: wrong.append(misdrawn(tensors))).program(first)
            wrong += [fault, summarized(first, device)]
            after = repeats.Run(device).program(first)
    finally:
        tc.set_default_device(None)
    return (
        repeats.difference("profiled", plain, seen)
        or repeats.difference("drawn", plain, drawn)
        or repeats.difference("afterwards", plain, after)
        or next(filter(None, wrong), None)
    )


def show(program: Program) -> str:
    """The steps, a line each."""
    return "\n".join(map(repr, program))
