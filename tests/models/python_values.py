"""Python values that change between two calls of a function, wherever its code finds them."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import tinygrad_cuda as tc
import tinygrad_cuda.autograd
from tinygrad_cuda import nn, optim

SCALE = 2.0

# A function of x, and a change after which it gives something else.
Trap = tuple[Callable[[Any], Any], Callable[[], Any]]


def set_scale(value: float = 3.0) -> None:
    globals()["SCALE"] = value


def scaled(x: Any) -> Any:
    return x * SCALE


def doubled_twice(x: Any) -> Any:
    return sum([x * SCALE for _ in range(2)])


class Config:
    """A value of the class, until an object gets its own."""

    scale = 2.0

    @property
    def from_globals(self) -> float:
        return SCALE

    def __mul__(self, x: Any) -> Any:
        return x * SCALE


@dataclasses.dataclass(slots=True)
class Slots:
    scale: float = 2.0


class Trainer:
    """Values of its own, and of what it holds."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(inner=SimpleNamespace(scale=2.0))
        self.scales = [2.0]
        self.step = self.by_method

    def by_method(self, x: Any) -> Any:
        return self.deeper(x)

    def deeper(self, x: Any) -> Any:
        return x * self.config.inner.scale

    def by_list(self, x: Any) -> Any:
        for scale in self.scales:
            x = x * scale
        return x


