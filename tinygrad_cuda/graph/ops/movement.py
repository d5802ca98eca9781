"""Movement ops: pure index rewrites, which cost nothing inside a consumer's loads.

They come in adjoint pairs (expand and sum, slice and pad, window and unwindow), so the gradient
of each is one other row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tinygrad_cuda.core.errors import IndexError, ShapeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import reduction
from tinygrad_cuda.graph.ops.common import same


class Reading(Protocol):
    """What a kernel offers a row that says where its elements come from.

    Coordinates are integer expressions: they add, subtract, multiply by and divide by numbers.
    """

    def number(self, value: Any, low: int, high: int) -> Any:
        """A number of an attribute, which runs may change inside these bounds."""

    def inside(self, coordinate: Any, limit: int) -> Any:
        """The coordinate, and the condition that it is below `limit` and not negative."""

    def divided(self, coordinate: Any, step: int) -> Any:
        """The quotient, and the condition that nothing remains."""


class MovementOp(Op):
    """A row of a movement.

    Attributes:
        cuda: ``(at, reading, shape, **attributes) -> coordinates`` of the source of that shape,
            for the coordinates `at` of the result. Where a condition fails stands the attribute
            `value`, or 0.
        fills: whether there are such elements.
        view: whether NumPy's result shares the source's memory.
        whole: whether each element of the source is somewhere in the result.
    """

    __slots__ = ("fills", "view", "whole")

    cuda: Callable[..., Sequence[Any]]

    def __init__(
        self,
        *row: Any,
        fills: bool = False,
        view: bool = False,
        whole: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*row, **options)
        self.fills = fills
        self.view = view
        self.whole = whole


def _infer_reshape(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    shape = attributes["shape"]
    if prod(shape) != prod(sources[0].shape):
        raise ShapeError(
            "reshape",
            "element counts differ",
            expect=f"{prod(sources[0].shape)} elements, input {sources[0].shape}",
            actual=f"{prod(shape)} elements, target {shape}",
        )
    return ((shape, sources[0].dtype),)


def _reshaped(at: Any, reading: Reading, size: Shape, shape: Shape) -> list[Any]:
    """The same row-major position."""
    flat: Any = 0
    for coordinate, extent in zip(at, shape, strict=True):
        flat = flat * extent + coordinate
    coordinates: list[Any] = []
    for extent in size[:0:-1]:
        flat, coordinate = divmod(flat, extent)
        coordinates.append(coordinate)
    return [flat if size[0] > 1 else 0, *coordinates[::-1]] if size else []


reshape: MovementOp = MovementOp(
    "reshape", "movement", _infer_reshape,
    numpy=lambda x, shape: x.reshape(shape), cuda=_reshaped, view=True, whole=True,
    gradient=(lambda g, out, x, shape: reshape(g, shape=x.shape),),
    batch=lambda size, shape: {"shape": (size, *shape)},
)  # fmt: skip


def _infer_permute(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    shape, axes = sources[0].shape, attributes["axes"]
    if sorted(axes) != list(range(len(shape))):
        raise ShapeError(
            "permute",
            "the axes are not a permutation",
            expect=f"each of 0..{len(shape) - 1} once",
            actual=str(axes),
        )
    return ((tuple(shape[axis] for axis in axes), sources[0].dtype),)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    inverse = [0] * len(axes)
    for position, axis in enumerate(axes):
        inverse[axis] = position
    return tuple(inverse)


permute: MovementOp = MovementOp(
    "permute", "movement", _infer_permute,
    numpy=lambda x, axes: x.transpose(axes), view=True, whole=True,
    cuda=lambda at, reading, size, axes: [at[axis] for axis in _inverse(axes)],
    gradient=(lambda g, out, x, axes: permute(g, axes=_inverse(axes)),),
    batch=lambda size, axes: {"axes": (0, *(axis + 1 for axis in axes))},
)  # fmt: skip


def _infer_expand(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    shape, target = sources[0].shape, attributes["shape"]
    if len(shape) != len(target) or any(a != b and a != 1 for a, b in zip(shape, target)):
        raise ShapeError(
            "expand",
            "only axes of size 1 expand",
            expect=f"{shape} with its ones replaced",
            actual=str(target),
        )
    return ((target, sources[0].dtype),)


def _expanded_axes(small: tuple[int, ...], large: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis, (a, b) in enumerate(zip(small, large)) if a != b)


expand: MovementOp = MovementOp(
    "expand", "movement", _infer_expand,
    numpy=lambda x, shape: np.broadcast_to(x, shape), view=True, whole=True,
    cuda=lambda at, reading, size, shape: [c if n > 1 else 0 for c, n in zip(at, size)],
    gradient=(
        lambda g, out, x, shape: reduction.sum(g, axes=_expanded_axes(x.shape, shape)),
    ),
    batch=lambda size, shape: {"shape": (size, *shape)},
)  # fmt: skip


def _infer_slice(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    shape = attributes["shape"]
    parts = zip(sources[0].shape, attributes["starts"], shape, attributes["steps"], strict=True)
    for axis, (size, start, length, step) in enumerate(parts):
        if step < 1 or start < 0 or (length and start + (length - 1) * step >= size):
            raise IndexError(
                "slice",
                f"axis {axis} is out of range",
                expect=f"positions below {size}",
                actual=f"start {start}, {length} elements, step {step}",
            )
    return ((shape, sources[0].dtype),)


def slice_key(
    starts: tuple[int, ...], shape: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[slice, ...]:
    return tuple([
        slice(start, start + length * step, step) if length else slice(0, 0)
        for start, length, step in zip(starts, shape, steps)
    ])  # fmt: skip


slice_: MovementOp = MovementOp(
    "slice", "movement", _infer_slice,
    numpy=lambda x, starts, shape, steps: x[slice_key(starts, shape, steps)], view=True,
    cuda=lambda at, reading, size, starts, shape, steps: [
        c * step + reading.number(start, 0, max(n - 1 - (length - 1) * step, 0))
        for c, n, start, length, step in zip(at, size, starts, shape, steps)
    ],
    gradient=(
        lambda g, out, x, starts, shape, steps: pad(
            g, starts=starts, shape=x.shape, steps=steps, value=0
        ),
    ),
    literals=("starts",),
    batch=lambda size, starts, shape, steps: {
        "starts": (0, *starts), "shape": (size, *shape), "steps": (1, *steps),
    },
)  # fmt: skip


def _infer_pad(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    shape = attributes["shape"]
    for axis, (size, start, length, step) in enumerate(
        zip(shape, attributes["starts"], sources[0].shape, attributes["steps"], strict=True)
    ):
        if step < 1 or start < 0 or (length and start + (length - 1) * step >= size):
            raise ShapeError(
                "pad",
                f"the input does not fit in axis {axis}",
                expect=f"positions below {size}",
                actual=f"start {start}, {length} elements, step {step}",
            )
    return ((shape, sources[0].dtype),)


def _pad(x: Any, starts: Any, shape: Any, steps: Any, value: Any, out: Any = None) -> Any:
    result = np.empty(shape, x.dtype) if out is None else out
    result.fill(value)
    result[slice_key(starts, x.shape, steps)] = x
    return result


def _padded(
    at: Any, reading: Reading, size: Shape, starts: Any, shape: Shape, steps: Any, value: Any
) -> list[Any]:
    coordinates = []
    for c, n, start, outer, step in zip(at, size, starts, shape, steps, strict=True):
        reach = (n - 1) * step
        start = reading.number(start, 0, max(outer - 1 - reach, 0))
        coordinates.append(reading.divided(reading.inside(c - start, reach + 1), step))
    return coordinates


# Places the input at `starts` with `steps` between its elements in a tensor full of `value`.
pad: MovementOp = MovementOp(
    "pad", "movement", _infer_pad, numpy=_pad, cuda=_padded, fills=True, whole=True,
    gradient=(
        lambda g, out, x, starts, shape, steps, value: slice_(
            g, starts=starts, shape=x.shape, steps=steps
        ),
    ),
    literals=("starts", "value"),
    batch=lambda size, starts, shape, steps, value: {
        "starts": (0, *starts), "shape": (size, *shape), "steps": (1, *steps), "value": value,
    },
)  # fmt: skip


flip: MovementOp = MovementOp(
    "flip", "movement", same,
    numpy=lambda x, axes: np.flip(x, axes), view=True, whole=True,
    cuda=lambda at, reading, size, axes: [
        n - 1 - c if axis in axes else c for axis, (c, n) in enumerate(zip(at, size))
    ],
    gradient=(lambda g, out, x, axes: flip(g, axes=axes),),
    batch=lambda size, axes: {"axes": tuple(axis + 1 for axis in axes)},
)  # fmt: skip


def _infer_window(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    x = sources[0]
    axis, over, length = attributes["axis"], attributes["over"], attributes["length"]
    reach = (length - 1) * attributes["stride"] + (x.shape[over] - 1) * attributes["dilation"]
    if length and reach >= x.shape[axis]:
        raise ShapeError(
            "window",
            "the window is larger than the input",
            expect=f"at most {x.shape[axis]} in axis {axis}",
            actual=str(reach + 1),
        )
    return ((x.shape[:axis] + (length,) + x.shape[axis + 1 :], x.dtype),)


def _window(x: Any, axis: int, over: int, length: int, stride: int, dilation: int) -> Any:
    shape, strides = list(x.shape), list(x.strides)
    shape[axis] = length
    strides[over] += strides[axis] * dilation
    strides[axis] *= stride
    return as_strided(x, shape, strides, writeable=x.flags.writeable)


# out[.., o, .., k, ..] = x[.., o * stride + k * dilation, .., k, ..] with o along `axis` and k
# along `over`: a sliding window, once x has been expanded over k.
window: MovementOp = MovementOp(
    "window", "movement", _infer_window, numpy=_window, view=True,
    cuda=lambda at, reading, size, axis, over, length, stride, dilation: [
        c * stride + at[over] * dilation if k == axis else c for k, c in enumerate(at)
    ],
    gradient=(
        lambda g, out, x, axis, over, length, stride, dilation: unwindow(
            g, axis=axis, over=over, length=x.shape[axis], stride=stride, dilation=dilation
        ),
    ),
    batch=lambda size, axis, over, **rest: {"axis": axis + 1, "over": over + 1, **rest},
)  # fmt: skip


def _infer_unwindow(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    x, axis, over = sources[0], attributes["axis"], attributes["over"]
    reach = (x.shape[axis] - 1) * attributes["stride"]
    reach += (x.shape[over] - 1) * attributes["dilation"]
    if prod(x.shape) and reach >= attributes["length"]:
        raise ShapeError(
            "unwindow",
            "the windows do not fit",
            expect=f"a length of at least {reach + 1} in axis {axis}",
            actual=str(attributes["length"]),
        )
    return ((x.shape[:axis] + (attributes["length"],) + x.shape[axis + 1 :], x.dtype),)


def _unwindow(
    x: Any, axis: int, over: int, length: int, stride: int, dilation: int, out: Any = None
) -> Any:
    shape = x.shape[:axis] + (length,) + x.shape[axis + 1 :]
    result = np.empty(shape, x.dtype) if out is None else out
    result.fill(0)
    _window(result, axis, over, x.shape[axis], stride, dilation)[...] = x
    return result


def _unwound(
    at: Any, reading: Reading, size: Shape, axis: int, over: int, length: int, stride: int,
    dilation: int,
) -> list[Any]:  # fmt: skip
    coordinates = list(at)
    start = reading.inside(at[axis] - at[over] * dilation, (size[axis] - 1) * stride + 1)
    coordinates[axis] = reading.divided(start, stride)
    return coordinates


# The adjoint: out[.., i, .., k, ..] = x[.., o, .., k, ..] where i = o * stride + k * dilation for
# some o, and 0 elsewhere.
unwindow: MovementOp = MovementOp(
    "unwindow", "movement", _infer_unwindow, numpy=_unwindow, cuda=_unwound, fills=True,
    gradient=(
        lambda g, out, x, axis, over, length, stride, dilation: window(
            g, axis=axis, over=over, length=x.shape[axis], stride=stride, dilation=dilation
        ),
    ),
    batch=lambda size, axis, over, **rest: {"axis": axis + 1, "over": over + 1, **rest},
)  # fmt: skip

ROWS: tuple[MovementOp, ...] = (reshape, permute, expand, slice_, pad, flip, window, unwindow)


def batched(x: Node, size: int) -> Node:
    """x repeated along a new leading axis."""
    return expand(reshape(x, shape=(1, *x.shape)), shape=(size, *x.shape))


def shifted(x: Node, axis: int, by: int, value: Any) -> Node:
    """x shifted by `by` elements along `axis`, up if positive; `value` fills the rest."""
    size = x.shape[axis]
    overlap = max(size - abs(by), 0)
    starts = [0] * len(x.shape)
    shape = list(x.shape)
    shape[axis] = overlap
    starts[axis] = min(max(-by, 0), size)
    ones = (1,) * len(x.shape)
    part = slice_(x, starts=tuple(starts), shape=tuple(shape), steps=ones)
    starts[axis] = min(max(by, 0), size)
    return pad(part, starts=tuple(starts), shape=x.shape, steps=ones, value=value)
