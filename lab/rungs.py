"""Each rung of the climbs of docs/matmul.md: products and convolutions by `tc.kernels.use`.

    python -m lab.rungs OUT.json [--device cuda] [--side 4096] [--small]

A row for each rung, with its share of torch's time (cuBLAS, cuDNN with the channels last) where
torch has a GPU. Times are medians of the device behind a write that empties the L2 cache; those of
emu and cpu are of the host, and say nothing. Each result is compared with the first rung's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tinygrad_cuda as tc

REPEATS = 15
FLUSH = 256 << 20  # bytes that are written before each run: five times the L2 cache
TOLERANCE = 2e-2  # of the largest result: bfloat16, summed in another order
CONVOLUTION = (128, 128, 28, 128, 3)  # images, channels, side, filters, taps along an axis
SMALL_CONVOLUTION = (2, 24, 9, 32, 3)
FEW = {"direct", "depthwise"}  # rungs of few channels a group, which the sweep does not have


class Row(NamedTuple):
    """A rung's time, and its share of the library's speed; None without one."""

    op: str
    rung: str
    dtype: str
    microseconds: float
    tflops: float
    of_library: float | None


def timed(call: Callable[[], Any], module: Any, device: str) -> float:
    """Microseconds of a call, after two that make its plan and its graph."""
    flush = module.empty(FLUSH if device == "cuda" else 1, dtype=module.uint8, device=device)
    times = []
    for number in range(REPEATS + 2):
        flush.fill_(number)
        if device == "cuda":
            start, end = (module.cuda.Event(enable_timing=True) for _ in "ab")
            start.record()
            result = call()  # a Tensor that nobody holds is not computed
            end.record()
            end.synchronize()
            del result
            times.append(start.elapsed_time(end) * 1e3)
        else:
            began = time.perf_counter()
            call().float().sum().item()
            times.append((time.perf_counter() - began) * 1e6)
    return median(times[2:])


def product(module: Any, device: str, dtype: str, side: int) -> tuple[Callable[[], Any], float]:
    """A product as a linear layer has it, and its operations."""
    kind = getattr(module, dtype)
    a, b = (module.randn(side, side, device=device).to(kind) for _ in "ab")
    return (lambda: a @ b.T), 2.0 * side**3


def convolution(
    module: Any, device: str, dtype: str, sizes: tuple[int, ...]
) -> tuple[Callable[[], Any], float]:
    """A convolution that keeps the size of its images, which lie with the channels last."""
    images, channels, side, filters, taps = sizes
    kind, last = getattr(module, dtype), {"memory_format": module.channels_last}
    x = module.randn(images, channels, side, side, device=device).to(kind).contiguous(**last)
    w = module.randn(filters, channels, taps, taps, device=device).to(kind).contiguous(**last)
    flops = 2.0 * images * side * side * filters * channels * taps * taps
    return (lambda: module.nn.functional.conv2d(x, w, padding=taps // 2)), flops


def rows(op: str, make: Callable[..., Any], dtype: str, device: str, size: Any) -> list[Row]:
    """All rungs that make the problem, those of matrix units in half precision alone."""
    tc.manual_seed(0)
    call, flops = make(tc, device, dtype, size)
    peer, first = _library(make, dtype, device, size), None
    found = [] if peer is None else [Row(op, "library", dtype, peer, flops / peer / 1e6, 1.0)]
    for rung in tc.kernels.TIERS[op]:
        if rung in FEW or (rung in ("mma", "wgmma")) != (dtype != "float32"):
            continue
        with tc.kernels.use(op, rung):
            try:
                values = call().float().cpu()
            except tc.ArgumentError as refused:
                print(refused, file=sys.stderr)
                continue
            first = values if first is None else first
            error = (values - first).abs().max().item() / first.abs().max().item()
            assert error < TOLERANCE, f"{op} by {rung} differs by {error:.1e}"
            taken = timed(call, tc, device)
        share = None if peer is None else peer / taken
        found.append(Row(op, rung, dtype, taken, flops / taken / 1e6, share))
    return found


def _library(make: Callable[..., Any], dtype: str, device: str, size: Any) -> float | None:
    """torch's microseconds, without tf32; None without its GPU."""
    if device != "cuda":
        return None
    try:
        import torch
    except ImportError:
        return None
    return timed(make(torch, device, dtype, size)[0], torch, device)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--small", action="store_true", help="small shapes, to see that it runs")
    given = parser.parse_args(arguments)
    before = tc.get_float32_matmul_precision()
    tc.set_float32_matmul_precision("ieee")  # the first rungs are of float32 units
    side, sizes = (48, SMALL_CONVOLUTION) if given.small else (given.side, CONVOLUTION)
    made = []
    for dtype in ("float32", "bfloat16"):
        made += rows("matmul", product, dtype, given.device, side)
        made += rows("convolution", convolution, dtype, given.device, sizes)
    for row in made:
        share = "-" if row.of_library is None else f"{row.of_library:.2f}"
        print(f"| {row.op} | {row.rung} | {row.dtype} | {row.tflops:.3g} | {share} |")
    tc.set_float32_matmul_precision(before)
    given.out.write_text(json.dumps([row._asdict() for row in made], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
