"""Settings: every variable's parsing and default, override, and that nothing else reads TGC_*."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinygrad_cuda.core.config import VARIABLES, Settings, settings

PACKAGE = Path(__file__).resolve().parents[2] / "tinygrad_cuda"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TGC_"):
            monkeypatch.delenv(name)


def test_defaults() -> None:
    fresh = Settings()
    assert fresh.debug == 0
    assert fresh.eager is False
    assert fresh.cache is True
    assert fresh.data is None
    assert fresh.device == ""
    assert fresh.cache_dir.name == "tinygrad_cuda"


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("TGC_DEBUG", "3", "debug", 3),
        ("TGC_EAGER", "1", "eager", True),
        ("TGC_EAGER", "No", "eager", False),
        ("TGC_VALIDATE", "true", "validate", True),
        ("TGC_SYNC", "", "sync", False),
        ("TGC_CACHE", "off", "cache", False),
        ("TGC_CACHE_DIR", "~/kernels", "cache_dir", Path.home() / "kernels"),
        ("TGC_DATA", "/data", "data", Path("/data")),
        ("TGC_DEVICE", "cuda:1", "device", "cuda:1"),
        ("TGC_EMU_ORDER", "7", "emu_order", 7),
        ("TGC_EMU_OPTIMIZE", "no", "emu_optimize", False),
        ("TGC_EMU_LAUNCHES", "3", "emu_launches", 3),
        ("TGC_POOL_LIMIT", "1048576", "pool_limit", 1 << 20),
    ],
)
def test_parsing(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, field: str, value: Any
) -> None:
    monkeypatch.setenv(name, text)
    assert getattr(Settings(), field) == value


def test_every_variable_is_a_typed_field() -> None:
    """One row per variable, each with a meaning and a declared type."""
    fields = [variable.field for variable in VARIABLES]
    assert len(set(fields)) == len({variable.name for variable in VARIABLES}) == len(fields)
    assert set(fields) == set(Settings.__annotations__)
    assert all(variable.name.startswith("TGC_") and variable.meaning for variable in VARIABLES)


def test_bad_value_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TGC_DEBUG", "much")
    with pytest.raises(ValueError, match=r"TGC_DEBUG='much' is not a valid value \(1 plan"):
        Settings()


def test_override_ends_with_the_block() -> None:
    """Also nested, and also when the block raises."""
    before = settings.debug
    with settings.override(debug=before + 1, eager=True):
        assert settings.debug == before + 1
        with settings.override(debug=before + 2):
            assert settings.debug == before + 2
        assert settings.debug == before + 1
    with pytest.raises(ZeroDivisionError), settings.override(debug=before + 5):
        raise ZeroDivisionError
    assert settings.debug == before


def test_override_of_an_unknown_setting() -> None:
    """A misspelled name is an error, and changes nothing."""
    with pytest.raises(AttributeError), settings.override(debugg=1):
        pass
    assert not hasattr(settings, "debugg")


@pytest.mark.skipif(os.name == "nt", reason="XDG_CACHE_HOME is a convention of Unix")
def test_cache_folder_follows_the_platform() -> None:
    program = "from tinygrad_cuda.core.config import settings; print(settings.cache_dir)"
    environment = {**os.environ, "XDG_CACHE_HOME": "/elsewhere"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "/elsewhere/tinygrad_cuda"


def test_nothing_else_reads_the_environment_for_its_settings() -> None:
    """os.environ is asked for TGC_* in core/config.py only."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).as_posix() == "core/config.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call | ast.Subscript) and "environ" in ast.unparse(node):
                reads = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                if any(isinstance(text, str) and text.startswith("TGC_") for text in reads):
                    wrong.append(f"{path}:{node.lineno}")
    assert not wrong
