"""tc.compile: every way in which a replay could be stale."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_task import SIZES, Task, batch, both, value_bytes

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("device")


# Traps --------------------------------------------------------------------------------------------


def test_shape_change() -> None:
    def program(task: Task) -> list[Any]:
        sizes = [4, 4, 4, 7, 7, 4, 2, 7]
        return [task.step(*batch(n, size)) for n, size in enumerate(sizes)]

    _, compiled = both(program)
    # One for the optimizer's state, and one for each size.
    assert settings.slow or compiled.traced == 4


def test_train_and_eval() -> None:
    """Modes are two programs; going back finds the first one."""

    def program(task: Task) -> list[Any]:
        found = []
        for number in range(9):
            task.model.train(number % 3 != 2)
            found.append(task.step(*batch(number)))
        return found

    _, compiled = both(program)
    assert settings.slow or compiled.traced == 3


def test_a_flag_set_by_hand() -> None:
    def program(task: Task) -> list[Any]:
        found = [task.step(*batch(n)) for n in range(3)]
        task.model[3].p = 0.9
        found += [task.step(*batch(n)) for n in range(3)]
        task.model[3].training = False
        return found + [task.step(*batch(n)) for n in range(3)]

    both(program)


def test_parameter_replaced() -> None:
    """By a new Parameter, and by `.data`."""

    def program(task: Task) -> list[Any]:
        found = [task.step(*batch(n)) for n in range(3)]
        task.model[4].bias.data = tc.full((SIZES[-1],), 0.25).clone()
        found += [task.step(*batch(n)) for n in range(2)]
        task.model[0].weight = nn.Parameter(tc.ones(SIZES[1], SIZES[0]) * 0.1)
        return found + [task.step(*batch(n)) for n in range(3)]

    both(program)


def test_requires_grad_flipped() -> None:
    def program(task: Task) -> list[Any]:
        found = [task.step(*batch(n)) for n in range(3)]
        for flag in (False, True):
            task.model[0].weight.requires_grad_(flag)
            found += [task.step(*batch(n)) for n in range(2)]
        return found

    both(program)


def test_hooks() -> None:
    """On gradients and on Modules, added and removed."""

    def program(task: Task) -> list[Any]:
        found = [task.step(*batch(n)) for n in range(3)]
        handle = task.model[0].weight.register_hook(lambda g: g * 3)
        found += [task.step(*batch(n)) for n in range(2)]
        handle.remove()
        handle = task.model[4].register_forward_hook(lambda m, x, y: y * 0.5)
        found += [task.step(*batch(n)) for n in range(2)]
        handle.remove()
        return found + [task.step(*batch(n)) for n in range(2)]

    both(program)


def test_parameters_added_to_the_optimizer() -> None:
    def program(task: Task) -> list[Any]:
        found = [task.step(*batch(n)) for n in range(3)]
        task.model.add_module("more", nn.Linear(SIZES[-1], SIZES[-1]))
        task.optimizer.add_param_group({"params": task.model.more.parameters(), "lr": 0.2})
        return found + [task.step(*batch(n)) for n in range(4)]

    both(program)


def test_callable_objects() -> None:
    """Attributes that `__call__` names are looked at."""

    class Scale:
        factor = None

        def __call__(self, x: Any) -> Any:
            return x * self.factor

    scale = Scale()
    scale.factor = 2.0
    call = tc.compile(scale)
    assert [call(tc.ones(1)).item() for _ in range(2)] == [2.0, 2.0]
    scale.factor = tc.tensor([5.0])
    assert call(tc.ones(1)).item() == 5.0


def test_optimizer_state_reset() -> None:
    """A loaded state, an emptied one, a moment written in place, another option."""

    def program(task: Task) -> list[Any]:
        found = [task.step(*batch(n)) for n in range(3)]
        saved = copy.deepcopy(task.optimizer.state_dict())
        found += [task.step(*batch(n)) for n in range(2)]
        task.optimizer.load_state_dict(saved)
        found += [task.step(*batch(n)) for n in range(2)]
        task.optimizer.state.clear()
        found += [task.step(*batch(n)) for n in range(3)]
        task.optimizer.state[task.model[0].weight]["exp_avg"].mul_(2.0)
        found += [task.step(*batch(n)) for n in range(2)]
        task.optimizer.param_groups[0]["weight_decay"] = 0.1
        task.optimizer.param_groups[0]["betas"] = (0.5, 0.9)
        return found + [task.step(*batch(n)) for n in range(2)]

    both(program, kind="Adam")


def test_state_dict_loaded() -> None:
    """Values copied into the same places need no new trace."""

    def program(task: Task) -> list[Any]:
        saved = copy.deepcopy(task.model.state_dict())
        found = [task.step(*batch(n)) for n in range(3)]
        task.model.load_state_dict(saved)
        return found + [task.step(*batch(n)) for n in range(2)]

    _, compiled = both(program)
    assert settings.slow or compiled.traced == 2


def test_outputs_do_not_alias() -> None:
    """What an earlier call returned stays, also when it is written."""
    double = tc.compile(lambda x: (x * 2, [x + 1]))
    results = [double(tc.tensor([float(n)])) for n in range(4)]
    results[2][0].add_(100.0)
    assert [a.item() for a, _ in results] == [0.0, 2.0, 104.0, 6.0]
    assert [b.item() for _, (b,) in results] == [1.0, 2.0, 3.0, 4.0]


def test_input_buffer_reused() -> None:
    """One array that is filled again and again, shared or copied, and one written in place."""
    array = np.zeros(2, np.float32)
    shared, own = tc.from_numpy(array), tc.zeros(2)
    total = tc.compile(lambda a, b: a + b)
    found = []
    for n in range(4):
        array[:] = n
        own.fill_(10.0 * n)
        found.append(total(shared.to(own.device), own).tolist())
    assert found == [[11.0 * n] * 2 for n in range(4)]


def test_views_as_arguments() -> None:
    """Slices of one tensor share a program, wherever they begin."""
    data = tc.arange(10).float()
    calls = []

    def total(x: Any) -> Any:
        calls.append(None)
        return x.sum()

    compiled = tc.compile(total)
    assert [compiled(data[n : n + 2]).item() for n in range(5)] == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert settings.slow or len(calls) == 1


def test_the_same_tensor_twice() -> None:
    """Arguments that share a cell are not those that do not."""

    def shift(a: Any, b: Any) -> Any:
        a.add_(1)
        return b * 10

    compiled = tc.compile(shift)
    x, y = tc.zeros(1).clone(), tc.zeros(1).clone()
    assert [compiled(x, y).item() for _ in range(3)] == [0.0, 0.0, 0.0]
    assert [compiled(x, x).item() for _ in range(3)] == [40.0, 50.0, 60.0]
    assert x.item() == 6.0
    assert compiled(y, x).item() == 60.0


def test_a_tensor_that_is_state_and_argument() -> None:
    weight = tc.ones(1).clone()
    compiled = tc.compile(lambda x: weight * x)
    two = tc.full((1,), 2.0).clone()
    assert [compiled(two).item() for _ in range(2)] == [2.0, 2.0]
    weight.mul_(3)
    assert compiled(weight).item() == 9.0
    assert compiled(two).item() == 6.0


def test_exception_in_the_middle(device: str) -> None:
    """A bad label changes nothing and the next call goes on; so does an error of Python's."""
    found = []
    for compiled in (False, True):
        task = Task(compiled=compiled)
        for n in range(3):
            task.step(*batch(n))
        before = task.state()
        x, y = batch(7)
        with pytest.raises(tc.IndexError):
            task.step(x, y + 100).item()
        assert task.state()[:1] == before[:1]
        task.optimizer.zero_grad()
        for n in range(3):
            task.step(*batch(n))
        found.append([task.optimizer.steps, *task.state()])
    assert found[0] == found[1]
    # A device reports the label when the host has counted the step.
    assert found[0][0] == (6 if device == "cpu" else 7)
    fail = [True]

    def flaky(x: Any) -> Any:
        y = x + 1
        if fail[0]:
            raise ValueError("stop")
        return y

    call = tc.compile(flaky)
    with pytest.raises(ValueError, match="stop"):
        call(tc.ones(1))
    fail[0] = False
    assert [call(tc.ones(1)).item() for _ in range(2)] == [2.0, 2.0]


