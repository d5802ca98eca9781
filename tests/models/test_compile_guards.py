"""tc.compile: a replay is never stale, whatever changes between calls or within one."""

from __future__ import annotations

import copy
import cProfile
import functools
import importlib
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compiled_task import SIZES, Task, batch, both, value_bytes
from python_values import TRAPS, Trainer, Trap, set_scale

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.replay.guards.discovery import names_of
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
    factories: list[Callable[..., Any]] = [
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=12),
        lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: optim.lr_scheduler.SequentialLR(
            o, [optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
                optim.lr_scheduler.ExponentialLR(o, 0.8)], [3],
        ),
    ]  # fmt: skip
    for make in factories:
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


# Views among the arguments, numbers drawn on the host, caught errors ------------------------------


# A function, and its arguments in the call of a number.
Program = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]


def weight(size: int = 4) -> Any:
    return tc.arange(size).float().clone() + 1


def the_viewed_is_written() -> Program:
    w = weight()

    def step(x: Any) -> Any:
        w.mul_(2)
        return x + 1

    return step, lambda k: (w[k % 2 : k % 2 + 1],)


def the_view_is_written() -> Program:
    w = weight()
    return lambda x: w.sum() + x.add_(1), lambda k: (w[:2],)


def views_that_overlap() -> Program:
    w = weight()

    def step(a: Any, b: Any) -> Any:
        a.add_(b)
        return a * 1, b * 1

    return step, lambda k: (w[:2], w[1:3])


def a_view_and_the_viewed() -> Program:
    w = weight()

    def step(a: Any, b: Any) -> Any:
        b.mul_(2)
        return a * 1

    return step, lambda k: (w[:2], w)


def views_of_two_tensors() -> Program:
    """The function writes one of them."""
    w, u = weight(), weight()

    def step(x: Any) -> Any:
        y = x * 3
        w[1:].add_(y.sum())
        return x + y

    return step, lambda k: ((w, u)[k % 2][:2],)


def a_view_of_a_view() -> Program:
    w = weight(6)

    def step(x: Any) -> Any:
        x[0].mul_(2)
        return w * 1

    return step, lambda k: (w.reshape(2, 3).t()[1:],)


def a_view_from_the_closure() -> Program:
    """It was computed before the first call."""
    w = weight()
    v = w[1:]
    (v + 1).tolist()
    v.tolist()

    def step(x: Any) -> Any:
        y = v * x
        w.add_(1)
        return y

    return step, lambda k: (tc.ones(1),)


def strides() -> Program:
    """They are part of the signature."""
    w = tc.arange(4).float().clone().reshape(2, 2)
    kinds = [w.t(), w, w.t().contiguous()]
    return lambda x: x * (2 if x.is_contiguous() else 3), lambda k: (kinds[k % 3],)


@pytest.mark.parametrize(
    "make",
    [
        the_viewed_is_written, the_view_is_written, views_that_overlap, a_view_and_the_viewed,
        views_of_two_tensors, a_view_of_a_view, a_view_from_the_closure, strides,
    ],
)  # fmt: skip
def test_views(make: Callable[[], Program]) -> None:
    """Results and arguments after each call are those of the plain function."""

    def run(compiled: bool) -> list[Any]:
        function, arguments = make()
        call = tc.compile(function) if compiled else function
        found = []
        for number in range(7):
            given = arguments(number)
            result = call(*given)
            results = result if isinstance(result, tuple) else (result,)
            found.append([x.tolist() for x in (*results, *given)])
        return found

    assert run(True) == run(False)


def test_a_view_that_is_returned() -> None:
    """It is the argument itself: a write to it reaches what it views."""
    w = weight()
    same, alone = tc.compile(lambda x: (x, x * 2)), tc.compile(lambda x: x)
    for number in range(4):
        view = w[number : number + 1]
        assert same(view)[0] is view and alone(view) is view


