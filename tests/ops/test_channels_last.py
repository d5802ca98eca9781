"""Networks whose values lie with the channels last on matrix units: values and gradients of `cpu`.

Tiers but those of matrix units take no part, whatever the sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.backend import registry
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.skeletons.contract import tma_pixels

F = nn.functional
OTHERS = ("winograd", "direct", "direct weight gradient", "sums of taps")
Array = np.ndarray[Any, Any]


def _slow(problem: algorithms.Problem) -> algorithms.Candidate:
    return algorithms._tiled(problem)._replace(clocks=1e15)


@pytest.fixture(params=["emu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found = device_or_skip(request.param, request)
    if registry.get(found).target.architecture != (9, 0):
        pytest.skip("its matrix units are of sm_90a")
    tiers = [
        replace(tier, propose=_slow) if tier.name == "implicit GEMM" else tier
        for tier in algorithms.TIERS
        if tier.name not in OTHERS
    ]
    monkeypatch.setattr(algorithms, "TIERS", tuple(tiers))
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    if request.param == "emu":  # images of a test are small, which drivers describe wrongly
        monkeypatch.setattr(tma_pixels, "LEAST_IMAGES", 0)
    name: str = request.param
    return name


@pytest.fixture
def high() -> Any:
    before = tc.get_float32_matmul_precision()
    tc.set_float32_matmul_precision("high")
    yield
    tc.set_float32_matmul_precision(before)


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# What stands between two convolutions of images (2, 8, 6, 10).
BETWEEN: dict[str, Callable[[Any], Any]] = {
    "scale and shift": lambda y: y * numbers_like(y, 3) + numbers_like(y, 4),
    "pad": lambda y: F.pad(y, (1, 2, 0, 1), value=0.5),
    "slice": lambda y: y[:, :, 1:5, ::2],
    "channels": lambda y: tc.cat([y[:, 4:], y[:, :4]], 1),
    "flip": lambda y: y.flip(3),
    "transpose": lambda y: y.transpose(2, 3),
    "mean": lambda y: y - y.mean((2, 3), keepdim=True),
    "softmax over channels": lambda y: y.softmax(1),
    "layer norm": lambda y: F.layer_norm(y.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2),
    "group norm": lambda y: F.group_norm(y, 2),
    "max pool": lambda y: F.max_pool2d(y, 3, 2, 1),
    "average pool": lambda y: F.avg_pool2d(y, 2),
    "nearest": lambda y: F.interpolate(y, scale_factor=2),
    "shuffle": lambda y: F.pixel_unshuffle(y, 2)[:, :8],
    "flat and back": lambda y: (y.reshape(2, -1) * 2).reshape(2, 8, 6, 10),
    "largest channel": lambda y: y * (y.argmax(1, keepdim=True) > 3),
    "an input": lambda y: y + numbers_like(y, 5, full=True),
    "running sum": lambda y: y.cumsum(3),
}


def numbers_like(y: Any, seed: int, full: bool = False) -> Any:
    shape = y.shape if full else (1, y.shape[1], 1, 1)
    return tc.tensor(numbers(seed, *shape), device=y.device)


def results(where: str, programs: dict[str, Callable[[Any], Any]]) -> dict[str, list[Array]]:
    """For each program what two convolutions around it give, and the input's gradient."""
    found: dict[str, list[Any]] = {}
    for name, program in programs.items():
        x = tc.tensor(numbers(0, 2, 8, 6, 10), device=where, requires_grad=True)
        first = tc.tensor(numbers(1, 8, 8, 3, 3) / 8, device=where)
        second = tc.tensor(numbers(2, 8, 8, 3, 3) / 8, device=where)
        y = F.conv2d(program(F.conv2d(x, first, padding=1)), second, padding=1)
        (y * y).mean().backward()
        found[name] = [y.detach(), x.grad]
    return {name: [t.numpy() for t in tensors] for name, tensors in found.items()}


def test_what_stands_between_convolutions(device: str, high: Any) -> None:
    want, made = results("cpu", BETWEEN), results(device, BETWEEN)
    for name, arrays in want.items():
        for number, (a, b) in enumerate(zip(arrays, made[name], strict=True)):
            error = np.abs(a - b).max()
            assert error <= 1e-2 * np.abs(a).max(), f"{name}, {number}: {error}"


class Net(nn.Module):
    """A stem of few channels, a residual block with a stride, and a linear layer."""

    def __init__(self, activation: Callable[[Any], Any]) -> None:
        super().__init__()
        self.activation = activation
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv1 = nn.Conv2d(8, 16, 3, 2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.shortcut = nn.Conv2d(8, 16, 1, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = self.activation(self.norm(self.stem(x)))
        y = self.activation(self.norm1(self.conv1(x)))
        y = self.activation(self.conv2(y) + self.shortcut(x))
        return self.head(y.mean((2, 3)))


def trained(where: str, half: bool, last: bool) -> dict[str, Array]:
    """A step's gradients, and the running values of its norms."""
    tc.manual_seed(0)
    model = Net(F.silu if half else F.relu).to(where)
    x = tc.tensor(numbers(7, 6, 3, 12, 8), device=where)
    x = x.to(memory_format=tc.channels_last) if last else x
    labels = tc.tensor(np.arange(6) % 5, device=where)
    with tc.autocast(where, dtype=tc.bfloat16, enabled=half):
        loss = F.cross_entropy(model(x), labels)
    loss.backward()
    found = {name: p.grad.numpy() for name, p in model.named_parameters()}
    return found | {name: b.numpy() for name, b in model.named_buffers()}


@pytest.mark.parametrize("half", [False, True], ids=["tf32", "bf16"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_images_of_few_channels(
    device: str, high: Any, rank: int, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read as they lie, with a stride and a dilation; the result has its channels last."""
    monkeypatch.setattr(algorithms.channels_last, "has_few_channels", lambda node: False)
    shape = (2, 3, *(9, 8, 7)[:rank])
    stride, dilation = (2, 1, 1)[:rank], (1, 2, 1)[:rank]
    conv = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]

    def gradients(where: str) -> list[Array]:
        x = tc.tensor(numbers(1, *shape), device=where, requires_grad=True)
        sizes = ((8, 3), (8, 8))
        weights = [numbers(2 + n, *size, *(3,) * rank) / 6 for n, size in enumerate(sizes)]
        first, second = (tc.tensor(w, device=where, requires_grad=True) for w in weights)
        with tc.autocast(where, dtype=tc.bfloat16, enabled=half):
            y = conv(x, first, stride=stride, dilation=dilation, padding=1)
            loss = conv(F.silu(y), second, padding=1).float().square().mean()
        loss.backward()
        return [t.grad.numpy() for t in (x, first, second)]

    for a, b in zip(gradients("cpu"), gradients(device), strict=True):
        assert np.abs(a - b).max() <= (3e-2 if half else 1e-2) * np.abs(a).max()


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("half", [False, True], ids=["tf32", "bf16"])
def test_a_training_step(device: str, high: Any, half: bool, last: bool) -> None:
    want, made = trained("cpu", half, last), trained(device, half, last)
    for name, array in want.items():
        error = np.abs(array.astype(np.float64) - made[name]).max()
        assert error <= (3e-2 if half else 1e-2) * np.abs(array).max(), f"{name}: {error}"
