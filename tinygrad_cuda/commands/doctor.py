"""`python -m tinygrad_cuda doctor`: is this machine fit?"""

from __future__ import annotations

import argparse

from tinygrad_cuda.utils.doctor import doctor


def arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(options: argparse.Namespace) -> int:
    """0 if the package works here."""
    return doctor()
