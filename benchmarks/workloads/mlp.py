"""A perceptron 784-128-10 on digits: cross-entropy, SGD with momentum 0.9."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import Initial, Rule, Training, normal


def loss(net: Any, x: Any, labels: Any) -> Any:
    hidden = net.relu(net.linear(x, "hidden"))
    return net.cross_entropy(net.linear(hidden, "out"), labels)


def training(batch: int, smoke: bool) -> Training:
    if smoke:
        batch = 4
    initial = Initial()
    initial.linear("hidden", 784, 128)
    initial.linear("out", 128, 10)
    labels = np.random.default_rng(1).integers(0, 10, (8, batch))
    batches = [(normal((batch, 784), seed), labels[seed]) for seed in range(8)]
    return Training(
        loss, initial.values, Rule("sgd", 0.01, 0.9), batches, together=8_000 // len(labels[0]) * 8
    )


WORKLOADS = {"mlp_64": partial(training, 64), "mlp_1024": partial(training, 1024)}
