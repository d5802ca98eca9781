"""tc.compile: bits of the plain program, every trap of a stale replay, and what is refused."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.utils.checkpoint import checkpoint

SIZES = (6, 5, 3)
BATCH = 4


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


class Task:
    """A model with dropout and batch norm, its optimizer, and a whole step."""

    def __init__(self, kind: str = "SGD", compiled: bool = True, clip: bool = False) -> None:
        tc.manual_seed(1)
        inputs, hidden, outputs = SIZES
        self.model = nn.Sequential(
            nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(hidden, outputs),
        )  # fmt: skip
        options = {"momentum": 0.9} if kind == "SGD" else {}
        self.optimizer = getattr(optim, kind)(self.model.parameters(), lr=0.05, **options)
        model, optimizer = self.model, self.optimizer
        self.traced = 0

        def step(x: Any, y: Any) -> Any:
            note()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def note() -> None:
            self.traced += 1

        self.step: Callable[..., Any] = tc.compile(step) if compiled else step

    def state(self) -> list[bytes]:
        """The bytes of all parameters, buffers and moments."""
        moments = [v for s in self.optimizer.state.values() for v in s.values()]
        kept = [v for v in moments if isinstance(v, tc.Tensor)]
        return [_bytes(v) for v in (*self.model.state_dict().values(), *kept)]


def _bytes(tensor: Any) -> bytes:
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes()


def batch(number: int, size: int = BATCH) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    x = rng.standard_normal((size, SIZES[0])).astype(np.float32)
    return tc.tensor(x), tc.tensor(rng.integers(0, SIZES[-1], size))


def both(program: Callable[[Task], list[Any]], **options: Any) -> tuple[Task, Task]:
    """Runs a program plainly and compiled; results and final states must be the same bits."""
    plain = Task(compiled=False, **options)
    wanted = [_bytes(found) for found in program(plain)]
    compiled = Task(compiled=True, **options)
    assert [_bytes(found) for found in program(compiled)] == wanted
    assert plain.state() == compiled.state()
    return plain, compiled


# Whole steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "ASGD",
     "Rprop", "Lion"],
)  # fmt: skip
def test_steps_are_the_plain_ones_bit_for_bit(kind: str) -> None:
    """Dropout, batch norm, clipping, a rate that changes: 12 steps; the host's counts as well."""
    if not hasattr(optim, kind):
        pytest.skip(f"there is no {kind}")

    def program(task: Task) -> list[Any]:
        schedule = optim.lr_scheduler.ExponentialLR(task.optimizer, 0.9)
        found = []
        for number in range(12):
            found.append(task.step(*batch(number)))
            schedule.step()
        return found

    plain, compiled = both(program, kind=kind, clip=True)
    assert compiled.traced <= 2
    assert plain.optimizer.steps == compiled.optimizer.steps == 12
    for mine, theirs in zip(plain.optimizer.state.values(), compiled.optimizer.state.values()):
        for key, value in mine.items():
            if not isinstance(value, tc.Tensor):
                assert theirs[key] == value, key


def test_muon() -> None:
    """Its factors depend on the shape of each matrix."""

    def train(compiled: bool) -> list[bytes]:
        tc.manual_seed(0)
        weights = [nn.Parameter(tc.randn(*shape)) for shape in ((3, 5), (5, 3), (4, 4))]
        optimizer = optim.Muon(weights, lr=0.05)

        def step(scale: Any) -> Any:
            sum((w * w).sum() * scale for w in weights).backward()
            optimizer.step()
            optimizer.zero_grad()

        call = tc.compile(step) if compiled else step
        for number in range(4):
            optimizer.param_groups[0]["lr"] *= 0.5
            call(tc.tensor(float(number)))
        return [_bytes(w) for w in weights]

    assert train(False) == train(True)


@pytest.mark.parametrize("name", ["emu", "cuda"])
def test_steps_on_devices(name: str, request: pytest.FixtureRequest) -> None:
    """State is overwritten in place, by the very plans of the plain program."""
    if name == "cuda":
        name = request.getfixturevalue("cuda_device")
    try:
        registry.get(as_device(name))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    tc.set_default_device(name)
    made = []

    def program(task: Task) -> list[Any]:
        found = []
        for number in range(6):
            found.append(task.step(*batch(number)))
            if number == 3:
                held = task.model[0].weight.detach().clone()
                found.append(held)
            made.append(plans.made)
        return [*found, held]

    both(program, kind="Adam")
    assert made[-1] <= made[5] + 1, "the compiled step uses other plans than the plain one"


