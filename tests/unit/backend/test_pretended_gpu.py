"""The CUDA backend on a pretended GPU, whose streams run as late as CUDA allows."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pretended_gpu import MEMORY, Driver, pretended_gpu

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.backend.emu.compiler import toolchain
from tinygrad_cuda.backend.launch.executable import REPLAYS, LoweredExecutable
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import (
    ArgumentError,
    CudaError,
    DeviceError,
    OutOfMemoryError,
)
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.lowering.target import Target


@pytest.fixture(autouse=True)
def compiler() -> None:
    try:
        toolchain()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture
def driver() -> Iterator[Driver]:
    with pretended_gpu() as made:
        tc.set_default_device("cuda")
        yield made
        tc.set_default_device(None)


def executables() -> list[Any]:
    found = [plan for entry in plans.entries.values() for plan in entry.plans.values()]
    return [plan for plan in found if isinstance(plan, LoweredExecutable)]


# Training -----------------------------------------------------------------------------------------


def batches(count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((4, 5)).astype(np.float32), rng.integers(0, 3, 4))
        for _ in range(count)
    ]


def trained(device: str, how: str, optimizer: str) -> tuple[list[float], list[bytes]]:
    """Losses and parameters after eight steps, each with a batch and a rate of its own."""
    tc.manual_seed(0)
    tc.set_default_device(device)
    net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, 3))
    rule = getattr(optim, optimizer)(net.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        rule.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        rule.step()
        return loss.detach()

    call = {"plain": lambda: step, "compiled": lambda: tc.compile(step)}.get(how)
    losses = []
    if call is None:
        pair = tc.compile(step, steps=2)
        for first, second in zip(*[iter(batches(8))] * 2):
            stacked = [tc.tensor(np.stack(part)) for part in zip(first, second)]
            losses += pair(*stacked).tolist()
    else:
        run = call()
        for number, (x, y) in enumerate(batches(8)):
            rule.param_groups[0]["lr"] = 0.1 / (1 + number)
            losses.append(run(tc.tensor(x), tc.tensor(y)).item())
    return losses, [p.detach().numpy().tobytes() for p in net.parameters()]


@pytest.mark.parametrize("how", ["plain", "compiled", "pairs"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_training_has_the_bits_of_the_emulator(how: str, optimizer: str) -> None:
    expected = trained("emu", how, optimizer)
    with pretended_gpu() as driver:
        assert trained("cuda", how, optimizer) == expected
        assert driver.launched
    tc.set_default_device(None)


# Memory -------------------------------------------------------------------------------------------


def test_an_arena_that_grows_leaves_no_idle_one(driver: Driver) -> None:
    """A first step that makes an optimizer's state needs less than the steps after it."""
    gpu = runtime.device(0)
    before = gpu.pool.reserved
    for mebibytes in (40, 60, 50, 90):
        gpu.arena(mebibytes << 20)
    assert gpu.pool.reserved - before == 90 << 20
    assert gpu.memory_allocated() >= 90 << 20


# Replay -------------------------------------------------------------------------------------------


@pytest.mark.fast_paths
@pytest.mark.smoke("backend")
def test_a_steady_loop_updates_nothing(driver: Driver) -> None:
    """Outputs take turns in two places, and no plan, graph or memory is made any more."""
    net, x = nn.Linear(5, 3), tc.ones(4, 5)
    rule = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    counts, memory = [], []
    gc.collect()
    for _ in range(30):
        loss = net(x).square().mean()
        rule.zero_grad()
        loss.backward()
        rule.step()
        replays = [replay for plan in executables() for replay in plan.replays.values()]
        counts.append((plans.made, len(replays), sum(r.graph.updates for r in replays)))
        memory.append(runtime.device(0).memory_allocated())
    assert counts[8:] == counts[8:9] * 22
    assert memory[8:] == memory[8:9] * 22
    assert counts[-1][1] >= 1


@pytest.mark.fast_paths
def test_a_program_keeps_as_many_graphs_as_it_may(driver: Driver) -> None:
    """One for each combination of inputs that wait in pinned memory; the oldest goes."""
    there = [tc.tensor(np.full(3, k, np.float32)) for k in range(4)]
    for x in there:
        _ = (x + 0).tolist()
    for k in range(2 ** len(there)):
        mixed = [
            tc.tensor(np.full(3, n, np.float32)) if k >> n & 1 else x for n, x in enumerate(there)
        ]
        total = mixed[0] * 2 + mixed[1] * 3 + mixed[2] * 5 + mixed[3] * 7
        assert total.tolist() == [34.0] * 3
    most = max(len(plan.replays) for plan in executables())
    assert most == min(REPLAYS, 16)


