"""Depthwise convolutions, of one channel a group, as sums over the taps of a window.

Such a convolution multiplies as often as it reads. Of shifted images, tap by tap, the sum is one
map, and the weight gradient is a reduction with a sum for each tap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod

from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, gradient_mode, recorded_at
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.convolution import convolution, geometry_of
from tinygrad_cuda.graph.ops.windows import padded
from tinygrad_cuda.lowering.target import Target

TAPS = 9  # of a window at most: each takes registers, and nodes of a kernel
# Instructions of a tap and an element, fitted to 128 x 128 x 28 x 28 with 3 x 3 taps on an H200.
RESULT, WEIGHT = 18, 50
LANES = 128  # instructions that a multiprocessor executes a clock
LAUNCH = 4000  # clocks of the launch that puts sums of taps together


@dataclass(frozen=True)
class TapSums:
    """The cut of a depthwise convolution that is a sum over taps."""


def refusal(node: Node) -> str:
    """Why a convolution, or a weight gradient, is no such sum; empty if it is one."""
    w = node.sources[1] if node.op is convolution else node
    groups = geometry_of(node.attributes).groups
    if groups == 1 or w.shape[1] > 1 or w.shape[0] != groups:
        return "several channels of a group"
    if node.dtype.compute != "float":
        return f"{node.dtype.name} is not summed in float32"
    return "" if prod(w.shape[2:]) <= TAPS else f"{prod(w.shape[2:])} taps of a window"


def clocks(node: Node, target: Target) -> float:
    """An estimate of the time of all kernels, in clocks of a multiprocessor."""
    own = node.op is convolution
    results, taps = (node if own else node.sources[0]).shape, prod(node.sources[1].shape[2:])
    taps = taps if own else prod(node.shape[2:])
    each = RESULT if own else WEIGHT
    time = prod(results) * taps * each / (LANES * target.multiprocessors)
    return time + (0 if own else LAUNCH)


def as_sums(node: Node) -> Node:
    """The same values up to rounding, summed in float32."""
    with gradient_mode(False), recorded_at(node.site):
        made = _result(node) if node.op is convolution else _weight_gradient(node)
        return made if node.dtype is float32 else ew.cast(made, dtype=node.dtype)


def _result(node: Node) -> Node:
    """``y[n,c,i] = sum over u of x[n,c,i s + u d - p] w[c,u]``."""
    x, w = node.sources
    channels = (1, w.shape[0], *(1 for _ in w.shape[2:]))
    terms = []
    for tap, pixels in _taps(x, w.shape[2:], node.shape[2:], node):
        shape = (*w.shape[:2], *(1 for _ in tap))
        one = movement.slice_(w, starts=(0, 0, *tap), shape=shape, steps=(1,) * len(shape))
        weight = movement.reshape(one, shape=channels)
        terms.append(ew.mul(_wide(pixels), movement.expand(_wide(weight), shape=node.shape)))
    return reduce(ew.add, terms)


def _weight_gradient(node: Node) -> Node:
    """``dw[c,u] = sum over n, i of g[n,c,i] x[n,c,i s + u d - p]``."""
    g, x = node.sources
    axes = (0, *range(2, len(g.shape)))
    sums = []
    for tap, pixels in _taps(x, node.shape[2:], g.shape[2:], node):
        total = rd.sum(ew.mul(_wide(g), _wide(pixels)), axes=axes)
        one = movement.reshape(total, shape=(*node.shape[:2], *(1 for _ in tap)))
        sums.append(
            movement.pad(
                one, starts=(0, 0, *tap), shape=node.shape, steps=(1,) * len(node.shape), value=0
            )
        )
    return reduce(ew.add, sums)


def _taps(x: Node, taps: Shape, sizes: Shape, node: Node) -> Iterator[tuple[Shape, Node]]:
    """Each tap, and the pixel that each window reads with it."""
    at = geometry_of(node.attributes)
    wide, shape, steps = padded(x, at.padding), (*x.shape[:2], *sizes), (1, 1, *at.stride)
    for tap in product(*map(range, taps)):
        starts = (0, 0, *(u * d for u, d in zip(tap, at.dilation, strict=True)))
        yield tap, movement.slice_(wide, starts=starts, shape=shape, steps=steps)


def _wide(x: Node) -> Node:
    return x if x.dtype is float32 else ew.cast(x, dtype=float32)
