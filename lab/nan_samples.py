"""What a sampled `detect_nan` costs in training, in pairs: with it and without, in turn.

Run ``python -m lab.nan_samples --device cuda`` (40 s on a GPU; `--seconds` for each program).
Each program trains one model, some steps with `sample` and some without in turn, more than twenty
times: two models of one program differ by more, since their memory lies elsewhere. *median* is the
median ratio of such pairs, mostly without a look: what a step costs that is not looked at. *all* is
the ratio of all time, looks included; it has to stay below 1 + share.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim

TURNS = 24


class Gpt(nn.Module):
    """Two layers of 128 features in 4 heads, over 64 tokens of 256 kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, 128), nn.Embedding(64, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(128, 256)
        self.mask = nn.Transformer.generate_square_subsequent_mask(64)

    def forward(self, rows: tc.Tensor) -> tc.Tensor:
        x = self.tokens(rows) + self.places(tc.arange(64))
        result: tc.Tensor = self.head(self.layers(x, self.mask, is_causal=True)).flatten(0, 1)
        return result


def mlp() -> tuple[nn.Module, tc.Tensor, tc.Tensor]:
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, tc.randn(128, 784), tc.randint(0, 10, (128,))


def lenet() -> tuple[nn.Module, tc.Tensor, tc.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10),
    )  # fmt: skip
    return model, tc.randn(64, 1, 28, 28), tc.randint(0, 10, (64,))


def gpt() -> tuple[nn.Module, tc.Tensor, tc.Tensor]:
    return Gpt(), tc.randint(0, 256, (8, 64)), tc.randint(0, 256, (512,))


def trainer(program: Callable[[], Any]) -> Callable[..., float]:
    """What trains a program for some steps, each in a context, and gives the seconds."""
    tc.manual_seed(0)
    model, x, y = program()
    optimizer = optim.SGD(model.parameters(), lr=0.01)

    def train(watch: AbstractContextManager[Any], steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            with watch:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        loss.item()
        return time.perf_counter() - start

    return train


def measure(program: Callable[[], Any], share: float, seconds: float) -> str:
    """A line of the table."""
    train = trainer(program)
    plain, watch, looks = nullcontext(), tc.detect_nan(sample=share), []
    schedule = watch._schedule
    ends = schedule.looked
    schedule.looked = lambda *times: (looks.append(times[0]), ends(*times))
    for mode in (plain, watch, plain, watch):
        train(mode, 10)
    steps = max(1, int(seconds / 2 / TURNS / (train(plain, 10) / 10)))
    looks.clear()
    pairs = []
    for turn in range(TURNS):
        # The first of a pair is now the one and now the other.
        if turn % 2:
            base = train(plain, steps)
            pairs.append((train(watch, steps), base))
        else:
            pairs.append((train(watch, steps), train(plain, steps)))
    each = sum(base for _, base in pairs) / TURNS / steps
    median = statistics.median(time / base for time, base in pairs)
    total = sum(time for time, _ in pairs) / sum(base for _, base in pairs)
    look = sum(looks) / max(1, len(looks))
    return (
        f"{program.__name__:8} {each * 1e6:10.1f} {median:8.4f} {total:8.4f}   "
        f"{len(looks)} looks of {look * 1e3:.1f} ms in {TURNS * steps} steps"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=None, choices=("cpu", "emu", "cuda"))
    parser.add_argument("--share", type=float, default=0.02, help="of the time, for the looks")
    parser.add_argument("--seconds", type=float, default=9.0, help="for each program")
    options = parser.parse_args()
    if options.device is not None:
        tc.set_default_device(options.device)
    print(f"{'program':8} {'us a step':>10} {'median':>8} {'all':>8}   sample={options.share}")
    for program in (mlp, lenet, gpt):
        print(measure(program, options.share, options.seconds), flush=True)


if __name__ == "__main__":
    main()
