"""Fourier transforms beside cuFFT's, by torch: `python -m lab.fft` on a machine with a GPU.

Each case transforms 2^24 complex values (128 MiB read, 128 MiB written) or as many real ones.
Times are medians of runs of 20 calls between two events; GB/s counts what the transform has to
read and to write, so that a second pass over memory shows as half the rate. The error is the
largest difference from torch's result in float64, over the largest value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tinygrad_cuda as tc

VALUES = 1 << 24
CALLS, RUNS = 20, 9


class Case(NamedTuple):
    """A transform of torch's name, and the shape of its input."""

    name: str
    shape: tuple[int, ...]
    real: bool = False

    def __str__(self) -> str:
        return f"{self.name} of {' x '.join(map(str, self.shape))}"


CASES = (
    *(Case("fft", (VALUES // n, n)) for n in (64, 256, 1024, 4096, 16384, 1 << 20)),
    *(Case("fft", (VALUES // n, n)) for n in (1000, 1009, 1331)),
    *(Case("rfft", (VALUES // n, n), True) for n in (256, 4096)),
    Case("fft2", (64, 512, 512)),
)


def seconds(library: Any, call: Callable[[], Any]) -> float:
    """Of one call, the median of the runs."""
    times = []
    for _ in range(RUNS + 2):
        start, end = (library.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / CALLS)
    return median(times[2:])


def measured(case: Case) -> str:
    """The row of a case."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal(case.shape).astype(np.float32)
    if not case.real:
        values = values + 1j * generator.standard_normal(case.shape).astype(np.float32)
        values = values.astype(np.complex64)
    theirs, ours = torch.from_numpy(values).cuda(), tc.from_numpy(values).to("cuda")
    wanted = getattr(torch.fft, case.name)
    transform = tc.compile(getattr(tc.fft, case.name))
    wide = wanted(theirs.to(torch.float64 if case.real else torch.complex128))
    largest = wide.abs().max()
    errors = [
        float((torch.as_tensor(result, device="cuda") - wide).abs().max() / largest)
        for result in (transform(ours).numpy(), wanted(theirs))
    ]
    nbytes = theirs.nbytes + 8 * wide.numel()
    del wide
    own = seconds(tc, partial(transform, ours))
    other = seconds(torch, partial(wanted, theirs))
    rate = nbytes / 1e9
    return (
        f"| {case} | {own * 1e6:.0f} | {rate / own:.0f} | {other * 1e6:.0f} | {rate / other:.0f} "
        f"| {other / own:.2f} | {errors[0]:.1e} | {errors[1]:.1e} |"
    )


def main() -> None:
    print("| transform | us | GB/s | cuFFT us | GB/s | cuFFT's time / ours | error | cuFFT's |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        print(measured(case), flush=True)


if __name__ == "__main__":
    main()
