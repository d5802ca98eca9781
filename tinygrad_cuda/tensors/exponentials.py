"""softmax, log_softmax and logsumexp: compositions that fuse into one kernel a row.

The maximum is subtracted without a gradient, since it cancels.
"""

from __future__ import annotations

from math import inf
from math import prod as count_of
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.shapes import normalize_axes, normalize_axis
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.graph.ops import reduction as ops
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import DTypeLike
from tinygrad_cuda.tensors.layout import another
from tinygrad_cuda.tensors.opmath import rounded, widened
from tinygrad_cuda.tensors.promotion import as_float, to_shape
from tinygrad_cuda.tensors.reductions import Axes, cast, finish, reduced, require_float

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "log_softmax", "logsumexp", "softmax",
]  # fmt: skip


def _shifted(node: Node, axes: Axes) -> tuple[Node, Node]:
    """x - max x, and the max; the max carries no gradient, since it cancels."""
    largest = reduced(ops.max, detached(node), axes)
    return elementwise.sub(node, to_shape(largest, node.shape)), largest


@in_float32
def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    r"""log sum exp x along `dim`, computed as max x + log sum exp(x - max x)."""
    narrow = as_float(input.node)
    node = widened(narrow)
    axes = normalize_axes("logsumexp", dim, len(node.shape))
    if any(node.shape[axis] == 0 for axis in axes):
        total = ops.sum(narrow, axes=axes)
        return wrap(finish(common.full_like(total, -inf), axes, keepdim))
    largest = reduced(ops.max, detached(node), axes)
    # An infinite maximum would make NaN of infinity minus infinity.
    finite = elementwise.isfinite(largest)
    largest = elementwise.where(finite, largest, common.full_like(largest, 0))
    powers = elementwise.exp(elementwise.sub(node, to_shape(largest, node.shape)))
    total = reduced(ops.sum, powers, axes)
    result = finish(elementwise.add(elementwise.log(total), largest), axes, keepdim)
    return wrap(rounded(result, narrow.dtype))


@in_float32
def softmax(input: Tensor, dim: int, dtype: DTypeLike = None) -> Tensor:
    r"""exp(x - max x) / sum exp(x - max x) along `dim`.

    Args:
        dim: the dimension whose elements sum to 1.
        dtype: cast to this first.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([0.0, 0.0], device="cpu").softmax(0).tolist()
        [0.5, 0.5]
    """
    node = require_float("softmax", cast(input.node, dtype))
    axes = (normalize_axis("softmax", dim, len(node.shape)),) if node.shape else ()
    if not count_of(node.shape):
        return wrap(another(node))
    powers = elementwise.exp(_shifted(widened(node), axes)[0])
    total = reduced(ops.sum, powers, axes)
    return wrap(rounded(elementwise.div(powers, to_shape(total, node.shape)), node.dtype))


@in_float32
def masked_softmax(input: Tensor) -> Tensor:
    """softmax along the last dimension; zeros, without a gradient, where all of it is -inf."""
    node = widened(require_float("masked_softmax", input.node))
    if not count_of(node.shape):
        return wrap(another(input.node))
    axes = (len(node.shape) - 1,)
    largest = reduced(ops.max, detached(node), axes)
    hidden = elementwise.eq(largest, common.full_like(largest, -inf))
    # Of a hidden row every power is exp(-inf - 0) = 0, and 0 / 1 is 0.
    largest = elementwise.where(hidden, common.full_like(largest, 0), largest)
    powers = elementwise.exp(elementwise.sub(node, to_shape(largest, node.shape)))
    total = reduced(ops.sum, powers, axes)
    total = elementwise.where(hidden, common.full_like(total, 1), total)
    return wrap(rounded(elementwise.div(powers, to_shape(total, node.shape)), input.dtype))


@in_float32
def log_softmax(input: Tensor, dim: int, dtype: DTypeLike = None) -> Tensor:
    r"""x - max x - log sum exp(x - max x) along `dim`: the log of `softmax`, without underflow."""
    node = require_float("log_softmax", cast(input.node, dtype))
    axes = (normalize_axis("log_softmax", dim, len(node.shape)),) if node.shape else ()
    if not count_of(node.shape):
        return wrap(another(node))
    shifted = _shifted(widened(node), axes)[0]
    total = reduced(ops.sum, elementwise.exp(shifted), axes)
    result = elementwise.sub(shifted, to_shape(elementwise.log(total), node.shape))
    return wrap(rounded(result, node.dtype))
