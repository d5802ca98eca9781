"""The error word's copy on the host: which runs an error may belong to. No GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from tinygrad_cuda.backend.base import LINE
from tinygrad_cuda.backend.cuda.backend import ERROR_BYTES, _ErrorMirror

FIRST = 1 << 62  # of a program's codes


class Card:
    """A device that does nothing; its pinned memory is the host's."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(ERROR_BYTES)
        self.waits = 0

    def allocate(self, nbytes: int) -> Any:
        return SimpleNamespace(address=0)

    def call(self, name: str, *arguments: Any) -> int:
        return ctypes.addressof(self.memory)

    def copy_in(self, address: int, data: Any) -> None: ...

    def fill(self, address: int, nbytes: int) -> None: ...

    def synchronize(self) -> None:
        self.waits += 1


@pytest.fixture
def mirror() -> _ErrorMirror:
    return _ErrorMirror(Card())  # type: ignore[arg-type]


def test_runs_without_checks_of_their_own_are_alike(mirror: _ErrorMirror) -> None:
    mirror.watch(FIRST, ())
    mirror.watch(FIRST, [])
    assert mirror.gpu.waits == 0  # type: ignore[attr-defined]


def test_a_run_of_the_same_line_waits_for_nothing(mirror: _ErrorMirror) -> None:
    mirror.watch(FIRST, [7 << LINE, 8 << LINE])
    mirror.watch(FIRST, [(7 << LINE) + 1, (8 << LINE) + 2])
    assert mirror.gpu.waits == 0  # type: ignore[attr-defined]


def test_an_error_of_the_run_before_is_not_that_of_another_line(mirror: _ErrorMirror) -> None:
    mirror.watch(FIRST, [7 << LINE, 8 << LINE])
    mirror.words[0], mirror.words[1] = FIRST + 1 + 1, 99
    mirror.watch(FIRST, [7 << LINE, 9 << LINE])
    assert mirror.gpu.waits > 0  # type: ignore[attr-defined]
    found = mirror.look()
    assert found is not None and (found.code, found.index) == (8 << LINE, 99)
