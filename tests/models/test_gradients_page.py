"""The code of docs/gradients.md runs and prints what the page says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import tinygrad_cuda as tc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gradients.md"


def test_every_block_of_code() -> None:
    """All blocks are one session, from the first to the last."""
    text = PAGE.read_text(encoding="utf-8")
    # Lines outside of blocks are emptied, so that a failure names the line of the page.
    inside = False
    lines = []
    for line in text.split("\n"):
        fence = line.startswith("```")
        if fence:
            inside = line == "```python"
        lines.append("" if fence or not inside else line)
    assert len(re.findall(r"^```python$", text, re.MULTILINE)) >= 10
    test = doctest.DocTestParser().get_doctest("\n".join(lines), {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) >= 45
    report: list[str] = []
    try:
        doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    finally:
        tc.set_default_device(None)
    assert not report, "".join(report)
