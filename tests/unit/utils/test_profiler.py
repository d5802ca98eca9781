"""`tc.profiler`: what it notes of plain, compiled and replayed programs, and how it sums that."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.backend.cpu import backend as cpu_backend
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.observer import Scopes, watched
from tinygrad_cuda.profiler import profile, record_function, schedule
from tinygrad_cuda.utils.profiling import chrome_trace, recorder
from tinygrad_cuda.utils.profiling.averages import FunctionEventAvg, time_text
from tinygrad_cuda.utils.profiling.events import RECORDING
from tinygrad_cuda.utils.profiling.work import Works

DEVICES = ("cpu", "emu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        return x + self.linear(self.norm(x)).relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 3)

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        return self.head(self.body(x))


def training(device: str) -> Callable[[], tc.Tensor]:
    """A step of a small model."""
    tc.manual_seed(0)
    model = Net().to(device)
    optimizer = tc.optim.SGD(model.parameters(), lr=0.1)
    x, labels = tc.randn(4, 8, device=device), tc.tensor([0, 1, 2, 1], device=device)

    def step() -> tc.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Whatever a test does, no profiler is active after it."""
    yield
    assert watched.observer is None
    assert Scopes.root is None


def computed(*tensors: tc.Tensor) -> None:
    """Has the values computed now."""
    for tensor in tensors:
        tensor.detach().numpy()


def rows(profiler: profile, **grouping: Any) -> dict[str, Any]:
    return {row.key: row for row in profiler.key_averages(**grouping)}


@pytest.mark.parametrize("device", DEVICES)
def test_ops_of_a_plain_program(device: str) -> None:
    """What is pending at the end belongs to the block; FLOPs and bytes are those of the shapes."""
    a, b = tc.ones(16, 32, device=device), tc.ones(32, 8, device=device)
    computed(a, b)
    with profile() as p:
        c = (a @ b).relu()
    found = rows(p)
    assert found["matmul"].count == 1
    assert found["matmul"].self_device_time_total > 0
    total = p.key_averages(by="kernel").total_average()
    assert 2 * 16 * 32 * 8 <= total.flops <= 2 * 16 * 32 * 8 + 3 * 16 * 8
    assert total.nbytes >= 4 * (16 * 32 + 32 * 8 + 16 * 8)
    assert found["realize"].count == 1
    assert c[0, 0].item() == 32


@pytest.mark.parametrize("device", DEVICES)
def test_single_events(device: str) -> None:
    """Ops as the host records them, inside their Modules and lines; kernels; copies; in order."""
    step = training(device)
    with profile(with_modules=True, with_stack=True) as p:
        loss = step().item()
    assert loss > 0
    events = p.events()
    assert [e.time_range.start for e in events] == sorted(e.time_range.start for e in events)
    products = [e for e in events if e.kind == "op" and e.name == "matmul"]
    assert len(products) >= 8  # three layers, but for what one block records like the other
    first = products[0]
    assert first.stack[:4] == ["Net", "Net.body", "Net.body.0", "Net.body.0.linear"]
    assert "x + self.linear" in first.stack[-1] and first.input_shapes == [[4, 8], [8, 8]]
    (backward,) = (e for e in events if e.name == "backward")
    inside = [e for e in products if "backward" in e.stack]
    assert len(inside) >= 5
    assert all(e.time_range.end <= backward.time_range.end for e in inside)
    kernels = [e for e in events if e.kind == "kernel"]
    assert len(kernels) == sum(row.count for row in p.key_averages(by="kernel"))
    assert {e.device for e in kernels} == {device} and sum(e.flops for e in kernels) > 0
    assert [e.nbytes for e in events if e.name == "Memcpy DtoH"] == [4] * (device == "emu")
    by_op, own = rows(p), sum(e.self_cpu_time_total for e in events)
    assert sum(row.self_cpu_time_total for row in by_op.values()) == pytest.approx(own)
    matmul = [e.cpu_time_total for e in products]
    assert by_op["matmul"].cpu_time_total == pytest.approx(sum(matmul))