def test_two_functions_share_parameters() -> None:
    """A step and an evaluation, and a second step on the same weights."""

    def train(compiled: bool) -> list[Any]:
        wrap = tc.compile if compiled else lambda function: function
        task = Task(compiled=compiled)

        def evaluate(x: Any) -> Any:
            with tc.no_grad():
                return task.model(x)

        def shrink() -> None:
            with tc.no_grad():
                for p in task.model.parameters():
                    p.mul_(0.9)

        look, less = wrap(evaluate), wrap(shrink)
        found = []
        for n in range(6):
            found += [task.step(*batch(n)), look(batch(n)[0])]
            less()
        return [value_bytes(x) for x in found] + task.state()

    assert train(False) == train(True)


def test_deepcopy() -> None:
    """A copy has weights of its own, and so has a copy of a compiled Module."""
    model = tc.compile(nn.Linear(2, 1))
    x = tc.ones(1, 2)
    with tc.no_grad():
        first = [model(x).item() for _ in range(3)]
        other = copy.deepcopy(model)
        other.weight.zero_()
        other.bias.zero_()
        assert other(x).item() == 0.0
        assert model(x).item() == first[0]
    assert list(model.state_dict()) == ["weight", "bias"]

    def program(task: Task) -> list[Any]:
        found = [task.step(*batch(n)) for n in range(3)]
        average = copy.deepcopy(task.model)
        found += [task.step(*batch(n)) for n in range(3)]
        return found + list(average.state_dict().values())

    both(program)


