"""Which row kernels carry sums of columns that they have at hand, such as the gradients of a
normalization's weight and bias, and of a bias before it, beside the gradient of its input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering.schedule.fusion import length_of, rows_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule
from tinygrad_cuda.lowering.schedule.operands import needs_other_rows, operands, reaches
from tinygrad_cuda.lowering.schedule.resources import (
    ROW_BYTES,
    THREADS,
    accumulator_bytes,
    carrying_threads,
    column_blocks,
    column_bytes,
    row_of,
    row_width,
    scratch_bytes,
    values_of_thread,
    walk_registers,
)
from tinygrad_cuda.lowering.target import WARP, Target

ROWS_A_BLOCK = 8  # rows for each block at least, where sums are carried
SUMS = 4  # values of each column that a row kernel carries at most
DEPTH = 2  # rows of a block that are in shared memory, or in flight, where they are loaded ahead
LEAST = 32  # values of a row for each thread: less does not keep memory busy from one block
COLUMN_REGISTERS = 64  # of a thread, for the columns that it carries meanwhile
WALK_REGISTERS = 200  # of a thread whose warp walks over rows; more are spilled


class Part(NamedTuple):
    """Sums of a column kernel that share no result with its others.

    Attributes:
        whole: the column kernel.
        own: a kernel that makes these alone.
    """

    whole: Kernel
    own: Kernel


def fuse_column_sums(schedule: Schedule, target: Target) -> None:
    """Makes one kernel of each row kernel and the column sums that it can carry.

    Args:
        schedule: its kernels are replaced.
        target: its shared memory limits how many columns a block carries.
    """
    # Of fewer rows, what the blocks leave is too much beside them.
    enough = ROWS_A_BLOCK * column_blocks(target)
    for rows in list(schedule.kernels):
        if rows.kind == "row_reduce" and rows_of(rows.sign) >= enough and carrying_threads(rows):
            taken = _taken(schedule, rows)
            if taken:
                join(schedule, rows, taken)


def _taken(schedule: Schedule, rows: Kernel) -> list[Part]:
    """The column sums that a row kernel is to carry."""
    taken: list[Part] = []
    sign = ((rows_of(rows.sign), True), (length_of(rows.sign), False))
    if rows.sign != tuple((size, not reduced) for size, reduced in sign):
        return taken
    earlier, at_hand = ancestors(rows), {*rows.reads, *rows.nodes}
    for columns in schedule.kernels:
        if columns.kind != "column_reduce" or columns.sign != sign or columns in earlier:
            continue
        if not at_hand.isdisjoint(wide_reads(columns)):
            for part in parts_of(columns):
                both = [one.own for one in (*taken, part)]
                if _fits(rows, part.own, earlier) and _has_room(rows, both):
                    taken.append(part)
    return taken


def ancestors(kernel: Kernel) -> set[Kernel]:
    """All kernels that run before one."""
    stack, seen = list(kernel.before), set(kernel.before)
    while stack:
        new = set(stack.pop().before) - seen
        seen |= new
        stack.extend(new)
    return seen


def parts_of(columns: Kernel) -> list[Part]:
    """The sums of a column kernel, apart where no stored value is made of two of them."""
    behind = {node: _behind([node], columns) for node in columns.stores}
    groups: list[tuple[set[Node], list[Node]]] = []  # sums, and what is stored of them
    for node, (members, _) in behind.items():
        anchors, stores = members.intersection(columns.anchors), [node]
        if not anchors:  # made of no sum: it stays beside any
            anchors = set(columns.anchors[:1])
        apart = []
        for group in groups:
            if group[0].isdisjoint(anchors):
                apart.append(group)
            else:
                anchors, stores = anchors | group[0], group[1] + stores
        groups = [*apart, (anchors, stores)]
    if len(groups) == 1:
        return [Part(columns, columns)]
    return [Part(columns, _only(columns, stores)) for _, stores in groups]


def _only(columns: Kernel, stores: Iterable[Node]) -> Kernel:
    """A column kernel that makes some of its stored values alone."""
    wanted = set(stores)
    nodes, reads = _behind(wanted, columns)
    own = replace(
        columns,
        nodes=[node for node in columns.nodes if node in nodes],
        anchors=[node for node in columns.anchors if node in nodes],
        stores=[node for node in columns.stores if node in wanted],
        reads=[node for node in columns.reads if node in reads],
        overwrites={node: old for node, old in columns.overwrites.items() if node in wanted},
    )
    own.before = [
        kernel
        for kernel in columns.before
        if _waits(own, kernel) or not _waits(columns, kernel)  # else for others of its values
    ]
    return own


def _behind(stores: Iterable[Node], columns: Kernel) -> tuple[set[Node], set[Node]]:
    """The nodes of a kernel that some of its stored values are made of, and what they read."""
    seen, nodes = columns.nodes_behind(stores), set(columns.nodes)
    return seen & nodes, seen.intersection(columns.reads) - nodes


def _waits(later: Kernel, earlier: Kernel) -> bool:
    """Whether a kernel reads what another stores, or must change nothing before that one is done.

    It may be stored over what that one reads, or that one may find a bad index.
    """
    if not set(later.reads).isdisjoint(earlier.stores):
        return True
    if not later.overwrites:
        return False
    return earlier.checks or not set(later.overwrites.values()).isdisjoint(earlier.reads)


def _fits(rows: Kernel, columns: Kernel, earlier: set[Kernel]) -> bool:
    if not all(row_of(node).cuda.is_number for node in columns.anchors):
        return False
    if rows.update or columns.update or not earlier.issuperset({*columns.before} - {rows}):
        return False
    if any(not columns.is_line(node) for node in columns.stores):
        return False  # it stores its elements too, which the row kernel knows nothing of
    wide = wide_reads(columns)
    if not wide or not set(wide) <= {*rows.reads, *rows.nodes}:
        return False
    at_hand = {*rows.nodes, *rows.reads, *columns.reads}
    met = operands((node.sources[0] for node in columns.anchors), at_hand)
    return not needs_other_rows(met, rows, at_hand)


def wide_reads(columns: Kernel) -> list[Node]:
    """Operands with a value for each element: a row kernel must have them at hand."""
    return [node for node in columns.reads if prod(node.shape) >= columns.numel]


def _has_room(rows: Kernel, parts: Sequence[Kernel]) -> bool:
    """Whether a block's shared memory holds the running values of so many columns."""
    anchors = [(part, node) for part in parts for node in part.anchors]
    if len(anchors) > SUMS:
        return False
    if carrying_threads(rows) == WARP:
        return walk_registers(rows, [node for _, node in anchors]) <= WALK_REGISTERS
    taken = sum(column_bytes(part, node) for part, node in anchors)
    return taken + ROW_BYTES <= rows.target.block_shared


