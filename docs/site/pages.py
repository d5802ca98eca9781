"""Puts the pages of docs/, those that stand elsewhere, and the reference into one folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import reference

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
# Pages that stand elsewhere in the repository.
ELSEWHERE = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "tests/fuzz/README.md": "fuzz.md",
    "tests/fuzz/survivors.md": "survivors.md",
}
GROUP = re.compile(r"^## (.+)$", re.MULTILINE)
PAGE = re.compile(r"\]\(([\w./]+)\.(?:md|ipynb)\)")


def toctrees(text: str) -> str:
    """The index with a menu: under each heading the pages that it links, in that order."""
    text = text.replace("](../", "](")
    for repository, page in ELSEWHERE.items():
        text = text.replace(f"]({repository})", f"]({page})")
    parts = GROUP.split(text)
    lines = [parts[0]]
    for heading, body in zip(parts[1::2], parts[2::2]):
        pages = "\n".join(dict.fromkeys(PAGE.findall(body)))
        menu = f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```"
        lines.append(f"## {heading}\n{body}\n{menu}\n\n")
    lines.append("```{toctree}\n:hidden:\n:caption: Reference\n\nreference/index\n```\n")
    return "".join(lines)


def assemble(source: Path) -> int:
    """Puts all pages into one folder; how many names the reference has."""
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("site", "*.json"))
    for repository, page in ELSEWHERE.items():
        text = (ROOT / repository).read_text(encoding="utf-8")
        for other, target in ELSEWHERE.items():
            text = text.replace(f"]({other})", f"]({target})")
        text = text.replace("](docs/", "](")
        (source / page).write_text(text, encoding="utf-8")
    index = source / "index.md"
    index.write_text(toctrees(index.read_text(encoding="utf-8")), encoding="utf-8")
    return reference.write(source / "reference")
