"""tc.compile: steps give the bits of the plain program; its forms, long training, refusals."""

from __future__ import annotations

import copy
import ctypes
import functools
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from compiled_task import Task, batch, both, value_bytes

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.nn import functional as F


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


# Whole steps --------------------------------------------------------------------------------------


@pytest.mark.smoke("capture")
@pytest.mark.parametrize(
    "kind",
    ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "ASGD",
     "Lion", "Rprop", "Adafactor"],
)  # fmt: skip
def test_steps_are_the_plain_ones_bit_for_bit(kind: str) -> None:
    """Dropout, batch norm, clipping, a rate that changes: 12 steps; the host's counts as well."""

    def program(task: Task) -> list[Any]:
        schedule = optim.lr_scheduler.ExponentialLR(task.optimizer, 0.9)
        found = []
        for number in range(12):
            found.append(task.step(*batch(number)))
            schedule.step()
        return found

    plain, compiled = both(program, kind=kind, clip=True)
    assert settings.slow or compiled.traced <= 2
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
        return [value_bytes(w) for w in weights]

    assert train(False) == train(True)


@pytest.mark.smoke("capture")
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
    assert made[-1] == made[5], "the compiled step uses other plans than the plain one"


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


@pytest.mark.smoke("capture")
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


@pytest.mark.fast_paths
def test_validate_finds_a_stale_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """TGC_VALIDATE traces every call anew and names the line at which the traces part."""
    factor = functools.partial(float, 1.0)
    call = tc.compile(lambda x: x * factor())
    monkeypatch.setattr(settings, "validate", True)
    task = Task(kind="Adam")
    for number in range(5):
        task.step(*batch(number))
    assert task.traced == 5
    assert [call(tc.ones(1)).item() for _ in range(2)] == [1.0, 1.0]
    for program in [one for programs in call._programs.values() for one in programs]:
        program.names.values.clear()  # as if no guard looked at it
    factor.__setstate__((float, (5.0,), {}, None))
    with pytest.raises(tc.CompileError, match="something else than when it was traced"):
        call(tc.ones(1))


@pytest.mark.parametrize("name", ["cpu", "emu"])
def test_validate_finds_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that become arguments of a plan, and random ones, are the same graph."""
    monkeypatch.setattr(settings, "validate", True)
    turn = tc.compile(lambda x, t: (x * 0.5 + tc.randn(3, device=name) * t, t - 1))
    x, t = tc.ones(3, device=name), tc.tensor(5.0, device=name)
    scaled = tc.compile(lambda x, k: x * k * 2.0)
    for factor in (1, 1.5, True, 1, 1.5):
        x, t = turn(x, t)
        assert scaled(t, factor).item() == t.item() * factor * 2.0


@pytest.mark.fast_paths
@pytest.mark.parametrize("name", ["cpu", "emu"])
def test_validate_finds_other_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Tensor made inside from Python data is a constant; memory may hold something else."""
    monkeypatch.setattr(settings, "validate", True)
    numbers = ctypes.c_float * 2
    data = numbers(1.0, 2.0)
    where = ctypes.addressof(data)
    call = tc.compile(lambda x: x * tc.tensor(list(numbers.from_address(where)), device=name))
    x = tc.ones(2, device=name)
    assert [call(x).tolist() for _ in range(2)] == [[1.0, 2.0]] * 2
    data[1] = 3.0
    with pytest.raises(tc.CompileError, match=r"from_address\(where\)"):
        call(x)


def test_state_that_is_cleared_before_each_call_is_made_each_time() -> None:
    """As without `compile`: no call is refused, however many there are."""
    weights = []
    for compiled in (False, True):
        tc.manual_seed(0)
        model = nn.Linear(6, 2)
        optimizer = optim.RAdam(model.parameters(), lr=0.1)

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        call = tc.compile(step) if compiled else step
        for _ in range(6):
            call(tc.ones(4, 6))
            optimizer.state.clear()
        weights.append(model.weight.tolist())
    assert weights[0] == weights[1]


