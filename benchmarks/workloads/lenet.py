"""LeNet-5 on 28 x 28 images (padded by 2), max pooling, batch 128, Adam."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Initial, Rule, Training, normal


def loss(net: Any, x: Any, labels: Any) -> Any:
    x = net.max_pool2d(net.relu(net.conv2d(x, "conv1", padding=2)), 2)
    x = net.max_pool2d(net.relu(net.conv2d(x, "conv2")), 2)
    x = net.reshape(x, (x.shape[0], 400))
    x = net.relu(net.linear(x, "fc1"))
    x = net.relu(net.linear(x, "fc2"))
    return net.cross_entropy(net.linear(x, "fc3"), labels)


def training(smoke: bool) -> Training:
    batch = 2 if smoke else 128
    initial = Initial()
    initial.conv2d("conv1", 1, 6, 5)
    initial.conv2d("conv2", 6, 16, 5)
    initial.linear("fc1", 400, 120)
    initial.linear("fc2", 120, 84)
    initial.linear("fc3", 84, 10)
    labels = np.random.default_rng(1).integers(0, 10, (8, batch))
    # A pattern for each label, and noise: where nothing can be learned Adam's steps follow
    # rounding, so that after 20 of them PyTorch's own Adams differ by 1e-4.
    patterns = normal((10, 1, 28, 28), 99)
    noise = [normal((batch, 1, 28, 28), seed) for seed in range(8)]
    batches = [(patterns[labels[k]] + noise[k], labels[k]) for k in range(8)]
    return Training(loss, initial.values, Rule("adam", 1e-3), batches)


WORKLOADS = {"lenet": training}
