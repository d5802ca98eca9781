"""`python -m tinygrad_cuda bench`: the benchmarks of a checkout."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tinygrad_cuda.core.errors import MissingFileError

CHECKOUT = Path(__file__).resolve().parents[2]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER,
        help="of `python -m benchmarks`; `bench -- --help` lists them",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """The exit status of the benchmarks.

    Raises:
        MissingFileError: they are not part of an installed package.
    """
    if not (CHECKOUT / "benchmarks" / "__main__.py").is_file():
        raise MissingFileError(
            "bench", "the benchmarks are not part of the installed package",
            expect="a checkout of the source, which has a folder benchmarks",
            actual=str(CHECKOUT), hint="run it from a clone of the repository",
        )  # fmt: skip
    given = [word for word in options.arguments if word != "--"]
    return subprocess.call([sys.executable, "-m", "benchmarks", *given], cwd=CHECKOUT)
