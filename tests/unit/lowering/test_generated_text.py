"""Generated text reads as a person would write it: names, loops, arithmetic and width."""

from __future__ import annotations

import re

import pytest
from programs import family, launches_of

from tinygrad_cuda.lowering.codegen.constant_folding import folded
from tinygrad_cuda.lowering.codegen.skeleton import KernelParams

CLUMSY = {
    "neutral arithmetic": r" [*/%] 1\b(?!\.)| [+-] 0\b(?!\.)|(?<![\w.])0 [+*/%] |(?<![\w.])1 \* ",
    "a decided test": r"if \((true|false)\)",
    "a cast that changes nothing": r"\(int\)virtual_block",
    "a name by number": r"\b[xhryac]\d+\b",
    "a long line": r"^.{120,}$",
}


@pytest.mark.parametrize("name", sorted(family()))
def test_generated_text_has_nothing_clumsy(name: str) -> None:
    for launch in launches_of(name):
        for what, pattern in CLUMSY.items():
            assert not re.findall(pattern, launch.text, re.MULTILINE), what
        for loop in re.finditer(r"for \(int (\w+) = 0; \1 < 1; \1\+\+\)", launch.text):
            body = launch.text[loop.end() : loop.end() + 200]
            assert "continue;" in body or "break;" in body, "a loop of one trip"
        for stage in launch.stages:
            assert stage.text.count(stage.name) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tile[i * 16 * 1 + v * 1] = hold[i * 1 + v];", "tile[i * 16 + v] = hold[i + v];"),
        ("int batch = @block@ / 114 % 1;", "int batch = 0;"),
        ("int part = virtual_block / 114 / 1;", "int part = virtual_block / 114;"),
        ("int band = number / (8 * 14) * 8;", "int band = number / 112 * 8;"),
        ("y = a - 0 + 1.0f * b + 10 % n;", "y = a + 1.0f * b + 10 % n;"),
        ("for (int v = 0; v < 1; v++) sum[v * 256 + x] = y[v];", "sum[x] = y[0];"),
        ("#pragma unroll\nfor (int k = 0; k < 1; k++) {\n  @map@\n}\nb;", "@map@\nb;"),
        ("a;\nfor (int other = 1; other < 1; other++)\n  total += s[other];\nb;", "a;\nb;"),
        ("for (int v = 0; v < 2; v++) a[v];", "for (int v = 0; v < 2; v++) a[v];"),
        (
            "for (int i = 0; i < 1; i++) {\n  if (e) continue;\n  a;\n}",
            "for (int i = 0; i < 1; i++) {\n  if (e) continue;\n  a;\n}",
        ),
        (
            "const int e = 1;\nfor (int i = 0; i < 1; i++) {\n  const int e = i + x;\n}",
            "const int e = 1;\n{\n  const int e = x;\n}",
        ),
    ],
)
def test_sizes_are_folded(text: str, expected: str) -> None:
    assert folded(text) == expected


def test_a_loop_stays_where_its_statements_need_it() -> None:
    loop = "for (int i = 0; i < 1; i++) {\n  @test@\n}"
    assert folded(loop, frozenset([("@test@", "i")])) == loop
    assert folded(loop, frozenset([("@test@", "break")])) == loop
    assert folded(loop, frozenset([("@test@", "k")])) == "@test@"


def test_names_are_unlike_each_other() -> None:
    words = KernelParams()
    made = [words.fresh(stem) for stem in ("exp", "exp", "mean", "mean", "in0", "in0", "log2_")]
    assert made == ["exp0", "exp1", "mean", "mean_1", "in0", "in0_1", "log2_0"]
