"""GradScaler: a loss scaled up so that float16 gradients do not vanish, and down after overflow.

The scale is an argument of the plan, so a scale that changes makes no new one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType, float16, float32
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, user_site
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.autocast import known_kind
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.tensor import Tensor

READY, UNSCALED, STEPPED = range(3)


class _Round:
    """What happened to one optimizer since the last `update`."""

    def __init__(self) -> None:
        self.stage = READY
        self.infinite: list[Tensor] = []

    def overflowed(self) -> bool:
        """Whether a gradient was not finite; looks at the values."""
        return any(bool(flag) for flag in self.infinite)


class GradScaler:
    """Scales the loss, unscales gradients, and skips a step whose gradients are not finite.

    The scale is multiplied by `growth_factor` after `growth_interval` good steps in a row and by
    `backoff_factor` after a bad one. Looking whether a step was good waits for its gradients, so
    a step is two plans, the same two each time, as the scale is an argument.

    Args:
        device: the kind of device that trains; ``cuda`` without a GPU warns and disables.
        init_scale: the first scale.
        growth_factor: more than 1.
        backoff_factor: less than 1.
        growth_interval: good steps until the scale grows.
        enabled: with False everything passes through unchanged.

    Raises:
        ArgumentError: a factor is on the wrong side of 1.

    Example:
        >>> import tinygrad_cuda as tc
        >>> w = tc.ones(2, device="cpu", requires_grad=True)
        >>> optimizer = tc.optim.SGD([w], lr=0.5)
        >>> scaler = tc.amp.GradScaler("cpu", init_scale=1024.0)
        >>> scaler.scale(w.sum()).backward()
        >>> w.grad.tolist()
        [1024.0, 1024.0]
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> w.tolist()
        [0.5, 0.5]
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = known_kind("GradScaler", device)
        if enabled and device == "cuda" and not driver.available():
            warnings.warn(
                "GradScaler is enabled, but there is no usable GPU: disabled. "
                "GradScaler('cpu') scales on the CPU.",
                stacklevel=2,
            )
            enabled = False
        if not growth_factor > 1.0 or not backoff_factor < 1.0:
            raise ArgumentError(
                "GradScaler",
                "a factor is on the wrong side of 1",
                expect="growth_factor > 1 and backoff_factor < 1",
                actual=f"{growth_factor} and {backoff_factor}",
            )
        self._enabled = enabled
        self._scale = _rounded(init_scale)
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._good_steps = 0
        self._rounds: dict[int, _Round] = {}

    def scale(self, outputs: Any) -> Any:
        """One Tensor, or each of several, times the scale.

        Raises:
            ArgumentError: `outputs` is neither a Tensor nor an iterable of Tensors.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, TensorBase):
            return outputs * _number(self._scale, float32, outputs.device)
        if isinstance(outputs, Iterable):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, list | tuple) else scaled
        raise ArgumentError(
            "scale",
            "not a Tensor",
            expect="a Tensor or an iterable of Tensors",
            actual=type(outputs).__name__,
        )

    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients of an optimizer's parameters by the scale, in place.

        `step` does it, unless it was done before to clip the gradients, say.

        Raises:
            ArgumentError: it was done since the last `update`.
            DTypeError: a gradient is float16: parameters must be float32.
        """
        if not self._enabled:
            return
        round_ = self._round(optimizer)
        if round_.stage != READY:
            done = "unscale_" if round_.stage == UNSCALED else "step"
            raise _order("unscale_", f"{done}() was called already")
        inverse = _rounded(1.0 / self._scale)
        gradients = [
            parameter.grad
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        for gradient in gradients:
            if gradient.dtype is float16:
                raise DTypeError(
                    "unscale_",
                    "a gradient is float16",
                    expect="float32 parameters; autocast casts them where that is safe",
                    actual=f"float16, shape {tuple(gradient.shape)}",
                )
        finite: dict[Device, Tensor] = {}
        with gradient_mode(False):
            for gradient in gradients:
                device = gradient.device
                good = gradient.isfinite().all()
                finite[device] = good if device not in finite else finite[device].logical_and(good)
                gradient.mul_(_number(inverse, gradient.dtype, device))
            round_.infinite = [good.logical_not() for good in finite.values()]
        round_.stage = UNSCALED

    def step(self, optimizer: Any, *args: Any, **options: Any) -> Any:
        """``optimizer.step(*args, **options)``, unless a gradient is not finite.

        Returns:
            What the optimizer's step returned; None where it was skipped.

        Raises:
            ArgumentError: a closure was given, there are no gradients, or a step was made since
                the last `update`.
        """
        if not self._enabled:
            return optimizer.step(*args, **options)
        if "closure" in options:
            raise ArgumentError(
                "step", "takes no closure", expect="gradients that are there", actual="a closure"
            )
        round_ = self._round(optimizer)
        if round_.stage == STEPPED:
            raise _order("step", "step() was called already")
        if round_.stage == READY:
            self.unscale_(optimizer)
        if not round_.infinite:
            raise ArgumentError(
                "step",
                "no parameter has a gradient",
                expect="scaler.scale(loss).backward() before",
                actual="none",
            )
        result = None if round_.overflowed() else optimizer.step(*args, **options)
        round_.stage = STEPPED
        return result

    def update(self, new_scale: Any = None) -> None:
        """Grows or shrinks the scale by the overflows since the last call, or sets it.

        Raises:
            ArgumentError: no gradient was checked: `step` or `unscale_` comes before.
        """
        if not self._enabled:
            return
        rounds = [round_ for round_ in self._rounds.values() if round_.infinite]
        if new_scale is not None:
            self._scale = _rounded(float(new_scale))
        elif not rounds:
            raise _order("update", "there was neither step() nor unscale_()")
        elif any(round_.overflowed() for round_ in rounds):
            self._scale = _rounded(self._scale * self._backoff_factor)
            self._good_steps = 0
        else:
            self._good_steps += 1
            if self._good_steps == self._growth_interval:
                grown = _rounded(self._scale * self._growth_factor)
                self._scale = grown if math.isfinite(grown) else self._scale
                self._good_steps = 0
        self._rounds = {}

    def _round(self, optimizer: Any) -> _Round:
        return self._rounds.setdefault(id(optimizer), _Round())

    # What is set, and the state ----------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Whether anything is scaled."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale; 1 where nothing is scaled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after enough good steps."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets it."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after a bad step."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets it."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Good steps in a row until the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets it."""
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors and the count of good steps, under PyTorch's keys; empty if disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._good_steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave, here or in PyTorch.

        Raises:
            ArgumentError: it is empty: it came from a scaler that was disabled.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise ArgumentError(
                "load_state_dict",
                "the state is empty",
                expect="the state of an enabled GradScaler",
                actual="that of a disabled one",
            )
        self._scale = _rounded(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._good_steps = state_dict["_growth_tracker"]


def _rounded(value: float) -> float:
    """The float32 nearest to a number: PyTorch keeps the scale in one."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _number(value: float, dtype: DType, device: Device) -> Tensor:
    """A number that is an argument of the plan."""
    return wrap(common.scalar.leaf((), dtype, device, value=value))


def _order(op: str, what: str) -> ArgumentError:
    return ArgumentError(
        op,
        f"{what} since the last update()",
        expect="scale, (unscale_,) step, update, in this order",
        actual=f"{op} out of order",
        site=user_site(),
    )
