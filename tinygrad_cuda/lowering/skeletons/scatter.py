"""SCATTER: writing at computed positions, in the order of the index, without atomics."""

from __future__ import annotations

from math import prod

from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Scope
from tinygrad_cuda.lowering.codegen.params import KernelParams
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, Stage, fill, wrapped
from tinygrad_cuda.lowering.codegen.store import Stores, comment, is_wide, stem
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.target import WARP

ROW = 64  # elements of a row from which a block takes whole rows
ROWS = 16  # that a block takes at most: their results are registers
BLOCKS = 8  # for each multiprocessor, of fewer rows


def scatter_stages(kernel: Kernel) -> list[Stage]:
    """One stage: a thread for each element of the result; blocks have long rows."""
    (node,) = kernel.anchors
    base, positions, values = node.sources
    inner, count = prod(base.shape[1:]), prod(positions.shape)
    numel = prod(node.shape)
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
    item = ix.variable("item", numel)
    writer.scopes = [Scope("item"), Scope("own")]
    start = writer.value(base, ix.unflatten(item, base.shape))
    before = [
        f"{node.dtype.compute} result = {literal_zero(node.dtype.compute)};",
        "if (live) {",
        *(f"  {line}" for line in writer.scopes[0].lines),
        f"  result = {start};",
        "}",
    ]
    own = ix.variable("own", max(count, 1))
    writer.scopes = [Scope(), Scope("own")]
    where = writer.value(positions, ix.unflatten(own, positions.shape))
    find = [*writer.scopes[0].lines, *writer.scopes[1].lines, f"own_target = (int){where};"]
    writer.scopes = [Scope(), Scope("item", "entry")]
    entry = ix.variable("entry", max(count, 1))
    source = entry * inner + item % inner
    value = writer.value(values, ix.unflatten(source, values.shape))
    take = [*writer.scopes[0].lines, *writer.scopes[1].lines, _take(kernel, value)]
    writer.scopes = [Scope("item")]
    writer.anchored[node] = "result"
    stores = Stores(writer, kernel)
    stores.put(node, item, "result")
    by_rows = inner >= ROW
    pieces = -(-inner // THREADS)
    rows = _rows(base.shape[0] * pieces, kernel)
    body = fill(
        "scatter.cuh",
        "row_body" if by_rows else "body",
        pieces=pieces,
        index="long long" if writer.wide else "int",
        threads=THREADS,
        items=numel,
        inner=inner,
        count=count,
        rows=rows,
        targets=base.shape[0],
        type=node.dtype.compute,
        before=before,
        find=find,
        take=take,
        store=writer.scopes[0].lines,
    )
    blocks = -(-base.shape[0] // rows) * pieces if by_rows else -(-numel // THREADS)
    label = comment(kernel, f"scatter of {count} entries of {inner} elements", blocks)
    shared = (THREADS + THREADS // WARP) * 4
    return [wrapped(kernel, stem(kernel), body, words.list, blocks, shared, label)]


def _rows(blocks: int, kernel: Kernel) -> int:
    """Rows of a block, where with one row each there would be so many blocks."""
    rows = 1
    while rows < ROWS and blocks >= 2 * rows * BLOCKS * kernel.target.multiprocessors:
        rows *= 2
    return rows


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
