"""Rules for shapes and axes: broadcasting, negative axes, strides, slices, reshape sizes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from tinygrad_cuda.core.errors import IndexError, ShapeError

Shape = tuple[int, ...]

# Answers kept of a function that every view asks.
CAPACITY = 4096


def broadcast(op: str, *shapes: Shape) -> Shape:
    """NumPy's broadcast of shapes, with an error that names the axis."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        offset = rank - len(shape)
        for axis, size in enumerate(shape, offset):
            if size != 1 and size != result[axis]:
                if result[axis] != 1:
                    raise ShapeError(
                        op,
                        "shapes do not broadcast",
                        expect=f"equal sizes or 1 in axis {axis - rank}",
                        actual=f"{result[axis]} and {size}".ljust(16)
                        + "  ".join(f"{name}: {s}" for name, s in zip("abcdef", shapes)),
                        hint=_broadcast_hint(shapes),
                    )
                result[axis] = size
    return tuple(result)


def _broadcast_hint(shapes: tuple[Shape, ...]) -> str | None:
    """What would line up two shapes of different rank, or a matrix given as its transpose."""
    if len(shapes) != 2:
        return None
    for number, name in enumerate("ab"):
        shape, other = shapes[number], shapes[1 - number]
        missing = len(other) - len(shape)
        moved = shape + (1,) * missing
        # Each size must meet its equal: sizes that each meet a 1 would make a larger shape.
        if missing > 0 and all(m in (n, 1) for m, n in zip(moved, other)):
            sizes = ", ".join(map(str, moved))
            return f"{name}.reshape({sizes}) would fit"
        if missing == 0 and len(shape) == 2 and _fits(shape[::-1], other):
            return f"{name}.T has shape {shape[::-1]} and would fit"
    return None


def _fits(a: Shape, b: Shape) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(a, b))


def as_int(op: str, value: Any, what: str) -> int:
    """A plain int from an int-like, or an error that says what was wanted."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise ShapeError(
            op, f"{what} must be an integer", expect="an integer", actual=repr(value)
        ) from error


def as_shape(op: str, sizes: Sequence[Any]) -> Shape:
    """A shape from ``(2, 3)`` or ``((2, 3),)``, with sizes checked."""
    if len(sizes) == 1 and isinstance(sizes[0], Iterable):
        sizes = tuple(sizes[0])
    shape = tuple(as_int(op, size, "a size") for size in sizes)
    if any(size < 0 for size in shape):
        raise ShapeError(op, "a size is negative", expect="sizes >= 0", actual=str(shape))
    return shape


def normalize_axis(op: str, axis: Any, rank: int) -> int:
    """A non-negative axis; 0-d tensors accept 0 and -1, as in PyTorch."""
    found = as_int(op, axis, "dim")
    limit = max(rank, 1)
    if not -limit <= found < limit:
        raise IndexError(
            op,
            "dimension out of range",
            expect=f"{-limit} <= dim < {limit}",
            actual=str(found),
            hint=f"the tensor has {rank} dimension{'s' if rank != 1 else ''}",
        )
    return found % limit


def normalize_axes(op: str, axes: Any, rank: int) -> tuple[int, ...]:
    """Sorted non-negative axes; None and () mean all."""
    if axes is None or (isinstance(axes, Iterable) and not tuple(axes)):
        return tuple(range(rank))
    if not isinstance(axes, Iterable):
        axes = (axes,)
    if rank == 0:
        for axis in axes:
            normalize_axis(op, axis, 0)
        return ()
    found = sorted(normalize_axis(op, axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise ShapeError(
            op, "a dimension appears twice", expect="each dim once", actual=str(tuple(axes))
        )
    return tuple(found)


@lru_cache(CAPACITY)
def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides in elements, as PyTorch counts them (sizes below 1 count as 1)."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether elements lie in row-major order without gaps."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size == 0:
            return True
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def resolve_reshape(op: str, shape: Shape, target: Shape) -> Shape:
    """Replaces one -1 and checks that the element counts agree."""
    count = prod(shape)
    unknown = [axis for axis, size in enumerate(target) if size == -1]
    if len(unknown) > 1 or any(size < -1 for size in target):
        raise ShapeError(
            op,
            "a size is negative",
            expect="sizes >= 0, at most one of them -1",
            actual=str(tuple(target)),
        )
    if unknown:
        rest = prod(size for size in target if size != -1)
        if rest == 0 or count % rest:
            raise ShapeError(
                op,
                "no whole size is left for -1",
                expect=f"other sizes whose product divides {count}, input {shape}",
                actual=f"{rest} from target {tuple(target)}",
            )
        target = tuple(count // rest if size == -1 else size for size in target)
    if prod(target) != count:
        raise ShapeError(
            op,
            "element counts differ",
            expect=f"{count} elements, input {shape}",
            actual=f"{prod(target)} elements, target {tuple(target)}",
            hint="one size may be -1 and is then computed",
        )
    return tuple(target)


@lru_cache(CAPACITY)
def reshape_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Strides of `target` over the same memory, or None where a copy is needed (as PyTorch)."""
    if prod(shape) == 0:
        return contiguous_strides(target)
    chunks: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if chunks and chunks[-1][1] == stride * size:
            chunks[-1] = (chunks[-1][0] * size, stride)
        else:
            chunks.append((size, stride))
    result = [0] * len(target)
    chunk = len(chunks) - 1
    left, stride = chunks[chunk] if chunks else (1, 1)
    for axis in range(len(target) - 1, -1, -1):
        size = target[axis]
        if size == 1:
            result[axis] = stride
            continue
        if left == 1:
            chunk -= 1
            left, stride = chunks[chunk]
        if left % size:
            return None
        result[axis] = stride
        left //= size
        stride *= size
    return tuple(result)


def slice_bounds(op: str, value: slice, size: int) -> tuple[int, int, int]:
    """Start, length and step of a slice over an axis; steps may be negative."""
    if value.step is not None and as_int(op, value.step, "a slice step") == 0:
        raise ShapeError(op, "a slice step is zero", expect="a step other than 0", actual="0")
    start, stop, step = value.indices(size)
    length = len(range(start, stop, step))
    return (start if length else 0), length, step
