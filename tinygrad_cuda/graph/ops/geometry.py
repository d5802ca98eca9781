"""The sizes of convolutions: how windows lie in an image, and which of them reach an element."""

from __future__ import annotations

from itertools import product
from math import gcd
from typing import NamedTuple

from tinygrad_cuda.core.shapes import Shape

Pads = tuple[tuple[int, int], ...]


class Geometry(NamedTuple):
    """How the windows of a convolution lie in its input, along each spatial axis.

    Attributes:
        stride: elements from window to window.
        padding: zeros before and after the input.
        dilation: elements from tap to tap of a window.
        groups: channels fall into so many groups, each convolved by itself.
    """

    stride: Shape
    padding: Pads
    dilation: Shape
    groups: int

    def sizes(self, size: Shape, kernel: Shape) -> Shape:
        """Spatial sizes of the result for an input of these sizes; below 1 where no window fits."""
        return tuple(
            (n + before + after - d * (k - 1) - 1) // s + 1
            for n, k, s, d, (before, after) in zip(
                size, kernel, self.stride, self.dilation, self.padding, strict=True
            )
        )


class Phase(NamedTuple):
    """Every stride-th element of an axis of a convolution's input, and the taps that reach it.

    Attributes:
        first: the first element; the others are a stride apart.
        tap, taps, step: the first tap, their number and their distance.
        dilation: how far apart neighbouring taps are in the convolution's result.
        pads: zeros before and after that result; negative numbers crop it.
    """

    first: int
    tap: int
    taps: int
    step: int
    dilation: int
    pads: tuple[int, int]


def phases_of(
    sizes: Shape, kernel: Shape, size: Shape, geometry: Geometry
) -> list[tuple[Phase, ...]]:
    """The parts of an input gradient, each a convolution without stride; one for each axis.

    An element p gets ``g[q] w[t]`` with ``p + pad = q stride + t dilation``, so all its taps t
    leave the same rest modulo the stride; elements and taps of different rests never meet.

    Args:
        sizes: spatial, of the cotangent of the convolution's result.
        kernel, size: spatial sizes of the weight and of the input.
        geometry: of the convolution.
    """
    axes = []
    for n, k, whole, s, d, (pad, _) in zip(
        sizes, kernel, size, geometry.stride, geometry.dilation, geometry.padding, strict=True
    ):
        step, phases = s // gcd(s, d), []
        for rest in range(s):
            first = (rest - pad) % s
            tap = next((t for t in range(min(k, step)) if t * d % s == rest), None)
            elements = -(-(whole - first) // s)
            if tap is None or elements < 1:
                continue
            taps, near = -(-(k - tap) // step), d // gcd(s, d)
            before = near * (taps - 1) + (tap * d - rest) // s - (first + pad - rest) // s
            after = elements + near * (taps - 1) - before - n
            phases.append(Phase(first, tap, taps, step, near, (before, after)))
        axes.append(phases)
    return list(product(*axes))
