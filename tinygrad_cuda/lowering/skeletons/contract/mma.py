"""CONTRACT on matrix units: products of 16-bit operands by mma.sync or wgmma, through the same
loads and epilogues as `contract`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Scope, is_wide
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.index_rewrites import Guard
from tinygrad_cuda.lowering.codegen.skeleton import (
    THREADS,
    KernelParams,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.contract.contract import (
    BAND,
    TiledContraction,
    epilogue_text,
    with_sum,
)
from tinygrad_cuda.lowering.skeletons.contract.epilogue_columns import (
    REGISTERS,
    EpilogueColumns,
    TileGrid,
    has_own_columns,
    registers_of,
    stored_columns,
)
from tinygrad_cuda.lowering.skeletons.contract.loads import (
    Reader,
    Source,
    ThreadMap,
    contiguous_axis,
    memory_of,
    operand_fetch,
    sources_of,
    times,
    zero_outside,
)
from tinygrad_cuda.lowering.skeletons.contract.mma_tiles import (
    COPY,
    SWIZZLE,
    MatrixTile,
    Tf32Tile,
    WgmmaTile,
)
from tinygrad_cuda.lowering.skeletons.contract.row_copies import OUTSIDE, Rows, implicit_gemm_rows
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import ProductCut

MMA, WGMMA = "contract_mma.cuh", "contract_wgmma.cuh"
DECLARED = re.compile(r"[\w<>, *]+?(\w+)(?:\[\d+\])?(?: = |;)")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
AHEAD = 256  # bytes of registers of a thread for loads that are made ahead
AHEAD_OF_COLUMNS = 128  # the same, beside running values of columns
# Values of the outputs' size that an epilogue with columns reads at most if it reads one of them
# for the columns alone. Loads of three are not made ahead: with bfloat16 99 us and 84 on an H200
# where the product and a kernel for its columns take 63; with two 49 for 61.
COLUMN_READS = 2
STRIP = 16  # bytes of an output strip: what a thread stores at once


@dataclass(frozen=True)
class MatrixOperand:
    """One operand's tiles in shared memory, and the text that brings them there.

    Attributes:
        threads: which elements each thread loads.
        before: statements before the loop over k.
        fetch: in which a thread copies its elements, or prefetches them into registers.
        put: in which it stores prefetched ones to shared memory; empty where they are copied.
    """

    threads: ThreadMap
    before: Sequence[str]
    fetch: Sequence[str]
    put: Sequence[str]

    @property
    def trans(self) -> bool:
        """Whether a slot's rows lie along the operand's other axis than k."""
        return self.threads.contiguous != "k"

    def declare(self) -> list[str]:
        """The registers of what is prefetched."""
        if not self.put:
            return []
        count = self.threads.loads * self.threads.width
        return [f"float prefetch_{self.threads.source.name}[{count}];"]


class MatrixContraction(TiledContraction[Any]):
    """One on matrix units.

    Attributes:
        tiles: of the outputs, in all batches and slices.
        blocks: as many as there are tiles; of wgmma at most those that run at one time; or as many
            as share the tiles' steps.
    """

    def __init__(self, kernel: Kernel, cut: ProductCut[Any]) -> None:
        super().__init__(kernel, cut)
        self.tiles = self.blocks
        if isinstance(cut.tile, WgmmaTile):
            together = cut.tile.resident(kernel.target) * kernel.target.multiprocessors
            whole = self.tiles if cut.cluster else min(self.tiles, together)
            self.blocks = cut.shares or whole
        if kernel.pair is not None:
            _, columns = kernel.pair
            lanes = _column_lanes(self, columns.anchors)
            turns = self.blocks * (2 if getattr(cut.tile, "ping_pong", False) else 1)
            grid = TileGrid(self.tiles_m, self.tiles_n, turns)
            self.columns = EpilogueColumns(columns, cut.tile, grid, self.n, lanes)


def carries_columns(
    product: Kernel, reductions: Sequence[Node], anew: Collection[Node], cut: ProductCut[Any]
) -> bool:
    """Whether the epilogue of a product on wgmma has room for reductions of its columns.

    Args:
        product: its kernel.
        reductions: of its columns.
        anew: values of its size that the epilogue would read for them alone.
        cut: of the product.
    """
    problem = MatrixContraction(product, cut)
    columns = stored_columns(problem.node)
    if any(prod(node.shape) != columns for node in reductions):
        return False
    if problem.slices > 1 or cut.shares or cut.cluster:
        return False
    if anew and len({*_epilogue_reads(problem), *anew}) > COLUMN_READS:
        return False
    return _column_lanes(problem, reductions) > 0


def _epilogue_reads(problem: MatrixContraction) -> set[Node]:
    """Values with more elements than a row of outputs that are no operands of the product."""
    reads = {node for node in problem.kernel.reads if prod(node.shape) > problem.n}
    stack, seen = [problem.a, problem.b], {problem.a, problem.b}
    while stack:
        if (top := stack.pop()) not in reads:
            stack += [source for source in top.sources if source not in seen]
            seen.update(top.sources)
    return reads - seen


def _column_lanes(problem: MatrixContraction, reductions: Sequence[Node]) -> int:
    """Neighbouring outputs of a thread whose registers hold their running values; 0 if none do."""
    operands = memory_of(problem.a) | memory_of(problem.b)
    reads = [node for node in problem.kernel.reads if prod(node.shape) > problem.n]
    met = [node for node in reads if node not in operands]
    lanes = lanes_of(problem)
    while lanes > 1 and registers_of(reductions, met, lanes) > REGISTERS:
        lanes //= 2
    room = registers_of(reductions, met, lanes) <= REGISTERS
    return lanes if room and has_own_columns(problem.tile, lanes) else 0


def mma_stages(kernel: Kernel, cut: ProductCut[Any]) -> list[Stage]:
    """One stage, or two where the sum over k is split among blocks."""
    problem = MatrixContraction(kernel, cut)
    return with_sum(problem, _product(problem))


def _product(problem: MatrixContraction) -> Stage:
    """The stage that multiplies; with split-K it leaves the slices in scratch memory."""
    kernel, tile, params = problem.kernel, problem.tile, KernelParams()
    reader = Reader(params, set(kernel.reads), is_wide(kernel), kernel.target, kernel.narrowed)
    outer = Scope("batch")
    sources = sources_of(problem.a, problem.b, tile.m, tile.n)
    a, b = (operand_of(source, problem, reader, outer) for source in sources)
    results = results_text(problem, reader, outer)
    products = fill(MMA, "products", **sizes_of(problem))
    return stage_of(problem, params, body_text(problem, outer, (a, b), products, results))


def body_text(
    problem: MatrixContraction,
    outer: Scope,
    operands: tuple[MatrixOperand, MatrixOperand],
    products: str,
    results: str,
) -> str:
    """The kernel's body: the ring, the products of its tiles, and what becomes of the sums."""
    tile, sizes, (a, b) = problem.tile, sizes_of(problem), operands
    wgmma = isinstance(tile, WgmmaTile)
    block = "block" if wgmma else "virtual_block"
    pipeline = fill(
        MMA, "pipeline", fetch_a=a.fetch, fetch_b=b.fetch, put_a=a.put, put_b=b.put
    )  # fmt: skip
    return fill(
        WGMMA if wgmma else MMA,
        "body",
        **sizes,
        **(descriptors(tile, a.trans, b.trans) if wgmma else matrices(tile, a, b)),
        bytes_a=tile.slot(a.trans, tile.m),
        bytes_b=tile.slot(b.trans, tile.n),
        fetches=fill(
            MMA, "fetches", **sizes, outer=outer.lines, tile=fill(MMA, "tile", **sizes, block=block)
        ),
        declare=[*a.declare(), *b.declare()],
        setup=[*a.before, *b.before, pipeline],
        products=products,
        results=results,
        tiles=problem.tiles,
        blocks=problem.blocks,
    )


