"""Random programs from the command line: ``python -m tests.fuzz graphs --count 1000``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

# Before the package and NumPy are imported, here and in the workers.
os.environ.setdefault("TGC_CACHE_DIR", str(Path(tempfile.gettempdir()) / "tinygrad_cuda_fuzz"))
os.environ.setdefault("TGC_EMU_OPTIMIZE", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import driver


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    names = [*driver.INSTRUMENTS, "long"]
    parser.add_argument("instrument", choices=names, help="long: all, as often as LONG says")
    parser.add_argument("--device", default="cpu", help="cpu, emu or cuda")
    parser.add_argument("--start", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a program may take")
    parser.add_argument("--seconds", type=float, default=1e9, help="no seed begins after this time")
    parser.add_argument("--minimise", type=int, default=3, help="how many failures are shrunk")
    return parser.parse_args()


def run(asked: argparse.Namespace, name: str, count: int) -> int:
    """Runs one instrument, prints what differs, then the shrunk programs; counts what differs."""
    seeds = range(asked.start, asked.start + count)
    began = time.monotonic()
    outcomes: list[driver.Outcome] = []
    failed: list[driver.Outcome] = []
    until = began + asked.seconds
    for outcome in driver.campaign(name, asked.device, seeds, asked.jobs, asked.limit, until):
        outcomes.append(outcome)
        if outcome.difference and not driver.accepted(outcome.difference):
            failed.append(outcome)
            first = outcome.difference.splitlines()[0][:300]
            print(f"seed {outcome.seed}: {first}", flush=True)
    title = f"{name} on {asked.device}, seeds {asked.start} to {seeds.stop - 1}"
    print(f"{title}: {driver.summary(outcomes, time.monotonic() - began)}", flush=True)
    shown: set[str | None] = set()
    for outcome in failed:
        if len(shown) < asked.minimise and driver.kind(outcome.difference) not in shown:
            shown.add(driver.kind(outcome.difference))
            print(driver.minimise(name, asked.device, outcome.seed, asked.limit), flush=True)
    return len(failed)


def main() -> int:
    asked = arguments()
    if asked.instrument != "long":
        return 1 if run(asked, asked.instrument, asked.count) else 0
    # An instrument's LONG: programs for each device that it runs on.
    failures = 0
    for name in driver.INSTRUMENTS:
        counts = getattr(driver.load(name), "LONG", {})
        if counts.get(asked.device):
            failures += run(asked, name, counts[asked.device])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
