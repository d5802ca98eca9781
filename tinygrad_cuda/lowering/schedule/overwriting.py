"""Which values a kernel may store over what it reads, in the same bytes.

A softmax over a large vocabulary and its gradient are the largest values of a training step: the
gradient written over the logits halves what they take.
"""

from __future__ import annotations

from math import prod

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.operands import operands, reaches
from tinygrad_cuda.lowering.schedule.resources import row_group, row_parts
from tinygrad_cuda.lowering.target import WARP


def overwritten_reads(kernel: Kernel) -> dict[Node, list[Node]]:
    """For values that a kernel stores those of its operands that each may be stored over.

    Rows that are whole: a thread stores an element after it has loaded that element of the operand,
    in the last loop over the row, and between two loops all threads of a row meet.
    """
    if kernel.kind != "row_reduce" or kernel.grid or kernel.pair or kernel.ahead:
        return {}
    if row_parts(kernel) > 1 or row_group(kernel) < WARP:  # shorter rows may be made twice
        return {}
    loops = _loops(kernel)
    last = max([*(loops[n] for n in kernel.anchors), *(loops[n] + 1 for n in kernel.wide_stores)])
    if any(loops[node] + 1 >= last for node in kernel.one_hot):
        return {}  # loaded as the last loop begins, in which others store already
    memory = set(kernel.reads)
    reads_by_store = {}
    for node in kernel.wide_stores:
        if loops[node] + 1 == last and node not in kernel.overwrites:
            own = operands([node], memory).flat
            reads_by_store[node] = [
                read
                for read in kernel.reads
                if read in own and _same_bytes(read, node) and _met_flat(read, kernel)
            ]
    return {node: reads for node, reads in reads_by_store.items() if reads}


def _same_bytes(a: Node, b: Node) -> bool:
    return prod(a.shape) == prod(b.shape) and a.dtype.itemsize == b.dtype.itemsize


def _met_flat(read: Node, kernel: Kernel) -> bool:
    """Whether each element of the loop meets the same element of an operand, and no other."""
    roots = [node.sources[0] for node in kernel.anchors]
    met = operands([*roots, *kernel.wide_stores], set(kernel.reads))
    rest = [*met.other, *(node for _, node in met.spread)]
    stop = {*kernel.reads, *kernel.anchors} - {read}
    return not reaches(rest, {read}, stop)


def _loops(kernel: Kernel) -> dict[Node, int]:
    """How many loops over a row are done before each node is there."""
    memory, loops = set(kernel.reads), dict[Node, int]()
    stack = list(kernel.nodes)
    while stack:
        node = stack[-1]
        sources = () if node in memory else node.sources
        missing = [source for source in sources if source not in loops]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        own = node in kernel.anchors and node not in kernel.one_hot
        loops[node] = max((loops[source] for source in sources), default=0) + own
    return loops
