"""Layers without state, as functions: activations, softmax, dropout, linear.

Compositions of ops only: fusion makes kernels of them and gradients follow. Losses stand in
`tinygrad_cuda.nn.losses` and are public here too.
"""

from __future__ import annotations

import math
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.nn.functional_conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from tinygrad_cuda.nn.functional_normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    normalize,
    rms_norm,
)
from tinygrad_cuda.nn.functional_pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from tinygrad_cuda.nn.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from tinygrad_cuda.nn.smooth import softplus as _softplus
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.tensor import math as tm
from tinygrad_cuda.tensor.base import wrap
from tinygrad_cuda.tensor.random import keep_mask
from tinygrad_cuda.tensor.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm",
    "binary_cross_entropy_with_logits", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "cross_entropy", "dropout", "elu", "gelu", "group_norm",
    "hardtanh", "huber_loss", "instance_norm", "l1_loss", "layer_norm", "leaky_relu", "linear",
    "local_response_norm", "log_softmax", "logsigmoid", "lp_pool1d", "lp_pool2d", "max_pool1d",
    "max_pool2d", "max_pool3d", "mse_loss", "nll_loss", "normalize", "relu", "relu6", "rms_norm",
    "sigmoid", "silu", "smooth_l1_loss", "softmax", "softplus", "tanh",
]  # fmt: skip


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``.

    Args:
        input: shape (..., in).
        weight: shape (out, in), or (in,).
        bias: shape (out,).

    Raises:
        ShapeError: the last size of input is not that of weight.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([[1.0, 2.0]], device="cpu")
        >>> linear(x, tc.tensor([[3.0, 4.0]], device="cpu")).tolist()
        [[11.0]]
    """
    if not input.ndim or input.shape[-1] != weight.shape[-1]:
        raise ShapeError(
            "linear",
            "the input does not fit the weight",
            expect=f"(..., {weight.shape[-1]})",
            actual=f"input: {tuple(input.shape)}  weight: {tuple(weight.shape)}",
            hint=_flatten_hint(tuple(input.shape), weight.shape[-1]),
        )
    output = input @ weight.T
    return output if bias is None else output + bias


def _flatten_hint(shape: tuple[int, ...], features: int) -> str | None:
    for start in range(len(shape) - 1):
        if math.prod(shape[start:]) == features:
            fitting = (*shape[:start], features)
            return f"input.flatten({start}) has shape {fitting} and would fit"
    return None


# Activations --------------------------------------------------------------------------------


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """``max(input, 0)``; its derivative at 0 is 0."""
    return input.relu_() if inplace else tm.relu(input)


def _maybe_in_place(input: Tensor, output: Tensor, inplace: bool) -> Tensor:
    return tm.store("inplace", input, output.node) if inplace else output


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """``min(max(input, min_val), max_val)``; the derivative at a bound is 0."""
    inside = tm.logical_and(input > min_val, input < max_val)
    return _maybe_in_place(
        input, where(inside, input, input.detach().clamp(min_val, max_val)), inplace
    )


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """``min(max(input, 0), 6)``."""
    return hardtanh(input, 0.0, 6.0, inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``negative_slope * input``."""
    return _maybe_in_place(input, where(input > 0, input, input * negative_slope), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``alpha * (exp(input) - 1)`` (Clevert et al., 2016)."""
    positive = input > 0
    # The branch not taken must stay finite: its gradient is 0 times it.
    negative = where(positive, 0.0, input)
    return _maybe_in_place(input, where(positive, input, alpha * negative.expm1()), inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """``input * P(Z <= input)`` for a standard normal Z (Hendrycks and Gimpel, 2016).

    Args:
        approximate: ``"none"``, or ``"tanh"`` for the authors' approximation.
    """
    if approximate == "tanh":
        inner = (input + input * input * input * 0.044715) * math.sqrt(2.0 / math.pi)
        return input * 0.5 * (inner.tanh() + 1.0)
    if approximate != "none":
        raise ArgumentError(
            "gelu", "unknown approximation", expect="'none' or 'tanh'", actual=repr(approximate)
        )
    return input * 0.5 * ((input * math.sqrt(0.5)).erf() + 1.0)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * sigmoid(input)``."""
    return _maybe_in_place(input, input * input.sigmoid(), inplace)


def sigmoid(input: Tensor) -> Tensor:
    """``1 / (1 + exp(-input))``."""
    return tm.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return tm.tanh(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * input)) / beta``; ``input`` itself where beta * input > threshold."""
    scaled = input if beta == 1 else input * beta
    smooth = _softplus(scaled)
    return where(scaled > threshold, input, smooth if beta == 1 else smooth / beta)


def logsigmoid(input: Tensor) -> Tensor:
    """``log(sigmoid(input))``, without overflow."""
    return -_softplus(-input)


def _axis(op: str, dim: int | None) -> int:
    if dim is None:
        raise ArgumentError(
            op,
            "the dimension must be given",
            expect="dim, an integer",
            actual="None",
            hint=f"{op}(x, dim=-1)",
        )
    return dim


def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """``exp(input) / sum(exp(input))`` along `dim`, computed in `dtype` if that is given."""
    return (input if dtype is None else input.to(dtype)).softmax(_axis("softmax", dim))


def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """``input - log(sum(exp(input)))`` along `dim`, computed in `dtype` if that is given."""
    return (input if dtype is None else input.to(dtype)).log_softmax(_axis("log_softmax", dim))


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zeroes elements with probability `p` and scales the rest by ``1 / (1 - p)``.

    Args:
        input: any shape.
        p: the probability of a zero.
        training: without it the input itself is returned.

    Raises:
        ArgumentError: `p` is no probability.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.ones(1000, device="cpu")
        >>> sorted(set(dropout(x, 0.5).tolist())), dropout(x, 0.5, training=False) is x
        ([0.0, 2.0], True)
    """
    if not 0.0 <= p <= 1.0:
        raise ArgumentError("dropout", "p is no probability", expect="0 <= p <= 1", actual=str(p))
    if not training or p == 0.0:
        return input
    kept = wrap(keep_mask(input.node, 1.0 - p))
    scaled = input * (1.0 / (1.0 - p)) if p < 1.0 else input
    return _maybe_in_place(input, where(kept, scaled, 0.0), inplace)
