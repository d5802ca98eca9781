"""Columns that a row kernel reduces along the way: its blocks walk over many rows each and keep
the columns' running values in shared memory; a second stage joins theirs, in order.

It joins those that a product's epilogue leaves, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinygrad_cuda.lowering.codegen.expression import Scope, Stores, value_stem
from tinygrad_cuda.lowering.codegen.index import Index, unflatten
from tinygrad_cuda.lowering.codegen.skeleton import Scratch, Stage, comment, fill, stem, wrapped
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import (
    THREADS,
    column_blocks,
    column_bytes,
    walk_registers,
)
from tinygrad_cuda.lowering.skeletons.reduction_accumulators import (
    Accumulator,
    ReductionAccumulators,
)
from tinygrad_cuda.lowering.target import WARP, Target

LEAST_ACROSS = 8  # columns of a block that joins parts: 32 bytes of each
FLIGHT = 8  # parts that a thread loads at once; twice as many of long columns: few blocks join them
BLOCK_REGISTERS = 256  # of threads with the same number in all blocks of a multiprocessor


def pipeline_blocks(target: Target) -> int:
    """Blocks that walk over rows sent for ahead: one for each multiprocessor."""
    return target.multiprocessors


def walking_blocks(rows: Kernel, columns: Kernel) -> int:
    """Blocks whose warps walk over rows: two for each multiprocessor if registers allow."""
    two = 2 * walk_registers(rows, columns.anchors) <= BLOCK_REGISTERS
    return (2 if two else 1) * rows.target.multiprocessors


def _columns_of_block(columns: int, target: Target) -> int:
    """Neighbours whose parts a block joins: the fewer, the more blocks share the work."""
    across = WARP
    while across > LEAST_ACROSS and columns < across * target.multiprocessors:
        across //= 2
    return across


class Columns:
    """What a row kernel does for the columns that it carries.

    Args:
        row: the row kernel, whose values at a row and a column are at hand.
        kernel: the column kernel.
        width: neighbouring columns that a thread takes at once, `items` times in a row.
        offset: where shared memory is free.
        trips: turns of a thread's loop over a row, if its columns are to stay in registers.
        walkers: blocks that walk over rows.
        warps: of a block that each walk over rows of their own; 0: the block takes a row together.
    """

    def __init__(
        self,
        row: ReductionAccumulators,
        kernel: Kernel,
        width: int,
        items: int,
        offset: int,
        trips: int = 0,
        walkers: int = 0,
        warps: int = 0,
    ) -> None:
        self.row, self.kernel, self.width, self.items = row, kernel, width, items
        self.trips, self.shared = trips, 0
        self.own = ReductionAccumulators(kernel)
        row.writer.memory |= set(kernel.reads) - set(row.kernel.nodes)
        self.phase = {one: row.ready(one.node.sources[0]) for one in self.own.accumulators}
        walkers = walkers or column_blocks(row.kernel.target)
        self.min_blocks_per_sm = max(1, walkers // row.kernel.target.multiprocessors)
        walkers *= max(1, warps)
        walkers = -(-row.lines // -(-row.lines // walkers))  # each has as many rows, or one less
        self.blocks = -(-walkers // max(1, warps))
        self.declare: list[str] = []
        self.start: list[str] = []
        self.last: list[str] = []
        self.names: list[str] = []
        for one in self.own.accumulators:
            name = row.words.fresh(f"column_{value_stem(one.node)}")
            self.names.append(name)
            if trips:
                self.declare.append(f"{one.ctype} {name}[{trips}][{width}];")
                self.start.append(f"tgc_columns_start({name}[k], {one.start});")
                continue
            self.declare.append(
                f"{one.ctype}* {name} = reinterpret_cast<{one.ctype}*>(smem + {offset});"
            )
            self.start.append(f"tgc_columns_start<{width}>({name}, item, {items}, {one.start});")
            offset += column_bytes(kernel, one.node)
        self.scratches = {
            one: Scratch(self.blocks * self.own.lines * one.bytes) for one in self.own.accumulators
        }
        for name, (one, scratch) in zip(self.names, self.scratches.items()):
            pointer = row.words.scratch(scratch, one.ctype, True)
            if warps:
                self.last += self._of_warps(name, one, pointer, warps)
                continue
            element = f"(virtual_block * {items} + item) * {width}"
            where = f"({name}[k]" if trips else f"<{width}>({name}, item, {items}"
            self.last.append(f"tgc_columns_keep{where}, {pointer}, {element});")
        self.shared = max(self.shared, offset)

    def _of_warps(self, name: str, one: Accumulator, pointer: str, warps: int) -> list[str]:
        """The statements that join the running values of a block's warps, in their order."""
        self.shared = max(self.shared, warps * self.own.lines * one.bytes)
        text = fill(
            "row_reduce.cuh", "join_warps", ctype=one.ctype, operator=f"{one.operator}()",
            value=name, partial=pointer, trips=self.trips, group=WARP, items=self.items,
            width=self.width, columns=self.own.lines, warps=warps, threads=THREADS,
        )  # fmt: skip
        return text.splitlines()

    @property
    def loops(self) -> int:
        """Loops over a row until all is taken."""
        return max(self.phase.values()) + 1

    def take(self, loop: int, flat: Index, stores: Stores) -> None:
        """Adds the elements of a row, in the loop that has them."""
        writer = self.row.writer
        for name, (one, phase) in zip(self.names, self.phase.items()):
            if phase + 1 == loop:
                source = one.node.sources[0]
                value = writer.value(source, unflatten(flat, source.shape))
                batch = writer.fresh("batch")
                writer.scopes[-2].lines.append(f"{one.ctype} {batch}[{self.width}];")
                writer.scopes[-1].lines.append(
                    f"{batch}[{'v' if self.width > 1 else 0}] = {one.element(value, '')};"
                )
                where = f"{name}[k]" if self.trips else f"{name}, item, {self.items}"
                stores.after.append(f"tgc_columns_take({where}, {batch}, {one.operator}());")

    def join(self, kernel: Kernel, first: Stage) -> Stage:
        """The second stage: the blocks' values of each column in a fixed order."""
        return join_columns(kernel, self.kernel, self.scratches, self.blocks, first)