def stage_of(problem: MatrixContraction, params: KernelParams, body: str) -> Stage:
    """The stage around a body."""
    kernel, tile = problem.kernel, problem.tile
    name = stem(kernel) + ("_slices" if problem.scratch else "")
    label = _about(problem)
    stage = wrapped(kernel, name, body, params.list, problem.blocks, tile.shared, label)
    stage.min_blocks_per_sm = tile.resident(kernel.target)
    return stage


def _about(problem: MatrixContraction) -> str:
    """What stands above the kernel."""
    tile = problem.tile
    shape = f"{problem.batches} x {problem.m} x {problem.n} x {problem.k}"
    shares = problem.cut.shares
    where = " in a cluster" if problem.cut.cluster else ""
    split = f"stream-K {shares}" if shares else f"split-K {problem.slices}{where}"
    text = (
        f"contract {shape} by {tile.unit}{tile.form}, tiles of {tile.m} x {tile.n} x {tile.k}, "
        f"{split}, {problem.flops} FLOPs"
    )
    return comment(problem.kernel, text, problem.blocks)


def results_text(
    problem: MatrixContraction, reader: Reader, outer: Scope, check: Sequence[str] = ()
) -> str:
    """The end of the kernel: outputs through shared memory and the epilogue into memory.

    Args:
        problem: the product.
        reader: of the kernel.
        outer: the scope around the loop over k.
        check: statements that may replace `totals`, neighbouring sums of row m.
    """
    tile, columns = problem.tile, problem.columns
    lanes = lanes_of(problem) if columns is None else columns.lanes
    batch = ix.variable("batch", problem.batches)
    wgmma = isinstance(tile, WgmmaTile)
    reader.ahead = {} if wgmma and not problem.cut.cluster else None
    row, load, map_, store = epilogue_text(problem, reader, outer, batch, lanes)
    turns = 16 * tile.columns // (32 * lanes)
    chunks = tile.unit_n // tile.columns
    parts = tile.unit_m // tile.instruction_m * chunks
    sizes = sizes_of(problem) | {
        "row_step": tile.instruction_m, "chunks": chunks, "columns": tile.columns, "turns": turns,
        "lanes": lanes, "bounds": _bounds(problem, lanes),
    }  # fmt: skip
    sizes |= columns.holes(reader.words, sizes) if columns else _no_columns(chunks)
    early, load = _ahead(reader, sizes, row, load, AHEAD_OF_COLUMNS if columns else AHEAD)
    j = f"c * {tile.columns // 8} + j"
    first = f"sum[i][({j}) * 4 + half * 2" if wgmma else f"sum[i][{j}][half * 2"
    return fill(
        MMA,
        "results",
        **sizes,
        unroll_turns=2 if columns and load and not early else 4,
        staging=tile.ring if wgmma else 0,
        **_staged(problem, sizes),
        parts=parts,
        groups=tile.columns // 8,
        early=early,
        low=f"{first}]",
        high=f"{first} + 1]",
        check=check,
        unroll=parts if wgmma else 1,
        row=row,
        load=load,
        map=map_,
        store=store,
    )


