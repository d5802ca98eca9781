"""Normalization: values shifted and scaled to mean 0 and variance 1 over chosen axes.

References: Ioffe and Szegedy (2015) batch, Ba et al. (2016) layer, Ulyanov et al. (2016) instance,
Wu and He (2018) group, Zhang and Sennrich (2019) root mean square.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import float32, float64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn.functional.pooling import avg_pool1d
from tinygrad_cuda.tensors import reductions
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.layout import fresh, gives_format, gives_fresh, gives_rows
from tinygrad_cuda.tensors.opmath import rounded_once, rounded_to_input
from tinygrad_cuda.tensors.shaping import pad
from tinygrad_cuda.tensors.tensor import Tensor


def _scaled(normal: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Any) -> Tensor:
    if weight is not None:
        normal = normal * weight.reshape(shape)
    return normal if bias is None else normal + bias.reshape(shape)


def _moments(input: Tensor, axes: Any) -> tuple[Tensor, Tensor]:
    """Biased variance and mean, with axes of size 1."""
    return reductions.var_mean(input, axes, keepdim=True, correction=0)


def check_channels(op: str, input: Tensor, **parameters: Tensor | None) -> None:
    """Raises unless each parameter has an entry for each channel.

    Raises:
        ShapeError: one has not.
    """
    channels = (input.shape[1],)
    for name, value in parameters.items():
        if value is not None and value.shape != channels:
            raise ShapeError(
                op, f"{name} does not have an entry for each channel",
                expect=f"{name} of shape ({input.shape[1]},)",
                actual=f"{tuple(value.shape)}         input: {tuple(input.shape)}",
                hint=f"this layer is made for {value.numel()} channels; axis 1 of the input has "
                f"{input.shape[1]}",
            )  # fmt: skip


def _is_mixed(input: Tensor, *parameters: Tensor | None) -> bool:
    """A half input beside float32 parameters: computed in float32, the result is half."""
    wide = (p is not None and p.dtype.itemsize > 2 for p in parameters)
    return input.dtype.is_half and any(wide)


@gives_format
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""``(x - mean) / sqrt(var + eps) * weight + bias`` for each channel.

    While training, mean and (biased) variance are those of the batch, and the running values are
    written in place: ``running = (1 - momentum) running + momentum batch``, there with the unbiased
    variance. Otherwise the running values are used.

    Args:
        input: shape (N, C, \*).
        running_mean, running_var: shape (C,), or None.
        weight, bias: shape (C,), or None.

    Raises:
        ShapeError: the input has no channels, or a batch of one element for each channel.
        ArgumentError: not training, and no running values.
    """
    require_real("batch_norm", input)
    if input.ndim < 2:
        raise ShapeError(
            "batch_norm", "the input has no channels", expect="(N, C, *)",
            actual=str(tuple(input.shape)),
        )  # fmt: skip
    check_channels(
        "batch_norm", input, running_mean=running_mean, running_var=running_var, weight=weight,
        bias=bias,
    )  # fmt: skip
    if _is_mixed(input, running_mean, weight):
        wide = batch_norm(
            input.float(), running_mean, running_var, weight, bias, training, momentum, eps
        )
        narrow: Tensor = wide.to(input.dtype)
        return narrow
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError(
                "batch_norm", "there are no running values", expect="running_mean and running_var",
                actual="None", hint="training=True uses those of the batch",
            )  # fmt: skip
        return _by_running_values(input, running_mean, running_var, weight, bias, eps)
    count = input.numel() // max(input.shape[1], 1)
    if count == 1:
        raise ShapeError(
            "batch_norm", "a batch of one element for each channel has no variance",
            expect="more than 1 value per channel", actual=str(tuple(input.shape)),
            hint="model.eval() uses the running values",
        )  # fmt: skip
    if count == 0:
        return _scaled(input, weight, bias, (-1, *(1,) * (input.ndim - 2)))
    result = _by_batch(input, weight, bias, eps)
    if running_mean is not None and running_var is not None:
        # The moments are those of the result's: equal nodes are one in a plan. What may change from
        # call to call, the momentum, is in no template.
        with gradient_mode(False):
            mean, variance = _batch_mean(input), _batch_variance(input, count)
            running_mean.copy_(_moved(running_mean, mean, momentum))
            running_var.copy_(_moved(running_var, variance, momentum))
    return result


