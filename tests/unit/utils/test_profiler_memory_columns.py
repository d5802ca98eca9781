"""The columns of memory: what ops take and let go, on cpu as measured, elsewhere by the plan."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.backend.cpu.pool import pool
from tinygrad_cuda.backend.emu.backend import memory
from tinygrad_cuda.profiler import profile
from tinygrad_cuda.utils.profiling.averages import EventList, memory_text
from tinygrad_cuda.utils.profiling.memory_timeline import PlanMemory

DEVICES = "cpu", "emu"
GROUPS = "op", "kernel", "module", "line", "phase"


def profiled(work: Callable[[], Any], **options: Any) -> tuple[profile, Any]:
    with profile(profile_memory=True, **options) as p:
        result = work()
    return p, result


def usage(averages: EventList, device: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in averages:
        own = row.self_cpu_memory_usage if device == "cpu" else row.self_device_memory_usage
        sums[row.key] = sums.get(row.key, 0) + own
    return sums


def ones(*shape: int, device: str) -> tc.Tensor:
    x = tc.ones(*shape, device=device)
    x.numpy()
    return x


def trained(device: str) -> Callable[[], tc.Tensor]:
    """A step of Adam, whose second run overwrites what it can."""
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = tc.optim.Adam(model.parameters())
    x, labels = tc.randn(256, 64, device=device), tc.randint(0, 10, (256,), device=device)

    def step() -> tc.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    step()
    return step


@pytest.mark.parametrize("device", DEVICES)
def test_a_result_counts_for_its_op(device: str) -> None:
    """1,000 numbers of float32 are 4,000 bytes, as in PyTorch."""
    x = ones(1000, device=device)
    p, y = profiled(lambda: x.exp())
    averages = p.key_averages()
    (row,) = [row for row in averages if row.key == "exp"]
    if device == "cpu":
        assert (row.cpu_memory_usage, row.self_cpu_memory_usage) == (4000, 4000)
        assert (row.device_memory_usage, row.self_device_memory_usage) == (0, 0)
    else:
        assert (row.cpu_memory_usage, row.self_cpu_memory_usage) == (0, 0)
        assert (row.device_memory_usage, row.self_device_memory_usage) == (4000, 4000)
        assert (row.cuda_memory_usage, row.self_cuda_memory_usage) == (4000, 4000)
    assert sum(usage(averages, device).values()) == 4000 == y.nbytes
    assert "[memory]" not in usage(averages, device)


def test_what_is_let_go_by_whom() -> None:
    """A long value goes with its last reader; a short one with the run, as PyTorch's row says."""
    x, long = ones(1000, device="cpu"), ones(300, 300, device="cpu")
    p, y = profiled(lambda: x.exp().sum())
    rows = usage(p.key_averages(), "cpu")
    assert (rows["exp"], rows["sum"]) == (4000, 4)
    assert rows["[memory]"] <= -4000
    assert sum(rows.values()) == y.nbytes == 4
    p, y = profiled(lambda: (long.exp() @ long).reshape(-1))
    rows = usage(p.key_averages(), "cpu")
    assert rows["exp"] == long.nbytes
    assert rows["matmul"] == 0  # its result, less its operand
    assert sum(rows.values()) == y.nbytes


def test_a_result_over_its_operand_takes_nothing() -> None:
    long = ones(300, 300, device="cpu")
    p, _ = profiled(lambda: (long @ long).exp())
    rows = usage(p.key_averages(), "cpu")
    assert (rows["matmul"], rows["exp"]) == (long.nbytes, 0)


def test_a_copy_of_a_view_counts_for_it() -> None:
    x = ones(20, 50, device="cpu")
    p, _ = profiled(lambda: tc.sort(x, dim=1)[0])
    rows = usage(p.key_averages(), "cpu")
    assert sum(rows.values()) == x.nbytes
    p, _ = profiled(lambda: x.t().contiguous())
    assert sum(usage(p.key_averages(), "cpu").values()) == x.nbytes


