"""The subcommands of `python -m tinygrad_cuda`, a file each; the table is in `__main__`.

A file has `arguments(parser)`, which adds its options, and `run(options)`, which gives the exit
status. It is imported when its subcommand is asked for.
"""

from __future__ import annotations

import argparse
from typing import Any

PASSED_ON = (
    "Options that are not among these are passed on to the script, and so is all behind --. "
    "Those above may stand before the script or behind it."
)


def add_script(parser: argparse.ArgumentParser, help: str, kind: Any = str) -> None:
    """Adds the script that a subcommand runs; `__main__` gives it what the parser does not know."""
    parser.add_argument("script", type=kind, metavar="script [argument ...]", help=help)
    parser.epilog = f"{parser.epilog or ''} {PASSED_ON}".strip()
