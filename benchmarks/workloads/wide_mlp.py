"""A perceptron of three layers, 4096 wide, batch 4096: cross-entropy, AdamW."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import PRECISIONS, ModelTraining, Rule, normal

LAYERS = 3


def model(width: int, library: Any) -> Any:
    nn = library.nn

    class Perceptron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(width, width) for _ in range(LAYERS)]
            self.first, self.rest = layers[0], nn.ModuleList(layers[1:])

        def forward(self, x: Any, labels: Any) -> Any:
            x = self.first(x)
            for layer in self.rest:
                x = layer(nn.functional.relu(x))
            return nn.functional.cross_entropy(x, labels)

    return Perceptron()


def training(precision: str, smoke: bool) -> ModelTraining:
    width = 16 if smoke else 4096
    labels = np.random.default_rng(1).integers(0, width, width)
    batches = [(normal((width, width)), labels)]
    return ModelTraining(partial(model, width), Rule("adamw", 1e-4), batches, precision)


WORKLOADS = {
    f"mlp_4096{suffix}": partial(training, precision) for precision, suffix in PRECISIONS.items()
}
