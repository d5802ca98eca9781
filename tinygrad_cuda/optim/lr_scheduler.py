"""Learning rates that change with the step; the rules and their order of use are PyTorch's.

A rate is an argument of the plan, so a schedule makes no new one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.optim.optimizer import Optimizer


class LRScheduler:
    """The base of schedules: a subclass gives the rates in `get_lr`.

    Call `step` after ``optimizer.step()``.

    Args:
        optimizer: whose groups get new rates.
        last_epoch: the number of the last step when going on; -1 starts anew.

    Raises:
        ArgumentError: going on, but a group has no ``initial_lr``.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
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
        self._warned = False
        self._steps = 0
        self._advance()

    def get_lr(self) -> list[float]:
        """The rates at step `last_epoch`, a group each."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr")

    def get_last_lr(self) -> list[float]:
        """The rates in force, a group each."""
        return self._last_lr

    def step(self) -> None:
        """Sets the rates of the next step."""
        if self._steps == 0 and self.optimizer.steps == 0 and not self._warned:
            self._warned = True
            warnings.warn(
                "lr_scheduler.step() was called before optimizer.step(): "
                "the first rate is never used",
                UserWarning,
                stacklevel=2,
            )
        self._steps += 1
        self._advance()

    def _advance(self) -> None:
        self.last_epoch += 1
        for group, rate in zip(self.optimizer.param_groups, self.get_lr()):
            group["lr"] = rate
        self._last_lr = self._rates()

    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions."""
        return {
            key: value
            for key, value in self.__dict__.items()
            if key != "optimizer" and not _has_function(value)
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where another schedule's `state_dict` was taken."""
        self.__dict__.update(state_dict)


def _has_function(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(map(callable, value)))


class LambdaLR(LRScheduler):
    """The initial rate times ``lr_lambda(step)``.

    Args:
        optimizer: whose groups get new rates.
        lr_lambda: a function of the step, or one a group.
        last_epoch: the number of the last step when going on.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ArgumentError(
                "LambdaLR", "one function per group", expect=str(count),
                actual=str(len(self.lr_lambdas)),
            )  # fmt: skip
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [
            base * function(self.last_epoch)
            for base, function in zip(self.base_lrs, self.lr_lambdas)
        ]


class StepLR(LRScheduler):
    """The rate times `gamma` every `step_size` steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        turn = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return [rate * self.gamma if turn else rate for rate in self._rates()]


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at each of the steps `milestones`."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = list(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        factor = self.gamma ** self.milestones.count(self.last_epoch)
        return [rate * factor for rate in self._rates()]


class ExponentialLR(LRScheduler):
    """The rate times `gamma` at every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [rate * self.gamma if self.last_epoch > 0 else rate for rate in self._rates()]


class LinearLR(LRScheduler):
    """The rate times a factor that goes from one value to another in a straight line.

    Args:
        optimizer: whose groups get new rates.
        start_factor, end_factor: the factor at step 0 and from step `total_iters` on.
        total_iters: how many steps the way takes.
        last_epoch: the number of the last step when going on.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0.0 < start_factor <= 1.0 or not 0.0 <= end_factor <= 1.0:
            raise ArgumentError(
                "LinearLR",
                "a factor is out of range",
                expect="0 < start_factor <= 1 and 0 <= end_factor <= 1",
                actual=f"{start_factor} and {end_factor}",
            )
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step, total = self.last_epoch, self.total_iters
        start, way = self.start_factor, self.end_factor - self.start_factor
        if step == 0:
            return [rate * start for rate in self._rates()]
        if step > total:
            return self._rates()
        # From the last rate, not the first: other schedules may act on it as well.
        factor = 1.0 + way / (total * start + (step - 1) * way)
        return [rate * factor for rate in self._rates()]


class CosineAnnealingLR(LRScheduler):
    r"""Half a cosine from the initial rate down to `eta_min` (Loshchilov and Hutter, 2017).

    .. math:: \eta_{min} + (\eta_0 - \eta_{min}) (1 + \cos(\pi t / T_{max})) / 2

    Args:
        optimizer: whose groups get new rates.
        T_max: how many steps the way down takes.
        eta_min: the lowest rate.
        last_epoch: the number of the last step when going on.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step, total, low = self.last_epoch, self.T_max, self.eta_min
        rates = self._rates()
        if step == 0:
            return rates
        if self._steps == 0:
            # Going on after a restart: there is no last rate to continue from.
            height = (1 + math.cos(math.pi * step / total)) / 2
            return [low + (base - low) * height for base in self.base_lrs]
        if (step - 1 - total) % (2 * total) == 0:
            # The bottom is behind: the recursion would divide by zero.
            rise = (1 - math.cos(math.pi / total)) / 2
            return [rate + (base - low) * rise for rate, base in zip(rates, self.base_lrs)]
        ratio = (1 + math.cos(math.pi * step / total)) / (
            1 + math.cos(math.pi * (step - 1) / total)
        )
        return [ratio * (rate - low) + low for rate in rates]
