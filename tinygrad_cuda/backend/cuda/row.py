"""ROW: a warp or a block for each row, or several blocks and a second stage for few long rows."""

from __future__ import annotations

from math import prod
from typing import Any

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
from tinygrad_cuda.graph.fusion import FEW_ROWS, LONG_ROW, length_of, rows_of
from tinygrad_cuda.graph.schedule import Kernel

HELD = 32  # values of each operand that a thread keeps in registers
PLENTY = ENOUGH_BLOCKS * THREADS  # threads from which each had better load more
AHEAD = 4  # loads of a thread that may be on their way for one row of a sub-warp
PART = 2048  # elements that a block takes at least, of a row that is split
WORTH_PARTS = 96 << 10  # bytes of a row, among few, that are worth a second stage


def row_stages(kernel: Kernel) -> list[Stage]:
    """A warp or a block for each row; several blocks and a second stage for few long rows."""
    parts = _parts(kernel)
    single = all(phase <= 1 for phase in Lines(kernel).phase.values())
    tainted_wide = any(Lines(kernel).phase[node] for node in Lines(kernel).wide_stores)
    if parts > 1 and single and not tainted_wide:
        return _split_row(kernel, parts)
    return [_whole_row(kernel)]


def _parts(kernel: Kernel) -> int:
    """How many blocks had better share a row, if the kernel needs one loop over it."""
    lines, length = rows_of(kernel.sign), length_of(kernel.sign)
    wide = [n for n in (*kernel.stores, *kernel.reads) if prod(n.shape) >= kernel.numel]
    few = lines < FEW_ROWS and length * sum(n.dtype.itemsize for n in wide) > WORTH_PARTS
    if not few and length <= LONG_ROW:
        return 1
    return min(-(-length // PART), max(1, ENOUGH_BLOCKS // lines))


def _row_width(kernel: Kernel, group: int) -> int:
    last = kernel.sign[-1][0] if kernel.sign else 1
    width = vector_width(kernel, last)
    while group > WARP and width > 1 and length_of(kernel.sign) // width * 4 < group * 3:
        width //= 2
    return width


def _row_group(kernel: Kernel) -> int:
    """Threads that share a row: of a short one as few as have something to load."""
    lines, length = rows_of(kernel.sign), length_of(kernel.sign)
    if length > 1024 or (length > 256 and lines < 1024):
        return THREADS
    group, items = WARP, length // _row_width(kernel, WARP)
    while group > 1 and group // 2 >= items:
        group //= 2
    while group > 1 and lines * group > PLENTY and -(-items // (group // 2)) <= AHEAD:
        group //= 2
    return group


def _whole_row(kernel: Kernel) -> Stage:
    row = Lines(kernel, whole=True)
    group = _row_group(kernel)
    per_block = THREADS // group
    row.spare = 1 < group < WARP and row.lines % per_block > 0
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
    phases: list[dict[str, Any]] = []
    for loop in range(1, loops + 1):
        writer.scopes = [row.outer, Scope("item"), Scope("v")]
        writer.lane = Lane(v, width)
        stores = Stores(writer, kernel)
        taken = row.loop(loop, space.flat, item * width + v, stores)
        phases.append(
            {
                "before": row.outer.lines + row.start(taken),
                "load": writer.scopes[1].lines,
                "map": writer.scopes[2].lines,
                "store": stores.after,
                "combine": [row.reduction(a, group) for a in taken],
            }
        )
        row.outer.lines = []
        row.settle(taken)
    if writer.held is not None:
        writer.held.load_early(kernel.numel, phases[0]["load"], phases[0]["map"])
    text = [] if writer.held is None else writer.held.declarations
    sizes = {"trips": trips, "unroll": trips if fits else 4, "items": items, "width": width}
    for phase in phases:
        filled = fill("row.cuh", "phase", index=row.index_type, group=group, **sizes, **phase)
        text += filled.splitlines()
    if row.line_stores:
        writer.scopes = [row.outer]
        row.pick(loops)
        made, stored = row.finish()
        made = row.outer.lines + made
        first = "thread == 0 && live" if row.spare else "thread == 0"
        text += fill("row.cuh", "finish", first=first, epilogue=made, store=stored).splitlines()
    section = "spare_body" if row.spare else "body"
    body = fill("row.cuh", section, group=group, per_block=per_block, lines=row.lines, phases=text)
    blocks = -(-row.lines // per_block)
    where = "in registers" if fits else "read again in each phase" if loops > 1 else "read once"
    about = f"ROW, {row.lines} rows of {row.length}, {group} threads each, {loops} loops, {where}"
    label = comment(kernel, about, blocks)
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
