"""What the host pays: to record a node, to find a known plan, to replay a compiled step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any
from unittest.mock import patch

import tinygrad_cuda as tc
from benchmarks.harness import Times
from benchmarks.peers.ours import Plain
from benchmarks.quick import QuickCpu
from benchmarks.report import ADDITION
from benchmarks.workloads import WORKLOADS
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.engine import realize
from tinygrad_cuda.engine.overwrite import overwritable
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.graph.ops import elementwise
from tinygrad_cuda.replay.plan_lookup import PlanEntry

NODES, REPEATS, CALLS = 1000, 5, 80
ROUNDS = 5  # all parts in turn: a slow moment is not one part's alone

Samples = dict[str, list[float]]  # microseconds


def measured(
    work: Callable[[], Any], per: int, prepare: Callable[[], Any] = realize_all
) -> list[float]:
    """Microseconds a piece, `per` pieces at a time; a first time is not counted."""
    samples = []
    for _ in range(REPEATS + 1):
        prepare()
        start = time.perf_counter()
        work()
        samples.append((time.perf_counter() - start) * 1e6 / per)
    return samples[1:]


def recording() -> Samples:
    """Nodes and Tensors of a long elementwise chain, and the plan of such a trace."""
    a, b = (tc.ones(8, device="cpu").clone() for _ in range(2))
    realize_all()

    def nodes() -> Any:
        x = a.node
        for _ in range(NODES // 2):
            x = elementwise.mul(elementwise.add(x, b.node), b.node)
        return x

    def tensors() -> Any:
        x = a
        for _ in range(NODES // 2):
            x = (x + b) * b
        return x

    root = nodes()

    def find() -> None:
        trace = Trace([root])
        place = trace.value_numbers[root]
        cache.find(CPU, trace, [place], overwritable(trace, [root], [place], trace.storages(), CPU))

    return {
        "record an elementwise node, us": measured(nodes, NODES),
        "record Tensor op Tensor, us": measured(tensors, NODES),
        "find a known plan by its nodes, us a node": measured(find, NODES),
    }


def calls(step: Callable[[], Any], synchronize: Callable[[], Any]) -> list[float]:
    """Host time of single calls, the device idle at the start of each."""
    samples = []
    for _ in range(CALLS):
        synchronize()
        start = time.perf_counter()
        step()
        samples.append((time.perf_counter() - start) * 1e6)
    return samples[CALLS // 10 :]


def replaying(device: str, smoke: bool) -> Samples:
    """A perceptron's training step, plain and compiled: until the call returns."""
    found: Samples = {}
    for title, compiled in (("plain", False), ("tc.compile", True)):
        program = Plain(WORKLOADS["mlp_64"](smoke), device, compiled)
        for number in range(20):
            program.call_on_device(number)
        call = partial(program.call_on_device, 0)
        found[f"a step of mlp_64, {title}, us of host"] = calls(call, program.synchronize)
    starts = driver_starts(call, program.synchronize)
    if starts:
        found["of it in the driver: cuGraphLaunch, us"] = starts[CALLS // 10 :]
    return found


def driver_starts(call: Callable[[], Any], synchronize: Callable[[], Any]) -> list[float]:
    """How long the driver took to start the graph of each call, if a call starts one."""
    samples: list[float] = []
    launch = CudaGraph.launch

    def timed(graph: CudaGraph, *given: Any) -> None:
        start_graph = graph._launch

        def started(*given: Any) -> Any:
            start = time.perf_counter()
            status = start_graph(*given)
            samples.append((time.perf_counter() - start) * 1e6)
            return status

        graph._launch = started
        launch(graph, *given)
        graph._launch = start_graph

    with patch.object(CudaGraph, "launch", timed):
        calls(call, synchronize)
    return samples


def finding(device: str, smoke: bool) -> Samples:
    """The plan of a perceptron's training step, from the pending graph to its launch, a node."""
    program = Plain(WORKLOADS["mlp_64"](smoke), device)
    samples: list[float] = []
    nodes, started = [0], [0.0]
    find, run = realize.run_cached_plan, PlanEntry.run

    def begun(device: Any, wanted: list[Any]) -> Any:
        if not nodes[0]:
            nodes[0] = sum(node.storage is None for node in topological(wanted))
        started[0] = time.perf_counter()
        return find(device, wanted)

    def found(known: PlanEntry, *given: Any) -> None:
        samples.append((time.perf_counter() - started[0]) * 1e6 / nodes[0])
        run(known, *given)

    with patch.object(realize, "run_cached_plan", begun), patch.object(PlanEntry, "run", found):
        for number in range(CALLS):
            program.call_on_device(number)
    return {"find the plan of a step of mlp_64, us a node": samples[CALLS // 4 :]}


def torch_add(device: str) -> Samples:
    """PyTorch's 64 x 64 addition, the yardstick of this host."""
    try:
        import torch
    except ImportError:
        return {}
    x = torch.ones(64, 64, device="cuda" if device == "cuda" else "cpu")

    def add() -> None:
        for _ in range(NODES):
            x + x

    prepare = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    return {ADDITION: measured(add, NODES, prepare)}


def overheads(device: str, smoke: bool) -> dict[str, Any]:
    """All of them, for the report."""
    cpu, found = QuickCpu(), Samples()
    parts = (
        recording,
        partial(finding, device, smoke),
        partial(replaying, device, smoke),
        partial(torch_add, device),
    )
    with cpu.kept():
        for _ in range(1 if smoke else ROUNDS):
            for part in parts:
                if not smoke:
                    cpu.settle()
                for what, samples in part().items():
                    found.setdefault(what, []).extend(samples)
    return {what: asdict(Times.of(samples)) for what, samples in found.items()}
