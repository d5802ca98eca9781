"""Sliding windows of images as columns and back: what convolutions are made of.

A window is an index rewrite; folding back adds up where windows overlap.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.dtypes import bool_, int32
from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import movement, reduction
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.promotion import to_dtype
from tinygrad_cuda.tensors.shaping import pad_axis, slice_axis

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor


def pair(value: Any) -> tuple[int, int]:
    """One number for both dimensions, or one for each."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _count(op: str, size: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    if count < 1 or min(kernel, dilation, stride) < 1 or padding < 0:
        raise ShapeError(
            op,
            "the kernel does not fit",
            expect=f"a reach of at most {size + 2 * padding}",
            actual=f"kernel {kernel}, dilation {dilation}, padding {padding}, stride {stride}",
        )
    return count


def unfold(
    input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Windows of images as columns (im2col).

    Args:
        input: (n, c, h, w) or (c, h, w).
        kernel_size, dilation, padding, stride: numbers, or pairs for height and width.

    Returns:
        (n, c * kh * kw, windows), the windows row by row.

    Example:
        >>> import tinygrad_cuda as tc
        >>> from tinygrad_cuda.tensors.windows import unfold
        >>> x = tc.arange(9, device="cpu").reshape(1, 1, 3, 3)
        >>> unfold(x, 2)[0, :, 0].tolist()
        [0, 1, 3, 4]
    """
    node = _batched("unfold", input.node, 4)
    kernel, dilations, paddings, strides = map(pair, (kernel_size, dilation, padding, stride))
    counts = []
    for k in (0, 1):
        counts.append(
            _count("unfold", node.shape[2 + k], kernel[k], dilations[k], paddings[k], strides[k])
        )
    for k in (0, 1):
        if paddings[k]:
            node = pad_axis(node, 2 + k, paddings[k], paddings[k])
    n, c = node.shape[:2]
    wide = movement.reshape(node, shape=(*node.shape, 1, 1))
    wide = movement.expand(wide, shape=(*node.shape, *kernel))
    for k in (0, 1):
        wide = movement.window(
            wide,
            axis=2 + k,
            over=4 + k,
            length=counts[k],
            stride=strides[k],
            dilation=dilations[k],
        )
    columns = movement.permute(wide, axes=(0, 1, 4, 5, 2, 3))
    shape: Shape = (n, c * prod(kernel), prod(counts))
    result = movement.reshape(columns, shape=shape)
    return wrap(result if input.ndim == 4 else movement.reshape(result, shape=shape[1:]))


def _batched(op: str, node: Node, rank: int) -> Node:
    if len(node.shape) not in (rank, rank - 1):
        raise ShapeError(
            op, "wrong number of dimensions", expect=f"{rank - 1} or {rank}", actual=str(node.shape)
        )
    return node if len(node.shape) == rank else movement.reshape(node, shape=(1, *node.shape))


def fold(
    input: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Tensor:
    """Columns summed back to images (col2im): the adjoint of `unfold`.

    Args:
        input: (n, c * kh * kw, windows) or without n.
        output_size: height and width of the images.
    """
    node = _batched("fold", input.node, 3)
    size, kernel = pair(output_size), pair(kernel_size)
    dilations, paddings, strides = map(pair, (dilation, padding, stride))
    counts = [
        _count("fold", size[k], kernel[k], dilations[k], paddings[k], strides[k]) for k in (0, 1)
    ]
    n, depth, windows = node.shape
    if depth % prod(kernel) or windows != prod(counts):
        raise ShapeError(
            "fold",
            "the columns do not fit the kernel and the output size",
            expect=f"(n, c * {prod(kernel)}, {prod(counts)})",
            actual=str(input.node.shape),
        )
    channels = depth // prod(kernel)
    wide = movement.reshape(node, shape=(n, channels, *kernel, *counts))
    wide = movement.permute(wide, axes=(0, 1, 4, 5, 2, 3))
    for k in (1, 0):
        wide = movement.unwindow(
            wide,
            axis=2 + k,
            over=4 + k,
            length=size[k] + 2 * paddings[k],
            stride=strides[k],
            dilation=dilations[k],
        )
    if node.dtype is bool_:
        summed = to_dtype(reduction.sum(to_dtype(wide, int32), axes=(4, 5)), bool_)
    else:
        summed = reduction.sum(wide, axes=(4, 5))
    image = movement.reshape(summed, shape=summed.shape[:4])
    for k in (0, 1):
        if paddings[k]:
            image = slice_axis(image, 2 + k, paddings[k], size[k])
    return wrap(image if input.ndim == 3 else movement.reshape(image, shape=image.shape[1:]))
