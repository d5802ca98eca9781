"""What a replay of a compiled step does on the host for an optimizer: new numbers, step counts.

The update itself is run on a stand-in for Tensors, so that each optimizer is written only once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.device import CPU, Device
from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.engine.capture import Stale, StepEvent, supplied
from tinygrad_cuda.engine.realize import check_errors
from tinygrad_cuda.tensor.tensor import Tensor


class Absent:
    """Stands for every Tensor of an update; notes what is asked of it.

    Args:
        log: receives names of operations and operands that are not Tensors.
        like: the parameter whose shape and dtype it shows.
    """

    __slots__ = ("log", "shape", "dtype", "ndim")

    def __init__(self, log: list[Any], like: Tensor) -> None:
        self.log = log
        self.shape, self.dtype, self.ndim = tuple(like.shape), like.dtype, like.ndim

    def __neg__(self) -> Absent:
        self.log.append("neg")
        return self

    def __getattr__(self, name: str) -> Absent:
        self.log.append(name)
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Absent:
        self.log += [item for item in (*arguments, *options.values()) if item is not self]
        return self

    def __bool__(self) -> bool:
        raise TypeError("an update may not depend on values")


def _operator(name: str) -> Callable[[Absent, Any], Absent]:
    def operation(self: Absent, other: Any) -> Absent:
        self.log.append(name)
        if other is not self:
            self.log.append(other)
        return self

    return operation


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "pow", "rpow",
    "gt", "lt", "ge", "le",
):  # fmt: skip
    setattr(Absent, f"__{_name}__", _operator(_name))


class _Alike:
    """Parameters of one group whose host state is the same: they share all numbers of a step."""

    def __init__(self, optimizer: Any, number: int, parameter: Tensor, host: dict[str, Any]):
        self.optimizer = optimizer
        self.number = number
        self.first = parameter
        self.host = host
        self.members: list[Any] = []
        self.targets: list[tuple[list[Any], int, int]] = []
        self.parameters = len(optimizer.param_groups[number]["params"])
        self.group = dict(optimizer.param_groups[number])
        self.log: list[Any] = []
        self.values, self.names, self.new = self.compute(self.group, host)
        self.log_kept = self.log

    def compute(self, group: Any, host: dict[str, Any]) -> tuple[list[float], list[Any], Any]:
        """The numbers of a step in the order in which they are asked for, and the new state."""
        log: list[Any] = []
        absent: Any = Absent(log, self.first)
        values: list[float] = []
        names: list[Any] = []

        def scalar(value: float, *name: Any) -> Any:
            values.append(float(value))
            names.append(name)
            log.append(name[0])
            return absent

        state = self.optimizer.state.get(self.first) or {}
        given = {k: absent if isinstance(v, Tensor) else host[k] for k, v in state.items()}
        try:
            _, new = self.optimizer.apply_single(absent, absent, given, group, scalar)
        except (TypeError, AttributeError, ValueError) as error:
            raise CompileError(
                "compile",
                f"the update of {type(self.optimizer).__name__} cannot be repeated on the host",
                expect="an apply_single that uses operators and methods of Tensors",
                actual=str(error),
                hint="write x.maximum(y) instead of maximum(x, y)",
            ) from error
        self.log = log
        return values, names, {k: v for k, v in new.items() if v is not absent}

    def join(self, parameter: Tensor, state: Any) -> None:
        """One more parameter; what its state holds must stay where it is."""
        tensors = [(k, v) for k, v in (state or {}).items() if isinstance(v, Tensor)]
        self.members.append((parameter, state, tensors))

    def prepare(self, group: Any) -> None:
        """Computes the numbers of the next step.

        Raises:
            Stale: the step would be another graph.
        """
        mapping = self.optimizer.state
        host = self.members[0][1] if self.host else self.host
        for parameter, state, tensors in self.members:
            if mapping.get(parameter) is not state:
                raise Stale("the optimizer's state was replaced")
            for key, tensor in tensors:
                if state.get(key) is not tensor:
                    raise Stale(f"the optimizer's {key} was replaced")
            for key in self.host:
                if state.get(key) != host[key]:
                    raise Stale(f"the optimizer's {key} differs between parameters")
        now = {key: host[key] for key in self.host}
        if group == self.group and now == self.host:
            return
        if len(group["params"]) != self.parameters or not _fits(group, self.group):
            raise Stale("an option of the optimizer has changed")
        values, _, new = self.compute(group, now)
        if self.log != self.log_kept:
            raise Stale("the optimizer's update is another one")
        self.host, self.group, self.values, self.new = now, dict(group), values, new
        self.supply()

    def supply(self) -> None:
        """Writes the numbers to where plans read them."""
        for numbers, position, index in self.targets:
            numbers[position] = self.values[index]

    def commit(self) -> None:
        """Writes the new host state."""
        if self.new:
            for _, state, _ in self.members:
                state.update(self.new)


def _fits(group: Any, known: Any) -> bool:
    """Whether two groups differ in nothing but numbers."""
    return group.keys() == known.keys() and all(
        value == known[key] or (_numeric(value) and _numeric(known[key]))
        for key, value in group.items()
        if key != "params"
    )


def _numeric(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_numeric(item) for item in value)
    return isinstance(value, float | int) and not isinstance(value, bool)


class StepReplay(StepEvent):
    """One `step()` of an optimizer inside a captured call.

    Args:
        optimizer: whose step begins.
        devices: where its parameters are.
    """

    def __init__(self, optimizer: Any, devices: list[Device]) -> None:
        self.optimizer = optimizer
        self.devices = [device for device in devices if device is not CPU]
        self.mapping = optimizer.state
        self.groups = len(optimizer.param_groups)
        self.alike: list[_Alike] = []
        self._current = -1
        self._before: dict[int, Any] = {}

    def begin(self, number: int, parameter: Tensor) -> None:
        """The update of one parameter is about to be recorded."""
        state = self.mapping.get(parameter) or {}
        self._before[id(parameter)] = (parameter, dict(state))
        host = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
        any_shape = "shape" not in self.optimizer.numbers_depend_on
        for index, alike in enumerate(self.alike):
            same = alike.number == number and alike.host == host
            if same and (any_shape or alike.first.shape == parameter.shape):
                self._current = index
                return
        self._current = len(self.alike)
        try:
            self.alike.append(_Alike(self.optimizer, number, parameter, host))
        except KeyError:
            # The state is made by this very step.
            self.unsteady = "the optimizer's state was made"
            self._current = -1

    def supply(self, value: float, name: tuple[Any, ...]) -> float:
        """The number, with where a replay gets it from."""
        if self._current < 0:
            return value
        alike = self.alike[self._current]
        found: float = supplied(value, self, self._current, alike.names.index(name))
        return found

    def join(self, parameter: Tensor) -> None:
        """The update of the parameter has been recorded."""
        if self._current >= 0:
            self.alike[self._current].members.append(parameter)

    def finish(self) -> None:
        """The step has run: notes what stays, or why this step cannot be repeated as it was."""
        for parameter, before in self._before.values():
            after = self.mapping.get(parameter) or {}
            same = before.keys() == after.keys() and all(
                before[k] is v for k, v in after.items() if isinstance(v, Tensor)
            )
            if not same:
                self.unsteady = "the optimizer's state was made"
        self._before = {}
        for alike in self.alike:
            parameters, alike.members = alike.members, []
            for parameter in parameters:
                alike.join(parameter, self.mapping.get(parameter))

    # For the program that replays it -------------------------------------------------------------

    def target(self, numbers: list[Any], position: int, index: int, which: int) -> None:
        """Has number `which` of a group of parameters written to ``numbers[position]``."""
        self.alike[index].targets.append((numbers, position, which))

    def prepare(self) -> None:
        """Computes the step's numbers; reports errors of earlier steps.

        Raises:
            Stale: the step would be another graph.
            IndexError: an earlier step met an index out of range.
        """
        groups = self.optimizer.param_groups
        if self.optimizer.state is not self.mapping or len(groups) != self.groups:
            raise Stale("the optimizer's groups or state were replaced")
        for device in self.devices:
            check_errors(device, wait=False)
        for alike in self.alike:
            alike.prepare(groups[alike.number])

    def commit(self) -> None:
        """The step has run."""
        for alike in self.alike:
            alike.commit()
        self.optimizer.steps += 1
