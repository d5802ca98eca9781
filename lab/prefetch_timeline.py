"""When copies and steps run on the GPU: the copy of batch k + 1 during the work on batch k.

``python -m lab.prefetch_timeline [--picture FILE]`` trains a small network on batches
from the host, first with copies on the compute stream, then prefetched, and prints a timeline.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.handles import DriverEvent
from tinygrad_cuda.backend.cuda.transfer import prefetch
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.data.prefetch import prefetched
from tinygrad_cuda.nn import functional as F

BATCH, WIDTH = 4096, 4096
Span = tuple[float, float]  # microseconds since the first event


def host_batches(count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    shape = (BATCH, 784)
    made = [rng.standard_normal(shape, np.float32) for _ in range(4)]
    return [(made[k % 4], rng.integers(0, 10, BATCH)) for k in range(count)]


def plain(batches: Iterable[Any]) -> Iterator[Any]:
    """Each batch is copied on the compute stream when it is wanted."""
    for x, y in batches:
        yield tc.tensor(x), tc.tensor(y)


class Timeline:
    """Timed events around the copies of images and around the steps."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self.origin = DriverEvent(gpu).record()
        self.steps: list[tuple[DriverEvent, DriverEvent]] = []
        self.copies: list[tuple[DriverEvent, DriverEvent]] = []

    def around(self, kept: list[tuple[DriverEvent, DriverEvent]], stream: Any, work: Any) -> Any:
        start, end = DriverEvent(self.gpu), DriverEvent(self.gpu)
        start.record(stream)
        found = work()
        end.record(stream)
        kept.append((start, end))
        return found

    def spans(self, pairs: list[tuple[DriverEvent, DriverEvent]]) -> list[Span]:
        return [
            (a.microseconds_since(self.origin), b.microseconds_since(self.origin)) for a, b in pairs
        ]


def run(ahead: bool, count: int) -> tuple[float, list[Span], list[Span]]:
    """Microseconds a step by the clock, and when copies and steps ran."""
    gpu: Any = registry.get(as_device("cuda")).gpu
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.01)

    @tc.compile
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    given = host_batches(count)
    source = prefetched if ahead else plain
    for x, y in source(given[:6]):
        step(x, y)
    gpu.synchronize()
    began = time.perf_counter()
    for x, y in source(given):
        step(x, y)
    gpu.synchronize()
    each = (time.perf_counter() - began) / count * 1e6
    line = Timeline(gpu)
    copy = prefetch.Prefetcher.copy

    def timed_copy(self: Any, address: int, slot: int, nbytes: int) -> None:
        if nbytes > 1 << 20:  # the images
            stream = gpu.copy_stream
            line.around(line.copies, stream, lambda: copy(self, address, slot, nbytes))
        else:
            copy(self, address, slot, nbytes)

    prefetch.Prefetcher.copy = timed_copy
    try:
        for x, y in source(given[:10]):
            line.around(line.steps, gpu.stream, lambda x=x, y=y: step(x, y))
    finally:
        prefetch.Prefetcher.copy = copy
    gpu.synchronize()
    return each, line.spans(line.copies), line.spans(line.steps)


def overlap(a: Span, b: Span) -> float:
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0]))


def draw(path: str, copies: list[Span], steps: list[Span]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 2.2), layout="constrained")
    for row, (spans, color) in enumerate(((steps, "#4878a8"), (copies, "#d18f3f"))):
        for number, (start, end) in enumerate(spans):
            axes.barh(row, end - start, left=start, color=color, edgecolor="white")
            axes.text((start + end) / 2, row, str(number), ha="center", va="center", size=8)
    axes.set_yticks([0, 1], ["step of batch", "copy of batch"])
    axes.set_xlabel("microseconds")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--picture", help="where to draw the timeline")
    parser.add_argument("--batches", type=int, default=100)
    options = parser.parse_args()
    tc.set_default_device("cuda")
    before, _, _ = run(False, options.batches)
    after, copies, steps = run(True, options.batches)
    print(f"{BATCH} x 784 float32 a batch: {BATCH * 784 * 4 / 2**20:.1f} MiB")
    print(f"copies on the compute stream: {before:7.0f} us a step")
    print(f"copies prefetched:            {after:7.0f} us a step")
    print(f"{'batch':>5} {'copy':>19} {'step before it':>21}  copy within that step")
    shares = []
    for number, copy in enumerate(copies[2:], 2):
        step = steps[number - 1]
        share = overlap(copy, step) / (copy[1] - copy[0])
        shares.append(share)
        print(
            f"{number:5d} {copy[0]:9.0f} {copy[1]:9.0f} {step[0]:11.0f} {step[1]:9.0f}  {share:.0%}"
        )
    print(f"median share of a copy that runs during the step before: {np.median(shares):.0%}")
    if options.picture:
        draw(options.picture, copies, steps)
        print(f"drawn: {options.picture}", file=sys.stderr)


if __name__ == "__main__":
    main()
