"""Long training with dropout and a schedule: the bits of the plain program, by its own plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_task import value_bytes

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.nn import functional as F

EMULATED, STEPS, FEWER = 5, 1000, 100


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(8, 4, 3, padding=1)
        )

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
    )


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.first, self.second = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.head, self.drop = nn.Linear(8, 10), nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.first(self.stem(x)))
        x = F.relu(x + self.second(self.body(x)))
        return self.head(self.drop(x.mean((2, 3))))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.top, self.down = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, padding=1)
        self.norm, self.drop = nn.GroupNorm(4, 16), nn.Dropout(0.1)
        self.up, self.out = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Any) -> Any:
        top = F.silu(self.top(x))
        low = self.drop(F.silu(self.norm(self.down(top))))
        up = self.up(F.interpolate(low, scale_factor=2, mode="nearest"))
        return self.out(tc.cat((top, up), 1))


# The model, its input's shape, its optimizer; labels, or another image of the shape.
CASES: dict[str, tuple[Any, tuple[int, ...], Any, bool]] = {
    "perceptron": (
        perceptron, (8, 1, 28, 28), lambda p: optim.SGD(p, lr=0.05, momentum=0.9), True
    ),
    "lenet": (lenet, (4, 1, 28, 28), lambda p: optim.Adam(p, lr=1e-3), True),
    "denoiser": (Denoiser, (1, 4, 16, 16), lambda p: optim.SGD(p, lr=0.01), False),
    "residual": (Residual, (4, 1, 16, 16), lambda p: optim.Adam(p, lr=1e-3), True),
    "unet": (UNet, (2, 2, 16, 16), lambda p: optim.Adam(p, lr=1e-3), False),
}  # fmt: skip
LONG = ("perceptron", "lenet", "denoiser")


def trained(name: str, count: int, compiled: bool) -> tuple[list[bytes], list[int]]:
    """All losses and the last parameters; how many plans there were after each step."""
    tc.manual_seed(0)
    build, shape, optimizer_of, labelled = CASES[name]
    model = build()
    optimizer = optimizer_of(model.parameters())
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, count)
    rng = np.random.default_rng(0)
    data = [
        (
            rng.standard_normal(shape).astype(np.float32),
            rng.integers(0, 10, shape[0])
            if labelled
            else rng.standard_normal(shape).astype(np.float32),
        )
        for _ in range(8)
    ]

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        found = model(x)
        loss = F.cross_entropy(found, y) if labelled else F.mse_loss(found, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = tc.compile(step) if compiled else step
    losses, made = [], []
    for number in range(count):
        x, y = data[number % len(data)]
        losses.append(call(tc.tensor(x), tc.tensor(y)))
        schedule.step()
        made.append(plans.made)
    return [value_bytes(v) for v in (*losses, *model.parameters())], made


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_program_is_the_plain_one(name: str, kernel_device: str) -> None:
    """1000 steps on a GPU, 100 of the larger models."""
    count = EMULATED if kernel_device == "emu" else STEPS if name in LONG else FEWER
    plain, made = trained(name, count, False)
    compiled, made_again = trained(name, count, True)
    assert compiled == plain
    assert made_again[-1] == made[-1], "the compiled program has plans of its own"
