"""A residual denoiser of two convolutions, 4-8-4 channels, 64 x 64, batch 1: SGD and sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Initial, Repetition, Rule, Training, normal
from benchmarks.workloads import diffusion


def noise(net: Any, x: Any) -> Any:
    hidden = net.relu(net.conv2d(x, "conv1", padding=1))
    return x + net.conv2d(hidden, "conv2", padding=1)


def loss(net: Any, noisy: Any, target: Any) -> Any:
    return net.mse_loss(noise(net, noisy), target)


def advance(net: Any, x: Any, t: Any) -> Any:
    return diffusion.reverse(net, x, t, noise(net, x))


def parameters() -> dict[str, Array]:
    initial = Initial()
    initial.conv2d("conv1", 4, 8, 3)
    initial.conv2d("conv2", 8, 4, 3)
    return initial.values


def training(smoke: bool) -> Training:
    shape = (1, 4, 8, 8) if smoke else (1, 4, 64, 64)
    batches = [(normal(shape, seed), normal(shape, 100 + seed)) for seed in range(8)]
    return Training(loss, parameters(), Rule("sgd", 0.01), batches, together=1000)


def sampling(smoke: bool) -> Repetition:
    shape = (1, 4, 8, 8) if smoke else (1, 4, 64, 64)
    state = (normal(shape), np.array([diffusion.STEPS - 1], np.int32))
    return Repetition(advance, parameters(), diffusion.tables(), state)


WORKLOADS = {"denoiser_train": training, "denoiser_sample": sampling}
