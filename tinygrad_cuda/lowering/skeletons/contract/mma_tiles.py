"""Tiles of products on matrix units: a block's outputs, its ring in shared memory, its time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import (
    Product,
    ProductCut,
    output_blocks,
    split_cuts,
    split_k,
)
from tinygrad_cuda.lowering.target import Target

COPY = 16  # bytes of an asynchronous copy, and of the padding of a row in shared memory
WARPS = 8  # of a block
STAGED = 64  # columns that a warp stages in shared memory at once
SWIZZLE = 128  # bytes of a row that wgmma reads
SUMS = 64  # of a thread, that leave registers for a second block
SLICE_K = 128  # values of k in a split-K slice at least
WAVES = 4  # of blocks that split-K makes at most

# Fitted to 460 measurements on an H200 (lab/matrix_units.py), in clocks as in `tile_heuristics`.
STEP = {"mma": 650, "wgmma": 300}  # clocks of a step of the loop over k at least
OUTPUT = 0.195  # clocks of an output's epilogue
# Fitted to 180 measurements of tiles whose operands TMA brings.
BROUGHT = 50  # bytes from the L2 cache to a multiprocessor in a clock at most
TMA_START = 1500  # clocks before the first product of a block
TMA_OUTPUT = 0.135  # clocks of an output's epilogue by both warpgroups
JOIN = 6400  # clocks of a second launch
JOIN_TRAFFIC = 0.8  # share of memory's bytes a clock at which slices are written and read again

# Fitted to a few products each: weights' gradients of k 8192 and 16384, and 64 x 4096 x 4096.
SHARE_SPEED = 0.87  # of a block with a share: helpers read other values of k
SHARED_BYTES = 32  # of sums that a multiprocessor leaves for another one, or adds, in a clock
SHARE_WAIT = 1900  # clocks until another block's sums begin to come
CLUSTER_JOIN = 2500  # clocks in which a cluster adds its sums
CLUSTER_SLICES = (2,)  # pairs of multiprocessors: more seldom fit on all of them
SHARE_STEPS = 8  # of a share at least


@dataclass(frozen=True)
class MatrixTile:
    """What a block computes: m x n outputs, k products at a time.

    `stages` slots of shared memory hold tiles of both operands. `speed` is the share of the matrix
    units' multiply-adds that fits measurements best.
    """

    m: int
    n: int
    k: int
    down: int  # warps, or warpgroups, that share the rows
    speed: float
    stages: int = 4

    itemsize = 2  # bytes of an element
    unit = ""  # whose instructions it is cut for
    form = ""  # of its products, where they are several
    units = WARPS  # warps, or warpgroups, of a block
    instruction_m = 16  # rows of one instruction

    @property
    def streamed(self) -> bool:
        """Both operands go through shared memory."""
        return False

    @property
    def step(self) -> int:
        """Values of k that one instruction multiplies."""
        return 2 * COPY // self.itemsize

    @property
    def vector(self) -> int:
        """Elements of an asynchronous copy."""
        return COPY // self.itemsize

    @property
    def across(self) -> int:
        """Warps, or warpgroups, that share the columns."""
        return self.units // self.down

    @property
    def unit_m(self) -> int:
        """Rows of a warp, or of a warpgroup."""
        return self.m // self.down

    @property
    def unit_n(self) -> int:
        """Columns of a warp, or of a warpgroup."""
        return self.n // self.across

    @property
    def columns(self) -> int:
        """Columns of outputs that a warp stages in shared memory at once."""
        return min(STAGED, self.unit_n)

    @property
    def staging(self) -> int:
        """Bytes of the staged outputs of all warps."""
        return WARPS * 16 * self.columns * 4

    def stride(self, trans: bool, extent: int) -> int:
        """Bytes from row to row of an operand's slot; `trans`: rows along `extent`, not along k."""
        raise NotImplementedError

    def slot(self, trans: bool, extent: int) -> int:
        """Bytes of an operand's slot."""
        raise NotImplementedError

    def column(self, trans: bool, element: str, row: str) -> str:
        """C text of an element's bytes behind the beginning of its row."""
        raise NotImplementedError

    @property
    def slots(self) -> int:
        """Bytes of a slot of each operand, whichever way they lie."""
        return sum(max(self.slot(t, e) for t in (False, True)) for e in (self.m, self.n))

    @property
    def ring(self) -> int:
        """Bytes of all slots."""
        return self.stages * self.slots

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        raise NotImplementedError

    def resident(self, target: Target) -> int:
        """Blocks that a multiprocessor holds at once."""
        sums = self.m * self.n // (32 * WARPS)
        return target.resident(self.shared, 2 if sums <= SUMS else 1)