def test_parameters_keep_their_storage_on_emu() -> None:
    """A replay overwrites; but what somebody holds is left alone."""
    tc.set_default_device("emu")
    try:
        registry.get(as_device("emu"))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    weight = nn.Parameter(tc.ones(3))
    optimizer = optim.SGD([weight], lr=0.5)

    @tc.compile
    def step(x: Any) -> None:
        (weight * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    x = tc.ones(3).clone()
    for _ in range(3):
        step(x)
    before = weight.cell.node.storage.address
    step(x)
    assert weight.cell.node.storage.address == before
    assert weight.tolist() == [-1.0] * 3
    held = weight.detach().clone()
    pending = weight * 10
    step(x)
    assert weight.tolist() == [-1.5] * 3
    assert held.tolist() == [-1.0] * 3
    assert pending.tolist() == [-10.0] * 3


def test_constants_that_a_plan_overwrites() -> None:
    """A tensor made inside and written in place begins anew in each call."""

    def count(x: Any) -> Any:
        total = tc.tensor([1.0, 2.0])
        for _ in range(3):
            total += x
        return total

    for name in ("cpu", "emu"):
        tc.set_default_device(name)
        call = tc.compile(count)
        try:
            found = [call(tc.full((2,), float(n))).tolist() for n in range(4)]
        except tc.DeviceError as error:
            pytest.skip(str(error))
        assert found == [[1.0 + 3 * n, 2.0 + 3 * n] for n in range(4)]


# Traps --------------------------------------------------------------------------------------------


def test_shape_change() -> None:
    def program(task: Task) -> list[Any]:
        sizes = [4, 4, 4, 7, 7, 4, 2, 7]
        return [task.step(*batch(n, size)) for n, size in enumerate(sizes)]

    _, compiled = both(program)
    assert compiled.traced == 4, "one for the optimizer's state, and one for each size"


def test_train_and_eval() -> None:
    """Modes are two programs; going back finds the first one."""

    def program(task: Task) -> list[Any]:
        found = []
        for number in range(9):
            task.model.train(number % 3 != 2)
            found.append(task.step(*batch(number)))
        return found

    _, compiled = both(program)
    assert compiled.traced == 3


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
    assert compiled.traced == 2


def test_outputs_do_not_alias() -> None:
    """What an earlier call returned stays, also when it is written."""
    double = tc.compile(lambda x: (x * 2, [x + 1]))
    results = [double(tc.tensor([float(n)])) for n in range(4)]
    results[2][0].add_(100.0)
    assert [a.item() for a, _ in results] == [0.0, 2.0, 104.0, 6.0]
    assert [b.item() for _, (b,) in results] == [1.0, 2.0, 3.0, 4.0]


def test_input_buffer_reused() -> None:
    """One array that is filled again and again, shared or written in place."""
    array = np.zeros(2, np.float32)
    shared, own = tc.from_numpy(array), tc.zeros(2)
    total = tc.compile(lambda a, b: a + b)
    found = []
    for n in range(4):
        array[:] = n
        own.fill_(10.0 * n)
        found.append(total(shared, own).tolist())
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
    assert len(calls) == 1
    with pytest.raises(tc.CompileError, match="view that is an argument"):
        tc.compile(lambda x: x.add_(1))(data[:2])


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


def test_exception_in_the_middle() -> None:
    """A bad label changes nothing and the next call goes on; so does an error of Python's."""
    found = []
    for compiled in (False, True):
        task = Task(compiled=compiled)
        for n in range(3):
            task.step(*batch(n))
        before = task.state()
        x, y = batch(7)
        with pytest.raises(tc.IndexError):
            task.step(x, y + 100)
        assert task.state()[:1] == before[:1]
        task.optimizer.zero_grad()
        for n in range(3):
            task.step(*batch(n))
        found.append([task.optimizer.steps, *task.state()])
    assert found[0] == found[1] and found[0][0] == 6
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
        return [_bytes(x) for x in found] + task.state()

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
    assert len(calls) == 1, "frozen, it is replayed"


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
        losses = [_bytes(call(tc.ones(3, 4) * n)) for n in range(5)]
        return [losses, *map(_bytes, model.parameters()), tc.get_rng_state().tolist()]

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
            found.append([_bytes(weight), optimizer.param_groups[0]["lr"], schedule.last_epoch])
        assert found[0] == found[1]
        assert len(calls) <= 2


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
        return [_bytes(x) for x in (*held, *grads, weight)]

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
        return [_bytes(weight)]

    assert train(False) == train(True)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(), lambda x: 1 if x.sum() > 0 else 2, lambda x: x.numpy(),
        lambda x: print(x), lambda x: x.nonzero(), lambda x: float(x.mean()),
        lambda x: tc.rand(2).tolist(),
    ],
    ids=["item", "bool", "numpy", "print", "nonzero", "float", "random"],
)  # fmt: skip
def test_looking_inside_raises(look: Callable[[Any], Any]) -> None:
    """With the line; and after the error the same tensors can be used."""
    x = tc.tensor([1.0, 2.0])
    with pytest.raises(tc.CompileError, match="looked at inside a compiled function") as error:
        tc.compile(look)(x)
    assert "test_compile.py" in str(error.value)
    assert (x * 2).tolist() == [2.0, 4.0]