class Scaled(tc.autograd.Function):
    """Scales on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * SCALE


class Block(nn.Module):
    """A Module that reads a value, given how."""

    def __init__(self, read: Callable[[Any], float]) -> None:
        super().__init__()
        self.read = read
        self.config = SimpleNamespace(scale=2.0)
        self.table = {"deep": {"scale": [2.0]}}

    def forward(self, x: Any) -> Any:
        return x * self.read(self)


def a_helper() -> Trap:
    return lambda x: scaled(x), set_scale


def a_comprehension() -> Trap:
    return doubled_twice, set_scale


def a_function_inside() -> Trap:
    def outer(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return y * SCALE

        return inner(x)

    return outer, set_scale


def a_helpers_closure() -> Trap:
    scale = 2.0

    def helper(x: Any) -> Any:
        return x * scale

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return lambda x: helper(x), change


def a_decorated_helper() -> Trap:
    helper = functools.wraps(Config)(lambda x: scaled(x))
    helper.__wrapped__ = scaled  # type: ignore[attr-defined]
    return lambda x: helper(x), set_scale


def a_partial() -> Trap:
    return functools.partial(functools.partial(scaled)), set_scale


def a_function_in_a_dictionary() -> Trap:
    functions = {"scaled": scaled}
    return lambda x: functions["scaled"](x), set_scale


def another_function_in_a_dictionary() -> Trap:
    functions = {"scaled": scaled}
    return lambda x: functions["scaled"](x), lambda: functions.update(scaled=doubled_twice)


def a_default() -> Trap:
    def function(x: Any, scales: Any = [2.0]) -> Any:  # noqa: B006
        return x * scales[0]

    def change() -> None:
        function.__defaults__[0][0] = 3.0  # type: ignore[index]

    return function, change


def a_dictionary() -> Trap:
    table = {"scale": 2.0}
    return lambda x: x * table["scale"], lambda: table.update(scale=3.0)


def a_dictionary_within() -> Trap:
    table = {"a": [{"scale": 2.0}]}
    return lambda x: x * table["a"][0]["scale"], lambda: table["a"][0].update(scale=3.0)


def another_key() -> Trap:
    table = {"a": 2.0}
    return lambda x: x * len(table), lambda: table.update(b=3.0)


def a_renamed_key() -> Trap:
    """The values are the same, in the same order."""
    table = {"a": 2.0, "b": 3.0}

    def change() -> None:
        table.clear()
        table.update(b=2.0, a=3.0)

    return lambda x: x * table["a"], change


def a_number_as_a_key() -> Trap:
    table = {1: 2.0, 2.0: 3.0}
    return lambda x: x * table[1], lambda: table.update({1: 3.0})


def a_long_list() -> Trap:
    scales = [1.0] * 50
    return lambda x: x * sum(scales), lambda: scales.__setitem__(49, 2.0)


def a_long_dictionary() -> Trap:
    scales = dict.fromkeys(map(str, range(50)), 1.0)
    return lambda x: x * sum(scales.values()), lambda: scales.update({"49": 2.0})


def an_empty_list() -> Trap:
    scales: list[float] = []
    return lambda x: x * (1 + len(scales)), lambda: scales.append(2.0)


def another_type() -> Trap:
    """An integer is not the float of the same value."""
    divisors, seven = [2.0], tc.tensor([7], dtype=tc.int32)
    return lambda x: seven // divisors[0], lambda: divisors.__setitem__(0, 2)


def a_list() -> Trap:
    scales = [2.0]
    return lambda x: functools.reduce(lambda y, s: y * s, scales, x), lambda: scales.append(3.0)


def a_deque() -> Trap:
    scales = deque([2.0], maxlen=1)
    return lambda x: x * scales[0], lambda: scales.append(3.0)


def a_set() -> Trap:
    flags = {"double"}
    return lambda x: x * (2.0 if "double" in flags else 3.0), flags.clear


def a_tensor_in_a_list() -> Trap:
    scales = [tc.tensor([2.0])]
    return lambda x: x * scales[0], lambda: scales.__setitem__(0, tc.tensor([3.0]))


def an_attribute() -> Trap:
    config = SimpleNamespace(scale=2.0)
    return lambda x: x * config.scale, lambda: setattr(config, "scale", 3.0)


def an_attribute_by_a_local_name() -> Trap:
    configs = [SimpleNamespace(scale=2.0)]

    def function(x: Any) -> Any:
        for config in configs:
            x = x * config.scale
        return x

    return function, lambda: setattr(configs[0], "scale", 3.0)


def an_attribute_by_getattr() -> Trap:
    config = SimpleNamespace(scale=2.0)
    return lambda x: x * getattr(config, "scale", 1.0), lambda: setattr(config, "scale", 3.0)


def a_deleted_attribute() -> Trap:
    config = SimpleNamespace(scale=2.0)
    return lambda x: x * getattr(config, "scale", 1.0), lambda: delattr(config, "scale")


def a_slot() -> Trap:
    slots = Slots()
    return lambda x: x * slots.scale, lambda: setattr(slots, "scale", 3.0)


def a_class() -> Trap:
    kind = type("Kind", (Config,), {})
    return lambda x: x * kind.scale, lambda: setattr(kind, "scale", 3.0)


def a_class_by_its_object() -> Trap:
    kind = type("Kind", (Config,), {"scale": 2.0})
    config = kind()
    return lambda x: x * config.scale, lambda: setattr(kind, "scale", 3.0)


def an_object_that_hides_its_class() -> Trap:
    config = Config()
    return lambda x: x * config.scale, lambda: setattr(config, "scale", 3.0)


def a_property() -> Trap:
    config = Config()
    return lambda x: x * config.from_globals, set_scale


def an_operator() -> Trap:
    config = Config()
    return lambda x: config * x, set_scale


def a_method() -> Trap:
    trainer = Trainer()
    return trainer.by_method, lambda: setattr(trainer.config.inner, "scale", 3.0)


def a_method_by_its_object() -> Trap:
    trainer = Trainer()
    return lambda x: trainer.step(x), lambda: setattr(trainer, "step", scaled) or set_scale()


def a_list_of_self() -> Trap:
    trainer = Trainer()
    return trainer.by_list, lambda: trainer.scales.append(3.0)


def globals_of_a_module_below() -> Trap:
    return nn.Sequential(nn.Identity(), Block(lambda self: SCALE)), set_scale


def a_dictionary_of_a_module_below() -> Trap:
    block = Block(lambda self: float(self.table["deep"]["scale"][0]))
    scales = block.table["deep"]["scale"]
    return nn.Sequential(nn.Sequential(block)), lambda: scales.__setitem__(0, 3.0)


def an_attribute_of_a_module_below() -> Trap:
    block = Block(lambda self: float(self.config.scale))
    model = nn.Sequential(block)
    return lambda x: model(x), lambda: setattr(block.config, "scale", 3.0)


def an_attribute_of_a_module_that_is_not_called() -> Trap:
    block = Block(lambda self: 1.0)
    block.factor = 2.0
    return lambda x: x * block.factor, lambda: setattr(block, "factor", 3.0)


def a_hook_of_a_module() -> Trap:
    block = Block(lambda self: 1.0)
    block.register_forward_hook(lambda module, x, y: y * SCALE)
    return lambda x: block(x), set_scale


def a_hook_of_a_gradient() -> Trap:
    weight = nn.Parameter(tc.ones(1))
    weight.register_hook(lambda gradient: gradient * SCALE)
    return lambda x: tc.autograd.grad((weight * x).sum(), weight)[0], set_scale


def an_array() -> Trap:
    array = np.array([2.0, 1.0], np.float32)
    return lambda x: x * tc.tensor(array[:1]) * float(array[1]), lambda: array.fill(3.0)


def a_rate_that_is_read() -> Trap:
    optimizer = optim.SGD([nn.Parameter(tc.ones(1))], lr=2.0)
    groups = optimizer.param_groups
    return lambda x: x * optimizer.param_groups[0]["lr"], lambda: groups[0].update(lr=3.0)


def a_schedulers_step_that_is_read() -> Trap:
    optimizer = optim.SGD([nn.Parameter(tc.ones(1))], lr=2.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    return lambda x: x * (schedule.last_epoch + 1), schedule.step


def a_schedulers_rate_that_is_read() -> Trap:
    optimizer = optim.SGD([nn.Parameter(tc.ones(1))], lr=2.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    return lambda x: x * schedule.get_last_lr()[0], schedule.step


def a_function_with_a_gradient_of_its_own() -> Trap:
    weight = nn.Parameter(tc.ones(1))

    def gradient(x: Any) -> Any:
        return tc.autograd.grad(Scaled.apply(weight * x).sum(), weight)[0]

    return gradient, set_scale


def a_sign() -> Trap:
    """Of zero: it is equal, and another number."""
    zeros = [0.0]
    return lambda x: x / tc.full((1,), zeros[0]), lambda: zeros.__setitem__(0, -0.0)


def a_compiled_function_inside() -> Trap:
    inner = tc.compile(scaled)
    return lambda x: inner(x), set_scale


TRAPS = [
    a_helper, a_comprehension, a_function_inside, a_helpers_closure, a_decorated_helper, a_partial,
    a_function_in_a_dictionary, another_function_in_a_dictionary, a_default, a_dictionary,
    a_dictionary_within, another_key, a_renamed_key, a_number_as_a_key, a_long_list,
    a_long_dictionary, an_empty_list, another_type, a_list, a_deque, a_set, a_tensor_in_a_list,
    an_attribute, an_attribute_by_a_local_name, an_attribute_by_getattr, a_deleted_attribute,
    a_slot, a_class, a_class_by_its_object, an_object_that_hides_its_class, a_property,
    an_operator, a_method, a_method_by_its_object, a_list_of_self, globals_of_a_module_below,
    a_dictionary_of_a_module_below, an_attribute_of_a_module_below,
    an_attribute_of_a_module_that_is_not_called, a_hook_of_a_module, a_hook_of_a_gradient,
    an_array, a_rate_that_is_read, a_schedulers_step_that_is_read,
    a_schedulers_rate_that_is_read, a_function_with_a_gradient_of_its_own,
    a_sign, a_compiled_function_inside,
]  # fmt: skip