@pytest.mark.fast_paths
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
    assert "its call has changed the optimizer's state, which it made" in text
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
            return [value_bytes(losses), value_bytes(order), *task.state()]
        epoch = tc.compile(step, steps=count)
        epoch(order, 0.5)
        found = epoch(order, 0.5)
        return [value_bytes(found["loss"]), value_bytes(found["index"]), *task.state()]

    assert train(True) == train(False)
    with pytest.raises(tc.ShapeError, match="not the data of 4 steps"):
        tc.compile(lambda x: x, steps=4)(tc.ones(3))
    with pytest.raises(tc.ArgumentError, match="no steps"):
        tc.compile(lambda x: x, steps=0)


def _triple(x: Any) -> Any:
    return x * 3


@pytest.mark.parametrize("function", [_triple, tc.neg], ids=["of a module", "of the package"])
@pytest.mark.parametrize("steps", [None, 3])
def test_compiled_functions_can_be_pickled(function: Any, steps: int | None) -> None:
    """A copy makes as many steps as the original, and is of the same class."""
    call = tc.compile(function, steps=steps)
    x = tc.arange(6.0).reshape(3, 2)
    for copied in (pickle.loads(pickle.dumps(call)), copy.deepcopy(call)):
        assert type(copied) is type(call)
        assert copied.function is function
        assert getattr(copied, "count", None) == steps
        assert copied(x).tolist() == call(x).tolist() == function(x).tolist()
    if steps:
        with pytest.raises(tc.ShapeError, match="not the data of 3 steps"):
            pickle.loads(pickle.dumps(call))(tc.ones(4, 2))


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
    wanted = [value_bytes(x), value_bytes(t)]
    calls.clear()
    tc.manual_seed(4)
    assert [value_bytes(v) for v in tc.loop(5, turn, tc.ones(3), tc.tensor(5.0))] == wanted
    tc.loop(3, turn, tc.ones(3), tc.tensor(5.0))
    assert settings.slow or len(calls) == 1
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


@pytest.mark.parametrize("name", ["cpu", "emu"])
def test_model_and_optimizer_go_with_the_function(name: str) -> None:
    """Plans outlive a compiled step, and hold nothing of it."""
    try:
        registry.get(as_device(name))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    tc.set_default_device(name)

    def used() -> list[Any]:
        model = nn.Linear(3, 2)
        optimizer = optim.Adam(model.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.dropout(model(x), 0.5).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call, many = tc.compile(step), tc.compile(step, steps=3)
        for _ in range(4):
            call(tc.ones(4, 3))
        many(tc.ones(3, 4, 3))
        return [weakref.ref(x) for x in (model, optimizer, model.weight, model.weight.cell)]

    references = used()
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


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


# Forms of PyTorch's programs ----------------------------------------------------------------------


@pytest.mark.usefixtures("device")
def test_forms_of_pytorch() -> None:
    """The keywords that programs give, and a Module that compiles itself."""
    calls: list[None] = []

    def step(x: Any) -> Any:
        calls.append(None)
        return x * 2

    x = tc.ones(2)
    forms: list[dict[str, Any]] = [
        {"backend": "inductor", "mode": "max-autotune"}, {"fullgraph": True, "dynamic": False},
        {"mode": "reduce-overhead", "options": {"triton.cudagraphs": True}},
        {"backend": "aot_eager", "disable": False},
    ]  # fmt: skip
    for form in forms:
        calls.clear()
        for compiled in (tc.compile(step, **form), tc.compile(**form)(step)):
            assert [compiled(x).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
        assert settings.slow or len(calls) == 2
    assert tc.compile(step, backend="eager") is step and tc.compile(step, disable=True) is step
    with pytest.raises(tc.ArgumentError, match="not a mode"):
        tc.compile(step, mode="fast")
    with pytest.raises(tc.ArgumentError, match="a backend is a function"):
        tc.compile(step, backend=lambda graph, inputs: graph)


@pytest.mark.usefixtures("device")
def test_gradients_of_arguments_are_results() -> None:
    """What a call returns may be what a leaf holds, too."""

    def slopes(x: tc.Tensor, y: tc.Tensor) -> tuple[Any, Any]:
        (x * y * y).sum().backward()
        return x.grad, y.grad

    compiled = tc.compile(slopes)
    for number in range(4):
        found = []
        for function in (slopes, compiled):
            x, y = (tc.full((2,), number + k, dtype=tc.float32) for k in (1.0, 2.0))
            a, b = function(x.requires_grad_(), y.requires_grad_())
            assert a is x.grad and b is y.grad
            found.append([a.tolist(), b.tolist()])
        assert found[0] == found[1]


def test_a_module_that_compiles_itself() -> None:
    """In place: its calls are replayed, it stays a part of others and is copied."""
    calls: list[None] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            calls.append(None)
            return self.inner(x)

    plain, net = Net(), Net()
    net.load_state_dict(plain.state_dict())
    net.compile(fullgraph=True)
    whole, x = nn.Sequential(net, nn.ReLU()), tc.ones(3, 2)
    with tc.no_grad():
        wanted = plain(x).tolist()
        calls.clear()
        assert [net(x).tolist() for _ in range(4)] == [wanted] * 4
        assert settings.slow or len(calls) == 1
        assert list(whole.state_dict()) == ["0.inner.weight", "0.inner.bias"]
        other = copy.deepcopy(net)
        other.inner.weight.zero_()
        assert net(x).tolist() == wanted != other(x).tolist()
    for module in (plain, net):
        module(x).square().sum().backward()
    assert tc.equal(plain.inner.weight.grad, net.inner.weight.grad)


# Long training with dropout and a schedule --------------------------------------------------------


EMULATED, STEPS, FEWER = 5, 1000, 100


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(8, 4, 3, padding=1)
        )

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
    )


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.first, self.second = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.head, self.drop = nn.Linear(8, 10), nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.first(self.stem(x)))
        x = F.relu(x + self.second(self.body(x)))
        return self.head(self.drop(x.mean((2, 3))))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.top, self.down = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, padding=1)
        self.norm, self.drop = nn.GroupNorm(4, 16), nn.Dropout(0.1)
        self.up, self.out = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Any) -> Any:
        top = F.silu(self.top(x))
        low = self.drop(F.silu(self.norm(self.down(top))))
        up = self.up(F.interpolate(low, scale_factor=2, mode="nearest"))
        return self.out(tc.cat((top, up), 1))


