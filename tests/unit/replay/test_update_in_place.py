"""Steps with nothing else pending: the update runs on the storages themselves, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.optim.group_replay import SteadyGroup


@pytest.fixture
def device(request: pytest.FixtureRequest, overwriting: None) -> str:
    kind: str = request.param
    try:
        registry.get(as_device(kind))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    tc.set_default_device(kind)  # until `overwriting` ends
    return kind


RULES: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: optim.AdamW(parameters, lr=0.01, amsgrad=True),
}


class Loop:
    """Training that looks at its loss between `backward()` and `step()`."""

    def __init__(self, rule: str) -> None:
        tc.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        self.optimizer = RULES[rule](self.model.parameters())
        self.generator = np.random.default_rng(1)
        self.held: list[Any] = []

    def backward(self) -> None:
        x = tc.tensor(self.generator.standard_normal((5, 4)).astype(np.float32))
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), tc.tensor([0, 1, 2, 1, 0]))
        loss.backward()
        loss.item()

    def moments(self) -> list[Any]:
        entries = self.optimizer.state.values()
        return [v for entry in entries for v in entry.values() if isinstance(v, tc.Tensor)]

    def values(self) -> list[Any]:
        tensors = [*self.model.parameters(), *self.moments()]
        return [tensor.detach().numpy().copy() for tensor in tensors]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step was made in place."""
    found: list[bool] = []
    run = SteadyGroup.run

    def counted(self: SteadyGroup, *arguments: Any) -> bool:
        found.append(run(self, *arguments))
        return found[-1]

    monkeypatch.setattr(SteadyGroup, "run", counted)
    return found


def interfered(loop: Loop, turn: int) -> None:
    """What else happens between the backward pass and the step of a turn."""
    first, second, *_ = loop.model.parameters()
    if turn == 8:
        loop.held.append(first.detach().clone())  # pending, of the old value
    elif turn == 10:
        loop.held.append(first.detach().clone())
        realize_all()  # a value of its own, or the old value's storage
    elif turn == 12:
        loop.held.append(first.detach().t()[1:])  # a view: it sees the write
        realize_all()
    elif turn == 14:
        loop.optimizer.param_groups[0]["lr"] = 0.03
    elif turn == 16:
        loop.held.append(first * 2)  # a graph that is not spent
        realize_all()
    elif turn == 18:
        second.grad = second.grad * 2  # pending
    elif turn == 20:
        second.grad = first.grad[:, 0].clone()
        realize_all()
    elif turn == 22:
        cache.clear()
    elif turn == 24:
        loop.optimizer.load_state_dict(loop.optimizer.state_dict())
    elif turn == 26:
        first.data = first.detach() * 0.5
    elif turn == 28:
        second.grad = None
    elif turn == 30:
        loop.held += [moment.clone() for moment in loop.moments()]
        realize_all()
    elif turn == 32:
        states = [state for state in loop.optimizer.state.values() if state]
        for state in states[:1]:
            key = next((k for k, v in state.items() if isinstance(v, tc.Tensor)), None)
            if key is not None:
                state[key] = state[key] * 2
                realize_all()
    elif turn == 34:
        first.grad = first.grad.reshape(-1).reshape(6, 4)


# One rule where compiling takes long.
CASES = [*(("cpu", rule) for rule in RULES), ("emu", "Adam"), *(("cuda", rule) for rule in RULES)]
everywhere = pytest.mark.parametrize("device", ["cpu", "emu", "cuda"], indirect=True)


@pytest.mark.parametrize(("device", "rule"), CASES, indirect=["device"])
def test_whatever_happens_between(
    device: str, rule: str, in_place: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> tuple[list[Any], list[list[float]]]:
        loop, seen = Loop(rule), []
        for turn in range(38):
            loop.backward()
            interfered(loop, turn)
            loop.optimizer.step()
            if turn % 5 == 4:
                seen.append([float(x.abs().sum().item()) for x in loop.held])
        return [*loop.values(), *(x.detach().numpy() for x in loop.held)], seen

    found, seen = train()
    assert settings.slow or sum(in_place) >= 10, "most turns are as those before"
    assert not all(in_place[5:])
    monkeypatch.setattr(SteadyGroup, "run", lambda *_: False)
    expected, known = train()
    assert same(found, expected) and seen == known


@pytest.mark.fast_paths
@everywhere
def test_nothing_is_recorded(device: str, in_place: list[bool]) -> None:
    """The cells keep their nodes, and someone who holds one of them keeps its value."""
    loop = Loop("Adam")
    for _ in range(6):
        loop.backward()
        loop.optimizer.step()
    cells = [parameter.cell for parameter in loop.model.parameters()]
    loop.backward()
    before, old = [id(cell.node) for cell in cells], loop.values()
    loop.optimizer.step()
    assert in_place[-1] and [id(cell.node) for cell in cells] == before
    assert not any(np.array_equal(x, y) for x, y in zip(loop.values(), old))
    loop.backward()
    kept = cells[0].node
    loop.optimizer.step()
    assert not in_place[-1] and cells[0].node is not kept


@everywhere
def test_a_group_beside_others_is_recorded_with_them(device: str, in_place: list[bool]) -> None:
    loop = Loop("Adam")
    first, *rest = loop.model.parameters()
    loop.optimizer = optim.Adam([{"params": [first]}, {"params": rest, "lr": 0.1}], lr=0.01)
    for _ in range(8):
        loop.backward()
        loop.optimizer.step()
    assert not any(in_place)
