"""Gradients cut down to a norm or a value; nothing is read, so a step stays one plan."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from tinygrad_cuda.core.errors import GradientError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors import reductions
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import zeros
from tinygrad_cuda.tensors.shaping import stack
from tinygrad_cuda.tensors.tensor import Tensor


def _gradients(parameters: Any) -> list[Tensor]:
    given: Iterable[Any] = [parameters] if isinstance(parameters, TensorBase) else parameters
    return [p.grad for p in given if p.grad is not None]


def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """The norm of all elements of all tensors as one vector.

    Args:
        tensors: a Tensor or several.
        norm_type: the p of the norm; infinity for the largest element.
        error_if_nonfinite: look at the value, and raise if it is not finite.
        foreach: ignored; kernels are merged anyway.

    Raises:
        GradientError: the norm is not finite, and error_if_nonfinite is set.
    """
    given: list[Any] = [tensors] if isinstance(tensors, TensorBase) else list(tensors)
    if not given:
        return zeros(())
    parts = [reductions.norm(tensor.detach(), norm_type) for tensor in given]
    device = parts[0].device
    parts = [part.to(device) for part in parts]
    total = parts[0] if len(parts) == 1 else reductions.norm(stack(parts), norm_type)
    if error_if_nonfinite and not abs(total.item()) < inf:
        raise GradientError(
            "clip_grad_norm_", "the norm of the gradients is not finite", expect="a finite norm",
            actual=str(total.item()), hint="tc.detect_nan() names the operation that made it",
        )  # fmt: skip
    return total


def clip_grads_with_norm_(
    parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scales gradients in place by ``min(max_norm / (total_norm + 1e-6), 1)``."""
    with gradient_mode(False):
        factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
        for gradient in _gradients(parameters):
            gradient.mul_(factor.to(device=gradient.device, dtype=gradient.dtype))


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scales gradients in place so that their norm, as one vector, is at most max_norm.

    Args:
        parameters: a Tensor or several; those without a gradient are passed over.
        max_norm: the largest norm.
        norm_type, error_if_nonfinite, foreach: as for `get_total_norm`.

    Returns:
        The norm before, a 0-d Tensor that is not read here.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([3.0, 4.0], device="cpu", requires_grad=True)
        >>> (x * x).sum().backward()
        >>> clip_grad_norm_([x], 1.0).item(), [round(g, 3) for g in x.grad.tolist()]
        (10.0, [0.6, 0.8])
    """
    given = [parameters] if isinstance(parameters, TensorBase) else list(parameters)
    total = get_total_norm(_gradients(given), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(given, max_norm, total)
    return total


def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Limits each element of the gradients, in place, to ``[-clip_value, clip_value]``."""
    with gradient_mode(False):
        for gradient in _gradients(parameters):
            gradient.clamp_(-float(clip_value), float(clip_value))


clip_grad_norm = clip_grad_norm_  # its older name
