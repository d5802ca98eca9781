"""Sums over a one-hot mask, ``where(columns == position, value, 0)`` along a row: of all its
elements one counts, and a kernel whose rows are each one block's loads that one alone."""

from __future__ import annotations

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, indexing, reduction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.program import Argument
from tinygrad_cuda.lowering.schedule.fusion import (
    FLAT,
    OTHER,
    TRANSPARENT,
    Edge,
    Signature,
    length_of,
    signature,
    trace,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, OneHotGather, Schedule
from tinygrad_cuda.lowering.schedule.resources import row_parts


def find_one_hot_gathers(schedule: Schedule) -> None:
    """Says of each row kernel whose rows are whole which of its sums load one element."""
    for kernel in schedule.kernels:
        if kernel.kind != "row_reduce" or kernel.grid or row_parts(kernel) > 1:
            continue
        gathers = ((node, _one_hot_gather(node, kernel)) for node in kernel.anchors)
        kernel.one_hot = {node: gather for node, gather in gathers if gather is not None}


def _one_hot_gather(node: Node, kernel: Kernel) -> OneHotGather | None:
    """What a reduction loads, if it sums one element of a row and zeros."""
    memory, chosen = set(kernel.reads), node.sources[0]
    while chosen not in memory and chosen.op in TRANSPARENT:
        chosen = chosen.sources[0]
    if node.op is not reduction.sum or chosen in memory or chosen.op is not ew.where:
        return None
    condition, value, other = chosen.sources
    mask = trace(condition, memory)
    if mask.base in memory or mask.base.op is not ew.eq or mask.kind != FLAT:
        return None
    if not _is_zero(trace(other, set())):
        return None
    across = tuple((size, not reduced) for size, reduced in kernel.sign)
    first, second = (trace(operand, memory) for operand in mask.base.sources)
    for columns, position in ((first, second), (second, first)):
        if not _counts(columns, memory) or _sign_of(columns, condition) != across:
            continue
        index = position.base
        while index not in memory and index.op is ew.cast and index.dtype.is_integer:
            index = index.sources[0]
        checked = index not in memory and index.op is indexing.check_index
        checked = checked and int(index.attributes["limit"]) == length_of(kernel.sign)
        if checked and _sign_of(position, condition) == kernel.sign:
            return OneHotGather(value, position.base, index.sources[0])
    return None


def _sign_of(edge: Edge, reader: Node) -> Signature | None:
    """Along which axes of its reader an operand is one value."""
    return signature(reader.shape, ()) if edge.kind == FLAT else edge.signature


def _is_zero(edge: Edge) -> bool:
    value = edge.base.attributes.get("value")
    constant = edge.kind != OTHER and edge.base.op is common.constant
    return constant and not isinstance(value, Argument) and value == 0


def _counts(edge: Edge, memory: set[Node]) -> bool:
    """Whether an operand is the number of its element: 0, 1, 2, ..."""
    base = edge.base
    if base in memory or base.op is not common.arange or not base.dtype.is_integer:
        return False
    start, step = base.attributes["start"], base.attributes["step"]
    plain = not isinstance(start, Argument) and not isinstance(step, Argument)
    return plain and start == 0 and step == 1


__all__ = ["find_one_hot_gathers"]
