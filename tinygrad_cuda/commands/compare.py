"""`python -m tinygrad_cuda compare`: one script under torch and here."""

from __future__ import annotations

import argparse

from tinygrad_cuda.utils import compare


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    compare.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """What the comparison says."""
    return compare.command(options)