def test_writes_to_a_view_need_few_traces() -> None:
    w, calls = weight(), []

    def step(x: Any) -> Any:
        calls.append(None)
        return x.add_(1).sum()

    compiled = tc.compile(step)
    assert [compiled(w[:2]).item() for _ in range(6)] == [5.0 + 2 * n for n in range(6)]
    # One that finds the write, and one for the views as they are.
    assert settings.slow or len(calls) == 2


def drawn(draw: Callable[[], Any], compiled: bool) -> list[Any]:
    tc.manual_seed(3)
    call = tc.compile(draw) if compiled else draw
    found: list[Any] = []
    for number in range(6):
        if number == 4:
            tc.manual_seed(9)
        found += [x.tolist() for x in call()]
        found += [tc.rand(1).item()] * (number % 2)
    return [*found, tc.get_rng_state().tolist()]


def test_numbers_that_numpy_draws() -> None:
    """Each replay draws the next ones of the stream: permutations and Poisson numbers."""
    data, rates = weight(5), tc.full((3,), 4.0)
    generator = tc.Generator()

    def draw() -> Any:
        order = tc.randperm(5)
        generator.manual_seed(7)
        own = tc.randperm(3, generator=generator, dtype=tc.int32)
        return data[order], order, tc.randperm(5).add_(1), tc.rand(2), own

    assert drawn(draw, True) == drawn(draw, False)
    # Rates that are made inside are a constant; others are looked at, which is refused.
    assert drawn(lambda: (tc.poisson(tc.full((3,), 4.0)),), True) == drawn(
        lambda: (tc.poisson(tc.full((3,), 4.0)),), False
    )
    with pytest.raises(tc.CompileError, match="looked at"):
        tc.compile(lambda: tc.poisson(rates))()


def test_a_look_at_a_permutation_raises() -> None:
    with pytest.raises(tc.CompileError, match="looked at"):
        tc.compile(lambda x: x[tc.randperm(3).tolist()])(weight(3))


def test_a_look_that_is_caught_raises() -> None:
    """Otherwise the trace would be that of the handler, which a plain call does not run."""

    def step(x: Any) -> Any:
        try:
            return x * x.item()
        except Exception:
            return x

    compiled = tc.compile(step)
    for _ in range(2):
        with pytest.raises(tc.CompileError, match=r"looked at(.|\n)*x \* x\.item\(\)"):
            compiled(tc.full((1,), 3.0))


# Python values ------------------------------------------------------------------------------------


CALLS = 0


class Descent(optim.Optimizer):
    """Gradient descent whose step is all its own, as PyTorch's users write it."""

    def __init__(self, parameters: Any, lr: float, counts: bool = False) -> None:
        super().__init__(parameters, {"lr": lr})
        self.factor, self.counts = 1.0, counts

    @tc.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.counts:
                    state = self.state[parameter]
                    state["turns"] = state.get("turns", 0) + 1
                parameter -= group["lr"] * parameter.grad * self.factor


@pytest.fixture(autouse=True)
def scale() -> None:
    set_scale(2.0)


@pytest.mark.parametrize("trap", TRAPS)
def test_a_value_that_changes(trap: Callable[[], Trap]) -> None:
    """Replays after it have the new value; those before have equal values."""
    function, change = trap()
    compiled, x = tc.compile(function), tc.tensor([5.0])
    before = [compiled(x).tolist() for _ in range(4)]
    assert before == [function(x).tolist()] * 4
    change()
    after = [compiled(x).tolist() for _ in range(3)]
    assert after == [function(x).tolist()] * 3
    assert (after[0], type(after[0][0])) != (before[0], type(before[0][0]))


@pytest.mark.fast_paths
def test_values_that_stay_need_no_trace() -> None:
    """Nor do those that are set to what they were, and those that no code names."""
    calls: list[None] = []
    trainer = Trainer()

    def step(x: Any) -> Any:
        calls.append(None)
        return trainer.by_list(trainer.by_method(x))

    compiled = tc.compile(step)
    for number in range(6):
        trainer.config.inner.scale = float("2.0")
        trainer.scales[:] = [float("2.0")]
        trainer.epoch = number  # type: ignore[attr-defined]
        assert compiled(tc.ones(1)).tolist() == [4.0]
    assert len(calls) == 1


