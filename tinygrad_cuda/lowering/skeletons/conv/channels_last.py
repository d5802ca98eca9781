"""Convolutions as products for matrix units: the channels of a pixel beside each other in memory.

Then 8 channels of 16 bits, or 4 of float32, are the 16 bytes of one copy, whichever tap of a window
reads them. Input and weight are stored so before, unless they lie so; see `lowering.layouts`. The
result is stored so as well, a row of the product for each pixel, if its readers want it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, gradient_mode, node_made, recorded_at
from tinygrad_cuda.graph.ops import common, contraction, movement
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.convolution import convolution, geometry_of
from tinygrad_cuda.graph.ops.windows import WindowColumns, padded, windows
from tinygrad_cuda.lowering.layouts import CHANNELS, Layouts
from tinygrad_cuda.lowering.skeletons.conv.windows import operands_of

COPY = 16  # bytes
BOX = 128  # bytes of channels that TMA takes at once
SPEED = 0.65  # share of memory's bytes a clock at which channels are put last
LAUNCH = 4000  # clocks of a launch that does so


@dataclass(frozen=True)
class ChannelsLast:
    """The cut of a convolution that is a product of values with the channels last."""


def refusal(node: Node) -> str:
    """Why a convolution, or a weight gradient, is no such product; empty if it is one."""
    channels, together = _input(node).shape[1], _together(node)
    if not node.dtype.is_half and node.dtype.name != "float32":
        return f"{node.dtype.name} is no operand of this product on matrix units"
    channels //= geometry_of(node.attributes).groups
    if channels % together:
        return f"{channels} channels of a group are no copies of {together}"
    return ""


def has_few_channels(node: Node) -> bool:
    """Whether its images have fewer channels than a copy, which zeros could fill."""
    one_group = geometry_of(node.attributes).groups == 1
    return one_group and node.dtype.is_half and _input(node).shape[1] < _together(node)


def is_thin(node: Node) -> bool:
    """Whether its images alone have too few channels for copies: those that a network is given."""
    if geometry_of(node.attributes).groups > 1 or not (node.dtype.is_half or node.dtype is float32):
        return False
    outputs = node.shape[1] if node.op is convolution else node.sources[0].shape[1]
    return _input(node).shape[1] < _together(node) and outputs >= CHANNELS


def as_thin_product(node: Node, layouts: Layouts) -> Node:
    """The product of a convolution, or a weight gradient, of images of few channels as they lie.

    ``Y[n, o] = sum over k of X[k, n] W[o, k]`` has the channels last, and ``dW[o, k] = sum over n
    of dY[n, o] X[k, n]`` reads a cotangent that has; k = (channel, taps).
    """
    with gradient_mode(False), recorded_at(node.site):
        if node.op is convolution:
            rows, columns = operands_of(node)
            a, b = (contraction.transpose(_matrix(x)) for x in (columns, rows))
            shape: Shape = (node.shape[0], *node.shape[2:], node.shape[1])
        else:
            _, b = map(_matrix, operands_of(node))
            g = layouts.put_last(node.sources[0])
            a = movement.reshape(g, shape=(b.shape[0], g.shape[-1]))
            a, shape = contraction.transpose(a), node.shape
        attributes = {"split": (a.shape[0], b.shape[1]), "axes": (0, 1), "shape": shape}
    outputs = ((shape, node.dtype),)
    return node_made(contraction.matmul, (a, b), attributes, outputs, node.device, False, node.site)


def _matrix(batch: Node) -> Node:
    """The only matrix of a batch."""
    return movement.reshape(batch, shape=batch.shape[1:])


def with_whole_copies(node: Node, layouts: Layouts) -> Node:
    """A convolution, or a weight gradient, of images with zeros behind few channels.

    Its channels are copies then; a weight gradient is more than the node's, see `own_part`. It
    copies images that the program was given again: they would be in memory all the time else.
    """
    sources, together = node.sources, _together(node)
    images = node.op is not convolution
    count = -(-sources[images].shape[1] // together) * together
    again = images and _is_given(sources[1])
    with gradient_mode(False), recorded_at(node.site):
        wider = tuple(layouts.with_channels(x, count, again) for x in sources[images:])
        return node.op(*sources[:images], *wider, **node.attributes)


def _is_given(x: Node) -> bool:
    """Whether a value is an input of the program, perhaps in another dtype."""
    while x.op is ew.cast:
        (x,) = x.sources
    return x.op is common.buffer


def own_part(made: Node, node: Node) -> Node:
    """Of a weight gradient that has more channels, those of the node."""
    if made.shape == node.shape:
        return made
    with gradient_mode(False), recorded_at(node.site):
        starts, ones = (0,) * len(node.shape), (1,) * len(node.shape)
        return movement.slice_(made, starts=starts, shape=node.shape, steps=ones)


def moved_bytes(node: Node) -> int:
    """What is read and written so that the channels are last."""
    x = _input(node)
    taps, sizes = _windows(node)
    moved = 0
    if prod(taps) > 1:
        moved = 2 * prod(x.shape)
        other = node.sources[
            node.op is convolution
        ]  # halves of a cotangent may follow k as they lie
        moved += 2 * prod(other.shape) if node.op is convolution or not node.dtype.is_half else 0
    elif not _pixels(node):  # one pixel of each window, of which rows are read whole
        moved = prod(x.shape[:2]) * (prod(sizes[:-1]) * x.shape[-1] + prod(sizes))
    return moved * node.dtype.itemsize


def read_bytes(node: Node) -> int:
    """Of the elements of its images that windows have."""
    taps, sizes = _windows(node)
    x, others = _input(node), images_of(node)[node.op is convolution :]
    pixels = prod(sizes) if prod(taps) == 1 else prod(x.shape[2:])
    elements = prod(x.shape[:2]) * pixels + sum(prod(g.shape) for g in others if g is not x)
    return elements * node.dtype.itemsize


def k_major(node: Node, along_k: tuple[bool, bool], layouts: Layouts) -> Node:
    """A product of operands that lie along k in memory; those that do not are stored so.

    Args:
        along_k: whether A and B do.
        layouts: what a plan stores with its last two axes exchanged.
    """
    (a, b), (first, second) = node.sources, along_k
    with gradient_mode(False), recorded_at(node.site):
        if not first:
            a = _stored(a, layouts)
        if not second:
            b = contraction.transpose(_stored(contraction.transpose(b), layouts))
    return node_made(
        node.op, (a, b), node.attributes, node.outputs, node.device, False, node.site
    )  # fmt: skip


def _stored(x: Node, layouts: Layouts) -> Node:
    """The same values in the order of the axes, in memory."""
    return layouts.copy(x, tuple(range(len(x.shape))))


def as_product(node: Node, layouts: Layouts, last: bool = False) -> Node:
    """The product; its result has the convolution's shape, or that with the channels last.

    Args:
        node: a convolution, or a weight gradient.
        layouts: the values of the plan that lie in another order.
        last: whether the result has the channels last.
    """
    with gradient_mode(False), recorded_at(node.site):
        if node.op is not convolution:
            return _weight_gradient(node, layouts, last)
        return (_result_last if last else _result)(node, layouts)


def _input(node: Node) -> Node:
    """The images."""
    return node.sources[node.op is not convolution]


def images_of(node: Node) -> tuple[Node, ...]:
    """The operands that are images."""
    return node.sources[:1] if node.op is convolution else node.sources


def taps_of(node: Node) -> Shape:
    """Taps of a window along each axis."""
    return _windows(node)[0]


def _windows(node: Node) -> tuple[Shape, Shape]:
    """Taps of a window, and how many windows an image has along each axis."""
    if node.op is convolution:
        return node.sources[1].shape[2:], node.shape[2:]
    return node.shape[2:], node.sources[0].shape[2:]


def _together(node: Node) -> int:
    """Elements of a copy."""
    return COPY // node.dtype.itemsize


def _pixels(node: Node) -> bool:
    """Whether windows are the pixels, in their order, of which several are one copy."""
    at, (taps, sizes) = geometry_of(node.attributes), _windows(node)
    return (
        prod(taps) == prod(at.stride) == 1
        and not any(map(any, at.padding))
        and prod(sizes) % _together(node) == 0
    )


def _result(node: Node, layouts: Layouts) -> Node:
    """``Y[o, n] = sum over k of W[o, k] X[k, n]`` with k = (taps, channel), n = (image, pixel)."""
    x, w = node.sources
    split = (w.shape[0], x.shape[0], prod(node.shape[2:]))
    return _product(node, _weights(node, layouts), _columns(node, layouts), split, (1, 0, 2))


def _result_last(node: Node, layouts: Layouts) -> Node:
    """``Y[n, o] = sum over k of X[n, k] W[k, o]``: a pixel's channels are a row."""
    (x, w), groups = node.sources, geometry_of(node.attributes).groups
    a, b = (contraction.transpose(each(node, layouts)) for each in (_columns, _weights))
    pixels = x.shape[0] * prod(node.shape[2:])
    split: Shape = (pixels, w.shape[0])
    axes: Shape = (0, 1)
    if groups > 1:
        split, axes = (groups, pixels, w.shape[0] // groups), (1, 0, 2)
    shape = (x.shape[0], *node.shape[2:], w.shape[0])
    return _product(node, a, b, split, axes, shape, "a")


def _weights(node: Node, layouts: Layouts) -> Node:
    """Kernels as rows, k as in `_result`."""
    _, w = node.sources
    if prod(w.shape[2:]) > 1:
        rows = layouts.copy(w, (0, *range(2, len(w.shape)), 1))
    else:
        rows = w
    groups = geometry_of(node.attributes).groups
    return movement.reshape(rows, shape=_by_group(groups, w.shape[0], prod(w.shape[1:])))


def _weight_gradient(node: Node, layouts: Layouts, last: bool) -> Node:
    """``dW[o, k] = sum over n of dY[o, n] X[k, n]``."""
    g, x = node.sources
    at, (taps, sizes) = geometry_of(node.attributes), _windows(node)
    columns = _columns(node, layouts)
    images, channels = g.shape[:2]
    # Where there are no runs of pixels to copy; and TMA takes matrices, not those of each image.
    turn = prod(sizes) % _together(node) or (
        prod(taps) > 1 and x.shape[1] // at.groups * node.dtype.itemsize % BOX == 0
    )
    if turn or layouts.last(g):
        g = movement.permute(layouts.put_last(g), axes=(0, len(sizes) + 1, *_range(sizes)))
    rows = movement.reshape(g, shape=(images, channels, prod(sizes)))
    rows = movement.permute(rows, axes=(1, 0, 2))
    shape = _by_group(at.groups, channels, images * prod(sizes))
    rows = movement.reshape(rows, shape=shape)
    split = (channels, prod(taps), x.shape[1] // at.groups)
    axes, shape = ((0, 1, 2), (node.shape[0], *taps, node.shape[1])) if last else ((0, 2, 1), ())
    return _product(node, rows, contraction.transpose(columns), split, axes, shape)


def _by_group(groups: int, rows: int, columns: int) -> Shape:
    """The shape of a matrix whose rows are those of all groups: a batch if there are several."""
    return (rows, columns) if groups == 1 else (groups, rows // groups, columns)


def _range(sizes: Shape, first: int = 1) -> range:
    """The spatial axes of images with the channels last; or of others, which begin later."""
    return range(first, first + len(sizes))


def _product(
    node: Node, a: Node, b: Node, split: Any, axes: Any, shape: Shape = (), side: str = "b"
) -> Node:
    """The product whose elements, seen as `split` axes in the order `axes`, are the node's.

    Args:
        shape: of the result, if it is not the node's.
        side: which operand has the windows.
    """
    shape = shape or node.shape
    attributes = {"split": split, "axes": axes, "shape": shape}
    taps, sizes = _windows(node)
    if not _pixels(node):
        turned, at = node.op is not convolution, geometry_of(node.attributes)
        attributes["windows"] = WindowColumns(taps, sizes, at, turned, side)
    outputs = ((shape, node.dtype),)
    return node_made(contraction.matmul, (a, b), attributes, outputs, node.device, False, node.site)


def _columns(node: Node, layouts: Layouts) -> Node:
    """Windows as columns: shape (prod(taps) * C, N * prod(sizes)), or such a matrix a group."""
    x, at, (taps, sizes) = _input(node), geometry_of(node.attributes), _windows(node)
    rank, images, channels = len(taps), x.shape[0], x.shape[1] // at.groups
    inner, stride = (0, rank + 1, *_range(sizes)), at.stride
    if _pixels(node) and not layouts.last(x):
        pass  # pixels that follow each other are copied as they are
    elif prod(taps) == 1 and not layouts.last(x):  # only pixels that windows have are stored
        shape, starts = (*x.shape[:2], *sizes), (0,) * len(x.shape)
        some = movement.slice_(
            padded(x, at.padding), starts=starts, shape=shape, steps=(1, 1, *stride)
        )
        last = layouts.copy(some, (0, *_range(sizes, 2), 1), (x, sizes, at.padding, stride))
        x, stride = movement.permute(last, axes=inner), (1,) * rank
    else:
        x = padded(movement.permute(layouts.put_last(x), axes=inner), at.padding)
    wide = windows(x, taps, stride, at.dilation, sizes)
    wide = movement.reshape(wide, shape=(images, at.groups, channels, *sizes, *taps))
    axes = (1, *range(3 + rank, 3 + 2 * rank), 2, 0, *range(3, 3 + rank))
    wide = movement.permute(wide, axes=axes)
    matrix = (prod(taps) * channels, images * prod(sizes))
    return movement.reshape(wide, shape=matrix if at.groups == 1 else (at.groups, *matrix))
