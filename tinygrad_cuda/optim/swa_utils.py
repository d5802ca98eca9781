"""Averages of a model's weights: stochastic weight averaging (SWA) and exponential means (EMA)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d
from tinygrad_cuda.optim.lr_scheduler.base import LRScheduler, per_group, rate_of
from tinygrad_cuda.optim.optimizer import Optimizer
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.indexing.selecting import where
from tinygrad_cuda.tensors.tensor import Tensor

Average = Callable[[Tensor, Tensor, Tensor], Tensor]
MultiAverage = Callable[[list[Tensor], list[Tensor], Tensor], None]


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """An exponential mean: ``decay * mean + (1 - decay) * value``."""
    _check_decay(decay)

    def ema_update(mean: Tensor, value: Tensor, num_averaged: Tensor) -> Tensor:
        return mean * decay + value * (1 - decay)

    return ema_update


def get_swa_avg_fn() -> Average:
    """The mean of all values: ``mean + (value - mean) / (n + 1)``."""

    def swa_update(mean: Tensor, value: Tensor, num_averaged: Tensor) -> Tensor:
        return mean + (value - mean) / (num_averaged + 1)

    return swa_update


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAverage:
    """`get_ema_avg_fn` for lists of Tensors, written in place."""
    return _multiple(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> MultiAverage:
    """`get_swa_avg_fn` for lists of Tensors, written in place."""
    return _multiple(get_swa_avg_fn())


def _multiple(average: Average) -> MultiAverage:
    def update(means: list[Tensor], values: list[Tensor], num_averaged: Tensor) -> None:
        with gradient_mode(False):
            for mean, value in zip(means, values):
                mean.copy_(average(mean, value, num_averaged))

    return update


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ArgumentError(
            "ema", "the decay is out of range", expect="0 <= decay <= 1", actual=str(decay)
        )


class AveragedModel(Module):
    """A copy of a model whose weights are the average of what `update_parameters` has seen.

    An update is recorded, and runs with the next step's plan; nothing waits for the device.

    Args:
        model: copied.
        device: where the copy lives; by default where the model does.
        avg_fn: ``avg_fn(mean, value, number_of_updates)``; by default the mean of all.
        multi_avg_fn: the same for lists of Tensors, writing the first in place.
        use_buffers: average the buffers too, instead of copying them.

    Raises:
        ArgumentError: both functions are given.

    Example:
        >>> import tinygrad_cuda as tc
        >>> model = tc.nn.Linear(2, 1, device="cpu")
        >>> ema = AveragedModel(model, avg_fn=get_ema_avg_fn(0.9))
        >>> ema.update_parameters(model)
        >>> ema.n_averaged.item()
        1
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: MultiAverage | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError(
                "AveragedModel", "two functions are given", expect="avg_fn or multi_avg_fn",
                actual="both",
            )  # fmt: skip
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device)
        where_is = device
        if where_is is None:
            where_is = next((p.device for p in model.parameters()), None)
        self.register_buffer("n_averaged", tensor(0, dtype=int64, device=where_is))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **options: Any) -> Any:
        """The averaged model's."""
        return self.module(*args, **options)

    def update_parameters(self, model: Module) -> None:
        """Takes the model's present weights into the average."""
        with gradient_mode(False):
            means, values = _weights(self.module), _weights(model)
            own, theirs = list(self.module.buffers()), list(model.buffers())
            if self.use_buffers:
                means, values = means + own, values + [b.detach() for b in theirs]
            values = [value.to(mean.device) for mean, value in zip(means, values)]
            self._average(means, values)
            if not self.use_buffers:
                for mean, value in zip(own, theirs):
                    mean.detach().copy_(value.detach())
            self.n_averaged.add_(1)

    def _average(self, means: list[Tensor], values: list[Tensor]) -> None:
        count = self.n_averaged
        # Chosen by the device: the host does not know how often a loaded average was updated.
        first = count == 0
        if self.multi_avg_fn is not None:
            self.multi_avg_fn(means, values, count)
            fresh = means
        else:
            average = self.avg_fn or get_swa_avg_fn()
            fresh = [average(mean, value, count) for mean, value in zip(means, values)]
        for mean, value, new in zip(means, values, fresh):
            mean.copy_(where(first.to(mean.device), value, new))


def _weights(module: Module) -> list[Tensor]:
    return [parameter.detach() for parameter in module.parameters()]


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Computes the running statistics of all batch norms again: the mean over the batches.

    Args:
        loader: batches, or tuples whose first element is one.
        model: whose statistics are replaced.
        device: where batches are moved first.
    """
    kinds = BatchNorm1d | BatchNorm2d | BatchNorm3d
    norms = [module for module in model.modules() if isinstance(module, kinds)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    training = model.training
    model.train()
    try:
        with gradient_mode(False):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None
            for batch in loader:
                inputs = batch[0] if isinstance(batch, list | tuple) else batch
                model(inputs if device is None else inputs.to(device))
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        model.train(training)


class SWALR(LRScheduler):
    """From the present rate to `swa_lr` in some steps, and there on.

    Args:
        optimizer: whose groups get new rates.
        swa_lr: the rate to reach, or one a group.
        anneal_epochs: number of steps until the last rate.
        anneal_strategy: "cos" or "linear".
        last_epoch: the number of the last step when going on.

    Raises:
        ArgumentError: an option is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear") or anneal_epochs < 0:
            raise ArgumentError(
                "SWALR", "an option is out of range",
                expect="anneal_strategy 'cos' or 'linear', anneal_epochs 0 or more",
                actual=f"{anneal_strategy!r} and {anneal_epochs}",
            )  # fmt: skip
        rates = per_group("SWALR", "swa_lr", optimizer, swa_lr)
        for group, rate in zip(optimizer.param_groups, rates):
            group["swa_lr"] = rate
        self.anneal_epochs = anneal_epochs
        self.anneal_strategy = anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _part(self, step: int) -> float:
        """The share of the annealing that is done after a step."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return t if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def get_lr(self) -> list[float]:
        step = max(1, self._steps) if self.anneal_epochs == 0 else self._steps
        before, now = self._part(step - 1), self._part(step)
        rates = []
        for group in self.optimizer.param_groups:
            goal, rate = group["swa_lr"], rate_of(group)
            start = goal if before == 1 else (rate - before * goal) / (1 - before)
            rates.append(goal * now + start * (1 - now))
        return rates
