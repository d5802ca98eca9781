"""Random changes to the package's own code: do the tests that CI runs notice them?

A mutant turns a comparison, negates a condition or moves a number. It is judged by the tests
that execute its line, the closest first: `FUZZ_MAP` names the file that says which these are. It
is made on Python 3.12 by `FUZZ_RECORD=FOLDER python -m pytest -p executed` with tests/fuzz in
PYTHONPATH, then `python tests/fuzz/mutants.py FOLDER MAP`. Without a map all tests run.
"""

from __future__ import annotations

import ast
import difflib
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tinygrad_cuda"
DEFAULT_MAP = Path(tempfile.gettempdir()) / "tinygrad_cuda_fuzz" / "tests_by_line.json.gz"
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
# Seconds after which a mutant's tests are stopped: they take at most ENOUGH without a mutant.
LIMIT, LIMIT_OF_ALL = 120, 1800
# Seconds and number of the tests that judge a mutant; most are noticed by the first of them.
ENOUGH, MOST = 40.0, 100
# Tests of a test file that come before those of the next file, in the list of a line.
EACH = 4
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
    if any(word in mutant.path for word in ("cache", "emu", "config")):
        (folder / "own-cache").mkdir()  # so that it spoils nobody's entries


@cache
def _map() -> dict[str, Any] | None:
    path = Path(os.environ.get("FUZZ_MAP", DEFAULT_MAP))
    if not path.exists():
        return None
    with gzip.open(path, "rt") as file:
        read: dict[str, Any] = json.load(file)
    return read


def _spans(mutant: Mutant) -> list[range]:
    """Lines around a mutant, the closest first: its statement, function, class and file."""
    tree = ast.parse((ROOT / mutant.path).read_bytes())
    around = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0):
            last = node.end_lineno or node.lineno
            around.append(range(node.lineno, last + 1))
            body = getattr(node, "body", [])
            # The lines of an `if` or a `for` without those of its body.
            if body and mutant.line < body[0].lineno:
                around.append(range(node.lineno, body[0].lineno))
    return [*sorted(around, key=len), range(1, 1 << 30)]


def _moved(mutant: Mutant, old: list[str]) -> dict[int, int]:
    """From each line of the mutant's file to the line that it was when the map was made."""
    new = (ROOT / mutant.path).read_text().splitlines()
    matcher = difflib.SequenceMatcher(None, new, old, autojunk=False)
    return {
        block.a + k + 1: block.b + k + 1
        for block in matcher.get_matching_blocks()
        for k in range(block.size)
    }


def _tests(mutant: Mutant, read: dict[str, Any]) -> tuple[list[str], bool]:
    """The tests that judge a mutant, and whether they execute its very line."""
    lines = read["lines"].get(mutant.path, {})
    moved = _moved(mutant, read["sources"].get(mutant.path, "").splitlines())
    recorded = {line: lines[str(old)] for line, old in moved.items() if str(old) in lines}
    for span in _spans(mutant):
        lists = [read["lists"][number] for line, number in recorded.items() if line in span]
        if lists:
            break
    else:
        return [], False
    own = read["lists"][recorded[mutant.line]] if mutant.line in recorded else []
    often = Counter(test for tests in lists for test in tests)
    chosen, seconds = [], 0.0
    for test in dict.fromkeys([*own, *(test for test, _ in often.most_common())]):
        name, takes = read["tests"][test]
        if seconds + takes <= ENOUGH and len(chosen) < MOST:
            chosen.append(name)
            seconds += takes
    return chosen, bool(own)