class MmaTile(MatrixTile):
    """One of mma.sync: rows are padded, so that eight of them begin in different banks."""

    unit = "mma"

    @property
    def shared(self) -> int:
        return max(self.ring, self.staging)

    def stride(self, trans: bool, extent: int) -> int:
        return (extent if trans else self.k) * self.itemsize + COPY

    def slot(self, trans: bool, extent: int) -> int:
        return (self.k if trans else extent) * self.stride(trans, extent)

    def column(self, trans: bool, element: str, row: str) -> str:
        return f"({element}) * {self.itemsize}"


class WgmmaTile(MatrixTile):
    """One of wgmma: rows of 128 bytes in blocks, with the 128-byte swizzle."""

    unit = "wgmma"
    units = WARPS // 4
    instruction_m = 64

    @property
    def shared(self) -> int:
        return self.ring + self.staging  # the next tiles come during the epilogue

    def stride(self, trans: bool, extent: int) -> int:
        return SWIZZLE

    def slot(self, trans: bool, extent: int) -> int:
        return extent * self.k * self.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of 64 rows of A or columns of B."""
        return 64 * SWIZZLE

    @property
    def box(self) -> int:
        """Rows or columns of a box whose lines lie across k."""
        return SWIZZLE // self.itemsize

    @property
    def box_bytes(self) -> int:
        """Bytes of such a box."""
        return self.k * SWIZZLE

    def column(self, trans: bool, element: str, row: str) -> str:
        chunk = f"((({element}) / {self.vector} % 8) ^ ({row}) % 8) * {COPY}"
        within = f"({element}) % {self.vector} * {self.itemsize}"
        block = f"({element}) / 64 * {self.block_bytes} + " if trans else ""
        return f"{block}{chunk} + {within}"


class Tf32Tile(WgmmaTile):
    """One of float32 operands, of which wgmma reads 10 mantissa bits; both are K-major."""

    itemsize = 4


@dataclass(frozen=True)
class TmaTile(WgmmaTile):
    """One of wgmma whose operands come by TMA, from a warpgroup that only copies.

    `ping_pong`: two warpgroups have tiles of their own in turn; else they share the tile.
    """

    ping_pong: bool = False
    threads = 3 * 128

    @property
    def across(self) -> int:
        return 1 if self.ping_pong else 2 // self.down

    @property
    def barriers(self) -> int:
        """Bytes of shared memory before the mbarriers of its slots, two each."""
        return super().shared

    @property
    def shared(self) -> int:
        return self.barriers + 2 * 8 * self.stages

    def resident(self, target: Target) -> int:
        return 1


@dataclass(frozen=True)
class TmaTf32Tile(TmaTile):
    """One of float32 operands, as `Tf32Tile`."""

    itemsize = 4


@dataclass(frozen=True)
class MnMajorTile(TmaTf32Tile):
    """One whose operands may lie across k: A goes through registers, a warpgroup transposes B."""

    form = " tf32 MN-major"

    @property
    def columns(self) -> int:
        return gcd(STAGED, self.unit_n)

    @property
    def shared(self) -> int:
        return self.barriers + 3 * 8 * self.stages


@dataclass(frozen=True)
class ClusterTile(TmaTile):
    """One whose slices are a cluster's."""


MMA_TILES = (
    MmaTile(128, 256, 32, 2, 0.30),
    MmaTile(256, 128, 32, 4, 0.30),
    MmaTile(128, 128, 32, 2, 0.31),
    MmaTile(128, 64, 32, 4, 0.23),
    MmaTile(64, 128, 32, 2, 0.24),
    MmaTile(64, 64, 32, 2, 0.175),
    MmaTile(64, 32, 64, 4, 0.133),
    MmaTile(32, 64, 64, 2, 0.133),
    MmaTile(32, 128, 32, 2, 0.152),
    MmaTile(128, 32, 32, 4, 0.143),
    MmaTile(16, 128, 64, 1, 0.088),
    MmaTile(128, 16, 64, 8, 0.088),
    MmaTile(16, 256, 32, 1, 0.09),
)
# Synchronous copies, below sm_80, need double buffering and no longer ring.
SYNCHRONOUS_TILES = tuple(replace(tile, stages=2) for tile in MMA_TILES)

