"""A residual network on 28 x 28 images: width 64, three stages of one block, batch norm, Adam."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import PRECISIONS, Initial, Rule, Training, normal

STAGES = 3


def block(net: Any, x: Any, name: str, stride: int) -> Any:
    y = net.conv2d(x, f"{name}.conv1", stride=stride, padding=1)
    y = net.relu(net.batch_norm(y, f"{name}.norm1"))
    y = net.batch_norm(net.conv2d(y, f"{name}.conv2", padding=1), f"{name}.norm2")
    if stride > 1:
        x = net.batch_norm(net.conv2d(x, f"{name}.skip", stride=stride), f"{name}.norm3")
    return net.relu(x + y)


def loss(net: Any, x: Any, labels: Any) -> Any:
    x = net.relu(net.batch_norm(net.conv2d(x, "stem", padding=1), "norm"))
    for stage in range(STAGES):
        x = block(net, x, f"stage{stage}", stride=1 if stage == 0 else 2)
    return net.cross_entropy(net.linear(net.mean(x, (2, 3)), "out"), labels)


def training(precision: str, smoke: bool) -> Training:
    batch, width, side = (4, 4, 8) if smoke else (256, 64, 28)
    initial = Initial()
    norms = {"norm": width}
    initial.conv2d("stem", 1, width, 3)
    channels = width
    for stage in range(STAGES):
        name, wide = f"stage{stage}", width << stage
        initial.conv2d(f"{name}.conv1", channels, wide, 3)
        initial.conv2d(f"{name}.conv2", wide, wide, 3)
        norms |= {f"{name}.norm1": wide, f"{name}.norm2": wide}
        if stage:
            initial.conv2d(f"{name}.skip", channels, wide, 1)
            norms[f"{name}.norm3"] = wide
        channels = wide
    initial.linear("out", channels, 10)
    buffers = {}
    for name, wide in norms.items():
        initial.norm(name, wide)
        buffers[f"{name}.mean"] = np.zeros(wide, np.float32)
        buffers[f"{name}.var"] = np.ones(wide, np.float32)
    labels = np.random.default_rng(1).integers(0, 10, (4, batch))
    batches = [(normal((batch, 1, side, side), seed), labels[seed]) for seed in range(4)]
    rule = Rule("adam", 1e-4)
    return Training(loss, initial.values, rule, batches, buffers, 20, precision, images=True)


WORKLOADS = {
    f"resnet{suffix}": partial(training, precision) for precision, suffix in PRECISIONS.items()
}
