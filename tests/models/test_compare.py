"""`compare` runs a script in torch and here, and names the first tensor that differs, and how."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.utils import compare
from tinygrad_cuda.utils.compare_recorder import run

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("on_cpu"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FOLDER = Path(__file__).parent / "compare_programs"


def reported(name: str, *mistake: str, steps: int = 3, reference: Any = None) -> tuple[int, str]:
    """The exit status and the text of a comparison in this process."""
    script = FOLDER / f"{name}.py"
    one = reference or run("torch", script, [], steps)
    other = run("tinygrad_cuda", script, mistake, steps, one)
    options = argparse.Namespace(script=script, rtol=1e-4, atol=1e-6, report=None)
    lines: list[str] = []
    status = compare.report(options, one, other, lines.append)
    return status, "\n".join(lines)


@pytest.fixture(scope="module")
def mlp() -> Any:
    """The reference's run, which all mistakes are compared with."""
    return run("torch", FOLDER / "mlp.py", [], 2)


@pytest.mark.parametrize(("name", "tensors"), [("mlp", 15), ("lenet", 35), ("gpt", 80)])
def test_programs_agree(name: str, tensors: int) -> None:
    """Shuffles, noise, splits, dropout and initial values are torch's; the import is changed alone.

    The last script is written for this package.
    """
    status, text = reported(name)
    assert status == 0, text
    assert "everything agrees" in text
    assert "3 steps" in text
    assert "differs" not in text.replace("largest difference", "")
    counts = [int(line.split()[2]) for line in text.splitlines() if line[:1] in "123"]
    assert sum(counts) > tensors


def test_layers_of_others_and_paths_of_torch() -> None:
    """einops is completed for this package alone; `nn.modules` has modules of its own."""
    pytest.importorskip("einops")
    for _ in range(2):
        status, text = reported("patches")
        assert status == 0, text
        assert "everything agrees" in text


MISTAKES = {
    "weight": (
        "the initial value of Net.fc1.weight", "transposed: element [i, j] is at [j, i]",
        "loss = F.cross_entropy(model(x)",
    ),
    "class": (
        "the initial value of Net.fc2.weight", "permuted along dimension 0: 2 at 1, 1 at 2",
        "loss = F.cross_entropy(model(x)",
    ),
    "mean": (
        "the loss",
        "a mean is missing: each element is 16 times what it should be; 16 is dimension 0 of Net",
        "loss.backward()",
    ),
    "gradient": (
        "the gradient of Net.fc2.weight",
        "a constant ratio: each element is 0.5 times what it should be", "loss.backward()",
    ),
    "sign": ("the forward of Net", "the sign is flipped", "loss = F.cross_entropy(model(x)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_difference_is_named(mlp: Any, mistake: str) -> None:
    """The tensor, the line, and what was done to it; nothing before it differs."""
    status, text = reported("mlp", mistake, steps=2, reference=mlp)
    what, how, line = MISTAKES[mistake]
    assert status == 1
    assert f"the first that differs: {what}, shape" in text
    assert f"  how:    {how}" in text
    at = next(part for part in text.splitlines() if part.startswith("  at:"))
    assert line in at and "mlp.py:" in at


def test_a_program_that_draws_otherwise_is_told_apart(tmp_path: Path) -> None:
    """Without the same random numbers nothing can be compared; both lines are named."""
    script = tmp_path / "draws.py"
    script.write_text(
        "import torch\nn = 3 if torch.__name__ == 'torch' else 4\nx = torch.randn(n)\n"
        "model = torch.nn.Linear(3, 1)\nmodel(x)\n"
    )
    one = run("torch", script, [], 1)
    other = run("tinygrad_cuda", script, [], 1, one)
    assert other["error"] == (
        "the random numbers part: randn of shapes [(4,)] is drawn here, in the reference randn of "
        "shapes [(3,)] at draws.py:3  x = torch.randn(n)"
    )


def test_the_frameworks_are_as_before() -> None:
    """Classes, functions and imports that a run replaces are put back."""
    import torch

    before = torch.nn.Module.__call__, tc.nn.Module.__call__, tc.randn, tc.nn.Linear.__init__
    reported("mlp", steps=1)
    after = torch.nn.Module.__call__, tc.nn.Module.__call__, tc.randn, tc.nn.Linear.__init__
    assert all(a is b for a, b in zip(before, after))
    assert sys.modules["torch"] is torch
    assert sys.modules["tinygrad_cuda"] is tc


def test_the_command(tmp_path: Path) -> None:
    """A process of its own for each framework; the report has every tensor; exit status 1."""
    path = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, "-m", "tinygrad_cuda", "compare", "--steps", "1", "--device", "cpu",
         "--report", str(path), str(FOLDER / "mlp.py"), "gradient"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "the first that differs: the gradient of Net.fc2.weight" in done.stdout
    report = json.loads(path.read_text())
    assert report["status"] == 1
    assert report["first"]["name"] == "Net.fc2.weight"
    kinds = {row["kind"] for row in report["tensors"]}
    assert kinds == {"initial", "forward", "loss", "gradient", "parameter"}


@pytest.mark.parametrize("name", ["mlp", "lenet", "gpt"])
def test_programs_agree_on_a_gpu(name: str, cuda_device: str) -> None:
    """As `python -m tinygrad_cuda compare SCRIPT --device cuda` runs them."""
    done = subprocess.run(
        [sys.executable, "-m", "tinygrad_cuda", "compare", "--device", cuda_device,
         str(FOLDER / f"{name}.py")],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything agrees" in done.stdout


def test_a_script_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(script=Path("nowhere.py"), steps=1)
    assert compare.command(options) == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err