def join(schedule: Schedule, rows: Kernel, taken: Sequence[Part]) -> None:
    """Puts a kernel that carries columns in place of those that it is made of.

    Args:
        schedule: its kernels are replaced.
        rows: a row kernel, or a product.
        taken: the columns.
    """
    columns = _all_of([part.own for part in taken])
    rests = rests_of(taken)
    gone = {rows, *(part.whole for part in taken)}
    others = [kernel for kernel in schedule.kernels if kernel not in gone]
    others += [rest for rest in rests.values() if rest]
    needed = {*schedule.outputs, *(node for kernel in others for node in kernel.reads)}
    needed |= _read_behind(columns)
    own = replace(rows, stores=[node for node in rows.stores if node in needed])
    before = dict.fromkeys([*rows.before, *columns.before])
    joined = replace(
        own,
        nodes=list(dict.fromkeys([*rows.nodes, *columns.nodes])),
        anchors=rows.anchors + columns.anchors,
        stores=own.stores + columns.stores,
        reads=[
            node for node in dict.fromkeys([*rows.reads, *columns.reads]) if node not in rows.nodes
        ],
        overwrites={**rows.overwrites, **columns.overwrites},
        before=[kernel for kernel in before if kernel is not rows],
        reason=f"{rows.reason}; it carries the columns that it has at hand",
        pair=(own, columns),
        ahead=_is_blocks(own) and _loads_ahead(own, columns),
    )
    _replace(schedule, rows, joined, rests)


def _is_blocks(rows: Kernel) -> bool:
    """Whether its rows are blocks', which keep them in registers."""
    return rows.kind == "row_reduce" and carrying_threads(rows) == THREADS


def _all_of(parts: Sequence[Kernel]) -> Kernel:
    """One kernel of the sums of several, which walk over the same columns."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        nodes=list(dict.fromkeys(node for part in parts for node in part.nodes)),
        anchors=list(dict.fromkeys(node for part in parts for node in part.anchors)),
        stores=[node for part in parts for node in part.stores],
        reads=list(dict.fromkeys(node for part in parts for node in part.reads)),
        overwrites={node: old for part in parts for node, old in part.overwrites.items()},
        before=list(dict.fromkeys(kernel for part in parts for kernel in part.before)),
    )


def rests_of(taken: Sequence[Part]) -> dict[Kernel, Kernel | None]:
    """What is left of column kernels of which some sums were taken: a kernel, or nothing."""
    rests: dict[Kernel, Kernel | None] = {}
    for whole in dict.fromkeys(part.whole for part in taken):
        gone = {node for part in taken if part.whole is whole for node in part.own.stores}
        left = [node for node in whole.stores if node not in gone]
        rests[whole] = _only(whole, left) if left else None
    return rests


def _replace(
    schedule: Schedule,
    rows: Kernel,
    joined: Kernel,
    rests: dict[Kernel, Kernel | None],
) -> None:
    """Puts the kernels in the schedule; who waited for a column kernel waits for its part."""
    made: dict[Kernel, Kernel | None] = {**rests, rows: joined}
    kernels = (made.get(kernel, kernel) for kernel in schedule.kernels)
    schedule.kernels = [kernel for kernel in kernels if kernel is not None]
    for kernel in schedule.kernels:
        before: dict[Kernel, None] = {}
        for other in kernel.before:
            if other is rows:
                before[joined] = None
            elif other in rests:
                parts = [part for part in (joined, rests[other]) if part is not None]
                needed = [part for part in parts if _waits(kernel, part)] or parts
                before.update(dict.fromkeys(needed))
            else:
                before[other] = None
        before.pop(kernel, None)
        kernel.before = list(before)
    schedule.put_before(())  # columns that came first now come with their rows


def _loads_ahead(rows: Kernel, columns: Kernel) -> bool:
    """Whether a block can load the rows after this one: by vectors alone, with room for them."""
    width, length = row_width(rows, THREADS), length_of(rows.sign)
    values = values_of_thread(rows)
    registers = values * sum(map(accumulator_bytes, columns.anchors)) // 4
    assigned = any(node.op is common.assign and node not in rows.overwrites for node in rows.stores)
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
    """What the second stage reads: all that a column's value meets once it is complete."""
    reads, stack, seen = set[Node](), list(columns.stores), set[Node]()
    while stack:
        node = stack.pop()
        if node in seen or node in columns.anchors:
            continue
        seen.add(node)
        if node in columns.reads:
            reads.add(node)
        else:
            stack.extend(node.sources)
    return reads


__all__ = [
    "SUMS", "Part", "ancestors", "fuse_column_sums", "join", "parts_of", "rests_of", "wide_reads",
]  # fmt: skip
