"""The short way of a replay: taken in a steady loop, and left as soon as anything else happens."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from compiled_task import value_bytes

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.core.config import settings

steady = sys.modules["tinygrad_cuda.capture.fast_replay"]


pytestmark = pytest.mark.usefixtures("kernel_device")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each replay went the short way."""
    found: list[bool] = []
    replay = steady.FastReplay.replay

    def counted(self: Any, *given: Any) -> Any:
        result = replay(self, *given)
        found.append(result is not steady.MISS)
        return result

    monkeypatch.setattr(steady.FastReplay, "replay", counted)
    return found


class Loop:
    """A classifier in training; `kept` is what an intervention holds on to."""

    def __init__(self, compiled: bool) -> None:
        tc.manual_seed(0)
        self.model = nn.Linear(3, 4)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.kept: list[Any] = []
        self.hook: Any = None
        rng = np.random.default_rng(1)
        self.batches = [
            (rng.standard_normal((5, 3)).astype(np.float32), rng.integers(0, 4, 5))
            for _ in range(8)
        ]
        self.call = tc.compile(self.step) if compiled else self.step

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, intervention: Callable[[Loop], None]) -> list[Any]:
        losses = []
        for number, (x, y) in enumerate(self.batches):
            if number in (4, 6):
                intervention(self)
            losses.append(self.call(tc.tensor(x), tc.tensor(y)))
        parts = [*losses, *self.model.parameters(), *self.kept]
        parts += [p.grad for p in self.model.parameters()]
        return [value_bytes(part) for part in parts]


class Pair(NamedTuple):
    """Two results by name."""

    first: Any
    second: Any


class Parts(list[Any]):
    """Results in a list of a class of its own."""


def listed(value: Any) -> Any:
    """A structure with numbers in place of Tensors."""
    if isinstance(value, tuple | list):
        return [listed(item) for item in value]
    return value.tolist() if isinstance(value, tc.Tensor) else value


def nothing(loop: Loop) -> None:
    """A steady loop."""


def hold_a_clone(loop: Loop) -> None:
    loop.kept.append(loop.model.weight.detach().clone())


def hold_a_view_of_a_clone(loop: Loop) -> None:
    loop.kept.append(loop.model.weight.detach().clone()[1:])


def read_a_view(loop: Loop) -> None:
    """The view stays, and shows what training writes."""
    view = loop.model.weight.detach()[1:]
    loop.kept += [view, (view * 2)]


def hold_a_gradient(loop: Loop) -> None:
    loop.kept.append(loop.model.weight.grad)


def hold_a_clone_of_a_gradient(loop: Loop) -> None:
    loop.kept.append(loop.model.bias.grad.clone())


def hold_an_alias_of_a_gradient(loop: Loop) -> None:
    loop.kept.append(loop.model.bias.grad.detach())


def look_at_a_gradient(loop: Loop) -> None:
    loop.kept.append(tc.tensor(loop.model.weight.grad.norm().item()))


def drop_the_gradients(loop: Loop) -> None:
    loop.model.zero_grad()


def replace_a_gradient(loop: Loop) -> None:
    loop.model.weight.grad = tc.ones(4, 3)


def scale_the_rate(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["lr"] *= 0.5


def write_a_parameter(loop: Loop) -> None:
    with tc.no_grad():
        loop.model.bias.add_(1.0)


def write_its_data(loop: Loop) -> None:
    loop.model.bias.data = tc.ones(4)


def replace_a_parameter(loop: Loop) -> None:
    loop.model.bias = nn.Parameter(loop.model.bias.detach() * 2)
    loop.optimizer.param_groups[0]["params"][1] = loop.model.bias


def replace_the_momentum(loop: Loop) -> None:
    state = loop.optimizer.state[loop.model.weight]
    state["momentum_buffer"] = state["momentum_buffer"] * 2


def reset_the_optimizer(loop: Loop) -> None:
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))


def copy_the_model(loop: Loop) -> None:
    loop.kept += list(copy.deepcopy(loop.model).state_dict().values())


def hook_a_gradient(loop: Loop) -> None:
    loop.model.weight.register_hook(lambda g: g * 2)


def hook_a_gradient_for_a_while(loop: Loop) -> None:
    if loop.hook is None:
        loop.hook = loop.model.weight.register_hook(lambda g: g * 2)
    else:
        loop.hook.remove()


def freeze_a_parameter(loop: Loop) -> None:
    loop.model.bias.requires_grad_(not loop.model.bias.requires_grad)


def train_without_compile(loop: Loop) -> None:
    x, y = loop.batches[0]
    loop.kept.append(loop.step(tc.tensor(x), tc.tensor(y)))


INTERVENTIONS = [
    nothing, hold_a_clone, hold_a_view_of_a_clone, read_a_view, hold_a_gradient,
    hold_a_clone_of_a_gradient, hold_an_alias_of_a_gradient, look_at_a_gradient,
    drop_the_gradients, replace_a_gradient, scale_the_rate, write_a_parameter, write_its_data,
    replace_a_parameter, replace_the_momentum, reset_the_optimizer, copy_the_model,
    hook_a_gradient, hook_a_gradient_for_a_while, freeze_a_parameter, train_without_compile,
]  # fmt: skip


@pytest.mark.parametrize("intervention", INTERVENTIONS, ids=lambda f: f.__name__)
def test_what_happens_between_calls(
    intervention: Callable[[Loop], None], short: list[bool]
) -> None:
    """The bits of the plain program; the short way before, and what was held stays as it was."""
    wanted = Loop(compiled=False).run(intervention)
    assert Loop(compiled=True).run(intervention) == wanted
    assert settings.slow or any(short)
    if intervention is nothing:
        # Of eight calls two are traced, and one goes the long way.
        assert settings.slow or short == [True] * 5


