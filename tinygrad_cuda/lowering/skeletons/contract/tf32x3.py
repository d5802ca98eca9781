"""CONTRACT of float32 on matrix units: three products of tf32 parts, as exact as float32 sums."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Scope, is_wide
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, KernelParams, Stage, fill
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.contract.contract import with_sum
from tinygrad_cuda.lowering.skeletons.contract.loads import (
    Fetch,
    Reader,
    RunsOfRows,
    Source,
    ThreadMap,
    contiguous_axis,
    fetch_by,
    operand_fetch,
    sources_of,
    times,
)
from tinygrad_cuda.lowering.skeletons.contract.mma import (
    MMA,
    MatrixContraction,
    MatrixOperand,
    body_text,
    lanes_of,
    matrices,
    operand_of,
    results_text,
    sizes_of,
    stage_of,
)
from tinygrad_cuda.lowering.skeletons.contract.mma_tiles import (
    COPY,
    SWIZZLE,
    MatrixTile,
    MmaTile,
    WgmmaTile,
)
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import ProductCut
from tinygrad_cuda.lowering.target import Target

CUH = "contract_tf32x3.cuh"
TURNS = 2  # tiles of B's parts that a block holds: one is multiplied while the next is stored


FINE = 0.8  # the share of its speed that a tile has whose sums are half as long
SUMS = 16  # of a thread, that leave registers for a second block


class PaddedTile(MatrixTile):
    """One of float32, whose rows are padded so that a warp's 32 reads meet 32 banks.

    Rows along k are read by ldmatrix, eight of 16 bytes at once; others by four rows of 32 bytes.
    """

    itemsize = 4
    form = " tf32x3"

    def stride(self, trans: bool, extent: int) -> int:
        return extent * self.itemsize + 2 * COPY if trans else self.k * self.itemsize + COPY

    def slot(self, trans: bool, extent: int) -> int:
        return (self.k if trans else extent) * self.stride(trans, extent)

    def column(self, trans: bool, element: str, row: str) -> str:
        return times(f"({element})", self.itemsize)


class MmaSplitTile(PaddedTile, MmaTile):
    """One of mma.sync: both operands are split in registers."""

    def resident(self, target: Target) -> int:
        return target.resident(self.shared, 2 if self.m * self.n <= SUMS * THREADS else 1)


class WgmmaSplitTile(PaddedTile, WgmmaTile):
    """One of wgmma: A is split in registers, B as it is copied to shared memory."""

    summed = 32  # values of k of a sum in the unit's accumulator

    @property
    def part(self) -> int:
        """Bytes of one part of a tile of B: rows of 32 along k, with the 128-byte swizzle."""
        return self.n * SWIZZLE

    def swizzled(self, element: str, row: str) -> str:
        """C text of the bytes behind the beginning of a row of B's parts."""
        return WgmmaTile.column(self, False, element, row)

    @property
    def ring(self) -> int:
        slot = max(self.slot(trans, self.m) for trans in (False, True))
        return self.stages * slot + 2 * TURNS * self.part

    def resident(self, target: Target) -> int:
        return 1


class FineSplitTile(WgmmaSplitTile):
    """One whose sums leave the unit's accumulator twice as often."""

    summed = 16


# Fitted to 190 measurements on an H200 (lab/tf32x3.py); see `mma_tiles`.
MMA_SPLIT_TILES = (
    MmaSplitTile(128, 128, 16, 2, 0.06),
    MmaSplitTile(128, 64, 32, 4, 0.055, 3),
    MmaSplitTile(64, 128, 32, 2, 0.055, 3),
    MmaSplitTile(64, 64, 32, 2, 0.052),
    MmaSplitTile(32, 64, 32, 2, 0.043),
    MmaSplitTile(64, 32, 32, 4, 0.043),
)
WGMMA_SPLIT_TILES = (
    WgmmaSplitTile(128, 128, 32, 2, 0.118),
    WgmmaSplitTile(64, 256, 32, 1, 0.099),
    WgmmaSplitTile(128, 64, 32, 2, 0.085),
    WgmmaSplitTile(64, 128, 32, 1, 0.073),
)


# For sums of fewer k, whose errors are to be smaller.
FINE_SPLIT_TILES = tuple(
    FineSplitTile(tile.m, tile.n, tile.k, tile.down, tile.speed * FINE)
    for tile in WGMMA_SPLIT_TILES
)


def tf32x3_stages(kernel: Kernel, cut: ProductCut[Any]) -> list[Stage]:
    """One stage, or two where the sum over k is split among blocks."""
    problem = MatrixContraction(kernel, cut)
    return with_sum(problem, _product(problem))


