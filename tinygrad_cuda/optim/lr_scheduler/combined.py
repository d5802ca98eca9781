"""Schedules made of others, one after another or all at once, and one that watches a metric."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.capture import repeated
from tinygrad_cuda.optim.lr_scheduler.base import LRScheduler, per_group, set_rates
from tinygrad_cuda.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` when a metric has not improved for more than `patience` steps.

    Args:
        optimizer: whose groups get new rates.
        mode: "min" where smaller is better, "max" where larger is.
        factor: below 1.
        patience: how many steps without improvement are borne.
        threshold: what counts as an improvement, relative or absolute by `threshold_mode`.
        threshold_mode: "rel" or "abs".
        cooldown: how many steps after a reduction are not counted.
        min_lr: the lowest rate, or one a group.
        eps: reductions by less are left out.

    Raises:
        ArgumentError: an option is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0 or mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ArgumentError(
                "ReduceLROnPlateau", "an option is out of range",
                expect="factor < 1, mode 'min' or 'max', threshold_mode 'rel' or 'abs'",
                actual=f"{factor}, {mode!r} and {threshold_mode!r}",
            )  # fmt: skip
        self.optimizer = optimizer
        self.min_lrs = per_group("ReduceLROnPlateau", "min_lr", optimizer, min_lr)
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.factor, self.patience, self.cooldown, self.eps = factor, patience, cooldown, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = self.last_epoch = 0
        self._last_lr = self._rates()

    @property
    def in_cooldown(self) -> bool:
        """Whether steps after a reduction are not counted yet."""
        return self.cooldown_counter > 0

    def step(self, metrics: Any, epoch: Any = None) -> None:  # type: ignore[override]
        """Takes note of the metric, a number or a Tensor of one element; `epoch` is its number."""
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates()
        repeated(self.step, current, epoch)

    def _is_better(self, current: float) -> bool:
        margin = self.threshold if self.mode == "max" else -self.threshold
        limit = self.best * (1.0 + margin) if self.threshold_mode == "rel" else self.best + margin
        return current > limit if self.mode == "max" else current < limit

    def _reduce(self) -> None:
        rates = self._rates()
        lower = [max(rate * self.factor, low) for rate, low in zip(rates, self.min_lrs)]
        set_rates(
            self.optimizer,
            [new if old - new > self.eps else old for old, new in zip(rates, lower)],
        )


class _Several(LRScheduler):
    """A schedule that holds others; its state holds theirs."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer) -> None:
        self._schedulers = list(schedulers)
        self.optimizer = optimizer
        for number, schedule in enumerate(schedulers):
            if isinstance(schedule, ReduceLROnPlateau) or schedule.optimizer is not optimizer:
                raise ArgumentError(
                    type(self).__name__, f"schedulers[{number}] does not fit",
                    expect="a schedule of the same optimizer whose step() needs no metric",
                    actual=f"{type(schedule).__name__} of {type(schedule.optimizer).__name__}",
                )  # fmt: skip

    def _turn_to(self, epoch: Any) -> None:
        raise ArgumentError(
            type(self).__name__, "schedules of others go on step by step", expect="step()",
            actual=f"step({epoch!r})",
        )  # fmt: skip

    def _undo(self) -> None:
        for schedule in self._schedulers:
            schedule._undo()

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions."""
        state = super().state_dict()
        return {**state, "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where another schedule's `state_dict` was taken."""
        own = {key: value for key, value in state_dict.items() if key != "_schedulers"}
        super().load_state_dict(own)
        for schedule, state in zip(self._schedulers, state_dict["_schedulers"]):
            schedule.load_state_dict(state)


class SequentialLR(_Several):
    """One schedule after another; each begins at its milestone, from the initial rate.

    Args:
        optimizer: whose groups get new rates.
        schedulers: one more than there are milestones.
        milestones: the steps at which the second, third, ... begins.
        last_epoch: the number of the last step when going on.

    Raises:
        ArgumentError: the numbers do not fit, or a schedule is another optimizer's.

    Example:
        >>> import tinygrad_cuda as tc
        >>> from tinygrad_cuda.optim.lr_scheduler import LinearLR, ExponentialLR
        >>> x = tc.ones(1, device="cpu", requires_grad=True)
        >>> optimizer = tc.optim.SGD([x], lr=1.0)
        >>> warmup = LinearLR(optimizer, start_factor=0.5, total_iters=2)
        >>> schedule = SequentialLR(optimizer, [warmup, ExponentialLR(optimizer, 0.5)], [2])
        >>> optimizer.param_groups[0]["lr"]
        0.5
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(schedulers) < 1 or len(milestones) != len(schedulers) - 1:
            raise ArgumentError(
                "SequentialLR", "the numbers do not fit", expect="a milestone less than schedules",
                actual=f"{len(schedulers)} schedules and {len(milestones)} milestones",
            )  # fmt: skip
        super().__init__(schedulers, optimizer)
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        set_rates(optimizer, [group["initial_lr"] for group in optimizer.param_groups])
        self._undo()
        schedulers[bisect_right(self._milestones, 0)]._advance()
        self._last_lr = self._rates()

    def _advance(self) -> None:
        self.last_epoch += 1
        number = bisect_right(self._milestones, self.last_epoch)
        schedule = self._schedulers[number]
        if number > 0 and self._milestones[number - 1] == self.last_epoch:
            schedule._begin()
        else:
            schedule._turn()
        self._last_lr = self._rates()


class ChainedScheduler(_Several):
    """Several schedules at once: each acts on what the one before has set.

    Args:
        schedulers: of one optimizer.
        optimizer: that optimizer.

    Raises:
        ArgumentError: there are none, or one is another optimizer's.
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if len(schedulers) < 1:
            raise ArgumentError(
                "ChainedScheduler", "there are no schedules", expect="at least one", actual="none"
            )
        super().__init__(schedulers, optimizer or schedulers[0].optimizer)
        self._last_lr = self._rates()

    def _turn(self) -> None:
        self._steps += 1
        for schedule in self._schedulers:
            schedule._turn()
        self._last_lr = self._rates()

    def _advance(self) -> None:
        for schedule in self._schedulers:
            schedule._advance()
        self._last_lr = self._rates()

    def _begin(self) -> None:
        groups = self.optimizer.param_groups
        set_rates(self.optimizer, [group["initial_lr"] for group in groups])
        self._undo()
        self._advance()
