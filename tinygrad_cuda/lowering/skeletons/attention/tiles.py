"""Which attention the kernels make, and the tiles in which they walk over queries and keys."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from tinygrad_cuda.core.config import ROUNDED, SPLIT, settings
from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops.attention import WIDTHS, attention, placements_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import THREADS
from tinygrad_cuda.lowering.target import Target

WARPS = THREADS // 32
# What multiplies: matrix units 16-bit factors, numbers of tf32 or sums of two; float32 units.
HALF, TF32, TF32X3, SIMT = "half", "tf32", "tf32x3", "simt"
GROUP = 16  # rows of an instruction's first operand
COPY = 16  # bytes of an asynchronous copy
SWIZZLED = 1024  # bytes of which a swizzled tile begins at a multiple
ITEMSIZE = 2  # bytes of an operand's element
DRAWING = 40  # registers of a thread that draws which weights are dropped


class Registers(NamedTuple):
    """An estimate of a thread's registers, and up to where no thread spills.

    Fitted to those that NVRTC 13.5 gives for sm_90, or for sm_80 and sm_100 where those need more.

    Attributes:
        result, score: of an element of a result or of a matrix of scores, over a row and a warp.
        free: besides those: fragments, addresses, largest scores.
        alone: the limit of a block that has a multiprocessor alone, by matrices of scores and
            results.
        two: that of two blocks.
    """

    result: float
    score: float
    free: int
    alone: dict[tuple[int, int], int]
    two: int


REGISTERS = {
    HALF: Registers(1, 1, 72, {(1, 1): 256, (2, 1): 264, (2, 2): 264}, 136),
    TF32: Registers(1, 1, 72, {(1, 1): 256, (2, 1): 264, (2, 2): 264}, 136),
    # Both terms of a factor wait in registers.
    TF32X3: Registers(0.75, 2, 76, {(1, 1): 169, (2, 1): 176, (2, 2): 206}, 136),
    SIMT: Registers(1, 2, 72, {(1, 1): 264, (2, 1): 264, (2, 2): 264}, 160),
}
# On other architectures.
REGISTERS_ELSEWHERE = {
    **REGISTERS,
    TF32X3: Registers(0.75, 2, 76, {(1, 1): 149, (2, 1): 176, (2, 2): 190}, 120),
}
# The same by wgmma: ptxas serializes the products of a kernel that needs more.
FREE_WGMMA, ALONE_WGMMA, TWO_WGMMA = 32, 256, 112
# By TMA: registers of a thread that copies, and of one that multiplies, by the warpgroups that do.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = {2: 24, 3: 32}, {2: 240, 3: 160}
ALONE_TMA = {2: 256, 3: 160}  # estimates up to which those who multiply do not spill
# Keys from which copies by TMA take less time: 31 us for 27 with 256, 48 for 56 with 1024.
LONG = 512
# Columns of both results of the keys' gradients up to which TMA takes less time than wgmma alone:
# 149 us for 161 with heads of 64 (128 columns), 2072 for 1913 with heads of 128 (256).
PAIRED = 128


@dataclass(frozen=True)
class AttentionTile:
    """How a block divides the scores.

    Attributes:
        groups: of 16 rows that a warp holds.
        columns: that a slot of the ring has.
        stages: slots of the ring.
        wgmma: whether a warpgroup multiplies tiles in shared memory, with the 128-byte swizzle.
        consumers: warpgroups that multiply what another one copies by TMA; 0: each copies its own.
        unit: what multiplies: `HALF`, `TF32`, `TF32X3` or `SIMT`.
    """

    groups: int
    columns: int
    stages: int
    wgmma: bool = False
    consumers: int = 0
    unit: str = HALF

    @property
    def itemsize(self) -> int:
        """Bytes of an operand's element."""
        return ITEMSIZE if self.unit == HALF else 4

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return self.groups * GROUP

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return (4 * self.consumers or WARPS) * self.warp_rows

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.consumers + 1) if self.consumers else THREADS

    @property
    def barriers(self) -> int:
        """Bytes of the barriers of the rows and of each slot."""
        return 8 * (2 + 4 * self.stages) if self.consumers else 0

    def stride(self, width: int) -> int:
        """Bytes of shared memory of a row: eight padded ones begin in different banks."""
        return width * self.itemsize + (0 if self.wgmma else COPY)


