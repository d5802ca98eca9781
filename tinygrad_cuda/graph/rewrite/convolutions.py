"""Rewrite rules of convolutions: an input gradient becomes convolutions, padding joins them.

The input gradient is a convolution of the cotangent with the flipped kernel; with a stride, one
for each output phase.
"""

from __future__ import annotations

from functools import reduce
from math import prod

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.graph.ops.convolution import (
    convolution,
    convolution_weight_gradient,
    geometry_of,
)
from tinygrad_cuda.graph.ops.geometry import Geometry, Pads, Phase, phases_of
from tinygrad_cuda.graph.ops.windows import padded
from tinygrad_cuda.graph.rewrite.pattern import constant_like, is_literal

WASTE = 2  # products with zeros that one convolution may have, for each of several without
LIBRARY = "library"  # the attribute of an input gradient that a library makes as it is
PHASES = 8  # convolutions that the input gradient of one with a stride may become


def over_nothing(node: Node) -> Node | None:
    """No image or no channel: every sum is empty."""
    return constant_like(0, node) if any(0 in source.shape for source in node.sources) else None


def joined_padding(node: Node) -> Node | None:
    """Zeros around the images of a convolution, or of its weight gradient, are its padding."""
    position = int(node.op is convolution_weight_gradient)
    image = node.sources[position]
    pads = _zeros_around(image)
    if pads is None:
        return None
    sources = list(node.sources)
    sources[position] = image.sources[0]
    own = node.attributes["padding"]
    both = tuple((a + c, b + d) for (a, b), (c, d) in zip(own, pads, strict=True))
    return node.op(*sources, **{**node.attributes, "padding": both})


def _zeros_around(node: Node) -> tuple[tuple[int, int], ...] | None:
    """How many zeros a pad puts before and after each spatial axis; None if it does more."""
    if node.op is not movement.pad:
        return None
    starts, value = node.attributes["starts"], node.attributes["value"]
    (inner,) = node.sources
    if not is_literal(value) or value != 0 or not all(map(is_literal, starts)):
        return None
    if inner.shape[:2] != node.shape[:2] or any(step != 1 for step in node.attributes["steps"]):
        return None
    sizes = zip(starts[2:], inner.shape[2:], node.shape[2:], strict=True)
    return tuple((start, whole - start - n) for start, n, whole in sizes)


# Input gradients ----------------------------------------------------------------------------------


def input_gradient(node: Node) -> Node | None:
    """Convolutions of the cotangent with the flipped kernel; None where a library makes it."""
    if LIBRARY in node.attributes:
        return None
    (g, w), at, size = node.sources, geometry_of(node.attributes), node.attributes["size"]
    if node.dtype.is_half and all(s == 1 for s in at.stride):
        return _flipped(g, w, size, at)
    if node.dtype.is_half and (made := by_blocks(node)) is not None:
        return made
    phases = phases_of(g.shape[2:], w.shape[2:], size, at)
    if not 0 < len(phases) <= PHASES or all(s == 1 for s in at.stride):
        return _spread(g, w, size, at)
    return reduce(ew.add, (_phase(g, w, size, at, phase) for phase in phases))


def by_blocks(node: Node) -> Node | None:
    """The input gradient of strided windows as one convolution; None if it has too many zeros."""
    (g, w), at = node.sources, geometry_of(node.attributes)
    if all(s == 1 for s in at.stride) or not _fills_blocks(w.shape[2:], at):
        return None
    return _blocks(g, w, node.attributes["size"], at)


def by_spreading(node: Node) -> Node | None:
    """The input gradient of strided windows as one convolution of the cotangent, whose elements
    stand a stride apart among zeros; None if padding is wider than windows."""
    (g, w), at = node.sources, geometry_of(node.attributes)
    reach = [d * (k - 1) for d, k in zip(at.dilation, w.shape[2:], strict=True)]
    if any(max(pads) > r for pads, r in zip(at.padding, reach, strict=True)):
        return None
    return _spread(g, w, node.attributes["size"], at)