@pytest.mark.parametrize("device", DEVICES)
def test_all_groupings_have_the_sum_that_the_timeline_has(device: str) -> None:
    """Of a training step: what its plans left behind is the sum of each table."""
    step = trained(device)
    p, _ = profiled(step, with_modules=True, with_stack=True)
    plans = p.memory_timeline().plans
    left = sum(change.nbytes for plan in plans for change in plan.changes)
    assert left > 0
    for by in GROUPS:
        averages = p.key_averages(by=by)
        assert sum(usage(averages, device).values()) == left, by
        total = averages.total_average()
        assert total.self_cpu_memory_usage + total.self_device_memory_usage == left
    modules = {row.key: row for row in p.key_averages() if row.key.startswith("nn.Module: ")}
    inner = [modules[f"nn.Module: Sequential.{k}"] for k in range(3)]
    whole = modules["nn.Module: Sequential"]
    for name in ("cpu_memory_usage", "device_memory_usage"):
        assert getattr(whole, name) == sum(getattr(row, name) for row in inner)
        assert getattr(whole, f"self_{name}") == 0


def own_of(event: Any, device: str) -> int:
    own, other = event.self_cpu_memory_usage, event.self_device_memory_usage
    assert (event.cpu_memory_usage, event.device_memory_usage) == (own, other)
    assert event.cuda_memory_usage == event.self_cuda_memory_usage == other
    own, other = (own, other) if device == "cpu" else (other, own)
    assert not other
    return int(own)