def registers_of(tile: AttentionTile, target: Target) -> Registers:
    """The limits of a tile's unit on a machine."""
    table = REGISTERS if target.architecture == (9, 0) else REGISTERS_ELSEWHERE
    return table[tile.unit]


@dataclass(frozen=True, eq=False)
class AttentionPart:
    """A kernel's sizes: the forward pass, or the gradients by queries, or by keys and values.

    Attributes:
        row_widths: widths of the operands of which a block holds its rows.
        ring: widths of those whose columns pass through the ring.
        results: widths of the results, which a warp sums in registers, by their numbers.
        rows, columns: of the scores, as the kernel walks over them.
        scores: matrices of scores at one time.
        sums: bytes of a column's logarithm and delta, which pass through the ring with it.
        unit: as of a tile.
        extra: registers of a thread that draw random numbers, where weights are dropped.
    """

    row_widths: tuple[int, ...]
    ring: tuple[int, ...]
    results: dict[int, int]
    rows: int
    columns: int
    batches: int
    scores: int
    sums: int = 0
    unit: str = HALF
    extra: int = 0

    def shared(self, tile: AttentionTile) -> int:
        """Bytes of shared memory of a block."""
        nbytes = sum(tile.rows * tile.stride(width) for width in self.row_widths)
        if tile.consumers and self.scores == 1:  # results do not pass through the rows' memory
            nbytes = tile.rows * tile.stride(self.ring[0])
        return nbytes + tile.stages * self.slot(tile) + tile.barriers

    def slot(self, tile: AttentionTile) -> int:
        """Bytes of a slot of the ring."""
        nbytes = tile.columns * (sum(map(tile.stride, self.ring)) + self.sums)
        return -(-nbytes // SWIZZLED) * SWIZZLED if tile.wgmma else nbytes

    def registers(self, tile: AttentionTile) -> int:
        """An estimate of a thread's."""
        results, scores = sum(self.results.values()), self.scores * tile.columns
        if tile.wgmma:  # factors wait in registers, too
            sums = results + scores
            return sums // 2 + len(self.results) * tile.columns // 4 + FREE_WGMMA + self.extra
        each = REGISTERS[tile.unit]
        sums = int(each.result * results) + int(each.score * scores)
        return tile.groups * sums // 2 + each.free + self.extra

    def most_registers(self, tile: AttentionTile, target: Target) -> int:
        """The estimate up to which no thread spills."""
        if tile.wgmma:
            return ALONE_WGMMA
        return registers_of(tile, target).alone[self.scores, len(self.results)]

    def blocks(self, tile: AttentionTile) -> int:
        """Blocks of the grid."""
        return self.batches * -(-self.rows // tile.rows)

    def takes_tma(self, tile: AttentionTile, target: Target) -> bool:
        """Whether a kernel by TMA has the memory and the registers for a tile."""
        if not self.has_warpgroups:
            return False
        enough = self.registers(tile) <= ALONE_TMA[tile.consumers]
        return target.architecture == (9, 0) and enough and self.shared(tile) <= target.block_shared

    def resident(self, tile: AttentionTile, target: Target) -> int:
        """Blocks that a multiprocessor holds at one time."""
        limit = TWO_WGMMA if tile.wgmma else registers_of(tile, target).two
        two = self.registers(tile) <= limit
        if tile.unit == TF32X3 and any(width % 32 for width in self.ring):
            two = False  # such heads spill
        return target.resident(self.shared(tile), 2 if two else 1)

    @property
    def has_warpgroups(self) -> bool:
        """Whether there is a text by wgmma."""
        whole = all(width % 64 == 0 for width in (*self.row_widths, *self.ring))
        return whole and self.unit == HALF and self.results.keys() in ({0}, {1, 2})

    def fits(self, tile: AttentionTile, target: Target) -> bool:
        """Whether a block has the memory and a thread the registers."""
        few = self.registers(tile) <= self.most_registers(tile, target)
        enough = few and self.shared(tile) <= target.block_shared
        return (enough and tile.unit == self.unit) and (
            not tile.wgmma or (target.architecture == (9, 0) and self.has_warpgroups)
        )


def stride(width: int) -> int:
    """Bytes from row to row of padded 16-bit operands."""
    return width * ITEMSIZE + COPY


def unit_of(node: Node) -> str | None:
    """What multiplies for a row's kernels; None where a composition does."""
    if node.dtype.is_half:
        return HALF
    if node.dtype is not float32:
        return None
    precision = settings.matmul_precision
    return TF32 if precision in ROUNDED else TF32X3 if precision in SPLIT else SIMT


def parts_of(
    node: Node, target: Target, stored: Set[int] = frozenset((0, 1, 2))
) -> dict[str, AttentionPart]:
    """The kernels that make a row's results.

    Args:
        node: the row.
        target: the machine.
        stored: numbers of the results that are wanted.
    """
    q, k, v = operands_of(node)
    d, e, batches = q.shape[-1], v.shape[-1], prod(q.shape[:-2])
    rows, columns = q.shape[-2], k.shape[-2]
    unit = unit_of(node) or HALF
    extra = DRAWING if node.attributes["dropout"] else 0

    def by_queries(row_widths: tuple[int, ...], width: int, scores: int) -> AttentionPart:
        sizes = rows, columns, batches, scores, 0
        return AttentionPart(row_widths, (d, e), {0: width}, *sizes, unit, extra)

    def by_keys(row_widths: tuple[int, ...], results: dict[int, int], scores: int) -> AttentionPart:
        sizes = columns, rows, batches, scores, 2 * 4
        return AttentionPart(row_widths, (d, e), results, *sizes, unit, extra)

    if node.op is attention:
        return {"forward": by_queries((max(d, e),), e, 1)}
    parts = {"queries": by_queries((d, e), d, 2), "keys": by_keys((d, e), {1: d, 2: e}, 2)}
    smallest = AttentionTile(1, 16, 2, unit=unit)
    keys = parts["keys"]
    if not stored >= {1, 2} or keys.registers(smallest) > keys.most_registers(smallest, target):
        # Both are too wide for the registers of one kernel, or one is not wanted.
        parts |= {"keys": by_keys((d, e), {1: d}, 2), "values": by_keys((max(d, e),), {2: e}, 1)}
    return {
        name: part for name, part in parts.items() if not part.results.keys().isdisjoint(stored)
    }


def stored_results(kernel: Kernel) -> dict[int, Node]:
    """By the numbers of its results, the stored values of which they are parts."""
    (node,) = kernel.anchors
    stores = {store.attributes["index"]: store for store in kernel.stores}
    outputs = enumerate(placement.output for placement in placements_of(node))
    return {result: stores[number] for result, number in outputs if number in stores}


def operands_of(node: Node) -> tuple[Node, Node, Node]:
    """Queries, keys and values of a row."""
    q, k, v = node.sources[:3] if node.op is attention else node.sources[1:4]
    return q, k, v


SIZES = tuple(product((2, 1), (64, 32, 16), (3, 2)))
TILES = tuple(AttentionTile(*sizes) for sizes in SIZES)
FLOAT_TILES = tuple(
    AttentionTile(*sizes, unit=unit) for unit in (TF32, TF32X3, SIMT) for sizes in SIZES
)
WARPGROUP_TILES = tuple(
    AttentionTile(1, *sizes, True) for sizes in ((128, 3), (64, 4), (64, 3), (32, 4))
)


# The first that fits is taken; the others took more time on an H200, by `lab.attention`.
TMA_TILES = tuple(
    AttentionTile(1, columns, stages, True, consumers)
    for columns, stages, consumers in (
        (128, 2, 2), (64, 2, 2), (128, 3, 2), (128, 2, 3), (64, 4, 2),
    )
)  # fmt: skip

TMA_GRADIENT_TILES = tuple(
    AttentionTile(1, columns, stages, True, consumers)
    for columns, stages, consumers in (
        (64, 4, 2), (64, 3, 2), (64, 2, 2), (32, 4, 2),
    )
)  # fmt: skip


def tma_gradient_tile_of(part: AttentionPart, target: Target) -> AttentionTile | None:
    """The tile of a gradient's kernel by TMA; None where it has none or takes more time."""
    if part.columns < LONG or (len(part.results) > 1 and sum(part.results.values()) > PAIRED):
        return None
    return next((tile for tile in TMA_GRADIENT_TILES if part.takes_tma(tile, target)), None)


def tma_tile_of(part: AttentionPart, target: Target) -> AttentionTile | None:
    """The tile of the forward pass by TMA; None where it has none, or where keys are few."""
    if part.columns < LONG:
        return None
    return next((tile for tile in TMA_TILES if part.takes_tma(tile, target)), None)


def tile_of(part: AttentionPart, target: Target) -> AttentionTile | None:
    """The tile of least time; None if none fits.

    Tiles of warpgroups come first. Blocks are to be as many as multiprocessors.
    """
    fitting = [tile for tile in WARPGROUP_TILES if part.fits(tile, target)]
    fitting = fitting or [tile for tile in (*TILES, *FLOAT_TILES) if part.fits(tile, target)]
    enough = [t for t in fitting if part.blocks(t) >= target.multiprocessors or t.groups == 1]
    order = _most_scores if part.unit == HALF else _measured
    return max(enough, key=lambda tile: order(part, tile, target), default=None)


def _most_scores(part: AttentionPart, tile: AttentionTile, target: Target) -> tuple[int, ...]:
    """Most scores on a multiprocessor at one time.

    Of equal ones that of two blocks, which wait at different times, and then that of more rows,
    which reads shared memory less.
    """
    resident = part.resident(tile, target)
    return resident * tile.groups * tile.columns, resident, tile.groups, tile.stages


def _measured(part: AttentionPart, tile: AttentionTile, target: Target) -> tuple[int, ...]:
    """As 8 x 12 heads, 1024 x 64, causal, had them on an H200 (lab/attention.py --float32).

    Float32 units read shared memory most: more rows come first. Matrix units wait for scores: more
    columns do, and then fewer rows, whose tiles end nearer to the causal border.
    """
    if part.unit == SIMT:
        return tile.groups, tile.columns, tile.stages
    return tile.columns, -tile.groups, tile.stages


def refusal(node: Node, target: Target) -> str:
    """Why no kernels make a row on this machine, and its composition does; empty if they do."""
    sources = operands_of(node)
    widths = {x.shape[-1] for x in sources}
    if unit_of(node) is None:
        return f"{node.dtype.name} has no kernels"
    if target.architecture < (8, 0):
        return f"{target.name} has no asynchronous copies, or no matrix units of its dtype"
    if not widths <= set(WIDTHS):
        return f"heads of {sorted(widths)} are no multiples of {WIDTHS.step} up to {max(WIDTHS)}"
    if 0 in (prod(x.shape) for x in sources):
        return "it has no elements"
    for name, part in parts_of(node, target).items():
        if tile_of(part, target) is None:
            return f"no tile of {name} fits in {target.block_shared} bytes of shared memory"
    return ""
