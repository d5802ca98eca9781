"""Random changes to the package's own code: do the tests that CI runs notice them?

A mutant turns a comparison, negates a condition or moves a number. It is judged by the tests
that execute its function (a map from functions to tests, made by `python tests/fuzz/mutants.py
DATA` from a run under coverage with --cov-context=test), or by all where there is no map.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tinygrad_cuda"
MAP = Path(tempfile.gettempdir()) / "tinygrad_cuda_fuzz" / "tests_by_function.json"
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# Seconds after which a mutant's tests are stopped: that is noticed too.
LIMIT = 1800
# The closest tests run first; most mutants are noticed by them.
FIRST = 60
LONG = {"cpu": 150}


class Mutant(NamedTuple):
    """A place in the package and the text that replaces what stands there."""

    path: str
    function: str
    line: int
    start: int
    stop: int
    text: str

    def describe(self) -> str:
        old = (ROOT / self.path).read_bytes()[self.start : self.stop].decode()
        return f"{self.path}:{self.line} in {self.function or 'the module'}: {old} -> {self.text}"


def _offsets(source: bytes) -> list[int]:
    """Where each line begins, in bytes."""
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets


def _replacement(node: ast.AST) -> str | None:
    """The changed text of a node, or None where no change is made."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        ops = [TURNED[type(node.ops[0])]()]
        return ast.unparse(ast.Compare(node.left, ops, node.comparators))
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return repr(node.value + 1)
    return None


def _sites(node: ast.AST, name: str = "") -> Iterator[tuple[ast.expr, str, str]]:
    """Each expression that can be changed, with its text after it and its function's name."""
    for child in ast.iter_child_nodes(node):
        # Annotations and asserts of types change nothing that runs.
        if isinstance(child, ast.arg | ast.Assert | ast.Raise | ast.JoinedStr):
            continue
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}" if name else child.name
        if isinstance(child, ast.If | ast.While | ast.IfExp) and not _type_checking(child.test):
            yield child.test, f"(not ({ast.unparse(child.test)}))", inner
        if isinstance(child, ast.expr) and (text := _replacement(child)) is not None:
            yield child, f"({text})", inner
        yield from _sites(child, inner)


def _type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in ast.unparse(test)


def mutants(path: Path) -> list[Mutant]:
    """All mutants of a file, in the order of its text."""
    source = path.read_bytes()
    offsets = _offsets(source)
    found = []
    for node, text, function in _sites(ast.parse(source)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = offsets[node.lineno - 1] + node.col_offset
        stop = offsets[node.end_lineno - 1] + node.end_col_offset
        relative = str(path.relative_to(ROOT))
        found.append(Mutant(relative, function, node.lineno, start, stop, text))
    return found


def generate(seed: int) -> list[list[object]]:
    """One mutant of all in the package; each is as likely as any other."""
    choose = random.Random(seed)
    files = sorted(PACKAGE.rglob("*.py"))
    path = choose.choices(files, [path.stat().st_size for path in files])[0]
    while not (candidates := mutants(path)):
        path = choose.choice(files)
    return [list(choose.choice(candidates))]


def _apply(mutant: Mutant, folder: Path) -> None:
    target = folder / mutant.path
    source = target.read_bytes()
    target.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.stop :])


@cache
def _map() -> dict[str, list[str]] | None:
    if not MAP.exists():
        return None
    functions: dict[str, list[str]] = json.loads(MAP.read_text())
    return functions


def _tests(mutant: Mutant, functions: dict[str, list[str]]) -> list[str]:
    """The tests that execute the mutant's function; all of its file's where it is in none."""
    own = functions.get(f"{mutant.path}::{mutant.function}")
    if own is not None:
        return own
    names = [key for key in functions if key.startswith(f"{mutant.path}::")]
    return list(dict.fromkeys(test for name in names for test in functions[name]))


def _pytest(folder: Path, tests: list[str] | None) -> subprocess.CompletedProcess[str]:
    """Runs some tests in a checkout, or all, up to the first that fails."""
    selection = folder / "selection.txt"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    if tests is not None:
        selection.write_text("\n".join(tests))
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        command += ["-p", "selection", *(file for file in files if (folder / file).exists())]
        environment["FUZZ_SELECTION"] = str(selection)
        environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT
    )


@cache
def _fails_anyway(test: str) -> bool:
    """Whether a test fails without a mutant, for want of something on this machine."""
    with _checkout() as folder:
        return _pytest(folder, [test]).returncode == 1


@contextmanager
def _checkout() -> Iterator[Path]:
    """A copy of the tree: a test that writes, or starts a process, does so there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)
        yield folder


def _noticed(folder: Path, tests: list[str] | None) -> bool:
    """Whether a test fails that passes without the mutant; none in time is a failure too."""
    while True:
        try:
            done = _pytest(folder, tests)
        except subprocess.TimeoutExpired:
            return True
        if done.returncode in (0, 5):  # all passed, or none of the list exists any more
            return False
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if tests is None or not failed or not _fails_anyway(failed[0]):
            return True
        tests = [test for test in tests if test != failed[0]]


def check(program: list[list[object]], device: str) -> str | None:
    """None where a test fails; else the mutant and how many tests passed with it."""
    mutant = Mutant(*program[0])  # type: ignore[arg-type]
    functions = _map()
    tests = None if functions is None else _tests(mutant, functions)
    with _checkout() as folder:
        _apply(mutant, folder)
        groups = [None] if tests is None else [tests[:FIRST], tests[FIRST:]]
        if any(_noticed(folder, group) for group in groups if group != []):
            return None
    count = "all" if tests is None else len(tests)
    return f"survived: {mutant.describe()} ({count} tests execute it)"


def show(program: list[list[object]]) -> str:
    return Mutant(*program[0]).describe()  # type: ignore[arg-type]


def _functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Each function's qualified name, first and last line of its body."""

    def inside(node: ast.AST, name: str) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}" if name else child.name
                if not isinstance(child, ast.ClassDef):
                    yield inner, child.body[0].lineno, child.end_lineno or child.lineno
            yield from inside(child, inner)

    yield from inside(ast.parse(path.read_bytes()), "")


def write_map(data: str) -> None:
    """Writes the map from a coverage data file with a context for each test."""
    from coverage import CoverageData

    measured = CoverageData(data)
    measured.read()
    functions: dict[str, list[str]] = {}
    for name in sorted(measured.measured_files()):
        relative = name[name.index("tinygrad_cuda/", name.index("/tinygrad_cuda/")) :]
        lines = measured.contexts_by_lineno(name)
        for function, first, last in _functions(Path(name)):
            contexts = {c for n in range(first, last + 1) for c in lines.get(n, ()) if c}
            tests = {context.split("|")[0] for context in contexts}
            functions[f"{relative}::{function}"] = sorted(tests)
    # Tests that execute little of the package are the closest to what they execute.
    weights: dict[str, int] = {}
    for tests_of in functions.values():
        for test in tests_of:
            weights[test] = weights.get(test, 0) + 1
    for key, tests_of in functions.items():
        functions[key] = sorted(tests_of, key=lambda test: (weights[test], test))
    MAP.parent.mkdir(parents=True, exist_ok=True)
    MAP.write_text(json.dumps(functions))


if __name__ == "__main__":
    write_map(sys.argv[1])
