"""The counts of lab: files of a first call, code lines, long functions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.code_size import PACKAGE, cpp_size, long_functions, python_size, replay_files

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""A docstring."""
# A comment.
class Thing:
    def short(self):
        return 1

    def long(self):
        """Not counted."""
        a = 1  # counted

        # Not counted.
        def inner():
            return (
                a
            )
        return inner
'''


def test_code_is_counted_without_texts_and_comments() -> None:
    assert python_size(SOURCE) == (10, 8)
    assert cpp_size("// no\nint a; /* b\n c */ int d;\n\n") == 2


def test_long_functions_have_qualified_names() -> None:
    assert long_functions(SOURCE, 3) == {"Thing.long": 7, "Thing.long.inner": 4}
    assert long_functions(SOURCE, 4) == {"Thing.long": 7}
    assert long_functions(SOURCE) == {}


def traced(device: str, *options: str) -> tuple[int, int, int, list[str]]:
    """What lab/trace_files.py prints: files, changes of file, calls, and the files in order."""
    command = [sys.executable, str(ROOT / "lab" / "trace_files.py"), device, "--show", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if device == "emu" and "C++ compiler" in result.stderr:
        pytest.skip("no C++ compiler")
    first, *files = result.stdout.splitlines()
    found = re.fullmatch(rf"{device}: (\d+) files, (\d+) changes of file, (\d+) calls", first)
    assert found is not None, first
    distinct, changes, calls = map(int, found.groups())
    return distinct, changes, calls, [line.split(":")[0].strip() for line in files]


@pytest.mark.parametrize(
    ("device", "most_files", "most_changes", "last"),
    [
        ("cpu", 17, 46, "backend/cpu/backend.py"),
        ("emu", 25, 95, "backend/emu/runtime.py"),
    ],
)
def test_a_first_call_passes_few_files(
    device: str, most_files: int, most_changes: int, last: str
) -> None:
    """A step without work is not entered; an empty cache adds 6 changes of file."""
    distinct, changes, calls, names = traced(device)
    assert len(set(names)) == distinct <= most_files
    assert len(names) == changes + 1 <= most_changes + 1
    assert changes < calls
    assert names[0].startswith("tensor")
    assert names[-1] == last


@pytest.mark.fast_paths
@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_a_replay_passes_eight_files(device: str) -> None:
    distinct, *_, names = traced(device, "--replay")
    assert len(set(names)) == distinct <= 8
    assert names[0] == "capture/compiled.py"
    assert names[-1].startswith(f"backend/{device}/")


def test_the_files_that_recognise_are_listed_and_do_not_grow() -> None:
    """The goal is 5,000 lines; docs/architecture/replay.md has the sum of today."""
    listed = {name: size for name, size, _ in replay_files()}
    rooms = [*(PACKAGE / "replay").rglob("*.py"), *PACKAGE.rglob("*_replay.py")]
    assert {path.relative_to(PACKAGE).as_posix() for path in rooms} <= listed.keys()
    assert sum(listed.values()) <= 6_754