def _pytest(folder: Path, tests: list[str] | None) -> tuple[int, str]:
    """Runs some tests in a checkout, or all, up to the first that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:benchmark", "-p", "selection", "--basetemp", str(folder / "temporary")]
    path = os.pathsep.join([str(folder), str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    if (folder / "own-cache").exists():
        environment["TMPDIR"] = str(folder / "own-cache")
    if tests is not None:
        selection = folder / "selection.txt"
        selection.write_text("\n".join(tests))
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        command += [file for file in files if (folder / file).exists()]
        environment["FUZZ_SELECTION"] = str(selection)
    limit = LIMIT_OF_ALL if tests is None else LIMIT
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=-1, stderr=-2, text=True, process_group=0
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and what the tests started
            raise
    return process.returncode, output


@cache
def _fails_anyway(test: str) -> bool:
    """Whether a test fails without a mutant, for want of something on this machine."""
    with _checkout() as folder:
        return _pytest(folder, [test])[0] == 1


def _hangs_anyway(tests: tuple[str, ...]) -> bool:
    """Whether tests take too long without a mutant, too."""
    with _checkout() as folder:
        try:
            _pytest(folder, list(tests))
        except subprocess.TimeoutExpired:
            return True
    return False


def _ignored(folder: str, names: list[str]) -> list[str]:
    """What git ignores, as far as tests see it."""
    tracked = (".ci", ".gitignore", ".pre-commit-config.yaml")
    hidden = [name for name in names if name.startswith(".") and name not in tracked]
    return [*hidden, *(name for name in names if name == "__pycache__")]


@contextmanager
def _checkout() -> Iterator[Path]:
    """A copy of the tree: a test that writes, or starts a process, does so there."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name) / "checkout"
        shutil.copytree(ROOT, folder, ignore=_ignored, symlinks=True)
        yield folder


def _noticed(folder: Path, tests: list[str] | None) -> bool:
    """Whether a test fails that passes without the mutant; none in time is a failure too."""
    while True:
        try:
            status, output = _pytest(folder, tests)
        except subprocess.TimeoutExpired:
            if tests is None or not _hangs_anyway(tuple(tests)):
                return True
            tests = tests[: len(tests) // 2]  # a slow machine judges by fewer
            continue
        if status in (0, 5):  # all passed, or none of the list exists any more
            return False
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", output, re.MULTILINE)
        if tests is None or not failed or not _fails_anyway(failed[0]):
            return True
        tests = [test for test in tests if test != failed[0]]


def check(program: list[list[object]], device: str) -> str | None:
    """None where a test fails; else the mutant and how many tests passed with it."""
    mutant = Mutant(*program[0])  # type: ignore[arg-type]
    read = _map()
    tests, own = (None, True) if read is None else _tests(mutant, read)
    with _checkout() as folder:
        _apply(mutant, folder)
        if tests != [] and _noticed(folder, tests):
            return None
    count = "all" if tests is None else len(tests)
    which = f"{count} tests execute it" if own else f"no test executes it, {count} are near"
    return f"survived: {mutant.describe()} ({which})"


def show(program: list[list[object]]) -> str:
    return Mutant(*program[0]).describe()  # type: ignore[arg-type]


def write_map(folder: Path, target: Path) -> None:
    """Joins what the plugin `executed` wrote into a folder."""
    tests: list[tuple[str, float]] = []
    lines: dict[str, dict[str, list[tuple[int, float, int]]]] = {}
    for part in sorted(folder.glob("*.gz")):
        with gzip.open(part, "rt") as file:
            read = json.load(file)
        first = len(tests)
        tests += read["tests"]
        for path, of_path in read["lines"].items():
            for line, few in of_path.items():
                own = lines.setdefault(path, {}).setdefault(line, [])
                own += [(k // EACH, distance, first + t) for k, (distance, t) in enumerate(few)]
    lists: dict[tuple[int, ...], int] = {}
    joined = {}
    for path, of_path in lines.items():
        joined[path] = {
            line: lists.setdefault(tuple(test for _, _, test in sorted(few)[:MOST]), len(lists))
            for line, few in of_path.items()
        }
    sources = {str(p.relative_to(ROOT)): p.read_text() for p in PACKAGE.rglob("*.py")}
    with gzip.open(target, "wt") as out:
        whole = {"tests": tests, "lists": list(lists), "lines": joined, "sources": sources}
        json.dump(whole, out, separators=(",", ":"))


if __name__ == "__main__":
    write_map(Path(sys.argv[1]), Path(sys.argv[2]))
