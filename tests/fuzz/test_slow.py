"""Programs with and without fast paths, in CI; and whether the instrument notices a wrong one."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import driver  # noqa: E402
import slow  # noqa: E402

from tinygrad_cuda.replay.plan_lookup import PlanEntry  # noqa: E402


def test_fast_and_slow_have_the_same_bits() -> None:
    until = time.monotonic() + 240
    outcomes = list(driver.campaign("slow", "cpu", range(12), 1, 120, until))
    assert len(outcomes) == 12
    assert [outcome.difference for outcome in outcomes if outcome.difference] == []


@pytest.mark.fast_paths
def test_a_plan_that_runs_with_earlier_numbers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learning rate that a schedule changes, and a lookup that has kept the first."""
    learn = PlanEntry._learn_numbers

    def learned(entry: PlanEntry, *plan: Any) -> None:
        learn(entry, *plan)
        entry.single = []

    program = [
        ("set", "seed", 1), ("set", "turns", 6), ("set", "schedule", "ExponentialLR"),
        ("in", 1, 0, "forward"), ("in", 1, 0, "loss", "mse", 0), ("in", 1, 0, "backward", 0, False),
        ("in", 1, 0, "step"), ("in", 1, 0, "zero", 0, True), ("out", 1, 0, "schedule"),
        ("out", 1, 0, "look", "losses", 0),
    ]  # fmt: skip
    assert slow.check(program, "cpu") is None
    monkeypatch.setattr(PlanEntry, "_learn_numbers", learned)
    assert slow.check(program, "cpu") is not None
