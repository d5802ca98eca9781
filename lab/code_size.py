"""How much code the package has: `python lab/code_size.py [FOLDER]`; `--long` lists functions.
`--replay` lists the files that recognise what was seen before, with what each saves.

Docstrings, comments and blank lines do not count. Python is counted twice: in lines as formatted at
a width of 100, and in statements of its syntax tree, which no way of breaking lines changes. CUDA
C++ (.cuh, .h) is counted in lines. `--long` lists the functions of more than 40 code lines with the
reasons that lab/long_functions.txt gives, and the entries there that are none any more.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "tinygrad_cuda"
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
SCREEN = 40
REASONS = Path(__file__).with_name("long_functions.txt")
REPLAY = Path(__file__).with_name("replay_files.txt")
_CPP_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def docstrings(tree: ast.AST) -> list[ast.Expr]:
    """Strings that stand alone as statements."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


def code_lines(source: str, tree: ast.AST) -> set[int]:
    """The numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for text in docstrings(tree):
        lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def python_size(source: str) -> tuple[int, int]:
    """Code lines, and statements."""
    tree = ast.parse(source)
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    return len(code_lines(source, tree)), statements - len(docstrings(tree))


def long_functions(source: str, limit: int = SCREEN) -> dict[str, int]:
    """Functions of more code lines than the limit, by qualified name."""
    tree = ast.parse(source)
    lines = code_lines(source, tree)
    found: dict[str, int] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{child.name}."
                size = sum(child.lineno <= n <= (child.end_lineno or 0) for n in lines)
                if size > limit and not isinstance(child, ast.ClassDef):
                    found[name[:-1]] = size
            visit(child, name)

    visit(tree, "")
    return found


def list_long(root: Path) -> None:
    """Prints the long functions, longest first, each with its reason."""
    entries = (line.split(maxsplit=1) for line in REASONS.read_text().splitlines())
    reasons = {name: reason for name, reason in entries if name != "#"}
    sizes = {
        f"{path.stem}.{name}": (size, path.relative_to(root))
        for path in sorted(root.rglob("*.py"))
        for name, size in long_functions(path.read_text(encoding="utf-8")).items()
    }
    for name, (size, path) in sorted(sizes.items(), key=lambda entry: -entry[1][0]):
        function = name.partition(".")[2]
        print(f"{size:4} {path}: {function}: {reasons.pop(name, 'NO REASON')}")
    for name in reasons:
        print(f"     {name} fits on a screen or is gone")


def replay_files() -> list[tuple[str, int, str]]:
    """The files that recognise what was seen before: path, code lines, what each saves."""
    entries = [line.split(maxsplit=1) for line in REPLAY.read_text().splitlines()]
    return [
        (name, python_size((PACKAGE / name).read_text(encoding="utf-8"))[0], saves)
        for name, saves in entries
        if name != "#"
    ]


def list_replay() -> None:
    """Prints them, and their sum."""
    files = replay_files()
    for name, size, saves in files:
        print(f"{size:5} {name}: {saves}")
    print(f"{sum(size for _, size, _ in files):5} in {len(files)} files")


def cpp_size(source: str) -> int:
    """Lines that are neither blank nor only comment."""
    bare = _CPP_COMMENT.sub(lambda text: "\n" * text.group().count("\n"), source)
    return sum(bool(line.strip()) for line in bare.splitlines())


def main() -> None:
    if "--replay" in sys.argv:
        list_replay()
        return
    folders = [argument for argument in sys.argv[1:] if argument != "--long"]
    root = Path(folders[0]).resolve() if folders else PACKAGE
    if "--long" in sys.argv:
        list_long(root)
        return
    lines: Counter[str] = Counter()
    statements: Counter[str] = Counter()
    cpp: Counter[str] = Counter()
    for path in sorted(root.rglob("*")):
        folder = "/".join(path.relative_to(root).parts[:-1][:2]) or "."
        if path.suffix == ".py":
            counted = python_size(path.read_text(encoding="utf-8"))
            lines[folder] += counted[0]
            statements[folder] += counted[1]
        elif path.suffix in (".cuh", ".h"):
            cpp[folder] += cpp_size(path.read_text(encoding="utf-8"))
    print(f"{'folder':32}{'lines':>10}{'statements':>12}{'CUDA C++':>10}")
    for folder in sorted({*lines, *cpp}):
        print(f"{folder:32}{lines[folder]:>10}{statements[folder]:>12}{cpp[folder]:>10}")
    total = sum(lines.values()), sum(statements.values()), sum(cpp.values())
    print(f"{'all':32}{total[0]:>10}{total[1]:>12}{total[2]:>10}")


if __name__ == "__main__":
    main()
