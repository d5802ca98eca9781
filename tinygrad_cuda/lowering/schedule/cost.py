"""FLOPs and bytes of nodes and kernels: what a kernel costs at the very least, on any device.

The roof of a measurement is the larger of bytes over bandwidth and FLOPs over peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple

from tinygrad_cuda.graph.node import Node, Op, topological
from tinygrad_cuda.graph.ops import common, contraction, convolution, indexing, scan, winograd
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.reduction import ReductionOp


class Cost(NamedTuple):
    """What a kernel must do.

    Attributes:
        flops: arithmetic results of any number type; a multiply-add is 2, ``exp`` is 1.
        read, written: bytes between the kernel and memory, each byte once.
        instructions: an estimate that tells ``exp`` from ``+``, for choosing what to recompute.
    """

    flops: int = 0
    read: int = 0
    written: int = 0
    instructions: int = 0

    @property
    def nbytes(self) -> int:
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.nbytes if self.nbytes else float("inf" if self.flops else 0)

    def seconds(self, bytes_per_second: float, flops_per_second: float) -> float:
        """The roof: no kernel with this cost is faster on such a device."""
        return max(self.nbytes / bytes_per_second, self.flops / flops_per_second)

    def plus(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(self, other)))


def flops(node: Node) -> int:
    """Arithmetic results of one node, all of them.

    Example:
        >>> from tinygrad_cuda.core.device import CPU
        >>> from tinygrad_cuda.core.dtypes import float32
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


def node_cost(node: Node) -> Cost:
    """One node as a kernel of its own: its sources come from memory, its results go there.

    Leaves, index rewrites and identities run inside their readers and cost nothing.
    """
    if node.op.kind in ("leaf", "movement", "identity"):
        return Cost()
    return kernel_cost([node], node.sources)


def kernel_cost(outputs: Sequence[Node], inputs: Iterable[Node]) -> Cost:
    """A kernel that reads `inputs`, writes `outputs` and keeps all between them on chip.

    Of an input behind slices or gathers only as many elements count as can be read at most; what
    is computed for a slice alone counts in proportion.

    Args:
        outputs: the nodes it stores.
        inputs: nodes in memory; what the outputs need beyond them is computed, leaves included.
    """
    stored = set(inputs)
    order = topological(outputs, stop=stored.__contains__)
    needed = dict.fromkeys(order, 0)
    for node in outputs:
        needed[node] = prod(node.shape)
    cost = Cost(written=sum(_stored_bytes(node) for node in dict.fromkeys(outputs)))
    for node in reversed(order):
        count = needed[node]
        if node in stored or node.op is common.buffer:
            cost = cost.plus(Cost(read=count * node.dtype.itemsize))
            continue
        cost = cost.plus(_computed(node, count))
        for source, part in zip(node.sources, _parts(node, count)):
            needed[source] = min(needed[source] + part, prod(source.shape))
    return cost


def _computed(node: Node, count: int) -> Cost:
    """FLOPs and instructions of `count` elements of a node."""
    op, numel = node.op, prod(node.shape)
    if not numel:
        return Cost()
    total = flops(node)
    if op.kind == "elementwise":
        return Cost(flops=total * count // numel, instructions=op.cost * count)
    if op.kind == "contraction":
        return Cost(flops=total, instructions=total // 2)
    if op.kind == "reduction":
        return Cost(flops=total, instructions=op.cost * prod(node.sources[0].shape))
    if op.kind == "leaf":
        fixed = op in (common.constant, common.scalar)
        return Cost(instructions=0 if fixed else op.cost * count)
    return Cost(flops=total)


def _parts(node: Node, count: int) -> list[int]:
    """How many elements of each source the node reads for `count` elements of its own."""
    if node.op is common.assign:
        return [0, count]
    if node.op is common.custom:
        results = node.attributes["results"]
        return [prod(s.shape) if k < results else 0 for k, s in enumerate(node.sources)]
    if node.op.kind in ("movement", "elementwise"):
        return [min(count, prod(source.shape)) for source in node.sources]
    if node.op is indexing.gather:
        source, index = node.sources
        return [min(count, prod(source.shape)), prod(index.shape)]
    return [prod(source.shape) for source in node.sources]


def _stored_bytes(node: Node) -> int:
    return sum(prod(shape) * dtype.itemsize for shape, dtype in node.outputs)


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
}
