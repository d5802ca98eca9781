"""What a replay of a compiled step does on the host for an optimizer: new numbers, step counts.

The update itself is run on a stand-in for Tensors, so that each optimizer is written only once.
It is in `optim` since it runs each optimizer's own `apply_single`; without it no step is replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from operator import is_not
from typing import Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import CPU, Device
from tinygrad_cuda.core.dtypes import DType, float32
from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.engine.capture import STATE_MADE, Stale, StepEvent, supplied
from tinygrad_cuda.engine.realize import value_error
from tinygrad_cuda.replay.switches import switches
from tinygrad_cuda.replay.versioned_containers import States, Watched, WatchedList, changes
from tinygrad_cuda.tensors.tensor import Tensor

_drain: Callable[[Any], None] = deque(maxlen=0).extend  # runs an iterator to its end
NOWHERE: Any = object()  # what no optimizer has


def wide(dtype: DType) -> DType:
    """Where the update of a parameter is computed: half types in float32."""
    return float32 if dtype.is_floating and dtype.itemsize < 4 else dtype


class Absent:
    """Stands for every Tensor of an update; notes what is asked of it.

    Args:
        like: the parameter whose shape it shows, and the dtype in which that is updated.

    Attributes:
        log: names of operations, and operands that are not Tensors.
    """

    __slots__ = ("log", "note", "shape", "dtype", "ndim")

    def __init__(self, like: Tensor) -> None:
        self.log: list[Any] = []
        self.note = self.log.append
        self.shape, self.dtype, self.ndim = tuple(like.shape), wide(like.dtype), like.ndim

    def __neg__(self) -> Absent:
        self.note("neg")
        return self

    def __getattr__(self, name: str) -> Absent:
        self.note(name)
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Absent:
        self.log += [value for value in (*arguments, *options.values()) if value is not self]
        return self

    def __bool__(self) -> bool:
        raise TypeError("an update may not depend on values")


def _operator(name: str) -> Callable[[Absent, Any], Absent]:
    def operation(self: Absent, other: Any) -> Absent:
        note = self.note  # a step of Adam comes here twelve times
        note(name)
        if other is not self:
            note(other)
        return self

    return operation


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "pow", "rpow",
    "gt", "lt", "ge", "le",
):  # fmt: skip
    setattr(Absent, f"__{_name}__", _operator(_name))


def dry_run(
    optimizer: Any, absent: Absent, state: dict[str, Any], group: Any
) -> tuple[list[tuple[Any, float]], dict[str, Any]]:
    """The scalars that `apply_single` asks for, by name and in order, and the state behind it.

    Args:
        optimizer: whose update it is.
        absent: stands for every Tensor; its log is that of this update.
        state, group: what the update gets.

    Raises:
        CompileError: the update does not run on a stand-in.
    """
    scalars: list[tuple[Any, float]] = []
    absent.log.clear()
    note, keep = absent.note, scalars.append

    def scalar(value: float, *name: Any) -> Absent:
        keep((name, value))
        note(name[0])
        return absent

    try:
        _, new = optimizer.apply_single(absent, absent, state, group, scalar)
    except (TypeError, AttributeError, ValueError) as error:
        raise CompileError(
            "compile",
            f"the update of {type(optimizer).__name__} cannot be repeated on the host",
            expect="an apply_single that uses operators and methods of Tensors",
            actual=str(error),
            hint="write x.maximum(y) instead of maximum(x, y)",
        ) from error
    return scalars, new


class _ScalarGroup:
    """Parameters of one param group with equal host state: they share all scalars of a step."""

    def __init__(self, optimizer: Any, number: int, parameter: Tensor, host: dict[str, Any]):
        self.optimizer = optimizer
        self.number = number
        self.first = parameter
        self.host = host
        self.group = dict(optimizer.param_groups[number])
        # Options that are numbers may change: what depends on them is compared by its log.
        options = [key for key in self.group if key != "params"]
        self.fixed = [key for key in options if not numeric(self.group[key])]
        self.absent = Absent(parameter)
        state = optimizer.state.get(parameter) or {}
        self.given = {k: self.absent for k, v in state.items() if isinstance(v, Tensor)}
        # Whose state it is, and the states.
        self.owners: list[Tensor] = []
        self.states: list[Any] = []
        # The Tensors in the states, each with the state and key that hold it.
        self.holders: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.tensors: list[Tensor] = []
        self.used = False  # the step for which there are numbers has been taken
        # The host state behind the step, where the step was only foreseen.
        self.then: dict[str, Any] | None = None
        self.new = self.compute(self.group, host)
        # Where plans read each of the scalars.
        self.targets: list[list[tuple[list[Any], int]]] = [[] for _ in self.scalars]
        self.recorded_log = list(self.absent.log)
        self.by_numbers = _update_by_numbers(optimizer, host)
        self.by_name = {name[0]: to for (name, _), to in zip(self.scalars, self.targets)}

    def compute(self, group: Any, host: dict[str, Any]) -> dict[str, Any]:
        """Computes the scalars of a step; the new host state."""
        absent = self.absent
        self.scalars, new = dry_run(self.optimizer, absent, {**self.given, **host}, group)
        return {k: v for k, v in new.items() if v is not absent}

    def join(self, parameter: Tensor, state: Any) -> None:
        """Adds a parameter; the Tensors of its state may not be replaced."""
        self.owners.append(parameter)
        self.states.append(state)
        for key, value in (state or {}).items():
            if isinstance(value, Tensor):
                self.holders.append(state)
                self.keys.append(key)
                self.tensors.append(value)

    def prepare(self, group: Any) -> None:
        """Computes the numbers of the next step, whatever may have changed.

        Raises:
            Stale: the step would be another graph.
        """
        same, now = self._compared(group), self.current()
        if same and now == self.host:
            self.used = False
            return
        self._take(group, now)
        if not same:
            self.group = dict(group)

    def foresee(self, group: Any, host: dict[str, Any]) -> None:
        """Compares all as `prepare` does, for a step that begins with this host state.

        Its numbers are dropped: options may change again before the step.

        Raises:
            Stale: the step would be another graph.
        """
        same = self._compared(group) and host == self.host
        self.then = self._after(host, self.new if same else self._checked(group, host))

    def current(self) -> dict[str, Any]:
        """The host state that all the parameters have now.

        Raises:
            Stale: it differs between them.
        """
        if not self.host:
            return self.host
        first = self.states[0]
        now = {key: first[key] for key in self.host}
        for key, value in now.items():
            if list(map(dict.get, self.states, repeat(key))) != [value] * len(self.states):
                raise Stale(f"the optimizer's {key} differs between parameters")
        return now

    def after(self) -> dict[str, Any]:
        """The host state behind the step that was prepared or foreseen."""
        return self._after(self.host, self.new) if self.then is None else self.then

    def advance(self) -> None:
        """Computes the numbers of the next step: nothing has changed but by the last one.

        Raises:
            Stale: the step would be another graph.
        """
        optimizer, host = self.optimizer, self._after(self.host, self.new)
        if getattr(optimizer.apply_single, "__func__", None) is not self.by_numbers:
            self._take(self.group, host)
            return
        self.host, self.new, self.used = host, {"step": host["step"] + 1}, False
        for name, value in optimizer.step_numbers(self.new["step"], self.group).items():
            for to, position in self.by_name[name]:
                to[position] = float(value)

    def _compared(self, group: Any) -> bool:
        """Whether all options are as they were; those that are no numbers must be, and the states.

        Raises:
            Stale: they are not.
        """
        # By identity: a Tensor's equality is an operation.
        if differ(map(self.optimizer.state.get, self.owners), self.states):
            raise Stale("the optimizer's state was replaced")
        if differ(map(dict.get, self.holders, self.keys), self.tensors):
            raise Stale("a tensor of the optimizer's state was replaced")
        if group == self.group:
            return True
        if group.keys() != self.group.keys():
            raise Stale("the optimizer's options have changed")
        for key in self.fixed:
            if group[key] != self.group[key]:
                raise Stale(f"the optimizer's {key} has changed")
        return False

    def _checked(self, group: Any, host: dict[str, Any]) -> dict[str, Any]:
        """What `compute` returns.

        Raises:
            Stale: the step would be another graph.
        """
        new = self.compute(group, host)
        if self.absent.log != self.recorded_log:
            raise Stale("the optimizer's update is another one")
        return new

    def _after(self, host: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """The host state after a step."""
        if new.keys() == host.keys():
            return new
        return {key: new.get(key, value) for key, value in host.items()}

    def _take(self, group: Any, host: dict[str, Any]) -> None:
        """Computes the numbers of the step from this host state, where plans read them."""
        self.new = self._checked(group, host)
        self.host, self.used = host, False
        for targets, (_, value) in zip(self.targets, self.scalars):
            for to, position in targets:
                to[position] = float(value)

    def commit(self) -> None:
        """Writes the new host state, past the methods that count changes: `steps` says so."""
        self.used = True
        _drain(map(dict.update, self.states, repeat(self.new)))


def _update_by_numbers(optimizer: Any, host: dict[str, Any]) -> Any:
    """The `apply_single` whose class says by `step_numbers` what differs from step to step.

    NOWHERE if there is none. Without it a compiled step of lenet has 27 % more of the host's time.
    """
    kind = next(kind for kind in type(optimizer).__mro__ if "apply_single" in vars(kind))
    said = "step_numbers" in vars(kind) and host.keys() == {"step"}
    return vars(kind)["apply_single"] if said else NOWHERE


def numeric(value: Any) -> bool:
    """Whether an option is a number or several."""
    if isinstance(value, tuple):
        return all(map(numeric, value))
    return isinstance(value, float | int) and not isinstance(value, bool)


class ParameterLists(StepEvent):
    """The parameters that a captured call has read from an optimizer's groups.

    Args:
        optimizer: whose groups they are.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.parameters = [list(group["params"]) for group in optimizer.param_groups]

    def prepare(self) -> None:
        """Compares all lists by the identity of what they hold.

        Raises:
            Stale: they hold other parameters.
        """
        now = [group["params"] for group in self.optimizer.param_groups]
        if len(now) != len(self.parameters) or any(map(differ, now, self.parameters)):
            raise Stale("the optimizer's parameters are others")


