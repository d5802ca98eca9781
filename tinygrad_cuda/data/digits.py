"""Generated handwriting-like digits: a stand-in for MNIST on a machine without data or network.

Each digit is a few curves; jitter of their control points, an affine map, a bend, a pen and noise
make every image another one. The same seed gives the same images.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SIZE = 28  # pixels of a side, as MNIST has
GLYPH = 19.0  # height of an undistorted digit in pixels
CHUNK = 4096  # images made at once: bounds the memory
STEP = 0.035  # distance of two points of a stroke, in heights of a digit
PENS = np.linspace(0.6, 1.3, 8)  # widths of the pen, in pixels of standard deviation

# Ways to write each digit: how often, and its strokes as points "x,y" in hundredths, x rightward
# and y down. A stroke is a smooth curve through its points; two equal points in a row are a corner;
# "|" lifts the pen.
GLYPHS = {
    0: [
        (0.8, "52,0 22,15 12,52 26,90 52,100 78,86 88,48 76,12 52,0"),
        (0.2, "70,8 40,4 14,36 20,86 50,100 82,74 84,30 60,2 42,10"),
    ],
    1: [
        (0.65, "50,0 50,35 49,70 48,100"),
        (0.25, "30,22 42,12 54,0 54,0 53,50 52,100"),
        (0.1, "30,20 52,0 52,0 52,50 51,100 | 28,100 52,99 78,100"),
    ],
    2: [
        (0.6, "16,24 32,4 62,2 80,22 70,50 42,80 14,100 14,100 50,97 90,98"),
        (0.4, "20,18 42,0 72,8 76,36 54,70 26,94 12,88 26,78 50,90 74,100 92,92"),
    ],
    3: [
        (0.7, "18,12 44,0 74,10 72,34 42,47 42,47 76,56 84,80 56,100 24,96 10,84"),
        (0.3, "20,3 50,2 80,3 80,3 62,22 44,42 44,42 76,50 84,76 58,100 24,96 12,84"),
    ],
    4: [
        (0.65, "24,2 18,28 14,54 14,54 50,54 88,50 | 74,0 70,35 66,70 64,100"),
        (0.35, "66,0 40,30 10,64 10,64 50,64 92,62 | 66,0 66,35 65,70 64,100"),
    ],
    5: [
        (0.6, "28,2 25,22 22,44 22,44 50,38 78,52 80,80 54,100 26,98 12,88 | 28,2 56,3 86,0"),
        (0.4, "84,2 56,3 32,4 32,4 27,22 25,38 36,48 62,56 74,76 50,98 18,96"),
    ],
    6: [
        (0.6, "66,0 38,22 20,58 24,88 52,100 78,86 74,60 48,54 24,74"),
        (0.4, "50,0 30,30 20,66 32,95 58,99 72,82 60,64 38,68 25,86"),
    ],
    7: [
        (0.7, "12,6 48,6 84,3 84,3 66,36 50,68 40,100"),
        (0.15, "12,6 48,6 84,3 84,3 66,36 50,68 40,100 | 34,52 56,50 80,48"),
        (0.15, "14,24 16,6 16,6 50,7 86,4 86,4 66,40 56,70 52,100"),
    ],
    8: [
        (0.6, "76,14 50,0 24,14 32,36 60,56 76,80 52,100 24,84 36,58 64,36 76,14"),
        (0.4, "50,48 26,36 28,10 52,0 74,12 72,36 50,48 24,62 20,86 50,100 80,86 76,62 50,48"),
    ],
    9: [
        (0.55, "76,22 54,0 24,12 20,38 44,50 70,36 78,16 78,16 75,50 70,78 62,100"),
        (0.45, "78,20 52,0 22,16 24,42 52,48 76,26 80,50 70,84 46,100 24,90"),
    ],
}


class Glyph(NamedTuple):
    """One variant of a digit: linear maps from control points to points along the strokes."""

    control: Array  # (controls, 2)
    curve: Array  # (points, controls)
    moves: Array  # (controls, free): control points that coincide move together
    ink: Array  # (points,): length of stroke that a point stands for


def generated_digits(n: int, seed: int = 0) -> tuple[Array, Array]:
    """Makes images of digits with their labels; a digit's classes are equally frequent.

    Args:
        n: how many.
        seed: the same seed gives the same images; another seed gives others of the same kind.

    Returns:
        images, uint8 of shape (n, 28, 28), white on black; labels, int64 of shape (n,).

    Example:
        >>> images, labels = generated_digits(10, seed=1)
        >>> images.shape, sorted(labels.tolist())
        ((10, 28, 28), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    random = np.random.default_rng([0x6469676974, seed])
    labels = random.permutation(np.arange(n, dtype=np.int64) % 10)
    images = np.empty((n, SIZE, SIZE), dtype=np.uint8)
    for start in range(0, n, CHUNK):
        chunk = slice(start, start + CHUNK)
        images[chunk] = _draw(labels[chunk], random)
    return images, labels


def _draw(labels: Array, random: np.random.Generator) -> Array:
    """Images of the given digits, uint8 of shape (len(labels), 28, 28)."""
    n = len(labels)
    images = np.zeros((n, SIZE, SIZE), dtype=np.float32)
    affine = _affine(n, random)
    bend = random.normal(0.0, 0.062, (n, 2, 3)).astype(np.float32)
    choice = random.random(n)
    for digit, variants in GLYPHS.items():
        weights = np.cumsum([weight for weight, _ in variants])
        variant = np.searchsorted(weights, choice * weights[-1], side="right")
        for number in range(len(variants)):
            rows = np.flatnonzero((labels == digit) & (variant == number))
            if len(rows):
                glyph = _glyph(digit, number)
                points = _points(glyph, affine[rows], bend[rows], random)
                images[rows] = _splat(points, glyph.ink)
    return _pen(images, random)


def _affine(n: int, random: np.random.Generator) -> Array:
    """Slant, rotation and anisotropic scale in pixels, (n, 2, 2)."""
    angle = random.normal(0.0, 0.15, n)
    slant = random.normal(-0.12, 0.2, n)
    width = GLYPH * random.uniform(0.6, 1.04, n)
    height = GLYPH * random.uniform(0.86, 1.13, n)
    cos, sin = np.cos(angle), np.sin(angle)
    rotation = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    shape = np.zeros((n, 2, 2))
    shape[:, 0, 0], shape[:, 0, 1], shape[:, 1, 1] = width, slant * height, height
    return (rotation @ shape).astype(np.float32)


def _points(glyph: Glyph, affine: Array, bend: Array, random: np.random.Generator) -> Array:
    """Points along the strokes in pixels, (n, points, 2), centred as in MNIST."""
    n = len(affine)
    jitter = random.normal(0.0, 0.045, (n, glyph.moves.shape[1], 2)).astype(np.float32)
    control = glyph.control - 0.5 + glyph.moves @ jitter
    points = glyph.curve @ control
    x, y = points[..., 0:1], points[..., 1:2]
    squares = np.concatenate([x * x, x * y, y * y], axis=-1)
    points = points + squares @ (4 * bend.transpose(0, 2, 1))
    points = points @ affine.transpose(0, 2, 1)
    # MNIST puts the centre of mass into the middle of the image, to within a pixel.
    centre = np.average(points, axis=1, weights=glyph.ink)[:, None]
    shift = random.normal(SIZE / 2 - 0.5, 0.65, (n, 1, 2)).astype(np.float32)
    return np.asarray(points - centre + shift)


def _splat(points: Array, ink: Array) -> Array:
    """Images in which each point gives its ink to the four pixels around it."""
    n = len(points)
    points = points.clip(0.0, SIZE - 1.001)
    corner = points.astype(np.int32)
    x, y = np.moveaxis(points - corner, -1, 0)
    first = np.arange(n)[:, None] * (SIZE * SIZE) + corner[..., 1] * SIZE + corner[..., 0]
    index = np.stack([first, first + 1, first + SIZE, first + SIZE + 1])
    share = np.stack([(1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y]) * ink
    images = np.bincount(index.ravel(), share.ravel(), n * SIZE * SIZE)
    return images.reshape(n, SIZE, SIZE)


def _pen(images: Array, random: np.random.Generator) -> Array:
    """Widens the one-pixel lines with a pen of random width, and adds noise."""
    n = len(images)
    pens = random.integers(0, len(PENS), n)
    for number, width in enumerate(PENS):
        rows = np.flatnonzero(pens == number)
        blur = _blur(float(width))
        images[rows] = blur @ images[rows] @ blur
    pressure = random.uniform(1.1, 2.0, (n, 1, 1)).astype(np.float32)
    inked = 1.0 - np.exp(-((pressure * images) ** 2))
    grain = random.normal(0.0, 0.1, inked.shape).astype(np.float32)
    # Grain on the ink, and a few faint specks on the paper.
    inked = inked * (1.0 + grain) + np.maximum(grain - 0.3, 0.0) * 3.0
    return np.asarray(inked.clip(0.0, 1.0) * 255.0, dtype=np.uint8)


@cache
def _blur(width: float) -> Array:
    """A Gaussian blur along one axis as a matrix, (28, 28)."""
    distance = np.subtract.outer(np.arange(SIZE), np.arange(SIZE))
    kernel = np.exp(-0.5 * (distance / width) ** 2)
    # Along both axes together: the middle of a straight line keeps its value, however wide the pen.
    return np.asarray(kernel / np.sqrt(width * np.sqrt(2 * np.pi)), dtype=np.float32)


@cache
def _glyph(digit: int, variant: int) -> Glyph:
    """The linear maps of one variant of a digit."""
    strokes = [
        [tuple(map(float, point.split(","))) for point in stroke.split()]
        for stroke in GLYPHS[digit][variant][1].split("|")
    ]
    control = np.concatenate(strokes).astype(np.float32) / 100
    _, free = np.unique(control, axis=0, return_inverse=True)
    moves = np.eye(free.max() + 1, dtype=np.float32)[free.reshape(-1)]
    rows = []
    start = 0
    for stroke in strokes:
        rows.append(_spline(control, start, start + len(stroke)))
        start += len(stroke)
    curve = np.concatenate(rows).astype(np.float32)
    points = curve @ control
    step = np.linalg.norm(np.diff(points, axis=0), axis=1)
    step[np.cumsum([len(block) for block in rows])[:-1] - 1] = 0.0  # the pen is lifted
    ink = np.zeros(len(points), dtype=np.float32)
    ink[:-1] += step / 2
    ink[1:] += step / 2
    return Glyph(control, curve, moves, ink * GLYPH)


def _spline(control: Array, first: int, last: int) -> Array:
    """A Catmull-Rom spline through control points first..last-1 as a matrix."""
    rows = []
    for index in range(first, last - 1):
        length = np.linalg.norm(control[index + 1] - control[index])
        steps = int(np.ceil(length / STEP))
        for t in np.arange(steps + (index == last - 2)) / max(steps, 1):
            row = np.zeros(len(control))
            weights = (
                -0.5 * t + t**2 - 0.5 * t**3,
                1 - 2.5 * t**2 + 1.5 * t**3,
                0.5 * t + 2 * t**2 - 1.5 * t**3,
                -0.5 * t**2 + 0.5 * t**3,
            )
            for offset, weight in zip((-1, 0, 1, 2), weights):
                row[min(max(index + offset, first), last - 1)] += weight
            rows.append(row)
    return np.array(rows)
