"""Plans are found again, numbers that vary become arguments, and no two traces are confused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.tensors.base import wrap

pytestmark = pytest.mark.smoke("engine")


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    realize_all()  # what other tests have left
    cache.clear()
    yield
    tc.set_default_device(None)


def made(work: Any) -> int:
    before = cache.made
    work()
    realize_all()
    return cache.made - before


def values(*numbers: float) -> Any:
    return tc.tensor(list(numbers), dtype=tc.float64)


def test_one_trace_is_one_plan() -> None:
    x = values(1, 2, 3)
    assert made(lambda: (x.exp() * 2).tolist()) == 1
    assert made(lambda: (x.exp() * 2).tolist()) == 0
    assert made(lambda: (values(4, 5, 6).exp() * 2).tolist()) == 0


def test_another_structure_is_another_plan() -> None:
    x = values(1, 2, 3, 4)
    plans = [
        lambda: (x + 1).sum().item(),
        lambda: (x + x).sum().item(),
        lambda: (x[:2] + 1).sum().item(),
        lambda: (x.reshape(2, 2) + 1).sum().item(),
        lambda: (x.float() + 1).sum().item(),
        lambda: (x.reshape(2, 2) + 1).sum(0).tolist(),
    ]
    assert [made(plan) for plan in plans] == [1] * len(plans)
    assert [made(plan) for plan in plans] == [0] * len(plans)


def test_a_number_that_varies_becomes_an_argument() -> None:
    x = values(1, 2, 3)
    counts = []
    for turn in range(6):
        counts.append(made(lambda t=turn: (x * (t + 0.5)).tolist()))
        assert (x * (turn + 0.5)).tolist() == [turn + 0.5, 2 * turn + 1, 3 * turn + 1.5]
    assert counts == [1, 1, 0, 0, 0, 0]


def test_only_the_number_that_varies_becomes_an_argument() -> None:
    x = values(1, 2, 3)
    for turn in range(4):
        assert ((x + turn) * 7).tolist() == [7 * (v + turn) for v in (1, 2, 3)]
    entries = cache.entries.values()
    (entry,) = [entry for entry in entries if len(entry.fixed) + len(entry.positions) == 2]
    assert len(entry.varying) == 1


def test_positions_of_slices_and_integers_vary() -> None:
    x = tc.arange(40, dtype=tc.float64).clone()
    realize_all()

    def turn(t: int) -> None:
        assert x[t].item() == t
        assert x[t : t + 3].tolist() == [t, t + 1, t + 2]
        assert x[2 * t : 2 * t + 6 : 2].sum().item() == 6 * t + 6

    assert [made(lambda t=t: turn(t)) > 0 for t in range(8)] == [True, True] + [False] * 6


@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, -math.inf, math.nan, 1, True, 2**40, 0.1])
def test_numbers_are_told_apart(number: float) -> None:
    """Also where Python's equality would not: 0.0 and -0.0, NaN, 1 and True."""
    x = values(2.0, -3.0)
    with np.errstate(all="ignore"):
        for other in (1.0, number, 0.0, number, -0.0, number):
            expected = np.copysign(np.array([2.0, -3.0]) * other, np.array([2.0, -3.0]) * other)
            np.testing.assert_array_equal((x * other).numpy(), expected)
            assert (
                np.signbit((x * other).numpy()).tolist()
                == np.signbit(np.array([2.0, -3.0]) * other).tolist()
            )


def test_the_order_of_attributes_is_no_trap() -> None:
    """Two calls that name the same attributes in another order."""
    x = values(1, 2)
    realize_all()

    def padded(first: bool, value: float, start: int) -> Any:
        options: dict[str, Any] = {"starts": (start,), "shape": (6,), "steps": (1,)}
        options = {"value": value, **options} if first else {**options, "value": value}
        return wrap(movement.pad(x.node, **options)).tolist()

    for value, start in ((0, 3), (3, 0), (1, 2), (2, 1), (4, 4)):
        expected = [float(value)] * 6
        expected[start : start + 2] = [1.0, 2.0]
        assert padded(True, value, start) == expected
        assert padded(False, value, start) == expected


def test_a_rate_that_changes_each_step_makes_no_plan() -> None:
    w = tc.tensor([1.0, 2.0], dtype=tc.float64, requires_grad=True)

    def step(turn: int) -> None:
        w.grad = None
        (w * w).sum().backward()
        with tc.no_grad():
            w.sub_(w.grad * (0.1 / (turn + 1)))

    assert [made(lambda t=t: step(t)) for t in range(6)] == [1, 1, 0, 0, 0, 0]


def test_the_least_recently_used_plan_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinygrad_cuda.engine.plan.CAPACITY", 2)
    x = values(1, 2)

    def use(name: str) -> int:
        return made(lambda: getattr(x, name)().tolist())

    assert [use(name) for name in ("exp", "sin", "exp", "cos", "exp", "sin")] == [1, 1, 0, 1, 0, 1]


def test_settings_that_change_code_are_in_the_key() -> None:
    from tinygrad_cuda.core.config import settings

    x = values(1, 2)
    assert made(lambda: x.exp().tolist()) == 1
    with settings.override(validate=True):
        assert made(lambda: x.exp().tolist()) == 1
