"""Transforms that change values where they are: colours, blur, erased parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.data.randomness import randomness
from tinygrad_cuda.data.transforms.base import (
    Array,
    Transform,
    as_computed,
    as_pixels,
    between,
    check_probability,
    largest,
    refuse,
)

LUMA = np.array([0.2989, 0.587, 0.114])  # ITU-R 601-2, to the digits that torchvision has


def _colours(op: str, image: Array) -> Array:
    if image.shape[-3] not in (1, 3):
        raise ShapeError(op, "not a picture in grey or RGB", expect="1 or 3 channels",
                         actual=str(image.shape))  # fmt: skip
    return image.astype(np.float64)


def _grey(values: Array) -> Array:
    """One channel with the brightness."""
    if values.shape[-3] == 1:
        return values
    return np.asarray(np.tensordot(values, LUMA, axes=(-3, 0))[..., None, :, :])


def _blend(a: Array, b: Array, share: float, top: float) -> Array:
    return np.clip(a * share + b * (1 - share), 0, top)


class Grayscale(Transform):
    """Takes the colours away.

    .. math:: y = 0.2989 r + 0.587 g + 0.114 b

    Args:
        num_output_channels: 1, or 3 equal ones.

    Raises:
        ArgumentError: another number of channels is asked for.
        ShapeError: the picture has neither 1 nor 3.
    """

    batched = True

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels not in (1, 3):
            refuse("Grayscale", "bad num_output_channels", "1 or 3", num_output_channels)
        self.num_output_channels = num_output_channels

    def apply(self, image: Array) -> Array:
        grey = as_pixels(_grey(_colours("Grayscale", image)), image)
        return np.repeat(grey, self.num_output_channels, axis=-3)


class RandomGrayscale(Transform):
    """Takes the colours away with a probability; the number of channels stays.

    Args:
        p: the probability.
    """

    def __init__(self, p: float = 0.1) -> None:
        self.p = check_probability("RandomGrayscale", p)

    def apply(self, image: Array) -> Array:
        if randomness().random() >= self.p:
            return image
        return Grayscale(image.shape[-3]).apply(image)


class ColorJitter(Transform):
    """Changes brightness, contrast, saturation and hue at random, in a random order.

    Args:
        brightness, contrast, saturation: one number v stands for factors from max(0, 1 - v) to
            1 + v; two are least and greatest factor.
        hue: one number v stands for turns from -v to v of the colour circle; two are a range
            within -0.5 and 0.5.

    Raises:
        ArgumentError: a range makes no sense.
        ShapeError: the picture has neither 1 nor 3 channels.

    Example:
        >>> ColorJitter(brightness=0.2)(np.full((3, 2, 2), 0.5, dtype=np.float32)).shape
        (3, 2, 2)
    """

    def __init__(
        self,
        brightness: float | Sequence[float] = 0,
        contrast: float | Sequence[float] = 0,
        saturation: float | Sequence[float] = 0,
        hue: float | Sequence[float] = 0,
    ) -> None:
        self.brightness = self._factors("brightness", brightness)
        self.contrast = self._factors("contrast", contrast)
        self.saturation = self._factors("saturation", saturation)
        low, high = (-hue, hue) if isinstance(hue, int | float) else hue
        if not -0.5 <= low <= high <= 0.5:
            refuse("ColorJitter", "bad hue", "-0.5 <= least <= greatest <= 0.5", hue)
        self.hue = (low, high)

    @staticmethod
    def _factors(name: str, value: float | Sequence[float]) -> tuple[float, float]:
        if isinstance(value, int | float):
            low, high = (max(0.0, 1 - value), 1 + value) if value >= 0 else (value, value)
        else:
            low, high = value
        if not 0 <= low <= high:
            refuse("ColorJitter", f"bad {name}", "0 <= least <= greatest", value)
        return float(low), float(high)

    def apply(self, image: Array) -> Array:
        random = randomness()
        values, top = _colours("ColorJitter", image), largest(image)
        factors = [
            between(random, ends) for ends in (self.brightness, self.contrast, self.saturation)
        ]
        turn = between(random, self.hue)
        for which in random.permutation(4):
            if which == 0:
                values = np.clip(values * factors[0], 0, top)
            elif which == 1:
                mean = _grey(values).mean(axis=(-3, -2, -1), keepdims=True)
                values = _blend(values, mean, factors[1], top)
            elif which == 2:
                values = _blend(values, _grey(values), factors[2], top)
            elif turn and values.shape[-3] == 3:
                values = _turned_hue(values / top, turn) * top
        return as_pixels(values, image)


def _turned_hue(rgb: Array, turn: float) -> Array:
    """Colours turned on the circle of hues, brightness and saturation as they were."""
    red, green, blue = np.moveaxis(rgb, -3, 0)
    high, low = rgb.max(-3), rgb.min(-3)
    chroma = high - low
    safe = np.where(chroma > 0, chroma, 1.0)
    sixth = np.where(
        high == red, (green - blue) / safe,
        np.where(high == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )  # fmt: skip
    hue = (sixth / 6 + turn) % 1.0
    # Each channel falls from the highest to the lowest value with its distance on the circle.
    channels = [
        high
        - chroma * np.clip(np.minimum((offset + 6 * hue) % 6, 4 - (offset + 6 * hue) % 6), 0, 1)
        for offset in (5, 3, 1)
    ]
    return np.stack(channels, axis=-3)


class GaussianBlur(Transform):
    """Blurs with a Gaussian of random width.

    Args:
        kernel_size: (height, width) of the kernel, odd, or one number for both.
        sigma: standard deviation in pixels, or least and greatest one.

    Raises:
        ArgumentError: a size is even, or a deviation is not positive.
    """

    def __init__(
        self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)
    ) -> None:
        size = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(size) != 2 or any(n < 1 or n % 2 == 0 for n in size):
            refuse("GaussianBlur", "bad kernel_size", "one or two odd numbers", kernel_size)
        low, high = (sigma, sigma) if isinstance(sigma, int | float) else sigma
        if not 0 < low <= high:
            refuse("GaussianBlur", "bad sigma", "0 < least <= greatest", sigma)
        self.kernel_size, self.sigma = size, (float(low), float(high))

    def apply(self, image: Array) -> Array:
        from scipy import ndimage

        sigma = between(randomness(), self.sigma)
        values = as_computed(image)
        for axis, size in zip((-2, -1), self.kernel_size):
            offsets = np.arange(size) - size // 2
            weights = np.exp(-0.5 * (offsets / sigma) ** 2)
            values = ndimage.correlate1d(values, weights / weights.sum(), axis, mode="mirror")
        return as_pixels(np.asarray(values), image)


class RandomErasing(Transform):
    """Overwrites a rectangle of random position, size and shape.

    Source: Zhong et al., Random Erasing Data Augmentation, 2017.

    Args:
        p: the probability.
        scale: least and greatest share of the area.
        ratio: least and greatest height / width, drawn on a logarithmic scale.
        value: what is written: a number, one for each channel, or ``"random"`` for normal noise.
        inplace: accepted for PyTorch's sake; the picture given is left alone.

    Raises:
        ArgumentError: an argument makes no sense.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0,
        inplace: bool = False,
    ) -> None:
        self.p = check_probability("RandomErasing", p)
        for name, (low, high) in (("scale", scale), ("ratio", ratio)):
            if not 0 < low <= high:
                refuse("RandomErasing", f"bad {name}", "0 < least <= greatest", (low, high))
        if isinstance(value, str) and value != "random":
            refuse("RandomErasing", "bad value", 'a number, numbers, or "random"', value)
        self.scale, self.ratio, self.value = scale, ratio, value

    def apply(self, image: Array) -> Array:
        random = randomness()
        if random.random() >= self.p:
            return image
        height, width = image.shape[-2:]
        for _ in range(10):
            area = height * width * between(random, self.scale)
            ratio = math.exp(random.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < rows < height and 0 < columns < width:
                top, left = random.integers(height - rows + 1), random.integers(width - columns + 1)
                out = image.copy()
                part = out[..., top : top + rows, left : left + columns]
                part[...] = self._content(random, part, image)
                return out
        return image

    def _content(self, random: np.random.Generator, part: Array, image: Array) -> Any:
        if isinstance(self.value, str):
            return as_pixels(random.standard_normal(part.shape), image)
        value = np.asarray(self.value, image.dtype)
        return value[:, None, None] if value.ndim else value