@rounded_once
def _moved(running: Tensor, batch: Tensor, momentum: float) -> Tensor:
    return running + (batch - running) * momentum


def _channel_moments(input: Tensor) -> tuple[Tensor, Tensor]:
    return _moments(input, (0, *range(2, input.ndim)))


@templated
@rounded_once
def _by_batch(input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """``(x - mean) * factor + bias``, so written that a backward pass needs two sums of a channel:
    of the cotangent, and of that times the deviations. What the mean contributes goes through the
    shift, whose value is the bias."""
    shape = (-1, *(1,) * (input.ndim - 2))
    variance, mean = _channel_moments(input)
    factor = (variance + eps).rsqrt()
    factor = factor if weight is None else factor * weight.reshape(shape)
    near = mean.detach()
    shift = (near - mean) * factor
    shift = shift if bias is None else shift + bias.reshape(shape)
    return (input - near) * factor + shift


@templated
@rounded_once
def _by_running_values(
    input: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None,
    eps: float,
) -> Tensor:  # fmt: skip
    shape = (-1, *(1,) * (input.ndim - 2))
    factor = (variance + eps).rsqrt()
    factor = factor if weight is None else factor * weight
    shift = -mean * factor
    shift = shift if bias is None else shift + bias
    return input * factor.reshape(shape) + shift.reshape(shape)


@templated
def _batch_mean(input: Tensor) -> Tensor:
    return wrap(_channel_moments(input)[1].reshape(-1).node)


@templated
@rounded_once
def _batch_variance(input: Tensor, count: int) -> Tensor:
    """The unbiased one."""
    return _channel_moments(input)[0].reshape(-1) * (count / (count - 1))


@gives_rows
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""`batch_norm` of each sample by itself: moments over the axes after the channels.

    Args:
        input: shape (N, C, \*).
        running_mean, running_var: shape (C,), or None; the running statistics are written there.
        weight, bias: shape (C,), or None.
        use_input_stats: otherwise the running values are used.
    """
    require_real("instance_norm", input)
    if input.ndim < 2:
        raise ShapeError(
            "instance_norm", "the input has no channels", expect="(N, C, *)",
            actual=str(tuple(input.shape)),
        )  # fmt: skip
    check_channels(
        "instance_norm", input, running_mean=running_mean, running_var=running_var, weight=weight,
        bias=bias,
    )  # fmt: skip
    if _is_mixed(input, running_mean, weight):
        wide = instance_norm(
            input.float(), running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
        narrow: Tensor = wide.to(input.dtype)
        return narrow
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    axes = tuple(range(2, input.ndim))
    count = prod(input.shape[2:])
    if not axes or count == 1:
        raise ShapeError(
            "instance_norm", "one element for each channel has no variance",
            expect="more than 1 value per channel", actual=str(tuple(input.shape)),
        )  # fmt: skip
    if running_mean is not None and running_var is not None:
        variance, mean = _moments(input, axes)
        channels = (input.shape[0], input.shape[1])
        with gradient_mode(False):
            unbiased = variance.detach().reshape(channels).mean(0) * (count / (count - 1))
            average = mean.detach().reshape(channels).mean(0)
            running_mean.copy_(_moved(running_mean, average, momentum))
            running_var.copy_(_moved(running_var, unbiased, momentum))
    return _standardized(input, axes, weight, bias, (-1, *(1,) * (input.ndim - 2)), eps)


@rounded_once
def _standardized(
    input: Tensor, axes: tuple[int, ...], weight: Tensor | None, bias: Tensor | None,
    shape: tuple[int, ...], eps: float,
) -> Tensor:  # fmt: skip
    variance, mean = _moments(input, axes)
    return _scaled((input - mean) * (variance + eps).rsqrt(), weight, bias, shape)


def _last_axes(op: str, input: Tensor, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    wanted = tuple(normalized_shape)
    if not wanted or tuple(input.shape[input.ndim - len(wanted) :]) != wanted:
        raise ShapeError(
            op, "the input does not end with normalized_shape",
            expect=f"(*, {', '.join(map(str, wanted))})", actual=str(tuple(input.shape)),
        )  # fmt: skip
    return tuple(range(input.ndim - len(wanted), input.ndim))


@templated
@gives_rows
@in_float32
@rounded_to_input
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""``(x - mean) / sqrt(var + eps) * weight + bias`` over the last axes.

    Args:
        input: shape (\*, \*normalized_shape).
        normalized_shape: sizes of the axes over which mean and variance are taken.
        weight, bias: shape normalized_shape, or None.

    Raises:
        ShapeError: the input does not end with normalized_shape.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer_norm(tc.tensor([[1.0, 3.0]], device="cpu"), (2,), eps=0.0).tolist()
        [[-1.0, 1.0]]
    """
    require_real("layer_norm", input)
    axes = _last_axes("layer_norm", input, normalized_shape)
    return _standardized(input, axes, weight, bias, tuple(normalized_shape), eps)


@templated
@gives_fresh
@in_float32
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last axes; eps is that of float32 (or 64).

    Raises:
        ShapeError: the input does not end with normalized_shape.
    """
    axes = _last_axes("rms_norm", input, normalized_shape)
    # PyTorch's default is that of the dtype it computes in: float32 for half types.
    small = float(np.finfo(np.float64 if input.dtype is float64 else np.float32).eps)
    added = small if eps is None else eps
    # Squares leave the range of float16 early.
    wide = input.to(float32) if input.dtype.is_half else input
    normal = wide * ((wide * wide).mean(axes, keepdim=True) + added).rsqrt()
    scaled = _scaled(normal, weight, None, tuple(normalized_shape))
    result: Tensor = scaled.to(input.dtype)
    return result


@templated
@gives_fresh
@in_float32
@rounded_to_input
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""`layer_norm` of each of `num_groups` groups of channels, with a weight for each channel.

    Args:
        input: shape (N, C, \*).
        num_groups: must divide C.
        weight, bias: shape (C,), or None.

    Raises:
        ShapeError: the groups do not divide the channels.
    """
    require_real("group_norm", input)
    if input.ndim < 2 or num_groups < 1 or input.shape[1] % num_groups:
        raise ShapeError(
            "group_norm", "the groups do not divide the channels",
            expect=f"channels divisible by {num_groups}", actual=str(tuple(input.shape)),
        )  # fmt: skip
    check_channels("group_norm", input, weight=weight, bias=bias)
    if not input.numel():
        return _scaled(input, weight, bias, (-1, *(1,) * (input.ndim - 2)))
    if input.numel() == input.shape[0] * num_groups == num_groups:
        raise ShapeError(
            "group_norm", "one element for each group has no variance",
            expect="more than 1 value per channel", actual=str(tuple(input.shape)),
        )  # fmt: skip
    # The channels' axis is split, and none joined with another: images keep their layout.
    groups = input.reshape(input.shape[0], num_groups, -1, *input.shape[2:])
    variance, mean = _moments(groups, tuple(range(2, groups.ndim)))
    normal = ((groups - mean) * (variance + eps).rsqrt()).reshape(input.shape)
    return _scaled(normal, weight, bias, (-1, *(1,) * (input.ndim - 2)))


@rounded_once
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    r"""``x / (k + alpha * mean(x ** 2)) ** beta`` over `size` neighbouring channels.

    Args:
        input: shape (N, C, \*).
        size: how many channels the mean is over; channels outside count as zeros.
    """
    if input.ndim < 3:
        raise ShapeError(
            "local_response_norm", "the number of dimensions does not fit",
            expect="at least (N, C, L)", actual=str(tuple(input.shape)),
        )  # fmt: skip
    if not input.numel():
        return input
    squares = (input * input).movedim(1, -1)
    flat = squares.reshape(1, -1, squares.shape[-1])
    around = avg_pool1d(pad(flat, (size // 2, (size - 1) // 2)), size, 1)
    mean = fresh(around.reshape(squares.shape).movedim(-1, 1))
    return input / (mean * alpha + k).pow(beta)


@in_float32
@rounded_once
def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """``x / max(norm(x, p), eps)`` along `dim`."""
    length = reductions.norm(input, p, dim, keepdim=True)
    return input / length.clamp(min=eps)
