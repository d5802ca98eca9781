"""Transforms that turn, shift, scale and shear."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tinygrad_cuda.data.randomness import randomness
from tinygrad_cuda.data.transforms.base import (
    Array,
    Transform,
    as_computed,
    as_pixels,
    between,
    refuse,
)
from tinygrad_cuda.data.transforms.sizes import (
    Fill,
    InterpolationMode,
    filled,
    interpolation_name,
)


def warped(image: Array, inverse: Array, size: tuple[int, int], mode: str, fill: Fill) -> Array:
    """The picture under a linear map about its middle.

    Args:
        image: (..., channels, height, width).
        inverse: 2 by 3; takes (x, y) of a result's pixel, from the result's middle, to that of
            the picture.
        size: (height, width) of the result.
        mode: ``nearest`` or ``bilinear``.
        fill: the value outside of the picture, or one for each channel.
    """
    from scipy import ndimage

    old = (np.array(image.shape[-2:]) - 1) / 2
    middle = (np.array(size) - 1) / 2
    matrix = inverse[::-1, 1::-1]  # (row, column) instead of (x, y)
    offset = inverse[::-1, 2] + old - matrix @ middle
    out = filled(image, *size, fill)
    flat, planes = out.reshape(-1, *size), image.reshape(-1, *image.shape[-2:])
    channels = image.shape[-3]
    for number, plane in enumerate(planes):
        values = as_computed(plane)
        outside = float(np.broadcast_to(np.asarray(fill, np.float64), channels)[number % channels])
        moved = ndimage.affine_transform(
            values, matrix, offset, size, order=0 if mode == "nearest" else 1,
            mode="grid-constant", cval=outside, prefilter=False,
        )  # fmt: skip
        flat[number] = as_pixels(np.asarray(moved), image)
    return out


def _matrix(angle: float, shift: Sequence[float], scale: float, shear: Sequence[float]) -> Array:
    """The inverse of: rotate (clockwise degrees), shift (x, y), scale, shear (degrees)."""
    turn, (sx, sy) = math.radians(angle), map(math.radians, shear)
    a = math.cos(turn - sy) / math.cos(sy)
    b = -math.cos(turn - sy) * math.tan(sx) / math.cos(sy) - math.sin(turn)
    c = math.sin(turn - sy) / math.cos(sy)
    d = -math.sin(turn - sy) * math.tan(sx) / math.cos(sy) + math.cos(turn)
    linear = np.linalg.inv(np.array([[a, b], [c, d]]) * scale)
    return np.column_stack([linear, -linear @ np.asarray(shift, np.float64)])


def _range(op: str, name: str, value: float | Sequence[float]) -> tuple[float, float]:
    """(least, greatest); one number stands for that many degrees to both sides."""
    if isinstance(value, int | float):
        if value < 0:
            refuse(op, f"{name} is negative", "a number of at least 0, or two", value)
        return -float(value), float(value)
    ends = tuple(value)
    if len(ends) != 2 or not ends[0] <= ends[1]:
        refuse(op, f"bad {name}", "one number, or least <= greatest", value)
    return float(ends[0]), float(ends[1])


def _shears(shear: float | Sequence[float] | None) -> tuple[tuple[float, float], ...]:
    """The ranges along x and along y."""
    none = (0.0, 0.0)
    if shear is None:
        return none, none
    if isinstance(shear, int | float) or len(shear) == 2:
        return _range("RandomAffine", "shear", shear), none
    if len(shear) != 4:
        refuse("RandomAffine", "bad shear", "1, 2 or 4 numbers", shear)
    return _range("RandomAffine", "shear", shear[:2]), _range("RandomAffine", "shear", shear[2:])


def _about(inverse: Array, center: Sequence[float] | None, height: int, width: int) -> Array:
    """The same map about another point, (x, y) in pixels from the upper left corner."""
    if center is None:
        return inverse
    point = np.asarray(center, np.float64) - np.array([width, height]) / 2
    linear = inverse[:, :2]
    return np.column_stack([linear, inverse[:, 2] + point - linear @ point])


class RandomRotation(Transform):
    """Turns by a random angle.

    Args:
        degrees: least and greatest angle, counter-clockwise; one number d stands for (-d, d).
        interpolation: ``nearest`` or ``bilinear``.
        expand: make the picture large enough to hold all of it.
        center: (x, y) to turn about; the middle if left out.
        fill: the value outside, or one for each channel.

    Raises:
        ArgumentError: degrees or interpolation make no sense.

    Example:
        >>> RandomRotation((90, 90))(np.array([[[1.0, 2.0], [3.0, 4.0]]])).tolist()
        [[[2.0, 4.0], [1.0, 3.0]]]
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: InterpolationMode | str = InterpolationMode.NEAREST,
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
    ) -> None:
        self.degrees = _range("RandomRotation", "degrees", degrees)
        self.interpolation = interpolation_name(
            "RandomRotation", interpolation, "nearest", "bilinear"
        )
        self.expand, self.center, self.fill = expand, center, fill

    def apply(self, image: Array) -> Array:
        angle = between(randomness(), self.degrees)
        height, width = image.shape[-2:]
        inverse = _matrix(-angle, (0, 0), 1, (0, 0))
        size = (height, width)
        if self.expand:
            # As in torchvision and Pillow: whole pixels of the old grid, to both sides.
            half = np.array([width, height]) / 2
            reach = np.abs(inverse[:, :2]).T @ half
            columns, rows = np.ceil(half + reach - 1e-4) - np.floor(half - reach + 1e-4)
            size = (int(rows), int(columns))
        else:
            inverse = _about(inverse, self.center, height, width)
        return warped(image, inverse, size, self.interpolation, self.fill)


