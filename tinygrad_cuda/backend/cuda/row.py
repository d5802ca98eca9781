"""ROW: a warp or a block for each row, or several blocks and a second stage for few long rows."""

from __future__ import annotations

from tinygrad_cuda.backend.cuda import index as ix
from tinygrad_cuda.backend.cuda.expression import Held, Lane, Scope
from tinygrad_cuda.backend.cuda.lines import (
    ENOUGH_BLOCKS,
    WARP,
    Lines,
    Space,
    join_stage,
    keep,
)
from tinygrad_cuda.backend.cuda.store import Stores, comment, stem, vector_width
from tinygrad_cuda.backend.cuda.template import THREADS, Scratch, Stage, fill, wrapped
from tinygrad_cuda.graph.fusion import LONG_ROW, length_of, rows_of
from tinygrad_cuda.graph.schedule import Kernel

HELD = 32  # values of each operand that a thread keeps in registers
PART = 4096  # elements that a block takes at least, of a row that is split


def row_stages(kernel: Kernel) -> list[Stage]:
    """A warp or a block for each row; several blocks and a second stage for few long rows."""
    lines, length = rows_of(kernel.sign), length_of(kernel.sign)
    parts = min(-(-length // PART), max(1, ENOUGH_BLOCKS // lines)) if length > LONG_ROW else 1
    single = all(phase <= 1 for phase in Lines(kernel).phase.values())
    tainted_wide = any(Lines(kernel).phase[node] for node in Lines(kernel).wide_stores)
    if parts > 1 and single and not tainted_wide:
        return _split_row(kernel, parts)
    return [_whole_row(kernel)]


def _row_width(kernel: Kernel, group: int) -> int:
    last = kernel.sign[-1][0] if kernel.sign else 1
    width = vector_width(kernel, last)
    while width > 1 and length_of(kernel.sign) // width * 4 < group * 3:
        width //= 2
    return width


def _whole_row(kernel: Kernel) -> Stage:
    row = Lines(kernel)
    group = WARP if row.length <= 256 or (row.length <= 1024 and row.lines >= 1024) else THREADS
    width = _row_width(kernel, group)
    items = row.length // width
    trips = -(-items // group)
    loops = max([*row.phase.values(), *(row.phase[n] + 1 for n in row.wide_stores)])
    fits = trips * width <= HELD
    writer = row.writer
    writer.held = Held(1, trips, width) if fits and loops > 1 else None
    row.outer = Scope("line")
    item, v = ix.variable("item", items), ix.variable("v", width)
    space = Space(kernel.sign, row.line, item * width + v)
    text: list[str] = []
    for loop in range(1, loops + 1):
        writer.scopes = [row.outer, Scope("item"), Scope("v")]
        writer.lane = Lane(v, width)
        stores = Stores(writer, kernel)
        taken = row.loop(loop, space.flat, item * width + v, stores)
        before = row.outer.lines + row.start(taken)
        row.outer.lines = []
        text += fill(
            "row.cuh",
            "phase",
            before=before,
            unroll=trips if fits else 4,
            trips=trips,
            index=row.index_type,
            group=group,
            items=items,
            load=writer.scopes[1].lines,
            width=width,
            map=writer.scopes[2].lines,
            store=stores.after,
            combine=[row.reduction(a, group) for a in taken],
        ).splitlines()
        row.settle(taken)
    if writer.held is not None:
        text = writer.held.declarations + text
    if row.line_stores:
        made, stored = row.finish()
        text += fill("row.cuh", "finish", epilogue=made, store=stored).splitlines()
    per_block = THREADS // group
    body = fill("row.cuh", "body", group=group, per_block=per_block, lines=row.lines, phases=text)
    blocks = -(-row.lines // per_block)
    where = "in registers" if fits else "read again in each phase" if loops > 1 else "read once"
    label = comment(
        kernel, f"ROW, {row.lines} rows of {row.length}, {loops} loops, {where}", blocks
    )
    return wrapped(kernel, stem(kernel), body, row.words.list, blocks, row.scratch_bytes, label)


def _split_row(kernel: Kernel, parts: int) -> list[Stage]:
    row = Lines(kernel)
    width = _row_width(kernel, THREADS)
    items = row.length // width
    chunk = -(-items // parts)
    parts = -(-items // chunk)
    writer = row.writer
    row.outer = Scope("line", "part")
    item, v = ix.variable("item", items), ix.variable("v", width)
    space = Space(kernel.sign, row.line, item * width + v)
    writer.scopes = [row.outer, Scope("item"), Scope("v")]
    writer.lane = Lane(v, width)
    stores = Stores(writer, kernel)
    taken = row.loop(1, space.flat, item * width + v, stores)
    scratches = {a: Scratch(row.lines * parts * max(a.bytes, 16)) for a in taken}
    phase = fill(
        "row.cuh",
        "part_phase",
        before=row.outer.lines + row.start(taken),
        chunk=chunk,
        items=items,
        index=row.index_type,
        group=THREADS,
        load=writer.scopes[1].lines,
        width=width,
        map=writer.scopes[2].lines,
        store=stores.after,
        combine=[row.reduction(a, THREADS) for a in taken],
        keep=keep(row, taken, scratches, parts),
    )
    body = fill("row.cuh", "part_body", parts=parts, phases=phase)
    blocks = row.lines * parts
    label = comment(kernel, f"ROW, {row.lines} rows of {row.length}, each in {parts} parts", blocks)
    shared = row.scratch_bytes
    first = wrapped(kernel, stem(kernel) + "_parts", body, row.words.list, blocks, shared, label)
    return [first, join_stage(kernel, scratches, parts, first)]
