"""`python -m tinygrad_cuda profile`: a script under the profiler."""

from __future__ import annotations

import argparse

from tinygrad_cuda.utils.profiling.script import run_script


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    add = parser.add_argument
    add("--by", default="op,kernel,module,line", metavar="GROUPS",
        help="tables to print, by commas (default: %(default)s)")  # fmt: skip
    add("--sort-by", default="device_time_total", metavar="COLUMN",
        help="the column that orders rows (default: %(default)s)")  # fmt: skip
    add("--rows", type=int, default=20, help="of each table (default: %(default)s)")
    add("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev, too")
    add("script", help="a file of Python")
    add("arguments", nargs=argparse.REMAINDER, help="of the script")


def run(options: argparse.Namespace) -> int:
    """The script's exit status."""
    return run_script(
        options.script,
        options.arguments,
        by=options.by.split(","),
        sort_by=options.sort_by,
        row_limit=options.rows,
        trace=options.trace,
    )