def join_columns(
    kernel: Kernel,
    columns: Kernel,
    scratches: Mapping[Accumulator, Scratch],
    parts: int,
    first: Stage,
) -> Stage:
    """The second stage of a kernel that carries columns: their partial values in a fixed order.

    Args:
        kernel: the kernel as a whole.
        columns: its column kernel, whose epilogue this is.
        scratches: where each reduction's values lie, those of a part's columns beside each other.
        parts: values of each column.
        first: the stage that leaves them.
    """
    own = ReductionAccumulators(columns, name="column")
    own.outer = Scope("column")
    pointers = [own.words.scratch(s, a.ctype, False) for a, s in scratches.items()]
    across = _columns_of_block(own.lines, columns.target)
    body = _join_body(own, pointers, parts, across)
    blocks = -(-own.lines // across)
    shared = max(one.bytes for one in own.accumulators) * THREADS
    about = f"Second stage, {own.lines} columns of {parts} parts"
    label, name = comment(columns, about, blocks), stem(columns) + "_join"
    stage = wrapped(kernel, name, body, own.words.list, blocks, shared, label, second=True)
    stage.after.append(first)
    return stage


def _join_body(own: ReductionAccumulators, pointers: list[str], parts: int, across: int) -> str:
    """Statements of a block that joins the parts of `across` columns."""
    taken, down = own.accumulators, THREADS // across
    own.settle(taken)
    made, stored = own.finish()
    element = f"part * {own.lines} + column"
    return fill(
        "column_reduce.cuh",
        "join_columns",
        across=across,
        down=down,
        columns=own.lines,
        parts=parts,
        unroll=FLIGHT if parts <= 2 * FLIGHT * down else 2 * FLIGHT,
        before=own.start(taken),
        load=[
            f"{a.name} = {a.operator}()({a.name}, tgc_load({pointer}, {element}));"
            for a, pointer in zip(taken, pointers)
        ],
        combine=[
            line
            for a in taken
            for line in fill(
                "column_reduce.cuh", "combine", ctype=a.ctype, value=a.name,
                operator=f"{a.operator}()", down=down, across=across, width=1, threads=THREADS,
            ).splitlines()
        ],
        epilogue=made,
        store=stored,
    )  # fmt: skip


__all__ = ["Columns", "join_columns"]
