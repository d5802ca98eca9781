"""Transforms of image arrays that work on one sample and on a whole batch alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad_cuda.core.errors import ArgumentError, ShapeError

Array = NDArray[Any]


def works_on_batches(transform: Callable[[Any], Any]) -> bool:
    """Whether a transform takes a batch in one call: it says so by an attribute ``batched``."""
    return bool(getattr(transform, "batched", False))


class Normalize:
    r"""Shifts and scales each channel.

    .. math:: y_c = (x_c - \text{mean}_c) / \text{std}_c

    Args:
        mean: a number for each channel.
        std: a number for each channel, not 0.

    Raises:
        ArgumentError: the lengths differ or a deviation is 0.
        ShapeError: the input's third axis from the end is not one entry per channel.

    Example:
        >>> Normalize([0.5], [0.25])(np.full((1, 2, 2), 1.0, dtype=np.float32)).tolist()
        [[[2.0, 2.0], [2.0, 2.0]]]
    """

    batched = True

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std) or not all(std):
            raise ArgumentError(
                "Normalize",
                "mean and std do not fit",
                expect="one mean and one std, not 0, for each channel",
                actual=f"mean={list(mean)}, std={list(std)}",
            )
        self.mean = tuple(mean)
        self.std = tuple(std)

    def __call__(self, image: Array) -> Array:
        """Normalizes an array of shape (..., channels, height, width), keeping its dtype."""
        channels = len(self.mean)
        if image.ndim < 3 or image.shape[-3] != channels:
            raise ShapeError(
                "Normalize",
                "channels differ",
                expect=f"shape (..., {channels}, height, width)",
                actual=f"{image.shape}",
            )
        mean = np.asarray(self.mean, dtype=image.dtype).reshape(channels, 1, 1)
        std = np.asarray(self.std, dtype=image.dtype).reshape(channels, 1, 1)
        return np.asarray((image - mean) / std)

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"


class Compose:
    """Applies transforms one after another.

    Args:
        transforms: functions of one argument.

    Example:
        >>> Compose([abs, float])(-3)
        3.0
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    @property
    def batched(self) -> bool:
        return all(works_on_batches(transform) for transform in self.transforms)

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"
