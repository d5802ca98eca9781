"""Convolution and its transpose, which is the gradient with respect to a convolution's input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import (
    Shape,
    channels_last_strides,
    contiguous_strides,
    is_channels_last,
    is_contiguous,
)
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.graph.ops.convolution import convolution, convolution_input_gradient
from tinygrad_cuda.graph.ops.geometry import Geometry
from tinygrad_cuda.graph.ops.windows import padded
from tinygrad_cuda.nn.windows import count, per_axis
from tinygrad_cuda.tensors.autocast import in_half
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.layout import fresh
from tinygrad_cuda.tensors.tensor import Tensor

# Checks -------------------------------------------------------------------------------------


def _batched(op: str, input: Tensor, weight: Tensor, rank: int) -> tuple[Node, bool]:
    """The input with a batch axis, and whether it had one."""
    x, w = input.node, weight.node
    if len(w.shape) != rank + 2 or len(x.shape) not in (rank + 1, rank + 2):
        raise ShapeError(
            op,
            "the number of dimensions does not fit",
            expect=f"input of {rank + 2} (or {rank + 1}) dimensions and weight of {rank + 2}",
            actual=f"input: {x.shape}  weight: {w.shape}",
        )
    if x.dtype is not w.dtype:
        raise DTypeError(
            op,
            "input and weight have different dtypes",
            expect=w.dtype.name,
            actual=x.dtype.name,
            hint=f"input.to(tc.{w.dtype.name}) would fit",
        )
    whole = len(x.shape) == rank + 2
    return x if whole else movement.reshape(x, shape=(1, *x.shape)), whole


def _check_channels(op: str, x: Node, w: Node, groups: int, expected: int, outputs: int) -> None:
    if groups < 1 or x.shape[1] != expected or outputs % groups:
        raise ShapeError(
            op,
            "the channels do not fit the weight",
            expect=f"{expected} channels, output channels divisible by groups",
            actual=f"input: {x.shape}  weight: {w.shape}  groups: {groups}",
        )


def padding_pairs(
    op: str, padding: Any, kernel: Shape, stride: Shape, dilation: Shape
) -> tuple[tuple[int, int], ...]:
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ArgumentError(
                op, "padding='same' needs stride 1", expect="stride 1", actual=str(stride)
            )
        totals = [d * (k - 1) for d, k in zip(dilation, kernel)]
        return tuple((total // 2, total - total // 2) for total in totals)
    if isinstance(padding, str):
        raise ArgumentError(
            op, "unknown padding", expect="'same', 'valid' or integers", actual=repr(padding)
        )
    return tuple((p, p) for p in per_axis(op, "padding", padding, len(kernel)))


def _with_bias(y: Node, bias: Tensor | None, rank: int, whole: bool) -> Tensor:
    output = wrap(y)
    if bias is not None:
        if bias.dtype is not output.dtype:
            raise DTypeError(
                f"conv{rank}d", "input and bias have different dtypes", expect=output.dtype.name,
                actual=bias.dtype.name,
            )  # fmt: skip
        output = output + bias.reshape(-1, *(1,) * rank)
    return output if whole else output.squeeze(0)


def _laid_out(output: Tensor, input: Tensor, weight: Tensor) -> Tensor:
    """A new Tensor, channels-last where PyTorch's is: where the input or the weight is."""
    result = fresh(output)
    if input._strides is None and weight._strides is None:
        return result
    shape, strides = input.node.shape, input.strides
    rank, whole = weight.ndim - 2, len(shape) == weight.ndim
    if not whole:
        shape, strides = (1, *shape), (shape[0] * strides[0], *strides)
    if rank == 1 and not is_contiguous(shape, strides):
        strides = contiguous_strides(shape)  # PyTorch copies such a line first
    images = [_as_image(shape, strides), _as_image(weight.node.shape, weight.strides)]
    of_input, of_weight = (is_channels_last(*image) for image in images)
    # The libraries behind PyTorch's convolution of volumes take no float64.
    if (of_input or of_weight) and not (rank == 3 and output.dtype is dtypes.float64):
        sizes = result.node.shape if whole else (1, *result.node.shape)
        wanted = channels_last_strides((*sizes[:2], 1, *sizes[2:]) if rank == 1 else sizes)
        wanted = (*wanted[:2], *wanted[3:]) if rank == 1 else wanted
        result._strides = wanted if whole else wanted[1:]
    return result


def _as_image(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """A shape and strides; those of (N, C, L) as (N, C, 1, L), as PyTorch convolves it."""
    if len(shape) != 3:
        return shape, strides
    return (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])


# Functions ----------------------------------------------------------------------------------


def _conv(
    rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any,
    dilation: Any, groups: int,
) -> Tensor:  # fmt: skip
    op = f"conv{rank}d"
    x, whole = _batched(op, input, weight, rank)
    w = weight.node
    _check_channels(op, x, w, groups, w.shape[1] * groups, w.shape[0])
    steps = per_axis(op, "stride", stride, rank, 1)
    spaces = per_axis(op, "dilation", dilation, rank, 1)
    pads = padding_pairs(op, padding, w.shape[2:], steps, spaces)
    for n, k, s, d, both in zip(x.shape[2:], w.shape[2:], steps, spaces, pads):
        count(op, n, k, s, d, both)
    y = convolution(x, w, stride=steps, padding=pads, dilation=spaces, groups=groups)
    return _laid_out(_with_bias(y, bias, rank, whole), input, weight)


