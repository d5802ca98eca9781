"""A pytest plugin: which tests execute each line of the package.

`FUZZ_RECORD=FOLDER python -m pytest -p executed` writes one file into FOLDER for each test file,
which `python tests/fuzz/mutants.py FOLDER MAP` joins. It needs Python 3.12 (sys.monitoring), whose
callbacks run once for a line and test.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(ROOT / "tinygrad_cuda") + os.sep
TOOL = 4  # an id of sys.monitoring that no profiler and no debugger takes
# Tests of a file that are written for a line: the closest, and some of the others.
CLOSEST, OTHERS = 8, 4

monitoring: Any = getattr(sys, "monitoring", None)
executed: set[tuple[str, int]] = set()


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def _starts(code: CodeType, offset: int) -> object:
    """Lines count in all functions of a module of the package that is imported."""
    if code.co_name == "<module>" and code.co_filename.startswith(PACKAGE):
        for inner in _nested(code):
            monitoring.set_local_events(TOOL, inner, monitoring.events.LINE)
    return monitoring.DISABLE


def _line(code: CodeType, number: int) -> object:
    executed.add((code.co_filename, number))
    return monitoring.DISABLE


class Recorder:
    """The lines that each test of one test file executes."""

    def __init__(self) -> None:
        self.path = ""
        self.lines: dict[tuple[str, int], int] = {}
        self.tests: list[tuple[str, float, array[int]]] = []
        self.seconds = 0.0
        self.passed = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[bool | None]:
        path = item.nodeid.split("::")[0]
        if path != self.path:
            self.write()
            self.path = path
        self.seconds, self.passed = 0.0, True
        executed.clear()
        monitoring.restart_events()
        try:
            return (yield)
        finally:
            if self.passed:
                number = self.lines.setdefault
                lines = array("I", [number(line, len(self.lines)) for line in list(executed)])
                self.tests.append((item.nodeid, self.seconds, lines))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[pytest.TestReport]:
        report: pytest.TestReport = yield
        self.seconds += report.duration
        self.passed = self.passed and report.passed
        return report

    def pytest_sessionfinish(self) -> None:
        self.write()

    def write(self) -> None:
        """Writes the tests of each line, the closest first, and begins a new test file."""
        if self.tests:
            folder = Path(os.environ["FUZZ_RECORD"])
            folder.mkdir(parents=True, exist_ok=True)
            with gzip.open(folder / (self.path.replace("/", "+") + ".gz"), "wt") as file:
                json.dump(self.summary(), file)
        self.lines, self.tests = {}, []

    def summary(self) -> dict[str, object]:
        """A test is close to a line if much of what it executes is in the line's file."""
        places = [(path.removeprefix(str(ROOT) + os.sep), line) for path, line in self.lines]
        by_line: dict[int, list[tuple[float, int]]] = {}
        for number, (_, _, lines) in enumerate(self.tests):
            share = Counter(places[line][0] for line in lines)
            for line in lines:
                distance = len(lines) / share[places[line][0]]
                by_line.setdefault(line, []).append((round(distance, 2), number))
        chosen: dict[str, dict[int, list[tuple[float, int]]]] = {}
        for line, tests in by_line.items():
            tests.sort()
            rest = tests[CLOSEST:]
            few = tests[:CLOSEST] + rest[:: max(1, len(rest) // OTHERS)][:OTHERS]
            path, number = places[line]
            chosen.setdefault(path, {})[number] = few
        tests_of = [(name, round(seconds, 3)) for name, seconds, _ in self.tests]
        return {"tests": tests_of, "lines": chosen}


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(), "executed-lines")


def pytest_unconfigure(config: pytest.Config) -> None:
    monitoring.set_events(TOOL, 0)
    monitoring.free_tool_id(TOOL)


def _begin() -> None:
    monitoring.use_tool_id(TOOL, "executed")
    monitoring.register_callback(TOOL, monitoring.events.PY_START, _starts)
    monitoring.register_callback(TOOL, monitoring.events.LINE, _line)
    monitoring.set_events(TOOL, monitoring.events.PY_START)


_begin()  # before a conftest.py imports the package
