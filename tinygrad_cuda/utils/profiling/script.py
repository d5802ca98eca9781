"""`python -m tinygrad_cuda profile SCRIPT`: a script under the profiler, and its tables."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tinygrad_cuda.core.errors import MissingFileError
from tinygrad_cuda.utils.profiling.session import profile


def run_script(
    path: str | os.PathLike[str],
    argv: Sequence[str] = (),
    *,
    by: Sequence[str] = ("op", "kernel", "module", "line"),
    sort_by: str = "device_time_total",
    row_limit: int = 20,
    trace: str | os.PathLike[str] | None = None,
    show: Callable[[str], Any] = print,
) -> int:
    """Runs a script as ``python SCRIPT`` does, under a profiler, and shows tables of it.

    Args:
        path: of the script.
        argv: its arguments.
        by: groupings, as `profile.key_averages` takes them; a table for each.
        sort_by, row_limit: as `EventList.table` takes them.
        trace: a file for Perfetto, or None.
        show: takes each table.

    Returns:
        The script's exit status.

    Raises:
        MissingFileError: there is no such script.
    """
    script = Path(path)
    if not script.is_file():
        raise MissingFileError(
            "profile", "there is no such script", expect="a file of Python", actual=str(script)
        )
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[:0] = [str(script), *argv], [str(script.resolve().parent)]
    status = 0
    try:
        with profile(with_stack=True, with_modules=True) as profiler:
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as end:
                status = exit_status(end)
    finally:
        sys.argv, sys.path[:] = before
    for grouping in by:
        table = profiler.key_averages(by=grouping)
        show(table.table(sort_by=sort_by, row_limit=row_limit, header=f"By {grouping}"))
    if trace is not None:
        profiler.export_chrome_trace(trace)
        show(f"trace for ui.perfetto.dev: {os.fspath(trace)}")
    return status


def exit_status(end: SystemExit) -> int:
    """The exit status of a script that has ended itself, as the interpreter has it."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
