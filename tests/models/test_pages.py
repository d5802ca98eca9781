"""The code of the pages in docs runs and prints what they say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import tinygrad_cuda as tc

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "blocks", "examples"),
    [
        ("gradients.md", 10, 45),
        ("looking_inside.md", 8, 15),
        ("training.md", 6, 30),
        ("transforms.md", 8, 30),
    ],
)
def test_every_block_of_code(page: str, blocks: int, examples: int) -> None:
    """All blocks are one session, from the first to the last."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    # Lines outside of blocks are emptied, so that a failure names the line of the page.
    inside = False
    lines = []
    for line in text.split("\n"):
        fence = line.startswith("```")
        if fence:
            inside = line == "```python"
        lines.append("" if fence or not inside else line)
    assert len(re.findall(r"^```python$", text, re.MULTILINE)) >= blocks
    test = doctest.DocTestParser().get_doctest("\n".join(lines), {}, path.name, str(path), 0)
    assert len(test.examples) >= examples
    report: list[str] = []
    try:
        doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    finally:
        tc.set_default_device(None)
    assert not report, "".join(report)


def test_the_blocks_of_the_page_on_data() -> None:
    """Programs rather than sessions: what they assert holds."""
    text = (DOCS / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "data.md", "exec"), names)
