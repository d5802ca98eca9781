"""Compiled functions whose Python values change: each kind of value, and each path to one."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest
import traps
from trap_kinds import KINDS, PATHS

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.replay.guards.values import Names

COUNTS = (("call", 3), ("change", 0), ("call", 3), ("change", 0), ("call", 2))


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """The interpreter's profiler stays whose it was, and no program leaves autocast on."""
    before = sys.getprofile()
    yield
    assert sys.getprofile() is before
    assert not tc.is_autocast_enabled("cpu")


def differences(values: list[tuple[int, int]], device: str) -> list[str]:
    found = []
    for kind, path in values:
        difference = traps.check([("value", kind, path), *COUNTS], device)
        if difference is not None:
            found.append(f"{KINDS[kind].name}, {PATHS[path][0]}: {difference}")
    return found


@pytest.mark.parametrize("part", range(4))
def test_kinds_and_paths(part: int) -> None:
    """Each kind directly and on one other path, in all each path six times."""
    kinds = range(part, len(KINDS), 4)
    values = [(kind, path) for kind in kinds for path in (0, 1 + kind % (len(PATHS) - 1))]
    assert differences(values, "cpu") == []


def test_on_the_emulator() -> None:
    try:
        registry.get(as_device("emu"))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    values = [(kind, kind % len(PATHS)) for kind in range(0, len(KINDS), 5)]
    assert differences(values, "emu") == []


def test_several_values_at_once() -> None:
    chosen = random.Random(5).sample(range(10_000, 1_000_000), 40)
    programs = [traps.generate(seed) for seed in chosen]
    assert [p for p in programs if traps.check(p, "cpu") is not None] == []


@pytest.mark.fast_paths
def test_a_stale_replay_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instrument itself: without its guards a compiled function fails it."""
    monkeypatch.setattr(Names, "changes", lambda self: iter(()))
    assert differences([(0, 0)], "cpu")[0].startswith("a global, directly: stale")
