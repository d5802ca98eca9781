"""SIGINT in a training process: every kind of step happens whole or not at all."""

from __future__ import annotations

import interrupts
import pytest

KINDS = [
    pytest.param(kind, marks=pytest.mark.fast_paths) if kind in interrupts.REPLAYED else kind
    for kind in interrupts.KINDS
]


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_to_the_same_bits_after_signals(kind: str) -> None:
    seed = interrupts.KINDS.index(kind)
    delays = [step for step in interrupts.generate(seed) if step[0] == "signal"]
    program = [("set", "kind", kind), ("set", "turns", 60), ("thread",), *delays[:10]]
    assert interrupts.check(program, "cpu") is None
    assert sum(interrupts.events.values()) >= 1
    interrupts.events.clear()
