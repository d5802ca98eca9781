"""Images read at computed positions: grid_sample, affine_grid; and unpooling, which writes there.

Reference: Jaderberg et al. (2015), spatial transformer networks.
"""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.graph.ops.common import nothing_written, with_history
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.nn.windows import per_axis
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.autocast import in_widest
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import arange, ones, zeros
from tinygrad_cuda.tensors.layout import fresh
from tinygrad_cuda.tensors.opmath import rounded_once
from tinygrad_cuda.tensors.shaping import stack
from tinygrad_cuda.tensors.tensor import Tensor

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """Where the pixels of an output lie in an input that is mapped affinely.

    Args:
        theta: shape (N, 2, 3), the maps of (x, y, 1); of volumes (N, 3, 4), of (x, y, z, 1).
        size: (N, C, H, W) of the output, or (N, C, D, H, W).
        align_corners: -1 and 1 are the centres of the corner pixels, not their outer edges.

    Returns:
        Shape (N, H, W, 2), or (N, D, H, W, 3), for `grid_sample`.

    Raises:
        ShapeError: theta and size do not fit.
    """
    sizes = tuple(size)
    rank = len(sizes) - 2
    if rank not in (2, 3) or tuple(theta.shape) != (sizes[0], rank, rank + 1):
        raise ShapeError(
            "affine_grid", "theta and size do not fit",
            expect="(N, 2, 3) and (N, C, H, W), or (N, 3, 4) and (N, C, D, H, W)",
            actual=f"{tuple(theta.shape)} and {sizes}",
        )  # fmt: skip
    batch, spatial = sizes[0], sizes[2:]
    parts = []
    for axis in reversed(range(rank)):  # x belongs to the last axis
        centres = _centres(spatial[axis], bool(align_corners), theta)
        shape = [spatial[axis] if other == axis else 1 for other in range(rank)]
        parts.append(centres.reshape(*shape).expand(*spatial))
    parts.append(ones(*spatial, device=theta.device, dtype=theta.dtype))
    base = stack(parts, -1).reshape(1, prod(spatial), rank + 1).expand(batch, -1, -1)
    return (base @ theta.transpose(1, 2)).reshape(batch, *spatial, rank)


def _centres(count: int, aligned: bool, like: Tensor) -> Tensor:
    """Coordinates between -1 and 1 of pixels in a row."""
    positions = arange(count, device=like.device, dtype=like.dtype)
    if aligned:
        return positions * (2.0 / max(count - 1, 1)) - (1.0 if count > 1 else 0.0)
    return (positions * 2.0 + 1.0) / count - 1.0


@in_widest
@rounded_once
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """The input read at the positions of a grid.

    Args:
        input: shape (N, C, H, W), or (N, C, D, H, W).
        grid: shape (N, h, w, 2), x and y between -1 (left, top) and 1; or (N, d, h, w, 3), with z
            (front) as the third.
        mode: ``bilinear`` (of volumes trilinear), ``nearest`` or, of images, ``bicubic``.
        padding_mode: what lies outside: ``zeros``, ``border`` (the nearest pixel) or
            ``reflection`` (the image mirrored at its border, again and again).
        align_corners: -1 and 1 are the centres of the corner pixels, not their outer edges.

    Returns:
        Shape (N, C, h, w), or (N, C, d, h, w).

    Raises:
        ArgumentError: a mode is unknown, or bicubic for volumes.
        ShapeError: input and grid do not fit.
    """
    if mode not in MODES or padding_mode not in PADDINGS:
        raise ArgumentError(
            "grid_sample", "unknown mode",
            expect=f"{', '.join(MODES)}; {', '.join(PADDINGS)}",
            actual=f"mode={mode!r}, padding_mode={padding_mode!r}",
        )  # fmt: skip
    _check_grid(input, grid, mode)
    aligned = bool(align_corners)
    if mode == "bicubic":
        return _bicubic(input, grid, aligned, padding_mode)
    places = [
        _padded(_pixels(grid[..., k], size, aligned), size, aligned, padding_mode)
        for k, size in enumerate(reversed(input.shape[2:]))
    ]
    if mode == "nearest":
        read = _read(input, *(place.detach().round() for place in places))
        return wrap(nothing_written(read.node, grid.node))
    return _multilinear(input, places)


