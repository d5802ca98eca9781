"""`make docs`: builds the site into build/docs, with warnings as errors.

The pages of docs/, the changelog, the guide for contributors and the reference are put into one
folder, from which Sphinx makes build/docs/html. The last line printed has the counts.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import reference
from pages import ROOT, assemble
from sphinx.cmd.build import main as sphinx
from sphinx.util.inventory import InventoryFile

SITE = Path(__file__).resolve().parent
OUT = ROOT / "build" / "docs"


def missing(inventory: Path) -> list[str]:
    """Public names for which the built site has no entry."""
    listed = InventoryFile.loads(inventory.read_bytes(), uri="")
    built = {name for kind in listed.data.values() for name in kind}
    wanted = {entry.path for entry in reference.entries()}
    wanted |= {f"{reference.PACKAGE}.Tensor.{name}" for name in reference.methods()}
    return sorted(wanted - built)


def executed(notebook: Path) -> list[object]:
    """Its cells of code: all of them have run, or the build has failed by a warning."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def main() -> int:
    """Builds, counts, and says what is missing."""
    start = time.perf_counter()
    shutil.rmtree(OUT, ignore_errors=True)
    source, html = OUT / "source", OUT / "html"
    names = assemble(source)
    # In one process: those of a parallel build do not see each other's duplicate names.
    options = ["--fail-on-warning", "--keep-going", "--quiet"]
    status = sphinx([*options, "-b", "html", "-c", str(SITE), str(source), str(html)])
    if status:
        print("docs: failed, see the warnings above", file=sys.stderr)
        return status
    if absent := missing(html / "objects.inv"):
        print("docs: no entry for", *absent, file=sys.stderr)
        return 1
    sources = [path for path in source.rglob("*") if path.suffix in (".md", ".ipynb", ".rst")]
    unbuilt = [
        path
        for path in sources
        if not (html / path.relative_to(source)).with_suffix(".html").exists()
    ]
    if unbuilt:
        print("docs: not built:", *unbuilt, file=sys.stderr)
        return 1
    pages, notebooks = len(sources), [path for path in sources if path.suffix == ".ipynb"]
    cells = sum(len(executed(path)) for path in notebooks)
    seconds = time.perf_counter() - start
    counts = f"{pages} pages, {names} public names, {cells} cells of {len(notebooks)} notebook run"
    print(f"docs: {counts}, {seconds:.0f} s: {html}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
