"""Transforms that change a picture's size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.data.randomness import randomness
from tinygrad_cuda.data.transforms.base import Array, Transform, as_pixels, between, refuse
from tinygrad_cuda.data.transforms.sizes import InterpolationMode, interpolation_name, pair_of


def _kernel(mode: str, distance: Array) -> Array:
    x = np.abs(distance)
    if mode == "bilinear":
        return np.asarray(np.clip(1 - x, 0, None))
    a = -0.5  # Keys' cubic convolution, as Pillow and antialiased torch have it
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _weights(mode: str, old: int, new: int, antialias: bool) -> Array:
    """The matrix that takes `old` values of a line to `new` ones."""
    centers = (np.arange(new) + 0.5) * old / new
    if mode == "nearest":
        rows = np.zeros((new, old))
        rows[
            np.arange(new), np.minimum(np.floor(np.arange(new) * old / new), old - 1).astype(int)
        ] = 1
        return rows
    scale = max(old / new, 1.0) if antialias else 1.0
    centres = np.arange(old) + 0.5
    if antialias:
        weights = _kernel(mode, (centres - centers[:, None]) / scale)
        return np.asarray(weights / weights.sum(1, keepdims=True))
    # Without antialiasing the border's values go on outside.
    reach = 2 if mode == "bicubic" else 1
    spread = np.arange(-reach, old + reach)
    weights = _kernel(mode, spread + 0.5 - centers[:, None])
    rows = np.zeros((new, old))
    np.add.at(rows.T, np.clip(spread, 0, old - 1), weights.T)
    return rows


def resized(image: Array, height: int, width: int, mode: str, antialias: bool) -> Array:
    """The picture in another size."""
    rows = _weights(mode, image.shape[-2], height, antialias)
    columns = _weights(mode, image.shape[-1], width, antialias)
    values = image if image.dtype == np.float64 else image.astype(np.float32)
    out = rows.astype(values.dtype) @ values @ columns.T.astype(values.dtype)
    return as_pixels(out, image)


class Resize(Transform):
    """Changes the size.

    Args:
        size: (height, width), or one number for the shorter side.
        interpolation: ``bilinear``, ``bicubic`` or ``nearest``, or an `InterpolationMode`.
        max_size: the longer side's limit where `size` is one number.
        antialias: average over all pixels that fall into one where the picture shrinks.

    Raises:
        ArgumentError: a size or interpolation makes no sense.

    Example:
        >>> Resize(4)(np.ones((3, 8, 16), dtype=np.float32)).shape
        (3, 4, 8)
    """

    batched = True

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: InterpolationMode | str = InterpolationMode.BILINEAR,
        max_size: int | None = None,
        antialias: bool = True,
    ) -> None:
        pair_of("Resize", size)
        sizes = (size,) if isinstance(size, int) else tuple(size)
        one = len(sizes) == 1
        if max_size is not None and not one:
            refuse("Resize", "max_size limits the longer side", "one number for size", size)
        self.size: Any = sizes[0] if one else sizes
        self.interpolation = interpolation_name(
            "Resize", interpolation, "nearest", "bilinear", "bicubic"
        )
        self.max_size, self.antialias = max_size, antialias

    def apply(self, image: Array) -> Array:
        height, width = self._target(*image.shape[-2:])
        return resized(image, height, width, self.interpolation, self.antialias)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.size, int):
            return int(self.size[0]), int(self.size[1])
        short, long = min(height, width), max(height, width)
        new_short, new_long = self.size, int(self.size * long / short)
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        return (new_short, new_long) if height <= width else (new_long, new_short)


class RandomResizedCrop(Transform):
    """Cuts out a part of random size and shape and resizes it.

    Args:
        size: (height, width) of the result, or one number for both.
        scale: least and greatest share of the area.
        ratio: least and greatest width / height, drawn on a logarithmic scale.
        interpolation, antialias: see `Resize`.

    Raises:
        ArgumentError: a range makes no sense.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: InterpolationMode | str = InterpolationMode.BILINEAR,
        antialias: bool = True,
    ) -> None:
        for name, (low, high) in (("scale", scale), ("ratio", ratio)):
            if not 0 < low <= high:
                refuse("RandomResizedCrop", f"bad {name}", "0 < least <= greatest", (low, high))
        self.size, self.scale, self.ratio = pair_of("RandomResizedCrop", size), scale, ratio
        modes = ("nearest", "bilinear", "bicubic")
        self.interpolation = interpolation_name("RandomResizedCrop", interpolation, *modes)
        self.antialias = antialias

    def apply(self, image: Array) -> Array:
        top, left, rows, columns = self._part(*image.shape[-2:])
        part = image[..., top : top + rows, left : left + columns]
        return resized(part, *self.size, self.interpolation, self.antialias)

    def _part(self, height: int, width: int) -> tuple[int, int, int, int]:
        random = randomness()
        for _ in range(10):
            area = height * width * between(random, self.scale)
            ratio = math.exp(random.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                top = int(random.integers(height - rows + 1))
                return top, int(random.integers(width - columns + 1)), rows, columns
        # The largest part in the middle whose shape is allowed.
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        columns = max(min(width, round(height * ratio)), 1)
        rows = max(min(height, round(width / ratio)), 1)
        return (height - rows) // 2, (width - columns) // 2, rows, columns
