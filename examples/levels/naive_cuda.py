"""CUDA C++ through RawKernel: on a GPU, or on the emulator, which checks each access."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tinygrad_cuda as tc
from examples.levels.task import CLASSES, HIDDEN, INPUTS, Task, Trained

DEVICE = "cuda" if tc.cuda.is_available() else "emu"
EMULATED = DEVICE == "emu"
SOURCE = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
NAMES = ("linear", "cross_entropy", "input_gradient", "update")
KERNELS = {name: tc.RawKernel(SOURCE, name) for name in NAMES}


def launch(name: str, threads: int, *arguments: Any) -> None:
    """A thread for each output, 128 of them in a block."""
    KERNELS[name](-(-threads // 128), 128, arguments)


def train(task: Task) -> Trained:
    """One pass over the batches."""
    n = task.labels.shape[1]
    w1, b1, w2, b2 = (tc.tensor(value, device=DEVICE) for value in task[:4])
    h, da = (tc.empty(n, HIDDEN, device=DEVICE) for _ in range(2))
    z, losses = tc.empty(n, CLASSES, device=DEVICE), tc.empty(n, device=DEVICE)
    means = []
    for images, targets in zip(task.x, task.labels):
        x, labels = (tc.tensor(value, device=DEVICE) for value in (images, targets))
        launch("linear", n * HIDDEN, x, w1, b1, h, n, INPUTS, HIDDEN, True)
        launch("linear", n * CLASSES, h, w2, b2, z, n, HIDDEN, CLASSES, False)
        launch("cross_entropy", n, z, labels, losses, n, CLASSES)
        launch("input_gradient", n * HIDDEN, z, w2, h, da, n, HIDDEN, CLASSES)
        launch("update", (HIDDEN + 1) * CLASSES, z, h, w2, b2, n, HIDDEN, CLASSES, task.rate)
        launch("update", (INPUTS + 1) * HIDDEN, da, x, w1, b1, n, INPUTS, HIDDEN, task.rate)
        means.append(losses.mean())
    weights = (value.cpu().numpy() for value in (w1, b1, w2, b2))
    return Trained(np.array([mean.item() for mean in means]), *weights)
