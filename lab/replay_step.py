"""A perceptron's training step through the public API: launched singly, and replayed as a graph.

Run ``python lab/replay_step.py`` on a machine with a GPU; with PyTorch there, its
eager step and its whole step as one CUDA graph stand beside, same shapes and same numbers.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.backend.cuda.backend import CudaBackend
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, KernelNode
from tinygrad_cuda.backend.cuda.graphs.graph_replay import Replay
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.backend.launch.launch_params import LaunchParams
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.lowering.codegen.skeleton import THREADS
from tinygrad_cuda.nn import functional as F

BATCH, SIZES, RATE, MOMENTUM = 64, (784, 128, 10), 0.01, 0.9
STEPS, REPEATS = 300, 5
GRAPHS = 200

rng = np.random.default_rng(0)
DATA = [
    (rng.standard_normal((BATCH, SIZES[0])).astype(np.float32), rng.integers(0, SIZES[-1], BATCH))
    for _ in range(8)
]


def walls(step: Callable[[int], None], synchronize: Callable[[], None]) -> tuple[float, float]:
    """Median and least microseconds of a step, synchronized at the end of each repeat."""
    for number in range(20):
        step(number)
    synchronize()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for number in range(STEPS):
            step(number)
        synchronize()
        times.append((time.perf_counter() - start) / STEPS * 1e6)
    return statistics.median(times), min(times)


class Ours:
    """The step through tinygrad_cuda."""

    def __init__(self, fresh: bool) -> None:
        tc.manual_seed(0)
        inputs, hidden, outputs = SIZES
        self.model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
        self.optimizer = optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.fresh = fresh
        self.batches = [(tc.tensor(x), tc.tensor(y)) for x, y in DATA]
        self.loss: Any = None

    def __call__(self, number: int) -> None:
        batch = number % len(DATA)
        if self.fresh:
            x, y = (tc.tensor(array) for array in DATA[batch])
        else:
            x, y = self.batches[0]
        self.loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()


class Theirs:
    """The step through PyTorch."""

    def __init__(self, torch: Any, fresh: bool) -> None:
        self.torch, self.fresh = torch, fresh
        torch.manual_seed(0)
        inputs, hidden, outputs = SIZES
        self.model = torch.nn.Sequential(
            torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs)
        ).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.batches = [self.on_gpu(batch) for batch in range(len(DATA))]

    def on_gpu(self, batch: int) -> tuple[Any, Any]:
        x, y = DATA[batch]
        return self.torch.from_numpy(x).cuda(), self.torch.from_numpy(y).cuda()

    def __call__(self, number: int) -> None:
        x, y = self.on_gpu(number % len(DATA)) if self.fresh else self.batches[0]
        self.train(x, y)

    def train(self, x: Any, y: Any) -> None:
        self.loss = self.torch.nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()


class TheirGraph:
    """The same step captured once."""

    def __init__(self, torch: Any, fresh: bool) -> None:
        self.torch, self.fresh = torch, fresh
        self.step = Theirs(torch, fresh)
        self.x, self.y = self.step.on_gpu(0)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step.train(self.x, self.y)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step.train(self.x, self.y)

    def __call__(self, number: int) -> None:
        if self.fresh:
            x, y = DATA[number % len(DATA)]
            self.x.copy_(self.torch.from_numpy(x), non_blocking=True)
            self.y.copy_(self.torch.from_numpy(y), non_blocking=True)
        self.graph.replay()


def executables() -> list[LoweredExecutable]:
    found = [plan for entry in plans.entries.values() for plan in entry.plans.values()]
    return [plan for plan in found if isinstance(plan, LoweredExecutable)]


def ours(gpu: runtime.DeviceHandle, fresh: bool) -> None:
    name = "fresh host batch" if fresh else "same device batch"
    plans.clear()
    with patch.object(LoweredExecutable, "_replayed", lambda self: False):
        median, least = walls(Ours(fresh), gpu.synchronize)
    print(f"ours, launched singly, {name}: {median:.1f} us (least {least:.1f})")
    plans.clear()
    step = Ours(fresh)
    median, least = walls(step, gpu.synchronize)
    print(f"ours, replayed,        {name}: {median:.1f} us (least {least:.1f})")
    running = [plan for plan in executables() if plan.replay is not None]
    print("  plans:", [(len(plan.launches), plan.runs, plan.after) for plan in running])
    before = [plan.replay.graph.updates for plan in running]
    for number in range(100):
        step(number)
    after = [plan.replay.graph.updates for plan in running]
    print("  updates a step:", [(b - a) / 100 for a, b in zip(before, after)])
    plan = max(running, key=lambda plan: plan.runs)
    for early in (True, False):
        graph = plan.replay.graph if early else rebuilt(gpu, plan)

        def many(graph: Any = graph) -> None:
            for _ in range(GRAPHS):
                graph.launch()

        times = [gpu.timed(many) / GRAPHS for _ in range(7)]
        kind = "as replayed" if early else "plain edges"
        print(f"  device, graphs back to back, {kind}: {statistics.median(times):.2f} us a step")
    if not fresh:
        host(plan, step, gpu)


def rebuilt(gpu: runtime.DeviceHandle, plan: LoweredExecutable) -> Any:
    """The plan's graph on plain edges."""
    unit: Any = plan.unit
    return CudaGraph(
        gpu,
        [
            KernelNode(
                unit.function(launch.name), launch.blocks, THREADS, launch.shared,
                plan.frame.words(number), after=plan.after[number],
            )
            for number, launch in enumerate(plan.launches)
        ],
    )  # fmt: skip