def _no_columns(chunks: int) -> dict[str, object]:
    """What fills the skeleton where no columns are reduced: parts go along the rows."""
    return {
        "declare_columns": [], "start_columns": [], "join_columns": [],
        "row_part": f"part / {chunks}", "column_part": f"part % {chunks}",
        "part_number": f"i * {chunks} + c",
    }  # fmt: skip


def _staged(problem: MatrixContraction, sizes: dict[str, Any]) -> dict[str, object]:
    """Which staged sums a thread reads: its warp's, or those of all blocks of a cluster."""
    cluster, slices, columns = problem.cut.cluster, problem.slices, sizes["columns"]
    shared = {"groups": columns // 8, "fragment": min(4, sizes["lanes"]), "slices": slices}
    totals = fill(MMA, "cluster_totals" if cluster else "own_totals", **sizes, **shared)
    if sizes["lanes"] == shared["fragment"]:  # a loop of one turn leaves its variables to a block
        totals = "\n".join(("{", *(_indented(line) for line in totals.splitlines()), "}"))
    if not cluster:
        return {
            "meet": ["__syncwarp();"], "first_turn": 0, "next_turn": "turn++", "totals": totals
        }  # fmt: skip
    tile = problem.tile
    alone = tile.unit_m == tile.instruction_m and tile.unit_n == columns
    assert alone, "a cluster stages all of a tile's sums at once"
    return {
        "meet": ["tgc_cluster_sync();"], "first_turn": "tgc_cluster_rank()",
        "next_turn": f"turn += {slices}", "totals": totals,
    }  # fmt: skip


def _indented(line: str) -> str:
    return line if line.startswith("#") else f"  {line}"


def _ahead(
    reader: Reader, sizes: dict[str, object], row: list[str], load: list[str], limit: int = AHEAD
) -> tuple[str, list[str]]:
    """Loads of a part's strips before its sums are staged, and those that stay with a strip.

    Few warps compute an epilogue: a load that waits for the store before it takes all its time.
    A thread's strips are of the same columns: where registers are few, what columns alone decide,
    such as the numbers of a channel, is loaded once for all of them; where they are fewer still,
    with each strip, from the L1 cache.
    """
    loads, turns = reader.ahead or {}, int(str(sizes["turns"]))
    first = [line for line in load if line in loads]
    moved = [loads[line] for line in first]
    once = set[str]()
    if turns * sum(one.nbytes for one in moved) > limit:
        once = {one.name for one in moved if "m" not in IDENTIFIER.findall(one.text)}
    if limit < AHEAD:
        moved = [one for one in moved if one.name not in once]
    bytes_ahead = sum(one.nbytes * (1 if one.name in once else turns) for one in moved)
    if not moved or turns == 1 or bytes_ahead > limit or row:
        return "", load
    made = {match[1] for line in load if (match := DECLARED.match(line))}
    if any(made.intersection(IDENTIFIER.findall(one.text)) for one in moved):
        return "", load  # an index is loaded first
    early = fill(
        MMA, "ahead", **sizes,
        declare=[
            f"{o.ctype} {o.name}_ahead{'' if o.name in once else f'[{turns}]'};" for o in moved
        ],
        loads=[
            f"if (turn == 0) {o.name}_ahead = {o.text};" if o.name in once
            else f"{o.name}_ahead[turn] = {o.text};"
            for o in moved
        ],
    )  # fmt: skip
    rest = [line for line in load if line not in loads or loads[line] not in moved]
    turn = {o.name: "" if o.name in once else "[turn]" for o in moved}
    return early, [
        f"const {o.ctype} {o.name} = {o.name}_ahead{turn[o.name]};" for o in moved
    ] + rest


def _bounds(problem: MatrixContraction, lanes: int) -> str:
    """The condition of a strip of outputs, if tiles reach beyond the last ones."""
    tile = problem.tile
    tests = [f"m < {problem.m}"] if problem.m % tile.m else []
    tests += [f"strip < {problem.n // lanes}"] if problem.n % tile.n else []
    return f"if ({' && '.join(tests)}) " if tests else ""


def lanes_of(problem: MatrixContraction) -> int:
    """Neighbouring outputs that a thread stores at once: 16 bytes of the widest value."""
    values = problem.kernel.full_size_values  # none where columns alone are wanted
    widest = max((node.dtype.itemsize for node in values), default=problem.dtype.itemsize)
    lanes = STRIP // (4 if problem.scratch else widest)
    while problem.run % lanes:
        lanes //= 2
    return lanes


def sizes_of(problem: MatrixContraction) -> dict[str, object]:
    """The sizes that fill the skeleton."""
    tile = problem.tile
    unit = {"bfloat16": "bf16", "float16": "fp16", "float32": "tf32"}[problem.dtype.name]
    return {
        "m": problem.m,
        "k": problem.k,
        "chunk": problem.chunk,
        "batches": problem.batches,
        "grid_m": problem.tiles_m,
        "grid_n": problem.tiles_n,
        "grid": problem.tiles_m * problem.tiles_n,
        "band": min(BAND, problem.tiles_m),
        "tile_m": tile.m,
        "tile_n": tile.n,
        "tile_k": tile.k,
        "tiles_m": tile.unit_m // tile.instruction_m,
        "tiles_8": tile.unit_n // 8,
        "steps": tile.k // tile.step,
        "stages": tile.stages,
        "threads": THREADS,
        "multiply": f"tgc_{tile.unit}_{unit}",
    }


def descriptors(tile: WgmmaTile, trans_a: bool, trans_b: bool) -> dict[str, object]:
    """How descriptors walk along the tiles of both operands, in bytes."""
    steps = {False: tile.step * tile.itemsize, True: tile.step * SWIZZLE}
    return {
        "groups_n": tile.across,
        "group_m": tile.unit_m,
        "group_n": tile.unit_n,
        "block_bytes": tile.block_bytes,
        "trans_a": str(trans_a).lower(),
        "trans_b": str(trans_b).lower(),
        "step_a": steps[trans_a],
        "step_b": steps[trans_b],
    }


def matrices(tile: MatrixTile, *operands: MatrixOperand) -> dict[str, object]:
    """How a warp's lanes address the 8 x 8 matrices of operands, in bytes.

    ldmatrix.x4 reads four: of A the rows 0-7 and 8-15 at the first k, then at the next; of B two
    matrices of k for each of two groups of 8 columns.
    """
    itemsize = tile.itemsize
    holes: dict[str, object] = {
        "warps_n": tile.across, "warp_m": tile.unit_m, "warp_n": tile.unit_n,
    }  # fmt: skip
    for operand in operands:
        side, extent = operand.threads.source.name, operand.threads.source.tile
        warp, step_first = f"warp_{operand.threads.source.other}", side == "b"
        stride = tile.stride(operand.trans, extent)
        # Lanes 0-7, 8-15, 16-23, 24-31 give the rows of the four matrices.
        near, far = "lane % 16", f"lane / 16 * {COPY}"
        pairs = "lane / 16 * 8 + lane % 8", f"lane / 8 % 2 * {COPY}"
        rows, column = (near, far) if operand.trans == step_first else pairs
        holes[f"ldmatrix_{side}"] = "tgc_ldmatrix_x4" + "_trans" * operand.trans
        if operand.trans and itemsize == 4:  # ldmatrix transposes 16-bit elements alone
            along_k, across = 4 * stride, 8 * itemsize
            steps = f"{along_k}, {across}" if step_first else f"{across}, {along_k}"
            holes[f"ldmatrix_{side}"] = f"tgc_load_x4<{steps}>"
            holes[f"matrix_{side}"] = f"lane % 4 * {stride} + ({warp} + lane / 4) * {itemsize}"
            holes[f"next_{side}"], holes[f"step_{side}"] = 16 * itemsize, tile.step * stride
        elif operand.trans:
            holes[f"matrix_{side}"] = f"({rows}) * {stride} + {column} + {warp} * {itemsize}"
            holes[f"next_{side}"], holes[f"step_{side}"] = 16 * itemsize, tile.step * stride
        else:
            holes[f"matrix_{side}"] = f"({warp} + {rows}) * {stride} + {column}"
            holes[f"next_{side}"], holes[f"step_{side}"] = 16 * stride, tile.step * itemsize
    return holes


# Operands -----------------------------------------------------------------------------------------


def operand_of(
    source: Source, problem: MatrixContraction, reader: Reader, outer: Scope
) -> MatrixOperand:
    """Copies of 16 bytes where memory has the operand as it is multiplied, or loads."""
    tile = problem.tile
    copied = _copied(source, problem, reader, outer)
    if copied is not None:
        return copied
    along = "k" if isinstance(tile, Tf32Tile) else ""
    fetch = operand_fetch(source, problem.cut, 0, reader, outer, problem.dtype, False, along)
    threads = fetch.threads
    step, row = threads.offsets
    put = fill(
        MMA,
        "put",
        **_slots(tile, threads),
        row=row,
        column=tile.column(threads.contiguous != "k", times(f"({step})", threads.width), "row"),
        width=threads.width,
        storage=problem.dtype.c,
    )
    return MatrixOperand(threads, fetch.before, fetch.fetch, put.splitlines())


def _slots(tile: MatrixTile, threads: ThreadMap) -> dict[str, object]:
    """Of a thread's elements in a slot."""
    trans, extent = threads.contiguous != "k", threads.source.tile
    return {
        "side": threads.source.name,
        "loads": threads.loads,
        "rows": threads.rows,
        "stride": tile.stride(trans, extent),
        "bytes": tile.slot(trans, extent),
        "skip": threads.skip(),
    }


class _Runs(NamedTuple):
    """Runs of 16 bytes of an operand that are runs of one value in memory.

    Attributes:
        node: the value.
        first: the position of a thread's first element.
        guard: where the run is not of zeros.
    """

    node: Node
    first: Index
    guard: Guard


def _runs(
    problem: MatrixContraction, threads: ThreadMap, reader: Reader, step: Index | None = None
) -> _Runs | None:
    """An operand's runs, if memory has it so.

    Args:
        step: a run's number along the contiguous axis, where that is no variable of its own.
    """
    tile, source = problem.tile, threads.source
    extent, strided_extent = threads.extents
    if extent % tile.vector:
        return None
    step = step or ix.variable(f"step_{source.name}", extent // tile.vector)
    v = ix.variable("v", tile.vector)
    strided, along = ix.variable(threads.strided, strided_extent), step * tile.vector + v
    other, k = (strided, along) if threads.contiguous == "k" else (along, strided)
    at = source.at(ix.variable("batch", source.batches), other, k)
    node, inner, guard = zero_outside(reader, source.node, at)
    if node not in reader.memory or node.dtype is not problem.dtype:
        return None
    split = ix.split_lane(ix.flatten(inner, node.shape), v)
    if split is None or split[0] != 1 or not ix.divisible(split[1], tile.vector):
        return None
    if any(leaf.name == "v" for condition in guard for leaf in condition.index.leaves):
        return None
    return _Runs(node, split[1], guard)


def _copied(
    source: Source, problem: MatrixContraction, reader: Reader, outer: Scope
) -> MatrixOperand | None:
    """Asynchronous copies of an operand's runs, if it has any."""
    tile = problem.tile
    contiguous, _ = contiguous_axis(source, reader.memory)
    if contiguous != "k" and isinstance(tile, Tf32Tile):
        return None  # wgmma transposes 16-bit operands alone
    threads = ThreadMap(source, problem.cut, contiguous, tile.vector, k_major=False)
    runs = _runs(problem, threads, reader)
    if runs is None:
        return None
    by_row = _copied_by_row(problem, threads, runs, reader, outer)
    if by_row is not None:
        return by_row
    (extent, strided_extent), (thread, row) = threads.extents, threads.offsets
    along_k, step = contiguous == "k", f"step_{source.name}"
    first = f"tile_{source.other} * {source.tile}"
    reader.scopes = [outer, Scope(), Scope(threads.strided, step), Scope("v")]
    bounds = [
        f"{threads.strided} < {strided_extent if along_k else 'k_end'}",
        f"{step} * {tile.vector} < {'k_end' if along_k else extent}",
        *([reader.guard_text(runs.guard)] if runs.guard else []),
    ]
    start = f"({'k_first' if along_k else first}) / {tile.vector}"
    declare = [f"const int {step} = {start} + {thread};"]
    text = fill(
        MMA,
        "copy",
        **_slots(tile, threads),
        thread=declare if along_k else [],
        row=row,
        strided=threads.strided,
        strided_first=first if along_k else "k_first",
        in_bounds=" && ".join(bounds),
        column=tile.column(not along_k, times(f"({thread})", tile.vector), "row"),
        pointer=reader.words.read(runs.node),
        index=reader.index_text(runs.first),
    )
    return MatrixOperand(threads, [] if along_k else declare, text.splitlines(), [])


def _copied_by_row(
    problem: MatrixContraction, threads: ThreadMap, runs: _Runs, reader: Reader, outer: Scope
) -> MatrixOperand | None:
    """Implicit-GEMM copies, if this operand's rows begin at computed positions or have padding."""
    source, tile = threads.source, problem.tile
    row = ix.variable(threads.strided, threads.extents[1])
    along_k, step = threads.contiguous == "k", f"step_{source.name}"
    rows = None if reader.wide else implicit_gemm_rows(runs.first, runs.guard, row)
    if rows is None or not (rows.computed or runs.guard):
        return None
    together = threads.loads > 1 and not threads.skip() and threads.loads <= threads.length <= 32
    if not along_k and not together:
        return None
    tiled = _rows_by_tile(problem, threads, reader, row) if along_k else None
    rows = tiled or rows
    reader.scopes = [outer, Scope(), Scope(threads.strided, step, "k_tile"), Scope("v")]
    thread, first_row = threads.offsets
    declare = _taps(problem, threads, runs.node, reader, rows, tiled is not None)
    holes = {
        **_slots(tile, threads),
        "row": first_row,
        "column": tile.column(not along_k, times(f"({thread})", tile.vector), "row"),
        "strided": threads.strided,
        "strided_first": f"tile_{source.other} * {source.tile}",
        "extent": threads.extents[1],
        "length": threads.length,
        "begin": reader.index_text(rows.begin),
        "outside": "0u" if tiled else f"1u << {OUTSIDE}",
        "mark": rows.mark_out_of_bounds,
        "thread": declare,
    }
    if along_k:
        before = fill(MMA, "rows", **holes).splitlines()
        return MatrixOperand(threads, before, fill(MMA, "copy_rows", **holes).splitlines(), [])
    shared = fill(MMA, "copy_shared_rows", **holes, **_row_begins(threads, rows.computed, holes))
    return MatrixOperand(threads, declare, shared.splitlines(), [])


def _taps(
    problem: MatrixContraction,
    threads: ThreadMap,
    node: Node,
    reader: Reader,
    rows: Rows,
    tiled: bool,
) -> list[str]:
    """Statements: what a thread's copies add to the beginnings of rows, and the bits of their taps.

    Args:
        tiled: whether they are in terms of a tile of k, of which none is cut off.
    """
    source, tile, along_k = threads.source, problem.tile, threads.contiguous == "k"
    side, step, (thread, _) = source.name, f"step_{source.name}", threads.offsets
    first = "k_first" if along_k else f"tile_{source.other} * {source.tile}"
    start = "" if tiled else f"({first}) / {tile.vector} + "
    end = "k_end" if along_k else threads.extents[0]
    beyond = "" if tiled else f" : 1u << {OUTSIDE}"
    inside = "" if tiled else f"{step} * {tile.vector} < {end} ? "
    return [
        *([f"const int k_tile = k_first / {tile.k};"] if tiled else []),
        f"const int {step} = {start}{thread};",
        f"const {node.dtype.c}* const from_{side} = {reader.words.read(node)} + "
        f"({reader.index_text(rows.rest)});",
        f"const unsigned taps_{side} = {inside}{rows.tap_bits}{beyond};",
    ]


def _rows_by_tile(
    problem: MatrixContraction, threads: ThreadMap, reader: Reader, row: Index
) -> Rows | None:
    """The rows by a tile's number and a run's in it: in most tiles all threads are at one tap."""
    tile, length = problem.tile, threads.length
    if problem.k % tile.k:
        return None
    number = ix.variable("k_tile", problem.k // tile.k) * length
    step = ix.variable(f"step_{threads.source.name}", length)
    runs = _runs(problem, threads, reader, number + step)
    return runs and implicit_gemm_rows(runs.first, runs.guard, row)


def _row_begins(threads: ThreadMap, computed: bool, holes: dict[str, Any]) -> dict[str, Any]:
    """Statements that give a copy the beginning of its row: from another thread if it is dear."""
    begin, strided = holes["begin"], threads.strided
    if computed:
        from_ = [f"const int begin = __shfl_sync(0xffffffffu, own, i, {threads.length});"]
        return {"declare": ["int own;"], "computed": [f"own = {begin};"], "from": from_}
    from_ = [f"const int {strided} = k_first + row;", f"const int begin = {begin};"]
    return {"declare": [], "computed": [], "from": from_}
