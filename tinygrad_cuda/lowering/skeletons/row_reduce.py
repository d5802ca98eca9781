"""row_reduce: a warp or a block for each row, or several blocks where few rows are long."""

from __future__ import annotations

from itertools import chain
from typing import Any

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import DEAR, EARLY, Lane, RowRegisters, Scope, Stores
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.skeleton import Scratch, Stage, comment, fill, stem, wrapped
from tinygrad_cuda.lowering.schedule.fusion import rows_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, large_values
from tinygrad_cuda.lowering.schedule.resources import (
    REGISTER_VALUES,
    THREADS,
    carrying_threads,
    enough_blocks,
    row_group,
    row_of,
    row_parts,
    row_width,
)
from tinygrad_cuda.lowering.skeletons import column_partials
from tinygrad_cuda.lowering.skeletons.column_partials import Columns
from tinygrad_cuda.lowering.skeletons.grid_reduce import grid_reduce_stage
from tinygrad_cuda.lowering.skeletons.reduction_accumulators import (
    Accumulator,
    ReductionAccumulators,
    ReductionSpace,
    in_flight,
    join_stage,
    keep,
    loads_before_stores,
)
from tinygrad_cuda.lowering.skeletons.row_pipeline import RowPipeline
from tinygrad_cuda.lowering.skeletons.shared_rows import BLOCKS, SharedRows, has_room
from tinygrad_cuda.lowering.target import WARP

REGISTER_VALUES_ALONE = 64  # of an operand of at most 4 bytes, if there is no other
UNROLLED = 4  # turns of a loop over a longer row that are made at once
STORING = 8  # and of one that stores, while that takes no more registers than `in_flight` permits
# Blocks on a multiprocessor, and registers that a thread may need so that they fit.
BLOCKS_BY_REGISTERS = ((5, 32), (4, 64), (3, 80), (2, 128))
WALK_EARLY = 96  # registers for operands that are in flight for a row, if warps are few
SPARE = 16  # registers that a thread needs beside what it holds of a row


def row_stages(kernel: Kernel) -> list[Stage]:
    """A warp or a block for each row; several blocks and a second stage for few long rows."""
    if kernel.grid is not None:
        return [grid_reduce_stage(kernel)]
    parts = 1 if kernel.pair else row_parts(kernel)
    return _split_row(kernel, parts) if parts > 1 else _row(kernel)


def _register_values(kernel: Kernel) -> int:
    """How many values of a row a thread may keep."""
    reads = kernel.full_size_reads
    alone = len(reads) == 1 and reads[0].dtype.itemsize <= 4
    return REGISTER_VALUES_ALONE if alone else REGISTER_VALUES


def _lasting(kernel: Kernel) -> set[Node]:
    """Large operands that are to leave the GPU's cache after what the kernel stores.

    Not for their own sake: what the kernel stores then leaves the cache in order, which gains 2 to
    8 % of its time (docs/measurements.md). Where nothing large is stored there is nothing to gain,
    what all rows read, such as a weight, stays in any case, and what is read again in each phase
    had better stay no longer than that.
    """
    large = large_values(kernel)
    if large.isdisjoint(kernel.stores):
        return set()
    return large.intersection(kernel.full_size_reads)


