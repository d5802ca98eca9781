"""How much code the package has: `python lab/code_size.py [FOLDER]`.

Docstrings, comments and blank lines do not count. Python is counted twice: in lines as formatted at
a width of 100, and in statements of its syntax tree, which no way of breaking lines changes. CUDA
C++ (.cuh, .h) is counted in lines.
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


def python_size(source: str) -> tuple[int, int]:
    """Code lines, and statements."""
    tree = ast.parse(source)
    texts = docstrings(tree)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for text in texts:
        lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    return len(lines), statements - len(texts)


def cpp_size(source: str) -> int:
    """Lines that are neither blank nor only comment."""
    bare = _CPP_COMMENT.sub(lambda text: "\n" * text.group().count("\n"), source)
    return sum(bool(line.strip()) for line in bare.splitlines())


def main() -> None:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PACKAGE
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
