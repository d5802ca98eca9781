"""Samples of the transforms around products of planes: every part, both sizes of tiles, views."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sampling import VIEWS, Array, Sample, generator, some

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.ops.winograd import PARTS, unwinograd, winograd

# Images, channels, tiles down and across.
# Some blocks have several channels and images, some have rows of one image.
SIZES = (
    (2, 3, 2, 3), (1, 1, 1, 1), (3, 2, 5, 1), (1, 300, 1, 1), (20, 32, 1, 1), (5, 8, 2, 2),
    (1, 2, 33, 9), (2, 2, 1, 2),
)  # fmt: skip
SHOWN = (*("transposed", "sliced", "reshaped") * 2, "transposed", "plain")  # each through a view


def _planes(x: Array, form: int, part: str) -> Array:
    """A tile at a time."""
    found = PARTS[form][part]
    matrix, size, step = np.array(found.matrix), found.size, found.step
    images, channels, height, width = x.shape
    tiles = [
        [
            matrix @ x[n, c, y : y + size, z : z + size].astype(np.float64) @ matrix.T
            for n in range(images)
            for y in range(0, height - size + 1, step)
            for z in range(0, width - size + 1, step)
        ]
        for c in range(channels)
    ]
    planes = np.array(tiles, x.dtype).reshape(channels, -1, len(matrix) ** 2)
    return planes.transpose(2, 0, 1)


def _images(x: Array, form: int, part: str, shape: tuple[int, ...]) -> Array:
    """Likewise."""
    found = PARTS[form][part]
    matrix, size, step = np.array(found.matrix), found.size, found.step
    images, channels, height, width = shape
    rows, columns = -(-height // step), -(-width // step)
    whole = np.zeros((images, channels, rows * step, columns * step))
    for n, c, i, j in np.ndindex(images, channels, rows, columns):
        planes = x[:, c, (n * rows + i) * columns + j].reshape(size, size)
        tile = matrix @ planes.astype(np.float64) @ matrix.T
        whole[n, c, i * step : (i + 1) * step, j * step : (j + 1) * step] = tile
    return whole[:, :, :height, :width].astype(x.dtype)


def samples() -> Iterator[Sample]:
    for form, parts in PARTS.items():
        for name, part in parts.items():
            for number, (images, channels, rows, columns) in enumerate(SIZES):
                view = VIEWS[SHOWN[number]]
                label = f"{form} {name} {images} {channels} {rows} {columns}"
                attributes = {"form": form, "part": name}
                rng = generator(label)
                if name not in ("results", "taps"):
                    beyond = part.size - part.step
                    shape = (images, channels, rows * part.step + beyond)
                    x = some(rng, (*shape, columns * part.step + beyond), dtypes.float32)
                    yield Sample(
                        winograd, label, (view(x),), attributes, expected=_planes, loose=20
                    )
                    continue
                less = number % part.step  # what hangs over the edge
                sizes = (rows * part.step - less, columns * part.step - (less and 1))
                x = some(rng, (part.size**2, channels, images * rows * columns), dtypes.float32)
                attributes["shape"] = (images, channels, *sizes)
                yield Sample(unwinograd, label, (view(x),), attributes, expected=_images, loose=50)
