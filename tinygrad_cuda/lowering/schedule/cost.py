"""FLOPs of nodes: what reports of times divide by."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import (
    attention,
    contraction,
    convolution,
    fft,
    indexing,
    recurrence,
    scan,
    winograd,
)
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.reduction import ReductionOp


def flops(node: Node) -> int:
    """Arithmetic results of one node, all of them.

    Example:
        >>> from tinygrad_cuda.core.device import CPU
        >>> from tinygrad_cuda.core.dtypes import float32
        >>> from tinygrad_cuda.graph.ops import common
        >>> a = common.buffer.leaf((2, 3), float32, CPU, slot=0)
        >>> b = common.buffer.leaf((3, 5), float32, CPU, slot=1)
        >>> flops(contraction.matmul(a, b))
        60
    """
    count = _FLOPS.get(node.op)
    if count is not None:
        return count(node)
    if node.op.kind == "elementwise":
        return prod(node.shape)
    if isinstance(node.op, ReductionOp):
        return node.op.flops * prod(node.sources[0].shape)
    if node.op.kind in ("leaf", "identity", "movement"):
        return 0
    raise AssertionError(f"cost.py has no FLOPs for the row {node.op.name}")


def _none(node: Node) -> int:
    return 0


def _matmul(node: Node) -> int:
    return 2 * prod(node.shape) * node.sources[0].shape[-1]


def _convolved(node: Node) -> int:
    """A product for each result and each element of a window, or the same counted otherwise."""
    x, w = node.sources
    if node.op is convolution.convolution:
        return 2 * prod(node.shape) * prod(w.shape[1:])
    if node.op is convolution.convolution_input_gradient:
        return 2 * prod(x.shape) * prod(w.shape[1:])
    return 2 * prod(x.shape) * prod(node.shape[1:])


def _sorted(x: Node) -> int:
    size = x.shape[-1]
    return prod(x.shape) * (size - 1).bit_length() if size else 0


def _transform(node: Node) -> int:
    """Both products of each tile with the part's matrix."""
    part = winograd.PARTS[node.attributes["form"]][node.attributes["part"]]
    planes = node.shape if node.op is winograd.winograd else node.sources[0].shape
    lines, size = len(part.matrix), part.size
    return 2 * prod(planes[1:]) * lines * size * (size + lines)


def _attended(node: Node) -> int:
    """Both products of the scores, or the five of their gradients; half where it is causal."""
    q, k, v = node.sources[:3] if node.op is attention.attention else node.sources[1:4]
    pairs, keys = prod(q.shape[:-1]), k.shape[-2]
    wide, deep = q.shape[-1], v.shape[-1]
    products = wide + deep if node.op is attention.attention else 3 * wide + 2 * deep
    return 2 * pairs * keys * products // (2 if node.attributes["causal"] else 1)


def _recurrent(node: Node) -> int:
    """The products of all steps, forward or backward."""
    weight = node.sources[1 if node.op in recurrence.FORWARD else -1]
    return 2 * prod(node.sources[0].shape[:2]) * prod(weight.shape)


def _transformed(node: Node) -> int:
    """5 n log2 n of each complex row, half of that of real ones."""
    n, source = fft.row_length(node), node.sources[0]
    total = 5 * prod(source.shape[:-1]) * n * (n - 1).bit_length()
    return total // 2 if node.op in (fft.rfft, fft.irfft) else total


# Rows that do not count one for each element of their result; a reduction's row says its own.
_FLOPS: dict[Op, Callable[[Node], int]] = {
    ew.cast: _none,
    ew.where: _none,
    indexing.check_index: _none,
    indexing.check_unit: _none,
    indexing.gather: _none,
    indexing.scatter: _none,
    indexing.scatter_add: lambda node: prod(node.sources[2].shape),
    contraction.matmul: _matmul,
    **dict.fromkeys(convolution.ROWS, _convolved),
    scan.cumsum: lambda node: prod(node.shape),
    # The comparisons of a merge sort of each row.
    scan.order: lambda node: _sorted(node.sources[0]),
    winograd.winograd: _transform,
    winograd.unwinograd: _transform,
    **dict.fromkeys(attention.ROWS, _attended),
    **dict.fromkeys(recurrence.ROWS, _recurrent),
    **dict.fromkeys(fft.ROWS, _transformed),
}
