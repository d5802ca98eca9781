"""What a sampled `detect_nan` costs in training, beside the full one and none.

Run ``python lab/nan_samples.py [cpu|emu|cuda]``. Each mode trains a perceptron of its own, all of
them a few steps in turn, so that what else the machine does is shared. Time is the processor's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim

TURNS, STEPS = 60, 20


def trainer(watch: AbstractContextManager[Any]) -> Callable[[int], float]:
    """What trains an MLP 784-256-10 with batches of 128 for some steps, and gives the seconds."""
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    x, y = tc.randn(128, 784), tc.randint(0, 10, (128,))

    def train(steps: int) -> float:
        start = time.process_time()
        for _ in range(steps):
            with watch:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        loss.item()
        return time.process_time() - start

    return train


def main() -> None:
    if len(sys.argv) > 1:
        tc.set_default_device(sys.argv[1])
    modes = {
        "without": trainer(nullcontext()),
        "every=200": trainer(tc.detect_nan(every=200)),
    }
    for train in modes.values():
        train(STEPS)
    seconds = dict.fromkeys(modes, 0.0)
    for _ in range(TURNS):
        for name, train in modes.items():
            seconds[name] += train(STEPS)
    base = seconds["without"] / TURNS / STEPS
    seconds["all"] = trainer(tc.detect_nan())(STEPS) * TURNS
    # By itself, as its share is one of all time that passes.
    seconds["sample=0.03"] = trainer(tc.detect_nan(sample=0.03))(TURNS * STEPS)
    for name, total in seconds.items():
        each = total / TURNS / STEPS
        print(f"{name:12} {each * 1e3:8.3f} ms a step  {100 * (each / base - 1):+8.1f} %")


if __name__ == "__main__":
    main()
