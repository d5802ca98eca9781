"""Which products reduce their columns in their epilogue: a batch norm's statistics of a
convolution's result, the sums over its gradient, a bias's gradient."""

from __future__ import annotations

from math import prod

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import reduction
from tinygrad_cuda.lowering.schedule.fuse_column_sums import (
    SUMS,
    Part,
    ancestors,
    join,
    parts_of,
    rests_of,
    wide_reads,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule
from tinygrad_cuda.lowering.schedule.operands import operands, reaches
from tinygrad_cuda.lowering.schedule.resources import row_of
from tinygrad_cuda.lowering.schedule.stored_values import nbytes_of

# Bytes that are not read again at least: fewer are in the cache still, and a launch takes longer
# than they do. The second stage is a launch too.
WORTH = 1 << 20


def fuse_product_columns(schedule: Schedule) -> None:
    """Makes one kernel of each product and the column reductions that its epilogue can carry.

    A column kernel reads all of the product's outputs again, which the epilogue has at hand. What
    tiles leave instead is a number for 64 rows or more: a part in 32 of those bytes at most.

    Args:
        schedule: its kernels are replaced.
    """
    for product in list(schedule.kernels):
        if product.kind == "contract" and product.choice and product.choice.carries:
            taken = _taken(schedule, product)
            if taken:
                join(schedule, product, taken)


def _taken(schedule: Schedule, product: Kernel) -> list[Part]:
    """The column reductions that a product is to carry."""
    taken: list[Part] = []
    stored = {node for node in product.stores if prod(node.shape) == product.numel}
    earlier: set[Kernel] | None = None
    for columns in schedule.kernels:
        whole = columns.numel == product.numel and len(columns.sign) == 2
        if columns.kind != "column_reduce" or not whole:
            continue
        if stored.isdisjoint(wide_reads(columns)):
            continue
        earlier = ancestors(product) if earlier is None else earlier
        own: list[Part] = []
        for part in parts_of(columns):
            if _fits(product, part.own, earlier) and _has_room(product, [*taken, *own, part]):
                own.append(part)
        anew = {node for part in own for node in _read_anew(product, part.own)}
        if own and _bytes_saved(columns, own) - sum(map(nbytes_of, anew)) >= WORTH:
            taken += own
    return taken


def _fits(product: Kernel, columns: Kernel, earlier: set[Kernel]) -> bool:
    """Whether all that the columns are made of is at hand in the epilogue, or cheap to load."""
    if not all(_is_carried(node) for node in columns.anchors):
        return False
    if product.update or columns.update or not earlier.issuperset({*columns.before} - {product}):
        return False
    if any(not columns.is_line(node) for node in columns.stores):
        return False  # it stores its elements too
    at_hand = {*product.nodes, *columns.reads}
    met = operands((node.sources[0] for node in columns.anchors), at_hand)
    return not reaches(met.besides(()), product.nodes, product.reads)


def _read_anew(product: Kernel, columns: Kernel) -> set[Node]:
    """Values of the product's size that its epilogue would read for the columns alone."""
    return set(wide_reads(columns)).difference(product.reads, product.stores)


def _bytes_saved(columns: Kernel, parts: list[Part]) -> int:
    """Bytes that a column kernel no longer reads where some of its parts are another's."""
    (rest,) = rests_of(parts).values()
    left = wide_reads(rest) if rest else []
    gone = set(wide_reads(columns)).difference(left)
    return sum(map(nbytes_of, gone))


def _is_carried(node: Node) -> bool:
    """Whether the running value is a number, or those of a mean and its deviations."""
    return row_of(node).cuda.is_number or node.op is reduction.welford


def _has_room(product: Kernel, parts: list[Part]) -> bool:
    """Whether the epilogue's threads have registers for so many running values and operands."""
    anchors = [node for part in parts for node in part.own.anchors]
    if len(anchors) > SUMS:
        return False
    choice, anew = product.choice, {n for part in parts for n in _read_anew(product, part.own)}
    assert choice is not None and choice.carries is not None
    return choice.carries(product, anchors, anew, choice.cut)


__all__ = ["fuse_product_columns"]
