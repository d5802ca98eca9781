"""Running sums and products: compositions of windowed reductions, block by block."""

from __future__ import annotations

from math import prod as count_of
from typing import TYPE_CHECKING

from tinygrad_cuda.core.shapes import normalize_axis
from tinygrad_cuda.graph.ops import elementwise, scan
from tinygrad_cuda.graph.ops import reduction as ops
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import DTypeLike
from tinygrad_cuda.tensors.layout import another
from tinygrad_cuda.tensors.opmath import rounded, widened
from tinygrad_cuda.tensors.reductions import summed_in

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "cumprod", "cumsum",
]  # fmt: skip


@in_float32
def cumsum(
    input: Tensor, dim: int = 0, *, dtype: DTypeLike = None, axis: int | None = None
) -> Tensor:
    """Running sums along `dim`: ``out[i] = x[0] + ... + x[i]``.

    Args:
        dtype: cast to this first; integers and bools are summed in int64 otherwise.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1, 2, 3], device="cpu").cumsum(0).tolist()
        [1, 3, 6]
    """
    return _cumulative("cumsum", input, dim if axis is None else axis, dtype, True)


@in_float32
def cumprod(
    input: Tensor, dim: int = 0, *, dtype: DTypeLike = None, axis: int | None = None
) -> Tensor:
    """Running products along `dim`: ``out[i] = x[0] * ... * x[i]``."""
    return _cumulative("cumprod", input, dim if axis is None else axis, dtype, False)


def _cumulative(op: str, input: Tensor, dim: int, dtype: DTypeLike, adds: bool) -> Tensor:
    node = summed_in(input.node, dtype)
    axis = normalize_axis(op, dim, len(node.shape))
    if not node.shape or not count_of(node.shape):
        return wrap(another(node))
    wide = widened(node)
    if adds:
        return wrap(rounded(scan.cumsum(wide, axis=axis), node.dtype))
    product = scan.running(wide, axis, ops.prod, 1, elementwise.mul)
    return wrap(rounded(product, node.dtype))
