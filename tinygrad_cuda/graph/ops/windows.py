"""Sliding windows over the trailing axes of a node, by index rewrites alone.

Convolution and pooling are built on them; the windows themselves are never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.graph.ops.geometry import Geometry


class WindowColumns(NamedTuple):
    """Windows of images with the channels last as a matrix: a column is a window, a row a channel
    at a tap, ``k = tap C + c``.

    Attributes:
        taps: of a window along each spatial axis.
        sizes: windows of an image along each.
        geometry: how they lie in the images.
        windows_along_k: whether the matrix is transposed, and the windows follow k.
        side: the operand of a product that is this matrix; A has a row for each column.
    """

    taps: Shape
    sizes: Shape
    geometry: Geometry
    windows_along_k: bool
    side: str = "b"

    def as_images(self) -> WindowColumns:
        """The same windows, of lines as images of one row."""
        if len(self.taps) != 1:
            return self
        at = self.geometry
        wide = Geometry((1, *at.stride), ((0, 0), *at.padding), (1, *at.dilation), at.groups)
        return self._replace(taps=(1, *self.taps), sizes=(1, *self.sizes), geometry=wide)

    @property
    def repeats(self) -> int:
        """Windows that read a pixel, about."""
        return max(1, prod(self.taps) // prod(self.geometry.stride))


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
