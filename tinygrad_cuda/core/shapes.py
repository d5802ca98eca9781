"""Rules for shapes and axes: broadcasting, negative axes, strides, slices, reshape sizes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from tinygrad_cuda.core.errors import IndexError, ShapeError

Shape = tuple[int, ...]

# Cached results of a function that every view calls.
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
    """A plain int from an int-like, no bool, or an error that says what was wanted."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
        raise TypeError
    except TypeError as error:
        raise ShapeError(
            op, f"{what} must be an integer", expect="an integer", actual=repr(value)
        ) from error


def as_ints(op: str, values: Sequence[Any], what: str) -> tuple[int, ...]:
    """Plain ints; as in PyTorch, a bool is refused where it comes first."""
    return tuple(
        as_int(op, int(value) if position and isinstance(value, bool) else value, what)
        for position, value in enumerate(values)
    )


def is_several(value: Any) -> bool:
    """Whether sizes or dims are a sequence of them: a 0-d array is one number."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0


def as_shape(op: str, sizes: Sequence[Any]) -> Shape:
    """A shape from ``(2, 3)`` or ``((2, 3),)``, with sizes checked."""
    if len(sizes) == 1 and is_several(sizes[0]):
        sizes = tuple(sizes[0])
    shape = as_ints(op, sizes, "a size")
    if any(size < 0 for size in shape):
        raise ShapeError(op, "a size is negative", expect="sizes >= 0", actual=str(shape))
    return shape


def normalize_axis(op: str, axis: Any, rank: int) -> int:
    """A non-negative axis; 0-d tensors accept 0 and -1, as in PyTorch."""
    index = as_int(op, axis, "dim")
    limit = max(rank, 1)
    if not -limit <= index < limit:
        raise IndexError(
            op,
            "dimension out of range",
            expect=f"{-limit} <= dim < {limit}",
            actual=str(index),
            hint=f"the tensor has {rank} dimension{'s' if rank != 1 else ''}",
        )
    return index % limit


def normalize_axes(op: str, axes: Any, rank: int) -> tuple[int, ...]:
    """Sorted non-negative axes; None and () mean all."""
    if axes is None or (is_several(axes) and not tuple(axes)):
        return tuple(range(rank))
    if not is_several(axes):
        axes = (axes,)
    normalized = sorted(normalize_axis(op, axis, rank) for axis in axes)
    if len(set(normalized)) != len(normalized):
        raise ShapeError(
            op, "a dimension appears twice", expect="each dim once", actual=str(tuple(axes))
        )
    # A number has one dimension as an argument, and none to reduce.
    return tuple(normalized) if rank else ()


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


def _lies_inside(a: int, b: int, shape: Shape, operands: tuple[tuple[Shape, Shape], ...]) -> int:
    """-1 where dimension `a` has the smaller strides, 1 where `b` has, 0 where none says so."""
    for _, strides in operands:
        if 0 in (strides[a], strides[b]):
            continue
        if strides[a] != strides[b]:
            return -1 if strides[a] < strides[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether the elements lie without gaps and overlaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted((t, s) for s, t in zip(shape, strides) if s != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def may_overlap(shape: Shape, strides: Shape) -> bool:
    """Whether two indices may name one element: expansions and windows that overlap do."""
    reach = 0
    for stride, size in sorted((abs(t), n) for n, t in zip(shape, strides) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def alignedin_order(shape: Shape, inner_first: Sequence[int]) -> Shape:
    """Strides without gaps for dimensions listed from the innermost to the outermost."""
    strides, step = [0] * len(shape), 1
    for axis in inner_first:
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def channels_last_strides(shape: Shape) -> Shape:
    """Strides with the channels innermost: of (N, C, H, W) or (N, C, D, H, W)."""
    return alignedin_order(shape, (1, *range(len(shape) - 1, 1, -1), 0))


def is_channels_last(shape: Shape, strides: Shape) -> bool:
    """Whether strides say that the channels lie innermost; doubtful ones do not (as PyTorch)."""
    if len(shape) not in (4, 5) or 0 in shape or strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * shape[axis]
    return True


def in_channels_last_order(shape: Shape, strides: Shape) -> bool:
    """Whether the elements of (N, C, H, W) lie without gaps as (N, H, W, C), or those of 5-D."""
    inner_last = (0, *range(2, len(shape)), 1)
    return is_contiguous(
        tuple(shape[axis] for axis in inner_last), tuple(strides[axis] for axis in inner_last)
    )


@lru_cache(CAPACITY)
def elementwise_strides(shape: Shape, operands: tuple[tuple[Shape, Shape], ...]) -> Shape | None:
    """Strides of an elementwise result, None for row-major ones (PyTorch's TensorIterator).

    Operands that agree on a dense layout pass it on. Otherwise dimensions are ordered as in the
    first operand that tells two of them apart, and lie without gaps.

    Args:
        shape: of the result.
        operands: the shape and strides of each, which broadcast to `shape`.
    """
    first = operands[0][1]
    if all(s == shape for s, _ in operands):
        if all(is_contiguous(*operand) for operand in operands):
            return None
        if len(shape) == 4 and all(in_channels_last_order(*operand) for operand in operands):
            return channels_last_strides(shape)
        if all(t == first and is_dense(shape, t) for _, t in operands):
            return first
    broadcast_operands = []
    for sizes, strides in operands:
        missing = len(shape) - len(sizes)
        aligned = [
            0 if n == 1 and m != 1 else t for n, m, t in zip(sizes, shape[missing:], strides)
        ]
        broadcast_operands.append((shape, (*[0] * missing, *aligned)))
    earlier = tuple(broadcast_operands)
    order = list(range(len(shape) - 1, -1, -1))
    for end in range(1, len(order)):
        position = end
        for before in range(end - 1, -1, -1):
            sign = _lies_inside(order[before], order[position], shape, earlier)
            if sign > 0:
                order[before], order[position] = order[position], order[before]
                position = before
            elif sign < 0:
                break
    # The stride of a dimension of one element counts: it may say that channels lie last.
    strides = alignedin_order(shape, order)
    return None if strides == contiguous_strides(shape) else strides


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


def readable(nbytes: int) -> str:
    """A size for people, such as ``1.5 GiB``."""
    amount = float(nbytes)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"