# The model, its input's shape, its optimizer; labels, or another image of the shape.
CASES: dict[str, tuple[Any, tuple[int, ...], Any, bool]] = {
    "perceptron": (
        perceptron, (8, 1, 28, 28), lambda p: optim.SGD(p, lr=0.05, momentum=0.9), True
    ),
    "lenet": (lenet, (4, 1, 28, 28), lambda p: optim.Adam(p, lr=1e-3), True),
    "denoiser": (Denoiser, (1, 4, 16, 16), lambda p: optim.SGD(p, lr=0.01), False),
    "residual": (Residual, (4, 1, 16, 16), lambda p: optim.Adam(p, lr=1e-3), True),
    "unet": (UNet, (2, 2, 16, 16), lambda p: optim.Adam(p, lr=1e-3), False),
}  # fmt: skip
LONG = ("perceptron", "lenet", "denoiser")


def trained(name: str, count: int, compiled: bool) -> tuple[list[bytes], list[int]]:
    """All losses and the last parameters; how many plans there were after each step."""
    tc.manual_seed(0)
    build, shape, optimizer_of, labelled = CASES[name]
    model = build()
    optimizer = optimizer_of(model.parameters())
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, count)
    rng = np.random.default_rng(0)
    data = [
        (
            rng.standard_normal(shape).astype(np.float32),
            rng.integers(0, 10, shape[0])
            if labelled
            else rng.standard_normal(shape).astype(np.float32),
        )
        for _ in range(8)
    ]

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        found = model(x)
        loss = F.cross_entropy(found, y) if labelled else F.mse_loss(found, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = tc.compile(step) if compiled else step
    losses, made = [], []
    for number in range(count):
        x, y = data[number % len(data)]
        losses.append(call(tc.tensor(x), tc.tensor(y)))
        schedule.step()
        made.append(plans.made)
    return [value_bytes(v) for v in (*losses, *model.parameters())], made


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_program_is_the_plain_one(name: str, kernel_device: str) -> None:
    """1000 steps on a GPU, 100 of the larger models."""
    count = EMULATED if kernel_device == "emu" else STEPS if name in LONG else FEWER
    plain, made = trained(name, count, False)
    compiled, made_again = trained(name, count, True)
    assert compiled == plain
    assert made_again[-1] == made[-1], "the compiled program has plans of its own"
