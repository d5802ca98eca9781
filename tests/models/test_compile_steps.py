"""Several steps of optimizers in one compiled call: what changes between calls is seen before one.

A call whose second step would be another graph runs as a whole again, never up to that step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import optim

# A schedule may begin before its optimizer.
pytestmark = pytest.mark.filterwarnings("ignore:lr_scheduler.step")


class Steps:
    """Two optimizers that step in one call, or one of them several times.

    Args:
        kinds: makes an optimizer of parameters, for each of the two.
        order: which of them steps, in order; ``-1`` is the schedule of the first one.
    """

    def __init__(self, kinds: list[Callable[[Any], Any]], order: list[int]) -> None:
        self.parameters = [tc.nn.Parameter(tc.tensor([1.0, 2.0, 3.0])) for _ in range(4)]
        self.optimizers = [kinds[0](self.parameters[:2]), kinds[1](self.parameters[2:])]
        self.schedule = optim.lr_scheduler.ExponentialLR(self.optimizers[0], 0.9)
        self.order = order

    def turn(self, x: Any) -> Any:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        total = 0.0
        for number in self.order:
            if number < 0:
                self.schedule.step()
                continue
            loss = sum(((p * x) ** 2).sum() for p in self.parameters)
            loss.backward()
            self.optimizers[number].step()
            total = total + loss.detach()
        return total

    def run(self, compiled: bool, change: Callable[[Any], None], number: int) -> list[Any]:
        call = tc.compile(self.turn) if compiled else self.turn
        found = []
        for turn in range(12):
            found.append(call(tc.tensor([0.1, 0.2, 0.3])).item())
            if turn in (4, 8):
                change(self.optimizers[number])
        return found + [p.detach().numpy().tobytes() for p in self.parameters]


def nothing(optimizer: Any) -> None:
    pass


def load(optimizer: Any) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def decay(optimizer: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.1


def rate(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.7


def clear(optimizer: Any) -> None:
    optimizer.state.clear()


def shorten(optimizer: Any) -> None:
    del optimizer.param_groups[0]["params"][1:]


def forget(optimizer: Any) -> None:
    optimizer.state.pop(optimizer.param_groups[0]["params"][0], None)


def maximize(optimizer: Any) -> None:
    optimizer.param_groups[0]["maximize"] = True


def replace(optimizer: Any) -> None:
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    for key, value in list(state.items()):
        if isinstance(value, tc.Tensor):
            state[key] = tc.ones_like(value)


CHANGES = [nothing, load, decay, rate, clear, shorten, forget, maximize, replace]


def momentum(parameters: Any) -> Any:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> Any:
    return optim.Adam(parameters, lr=0.01)


def rectified(parameters: Any) -> Any:
    """Its update is another one from the sixth step on."""
    return optim.RAdam(parameters, lr=0.01)


ORDERS = {
    "both": [0, 1],
    "twice": [0, 0],
    "between": [1, 0, 1],
    "thrice": [1, 1, 1],
    "schedule first": [-1, 0, 1],
    "schedule between": [0, -1, 1, 0],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("number", [0, 1])
def test_changes_between_calls(
    order: list[int], change: Callable[[Any], None], number: int
) -> None:
    """The bits of the plain program, whichever step the change concerns."""
    kinds = [momentum, adam]
    wanted = Steps(kinds, order).run(False, change, number)
    assert Steps(kinds, order).run(True, change, number) == wanted


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_an_update_that_becomes_another_one(order: list[int]) -> None:
    kinds = [rectified, rectified]
    wanted = Steps(kinds, order).run(False, nothing, 0)
    assert Steps(kinds, order).run(True, nothing, 0) == wanted
