"""The base of schedules: they set the rates of an optimizer's groups, step by step.

A rate is an argument of the plan, so a schedule makes no new one.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.engine.capture import repeated
from tinygrad_cuda.optim.optimizer import Group, Optimizer
from tinygrad_cuda.tensors.tensor import Tensor


class LRScheduler:
    """The base of schedules: a subclass gives the rates in `get_lr`.

    Call `step` after ``optimizer.step()``.

    Args:
        optimizer: whose groups get new rates.
        last_epoch: the number of the last step when going on; -1 starts from the beginning.

    Raises:
        ArgumentError: going on, but a group has no ``initial_lr``.
    """

    _steps = 0
    _warned = False
    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", rate_of(group))
            elif "initial_lr" not in group:
                raise ArgumentError(
                    "lr_scheduler",
                    f"param_groups[{number}] has no 'initial_lr' to go on from",
                    expect="'initial_lr' in every group",
                    actual=f"keys: {', '.join(group)}",
                    hint="load the optimizer's state first, or leave last_epoch out",
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._is_initial = True  # going on, the constructor changes no rate
        self._advance()
        self._is_initial = False

    def get_lr(self) -> list[float]:
        """The rates at step `last_epoch`, a group each."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr")

    def get_last_lr(self) -> list[float]:
        """The rates in force, a group each."""
        return self._last_lr

    def step(self, epoch: Any = None) -> None:
        """Sets the rates of the next step, or those of step `epoch`, whichever was the last.

        For `epoch` a schedule has a closed form, `_get_closed_form_lr`, or else its `get_lr`.
        """
        self._check_order()
        with uninterrupted:
            if epoch is None:
                self._turn()
                repeated(self.step)
            else:
                _warn_of_epoch()
                self._turn_to(epoch)
                repeated(self.step, epoch)

    def _turn(self) -> None:
        self._steps += 1
        self._advance()

    def _turn_to(self, epoch: Any) -> None:
        self._steps += 1
        self.last_epoch = epoch
        set_rates(self.optimizer, getattr(self, "_get_closed_form_lr", self.get_lr)())
        self._last_lr = self._rates()

    def _check_order(self) -> None:
        """Warns at the caller of `step` where the optimizer has made no step."""
        if self._steps == 0 and self.optimizer.steps == 0 and not self._warned:
            self._warned = True
            warnings.warn(
                "lr_scheduler.step() was called before optimizer.step(): "
                "the first rate is never used",
                UserWarning,
                stacklevel=3,
            )

    def _undo(self) -> None:
        """Takes the constructor's step back; `SequentialLR` begins schedules when it wants."""
        self.last_epoch -= 1

    def _begin(self) -> None:
        """The first rates, from the initial ones, whatever the last schedule left."""
        set_rates(self.optimizer, self.base_lrs)
        self.last_epoch = 0
        set_rates(self.optimizer, self._rates_of_beginning())
        self._last_lr = self._rates()

    def _rates_of_beginning(self) -> list[float]:
        """The rates of step 0 after another schedule, where `last_epoch` is 0."""
        return self.get_lr()

    def _advance(self) -> None:
        self.last_epoch += 1
        set_rates(self.optimizer, self.get_lr())
        self._last_lr = self._rates()

    def _rates(self) -> list[float]:
        return [rate_of(group) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions, by PyTorch's names.

        Of callable objects that return a rate, their attributes are saved.
        """
        state = {
            key: value
            for key, value in self.__dict__.items()
            if key not in ("optimizer", "_steps") and not _has_function(value)
        }
        state["_step_count"] = self._steps + 1
        if "lr_lambdas" in self.__dict__:
            state["lr_lambdas"] = [_attributes(function) for function in self._functions()]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where another schedule's `state_dict` was taken, here or in PyTorch."""
        state = dict(state_dict)
        self._steps = state.pop("_step_count", self._steps + 1) - 1
        saved = state.pop("lr_lambdas", None) or []
        for function, attributes in zip(self._functions(), saved):
            if attributes is not None:
                function.__dict__.update(attributes)
        if isinstance(state.get("milestones"), Counter):  # PyTorch's
            state["milestones"] = sorted(state["milestones"].elements())
        self.__dict__.update(state)

    def _functions(self) -> list[Any]:
        return list(self.__dict__.get("lr_lambdas", ()))


def _warn_of_epoch() -> None:
    """PyTorch's warning, at the caller of `step`."""
    warnings.warn(
        "step(epoch) sets the rates of that step and goes on from there; without the epoch a "
        "schedule counts its steps",
        UserWarning,
        stacklevel=3,
    )


def rate_of(group: Group) -> float:
    """The rate of a group as a number."""
    rate: float = group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]
    return rate


def set_rates(optimizer: Optimizer, rates: Iterable[float]) -> None:
    """Gives each group its rate; one that is a Tensor is written into."""
    for group, rate in zip(optimizer.param_groups, rates):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _attributes(function: Any) -> dict[str, Any] | None:
    attributes = getattr(function, "__dict__", None)
    return dict(attributes) if attributes and not hasattr(function, "__name__") else None


def per_group(op: str, name: str, optimizer: Optimizer, value: Any) -> list[float]:
    """One number for all groups, or a list with one a group.

    Raises:
        ArgumentError: the list has another length.
    """
    count = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ArgumentError(op, f"one {name} per group", expect=str(count), actual=str(len(value)))
    return list(value)


def per_group_functions(op: str, optimizer: Optimizer, given: Any) -> list[Any]:
    """One function for all groups, or a sequence with one a group.

    Raises:
        ArgumentError: there is another number of them.
    """
    count = len(optimizer.param_groups)
    functions = [given] * count if callable(given) else list(given)
    if len(functions) != count:
        raise ArgumentError(
            op, "one function per group", expect=str(count), actual=str(len(functions))
        )
    return functions


def _has_function(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(map(callable, value)))
