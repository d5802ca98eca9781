"""ResNet-18 for images of 3 x 32 x 32 (He et al., 2015; stem 3 x 3), batch 256: SGD."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import PRECISIONS, ModelTraining, Rule, normal

STAGES, BLOCKS = 4, 2


def block(inputs: int, outputs: int, stride: int, library: Any) -> Any:
    """Two 3 x 3 convolutions with batch norm, and a shortcut around them."""
    nn = library.nn
    relu = nn.functional.relu

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(outputs)
            self.shortcut = nn.Identity()
            if stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x: Any) -> Any:
            y = relu(self.norm1(self.conv1(x)))
            return relu(self.norm2(self.conv2(y)) + self.shortcut(x))

    return Block()


def model(width: int, library: Any) -> Any:
    nn = library.nn

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(width)
            self.blocks = nn.Sequential()
            inputs = width
            for stage in range(STAGES):
                for number in range(BLOCKS):
                    stride = 2 if stage and not number else 1
                    self.blocks.append(block(inputs, width << stage, stride, library))
                    inputs = width << stage
            self.head = nn.Linear(inputs, 10)

        def forward(self, x: Any, labels: Any) -> Any:
            x = self.blocks(nn.functional.relu(self.norm(self.stem(x))))
            return nn.functional.cross_entropy(self.head(x.mean((2, 3))), labels)

    return ResNet()


def training(precision: str, smoke: bool) -> ModelTraining:
    batch, width, side = (4, 4, 16) if smoke else (256, 64, 32)
    labels = np.random.default_rng(1).integers(0, 10, (4, batch))
    batches = [(normal((batch, 3, side, side), seed), labels[seed]) for seed in range(4)]
    rule = Rule("sgd", 0.002, 0.9, 5e-4)
    return ModelTraining(partial(model, width), rule, batches, precision, images=True)


WORKLOADS = {
    f"resnet18{suffix}": partial(training, precision) for precision, suffix in PRECISIONS.items()
}
