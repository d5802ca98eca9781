"""What the profiler does on a GPU: events, CUPTI, the roof; on a pretended GPU, and alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tinygrad_cuda as tc
from tests.pretended_gpu import MEMORY, pretended_gpu
from tinygrad_cuda import nn
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import cupti
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.observer import watched
from tinygrad_cuda.cuda import nvtx
from tinygrad_cuda.profiler import MeasuredRoof, emit_nvtx, profile, schedule
from tinygrad_cuda.utils.profiling import roofline as roofs
from tinygrad_cuda.utils.profiling import session
from tinygrad_cuda.utils.profiling.averages import limit_of, roofline_points
from tinygrad_cuda.utils.profiling.recorder import ProfileRecorder

ROOF = MeasuredRoof("pretended", 1e12, 1e13, 1e14)


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    """What names no device is on the CPU, also while a GPU is pretended."""
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU whose roof is measured, without CUPTI."""
    monkeypatch.setattr(roofs, "_measured", {as_device("cuda"): ROOF})
    monkeypatch.setattr(session, "kernel_activity", lambda: None)
    with pretended_gpu():
        yield


def step_on(device: str) -> Any:
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    optimizer = tc.optim.SGD(model.parameters(), lr=0.1)
    x, labels = tc.randn(4, 8).to(device), tc.tensor([0, 1, 2, 3]).to(device)

    def step() -> tc.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("compiled", [False, True])
def test_replayed_graphs_are_launched_singly(gpu: None, compiled: bool, tmp_path: Path) -> None:
    """Every kernel of a step that is replayed has a time by events, in the loop and in the trace.

    Afterwards the step is replayed as before, with the same losses as without a profiler.
    """
    plain = step_on("cuda")
    expected = [plain().item() for _ in range(7)]
    step = step_on("cuda")
    if compiled:
        step = tc.compile(step)
    losses = [step().item() for _ in range(3)]
    with profile() as p:
        losses += [step().item() for _ in range(2)]
    losses += [step().item() for _ in range(2)]
    assert losses == expected
    kernels = p.recorder.kernels
    assert {run.clock for run in kernels} == {"events"}
    assert len(kernels) % 2 == 0
    assert [run.work.name for run in kernels[::2]] != []
    assert all(run.nanoseconds > 0 for run in kernels)
    text = p.key_averages(by="kernel").table()
    assert "launched kernel by kernel" in text
    assert "no roof" not in text
    p.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    arrows = [event["ph"] for event in events if event["name"] == "ac2g"]
    assert arrows.count("s") == arrows.count("f") == len(kernels)


