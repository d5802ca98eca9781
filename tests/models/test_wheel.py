"""Wheel and sdist are whole: installed outside the checkout they train `make mnist`'s model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import DeviceError
from tinygrad_cuda.data import generated_digits, write_idx

pytest.importorskip("setuptools", "77", reason="pyproject.toml builds with setuptools 77 or later")

ROOT = Path(__file__).resolve().parents[2]
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""


def execute(command: list[str], folder: Path, **variables: str) -> str:
    """The output of a program that must succeed, started in a folder outside the checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment = {**kept, "OMP_NUM_THREADS": "1", **variables}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def build(kind: str, source: Path, out: Path) -> Path:
    """A wheel or an sdist of a source folder, by the package's own build backend."""
    return out / execute([sys.executable, "-c", BUILD, kind, str(out)], source).splitlines()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("build")


@pytest.fixture(scope="module")
def sdist(folder: Path) -> Path:
    """Built from a copy, so that nothing is written into the checkout."""
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tinygrad_cuda", source / "tinygrad_cuda", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return build("sdist", source, folder)


@pytest.fixture(scope="module")
def wheel(folder: Path, sdist: Path) -> Path:
    """Built from the sdist alone, as `python -m build` does."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    return build("wheel", source, folder)


@pytest.fixture(scope="module")
def installed(folder: Path, wheel: Path) -> Path:
    """The Python of a fresh environment that has the wheel, and sees this one's other packages."""
    home = folder / "environment"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    (own,) = home.glob("lib/python*/site-packages")
    # A folder in a .pth file comes behind the environment's own, and its .pth files do not run:
    # an editable installation of the checkout stays unseen.
    above = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (own / "dependencies.pth").write_text("\n".join(above) + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    execute([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], folder)
    return python


def sources() -> set[str]:
    """Every file of the package in the checkout."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tinygrad_cuda").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_every_file_of_the_package_is_in_both(sdist: Path, wheel: Path) -> None:
    """Skeletons (.cuh), the emulator's headers and py.typed; no tests, no examples."""
    wanted = sources()
    assert {Path(name).suffix for name in wanted} >= {".py", ".cuh", ".h", ".typed"}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == wanted
    with tarfile.open(sdist) as archive:
        names = {"/".join(Path(name).parts[1:]) for name in archive.getnames()}
    assert wanted <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names


def test_the_version_is_said_once(installed: Path, folder: Path) -> None:
    """The module is the installed one, and its version that of the wheel."""
    code = (
        "import tinygrad_cuda as tc, importlib.metadata as m; "
        "print(tc.__file__); print(tc.__version__); print(m.version('tinygrad_cuda'))"
    )
    file, version, said = execute([str(installed), "-c", code], folder).splitlines()
    assert file.startswith(str(folder))
    assert version == said


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_the_wheel_trains_the_model_of_make_mnist(
    installed: Path, tmp_path: Path, device: str
) -> None:
    """A few steps on generated digits, with the examples' files alone beside it."""
    try:
        registry.get(as_device(device))
    except DeviceError as error:
        pytest.skip(str(error))
    for name in ("mlp.py", "recipe.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    (tmp_path / "mnist").mkdir()
    for prefix, count, seed in (("train", 320, 0), ("t10k", 50, 1)):
        images, labels = generated_digits(count, seed=seed)
        write_idx(tmp_path / "mnist" / f"{prefix}-images-idx3-ubyte", images)
        write_idx(tmp_path / "mnist" / f"{prefix}-labels-idx1-ubyte", labels.astype(np.uint8))
    options = ["--data", "mnist", "--epochs", "2", "--batch-size", "64", "--device", device]
    printed = execute([str(installed), "-W", "error", "mlp.py", *options], tmp_path)
    assert f"784-128-10 with ReLU, 101,770 parameters, on {device}" in printed
    losses = [float(line.split()[3]) for line in printed.splitlines() if line.startswith("epoch")]
    assert losses[1] < losses[0] < 2.5
    assert (tmp_path / "runs" / "mlp" / "best.safetensors").is_file()
