"""Convolutions as products of windows that are stored before (im2col): the ladder's oldest rung.

An element of the images is stored once for each window that has it: 9 times for 3 x 3 windows.
Implicit GEMM reads the same columns from the images themselves; nothing but `kernels.use` chooses
this.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, gradient_mode, node_made, recorded_at
from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.graph.ops.convolution import convolution
from tinygrad_cuda.lowering.layouts import Layouts
from tinygrad_cuda.lowering.skeletons.conv.windows import operands_of


class Im2col(NamedTuple):
    """The cut of a convolution that multiplies stored columns."""


def as_product(node: Node, layouts: Layouts) -> Node:
    """The product of a convolution, or a weight gradient, with its columns in memory.

    Args:
        node: one of these.
        layouts: what a plan stores.
    """
    with gradient_mode(False), recorded_at(node.site):
        a, b = operands_of(node)
        if node.op is convolution:
            b = layouts.copy(b, (0, 1, 2))
            # The product has channels, images and pixels, the convolution images first.
            split: Shape = (node.shape[1], node.shape[0], prod(node.shape[2:]))
            axes: Shape = (1, 0, 2)
        else:  # columns lie as of the convolution: a row for each channel and tap
            columns = layouts.copy(contraction.transpose(b), (0, 1, 2))
            b = contraction.transpose(columns)
            split, axes = (node.shape[0], prod(node.shape[1:])), (0, 1)
    attributes = {"split": split, "axes": axes, "shape": node.shape}
    return node_made(
        contraction.matmul, (a, b), attributes, node.outputs, node.device, False, node.site
    )


__all__ = ["Im2col", "as_product"]
