"""Reference counts, text run as code, bytecode: each in one file, behind one function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "tinygrad_cuda"
# Names of functions, modules and attributes, and the only files of the package that have them.
ONLY_IN = {
    "getrefcount": "core/reference_counts.py",
    "exec": "replay/generated_functions.py",
    "eval": "",
    "dis": "replay/guards/bytecode.py",
    "co_code": "replay/guards/bytecode.py",
    "get_objects": "",
    "get_referrers": "replay/guards/values.py",
    "get_referents": "replay/guards/values.py",
    "is_tracked": "replay/guards/values.py",
    "setprofile": "replay/guards/watch.py",
    "settrace": "",
}
# Built in: a method of the same name is another thing.
BUILTIN = {"exec", "eval"}


def means(tree: ast.AST) -> Iterator[str]:
    """What a module loads, imports or asks an object for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr not in BUILTIN:
            yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.name for alias in node.names)
            if isinstance(node, ast.ImportFrom):
                yield str(node.module)


def uses() -> dict[str, set[str]]:
    """For each of the means the files that use it."""
    found: dict[str, set[str]] = {name: set() for name in ONLY_IN}
    for path in PACKAGE.rglob("*.py"):
        for name in means(ast.parse(path.read_text(encoding="utf-8"))):
            if name in found:
                found[name].add(path.relative_to(PACKAGE).as_posix())
    return found


@pytest.mark.parametrize("name", ONLY_IN)
def test_each_is_in_one_file(name: str) -> None:
    assert uses()[name] == ({ONLY_IN[name]} - {""})


def functions_with(path: str, name: str) -> set[str]:
    """The functions of a file that use something; "" for the file itself."""
    found: set[str] = set()

    def visit(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Name | ast.Attribute):
                here = child.id if isinstance(child, ast.Name) else child.attr
                if here == name:
                    found.add(inner)
            visit(child, inner)

    visit(ast.parse((PACKAGE / path).read_text(encoding="utf-8")), "")
    return found


@pytest.mark.parametrize(
    ("path", "name", "functions"),
    [
        ("core/reference_counts.py", "getrefcount", {""}),
        ("replay/generated_functions.py", "exec", {"function_from"}),
        ("replay/guards/bytecode.py", "get_instructions", {"instructions"}),
        ("replay/guards/values.py", "get_referrers", {"functions_of"}),
        ("replay/guards/values.py", "get_referents", {"referents_of"}),
    ],
)
def test_and_behind_one_function(path: str, name: str, functions: set[str]) -> None:
    assert functions_with(path, name) == functions


def test_another_use_would_be_seen() -> None:
    """Whatever name it is given."""
    for text in (
        "import sys\nsys.getrefcount(x)", "from sys import getrefcount as n", "exec('x = 1')",
        "import dis as d", "from dis import get_instructions", "f.__code__.co_code",
    ):  # fmt: skip
        assert not ONLY_IN.keys().isdisjoint(means(ast.parse(text))), text
    assert ONLY_IN.keys().isdisjoint(means(ast.parse("driver.exec(graph)")))
