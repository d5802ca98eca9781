"""Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.optim.choices import check_choices
from tinygrad_cuda.optim.optimizer import Group, Optimizer, State, check_options, zeros
from tinygrad_cuda.tensors.tensor import Tensor


class Adam(Optimizer):
    r"""Adam: steps scaled by running means of the gradient and of its square.

    .. math::
        g &\leftarrow g + \lambda p \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \quad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        p &\leftarrow p - \frac{lr}{1 - \beta_1^t} \cdot
        \frac{m}{\sqrt{v} / \sqrt{1 - \beta_2^t} + \epsilon}

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        betas: :math:`\beta_1, \beta_2`, how much of the means a step keeps.
        eps: :math:`\epsilon`.
        weight_decay: :math:`\lambda`.
        amsgrad: divide by the largest v so far (Reddi et al., 2018).
        maximize: climb instead.
        foreach, fused, capturable: accepted for PyTorch's sake; a step is one plan in any case.
        differentiable: only False; a step is not recorded.
        decoupled_weight_decay: shrink the parameter instead, as AdamW.

    Raises:
        ArgumentError: an option is out of range.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0], device="cpu", requires_grad=True)
        >>> optimizer = Adam([x], lr=0.125)
        >>> (x * x).sum().backward()
        >>> optimizer.step()
        >>> round(x.item(), 4)
        0.875
    """

    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        name = type(self).__name__
        check_options(name, lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(name, betas)
        check_choices(name, foreach=foreach, fused=fused, differentiable=differentiable)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "amsgrad": amsgrad, "maximize": maximize,
            "decoupled_weight_decay": decoupled_weight_decay or self.decoupled,
        }  # fmt: skip
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * group["amsgrad"]
        return {"step": 0, **{name: zeros(parameter) for name in names}}

    def step_numbers(self, step: int, group: Group) -> dict[str, float]:
        first, second = group["betas"]
        # In float64, and rounded once.
        size = group["lr"] / (1.0 - first**step)
        return {"size": size, "correction": math.sqrt(1.0 - second**step)}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        first, second = group["betas"]
        decay, rate = group["weight_decay"], group["lr"]
        step = int(state["step"]) + 1
        if group["maximize"]:
            gradient = -gradient
        if decay != 0 and group.get("decoupled_weight_decay", self.decoupled):
            parameter = parameter * scalar(1.0 - rate * decay, "kept")
        elif decay != 0:
            gradient = gradient + parameter * scalar(decay, "weight_decay")
        mean = state["exp_avg"] * scalar(first, "beta1")
        mean = mean + gradient * scalar(1.0 - first, "1 - beta1")
        square = state["exp_avg_sq"] * scalar(second, "beta2")
        square = square + gradient * gradient * scalar(1.0 - second, "1 - beta2")
        new: State = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
        if group["amsgrad"]:
            square = new["max_exp_avg_sq"] = state["max_exp_avg_sq"].maximum(square)
        # Parameters that began later have steps of their own.
        numbers = self.step_numbers(step, group)
        size = scalar(numbers["size"], "size", step)
        correction = scalar(numbers["correction"], "correction", step)
        root = square.sqrt() / correction + scalar(group["eps"], "eps")
        return parameter - mean / root * size, new


class AdamW(Adam):
    r"""Adam with decoupled weight decay: :math:`p \leftarrow (1 - lr \lambda) p` before the step.

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        betas: how much of the means a step keeps.
        eps: added to the root.
        weight_decay: :math:`\lambda`.
        amsgrad: divide by the largest v so far (Reddi et al., 2018).
        maximize: climb instead.
        foreach, fused, capturable: accepted for PyTorch's sake; a step is one plan in any case.
        differentiable: only False; a step is not recorded.

    Raises:
        ArgumentError: an option is out of range.
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize,
            capturable=capturable, differentiable=differentiable, fused=fused,
        )  # fmt: skip


def check_betas(op: str, betas: tuple[float, float]) -> None:
    """Raises unless both means forget.

    Raises:
        ArgumentError: a beta is out of range.
    """
    if not isinstance(betas, tuple | list):
        raise DTypeError(
            op, "betas are no pair", expect="two numbers", actual=repr(betas),
            hint=f"betas=({betas}, 0.999)",
        )  # fmt: skip
    if not all(0.0 <= beta < 1.0 for beta in betas):
        raise ArgumentError(op, "a beta is out of range", expect="0 <= beta < 1", actual=str(betas))
