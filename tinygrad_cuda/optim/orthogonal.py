"""Muon (Jordan et al., 2024): steps of a fixed size, the nearest orthogonal matrix."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tinygrad_cuda.core.dtypes import bfloat16, float64
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.optim.optimizer import Group, Optimizer, State, check_options, zeros
from tinygrad_cuda.tensors.tensor import Tensor


class Muon(Optimizer):
    r"""Muon: momentum made orthogonal by Newton-Schulz iterations; for matrices only.

    .. math::
        b &\leftarrow \mu b + (1 - \mu) g, \quad
        u = b \text{ (Nesterov: } (1 - \mu) g + \mu b\text{)}, \quad X = u / \|u\| \\
        X &\leftarrow a X + (b' A + c A^2) X, \quad A = X X^T \quad (k \text{ times}) \\
        p &\leftarrow p (1 - lr \lambda) - lr \cdot s \cdot X

    The iterations run in bfloat16, as in PyTorch; those of float64 parameters in float64.

    Args:
        params: matrices that collect gradients, or dicts of them with options of their own.
        lr: the learning rate.
        weight_decay: :math:`\lambda`.
        momentum: :math:`\mu`.
        nesterov: look ahead.
        ns_coefficients: :math:`a, b', c`.
        eps: the smallest norm that is divided by.
        ns_steps: :math:`k`.
        adjust_lr_fn: s by the shape (m, n): "original" (or None) is
            :math:`\sqrt{\max(1, m / n)}`, "match_rms_adamw" :math:`0.2 \sqrt{\max(m, n)}`.

    Raises:
        ArgumentError: an option is out of range, or a parameter is no matrix.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        check_options("Muon", lr=lr, weight_decay=weight_decay, momentum=momentum)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ArgumentError(
                "Muon", "no such rule for the rate", expect="'original' or 'match_rms_adamw'",
                actual=repr(adjust_lr_fn),
            )  # fmt: skip
        defaults = {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }  # fmt: skip
        super().__init__(params, defaults)

    numbers_depend_on = ("shape",)

    def add_param_group(self, param_group: Group) -> None:
        """Adds matrices with options of their own.

        Raises:
            ArgumentError: a parameter is no matrix or no leaf, or is in a group already.
        """
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.ndim != 2:
                self.param_groups.pop()
                raise ArgumentError(
                    "Muon", "a parameter is no matrix", expect="2 dimensions",
                    actual=f"shape {tuple(parameter.shape)}",
                    hint="give biases, embeddings and the like to AdamW",
                )  # fmt: skip

    def init_single(self, parameter: Tensor, group: Group) -> State:
        return {"momentum_buffer": zeros(parameter)}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: State, group: Group, scalar: Any
    ) -> tuple[Tensor, State]:
        rate, momentum = group["lr"], group["momentum"]
        decay, fresh = scalar(momentum, "momentum"), scalar(1.0 - momentum, "1 - momentum")
        buffer = state["momentum_buffer"] * decay + gradient * fresh
        update = gradient * fresh + buffer * decay if group["nesterov"] else buffer
        update = _orthogonal(update, group)
        parameter = parameter * scalar(1.0 - rate * group["weight_decay"], "kept")
        rows, columns = parameter.shape
        size = math.sqrt(max(1.0, rows / columns))
        if group["adjust_lr_fn"] == "match_rms_adamw":
            size = 0.2 * math.sqrt(max(rows, columns))
        # Named by shape: matrices of another shape have another factor.
        rate = scalar(rate * size, "rate", rows, columns)
        return parameter - update * rate, {"momentum_buffer": buffer}


def _orthogonal(matrix: Tensor, group: Group) -> Tensor:
    """About U V^T of the matrix's U S V^T: singular values between 0.5 and 1.5."""
    a, b, c = group["ns_coefficients"]
    dtype = matrix.dtype
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x * x).sum().sqrt().clamp(min=group["eps"])
    x = x if dtype is float64 else x.to(bfloat16)
    for _ in range(group["ns_steps"]):
        gram = x @ x.T
        x = x * a + (gram * b + (gram @ gram) * c) @ x
    result: Tensor = (x.T if tall else x).to(dtype)
    return result
