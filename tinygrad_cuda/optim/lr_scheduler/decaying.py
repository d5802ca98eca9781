"""Schedules by a simple rule of the step; the rules are PyTorch's.

A rate is an argument of the plan, so a schedule makes no new one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.optim.lr_scheduler.base import LRScheduler, per_group_functions
from tinygrad_cuda.optim.optimizer import Optimizer


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
        self.lr_lambdas = per_group_functions("LambdaLR", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [
            base * function(self.last_epoch)
            for base, function in zip(self.base_lrs, self.lr_lambdas)
        ]


class MultiplicativeLR(LRScheduler):
    """The last rate times ``lr_lambda(step)``.

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
        self.lr_lambdas = per_group_functions("MultiplicativeLR", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self._steps == 0:
            return self._rates()
        return [
            rate * function(self.last_epoch)
            for rate, function in zip(self._rates(), self.lr_lambdas)
        ]

    def _rates_of_beginning(self) -> list[float]:
        # As in PyTorch, after another schedule its step 0 counts.
        return [rate * function(0) for rate, function in zip(self._rates(), self.lr_lambdas)]


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

    def _get_closed_form_lr(self) -> list[float]:
        factor = self.gamma ** (self.last_epoch // self.step_size)
        return [base * factor for base in self.base_lrs]


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

    def _get_closed_form_lr(self) -> list[float]:
        factor = self.gamma ** sum(stone <= self.last_epoch for stone in self.milestones)
        return [base * factor for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The rate times `gamma` at every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        still = self._is_initial or self.last_epoch == 0
        return [rate if still else rate * self.gamma for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The initial rate times `factor` until step `total_iters`, and itself from there on.

    Args:
        optimizer: whose groups get new rates.
        factor: from 0 to 1.
        total_iters: how many steps have the smaller rate.
        last_epoch: the number of the last step when going on.

    Raises:
        ArgumentError: the factor is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0.0 <= factor <= 1.0:
            raise ArgumentError(
                "ConstantLR", "the factor is out of range", expect="0 <= factor <= 1",
                actual=str(factor),
            )  # fmt: skip
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return [rate * self.factor for rate in self._rates()]
        if self.last_epoch != self.total_iters:
            return self._rates()
        if self.factor == 0:
            return list(self.base_lrs)
        return [rate * (1.0 / self.factor) for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[float]:
        factor = 1.0 if self.last_epoch >= self.total_iters else self.factor
        return [base * factor for base in self.base_lrs]

    def _rates_of_beginning(self) -> list[float]:
        return list(self.base_lrs) if self.total_iters <= 0 else self.get_lr()


class PolynomialLR(LRScheduler):
    r"""A power of the share of steps that is left.

    .. math:: \eta_0 (1 - \min(t, T) / T)^p

    Args:
        optimizer: whose groups get new rates.
        total_iters: :math:`T`, the step at which the rate is zero.
        power: :math:`p`.
        last_epoch: the number of the last step when going on.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step, total = self.last_epoch, self.total_iters
        if self._steps == 0 or step == 0 or step > total:
            return self._rates()
        factor = ((1.0 - step / total) / (1.0 - (step - 1) / total)) ** self.power
        return [rate * factor for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[float]:
        left = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]


class LinearLR(LRScheduler):
    """The rate times a factor that goes from one value to another in a straight line.

    Args:
        optimizer: whose groups get new rates.
        start_factor, end_factor: the factor at step 0 and from step `total_iters` on.
        total_iters: number of steps until the end value.
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
        start, change = self.start_factor, self.end_factor - self.start_factor
        if step == 0:
            return [rate * start for rate in self._rates()]
        if self._is_initial or step > total:
            return self._rates()
        # From the last rate, not the first: other schedules may act on it as well.
        factor = 1.0 + change / (total * start + (step - 1) * change)
        return [rate * factor for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[float]:
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        factor = self.start_factor + (self.end_factor - self.start_factor) * share
        return [base * factor for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    r"""Half a cosine from the initial rate down to `eta_min` (Loshchilov and Hutter, 2017).

    .. math:: \eta_{min} + (\eta_0 - \eta_{min}) (1 + \cos(\pi t / T_{max})) / 2

    Args:
        optimizer: whose groups get new rates.
        T_max: number of steps from the first rate to the least.
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
        if self._is_initial or step == 0:
            return rates
        if (step - 1 - total) % (2 * total) == 0:
            # The bottom is behind: the recursion would divide by zero.
            rise = (1 - math.cos(math.pi / total)) / 2
            return [rate + (base - low) * rise for rate, base in zip(rates, self.base_lrs)]
        ratio = (1 + math.cos(math.pi * step / total)) / (
            1 + math.cos(math.pi * (step - 1) / total)
        )
        return [ratio * (rate - low) + low for rate in rates]

    def _get_closed_form_lr(self) -> list[float]:
        height = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]
