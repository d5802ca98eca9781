"""Batch norm folded into the layer before it, for inference."""

from __future__ import annotations

import copy
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter


def _fused(op: str, layer: Any, norm: Any, axis: int) -> Any:
    if layer.training or norm.training:
        raise ArgumentError(
            op, "both layers must be in evaluation mode", expect="eval()", actual="train()",
            hint="call .eval() on both first",
        )  # fmt: skip
    if norm.running_mean is None or norm.running_var is None:
        raise ArgumentError(
            op, "the norm has no running values", expect="track_running_stats=True", actual="None"
        )
    fused = copy.deepcopy(layer)
    with gradient_mode(False):
        factor = (norm.running_var + norm.eps).rsqrt()
        factor = factor if norm.weight is None else factor * norm.weight
        shape = [1] * layer.weight.ndim
        shape[axis] = -1
        old = 0.0 if layer.bias is None else layer.bias
        shift = (old - norm.running_mean) * factor
        shift = shift if norm.bias is None else shift + norm.bias
        fused.weight = Parameter(layer.weight * factor.reshape(shape), layer.weight.requires_grad)
        fused.bias = Parameter(shift, layer.weight.requires_grad)
    return fused


def fuse_conv_bn_eval(conv: Module, bn: Module, transpose: bool = False) -> Any:
    """A copy of `conv` that does what ``bn(conv(x))`` does in evaluation mode.

    Args:
        conv: a convolution, in evaluation mode.
        bn: the batch norm after it, in evaluation mode.
        transpose: conv is a transposed convolution.

    Raises:
        ArgumentError: one of them is in training mode, or bn has no running values.

    Example:
        >>> import tinygrad_cuda as tc
        >>> from tinygrad_cuda import nn
        >>> conv = nn.Conv2d(1, 2, 3, device="cpu").eval()
        >>> bn = nn.BatchNorm2d(2, device="cpu").eval()
        >>> x = tc.rand(1, 1, 4, 4, device="cpu")
        >>> fuse_conv_bn_eval(conv, bn)(x).allclose(bn(conv(x)), atol=1e-5)
        True
    """
    return _fused("fuse_conv_bn_eval", conv, bn, 1 if transpose else 0)


def fuse_linear_bn_eval(linear: Module, bn: Module) -> Any:
    """A copy of `linear` that does what ``bn(linear(x))`` does in evaluation mode."""
    return _fused("fuse_linear_bn_eval", linear, bn, 0)
