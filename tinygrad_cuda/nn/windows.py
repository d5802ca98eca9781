"""The numbers that convolution and pooling take for each axis, and sums over taps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.indexing import selecting
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


def weighed_taps(
    input: Tensor, axis: int, positions: Tensor, weights: Tensor, inside: Tensor | None = None
) -> Tensor:
    """Weighed sums along an axis: output k is the sum of ``weights[k, t] input[positions[k, t]]``.

    Only what an output depends on is read: NaN and infinities elsewhere do not reach it.

    Args:
        positions, weights: shape (wanted, taps).
        inside: which taps count; None takes all.
    """
    inner = positions.clamp(0, input.shape[axis] - 1)
    rows = wrap(indexing.gather(input.movedim(axis, 0).node, inner.node))
    shape = (*positions.shape, *(1,) * (input.ndim - 1))
    products = rows * weights.reshape(shape)
    if inside is not None:
        products = selecting.where(inside.reshape(shape), products, 0.0)
    total: Tensor = products.sum(1).movedim(0, axis)
    return total