def _product(problem: MatrixContraction) -> Stage:
    """The stage that multiplies; with split-K it leaves the slices in scratch memory."""
    kernel, tile, params = problem.kernel, problem.tile, KernelParams()
    reader = Reader(params, set(kernel.reads), is_wide(kernel), kernel.target)
    outer = Scope("batch")
    a_source, b_source = sources_of(problem.a, problem.b, tile.m, tile.n)
    a = operand_of(a_source, problem, reader, outer)
    if isinstance(tile, WgmmaSplitTile):
        fetch = _fetch_b(b_source, problem, reader, outer)
        results = _results(problem, (a_source, b_source), reader, outer)
        return stage_of(problem, params, _wgmma_text(problem, outer, a, fetch, results))
    b = operand_of(b_source, problem, reader, outer)
    results = _results(problem, (a_source, b_source), reader, outer)
    products = fill(CUH, "products", **sizes_of(problem))
    return stage_of(problem, params, body_text(problem, outer, (a, b), products, results))


def _results(
    problem: MatrixContraction, sources: tuple[Source, Source], reader: Reader, outer: Scope
) -> str:
    """The end of the kernel, in which sums that are not finite are made again."""
    inner = Scope("m", "n", "k")
    reader.scopes, reader.lane, reader.step = [outer, inner], None, ""
    batch, m, n, k = (
        ix.variable(name, getattr(problem, "batches" if name == "batch" else name))
        for name in ("batch", "m", "n", "k")
    )
    a, b = (
        reader.value(source.node, source.at(batch, other, k))
        for source, other in zip(sources, (m, n), strict=True)
    )
    exact = fill(CUH, "exact", load=inner.lines, a=a, b=b)
    check = fill(CUH, "check", lanes=lanes_of(problem)).splitlines()
    return exact + results_text(problem, reader, outer, check)


def _fetch_b(source: Source, problem: MatrixContraction, reader: Reader, outer: Scope) -> Fetch:
    """B's loads into registers: along k, or runs of k where its columns are neighbours."""
    cut, dtype = problem.cut, problem.dtype
    if contiguous_axis(source, reader.memory)[0] == "k":
        return operand_fetch(source, cut, 0, reader, outer, dtype, False, "k")
    return fetch_by(RunsOfRows(source, cut, source.other, 1, False), reader, outer, dtype)


def _wgmma_text(
    problem: MatrixContraction, outer: Scope, a: MatrixOperand, b: Fetch, results: str
) -> str:
    """The body of a kernel of wgmma."""
    tile, sizes = problem.tile, sizes_of(problem)
    assert isinstance(tile, WgmmaSplitTile)
    block = fill(MMA, "tile", **sizes, block="block")
    first, later = f"slot * {tile.k}", f"{(tile.stages - 1) * tile.k}"
    count = b.threads.loads * b.threads.width
    return fill(
        CUH,
        "body",
        **sizes,
        **matrices(tile, a),
        **_sums(tile),
        bytes_a=tile.slot(a.trans, tile.m),
        part_bytes=tile.part,
        row_bytes=SWIZZLE,
        fetches=fill(MMA, "fetches", **sizes, outer=outer.lines, tile=block),
        declare=[*a.declare(), f"float prefetch_b[{count}];"],
        setup=[*a.before, *b.before, _pipeline(problem, tile, a, b)],
        first_loads=[f"fetch(k_begin + {first});"] if a.put else [],
        next_loads=[f"fetch(k_first + {later});"] if a.put else [],
        results=results,
        tiles=problem.tiles,
        blocks=problem.blocks,
    )


def _pipeline(problem: MatrixContraction, tile: WgmmaSplitTile, a: MatrixOperand, b: Fetch) -> str:
    """How tiles come to shared memory: A by copies or through registers, B's parts."""
    return fill(
        CUH,
        "pipeline",
        **sizes_of(problem),
        **_stored_parts(tile, b.threads),
        loads=fill(CUH, "loads", fetch_a=a.fetch) if a.put else [],
        put_a=a.put or a.fetch,
        fetch_b=b.fetch,
        part_bytes=tile.part,
        row_bytes=SWIZZLE,
    )


def _sums(tile: WgmmaSplitTile) -> dict[str, object]:
    """The sums of a turn in the unit's accumulator; the last one runs beside loads and stores."""
    bounds = range(0, tile.k // tile.step + 1, tile.summed // tile.step)
    *first, last = (
        fill(CUH, "begin_products", warp_n=tile.unit_n, first=begin, last=end)
        for begin, end in pairwise(bounds)
    )
    add = fill(CUH, "add", warp_n=tile.unit_n)
    return {"first_sums": "".join(text + add for text in first), "begin_products": last, "add": add}


def _stored_parts(tile: WgmmaSplitTile, threads: ThreadMap) -> dict[str, object]:
    """How a thread stores what it has prefetched of B: `count` runs of `width` elements of k."""
    step, row = threads.offsets
    if threads.contiguous == "k":
        along, width = times(f"({step})", threads.width), threads.width
        row = f"i * {threads.rows} + {row}"
    else:
        width = min(4, threads.loads)
        along, row = f"{row} + i * {width}", step
    return {
        "count": threads.loads * threads.width // width,
        "width": width,
        "row": row,
        "column": tile.swizzled(along, "row"),
    }
