"""`python -m tinygrad_cuda profile`: a script under the profiler."""

from __future__ import annotations

import argparse

from tinygrad_cuda.commands import add_script
from tinygrad_cuda.utils.profiling.averages import GROUPS, SORTS
from tinygrad_cuda.utils.profiling.script import run_script


def groups(words: str) -> list[str]:
    """Names of tables, by commas."""
    chosen = words.split(",")
    if unknown := [word for word in chosen if word not in GROUPS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(GROUPS)}")
    return chosen


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    add = parser.add_argument
    add("--by", default="op,kernel,module,line", metavar="GROUPS", type=groups,
        help=f"tables, by commas, of {', '.join(GROUPS)} (default: %(default)s)")  # fmt: skip
    add("--sort-by", default="device_time_total", metavar="COLUMN", choices=SORTS,
        help=f"the column that orders rows: {', '.join(SORTS)} (default: %(default)s)")  # fmt: skip
    add("--rows", type=int, default=20, help="of each table (default: %(default)s)")
    add("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev, too")
    add_script(parser, "a file of Python")


def run(options: argparse.Namespace) -> int:
    """The script's exit status."""
    return run_script(
        options.script,
        options.arguments,
        by=options.by,
        sort_by=options.sort_by,
        row_limit=options.rows,
        trace=options.trace,
    )
