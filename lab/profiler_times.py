"""Times of ten kernels by `tc.profiler` (CUPTI) beside those of Nsight Compute.

    python -m lab.profiler_times --profile
    ncu --clock-control none --cache-control none --csv --log-file ncu.csv \
        --metrics gpu__time_duration.sum python -m lab.profiler_times
    python -m lab.profiler_times --compare ncu.csv

All three on one GPU: the first prints the kernel that takes longest in each program, with its
median time, and writes both to `--times`; the second, without an option, runs the same programs;
the third needs no GPU. ncu runs one kernel at a time, and so do both runs here: each program is
launched kernel by kernel, waited for (`TGC_SYNC`), and no CUDA graph is made.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.nn import functional as F

WARM_UP, RUNS = 3, 15
NEAR = 0.10  # of a ratio to 1
MICROSECONDS = {"s": 1e6, "second": 1e6, "ms": 1e3, "msecond": 1e3, "us": 1.0, "usecond": 1.0,
                "ns": 1e-3, "nsecond": 1e-3}  # fmt: skip
Case = tuple[str, Callable[[], Any]]


def random(*shape: int, dtype: Any = tc.bfloat16, grad: bool = False) -> Any:
    tensor = tc.randn(*shape).to(dtype)
    tc.realize(tensor)
    return tensor.requires_grad_(grad)


def cases(scale: int = 1) -> Iterator[Case]:
    """What each computes; every one takes more than 10 us of an H200.

    Args:
        scale: divides extents, for devices that are slower.
    """
    n, m = 4096 // scale, 64 // scale
    a, b = random(n, n, dtype=tc.float32), random(n, n, dtype=tc.float32)
    yield "transpose", lambda: a.T.contiguous()
    yield "softmax", lambda: F.softmax(a, -1)
    yield "column sum", lambda: a.sum(0)
    yield "gelu chain", lambda: F.gelu(a * 2 + b) * b
    halves = random(n, n), random(n, n)
    yield "matmul bf16", lambda: halves[0] @ halves[1]
    images, filters = random(m, m, 56, 56), random(m, m, 3, 3, grad=True)
    given = random(m, m, 56, 56)
    yield "convolution", lambda: F.conv2d(images, filters.detach(), padding=1)

    def convolved() -> Any:
        return tc.autograd.grad(F.conv2d(images, filters, padding=1), filters, given)

    yield "convolution, weight's gradient", convolved
    heads = [random(8, 16, n // 4, 64, grad=True) for _ in range(3)]
    wanted = random(8, 16, n // 4, 64)

    def attention() -> Any:
        return F.scaled_dot_product_attention(*heads, is_causal=True)

    yield "attention", lambda: attention().detach()
    yield "attention, gradients", lambda: tc.autograd.grad(attention(), heads, wanted)
    table, rows = random(8 * n, 512, dtype=tc.float32, grad=True), tc.randint(0, 8 * n, (4 * n,))
    ahead = random(4 * n, 512, dtype=tc.float32)
    yield "embedding, gradient", lambda: tc.autograd.grad(F.embedding(rows, table), table, ahead)


def launched(run: Callable[[], Any], times: int) -> None:
    """Runs a program some times, each kernel by itself."""
    for _ in range(times):
        result = run()
        tc.realize(*(result if isinstance(result, tuple) else (result,)))


class Timed(NamedTuple):
    """A kernel, the median of its times in us, and how many they are."""

    name: str
    median: float
    count: int


def longest(events: Iterable[Any]) -> Timed:
    """The kernel that takes longest in all."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.kind == "kernel":
            times[event.name].append(event.device_time_total)
    name = max(times, key=lambda name: sum(times[name]))
    return Timed(name, statistics.median(times[name]), len(times[name]))


def run_all(profiled: bool, scale: int = 1) -> dict[str, Timed]:
    """Kernel and time of each program, if they are profiled; nothing else is launched for that."""
    found: dict[str, Timed] = {}
    with settings.override(sync=True):
        for case, run in cases(scale):
            launched(run, WARM_UP)
            if not profiled:
                launched(run, RUNS)
                continue
            with tc.profiler.profile(activities=[tc.profiler.ProfilerActivity.CUDA]) as profile:
                launched(run, RUNS)
            found[case] = longest(profile.events())
            clocks = {kernel.clock for kernel in profile.recorder.kernels}
            print(
                f"{case:32} {found[case].median:10.2f} us  {', '.join(clocks)}  {found[case].name}"
            )
    if len({timed.name for timed in found.values()}) < len(found):
        raise SystemExit(
            "two programs launch kernels of the same name, which ncu does not separate"
        )
    return found


def ncu_times(text: str) -> dict[str, list[float]]:
    """Microseconds of each launch by the kernel's name, of what ``ncu --csv`` has printed."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    times: dict[str, list[float]] = defaultdict(list)
    for row in csv.DictReader(line for line in lines[start:] if line.startswith('"')):
        if row["Metric Name"] == "gpu__time_duration.sum":
            value = float(row["Metric Value"].replace(",", ""))
            name = row["Kernel Name"].partition("(")[0].strip()
            times[name].append(value * MICROSECONDS[row["Metric Unit"]])
    return times


def compared(ours: dict[str, Timed], theirs: dict[str, list[float]]) -> str:
    """The table: the ratio is that of the medians, without the runs of the warm-up."""
    lines, near = [f"{'kernel':32} {'profiler us':>12} {'ncu us (min..max)':>30} {'ratio':>8}"], 0
    for case, (name, took, count) in ours.items():
        times = theirs.get(name, [])[-count:]
        if not times:
            lines.append(f"{case:32} {took:12.2f} {'not there: ' + name}")
            continue
        middle = statistics.median(times)
        near += abs(took / middle - 1) <= NEAR
        theirs_text = f"{middle:.2f} ({min(times):.2f}..{max(times):.2f})"
        lines.append(f"{case:32} {took:12.2f} {theirs_text:>30} {took / middle:8.3f}")
    return "\n".join([*lines, f"within {NEAR:.0%}: {near} of {len(ours)}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="time the kernels by tc.profiler")
    parser.add_argument("--compare", type=Path, metavar="NCU.CSV", help="what ncu has written")
    parser.add_argument("--times", type=Path, default=Path("profiler_times.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=int, default=1, help="divides extents")
    options = parser.parse_args()
    if options.compare is not None:
        ours = {
            case: Timed(*timed) for case, timed in json.loads(options.times.read_text()).items()
        }
        print(compared(ours, ncu_times(options.compare.read_text())))
        return
    tc.set_default_device(options.device)
    found = run_all(options.profile, options.scale)
    if options.profile:
        options.times.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
