"""RMSprop (Hinton, 2012), Adagrad (Duchi et al., 2011) and Adadelta (Zeiler, 2012).

Each divides the gradient by the root of a running measure of its squares.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinygrad_cuda.optim.choices import check_choices
from tinygrad_cuda.optim.optimizer import (
    Group,
    Optimizer,
    State,
    check_options,
    decayed,
    filled,
    zeros,
)
from tinygrad_cuda.tensors.tensor import Tensor


class RMSprop(Optimizer):
    r"""RMSprop: the gradient divided by the root of the running mean of its square.

    .. math::
        g &\leftarrow g + \lambda p \\
        v &\leftarrow \alpha v + (1 - \alpha) g^2, \quad
        a \leftarrow \alpha a + (1 - \alpha) g \\
        d &\leftarrow \sqrt{v} + \epsilon \quad\text{(centered: } \sqrt{v - a^2} + \epsilon
        \text{)} \\
        p &\leftarrow p - lr \cdot g / d \quad\text{(momentum: } b \leftarrow \mu b + g / d,
        \ p \leftarrow p - lr \cdot b\text{)}

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        alpha: how much of the running means a step keeps.
        eps: :math:`\epsilon`.
        weight_decay: :math:`\lambda`.
        momentum: :math:`\mu`.
        centered: divide by the root of the variance instead.
        maximize: climb instead.
        foreach, capturable: accepted for PyTorch's sake; a step is one plan in any case.
        differentiable: only False; a step is not recorded.

    Raises:
        ArgumentError: an option is negative.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0], device="cpu", requires_grad=True)
        >>> optimizer = RMSprop([x], lr=0.05)
        >>> (x * x).sum().backward()
        >>> optimizer.step()
        >>> round(x.item(), 4)
        0.5
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options(
            "RMSprop", lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum
        )
        check_choices("RMSprop", foreach=foreach, differentiable=differentiable)
        defaults = {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
            "weight_decay": weight_decay, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        names = ["square_avg"]
        names += ["momentum_buffer"] * (group["momentum"] > 0) + ["grad_avg"] * group["centered"]
        return {"step": 0, **{name: zeros(parameter) for name in names}}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        gradient = decayed(gradient, parameter, group, scalar)
        decay = scalar(group["alpha"], "alpha")
        fresh = scalar(1.0 - group["alpha"], "1 - alpha")
        square = state["square_avg"] * decay + gradient * gradient * fresh
        new = {"step": state["step"] + 1, "square_avg": square}
        if group["centered"]:
            mean = new["grad_avg"] = state["grad_avg"] * decay + gradient * fresh
            square = square - mean * mean
        change = gradient / (square.sqrt() + scalar(group["eps"], "eps"))
        if group["momentum"] > 0:
            buffer = state["momentum_buffer"] * scalar(group["momentum"], "momentum")
            change = new["momentum_buffer"] = buffer + change
        return parameter - change * scalar(group["lr"], "lr"), new


class Adagrad(Optimizer):
    r"""Adagrad: the gradient divided by the root of the sum of all its squares.

    .. math::
        g &\leftarrow g + \lambda p, \quad s \leftarrow s + g^2 \\
        p &\leftarrow p - \frac{lr}{1 + (t - 1) \eta} \cdot \frac{g}{\sqrt{s} + \epsilon}

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        lr_decay: :math:`\eta`.
        weight_decay: :math:`\lambda`.
        initial_accumulator_value: where the sum begins.
        eps: :math:`\epsilon`.
        maximize: climb instead.
        foreach, fused: accepted for PyTorch's sake; a step is one plan in any case.
        differentiable: only False; a step is not recorded.

    Raises:
        ArgumentError: an option is negative.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_options(
            "Adagrad", lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value, eps=eps,
        )  # fmt: skip
        check_choices("Adagrad", foreach=foreach, fused=fused, differentiable=differentiable)
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].update(self.init_single(parameter, group))

    def init_single(self, parameter: Tensor, group: Group) -> State:
        return {"step": 0, "sum": filled(parameter, group["initial_accumulator_value"])}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        gradient = decayed(gradient, parameter, group, scalar)
        step = int(state["step"]) + 1
        total = state["sum"] + gradient * gradient
        rate = scalar(group["lr"] / (1.0 + (step - 1) * group["lr_decay"]), "rate", step)
        change = gradient / (total.sqrt() + scalar(group["eps"], "eps"))
        return parameter - change * rate, {"step": step, "sum": total}


class Adadelta(Optimizer):
    r"""Adadelta: steps in the units of the parameter, by the ratio of two running means.

    .. math::
        g &\leftarrow g + \lambda p, \quad v \leftarrow \rho v + (1 - \rho) g^2 \\
        \delta &= \sqrt{u + \epsilon} / \sqrt{v + \epsilon} \cdot g, \quad
        u \leftarrow \rho u + (1 - \rho) \delta^2, \quad p \leftarrow p - lr \cdot \delta

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: a factor of every step.
        rho: how much of the running means a step keeps.
        eps: :math:`\epsilon`.
        weight_decay: :math:`\lambda`.
        maximize: climb instead.
        foreach, capturable: accepted for PyTorch's sake; a step is one plan in any case.
        differentiable: only False; a step is not recorded.

    Raises:
        ArgumentError: an option is negative.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options(
            "Adadelta", lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, **{"1 - rho": 1 - rho}
        )
        check_choices("Adadelta", foreach=foreach, differentiable=differentiable)
        defaults = {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        return {"step": 0, "square_avg": zeros(parameter), "acc_delta": zeros(parameter)}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        gradient = decayed(gradient, parameter, group, scalar)
        decay, fresh = scalar(group["rho"], "rho"), scalar(1.0 - group["rho"], "1 - rho")
        eps = scalar(group["eps"], "eps")
        square = state["square_avg"] * decay + gradient * gradient * fresh
        delta = (state["acc_delta"] + eps).sqrt() / (square + eps).sqrt() * gradient
        moved = state["acc_delta"] * decay + delta * delta * fresh
        new = {"step": state["step"] + 1, "square_avg": square, "acc_delta": moved}
        return parameter - delta * scalar(group["lr"], "lr"), new
