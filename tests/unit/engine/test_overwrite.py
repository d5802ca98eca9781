"""Assigns overwrite their storage in steady loops, and only when nobody can read the old value."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.realize import realize_all

pytestmark = pytest.mark.usefixtures("overwriting")


class Place:
    """Where a tensor's value is now; held weakly, since whoever holds a storage may read it."""

    def __init__(self, tensor: Any) -> None:
        realize_all()
        self.storage = weakref.ref(tensor.cell.node.storage)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Place)
            and self.storage() is not None
            and self.storage() is other.storage()
        )


def step(tensor: Any) -> bool:
    """Writes to the tensor; whether the write took the old value's storage."""
    before = Place(tensor)
    with tc.no_grad():
        tensor.add_(1.0)
    return Place(tensor) == before


def leaf(*values: float) -> Any:
    return tc.tensor(list(values), dtype=tc.float64, requires_grad=True)


# Steady loops -------------------------------------------------------------------------------------


def _batch(turn: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(turn)
    return tc.tensor(generator.standard_normal((5, 4))), tc.tensor([0, 1, 2, 1, 0])


@pytest.mark.parametrize("look", ["never", "before backward", "before step", "after step"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_every_step_overwrites_all_state(look: str, name: str) -> None:
    """Parameters and momenta keep their storages, wherever the loss is looked at."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    options = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.01}}[name]
    optimizer = getattr(optim, name)(model.parameters(), **options)

    def places() -> list[Place]:
        state = [value for entry in optimizer.state.values() for value in entry.values()]
        tensors = [*model.parameters(), *(v for v in state if isinstance(v, tc.Tensor))]
        return [Place(tensor) for tensor in tensors]

    seen = []
    for turn in range(6):
        x, y = _batch(turn)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if look == "before backward":
            loss.item()
        loss.backward()
        if look == "before step":
            loss.item()
        optimizer.step()
        if look == "after step":
            loss.item()
        seen.append(places())
    assert len(seen[-1]) >= 8
    assert seen[2:] == seen[2:3] * 4


def test_accumulated_gradients_overwrite() -> None:
    w = leaf(1.0, 2.0)
    w.grad = tc.zeros(2, dtype=tc.float64)
    first = Place(w.grad)
    for turn in range(4):
        (w * w * turn).sum().backward()
        assert Place(w.grad) == first


def test_a_running_statistic_overwrites() -> None:
    mean = tc.tensor([0.0, 0.0], dtype=tc.float64)
    first = Place(mean)
    for _ in range(4):
        with tc.no_grad():
            mean.mul_(0.9).add_(tc.ones(2, dtype=tc.float64), alpha=0.1)
        assert Place(mean) == first


# Who may still read -------------------------------------------------------------------------------


def _clone(w: Any) -> Any:
    return w.detach().clone()


def _array(w: Any) -> Any:
    return w.detach().numpy()


def _array_of_a_view(w: Any) -> Any:
    return w.detach()[:1].numpy()


def _history(w: Any) -> Any:
    product = (w * w).sum()
    product.item()
    return product


def _pending_history(w: Any) -> Any:
    return w * w


def _retained(w: Any) -> Any:
    product = w * w
    product.sum().backward(retain_graph=True)
    return product


def _in_another_thread(w: Any) -> Any:
    found: list[Any] = []

    def record() -> None:
        with tc.no_grad():
            found.append(w * 2)

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    return found[0]


def _node(w: Any) -> Any:
    return w.node


def _saved(w: Any) -> Any:
    class Square(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * ctx.saved_tensors[0]

    return Square.apply(w)


READERS: list[Callable[[Any], Any]] = [
    _clone, _array, _array_of_a_view, _history, _pending_history, _retained, _in_another_thread,
    _node, _saved,
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__.strip("_"))
def test_a_reader_of_the_old_value_forces_a_copy(reader: Callable[[Any], Any]) -> None:
    w = leaf(1.0, 2.0)
    assert step(w), "nobody reads: overwritten"
    held = reader(w)
    old = np.array(w.detach().numpy())
    assert not step(w)
    if isinstance(held, np.ndarray):
        # It is the memory of w itself, as in torch.
        np.testing.assert_array_equal(held, w.detach().numpy()[: len(held)])
        assert held[0] != old[0]
    del held
    assert step(w), "the reader is gone: overwritten again"


def test_readers_inside_the_plan_run_first() -> None:
    x = tc.tensor([1.0, 2.0, 3.0], dtype=tc.float64)
    before = Place(x)
    double = x * 2
    x.add_(10)
    flipped = x.flip(0)
    x.mul_(2)
    realize_all()
    assert Place(x) == before
    assert double.tolist() == [2, 4, 6]
    assert flipped.tolist() == [13, 12, 11]
    assert x.tolist() == [22, 24, 26]


def test_swapped_values_do_not_meet() -> None:
    a, b = tc.tensor([1.0, 2.0]), tc.tensor([3.0, 4.0])
    with tc.no_grad():
        old = a * 1.0
        a.copy_(b)
        b.copy_(old)
    assert (a.tolist(), b.tolist()) == ([3, 4], [1, 2])


def test_one_storage_is_taken_once() -> None:
    x = tc.tensor([1.0, 2.0], dtype=tc.float64)
    y = x.clone()
    x.add_(1)
    y.add_(2)
    assert (x.tolist(), y.tolist()) == ([2, 3], [3, 4])
    assert Place(x) != Place(y)


def test_a_tracer_changes_nothing() -> None:
    """Debuggers and coverage hold frames; counts are taken where no frame holds a node."""
    w = leaf(1.0, 2.0)
    kept = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        kept.append(frame.f_locals)
        del kept[:-50]
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        held = w.detach().clone()
        assert not step(w)
    finally:
        sys.settrace(old)
    kept.clear()
    assert held.tolist() == [1, 2]
    held = w.detach().clone()
    assert not step(w)
    assert held.tolist() == [2, 3]
    del held
    assert step(w)


def test_debug_names_what_was_copied(capsys: pytest.CaptureFixture[str]) -> None:
    w = leaf(1.0, 2.0)
    realize_all()
    held = w * w
    with settings.override(debug=3), tc.no_grad():
        w.add_(1.0)
        realize_all()
    assert held.requires_grad
    text = capsys.readouterr().err
    assert "copied instead of overwritten: test_overwrite.py:" in text
    assert "w.add_(1.0): a gradient that may still be asked for reads the old value" in text
