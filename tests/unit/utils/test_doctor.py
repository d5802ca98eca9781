"""`python -m tinygrad_cuda doctor`: what it finds, which command it names, its exit status."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tinygrad_cuda.__main__ import main
from tinygrad_cuda.backend.cuda import compiler as nvrtc
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.utils import doctor


def report() -> tuple[int, list[str]]:
    lines: list[str] = []
    return doctor.doctor(lines.append), lines


def finding(name: str) -> doctor.Finding:
    (found,) = [item for item in doctor.findings_of_machine() if item.name == name]
    return found


def test_command_line() -> None:
    """It runs as a module, names every part and exits 0, GPU or not."""
    result = subprocess.run(
        [sys.executable, "-m", "tinygrad_cuda", "doctor"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("Python", "packages", "NVRTC", "GPU", "C++", "cache", "usable on cpu"):
        assert name in result.stdout


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["surgeon"])
    assert error.value.code == 2
    assert "doctor" in capsys.readouterr().err


def test_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is a note with the runtime's reason; a driver is offered only where a card is."""
    monkeypatch.setattr(runtime, "available", lambda: False)
    monkeypatch.setattr(runtime, "reason", lambda: "there is no libcuda")
    monkeypatch.setattr(doctor, "_has_nvidia_card", lambda: False)
    status, lines = report()
    assert status == 0
    assert any(line.startswith("note GPU") and "no libcuda" in line for line in lines)
    assert lines[-1].startswith("usable on cpu")
    assert "cuda" not in lines[-1]
    assert finding("GPU").command is None
    monkeypatch.setattr(doctor, "_has_nvidia_card", lambda: True)
    assert finding("GPU").command == doctor.DRIVER


def test_with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is named; one that NVRTC cannot compile for makes the machine unusable."""

    class Gpu:
        properties = runtime.Properties("Test GPU", (9, 0), 132, 2048, 80 << 30, 0, 0, 0, 0, 0.0)

    monkeypatch.setattr(runtime, "available", lambda: True)
    monkeypatch.setattr(runtime, "device", lambda index: Gpu())
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: [75, 90])
    assert finding("GPU") == ("ok", "GPU", "Test GPU, sm_90, 80 GiB", None)
    assert report()[1][-1].endswith("cuda")
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: [75, 80])
    status, lines = report()
    assert status == 1
    assert any(nvrtc.INSTALL in line for line in lines)


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise CompileError("compile", "the CUDA compiler NVRTC is not installed")

    monkeypatch.setattr(nvrtc, "toolchain", missing)
    status, lines = report()
    assert status == 1
    assert lines[-1] == "not usable: NVRTC"
    assert finding("NVRTC").text == "the CUDA compiler NVRTC is not installed"
    assert finding("NVRTC").command == nvrtc.INSTALL


def test_without_cxx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device emu is not offered, and the command installs a compiler."""
    monkeypatch.setenv("CXX", "/no/such/compiler")
    status, lines = report()
    assert status == 0
    assert "emu" not in lines[-1]
    assert finding("C++").level == "note"
    assert finding("C++").command is not None


def test_unwritable_cache(tmp_path: Path) -> None:
    """A cache folder below a file cannot be made; the note says which and what to set."""
    (tmp_path / "file").write_text("")
    with settings.override(cache_dir=tmp_path / "file" / "cache"):
        found = finding("cache")
    assert found.level == "note"
    assert str(tmp_path / "file" / "cache") in found.text
    assert found.command is not None
    assert "TGC_CACHE_DIR" in found.command


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing and outdated packages are named with the pip command for each."""
    versions = {"numpy": "2.1.0", "cuda-python": "12.8"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    requirements = ["numpy>=1.26", "cuda-python<14,>=13", "scipy>=1.12", 'ruff; extra == "dev"']
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    monkeypatch.setattr(metadata, "version", version)
    found = list(doctor._packages())
    assert [item.level for item in found] == ["bad", "bad"]
    assert found[0].text.startswith("cuda-python is 12.8")
    assert found[0].command is not None
    assert found[0].command.endswith("-m pip install 'cuda-python<14,>=13'")
    assert found[1].text.startswith("scipy is missing")
    versions.update({"cuda-python": "13.4.4", "scipy": "1.12"})
    assert [item.level for item in doctor._packages()] == ["ok"]


def test_run_from_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    (found,) = doctor._packages()
    assert found.level == "bad"
    assert found.command is not None
    assert found.command.endswith("pip install -e .")
