"""The kernels of a benchmark's training step with their times.

python -m lab.step_kernels lstm lstm_bf16 [--device cuda]
"""

from __future__ import annotations

import argparse

import tinygrad_cuda as tc
from benchmarks.peers.torchlike import Work
from benchmarks.workloads import WORKLOADS
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.realize import realize_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    for name in given.names:
        work = Work(tc, WORKLOADS[name](given.small), given.device)
        for number in range(4):
            print(f"{name}, step {number}", flush=True)
            with settings.override(debug=2 if number == 3 else 0):
                results = work.call(*work.data[number % len(work.data)])
                realize_all()
            del results


if __name__ == "__main__":
    main()
