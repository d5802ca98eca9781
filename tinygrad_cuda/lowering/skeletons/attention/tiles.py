"""Which attention the kernels make, and the tiles in which they walk over queries and keys."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from itertools import product
from math import prod

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops.attention import WIDTHS, attention
from tinygrad_cuda.lowering.schedule.resources import THREADS
from tinygrad_cuda.lowering.target import Target

WARPS = THREADS // 32
GROUP = 16  # rows of an instruction's first operand
COPY = 16  # bytes of an asynchronous copy
SWIZZLED = 1024  # bytes of which a swizzled tile begins at a multiple
ITEMSIZE = 2  # bytes of an operand's element
# Fitted to NVRTC 13.5's registers for sm_90: with estimates up to here no thread spills.
FREE = 72  # registers of a thread besides sums: fragments, addresses, largest scores
ALONE = {1: 256, 2: 264}  # where a block has a multiprocessor alone, by matrices of scores
TWO = 136  # where two share it
# The same by wgmma: ptxas serializes the products of a kernel that needs more.
FREE_WGMMA, ALONE_WGMMA, TWO_WGMMA = 32, 256, 112


@dataclass(frozen=True)
class AttentionTile:
    """How a block divides the scores.

    Attributes:
        groups: of 16 rows that a warp holds.
        columns: that a slot of the ring has.
        stages: slots of the ring.
        wgmma: whether a warpgroup multiplies tiles in shared memory, with the 128-byte swizzle.
    """

    groups: int
    columns: int
    stages: int
    wgmma: bool = False

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return self.groups * GROUP

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return WARPS * self.warp_rows

    def stride(self, width: int) -> int:
        """Bytes of shared memory of a row."""
        return width * ITEMSIZE if self.wgmma else stride(width)


@dataclass(frozen=True, eq=False)
class AttentionPart:
    """A kernel's sizes: the forward pass, or the gradients by queries, or by keys and values.

    Attributes:
        held: widths of the operands of which a block holds its rows.
        ring: widths of those whose columns pass through the ring.
        results: widths of the results, which a warp sums in registers, by their numbers.
        rows, columns: of the scores, as the kernel walks over them.
        scores: matrices of scores at one time.
        sums: bytes of a column's logarithm and delta, which pass through the ring with it.
    """

    held: tuple[int, ...]
    ring: tuple[int, ...]
    results: dict[int, int]
    rows: int
    columns: int
    batches: int
    scores: int
    sums: int = 0

    def shared(self, tile: AttentionTile) -> int:
        """Bytes of shared memory of a block."""
        held = sum(tile.rows * tile.stride(width) for width in self.held)
        return held + tile.stages * self.slot(tile)

    def slot(self, tile: AttentionTile) -> int:
        """Bytes of a slot of the ring."""
        nbytes = tile.columns * (sum(map(tile.stride, self.ring)) + self.sums)
        return -(-nbytes // SWIZZLED) * SWIZZLED if tile.wgmma else nbytes

    def registers(self, tile: AttentionTile) -> int:
        """An estimate of a thread's."""
        sums = sum(self.results.values()) + self.scores * tile.columns
        if tile.wgmma:  # factors wait in registers, too
            return sums // 2 + len(self.results) * tile.columns // 4 + FREE_WGMMA
        return tile.groups * sums // 2 + FREE

    def blocks(self, tile: AttentionTile) -> int:
        """Blocks of the grid."""
        return self.batches * -(-self.rows // tile.rows)

    def resident(self, tile: AttentionTile, target: Target) -> int:
        """Blocks that a multiprocessor holds at one time."""
        most = 2 if self.registers(tile) <= (TWO_WGMMA if tile.wgmma else TWO) else 1
        return target.resident(self.shared(tile), most)

    @property
    def has_warpgroups(self) -> bool:
        """Whether there is a text by wgmma."""
        whole = all(width % 64 == 0 for width in (*self.held, *self.ring))
        return whole and self.results.keys() in ({0}, {1, 2})

    def fits(self, tile: AttentionTile, target: Target) -> bool:
        """Whether a block has the memory and a thread the registers."""
        limit = ALONE_WGMMA if tile.wgmma else ALONE[self.scores]
        enough = self.registers(tile) <= limit and self.shared(tile) <= target.block_shared
        return enough and (
            not tile.wgmma or (target.architecture == (9, 0) and self.has_warpgroups)
        )


def stride(width: int) -> int:
    """Bytes from row to row in shared memory: eight rows begin in different banks."""
    return width * ITEMSIZE + COPY


def parts_of(node: Node, stored: Set[int] = frozenset((0, 1, 2))) -> dict[str, AttentionPart]:
    """The kernels that make a row's results.

    Args:
        node: the row.
        stored: numbers of the results that are wanted.
    """
    q, k, v = operands_of(node)
    d, e, batches = q.shape[-1], v.shape[-1], prod(q.shape[:-2])
    queries, keys = q.shape[-2], k.shape[-2]
    if node.op is attention:
        return {"forward": AttentionPart((max(d, e),), (d, e), {0: e}, queries, keys, batches, 1)}

    def by_keys(held: tuple[int, ...], results: dict[int, int], scores: int) -> AttentionPart:
        return AttentionPart(held, (d, e), results, keys, queries, batches, scores, 2 * 4)

    found = {"queries": AttentionPart((d, e), (d, e), {0: d}, queries, keys, batches, 2)}
    found["keys"] = by_keys((d, e), {1: d, 2: e}, 2)
    if not stored >= {1, 2} or found["keys"].registers(SMALLEST) > ALONE[2]:
        # Both are too wide for the registers of one kernel, or one is not wanted.
        found |= {"keys": by_keys((d, e), {1: d}, 2), "values": by_keys((max(d, e),), {2: e}, 1)}
    return {
        name: part for name, part in found.items() if not part.results.keys().isdisjoint(stored)
    }


def operands_of(node: Node) -> tuple[Node, Node, Node]:
    """Queries, keys and values of a row."""
    q, k, v = node.sources[:3] if node.op is attention else node.sources[1:4]
    return q, k, v


SMALLEST = AttentionTile(1, 16, 2)
TILES = tuple(AttentionTile(*sizes) for sizes in product((2, 1), (64, 32, 16), (3, 2)))


WARPGROUP_TILES = tuple(
    AttentionTile(1, *sizes, True) for sizes in ((128, 3), (64, 4), (64, 3), (32, 4))
)


def tile_of(part: AttentionPart, target: Target) -> AttentionTile | None:
    """The tile with most scores on a multiprocessor at one time; None if none fits.

    Tiles of warpgroups come first. Of equal ones that of two blocks, which wait at different
    times, and then that of more rows, which reads shared memory less. Blocks are to be as many as
    multiprocessors.
    """
    fitting = [tile for tile in WARPGROUP_TILES if part.fits(tile, target)]
    fitting = fitting or [tile for tile in TILES if part.fits(tile, target)]
    enough = [t for t in fitting if part.blocks(t) >= target.multiprocessors or t.groups == 1]

    def order(tile: AttentionTile) -> tuple[int, ...]:
        resident = part.resident(tile, target)
        together = resident * tile.groups * tile.columns
        return together, resident, tile.groups, tile.stages

    return max(enough, key=order, default=None)


def takes(node: Node, target: Target) -> bool:
    """Whether kernels make a row on this machine; where not, its composition does."""
    sources = operands_of(node)
    widths = {x.shape[-1] for x in sources}
    usual = node.dtype.is_half and target.matrix_lanes > 0 and widths <= set(WIDTHS)
    if not usual or 0 in (prod(x.shape) for x in sources):
        return False
    return all(tile_of(part, target) is not None for part in parts_of(node).values())