def host(plan: LoweredExecutable, step: Ours, gpu: runtime.DeviceHandle) -> None:
    """Where the host's time of a step goes."""
    for owner, name in (
        (LoweredExecutable, "run"),
        (LoweredExecutable, "_outputs"),
        (LaunchParams, "fill"),
        (Replay, "run"),
        (CudaGraph, "launch"),
        (CudaGraph, "update"),
        (CudaBackend, "watch_error"),
        (CudaBackend, "take_error"),
    ):
        spent = watched(owner, name, step)
        gpu.synchronize()
        if spent:
            time_each = statistics.median(spent) * 1e6
            calls = len(spent) / 200
            print(f"  host, {owner.__name__}.{name}: {time_each:.1f} us, {calls:g} a step")
    profile = cProfile.Profile()
    profile.enable()
    for number in range(100):
        step(number)
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(22)
    print(text.getvalue())


def watched(owner: Any, name: str, step: Ours) -> list[float]:
    """Seconds of each call in 200 steps."""
    original, spent = getattr(owner, name), list[float]()

    def call(*arguments: Any) -> Any:
        start = time.perf_counter()
        result = original(*arguments)
        spent.append(time.perf_counter() - start)
        return result

    with patch.object(owner, name, call):
        for number in range(200):
            step(number)
    return spent


def theirs(fresh: bool) -> None:
    try:
        import torch
    except ImportError:
        print("no PyTorch here")
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    name = "fresh host batch" if fresh else "same device batch"
    for title, step in (("eager", Theirs(torch, fresh)), ("graph", TheirGraph(torch, fresh))):
        median, least = walls(step, torch.cuda.synchronize)
        print(f"PyTorch {title}, {name}: {median:.1f} us (least {least:.1f})")
        if isinstance(step, TheirGraph):
            event: Any = torch.cuda.Event
            start, end = (event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(GRAPHS):
                step.graph.replay()
            end.record()
            end.synchronize()
            print(f"  device, graphs back to back: {start.elapsed_time(end) / GRAPHS * 1e3:.2f} us")


def main() -> None:
    gpu = runtime.device(0)
    print(gpu.properties.name)
    tc.set_default_device("cuda")
    for fresh in (False, True):
        ours(gpu, fresh)
        theirs(fresh)
    with settings.override(debug=2):
        step = Ours(False)
        for number in range(3):
            print(f"step {number}")
            step(number)


if __name__ == "__main__":
    main()
