"""Machine code is loaded from a cache only where nobody else could have put it there."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path
from typing import Any

import pytest

from tinygrad_cuda.backend.cuda import compiler as nvrtc
from tinygrad_cuda.backend.emu import compiler as emulator
from tinygrad_cuda.backend.emu.runtime import prelude
from tinygrad_cuda.core.config import Settings, settings
from tinygrad_cuda.core.errors import CompileError, DeviceError
from tinygrad_cuda.core.ownership import distrust, own_folder, read_own
from tinygrad_cuda.utils import doctor

CUDA = 'extern "C" __global__ void planted() {}\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(nvrtc, "_cache", nvrtc._CubinCache())
    emulator._warn_unwritable.cache_clear()
    emulator._checked.clear()
    with settings.override(cache_dir=tmp_path / "cache", cache=True):
        yield tmp_path / "cache"


def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there belongs to somebody else from now on."""
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    assert own_folder(tmp_path / "a" / "b") is None
    assert mode(tmp_path / "a" / "b") == 0o700


def test_an_own_folder_that_others_can_write_to_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert own_folder(folder) is None
    assert mode(folder) == 0o755


def test_a_folder_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_user(monkeypatch)
    assert "belongs to user" in str(distrust(tmp_path))


def test_a_folder_inside_one_that_everybody_writes_to_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    tmp_path.chmod(0o777)
    assert "every user" in str(distrust(tmp_path / "own"))
    tmp_path.chmod(0o1777)  # as /tmp: what is inside stays its owner's
    assert distrust(tmp_path / "own") is None


@pytest.mark.parametrize("bits", [0o666, 0o660, 0o602])
def test_a_file_that_others_can_write_to_is_not_read(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "entry"
    path.write_bytes(b"code")
    path.chmod(bits)
    assert read_own(path) is None
    path.chmod(0o600)
    assert read_own(path) == b"code"


def test_the_emulator_compiles_anew_what_others_could_have_written(cache: Path) -> None:
    source = prelude()
    path = emulator.compile_source(source)
    assert mode(path) == 0o700
    # An entry under the right name that is whole: its checksum is no secret.
    planted = path.read_bytes()
    path.unlink()
    path.write_bytes(planted)
    path.chmod(0o777)
    inode = path.stat().st_ino
    emulator._checked.clear()
    again = emulator.compile_source(source)
    assert again == path
    assert again.stat().st_ino != inode
    assert mode(again) == 0o700


def test_the_emulator_leaves_a_foreign_folder_alone(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = prelude() + "// foreign\n"
    path = emulator.compile_source(source)
    another_user(monkeypatch)
    emulator._checked.clear()
    with pytest.warns(RuntimeWarning, match="belongs to user"):
        own = emulator.compile_source(source)
    assert cache not in own.parents
    assert path.exists()


def test_cubins_that_others_could_have_written_are_not_loaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "_run_nvrtc", lambda *arguments: nvrtc._Outcome(b"\x7fELF code", ""))
    good = nvrtc.compile_source(CUDA, "sm_90")
    entry = cache / "cuda" / f"{good.key}.cubin"
    assert mode(entry) == 0o600
    nvrtc.clear_memory()
    assert nvrtc.compile_source(CUDA, "sm_90").cached
    entry.chmod(0o666)
    nvrtc.clear_memory()
    assert not nvrtc.compile_source(CUDA, "sm_90").cached
    nvrtc.clear_memory()
    nvrtc._cache.trusted.clear()
    another_user(monkeypatch)
    with pytest.warns(RuntimeWarning, match="belongs to user"):
        assert not nvrtc.compile_source(CUDA, "sm_90").cached


def test_doctor_names_no_shared_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    another_user(monkeypatch)
    found = next(f for f in doctor.findings_of_machine() if f.name == "cache")
    assert "belongs to user" in found.text
    assert found.command == 'export TGC_CACHE_DIR="$(mktemp -d)"'


# Environment variables that are set to nothing, or to nonsense ------------------------------------


@pytest.mark.parametrize("name", ["TGC_CACHE_DIR", "XDG_CACHE_HOME"])
def test_an_empty_folder_is_the_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TGC_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    expected = Settings().cache_dir
    monkeypatch.setenv(name, "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Settings().cache_dir == expected
    assert expected.is_absolute()


@pytest.mark.parametrize("text", [" ", "g++ 'unfinished", "/no/such/compiler", "/"])
def test_a_compiler_that_is_none_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", text)
    with pytest.raises(DeviceError, match="no C\\+\\+ compiler"):
        emulator.toolchain()


def test_a_compiler_that_makes_nothing_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "true")
    with pytest.raises(CompileError, match="no shared library"):
        emulator.compile_source(prelude())