class Held:
    """What a test refers to weakly."""


class Answering(Held):
    """It answers for what it does not hold."""

    def __init__(self) -> None:
        self.factor = 2.0

    def __getattr__(self, name: str) -> float:
        return 1.0


class Failed(Held, Exception):
    """It holds arguments."""


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        (Held, lambda held: 2.0 if held.__class__ is Held else 1.0),
        (Answering, lambda held: held.factor),
        (Failed, lambda held: 2.0 - len(held.args)),
        (lambda: {2.0}, lambda held: next(iter(held))),
        (lambda: deque([2.0]), lambda held: held[0]),
        (lambda: np.full(1, 2.0), lambda held: float(held[0])),
        (lambda: lambda factor=2.0: factor, lambda held: held()),
    ],
)
def test_what_is_referred_to_weakly_may_go(
    kind: Callable[[], Any], read: Callable[[Any], float]
) -> None:
    """A guard that held it would hide that it has gone."""
    kept = [kind()]
    reference = weakref.ref(kept[0])

    def function(x: Any) -> Any:
        held = reference()
        return x * (3.0 if held is None else read(held))

    call, x = tc.compile(function), tc.ones(2)
    assert [call(x).tolist() for _ in range(4)] == [[2.0, 2.0]] * 4
    kept.clear()
    assert reference() is None
    assert [call(x).tolist() for _ in range(4)] == [[3.0, 3.0]] * 4


def test_what_code_inside_changes_and_reads_raises() -> None:
    """A replay would not change it: lists, dictionaries and attributes that helpers write."""
    log: list[int] = []
    table, trainer, turn = {"calls": 0}, Trainer(), 0

    def in_a_list(x: Any) -> Any:
        log.append(1)
        return x * len(log)

    def in_a_dictionary(x: Any) -> Any:
        table["calls"] += 1
        return x * table["calls"]

    def in_an_attribute(x: Any) -> Any:
        trainer.calls = getattr(trainer, "calls", 0) + 1  # type: ignore[attr-defined]
        return x * 2

    def later(x: Any) -> Any:
        nonlocal turn
        turn += 1
        return x * (2 if turn < 100 else 3)

    trainer.calls = 0  # type: ignore[attr-defined]
    helpers = {"log": in_a_list, "table": in_a_dictionary, "calls": in_an_attribute, "turn": later}
    for name, helper in helpers.items():
        call = tc.compile(lambda x, helper=helper: helper(x))
        with pytest.raises(tc.CompileError, match=f"changed the Python value {name}"):
            for _ in range(3):
                call(tc.ones(1))