WGMMA_TILES = (
    WgmmaTile(128, 256, 64, 2, 0.755),
    WgmmaTile(256, 128, 64, 2, 0.682),
    WgmmaTile(128, 128, 64, 2, 0.485),
    WgmmaTile(64, 256, 64, 1, 0.471),
    WgmmaTile(128, 64, 64, 2, 0.276),
    WgmmaTile(64, 128, 64, 1, 0.276),
)
# Numbers of tf32 take twice the bytes and half the speed.
TF32_TILES = (
    Tf32Tile(128, 256, 32, 2, 0.375),
    Tf32Tile(256, 128, 32, 2, 0.34),
    Tf32Tile(128, 128, 32, 2, 0.24),
    Tf32Tile(64, 256, 32, 1, 0.235),
    Tf32Tile(128, 64, 32, 2, 0.138),
    Tf32Tile(64, 128, 32, 1, 0.138),
)
TMA_TILES = (
    TmaTile(128, 256, 64, 2, 0.84),
    TmaTile(256, 128, 64, 2, 0.826),
    TmaTile(128, 128, 64, 1, 0.735, 6, ping_pong=True),
    TmaTile(64, 256, 64, 1, 0.80, ping_pong=True),
    TmaTile(256, 64, 64, 1, 0.74, ping_pong=True),
    TmaTile(64, 128, 64, 1, 0.6, 6, ping_pong=True),
    TmaTile(128, 64, 64, 1, 0.6, 6, ping_pong=True),
    TmaTile(64, 64, 64, 1, 0.365, 8, ping_pong=True),
)
# Tiles whose sums a cluster of blocks stages at once: memory's bandwidth decides their time. Of the
# ping-pong tile a block has one, which one warpgroup multiplies: 64 x 4096 x 4096 in 17.3 us.
CLUSTER_TILES = (ClusterTile(64, 64, 64, 1, 0.365, 8, ping_pong=True),)
JOINING_TILES = TMA_TILES + CLUSTER_TILES
TMA_PING_PONG = tuple(tile for tile in TMA_TILES if tile.ping_pong)
TMA_TF32_TILES = (
    TmaTf32Tile(128, 256, 32, 2, 0.42),
    TmaTf32Tile(256, 128, 32, 2, 0.413),
    TmaTf32Tile(128, 128, 32, 1, 0.367, 6, ping_pong=True),
    TmaTf32Tile(64, 256, 32, 1, 0.40, ping_pong=True),
    TmaTf32Tile(256, 64, 32, 1, 0.37, ping_pong=True),
    TmaTf32Tile(64, 128, 32, 1, 0.3, 6, ping_pong=True),
    TmaTf32Tile(128, 64, 32, 1, 0.3, 6, ping_pong=True),
)
# Predicted, not measured: 0.86 of what the traffic of shared memory allows (contract_tma.cuh).
MN_MAJOR_TILES = (
    MnMajorTile(256, 128, 32, 2, 0.315),
    MnMajorTile(128, 192, 32, 2, 0.28),
    MnMajorTile(128, 128, 32, 2, 0.25, 6),
    MnMajorTile(256, 64, 32, 2, 0.235),
    MnMajorTile(64, 256, 32, 1, 0.185),
    MnMajorTile(64, 192, 32, 1, 0.175, 6),
    MnMajorTile(64, 128, 32, 1, 0.155, 8),
)
Tiles = tuple[MatrixTile, ...]


@lru_cache(maxsize=1 << 12)
def quickest_cut(product: Product, target: Target, tiles: Tiles) -> ProductCut[Any]:
    """The tile and how blocks divide k that take the least time.

    Args:
        product: its sizes.
        target: the machine.
        tiles: to choose from; with those of `CLUSTER_TILES` among them blocks may join their sums.
    """
    return min(cuts_of(product, target, tiles), key=lambda cut: clocks(cut, product, target))


