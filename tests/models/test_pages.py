"""The code of the pages in docs runs and prints what they say."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.data import generated_digits, write_idx
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.replay.switches import FAST_PATHS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CHAPTERS = sorted((DOCS / "architecture").glob("*.md"))
ON_FILES = [DOCS / "architecture.md", *CHAPTERS, DOCS / "glossary.md"]
# Of a page with sessions: how many blocks of code and examples there are at least.
SESSIONS = {
    "compiled_when.md": (3, 14),
    "first_model.md": (6, 22),
    "from_pytorch.md": (4, 12),
    "nan.md": (5, 11),
    "on_a_gpu.md": (5, 12),
    "exchange.md": (4, 14),
    "gradients.md": (10, 45),
    "kernels.md": (11, 32),
    "looking_inside.md": (9, 24),
    "onnx.md": (3, 20),
    "training.md": (6, 30),
    "transforms.md": (8, 30),
    "complex.md": (8, 30),
    "architecture/graph.md": (2, 6),
    "architecture/engine.md": (1, 5),
    "architecture/lowering.md": (1, 3),
    "profiling.md": (10, 43),
    "matmul.md": (1, 4),
}
PROGRAMS = {"data.md": 2, "compatibility.md": 1}  # blocks of pages with programs


def files_of(text: str) -> list[str]:
    """The files that a text names."""
    return re.findall(r"(?<![\w/.])[\w/]+\.(?:py|cuh|h)\b", text)


@pytest.mark.parametrize("page", SESSIONS)
def test_every_block_of_code(page: str) -> None:
    """All blocks are one session, from the first to the last."""
    blocks, examples = SESSIONS[page]
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
    cache.clear()  # a page counts the plans of a fresh process
    try:
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        runner.run(test, out=report.append)
    finally:
        tc.set_default_device(None)
    assert not report, "".join(report)


@pytest.mark.parametrize("files", [False, True])
def test_the_notebook(
    files: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells run in order, with MNIST's files or without, and what they assert holds."""
    if files:
        images, labels = generated_digits(4096)
        write_idx(tmp_path / "train-images-idx3-ubyte", images)
        write_idx(tmp_path / "train-labels-idx1-ubyte", labels.astype(np.uint8))
    pyplot.switch_backend("agg")
    monkeypatch.setattr(settings, "data", tmp_path)
    cells = json.loads((DOCS / "digits.ipynb").read_text(encoding="utf-8"))["cells"]
    programs = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(programs) >= 6
    assert not [cell for cell in programs if cell["outputs"] or cell["execution_count"]]
    names: dict[str, object] = {}
    try:
        for number, cell in enumerate(programs, 1):
            exec(compile("".join(cell["source"]), f"digits.ipynb, cell {number}", "exec"), names)
        assert len(pyplot.get_fignums()) == 2
        assert not files or capsys.readouterr().out.startswith("MNIST ")
    finally:
        tc.set_default_device(None)
        pyplot.close("all")


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_blocks_of_pages_with_programs(page: str) -> None:
    """What they assert holds."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= PROGRAMS[page]
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_no_page_with_code_is_left_out() -> None:
    """The page on profiling was: its ten blocks were run by nobody."""
    pages = {
        page.relative_to(DOCS).as_posix()
        for page in DOCS.rglob("*.md")
        if re.search(r"^```(python|pycon|py)\b", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert pages == {*SESSIONS, *PROGRAMS}


@pytest.mark.parametrize("page", ON_FILES, ids=lambda page: page.stem)
def test_files_that_the_architecture_names_are_there(page: Path) -> None:
    """By their path in the package or in the repository, or by a name that says enough."""
    roots = ("tinygrad_cuda", "tests", "lab", "benchmarks")
    there = [
        path.relative_to(ROOT).as_posix()
        for root in roots
        for path in (ROOT / root).rglob("*.*")
        if "__pycache__" not in path.parts
    ]
    named = files_of(page.read_text(encoding="utf-8"))
    assert named
    gone = {name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in there)}
    assert not gone


def test_chapters_and_the_page_link_each_other() -> None:
    """And the links in a chapter lead somewhere."""
    overview = (DOCS / "architecture.md").read_text(encoding="utf-8")
    for chapter in CHAPTERS:
        assert f"](architecture/{chapter.name})" in overview
        text = chapter.read_text(encoding="utf-8")
        assert "](../architecture.md)" in text
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert link.startswith("http") or (chapter.parent / link).exists(), link
        for block in re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL):
            assert max(map(len, block.splitlines())) <= 100, block


def test_every_fast_path_has_a_row() -> None:
    text = (DOCS / "architecture" / "replay.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \| `", text, re.MULTILINE)) == sorted(FAST_PATHS)


@pytest.mark.fast_paths
def test_a_first_call_passes_the_files_that_the_page_names() -> None:
    """Those of the GPU's own room, and of what recognises earlier plans, apart."""
    overview = (DOCS / "architecture.md").read_text(encoding="utf-8")
    walk = re.search(r"## `y = x.exp\(\)`.*?\n1\. (.*?)\n\nOn `cpu`", overview, re.DOTALL)
    assert walk is not None
    named = {name for name in files_of(walk[1]) if name.endswith(".py") and "/cuda/" not in name}
    command = [sys.executable, str(ROOT / "lab" / "trace_files.py"), "emu", "--show"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if "C++ compiler" in result.stderr:
        pytest.skip("no C++ compiler")
    passed = {line.split(":")[0].strip() for line in result.stdout.splitlines()[1:]}
    assert len(named) > 15
    # The row of `exp` is asked for its shape and dtype, the program is a plain record; one kernel
    # has no memory between kernels.
    assert named - passed <= {"graph/program.py", "lowering/schedule/arena.py"}