def _check_grid(input: Tensor, grid: Tensor, mode: str) -> None:
    rank = grid.ndim - 2
    if rank not in (2, 3) or input.ndim != grid.ndim or (
        (grid.shape[0], grid.shape[-1]) != (input.shape[0], rank)
    ):  # fmt: skip
        raise ShapeError(
            "grid_sample", "input and grid do not fit",
            expect="(N, C, H, W) and (N, h, w, 2), or (N, C, D, H, W) and (N, d, h, w, 3)",
            actual=f"{tuple(input.shape)} and {tuple(grid.shape)}",
        )  # fmt: skip
    if mode == "bicubic" and rank != 2:
        raise ArgumentError(
            "grid_sample", "bicubic is for images", expect="bilinear or nearest for volumes",
            actual=mode,
        )  # fmt: skip


def _multilinear(input: Tensor, places: list[Tensor]) -> Tensor:
    """The neighbours of each place, x first, weighted by how near they are."""
    before = [place.detach().floor() for place in places]
    total: Any = None
    for corner in itertools.product((0, 1), repeat=len(places)):
        share: Any = None
        for after, place, low in zip(corner, places, before):
            near = place - low if after else 1.0 - (place - low)
            share = near if share is None else share * near
        at = [low + after for after, low in zip(corner, before)]
        part = _read(input, *at) * share.unsqueeze(1)
        total = part if total is None else total + part
    result: Tensor = total
    return result


CUBIC = -0.75  # the free coefficient of the cubic kernel, PyTorch's


def _cubic_shares(t: Tensor) -> list[Tensor]:
    """The weights of four neighbours, by the distance from the second (Keys, 1981)."""
    near = [((CUBIC + 2.0) * d - (CUBIC + 3.0)) * d * d + 1.0 for d in (t, 1.0 - t)]
    far = [
        ((CUBIC * d - 5.0 * CUBIC) * d + 8.0 * CUBIC) * d - 4.0 * CUBIC for d in (1.0 + t, 2.0 - t)
    ]
    return [far[0], near[0], near[1], far[1]]


def _bicubic(input: Tensor, grid: Tensor, aligned: bool, padding: str) -> Tensor:
    """Sixteen neighbours each; what lies outside is looked for pixel by pixel, as in PyTorch."""
    height, width = input.shape[2:]
    x, y = (_pixels(grid[..., k], size, aligned) for k, size in ((0, width), (1, height)))
    left, top = x.detach().floor(), y.detach().floor()
    shares_x, shares_y = _cubic_shares(x - left), _cubic_shares(y - top)
    total: Any = None
    for row in range(4):
        line: Any = None
        at_y = _padded(top + (row - 1.0), height, aligned, padding)
        for column in range(4):
            at_x = _padded(left + (column - 1.0), width, aligned, padding)
            part = _read(input, at_x, at_y) * shares_x[column].unsqueeze(1)
            line = part if line is None else line + part
        line = line * shares_y[row].unsqueeze(1)
        total = line if total is None else total + line
    result: Tensor = total
    return result


def _pixels(coordinate: Tensor, size: int, aligned: bool) -> Tensor:
    """From -1 .. 1 to numbers of pixels."""
    scaled = (coordinate + 1.0) * ((size - 1) / 2 if aligned else size / 2)
    return scaled if aligned else scaled - 0.5