@pytest.mark.fast_paths
def test_what_code_inside_only_counts_is_not_repeated() -> None:
    """As with a print: replays run no Python, and nothing comes of it."""
    log: list[int] = []
    calls: list[None] = []
    table, trainer, turn = {"calls": 0}, Trainer(), 0
    trainer.calls = 0  # type: ignore[attr-defined]

    def step(x: Any, *, calls: list[None] = calls) -> Any:
        nonlocal turn
        turn += 1
        calls.append(None)

        def inside() -> None:
            log.append(1)

        inside()
        log.extend([2, 3])
        table["calls"] += 1
        trainer.calls += 1  # type: ignore[attr-defined]
        trainer.scales.append(5.0)
        set_global()
        return x * 2

    def set_global() -> None:
        global CALLS
        CALLS += 1

    before, compiled = CALLS, tc.compile(lambda x: step(x))
    for _ in range(4):
        assert compiled(tc.ones(1)).tolist() == [2.0]
    counted = [turn, len(calls), len(log) // 3, table["calls"], trainer.calls, CALLS - before]  # type: ignore[attr-defined]
    assert counted == [1] * 6
    assert len(trainer.scales) == 2


def trained(compiled: bool, scheduled: bool, counts: bool = False) -> list[float]:
    """A weight after a few steps of an optimizer of the user's own."""
    weight = nn.Parameter(tc.ones(2))
    optimizer = Descent([weight], lr=0.1, counts=counts)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(x: Any) -> None:
        (weight * weight * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    call = tc.compile(step) if compiled else step
    optimizer.steps = 1  # so that no schedule warns that it goes first
    for number in range(8):
        call(tc.ones(2))
        if scheduled:
            schedule.step()
        elif number == 4:
            optimizer.factor = 0.1
    found: list[float] = weight.tolist()
    return found


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_of_the_users_own(scheduled: bool) -> None:
    """Its rate and its attributes are Python values of its step."""
    assert trained(True, scheduled) == trained(False, scheduled)


def test_an_optimizer_that_counts_raises() -> None:
    with pytest.raises(tc.CompileError, match="changed the Python value"):
        trained(True, False, counts=True)


def test_a_table_that_fills_up() -> None:
    """Signatures that each leave an entry behind once are no calls that never become steady."""
    table: dict[int, float] = {}

    def step(x: Any) -> Any:
        size = x.shape[0]
        if size not in table:
            table[size] = 2.0 * size
        return x * table[size]

    compiled = tc.compile(step)
    for _ in range(3):
        for size in range(1, 7):
            assert compiled(tc.ones(size)).tolist() == [2.0 * size] * size


def test_libraries_and_optimizers_are_not_searched() -> None:
    """What they hold is theirs: an optimizer's rates and states are no constants."""
    model = nn.Linear(2, 1)
    optimizer = optim.Adam(model.parameters())
    schedule = optim.lr_scheduler.StepLR(optimizer, 2)

    def step(x: Any) -> None:
        model(x).sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    names = names_of(step, ())
    found = {named.name for named in names.values} - {"__code__"}
    assert found == {"model", "optimizer", "schedule"}
    assert not names.contents


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "sources"])
def test_libraries_of_other_environments_are_not_searched(folder: str, tmp_path: Path) -> None:
    """Those of a user, of the system or on PYTHONPATH, which may be as large as torch."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "other_library.py").write_text("TABLE = [2.0]\ndef two(): return TABLE[0]")
    program = """