def test_constants_may_be_looked_at() -> None:
    compiled = tc.compile(lambda x: x * tc.tensor([3.0]).item() + len(tc.arange(4).tolist()))
    assert [compiled(tc.ones(1)).item() for _ in range(2)] == [7.0, 7.0]


def test_what_is_left_behind_raises() -> None:
    """A kept Tensor and a Python counter, by name or line."""
    kept = []

    def keep(x: Any) -> Any:
        kept.append(x * 2)
        return x

    call = tc.compile(keep)
    with pytest.raises(tc.CompileError, match=r"kept\.append"):
        for _ in range(3):
            call(tc.ones(1))

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x + self.calls

    model = tc.compile(Counting())
    with pytest.raises(tc.CompileError, match=r"Counting\.calls"):
        for _ in range(3):
            model(tc.ones(1))


def test_arrays_are_no_arguments() -> None:
    with pytest.raises(tc.ArgumentError, match="from_numpy"):
        tc.compile(lambda x: tc.tensor(x))(np.ones(2))


def test_python_values() -> None:
    """Arguments make programs of their own; globals and variables of a closure are looked at."""
    scale = 2.0

    def times(x: Any, factor: Any, names: dict[str, Any]) -> Any:
        return x * factor * scale + names["plus"]

    call = tc.compile(times)
    one = tc.ones(1)
    found = [
        call(one, factor, {"plus": plus}).item()
        for factor, plus in [(1, one), (1.5, one), (True, one), (1, one), (1, 2), (1, 3)]
    ]
    assert found == [3.0, 4.0, 3.0, 3.0, 4.0, 5.0]
    scale = 3.0
    assert call(one, 1, {"plus": one}).item() == 4.0


def test_validate_finds_a_stale_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """TGC_VALIDATE traces every call anew and names the line at which the traces part."""
    factors = {"now": 1.0}

    def inner(x: Any) -> Any:
        return x * factors["now"]

    call = tc.compile(lambda x: inner(x))
    monkeypatch.setattr(settings, "validate", True)
    task = Task(kind="Adam")
    for number in range(5):
        task.step(*batch(number))
    assert task.traced == 5
    assert [call(tc.ones(1)).item() for _ in range(2)] == [1.0, 1.0]
    factors["now"] = 5.0
    with pytest.raises(tc.CompileError, match="something else than when it was traced"):
        call(tc.ones(1))


def test_reasons_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings, "debug", 1)
    task = Task()
    for size in (4, 4, 4, 5):
        task.step(*batch(0, size))
    task.model.eval()
    task.step(*batch(0, 5))
    text = capsys.readouterr().err
    assert "is traced: its first call" in text
    assert "its call has changed the optimizer's state was made" in text
    assert "an argument is a tensor (5, 6) float32" in text
    assert "training has changed" in text


# Forms --------------------------------------------------------------------------------------------


def test_decorator_method_and_module() -> None:
    @tc.compile()
    def twice(x: Any) -> Any:
        """Doubles."""
        return x * 2

    class Trainer:
        def __init__(self) -> None:
            self.scale = tc.tensor([2.0])

        @tc.compile
        def call(self, x: Any) -> Any:
            return x * self.scale

    assert twice(tc.ones(1)).item() == 2.0 and twice.__doc__ == "Doubles."
    trainer, other = Trainer(), Trainer()
    assert [trainer.call(tc.ones(1)).item() for _ in range(2)] == [2.0, 2.0]
    other.scale = tc.tensor([5.0])
    assert other.call(tc.ones(1)).item() == 5.0
    trainer.scale = tc.tensor([7.0])
    assert trainer.call(tc.ones(1)).item() == 7.0


