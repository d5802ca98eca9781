"""Schedules that begin after others, and the cooldown of `ReduceLROnPlateau`."""

from __future__ import annotations

from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.optim import lr_scheduler


def rates(make: Any, steps: int = 4) -> list[float]:
    x = tc.ones(1, device="cpu", requires_grad=True)
    optimizer = tc.optim.SGD([x], lr=1.0)
    schedules = [lr_scheduler.ConstantLR(optimizer, 0.5, 9), make(optimizer)]
    schedule = lr_scheduler.SequentialLR(optimizer, schedules, [2])
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_a_product_begins_with_its_first_factor() -> None:
    found = rates(lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9))
    assert found == pytest.approx([0.5, 0.5, 0.9, 0.81])


def test_a_constant_of_no_steps() -> None:
    assert rates(lambda o: lr_scheduler.ConstantLR(o, 0.1, total_iters=0)) == [0.5, 0.5, 1.0, 1.0]


def test_cooldown() -> None:
    x = tc.ones(1, device="cpu", requires_grad=True)
    schedule = lr_scheduler.ReduceLROnPlateau(tc.optim.SGD([x], lr=1.0), patience=0, cooldown=1)
    seen = []
    for metric in (1.0, 1.0, 1.0, 1.0):
        schedule.step(metric)
        seen.append(schedule.in_cooldown)
    assert seen == [False, True, False, True]