def test_times_are_exact_on_a_machine_that_is_long_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of 30 years in nanoseconds has more digits than a float64 of microseconds."""
    years = 10**18
    for module in recorder, cpu_backend:
        monkeypatch.setattr(module, "perf_counter_ns", lambda: perf_counter_ns() + years)
    with profile() as p:
        (tc.ones(3, 4, device="cpu") @ tc.ones(4, 5, device="cpu")).exp().numpy()
    events = p.events()
    assert min(e.time_range.start for e in events) == 0
    for event in events:
        total = event.cpu_time_total or event.device_time_total
        assert event.time_range.elapsed_us() == pytest.approx(total, abs=1e-6)
        assert total * 1e3 == pytest.approx(round(total * 1e3), rel=1e-9)


def test_ops_are_recorded_as_before_and_after() -> None:
    """A profiler leaves the methods that record ops as they were, after an error too."""
    before = [vars(owner)[name] for owner, name in RECORDING]
    with profile() as p:
        tc.ones(3, device="cpu").exp()
    assert [e.name for e in p.events() if e.kind == "op"][-2:] == ["constant", "exp"]
    assert rows(p)["exp"].count == 1
    with pytest.raises(ZeroDivisionError), profile():
        assert [vars(owner)[name] for owner, name in RECORDING] != before
        raise ZeroDivisionError
    assert [vars(owner)[name] for owner, name in RECORDING] == before


def test_stacks(tmp_path: Path) -> None:
    """A line is outer;inner and microseconds; all lines of a device have its time."""
    step = training("emu")
    with profile(with_modules=True, with_stack=True) as p:
        step()
    path = tmp_path / "stacks.txt"
    p.export_stacks(path)
    text = path.read_text()
    assert "Net;Net.body;Net.body.0;Net.body.0.norm;test_profiler.py" in text
    p.export_stacks(path, "self_cuda_time_total")
    lines = [line.rpartition(" ") for line in path.read_text().splitlines()]
    assert any(stack.endswith(";matmul") for stack, _, _ in lines)
    whole = p.key_averages().total_average().self_device_time_total
    assert sum(int(time) for *_, time in lines) == pytest.approx(whole, abs=len(lines) + 50)
    with pytest.raises(ArgumentError, match="metric"):
        p.export_stacks(path, "flops")
    with profile() as p:
        step()
    with pytest.raises(ArgumentError, match="with_stack=False"):
        p.export_stacks(path)


def test_copies_and_kernels_in_one_line() -> None:
    with profile() as p:
        (tc.tensor([1.0] * 100, device="cpu").to("emu") * 2).numpy()
    averages = p.key_averages()
    found = {row.key: row for row in averages}
    to, kernels, back = averages.device_times
    assert to == pytest.approx(found["Memcpy HtoD"].cpu_time_total) and to > 0
    assert back == pytest.approx(found["Memcpy DtoH"].cpu_time_total) and back > 0
    assert kernels == pytest.approx(averages.total_average().self_device_time_total)
    (line,) = (line for line in averages.table().splitlines() if line.startswith("H2D "))
    assert f"total {time_text(to + kernels + back)}" in line


@pytest.mark.parametrize("device", DEVICES)
def test_activities(device: str) -> None:
    """CPU is the host with NumPy's steps, CUDA the kernels and copies of the other devices."""
    cpu, cuda = tc.profiler.ProfilerActivity.CPU, tc.profiler.ProfilerActivity.CUDA

    def kinds(**options: Any) -> set[str]:
        x = tc.ones(3, device=device)
        with profile(**options) as p:
            computed((x + 1).exp())
        return {event.kind for event in p.events()}

    kernels = {"kernel", "copy"} if device == "emu" else set()
    host = {"op", "plan", "run"} | (set() if kernels else {"kernel"})
    assert kinds(activities=[cuda]) == kernels == kinds(activities=[], use_cuda=True)
    assert kinds(activities=[cpu]) - {"plan"} == host - {"plan"}
    assert kinds(use_cuda=False) - {"plan"} == host - {"plan"}
    assert kinds() - {"plan"} == (host | kernels) - {"plan"}
    for wrong in ([], ["cpu"]):
        with pytest.raises(ArgumentError, match="no activities"):
            profile(activities=wrong)


def test_a_column_of_flops() -> None:
    x = tc.ones(100, 50, device="cpu")
    for wanted in (False, True):
        with profile(with_flops=wanted) as p:
            computed(x.T @ x)
        assert ("Total MFLOPs" in p.key_averages().table()) == wanted


@pytest.mark.parametrize("device", DEVICES)
def test_copies_are_noted_with_their_bytes(device: str) -> None:
    with profile() as p:
        x = tc.tensor([1.0] * 100, device="cpu").to(device) * 2
        x.numpy()
    found = rows(p)
    if device == "cpu":
        assert "Memcpy HtoD" not in found
    else:
        assert found["Memcpy DtoH"].nbytes == 400
        assert found["Memcpy HtoD"].nbytes >= 400


