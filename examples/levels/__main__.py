"""One perceptron on seven levels, from PyTorch to PTX: `python -m examples.levels`.

Each level trains the same network (784-128-10, ReLU, cross-entropy, SGD) from the same numbers, and
is first compared with saved tensors. Then it is timed on MNIST (TGC_DATA names the folder), or on
generated digits. What cannot run on this machine says why.
"""

from __future__ import annotations

import argparse
import time
from importlib import import_module
from pathlib import Path

import numpy as np

from examples.levels.task import Unavailable, digits, saved, worst_difference

HERE = Path(__file__).resolve().parent
LEVELS = {
    "pytorch": "PyTorch",
    "by_hand": "NumPy, derivatives by hand",
    "in_c": "C",
    "naive_cuda": "CUDA C++, a thread for each output",
    "cublas": "cuBLAS, and three kernels",
    "ptx": "PTX, forward and backward by hand",
    "framework": "this framework",
}
TOLERANCE = 2e-5


def lines_of_code(name: str) -> int:
    """Lines of a level's files that are neither empty nor comments."""
    lines = [line.strip() for path in HERE.glob(f"{name}.*") for line in _code(path)]
    return sum(bool(line) and not line.startswith(("#", "//", '"""')) for line in lines)


def _code(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.suffix != ".pyc" else []


def run(name: str, steps: int, batch: int) -> str:
    """One row of the table: the level's loss, time and length, or why it cannot run here."""
    title, length = LEVELS[name], lines_of_code(name)
    try:
        level = import_module(f"examples.levels.{name}")
        task, expected = saved()
        start = time.perf_counter()
        trained = level.train(task)
        difference = worst_difference(trained, expected)
        if not difference < TOLERANCE:
            raise SystemExit(f"{title}: differs from the saved tensors by {difference:.2e}")
        count, note = len(task.x), "fixed numbers, on the emulator: its time says nothing"
        if not getattr(level, "EMULATED", False):
            count, note = steps, f"{steps} steps of {batch} digits"
            task = digits(count, batch)
            level.train(task)  # compiles, warms up
            start = time.perf_counter()
            trained = level.train(task)
        seconds = time.perf_counter() - start
    except Unavailable as reason:
        return f"{title:<36} {'':>8} {'':>9} {length:>6}   cannot run here: {reason}"
    loss, time_of_step = float(np.mean(trained.losses[-20:])), 1e3 * seconds / count
    note = f"{note}; differs by {difference:.0e}"
    return f"{title:<36} {loss:>8.4f} {time_of_step:>9.3f} {length:>6}   {note}"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(prog="python -m examples.levels", description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="steps that are timed (300)")
    parser.add_argument("--batch-size", type=int, default=64, help="digits of a step (64)")
    parser.add_argument("--only", choices=LEVELS, nargs="+", help="these levels alone")
    arguments = parser.parse_args()
    print(f"{'level':<36} {'loss':>8} {'ms a step':>9} {'lines':>6}")
    for name in arguments.only or LEVELS:
        print(run(name, arguments.steps, arguments.batch_size), flush=True)


if __name__ == "__main__":
    main()
