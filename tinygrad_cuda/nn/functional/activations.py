"""Activations, softmax, dropout of channels, and layers on two inputs."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.dtypes import number_of
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError, is_internal
from tinygrad_cuda.graph.ops.gelu import gelu_tanh
from tinygrad_cuda.nn.smooth import softplus as _softplus
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.tensors import math as tm
from tinygrad_cuda.tensors.arguments import plain_number, require_real, unchanged
from tinygrad_cuda.tensors.autocast import in_float32, in_half, in_widest
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import arange
from tinygrad_cuda.tensors.layout import copied_strides, gives_rows, strides_like
from tinygrad_cuda.tensors.linalg.products import cosine_similarity as cosine_similarity
from tinygrad_cuda.tensors.linalg.products import pairwise_distance as pairwise_distance
from tinygrad_cuda.tensors.linalg.products import pdist as pdist
from tinygrad_cuda.tensors.opmath import rounded_once
from tinygrad_cuda.tensors.random import rand_like
from tinygrad_cuda.tensors.tensor import Tensor

# Klambauer et al. (2017): with them mean 0 and variance 1 are a fixed point.
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


def _stored(input: Tensor, output: Tensor, inplace: bool) -> Tensor:
    return tm.store("inplace", input, output.node) if inplace else output


@templated
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """``max(input, 0)``; its derivative at 0 is 0."""
    return input.relu_() if inplace else tm.relu(input)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """``min(max(input, min_val), max_val)``; the derivative at a bound is 0.

    Raises:
        ArgumentError: the input is unsigned and a bound negative, or the bounds are exchanged.
    """
    min_val = plain_number("hardtanh", "min_val", min_val)
    max_val = plain_number("hardtanh", "max_val", max_val)
    if min_val > max_val:
        raise ArgumentError(
            "hardtanh", "the bounds are exchanged", expect="min_val <= max_val",
            actual=f"{min_val} and {max_val}",
        )  # fmt: skip
    if not input.dtype.is_floating:
        low, high = int(min_val), int(max_val)
        if not input.dtype.is_signed and min(low, high) < 0:
            raise ArgumentError(
                "hardtanh", "an unsigned input has no negative bounds", expect="bounds >= 0",
                actual=f"{min_val} and {max_val}",
            )  # fmt: skip
        return _stored(input, copied_strides(input.clamp(low, high), input), inplace)
    inside = tm.logical_and(input > min_val, input < max_val)
    output = where(inside, input, input.detach().clamp(min_val, max_val))
    return _stored(input, copied_strides(output, input), inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """``min(max(input, 0), 6)``."""
    return hardtanh(input, 0.0, 6.0, inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``negative_slope * input``."""
    return _leaky_relu(input, plain_number("leaky_relu", "negative_slope", negative_slope), inplace)


