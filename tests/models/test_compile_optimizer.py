"""tc.compile: optimizers whose options and state change between calls; several steps in a call."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_task import value_bytes

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.optim.step_replay import NOWHERE, StepReplay, _ScalarGroup
from tinygrad_cuda.replay.versioned_containers import (
    LIST_WRITERS,
    WRITERS,
    States,
    Watched,
    WatchedList,
    changes,
)

pytestmark = [
    pytest.mark.usefixtures("on_cpu"),
    pytest.mark.filterwarnings(
        "ignore:lr_scheduler.step"
    ),  # a schedule may begin before its optimizer
]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[StepReplay]:
    """The steps whose options and states have been looked through."""
    found: list[StepReplay] = []
    look = StepReplay._look

    def counted(self: StepReplay) -> None:
        found.append(self)
        look(self)

    monkeypatch.setattr(StepReplay, "_look", counted)
    return found


class Loop:
    """Two parameters in training; `turn` runs one step, plain or compiled."""

    def __init__(self, compiled: bool, kind: Any = optim.Adam) -> None:
        tc.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.scale = tc.ones(1, requires_grad=True)
        self.optimizer = kind(self.model.parameters(), lr=0.05)
        self.turn = tc.compile(self.step) if compiled else self.step
        self.other = tc.compile(self.doubled) if compiled else self.doubled
        self.x = tc.tensor(np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32))

    def step(self, x: Any) -> Any:
        self.optimizer.zero_grad()
        loss = (self.scale * self.model(x) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def doubled(self, x: Any) -> Any:
        return self.step(x * 2)

    def run(self, intervention: Callable[[Loop], None]) -> list[Any]:
        """Some turns, the intervention, and more of them; twice."""
        losses = []
        for number in range(10):
            if number in (4, 7):
                intervention(self)
            losses.append(self.turn(self.x))
        return self.bytes(losses)

    def bytes(self, losses: list[Any]) -> list[Any]:
        states = [v for state in self.optimizer.state.values() for v in state.values()]
        parts = [*losses, *self.model.parameters(), *states]
        return [value_bytes(v) if isinstance(v, tc.Tensor) else v for v in parts]

    @property
    def state(self) -> Any:
        return self.optimizer.state[self.model.weight]

    @property
    def group(self) -> Any:
        return self.optimizer.param_groups[0]


def nothing(loop: Loop) -> None:
    """A steady loop."""


def count_again(loop: Loop) -> None:
    for state in loop.optimizer.state.values():
        state["step"] = 0


def count_one_parameter_otherwise(loop: Loop) -> None:
    loop.state.update(step=40)


def replace_a_moment(loop: Loop) -> None:
    loop.state["exp_avg"] = loop.state["exp_avg"] * 2


def replace_a_state(loop: Loop) -> None:
    loop.optimizer.state[loop.model.weight] = dict(loop.state, exp_avg=tc.ones(2, 3))


def forget_a_state(loop: Loop) -> None:
    loop.optimizer.state.pop(loop.model.bias)


def forget_all(loop: Loop) -> None:
    loop.optimizer.state.clear()


def replace_all_states(loop: Loop) -> None:
    kept = {p: dict(s, exp_avg=s["exp_avg"] * 2) for p, s in loop.optimizer.state.items()}
    loop.optimizer.state = defaultdict(dict, kept)


def count_in_plain_states(loop: Loop) -> None:
    """What is no watched dictionary is looked at each time."""
    replace_all_states(loop)
    loop.turn(loop.x)
    loop.turn(loop.x)
    count_again(loop)


def replace_a_moment_of_a_plain_state(loop: Loop) -> None:
    replace_a_state(loop)
    loop.turn(loop.x)
    loop.turn(loop.x)
    loop.state["exp_avg"] = tc.ones(2, 3)


def replace_a_state_among_plain_ones(loop: Loop) -> None:
    """The states are watched; what holds them is not."""
    loop.optimizer.state = defaultdict(dict, loop.optimizer.state)
    loop.turn(loop.x)
    loop.turn(loop.x)
    loop.optimizer.state[loop.model.weight] = Watched(loop.state, exp_avg=tc.ones(2, 3))


def change_options(loop: Loop) -> None:
    group = loop.group
    group |= {"lr": 0.01, "betas": (0.5, 0.9)}


def delete_an_option(loop: Loop) -> None:
    loop.group.pop("decoupled_weight_decay", None)
    loop.group["weight_decay"] = 0.5


def replace_a_group(loop: Loop) -> None:
    loop.optimizer.param_groups[0] = dict(loop.group, lr=0.02)


def change_a_plain_group(loop: Loop) -> None:
    replace_a_group(loop)
    loop.turn(loop.x)
    loop.turn(loop.x)
    loop.group["lr"] = 0.3


def add_a_group(loop: Loop) -> None:
    if len(loop.optimizer.param_groups) == 1:
        loop.optimizer.add_param_group({"params": [loop.scale]})


def shorten_a_list(loop: Loop) -> None:
    del loop.group["params"][1:]


def prepare_in_vain(loop: Loop) -> None:
    """As a call does that fails before anything has run."""
    for programs in getattr(loop.turn, "_programs", {}).values():
        for step in programs[0].early:
            step.prepare()


def replace_the_groups(loop: Loop) -> None:
    """A plain list of groups is looked at each time, and so is one of parameters."""
    loop.optimizer.param_groups = [dict(loop.group, lr=0.3)]


def change_a_plain_list_of_groups(loop: Loop) -> None:
    loop.optimizer.param_groups = list(loop.optimizer.param_groups)
    loop.turn(loop.x)
    loop.turn(loop.x)
    loop.optimizer.param_groups[0] = Watched(loop.group, lr=0.02)


def shorten_a_plain_list(loop: Loop) -> None:
    loop.group["params"] = list(loop.group["params"])
    loop.turn(loop.x)
    loop.turn(loop.x)
    del loop.group["params"][1:]


def load(loop: Loop) -> None:
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))


def step_plainly(loop: Loop) -> None:
    loop.step(loop.x)


def step_in_another_program(loop: Loop) -> None:
    for _ in range(4):
        loop.other(loop.x)


INTERVENTIONS = [
    nothing, count_again, count_one_parameter_otherwise, replace_a_moment, replace_a_state,
    forget_a_state, forget_all, replace_all_states, count_in_plain_states,
    replace_a_moment_of_a_plain_state, change_options, prepare_in_vain,
    delete_an_option, replace_a_group, change_a_plain_group, add_a_group, shorten_a_list, load,
    replace_the_groups, change_a_plain_list_of_groups, shorten_a_plain_list,
    replace_a_state_among_plain_ones, step_plainly, step_in_another_program,
]  # fmt: skip


@pytest.mark.parametrize("intervention", INTERVENTIONS, ids=lambda f: f.__name__)
def test_what_happens_to_an_optimizer(
    intervention: Callable[[Loop], None], looks: list[StepReplay]
) -> None:
    """The bits of the plain program; in a steady loop, options and states are seen to be so."""
    wanted = Loop(compiled=False).run(intervention)
    assert Loop(compiled=True).run(intervention) == wanted
    if intervention is nothing:
        assert settings.slow or len(looks) == 1, "the first replay"


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adagrad])
def test_numbers_of_many_steps(kind: Any) -> None:
    """Until RAdam's update has become another one, and for long after."""
    plain, compiled = Loop(False, kind), Loop(True, kind)
    losses = [[loop.turn(loop.x) for _ in range(37)] for loop in (plain, compiled)]
    assert compiled.bytes(losses[1]) == plain.bytes(losses[0])


