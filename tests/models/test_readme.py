"""README.md: its programs run, its links lead somewhere, and its lines fit a screen."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.data import generated_digits, write_idx

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(text: str, language: str = "") -> list[str]:
    """The blocks of code of a page."""
    return re.findall(rf"^```{language}\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_programs_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one learns, on a small data set in place of MNIST."""
    for half, count in (("train", 640), ("t10k", 64)):
        images, labels = generated_digits(count)
        write_idx(tmp_path / f"{half}-images-idx3-ubyte", images)
        write_idx(tmp_path / f"{half}-labels-idx1-ubyte", labels.astype(np.uint8))
    programs = blocks(README, "python")
    assert len(programs) >= 2
    tc.manual_seed(0)
    try:
        tc.set_default_device("cpu")
        for program in programs:
            with settings.override(data=tmp_path):
                exec(compile(program, "README.md", "exec"), {})
    finally:
        tc.set_default_device(None)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 5
    assert losses[-1] < losses[0]


def test_models_of_one_line_are_what_the_page_says() -> None:
    found = dict(re.findall(r"^\| `(Perceptron|MLP)` \| `([^`]+)` \|$", README, re.MULTILINE))
    x = tc.zeros(5, 1, 28, 28, device="cpu")
    with tc.device("cpu"):
        assert eval(found["MLP"], {"nn": nn})(x).shape == (5, 10)
        assert eval(found["Perceptron"], {"nn": nn})(tc.zeros(3, 2)).shape == (3, 1)
    for name in found:
        with pytest.raises(AttributeError, match=r"hint: .*nn.Linear"):
            getattr(nn, name)


def test_lines_fit_a_screen() -> None:
    """120 columns in the README, 100 in every block of code of every page."""
    assert max(map(len, README.splitlines())) <= 120
    for text in (README, *(page.read_text(encoding="utf-8") for page in PAGES)):
        for block in blocks(text):
            assert max(map(len, block.splitlines()), default=0) <= 100, block


def test_every_page_is_linked_and_every_link_leads_somewhere() -> None:
    linked = re.findall(r"\]\(([^)#]+)\)", README)
    for page in PAGES:
        assert f"docs/{page.name}" in linked, f"README.md does not link {page.name}"
    for link in linked:
        assert (ROOT / link).exists(), link
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_picture_is_in_the_first_screen() -> None:
    """And so is what to install with; every example is in the table."""
    lines = README.splitlines()
    assert any(line.startswith("![") for line in lines[:12])
    assert any(line.startswith("pip install") for line in lines[:24])
    for example in (ROOT / "examples").glob("*.py"):
        if example.stem not in ("recipe", "ddpm"):
            assert f"`examples/{example.name}`" in README
    for argument in ("--smoke", "--out", "--resume", "--load", "--target"):
        assert f"`{argument}" in README


def test_variables_named_on_any_page_exist() -> None:
    from tinygrad_cuda.core.config import VARIABLES

    known = {variable.name for variable in VARIABLES}
    for text in (README, *(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))):
        assert set(re.findall(r"TGC_[A-Z0-9_]*[A-Z0-9]", text)) <= known
