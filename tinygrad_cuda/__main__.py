"""`python -m tinygrad_cuda doctor`: is this machine fit? `compat`: how much of PyTorch is here?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import tinygrad_cuda
from tinygrad_cuda.utils import compare
from tinygrad_cuda.utils.compat import compat
from tinygrad_cuda.utils.doctor import doctor


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tinygrad_cuda")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="check Python, packages, compilers, GPU and cache folder")
    compared = commands.add_parser("compat", help="count the names of PyTorch that exist here")
    compared.add_argument("--missing", action="store_true", help="list the others")
    compare.add_arguments(
        commands.add_parser("compare", help="run a script under torch, too, and compare tensors")
    )
    options = parser.parse_args(arguments)
    if options.command == "compare":
        return compare.command(options)
    return compat(tinygrad_cuda, options.missing) if options.command == "compat" else doctor()


if __name__ == "__main__":
    sys.exit(main())