def test_memory_figures_without_a_gpu() -> None:
    if tc.cuda.is_available():
        pytest.skip("there is a GPU")
    assert not tc.cuda.memory_stats()
    assert tc.cuda.max_memory_allocated() == 0
    assert "0 bytes" in tc.cuda.memory_summary()
    tc.cuda.Event(enable_timing=True).synchronize()


def test_nothing_is_noted_outside() -> None:
    """Neither what was recorded before the block nor what comes after it."""
    x = tc.ones(8, 8, device="cpu").exp()
    with profile() as p:
        pass
    y = x.sin()
    computed(y)
    assert not p.key_averages()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_modules_lines_and_phases(device: str, compiled: bool) -> None:
    """A step that ran before is seen with its Modules, lines and phases, replayed or not.

    Each Module has a forward part and a backward part, and all groupings have one sum.
    """
    step = training(device)
    if compiled:
        step = tc.compile(step)
    for _ in range(3):
        step()
    actions = schedule(wait=1, warmup=2, active=2, repeat=1)
    with profile(schedule=actions, with_modules=True, with_stack=True) as p:
        for _ in range(6):
            step()
            p.step()
    modules = rows(p, by="module")
    for path in ("Net.body.0.norm", "Net.body.1.linear", "Net.head"):
        assert modules[path].forward_time > 0, path
        assert modules[path].backward_time > 0, path
    inner = [modules[path].device_time_total for path in ("Net.body", "Net.head")]
    assert modules["Net"].device_time_total == pytest.approx(sum(inner))
    assert sum(inner) < sum(row.self_device_time_total for row in modules.values())
    phases = rows(p, by="phase")
    assert phases.keys() == {"forward", "backward", "update"}
    lines = rows(p, by="line")
    assert any("return x + self.linear(self.norm(x)).relu()" in line for line in lines)
    assert any("optimizer.step()" in line for line in lines)
    sums = [
        p.key_averages(by=by).total_average().self_device_time_total
        for by in ("op", "kernel", "module", "line", "phase")
    ]
    assert sums == pytest.approx([sums[0]] * 5)
    ops = rows(p)
    assert ops["Optimizer.step#SGD.step"].device_time_total > 0
    assert any(key.startswith("compiled ") for key in ops) == compiled
    if not compiled:
        assert ops["backward"].count == 2
        assert ops["nn.Module: Net.body.0"].count == 2
        assert modules["Net"].cpu_time_total > modules["Net.head"].cpu_time_total > 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_profiled_step_computes_the_same(device: str) -> None:
    """With a profiler around some of its steps a training has the same losses, bit for bit."""
    plain, profiled = training(device), training(device)
    expected = [plain().item() for _ in range(4)]
    found = [profiled().item()]
    with profile(with_modules=True, with_stack=True):
        found += [profiled().item() for _ in range(2)]
    assert [*found, profiled().item()] == expected


def test_ranges_have_the_time_of_what_they_record() -> None:
    x = tc.ones(64, 64, device="cpu")

    @record_function("decorated")
    def doubled(x: tc.Tensor) -> tc.Tensor:
        return x + x

    with profile(with_modules=True) as p:
        with record_function("outer"):
            with record_function("inner"):
                y = x @ x
            y = doubled(y).exp()
        computed(y)
    found = rows(p)
    assert found["outer"].count == found["inner"].count == found["decorated"].count == 1
    inner, decorated = found["inner"].device_time_total, found["decorated"].device_time_total
    assert inner > 0
    assert decorated > 0
    assert found["outer"].device_time_total > inner + decorated
    assert found["outer"].cpu_time_total > found["inner"].cpu_time_total


def test_a_range_without_a_profiler_does_nothing() -> None:
    with record_function("nobody looks") as block:
        pass
    assert block.name == "nobody looks"


def test_schedule_is_pytorchs() -> None:
    """Every step's action, for many schedules; so is what raises."""
    torch_profiler = pytest.importorskip("torch.profiler")
    for numbers in ((1, 1, 2, 0, 0), (0, 2, 1, 2, 3), (2, 0, 3, 1, 1), (0, 0, 1, 0, 0)):
        names = ("wait", "warmup", "active", "repeat", "skip_first")
        options = dict(zip(names, numbers))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = torch_profiler.schedule(**options)
        ours = schedule(**options)
        assert [ours(n).name for n in range(20)] == [theirs(n).name for n in range(20)], options
    with pytest.raises(ArgumentError, match="active > 0"):
        schedule(wait=1, warmup=1, active=0)


