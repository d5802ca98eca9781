"""Products, convolutions and attention alone, in what matrix units multiply.

A name of a product says its rows, columns and summed length, and how both operands lie in memory:
n as they are multiplied, t transposed. PyTorch's linear layers are nt.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.workload import ALL, Operation

# The suffix of a name: dtype, and what products of float32 are computed in.
DTYPES = {
    "bf16": ("bfloat16", "ieee"), "fp16": ("float16", "ieee"),
    "tf32": ("float32", "tf32"), "fp32": ("float32", "ieee"),
}  # fmt: skip
# Our TFLOP/s over the library's: products of bf16 and fp16 as linear layers have them, others, of
# other shapes, and of float32 without tf32; attention forward, and with backward.
NT, OTHER, SHAPE, FLOAT32, FORWARD, WITH_BACKWARD = 0.95, 0.9, 0.85, 1.8, 0.85, 0.8
SQUARES = (4096, 8192)
ORDERS = ("nt", "nn", "tn", "tt")
LINEAR = (
    (16384, 2304, 768), (16384, 3072, 768), (16384, 50304, 768), (64, 4096, 4096),
    (8192, 768, 3072),
)  # fmt: skip
BATCHED = (96, 1024, 1024, 64)
# Images, channels, side, filters, kernel, stride.
CONVOLUTIONS = {
    "conv_3x3_c128": (128, 128, 28, 128, 3, 1),
    "conv_3x3_c64": (256, 64, 32, 64, 3, 1),
    "conv_stride2": (256, 64, 32, 128, 3, 2),
    "conv_1x1": (128, 256, 28, 256, 1, 1),
}
# The input whose gradient is timed, by suffix.
DIRECTIONS = {"": None, "_dx": 0, "_dw": 1}
# Batch, heads, tokens, width of a head; causal.
ATTENTION = {"attention_4096": (8, 16, 4096, 128), "attention_1024": (16, 12, 1024, 64)}
BACKWARD = 3.5  # forward and backward over forward: seven products instead of two


def product(order: str, net: Any, a: Any, b: Any) -> Any:
    left = a.transpose(-2, -1) if order[0] == "t" else a
    return left @ (b.transpose(-2, -1) if order[1] == "t" else b)


def matmul(size: tuple[int, ...], order: str, kind: str, smoke: bool) -> Operation:
    goal = NT if order == "nt" and DTYPES[kind][0] != "float32" else OTHER
    if len({*size}) > 1:
        goal = SHAPE
    elif kind == "fp32":
        goal = FLOAT32
    if smoke:
        size = (2,) * (len(size) - 3) + (6, 5, 4)
    *batch, rows, columns, length = size
    left = (length, rows) if order[0] == "t" else (rows, length)
    right = (columns, length) if order[1] == "t" else (length, columns)
    flops = 2.0 * rows * columns * length
    for count in batch:
        flops *= count
    shapes = ((*batch, *left), (*batch, *right))
    dtype, precision = DTYPES[kind]
    function = partial(product, order)
    return Operation("matmul", function, shapes, flops, dtype, precision, goal=goal)


def convolution(stride: int, padding: int, net: Any, x: Any, weight: Any) -> Any:
    return net.conv2d_of(x, weight, stride=stride, padding=padding)


def conv(sizes: tuple[int, ...], kind: str, gradient: int | None, smoke: bool) -> Operation:
    images, channels, side, filters, kernel, stride = sizes
    if smoke:
        images, channels, side, filters = 2, 3, 6, 4
    padding = kernel // 2
    out = (side + 2 * padding - kernel) // stride + 1
    shapes = ((images, channels, side, side), (filters, channels, kernel, kernel))
    result = (images, filters, out, out)
    flops = 2.0 * images * filters * out * out * channels * kernel * kernel
    function = partial(convolution, stride, padding)
    dtype, precision = DTYPES[kind]
    return Operation("convolution", function, shapes, flops, dtype, precision, gradient, result)


def causal(net: Any, q: Any, k: Any, v: Any) -> Any:
    return net.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention(sizes: tuple[int, ...], backward: bool, smoke: bool) -> Operation:
    batch, heads, tokens, width = (2, 2, 6, 4) if smoke else sizes
    shape = (batch, heads, tokens, width)
    flops = 2.0 * batch * heads * tokens * tokens * width * (BACKWARD if backward else 1)
    gradient, goal = (ALL, WITH_BACKWARD) if backward else (None, FORWARD)
    return Operation(
        "attention", causal, (shape,) * 3, flops, gradient=gradient, result=shape, goal=goal
    )


WORKLOADS = {
    f"matmul_{size}_{order}_{kind}": partial(matmul, (size, size, size), order, kind)
    for size in SQUARES
    for kind in DTYPES
    for order in ORDERS
}
WORKLOADS |= {
    f"matmul_{'x'.join(map(str, size))}_bf16": partial(matmul, size, "nt", "bf16")
    for size in (*LINEAR, BATCHED)
}
WORKLOADS |= {
    f"{name}{suffix}_{kind}": partial(conv, sizes, kind, gradient)
    for name, sizes in CONVOLUTIONS.items()
    for kind in ("bf16", "tf32")
    for suffix, gradient in DIRECTIONS.items()
}
WORKLOADS |= {
    f"{name}{suffix}_bf16": partial(attention, sizes, bool(suffix))
    for name, sizes in ATTENTION.items()
    for suffix in ("", "_backward")
}
