"""Settings: every variable's parsing and default, override, and that nothing else reads TGC_*."""

from __future__ import annotations

import ast
import os
import re
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


@pytest.mark.parametrize(
    ("name", "text", "message", "field", "value"),
    [
        (
            "TGC_DEBUG",
            "much",
            r"TGC_DEBUG='much' is not a valid value, 0 is .* \(1 plan",
            "debug",
            0,
        ),
        ("TGC_DEBUG", "9", r"TGC_DEBUG=9 is out of range, 5 is used", "debug", 5),
        ("TGC_DEBUG", "-1", r"TGC_DEBUG=-1 is out of range, 0 is used", "debug", 0),
        ("TGC_EAGER", "maybe", r"TGC_EAGER='maybe' is not a valid value", "eager", False),
        ("TGC_POOL_LIMIT", "-5", r"TGC_POOL_LIMIT=-5 is out of range", "pool_limit", 0),
        ("TGC_EMU_ORDER", "-5", r"TGC_EMU_ORDER=-5 is out of range", "emu_order", 0),
    ],
)
def test_bad_value_warns_and_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str, field: str, value: Any
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.warns(UserWarning, match=message):
        assert getattr(Settings(), field) == value


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TGC_DEBUGG", "TGC_DEBUGG is no variable of tinygrad_cuda; did you mean TGC_DEBUG?"),
        ("TGC_CACHEDIR", "TGC_CACHEDIR is no variable .* mean TGC_CACHE_DIR?"),
        ("TGC_QQQ", "TGC_QQQ is no variable of tinygrad_cuda$"),
    ],
)
def test_unknown_name_warns(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.warns(UserWarning, match=message):
        Settings()


def test_a_program_says_so_once() -> None:
    """At import, with a line that names the variable; the program runs."""
    result = subprocess.run(
        [sys.executable, "-c", "import tinygrad_cuda"], env={**os.environ, "TGC_DEVICES": "cpu"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stderr.count("TGC_DEVICES is no variable") == 1


def test_every_variable_is_documented() -> None:
    """A row of the table in docs/looking_inside.md for each, with its default, and none besides."""
    text = (PACKAGE.parent / "docs" / "looking_inside.md").read_text(encoding="utf-8")
    table = text.partition("## Environment variables")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(TGC_\w+)` \|([^|]*)\|", table, re.MULTILINE))
    assert list(rows) == [variable.name for variable in VARIABLES]
    for variable in VARIABLES:
        if variable.field != "cache_dir":
            assert rows[variable.name].strip("` ") == variable.default


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
