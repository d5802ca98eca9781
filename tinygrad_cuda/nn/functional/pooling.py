"""Pooling: windows, adaptive, by powers, and fractional."""

from __future__ import annotations

from functools import partial, reduce
from math import prod
from operator import or_
from typing import Any

from tinygrad_cuda.core.dtypes import bool_, iinfo, int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import mode
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.graph.ops.windows import padded, windows
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.nn.windows import per_axis, weighed_taps
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import arange
from tinygrad_cuda.tensors.layout import gives_fresh, gives_fresh_lines, gives_rows
from tinygrad_cuda.tensors.math import maximum
from tinygrad_cuda.tensors.opmath import rounded_once
from tinygrad_cuda.tensors.random import rand
from tinygrad_cuda.tensors.reductions import max_at
from tinygrad_cuda.tensors.shaping import cat
from tinygrad_cuda.tensors.tensor import Tensor

# Windows ------------------------------------------------------------------------------------------


class _Pool:
    """The windows of one call: their geometry, and the input seen through them.

    Attributes:
        lengths: how many windows along each axis.
        flat: the windows, shape (N, C, *lengths, prod(kernel)).
    """

    def __init__(
        self, op: str, input: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
        ceil_mode: bool, rank: int, fill: Any,
    ) -> None:  # fmt: skip
        if input.ndim not in (rank + 1, rank + 2):
            raise ShapeError(
                op,
                "the number of dimensions does not fit",
                expect=f"{rank + 2} (or {rank + 1}) dimensions",
                actual=str(tuple(input.shape)),
            )
        self.input, self.rank = input, rank
        self.kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
        chosen = self.kernel if stride is None or stride == [] else stride
        self.stride = per_axis(op, "stride", chosen, rank, 1)
        self.padding = per_axis(op, "padding", padding, rank)
        self.dilation = per_axis(op, "dilation", dilation, rank, 1)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel)):
            raise ArgumentError(
                op,
                "padding is larger than half a window",
                expect=f"at most {tuple(k // 2 for k in self.kernel)}",
                actual=str(self.padding),
            )
        self.size = tuple(input.shape[input.ndim - rank :])
        self.lengths = self._lengths(op, ceil_mode)
        pads = [
            (p, max((n - 1) * s + d * (k - 1) + 1 - size - p, 0))
            for size, k, s, p, d, n in zip(
                self.size, self.kernel, self.stride, self.padding, self.dilation, self.lengths
            )
        ]
        wide = windows(
            padded(input.node, pads, fill), self.kernel, self.stride, self.dilation, self.lengths
        )
        shape = wide.shape[: len(wide.shape) - rank] + (prod(self.kernel),)
        self.flat = wrap(movement.reshape(wide, shape=shape))

    def _lengths(self, op: str, ceil_mode: bool) -> Shape:
        lengths = []
        for size, k, s, p, d in zip(
            self.size, self.kernel, self.stride, self.padding, self.dilation
        ):
            last_start = size + 2 * p - d * (k - 1) - 1
            n = (last_start + (s - 1 if ceil_mode else 0)) // s + 1
            # A window must begin inside the input or its left border.
            if ceil_mode and (n - 1) * s >= size + p:
                n -= 1
            if n < 1:
                raise ShapeError(
                    op,
                    "the kernel is larger than the padded input",
                    expect=f"at most {size + 2 * p} along each axis",
                    actual=f"a kernel of {k} with dilation {d}",
                )
            lengths.append(n)
        return tuple(lengths)

    def along(self, axis: int, values: Tensor) -> Tensor:
        """Numbers of one axis of the output, shaped to broadcast with it."""
        return values.reshape(-1, *(1,) * (self.rank - 1 - axis))

    def inside(self, chosen: Tensor) -> Tensor:
        """Positions in a window: of one that chose its padding, its first element inside."""
        rest, outside = chosen, []
        first: Any = 0
        stride = 1
        for axis in reversed(range(self.rank)):
            start, step, size = self.starts(axis), self.dilation[axis], self.kernel[axis]
            outside.append(start + rest % size * step < 0)
            first = first + (-start).clamp(min=0).add(step - 1) // step * stride
            rest, stride = rest // size, stride * size
        return where(reduce(or_, outside), first, chosen)

    def indices(self, chosen: Tensor) -> Tensor:
        """Positions in the flattened input from positions in a window."""
        rest = chosen
        positions: list[Any] = [None] * self.rank
        for axis in reversed(range(self.rank)):
            positions[axis] = self.starts(axis) + rest % self.kernel[axis] * self.dilation[axis]
            rest = rest // self.kernel[axis]
        flat: Any = 0
        for position, size in zip(positions, self.size):
            flat = flat * size + position
        indices: Tensor = flat
        return indices

    def starts(self, axis: int) -> Tensor:
        """Where the windows of an axis begin, negative in the padding."""
        start = arange(self.lengths[axis], device=self.flat.device) * self.stride[axis]
        return self.along(axis, start - self.padding[axis])

    def divisor(self, count_include_pad: bool) -> Any:
        """How many elements each window has."""
        whole: Any = 1
        for axis in range(self.rank):
            k, s, p = self.kernel[axis], self.stride[axis], self.padding[axis]
            size, n = self.size[axis], self.lengths[axis]
            low, high = (-p, size + p) if count_include_pad else (0, size)
            if -p >= low and (n - 1) * s - p + k <= high:
                whole = whole * k
                continue
            start = arange(n, device=self.input.device) * s - p
            inside = (start + k).clamp(max=high) - start.clamp(min=low)
            whole = whole * self.along(axis, inside)
        return whole


