"""`python -m tinygrad_cuda compat`: how much of PyTorch is here?"""

from __future__ import annotations

import argparse

import tinygrad_cuda
from tinygrad_cuda.utils.compat import compat


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument("--missing", action="store_true", help="list the names that do not exist")


def run(options: argparse.Namespace) -> int:
    """0 once the counts are printed."""
    return compat(tinygrad_cuda, options.missing)
