"""Mutants are changes that parse, judged by the tests that execute their line."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import pytest

SOURCE = """
def clip(x):
    if x > 3:
        return 3
    return x


def other(x):
    return x + 1
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "package" / "clip.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "PACKAGE", path.parent)
    return path


def test_each_change_parses_and_differs(package: Path) -> None:
    found = mutants.mutants(package)
    texts = {(m.line, m.text) for m in found}
    assert texts == {
        (3, "(not (x > 3))"), (3, "(x >= 3)"), (3, "(4)"), (4, "(4)"), (9, "(2)"),
    }  # fmt: skip
    for mutant in found:
        package.write_text(SOURCE)
        mutants._apply(mutant, package.parents[1])
        changed = package.read_text()
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))


def test_a_mutant_is_judged_by_the_tests_of_its_line_where_it_was(package: Path) -> None:
    read = {
        "tests": [["near", 1.0], ["far", 1.0], ["slow", 1000.0]],
        "lists": [[0, 2], [1, 0], [1]],
        "lines": {"package/clip.py": {"3": 0, "5": 1, "9": 2}},
        "sources": {"package/clip.py": SOURCE},
    }
    package.write_text("import os\nimport sys\n" + SOURCE)
    by_line = {m.line: mutants._tests(m, read) for m in mutants.mutants(package)}
    assert by_line == {
        5: (["near"], True),
        6: (["near"], False),  # never executed, unlike its `if`
        11: (["far"], True),
    }