def _reflected(position: Tensor, size: int, aligned: bool) -> Tensor:
    """Mirrored at the centres (`aligned`) or outer edges of the first and last pixel."""
    low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
    if span == 0.0:
        return position * 0.0
    distance = (position - low).abs()
    turns = (distance.detach() / span).floor()
    rest = distance - turns * span
    return where(turns.remainder(2.0) == 0.0, rest + low, (span + low) - rest)


def _padded(position: Tensor, size: int, aligned: bool, padding: str) -> Tensor:
    """A position outside, moved to the pixel that is read instead; unchanged for zeros."""
    if padding == "zeros":
        return position
    if padding == "reflection":
        position = _reflected(position, size, aligned)
    inside = (position > 0) & (position < size - 1)
    return where(inside, position, position.detach().clamp(0.0, size - 1.0))


def _read(input: Tensor, *places: Tensor) -> Tensor:
    """Pixels at integer positions, x first, each of shape (N, h, w); zero outside."""
    batch, channels, *sizes = input.shape
    shape = places[0].shape[1:]
    inside: Any = None
    for place, size in zip(places, reversed(sizes)):
        within = (place >= 0) & (place < size)
        inside = within if inside is None else inside & within
    number: Any = 0  # in whole numbers: a float32 has not enough digits for a large image
    for place, size in zip(reversed(places), sizes):
        number = number * size + where(inside, place, 0.0).to(int64)
    positions = number.reshape(batch, 1, prod(shape)).expand(batch, channels, prod(shape))
    values = input.reshape(batch, channels, prod(sizes)).gather(2, positions)
    return where(inside.unsqueeze(1), values.reshape(batch, channels, *shape), 0.0)


# Unpooling ----------------------------------------------------------------------------------


def _unpool(
    rank: int, input: Tensor, indices: Tensor, kernel_size: Any, stride: Any, padding: Any,
    output_size: Any,
) -> Tensor:  # fmt: skip
    op = f"max_unpool{rank}d"
    if input.shape != indices.shape or input.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            op, "input and indices do not fit", expect="what max pooling returned",
            actual=f"{tuple(input.shape)} and {tuple(indices.shape)}",
        )  # fmt: skip
    lead, spatial = input.shape[: input.ndim - rank], input.shape[input.ndim - rank :]
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    steps = per_axis(op, "stride", kernel if stride is None else stride, rank, 1)
    around = per_axis(op, "padding", padding, rank)
    usual = tuple((n - 1) * s - 2 * p + k for n, s, p, k in zip(spatial, steps, around, kernel))
    sizes = usual if output_size is None else tuple(output_size)[-rank:]
    empty = zeros(*lead, prod(sizes), device=input.device, dtype=input.dtype)
    positions, values = (part.reshape(*lead, prod(spatial)) for part in (indices, input))
    filled = empty.scatter(input.ndim - rank, positions, values.detach())
    if values.requires_grad:
        # As in PyTorch each value gets the gradient of its position, also where another one stays.
        history = empty.scatter_add(input.ndim - rank, positions, values)
        filled = wrap(with_history(filled.node, history.node))
    return fresh(filled.reshape(*lead, *sizes), input)


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
    output_size: Any = None,
) -> Tensor:  # fmt: skip
    """`max_unpool2d` over one axis."""
    require_real("max_unpool1d", input, indices)
    return _unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
    output_size: Any = None,
) -> Tensor:  # fmt: skip
    """Values at the indices from max pooling, zeros elsewhere.

    Args:
        input, indices: what `max_pool2d` with return_indices gave.
        kernel_size, stride, padding: of that pooling.
        output_size: the sizes before it, where several give the same result.

    Raises:
        ShapeError: input and indices have different shapes.
        IndexError: an index is out of range (raised when the value is computed).
    """
    require_real("max_unpool2d", input, indices)
    return _unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
    output_size: Any = None,
) -> Tensor:  # fmt: skip
    """`max_unpool2d` over three axes."""
    require_real("max_unpool3d", input, indices)
    return _unpool(3, input, indices, kernel_size, stride, padding, output_size)
