"""What is recorded from a template is the graph that would have been recorded without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import optim
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.optim.updates import Updates

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with all options": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True, maximize=True
    ),
    "Adam": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1),
    "Adamax": lambda p: optim.Adamax(p, lr=0.1),
    "NAdam": lambda p: optim.NAdam(p, lr=0.1),
    "RAdam": lambda p: optim.RAdam(p, lr=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.1),
    "ASGD": lambda p: optim.ASGD(p, lr=0.1),
    "Rprop": lambda p: optim.Rprop(p, lr=0.1),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.1),
    "Muon": lambda p: optim.Muon(p, lr=0.1),
}


def trained(make: Any, dtype: Any, counts: list[int]) -> list[Any]:
    """Parameters and state after five steps, with a rate of its own in each."""
    generator = np.random.default_rng(0)
    shapes = [(3, 2), (3, 2), (2, 4)]
    parameters = [
        tc.tensor(generator.normal(size=shape), dtype=dtype, device="cpu", requires_grad=True)
        for shape in shapes
    ]
    optimizer = make(parameters)
    for turn in range(5):
        optimizer.param_groups[0]["lr"] = 0.1 / (turn + 1)
        for parameter in parameters:
            values = generator.normal(size=parameter.shape)
            parameter.grad = tc.tensor(values, dtype=dtype, device="cpu")
        optimizer.step()
        counts.append(cache.made)
    state = [v for p in parameters for v in optimizer.state[p].values()]
    return [
        v.detach().double().numpy() if isinstance(v, tc.Tensor) else v
        for v in [*parameters, *state]
    ]


@pytest.mark.parametrize("dtype", [tc.float32, tc.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_from_templates_are_the_same_plans(
    name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps recorded in the ordinary way leave nothing to compile for those from templates."""
    counts: list[int] = []  # of plans made, after each step
    monkeypatch.setattr(Updates, "possible", lambda optimizer: False)
    expected = trained(OPTIMIZERS[name], dtype, counts)
    monkeypatch.undo()
    used = []
    record = Updates.record

    def watched(self: Updates, *arguments: Any) -> Any:
        found = record(self, *arguments)
        used.append(found is not None)
        return found

    monkeypatch.setattr(Updates, "record", watched)
    actual = trained(OPTIMIZERS[name], dtype, counts)
    # In its first step an optimizer makes its state.
    assert all(used[3:])
    assert counts[-1] == counts[5]
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_update_of_the_users_is_called_for_each_parameter() -> None:
    """A template is for our own updates: another one may count or read what it likes."""
    calls = []

    class Counting(optim.SGD):
        def apply_single(self, gradient: Any, *rest: Any) -> Any:
            calls.append(tuple(gradient.shape))
            return super().apply_single(gradient, *rest)

    parameters = [tc.ones(size, device="cpu").requires_grad_() for size in (2, 3)]
    optimizer = Counting(parameters, lr=0.5)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = tc.ones(parameter.shape, device="cpu")
        optimizer.step()
    assert calls == [(2,), (3,)] * 2
    assert parameters[1].tolist() == [0.0] * 3
