"""`python -m tinygrad_cuda compare`: one script under torch and here."""

from __future__ import annotations

import argparse
from pathlib import Path

from tinygrad_cuda.commands import add_script
from tinygrad_cuda.utils import compare


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    compare.add_arguments(parser)
    add_script(parser, "a training script, written for torch or for tinygrad_cuda", Path)


def run(options: argparse.Namespace) -> int:
    """What the comparison says."""
    return compare.command(options)
