"""Convolutions with a stride backwards, and transposed: the values, and no products with zeros."""

from __future__ import annotations

from math import prod

import pytest
from layers import compare, real

import tinygrad_cuda as tc
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.lowering.schedule.cost import flops
from tinygrad_cuda.nn import functional as F

# Kernel, stride, padding, dilation, groups: kernels below and above their stride, strides and
# dilations with and without a common divisor, as many phases as are made, and more.
GEOMETRIES = (
    ((3, 3), (2, 2), (1, 1), (1, 1), 1),
    ((1, 2), (2, 3), (0, 1), (1, 1), 1),
    ((4, 3), (3, 2), (2, 0), (2, 2), 2),
    ((3, 3), (4, 2), (0, 2), (2, 1), 1),
    ((5, 4), (3, 3), (2, 1), (1, 2), 1),
)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_values_and_gradients_are_torchs(geometry: tuple[tuple[int, int], ...]) -> None:
    kernel, stride, padding, dilation, groups = geometry
    x, w = real(2, 4, 11, 12), real(4, 4 // groups, *kernel)

    def forward(functions, x, w):
        return functions.conv2d(x, w, None, stride, padding, dilation, groups)

    def transposed(functions, x, w):
        return functions.conv_transpose2d(x, w, None, stride, padding, 0, groups, dilation)

    compare(forward, (x, w), "float64")
    compare(transposed, (x[:, :, :5, :4], w), "float64")


@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_the_input_gradient_takes_as_many_products_as_the_convolution(kernel: int) -> None:
    x = tc.zeros(2, 3, 8, 8, requires_grad=True)
    w = tc.zeros(4, 3, kernel, kernel)
    y = F.conv2d(x, w, stride=2, padding=(kernel - 1) // 2)
    (gradient,) = tc.autograd.grad(y.sum(), x)
    products = [n for n in topological([gradient.node]) if n.op.kind == "contraction"]
    assert sum(map(flops, products)) == 2 * 3 * kernel**2 * prod(y.shape)


@pytest.mark.parametrize("scale", [2, 3])
def test_a_convolution_of_what_was_enlarged(scale: int) -> None:
    """Its windows are divided by the scale: no part of the index is of the window alone."""
    x, w = real(2, 3, 5, 6), real(5, 3, 3, 3)

    def forward(functions, x, w):
        return functions.conv2d(functions.interpolate(x, scale_factor=scale), w, padding=1)

    compare(forward, (x, w), "float32", "emu")
