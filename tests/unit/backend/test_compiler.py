"""The NVRTC compiler and its disk cache, on any machine: NVRTC needs no GPU."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tinygrad_cuda.backend.cuda.compiler as compiler
from tinygrad_cuda.core import ownership
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import CompileError

SOURCE = 'extern "C" __global__ void add(float* p) { p[threadIdx.x] += 1.0f; }\n'
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """An empty cache on disk and in memory."""
    folder = tmp_path / "cache"
    saved = dict(compiler._cache.memory)
    compiler.clear_memory()
    with settings.override(cache_dir=folder, cache=True):
        yield folder / "cuda"
    compiler.clear_memory()
    compiler._cache.memory.update(saved)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that really reach NVRTC."""
    seen: list[str] = []
    real = compiler._run_nvrtc

    def counted(source: str, *rest: Any) -> Any:
        seen.append(source)
        return real(source, *rest)

    monkeypatch.setattr(compiler, "_run_nvrtc", counted)
    return seen


def variant(number: int) -> str:
    return SOURCE.replace("1.0f", f"{number}.0f")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_90a"])
def test_compiles_to_machine_code(cache: Path, arch: str) -> None:
    binary = compiler.compile_source(SOURCE, arch)
    assert binary.cubin[:4] == b"\x7fELF"
    assert b"add" in binary.cubin  # the name is not mangled
    assert b".target" not in binary.cubin  # no PTX inside
    assert (binary.arch, binary.cached) == (arch, False)


def test_resources_come_from_the_log(cache: Path) -> None:
    source = """extern "C" __global__ void plain(float* p) { p[threadIdx.x] += 1.0f; }
    extern "C" __global__ void shares(float* p) {
        __shared__ float line[256];
        line[threadIdx.x] = p[threadIdx.x];
        __syncthreads();
        p[threadIdx.x] = line[255 - threadIdx.x];
    }"""
    table = compiler.resources(compiler.compile_source(source, "sm_90", compiler.REPORT).log)
    assert set(table) == {"plain", "shares"}
    assert table["shares"].shared >= 1024
    assert table["plain"].shared < 1024
    assert table["plain"].registers > 0
    assert table["plain"].spill_stores == 0


def test_second_compile_is_a_hit(cache: Path, runs: list[str]) -> None:
    first = compiler.compile_source(SOURCE, "sm_90")
    second = compiler.compile_source(SOURCE, "sm_90")
    compiler.clear_memory()  # as a new process would see it
    third = compiler.compile_source(SOURCE, "sm_90")
    assert [first.cached, second.cached, third.cached] == [False, True, True]
    assert first.cubin == second.cubin == third.cubin
    assert first.log == third.log
    assert len(runs) == 1


def test_key_depends_on_all_that_matters(cache: Path, runs: list[str]) -> None:
    compiler.compile_source(SOURCE, "sm_90")
    compiler.compile_source(SOURCE, "sm_75")
    compiler.compile_source(SOURCE, "sm_90", ("--use_fast_math",))
    compiler.compile_source(variant(2), "sm_90")
    assert len(runs) == 4
    # joined without lengths these two would be one text
    assert compiler.cache_key("b", "sm_90", ("a",)) != compiler.cache_key("ab", "sm_90", ())


def test_the_source_stands_beside_the_code(cache: Path) -> None:
    binary = compiler.compile_source(SOURCE, "sm_90")
    assert (cache / f"{binary.key}.cu").read_text() == SOURCE
    assert (cache / f"{binary.key}.cubin").read_bytes().startswith(binary.cubin)
    assert sorted(path.suffix for path in cache.iterdir()) == [".cu", ".cubin"]


def test_many_keeps_the_order_and_compiles_equal_ones_once(cache: Path, runs: list[str]) -> None:
    sources = [variant(1), variant(2), variant(1), variant(3)]
    many = compiler.compile_many(sources, "sm_90")
    assert len(runs) == 3
    compiler.clear_memory()
    with settings.override(cache=False):
        singly = [compiler.compile_source(source, "sm_90") for source in sources]
    assert [binary.cubin for binary in many] == [binary.cubin for binary in singly]


