"""`python -m tinygrad_cuda doctor`: is this machine fit, and what would mend it?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tinygrad_cuda.utils.doctor import doctor


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tinygrad_cuda")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="check Python, packages, compilers, GPU and cache folder")
    parser.parse_args(arguments)
    return doctor()


if __name__ == "__main__":
    sys.exit(main())