def test_cupti_times_replayed_graphs(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUPTI a step stays a graph, and kernels are found again by their names."""
    step = step_on("cuda")
    for _ in range(3):
        step()
    started = schedule(wait=1, warmup=1, active=1, repeat=1)
    with profile() as without:
        step().item()
    names = [run.work.name for run in without.recorder.kernels]

    class Activity:
        collecting = False

        def begin(self) -> None:
            self.collecting = True

        def end(self) -> list[cupti.TimedKernel]:
            found = [cupti.TimedKernel(n, 0, 100 * k, 100 * k + 150) for k, n in enumerate(names)]
            return [*found, cupti.TimedKernel("of_a_library", 0, 5000, 5100)]

    monkeypatch.setattr(session, "kernel_activity", Activity)
    with profile(schedule=started) as p:
        for _ in range(4):
            step().item()
            p.step()
    assert p.recorder.single_launches is False
    rows = {row.key: row for row in p.key_averages(by="kernel")}
    assert rows.keys() == {*names, "of_a_library"}
    assert rows[names[0]].flops + rows[names[0]].nbytes > 0
    assert {run.clock for run in p.recorder.kernels} == {"cupti"}
    assert "CUPTI" in p.key_averages().table()


def test_records_of_cupti() -> None:
    """Kernels of the interval, on the host's clock, in order; other records are left out."""
    kinds = SimpleNamespace(CONCURRENT_KERNEL=10, KERNEL=3)
    waiting: list[Any] = []
    calls: list[Any] = []

    def flush(flag: int) -> None:
        calls.append(("flush", flag))
        library.completed(waiting)

    def register(requested: Any, completed: Any) -> None:
        assert requested() == (8 << 20, 0)
        library.completed = completed

    library = SimpleNamespace(
        ActivityKind=kinds, activity_flush_all=flush, get_timestamp=lambda: 1_000_000,
        activity_register_callbacks=register,
        activity_enable=lambda kind: calls.append(("enable", kind)),
        activity_disable=lambda kind: calls.append(("disable", kind)),
    )  # fmt: skip
    activity = cupti.KernelActivity(library)
    activity.begin()
    waiting += [
        SimpleNamespace(kind=10, name="second", start=2000, end=2500, device_id=0),
        SimpleNamespace(kind=1, name="copy", start=0, end=9, device_id=0),
        SimpleNamespace(kind=10, name="first", start=1000, end=1800, device_id=0),
    ]
    first, second = activity.end()
    assert (first.name, second.name) == ("first", "second")
    assert (first.end - first.start, second.start - first.start) == (800, 1000)
    assert calls == [("enable", 10), ("flush", 1), ("disable", 10)]


def test_share_of_the_roof_and_what_limits(gpu: None, tmp_path: Path) -> None:
    """The least time by FLOPs and bytes, divided by the time; the picture has each kernel."""
    a = tc.rand(64, 64, device="cuda")
    a.numpy()
    with profile() as p:
        (a @ a).numpy()
    (row,) = p.key_averages(by="kernel")
    least = max(2 * 64**3 / ROOF.flops, 3 * 4 * 64 * 64 / ROOF.bandwidth)
    assert row.least_time == pytest.approx(1e6 * least, rel=0.1)
    assert row.share_of_roof == pytest.approx(row.least_time / row.self_device_time_total)
    assert row.limit in ("memory", "arithmetic", "launch")
    for name in ("roof.png", "roof.svg"):
        p.export_roofline(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000
    with pytest.raises(ArgumentError, match="nothing to draw"):
        p.export_roofline(tmp_path / "roof.txt")


@pytest.mark.parametrize(
    ("flops", "nbytes", "microseconds", "limit"),
    [
        (1e9, 1e6, 150.0, "arithmetic"),  # 100 us of products, 1 us of memory
        (1e6, 1e9, 1500.0, "memory"),
        (1e9, 1e8, 150.0, "memory"),  # as long each
        (1e3, 1e3, 2.0, "launch"),
        (2.4e7, 1e3, 2.9, "arithmetic"),  # short, and near its roof
    ],
)
def test_what_limits_a_kernel(flops: float, nbytes: float, microseconds: float, limit: str) -> None:
    """What takes longer of its roof; the launch of what is hardly longer than that."""
    work: Any = SimpleNamespace(flops=flops, nbytes=nbytes, half=False)
    assert limit_of(work, microseconds, ROOF) == limit
    assert limit_of(work, microseconds, None) == "--"


def test_half_types_have_a_roof_of_their_own() -> None:
    work: Any = SimpleNamespace(flops=1e9, nbytes=5e7, half=True)
    assert limit_of(work, 150.0, ROOF) == "memory"  # 10 us of products, 50 of memory
    assert ROOF.least_seconds(work) == pytest.approx(5e-5)


def test_a_column_says_what_limits(gpu: None) -> None:
    a = tc.rand(64, 64, device="cuda")
    a.numpy()
    with profile() as p:
        (a @ a).exp().sum().numpy()
    averages = p.key_averages(by="kernel")
    lines = averages.table(row_limit=-1).splitlines()
    assert lines[1].endswith("% of roof  Limited by")
    for row, line in zip(averages, lines[3:]):
        assert row.share_of_roof is not None
        assert line.endswith(row.limit) and line.split()[-2] == f"{100 * row.share_of_roof:.1f}%"
    assert "Limited by" not in p.key_averages().table()


def test_points_of_the_roofline(gpu: None) -> None:
    """One for each kernel, however often it ran: intensity, rate and share; the longest first."""
    a = tc.rand(64, 64, device="cuda")
    a.numpy()
    with profile() as p:
        for _ in range(3):
            (a @ a).numpy()
        (a.sum(1) + 1).numpy()
    points = roofline_points(p.recorder.kernels, p.works)
    rows = {f"{row.key} {row.input_shapes}": row for row in p.key_averages(by="kernel")}
    assert {point.name for point in points} == {key for key, row in rows.items() if row.flops}
    assert len(points) >= 2
    whole = sum(rows[point.name].self_device_time_total for point in points)
    for point in points:
        row = rows[point.name]
        assert point.intensity == pytest.approx(row.flops / row.nbytes)
        assert point.rate == pytest.approx(1e9 * row.gflops_per_second)
        assert point.share == pytest.approx(row.self_device_time_total / whole)
    assert [p.share for p in points] == sorted((p.share for p in points), reverse=True)


def test_without_a_gpu_there_is_no_roof(tmp_path: Path) -> None:
    a = tc.rand(8, 8, device="cpu")
    with profile() as p:
        (a @ a).numpy()
    assert p.roofs() == {}
    assert all(row.share_of_roof is None for row in p.key_averages())
    with pytest.raises(ArgumentError, match="nothing to draw"):
        p.export_roofline(tmp_path / "roof.png")


def test_the_roof_is_measured_once_and_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The measurement itself runs on any device; its file is read by the next process.

    It draws from a stream of its own.
    """
    monkeypatch.setattr(settings, "cache_dir", tmp_path)
    state = tc.get_rng_state().tolist()
    found = roofs.measure(as_device("emu"), "an emulator", 1 << 12, 16)
    assert tc.get_rng_state().tolist() == state
    assert watched.observer is None
    assert min(found[1:]) > 0
    roofs._write(found)
    assert roofs._read("an emulator") == found
    assert roofs._read("another") is None
    roofs._path("an emulator").write_text("{damaged")
    assert roofs._read("an emulator") is None
    assert roofs.roof_of(as_device("emu")) is None


def test_a_gpu_is_measured_at_first_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This GPU: once in a process, and in the next one read from its file."""
    monkeypatch.setattr(settings, "cache_dir", tmp_path)
    monkeypatch.setattr(settings, "cache", True)
    calls: list[str] = []
    measure = roofs.measure

    def small(device: Any, name: str, nbytes: int, side: int) -> MeasuredRoof:
        calls.append(name)
        return measure(device, name, 1 << 12, 16)

    monkeypatch.setattr(roofs, "measure", small)
    monkeypatch.setattr(roofs, "_measured", {})
    with pretended_gpu():
        name = registry.get(as_device("cuda")).target.name  # type: ignore[union-attr]
        found = roofs.roof_of(as_device("cuda"))
        assert found is not None and roofs.roof_of(as_device("cuda")) is found
        assert (calls, found.device) == ([name], name)
        roofs._measured.clear()
        assert roofs.roof_of(as_device("cuda")) == found and calls == [name]


def test_events(gpu: None) -> None:
    """`record` has what is pending launched and waits for nothing; the GPU's clock counts."""
    start, end = (tc.cuda.Event(enable_timing=True) for _ in range(2))
    assert start.query()
    with pytest.raises(ArgumentError, match="was not recorded"):
        start.elapsed_time(end)
    x = tc.rand(32, 32, device="cuda")
    start.record()
    y = x @ x
    end.record()
    assert y.node.storage is not None  # launched, not waited for
    assert not end.query()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert y.shape == (32, 32)
    with pytest.raises(ArgumentError, match="enable_timing=True"):
        start.elapsed_time(tc.cuda.Event())
    stream = tc.cuda.current_stream()
    assert stream.cuda_stream > 0
    assert stream.record_event().query() in (True, False)
    stream.synchronize()
    assert stream.query() in (True, False)


def test_memory_figures(gpu: None) -> None:
    x = tc.rand(1024, 256, device="cuda")
    x.numpy()
    stats = tc.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == tc.cuda.memory_allocated() >= 1 << 20
    assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"]
    assert stats["reserved_bytes.all.current"] == tc.cuda.memory_reserved()
    assert f"{tc.cuda.memory_allocated():,}" in tc.cuda.memory_summary()
    rows = {line[:28].strip(): line for line in tc.cuda.memory_summary().splitlines()}
    inside, peak = tc.cuda.memory_allocated(), tc.cuda.max_memory_allocated()
    for row, nbytes in {
        "in use by tensors and plans": inside, "the most at once": peak,
        "held by the pool": tc.cuda.memory_reserved(),
        "held and not in use": tc.cuda.memory_reserved() - inside,
    }.items():  # fmt: skip
        assert f" {nbytes:,} bytes" in rows[row], row
    free, total = tc.cuda.mem_get_info()
    assert total == MEMORY and total - free >= 1 << 20
    del x
    assert tc.cuda.memory_allocated() < peak == tc.cuda.max_memory_allocated()
    tc.cuda.reset_peak_memory_stats()
    assert tc.cuda.max_memory_allocated() == tc.cuda.memory_allocated()
    large = tc.zeros(1 << 24).numpy()
    y = tc.tensor(large).to("cuda")
    tc.realize(y)
    del y
    idle, (free, _) = tc.cuda.memory_reserved(), tc.cuda.mem_get_info()
    tc.cuda.empty_cache()
    assert tc.cuda.memory_reserved() <= idle - large.nbytes
    assert tc.cuda.mem_get_info()[0] >= free + large.nbytes


def test_what_a_gpu_is(gpu: None) -> None:
    """By PyTorch's names: of a number, a name, a device, or of the current one."""
    for device in (None, 0, "cuda", as_device("cuda")):
        properties = tc.cuda.get_device_properties(device)
        assert properties.name == tc.cuda.get_device_name(device) == "Pretended GPU"
        assert (properties.major, properties.minor) == (9, 0)
        assert properties.total_memory == MEMORY
        assert properties.multi_processor_count == 1
        assert properties.max_threads_per_multi_processor == 2048
        assert properties.L2_cache_size == 50 << 20
    assert "total_memory=1024MB" in repr(tc.cuda.get_device_properties())
    with pytest.raises(tc.DeviceError):
        tc.cuda.get_device_properties(7)


def test_copies_of_a_gpu_are_noted(gpu: None) -> None:
    x = tc.tensor([1.0] * 100)
    with profile() as p:
        (x.to("cuda") * 2).numpy()
    averages = p.key_averages()
    nbytes = {row.key: row.nbytes for row in averages if row.key.startswith("Memcpy")}
    assert nbytes["Memcpy HtoD"] >= 400 and nbytes["Memcpy DtoH"] == 400
    assert min(averages.device_times) > 0


class Ranges:
    """Stands for the package `nvtx`."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def push_range(self, name: str) -> None:
        self.log.append(name)

    def pop_range(self) -> None:
        self.log.append("pop")


def test_nvtx_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules, passes, steps and the user's ranges, nested; nothing outside of the block."""
    package = Ranges()
    monkeypatch.setattr(nvtx, "library", lambda: package)
    step = step_on("cpu")
    step()
    assert package.log == []
    with emit_nvtx(), tc.profiler.record_function("mine"):
        step()
    assert package.log[:3] == ["mine", "Sequential", "Linear"]
    assert {"backward", "Optimizer.step#SGD.step", "realize"} <= set(package.log)
    assert package.log.count("pop") == len(package.log) / 2
    package.log.clear()
    with tc.cuda.nvtx.range("step {}", 3):
        assert tc.cuda.nvtx.range_push("inner") == 1
        assert tc.cuda.nvtx.range_pop() == 1
    assert package.log == ["step 3", "inner", "pop", "pop"]
    assert tc.cuda.nvtx.range_pop() == -1
    with profile(), pytest.raises(ArgumentError, match="another profiler"), emit_nvtx():
        pass


def test_without_nvtx_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is absent: that is said once, and nothing else happens."""
    monkeypatch.setitem(__import__("sys").modules, "nvtx", None)
    nvtx.library.cache_clear()
    try:
        with pytest.warns(UserWarning, match="not installed"):
            tc.cuda.nvtx.range_push("a")
        assert tc.cuda.nvtx.range_pop() == 0
        tc.cuda.nvtx.mark("b")
        tc.cuda.nvtx.range_end(tc.cuda.nvtx.range_start("c"))
        with emit_nvtx():
            assert watched.observer is None
    finally:
        nvtx.library.cache_clear()


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_a_plan_of_another_device_runs_beside_cupti(device: str) -> None:
    """CUPTI names kernels of a GPU; others in the same step are timed without it, replayed too."""
    recorder = ProfileRecorder(modules=False, lines=False, single_launches=False)
    recorder.keep = True
    values = tc.tensor([1.0, 1.0, 1.0]).to(device)
    watched.observer = recorder
    try:
        for _ in range(3):
            assert (values + 3).sqrt().tolist() == [2.0, 2.0, 2.0]
    finally:
        watched.observer = None
    assert len(recorder.kernels) >= 3


def test_memory_by_op_of_replayed_graphs(gpu: None) -> None:
    """By the plan, however it is launched: what the runs left is the sum of the columns."""
    step = step_on("cuda")
    for _ in range(4):
        step()
    with profile(profile_memory=True) as p:
        losses = [step() for _ in range(2)]
    averages = p.key_averages()
    left = sum(change.nbytes for plan in p.memory_timeline().plans for change in plan.changes)
    assert sum(row.self_cuda_memory_usage for row in averages) == left >= 2 * losses[0].nbytes
    assert all(row.cpu_memory_usage == 0 for row in averages)
    events = [event for event in p.events() if event.self_device_memory_usage]
    assert sum(event.self_device_memory_usage for event in events) == left
    half = len(events) // 2
    assert {event.kind for event in events} == {"kernel"} and half > 0
    assert [e.name for e in events[:half]] == [e.name for e in events[half:]]


def test_an_op_of_ones_own_is_compared_at_its_first_use(gpu: None) -> None:
    @tc.kernel("y = x * x * 1.5", numpy=lambda x: x * x)
    def square(x: Any) -> Any:
        """x * x"""

    with pytest.raises(tc.TgcError, match="the kernel gives other values"):
        square(tc.tensor([1.0, 2.0], device="cuda"))