def differ(a: Iterable[Any], b: list[Any]) -> bool:
    """Whether two sequences hold other objects."""
    given = list(a)
    return len(given) != len(b) or any(map(is_not, given, b))


class StepReplay(StepEvent):
    """One `step()` of an optimizer inside a captured call.

    Args:
        optimizer: whose step begins.
        devices: where its parameters are.
    """

    def __init__(self, optimizer: Any, devices: list[Device]) -> None:
        self.optimizer = optimizer
        self.looks = [registry.get(device).take_error for device in devices if device is not CPU]
        self.mapping = optimizer.state
        self.groups = optimizer.param_groups
        self.lists = ParameterLists(optimizer)
        # When all was last looked through: the changes, and the optimizer's steps.
        self._seen, self._steps = -1, -1
        self.scalar_groups: list[_ScalarGroup] = []
        self._earlier: dict[int, dict[str, Any]] = {}  # the host states behind earlier steps
        self.current = -1
        # Of each parameter that is updated: it, its state before, and its index in `scalar_groups`.
        self._before: list[tuple[Tensor, dict[str, Any], int]] = []

    def check(self, group: dict[str, Any]) -> None:
        """Raises where an option would have to be looked at.

        Raises:
            CompileError: it is a Tensor.
        """
        for key, value in group.items():
            if isinstance(value, Tensor) or (
                isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value)
            ):
                raise CompileError(
                    "compile", f"the optimizer's {key} is a Tensor", expect="a number",
                    actual=f"shape {tuple(getattr(value, 'shape', ()))}",
                    hint="a number may change from step to step; no new plan is made",
                )  # fmt: skip

    def begin(self, number: int, parameter: Tensor) -> None:
        """The update of one parameter is about to be recorded."""
        state = self.mapping.get(parameter) or {}
        self.current = self._group_of(number, parameter, state)
        self._before.append((parameter, dict(state), self.current))

    def _group_of(self, number: int, parameter: Tensor, state: dict[str, Any]) -> int:
        """A parameter's index in `scalar_groups`; -1 where this very step makes its state."""
        host = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
        any_shape = "shape" not in self.optimizer.numbers_depend_on
        for index, scalar_group in enumerate(self.scalar_groups):
            same = scalar_group.number == number and scalar_group.host == host
            if same and (any_shape or scalar_group.first.shape == parameter.shape):
                return index
        try:
            self.scalar_groups.append(_ScalarGroup(self.optimizer, number, parameter, host))
        except KeyError:
            # The state is made by this very step.
            self.unsteady = STATE_MADE
            return -1
        return len(self.scalar_groups) - 1

    def supply(self, value: float, name: tuple[Any, ...]) -> float:
        """The number, marked with the event that computes it at a replay."""
        if self.current < 0:
            return value
        scalar_group = self.scalar_groups[self.current]
        number: float = supplied(
            value, self, self.current, [name_of for name_of, _ in scalar_group.scalars].index(name)
        )
        return number

    def finish(self) -> None:
        """The step has run: notes what stays, or why this step cannot be repeated as it was."""
        for parameter, before, index in self._before:
            state = self.mapping.get(parameter)
            if index >= 0:
                self.scalar_groups[index].join(parameter, state)
            after = state or {}
            same = before.keys() == after.keys() and all(
                before[k] is v for k, v in after.items() if isinstance(v, Tensor)
            )
            if not same:
                self.unsteady = STATE_MADE
        self._before = []

    # For the program that replays it -------------------------------------------------------------

    def target(self, numbers: list[Any], position: int, index: int, which: int) -> None:
        """Has number `which` of a group of parameters written to ``numbers[position]``."""
        self.scalar_groups[index].targets[which].append((numbers, position))

    def prepare(self) -> None:
        """Computes the step's numbers; reports errors of earlier steps.

        Raises:
            Stale: the step would be another graph.
            IndexError: an earlier step had an index out of range.
        """
        optimizer = self.optimizer
        for look in self.looks:
            error = look(False)  # only at what has finished
            if error is not None:
                raise value_error(error)
        if (
            self._seen == changes.number
            and self._steps == optimizer.steps
            and optimizer.state is self.mapping
            and optimizer.param_groups is self.groups
        ):
            for scalar_group in self.scalar_groups:
                if scalar_group.used:
                    scalar_group.advance()
        else:
            self._look()

    def foresee(self, before: StepReplay | None) -> None:
        """Compares all before anything of the call has run, for a step later in it.

        Args:
            before: the step of the same optimizer that precedes it in the call.

        Raises:
            Stale: the step would be another graph.
        """
        if self.optimizer.state is not self.mapping:
            raise Stale("the optimizer's state was replaced")
        self.lists.prepare()
        earlier = self._earlier = {} if before is None else before.hosts()
        for scalar_group in self.scalar_groups:
            group = self.optimizer.param_groups[scalar_group.number]
            hosts = [
                earlier.get(id(parameter)) or {key: state[key] for key in scalar_group.host}
                for parameter, state in zip(scalar_group.owners, scalar_group.states)
            ]
            if any(host != hosts[0] for host in hosts):
                raise Stale("the optimizer's state differs between parameters")
            scalar_group.foresee(group, hosts[0])

    def hosts(self) -> dict[int, dict[str, Any]]:
        """The host states behind this step and those before it, by their parameters' identities."""
        own = {id(p): group.after() for group in self.scalar_groups for p in group.owners}
        return {**self._earlier, **own}

    def _look(self) -> None:
        """Looks through options and state, which may have changed."""
        number, groups = changes.number, self.optimizer.param_groups
        self._seen = -1
        if self.optimizer.state is not self.mapping:
            raise Stale("the optimizer's state was replaced")
        self.lists.prepare()
        for scalar_group in self.scalar_groups:
            scalar_group.prepare(groups[scalar_group.number])
        self.groups = groups
        if self._watched():
            self._seen, self._steps = number, self.optimizer.steps

    def _watched(self) -> bool:
        """Whether all changes would be counted."""
        lists = [self.groups, *(group["params"] for group in self.groups)]
        states = chain.from_iterable(scalar_group.states for scalar_group in self.scalar_groups)
        dictionaries = [*self.groups, *(state for state in states if state is not None)]
        return (
            switches.watched_options
            and type(self.mapping) is States
            and {*map(type, lists)} == {WatchedList}
            and {*map(type, dictionaries)} <= {Watched}
        )

    def commit(self, frame: Any = None) -> None:
        """The step has run: an event of a replay, whose cells it does not look at."""
        for scalar_group in self.scalar_groups:
            if scalar_group.new:
                scalar_group.commit()
        optimizer = self.optimizer
        steps = optimizer.steps = optimizer.steps + 1
        if steps == self._steps + 1:
            self._steps = steps
