"""Steady loops find their plans without recording what is inside of calls: the same bits."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine import realize
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.optim import update_replay as updates
from tinygrad_cuda.replay import backward_template, plan_lookup
from tinygrad_cuda.replay.subgraph_template import Deferred

pytestmark = pytest.mark.usefixtures("overwriting")


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every trace that a realization takes, whatever other tests have left in the caches."""
    cache.clear()
    for module in (plan_lookup, backward_template, updates):
        monkeypatch.setattr(module, "CAPACITY", 1 << 30)
    monkeypatch.setattr(plan_lookup, "STEADY", 1)
    taken: list[Any] = []
    trace = realize.Trace

    def counted(roots: Any) -> Any:
        taken.append(len(roots))
        return trace(roots)

    monkeypatch.setattr(realize, "Trace", counted)
    return taken


class Loop:
    """Training of a small perceptron, with numbers that change."""

    def __init__(self, name: str = "SGD") -> None:
        tc.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        options = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.01}}[name]
        self.optimizer = getattr(optim, name)(self.model.parameters(), **options)
        self.generator = np.random.default_rng(1)

    def forward(self, labels: Any = (0, 1, 2, 1, 0)) -> Any:
        x = tc.tensor(self.generator.standard_normal((5, 4)).astype(np.float32))
        return F.cross_entropy(self.model(x), tc.tensor(list(labels)))

    def __call__(self, turn: int, labels: Any = (0, 1, 2, 1, 0)) -> Any:
        self.optimizer.param_groups[0]["lr"] = 0.1 / (turn + 1)
        self.optimizer.zero_grad()
        loss = self.forward(labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def values(self) -> list[Any]:
        state = [v for entry in self.optimizer.state.values() for v in entry.values()]
        tensors = [*self.model.parameters(), *(v for v in state if isinstance(v, tc.Tensor))]
        return [tensor.detach().numpy().copy() for tensor in tensors]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_steady_loop_takes_no_trace(
    name: str, traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(name)
    for turn in range(4):
        loop(turn)
    begun = len(traces)
    losses = [loop(turn) for turn in range(4, 9)]
    assert settings.slow or len(traces) == begun, "no trace in a steady loop"
    monkeypatch.setattr(realize, "run_cached_plan", lambda device, wanted: False)
    other = Loop(name)
    expected = [other(turn) for turn in range(9)][4:]
    assert [x.item() for x in losses] == [x.item() for x in expected]
    assert same(loop.values(), other.values())


def test_every_length_of_a_growing_text_has_a_path(
    traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More shapes than the ways that are kept of one structure: none is listed node by node."""

    def write() -> list[Any]:
        text = tc.ones(2, 1)
        for _ in range(3 * plan_lookup.VARIANTS):
            text = tc.cat((text, text[:, -1:] * 2), 1)
            text.numpy()
        return text.tolist()

    expected = write()
    for _ in range(3):
        assert write() == expected
    listed: list[Any] = []
    monkeypatch.setattr(plan_lookup, "GraphSignature", lambda *given: listed.append(given))
    assert write() == expected
    assert not listed


def test_old_values_that_are_held_stay(traces: list[Any]) -> None:
    loop, other = Loop(), Loop()
    for turn in range(5):
        loop(turn), other(turn)
    (weight, *_), begun = loop.model.parameters(), len(traces)
    old = weight.detach().clone()
    expected = old.numpy().copy()
    loop(5), other(5)
    assert settings.slow or len(traces) == begun + 1, "only the loop with a reader takes a trace"
    np.testing.assert_array_equal(old.numpy(), expected)
    for turn in range(6, 9):
        loop(turn), other(turn)
    assert same(loop.values(), other.values())


@pytest.mark.parametrize("backward", [False, True])
def test_a_leaf_made_of_a_pending_value_is_there_with_it(traces: list[Any], backward: bool) -> None:
    """A cast input, and parameters that no step has written since they were initialized."""
    x = tc.tensor(np.ones((5, 4), np.float32)).to(tc.float64).requires_grad_()
    layer = nn.Linear(4, 6, dtype=tc.float64)
    cotangent = tc.ones(5, 6, dtype=tc.float64)
    begun = []
    for _ in range(6):
        with tc.set_grad_enabled(backward):
            y = layer(x).softmax(1)
            found = tc.autograd.grad(y, [x, layer.weight], cotangent) if backward else (y,)
            realize_all()
        begun.append(len(traces))
    assert found[0].detach().shape[0] == 5
    assert settings.slow or begun[3:] == begun[3:4] * 3, "no trace in a steady loop"


@pytest.mark.fast_paths
def test_a_graph_that_is_looked_at_is_there(traces: list[Any]) -> None:
    """Nodes made late, before or after the backward pass, are those that would have been."""
    loops = [Loop() for _ in range(4)]
    for _ in range(5):
        for number, loop in enumerate(loops):
            loop.optimizer.zero_grad()
            loss = loop.forward()
            assert isinstance(loss.node.piece, Deferred)
            if number == 1:
                assert len(topological([loss.node])) > 12
            loss.backward()
            if number == 2:
                assert len(topological([loss.node])) > 12
            if number == 3:
                first = next(loop.model.parameters())
                assert len(topological([first.grad.node])) > 12
            loop.optimizer.step()
    plain, *looked = [loop.values() for loop in loops]
    assert all(same(plain, values) for values in looked)


def test_a_second_pass_is_refused_after_a_known_one() -> None:
    loop = Loop()
    for turn in range(4):
        loop(turn)
    loss = loop.forward()
    hidden = loss * 2
    loss.backward()
    with pytest.raises(tc.GradientError, match="already used"):
        hidden.backward()


def test_a_kept_history_can_be_passed_again() -> None:
    loop = Loop()
    for turn in range(4):
        loop(turn)
    loop.optimizer.zero_grad()
    loss = loop.forward()
    weight = next(loop.model.parameters())
    loss.backward(retain_graph=True)
    once = weight.grad.detach().numpy().copy()
    loss.backward()
    np.testing.assert_array_equal(weight.grad.numpy(), once + once)


def test_a_bad_label_in_a_steady_loop_changes_nothing() -> None:
    loop, other = Loop(), Loop()
    for turn in range(5):
        loop(turn), other(turn)
    before = loop.values()
    with pytest.raises(IndexError, match="out of range") as caught:
        loop(5, (0, 1, 7, 1, 0))
    assert "actual: 7" in str(caught.value) and "test_plan_lookup.py" in str(caught.value)
    assert same(loop.values(), before)
    other.forward()
    loop(6), other(6)
    assert same(loop.values(), other.values())


def test_results_that_are_gone_are_not_mixed_up() -> None:
    """Two turns record the same calls, of which other gradients are kept."""
    loop = Loop()
    first, second, *_ = loop.model.parameters()
    for turn in range(6):
        loop.optimizer.zero_grad()
        loss = loop.forward()
        loss.backward()
        kept, dropped = (first, second) if turn % 2 else (second, first)
        dropped.grad = None
        realize_all()
        loop.generator = np.random.default_rng(1)
        other = Loop()
        for mine, theirs in zip(other.model.parameters(), loop.model.parameters()):
            mine.data.copy_(theirs.detach())
        other.forward().backward()
        found = kept.grad.numpy()
        place = 0 if turn % 2 else 1
        np.testing.assert_array_equal(found, list(other.model.parameters())[place].grad.numpy())
        loop.generator = np.random.default_rng(1)


def test_numbers_of_single_operations_reach_known_plans(traces: list[Any]) -> None:
    with tc.no_grad():
        x = tc.tensor([1.0, -2.0])
        for turn in range(6):
            y = F.relu(x * float(turn + 1)) + 0.5
            realize_all()
            assert y.tolist() == [turn + 1.5, 0.5]
    assert settings.slow or len(traces) < 6


def test_calls_that_nobody_asks_for_leave_nothing_behind() -> None:
    loop = Loop()
    for turn in range(4):
        loop(turn)
    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(3):
            loss = loop.forward()
            loss.backward()
            loop.optimizer.zero_grad()
            del loss
            counts.append(sum(type(thing) is Deferred for thing in gc.get_objects()))
        assert counts == [0, 0, 0]
    finally:
        gc.enable()