def _lowest(x: Tensor) -> Any:
    if x.dtype.is_floating:
        return -float("inf")
    return iinfo(x.dtype).min


def _max_pool(
    op: str, rank: int, input: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, return_indices: bool,
) -> Any:  # fmt: skip
    pool = _Pool(
        op, input, kernel_size, stride, padding, dilation, ceil_mode, rank, _lowest(input)
    )  # fmt: skip
    # A window of the lowest value equals its padding, of which no element is meant.
    values, chosen = max_at(pool.flat, pool.inside) if any(pool.padding) else pool.flat.max(-1)
    return (values, pool.indices(chosen)) if return_indices else values


def max_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """`max_pool2d` over one axis."""
    # PyTorch has another algorithm where neither indices nor gradients are wanted.
    as_image = return_indices or (mode.now.gradients and input.requires_grad)
    pool = _max_pool_as_image if as_image else _max_pool_of_rows
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _max_pool1d(input: Tensor, *options: Any) -> Any:
    return _max_pool("max_pool1d", 1, input, *options)


_max_pool_as_image, _max_pool_of_rows = gives_fresh_lines(_max_pool1d), gives_rows(_max_pool1d)


@templated
@gives_fresh
def max_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """The largest element of each window; its gradient goes to the first of equal ones.

    Args:
        input: shape (N, C, H, W) or (C, H, W).
        kernel_size, stride, padding, dilation: an integer or one for each axis; the stride is the
            kernel's size when left out; what is padded is never chosen.
        ceil_mode: also take a last window that reaches over the border.
        return_indices: also return the positions, in each flattened plane of the input.

    Raises:
        ShapeError: the kernel is larger than the padded input.
        ArgumentError: a number is out of range.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.arange(16, device="cpu").float().reshape(1, 1, 4, 4)
        >>> max_pool2d(x, 2).tolist()
        [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    return _max_pool(
        "max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )  # fmt: skip


@gives_fresh
def max_pool3d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """`max_pool2d` over three axes."""
    return _max_pool(
        "max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )  # fmt: skip


@rounded_once
def _avg_pool(
    op: str, rank: int, input: Tensor, kernel_size: Any, stride: Any, padding: Any,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    pool = _Pool(op, input, kernel_size, stride, padding, 1, ceil_mode, rank, 0)
    total = pool.flat.sum(-1)
    if divisor_override == 0:
        raise ArgumentError(op, "a mean over nothing", expect="divisor_override > 0", actual="0")
    count = divisor_override or pool.divisor(count_include_pad)
    if input.dtype.is_floating or input.dtype is bool_:
        result: Tensor = total / count
        return result
    whole: Tensor = total.div(count, rounding_mode="trunc").to(input.dtype)
    return whole


@gives_fresh_lines
def avg_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """`avg_pool2d` over one axis."""
    return _avg_pool(
        "avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad
    )  # fmt: skip


@templated
@gives_fresh
def avg_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window; of integers cut to an integer.

    Args:
        input: shape (N, C, H, W) or (C, H, W).
        kernel_size, stride, padding, ceil_mode: as for `max_pool2d`; zeros are padded.
        count_include_pad: whether padded zeros count in the mean.
        divisor_override: divide by this instead of the number of elements.

    Raises:
        ShapeError: the kernel is larger than the padded input.
        ArgumentError: a number is out of range.
    """
    return _avg_pool(
        "avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad,
        divisor_override,
    )  # fmt: skip


