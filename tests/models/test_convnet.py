"""A residual network with batch norm and pooling trains as torch's does, one plan a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.engine.plan import cache as plans

SIZE = 8


def network(lib: Any) -> Any:
    """Two convolutions with a shortcut, batch norm, pooling, a linear layer."""

    class Block(lib.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = lib.Conv2d(4, 4, 3, padding=1, bias=False)
            self.norm1 = lib.BatchNorm2d(4)
            self.conv2 = lib.Conv2d(4, 4, 3, padding=1, bias=False)
            self.norm2 = lib.BatchNorm2d(4)

        def forward(self, x: Any) -> Any:
            inner = self.norm1(self.conv1(x)).relu()
            return (x + self.norm2(self.conv2(inner))).relu()

    return lib.Sequential(
        lib.Conv2d(1, 4, 3, stride=2, padding=1), lib.BatchNorm2d(4), lib.ReLU(), Block(),
        lib.MaxPool2d(2), lib.Flatten(), lib.Linear(16, 3),
    )  # fmt: skip


def batches(count: int) -> Any:
    rng = np.random.default_rng(2)
    for _ in range(count):
        labels = rng.integers(0, 3, 12)
        images = rng.standard_normal((12, 1, SIZE, SIZE)) * 0.5
        images[np.arange(12), 0, labels * 2] += 1.5  # a bright row tells the class
        yield images.astype(np.float32), labels


def train(model: Any, optimizer: Any, loss_function: Any, make: Any, steps: int) -> Any:
    for images, labels in batches(steps):
        loss = loss_function(model(make(images)), make(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


@pytest.mark.smoke("nn")
def test_trains_as_torch(device: str) -> None:
    """Losses of all steps, then the state, running values included, and evaluation."""
    torch = pytest.importorskip("torch")
    steps = 20 if device != "emu" else 5
    ours, theirs = network(nn), network(torch.nn)
    theirs.load_state_dict(
        {k: torch.tensor(v.cpu().numpy().copy()) for k, v in ours.state_dict().items()}
    )
    optimizer = optim.SGD(ours.parameters(), lr=0.05, momentum=0.9)
    their_optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)
    found = train(ours, optimizer, nn.functional.cross_entropy, tc.tensor, steps)
    wanted = train(theirs, their_optimizer, torch.nn.functional.cross_entropy, torch.tensor, steps)
    for a, b in zip(found, wanted):
        assert a.item() == pytest.approx(b.item(), rel=1e-4, abs=1e-5)
    for name, value in theirs.state_dict().items():
        here = ours.state_dict()[name].cpu().numpy()
        np.testing.assert_allclose(here, value.numpy(), rtol=2e-3, atol=2e-4, err_msg=name)
    images, _ = next(batches(1))
    with tc.no_grad():
        logits = ours.eval()(tc.tensor(images)).cpu().numpy()
    np.testing.assert_allclose(
        logits, theirs.eval()(torch.tensor(images)).detach().numpy(), rtol=2e-3, atol=2e-3
    )


def test_learns_and_makes_no_new_plans(device: str) -> None:
    """From the third step on every step is a plan seen before, and the loss falls."""
    model = network(nn)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    steps = 40 if device != "emu" else 8
    made, losses = [], []
    for loss in train(model, optimizer, nn.functional.cross_entropy, tc.tensor, steps):
        made.append(plans.made)
        losses.append(loss.item())
    assert made[3:] == made[3:4] * (steps - 3), made
    assert np.mean(losses[-3:]) < (0.5 if device != "emu" else 0.9) * losses[0]