def test_no_grad_inside_and_outside() -> None:
    """The mode is part of the signature; inside, it is recorded as it is."""
    weight = nn.Parameter(tc.ones(2))

    def update(x: Any) -> Any:
        loss = (weight * x).sum()
        loss.backward()
        with tc.no_grad():
            weight.sub_(weight.grad * 0.5)
            weight.grad = None
        return loss.detach()

    compiled = tc.compile(update)
    x = tc.tensor([1.0, 2.0])
    assert [compiled(x).item() for _ in range(4)] == [3.0, 0.5, -2.0, -4.5]
    square = tc.compile(lambda x: x * weight)
    for _ in range(3):
        assert square(x).requires_grad
        with tc.no_grad():
            assert not square(x).requires_grad


def test_gradients_flow_through_a_compiled_module() -> None:
    """Outside a compiled step its forward pass is recorded, and its gradient is right."""
    model = tc.compile(nn.Linear(2, 1))
    for _ in range(3):
        model(tc.tensor([[1.0, 2.0]])).sum().backward()
    assert model.weight.grad.tolist() == [[3.0, 6.0]]
    calls = []
    model.register_forward_hook(lambda *_: calls.append(None))
    model.requires_grad_(False)
    for _ in range(3):
        assert not model(tc.tensor([[1.0, 2.0]])).requires_grad
    assert settings.slow or len(calls) == 1, "frozen, it is replayed"


def test_seed_set_between_calls() -> None:
    """Random numbers are those of the plain program, whatever the seed and who draws between."""

    def program(task: Task) -> list[Any]:
        found = []
        for n in range(8):
            if n == 5:
                tc.manual_seed(99)
            if n % 3 == 0:
                found.append(tc.rand(2))
            found.append(task.step(*batch(n)))
        return [*found, tc.rand(3), tc.get_rng_state()]

    both(program)


def test_seed_set_inside_and_a_generator() -> None:
    def draw(compiled: bool) -> list[Any]:
        generator = tc.Generator().manual_seed(3)

        def sample() -> Any:
            a = tc.rand(2, generator=generator)
            tc.manual_seed(5)
            return a, tc.rand(2), tc.randn(2, generator=generator)

        call = tc.compile(sample) if compiled else sample
        found = [[x.tolist() for x in call()] for _ in range(4)]
        return [found, generator.get_state().tolist(), tc.get_rng_state().tolist()]

    assert draw(True) == draw(False)


