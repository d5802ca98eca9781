"""What a sampled `detect_nan` costs in training, beside the full one and none.

Run ``python lab/nan_samples.py [cpu|emu|cuda]``. Each mode trains the same perceptron for the same
number of steps, in turns; each figure is the median of several rounds, in time of the processor.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim

STEPS, ROUNDS = 300, 3


def train(watch: AbstractContextManager[Any], steps: int = STEPS) -> float:
    """Seconds of the processor that steps of an MLP 784-256-10 with batches of 128 take."""
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    x, y = tc.randn(128, 784), tc.randint(0, 10, (128,))
    start = time.process_time()
    for _ in range(steps):
        with watch:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    loss.item()
    return time.process_time() - start


def main() -> None:
    if len(sys.argv) > 1:
        tc.set_default_device(sys.argv[1])
    times: dict[str, list[float]] = {}
    train(nullcontext(), 20)
    for _ in range(ROUNDS):
        for name, watch in (
            ("without", nullcontext()), ("sample=0.02", tc.detect_nan(sample=0.02)),
            ("every=200", tc.detect_nan(every=200)),
        ):  # fmt: skip
            times.setdefault(name, []).append(train(watch) / STEPS)
    times["all"] = [train(tc.detect_nan(), 10) / 10]
    base = statistics.median(times["without"])
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name:12} {middle * 1e3:8.3f} ms a step  {100 * (middle / base - 1):+8.1f} %")


if __name__ == "__main__":
    main()
