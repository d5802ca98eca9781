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
    fused.weight, fused.bias = _weights(
        layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight,
        norm.bias, axis,
    )  # fmt: skip
    return fused


def _weights(
    weight: Any, bias: Any, mean: Any, var: Any, eps: float, scale: Any, shift: Any, axis: int
) -> tuple[Parameter, Parameter]:
    with gradient_mode(False):
        factor = (var + eps).rsqrt()
        factor = factor if scale is None else factor * scale
        shape = [1] * weight.ndim
        shape[axis] = -1
        moved = ((0.0 if bias is None else bias) - mean) * factor
        moved = moved if shift is None else moved + shift
        fused = Parameter(weight * factor.reshape(shape), weight.requires_grad)
        return fused, Parameter(moved, bias is not None and bias.requires_grad)


def fuse_conv_bn_weights(
    conv_w: Any, conv_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """The weight and bias of a convolution that does what the batch norm after it does.

    Args:
        conv_w, conv_b: the convolution's weight, and its bias or None.
        bn_rm, bn_rv, bn_eps: the norm's running mean and variance, and what it adds to that.
        bn_w, bn_b: the norm's weight and bias; None for none.
        transpose: the convolution is a transposed one.

    Example:
        >>> import tinygrad_cuda as tc
        >>> one = tc.ones(1, device="cpu")
        >>> w, b = fuse_conv_bn_weights(one.reshape(1, 1, 1), None, one, one, 0.0, 2 * one, None)
        >>> w.item(), b.item()
        (2.0, -2.0)
    """
    axis = 1 if transpose else 0
    return _weights(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, axis)


def fuse_linear_bn_weights(
    linear_w: Any, linear_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any
) -> tuple[Parameter, Parameter]:
    """The weight and bias of a linear layer that does what the batch norm after it does.

    Args:
        linear_w, linear_b: the layer's weight, and its bias or None.
        bn_rm, bn_rv, bn_eps, bn_w, bn_b: see `fuse_conv_bn_weights`.
    """
    return _weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 0)


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