class RandomAffine(Transform):
    """Turns, shifts, scales and shears at random, about the middle.

    Args:
        degrees: least and greatest angle; one number d stands for (-d, d).
        translate: greatest shift to both sides, as shares of width and height.
        scale: least and greatest factor.
        shear: degrees along x: one number s stands for (-s, s), two for a range; four are a range
            along x and one along y.
        interpolation: ``nearest`` or ``bilinear``.
        fill: the value outside, or one for each channel.
        center: (x, y) to turn about; the middle if left out.

    Raises:
        ArgumentError: an argument makes no sense.

    Example:
        >>> shift = RandomAffine(0, translate=(0.1, 0.1))
        >>> shift(np.ones((1, 28, 28), dtype=np.float32)).shape
        (1, 28, 28)
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: InterpolationMode | str = InterpolationMode.NEAREST,
        fill: Fill = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        self.degrees = _range("RandomAffine", "degrees", degrees)
        if translate is not None and (
            len(translate) != 2 or not all(0 <= share <= 1 for share in translate)
        ):
            refuse("RandomAffine", "bad translate", "two shares between 0 and 1", translate)
        if scale is not None and (len(scale) != 2 or not 0 < scale[0] <= scale[1]):
            refuse("RandomAffine", "bad scale", "0 < least <= greatest", scale)
        self.translate, self.scale, self.shear = translate, scale, _shears(shear)
        self.interpolation = interpolation_name(
            "RandomAffine", interpolation, "nearest", "bilinear"
        )
        self.fill, self.center = fill, center

    def apply(self, image: Array) -> Array:
        random = randomness()
        height, width = image.shape[-2:]
        angle = between(random, self.degrees)
        shift = [0.0, 0.0]
        if self.translate is not None:
            most = np.array(self.translate) * (width, height)
            shift = np.rint(random.uniform(-most, most)).tolist()
        scale = 1.0 if self.scale is None else between(random, self.scale)
        shear = [between(random, ends) for ends in self.shear]
        inverse = _matrix(angle, shift, scale, shear)
        inverse = _about(inverse, self.center, height, width)
        return warped(image, inverse, (height, width), self.interpolation, self.fill)
