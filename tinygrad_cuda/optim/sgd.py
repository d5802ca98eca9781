"""SGD, with momentum if wanted, and ASGD, which averages (Polyak and Juditsky, 1992)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.optim.choices import check_choices
from tinygrad_cuda.optim.optimizer import Group, Optimizer, State, check_options, decayed, zeros
from tinygrad_cuda.tensors.tensor import Tensor


class SGD(Optimizer):
    r"""Stochastic gradient descent.

    .. math::
        g &\leftarrow g + \lambda p \\
        b &\leftarrow \mu b + (1 - \tau) g \quad\text{(at first } b = g\text{)} \\
        p &\leftarrow p - lr \cdot b \quad\text{(Nesterov: } p - lr (g + \mu b)\text{)}

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        momentum: :math:`\mu`.
        dampening: :math:`\tau`.
        weight_decay: :math:`\lambda`.
        nesterov: look ahead (Sutskever et al., 2013); needs momentum and no dampening.
        maximize: climb instead.
        foreach, fused: accepted for PyTorch's sake; a step is one plan in any case.
        differentiable: only False; a step is not recorded.

    Raises:
        ArgumentError: an option is negative, or Nesterov lacks momentum.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0], device="cpu", requires_grad=True)
        >>> optimizer = SGD([x], lr=0.25)
        >>> (x * x).sum().backward()
        >>> optimizer.step()
        >>> x.tolist()
        [0.5]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_options("SGD", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentError(
                "SGD",
                "Nesterov needs momentum and no dampening",
                expect="momentum > 0 and dampening = 0",
                actual=f"momentum = {momentum}, dampening = {dampening}",
            )
        check_choices("SGD", foreach=foreach, fused=fused, differentiable=differentiable)
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening,
            "weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        if group["momentum"] == 0:
            return {}
        # The first gradient enters whole: into a zero, or undamped into nothing.
        return {"momentum_buffer": zeros(parameter) if group["dampening"] == 0 else None}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        momentum, dampening = group["momentum"], group["dampening"]
        gradient = decayed(gradient, parameter, group, scalar)
        if momentum != 0:
            buffer = state["momentum_buffer"]
            if buffer is None:
                buffer = gradient
            else:
                part = gradient
                if dampening != 0:
                    part = part * scalar(1.0 - dampening, "undamped")
                buffer = buffer * scalar(momentum, "momentum") + part
            state = {"momentum_buffer": buffer}
            if group["nesterov"]:
                gradient = gradient + buffer * scalar(momentum, "momentum")
            else:
                gradient = buffer
        return parameter - gradient * scalar(group["lr"], "lr"), state


class ASGD(Optimizer):
    r"""Averaged stochastic gradient descent; the average is in the state as ``ax``.

    .. math::
        p &\leftarrow (1 - \lambda_0 \eta_t) p - \eta_t (g + \lambda p), \quad
        a \leftarrow a + \mu_t (p - a) \\
        \eta_{t+1} &= \frac{lr}{(1 + \lambda_0 lr\, t)^\alpha}, \quad
        \mu_{t+1} = \frac{1}{\max(1, t - t_0)}

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        lambd: :math:`\lambda_0`.
        alpha: :math:`\alpha`.
        t0: the step at which averaging begins.
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
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_options("ASGD", lr=lr, weight_decay=weight_decay)
        check_choices("ASGD", foreach=foreach, differentiable=differentiable)
        defaults = {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0,
            "weight_decay": weight_decay, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        return {"step": 0, "eta": float(group["lr"]), "mu": 1.0, "ax": zeros(parameter)}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        gradient = decayed(gradient, parameter, group, scalar)
        step, rate, lambd = int(state["step"]) + 1, group["lr"], group["lambd"]
        eta, mu = float(state["eta"]), float(state["mu"])
        # Parameters that began later have an eta and a mu of their own.
        parameter = parameter * scalar(1.0 - lambd * eta, "kept", step)
        parameter = parameter - gradient * scalar(eta, "eta", step)
        # Weights that sum to one: with mu = 1 the average is the parameter, bit for bit.
        average = state["ax"] * scalar(1.0 - mu, "1 - mu", step)
        average = average + parameter * scalar(mu, "mu", step)
        return parameter, {
            "step": step,
            "eta": rate / (1.0 + lambd * rate * step) ** group["alpha"],
            "mu": 1.0 / max(1.0, step - group["t0"]),
            "ax": average,
        }
