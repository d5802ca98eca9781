"""A convolution as its kernels see it: the matrices of its product, and the windows of images."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, gradient_mode, recorded_at
from tinygrad_cuda.graph.ops import contraction, movement
from tinygrad_cuda.graph.ops.convolution import (
    convolution,
    convolution_weight_gradient,
    geometry_of,
)
from tinygrad_cuda.graph.ops.geometry import Geometry
from tinygrad_cuda.graph.ops.windows import padded, windows

IMPLICIT = (convolution, convolution_weight_gradient)  # computed as products with windows


# The product --------------------------------------------------------------------------------------


def operands_of(node: Node) -> tuple[Node, Node]:
    """The matrices that a contraction multiplies, with the columns of windows as index rewrites.

    With columns ``X[c k, n o]``: ``Y = W X`` and ``dW = dY X^T``; a group is a matrix of a batch.
    """
    a, b = node.sources
    if node.op not in IMPLICIT:
        return a, b
    at = geometry_of(node.attributes)
    with gradient_mode(False), recorded_at(node.site):
        if node.op is convolution:
            shape = (at.groups, node.shape[1] // at.groups, prod(b.shape[1:]))
            rows = movement.reshape(b, shape=shape)
            return rows, _columns(a, b.shape[2:], node.shape[2:], at)
        columns = _columns(b, node.shape[2:], a.shape[2:], at)
        return _channels_first(a, at.groups), contraction.transpose(columns)


def _columns(x: Node, kernel: Shape, sizes: Shape, at: Geometry) -> Node:
    """Windows as columns: shape (groups, C / groups * prod(kernel), N * prod(sizes))."""
    rank = len(kernel)
    batch, channels = x.shape[:2]
    wide = windows(padded(x, at.padding), kernel, at.stride, at.dilation, sizes)
    wide = movement.reshape(
        wide, shape=(batch, at.groups, channels // at.groups, *sizes, *kernel)
    )  # fmt: skip
    axes = (1, 2, *range(3 + rank, 3 + 2 * rank), 0, *range(3, 3 + rank))
    wide = movement.permute(wide, axes=axes)
    rows = channels // at.groups * prod(kernel)
    return movement.reshape(wide, shape=(at.groups, rows, batch * prod(sizes)))


def _channels_first(g: Node, groups: int) -> Node:
    """Images as a matrix for each group: a row for each channel."""
    batch, channels, *sizes = g.shape
    g = movement.reshape(g, shape=(batch, groups, channels // groups, *sizes))
    g = movement.permute(g, axes=(1, 2, 0, *range(3, 3 + len(sizes))))
    return movement.reshape(g, shape=(groups, channels // groups, batch * prod(sizes)))


# The images ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Windows of two spatial axes: element (k, n) of their columns is
    ``input[image, channel, y sy + u dy, x sx + v dx]`` with k = (channel, u, v), n = (image, y, x).

    Attributes:
        shape: of the input, without its padding: images, channels, rows, columns.
        size: rows and columns of the input with its padding; `top` and `left` of it are zeros.
        taps: rows and columns of a window.
        output_size: windows down and across, the rows and columns of the result.
        stride, dilation: elements from window to window, and from tap to tap.
    """

    shape: Shape
    size: tuple[int, int]
    taps: tuple[int, int]
    output_size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    top: int
    left: int

    @property
    def images(self) -> int:
        return self.shape[0]

    @property
    def channels(self) -> int:
        """Of the input."""
        return self.shape[1]

    def height(self, rows: int) -> int:
        """Rows of the input that so many rows of the output need."""
        return (rows - 1) * self.stride[0] + (self.taps[0] - 1) * self.dilation[0] + 1

    def width(self, run: int) -> int:
        """Columns of the input that so many neighbouring outputs need."""
        return (run - 1) * self.stride[1] + (self.taps[1] - 1) * self.dilation[1] + 1


def windows_of(node: Node) -> Windows | None:
    """The windows of a convolution or of its weight gradient, in images of one group.

    None where each element is in one window at most along some axis, or in one at all: such
    windows are a reshape of the input.
    """
    if node.op not in IMPLICIT:
        return None
    at = geometry_of(node.attributes)
    own = node.op is convolution
    x, (y, w) = node.sources[not own], (node, node.sources[1]) if own else (node.sources[0], node)
    if len(at.stride) != 2 or at.groups != 1:
        return None
    taps, output_size = w.shape[2:], y.shape[2:]
    axes = list(zip(taps, at.stride, at.dilation, strict=True))
    if any(k == s == 1 for k, s, _ in axes) or all(k == s and d == 1 for k, s, d in axes):
        return None
    (top, bottom), (left, right) = at.padding
    (height, width), (rows, columns) = x.shape[2:], taps
    (down, across), (sy, sx), (dy, dx) = output_size, at.stride, at.dilation
    return Windows(
        x.shape, (top + height + bottom, left + width + right), (rows, columns), (down, across),
        (sy, sx), (dy, dx), top, left,
    )  # fmt: skip