import other_library
from tinygrad_cuda.replay.guards.discovery import names_of
print([named.name for named in names_of(lambda x: x * other_library.two(), ()).values])
"""
    paths = os.pathsep.join([str(tmp_path / folder), str(Path(tc.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert ("TABLE" in found.stdout) == (folder == "sources")


def test_what_takes_time_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = dict.fromkeys(map(str, range(6000)), 1.0)
    image = np.ones(1 << 18, np.float64)

    def step(x: Any) -> Any:
        return x * words["7"] * float(image[0])

    monkeypatch.setattr(settings, "debug", 1)
    assert tc.compile(step)(tc.ones(1)).tolist() == [1.0]
    text = capsys.readouterr().err
    assert "step looks at all 6000 items of words before each replay" in text
    assert "step compares all 2097152 bytes of image before each replay" in text


def test_a_list_that_is_an_argument_is_a_value() -> None:
    """Not the list of the first call; what becomes of that one is no matter."""
    calls: list[None] = []
    first = [2.0]

    def step(x: Any, scales: Any) -> Any:
        calls.append(None)
        return x * scales[0]

    compiled = tc.compile(step)
    assert compiled(tc.ones(1), first).tolist() == [2.0]
    first[0] = 7.0
    assert compiled(tc.ones(1), [2.0]).tolist() == [2.0]
    assert compiled(tc.ones(1), scales=first).tolist() == [7.0]
    assert settings.slow or len(calls) == 2


def test_an_object_that_is_an_argument() -> None:
    """It is asked for the names that the function has, by position and by name."""
    config = SimpleNamespace(scale=2.0)
    compiled = tc.compile(lambda x, config: x * config.scale)
    for value in (2.0, 2.0, 3.0, 3.0):
        config.scale = value
        assert compiled(tc.ones(1), config).tolist() == [value]
        assert compiled(tc.ones(1), config=config).tolist() == [value]


def test_an_argument_that_is_in_a_named_list() -> None:
    """Another argument later is not the one in the list."""
    known = [tc.tensor([2.0]), tc.tensor([3.0])]
    compiled = tc.compile(lambda x: x * known[0])
    assert compiled(known[0]).tolist() == [4.0]
    assert compiled(known[1]).tolist() == [6.0]
    assert compiled(known[0]).tolist() == [4.0]


def test_arrays_of_other_libraries_are_refused() -> None:
    """Nobody can tell whether they have changed, but by reading them."""
    torch = pytest.importorskip("torch")
    factor = torch.ones(1)
    with pytest.raises(tc.CompileError, match=r"it names a torch.Tensor(.|\n)*float\(factor\)"):
        tc.compile(lambda x: x * float(factor))(tc.ones(1))


def test_a_profiler_goes_on() -> None:
    """One of C, and one of Python, also where a call is refused."""

    def seen() -> None:
        pass

    profiler = cProfile.Profile()
    profiler.enable()
    try:
        tc.compile(lambda x: x * 2)(tc.ones(1))
        with pytest.raises(tc.CompileError, match="calls time"):
            tc.compile(lambda x: x * time.time())(tc.ones(1))
        seen()
    finally:
        profiler.disable()
    assert any(entry.code is seen.__code__ for entry in profiler.getstats())
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        tc.compile(lambda x: x * 2)(tc.ones(1))
        events.clear()
        len(events)
    finally:
        sys.setprofile(None)
    assert "c_call" in events


def test_a_log_and_a_warning_inside() -> None:
    """What they read of the clock does not come back to the function."""
    log = logging.getLogger("compiled")

    def step(x: Any) -> Any:
        log.warning("shape %s", x.shape)
        warnings.warn("once", UserWarning, stacklevel=1)
        return x * 2

    compiled = tc.compile(step)
    with pytest.warns(UserWarning, match="once"):
        assert [compiled(tc.ones(1)).item() for _ in range(3)] == [2.0] * 3


class Sharing:
    """Its methods share names with what its model holds."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 2)
        self.model.between = nn.LayerNorm(2)
        self.optimizer = optim.Adam(self.model.parameters(), lr=0.1)

    def between(self) -> int:
        return len(self.optimizer.state)

    def step(self, x: Any) -> Any:
        return self.model.between(self.model(x)).sum()

    def counted(self, x: Any) -> Any:
        return x * self.between()


def test_only_what_runs_is_refused() -> None:
    """Names lead to code that no call runs: what it would read is not read."""
    trainer, x = Sharing(), tc.ones(1, 2)
    call = tc.compile(trainer.step)
    for _ in range(3):
        assert call(x).item() == trainer.step(x).item()
    with pytest.raises(tc.CompileError, match=r"reads the state of an optimizer(.|\n)*len\(self"):
        tc.compile(trainer.counted)(x)