def _turned(w: Node, groups: int) -> Node:
    """The kernel of the transposed convolution: channels exchanged within groups, flipped."""
    outputs, inputs, *kernel = w.shape
    w = movement.reshape(w, shape=(groups, outputs // groups, inputs, *kernel))
    w = movement.permute(w, axes=(0, 2, 1, *range(3, 3 + len(kernel))))
    w = movement.reshape(w, shape=(groups * inputs, outputs // groups, *kernel))
    axes = tuple(2 + axis for axis, size in enumerate(kernel) if size > 1)
    return movement.flip(w, axes=axes) if axes else w


def _flipped(g: Node, w: Node, size: Shape, at: Geometry) -> Node:
    """The input gradient without a stride: a convolution of the cotangent, with other padding."""
    reach = tuple(d * (k - 1) for d, k in zip(at.dilation, w.shape[2:], strict=True))
    pads = tuple((r - before, r - after) for r, (before, after) in zip(reach, at.padding))
    return _convolved(g, _turned(w, at.groups), pads, at.dilation, at.groups)


def _convolved(g: Node, w: Node, pads: Pads, dilation: Shape, groups: int) -> Node:
    """A convolution without a stride; negative padding crops."""
    crops = [(min(before, 0), min(after, 0)) for before, after in pads]
    pads = tuple((max(before, 0), max(after, 0)) for before, after in pads)
    near = Geometry((1,) * len(pads), pads, dilation, groups)
    return convolution(padded(g, crops), w, **near._asdict())


def _block_taps(kernel: int, stride: int, pad: int) -> tuple[int, int]:
    """(first, last) distance in blocks of `stride` elements from an element to a window on it."""
    return -((stride - 1 + pad) // stride), (kernel - 1 - pad) // stride


def _fills_blocks(kernel: Shape, at: Geometry) -> bool:
    """Whether few taps are zeros if an axis' phases are channels of one convolution."""
    if at.groups > 1 or any(d > 1 and k > 1 for d, k in zip(at.dilation, kernel, strict=True)):
        return False
    spread = 1
    for k, s, (pad, _) in zip(kernel, at.stride, at.padding, strict=True):
        first, last = _block_taps(k, s, pad)
        spread *= (last - first + 1) * s
    return spread <= WASTE * prod(kernel)


def _blocks(g: Node, w: Node, size: Shape, at: Geometry) -> Node:
    """The input gradient by blocks of `stride` elements: their elements are channels.

    With p = s b + r and tap u = p + pad - s i, element r of block b gets ``sum over j of
    g[b - j] w[s j + r + pad]``: a convolution without stride, whose kernel has zeros around w.
    """
    rank, channels, outputs = len(size), w.shape[1], w.shape[0]
    ends = [
        _block_taps(k, s, pad)
        for k, s, (pad, _) in zip(w.shape[2:], at.stride, at.padding, strict=True)
    ]
    taps = tuple(last - first + 1 for first, last in ends)
    before = [-pad - s * first for s, (pad, _), (first, _) in zip(at.stride, at.padding, ends)]
    after = [j * s - k - b for j, s, k, b in zip(taps, at.stride, w.shape[2:], before)]
    w = padded(w, list(zip(before, after, strict=True)))
    w = movement.reshape(w, shape=(outputs, channels, *_paired(taps, at.stride)))
    axes = (*range(3, 3 + 2 * rank, 2), 1, 0, *range(2, 2 + 2 * rank, 2))
    w = movement.permute(w, axes=axes)
    w = movement.reshape(w, shape=(prod(at.stride) * channels, outputs, *taps))
    w = movement.flip(w, axes=tuple(2 + n for n, j in enumerate(taps) if j > 1))
    count = tuple(-(-n // s) for n, s in zip(size, at.stride, strict=True))
    pads = tuple(
        (last, b - n - first) for b, n, (first, last) in zip(count, g.shape[2:], ends, strict=True)
    )
    y = _convolved(g, w, pads, (1,) * rank, 1)
    y = movement.reshape(y, shape=(g.shape[0], *at.stride, channels, *count))
    axes = (0, 1 + rank, *(n for axis in range(rank) for n in (2 + rank + axis, 1 + axis)))
    y = movement.permute(y, axes=axes)
    whole = tuple(b * s for b, s in zip(count, at.stride, strict=True))
    y = movement.reshape(y, shape=(g.shape[0], channels, *whole))
    return padded(y, [(0, n - full) for n, full in zip(size, whole, strict=True)])


def _paired(first: Shape, second: Shape) -> Shape:
    """Sizes of two lists in turn."""
    return tuple(n for pair in zip(first, second, strict=True) for n in pair)


def _phase(g: Node, w: Node, size: Shape, at: Geometry, phase: tuple[Phase, ...]) -> Node:
    """The elements of one phase among zeros."""
    taps = movement.slice_(
        w,
        starts=(0, 0, *(axis.tap for axis in phase)),
        shape=(*w.shape[:2], *(axis.taps for axis in phase)),
        steps=(1, 1, *(axis.step for axis in phase)),
    )
    dilation = tuple(axis.dilation for axis in phase)
    pads = tuple(axis.pads for axis in phase)
    part = _convolved(g, _turned(taps, at.groups), pads, dilation, at.groups)
    return movement.pad(
        part,
        starts=(0, 0, *(axis.first for axis in phase)),
        shape=(*part.shape[:2], *size),
        steps=(1, 1, *at.stride),
        value=0,
    )


def _spread(g: Node, w: Node, size: Shape, at: Geometry) -> Node:
    """The input gradient as one convolution, of g with its elements a stride apart."""
    lengths, kernel = g.shape[2:], w.shape[2:]
    reach = tuple(d * (k - 1) for d, k in zip(at.dilation, kernel))
    spread = tuple(
        max(before + n, (length - 1) * s + r + 1) + r
        for (before, _), n, length, s, r in zip(at.padding, size, lengths, at.stride, reach)
    )
    g = movement.pad(
        g, starts=(0, 0, *reach), shape=(*g.shape[:2], *spread), steps=(1, 1, *at.stride), value=0
    )
    g = movement.slice_(
        g,
        starts=(0, 0, *(before for before, _ in at.padding)),
        shape=(*g.shape[:2], *(n + r for n, r in zip(size, reach))),
        steps=(1,) * len(g.shape),
    )
    none = Geometry((1,) * len(size), ((0, 0),) * len(size), at.dilation, at.groups)
    return convolution(g, _turned(w, at.groups), **none._asdict())
