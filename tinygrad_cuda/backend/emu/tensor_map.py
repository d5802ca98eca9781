"""What describes a tensor to TMA on emu, as cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col do
for a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError

WORDS = 16  # of 8 bytes, as a driver's map has
SWIZZLES = (0, 32, 64, 128)  # bytes of a row whose pieces of 16 bytes are exchanged
MAX_BOX = 256  # elements along one axis of a box, a limit of cuTensorMapEncodeTiled
# Limits of cuTensorMapEncodeIm2col.
PIXELS_PER_COLUMN = 1024
ELEMENT_STRIDE = 8
PIXEL_BOX_CORNER = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}  # pixels from the image's corner, by rank
IM2COL = 1 << 24  # the bit of an im2col tensor map

PixelBoxCorners = tuple[Sequence[int], Sequence[int], Sequence[int]]


def tensor_map(
    address: int,
    itemsize: int,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int = 0,
    pixels: PixelBoxCorners | None = None,
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The 16 words of device_twin_async.h for a tensor of 1 to 5 axes, innermost first.

    Args:
        address: of the first element, divisible by 16.
        itemsize: bytes of an element: 1, 2, 4 or 8.
        shape: elements of each axis.
        strides: bytes from one element to the next of each axis but the first, divisible by 16.
        box: elements of each axis that a copy moves, at most 256; a row has whole 16 bytes.
        swizzle: bytes of a row of the box, 32, 64 or 128, or 0 where its pieces stay in order.
        pixels: of an im2col tensor map, whose box is (channelsPerPixel, pixelsPerColumn):
            pixelBoxLowerCorner, the first pixel; pixelBoxUpperCorner, the last less the image's
            last; and elementStrides, from pixel to pixel; along each spatial axis.

    Raises:
        ArgumentError: a GPU would refuse the description, or a row is not as long as its swizzle.

    Example:
        >>> words = tensor_map(4096, 2, (100, 7), (208,), (64, 8), 128)
        >>> words[:4].tolist()
        [4096, 197122, 100, 7]
    """
    row, axes = box[0] * itemsize if box else 0, 2 if pixels else len(shape)
    limits = (MAX_BOX, PIXELS_PER_COLUMN) if pixels else (MAX_BOX,) * 5
    for failed, expect, actual in (
        (not 1 <= len(shape) <= 5, "1 to 5 axes", f"{len(shape)}"),
        (len(strides) != len(shape) - 1, f"{len(shape) - 1} strides", f"{len(strides)}"),
        (len(box) != axes, f"a box of {axes} axes", f"{len(box)}"),
        (pixels and _refused(len(shape), pixels), "a pixel box in range", f"{pixels}"),
        (itemsize not in (1, 2, 4, 8), "elements of 1, 2, 4 or 8 bytes", f"{itemsize}"),
        (address % 16, "an address divisible by 16", f"{address:#x}"),
        (any(s % 16 or s >= 2**40 for s in strides), "strides divisible by 16", f"{strides}"),
        (not all(1 <= n <= 2**32 for n in shape), "sizes from 1 to 2**32", f"{shape}"),
        (not all(map(_within, box, limits)), f"1 to {MAX_BOX} elements", f"box {box}"),
        (row % 16, "rows of whole 16 bytes", f"{row} bytes"),
        (swizzle not in SWIZZLES, f"a swizzle of {SWIZZLES}", f"{swizzle}"),
        (swizzle and row != swizzle, f"rows of {swizzle} bytes, as the swizzle", f"{row} bytes"),
    ):
        if failed:
            raise ArgumentError("emu", "no tensor map of this form", expect=expect, actual=actual)
    words = np.zeros(WORDS, np.uint64)
    words[0] = address
    words[1] = itemsize | len(shape) << 8 | SWIZZLES.index(swizzle) << 16
    words[2 : 2 + len(shape)] = shape
    words[7 : 7 + len(strides)] = strides
    words[11 : 11 + len(box)] = box
    if pixels:
        words[1] |= np.uint64(IM2COL)
        for axis, (lower, upper, step) in enumerate(zip(*pixels, strict=True)):
            words[13 + axis] = lower & 0xFFFF | (upper & 0xFFFF) << 16 | step << 32
    return words


def _within(size: int, most: int) -> bool:
    return 1 <= size <= most


def _refused(rank: int, pixels: PixelBoxCorners) -> bool:
    """Whether a GPU refuses pixel-box corners and steps."""
    most, (lower, upper, steps) = PIXEL_BOX_CORNER.get(rank, 0), pixels
    return (
        {len(lower), len(upper), len(steps)} != {rank - 2}
        or any(not -most <= corner < most for corner in (*lower, *upper))
        or any(not 1 <= step <= ELEMENT_STRIDE for step in steps)
    )