def test_other_arguments(short: list[bool]) -> None:
    """Another shape, dtype or number of arguments, a view, one tensor twice, a parameter."""
    w = tc.tensor([1.0, 2.0, 3.0])
    call = tc.compile(lambda x, y=None: x * w if y is None else x * w + y)
    x = tc.ones(2, 3)
    for _ in range(4):
        call(x)
    assert settings.slow or short[-1]
    assert call(tc.ones(3)).tolist() == [1.0, 2.0, 3.0]
    assert call(x.to(tc.float64)).dtype is tc.float64
    assert call(x, x).tolist() == [[2.0, 3.0, 4.0]] * 2
    assert call(tc.ones(3, 2).T).tolist() == [[1.0, 2.0, 3.0]] * 2
    assert call(w).tolist() == [1.0, 4.0, 9.0]
    grad = tc.ones(2, 3).requires_grad_()
    assert call(grad).requires_grad
    with tc.no_grad():
        assert not call(grad).requires_grad
    assert not any(short[-6:])
    assert call(x).tolist() == call(x).tolist() == [[1.0, 2.0, 3.0]] * 2


def test_results_are_new_each_time(short: list[bool]) -> None:
    call = tc.compile(lambda x: (x + 1, {"twice": x * 2}))
    found = [call(tc.full((3,), float(k))) for k in range(6)]
    assert [a.tolist() for a, _ in found] == [[k + 1.0] * 3 for k in range(6)]
    assert [b["twice"].tolist() for _, b in found] == [[2.0 * k] * 3 for k in range(6)]
    assert settings.slow or short[-1]


def test_names_and_modes_are_looked_at(short: list[bool]) -> None:
    factor = 2.0

    def times(x: Any) -> Any:
        return x * factor

    call, x = tc.compile(times), tc.ones(2)
    for _ in range(4):
        assert call(x).tolist() == [2.0, 2.0]
    assert settings.slow or short[-1]
    factor = 3.0
    for _ in range(4):
        assert call(x).tolist() == [3.0, 3.0]
    tc.set_default_dtype(tc.float64)
    try:
        assert call(x).tolist() == [3.0, 3.0]
    finally:
        tc.set_default_dtype(tc.float32)


def test_the_default_device_is_looked_at(short: list[bool]) -> None:
    @tc.compile
    def step(x: Any) -> Any:
        return x * 2, tc.ones(3)

    x = tc.ones(3)
    x.numpy()
    default = tc.get_default_device()

    def devices() -> list[str]:
        return [step(x)[1].device.kind for _ in range(6)]

    assert devices() == [default.kind] * 6 and (settings.slow or short[-1])
    with tc.device("cpu"):
        assert devices() == ["cpu"] * 6
    short.clear()
    assert devices() == [default.kind] * 6 and (settings.slow or short[-1])
    short.clear()
    with default:
        assert devices() == [default.kind] * 6 and (settings.slow or short[-1])


def test_a_deleted_variable(short: list[bool]) -> None:
    """The function is asked again, and says so itself."""
    factor = 2.0

    def times(x: Any) -> Any:
        return x * factor

    call = tc.compile(times)
    for _ in range(4):
        call(tc.ones(2))
    assert settings.slow or short[-1]
    del factor
    with pytest.raises(NameError, match="factor"):
        call(tc.ones(2))
    factor = 4.0
    assert call(tc.ones(2)).tolist() == [4.0, 4.0]


@pytest.mark.parametrize(
    "arrange",
    [
        lambda a, b: a,
        lambda a, b: (a,),
        lambda a, b: (b, a),
        lambda a, b: (a, b, a),
        lambda a, b: [a, b],
        lambda a, b: (a, [b]),
        lambda a, b: (a, "text", b),
        lambda a, b: Pair(a, b),
        lambda a, b: Parts([a, b]),
        lambda a, b: (a.detach(), b, a),
    ],
)
def test_results_in_all_arrangements(short: list[bool], arrange: Callable[..., Any]) -> None:
    """Let go of, held for a call, and held for good: each is what it was when it was returned."""

    def function(x: Any) -> Any:
        return arrange(x + 1, x * 2)

    call, kept, last = tc.compile(function), [], None
    for number in range(12):
        x = tc.full((3,), float(number))
        result = call(x)
        wanted = function(x)
        assert type(result) is type(wanted)
        assert listed(result) == listed(wanted)
        if last is not None:
            assert listed(last[0]) == last[1]
        last = (result, listed(result)) if number % 3 else None
        if number in (5, 7):
            kept.append((result, listed(result)))
        del result
    assert all(listed(result) == values for result, values in kept)
    assert settings.slow or short[-1]


def test_a_bad_label_changes_nothing() -> None:
    loop = Loop(compiled=True)
    for x, y in loop.batches:
        loop.call(tc.tensor(x), tc.tensor(y))
    before = [value_bytes(p) for p in loop.model.parameters()]
    x, y = loop.batches[0]
    with pytest.raises(tc.IndexError, match="9"):
        loop.call(tc.tensor(x), tc.tensor(np.full(5, 9))).item()
        loop.call(tc.tensor(x), tc.tensor(y)).item()
    assert [value_bytes(p) for p in loop.model.parameters()] == before
    assert np.isfinite(loop.call(tc.tensor(x), tc.tensor(y)).item())
