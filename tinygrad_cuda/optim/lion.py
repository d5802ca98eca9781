"""Lion (Chen et al., 2023): steps of a fixed size, by the sign of the momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinygrad_cuda.optim.adam import check_betas
from tinygrad_cuda.optim.optimizer import Group, Optimizer, State, check_options, zeros
from tinygrad_cuda.tensors.tensor import Tensor


class Lion(Optimizer):
    r"""Lion: the sign of the momentum, with decoupled weight decay.

    .. math::
        p &\leftarrow p (1 - lr \lambda) - lr \cdot
        \operatorname{sign}(\beta_1 m + (1 - \beta_1) g) \\
        m &\leftarrow \beta_2 m + (1 - \beta_2) g

    Args:
        params: Tensors that collect gradients, or dicts of them with options of their own.
        lr: the learning rate; about a tenth of Adam's.
        betas: :math:`\beta_1, \beta_2`.
        weight_decay: :math:`\lambda`; about ten times AdamW's.
        maximize: climb instead.

    Raises:
        ArgumentError: an option is out of range.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0], device="cpu", requires_grad=True)
        >>> optimizer = Lion([x], lr=0.25)
        >>> (x * x).sum().backward()
        >>> optimizer.step()
        >>> x.tolist()
        [0.75]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_options("Lion", lr=lr, weight_decay=weight_decay)
        check_betas("Lion", betas)
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    def init_single(self, parameter: Tensor, group: Group) -> State:
        return {"exp_avg": zeros(parameter)}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        (first, second), rate = group["betas"], group["lr"]
        gradient = -gradient if group["maximize"] else gradient
        old = state["exp_avg"]
        if group["weight_decay"] != 0:
            parameter = parameter * scalar(1.0 - rate * group["weight_decay"], "kept")
        mixed = old * scalar(first, "beta1") + gradient * scalar(1.0 - first, "1 - beta1")
        mean = old * scalar(second, "beta2") + gradient * scalar(1.0 - second, "1 - beta2")
        return parameter - mixed.sign() * scalar(rate, "lr"), {"exp_avg": mean}
