"""column_reduce: reductions that leave the innermost axis alone, by tiles of columns."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Lane, RowRegisters, Scope, Stores
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.skeleton import Scratch, Stage, comment, fill, stem, wrapped
from tinygrad_cuda.lowering.schedule.fusion import length_of, rows_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import THREADS, enough_blocks
from tinygrad_cuda.lowering.skeletons.reduction_accumulators import (
    Accumulator,
    ReductionAccumulators,
    ReductionSpace,
    in_flight,
    join_stage,
    keep,
    loads_before_stores,
)
from tinygrad_cuda.lowering.target import WARP, Target

TURNS, HALF_TURNS = 16, 8  # elements of a line that a thread of a part takes at least
LONG = 1024  # elements of a line from which on threads that share it take wide strips
ROWS = 4  # that mean and deviations of a column are first taken of
LEAST_STRIPS = 8  # neighbouring strips of a block
FEW = 256  # columns, such as an image's channels, that vectors of four leave to few threads
SUMS = 4  # of each column that registers of eight hold
STORING = 4  # turns of a loop that stores, whose loads are in flight before the first store
AHEAD = 4  # elements of a line that a thread takes before the next block's threads had better


def col_stages(kernel: Kernel) -> list[Stage]:
    """Tiles of columns; where these are few, each column in several parts with a second stage."""
    width = _col_width(kernel)
    col = ReductionAccumulators(kernel, width, "strip")
    strips = col.lines // width
    across = _across(strips, col.length, kernel.target)
    down = THREADS // across
    tiles = -(-strips // across)
    turns = HALF_TURNS if _is_long(kernel) else TURNS
    parts = max(1, min(enough_blocks(kernel.target) // tiles, col.length // (down * turns)))
    chunk = -(-col.length // parts)
    if _is_long(kernel):
        chunk = -(-chunk // (down * ROWS)) * down * ROWS
    parts = -(-col.length // chunk)
    writer = col.writer
    col.outer = Scope("strip")
    item, v = ix.variable("item", col.length), ix.variable("v", width)
    space = ReductionSpace(kernel.sign, col.line, item)
    writer.scopes = [col.outer, Scope("item"), Scope("v")]
    writer.lane, writer.pairs = Lane(v, width), True
    ahead = writer.row_registers = _ahead(kernel, width, -(-chunk // down))
    element, size = ("[v]", f"[{width}]") if width > 1 else ("", "")
    accumulators = [one._replace(name=f"{one.name}{element}") for one in col.accumulators]
    names = [one.name for one in col.accumulators]
    col.accumulators = accumulators
    stores = Stores(writer, kernel)
    taken = col.loop(1, space.flat, item, stores)
    writer.row_registers = None  # the epilogue is of one row
    load, map_ = writer.scopes[1].lines, writer.scopes[2].lines
    before = [*col.outer.lines]
    start = [f"{a.name} = {a.start};" for a in taken]
    if width > 1:
        before += [f"{a.ctype} {n}{size};" for a, n in zip(taken, names)]
    else:
        before, start = before + col.start(taken), []
    col.outer.lines = []
    combine = [
        line
        for a, n in zip(taken, names)
        if down > 1
        for line in fill(
            "column_reduce.cuh", "combine", ctype=a.ctype, value=a.name, operator=f"{a.operator}()",
            down=down, across=across, width=width, threads=THREADS,
        ).splitlines()
    ]  # fmt: skip
    scratches = {a: Scratch(col.lines * parts * max(a.bytes, 16)) for a in taken}
    made: list[str] = []
    after: list[str] = []
    if parts > 1:
        finish = keep(
            col,
            taken,
            scratches,
            parts,
            f"({ix.render(col.line, col.writer.wide)})" if width > 1 else "strip",
        )
    else:
        made, finish, after = _col_finish(col, taken, v)
    body = fill(
        "column_reduce.cuh",
        "body",
        across=across,
        down=down,
        parts=parts,
        strips=strips,
        width=width,
        length=col.length,
        chunk=chunk,
        index=col.index_type,
        before=before,
        start=start,
        loop=_loop_text(
            kernel,
            [a for a in taken if a.takes_vectors and width > 1],
            {
                "down": down,
                "width": width,
                "index": col.index_type,
                "load": load,
                "map": map_,
                "store": stores.after,
            },
            ahead,
        ),
        combine=combine,
        epilogue=made,
        finish=finish,
        after=after,
    )
    blocks = tiles * parts
    shared = max(a.bytes for a in taken) * THREADS * width if down > 1 else 0
    label = comment(
        kernel, f"column_reduce, {col.lines} columns of {col.length}, each in {parts} parts", blocks
    )
    name = stem(kernel) + ("_parts" if parts > 1 else "")
    first = wrapped(kernel, name, body, col.words.list, blocks, shared, label)
    if parts == 1:
        return [first]
    plain = {a._replace(name=n): scratches[a] for a, n in zip(taken, names)}
    return [first, join_stage(kernel, plain, parts, first)]


def _ahead(kernel: Kernel, width: int, turns: int) -> RowRegisters | None:
    """What the loop loads for some of its turns before the first store of them."""
    if not kernel.wide_stores or not in_flight(kernel, STORING, width):
        return None
    return RowRegisters(1, min(STORING, turns), width)


def _loop_text(
    kernel: Kernel,
    several: list[Accumulator],
    holes: dict[str, Any],
    ahead: RowRegisters | None,
) -> str:
    """The loop over a part's rows.

    Args:
        several: accumulators that take values of several rows at once, with one merge for them.
        holes: what fills the loop.
        ahead: arrays that take what several turns load, where the loop stores.
    """
    if ahead is not None:
        load, map_ = list(holes["load"]), list(holes["map"])
        first = loads_before_stores(ahead, load, map_)
        holes |= {"load": load, "map": map_, "ahead": first, "declare": ahead.declarations}
        return fill("column_reduce.cuh", "storing_loop", rows=ahead.trips, **holes)
    loop = fill("column_reduce.cuh", "loop", **holes)
    if not several or not _is_long(kernel) or holes["store"]:
        return loop
    lines, declare, take = list(holes["map"]), [], []
    for number, one in enumerate(several):
        begin = one.take("", "").removesuffix(");")
        (line,) = (line for line in lines if line.startswith(begin))
        value, name = line[len(begin) :].removesuffix(");"), f"rows{number}"
        lines[lines.index(line)] = f"{name}[v][turn] = {value};"
        declare.append(f"{one.node.dtype.compute} {name}[{holes['width']}][{ROWS}];")
        take.append(one.take(f"{name}[v]", ""))
    batch = {**holes, "map": lines, "declare": declare, "take": take, "rows": ROWS}
    return fill("column_reduce.cuh", "loop_of_rows", **batch) + loop.replace(
        "item = first + down; ", "item = group; ", 1
    )


def _across(strips: int, length: int, target: Target) -> int:
    """Neighbouring strips of a block: the shorter the lines, the fewer threads share one."""
    across = WARP
    while across > 8 and across // 2 >= strips:
        across //= 2
    while across < THREADS and strips > across:
        down = THREADS // across
        plenty = strips // across >= enough_blocks(target) and length < down * AHEAD
        if down // 2 < length and not plenty:
            break
        across *= 2
    return across


def _col_width(kernel: Kernel) -> int:
    """Neighbouring lines that a thread takes: a vector, if enough threads are left."""
    inner = kernel.sign[-1][0]
    if _is_long(kernel):
        width = kernel.vector_width(inner)
        while inner // width < LEAST_STRIPS and width > 1:
            width //= 2
        return width
    width = kernel.vector_width(inner)
    enough = (
        inner // width >= WARP
        or rows_of(kernel.sign) // width >= enough_blocks(kernel.target) * THREADS
    )
    return width if enough else 1


def _is_long(kernel: Kernel) -> bool:
    """Whether it reads few long columns of 16-bit values, of which a vector holds eight."""
    halves = any(node.dtype.is_half for node in kernel.full_size_reads)
    few = rows_of(kernel.sign) <= FEW and len(kernel.anchors) <= SUMS
    return halves and few and length_of(kernel.sign) >= LONG


def _col_finish(
    col: ReductionAccumulators, taken: list[Accumulator], v: Index
) -> tuple[list[str], list[str], list[str]]:
    """The epilogue: statements before, in and after the loop over a thread's lines."""
    col.settle(taken)
    writer = col.writer
    writer.scopes = [Scope("strip"), Scope("v")]
    writer.scopes[0].memo = col.outer.memo
    writer.floors = dict.fromkeys(col.kernel.nodes, 1)
    stores = Stores(writer, col.kernel)
    for node in col.line_stores:
        value = writer.value(node, ix.unflatten(col.line, node.shape))
        stores.put(node, col.line, value)
    return writer.scopes[0].lines, writer.scopes[1].lines, stores.after
