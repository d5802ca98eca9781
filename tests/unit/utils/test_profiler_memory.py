"""The memory timeline: predicted from the plan, and what the emulator's allocator measured."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.emu.backend import EmuBackend, memory, new_buffer
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.profiler import predict_memory, profile

WITHIN = 0.02  # of the measured bytes


@pytest.fixture(autouse=True)
def fresh_arena() -> Iterator[None]:
    """What earlier programs left is no part of a measurement."""
    backend = registry.get(as_device("emu"))
    assert isinstance(backend, EmuBackend)
    backend._arena = new_buffer(0)
    gc.collect()
    yield
    backend._arena = new_buffer(0)


def convolutions() -> tuple[nn.Module, tc.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 16, 4),
    )  # fmt: skip
    return model, tc.randn(8, 3, 8, 8)


def layers() -> tuple[nn.Module, tc.Tensor]:
    model = nn.Sequential(
        nn.Linear(32, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 4),
    )  # fmt: skip
    return model, tc.randn(8, 32)


@pytest.mark.parametrize("make", [convolutions, layers])
def test_a_training_step(make: Callable[[], tuple[nn.Module, tc.Tensor]]) -> None:
    """Parameters, their state, gradients and what lies between kernels: predicted and measured."""
    before = memory.allocated
    tc.manual_seed(0)
    model, x = make()
    model, x = model.to("emu"), x.to("emu")
    labels = tc.tensor([0, 1, 2, 3] * 2, device="emu")
    optimizer = tc.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    step()
    with profile(profile_memory=True) as p:
        memory.reset_peak()
        step()
    measured = memory.peak - before
    plan = p.memory_timeline().peak
    assert plan is not None
    assert plan.predicted == pytest.approx(measured, rel=WITHIN)
    assert plan.measured == pytest.approx(plan.predicted, rel=WITHIN)
    categories = plan.held(plan.peak)
    assert categories["forward"] > 0
    assert categories["backward"] > 0
    state = 3 * sum(p.nbytes for p in model.parameters())
    assert categories["input"] == pytest.approx(state + x.nbytes + labels.nbytes, abs=600)


def test_before_the_run() -> None:
    """A value that is read later counts as long; nothing is computed by asking."""
    before = memory.allocated
    x = tc.rand(64, 64, device="emu")
    w = tc.rand(64, 64, device="emu")
    x.numpy(), w.numpy()
    y = ((x @ w).exp() @ w).sum(1)
    memory.reset_peak()
    timeline = predict_memory(y)
    assert memory.peak - before < timeline.predicted
    memory.reset_peak()
    y.numpy()
    assert timeline.predicted == pytest.approx(memory.peak - before, rel=WITHIN)
    assert predict_memory(y).plans == []


def test_what_is_alive_at_the_peak() -> None:
    """The largest values, their lines and Modules; a value dies with its last reader."""
    x = tc.rand(64, 64, device="emu")
    x.numpy()

    class Twice(nn.Module):
        def forward(self, x: tc.Tensor) -> tc.Tensor:
            wide = x.repeat(1, 4).exp() @ x.repeat(4, 1)
            return (wide @ x) @ x

    with profile(profile_memory=True, with_modules=True) as p, tc.no_grad():
        Twice()(x).numpy()
    timeline = p.memory_timeline()
    plan = timeline.peak
    assert plan is not None
    alive = plan.alive(plan.peak)
    assert alive[0].nbytes >= alive[-1].nbytes > 0
    assert any("wide = x.repeat" in value.line and value.module == "Twice" for value in alive)
    shortlived = [v for v in plan.values if v.category == "forward" and v.last < len(plan.kernels)]
    assert any(value.last < len(plan.kernels) - 1 for value in shortlived)
    text = timeline.table(row_limit=1)
    assert "more values" in text
    assert "predicted" in text


def test_cpu_is_an_estimate_beside_what_was_measured() -> None:
    """An intermediate result counts, and a view does not; nothing measured what NumPy held."""
    x = tc.rand(128, 128, device="cpu")
    x.numpy()
    with profile(profile_memory=True) as p:
        (x @ x).t().reshape(64, 256).sum(0).numpy()
    timeline = p.memory_timeline()
    assert timeline.measured is not None
    assert 2 * x.nbytes <= timeline.measured <= 3 * x.nbytes + 4096
    assert 2 * x.nbytes <= timeline.predicted < 3 * x.nbytes


@pytest.mark.parametrize("kind", ["png", "svg", "html", "json"])
def test_files(kind: str, tmp_path: Path) -> None:
    x = tc.rand(32, 32, device="emu")
    with profile(profile_memory=True) as p:
        (x @ x).exp().sum().item()
    path = tmp_path / f"memory.{kind}"
    p.export_memory_timeline(path)
    content = path.read_bytes()
    if kind == "json":
        plans = json.loads(content)["plans"]
        assert plans[-1]["predicted"] == p.memory_timeline().plans[-1].predicted
    else:
        start = {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>"}[kind]
        assert content.startswith(start)
        assert len(content) > 5000


def test_refusals(tmp_path: Path) -> None:
    with profile() as p:
        pass
    with pytest.raises(ArgumentError, match="profile_memory"):
        p.memory_timeline()
    with profile(profile_memory=True) as p:
        pass
    assert str(p.memory_timeline()) == "nothing ran"
    with pytest.raises(ArgumentError, match="unknown kind of file"):
        p.export_memory_timeline(tmp_path / "memory.doc")


def test_a_long_line_ends_in_dots() -> None:
    """It was cut off at the edge of the picture."""
    pictures = pytest.importorskip("tinygrad_cuda.utils.profiling.pictures")
    assert pictures.shortened("short") == "short"
    text = pictures.shortened("x" * 300)
    assert len(text) == pictures.CAPTION and text.endswith(" ...")
