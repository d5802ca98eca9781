"""A test that hangs fails by itself within its time limit, and the others run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HANGING = """
import ctypes

def test_before(): pass

def test_hangs():
    ctypes.PyDLL(None).sleep(600)  # PyDLL holds the interpreter's lock, as a kernel on emu may

def test_after(): pass
"""


def test_a_hanging_test_fails_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    tests = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider"]
    command += ["-n", "1", "--time-limit", "2", "-c", os.devnull, "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert "1 failed, 2 passed" in done.stdout
    assert "crashed while running" in done.stdout and "test_hangs" in done.stdout
