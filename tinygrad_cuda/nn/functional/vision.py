"""Images made larger, smaller, or rearranged: interpolate, pixel_shuffle and its inverse.

Resizing along an axis gathers the few elements that an output depends on, and weighs them; the
positions and weights are computed within the kernel's loads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType, float32, float64, int64, uint8
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.nn.fixed_point import resized_bytes
from tinygrad_cuda.nn.functional.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
)
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.nn.windows import weighed_taps
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import arange
from tinygrad_cuda.tensors.layout import gives_fresh
from tinygrad_cuda.tensors.opmath import rounded_once
from tinygrad_cuda.tensors.shaping import cat
from tinygrad_cuda.tensors.tensor import Tensor

_RANKS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
MODES = ("nearest", "nearest-exact", "area", *_RANKS)


def _sizes(
    input: Tensor, size: Any, scale_factor: Any, recompute: bool | None, least: int
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Sizes of the output, at least `least`, and the factors that stay the scale of positions."""
    spatial = input.shape[2:]
    rank = len(spatial)
    if (size is None) == (scale_factor is None):
        raise ArgumentError(
            "interpolate", "needs size or scale_factor", expect="one of them",
            actual=f"size={size}, scale_factor={scale_factor}",
        )  # fmt: skip
    given = size if scale_factor is None else scale_factor
    numbers = tuple(given) if isinstance(given, tuple | list) else (given,) * rank
    if len(numbers) != rank:
        raise ArgumentError(
            "interpolate", "one number for each spatial axis", expect=str(rank),
            actual=str(len(numbers)),
        )  # fmt: skip
    if scale_factor is None:
        sizes = tuple(int(n) for n in numbers)
    else:
        sizes = tuple(math.floor(float(n) * factor) for n, factor in zip(spatial, numbers))
    if min(sizes, default=1) < least:
        raise ArgumentError(
            "interpolate",
            "the output would be empty" if least else "a size is negative",
            expect=f"sizes >= {least}",
            actual=str(sizes),
        )
    if scale_factor is None or recompute:
        return sizes, (None,) * rank
    return sizes, tuple(float(factor) for factor in numbers)


@templated
@in_float32
def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    r"""The input resized along its spatial axes.

    Args:
        input: shape (N, C, \*sizes) with one to three spatial axes.
        size: the new sizes, an integer or one for each axis.
        scale_factor: or what they are multiplied by.
        mode: ``nearest``, ``nearest-exact``, ``linear`` (one axis), ``bilinear`` or ``bicubic``
            (two), ``trilinear`` (three) or ``area`` (means).
        align_corners: the corners of both grids are the same points, instead of the same areas.
        recompute_scale_factor: take the scale from the sizes, not from scale_factor.
        antialias: for ``bilinear`` and ``bicubic``: where the output is smaller, each element
            is a mean over as much of the input as it covers.

    The input is floating; ``nearest`` takes every dtype, ``bilinear`` and ``bicubic`` take uint8
    too, with weights of 16 bits and each axis rounded to bytes, as PyTorch's CPU does.

    Raises:
        ArgumentError: an argument is unknown or does not fit the mode.
        ShapeError: the mode does not fit the number of spatial axes.
        DTypeError: the mode weighs elements, and the input is neither floating nor uint8.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([[[0.0, 1.0]]], device="cpu")
        >>> interpolate(x, scale_factor=2, mode="linear").tolist()
        [[[0.0, 0.25, 0.75, 1.0]]]
    """
    require_real("interpolate", input)
    _check(input, mode, align_corners, antialias)
    # Means over areas may be none, as those of `adaptive_avg_pool2d`.
    least = 0 if mode == "area" else 1
    sizes, factors = _sizes(input, size, scale_factor, recompute_scale_factor, least)
    if mode == "area":
        pools = (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)
        return pools[len(sizes) - 1](input, sizes)
    return _resized(input, sizes, factors, mode, bool(align_corners), antialias)