@pytest.mark.parametrize("device", DEVICES)
def test_single_events_have_what_their_kernel_took(device: str) -> None:
    """Also where a plan runs twice; what goes at the end is an event of its own, as in PyTorch."""
    x, long = ones(1000, device=device), ones(300, 300, device=device)

    def once() -> list[tc.Tensor]:
        made = [(long @ long).sum(), x.exp() + 1]
        tc.realize(*made)
        return made

    once()
    p, results = profiled(lambda: [*once(), *once()])
    events = p.events()
    assert sum(own_of(event, device) for event in events) == sum(y.nbytes for y in results)
    kernels = [own_of(event, device) for event in events if event.kind == "kernel"]
    assert kernels[: len(kernels) // 2] == kernels[len(kernels) // 2 :]
    by_kernel = {}
    for event in events:
        if event.kind in ("kernel", "memory"):
            by_kernel[event.name] = by_kernel.get(event.name, 0) + own_of(event, device)
    assert {k: v for k, v in usage(p.key_averages(by="kernel"), device).items() if v} == {
        k: v for k, v in by_kernel.items() if v
    }
    p, _ = profiled(lambda: x.exp().sum())
    others = [event for event in p.events() if event.kind == "memory"]
    assert [event.name for event in others] == ["[memory]"] * (device == "cpu")
    if device == "cpu":
        assert own_of(others[0], device) <= -x.nbytes + 4
        last = max(event.time_range.end for event in p.events() if event.kind == "kernel")
        assert others[0].time_range == (last, last)
    with profile() as plain:
        x.exp().numpy()
    assert all(own_of(event, device) == 0 for event in plain.events())


@pytest.mark.parametrize("device", DEVICES)
def test_a_trace_has_each_value_that_is_taken_and_let_go(device: str, tmp_path: Path) -> None:
    """Instants by PyTorch's names beside the kernels, with a running sum, the op and its line."""
    long = ones(300, 300, device=device)
    p, y = profiled(lambda: (long.exp() @ long).sum(), with_stack=True)
    p.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    instants = [event for event in events if event["name"] == "[memory]"]
    assert {(e["ph"], e["s"], e["cat"]) for e in instants} == {("i", "t", "cpu_instant_event")}
    sizes = [e["args"]["Bytes"] for e in instants]
    assert [e["args"]["Total Allocated"] for e in instants] == list(accumulate(sizes))
    assert sum(sizes) == y.nbytes
    assert {(e["args"]["Device Type"], e["args"]["Device Id"]) for e in instants} == {
        (0, -1) if device == "cpu" else (1, 0)
    }
    made = next(e for e in instants if e["args"].get("op") == "exp")
    assert made["args"]["Bytes"] == long.nbytes and "long.exp() @ long" in made["args"]["line"]
    kernels = {e["ts"]: e for e in events if e.get("cat") == "kernel"}
    assert "exp" in kernels[made["ts"]]["args"]["ops"]
    assert made["pid"] == kernels[made["ts"]]["pid"]
    gone = next(e for e in instants if e["args"]["Bytes"] == -long.nbytes)
    assert any(gone["ts"] == pytest.approx(k["ts"] + k["dur"]) for k in kernels.values())
    with profile() as plain:
        long.exp().numpy()
    plain.export_chrome_trace(tmp_path / "trace.json")
    assert "[memory]" not in (tmp_path / "trace.json").read_text()


def test_memory_without_noted_kernels() -> None:
    """Only the host is noted: what a plan of another device takes has no kernel to stand with."""
    x = ones(1000, device="emu")
    p, y = profiled(lambda: x.exp(), activities=[tc.profiler.ProfilerActivity.CPU])
    (event,) = [event for event in p.events() if own_of(event, "emu")]
    assert (event.kind, own_of(event, "emu")) == ("memory", y.nbytes)


def held(plan: PlanMemory) -> list[int]:
    """The most that a run had taken in each kernel, by its changes."""
    sums = list(accumulate((change.nbytes for change in plan.changes), initial=0))
    most, last = [], 0
    for kernel in range(len(plan.kernels)):
        own = [sums[k + 1] for k, change in enumerate(plan.changes) if change.kernel == kernel]
        most.append(max([last, *own]))
        last = own[-1] if own else last
    return most


def test_the_emulator_takes_what_the_plan_says() -> None:
    """The changes add up to the timeline kernel by kernel, and to what the allocator counted."""
    x = ones(64, 64, device="emu")
    gc.collect()
    x.exp().numpy()  # the arena is there
    before = memory.allocated
    p, y = profiled(lambda: ((x @ x).exp() @ x).softmax(1) @ x)
    (plan,) = p.memory_timeline().plans
    assert len(plan.kernels) > 1
    results = y.nbytes
    assert sum(change.nbytes for change in plan.changes) == results
    expected = [
        sum(plan.held(k).values()) - plan.other - plan.input_bytes - plan.scratch
        for k in range(len(plan.kernels))
    ]
    writing = max(change.kernel for change in plan.changes if change.nbytes == results)
    own = [n + results * (k < writing) for k, n in enumerate(held(plan))]
    assert own == expected
    assert memory.allocated - before >= results


def test_cpu_measures_and_changes_nothing() -> None:
    """What counts the arrays refers to none of them, so that their memory is used again."""
    step = trained("cpu")
    step().item()
    idle = pool.idle_bytes
    p, loss = profiled(step)
    assert pool.idle_bytes == idle
    (plan,) = p.memory_timeline().plans
    assert plan.measured is not None
    assert plan.measured >= plan.input_bytes + max(held(plan)) > plan.input_bytes
    loss.item()


def test_columns_and_orders() -> None:
    x = ones(1000, device="cpu")
    p, _ = profiled(lambda: (x.exp(), (x * 2).sum()))
    averages = p.key_averages()
    for name in (
        "cpu_memory_usage", "self_cpu_memory_usage", "device_memory_usage",
        "self_device_memory_usage", "cuda_memory_usage", "self_cuda_memory_usage",
    ):  # fmt: skip
        text = averages.table(sort_by=name)
        for title in ("CPU Mem", "Self CPU Mem", "CUDA Mem", "Self CUDA Mem"):
            assert title in text
    assert "3.91 KB" in averages.table(sort_by="self_cpu_memory_usage", row_limit=1)
    with profile() as plain:
        x.exp().numpy()
    assert "CPU Mem" not in plain.key_averages().table()
    assert all(row.cpu_memory_usage == 0 for row in plain.key_averages())


def test_sizes_as_pytorch_writes_them() -> None:
    torch = pytest.importorskip("torch")
    written = torch.autograd.profiler_util._format_memory
    for nbytes in (0, 4, -4000, 1023, 1024, 5 << 20, -(7 << 30)):
        assert memory_text(nbytes) == written(nbytes)
