"""Many replays behind one another: the bits of single calls, and what is left to single calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from compiled_task import BATCH, SIZES, Task, value_bytes

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.graphs import graph as graphs
from tinygrad_cuda.core.config import settings

chain = sys.modules["tinygrad_cuda.capture.multi_step_replay"]


@pytest.fixture(autouse=True)
def short_graphs(kernel_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "LENGTH", 4)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many turns each chain has run."""
    found: list[int] = []
    run = chain.MultiStepReplay.run

    def counted(self: Any, *arguments: Any) -> Any:
        result = run(self, *arguments)
        found.append(result[0])
        return result

    monkeypatch.setattr(chain.MultiStepReplay, "run", counted)
    return found


def data(count: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, BATCH, SIZES[0])).astype(np.float32)
    return tc.tensor(x), tc.tensor(rng.integers(0, SIZES[-1], (count, BATCH)))


def singly(function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``tc.compile(function, steps=n)`` shall give."""
    rows = [function(*(a[k] for a in arguments)) for k in range(len(arguments[0]))]
    return tc.stack(rows)


# Steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[0, 1], [0, 0], [1, 0, 1]], ids=str)
def test_an_update_that_becomes_another_one_later_in_a_turn(
    order: list[int], turns: list[int]
) -> None:
    """RAdam's from its sixth step on; a turn whose second step it is is a call of its own."""
    (rows,), states = data(9)[:1], []
    for steps in (False, True):
        tc.manual_seed(0)
        layers = [nn.Linear(SIZES[0], 3), nn.Linear(SIZES[0], 3)]
        optimizers = [optim.RAdam(layer.parameters(), lr=0.01) for layer in layers]

        def step(x: Any, layers: Any = layers, optimizers: Any = optimizers) -> Any:
            total = x.sum() * 0
            for number in order:
                optimizers[number].zero_grad()
                loss = (layers[number](x) ** 2).mean()
                loss.backward()
                optimizers[number].step()
                total = total + loss.detach()
            return total

        call = tc.compile(step, steps=9) if steps else None
        found = []
        for decay in (0.0, 0.1):
            optimizers[1].param_groups[0]["weight_decay"] = decay
            found.append(value_bytes(call(rows) if call else singly(step, rows)))
        states.append((found, [value_bytes(p) for layer in layers for p in layer.parameters()]))
    assert states[0] == states[1]
    # Turns of two optimizers are in one chain.
    assert settings.slow or turns or len(set(order)) < len(order)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_steps_are_single_steps_bit_for_bit(kind: str, turns: list[int]) -> None:
    """Dropout, batch norm and another rate in each call; 11 steps are two graphs and a rest."""

    def train(steps: bool) -> list[bytes]:
        task = Task(kind, compiled=False)
        call = tc.compile(task.step, steps=11) if steps else None
        losses = []
        for number in range(3):
            x, y = data(11, number)
            losses.append(call(x, y) if call is not None else singly(task.step, x, y))
            task.optimizer.param_groups[0]["lr"] *= 0.5
        assert task.optimizer.steps == 33
        return [value_bytes(loss) for loss in losses] + task.state()

    wanted = train(False)
    assert train(True) == wanted
    assert settings.slow or sum(turns) >= 31
    assert settings.slow or turns[-2:] == [11, 11]


def test_a_schedule_and_gradients_that_stay(turns: list[int]) -> None:
    """The rate changes with every step; the last step's gradients are there afterwards."""

    def train(steps: bool) -> list[bytes]:
        tc.manual_seed(0)
        model = nn.Linear(SIZES[0], SIZES[-1])
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss

        call = tc.compile(step, steps=9) if steps else None
        found = []
        for number in range(2):
            x, y = data(9, number)
            losses = singly(step, x, y) if call is None else call(x, y)
            grads = [p.grad for p in model.parameters()]
            found += [value_bytes(v) for v in (losses, *grads, *model.parameters())]
            assert not losses.requires_grad or call is None
        return [*found, schedule.get_last_lr()[0].hex().encode()]

    assert train(True) == train(False)
    assert settings.slow or turns[-1] == 9


def test_convolutions_are_updated_in_place_too(turns: list[int]) -> None:
    """Their history is spent: nothing of it holds the old weights."""

    def train(steps: bool) -> list[bytes]:
        tc.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(3, 1, 1), nn.Conv2d(2, 1, 3, padding=1)
        )
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(x + model(x), -x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        x = tc.tensor(np.random.default_rng(1).standard_normal((5, 1, 1, 4, 4)).astype(np.float32))
        losses = tc.compile(step, steps=5)(x) if steps else singly(step, x)
        return [value_bytes(v) for v in (losses, *model.parameters())]

    assert train(True) == train(False)
    assert settings.slow or turns == [4]


def test_results_of_an_earlier_call_stay(turns: list[int]) -> None:
    task = Task(compiled=False)
    call = tc.compile(task.step, steps=6)
    first = call(*data(6))
    gone = [value_bytes(first)]
    second = call(*data(6, 1))
    call(*data(6, 2))
    assert gone == [value_bytes(first)] and value_bytes(first) != value_bytes(second)
    assert settings.slow or turns[-1] == 6


def test_calls_over_the_same_data_update_nothing(
    kernel_device: str, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two calls with each place of the losses, graphs are launched as they stand."""
    updates: list[int] = []
    update = graphs.CudaGraph.update

    def counted(self: Any, *arguments: Any) -> bool:
        changed = update(self, *arguments)
        updates.append(int(changed))
        return changed

    monkeypatch.setattr(graphs.CudaGraph, "update", counted)

    def train(steps: bool) -> list[bytes]:
        tc.manual_seed(0)
        model = nn.Linear(SIZES[0], SIZES[-1])
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        call = tc.compile(step, steps=11) if steps else None
        x, y = data(11)
        found = []
        for number in range(9):
            updates.clear()
            losses = singly(step, x, y) if call is None else call(x, y)
            # Another rate is no other parameter: kernels read it from memory.
            optimizer.param_groups[0]["lr"] = 0.05 if number == 6 else 0.1
            found.append(value_bytes(losses))
            if kernel_device == "cuda" and call is not None and number > 4:
                assert not sum(updates)
        return [*found, *map(value_bytes, model.parameters())]

    assert train(True) == train(False)
    assert settings.slow or turns[-1] == 11


def test_a_bad_label_is_reported_and_changes_nothing(turns: list[int]) -> None:
    """The steps before it are done, and none after it; then training goes on."""
    task = Task(compiled=False)
    call = tc.compile(task.step, steps=6)
    call(*data(6))
    x, y = data(6, 1)
    wrong = y.clone()
    wrong[3, 2] = 7
    with pytest.raises(tc.IndexError, match="7"):
        call(x, wrong).tolist()
        call(x, y)
    reference = Task(compiled=False)
    singly(reference.step, *data(6))
    singly(reference.step, x[:3], y[:3])
    mine = [value_bytes(p) for p in task.model.parameters()]
    assert mine == [value_bytes(p) for p in reference.model.parameters()]
    assert np.isfinite(call(*data(6, 2)).numpy()).all()
    assert settings.slow or turns[-1] == 6


@pytest.mark.parametrize(
    ("step", "shape"),
    [
        (lambda x, w: x.add_(1) * w, (5, 4)),  # writes to its argument
        (lambda x, w: (x * w).sum(0), (5, 3)),  # 12 bytes a step: kernels may not start there
        (lambda x, w: x, (5, 4)),  # returns its argument
        (lambda x, w: (y := x * w, y), (5, 4)),  # returns one value twice
        (lambda x, w: w, (5, 4)),  # returns what was there before
    ],
)
def test_what_single_calls_do_instead(
    step: Callable[..., Any], shape: tuple[int, ...], turns: list[int]
) -> None:
    w = tc.tensor(2.0) + 0
    x = tc.arange(20.0)[: int(np.prod(shape))].reshape(*shape).clone()
    wanted = [value_bytes(v) for v in _flat([step(row.clone(), w) for row in x])]
    found = tc.compile(lambda row: step(row, w), steps=5)(x)
    rows = zip(*(v.unbind() for v in found)) if isinstance(found, tuple) else found.unbind()
    assert [value_bytes(v) for v in _flat(list(rows))] == wanted
    assert not turns


def _flat(values: list[Any]) -> list[Any]:
    return [v for value in values for v in (value if isinstance(value, tuple) else (value,))]


def test_another_value_between_calls(turns: list[int]) -> None:
    """A parameter replaced, or a flag: the program that was known is not used."""
    layer = nn.Dropout(0.5)
    x = tc.ones(5, 4)
    call = tc.compile(lambda row: layer(row) + 1, steps=5)
    for _ in range(2):
        assert set(call(x).unique().tolist()) == {1.0, 3.0}
    layer.eval()
    assert call(x).tolist() == [[2.0] * 4] * 5
    assert settings.slow or turns[-1] == 4


# Loops --------------------------------------------------------------------------------------------


def test_a_loop_is_calls_bit_for_bit(turns: list[int]) -> None:
    """Random numbers advance; two states go round, one is handed through, one counts."""
    rate = tc.tensor([0.5, 0.25, 0.125, 1.0])

    def turn(x: Any, y: Any, fixed: Any, t: Any) -> Any:
        return x * rate + tc.randn(4) * fixed, x - y, fixed, t + 1

    def start() -> tuple[Any, ...]:
        tc.manual_seed(2)
        return tc.ones(4), tc.zeros(4), tc.tensor(0.1), tc.tensor(0)

    state = start()
    for _ in range(11):
        state = turn(*state)
    wanted = [value_bytes(v) for v in state]
    call = tc.compile(turn)
    first = tc.loop(11, call, *start())
    assert [value_bytes(v) for v in first] == wanted
    given = start()
    second = tc.loop(11, call, *given)
    assert [value_bytes(v) for v in second] == wanted
    assert [value_bytes(v) for v in first] == wanted
    assert given[0].tolist() == [1.0] * 4
    assert tc.loop(1, call, *second)[3].item() == 12
    assert settings.slow or (turns[0] >= 9 and turns[1] == 11)


def test_loops_that_cannot_go_round_by_themselves(turns: list[int]) -> None:
    x, y = tc.loop(7, lambda x, y: (y, x), tc.tensor(1.0), tc.tensor(2.0))
    assert (x.item(), y.item()) == (2.0, 1.0)
    grown = tc.loop(3, lambda x: tc.cat([x, x]), tc.ones(4))
    assert grown.shape == (32,)
    buffer = tc.zeros(4)
    assert tc.loop(6, lambda x: x.add_(1), buffer) is buffer
    assert buffer.tolist() == [6.0] * 4
    assert not turns


def test_a_report_that_arrives_late(
    turns: list[int], monkeypatch: pytest.MonkeyPatch, kernel_device: str
) -> None:
    """A GPU may report between the looks of two turns: the first of them does not run either."""
    task = Task(compiled=False)
    backend = registry.get(tc.device(kernel_device))
    take_error = backend.take_error
    look = mock.Mock(wraps=take_error)
    monkeypatch.setattr(backend, "take_error", look)
    call = tc.compile(task.step, steps=6)
    call(*data(6))
    x, y = data(6, 1)
    wrong = y.clone()
    wrong[3, 2] = 7
    wrong.tolist()

    def late(wait: bool = True) -> Any:
        # One look a turn: four before a graph of four turns, and one before each of the others.
        # The fifth sees no report yet; the sixth waits for it: a GPU may be slower than the host.
        return None if look.call_count == 5 else take_error(wait or look.call_count == 6)

    look.side_effect = late
    look.reset_mock()
    with pytest.raises(tc.IndexError, match="7"):
        call(x, wrong)
    assert look.call_count == 6
    look.side_effect = None
    reference = Task(compiled=False)
    singly(reference.step, *data(6))
    singly(reference.step, x[:3], y[:3])
    mine = [value_bytes(p) for p in task.model.parameters()]
    assert mine == [value_bytes(p) for p in reference.model.parameters()]


def test_a_loop_with_a_bad_index(turns: list[int]) -> None:
    table = tc.arange(10.0)

    def turn(x: Any, t: Any) -> Any:
        return x + table[t], t + 1

    call = tc.compile(turn)
    assert tc.loop(8, call, tc.zeros(4), tc.tensor([0, 1, 0, 1]))[0].tolist() == [28, 36, 28, 36]
    with pytest.raises(tc.IndexError, match="10"):
        tc.loop(12, call, tc.zeros(4), tc.tensor([0, 0, 0, 0]))[0].tolist()
    assert tc.loop(2, call, tc.zeros(4), tc.tensor([1, 1, 1, 1]))[0].tolist() == [3.0] * 4
    assert settings.slow or turns
