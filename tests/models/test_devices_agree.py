"""The perceptron of the README, 784-128-10: the same losses everywhere, and a steady state."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import generated_digits
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.nn import functional as F

BATCH = 64


def steps(device: str, count: int, hidden: int = 128, stride: int = 1) -> Iterator[tc.Tensor]:
    """The loss of each training step, unread; the rate changes at every step."""
    tc.manual_seed(1)
    images, labels = generated_digits(20 * BATCH, seed=3)
    images = images.reshape(-1, 784)[:, ::stride].astype(np.float32) / 255 - 0.13
    pixels = images.shape[1]
    model = nn.Sequential(
        nn.Linear(pixels, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 10)
    )
    model.to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(count):
        part = slice(BATCH * (step % 20), BATCH * (step % 20 + 1))
        x = tc.tensor(images[part], device=device)
        y = tc.tensor(labels[part].astype(np.int64), device=device)
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + 0.01 * step)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def test_losses_agree_with_numpy(device: str) -> None:
    """Dropout masks included: 100 steps within 1e-4 (20 on the emulator)."""
    count = 20 if device == "emu" else 100
    found = [loss.item() for loss in steps(device, count)]
    with_numpy = [loss.item() for loss in steps("cpu", count)]
    np.testing.assert_allclose(found, with_numpy, rtol=1e-4)
    assert found[-1] < 0.8 * found[0]


def test_a_thousand_steps_hold_nothing(device: str) -> None:
    """From step 3 on: no new plan, as many live nodes, and as many bytes on the device.

    A narrow network: what is counted does not depend on the width.
    """
    count = 1000 if device != "emu" else 12
    made, nodes, held = [], [], []
    gc.collect()
    gc.disable()
    try:
        for step, loss in enumerate(steps(device, count, hidden=8, stride=49)):
            del loss
            made.append(plans.made)
            if step < 5 or step >= count - 5:
                nodes.append(sum(type(thing) is Node for thing in gc.get_objects()))
                if device.startswith("cuda"):
                    held.append(tc.cuda.memory_allocated(device))
    finally:
        gc.enable()
    assert made[3:] == made[3:4] * (count - 3)
    assert nodes[3:] == nodes[3:4] * 7, f"nodes alive: {nodes}"
    assert held[3:] == held[3:4] * len(held[3:]), f"bytes held: {held}"
