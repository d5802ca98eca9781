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
    parser.usage = "python -m tinygrad_cuda bench [-h] [-- OPTION ...]"
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="OPTION",
        help="options of the benchmarks, behind --; `bench -- --help` lists them",
    )  # fmt: skip
    parser.epilog = (
        "Times of training steps and of single operations are printed, on the GPU or, where there "
        "is none, on cpu; of the other frameworks those that are installed take part. It runs "
        "`python -m benchmarks` of a clone of the repository, since the installed package has no "
        "benchmarks. `bench -- --smoke --only mlp_64` only shows that one runs, and `bench -- "
        "--only softmax,sum` measures two; without --only all are measured, which takes long."
    )


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