def cuts_of(product: Product, target: Target, tiles: Tiles) -> list[ProductCut[Any]]:
    """Those that `quickest_cut` chooses from."""
    tiles = tuple(tile for tile in tiles if tile.shared <= target.block_shared)
    whole = [tile for tile in tiles if not isinstance(tile, ClusterTile)]
    made = [cut for tile in whole for cut in split_cuts(tile, product, target, WAVES, SLICE_K)]
    if len(whole) < len(tiles):
        made += [cut for tile in whole for cut in _shares(tile, product, target)]
        made += _clusters(product, target)
    return made


def _shares(tile: MatrixTile, product: Product, target: Target) -> list[ProductCut[Any]]:
    """Plans of blocks with equal shares of all steps, where whole tiles leave many without work."""
    most = min(target.multiprocessors, target.waiting_blocks)
    tiles, steps = output_blocks(tile, product), -(-product.k // tile.k)
    if not isinstance(tile, TmaTile) or tile.ping_pong:
        return []
    if not most // 2 < tiles < most or tiles * steps < SHARE_STEPS * most:
        return []  # with more blocks for each tile, a second launch adds their sums sooner
    return [ProductCut(tile, product.k, 1, most)]


def _clusters(product: Product, target: Target) -> list[ProductCut[Any]]:
    """Cuts into clusters that all run at one time."""
    made: list[ProductCut[Any]] = []
    for tile in CLUSTER_TILES:
        cuts = (split_k(tile, product.k, count) for count in CLUSTER_SLICES)
        made += [
            replace(cut, cluster=True)
            for cut in cuts
            if cut.slices in CLUSTER_SLICES
            and output_blocks(tile, product) * cut.slices <= target.multiprocessors
        ]
    return made


def _tma_clocks(tile: TmaTile, each: int, steps: int, work: float) -> float:
    """The time of a block's tiles of outputs: some are stored while others are multiplied."""
    multiplied = each * steps * max(work, tile.slots / BROUGHT)
    outputs = tile.m * tile.n * TMA_OUTPUT
    if tile.ping_pong:
        return max(multiplied, each * outputs) + 2 * outputs
    return multiplied + each * outputs


def _share_clocks(cut: ProductCut[Any], product: Product, work: float) -> float:
    """The time of a block with a share: its steps, sums for another block, and those of others."""
    tile: TmaTile = cut.tile
    tiles, steps = output_blocks(tile, product), -(-product.k // tile.k)
    moved = tile.m * tile.n * 4 / SHARED_BYTES
    others = -(-cut.shares // tiles)
    multiplied = tiles * steps / cut.shares * max(work, tile.slots / BROUGHT) / SHARE_SPEED
    return multiplied + moved + others * moved + SHARE_WAIT + tile.m * tile.n * TMA_OUTPUT


def _memory_clocks(product: Product, tile: MatrixTile, target: Target) -> float:
    """The time in which memory gives the operands and takes the outputs, each once."""
    rows, columns = product.m * product.k, product.k * product.n
    if product.rows_repeat:
        rows //= product.repeats
    else:
        columns //= product.repeats
    values = rows + columns + product.m * product.n
    return product.batches * values * tile.itemsize / target.traffic


def clocks(cut: ProductCut[Any], product: Product, target: Target) -> float:
    """An estimate of a product's time, in clocks of a multiprocessor."""
    tile: MatrixTile = cut.tile
    blocks = output_blocks(tile, product) * cut.slices
    steps = cut.chunk // tile.k
    each, resident = -(-blocks // target.multiprocessors), tile.resident(target)
    work = tile.m * tile.n * tile.k / (target.matrix_lanes * tile.speed)
    outputs = tile.m * tile.n * OUTPUT
    if isinstance(tile, TmaTile):
        time = _share_clocks(cut, product, work) if cut.shares else 0
        time = time or _tma_clocks(tile, each, steps, work)
        time = max(time, _memory_clocks(product, tile, target)) + TMA_START
    else:
        alone = steps * max(work, STEP[tile.unit]) + outputs
        rounds, rest = divmod(each, resident)
        time = rounds * max(resident * (steps * work + outputs), alone)
        time += max(rest * (steps * work + outputs), alone) if rest else 0
        time = max(time, _memory_clocks(product, tile, target))
    if cut.cluster:
        time += CLUSTER_JOIN
    elif cut.slices > 1:
        results = product.batches * product.m * product.n
        time += JOIN + cut.slices * results * 4 / (JOIN_TRAFFIC * target.traffic)
    return time
