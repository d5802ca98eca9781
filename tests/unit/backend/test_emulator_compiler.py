"""The emulator's compiler: the cache, its damage, missing compilers, errors that show the line."""

from __future__ import annotations

import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation import apply, elementwise, kernel, launch, module

from tinygrad_cuda.backend.emu import compiler
from tinygrad_cuda.backend.emu.runtime import EmulatedModule, KernelFault, prelude
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import CompileError, DeviceError

ADD = elementwise("add", ["float32", "float32"], "float32", "a + b")

NEIGHBOUR = """
int* values = reinterpret_cast<int*>(smem);
values[threadIdx.x] = threadIdx.x;
__syncthreads();
tgc_store(p.out, threadIdx.x, values[threadIdx.x > 0 ? threadIdx.x - 1 : 0]);
"""


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    with settings.override(cache_dir=tmp_path, cache=True):
        yield tmp_path / "emu"


@pytest.fixture
def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    built: list[str] = []
    build = compiler._build

    def counted(source: str, folder: Path, key: str, extra_options: tuple[str, ...]) -> None:
        built.append(key)
        build(source, folder, key, extra_options)

    monkeypatch.setattr(compiler, "_build", counted)
    return built


def another_process() -> None:
    """Forgets which entries this process has verified."""
    compiler._checked.clear()


def test_compiles_once(cache: Path, count_builds: list[str]) -> None:
    source = prelude() + ADD
    path = compiler.compile_source(source)
    another_process()
    assert compiler.compile_source(source) == path
    assert len(count_builds) == 1
    assert sorted(p.suffix for p in cache.iterdir()) == [".cpp", ".so"]
    assert path.with_suffix(".cpp").read_text() == source
    compiler.compile_source(source + " ")
    assert len(count_builds) == 2


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign"])
def test_a_damaged_entry_is_a_miss(cache: Path, count_builds: list[str], damage: str) -> None:
    source = prelude() + ADD
    path = compiler.compile_source(source)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(
        {"truncated": data[:-100], "flipped": data, "empty": b"", "foreign": b"hello" * 99}[damage]
    )
    another_process()
    one = np.ones(3, np.float32)
    assert (apply(EmulatedModule(source), "add", "float32", one, one) == 2).all()
    assert len(count_builds) == 2


def test_two_threads_compile_one_source_once(cache: Path, count_builds: list[str]) -> None:
    paths = compiler.compile_many([prelude() + ADD] * 4)
    assert len(set(paths)) == len(count_builds) == 1


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, count_builds: list[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    one = np.ones(3, np.float32)
    with settings.override(cache_dir=blocked, cache=True):
        with pytest.warns(RuntimeWarning, match="cannot be kept"):
            unit = EmulatedModule(prelude() + ADD)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            EmulatedModule(prelude() + ADD)
    assert (apply(unit, "add", "float32", one, one) == 2).all()


def test_without_a_cache_nothing_is_left_behind(tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path, cache=False):
        path = compiler.compile_source(prelude() + ADD)
    assert path.exists()
    assert not list(tmp_path.iterdir())


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(DeviceError) as caught:
        EmulatedModule(prelude() + ADD)
    text = str(caught.value)
    for word in ("no C++ compiler", "c++, g++ or clang++", "hint:", "'cpu'"):
        assert word in text


def test_cxx_names_the_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    script = tmp_path / "mycxx"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {compiler.toolchain().command[0]} "$@"')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", f"{script} -DEXTRA")
    compiler.compile_source(prelude() + ADD)
    assert "-DEXTRA" in log.read_text()
    monkeypatch.setenv("CXX", str(tmp_path / "gone"))
    with pytest.raises(DeviceError, match="gone"):
        compiler.compile_source(prelude() + ADD)


def test_a_compile_error_shows_the_line(cache: Path) -> None:
    source = prelude() + ADD.replace("a + b", "a + missing")
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "missing" in text)
    with pytest.raises(CompileError) as caught:
        EmulatedModule(source)
    text = str(caught.value)
    assert f"kernels:{line}: 'missing' was not declared" in text or "undeclared" in text
    assert f"> {line:>4} |" in text
    assert "a + missing" in text
    assert not list(cache.iterdir())


def test_other_processors_switch_by_ucontext(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to switch fibers where there is no assembly for it, forced here."""
    command = " ".join(compiler.toolchain().command)
    monkeypatch.setenv("CXX", f"{command} -DTGC_EMU_UCONTEXT")
    unit = module(
        kernel("barrier", "int* out;", NEIGHBOUR),
        kernel("hang", "int* out;", "if (threadIdx.x != 3) __syncwarp();"),
    )
    for order in (0, 1):
        out = np.zeros(128, np.int32)
        launch(unit, "barrier", out, block=128, shared=512, grid=2, order=order)
        np.testing.assert_array_equal(out, np.maximum(np.arange(128) - 1, 0))
        with pytest.raises(KernelFault, match="hangs"):
            launch(unit, "hang", out, order=order)
