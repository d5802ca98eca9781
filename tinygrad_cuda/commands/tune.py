"""`python -m tinygrad_cuda tune`: a script whose products and convolutions are measured."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from tinygrad_cuda.core.errors import MissingFileError
from tinygrad_cuda.kernels import choices, tune
from tinygrad_cuda.utils.profiling.script import exit_status


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument("script", help="a file of Python")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")


def run(options: argparse.Namespace) -> int:
    """The script's exit status; prints the choices of all that it has computed.

    Raises:
        MissingFileError: there is no such script.
    """
    if not Path(options.script).is_file():
        raise MissingFileError(
            "tune", "there is no such script", expect="a file of Python", actual=options.script
        )
    before = sys.argv, sys.path[:]
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, str(Path(options.script).resolve().parent))
    status = 0
    try:
        with tune():
            try:
                runpy.run_path(options.script, run_name="__main__")
            except SystemExit as end:
                status = exit_status(end)
        made = choices()
    finally:
        tune("off")
        sys.argv, sys.path[:] = before
    print(*made, f"{len(made)} measured choices", sep="\n")
    return status
