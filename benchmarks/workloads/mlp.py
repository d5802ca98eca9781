"""A perceptron 784-128-10 on digits: cross-entropy, SGD with momentum 0.9.

`mlp_epoch` has 60,000 images of uint8 on the device, and steps get shuffled positions; an epoch of
batches of 64 is 938 of its steps.
"""

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


def loss_of_chosen(net: Any, index: Any) -> Any:
    images = net.to_float(net.take("images", index)) / 255
    return loss(net, images, net.take("labels", index))


def epoch(smoke: bool) -> Training:
    one = training(64, smoke)
    rng = np.random.default_rng(2)
    count = 100 if smoke else 60_000
    pixels = rng.integers(0, 256, (count, 784), np.uint8)
    buffers = {"images": pixels, "labels": rng.integers(0, 10, count)}
    size = len(one.batches[0][1])
    batches = [(rng.permutation(count)[:size],) for _ in range(8)]
    return Training(
        loss_of_chosen, one.parameters, one.rule, batches, buffers, together=8 if smoke else 936
    )


WORKLOADS = {
    "mlp_64": partial(training, 64),
    "mlp_1024": partial(training, 1024),
    "mlp_epoch": epoch,
}
