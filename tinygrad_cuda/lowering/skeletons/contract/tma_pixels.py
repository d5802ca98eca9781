"""Im2col tensor maps: TMA reads columns of windows from images with the channels last."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops.windows import WindowColumns
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator
from tinygrad_cuda.lowering.codegen.skeleton import PixelBox, TensorMap
from tinygrad_cuda.lowering.skeletons.contract.loads import Source, zero_outside
from tinygrad_cuda.lowering.skeletons.contract.mma_tiles import SWIZZLE, TmaTile

LEAST_IMAGES = 1 << 17  # bytes: drivers up to 13.1 describe smaller images wrongly
# Limits of cuTensorMapEncodeIm2col, of images with two spatial axes.
MAX_STEP = 8  # from pixel to pixel
MAX_CORNER = 1 << 7  # pixels from a pixel-box corner to the image's, and a tap's distance
SAMPLES = 256  # elements whose positions are compared

Array = np.ndarray[Any, Any]


class Pixels(NamedTuple):
    """An operand as it lies in memory: images with the channels last.

    Attributes:
        node: the images.
        shape: images, rows, columns, channels.
        channels: of a group.
        columns: which windows.
    """

    node: Node
    shape: Shape
    channels: int
    columns: WindowColumns

    @property
    def along_k(self) -> bool:
        """Whether neighbouring values of k are neighbours in memory."""
        return not self.columns.windows_along_k


def pixels_of(source: Source, reader: Evaluator, columns: WindowColumns | None) -> Pixels | None:
    """The images of which an operand is columns of windows; None where they have no im2col map."""
    if columns is None or source.name != columns.side or len(columns.taps) > 2:
        return None
    k, other = ix.variable("k", source.k), ix.variable(source.other, source.extent)
    at = source.at(ix.variable("batch", source.batches), other, k)
    node, inner, guard = zero_outside(reader, source.node, at)
    rank = len(columns.taps)
    if node not in reader.memory or node.dtype is not source.node.dtype:
        return None
    if len(node.shape) != rank + 2:
        return None
    columns = columns.as_images()
    shape = (node.shape[0], *(1,) * (2 - rank), *node.shape[1:])
    pixels = Pixels(node, shape, shape[3] // source.batches, columns)
    itemsize, geometry = node.dtype.itemsize, columns.geometry
    if geometry.sizes(shape[1:3], columns.taps) != columns.sizes:
        return None  # of a part of the images: TMA walks through all of them
    box = _box(columns)
    far = max(d * (k - 1) for d, k in zip(geometry.dilation, columns.taps, strict=True))
    if pixels.channels % (SWIZZLE // itemsize) or prod(node.shape) * itemsize < LEAST_IMAGES:
        return None
    if max(map(abs, (*box.lower, *box.upper, far))) >= MAX_CORNER or max(box.steps) > MAX_STEP:
        return None
    values, inside, position = _sampled(pixels, source)
    guarded = np.broadcast_to(True, inside.shape)
    for condition in guard:
        guarded = guarded & condition.evaluate(values)
    offset = ix.flatten(inner, node.shape).evaluate(values)
    equal = (guarded == inside) & (~inside | (offset == position))
    return pixels if np.all(equal) else None


def _sampled(pixels: Pixels, source: Source) -> tuple[dict[str, Array], Array, Array]:
    """(values, inside, position): elements of the columns, first and last ones among them, whether
    they are of an image, and where they are in memory then."""
    draw = np.random.default_rng(0)
    sizes = {"k": source.k, source.other: source.extent, "batch": source.batches}
    values = {name: draw.integers(0, size, SAMPLES) for name, size in sizes.items()}
    for number, (name, size) in enumerate(sizes.items()):
        values[name][number : SAMPLES // 4 : 3] = 0
        values[name][number + 1 : SAMPLES // 4 : 3] = size - 1
    (taps, (down, across), at, along_k, _), images = pixels.columns, pixels.shape
    window, row = (values["k"], values[source.other])[:: 1 if along_k else -1]
    tap, channel = np.divmod(row, pixels.channels)
    image, pixel = np.divmod(window, down * across)
    inside, position = np.ones(SAMPLES, bool), image
    for i, u, s, d, (before, _), size in zip(
        np.divmod(pixel, across), np.divmod(tap, taps[1]), at.stride, at.dilation, at.padding,
        images[1:3], strict=True,
    ):  # fmt: skip
        coordinate = i * s + u * d - before
        inside = inside & (coordinate >= 0) & (coordinate < size)
        position = position * size + coordinate
    channel = values["batch"] * pixels.channels + channel
    return values, inside, position * images[3] + channel


def _box(columns: WindowColumns) -> PixelBox:
    """The first taps of all windows of an image; columns before rows."""
    at = columns.geometry
    last = [
        after - d * (k - 1)
        for k, d, (_, after) in zip(columns.taps, at.dilation, at.padding, strict=True)
    ]
    first = [-before for before, _ in at.padding]
    return PixelBox(tuple(first[::-1]), tuple(last[::-1]), at.stride[::-1])


def map_of(source: Source, pixels: Pixels, tile: TmaTile) -> TensorMap:
    """The im2col tensor map: channels of one tap, of as many pixels as a slot has rows of them."""
    images, height, width, channels = pixels.shape
    itemsize = pixels.node.dtype.itemsize
    strides = tuple(n * channels * itemsize for n in (1, width, height * width))
    box = (SWIZZLE // itemsize, source.tile if pixels.along_k else tile.k)
    shape = (channels, width, height, images)
    return TensorMap(pixels.node, 0, shape, strides, box, SWIZZLE, _box(pixels.columns))


def load_of(source: Source, pixels: Pixels, tile: TmaTile, name: str) -> dict[str, Any]:
    """The section of the copies of a slot, and what fills it."""
    taps, sizes, at = pixels.columns[:3]
    first = f"tile_{source.other} * {source.tile}"
    (top, _), (left, _) = at.padding
    return {
        "section": "load_pixels",
        "pixel": first if pixels.along_k else "k_first",
        "column": "k_first" if pixels.along_k else f"{first} + box * {tile.box}",
        "channels": pixels.channels,
        "group": f" + batch * {pixels.channels}" if source.batches > 1 else "",
        "across": sizes[1],
        "down": sizes[0],
        "windows": prod(sizes),
        "step_x": at.stride[1],
        "step_y": at.stride[0],
        "left": left,
        "top": top,
        "taps_x": taps[1],
        "apart_x": at.dilation[1],
        "apart_y": at.dilation[0],
        "side": source.name,
        "bytes": tile.slot(False, source.tile),
        "box_bytes": tile.box_bytes,
        "map": name,
    }
