"""Optimizer: parameters in groups, their state, and a step that is one plan.

A subclass says how one parameter changes; recording, realizing and undoing are done here.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import numpy as np

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.interrupts import indivisible, uninterrupted
from tinygrad_cuda.core.observer import watched
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.engine.capture import Capture, Commit, capturing, watching
from tinygrad_cuda.engine.realize import check_errors, realize
from tinygrad_cuda.graph.node import Node, current_site, gradient_mode, recorded_at
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.optim.hooks import Hooked
from tinygrad_cuda.optim.step_replay import ParameterLists, StepReplay
from tinygrad_cuda.optim.update_replay import Updates, widened
from tinygrad_cuda.replay.versioned_containers import States, Watched, WatchedList, changed
from tinygrad_cuda.tensors.backward import clear
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.promotion import to_dtype
from tinygrad_cuda.tensors.tensor import Tensor

Group = dict[str, Any]
State = dict[str, Any]


class Scalars:
    """The numbers of one step of one group, as Tensors of one element.

    Each is an argument of the plan from the start, so that a learning rate that changes makes no
    new plan. They are distinguished by name, never by value: two numbers that happen to be equal
    must not make another graph.
    """

    def __init__(self, replay: StepReplay | None = None) -> None:
        self._made: dict[Any, Node] = {}
        self._replay = replay

    def of(self, like: Tensor) -> Callable[..., Tensor]:
        """``scalar(value, *name)`` for numbers that broadcast to `like`, of its dtype."""
        kind = (1,) * like.ndim, like.dtype, like.device

        def scalar(value: float, *name: Any) -> Tensor:
            return wrap(self.node(kind, value, name))

        return scalar

    def node(self, kind: tuple[Shape, DType, Device], value: float, name: Any) -> Node:
        """The scalar of a shape, dtype and device; as many axes as the parameter has make one node
        less to broadcast it."""
        # Parameters that share numbers now may have made another number of steps at a replay.
        key = kind, name, None if self._replay is None else self._replay.current
        node = self._made.get(key)
        if node is None:
            number = float(value)
            if self._replay is not None:
                number = self._replay.supply(number, name)
            node = self._made[key] = common.scalar.leaf(*kind, value=number)
        return node


ParamsT = Iterable[Any]  # PyTorch's name: parameters, groups of them, or pairs with names


class _Required:
    """The default of an option without one, as programs with optimizers of their own write it."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


