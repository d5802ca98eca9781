"""`python -m tinygrad_cuda tune`: a script whose products and convolutions are measured."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from tinygrad_cuda.commands import add_script
from tinygrad_cuda.core.errors import MissingFileError
from tinygrad_cuda.kernels import choices, tune
from tinygrad_cuda.utils.profiling.script import exit_status

NOTHING = (
    ": no product and no convolution ran on cuda or emu, and cpu has no kernels to choose from"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.epilog = (
        "The script runs once, as it is. Each matrix product and convolution that it computes is "
        "timed with every kernel that may be quickest for its shapes, dtype and GPU. The quickest "
        "are written to the cache folder and printed; programs that run with TGC_TUNE=cached, or "
        "inside tinygrad_cuda.tune(), use them. On the device cpu this does nothing: NumPy "
        "computes there, and there are no kernels to choose from. On emu the times say nothing "
        "about a GPU."
    )
    add_script(parser, "a file of Python that computes on cuda")


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
    print(*made, f"{len(made)} measured choices{'' if made else NOTHING}", sep="\n")
    return status
