"""Variants of Adam: Adamax (Kingma and Ba, 2015), NAdam (Dozat, 2016), RAdam (Liu et al., 2020).

The factors that depend on the step are numbers of the host, computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tinygrad_cuda.optim.adam import check_betas
from tinygrad_cuda.optim.choices import check_choices
from tinygrad_cuda.optim.optimizer import (
    Group,
    Optimizer,
    State,
    check_options,
    decayed,
    zeros,
)
from tinygrad_cuda.tensors.tensor import Tensor


class Adamax(Optimizer):
    r"""Adam with the largest gradient, decayed slowly, instead of the mean square.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \quad
        u \leftarrow \max(\beta_2 u, |g| + \epsilon) \\
        p &\leftarrow p - \frac{lr}{1 - \beta_1^t} \cdot \frac{m}{u}

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        betas: :math:`\beta_1, \beta_2`.
        eps: :math:`\epsilon`.
        weight_decay: added to the gradient, times the parameter.
        maximize: climb instead.
        foreach, capturable: accepted for PyTorch's sake; a step is one plan in any case.
        differentiable: only False; a step is not recorded.

    Raises:
        ArgumentError: an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_options("Adamax", lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas("Adamax", betas)
        check_choices("Adamax", foreach=foreach, differentiable=differentiable)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        return {"step": 0, "exp_avg": zeros(parameter), "exp_inf": zeros(parameter)}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        first, second = group["betas"]
        step = int(state["step"]) + 1
        gradient = decayed(gradient, parameter, group, scalar)
        mean = state["exp_avg"] * scalar(first, "beta1")
        mean = mean + gradient * scalar(1.0 - first, "1 - beta1")
        top = (state["exp_inf"] * scalar(second, "beta2")).maximum(
            gradient.abs() + scalar(group["eps"], "eps")
        )
        size = scalar(group["lr"] / (1.0 - first**step), "size", step)
        new = {"step": step, "exp_avg": mean, "exp_inf": top}
        return parameter - mean / top * size, new


class _Decoupled(Optimizer):
    """What NAdam and RAdam share: two running means, and weight decay of either kind."""

    def init_single(self, parameter: Tensor, group: Group) -> State:
        return {"step": 0, "exp_avg": zeros(parameter), "exp_avg_sq": zeros(parameter)}

    def means(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradient and the parameter with decay, the mean and the mean square."""
        first, second = group["betas"]
        if group["decoupled_weight_decay"]:
            decay = group["weight_decay"]
            gradient = -gradient if group["maximize"] else gradient
            if decay != 0:
                parameter = parameter * scalar(1.0 - group["lr"] * decay, "kept")
        else:
            gradient = decayed(gradient, parameter, group, scalar)
        mean = state["exp_avg"] * scalar(first, "beta1")
        mean = mean + gradient * scalar(1.0 - first, "1 - beta1")
        square = state["exp_avg_sq"] * scalar(second, "beta2")
        square = square + gradient * gradient * scalar(1.0 - second, "1 - beta2")
        return gradient, parameter, mean, square


class NAdam(_Decoupled):
    r"""Adam that looks ahead as Nesterov's momentum does.

    .. math::
        \mu_t &= \beta_1 (1 - 0.96^{t \psi} / 2), \quad \Pi_t = \prod_{i \le t} \mu_i \\
        p &\leftarrow p - \frac{lr}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}
        \left( \frac{(1 - \mu_t) g}{1 - \Pi_t} + \frac{\mu_{t+1} m}{1 - \Pi_{t+1}} \right)

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        betas: :math:`\beta_1, \beta_2`.
        eps: :math:`\epsilon`.
        weight_decay: added to the gradient, times the parameter.
        momentum_decay: :math:`\psi`.
        decoupled_weight_decay: shrink the parameter instead, as AdamW.
        maximize: climb instead.
        foreach, capturable: accepted for PyTorch's sake; a step is one plan in any case.
        differentiable: only False; a step is not recorded.

    Raises:
        ArgumentError: an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options(
            "NAdam", lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay
        )
        check_betas("NAdam", betas)
        check_choices("NAdam", foreach=foreach, differentiable=differentiable)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        return {**super().init_single(parameter, group), "mu_product": 1.0}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        (first, second), rate = group["betas"], group["lr"]
        step, psi = int(state["step"]) + 1, group["momentum_decay"]
        gradient, parameter, mean, square = self.means(gradient, parameter, state, group, scalar)
        mu = first * (1.0 - 0.5 * 0.96 ** (step * psi))
        following = first * (1.0 - 0.5 * 0.96 ** ((step + 1) * psi))
        product = float(state["mu_product"]) * mu
        new = {"step": step, "exp_avg": mean, "exp_avg_sq": square, "mu_product": product}
        root = (square / scalar(1.0 - second**step, "correction", step)).sqrt()
        root = root + scalar(group["eps"], "eps")
        # The product is a parameter's own: it may have begun under other betas.
        now = scalar(rate * (1.0 - mu) / (1.0 - product), "now", step, product)
        ahead = scalar(rate * following / (1.0 - product * following), "ahead", step, product)
        return parameter - gradient / root * now - mean / root * ahead, new


class RAdam(_Decoupled):
    r"""Adam whose first steps, where the mean square is uncertain, do without it.

    .. math::
        \rho_\infty &= \frac{2}{1 - \beta_2} - 1, \quad
        \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t} \\
        r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2) \rho_\infty}
        {(\rho_\infty - 4)(\rho_\infty - 2) \rho_t}} \\
        p &\leftarrow p - \frac{lr\, m}{1 - \beta_1^t} \cdot
        \begin{cases} r_t \sqrt{1 - \beta_2^t} / (\sqrt{v} + \epsilon) & \rho_t > 5 \\
        1 & \text{else} \end{cases}

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        betas: :math:`\beta_1, \beta_2`.
        eps: :math:`\epsilon`.
        weight_decay: added to the gradient, times the parameter.
        decoupled_weight_decay: shrink the parameter instead, as AdamW.
        maximize: climb instead.
        foreach, capturable: accepted for PyTorch's sake; a step is one plan in any case.
        differentiable: only False; a step is not recorded.

    Raises:
        ArgumentError: an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options("RAdam", lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas("RAdam", betas)
        check_choices("RAdam", foreach=foreach, differentiable=differentiable)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        first, second = group["betas"]
        step = int(state["step"]) + 1
        gradient, parameter, mean, square = self.means(gradient, parameter, state, group, scalar)
        correction = 1.0 - second**step
        limit = 2.0 / (1.0 - second) - 1.0
        length = limit - 2.0 * step * second**step / correction
        # The denominator is root * slope + offset in both cases: one plan, early and late.
        slope, offset = 0.0, 1.0
        if length > 5.0:
            rectified = ((length - 4.0) * (length - 2.0) * limit) / (
                (limit - 4.0) * (limit - 2.0) * length
            )
            slope = 1.0 / math.sqrt(correction * rectified)
            offset = group["eps"] * slope
        root = square.sqrt() * scalar(slope, "slope", step) + scalar(offset, "offset", step)
        size = scalar(group["lr"] / (1.0 - first**step), "size", step)
        return parameter - mean / root * size, {
            "step": step, "exp_avg": mean, "exp_avg_sq": square,
        }  # fmt: skip
