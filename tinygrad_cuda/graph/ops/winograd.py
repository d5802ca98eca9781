"""The two transforms of Winograd's minimal filtering: images to planes, and planes to images.

``Y = A^T [sum over channels of (G w G^T) * (B^T x B)] A`` for each tile (Lavin and Gray, 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import movement as mv

TAPS = 3  # of the kernels that are filtered so
# Where polynomials are evaluated, by the results of a tile along an axis. Of the points that are
# usual for 4 x 4 these leave half the error of 0, 1, -1, 2, -2.
POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-1, 2)),
}

Matrix = tuple[tuple[float, ...], ...]


class TransformPart(NamedTuple):
    """A transform along one axis.

    Attributes:
        matrix: what it multiplies a line of a tile with.
        step: how far apart tiles are.
    """

    matrix: Matrix
    step: int

    @property
    def size(self) -> int:
        """Elements of a line."""
        return len(self.matrix[0])


def _times(roots: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients of the polynomial with these roots, lowest first."""
    product = [Fraction(1)]
    for root in roots:
        higher = [Fraction(0), *product]
        product = [a - root * b for a, b in zip(higher, [*product, Fraction(0)], strict=True)]
    return product


def _numbers(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(float(number) for number in row) for row in rows)


def _values(points: Sequence[Fraction], count: int, divided: bool) -> list[list[Fraction]]:
    """Powers of each point, and of infinity; `divided` by its distances from the others."""
    rows = []
    for point in points:
        scale = Fraction(1)
        for other in points:
            scale *= point - other if divided and other is not point else 1
        rows.append([point**power / scale for power in range(count)])
    return [*rows, [Fraction(int(power == count - 1)) for power in range(count)]]


def _parts(form: int) -> dict[str, TransformPart]:
    points = POINTS[form]
    others = [[other for other in points if other is not point] for point in points]
    images = [[*_times(rest), Fraction(0)] for rest in others] + [_times(points)]
    results, taps = (list(zip(*_values(points, n, False))) for n in (form, TAPS))
    return {
        "images": TransformPart(_numbers(images), form),
        "kernels": TransformPart(_numbers(_values(points, TAPS, True)), TAPS),
        "cotangents": TransformPart(_numbers(_values(points, form, True)), form),
        "results": TransformPart(_numbers(results), form),
        "taps": TransformPart(_numbers(taps), TAPS),
    }


# By form (results of a tile along an axis) and name. The first three make planes of tiles of a
# convolution's input, of its kernel and of its result's cotangent; the others tiles of planes.
PARTS: dict[int, dict[str, TransformPart]] = {form: _parts(form) for form in POINTS}


def _require_float32(op: Op, x: Node) -> None:
    if x.dtype is not float32:
        raise DTypeError(
            op.name, "the dtype is not supported", expect="float32", actual=x.dtype.name
        )


def _infer_winograd(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    (x,) = sources
    _require_float32(op, x)
    part = PARTS[attributes["form"]][attributes["part"]]
    beyond = part.size - part.step
    if len(x.shape) != 4 or any(n <= beyond or (n - beyond) % part.step for n in x.shape[2:]):
        raise ShapeError(
            op.name,
            "tiles do not cover the images",
            expect=f"N, C, and sizes n * {part.step} + {beyond}",
            actual=str(x.shape),
        )
    images, channels, height, width = x.shape
    tiles = (height - beyond) // part.step * ((width - beyond) // part.step)
    return (((len(part.matrix) ** 2, channels, images * tiles), x.dtype),)


def _winograd(x: Any, form: int, part: str) -> Any:
    matrix, step = np.asarray(PARTS[form][part].matrix, x.dtype), PARTS[form][part].step
    size = PARTS[form][part].size
    tiles = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
    planes = np.einsum("fu,ncijuv,gv->fgcnij", matrix, tiles[:, :, ::step, ::step], matrix)
    return np.ascontiguousarray(planes, x.dtype).reshape(len(matrix) ** 2, x.shape[1], -1)


def _batch_winograd(size: int, sources: tuple[Node], on: tuple[bool], **attributes: Any) -> Node:
    (x,) = sources
    images, channels = x.shape[1:3]
    planes = winograd(mv.reshape(x, shape=(size * images, *x.shape[2:])), **attributes)
    tiles = planes.shape[2] // size
    planes = mv.reshape(planes, shape=(planes.shape[0], channels, size, tiles))
    return mv.permute(planes, axes=(2, 0, 1, 3))


_INTERNAL = "only plans hold it, and they are made after gradients"

# x (N, C, H, W) -> (T * T, C, N * tiles): each tile, `size` x `size` and `step` apart, as
# matrix @ tile @ matrix.T, an element of it in each plane.
winograd: Op = Op(
    "winograd", "kernel", _infer_winograd, numpy=_winograd, gradient=_INTERNAL,
    batch=_batch_winograd,
)  # fmt: skip


def tiles_of(part: TransformPart, height: int, width: int) -> tuple[int, int]:
    """How many tiles cover so many results."""
    return -(-height // part.step), -(-width // part.step)


def _infer_unwinograd(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    (x,) = sources
    _require_float32(op, x)
    part = PARTS[attributes["form"]][attributes["part"]]
    shape = attributes["shape"]
    rows, columns = tiles_of(part, *shape[2:])
    expected = (part.size**2, shape[1], shape[0] * rows * columns)
    if x.shape != expected:
        raise ShapeError(
            op.name, "the planes do not fit", expect=str(expected), actual=str(x.shape)
        )
    return ((shape, x.dtype),)


def _unwinograd(x: Any, form: int, part: str, shape: tuple[int, ...]) -> Any:
    transform = PARTS[form][part]
    matrix = np.asarray(transform.matrix, x.dtype)
    images, channels, height, width = shape
    rows, columns = tiles_of(transform, height, width)
    planes = x.reshape(transform.size, transform.size, channels, images, rows, columns)
    tiles = np.einsum("af,fgcnij,bg->nciajb", matrix, planes, matrix)
    whole = tiles.reshape(images, channels, rows * transform.step, columns * transform.step)
    return np.ascontiguousarray(whole[:, :, :height, :width], x.dtype)


def _batch_unwinograd(
    size: int, sources: tuple[Node], on: tuple[bool], shape: tuple[int, ...], **rest: Any
) -> Node:
    (x,) = sources
    planes = mv.permute(x, axes=(1, 2, 0, 3))
    planes = mv.reshape(planes, shape=(*planes.shape[:2], size * x.shape[3]))
    images = unwinograd(planes, shape=(size * shape[0], *shape[1:]), **rest)
    return mv.reshape(images, shape=(size, *shape))


# planes (T * T, C, N * tiles) -> `shape` (N, C, H, W): each tile as matrix @ planes @ matrix.T;
# what hangs over the edge is left out.
unwinograd: Op = Op(
    "unwinograd", "kernel", _infer_unwinograd, numpy=_unwinograd, gradient=_INTERNAL,
    batch=_batch_unwinograd,
)  # fmt: skip

ROWS: tuple[Op, ...] = (winograd, unwinograd)
