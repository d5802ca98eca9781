"""SCATTER: writing at computed positions, in the order of the index, without atomics."""

from __future__ import annotations

from math import prod
from typing import Any

from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Scope, Stores, is_wide
from tinygrad_cuda.lowering.codegen.skeleton import (
    THREADS,
    KernelParams,
    Scratch,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import enough_blocks
from tinygrad_cuda.lowering.target import WARP

ROW = 64  # elements of a row from which a warp takes whole rows
WARPS = THREADS // WARP
ROWS = 64  # of a block at most, each a warp's
COLUMNS = 8  # of a row that a lane holds at most
AHEAD = 4  # entries of a row whose loads are in flight together
MIN_BLOCKS_PER_SM = 4  # blocks on a multiprocessor: some read positions while others store
LISTED = 4096  # entries that a block keeps; of more it reads the positions again for each row
PARTS = 32  # of the entries at most, where there are few rows
PART = 256  # entries of a part at least


def scatter_stages(kernel: Kernel) -> list[Stage]:
    """Warps have long rows; a thread has each element of short ones."""
    (node,) = kernel.anchors
    inner, count = prod(node.shape[1:]), prod(node.sources[1].shape)
    if inner >= ROW and count > 0:
        return _RowScatter(kernel).stages()
    return [_by_elements(kernel)]


class _Loads:
    """The texts of a scatter: its results before any entry, positions, and what entries bring.

    Attributes:
        base: the statements that make an element `item` of the result before any entry.
        find: those that set `own_target` to the position of entry `own`.
    """

    def __init__(self, kernel: Kernel) -> None:
        (self.node,) = kernel.anchors
        self.kernel = kernel
        base, positions, values = self.node.sources
        self.inner, self.count = prod(base.shape[1:]), prod(positions.shape)
        self.targets, self.numel = base.shape[0], prod(self.node.shape)
        self.values = values
        self.words = KernelParams()
        self.writer = Evaluator(self.words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
        self.item = ix.variable("item", self.numel)

    @property
    def type(self) -> str:
        """Of a result until it is stored."""
        return str(self.node.dtype.compute)

    def base(self) -> list[str]:
        writer, base = self.writer, self.node.sources[0]
        writer.scopes = [Scope("item"), Scope("own")]
        start = writer.value(base, ix.unflatten(self.item, base.shape))
        return [
            f"{self.type} result = {literal_zero(self.type)};",
            "if (live) {",
            *(f"  {line}" for line in writer.scopes[0].lines),
            f"  result = {start};",
            "}",
        ]

    def find(self) -> list[str]:
        writer, positions = self.writer, self.node.sources[1]
        own = ix.variable("own", max(self.count, 1))
        writer.scopes = [Scope(), Scope("own")]
        where = writer.value(positions, ix.unflatten(own, positions.shape))
        lines = [*writer.scopes[0].lines, *writer.scopes[1].lines]
        return [*lines, f"own_target = (int){where};"]

    def value(self, column: ix.Index, name: str) -> tuple[list[str], str]:
        """The statements and the expression of what `entry` brings to a column."""
        writer = self.writer
        writer.scopes = [Scope(), Scope(name, "entry")]
        source = ix.variable("entry", max(self.count, 1)) * self.inner + column
        value = writer.value(self.values, ix.unflatten(source, self.values.shape))
        return [*writer.scopes[0].lines, *writer.scopes[1].lines], value

    def store(self) -> list[str]:
        self.writer.scopes = [Scope("item")]
        self.writer.anchored[self.node] = "result"
        stores = Stores(self.writer, self.kernel)
        stores.put(self.node, self.item, "result")
        return self.writer.scopes[0].lines

    def holes(self) -> dict[str, Any]:
        """What fills the holes of each section."""
        return {
            "index": "long long" if self.writer.wide else "int",
            "threads": THREADS,
            "items": self.numel,
            "inner": self.inner,
            "count": self.count,
            "targets": self.targets,
            "type": self.type,
        }


def _by_elements(kernel: Kernel) -> Stage:
    """A thread for each element of the result."""
    made = _Loads(kernel)
    before, find = made.base(), made.find()
    lines, value = made.value(made.item % made.inner, "item")
    take = [*lines, _take(kernel, value)]
    body = fill(
        "scatter.cuh", "body", before=before, find=find, take=take, store=made.store(),
        **made.holes(),
    )  # fmt: skip
    blocks = -(-made.numel // THREADS)
    label = comment(kernel, f"scatter of {made.count} entries of {made.inner} elements", blocks)
    return wrapped(kernel, stem(kernel), body, made.words.list, blocks, THREADS * 4, label)


class _RowScatter:
    """Blocks that list the entries of their rows, and warps that take a row each.

    Attributes:
        rows: of a block.
        parts: of the entries, whose sums a second stage joins.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.loads = kernel, _Loads(kernel)
        made = self.loads
        enough = enough_blocks(kernel.target)
        self.rows = WARPS
        while self.rows < ROWS and made.targets >= 2 * self.rows * enough:
            self.rows *= 2
        self.groups = -(-made.targets // self.rows)
        parts = min(PARTS, made.count // PART, enough // self.groups)
        sums = made.node.op is indexing.scatter_add  # else the last of all entries counts
        self.chunk = -(-made.count // max(1, parts if sums else 1))
        self.parts = -(-made.count // self.chunk)

    def stages(self) -> list[Stage]:
        """One stage, or one for each part of the entries and one that joins them."""
        made, several = self.loads, self.parts > 1
        size = max(made.node.dtype.itemsize, 4)
        sums = Scratch(self.parts * made.numel * size) if several else None
        if sums is None:
            before, store = made.base(), made.store()
        else:
            before = [f"{made.type} result = {literal_zero(made.type)};"]
            pointer = made.words.scratch(sums, made.type, True)
            index = "long long" if self.parts * made.numel > ix.INT_MAX else "int"
            store = [f"tgc_store({pointer}, ({index})part * {made.numel} + item, result);"]
        first = self._first(before, store, "_parts" * several)
        return [first] if sums is None else [first, self._join(sums, first)]

    def _first(self, before: list[str], store: list[str], suffix: str) -> Stage:
        made, kernel = self.loads, self.kernel
        find = made.find()
        load, value = made.value(ix.variable("column", made.inner), "column")
        wide = -(-made.inner // WARP)  # columns of a lane
        listed = min(self.chunk, LISTED)
        body = fill(
            "scatter.cuh", "row_body", before=before, find=find, load=load, value=value,
            take=_take(kernel, "value"), store=store, parts=self.parts, chunk=self.chunk,
            rows=self.rows, warps=WARPS, warp=WARP, listed=listed, ahead=AHEAD,
            segment=-(-self.chunk // THREADS) * WARP, columns=-(-wide // -(-wide // COLUMNS)),
            **made.holes(),
        )  # fmt: skip
        blocks = self.groups * self.parts
        about = (
            f"scatter of {made.count} entries of {made.inner} elements, {self.rows} rows a block"
        )
        about += f", in {self.parts} parts" if suffix else ""
        label = comment(kernel, about, blocks)
        shared, name = listed * 5 + WARPS * 4, stem(kernel) + suffix
        stage = wrapped(kernel, name, body, made.words.list, blocks, shared, label)
        stage.min_blocks_per_sm = MIN_BLOCKS_PER_SM
        return stage

    def _join(self, sums: Scratch, first: Stage) -> Stage:
        """The second stage: to each element the sums of all parts, in order."""
        made, kernel = _Loads(self.kernel), self.kernel
        pointer = made.words.scratch(sums, made.type, False)
        before = made.base()
        index = "long long" if self.parts * made.numel > ix.INT_MAX else "int"
        value = f"tgc_load({pointer}, ({index})part * {made.numel} + item)"
        body = fill(
            "scatter.cuh", "join", before=before, take=_take(kernel, value), store=made.store(),
            parts=self.parts, **made.holes(),
        )  # fmt: skip
        blocks = -(-made.numel // THREADS)
        label = comment(kernel, f"Second stage, {made.numel} sums of {self.parts} parts", blocks)
        name = stem(kernel) + "_join"
        stage = wrapped(kernel, name, body, made.words.list, blocks, 0, label, second=True)
        stage.after.append(first)
        return stage


def literal_zero(ctype: str) -> str:
    """What a result is before it is loaded."""
    return "false" if ctype == "bool" else "0"


def _take(kernel: Kernel, value: str) -> str:
    node = kernel.anchors[0]
    if node.op is indexing.scatter:
        return f"result = {value};"
    if node.dtype.name == "bool":
        return f"result = result || {value};"
    return f"result = ({node.dtype.compute})(result + {value});"