class Late(optim.Adam):
    """Its update is another one from the twelfth step on."""

    def apply_single(
        self, gradient: Any, parameter: Any, state: Any, group: Any, scalar: Any
    ) -> Any:
        if state["step"] > 10:
            gradient = -gradient
        return super().apply_single(gradient, parameter, state, group, scalar)


class Waves(optim.Adam):
    """Its steps are of another size."""

    def apply_single(
        self, gradient: Any, parameter: Any, state: Any, group: Any, scalar: Any
    ) -> Any:
        def sized(value: float, *name: Any) -> Any:
            return scalar(value * (1 + name[1] % 3) if name[0] == "size" else value, *name)

        return super().apply_single(gradient, parameter, state, group, sized)


class Halved(optim.Adam):
    """Its numbers alone are others."""

    def step_numbers(self, step: int, group: Any) -> dict[str, float]:
        numbers = super().step_numbers(step, group)
        return {**numbers, "size": numbers["size"] / (1 + step % 2)}


@pytest.mark.parametrize("kind", [Late, Waves, Halved])
def test_subclasses_are_asked_themselves(kind: Any) -> None:
    """What a class does otherwise is not replayed as Adam does it."""
    test_numbers_of_many_steps(kind)


@pytest.mark.parametrize(
    "options",
    [
        {"amsgrad": True}, {"maximize": True, "weight_decay": 0.1}, {"betas": (0.0, 0.5)},
        {"weight_decay": 0.1, "lr": 1}, {"eps": 0.1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
def test_numbers_that_a_step_changes(kind: Any, options: dict[str, Any]) -> None:
    """By `step_numbers`, and by the update on a stand-in, which defines them."""
    layer = nn.Linear(3, 2, device="cpu")
    optimizer = kind(layer.parameters(), **options)
    layer(tc.ones(1, 3, device="cpu")).sum().backward()
    optimizer.step()
    state = optimizer.state[layer.weight]
    host = {key: value for key, value in state.items() if not isinstance(value, tc.Tensor)}
    fast, slow = (_ScalarGroup(optimizer, 0, layer.weight, host) for _ in range(2))
    slow.by_numbers = NOWHERE
    numbers: list[list[Any]] = [[None] * len(group.scalars) for group in (fast, slow)]
    for group, given in zip((fast, slow), numbers):
        group.join(layer.weight, state)
        for k, targets in enumerate(group.targets):
            targets.append((given, k))
        group.prepare({**optimizer.param_groups[0], "eps": 1e-3})
    for _ in range(50):
        fast.advance()
        slow.advance()
        assert numbers[0] == numbers[1] and None not in numbers[0]
        assert (fast.host, fast.new) == (slow.host, slow.new)


def test_an_update_that_is_replaced_is_run() -> None:
    """By another function of the object, in the midst of a loop."""
    losses = []
    for compiled in (False, True):
        loop = Loop(compiled, optim.Adam)
        seen = [loop.turn(loop.x) for _ in range(6)]
        optimizer, own = loop.optimizer, loop.optimizer.apply_single

        def halved(gradient: Any, *given: Any, own: Any = own) -> Any:
            return own(gradient * 0.5, *given)

        optimizer.apply_single = halved
        seen += [loop.turn(loop.x) for _ in range(6)]
        losses.append(loop.bytes(seen))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", WRITERS)
def test_each_writer_is_counted(name: str) -> None:
    """All methods of a dictionary that write."""
    arguments = {"__setitem__": ("a", 2), "setdefault": ("b", 2), "clear": (), "popitem": ()}
    taken = arguments.get(name, ({"a": 3},) if name in ("update", "__ior__") else ("a",))
    for made in (Watched(a=1), States(dict, a=1)):
        before, plain = changes.number, dict(made)
        getattr(made, name)(*taken)
        getattr(plain, name)(*taken)
        assert changes.number != before
        assert made == plain


@pytest.mark.parametrize("name", LIST_WRITERS)
def test_each_writer_of_a_list_is_counted(name: str) -> None:
    """All methods of a list that write."""
    arguments: dict[str, tuple[Any, ...]] = {
        "__setitem__": (0, 5), "__delitem__": (0,), "__iadd__": ([7],), "__imul__": (2,),
        "append": (4,), "extend": ([4],), "insert": (0, 4), "remove": (1,),
    }  # fmt: skip
    made, plain, before = WatchedList([2, 1, 3]), [2, 1, 3], changes.number
    for which in (made, plain):
        getattr(which, name)(*arguments.get(name, ()))
    assert changes.number != before
    assert made == plain


def test_all_writers_are_known() -> None:
    """Whatever else a dictionary or a list can do leaves it as it was."""
    readers = {
        "copy", "fromkeys", "get", "items", "keys", "values", "__contains__", "__getitem__",
        "__iter__", "__len__", "__or__", "__ror__", "__reversed__", "__class_getitem__",
        "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__", "__repr__", "__sizeof__",
        "__getattribute__", "__hash__", "__init__", "__new__", "__doc__",
    }  # fmt: skip
    assert set(vars(dict)) - readers == set(WRITERS)
    readers |= {"__add__", "__mul__", "__rmul__", "index", "count"}
    assert set(vars(list)) - readers == set(LIST_WRITERS)


@pytest.mark.fast_paths
def test_watched_containers_are_as_any_others() -> None:
    """As arguments and results of a compiled function, and as attributes of a Module."""
    loop = Loop(compiled=False)
    loop.turn(loop.x)
    parameters = loop.group["params"]
    call = tc.compile(lambda given, state: (given[0].detach() * 2, state["exp_avg"] + 1))
    for _ in range(3):
        doubled, more = call(parameters, loop.state)
        assert value_bytes(doubled) == value_bytes(loop.model.weight * 2)
        assert value_bytes(more) == value_bytes(loop.state["exp_avg"] + 1)
        parameters.reverse()
        assert value_bytes(call(parameters, loop.state)[0]) == value_bytes(loop.model.bias * 2)
        parameters.reverse()
    again = tc.compile(lambda: (1, parameters))
    assert again()[1] is parameters and type(again()[1]) is type(parameters)
    assert all(a is b for a, b in zip(again()[1], parameters))

    class Scaled(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * self.groups[0]["lr"] * len(self.chosen)

    module = Scaled()
    module.groups, module.chosen = loop.optimizer.param_groups, parameters
    scaled, x = tc.compile(module), tc.ones(1)
    for _ in range(2):
        assert scaled(x).item() == pytest.approx(0.05 * len(parameters))
    del parameters[1:]
    nn.Linear(1, 1)  # some Module has changed, so that all attributes are looked at
    assert scaled(x).item() == pytest.approx(0.05)


def test_a_missing_state_is_counted() -> None:
    """Looking for one makes it, watched as all."""
    optimizer = optim.SGD([tc.ones(1, requires_grad=True)], lr=0.1)
    before = changes.number
    assert type(optimizer.state[optimizer.param_groups[0]["params"][0]]) is Watched
    assert changes.number != before


def test_copies_stay_watched() -> None:
    """A deep copy of an optimizer is as fast, and counts its changes."""
    loop = Loop(compiled=False)
    loop.turn(loop.x)
    copied = copy.deepcopy(loop.optimizer)
    assert type(copied.state) is States
    assert {type(state) for state in copied.state.values()} == {Watched}
    assert type(copied.param_groups[0]) is Watched
    assert type(copied.param_groups) is type(copied.param_groups[0]["params"]) is WatchedList


def _cleared(trainer: Loop) -> Any:
    trainer.optimizer.zero_grad()
    (trainer.scale * trainer.model(trainer.x)).sum().backward()
    return trainer.scale.detach() * 1


def _dropped(trainer: Loop) -> Any:
    for parameter in trainer.optimizer.param_groups[0]["params"]:
        parameter.grad = None
    return trainer.scale.detach() * 1


def _stepped(trainer: Loop) -> Any:
    return trainer.step(trainer.x)


@pytest.mark.parametrize("function", [_cleared, _dropped, _stepped])
def test_the_parameters_of_an_optimizer_that_others_read(function: Any) -> None:
    """Parameters leave and enter the lists between calls, as many as there were, or fewer."""
    found = []
    for wrap in (lambda f: f, tc.compile):
        loop = Loop(compiled=False)
        weight, bias = parameters = loop.optimizer.param_groups[0]["params"]
        call, grads = wrap(lambda: function(loop)), []  # noqa: B023

        def turn() -> None:
            call()  # noqa: B023
            for tensor in (weight, bias, loop.scale):  # noqa: B023
                grads.append(None if tensor.grad is None else value_bytes(tensor.grad))  # noqa: B023
                grads.append(value_bytes(tensor))  # noqa: B023
                tensor.grad = tc.ones_like(tensor)

        for change in (None, None, None, [weight, loop.scale], None, [loop.scale], None):
            if change is not None:
                parameters[:] = change
            turn()
        found.append(grads)
    assert found[0] == found[1]


# Several steps in one call ------------------------------------------------------------------------


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


def no_change(optimizer: Any) -> None:
    pass


def reload(optimizer: Any) -> None:
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


CHANGES = [no_change, reload, decay, rate, clear, shorten, forget, maximize, replace]


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
    wanted = Steps(kinds, order).run(False, no_change, 0)
    assert Steps(kinds, order).run(True, no_change, 0) == wanted


@pytest.mark.parametrize("kind", ["Adafactor", "Muon", "Adam", "NAdam"])
def test_parameters_whose_counts_part(kind: str) -> None:
    """A program of a time when all had made as many steps gives each its own numbers."""

    def run(decorate: Callable[..., Any]) -> list[Any]:
        tc.manual_seed(0)
        first, last = (tc.randn(4, 6, requires_grad=True), tc.randn(6, 3, requires_grad=True))
        optimizer = getattr(tc.optim, kind)([first, last], lr=0.1)

        @decorate
        def step(x: Any) -> Any:
            loss = (x @ first @ last).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        seen = []
        for turn in range(7):
            seen.append(step(tc.full((2, 4), turn + 1.0)))
            if turn in (2, 4):
                first.grad = None
                optimizer.step()
        return [x.tolist() for x in (*seen, first.detach(), last.detach())]

    assert run(tc.compile) == run(lambda function: function)
