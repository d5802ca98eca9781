"""Convolutions as products for matrix units: the channels of a pixel beside each other in memory.

Then 8 channels of 16 bits, or 4 of float32, are the 16 bytes of one copy, whichever tap of a window
reads them. Input and weight are stored so before; the result is stored in the order of its axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, gradient_mode, node_made, recorded_at
from tinygrad_cuda.graph.ops import contraction, movement
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.convolution import convolution, geometry_of
from tinygrad_cuda.graph.ops.windows import WindowColumns, padded, windows

COPY = 16  # bytes
BOX = 64  # channels of 16 bits that TMA takes at once
SPEED = 0.65  # share of memory's bytes a clock at which channels are put last
LAUNCH = 4000  # clocks of a launch that does so

# Values that are stored in another order, by what they are made of: a plan stores each once.
Layouts = dict[Any, Node]


@dataclass(frozen=True)
class ChannelsLast:
    """The cut of a convolution that is a product of values with the channels last."""


def refusal(node: Node) -> str:
    """Why a convolution, or a weight gradient, is no such product; empty if it is one."""
    channels, together = _input(node).shape[1], _together(node)
    taps, _ = _windows(node)
    if not node.dtype.is_half and node.dtype.name != "float32":
        return f"{node.dtype.name} is no operand of this product on matrix units"
    if not node.dtype.is_half and node.op is not convolution and prod(taps) > 1:
        return "tf32 reads windows of pixels along k alone"
    channels //= geometry_of(node.attributes).groups
    if channels % together:
        return f"{channels} channels of a group are no copies of {together}"
    return ""


def moved_bytes(node: Node) -> int:
    """What is read and written so that the channels are last."""
    x = _input(node)
    taps, sizes = _windows(node)
    moved = 0
    if prod(taps) > 1:
        moved = 2 * prod(x.shape)
        moved += 2 * prod(node.sources[1].shape) if node.op is convolution else 0
    elif not _pixels(node):  # one pixel of each window, of which rows are read whole
        moved = prod(x.shape[:2]) * (prod(sizes[:-1]) * x.shape[-1] + prod(sizes))
    return moved * node.dtype.itemsize


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
    base, axes = x, tuple(range(len(x.shape)))
    while base.op is movement.permute:  # two products may each have turned one value
        axes = tuple(base.attributes["axes"][axis] for axis in axes)
        (base,) = base.sources
    key = ("in this order", base, axes)
    if key not in layouts:
        layouts[key] = ew.contiguous(x)
    return layouts[key]


def as_product(node: Node, layouts: Layouts) -> Node:
    """The product, whose result has the convolution's shape."""
    with gradient_mode(False), recorded_at(node.site):
        return (_result if node.op is convolution else _weight_gradient)(node, layouts)


def _input(node: Node) -> Node:
    """The images."""
    return node.sources[node.op is not convolution]


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
    taps, at = w.shape[2:], geometry_of(node.attributes)
    columns = _columns(node, layouts)
    last = _channels_last(w, layouts) if prod(taps) > 1 else w
    rows = movement.reshape(last, shape=_by_group(at.groups, w.shape[0], prod(w.shape[1:])))
    split = (w.shape[0], x.shape[0], prod(node.shape[2:]))
    return _product(node, rows, columns, split, (1, 0, 2))


def _weight_gradient(node: Node, layouts: Layouts) -> Node:
    """``dW[o, k] = sum over n of dY[o, n] X[k, n]``."""
    g, x = node.sources
    at, (taps, sizes) = geometry_of(node.attributes), _windows(node)
    columns = _columns(node, layouts)
    images, channels = g.shape[:2]
    # Where there are no runs of pixels to copy; and TMA takes matrices, not those of each image.
    if prod(sizes) % _together(node) or (prod(taps) > 1 and x.shape[1] // at.groups % BOX == 0):
        g = movement.permute(_channels_last(g, layouts), axes=(0, len(sizes) + 1, *_range(sizes)))
    rows = movement.reshape(g, shape=(images, channels, prod(sizes)))
    rows = movement.permute(rows, axes=(1, 0, 2))
    shape = _by_group(at.groups, channels, images * prod(sizes))
    rows = movement.reshape(rows, shape=shape)
    split = (channels, prod(taps), x.shape[1] // at.groups)
    return _product(node, rows, contraction.transpose(columns), split, (0, 2, 1))


def _by_group(groups: int, rows: int, columns: int) -> Shape:
    """The shape of a matrix whose rows are those of all groups: a batch if there are several."""
    return (rows, columns) if groups == 1 else (groups, rows // groups, columns)


def _range(sizes: Shape) -> range:
    """The spatial axes of images with the channels last."""
    return range(1, 1 + len(sizes))


def _product(node: Node, a: Node, b: Node, split: Any, axes: Any) -> Node:
    """The product whose elements, seen as `split` axes in the order `axes`, are the node's."""
    attributes = {"split": split, "axes": axes, "shape": node.shape}
    taps, sizes = _windows(node)
    if not _pixels(node):
        turned = node.op is not convolution
        attributes["windows"] = WindowColumns(taps, sizes, geometry_of(node.attributes), turned)
    return node_made(
        contraction.matmul, (a, b), attributes, node.outputs, node.device, False, node.site
    )


def _channels_last(x: Node, layouts: Layouts, part: Any = None) -> Node:
    """The same values with the second axis behind all others, in memory.

    Args:
        part: a value and what of it `x` is, where `x` is a new node each time.
    """
    key = _key(part or x)
    if key not in layouts:
        axes = (0, *range(2, len(x.shape)), 1)
        layouts[key] = ew.contiguous(movement.permute(x, axes=axes))
    return layouts[key]


def _key(of: Any) -> Any:
    """Of a value with the channels last, among what a plan stores."""
    return ("channels last", of)


def _columns(node: Node, layouts: Layouts) -> Node:
    """Windows as columns: shape (prod(taps) * C, N * prod(sizes)), or such a matrix a group."""
    x, at, (taps, sizes) = _input(node), geometry_of(node.attributes), _windows(node)
    rank, images, channels = len(taps), x.shape[0], x.shape[1] // at.groups
    inner, stride = (0, rank + 1, *_range(sizes)), at.stride
    if _pixels(node):
        pass  # pixels that follow each other are copied as they are
    elif prod(taps) == 1 and _key(x) not in layouts:  # only pixels that windows have are stored
        shape, starts = (*x.shape[:2], *sizes), (0,) * len(x.shape)
        some = movement.slice_(
            padded(x, at.padding), starts=starts, shape=shape, steps=(1, 1, *stride)
        )
        last = _channels_last(some, layouts, (x, sizes, at.padding, stride))
        x, stride = movement.permute(last, axes=inner), (1,) * rank
    else:
        x = padded(movement.permute(_channels_last(x, layouts), axes=inner), at.padding)
    wide = windows(x, taps, stride, at.dilation, sizes)
    wide = movement.reshape(wide, shape=(images, at.groups, channels, *sizes, *taps))
    axes = (1, *range(3 + rank, 3 + 2 * rank), 2, 0, *range(3, 3 + rank))
    wide = movement.permute(wide, axes=axes)
    matrix = (prod(taps) * channels, images * prod(sizes))
    return movement.reshape(wide, shape=matrix if at.groups == 1 else (at.groups, *matrix))
