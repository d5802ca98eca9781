"""Rprop (Riedmiller and Braun, 1993) and Adafactor (Shazeer and Stern, 2018).

Rprop looks at signs only; Adafactor keeps a matrix's mean squares by rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.optim.choices import check_choices
from tinygrad_cuda.optim.optimizer import (
    Group,
    Optimizer,
    State,
    check_options,
    filled,
    zeros,
)
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.tensor import Tensor


class Rprop(Optimizer):
    r"""Resilient backpropagation: a step size for each element, by the signs of its gradients.

    .. math::
        \eta &\leftarrow \operatorname{clamp}(\eta \cdot \eta_+,\ \eta_{max})
        \text{ if } g\, g' > 0, \quad \operatorname{clamp}(\eta \cdot \eta_-,\ \eta_{min})
        \text{ and } g \leftarrow 0 \text{ if } g\, g' < 0 \\
        p &\leftarrow p - \eta \operatorname{sign}(g), \quad g' \leftarrow g

    Meant for gradients of all data: the sign of a batch's gradient is mostly noise.

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: where all step sizes begin.
        etas: :math:`\eta_-, \eta_+`, what a step size shrinks and grows by.
        step_sizes: the smallest and the largest step size.
        capturable, foreach: accepted for PyTorch's sake; a step is one plan in any case.
        maximize: climb instead.
        differentiable: only False; a step is not recorded.

    Raises:
        ArgumentError: an option is out of range.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0], device="cpu", requires_grad=True)
        >>> optimizer = Rprop([x], lr=0.25)
        >>> (x * x).sum().backward()
        >>> optimizer.step()
        >>> x.tolist()
        [0.75]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options("Rprop", lr=lr)
        check_choices("Rprop", foreach=foreach, differentiable=differentiable)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ArgumentError(
                "Rprop", "an eta is out of range", expect="0 < etas[0] < 1 < etas[1]",
                actual=str(etas),
            )  # fmt: skip
        defaults = {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize}
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        size = filled(parameter, float(group["lr"]))
        return {"step": 0, "prev": zeros(parameter), "step_size": size}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        (minus, plus), (low, high) = group["etas"], group["step_sizes"]
        gradient = -gradient if group["maximize"] else gradient
        sign = (gradient * state["prev"]).sign()
        # Of a zero the factor is one, of a NaN NaN.
        factor = scalar(minus, "minus").where(sign < 0, sign + 1.0)
        factor = scalar(plus, "plus").where(sign > 0, factor)
        size = (state["step_size"] * factor).maximum(scalar(low, "low"))
        size = size.minimum(scalar(high, "high"))
        gradient = gradient.masked_fill(sign < 0, 0.0)
        new = {"step": state["step"] + 1, "prev": gradient, "step_size": size}
        return parameter - gradient.sign() * size, new


class Adafactor(Optimizer):
    r"""Adafactor: Adam's scaling with little memory, relative to the parameter's size.

    .. math::
        \beta_t &= 1 - t^{\gamma}, \quad \rho = \min(lr, 1 / \sqrt{t}), \quad
        \alpha = \max(\epsilon_2, \operatorname{rms}(p)) \rho \\
        r &\leftarrow \beta_t r + (1 - \beta_t) \operatorname{mean}_{columns}(g^2), \quad
        c \leftarrow \beta_t c + (1 - \beta_t) \operatorname{mean}_{rows}(g^2) \\
        u &= g / \sqrt{r c / \max(\operatorname{mean}(r), \epsilon_1)}, \quad
        p \leftarrow p (1 - lr \lambda) - \alpha u / \max(1, \operatorname{rms}(u) / d)

    Vectors keep the mean square of each element instead of r and c.

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the largest :math:`\rho`.
        beta2_decay: :math:`\gamma`, zero or less.
        eps: :math:`\epsilon_1` (None is the dtype's own) and :math:`\epsilon_2`.
        d: the largest rms of an update.
        weight_decay: :math:`\lambda`.
        foreach: accepted for PyTorch's sake; a step is one plan in any case.
        maximize: climb instead.

    Raises:
        ArgumentError: an option is out of range.
    """

    numbers_depend_on = ("shape",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        check_options(
            "Adafactor", lr=lr, eps1=0.0 if eps[0] is None else eps[0], eps2=eps[1],
            weight_decay=weight_decay, **{"-beta2_decay": -beta2_decay, "d - 1": d - 1.0},
        )  # fmt: skip
        check_choices("Adafactor", foreach=foreach)
        defaults = {
            "lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d,
            "weight_decay": weight_decay, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        if parameter.ndim < 2:
            return {"step": 0, "variance": zeros(parameter)}
        *rest, rows, columns = parameter.shape
        return {
            "step": 0,
            "row_var": _empty((*rest, rows, 1), parameter),
            "col_var": _empty((*rest, 1, columns), parameter),
        }

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        step, rate = int(state["step"]) + 1, float(group["lr"])
        count = max(1, math.prod(parameter.shape))
        gradient = -gradient if group["maximize"] else gradient
        size = _norm(parameter) * scalar(1.0 / math.sqrt(count), "1 / root", count)
        size = size.maximum(scalar(group["eps"][1], "eps2"))
        size = size * scalar(min(rate, 1.0 / math.sqrt(step)), "rho", step)
        if group["weight_decay"] != 0:
            parameter = parameter * scalar(1.0 - rate * group["weight_decay"], "kept")
        first = group["eps"][0]
        first = _resolution(parameter.dtype) if first is None else first
        variance, new = self._variance(gradient, state, first, step, group, scalar)
        update = gradient / variance.maximum(scalar(first * first, "eps1 squared")).sqrt()
        # In units of d, the largest.
        clip = scalar(1.0 / (math.sqrt(count) * group["d"]), "1 / (root * d)", count)
        update = update / (_norm(update) * clip).maximum(scalar(1.0, "one"))
        return parameter - update * size, {"step": step, **new}

    def _variance(
        self, gradient: Tensor, state: State, eps: float, step: int, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        """The estimated mean square of each element, and the new state."""
        part = step ** group["beta2_decay"]
        fresh, decay = scalar(part, "fresh", step), scalar(1.0 - part, "kept mean", step)
        square = gradient * gradient
        if gradient.ndim < 2:
            variance = state["variance"] * decay + square * fresh
            return variance, {"variance": variance}
        rows = square.mean(dim=-1, keepdim=True)
        rows = state["row_var"] * decay + rows * fresh
        columns = square.mean(dim=-2, keepdim=True)
        columns = state["col_var"] * decay + columns * fresh
        whole = rows.mean(dim=-2, keepdim=True).maximum(scalar(eps, "eps1"))
        return rows * columns / whole, {"row_var": rows, "col_var": columns}


def _norm(value: Tensor) -> Tensor:
    return (value * value).sum().sqrt()


def _empty(shape: tuple[int, ...], parameter: Tensor) -> Tensor:
    return tensor(np.zeros(shape, parameter.dtype.numpy), device=parameter.device)


def _resolution(dtype: DType) -> float:
    """The distance from 1 to the next number."""
    return float(np.finfo(dtype.numpy).eps)
