"""What transforms that move pixels share: sizes, kinds of interpolation, plain pictures."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from tinygrad_cuda.data.transforms.base import Array, refuse

Fill = float | Sequence[float]


class InterpolationMode(Enum):
    """How values between pixels are made."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


def interpolation_name(op: str, mode: Any, *allowed: str) -> str:
    name = mode.value if isinstance(mode, InterpolationMode) else mode
    if name not in allowed:
        refuse(op, "unknown interpolation", " or ".join(allowed), name)
    return str(name)


def pair_of(op: str, size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) of a size; one number stands for both."""
    values = (size, size) if isinstance(size, int) else tuple(size) * (3 - len(size))
    if len(values) != 2 or min(values) < 1:
        refuse(op, "bad size", "one or two positive whole numbers", size)
    return values[0], values[1]


def filled(image: Array, height: int, width: int, fill: Fill) -> Array:
    """A plain picture with as many channels."""
    shape = (*image.shape[:-2], height, width)
    values = np.asarray(fill)
    if image.dtype == np.uint8 and not ((values >= 0) & (values <= 255)).all():
        refuse("fill", "not a value of uint8", "numbers from 0 to 255", fill)
    values = values.astype(image.dtype)
    if values.ndim:
        if values.shape != image.shape[-3:-2]:
            refuse("fill", "not one value for each channel", str(image.shape[-3]), fill)
        values = values[:, None, None]
    return np.broadcast_to(values, shape).copy()
