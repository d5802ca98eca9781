"""Matrix products and a 3 x 3 convolution in float32 (IEEE, no tf32)."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.workload import Function, normal


def product(net: Any, a: Any, b: Any) -> Any:
    return a @ b


def convolution(net: Any, x: Any, weight: Any) -> Any:
    return net.conv2d_of(x, weight, padding=1)


def square(side: int, smoke: bool) -> Function:
    side = 8 if smoke else side
    return Function(product, (normal((side, side)), normal((side, side), 1)))


def conv3x3(backward: bool, smoke: bool) -> Function:
    images, channels, side = (2, 3, 4) if smoke else (128, 128, 28)
    shape = (images, channels, side, side)
    cotangent = normal(shape, 2) if backward else None
    return Function(convolution, (normal(shape), normal((channels, channels, 3, 3), 1)), cotangent)


WORKLOADS = {
    "matmul_1024": partial(square, 1024),
    "matmul_4096": partial(square, 4096),
    "conv3x3": partial(conv3x3, False),
    "conv3x3_backward": partial(conv3x3, True),
}
