"""Transforms that cut, border and mirror."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.data.randomness import randomness
from tinygrad_cuda.data.transforms.base import Array, Transform, check_probability, refuse
from tinygrad_cuda.data.transforms.sizes import Fill, filled, pair_of

MODES = ("constant", "edge", "reflect", "symmetric")


class Pad(Transform):
    """Adds a border.

    Args:
        padding: pixels on all sides, (left and right, top and bottom), or (left, top, right,
            bottom).
        fill: the border's value, or one for each channel, where padding_mode is ``constant``.
        padding_mode: ``constant``, ``edge``, ``reflect`` or ``symmetric``.

    Raises:
        ArgumentError: padding or padding_mode make no sense.

    Example:
        >>> Pad((1, 2))(np.ones((1, 3, 3))).shape
        (1, 7, 5)
    """

    batched = True

    def __init__(
        self, padding: int | Sequence[int], fill: Fill = 0, padding_mode: str = "constant"
    ) -> None:
        sides = (padding,) if isinstance(padding, int) else tuple(padding)
        if len(sides) not in (1, 2, 4) or min(sides) < 0:
            refuse("Pad", "bad padding", "1, 2 or 4 whole numbers, none negative", padding)
        if padding_mode not in MODES:
            refuse("Pad", "unknown padding_mode", " or ".join(MODES), padding_mode)
        self.padding, self.fill, self.padding_mode = padding, fill, padding_mode
        self._left, self._top, self._right, self._bottom = (sides * 4)[:4]

    def apply(self, image: Array) -> Array:
        height, width = image.shape[-2:]
        if self.padding_mode == "constant":
            rows, columns = height + self._top + self._bottom, width + self._left + self._right
            out = filled(image, rows, columns, self.fill)
            out[..., self._top : self._top + height, self._left : self._left + width] = image
            return out
        borders = [(0, 0)] * (image.ndim - 2)
        borders += [(self._top, self._bottom), (self._left, self._right)]
        mode: Any = self.padding_mode
        return np.asarray(np.pad(image, borders, mode))


class CenterCrop(Transform):
    """Cuts out the middle; a picture that is too small gets a border of zeros.

    Args:
        size: (height, width), or one number for both.

    Example:
        >>> CenterCrop(2)(np.arange(16).reshape(1, 4, 4)).tolist()
        [[[5, 6], [9, 10]]]
    """

    batched = True

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = pair_of("CenterCrop", size)

    def apply(self, image: Array) -> Array:
        height, width = self.size
        rows, columns = image.shape[-2:]
        if rows < height or columns < width:
            down, right = max(height - rows, 0), max(width - columns, 0)
            sides = (right // 2, down // 2, (right + 1) // 2, (down + 1) // 2)
            image = Pad(sides).apply(image)
            rows, columns = image.shape[-2:]
        top, left = round((rows - height) / 2), round((columns - width) / 2)
        return image[..., top : top + height, left : left + width]


class RandomCrop(Transform):
    """Cuts out a part at a random position: the usual augmentation is a crop after padding.

    Args:
        size: (height, width), or one number for both.
        padding: a border that is added first; see `Pad`.
        pad_if_needed: add as much border as a picture needs that is too small.
        fill, padding_mode: of the border; see `Pad`.

    Raises:
        ArgumentError: a size or padding makes no sense.
        ShapeError: a picture is too small.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: Fill = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size, self.padding, self.pad_if_needed = (
            pair_of("RandomCrop", size),
            padding,
            pad_if_needed,
        )
        self.fill, self.padding_mode = fill, padding_mode
        self._pad = Pad(padding or 0, fill, padding_mode)

    def apply(self, image: Array) -> Array:
        if self.padding is not None:
            image = self._pad.apply(image)
        height, width = self.size
        rows, columns = image.shape[-2:]
        if self.pad_if_needed and (rows < height or columns < width):
            border = (max(width - columns, 0), max(height - rows, 0))
            image = Pad(border, self.fill, self.padding_mode).apply(image)
            rows, columns = image.shape[-2:]
        if rows < height or columns < width:
            raise ShapeError(
                "RandomCrop", "the image is smaller than the crop", expect=f"at least {self.size}",
                actual=str((rows, columns)), hint="padding=..., or pad_if_needed=True",
            )  # fmt: skip
        random = randomness()
        top = int(random.integers(rows - height + 1))
        left = int(random.integers(columns - width + 1))
        return image[..., top : top + height, left : left + width]


class _RandomFlip(Transform):
    axis = -1

    def __init__(self, p: float = 0.5) -> None:
        self.p = check_probability(type(self).__name__, p)

    def apply(self, image: Array) -> Array:
        flipped = randomness().random() < self.p
        return np.flip(image, self.axis) if flipped else image


class RandomHorizontalFlip(_RandomFlip):
    """Exchanges left and right.

    Args:
        p: the probability.

    Example:
        >>> RandomHorizontalFlip(p=1)(np.array([[[1, 2]]])).tolist()
        [[[2, 1]]]
    """


class RandomVerticalFlip(_RandomFlip):
    """Exchanges top and bottom.

    Args:
        p: the probability.
    """

    axis = -2