def _row(kernel: Kernel) -> list[Stage]:
    """A kernel whose rows are whole."""
    own, columns = kernel.pair or (kernel, None)
    row = ReductionAccumulators(own)
    group = carrying_threads(own) if columns else row_group(own)
    per_block = THREADS // group
    row.spare = 1 < group < WARP and row.lines % per_block > 0
    width = row_width(own, group)
    items = row.length // width
    trips = -(-items // group)
    free = 2 * row.scratch_bytes
    ring = carried = None
    if kernel.ahead and columns is not None:
        ring = row.writer.nearer = RowPipeline(row, columns, width, items, trips)
        carried = ring.carried
    elif columns is not None and group == WARP:
        walkers = column_partials.walking_blocks(own, columns)
        carried = Columns(row, columns, width, items, 0, trips, walkers, per_block)
    elif columns is not None:
        carried = Columns(row, columns, width, items, free)
    row.slots = "scratch" if carried else "smem"
    loops = max([*row.phase.values(), *(row.phase[n] + 1 for n in row.kernel.wide_stores)])
    loops = max(loops, carried.loops) if carried else loops
    fits = trips * width <= _register_values(own)
    least = own.numel if carried else 0  # beside the columns there is no room for what is near
    row.writer.row_registers = RowRegisters(1, trips, width, least) if fits and loops > 1 else None
    shared_rows = None
    if loops > 1 and not fits and not carried and _in_shared_memory(kernel, group):
        shared_rows = row.writer.nearer = SharedRows(row, items)
    if fits or loops == 1 or shared_rows:
        row.writer.lasting = _lasting(kernel)
    text = _phases(row, carried, loops, group, width, fits, ring)
    row_registers = row.writer.row_registers if fits else None
    if row.line_stores:
        text += _finish(row, loops)
    where = "in registers" if fits else "read again in each phase" if loops > 1 else "read once"
    where = "in shared memory" if shared_rows else where
    about = f"row_reduce, {row.lines} rows of {row.length}, {group} threads each"
    about += f", {loops} loops, {where}"
    if ring:
        return ring.stages(kernel, text, about)
    if carried:
        has_space = fits and carried.shared <= kernel.target.block_shared
        assert has_space, "the schedule has no room for the columns"
        walk = _warps_walk if group == WARP else _walk
        return walk(kernel, carried, text, about)
    section = "spare_body" if row.spare else "body"
    text = [*(shared_rows.declare if shared_rows else ()), *text]
    body = fill(
        "row_reduce.cuh", section, group=group, per_block=per_block, rows=row.lines, phases=text
    )
    blocks = -(-row.lines // per_block)
    label = comment(kernel, about, blocks)
    shared = shared_rows.nbytes if shared_rows else row.scratch_bytes
    stage = wrapped(kernel, stem(kernel), body, row.words.list, blocks, shared, label)
    stage.min_blocks_per_sm = (
        BLOCKS if shared_rows else _row_min_blocks(kernel, row_registers, blocks)
    )
    stage.alone = shared_rows is not None
    return [stage]


def _in_shared_memory(kernel: Kernel, group: int) -> bool:
    """Whether rows that are read in several loops stay in shared memory, of enough blocks."""
    enough = rows_of(kernel.sign) >= BLOCKS * kernel.target.multiprocessors
    vectors = row_width(kernel, group) > 1  # single elements are loaded where they are needed
    return enough and vectors and group == THREADS and has_room(kernel)


def _row_min_blocks(kernel: Kernel, row_registers: RowRegisters | None, blocks: int) -> int:
    """Blocks that share a multiprocessor, so that some load while others wait or store."""
    if blocks < enough_blocks(kernel.target) or row_registers is None:
        return 1
    least = 2 if row_registers.trips * row_registers.lanes > REGISTER_VALUES else 1
    vectors = any(row_of(node).cuda.vectors for node in kernel.anchors)
    if vectors or any(node.op.cost > DEAR for node in kernel.nodes):
        return least  # the compiler knows better how many temporaries these take
    needed = row_registers.registers + SPARE
    return next((count for count, registers in BLOCKS_BY_REGISTERS if needed <= registers), least)


def _phases(
    row: ReductionAccumulators,
    carried: Columns | None,
    loops: int,
    group: int,
    width: int,
    fits: bool,
    ring: RowPipeline | None = None,
) -> list[str]:
    """The loops over a row."""
    writer, pipeline = row.writer, row.writer.row_registers
    row.outer = Scope("row")
    items = row.length // width
    item, v = ix.variable("item", items), ix.variable("v", width)
    space = ReductionSpace(row.kernel.sign, row.line, item * width + v)
    sizes = {"items": items, "width": width, "index": row.index_type, "group": group}
    trips = -(-items // group)
    phases: list[dict[str, Any]] = []
    text: list[str] = []
    for loop in range(1, loops + 1):
        in_shared_memory = isinstance(writer.nearer, SharedRows)
        ahead = None if fits or in_shared_memory else _ahead(row, loop, width, trips)
        writer.row_registers = pipeline or ahead
        if ring:
            ring.loop = loop
        stores = _open(row, item, v, width)
        taken = row.loop(loop, space.flat, item * width + v, stores)
        if carried:
            carried.take(loop, space.flat, stores)
        phases.append(_holes(row, stores, taken, group))
        row.outer.lines = []
        row.load_gathered(loop)
        phases[-1]["combine"][:0] = row.outer.lines
        if not fits:
            back = row.kernel.reverse == bool(loop % 2)
            ends = {"first": "0", "stride": group, "unroll": UNROLLED}
            if in_shared_memory:  # an item is the same thread's in each loop
                back, ends["unroll"] = row.kernel.reverse, STORING if loop == 1 else UNROLLED
            text += _long(row, ahead, phases[-1], back, items, **ends, **sizes)
        row.outer.lines = []
        row.settle(taken)
    if pipeline is not None:
        few = carried and group == WARP and carried.min_blocks_per_sm == 1
        registers = WALK_EARLY if few else EARLY
        pipeline.load_early(row.kernel.numel, phases[0]["load"], phases[0]["map"], registers)
        pipeline.count(["\n".join(chain(*phase.values())) for phase in phases])
        text = pipeline.declarations
    for loop, phase in enumerate(phases if fits else [], 1):
        filled = fill("row_reduce.cuh", "phase", trips=trips, unroll=trips, **sizes, **phase)
        text += filled.splitlines()
        if ring and loop == ring.last:
            text += ring.refill()
    return text


def _open(row: ReductionAccumulators, item: Index, v: Index, width: int) -> Stores:
    """Begins a loop."""
    row.writer.scopes = [row.outer, Scope("item"), Scope("v")]
    row.writer.lane = Lane(v, width)
    return Stores(row.writer, row.kernel)


def _ahead(row: ReductionAccumulators, loop: int, width: int, turns: int) -> RowRegisters | None:
    """What a loop over a long row loads for some turns at once: behind a store none could begin.

    Args:
        turns: of a thread in that loop.
    """
    storing = any(row.phase[node] + 1 == loop for node in row.kernel.wide_stores)
    if not storing:
        return None
    most = STORING if in_flight(row.kernel, STORING, width) else UNROLLED
    return RowRegisters(1, min(most, turns), width)


def _holes(
    row: ReductionAccumulators, stores: Stores, taken: list[Accumulator], group: int
) -> dict[str, Any]:
    """What fills the holes of a loop."""
    return {
        "before": row.outer.lines + row.start(taken),
        "load": row.writer.scopes[1].lines,
        "map": row.writer.scopes[2].lines,
        "store": stores.after,
        "combine": row.reductions(taken, group),
    }


def _long(
    row: ReductionAccumulators,
    ahead: RowRegisters | None,
    holes: dict[str, Any],
    back: bool,
    last: int,
    **sizes: object,
) -> list[str]:
    """A loop over a row that does not fit, `back` from its end: in turns, or in some at once."""
    item = [f"const {sizes['index']} item = {last - 1} - reversed;"] if back else []
    sizes |= {"last": last, "counter": "reversed" if back else "item", "item": item}
    if ahead is None:
        return fill("row_reduce.cuh", "long_phase", **sizes, **holes).splitlines()
    load, map_ = list(holes["load"]), list(holes["map"])
    sizes |= {"ahead": loads_before_stores(ahead, load, map_), "declare": ahead.declarations}
    sizes |= {"unroll": ahead.trips}
    text = fill("row_reduce.cuh", "storing_phase", **sizes, **holes | {"load": load, "map": map_})
    return text.splitlines()


def _finish(row: ReductionAccumulators, loops: int) -> list[str]:
    """The text behind the loops: values with one element a row."""
    row.writer.scopes = [row.outer]
    row.gather(loops)
    made, stored = row.finish()
    made = row.outer.lines + made
    first = "thread == 0 && live" if row.spare else "thread == 0"
    return fill("row_reduce.cuh", "finish", first=first, epilogue=made, store=stored).splitlines()


def _walk(kernel: Kernel, carried: Columns, text: list[str], about: str) -> list[Stage]:
    """Blocks that walk over many rows each, with the columns that they carry."""
    row = carried.row
    body = fill(
        "row_reduce.cuh",
        "walk_body",
        start=carried.declare,
        first=carried.start,
        last=carried.last,
        items=carried.items,
        group=THREADS,
        blocks=carried.blocks,
        rows=row.lines,
        phases=text,
        scratch_bytes=row.scratch_bytes,
    )
    words, name = row.words.list, stem(kernel) + "_parts"
    label = comment(kernel, f"{about}, with column sums", carried.blocks)
    first = wrapped(kernel, name, body, words, carried.blocks, carried.shared, label)
    first.min_blocks_per_sm = 2
    return [first, carried.join(kernel, first)]


def _warps_walk(kernel: Kernel, carried: Columns, text: list[str], about: str) -> list[Stage]:
    """Warps that walk over many rows each, with the columns that they carry in registers."""
    row = carried.row
    body = fill(
        "row_reduce.cuh",
        "warps_body",
        start=carried.declare,
        first=carried.start,
        last=carried.last,
        group=WARP,
        warps=THREADS // WARP,
        trips=carried.trips,
        stride=carried.blocks * (THREADS // WARP),
        rows=row.lines,
        row=f"{row.lines - 1} - turn" if row.kernel.reverse else "turn",
        phases=text,
    )
    words, name = row.words.list, stem(kernel) + "_parts"
    label = comment(kernel, f"{about}, with column sums", carried.blocks)
    first = wrapped(kernel, name, body, words, carried.blocks, carried.shared, label)
    first.min_blocks_per_sm = carried.min_blocks_per_sm
    first.alone = True
    return [first, carried.join(kernel, first)]


def _split_row(kernel: Kernel, parts: int) -> list[Stage]:
    row = ReductionAccumulators(kernel)
    row.writer.lasting = _lasting(kernel)
    width = row_width(kernel, THREADS)
    items = row.length // width
    row.outer = Scope("row", "part")
    item, v = ix.variable("item", items), ix.variable("v", width)
    space = ReductionSpace(kernel.sign, row.line, item * width + v)
    stride = parts * THREADS
    ahead = row.writer.row_registers = _ahead(row, 1, width, -(-items // stride))
    stores = _open(row, item, v, width)
    taken = row.loop(1, space.flat, item * width + v, stores)
    scratches = {a: Scratch(row.lines * parts * max(a.bytes, 16)) for a in taken}
    narrow = items + STORING * stride <= ix.INT_MAX
    sizes = {"index": row.index_type if narrow else "long long", "stride": stride, "width": width}
    ends = {"first": f"part * {THREADS}", "unroll": UNROLLED}
    holes = _holes(row, stores, taken, THREADS)
    phase = _long(row, ahead, holes, kernel.reverse, items, **ends, **sizes)
    statements = keep(row, taken, scratches, parts)
    phase += fill("row_reduce.cuh", "keep", keep=statements).splitlines()
    body = fill("row_reduce.cuh", "part_body", parts=parts, phases=phase)
    blocks = row.lines * parts
    label = comment(
        kernel, f"row_reduce, {row.lines} rows of {row.length}, each in {parts} parts", blocks
    )
    shared = row.scratch_bytes
    first = wrapped(kernel, stem(kernel) + "_parts", body, row.words.list, blocks, shared, label)
    return [first, join_stage(kernel, scratches, parts, first)]
