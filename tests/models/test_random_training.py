"""Random training loops with random interference give the same bits however a plan is found.

Recorded and traced anew, found again by their calls, or replayed by tc.compile: whatever is held,
looked at or written between the steps.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.engine import realize
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.replay import plan_lookup

TURNS, UNDISTURBED = 14, 4
OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.01},
    "AdamW": {"lr": 0.01},
    "RMSprop": {"lr": 0.01},
}


class Loop:
    """A program that follows from its seed; `seen` is all that it shows."""

    def __init__(self, seed: int, compiled: bool) -> None:
        self.random = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self.seed = seed
        tc.manual_seed(seed)
        norm = [nn.BatchNorm1d(6)] if self.random.random() < 0.3 else []
        dropout = [nn.Dropout(0.3)] if self.random.random() < 0.4 else []
        layers = [nn.Linear(4, 6), *norm, nn.ReLU(), *dropout, nn.Linear(6, 3)]
        self.model = nn.Sequential(*layers)
        name = self.random.choice(list(OPTIMIZERS))
        self.optimizer = getattr(optim, name)(self.model.parameters(), **OPTIMIZERS[name])
        wrap = tc.compile if compiled else (lambda function: function)
        self.step, self.accumulate = wrap(self._step), wrap(self._accumulate)
        self.kept: list[Any] = []
        self.seen: list[Any] = []

    def _step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _accumulate(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y) * 0.5
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self) -> list[Any]:
        looks = self.random.random() < 0.7
        losses = []
        for turn in range(TURNS):
            x = tc.tensor(self.data.standard_normal((5, 4)).astype(np.float32))
            y = tc.tensor(self.data.integers(0, 3, 5))
            call = self.accumulate if self.random.random() < 0.15 else self.step
            losses.append(call(x, y))
            if looks:
                self.seen.append(losses.pop().item())
            if turn >= UNDISTURBED:
                for _ in range(self.random.choice([0, 0, 1, 1, 2])):
                    self.interfere()
            if self.random.random() < 0.2:
                self.seen += map(shown, self.kept[-3:])
        parameters = list(self.model.parameters())
        rest = [losses, self.kept, parameters, list(self.optimizer.state.values())]
        return self.seen + [shown(part) for part in (*rest, [p.grad for p in parameters])]

    def interfere(self) -> None:
        """Holds, looks at, writes or replaces something."""
        parameter = self.random.choice(list(self.model.parameters()))
        self.random.choice(INTERFERENCE)(self, parameter)

    def keep(self, value: Any) -> None:
        self.kept.append(value)


def shown(value: Any) -> Any:
    """Tensors in it as bytes."""
    if isinstance(value, tc.Tensor):
        return value.detach().numpy().tobytes()
    if isinstance(value, dict):
        return [shown(item) for item in value.values()]
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return [shown(item) for item in value.parameters()] if isinstance(value, nn.Module) else value


def write(loop: Loop, p: Any) -> None:
    with tc.no_grad():
        p.add_(0.001)


def halve_gradient(loop: Loop, p: Any) -> None:
    if p.grad is not None:
        p.grad.mul_(0.5)


def set_gradient(loop: Loop, p: Any) -> None:
    p.grad = tc.ones_like(p).detach()


def evaluate(loop: Loop, p: Any) -> None:
    loop.model.eval()
    loop.keep(loop.model(tc.tensor(loop.data.standard_normal((2, 4)).astype(np.float32))))
    loop.model.train()


def other_rate(loop: Loop, p: Any) -> None:
    loop.optimizer.param_groups[0]["lr"] = loop.random.choice([0.1, 0.05, 0.02, 0.01])


def load(loop: Loop, p: Any) -> None:
    loop.model.load_state_dict({k: v * 1.0 for k, v in loop.model.state_dict().items()})


INTERFERENCE: list[Callable[[Loop, Any], Any]] = [
    write, halve_gradient, set_gradient, evaluate, other_rate, load,
    lambda loop, p: loop.keep(p.detach()),
    lambda loop, p: loop.keep(p.detach().clone()),
    lambda loop, p: loop.keep(p.detach().view(-1)[:2]),
    lambda loop, p: loop.keep(p.grad),
    lambda loop, p: loop.keep(None if p.grad is None else p.grad.clone()),
    lambda loop, p: loop.keep(p * 2 + 1),
    lambda loop, p: loop.keep(p.sum().item()),
    lambda loop, p: loop.keep(copy.deepcopy(loop.model)),
    lambda loop, p: loop.keep({k: v.clone() for k, v in loop.model.state_dict().items()}),
    lambda loop, p: loop.keep(loop.optimizer.state_dict()),
    lambda loop, p: loop.optimizer.zero_grad(),
    lambda loop, p: tc.manual_seed(loop.seed + 7),
    lambda loop, p: p.data.mul_(0.99),
    lambda loop, p: p.requires_grad_(True),
    lambda loop, p: loop.kept.clear(),
    lambda loop, p: loop.kept.pop() if loop.kept else None,
]  # fmt: skip


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[Any]]]:
    """What a program shows if every plan is found by a trace; the others soon have their paths."""
    monkeypatch.setattr(plan_lookup, "STEADY", 1)

    def run(seed: int) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(realize, "run_cached_plan", lambda device, wanted: False)
            return Loop(seed, False).run()

    yield run
    tc.set_default_device(None)


@pytest.mark.parametrize("seed", range(16))
def test_plans_found_by_their_calls(
    seed: int, traced: Callable[[int], list[Any]], overwriting: None
) -> None:
    """On cpu, whose plans overwrite here what nobody else holds."""
    assert Loop(seed, False).run() == traced(seed)


@pytest.mark.parametrize("device", ["emu", "cuda"])
@pytest.mark.parametrize("seed", range(100, 103))
def test_compiled_steps(seed: int, device: str, traced: Callable[[int], list[Any]]) -> None:
    try:
        registry.get(as_device(device))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    tc.set_default_device(device)
    wanted = traced(seed)
    assert Loop(seed, False).run() == wanted
    assert Loop(seed, True).run() == wanted
