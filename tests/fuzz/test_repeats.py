"""Programs that resemble one another, in CI; and whether the instrument notices a stale result."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import driver  # noqa: E402
import graph_ops  # noqa: E402
import repeats  # noqa: E402

LEAF = ("leaf", 0, (3, 4), "float32", "normal", True, 1)
STEP = ("op", 1, "abs", (2, 3, 4), 7)


def test_what_ran_before_changes_nothing() -> None:
    until = time.monotonic() + 240
    outcomes = list(driver.campaign("repeats", "cpu", range(8), 1, 120, until))
    assert len(outcomes) == 8
    assert [outcome.difference for outcome in outcomes if outcome.difference] == []


@pytest.mark.parametrize("kind", sorted(set(repeats.CHANGES)))
def test_a_change_leaves_a_program_that_runs(kind: str) -> None:
    program = repeats.generate(3)
    steps = [step for step in program if step[0] != "change"]
    other = repeats.changed(steps, kind, 5)
    assert other != steps
    assert repeats.check([*steps[:12], ("change", kind, 5)], "cpu") is None


def test_a_result_of_an_earlier_call_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that recognises its operand by its shape alone, and gives the first result."""
    row, seen = graph_ops.OPS["abs"], {}

    def run(lib: Any, k: Any, x: Any) -> Any:
        return x.abs() if lib is torch else seen.setdefault(tuple(x.shape), x.abs())

    program = [LEAF, STEP, ("change", "values", 5)]
    assert repeats.check(program, "cpu") is None
    monkeypatch.setitem(graph_ops.OPS, "abs", row._replace(run=run))
    difference = repeats.check(program, "cpu")
    assert difference is not None
    assert difference.startswith("value of abs")