def test_each_cycle_is_delivered_once_with_its_own_events() -> None:
    x = tc.ones(4, device="cpu")
    seen: list[tuple[int, float]] = []

    def ready(p: profile) -> None:
        seen.append((p.step_num, rows(p)["exp"].count))

    actions = schedule(wait=1, warmup=0, active=2, repeat=2)
    with profile(schedule=actions, on_trace_ready=ready) as p:
        for _ in range(9):
            computed(x.exp())
            p.step()
    assert seen == [(3, 2), (6, 2)]
    seen.clear()
    with profile(on_trace_ready=ready):
        computed(x.exp())
    assert seen == [(0, 1)]


@pytest.mark.parametrize("device", DEVICES)
def test_chrome_trace(device: str, tmp_path: Path) -> None:
    """Host and device lanes, spans that nest, kernels with their ops, lines and Modules."""
    step = training(device)
    with profile(with_modules=True, with_stack=True) as p:
        step()
    p.add_metadata_json("numbers", "[1, 2]")
    path = tmp_path / "trace.json"
    p.export_chrome_trace(path)
    content = json.loads(path.read_text())
    assert content["numbers"] == [1, 2]
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    kernels = [event for event in events if event["cat"] == "kernel"]
    assert len(kernels) == sum(row.count for row in p.key_averages(by="kernel"))
    assert {name for k in kernels for name in k["args"]["modules"]} >= {"Net.head", "Net.body.0"}
    assert any("matmul" in k["args"]["ops"] for k in kernels)
    assert len({k["pid"] for k in kernels} | {e["pid"] for e in events}) == 2
    spans = {e["name"]: e for e in events if e["cat"] == "python_function"}
    outer, inner = spans["Net"], spans["Net.body.0.norm"]
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    starts = [k["ts"] for k in kernels]
    ends = [k["ts"] + k["dur"] for k in kernels]
    assert all(end <= start + 1e-3 for end, start in zip(ends, starts[1:]))
    p.export_chrome_trace(tmp_path / "trace.json.gz")
    assert (tmp_path / "trace.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_handler_of_finished_traces(tmp_path: Path) -> None:
    handler = tc.profiler.tensorboard_trace_handler(str(tmp_path / "log"), "me")
    x = tc.ones(3, device="cpu")
    computed(x)
    with profile(on_trace_ready=handler):
        computed(x.exp())
    (file,) = (tmp_path / "log").iterdir()
    assert file.name.startswith("me.")
    assert file.name.endswith(".pt.trace.json")
    assert "exp" in file.read_text()


def test_table() -> None:
    """Sorted, cut, and with what the times mean below it."""
    x = tc.ones(64, 64, device="cpu")
    with profile(record_shapes=True) as p:
        computed((x @ x).sum(0).exp())
        computed(x[:8] @ x)
    averages = p.key_averages(group_by_input_shape=True)
    text = averages.table(sort_by="flops", row_limit=1, header="today")
    lines = text.splitlines()
    assert lines[0] == "today"
    assert lines[4].startswith("matmul")
    assert "[[64, 64], [64, 64]]" in lines[4]
    assert f"{len(averages) - 1} more rows" in text
    assert "no roof" in text
    assert "NumPy" in text
    assert "[[8, 64], [64, 64]]" in averages.table(row_limit=-1)
    with pytest.raises(ArgumentError, match="unknown order"):
        averages.table(sort_by="speed")


@pytest.mark.parametrize("device", DEVICES)
def test_every_column_of_a_table(device: str) -> None:
    """Host beside device, forward beside backward, rates: the cells are what the rows say."""
    step = training(device)
    with profile(with_modules=True, with_stack=True) as p:
        step()
    for by in ("op", "module"):
        averages = p.key_averages(by=by)
        whole = averages.total_average()
        titles, *rows = cells(averages.table(row_limit=-1))
        assert len(rows) == len(averages)
        for row, texts in zip(averages, rows):
            assert dict(zip(titles, texts, strict=True)) == {
                "Name": row.key,
                "Self CPU %": percent(row.self_cpu_time_total, whole.self_cpu_time_total),
                "Self CPU": time_text(row.self_cpu_time_total),
                "CPU total": time_text(row.cpu_time_total),
                "CPU time avg": time_text(row.cpu_time),
                "Self device": time_text(row.self_device_time_total),
                "Self device %": percent(row.self_device_time_total, whole.self_device_time_total),
                "Device total": time_text(row.device_time_total),
                **({} if by == "op" else {
                    "Forward": time_text(row.forward_time),
                    "Backward": time_text(row.backward_time),
                }),
                "# of Calls": str(row.count),
                "GFLOP/s": f"{row.gflops_per_second:.3g}" if row.flops else "--",
                "GB/s": rate(row.nbytes, row.self_device_time_total),
                "% of roof": "no roof",
            }, row.key  # fmt: skip


def cells(table: str) -> list[list[str]]:
    """The texts of a table's titles and rows."""
    first, titles, _, *rest = table.splitlines()
    widths = [len(rule) for rule in first.split("  ")]
    starts = [sum(widths[:k]) + 2 * k for k in range(len(widths))]
    rows = rest[: rest.index(first)]
    return [
        [line[start : start + width].strip() for start, width in zip(starts, widths)]
        for line in (titles, *rows)
    ]


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%"


def rate(nbytes: float, microseconds: float) -> str:
    return f"{nbytes / microseconds / 1e3:.3g}" if nbytes and microseconds else "--"


def test_rates_are_work_by_time() -> None:
    """10^9 FLOPs and bytes for each second of the device."""
    row = FunctionEventAvg("map")
    assert row.gflops_per_second == row.gbytes_per_second == 0
    row.flops, row.nbytes, row.self_device_time_total = 6e6, 3e6, 2.0  # microseconds
    assert (row.gflops_per_second, row.gbytes_per_second) == (3000, 1500)


def test_kernels_of_a_lane_stand_behind_each_other() -> None:
    """Of events lengths alone are known: a kernel begins when the one before has ended."""
    notes = recorder.ProfileRecorder(False, False)
    work = [tc.ones(3, device="cpu").exp().node]
    for start in (1000, 2000, 9000):  # nanoseconds of the host
        run = recorder.KernelRun(as_device("emu"), work, start, start + 10, 5000.0, "events")
        notes.kernels.append(run)
    content = chrome_trace.trace(notes, Works(), {})
    kernels = [event for event in content["traceEvents"] if event.get("cat") == "kernel"]
    assert [(k["ts"], k["dur"]) for k in kernels] == [(1, 5), (6, 5), (11, 5)]
    assert len({(k["pid"], k["tid"]) for k in kernels}) == 1


def test_what_was_not_recorded_is_refused() -> None:
    with profile() as p:
        computed(tc.ones(3, device="cpu").exp())
    for by, option in (("module", "with_modules"), ("line", "with_stack")):
        with pytest.raises(ArgumentError, match=option):
            p.key_averages(by=by)
    with pytest.raises(ArgumentError, match="unknown grouping"):
        p.key_averages(by="mood")


def test_one_profiler_at_a_time() -> None:
    with profile(), pytest.raises(ArgumentError, match="another profiler is active"):
        profile().start()


def test_an_error_inside_ends_the_profile() -> None:
    with pytest.raises(tc.ShapeError), profile(with_modules=True):
        nn.Linear(2, 3).to("cpu")(tc.ones(4, 5, device="cpu"))
    with profile(with_modules=True) as p:
        computed(nn.Linear(2, 3).to("cpu")(tc.ones(4, 2, device="cpu")))
    assert "Linear" in rows(p, by="module")


def test_a_script_is_profiled(tmp_path: Path) -> None:
    """It sees its arguments and its folder, and its exit status comes back."""
    (tmp_path / "beside.py").write_text("SIZE = 5\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "import beside\n"
        "import tinygrad_cuda as tc\n"
        "x = tc.rand(beside.SIZE, device='cpu')\n"
        "print(x.exp().sum().item() > 0, sys.argv[1:])\n"
        "sys.exit(3)\n"
    )
    before = sys.argv
    shown: list[str] = []
    trace = tmp_path / "trace.json"
    status = tc.profiler.run_script(script, ["--fast"], trace=trace, show=shown.append)
    assert status == 3
    assert sys.argv is before
    assert [text.splitlines()[0] for text in shown[:-1]] == [
        "By op", "By kernel", "By module", "By line",
    ]  # fmt: skip
    assert "x.exp().sum().item()" in shown[3]
    assert json.loads(trace.read_text())["traceEvents"]
    with pytest.raises(FileNotFoundError, match="no such script"):
        tc.profiler.run_script(tmp_path / "absent.py")