def test_random_numbers_drawn_again() -> None:
    """A checkpoint inside a step draws the numbers of its first pass, in every call."""

    def train(compiled: bool) -> list[Any]:
        tc.manual_seed(6)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
        optimizer = optim.SGD(model.parameters(), lr=0.5)

        def step(x: Any) -> Any:
            loss = (checkpoint(model, x, use_reentrant=False) * tc.rand(4)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        call = tc.compile(step) if compiled else step
        losses = [value_bytes(call(tc.ones(3, 4) * n)) for n in range(5)]
        return [losses, *map(value_bytes, model.parameters()), tc.get_rng_state().tolist()]

    assert train(True) == train(False)
    state = tc.get_rng_state()
    with pytest.raises(tc.CompileError):
        tc.compile(lambda: tc.set_rng_state(state))()


def test_scheduler_inside() -> None:
    """Its step is repeated; a rate set by hand between calls holds; nothing is traced anew."""
    makers: list[Callable[..., Any]] = [
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=12),
        lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: optim.lr_scheduler.SequentialLR(
            o, [optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
                optim.lr_scheduler.ExponentialLR(o, 0.8)], [3],
        ),
    ]  # fmt: skip
    for make in makers:
        found = []
        for compiled in (False, True):
            tc.manual_seed(2)
            weight = nn.Parameter(tc.ones(3))
            optimizer = optim.SGD([weight], lr=0.1, momentum=0.9)
            schedule, calls = make(optimizer), []

            def step(
                x: Any, w: Any = weight, o: Any = optimizer, s: Any = schedule, c: Any = calls
            ) -> None:
                c.append(None)
                (w * w * x).sum().backward()
                o.step()
                s.step()
                o.zero_grad()

            call = tc.compile(step) if compiled else step
            for n in range(10):
                call(tc.tensor(float(n)))
                if n == 6:
                    optimizer.param_groups[0]["lr"] = 0.3
            found.append(
                [value_bytes(weight), optimizer.param_groups[0]["lr"], schedule.last_epoch]
            )
        assert found[0] == found[1]
        assert settings.slow or len(calls) <= 2


# Gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "emu"])
def test_gradients_are_left_as_they_would_be(name: str) -> None:
    """zero_grad first, last, outside or never; a held gradient keeps its value."""
    tc.set_default_device(name)
    try:
        registry.get(as_device(name))
    except tc.DeviceError as error:
        pytest.skip(str(error))

    def train(compiled: bool, where: str) -> list[bytes]:
        weight = nn.Parameter(tc.ones(2))
        optimizer = optim.SGD([weight], lr=0.5)

        def step(x: Any) -> None:
            if where == "first":
                optimizer.zero_grad()
            (weight * weight * x).sum().backward()
            optimizer.step()
            if where == "last":
                optimizer.zero_grad()
            if where == "zeros":
                optimizer.zero_grad(set_to_none=False)

        call = tc.compile(step) if compiled else step
        held = []
        for n in range(5):
            call(tc.tensor(0.1 * n))
            if weight.grad is not None and n % 2:
                held.append(weight.grad)
            if where == "outside":
                optimizer.zero_grad()
        grads = [] if weight.grad is None else [weight.grad]
        return [value_bytes(x) for x in (*held, *grads, weight)]

    for where in ("first", "last", "zeros", "outside", "never"):
        assert train(False, where) == train(True, where), where


def test_accumulation_over_calls() -> None:
    """Two compiled functions: one adds to gradients, one steps."""

    def train(compiled: bool) -> list[bytes]:
        wrap = tc.compile if compiled else lambda function: function
        weight = nn.Parameter(tc.ones(2))
        optimizer = optim.Adam([weight], lr=0.1)

        def more(x: Any) -> None:
            (weight * x).sum().backward()

        def step() -> None:
            optimizer.step()
            optimizer.zero_grad()

        add, go = wrap(more), wrap(step)
        for n in range(9):
            add(tc.tensor([1.0 * n, -1.0]))
            if n % 3 == 2:
                go()
        return [value_bytes(weight)]

    assert train(False) == train(True)


def test_what_is_returned_without_being_read() -> None:
    """A tensor from outside is handed through; one made inside is another one in each call."""
    outside = tc.tensor(2.0)

    @tc.compile
    def function(x: Any) -> Any:
        return x * 2, outside, tc.tensor([1.0, 3.0])

    kept = []
    for number in range(4):
        doubled, same, made = function(tc.tensor(float(number)))
        assert (doubled.item(), same.item(), made.tolist()) == (2 * number, 2 + number, [1, 3])
        assert same is outside
        outside.add_(1)
        made.add_(5)
        kept.append(made)
    assert [made.tolist() for made in kept] == [[6, 8]] * 4