@templated
def _leaky_relu(input: Tensor, slope: float, inplace: bool) -> Tensor:
    return _stored(input, where(input > 0, input, input * slope), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``alpha * (exp(input) - 1)`` (Clevert et al., 2016)."""
    return _stored(input, _elu(input, plain_number("elu", "alpha", alpha)), inplace)


@rounded_once
def _elu(input: Tensor, alpha: float) -> Tensor:
    positive = input > 0
    # The branch not taken must stay finite: its gradient is 0 times it.
    negative = where(positive, 0.0, input)
    return where(positive, input, alpha * negative.expm1())


@templated
@rounded_once
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """``input * P(Z <= input)`` for a standard normal Z (Hendrycks and Gimpel, 2016).

    Args:
        approximate: ``"none"``, or ``"tanh"`` for the authors' approximation.
    """
    if approximate == "tanh":
        return strides_like(wrap(gelu_tanh(input.node)), input)
    if approximate != "none":
        raise ArgumentError(
            "gelu", "unknown approximation", expect="'none' or 'tanh'", actual=repr(approximate)
        )
    return input * 0.5 * ((input * math.sqrt(0.5)).erf() + 1.0)


@templated
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * sigmoid(input)``."""
    return _stored(input, _silu(input), inplace)


@rounded_once
def _silu(input: Tensor) -> Tensor:
    return input * input.sigmoid()


def sigmoid(input: Tensor) -> Tensor:
    """``1 / (1 + exp(-input))``."""
    return tm.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return tm.tanh(input)


@in_float32
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * input)) / beta``; ``input`` itself where beta * input > threshold."""
    factor = plain_number("softplus", "beta", beta)
    return _bent(input, factor, plain_number("softplus", "threshold", threshold))


@rounded_once
def _bent(input: Tensor, beta: float, threshold: float) -> Tensor:
    """`softplus` with plain numbers."""
    scaled = input if beta == 1 else input * beta
    smooth = _softplus(scaled)
    return where(scaled > threshold, input, smooth if beta == 1 else smooth / beta)


@gives_rows
@rounded_once
def logsigmoid(input: Tensor) -> Tensor:
    """``log(sigmoid(input))``, without overflow."""
    return -_softplus(-input)


@templated
def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """``exp(input) / sum(exp(input))`` along `dim`, computed in `dtype` if that is given."""
    return (input if dtype is None else input.to(dtype)).softmax(
        implicit_axis("softmax", dim, input.ndim, _stacklevel)
    )


@templated
def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """``input - log(sum(exp(input)))`` along `dim`, computed in `dtype` if that is given."""
    return (input if dtype is None else input.to(dtype)).log_softmax(
        implicit_axis("log_softmax", dim, input.ndim, _stacklevel)
    )


@rounded_once
def _exponential(input: Tensor, alpha: float, rate: float, scale: float) -> Tensor:
    """``scale * x`` where positive, else ``scale * alpha * (exp(rate * x) - 1)``."""
    positive = input > 0
    # The branch not taken must stay finite: its gradient is 0 times it.
    negative = where(positive, 0.0, input)
    return where(positive, input * scale, (negative * rate).expm1() * (scale * alpha))


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Scaled `elu` that keeps mean 0 and variance 1 (Klambauer et al., 2017)."""
    return _stored(input, _exponential(input, SELU_ALPHA, 1.0, SELU_SCALE), inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``alpha * (exp(input / alpha) - 1)`` (Barron, 2017)."""
    alpha = plain_number("celu", "alpha", alpha)
    return _stored(input, _exponential(input, alpha, 1.0 / alpha, 1.0), inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * tanh(log(1 + exp(input)))`` (Misra, 2019)."""
    return _stored(input, _mish(input), inplace)


@rounded_once
def _mish(input: Tensor) -> Tensor:
    return input * _softplus(input).tanh()


@rounded_once
def softsign(input: Tensor) -> Tensor:
    """``input / (1 + |input|)``."""
    return input / (input.abs() + 1.0)


@rounded_once
def tanhshrink(input: Tensor) -> Tensor:
    """``input - tanh(input)``."""
    return input - input.tanh()


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``input`` where ``|input| > lambd``, else 0."""
    lambd = plain_number("hardshrink", "lambd", lambd)
    return where((input >= -lambd) & (input <= lambd), 0.0, input)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``input`` moved towards 0 by `lambd`, and 0 where it would pass it.

    Raises:
        ArgumentError: `lambd` is negative.
    """
    lambd = plain_number("softshrink", "lambd", lambd)
    if lambd < 0:
        raise ArgumentError(
            "softshrink", "lambd is negative", expect="lambd >= 0", actual=str(lambd)
        )
    moved = where(input > 0, input - lambd, input + lambd)
    return where((input >= -lambd) & (input <= lambd), 0.0, moved)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """``min(max(input / 6 + 1 / 2, 0), 1)``; the derivative at a bound is 0."""
    return _stored(input, _hardsigmoid(input), inplace)


@rounded_once
def _hardsigmoid(input: Tensor) -> Tensor:
    inside = (input > -3.0) & (input < 3.0)
    outside = input.detach().clamp(0.0, 1.0)
    return where(inside, input / 6.0 + 0.5, outside)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * hardsigmoid(input)`` (Howard et al., 2019)."""
    return _stored(input, _hardswish(input), inplace)


@rounded_once
def _hardswish(input: Tensor) -> Tensor:
    low, high = input <= -3.0, input >= 3.0
    # The branch not taken must stay finite: its gradient is 0 times it.
    inside = where(low | high, 0.0, input)
    middle = inside * (inside / 6.0 + 0.5)
    return where(low, 0.0, where(high, input, middle))


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """``input`` where it is greater than `threshold`, else `value`."""
    bound, filling = (
        number_of("threshold", plain_number("threshold", name, number), input.dtype)
        for name, number in (("threshold", threshold), ("value", value))
    )
    return _stored(input, where(input <= bound, filling, input), inplace)


@in_half
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    r"""``input`` where positive, else ``weight * input`` (He et al., 2015).

    Args:
        input: shape (N, C, \*), or any with one weight.
        weight: shape (1,) or (C,).

    Raises:
        ShapeError: there are neither one weight nor C.
        DTypeError: the dtypes differ.
    """
    if weight.dtype is not input.dtype:
        raise DTypeError(
            "prelu", "input and weight have different dtypes", expect=input.dtype.name,
            actual=weight.dtype.name, hint=f"weight.to(tc.{input.dtype.name}) would fit",
        )  # fmt: skip
    count = weight.numel()
    channels = input.shape[1] if input.ndim > 1 else 1
    if count not in (1, channels) or weight.ndim > 1:
        raise ShapeError(
            "prelu", "the weights do not fit the channels", expect=f"1 or {channels}",
            actual=str(tuple(weight.shape)),
        )  # fmt: skip
    if input.ndim:
        shape = [1] * input.ndim
        shape[1 if input.ndim > 1 else 0] = count
        weight = weight.reshape(shape)
    else:
        weight = weight.reshape(())
    positive = input > 0
    # The branch not taken must stay finite: its gradient is 0 times it.
    return copied_strides(where(positive, input, where(positive, 0.0, input) * weight), input)


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False,
    inplace: bool = False,
) -> Tensor:  # fmt: skip
    """`leaky_relu` whose slopes are drawn from U(lower, upper) while training, else their mean.

    Raises:
        ArgumentError: `lower` is more than `upper`.
    """
    lower, upper = (plain_number("rrelu", "a bound", bound) for bound in (lower, upper))
    if lower > upper:
        raise ArgumentError(
            "rrelu", "the bounds are exchanged", expect="lower <= upper",
            actual=f"{lower} and {upper}",
        )  # fmt: skip
    slope: Any = (lower + upper) / 2
    if training:
        slope = rand_like(input) * (upper - lower) + lower
    result = where(input > 0, input, input * slope)
    result._strides = None
    return _stored(input, result, inplace)


@rounded_once
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """``a * sigmoid(b)`` for the halves a and b of the input along `dim` (Dauphin et al., 2017).

    Raises:
        ShapeError: the size along `dim` is odd.
    """
    require_real("glu", input)
    size = input.shape[dim]
    if size % 2:
        raise ShapeError("glu", "the halves differ", expect="an even size", actual=str(size))
    first = input.narrow(dim, 0, size // 2)
    return first * input.narrow(dim, size // 2, size // 2).sigmoid()


def implicit_axis(op: str, dim: int | None, rank: int, stacklevel: int = 3) -> int:
    """The dimension of a softmax; PyTorch's choice, with its warning, where none is given.

    Args:
        stacklevel: whose line the warning has: 3 for the user's, 4 for that of its caller.
    """
    if dim is not None:
        return dim
    # Wrappers and layers stand between the user and here: how many depends on the call.
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and is_internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{op} without dim takes 0 for 0, 1 and 3 dimensions, else 1, as in PyTorch: give dim",
        stacklevel=level + stacklevel - 3,
    )
    return 0 if rank in (0, 1, 3) else 1


@in_float32
def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """``softmax(-input)`` along `dim`."""
    axis = implicit_axis("softmin", dim, input.ndim, _stacklevel)
    return (-(input if dtype is None else input.to(dtype))).softmax(axis)


@in_float32
def gumbel_softmax(
    logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A draw from the Gumbel-softmax distribution (Jang et al., 2017).

    Args:
        logits: unnormalized log-probabilities.
        tau: the temperature; near 0 a draw is nearly one-hot.
        hard: the value is one-hot, the gradient that of the soft draw.
        dim: the axis of the classes.
    """
    noise = -(-rand_like(logits).clamp(min=2.0**-24).log()).clamp(min=2.0**-24).log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    shape = [1] * logits.ndim
    shape[dim] = logits.shape[dim]
    positions = arange(logits.shape[dim], device=logits.device).reshape(shape)
    best = (positions == soft.argmax(dim, keepdim=True)).to(soft.dtype)
    drawn: Tensor = best - soft.detach() + soft
    return drawn


# Two inputs ---------------------------------------------------------------------------------


@in_widest
def bilinear(
    input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:  # fmt: skip
    r"""``y[o] = x1 W[o] x2 + b[o]``.

    Args:
        input1: shape (\*, in1).
        input2: shape (\*, in2).
        weight: shape (out, in1, in2).
        bias: shape (out,).

    Raises:
        ShapeError: the inputs do not fit each other or the weight.
    """
    outputs, first, second = weight.shape
    if (
        input1.shape[:-1] != input2.shape[:-1]
        or (input1.shape[-1], input2.shape[-1]) != (first, second)
    ):  # fmt: skip
        raise ShapeError(
            "bilinear", "the inputs do not fit", expect=f"(*, {first}) and (*, {second})",
            actual=f"{tuple(input1.shape)} and {tuple(input2.shape)}",
        )  # fmt: skip
    # (*, in1) @ (in1, out in2), then the inner product with x2.
    mixed = input1 @ weight.permute(1, 0, 2).reshape(first, outputs * second)
    mixed = mixed.reshape(*input1.shape[:-1], outputs, second)
    output = (mixed @ input2.unsqueeze(-1)).squeeze(-1)
    return output if bias is None else output + bias


# Dropout ------------------------------------------------------------------------------------


def checked_probability(op: str, p: float) -> float:
    """The plain number of a probability.

    Raises:
        ArgumentError: it is not between 0 and 1.
    """
    p = plain_number(op, "p", p)
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(op, "p is no probability", expect="0 <= p <= 1", actual=str(p))
    return p


def _per_channel(op: str, input: Tensor, rank: int) -> Tensor:
    """Uniform draws, one for each channel; which axes those are is PyTorch's rule."""
    allowed = (2, 3) if rank == 1 else range(2 if rank == 2 else 1, 2 + max(input.ndim, 4))
    if input.ndim not in allowed:
        raise ShapeError(
            op, "the number of dimensions does not fit",
            expect="2 or 3" if rank == 1 else f"{rank + 2}", actual=str(tuple(input.shape)),
        )  # fmt: skip
    # One over two axes does not ask for a batch: (N, C) and (N, C, L) are fine.
    lead = 2 if rank == 2 or input.ndim == rank + 2 else 1
    return rand_like(input[(slice(None),) * lead + (slice(0, 1),) * (input.ndim - lead)].detach())


def _channel_dropout(
    rank: int, input: Tensor, p: float, training: bool, inplace: bool
) -> Tensor:  # fmt: skip
    op = f"dropout{rank}d"
    p = checked_probability(op, p)
    if not training or p == 0.0:
        return input
    mask = _per_channel(op, input, rank) >= p
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return _stored(input, where(mask, input * scale, 0.0), inplace)


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:  # fmt: skip
    """`dropout2d` of (N, C, L) or (C, L)."""
    return _channel_dropout(1, input, p, training, inplace)


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:  # fmt: skip
    r"""Zeroes whole channels of (N, C, \*) with probability `p`, scales the rest by 1 / (1 - p).

    Raises:
        ArgumentError: `p` is no probability.
        ShapeError: the number of dimensions does not fit.
    """
    return _channel_dropout(2, input, p, training, inplace)


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:  # fmt: skip
    """`dropout2d` of (N, C, D, H, W)."""
    return _channel_dropout(3, input, p, training, inplace)


def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:  # fmt: skip
    """Dropout for `selu`: keeps mean 0 and variance 1 (Klambauer et al., 2017).

    Dropped elements become ``-scale * alpha`` of selu; then all go through the affine map that
    restores mean and variance.
    """
    p = checked_probability("alpha_dropout", p)
    if not training or p == 0.0:
        return unchanged("alpha_dropout", input)
    return _alpha_dropped(input, rand_like(input.detach()) >= p, p, inplace)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:  # fmt: skip
    r"""`alpha_dropout` of whole channels: of the first two axes of (N, C, \*).

    Raises:
        ArgumentError: `p` is no probability.
        ShapeError: the input has fewer than two axes.
    """
    op = "feature_alpha_dropout"
    p = checked_probability(op, p)
    if not training or p == 0.0:
        return unchanged(op, input)
    if input.ndim < 2:
        raise ShapeError(
            op, "the number of dimensions does not fit", expect="at least 2",
            actual=str(tuple(input.shape)),
        )  # fmt: skip
    first = (slice(None),) * 2 + (slice(0, 1),) * (input.ndim - 2)
    return _alpha_dropped(input, rand_like(input.detach()[first]) >= p, p, inplace)


def _alpha_dropped(input: Tensor, mask: Tensor, p: float, inplace: bool) -> Tensor:
    low = -SELU_ALPHA * SELU_SCALE
    a = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * low * low)) if p < 1.0 else 0.0
    return _stored(input, where(mask, input, low) * a - a * p * low, inplace)


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with ``inplace=True``."""

    def wrapped(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(input, *args, inplace=True, **options)

    wrapped.__name__ = f"{function.__name__}_"
    wrapped.__doc__ = f"`{function.__name__}`, written to the input."
    return wrapped


# In place -----------------------------------------------------------------------------------

relu_ = _in_place(relu)
leaky_relu_ = _in_place(leaky_relu)
elu_ = _in_place(elu)
selu_ = _in_place(selu)
celu_ = _in_place(celu)
hardtanh_ = _in_place(hardtanh)
threshold_ = _in_place(threshold)
rrelu_ = _in_place(rrelu)
