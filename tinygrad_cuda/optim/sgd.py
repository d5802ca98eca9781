"""SGD: stochastic gradient descent, with momentum if wanted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.optim.optimizer import Group, Optimizer, State, check_options, zeros
from tinygrad_cuda.tensor.tensor import Tensor


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
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_options("SGD", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentError(
                "SGD",
                "Nesterov needs momentum and no dampening",
                expect="momentum > 0 and dampening = 0",
                actual=f"momentum = {momentum}, dampening = {dampening}",
            )
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
        if group["maximize"]:
            gradient = -gradient
        if group["weight_decay"] != 0:
            gradient = gradient + parameter * scalar(group["weight_decay"], "weight_decay")
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