@templated
@in_half
def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`conv2d` over one axis: input (N, C, L) or (C, L), weight (O, C / groups, K)."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


@templated
@in_half
def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Sums over windows: ``y[n,o,i,j] = sum x[n, c, i s + u d - p, j s + v d - p] w[o,c,u,v]``.

    Args:
        input: shape (N, C, H, W) or (C, H, W).
        weight: shape (O, C / groups, K, L).
        bias: shape (O,).
        stride: s, an integer or one for each axis.
        padding: p, integers, ``"valid"`` (none) or ``"same"`` (the output has the input's sizes).
        dilation: d, the distance of neighbours within a window.
        groups: channels fall into so many groups, each convolved by itself.

    On a GPU large 3 x 3 convolutions of float32 without stride, and their gradients, are summed
    tile by tile (Winograd), in float32: errors are up to 1e-5 of the largest result instead of
    3e-6, and an infinite value makes its whole tile NaN. ``TGC_WINOGRAD=0`` switches that off.

    Raises:
        ShapeError: the channels do not fit, or the kernel is larger than the padded input.
        ArgumentError: stride, padding or dilation is no such number.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.arange(9, device="cpu").float().reshape(1, 1, 3, 3)
        >>> conv2d(x, tc.ones(1, 1, 2, 2, device="cpu")).tolist()
        [[[[8.0, 12.0], [20.0, 24.0]]]]
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


@in_half
def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`conv2d` over three axes: input (N, C, D, H, W), weight (O, C / groups, K, L, M)."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def _transposed(x: Node, w: Node, size: Shape, at: Geometry) -> Node:
    """The input gradient; an output padding may have room for windows that x lacks: zeros."""
    sizes = at.sizes(size, w.shape[2:])
    x = padded(x, [(0, most - n) for n, most in zip(x.shape[2:], sizes)])
    return convolution_input_gradient(x, w, size=size, **at._asdict())


def _conv_transpose(
    rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any,
    output_padding: Any, groups: int, dilation: Any,
) -> Tensor:  # fmt: skip
    op = f"conv_transpose{rank}d"
    x, whole = _batched(op, input, weight, rank)
    w = weight.node
    _check_channels(op, x, w, groups, w.shape[0], w.shape[0])
    steps = per_axis(op, "stride", stride, rank, 1)
    spaces = per_axis(op, "dilation", dilation, rank, 1)
    around = per_axis(op, "padding", padding, rank)
    extra = per_axis(op, "output_padding", output_padding, rank)
    if any(e >= max(s, d) for e, s, d in zip(extra, steps, spaces)):
        raise ArgumentError(
            op,
            "output_padding is too large",
            expect="less than stride or dilation",
            actual=f"output_padding {extra}, stride {steps}, dilation {spaces}",
        )
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, s, p, d, k, e in zip(x.shape[2:], steps, around, spaces, w.shape[2:], extra)
    )
    if any(n < 0 for n in size):
        raise ShapeError(op, "an output size is negative", expect="sizes >= 0", actual=str(size))
    at = Geometry(steps, tuple((p, p) for p in around), spaces, groups)
    y = _transposed(x, w, tuple(max(n, 1) for n in size), at)
    if 0 in size:
        shape = (*y.shape[:2], *size)
        y = movement.slice_(y, starts=(0,) * len(shape), shape=shape, steps=(1,) * len(shape))
    return _laid_out(_with_bias(y, bias, rank, whole), input, weight)


@in_half
def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """`conv_transpose2d` over one axis: input (N, C, L), weight (C, O / groups, K)."""
    return _conv_transpose(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )  # fmt: skip


@in_half
def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """The gradient of `conv2d` with respect to its input, as a layer that enlarges.

    The sizes are ``(n - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1``.

    Args:
        input: shape (N, C, H, W) or (C, H, W).
        weight: shape (C, O / groups, K, L).
        bias: shape (O,).
        stride, padding, dilation, groups: of the convolution that this transposes.
        output_padding: added to one side of the output sizes.

    Raises:
        ShapeError: the channels do not fit, or an output size is negative.
        ArgumentError: a number is out of range.
    """
    return _conv_transpose(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )  # fmt: skip


@in_half
def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """`conv_transpose2d` over three axes."""
    return _conv_transpose(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation
    )  # fmt: skip


def stretched(pads: Sequence[tuple[int, int]]) -> list[int]:
    """Widths before and after each axis in the order that `pad` takes: the last axis first."""
    return [width for both in reversed(pads) for width in both]


@in_half
def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """`conv1d` with the channels last: input (L, N, C), weight (K, C, O), output (L', N, O).

    Args:
        bias: shape (O,).
        pad: zeros at both ends.
    """
    output = conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return output.permute(2, 0, 1)
