"""Sliding windows over the trailing axes of a node, by index rewrites alone.

Convolution and pooling are built on them; the windows themselves are never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import indexing, movement
from tinygrad_cuda.tensors import selecting
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.tensor import Tensor


def per_axis(op: str, name: str, value: Any, rank: int, least: int = 0) -> tuple[int, ...]:
    """One number for each spatial axis; a single one counts for all.

    Raises:
        ArgumentError: not one number or `rank` numbers, or one below `least`.
    """
    numbers = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    if len(numbers) == 1:
        numbers *= rank
    valid = all(isinstance(n, int) and not isinstance(n, bool) and n >= least for n in numbers)
    if len(numbers) != rank or not valid:
        raise ArgumentError(
            op,
            f"{name} does not fit",
            expect=f"an integer >= {least}, or {rank} of them",
            actual=repr(value),
        )
    return numbers


def padded(x: Node, pads: Sequence[tuple[int, int]], value: Any = 0) -> Node:
    """x with `value` before and after its trailing axes; negative numbers crop."""
    lead = len(x.shape) - len(pads)
    if not any(before or after for before, after in pads):
        return x
    ones = (1,) * len(x.shape)
    if any(before < 0 or after < 0 for before, after in pads):
        starts = (0,) * lead + tuple(max(-before, 0) for before, _ in pads)
        shape = tuple(
            size - start - max(-after, 0)
            for size, start, (_, after) in zip(x.shape[lead:], starts[lead:], pads)
        )
        x = movement.slice_(x, starts=starts, shape=x.shape[:lead] + shape, steps=ones)
    starts = (0,) * lead + tuple(max(before, 0) for before, _ in pads)
    shape = x.shape[:lead] + tuple(
        max(before, 0) + size + max(after, 0) for size, (before, after) in zip(x.shape[lead:], pads)
    )
    return (
        x if shape == x.shape
        else movement.pad(x, starts=starts, shape=shape, steps=ones, value=value)
    )  # fmt: skip


def count(
    op: str, size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]
) -> int:
    """How many windows fit.

    Raises:
        ShapeError: none does.
    """
    reach = dilation * (kernel - 1) + 1
    whole = size + pads[0] + pads[1]
    if reach > whole:
        raise ShapeError(
            op,
            "the kernel is larger than the padded input",
            expect=f"at most {whole} along each axis",
            actual=f"a kernel of {kernel} with dilation {dilation}, reaching over {reach}",
        )
    return (whole - reach) // stride + 1


def windows(
    x: Node, kernel: Shape, stride: Shape, dilation: Shape, lengths: Shape
) -> Node:  # fmt: skip
    """Windows over the last axes: shape (..., *lengths, *kernel).

    ``out[.., o, .., k] = x[.., o * stride + k * dilation]`` along each of the axes.
    """
    rank = len(kernel)
    lead = len(x.shape) - rank
    if all(k == s and d == 1 for k, s, d in zip(kernel, stride, dilation)):
        return _tiles(x, kernel, lengths)
    for axis in range(rank):
        over = len(x.shape)
        x = movement.reshape(x, shape=(*x.shape, 1))
        x = movement.expand(x, shape=(*x.shape[:-1], kernel[axis]))
        x = movement.window(
            x, axis=lead + axis, over=over, length=lengths[axis], stride=stride[axis],
            dilation=dilation[axis],
        )  # fmt: skip
    return x


def _tiles(x: Node, kernel: Shape, lengths: Shape) -> Node:
    """Windows that neither overlap nor leave gaps are a reshape."""
    rank = len(kernel)
    lead = len(x.shape) - rank
    covered = x.shape[:lead] + tuple(n * k for n, k in zip(lengths, kernel))
    if covered != x.shape:
        x = movement.slice_(
            x, starts=(0,) * len(x.shape), shape=covered, steps=(1,) * len(x.shape)
        )  # fmt: skip
    apart = tuple(size for pair in zip(lengths, kernel) for size in pair)
    x = movement.reshape(x, shape=x.shape[:lead] + apart)
    axes = [*range(lead), *range(lead, lead + 2 * rank, 2), *range(lead + 1, lead + 2 * rank, 2)]
    return movement.permute(x, axes=tuple(axes))


def weighed_taps(
    input: Tensor, axis: int, places: Tensor, weights: Tensor, inside: Tensor | None = None
) -> Tensor:
    """Weighed sums along an axis: output k is the sum of ``weights[k, t] input[places[k, t]]``.

    Only what an output depends on is read: NaN and infinities elsewhere do not reach it.

    Args:
        places, weights: shape (wanted, taps).
        inside: which taps count; None takes all.
    """
    inner = places.clamp(0, input.shape[axis] - 1)
    rows = wrap(indexing.gather(input.movedim(axis, 0).node, inner.node))
    shape = (*places.shape, *(1,) * (input.ndim - 1))
    products = rows * weights.reshape(shape)
    if inside is not None:
        products = selecting.where(inside.reshape(shape), products, 0.0)
    total: Tensor = products.sum(1).movedim(0, axis)
    return total