@pytest.mark.parametrize("option", ["sync", "plain"])
def test_a_launch_that_fails_is_named(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The kernel and its line where each launch is waited for; else at the next wait."""
    failure = driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    x = tc.ones(700).add_(0)
    assert x.sum().item() == 700
    monkeypatch.setattr(settings, "sync", option == "sync")
    monkeypatch.setattr(driver, "cuLaunchKernel", lambda *call: (failure,), raising=False)
    with pytest.raises(CudaError, match=r"cuLaunchKernel\(\w+, 3 x 256\) returned 701"):
        _ = (x + 1).tolist()
    monkeypatch.undo()
    assert (x + 2).tolist() == [3.0] * 700


def test_shared_memory_is_asked_for_once_and_within_the_card(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def attribute(kernel: Any, kind: Any, value: int) -> Any:
        asked.append(value)
        return (driver.ok,)

    monkeypatch.setattr(driver, "cuFuncSetAttribute", attribute, raising=False)
    _ = (tc.ones(3) + 1).tolist()
    plan = executables()[0]
    function = plan.unit.function(plan.launches[0].name)
    size = function.parameter_bytes
    for nbytes in (1024, 48 << 10, (48 << 10) + 16, 64 << 10, 64 << 10, 227 << 10):
        function.prepare(size, nbytes)
    assert asked == [(48 << 10) + 16, 64 << 10, 227 << 10]
    with pytest.raises(CudaError, match="232448 bytes"):
        function.prepare(size, (227 << 10) + 1)
    with pytest.raises(ArgumentError, match=f"{size + 8} bytes"):
        function.prepare(size + 8, 0)


@pytest.mark.fast_paths
def test_a_weight_that_nobody_else_reads_is_overwritten_in_place(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TGC_DEBUG=3 tells of each copy; a value that somebody holds stays as it is."""
    backend = registry.get(as_device("cuda"))
    w = tc.ones(4)
    pair = tc.compile(lambda x: w.mul_(0.5).add_(x).sum(), steps=2)
    monkeypatch.setattr(settings, "debug", 3)
    for _ in range(4):
        _ = pair(tc.ones(2, 4)).tolist()
    assert "copied before" not in capsys.readouterr().err
    before, storage = w.tolist(), w.node.storage
    _ = pair(tc.ones(2, 4)).tolist()
    assert "copied before" in capsys.readouterr().err
    assert backend.to_host(storage, (4,), tc.float32).tolist() == before != w.tolist()


# What goes wrong ----------------------------------------------------------------------------------


@pytest.mark.smoke("backend")
def test_each_bad_index_is_reported_and_changes_nothing(driver: Driver) -> None:
    table = tc.ones(3, 2)
    for bad in (3, 5, 7):
        with pytest.raises(IndexError, match=f"{bad}"):
            _ = nn.functional.embedding(tc.tensor([0, bad]), table).tolist()
        good = nn.functional.embedding(tc.tensor([0, 2]), table)
        assert good.tolist() == [[1, 1], [1, 1]]


def test_pinned_memory(driver: Driver) -> None:
    x = tc.tensor([1.0, 2.0], device="cpu")
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned()
    assert pinned.pin_memory() is pinned and pinned.to("cuda").tolist() == [1.0, 2.0]


def test_memory_that_is_not_there(driver: Driver) -> None:
    with pytest.raises(OutOfMemoryError):
        runtime.device(0).allocate(MEMORY + 1)
    assert tc.ones(3).sum().item() == 3


def test_a_value_without_room_names_its_operation_and_line(driver: Driver) -> None:
    x = tc.arange(1 << 15)
    table = x.reshape(-1, 1) * x  # the line
    with pytest.raises(OutOfMemoryError, match=r"^\[mul\] no room for 8 GiB on the GPU") as caught:
        table.realized()
    assert "the line" in str(caught.value)
    assert (x[:3] + 1).tolist() == [1, 2, 3]


@contextlib.contextmanager
def full() -> Iterator[None]:
    """The card has no room for more than what lies there."""
    pool = runtime.device(0).pool
    pool.trim()
    before, pool.limit = pool.limit, pool.reserved
    yield
    pool.limit = before


def table(x: tc.Tensor) -> Any:
    return tc.exp(x) * 2  # the line


SIDE = 1 << 10
FORMS: dict[str, Callable[[Any, tc.Tensor], Any]] = {
    "at once": lambda call, x: call(x),
    "by name": lambda call, x: call(x=x),
    "steps": lambda call, x: call(x),
    "loop": lambda call, x: tc.loop(4, call, x),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_replay_without_room_names_the_operation_and_line(driver: Driver, form: str) -> None:
    """The long way and the short one, many steps of a call, and the turns of a loop."""
    if settings.slow and form == "steps":
        pytest.skip("the results of all steps have no room before the first begins")
    steps = 2 if form == "steps" else None
    x, run = tc.tensor(np.zeros((steps or 1, SIDE, SIDE), np.float32)), FORMS[form]
    call: Any = tc.compile(table, steps=steps)
    kept = [run(call, x) for _ in range(3)]
    expected = kept[0].cpu().numpy().flat[0]
    assert settings.slow or form != "at once" or call._fast is not None
    with full(), pytest.raises(OutOfMemoryError, match=r"^\[mul\] no room") as caught:
        kept += [run(call, x) for _ in range(3)]
    assert "the line" in str(caught.value)
    kept.clear()
    assert run(call, x).cpu().numpy().flat[0] == expected


def test_idle_memory_is_given_back_before_there_is_no_room(driver: Driver) -> None:
    assert (tc.ones(3) + 1).sum().item() == 6
    pool = runtime.device(0).pool
    pool.trim()
    pool.limit = pool.reserved + (24 << 20)
    for extra in (0, 1 << 20, 2 << 20):  # of three size classes, two of which have no room
        x = tc.zeros((3 << 20) + extra // 4) + 1
        assert x[0].item() == 1
        del x


def test_blocks_that_wait_for_each_other_run_at_one_time(driver: Driver) -> None:
    _ = (tc.ones(300) + 1).sum().item()
    gpu = runtime.device(0)
    source = next(s for plan in executables() for s in [plan.unit])
    function = source.function(executables()[0].launches[0].name)
    function.require_together(2, 256, 0)
    with pytest.raises(CudaError, match="at most 2 blocks"):
        function.require_together(3, 256, 0)
    assert gpu.properties.multiprocessors == 1


# What it says of itself ---------------------------------------------------------------------------


def test_the_first_gpu_is_the_current_one(driver: Driver) -> None:
    assert tc.cuda.is_available() and tc.cuda.device_count() == 1
    assert tc.cuda.current_device() == 0
    tc.cuda.set_device(0)
    tc.cuda.set_device("cuda:0")
    assert tc.cuda.get_device_name() == "Pretended GPU"
    assert tc.cuda.get_device_capability() == (9, 0)


@pytest.mark.parametrize(("major", "co_resident"), [(8, {}), (9, {1: 3, 2: 6}), (10, {1: 3, 2: 6})])
def test_rows_share_a_grid_from_sm_90_on(major: int, co_resident: dict[int, int]) -> None:
    attributes = {"COMPUTE_CAPABILITY_MAJOR": major, "MULTIPROCESSOR_COUNT": 3}
    with pretended_gpu(alone=False, **attributes):
        made: Any = registry.get(as_device("cuda"))
        assert dict(made.target.co_resident) == co_resident


def test_the_target_of_an_h200_follows_from_its_attributes() -> None:
    attributes = {
        "MULTIPROCESSOR_COUNT": 132, "CLOCK_RATE": 1_980_000, "MEMORY_CLOCK_RATE": 3_201_000,
        "GLOBAL_MEMORY_BUS_WIDTH": 6144,
    }  # fmt: skip
    with pretended_gpu(alone=False, **attributes):
        made: Any = registry.get(as_device("cuda"))
        assert replace(made.target, name="H200") == Target.h200()


def test_debug_shows_kernels_of_a_chain_one_by_one(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    w = tc.ones(4)

    def step(x: Any) -> Any:
        w.mul_(0.5).add_(x)
        return w.sum()

    pair = tc.compile(step, steps=2)
    quiet = [pair(tc.ones(2, 4)).tolist() for _ in range(4)]
    assert "row_reduce_sum" not in capsys.readouterr().out
    w.fill_(1)
    monkeypatch.setattr(settings, "debug", 2)
    assert [pair(tc.ones(2, 4)).tolist() for _ in range(4)] == quiet
    assert capsys.readouterr().out.count("row_reduce_sum") == 4 * 2


def test_another_gpu_is_refused(driver: Driver) -> None:
    with pytest.raises((ArgumentError, DeviceError)):
        tc.cuda.set_device(1)
