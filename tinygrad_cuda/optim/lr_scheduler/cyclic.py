"""Schedules that rise and fall: warm restarts, cycles, and the one cycle; as PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.capture import repeated
from tinygrad_cuda.optim.lr_scheduler.base import LRScheduler, per_group, set_rates
from tinygrad_cuda.optim.optimizer import Optimizer


class CosineAnnealingWarmRestarts(LRScheduler):
    r"""Half cosines, each beginning at the initial rate (SGDR; Loshchilov and Hutter, 2017).

    .. math:: \eta_{min} + (\eta_0 - \eta_{min}) (1 + \cos(\pi T_{cur} / T_i)) / 2

    Args:
        optimizer: whose groups get new rates.
        T_0: how many steps the first half cosine takes.
        T_mult: how much longer each is than the last.
        eta_min: the lowest rate.
        last_epoch: the number of the last step when going on.

    Raises:
        ArgumentError: T_0 or T_mult is no whole number of one or more.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise ArgumentError(
                    "CosineAnnealingWarmRestarts", f"{name} is out of range",
                    expect="a whole number of one or more", actual=repr(value),
                )  # fmt: skip
        self.T_0 = self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        height = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Sets the rates of the next step, or those of `epoch`, which may lie between two."""
        self._check_order()
        if epoch is None:
            self._turn()
            repeated(self.step)
            return
        if epoch < 0:
            raise ArgumentError(
                "CosineAnnealingWarmRestarts", "the epoch is negative", expect="0 or more",
                actual=str(epoch),
            )  # fmt: skip
        first, growth = self.T_0, self.T_mult
        self.T_i, self.T_cur = first, epoch
        if epoch >= first and growth == 1:
            self.T_cur = epoch % first
        elif epoch >= first:
            turns = int(math.log(epoch / first * (growth - 1) + 1, growth))
            self.T_cur = epoch - first * (growth**turns - 1) / (growth - 1)
            self.T_i = first * growth**turns
        self.last_epoch = math.floor(epoch) - 1
        self._steps += 1
        super()._advance()
        repeated(self.step, epoch)

    def _advance(self) -> None:
        self.T_cur += 1
        if self.last_epoch < 0:
            self.T_cur, self.T_i = 0, self.T_0
        if self.T_cur >= self.T_i:
            self.T_cur %= self.T_i
            self.T_i *= self.T_mult
        super()._advance()


class _WithMomentum(LRScheduler):
    """A schedule that may move the momentum (or beta1) against the rate."""

    cycle_momentum: bool

    def _find_momentum(self, optimizer: Optimizer, base: Any, top: Any, first: bool) -> None:
        op = type(self).__name__
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ArgumentError(
                op, "the optimizer has no momentum", expect="'momentum' or 'betas'",
                actual=", ".join(optimizer.defaults), hint="cycle_momentum=False",
            )  # fmt: skip
        self.use_beta1 = "betas" in optimizer.defaults
        self.base_momentums = per_group(op, "base_momentum", optimizer, base)
        self.max_momentums = per_group(op, "max_momentum", optimizer, top)
        if first:
            self._set_momentums(optimizer, self.max_momentums)
            for group, low, high in zip(
                optimizer.param_groups, self.base_momentums, self.max_momentums
            ):
                group["max_momentum"], group["base_momentum"] = high, low

    def _set_momentums(self, optimizer: Optimizer, values: list[float]) -> None:
        for group, value in zip(optimizer.param_groups, values):
            if self.use_beta1:
                group["betas"] = (value, *group["betas"][1:])
            else:
                group["momentum"] = value


class CyclicLR(_WithMomentum):
    """The rate to and fro between two values (Smith, 2017), the momentum against it.

    Args:
        optimizer: whose groups get new rates.
        base_lr, max_lr: lowest and highest rate, or one a group.
        step_size_up, step_size_down: how many steps up and (by default as many) down.
        mode: "triangular"; "triangular2", each cycle half as high; or "exp_range", the height
            times ``gamma ** step``.
        gamma: see `mode`.
        scale_fn: the height's factor as a function; `mode` is ignored then.
        scale_mode: whether `scale_fn` is given the number of the "cycle" or of "iterations".
        cycle_momentum: move momentum or beta1, from `max_momentum` to `base_momentum`.
        base_momentum, max_momentum: lowest and highest momentum, or one a group.
        last_epoch: the number of the last step when going on.

    Raises:
        ArgumentError: an unknown mode, or no momentum to move.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        base_lrs = per_group("CyclicLR", "base_lr", optimizer, base_lr)
        self.max_lrs = per_group("CyclicLR", "max_lr", optimizer, max_lr)
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ArgumentError(
                "CyclicLR", "no such mode", expect="'triangular', 'triangular2' or 'exp_range'",
                actual=repr(mode),
            )  # fmt: skip
        if last_epoch == -1:
            set_rates(optimizer, base_lrs)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode = mode
        self.gamma = gamma
        self.scale_fn = scale_fn
        self.scale_mode = scale_mode
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._find_momentum(optimizer, base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def _factor(self, cycle: int) -> float:
        """What the height of a cycle is multiplied by."""
        if self.scale_fn is not None:
            return self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.mode == "triangular":
            return 1.0
        if self.mode == "triangular2":
            return 1 / 2.0 ** (cycle - 1)
        return float(self.gamma**self.last_epoch)

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        up = x <= self.step_ratio
        height = x / self.step_ratio if up else (x - 1) / (self.step_ratio - 1)
        height *= self._factor(cycle)
        if self.cycle_momentum:
            ranges = zip(self.base_momentums, self.max_momentums)
            self._set_momentums(
                self.optimizer, [high - (high - low) * height for low, high in ranges]
            )
        # The constructor's step comes before base_lrs are those of this schedule.
        lows = self._rates()
        lows = self.base_lrs if self._steps or self.last_epoch > 0 else lows
        return [low + (high - low) * height for low, high in zip(lows, self.max_lrs)]


class OneCycleLR(_WithMomentum):
    """One rise and one long fall of the rate, the momentum against it (Smith, 2018).

    Args:
        optimizer: whose groups get new rates.
        max_lr: the highest rate, or one a group.
        total_steps: how many steps there will be; or give `epochs` and `steps_per_epoch`.
        epochs, steps_per_epoch: see `total_steps`.
        pct_start: which part of the steps the rise takes.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: move momentum or beta1, from `max_momentum` to `base_momentum` and back.
        base_momentum, max_momentum: lowest and highest momentum, or one a group.
        div_factor: the first rate is ``max_lr / div_factor``.
        final_div_factor: the last rate is the first divided by this.
        three_phase: fall as long as the rise, then on to the last rate.
        last_epoch: the number of the last step when going on.

    Raises:
        ArgumentError: the number of steps is missing or exceeded, an option is out of range, or
            there is no momentum to move.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None and epochs is not None and steps_per_epoch is not None:
            total_steps = epochs * steps_per_epoch
        if not isinstance(total_steps, int) or total_steps <= 0:
            raise ArgumentError(
                "OneCycleLR", "the number of steps is missing or not positive",
                expect="total_steps, or epochs and steps_per_epoch",
                actual=f"total_steps = {total_steps}, epochs = {epochs}, "
                f"steps_per_epoch = {steps_per_epoch}",
            )  # fmt: skip
        if not 0.0 <= pct_start <= 1.0 or anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(
                "OneCycleLR", "an option is out of range",
                expect="0 <= pct_start <= 1 and anneal_strategy 'cos' or 'linear'",
                actual=f"{pct_start} and {anneal_strategy!r}",
            )  # fmt: skip
        self.total_steps = total_steps
        self.anneal_strategy = anneal_strategy
        self.phases = _phases(total_steps, pct_start, three_phase)
        if last_epoch == -1:
            tops = per_group("OneCycleLR", "max_lr", optimizer, max_lr)
            for group, top in zip(optimizer.param_groups, tops):
                group["initial_lr"] = top / div_factor
                group["max_lr"] = top
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._find_momentum(optimizer, base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, part: float) -> float:
        if self.anneal_strategy == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)
        return (end - start) * part + start

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ArgumentError(
                "OneCycleLR", "more steps than were announced", expect=str(self.total_steps),
                actual=str(step),
            )  # fmt: skip
        number = next(
            (k for k, phase in enumerate(self.phases) if step <= phase[0]), len(self.phases) - 1
        )
        end, rates, momentums = self.phases[number]
        begin = self.phases[number - 1][0] if number else 0.0
        part = (step - begin) / (end - begin)
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            first, last = momentums
            self._set_momentums(
                self.optimizer, [self._between(g[first], g[last], part) for g in groups]
            )
        first, last = rates
        return [self._between(g[first], g[last], part) for g in groups]


Phase = tuple[float, tuple[str, str], tuple[str, str]]


def _phases(total: int, start: float, three: bool) -> list[Phase]:
    """The last step of each phase, and the names of its first and last rate and momentum."""
    rise = (
        float(start * total) - 1,
        ("initial_lr", "max_lr"),
        ("max_momentum", "base_momentum"),
    )
    if not three:
        return [rise, (total - 1, ("max_lr", "min_lr"), ("base_momentum", "max_momentum"))]
    fall = (
        float(2 * start * total) - 2,
        ("max_lr", "initial_lr"),
        ("base_momentum", "max_momentum"),
    )
    return [rise, fall, (total - 1, ("initial_lr", "min_lr"), ("max_momentum", "max_momentum"))]
