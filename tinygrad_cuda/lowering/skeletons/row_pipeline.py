"""Rows in flight to shared memory while a block makes those before them: for kernels that carry
columns, whose blocks walk over many rows and would else wait for each one's loads."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.codegen.skeleton import Stage, comment, fill, stem, wrapped
from tinygrad_cuda.lowering.schedule.fuse_column_sums import DEPTH
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import THREADS
from tinygrad_cuda.lowering.skeletons import column_partials
from tinygrad_cuda.lowering.skeletons.column_partials import Columns
from tinygrad_cuda.lowering.skeletons.reduction_accumulators import ReductionAccumulators


class RowPipeline:
    """What a block that walks over rows keeps in shared memory.

    Args:
        row: the row kernel.
        columns: the column kernel that it carries.
        items: vectors of `width` elements in a row; a thread has every `THREADS`th, `trips` in all.

    Attributes:
        carried: the columns, in registers.
        loop: the loop that is being written; `last` is the one that reads the ring last.
    """

    def __init__(
        self, row: ReductionAccumulators, columns: Kernel, width: int, items: int, trips: int
    ) -> None:
        self.row, self.items, self.trips = row, items, trips
        walkers = column_partials.pipeline_blocks(row.kernel.target)
        self.carried = Columns(row, columns, width, items, 0, trips, walkers)
        self.offset = -(-2 * row.scratch_bytes // 16) * 16  # where shared memory is free
        self.loop = self.last = 0
        self.names: dict[Any, str] = {}
        self.declare: list[str] = []
        self.start: list[str] = []
        self.copies: list[str] = []

    def holds(self, node: Node) -> bool:
        """Whether values stay in registers once read: 16-bit ones are as soon read again."""
        return node.dtype.itemsize >= 4

    def single(self, depth: int) -> None:
        """An element is loaded by itself: each row would wait for it after all."""
        raise AssertionError("the schedule has an operand that is not loaded by vectors")

    def vector(self, node: Node, key: Any, width: int, index: str, names: set[str]) -> str:
        """The text that reads a vector: of a row that has arrived, or of what all rows share.

        Args:
            key: what distinguishes it from others.
            index: where it lies in memory, which depends on the variables `names`.
        """
        pointer = self.row.words.read(node)
        nbytes = width * node.dtype.itemsize
        as_rows = nbytes >= 4 and "item" in names and names <= {"row", "item"}
        assert as_rows, f"{node} does not lie as its rows do"
        shared = "row" not in names
        if key not in self.names:
            name = self.row.writer.fresh(
                f"{'shared' if shared else 'rows'}_{self.row.words.name(node)}"
            )
            self.names[key] = name
            vector = f"tgc_vector<{node.dtype.c}, {width}>"
            self.declare.append(
                f"{vector}* const {name} = reinterpret_cast<{vector}*>(smem + {self.offset});"
            )
            rows = 1 if shared else DEPTH
            self.offset += rows * -(-self.items * nbytes // 16) * 16
            if shared:
                self.start.append(f"{name}[item] = tgc_load_vector<{width}>({pointer}, {index});")
            else:
                copy = "tgc_copy_ahead" + "_lasting" * (node in self.row.writer.lasting)
                target = f"{name} + (buffer * {self.items} + item)"
                self.copies.append(f"{copy}({target}, {pointer}, {index});")
        if shared:
            return f"{self.names[key]}[item]"
        self.last = self.loop
        return f"{self.names[key]}[buffer * {self.items} + item]"

    def refill(self) -> list[str]:
        """The statements that send for the row after the next, once this one has been read."""
        ahead = DEPTH * self.carried.blocks
        return fill("row_pipeline.cuh", "refill", ahead=ahead, fetch=self.fetch()).splitlines()

    def fetch(self) -> list[str]:
        """The statements that send for a row."""
        text = fill(
            "row_pipeline.cuh", "fetch", rows=self.row.lines, trips=self.trips, items=self.items,
            index=self.row.index_type, group=THREADS, copies=self.copies,
        )  # fmt: skip
        return text.splitlines()

    def stages(self, kernel: Kernel, text: list[str], about: str) -> list[Stage]:
        """The blocks that walk over rows, and the second stage of their columns."""
        row, carried = self.row, self.carried
        assert self.offset <= kernel.target.block_shared, "the schedule has no room for the rows"
        body = fill(
            "row_pipeline.cuh", "ring_body", declare=carried.declare + self.declare,
            start=self.start,
            columns=carried.start, last=carried.last, fetch=self.fetch(), phases=text,
            rows=row.lines, items=self.items, trips=self.trips, blocks=carried.blocks,
            index=row.index_type, group=THREADS, scratch_bytes=row.scratch_bytes,
        )  # fmt: skip
        name = stem(kernel) + "_parts"
        label = comment(kernel, f"{about}, the next in flight, with column sums", carried.blocks)
        words = row.words.list
        first = wrapped(kernel, name, body, words, carried.blocks, self.offset, label)
        first.alone = True
        return [first, carried.join(kernel, first)]


__all__ = ["RowPipeline"]