@gives_fresh
@rounded_once
def _resized(
    input: Tensor, sizes: tuple[int, ...], factors: tuple[float | None, ...], mode: str,
    align_corners: bool, antialias: bool,
) -> Tensor:  # fmt: skip
    """Each spatial axis in turn, the innermost first."""
    for axis in reversed(range(2, input.ndim)):
        wanted, factor = sizes[axis - 2], factors[axis - 2]
        if mode.startswith("nearest"):
            input = _nearest(input, axis, wanted, factor, 0.5 if mode == "nearest-exact" else 0.0)
        elif input.dtype is uint8:
            if wanted != input.shape[axis]:
                input = resized_bytes(input, axis, wanted, factor, mode, align_corners, antialias)
        elif wanted != input.shape[axis] or factor not in (None, 1.0):
            make = _smoothed if antialias else _taps
            positions, weights, inside = make(input, axis, wanted, factor, mode, align_corners)
            input = weighed_taps(input, axis, positions, weights, inside)
    return input


def _check(input: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> None:
    if mode not in MODES:
        raise ArgumentError(
            "interpolate", "unknown mode", expect=", ".join(MODES), actual=repr(mode)
        )
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ArgumentError(
            "interpolate", f"antialias means nothing to mode {mode!r}",
            expect="bilinear or bicubic", actual=repr(mode),
        )  # fmt: skip
    if align_corners is not None and mode not in _RANKS:
        raise ArgumentError(
            "interpolate", f"align_corners means nothing to mode {mode!r}",
            expect="None", actual=str(align_corners),
        )  # fmt: skip
    if mode in _RANKS and not (input.dtype.is_floating or _takes_bytes(input, mode)):
        raise DTypeError(
            "interpolate", f"mode {mode!r} needs a floating dtype", expect="a floating input",
            actual=input.dtype.name, hint="interpolate(x.float(), ...).round()",
        )  # fmt: skip
    rank = input.ndim - 2
    if not 1 <= rank <= 3 or _RANKS.get(mode, rank) != rank:
        raise ShapeError(
            "interpolate", "the mode does not fit the number of dimensions",
            expect=f"(N, C) and {_RANKS.get(mode, '1 to 3')} spatial axes",
            actual=str(tuple(input.shape)),
        )  # fmt: skip


def _takes_bytes(input: Tensor, mode: str) -> bool:
    return input.dtype is uint8 and _RANKS[mode] == 2


def _nearest(input: Tensor, axis: int, wanted: int, factor: float | None, shift: float) -> Tensor:
    size = input.shape[axis]
    if wanted % size == 0 and factor in (None, wanted / size):
        return input.repeat_interleave(wanted // size, axis) if wanted > size else input
    # In float32, as PyTorch computes it: elsewhere a position on a border would round otherwise.
    step = np.float32(size / wanted if factor is None else 1.0 / factor)
    sources = np.floor((np.arange(wanted, dtype=np.float32) + np.float32(shift)) * step)
    positions = np.minimum(sources, size - 1).astype(np.int64)
    return input.index_select(axis, positions)


Taps = tuple[Tensor, Tensor, Tensor | None]  # positions, weights, and which of them count


def _taps(
    input: Tensor, axis: int, wanted: int, factor: float | None, mode: str, aligned: bool
) -> Taps:
    """The positions and weights, (wanted, 2 or 4), of what each output depends on."""
    size = input.shape[axis]
    # Half precision cannot represent each position beyond some hundred.
    options: Any = {"device": input.device, "dtype": _exact(input)}
    positions = arange(wanted, **options).unsqueeze(1)
    if aligned and wanted > 1:
        source = positions * ((size - 1) / (wanted - 1))
        # The last points are the same, whatever the product's rounding is.
        source = where(positions == wanted - 1, float(size - 1), source)
    elif aligned:
        source = positions * 0.0
    else:
        step = size / wanted if factor is None else 1.0 / factor
        source = (positions + 0.5) * step - 0.5
    if mode != "bicubic":
        source = source.clamp(0.0, size - 1)
        offsets = arange(2, **options)
    else:
        offsets = arange(-1, 3, **options)
    first = source.floor()
    share = source - first
    if mode == "bicubic":
        weights = _cubic((share - offsets).abs())
    else:  # a small share is not rounded as one is
        weights = cat((1.0 - share, share), 1)
    # Positions outside read the border's element.
    taps = (first + offsets).clamp(0.0, size - 1)
    return taps.to(int64), weights.to(input.dtype), None


def _exact(input: Tensor) -> DType:
    return float64 if input.dtype is float64 else float32


def _smoothed(
    input: Tensor, axis: int, wanted: int, factor: float | None, mode: str, aligned: bool
) -> Taps:
    """`_taps` of a kernel that is as wide as what an element of the output covers."""
    size = input.shape[axis]
    options: Any = {"device": input.device, "dtype": _exact(input)}
    step = size / wanted if factor is None else 1.0 / factor
    if aligned:
        step = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    width = max(step, 1.0)
    reach = width * (1.0 if mode == "bilinear" else 2.0)
    center = (arange(wanted, **options).unsqueeze(1) + 0.5) * step
    first = (center - reach + 0.5).trunc().clamp(min=0.0)
    end = (center + reach + 0.5).trunc().clamp(max=float(size))
    columns = first + arange(min(math.ceil(2 * reach) + 1, size), **options)
    distance = ((columns - center + 0.5) / width).abs()
    if mode == "bilinear":
        weights = (1.0 - distance).clamp(min=0.0)
    else:
        weights = where(distance < 2.0, _cubic(distance, -0.5), 0.0)
    inside = columns < end
    weights = where(inside, weights, 0.0)
    shares: Tensor = (weights / weights.sum(-1, keepdim=True)).to(input.dtype)
    return columns.to(int64), shares, inside


def _cubic(distance: Tensor, a: float = -0.75) -> Tensor:
    """Keys' kernel (1981) for distances up to 2."""
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    far = ((distance - 5.0) * distance + 8.0) * distance * a - 4.0 * a
    return where(distance <= 1.0, near, far)


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """`interpolate`, under its older name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` by the nearest element, under its older name."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` of (N, C, H, W), bilinear with aligned corners, under its older name."""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)


# Rearranging --------------------------------------------------------------------------------


@gives_fresh
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    r"""(\*, C r r, H, W) rearranged to (\*, C, H r, W r) (Shi et al., 2016).

    Raises:
        ShapeError: the channels are not divisible by r * r.
    """
    r = upscale_factor
    if input.ndim < 3 or input.shape[-3] % (r * r):
        raise ShapeError(
            "pixel_shuffle", "the channels do not fit", expect=f"divisible by {r * r}",
            actual=str(tuple(input.shape)),
        )  # fmt: skip
    *lead, channels, height, width = input.shape
    rank = len(lead)
    apart = input.reshape(*lead, channels // (r * r), r, r, height, width)
    axes = (*range(rank), *(rank + k for k in (0, 3, 1, 4, 2)))
    return apart.permute(axes).reshape(*lead, channels // (r * r), height * r, width * r)


@gives_fresh
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    r"""The inverse of `pixel_shuffle`: (\*, C, H r, W r) to (\*, C r r, H, W).

    Raises:
        ShapeError: height or width is not divisible by r.
    """
    r = downscale_factor
    if input.ndim < 3 or input.shape[-1] % r or input.shape[-2] % r:
        raise ShapeError(
            "pixel_unshuffle", "the sizes do not fit", expect=f"divisible by {r}",
            actual=str(tuple(input.shape)),
        )  # fmt: skip
    *lead, channels, height, width = input.shape
    rank = len(lead)
    apart = input.reshape(*lead, channels, height // r, r, width // r, r)
    axes = (*range(rank), *(rank + k for k in (0, 2, 4, 1, 3)))
    return apart.permute(axes).reshape(*lead, channels * r * r, height // r, width // r)


@gives_fresh
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    r"""Channels of groups interleaved: (N, groups, C / groups, \*) with both exchanged.

    Raises:
        ShapeError: the groups do not divide the channels.
    """
    channels = input.shape[1] if input.ndim > 1 else 0
    if input.ndim < 3 or channels % groups:
        raise ShapeError(
            "channel_shuffle", "the groups do not divide the channels",
            expect=f"divisible by {groups}", actual=str(tuple(input.shape)),
        )  # fmt: skip
    apart = input.reshape(input.shape[0], groups, channels // groups, *input.shape[2:])
    return apart.transpose(1, 2).reshape(input.shape)