@gives_rows
def avg_pool3d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """`avg_pool2d` over three axes."""
    return _avg_pool(
        "avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad,
        divisor_override,
    )  # fmt: skip


def _lp_pool(
    rank: int, input: Tensor, norm_type: float, kernel_size: Any, stride: Any, ceil_mode: bool
) -> Tensor:
    op = f"lp_pool{rank}d"
    if abs(norm_type) == float("inf"):
        sign = 1 if norm_type > 0 else -1
        largest = _max_pool(
            op, rank, input.abs() * sign, kernel_size, stride, 0, 1, ceil_mode, False
        )  # fmt: skip
        extreme: Tensor = largest * sign
        return extreme
    pool = _Pool(op, input, kernel_size, stride, 0, 1, ceil_mode, rank, 0)
    # PyTorch's mean of what lies inside, times the whole kernel: a window cut off weighs as much.
    total = pool.flat.pow(norm_type).sum(-1)
    inside = pool.divisor(True)
    if isinstance(inside, Tensor):
        total = total * (prod(pool.kernel) / inside).to(total.dtype)
    nothing = total == 0  # where the root has no derivative
    return where(nothing, 0.0, where(nothing, 1.0, total).pow(1.0 / norm_type))


@gives_fresh_lines
def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """``(sum x ** p) ** (1 / p)`` of each window along the last axis."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


@gives_fresh
def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """``(sum x ** p) ** (1 / p)`` of each window; a negative sum has no even root and gives NaN.

    Args:
        input: shape (N, C, H, W) or (C, H, W).
        norm_type: p; infinity for the largest magnitude, minus infinity for the smallest.
        kernel_size, stride, ceil_mode: as for `max_pool2d`.
    """
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


@gives_fresh
def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """`lp_pool2d` over three axes."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


# Adaptive -----------------------------------------------------------------------------------


def _targets(op: str, input: Tensor, output_size: Any, rank: int) -> Shape:
    if input.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            op,
            "the number of dimensions does not fit",
            expect=f"{rank + 2} (or {rank + 1}) dimensions",
            actual=str(tuple(input.shape)),
        )
    sizes = tuple(output_size) if isinstance(output_size, tuple | list) else (output_size,) * rank
    spatial = input.shape[input.ndim - rank :]
    filled = tuple(n if wanted is None else wanted for wanted, n in zip(sizes, spatial))
    return per_axis(op, "output_size", filled, rank, 0)


def _emptied(result: Tensor, sizes: Shape) -> Tensor:
    """A result whose spatial sizes are at least 1, cut to sizes of which some are 0."""
    for axis, size in enumerate(sizes, start=result.ndim - len(sizes)):
        result = result.narrow(axis, 0, size)
    return result


def _spans(first: Tensor, end: Tensor, size: int) -> Tensor:
    """Which elements of an axis belong to each span: shape (number of spans, size)."""
    positions = arange(size, device=first.device)
    inside: Tensor = (positions >= first.unsqueeze(1)) & (positions < end.unsqueeze(1))
    return inside


def _span_ends(input: Tensor, axis: int, count: int) -> tuple[Tensor, Tensor]:
    """Where each of `count` spans of an axis begins and ends."""
    size, device = input.shape[axis], input.device
    first = arange(count, device=device) * size // count
    # The end is rounded up: (i + 1) size / count.
    end = (arange(1, count + 1, device=device) * size + (count - 1)) // count
    return first, end


