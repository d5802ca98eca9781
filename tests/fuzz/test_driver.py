"""The fuzzers' driver finds what hangs, dies or differs, and shrinks it."""

from __future__ import annotations

import time
from pathlib import Path

import accepted
import driver
import pytest


def test_a_failing_program_is_shrunk_to_the_steps_that_it_needs() -> None:
    needed = {3, 17, 18}
    assert driver.shrink(list(range(40)), lambda steps: needed <= set(steps)) == [3, 17, 18]


def test_accepted_differences_are_rules_of_the_list() -> None:
    assert len(accepted.RULES) <= accepted.LIMIT
    assert all(all(rule) for rule in accepted.RULES.values())
    assert driver.accepted("values: 1 and 2") is None
    with pytest.raises(KeyError, match="no rule"):
        driver.accepted("accepted: what nobody wrote down")


INSTRUMENT = """
import os, time
events = {}
def generate(seed): return [("step", seed)]
def check(program, device):
    seed = program[0][1]
    events["steps taken"] = 10
    if seed == 1: os._exit(3)
    if seed == 2: time.sleep(600)
    if seed == 3: raise ValueError("three")
    return "values: differ" if seed == 4 else None
"""


def test_workers_that_hang_or_die_are_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pretended_instrument.py").write_text(INSTRUMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    until = time.monotonic() + 600
    found = list(driver.campaign("pretended_instrument", "cpu", range(6), 2, 3.0, until))
    kinds = {o.seed: driver.kind(o.difference) for o in found}
    expected = {0: None, 1: "died", 2: "hung", 3: "raised ValueError", 4: "values", 5: None}
    assert kinds == expected
    (hung,) = (o.difference for o in found if driver.kind(o.difference) == "hung")
    assert hung is not None
    assert "0 s of computing at a load of " in hung
    # Of the programs that died or hung nothing is known.
    assert "6 programs, 4 differences, 1 s\n  40 steps taken\n" in driver.summary(found, 1.0)