class Optimizer(Hooked):
    """The base of optimizers: subclasses write `apply_single` and, if they need it, `init_single`.

    Args:
        params: Tensors that collect gradients, or dicts with ``params`` and options of their own.
        defaults: options for groups that do not give them.

    Attributes:
        param_groups: dicts of options with a list ``params``; a new ``lr`` holds from the next
            step on and makes no new plan.
        state: a dict for each parameter, by parameter.

    Raises:
        ArgumentError: there are no parameters, or one appears twice or cannot be trained.
    """

    # What the numbers of a step depend on besides group and state: "shape", of the parameter.
    numbers_depend_on: tuple[str, ...] = ()
    # Numbers of the state that are the host's; PyTorch has Tensors of one element there.
    host_numbers: tuple[str, ...] = ("step", "eta", "mu", "mu_product")

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise ArgumentError(
                "optim", "needs several parameters", expect="an iterable of Tensors or dicts",
                actual="a Tensor", hint="[tensor]",
            )  # fmt: skip
        if not isinstance(params, Iterable):
            raise DTypeError(
                "optim", "needs parameters", expect="an iterable of Tensors or dicts",
                actual=type(params).__name__,
                hint="model.parameters()" if hasattr(params, "parameters") else None,
            )  # fmt: skip
        super().__init__()
        self.defaults = defaults
        self.state: defaultdict[Tensor, State] = States(Watched)
        self.param_groups: list[Group] = WatchedList()
        self.steps = 0
        groups = list(params)
        if not groups:
            raise ArgumentError(
                "optim", "there are no parameters", expect="at least one", actual="none"
            )
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    # What a subclass says ----------------------------------------------------------------------

    def init_single(self, parameter: Tensor, group: Group) -> State:
        """The state of a parameter before its first step; Tensors in it come from `zeros`."""
        return {}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        """One parameter after the step, and its state.

        Args:
            gradient, parameter: of the parameter's shape; float32 where it is a half type.
            state: what the last step returned; Tensors and host numbers.
            group: the options.
            scalar: ``scalar(value, *name)`` gives a host number as a Tensor that broadcasts.
        """
        raise NotImplementedError(f"{type(self).__name__} has no apply_single")

    def step_numbers(self, step: int, group: Group) -> dict[str, float]:
        """The scalars of `apply_single` that differ from step to step, by name.

        Only for an `apply_single` of the same class that takes them from here, and whose state on
        the host is ``{"step": step}``, which decides nothing else: replays ask for these alone.

        Args:
            step: the number of the step, from 1.
            group: the options.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step_numbers")

    # The step ----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient: one plan with all that is pending.

        Args:
            closure: computes the loss again, with gradients, before the step.

        Returns:
            What `closure` returned.

        Raises:
            IndexError: a label or index of the step was out of range; nothing has changed then.
        """
        loss = None
        if closure is not None:
            with gradient_mode(True):
                loss = closure()
        # A write that waits is lost when a step is taken back: that one is done to its end.
        with indivisible if self._written() else uninterrupted:
            if watched.observer is None:
                self._step()
            else:
                with watched.observer.span("user", f"Optimizer.step#{type(self).__name__}.step"):
                    self._step()
        return loss

    def _written(self) -> bool:
        """Whether a parameter waits for its value."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.cell.node.storage is None:
                    return True
        return False

    def _step(self) -> None:
        """The step whose gradients are there: it happens whole, or not at all."""
        devices = self._devices()
        for device in devices:
            check_errors(device, wait=False)
        capture = capturing()
        replay = None
        if capture is not None:
            replay = StepReplay(self, devices)
            if self.has_step_hooks():
                replay.unsteady = "the optimizer's hooks, which a replay would not call"
            capture.events.append(replay)
        try:
            fresh = self._record(replay)
            for device in devices:
                realize(device)
        except BaseException:
            self._undo()
            raise
        for parameter, state in fresh:
            dict.update(self.state[parameter], state)
        changed()
        self.steps += 1
        if capture is not None and replay is not None:
            replay.finish()
            capture.events.append(Commit(replay))
            self._compare_once(capture)

    def _compare_once(self, capture: Capture) -> None:
        """A replayed step compares the parameters itself."""
        capture.events[:] = [
            event
            for event in capture.events
            if not (isinstance(event, ParameterLists) and event.optimizer is self)
        ]

    def _devices(self) -> list[Device]:
        return list(dict.fromkeys(p.device for group in self.param_groups for p in group["params"]))

    def _record(self, replay: StepReplay | None) -> list[tuple[Tensor, State]]:
        """Records all updates; returns what is to enter the state once they are realized.

        No node of the old values stays referenced here: whether a parameter's storage may be
        overwritten is seen from who still holds its value.
        """
        fresh = []
        repeats = Updates.possible(self)
        with gradient_mode(False), recorded_at(current_site()):
            for number, options in enumerate(self.param_groups):
                if replay is not None:
                    replay.check(options)
                group = numbers_of(options)
                scalars = Scalars(replay)
                updates = Updates(self, group, scalars) if repeats else None
                parameters = group["params"]
                steady = updates if replay is None else None
                if steady is not None and steady.run_in_place(number, parameters):
                    parameters = ()
                for parameter in parameters:
                    gradient = parameter.grad
                    if gradient is None:
                        continue
                    if replay is not None:
                        replay.begin(number, parameter)
                    if updates is None or not updates.take(parameter, gradient):
                        fresh.append((parameter, self._update(parameter, group, scalars)))
                if steady is not None and parameters:
                    steady.remember(number, parameters)
                if updates is not None:
                    fresh += updates.record()
        return fresh

    def _update(self, parameter: Tensor, group: Group, scalars: Scalars) -> State:
        value = widened(parameter.detach())
        old = self.state.get(parameter) or self.init_single(parameter, group)
        state = {key: widened(v) if isinstance(v, Tensor) else v for key, v in old.items()}
        assert parameter.grad is not None
        gradient = widened(parameter.grad.detach())
        new, state = self.apply_single(gradient, value, state, group, scalars.of(value))
        dtype = parameter.dtype
        parameter.write(to_dtype(new.node, dtype), "step")
        return {key: _stored(old.get(key), v, dtype) for key, v in state.items()}

    def _undo(self) -> None:
        """Takes back updates that were recorded but not realized."""
        stored = (v for state in self.state.values() for v in state.values())
        for value in chain(*(group["params"] for group in self.param_groups), stored):
            if isinstance(value, Tensor):
                cell = value.cell
                if cell.node.storage is None and cell.node.op is common.assign:
                    cell.put(cell.node.sources[0])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters, or sets them to zero."""
        if watching.on and (capture := capturing()) is not None:
            # First: a replay compares them before anything has run.
            capture.events.insert(0, ParameterLists(self))
        for group in self.param_groups:
            for parameter in group["params"]:
                clear(parameter, set_to_none)

    # Groups and state ----------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Adds parameters, or pairs of name and parameter, with options of their own.

        Raises:
            ArgumentError: a parameter is no leaf, or is in a group already; some have names and
                others have none.
        """
        given = param_group["params"]
        parameters = [given] if isinstance(given, Tensor) else list(given)
        parameters, names = _named(parameters)
        if self.param_groups and bool(names) != ("param_names" in self.param_groups[0]):
            raise ArgumentError(
                "optim", "all optimizer param groups should be with/without names",
                expect="names in all groups or none",
                actual=f"a further group {'with' if names else 'without'} names",
            )  # fmt: skip
        earlier = {id(p) for group in self.param_groups for p in group["params"]}
        for position, parameter in enumerate(parameters):
            _check_parameter(parameter, position, earlier)
            earlier.add(id(parameter))
        for device in dict.fromkeys(p.device for p in parameters):
            # Initial values become values now, so that a first step that fails can be taken back.
            realize(device, [p.node for p in parameters if p.device is device])
        group = Watched({**self.defaults, **param_group, "params": WatchedList(parameters)})
        if names:
            group["param_names"] = names
        self.param_groups.append(group)

    def state_dict(self) -> dict[str, Any]:
        """State and options, with parameters numbered in order: PyTorch's layout.

        The state's Tensors are shared with the optimizer, as those of a module's state are.
        """
        self.call_hooks("state_pre")
        parameters = [p for group in self.param_groups for p in group["params"]]
        numbers = {id(p): number for number, p in enumerate(parameters)}
        state = {
            "state": {numbers[id(p)]: state for p, state in self.pack().items()},
            # The parameters last, as after loading: a run that goes on writes the same bytes.
            "param_groups": [
                {k: v for k, v in group.items() if k != "params"}
                | {"params": [numbers[id(p)] for p in group["params"]]}
                for group in self.param_groups
            ],
        }
        return self.through_hooks("state_post", state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what another optimizer's `state_dict` gave; values are not shared with it.

        One of PyTorch's is taken as well.

        Raises:
            ArgumentError: the numbers of groups or of their parameters differ.
            ShapeError: a Tensor of the state has another shape than the parameter's.
        """
        state_dict = self.through_hooks("load_pre", dict(state_dict))
        groups = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        own = [len(group["params"]) for group in self.param_groups]
        if sizes != own:
            raise ArgumentError(
                "load_state_dict",
                "the parameter groups differ",
                expect=f"groups of {own} parameters",
                actual=f"groups of {sizes}",
            )
        numbers = [number for group in groups for number in group["params"]]
        self._check_state(state_dict["state"], groups)
        for given, group in zip(groups, self.param_groups):
            taken = {k: v for k, v in given.items() if k != "params"}
            # Replaces all options, but those that the other lacks stay.
            group.update(copy.deepcopy(taken))
            for key in group.keys() - given.keys() - self.defaults.keys() - {"param_names"}:
                del group[key]
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.unpack(
            {
                parameter: state_dict["state"][number]
                for number, parameter in zip(numbers, parameters)
                if state_dict["state"].get(number)
            }
        )
        self.call_hooks("load_post")

    def _check_state(self, states: dict[Any, State], groups: list[Group]) -> None:
        """Raises unless Tensors of a loaded state have the shapes of those at the beginning."""
        for given, group in zip(groups, self.param_groups):
            options = {**group, **given, "params": group["params"]}
            for number, parameter in zip(given["params"], group["params"]):
                state = states.get(number) or {}
                first = self.init_single(parameter, options) if state else {}
                for key, value in first.items():
                    shape = getattr(state.get(key), "shape", None)
                    if isinstance(value, Tensor) and shape is not None and value.shape != shape:
                        raise ShapeError(
                            "load_state_dict", f"{key} of parameter {number} does not fit",
                            expect=str(tuple(value.shape)), actual=str(tuple(shape)),
                            hint="the state is of an optimizer whose parameters had other shapes",
                        )  # fmt: skip

    def pack(self) -> dict[Tensor, State]:
        """The state as `state_dict` gives it, by parameter."""
        return {parameter: dict(state) for parameter, state in self.state.items() if state}

    def unpack(self, states: dict[Tensor, State]) -> None:
        """Takes over what `pack` of another optimizer gave."""
        self.state.clear()
        for parameter, state in states.items():
            self.state[parameter] = Watched(
                (key, loaded(value, parameter, key in self.host_numbers))
                for key, value in state.items()
            )

    def __repr__(self) -> str:
        lines = [type(self).__name__ + " ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def numbers_of(group: Group) -> Group:
    """The options with numbers instead of Tensors: one look a step, for those who want that."""
    return {key: _number(value) for key, value in group.items()}


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return tuple(map(_number, value)) if isinstance(value, tuple) else value


def zeros(parameter: Tensor) -> Tensor:
    """A state's first value, realized at once.

    So every step is the same plan, the first one too, and what a step writes always replaces a
    value: after a bad index the old value stays, on devices that run ahead as well.
    """
    return filled(parameter, 0.0)


def filled(parameter: Tensor, value: float) -> Tensor:
    """A state's first value of the parameter's shape, all elements `value`; see `zeros`."""
    shape, dtype = tuple(parameter.shape), parameter.dtype.numpy
    # Pages of zeros come from the system without a write to each: GPT-2's Adam has 1 GB of them.
    array = np.zeros(shape, dtype) if value == 0.0 else np.full(shape, value, dtype)
    made = tensor(array, device=parameter.device)
    capture = capturing()
    if capture is not None:
        # The step that makes it is traced again, and overwrites it as the plain one does.
        capture.forget(made.cell.node.storage)
    return made


def decayed(gradient: Tensor, parameter: Tensor, group: Group, scalar: Any) -> Tensor:
    """The gradient, upside down if the group maximizes, plus its weight decay."""
    if group["maximize"]:
        gradient = -gradient
    if group["weight_decay"] != 0:
        gradient = gradient + parameter * scalar(group["weight_decay"], "weight_decay")
    return gradient


def _stored(target: Any, value: Any, dtype: DType) -> Any:
    """Writes a Tensor of the state to its storage; a new one gets a cell of its own."""
    if not isinstance(value, Tensor):
        return value
    node = to_dtype(value.node, dtype)
    if not isinstance(target, Tensor):
        return wrap(node)
    target.write(node, "step")
    return target


def _check_parameter(parameter: Any, position: int, earlier: set[int]) -> None:
    what = f"params[{position}]"
    if not isinstance(parameter, Tensor):
        raise ArgumentError(
            "optim", f"{what} is no Tensor", expect="a Tensor", actual=type(parameter).__name__
        )
    if not parameter.is_leaf:
        raise ArgumentError(
            "optim", f"{what} is the result of an operation", expect="a leaf",
            actual=f"{parameter.node.op.name} {tuple(parameter.shape)}",
            hint="pass the tensors it was computed from",
        )  # fmt: skip
    if parameter.dtype.is_complex:
        raise DTypeError(
            "optim", f"{what} is complex", expect="a floating dtype", actual=parameter.dtype.name,
            hint="keep its parts as the parameter: tc.view_as_complex(p) gives complex numbers",
        )  # fmt: skip
    if id(parameter) in earlier:
        raise ArgumentError(
            "optim", f"{what} is in a group already", expect="each Tensor once", actual="twice"
        )


def _named(given: list[Any]) -> tuple[list[Any], list[str]]:
    """The parameters, and their names where pairs of both are given."""
    pairs = [pair for pair in given if isinstance(pair, tuple)]
    if pairs and len(pairs) != len(given):
        raise ArgumentError(
            "optim", "all optimizer params should be with/without names",
            expect="a name for each parameter or none", actual=f"{len(pairs)} of {len(given)}",
        )  # fmt: skip
    return ([pair for _, pair in pairs], [name for name, _ in pairs]) if pairs else (given, [])


def loaded(value: Any, parameter: Tensor, host: bool) -> Any:
    """A value of a loaded state, on the parameter's device; Tensors get cells of their own.

    Other libraries' arrays become Tensors, or numbers where the host keeps them (`host`).
    """
    if host and hasattr(value, "item"):
        return value.item()
    if hasattr(value, "__array__") and not isinstance(value, Tensor):
        array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
        value = tensor(array, device=parameter.device)
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    dtype = parameter.dtype if value.dtype.is_floating else value.dtype
    return wrap(value.detach().to(parameter.device, dtype).node)


def check_options(op: str, **options: float | Tensor) -> None:
    """Raises unless all options are zero or more.

    Raises:
        ArgumentError: one is negative, or a Tensor of several elements.
    """
    for name, value in options.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ArgumentError(
                op, f"Tensor {name} must be 1-element", expect="one element",
                actual=f"shape {tuple(value.shape)}",
            )  # fmt: skip
        if not isinstance(value, Tensor) and not hasattr(value, "__float__"):
            raise DTypeError(
                op, f"{name} is no number", expect=f"{name} >= 0", actual=repr(value),
                hint=f"{name}={_as_number(value)}" if _as_number(value) is not None else None,
            )  # fmt: skip
        if not value >= 0.0:
            raise ArgumentError(op, f"{name} is negative", expect=f"{name} >= 0", actual=str(value))


def _as_number(value: Any) -> float | None:
    """The number that a text says, if it does."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