def test_nested() -> None:
    """A compiled function inside another is part of it."""
    inner = tc.compile(lambda x: x + 1)
    outer = tc.compile(lambda x: inner(x) * 2)
    assert [outer(tc.tensor([float(n)])).item() for n in range(3)] == [2.0, 4.0, 6.0]


# Many steps in one call ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "emu"])
def test_steps_in_one_call(name: str) -> None:
    """An epoch over data on the device: the bits of a loop, losses in one tensor."""
    tc.set_default_device(name)
    try:
        registry.get(as_device(name))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    count = 6
    images, labels = batch(0, 20)
    order = tc.tensor(np.random.default_rng(3).permutation(20)[: count * 3].reshape(count, 3))

    def train(compiled: bool) -> list[bytes]:
        task = Task(compiled=False)

        def step(index: Any, scale: float) -> Any:
            loss = task.step(images[index] * scale, labels[index])
            return {"loss": loss, "index": index + 0}

        if not compiled:
            parts = [step(order[k % count], 0.5) for k in range(2 * count)]
            losses = tc.stack([part["loss"] for part in parts[count:]])
            return [_bytes(losses), _bytes(order), *task.state()]
        epoch = tc.compile(step, steps=count)
        epoch(order, 0.5)
        found = epoch(order, 0.5)
        return [_bytes(found["loss"]), _bytes(found["index"]), *task.state()]

    assert train(True) == train(False)
    with pytest.raises(tc.ShapeError, match="not the data of 4 steps"):
        tc.compile(lambda x: x, steps=4)(tc.ones(3))
    with pytest.raises(tc.ArgumentError, match="no steps"):
        tc.compile(lambda x: x, steps=0)


def test_loop() -> None:
    """State goes round, random numbers advance, and the function is traced once."""
    calls = []

    def turn(x: Any, t: Any) -> Any:
        calls.append(None)
        return x * 0.5 + tc.randn(3) * t, t - 1

    tc.manual_seed(4)
    x, t = tc.ones(3), tc.tensor(5.0)
    for _ in range(5):
        x, t = turn(x, t)
    wanted = [_bytes(x), _bytes(t)]
    calls.clear()
    tc.manual_seed(4)
    assert [_bytes(v) for v in tc.loop(5, turn, tc.ones(3), tc.tensor(5.0))] == wanted
    tc.loop(3, turn, tc.ones(3), tc.tensor(5.0))
    assert len(calls) == 1
    assert tc.loop(0, turn, tc.ones(3), t)[1] is t
    with pytest.raises(tc.ArgumentError, match="another number of values"):
        tc.loop(2, lambda x: (x, x), tc.ones(1))


# Running on ---------------------------------------------------------------------------------------


def test_nothing_is_kept_from_call_to_call() -> None:
    """Nodes alive are as many after 20 calls as after 4, with the collector switched off."""
    task, counts = Task(), []
    x, y = batch(0)
    gc.collect()
    gc.disable()
    try:
        for number in range(20):
            task.step(x, y)
            if number in (4, 19):
                counts.append(sum(type(thing) is Node for thing in gc.get_objects()))
    finally:
        gc.enable()
    assert counts[0] == counts[1]


def test_threads() -> None:
    """One compiled function in four threads at once."""
    call = tc.compile(lambda x: (x * 2 + 1).sum())
    wrong = []

    def work(base: int) -> None:
        for number in range(base, base + 20):
            found = call(tc.full((3,), float(number))).item()
            if found != 6 * number + 3:
                wrong.append((number, found))

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_modes_that_look_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """TGC_EAGER and detect_nan record each call; the values are the same."""
    x, y = batch(0)
    plain = Task(compiled=False)
    wanted = [plain.step(x, y).item() for _ in range(6)]
    task = Task()
    found = [task.step(x, y).item() for _ in range(3)]
    with tc.detect_nan():
        found.append(task.step(x, y).item())
    found.append(task.step(x, y).item())
    monkeypatch.setattr(settings, "eager", True)
    found.append(task.step(x, y).item())
    assert found == wanted
