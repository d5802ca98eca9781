"""Convolution and its transpose, as matrix products over windows that are never stored.

With columns ``X[c k, n o]`` of windows: ``Y = W X``, ``dW = dY X^T``, and the gradient of the
input is again a convolution, of dY with the flipped kernel; with a stride, one for each rest that
places leave when divided by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import (
    Shape,
    channels_last_strides,
    contiguous_strides,
    is_channels_last,
    is_contiguous,
)
from tinygrad_cuda.graph.node import Node, gradient_mode, mode
from tinygrad_cuda.graph.ops import common, contraction, movement
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.nn.windows import count, padded, per_axis, windows
from tinygrad_cuda.tensors.autocast import in_half
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.layout import fresh
from tinygrad_cuda.tensors.templated_calls import templated
from tinygrad_cuda.tensors.tensor import Tensor

PHASES = 8  # convolutions that one with a stride may become, backwards


class _Geometry(NamedTuple):
    pads: tuple[tuple[int, int], ...]
    stride: Shape
    dilation: Shape
    groups: int


# Nodes --------------------------------------------------------------------------------------


def _columns(x: Node, kernel: Shape, lengths: Shape, at: _Geometry) -> Node:
    """Windows as columns: shape (groups, C / groups * prod(kernel), N * prod(lengths))."""
    rank = len(kernel)
    batch, channels = x.shape[:2]
    wide = windows(padded(x, at.pads), kernel, at.stride, at.dilation, lengths)
    wide = movement.reshape(
        wide, shape=(batch, at.groups, channels // at.groups, *lengths, *kernel)
    )
    axes = (1, 2, *range(3 + rank, 3 + 2 * rank), 0, *range(3, 3 + rank))
    wide = movement.permute(wide, axes=axes)
    rows = channels // at.groups * prod(kernel)
    return movement.reshape(wide, shape=(at.groups, rows, batch * prod(lengths)))


def _forward(x: Node, w: Node, lengths: Shape, at: _Geometry) -> Node:
    batch, outputs = x.shape[0], w.shape[0]
    kernel, groups = w.shape[2:], at.groups
    each = outputs // groups
    rows = movement.reshape(w, shape=(groups, each, prod(w.shape[1:])))
    y = contraction.matmul(rows, _columns(x, kernel, lengths, at))
    y = movement.reshape(y, shape=(groups, each, batch, *lengths))
    axes = (2, 0, 1, *range(3, 3 + len(lengths)))
    return movement.reshape(movement.permute(y, axes=axes), shape=(batch, outputs, *lengths))


def _weight_gradient(g: Node, x: Node, shape: Shape, at: _Geometry) -> Node:
    batch, outputs = g.shape[:2]
    lengths, groups = g.shape[2:], at.groups
    each = outputs // groups
    g = movement.reshape(g, shape=(batch, groups, each, *lengths))
    g = movement.permute(g, axes=(1, 2, 0, *range(3, 3 + len(lengths))))
    g = movement.reshape(g, shape=(groups, each, batch * prod(lengths)))
    columns = _columns(x, shape[2:], lengths, at)
    return movement.reshape(
        contraction.matmul(g, contraction.transpose(columns)), shape=shape
    )  # fmt: skip


def _turned(w: Node, groups: int) -> Node:
    """The kernel of the transposed convolution: channels exchanged within groups, flipped."""
    outputs, inputs, *kernel = w.shape
    w = movement.reshape(w, shape=(groups, outputs // groups, inputs, *kernel))
    w = movement.permute(w, axes=(0, 2, 1, *range(3, 3 + len(kernel))))
    w = movement.reshape(w, shape=(groups * inputs, outputs // groups, *kernel))
    axes = tuple(2 + axis for axis, size in enumerate(kernel) if size > 1)
    return movement.flip(w, axes=axes) if axes else w


def _transposed(g: Node, w: Node, size: Shape, at: _Geometry) -> Node:
    """The adjoint of convolution with respect to its input, whose spatial sizes are `size`."""
    phases = _phases(g.shape[2:], w.shape[2:], size, at)
    if not 0 < len(phases) <= PHASES or all(s == 1 for s in at.stride):
        return _spread(g, w, size, at)
    lead = (1, 1)
    parts = []
    for phase in phases:
        taps = movement.slice_(
            w,
            starts=(0, 0, *(axis.tap for axis in phase)),
            shape=(*w.shape[:2], *(axis.taps for axis in phase)),
            steps=(*lead, *(axis.step for axis in phase)),
        )
        none = ((0, 0),) * len(size)
        near = _Geometry(none, (1,) * len(size), tuple(a.dilation for a in phase), at.groups)
        part = _convolution(
            padded(g, [axis.pads for axis in phase]), _turned(taps, at.groups), near
        )
        parts.append(
            movement.pad(
                part,
                starts=(0, 0, *(axis.first for axis in phase)),
                shape=(*part.shape[:2], *size),
                steps=(*lead, *at.stride),
                value=0,
            )
        )
    return reduce(ew.add, parts)


class _Phase(NamedTuple):
    """Every stride-th place of an axis of a convolution's input, and the taps that reach it.

    Attributes:
        first: the first place; the others are a stride apart.
        tap, taps, step: the first tap, their number and their distance.
        dilation: how far apart neighbouring taps are in the convolution's output.
        pads: what that output gets or loses before and after.
    """

    first: int
    tap: int
    taps: int
    step: int
    dilation: int
    pads: tuple[int, int]


def _phases(lengths: Shape, kernel: Shape, size: Shape, at: _Geometry) -> list[tuple[_Phase, ...]]:
    """The parts of the input's gradient, each a convolution without stride.

    A place p gets ``g[q] w[t]`` with ``p + pad = q stride + t dilation``, so all its taps t leave
    the same rest; places and taps with different rests never meet.
    """
    axes = []
    for n, k, whole, s, d, (pad, _) in zip(lengths, kernel, size, at.stride, at.dilation, at.pads):
        step, found = s // gcd(s, d), []
        for rest in range(s):
            first = (rest - pad) % s
            tap = next((t for t in range(min(k, step)) if t * d % s == rest), None)
            places = -(-(whole - first) // s)
            if tap is None or places < 1:
                continue
            taps, near = -(-(k - tap) // step), d // gcd(s, d)
            before = near * (taps - 1) + (tap * d - rest) // s - (first + pad - rest) // s
            after = places + near * (taps - 1) - before - n
            found.append(_Phase(first, tap, taps, step, near, (before, after)))
        axes.append(found)
    return list(product(*axes))


def _spread(g: Node, w: Node, size: Shape, at: _Geometry) -> Node:
    """`_transposed` as one convolution, of g with its elements a stride apart."""
    lengths, kernel = g.shape[2:], w.shape[2:]
    reach = tuple(d * (k - 1) for d, k in zip(at.dilation, kernel))
    spread = tuple(
        max(before + n, (length - 1) * s + r + 1) + r
        for (before, _), n, length, s, r in zip(at.pads, size, lengths, at.stride, reach)
    )
    g = movement.pad(
        g, starts=(0, 0, *reach), shape=(*g.shape[:2], *spread), steps=(1, 1, *at.stride), value=0
    )
    g = movement.slice_(
        g,
        starts=(0, 0, *(before for before, _ in at.pads)),
        shape=(*g.shape[:2], *(n + r for n, r in zip(size, reach))),
        steps=(1,) * len(g.shape),
    )
    none = _Geometry(((0, 0),) * len(size), (1,) * len(size), at.dilation, at.groups)
    return _convolution(g, _turned(w, at.groups), none)


def _convolution(x: Node, w: Node, at: _Geometry) -> Node:
    """The convolution as one value with explicit gradients, themselves differentiable."""
    size, kernel = x.shape[2:], w.shape[2:]
    lengths = tuple(
        count("conv", n, k, s, d, pads)
        for n, k, s, d, pads in zip(size, kernel, at.stride, at.dilation, at.pads)
    )
    with gradient_mode(False):
        value = _forward(x, w, lengths, at)
    if not (mode.now.gradients and (x.requires_grad or w.requires_grad)):
        return value  # a rule that nobody asks for would keep both from being overwritten

    return common.custom(value, x, w, results=1, function=_Gradients(at), name=f"conv{len(size)}d")


@dataclass(frozen=True)
class _Gradients(common.GradientRule):
    """Those of a convolution with respect to its input and its kernel."""

    at: _Geometry

    def __call__(self, node: Node, *gs: Node | None) -> Sequence[Node | None]:
        (g,), (_, x, w) = gs, node.sources
        assert g is not None
        return (
            _transposed(g, w, x.shape[2:], self.at) if x.requires_grad else None,
            _weight_gradient(g, x, w.shape, self.at) if w.requires_grad else None,
        )


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
        found = channels_last_strides((*sizes[:2], 1, *sizes[2:]) if rank == 1 else sizes)
        found = (*found[:2], *found[3:]) if rank == 1 else found
        result._strides = found if whole else found[1:]
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
    y = _convolution(x, w, _Geometry(pads, steps, spaces, groups))
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
    at = _Geometry(tuple((p, p) for p in around), steps, spaces, groups)
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