def test_many_kernels_in_one_unit_all_arrive_however_compiled(cache: Path) -> None:
    source = "".join(SOURCE.replace("add", f"add{i}").replace("1.0f", f"{i}.5f") for i in range(6))
    in_threads = compiler.compile_source(source, "sm_90")
    with_report = compiler.compile_source(source, "sm_90", compiler.REPORT)
    names = [f"add{i}" for i in range(6)]
    assert all(name.encode() in in_threads.cubin for name in names)
    assert sorted(compiler.resources(with_report.log)) == names


def test_a_second_process_compiles_nothing(cache: Path) -> None:
    script = (
        "from tinygrad_cuda.backend.cuda import compiler\n"
        f"print(compiler.compile_source({SOURCE!r}, 'sm_90').cached)"
    )
    assert [run_python(script, cache.parent) for _ in range(2)] == ["False", "True"]


def test_two_processes_race_for_one_entry(cache: Path) -> None:
    script = (
        "from tinygrad_cuda.backend.cuda import compiler\n"
        "for i in range(6):\n"
        f"    compiler.compile_source({SOURCE!r}.replace('1.0f', f'{{i}}.0f'), 'sm_90')\n"
        "print('done')"
    )
    racers = [start_python(script, cache.parent) for _ in range(2)]
    assert [finish(racer) for racer in racers] == ["done", "done"]
    entries = list(cache.glob("*.cubin"))
    assert len(entries) == 6
    assert all(compiler._unpack(path.read_bytes()) is not None for path in entries)
    assert not list(cache.glob("*.tmp"))


