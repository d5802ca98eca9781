"""Times the rows alternately in one process and writes JSON and a section of docs/benchmarks.md."""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ROOT = Path(__file__).resolve().parents[2]


def one_thread() -> None:
    """Starts this program anew where a library was free to use more threads."""
    if any(os.environ.get(name) != "1" for name in THREADS):
        environment = os.environ | dict.fromkeys(THREADS, "1")
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def arguments(given: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    add = parser.add_argument
    add("--only", default="*", help="patterns of rows, separated by commas")
    add("--seconds", type=float, default=1.0, help="to measure a row (default: %(default)s)")
    add("--clock", choices=("wall", "cpu"), default="wall",
        help="cpu: time of this thread alone (default: %(default)s)")  # fmt: skip
    add("--json", type=Path, help="writes the results there")
    add("--report", type=Path, metavar="JSON", help="writes docs/benchmarks.md's section from it")
    return parser.parse_args(given)


CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


def timed(call: Any, force: Any, turns: int, clock: str) -> float:
    """Seconds of one call, over so many."""
    now = CLOCKS[clock]
    start = now()
    for _ in range(turns):
        force(call())
    return (now() - start) / turns


def difference(results: list[Any]) -> float:
    """The largest difference, relative to the largest value."""
    import numpy as np

    parts = [r if isinstance(r, tuple) else (r,) for r in results]
    largest = 0.0
    for pair in zip(*parts):
        ours, theirs = (np.asarray(p.tolist() if hasattr(p, "tolist") else p) for p in pair)
        scale = float(np.abs(theirs).max()) or 1.0
        largest = max(largest, float(np.abs(ours - theirs).max()) / scale)
    return largest


def measured(case: Any, libraries: list[Any], seconds: float, clock: str) -> dict[str, Any]:
    """Alternating samples of both libraries: medians, the least, and the median of the ratios."""
    calls = [case.make(library) for library in libraries]
    row: dict[str, Any] = {"name": case.name, "goal": case.goal, "elements": case.elements}
    row["passes"] = case.passes
    results = [library.force(call()) for library, call in zip(libraries, calls)]
    if case.compared:
        row["difference"] = difference(results)
    del results
    turns = []
    for library, call in zip(libraries, calls):
        for _ in range(2):
            once = timed(call, library.force, 1, clock)
        turns.append(max(1, int(2e-3 / once)))
    samples: list[list[float]] = [[] for _ in libraries]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 5:
        for library, call, count, found in zip(libraries, calls, turns, samples):
            found.append(timed(call, library.force, count, clock))
    for library, found in zip(libraries, samples):
        row[library.name] = statistics.median(found) * 1e6
        row[f"{library.name}_least"] = min(found) * 1e6
    if len(libraries) == 2:
        row["ratio"] = statistics.median(a / b for a, b in zip(*samples))
        row["ratio_least"] = min(samples[0]) / min(samples[1])
    row["samples"] = len(samples[0])
    return row


def computed(value: Any) -> Any:
    """A result of ours once it has its value."""
    for part in value if isinstance(value, tuple) else (value,):
        if hasattr(part, "realized"):
            part.realized()
    return value


def libraries() -> list[Any]:
    """Ours, and PyTorch where it is installed."""
    import tinygrad_cuda as tc
    from benchmarks.cpu.case import Library

    tc.set_default_device("cpu")
    found = [Library("ours", tc, computed)]
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    # Neither library pays for collections that look at the other one's objects.
    gc.collect()
    gc.freeze()
    return [*found, Library("torch", torch, lambda value: value)]


def about() -> dict[str, Any]:
    """What the numbers depend on."""
    import numpy as np

    import tinygrad_cuda as tc

    now = datetime.datetime.now(datetime.UTC)
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    versions = {"ours": tc.__version__, "numpy": np.__version__}
    if "torch" in sys.modules:
        versions["torch"] = sys.modules["torch"].__version__
    name = cpu[0].split(": ")[1] if cpu else platform.machine()
    git = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), cwd=ROOT, capture_output=True, text=True
    )
    return {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "machine": f"{name}, one thread of {os.cpu_count()}, load {os.getloadavg()[0]:.0f}",
        "commit": git.stdout.strip() or "unknown",
        "versions": versions,
    }


def main(given: list[str] | None = None) -> int:
    from benchmarks.cpu import report

    args = arguments(given)
    page = ROOT / "docs" / "benchmarks.md"
    if args.report is not None:
        page.write_text(report.replaced(page.read_text(), json.loads(args.report.read_text())))
        return 0
    one_thread()
    from benchmarks.cpu import memory
    from benchmarks.cpu.operations import OPERATIONS
    from benchmarks.cpu.steps import STEPS

    found: dict[str, Any] = {"rows": [], "memory": []}
    both = libraries()
    found["about"] = about() | {"clock": args.clock}
    for case in (*STEPS, *OPERATIONS):
        if not any(fnmatch(case.name, pattern) for pattern in args.only.split(",")):
            continue
        row = measured(case, both, args.seconds, args.clock)
        found["rows"].append(row)
        print(report.line(row), flush=True)
        _write(args.json, found)
    for name in memory.CASES:
        if not any(fnmatch(name, pattern) for pattern in args.only.split(",")):
            continue
        row = memory.measured(name, both)
        found["memory"].append(row)
        print(report.memory_line(row), flush=True)
        _write(args.json, found)
    return 0


def _write(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