class Schooling:
    """Training whose methods share names; one of them does what a replay cannot."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(tc.ones(2))
        self.optimizer = optim.Adam([self.weight], lr=0.1)
        self.epochs = 0
        self.calls: list[None] = []

    def train(self, x: Any) -> Any:
        self.calls.append(None)
        self.optimizer.zero_grad()
        loss = (self.weight * x).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self) -> Any:
        """Ends an epoch."""
        self.epochs += 1
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5
        return self.optimizer.state[self.weight]["step"]

    def both(self, x: Any) -> Any:
        self.train(x)
        return x * self.step()


def test_methods_that_do_not_run_are_not_read() -> None:
    """Of the same name as one that does: they are neither refused nor compared."""
    plain, task = Schooling(), Schooling()
    compiled = tc.compile(task.train)
    x = tc.tensor([1.0, 2.0])
    for _ in range(4):
        assert [compiled(x).item() for _ in range(3)] == [plain.train(x).item() for _ in range(3)]
        plain.step()
        task.step()
    assert settings.slow or len(task.calls) == 2, "the first call makes the optimizer's state"
    with pytest.raises(tc.CompileError, match=r"state of an optimizer(.|\n)*test_compile_guards"):
        tc.compile(Schooling().both)(x)


def test_code_of_other_threads_is_read() -> None:
    """The interpreter does not tell of it, nor of a function whose result is cached."""
    scales = [2.0]

    def run(found: list[float]) -> None:
        found.append(scales[0])

    @functools.cache
    def cached() -> float:
        return helper()

    def helper() -> float:
        return scales[0]

    def by_thread(x: Any) -> Any:
        found: list[float] = []
        thread = threading.Thread(target=run, args=(found,))
        thread.start()
        thread.join()
        return x * found[0]

    by_cache, x = tc.compile(lambda x: x * cached()), tc.ones(1)
    compiled = tc.compile(by_thread)
    for scale in (2.0, 3.0, 4.0):
        scales[0] = scale
        cached.cache_clear()
        assert cached() == scale
        assert [call(x).item() for call in (compiled, by_cache) for _ in range(3)] == [scale] * 6


def test_what_others_change_is_no_fault_of_the_call() -> None:
    """A logger keeps what it was asked until its level is set, between calls, as often as not."""
    logger = logging.getLogger("compiled")
    compiled = tc.compile(lambda x: x * (3.0 if logger.isEnabledFor(10) else 2.0))
    x = tc.ones(1)
    for number in range(8):
        logger.setLevel(30 if number % 2 else 10)
        assert [compiled(x).item() for _ in range(1 + number % 3)] == [2.0 + (number + 1) % 2] * (
            1 + number % 3
        )


def test_what_a_call_changes_itself_is_refused_in_the_end() -> None:
    """However much others change besides."""
    things: dict[str, int] = {"calls": 0}

    def step(x: Any) -> Any:
        things["calls"] += 1
        return x * things["calls"]

    compiled = tc.compile(step)
    with pytest.raises(tc.CompileError, match="3 calls in a row"):
        for _ in range(3):
            compiled(tc.ones(1))


class _Rates:
    beta = 2.0

    def __init__(self) -> None:
        self.alpha = 2.0


READERS: dict[str, Any] = {
    "object": lambda rates, x: x * object.__getattribute__(rates, "alpha"),
    "bound": lambda rates, x: x * rates.__getattribute__("alpha"),
    "type": lambda rates, x: x * type.__getattribute__(type(rates), "beta"),
}


@pytest.mark.parametrize("name", READERS)
def test_attributes_read_by_getattribute_are_followed(name: str) -> None:
    """They were frozen."""
    rates, read = _Rates(), READERS[name]
    step = tc.compile(lambda x: read(rates, x))
    x = tc.ones(1, device="cpu")
    try:
        assert step(x).item() == 2
        rates.alpha = _Rates.beta = 3.0
        assert step(x).item() == 3
    finally:
        _Rates.beta = 2.0


LIBRARY = """
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    name: str
    begun: float


def engine(module, names=("name", "begun")):
    made = Engine("fast", time.time())
    return [getattr(made, name) for name in names] + [getattr(module, "".join(["eng", "ine"]))]
"""


def test_what_a_plan_calls_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay runs the plan, too: also a library that it loads, from whatever folder."""
    (tmp_path / "library_of_a_plan.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    runs = []

    def reference(x: Any) -> Any:
        library = importlib.import_module("library_of_a_plan")
        runs.append(library.engine(library)[1])
        return x + 1

    @tc.custom_op("y = x + 1", numpy=reference, gradient=lambda g, y, x: g, check=False)
    def next_one(x: Any) -> Any:
        """One more."""

    weight = tc.ones(3, device="cpu", requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.5)

    @tc.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (next_one(x) * weight).sum()
        loss.backward()
        optimizer.step()  # which has the plan run
        return loss.detach()

    runs.clear()
    x = tc.ones(3, device="cpu")
    assert [step(x).item() for _ in range(4)] == [6.0, 0.0, -6.0, -12.0]
    assert len(runs) >= 4
    sys.modules.pop("library_of_a_plan")