def _even(input: Tensor, sizes: Shape) -> Shape | None:
    """The kernel, where all windows are of one size and none overlap."""
    spatial = input.shape[input.ndim - len(sizes) :]
    if any(n % wanted for n, wanted in zip(spatial, sizes)):
        return None
    return tuple(n // wanted for n, wanted in zip(spatial, sizes))


@rounded_once
def _adaptive_avg(rank: int, input: Tensor, output_size: Any) -> Tensor:
    op = f"adaptive_avg_pool{rank}d"
    sizes = _targets(op, input, output_size, rank)
    if 0 in sizes:
        whole: Tensor = _adaptive_avg(rank, input, tuple(max(size, 1) for size in sizes))
        return _emptied(whole, sizes)
    kernel = _even(input, sizes)
    if kernel is not None:
        return _avg_pool(op, rank, input, kernel, None, 0, False, True)
    for position, wanted in enumerate(sizes):
        axis = input.ndim - rank + position
        size = input.shape[axis]
        first, end = _span_ends(input, axis, wanted)
        longest = max(-(-(k + 1) * size // wanted) - k * size // wanted for k in range(wanted))
        positions = first.unsqueeze(1) + arange(longest, device=input.device)
        inside = positions < end.unsqueeze(1)
        shares = inside.to(input.dtype) / (end - first).to(input.dtype).unsqueeze(1)
        input = weighed_taps(input, axis, positions, shares, inside)
    return input


@gives_fresh_lines
def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """`adaptive_avg_pool2d` over one axis."""
    require_real("adaptive_avg_pool1d", input)
    return _adaptive_avg(1, input, output_size)


@templated
@gives_fresh
def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means of windows from ``floor(i H / h)`` to ``ceil((i + 1) H / h)``, h of them.

    Args:
        input: shape (N, C, H, W) or (C, H, W).
        output_size: h, or (h, w); None keeps a size.

    Example:
        >>> import tinygrad_cuda as tc
        >>> adaptive_avg_pool2d(tc.ones(2, 3, 7, 5, device="cpu"), 1).shape
        Size([2, 3, 1, 1])
    """
    require_real("adaptive_avg_pool2d", input)
    return _adaptive_avg(2, input, output_size)


@gives_rows
def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """`adaptive_avg_pool2d` over three axes."""
    require_real("adaptive_avg_pool3d", input)
    return _adaptive_avg(3, input, output_size)


def _adaptive_max(rank: int, input: Tensor, output_size: Any, return_indices: bool) -> Any:
    op = f"adaptive_max_pool{rank}d"
    sizes = _targets(op, input, output_size, rank)
    if 0 in sizes:
        parts = _adaptive_max(rank, input, tuple(max(size, 1) for size in sizes), True)
        values, indices = (_emptied(part, sizes) for part in parts)
        return (values, indices) if return_indices else values
    kernel = _even(input, sizes)
    if kernel is not None:
        return _max_pool(op, rank, input, kernel, None, 0, 1, False, return_indices)
    whole = tuple(input.shape[input.ndim - rank :])
    coordinates: list[Tensor] = []
    # The last axis first, so that of equal elements the first in row-major order is chosen.
    for position in reversed(range(rank)):
        axis = input.ndim - rank + position
        first, end = _span_ends(input, axis, sizes[position])
        inside = _spans(first, end, input.shape[axis])
        rows = input.movedim(axis, -1).unsqueeze(-2)
        # A span of the lowest value equals what lies before it; its first element is meant.
        spans = where(inside, rows, _lowest(input))
        values, chosen = max_at(spans, partial(maximum, first))
        input, chosen = values.movedim(-1, axis), chosen.movedim(-1, axis)
        coordinates = [coordinate.gather(axis, chosen) for coordinate in coordinates] + [chosen]
    if not return_indices:
        return input
    flat: Any = 0
    for coordinate, size in zip(reversed(coordinates), whole):
        flat = flat * size + coordinate
    return input, flat


@gives_fresh_lines
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """`adaptive_max_pool2d` over one axis."""
    return _adaptive_max(1, input, output_size, return_indices)


@gives_fresh
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest elements of the windows of `adaptive_avg_pool2d`.

    Args:
        input: shape (N, C, H, W) or (C, H, W).
        output_size: h, or (h, w); None keeps a size.
        return_indices: also return the positions, in each flattened plane of the input.
    """
    return _adaptive_max(2, input, output_size, return_indices)


@gives_rows
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """`adaptive_max_pool2d` over three axes."""
    return _adaptive_max(3, input, output_size, return_indices)


# With positions -----------------------------------------------------------------------------


def max_pool1d_with_indices(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """`max_pool1d` and the positions, whatever `return_indices` says."""
    return max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def max_pool2d_with_indices(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """`max_pool2d` and the positions, whatever `return_indices` says."""
    return max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def max_pool3d_with_indices(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """`max_pool3d` and the positions, whatever `return_indices` says."""
    return max_pool3d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


def adaptive_max_pool1d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> Any:  # fmt: skip
    """`adaptive_max_pool1d` and the positions, whatever `return_indices` says."""
    return adaptive_max_pool1d(input, output_size, True)


def adaptive_max_pool2d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> Any:  # fmt: skip
    """`adaptive_max_pool2d` and the positions, whatever `return_indices` says."""
    return adaptive_max_pool2d(input, output_size, True)


def adaptive_max_pool3d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> Any:  # fmt: skip
    """`adaptive_max_pool3d` and the positions, whatever `return_indices` says."""
    return adaptive_max_pool3d(input, output_size, True)


# Fractional max pooling (Graham, 2014) ------------------------------------------------------------


def _starts(sample: Tensor, size: int, count: int, kernel: int) -> Tensor:
    """Where the windows of an axis begin, shape (N, C, count); the last one ends at the end."""
    last: Tensor = sample.new_full((*sample.shape, 1), size - kernel).to(int64)
    if count == 1:
        return last
    step = (size - kernel) / (count - 1)
    positions = arange(count - 1, device=sample.device).to(sample.dtype)
    shift = sample.unsqueeze(-1)
    # Both cut to integers, as Graham and PyTorch do.
    first = ((positions + shift) * step).to(int64) - (shift * step).to(int64)
    return cat([first, last], -1)


def _pool(
    rank: int, input: Tensor, kernel_size: Any, output_size: Any, output_ratio: Any,
    return_indices: bool, samples: Tensor | None,
) -> Any:  # fmt: skip
    op = f"fractional_max_pool{rank}d"
    if input.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            op, "the number of dimensions does not fit",
            expect=f"{rank + 2} (or {rank + 1}) dimensions", actual=str(tuple(input.shape)),
        )  # fmt: skip
    sizes = tuple(input.shape[input.ndim - rank :])
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    if output_size is None:
        if output_ratio is None:
            raise ArgumentError(
                op, "the size is not given", expect="output_size or output_ratio", actual="neither"
            )
        given = output_ratio if isinstance(output_ratio, tuple | list) else (output_ratio,) * rank
        output_size = tuple(int(size * ratio) for size, ratio in zip(sizes, given))
    counts = per_axis(op, "output_size", output_size, rank, 1)
    if any(n + k - 1 > size for n, k, size in zip(counts, kernel, sizes)):
        raise ShapeError(
            op, "the windows do not fit", expect=f"output_size + kernel_size - 1 within {sizes}",
            actual=f"{counts} windows of {kernel}",
        )  # fmt: skip
    planes = tuple(input.shape[: input.ndim - rank])
    if samples is None:
        samples = rand(*planes, rank, dtype=input.dtype, device=input.device)
    elif len(planes) < 2:
        samples = samples[0]  # the others are PyTorch's for the rest of a batch
    samples = samples.reshape(*planes, rank)
    # A number of the flattened plane for each element of each window; PyTorch's samples for two
    # axes come the last axis first.
    order = range(rank) if rank == 3 else reversed(range(rank))
    flat: Any = 0
    for axis, number in enumerate(order):
        begin = _starts(samples[..., number], sizes[axis], counts[axis], kernel[axis])
        inside = begin.unsqueeze(-1) + arange(kernel[axis], device=input.device)
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = counts[axis], kernel[axis]
        flat = flat * sizes[axis] + inside.reshape(*planes, *shape)
    positions = flat.flatten(len(planes) + rank)
    seen = input.flatten(len(planes)).gather(-1, positions.flatten(len(planes)))
    values, chosen = seen.reshape(positions.shape).max(-1)
    if not return_indices:
        return values
    return values, positions.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def fractional_max_pool2d(
    input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """The largest elements of windows that begin a random fraction apart.

    Args:
        input: shape (N, C, H, W) or (C, H, W).
        kernel_size: of the windows, which may overlap.
        output_size: how many windows along each axis.
        output_ratio: the same as a part of the input's size, between 0 and 1.
        return_indices: also return the positions, in each flattened plane of the input.

    Raises:
        ArgumentError: neither output_size nor output_ratio is given.
        ShapeError: so many windows do not fit.

    Example:
        >>> import tinygrad_cuda as tc
        >>> fractional_max_pool2d(tc.rand(1, 2, 9, 9, device="cpu"), 2, output_ratio=0.6).shape
        Size([1, 2, 5, 5])
    """
    return _pool(
        2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )  # fmt: skip


def fractional_max_pool3d(
    input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """`fractional_max_pool2d` over three axes."""
    return _pool(
        3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )  # fmt: skip


def fractional_max_pool2d_with_indices(
    input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """`fractional_max_pool2d` and the positions, whatever `return_indices` says."""
    return _pool(2, input, kernel_size, output_size, output_ratio, True, _random_samples)


def fractional_max_pool3d_with_indices(
    input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """`fractional_max_pool3d` and the positions, whatever `return_indices` says."""
    return _pool(3, input, kernel_size, output_size, output_ratio, True, _random_samples)