def test_a_full_disk_means_one_warning_and_memory(
    cache: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullFile:
        write = full

        def __enter__(self) -> FullFile:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def open_full(path: Any, mode: str) -> Any:
        if mode == "rb":
            return open(path, mode)
        Path(path).touch()
        return FullFile()

    monkeypatch.setattr(ownership, "open", open_full, raising=False)
    check_memory_only(runs, "No space left")
    assert list(cache.iterdir()) == []  # no torn file stays behind


def test_a_read_only_folder_means_one_warning_and_memory(
    cache: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, mode: str) -> Any:
        if mode == "rb":
            return open(path, mode)
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(ownership, "open", refuse, raising=False)
    check_memory_only(runs, "Read-only")


def test_a_file_in_place_of_the_folder_means_one_warning_and_memory(
    cache: Path, runs: list[str]
) -> None:
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.write_text("a file where the folder should be")
    check_memory_only(runs, "cannot be kept")


def test_an_unreadable_folder_is_a_miss(
    cache: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.compile_source(SOURCE, "sm_90")
    compiler.clear_memory()

    def refuse(path: Any, mode: str) -> Any:
        if mode != "rb":
            return open(path, mode)
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(ownership, "open", refuse, raising=False)
    assert not compiler.compile_source(SOURCE, "sm_90").cached
    assert len(runs) == 2


def check_memory_only(runs: list[str], text: str) -> None:
    compiler._cache.unwritable.clear()
    with pytest.warns(RuntimeWarning, match=text) as caught:
        compiler.compile_source(SOURCE, "sm_90")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiler.compile_source(variant(2), "sm_90")
        assert compiler.compile_source(SOURCE, "sm_90").cached
    assert len(runs) == 2


def test_a_read_only_cache_still_gives_hits(
    cache: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.compile_source(SOURCE, "sm_90")
    compiler.clear_memory()
    compiler._cache.unwritable.add(cache)
    assert compiler.compile_source(SOURCE, "sm_90").cached
    assert len(runs) == 1


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "no footer", "foreign"])
def test_a_damaged_entry_is_a_miss_and_is_mended(cache: Path, runs: list[str], damage: str) -> None:
    good = compiler.compile_source(SOURCE, "sm_90")
    path = cache / f"{good.key}.cubin"
    data = path.read_bytes()
    path.write_bytes(
        {
            "flip": data[:100] + bytes([data[100] ^ 1]) + data[101:],
            "truncate": data[: len(data) // 2],
            "empty": b"",
            "no footer": good.cubin,
            "foreign": b"something else entirely" * 100,
        }[damage]
    )
    compiler.clear_memory()
    again = compiler.compile_source(SOURCE, "sm_90")
    assert (again.cached, len(runs)) == (False, 2)
    compiler.clear_memory()
    assert compiler.compile_source(SOURCE, "sm_90").cached


def test_another_nvrtc_version_is_a_miss(
    cache: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.compile_source(SOURCE, "sm_90")
    monkeypatch.setattr(compiler, "toolchain", lambda: "nvrtc 12.9 1")
    assert not compiler.compile_source(SOURCE, "sm_90").cached
    assert len(runs) == 2


def test_a_non_ascii_path(tmp_path: Path) -> None:
    folder = tmp_path / "Zwischenspeicher für Künste 数"
    with settings.override(cache_dir=folder):
        compiler.clear_memory()
        compiler.compile_source(variant(7), "sm_90")
        compiler.clear_memory()
        assert compiler.compile_source(variant(7), "sm_90").cached


def test_non_ascii_source(cache: Path) -> None:
    source = "// größer als 数\n" + SOURCE
    binary = compiler.compile_source(source, "sm_90")
    assert (cache / f"{binary.key}.cu").read_bytes() == source.encode()


def test_caching_can_be_switched_off(cache: Path) -> None:
    with settings.override(cache=False):
        compiler.compile_source(SOURCE, "sm_90")
    assert not cache.exists()


def test_a_refused_source_shows_its_lines(cache: Path) -> None:
    source = "// one\n" + SOURCE.replace("p[threadIdx.x]", "undefined_name") + "// three\n"
    with pytest.raises(CompileError) as caught:
        compiler.compile_source(source, "sm_90")
    text = str(caught.value)
    assert text.startswith("[compile] NVRTC refused the source (1 kernel for sm_90)\n  expect:")
    assert 'kernels.cu(2): error: identifier "undefined_name" is undefined' in text
    assert "   1 | // one\n" in text
    assert '>    2 | extern "C" __global__ void add(float* p) { undefined_name += 1.0f; }' in text
    assert "   3 | // three\n" in text
    assert f"  at:     {Path(__file__).name}:" in text
    assert not cache.exists()


def test_the_first_failing_source_of_many_decides_the_error(cache: Path) -> None:
    bad = [SOURCE.replace("1.0f", name) for name in ("alpha", "beta")]
    with pytest.raises(CompileError, match='identifier "alpha" is undefined'):
        compiler.compile_many([SOURCE, *bad], "sm_90")


def test_an_architecture_that_nvrtc_lacks(cache: Path) -> None:
    with pytest.raises(CompileError, match=r"cannot target 'sm_13'") as caught:
        compiler.compile_source(SOURCE, "sm_13")
    assert "sm_90" in str(caught.value)
    with pytest.raises(CompileError, match="cannot target 'compute_90'"):
        compiler.compile_source(SOURCE, "compute_90")  # that would be PTX


def test_missing_nvrtc_names_the_command(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.toolchain.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(CompileError, match="NVRTC is not installed") as caught:
        compiler.compile_source(SOURCE, "sm_90")
    assert "hint:   pip install 'nvidia-cuda-nvrtc" in str(caught.value)


def test_kernels_are_counted() -> None:
    macro = '#define TGC_KERNEL(NAME, T) \\\n  extern "C" __global__ void NAME()\n'
    assert compiler.count_kernels(macro + SOURCE + "TGC_KERNEL(a, 256) {}\n") == 2


def test_a_slow_compilation_says_so_once(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.compile_source(variant(1), "sm_90")
    assert capsys.readouterr().err == ""  # a quick one says nothing

    shown = threading.Event()
    show, run = compiler._SlowNotice._show, compiler._run_nvrtc

    def show_and_tell(self: Any) -> None:
        show(self)
        shown.set()

    def run_after_the_notice(*arguments: Any) -> Any:
        assert shown.wait(60)
        return run(*arguments)

    monkeypatch.setattr(compiler, "SLOW", 0.0)
    monkeypatch.setattr(compiler._SlowNotice, "_show", show_and_tell)
    monkeypatch.setattr(compiler, "_run_nvrtc", run_after_the_notice)
    compiler.compile_many([variant(8), variant(9)], "sm_90")
    assert capsys.readouterr().err == "tinygrad_cuda: compiling 2 kernels\n"


def start_python(script: str, cache_dir: Path) -> subprocess.Popen[str]:
    environment = os.environ | {
        "TGC_CACHE_DIR": str(cache_dir),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
    }
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.strip()


def run_python(script: str, cache_dir: Path) -> str:
    return finish(start_python(script, cache_dir))
