"""Which row kernels carry a column kernel: one that reads no more than they have at hand, such as
the gradients of a normalization's weight and bias beside that of its input."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering.schedule.fusion import length_of, rows_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule
from tinygrad_cuda.lowering.schedule.operands import needs_other_rows, operands, reaches
from tinygrad_cuda.lowering.schedule.resources import (
    ROW_BYTES,
    THREADS,
    accumulator_bytes,
    column_blocks,
    column_bytes,
    row_of,
    row_width,
    scratch_bytes,
    stays_on_chip,
    values_of_thread,
)
from tinygrad_cuda.lowering.target import Target

ROWS_A_BLOCK = 8
SUMS = 4  # values of each column that a row kernel carries at most
DEPTH = 2  # rows of a block that are in shared memory, or in flight, where they are loaded ahead
LEAST = 32  # values of a row for each thread: less does not keep memory busy from one block
COLUMN_REGISTERS = 64  # of a thread, for the columns that it carries meanwhile


def fuse_column_sums(schedule: Schedule, target: Target) -> None:
    """Makes one kernel of each row kernel and the column kernel that it can carry.

    Args:
        schedule: its kernels are replaced.
        target: its shared memory limits how many columns a block carries.
    """
    # Of fewer rows, what the blocks leave is too much beside them.
    enough = ROWS_A_BLOCK * column_blocks(target)
    for rows in list(schedule.kernels):
        if rows.kind != "row" or rows_of(rows.sign) < enough or not stays_on_chip(rows):
            continue
        for columns in schedule.kernels:
            if columns.kind == "col" and _fits(rows, columns):
                _join(schedule, rows, columns)
                break


def _fits(rows: Kernel, columns: Kernel) -> bool:
    height, length = rows_of(rows.sign), length_of(rows.sign)
    if rows.sign != ((height, False), (length, True)) or len(columns.anchors) > SUMS:
        return False
    if columns.sign != ((height, True), (length, False)):
        return False
    if not all(row_of(node).cuda.is_number for node in columns.anchors):
        return False
    if rows.update or columns.update or not set(columns.before) <= {rows, *rows.before}:
        return False
    if rows.waits_for(columns):
        return False
    if any(not columns.is_line(node) for node in columns.stores):
        return False  # it stores its elements too, which the row kernel knows nothing of
    wide = [node for node in columns.reads if prod(node.shape) >= columns.numel]
    if not wide or not set(wide) <= {*rows.reads, *rows.nodes}:
        return False
    taken = sum(column_bytes(columns, node) for node in columns.anchors)
    if taken + ROW_BYTES > rows.target.block_shared:
        return False
    at_hand = {*rows.nodes, *rows.reads, *columns.reads}
    met = operands((node.sources[0] for node in columns.anchors), at_hand)
    return not needs_other_rows(met, rows, at_hand)


def _join(schedule: Schedule, rows: Kernel, columns: Kernel) -> None:
    others = [kernel for kernel in schedule.kernels if kernel not in (rows, columns)]
    needed = {*schedule.outputs, *(node for kernel in others for node in kernel.reads)}
    needed |= _read_behind(columns)
    own = replace(rows, stores=[node for node in rows.stores if node in needed])
    joined = replace(
        own,
        nodes=list(dict.fromkeys([*rows.nodes, *columns.nodes])),
        anchors=rows.anchors + columns.anchors,
        stores=own.stores + columns.stores,
        reads=[
            node for node in dict.fromkeys([*rows.reads, *columns.reads]) if node not in rows.nodes
        ],
        places={**rows.places, **columns.places},
        reason=f"{rows.reason}; it carries the columns that it has at hand",
        pair=(own, columns),
        ahead=_loads_ahead(own, columns),
    )
    schedule.replace({rows, columns}, joined)


def _loads_ahead(rows: Kernel, columns: Kernel) -> bool:
    """Whether a block can load the rows after this one: by vectors alone, with room for them."""
    width, length = row_width(rows, THREADS), length_of(rows.sign)
    values = values_of_thread(rows)
    registers = values * sum(map(accumulator_bytes, columns.anchors)) // 4
    assigned = any(node.op is common.assign and node not in rows.places for node in rows.stores)
    if width == 1 or values < LEAST or registers > COLUMN_REGISTERS or rows.one_hot or assigned:
        return False
    memory = {*rows.reads, *columns.reads}.difference(rows.nodes)
    summed = (node.sources[0] for node in rows.anchors + columns.anchors)
    met = operands((*summed, *rows.wide_stores), memory)
    shared = operands(met.along(columns.sign), memory)
    others = [*met.besides(columns.sign), *shared.besides(())]
    others += [node for node in rows.stores if rows.is_line(node)]
    wide = {node for node in memory if prod(node.shape) >= rows.numel}
    if reaches(others, memory, rows.anchors) or not wide <= met.flat:
        return False
    if not all(4 <= width * node.dtype.itemsize <= 16 for node in met.flat | shared.flat):
        return False
    sizes = [DEPTH * _aligned(length * node.dtype.itemsize) for node in met.flat]
    sizes += [_aligned(length * node.dtype.itemsize) for node in shared.flat]
    return _aligned(2 * scratch_bytes(rows)) + sum(sizes) <= rows.target.block_shared


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def _read_behind(columns: Kernel) -> set[Node]:
    """What the second stage reads: all that a column's value meets once it is known."""
    found, stack, seen = set[Node](), list(columns.stores), set[Node]()
    while stack:
        node = stack.pop()
        if node in seen or node in columns.anchors:
            continue
        seen.add(node)
        if node in columns.reads:
            found.add(node)
        else:
            stack.extend(node.sources)
    return found
