"""Convolutions as products for matrix units: the channels of a pixel beside each other in memory.

Then 8 channels of 16 bits, or 4 of float32, are the 16 bytes of one copy, whichever tap of a window
reads them. Input and weight are stored so before; the result is stored in the order of its axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tinygrad_cuda.graph.node import Node, gradient_mode, node_made, recorded_at
from tinygrad_cuda.graph.ops import contraction, movement
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.convolution import convolution, geometry_of
from tinygrad_cuda.graph.ops.geometry import Geometry
from tinygrad_cuda.graph.ops.windows import padded, windows

COPY = 16  # bytes
SPEED = 0.5  # share of memory's bytes a clock at which channels are put last
LAUNCH = 4000  # clocks of a launch that does so

# Values that are stored in another order, by what they are made of: a plan stores each once.
Layouts = dict[Any, Node]


@dataclass(frozen=True)
class ChannelsLast:
    """The cut of a convolution that is a product of values with the channels last."""


def refusal(node: Node) -> str:
    """Why a convolution, or a weight gradient, is no such product; empty if it is one."""
    x, together = _input(node), COPY // node.dtype.itemsize
    if not node.dtype.is_half and (node.dtype.name != "float32" or node.op is not convolution):
        return f"{node.dtype.name} is no operand of this product on matrix units"
    if geometry_of(node.attributes).groups != 1:
        return "several groups"
    if x.shape[1] % together:
        return f"{x.shape[1]} channels are no copies of {together}"
    return ""


def moved_bytes(node: Node) -> int:
    """What is read and written so that the channels are last."""
    values = (_input(node), node.sources[1]) if node.op is convolution else (_input(node),)
    return sum(2 * prod(value.shape) * value.dtype.itemsize for value in values)


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
    if x not in layouts:
        layouts[x] = ew.contiguous(x)
    return layouts[x]


def as_product(node: Node, layouts: Layouts) -> Node:
    """The product, whose result has the convolution's shape."""
    with gradient_mode(False), recorded_at(node.site):
        return (_result if node.op is convolution else _weight_gradient)(node, layouts)


def _input(node: Node) -> Node:
    """The images."""
    return node.sources[node.op is not convolution]


def _result(node: Node, layouts: Layouts) -> Node:
    """``Y[o, n] = sum over k of W[o, k] X[k, n]`` with k = (taps, channel), n = (image, pixel)."""
    x, w = node.sources
    taps, sizes = w.shape[2:], node.shape[2:]
    columns = _columns(x, taps, sizes, geometry_of(node.attributes), layouts)
    rows = movement.reshape(_channels_last(w, layouts), shape=(w.shape[0], prod(w.shape[1:])))
    split = (w.shape[0], x.shape[0], prod(sizes))
    return _product(node, rows, columns, split, (1, 0, 2))


def _weight_gradient(node: Node, layouts: Layouts) -> Node:
    """``dW[o, k] = sum over n of dY[o, n] X[k, n]``."""
    g, x = node.sources
    taps, sizes = node.shape[2:], g.shape[2:]
    columns = _columns(x, taps, sizes, geometry_of(node.attributes), layouts)
    images, channels = g.shape[:2]
    rows = movement.reshape(g, shape=(images, channels, prod(sizes)))
    rows = movement.permute(rows, axes=(1, 0, 2))
    rows = movement.reshape(rows, shape=(channels, images * prod(sizes)))
    split = (channels, prod(taps), x.shape[1])
    return _product(node, rows, contraction.transpose(columns), split, (0, 2, 1))


def _product(node: Node, a: Node, b: Node, split: Any, axes: Any) -> Node:
    """The product whose elements, seen as `split` axes in the order `axes`, are the node's."""
    attributes = {"split": split, "axes": axes, "shape": node.shape}
    return node_made(
        contraction.matmul, (a, b), attributes, node.outputs, node.device, False, node.site
    )


def _channels_last(x: Node, layouts: Layouts) -> Node:
    """The same values with the second axis behind all others, in memory."""
    key = ("channels last", x)
    if key not in layouts:
        axes = (0, *range(2, len(x.shape)), 1)
        layouts[key] = ew.contiguous(movement.permute(x, axes=axes))
    return layouts[key]


def _columns(x: Node, taps: Any, sizes: Any, at: Geometry, layouts: Layouts) -> Node:
    """Windows as columns: shape (prod(taps) * C, N * prod(sizes))."""
    rank, (images, channels) = len(taps), x.shape[:2]
    plain = prod(taps) == prod(at.stride) == 1 and not any(map(any, at.padding))
    if not plain:  # else pixels that follow each other are copied as they are
        last = _channels_last(x, layouts)
        x = movement.permute(last, axes=(0, rank + 1, *range(1, rank + 1)))
    wide = windows(padded(x, at.padding), taps, at.stride, at.dilation, sizes)
    axes = (*range(2 + rank, 2 + 2 * rank), 1, 0, *range(2, 2 + rank))
    wide = movement.permute(wide, axes=axes)
    return movement.reshape(wide, shape=(prod(taps) * channels, images * prod(sizes)))
