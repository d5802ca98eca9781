"""The tile of a matrix product's blocks and its split-K: the least time by a cost model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.lowering.codegen.skeleton import THREADS
from tinygrad_cuda.lowering.target import Target

PAD = 4  # elements between the rows of a tile in shared memory, against bank conflicts
SLICE_K = 32  # values of k in a split-K slice at least
WAVES = 8  # of blocks that split-K makes at most
FEW_ROWS = 8  # rows of A of which a thread may compute all
STREAMED = 4  # resident blocks of a multiprocessor, where threads wait for memory

# Fitted to 1500 measurements on an H200.
STEP = 390  # clocks of a step of the loop over k at least: memory latency and a barrier
SHOWN = 0.41  # the share of a step's arithmetic that comes on top of that
ALONE = 1.08  # a block's time alone, over its share of a full multiprocessor's
JOIN = 4150  # clocks of a second launch
JOIN_TRAFFIC = 0.4375  # share of memory's bytes a clock at which slices are written and read again


class BlockTile(Protocol):
    """Outputs of a block and products at a time; `streamed`: B stays out of shared memory."""

    @property
    def m(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def streamed(self) -> bool: ...


TileT = TypeVar("TileT", bound=BlockTile)


@dataclass(frozen=True)
class Tile:
    """What a block computes: m x n outputs, k products at a time.

    A thread computes a register tile of rows x cols; a warp has lanes_m x lanes_n threads.
    `speed` is the share of a multiprocessor's multiply-adds that fits measurements best.
    `streamed`: each thread has a column of B, and B goes from memory to its registers only.
    """

    m: int
    n: int
    k: int
    rows: int
    cols: int
    speed: float
    lanes_m: int = 4
    streamed: bool = False

    @property
    def lanes_n(self) -> int:
        return min(32, self.threads) // self.lanes_m

    @property
    def threads(self) -> int:
        """Threads of one k group: those that the outputs need."""
        return self.m * self.n // (self.rows * self.cols)

    @property
    def groups(self) -> int:
        return THREADS // self.threads

    def shared(self, itemsize: int) -> int:
        """Bytes of shared memory: two tiles of both operands, or the sums of all k groups."""
        elements = 2 * self.k * (self.m + PAD + (0 if self.streamed else self.n + PAD))
        if self.groups > 1:
            elements = max(elements, self.groups * self.m * self.n)
        return elements * itemsize

    def resident(self, itemsize: int, target: Target) -> int:
        """Blocks that a multiprocessor holds at once."""
        return target.resident(self.shared(itemsize), STREAMED if self.streamed else 2)


TILES = (
    Tile(128, 128, 16, 8, 8, 0.81),
    Tile(64, 256, 16, 8, 8, 0.76),
    Tile(256, 64, 16, 8, 8, 0.78),
    Tile(128, 64, 16, 8, 4, 0.63),
    Tile(64, 128, 32, 8, 4, 0.65),
    Tile(64, 128, 16, 8, 4, 0.63),
    Tile(32, 256, 16, 8, 4, 0.6),
    Tile(256, 32, 16, 8, 4, 0.59),
    Tile(64, 64, 16, 4, 4, 0.48),
    Tile(32, 128, 16, 4, 4, 0.465),
    Tile(128, 32, 16, 4, 4, 0.455, 8),
    Tile(16, 256, 16, 4, 4, 0.385),
    Tile(256, 16, 16, 4, 4, 0.41, 8),
    Tile(16, 128, 32, 8, 4, 0.38, 2),
    Tile(128, 16, 32, 4, 4, 0.34, 8),
    Tile(32, 32, 32, 4, 4, 0.335),
    Tile(64, 16, 32, 4, 4, 0.29, 8),
    Tile(8, 256, 16, 8, 4, 0.27, 1),
    Tile(8, 128, 16, 8, 4, 0.21, 1),
    Tile(8, 128, 32, 4, 4, 0.24, 2),
    Tile(8, 64, 32, 4, 4, 0.22, 2),
    Tile(16, 32, 64, 4, 4, 0.255),
    Tile(32, 16, 64, 4, 4, 0.235, 8),
    Tile(8, 32, 64, 4, 4, 0.19, 2),
    Tile(16, 16, 128, 4, 4, 0.215),
    Tile(8, 16, 128, 4, 4, 0.14, 2),
    Tile(4, 256, 32, 4, 1, 0.255, 1, True),
    Tile(4, 256, 16, 4, 1, 0.235, 1, True),
    Tile(8, 256, 32, 8, 1, 0.27, 1, True),
    Tile(8, 256, 16, 8, 1, 0.27, 1, True),
)


def itemsize_of(dtype: DType) -> int:
    """Bytes of a value in shared memory."""
    return 4 if dtype.compute == "float" else dtype.itemsize


class Product(NamedTuple):
    """A matrix product, or as many as a batch has.

    Attributes:
        batches, m, n, k: its sizes.
        itemsize: bytes of a value in shared memory.
        streams: neighbouring columns of B are neighbours in memory.
        repeats: elements of an operand for each value in memory: of windows, those that read a
            pixel.
        rows_repeat: whether that operand is A.
    """

    batches: int
    m: int
    n: int
    k: int
    itemsize: int
    streams: bool = False
    repeats: int = 1
    rows_repeat: bool = False


@dataclass(frozen=True)
class ProductCut(Generic[TileT]):
    """How a matrix product is cut: the tile of a block, and the split-K slices of `chunk` each.

    `shares`: blocks that have equal shares of all tiles' steps (stream-K); 0: a block has whole
    tiles, or slices. `cluster`: the blocks of a tile's slices are a cluster, which adds them
    through distributed shared memory.
    """

    tile: TileT
    chunk: int
    slices: int
    shares: int = 0
    cluster: bool = False

    def halved(self, k: int) -> ProductCut[TileT]:
        """The cut with half as much of k for a block."""
        return split_k(self.tile, k, 2 * -(-k // self.chunk))


@lru_cache(maxsize=1 << 12)
def quickest_cut(product: Product, target: Target) -> ProductCut[Tile]:
    """The tile and the number of split-K slices that take the least time."""
    return min(cuts_of(product, target), key=lambda cut: clocks(cut, product, target))


def cuts_of(product: Product, target: Target) -> list[ProductCut[Tile]]:
    """Those that `quickest_cut` chooses from."""
    tiles = [
        tile
        for tile in TILES
        if (product.streams and product.m <= FEW_ROWS) >= tile.streamed
        and (product.itemsize <= 4 or tile.rows * tile.cols <= 16)
        and tile.shared(product.itemsize) <= target.tile_shared
    ]
    return [cut for tile in tiles for cut in split_cuts(tile, product, target)]


def split_k(tile: TileT, k: int, slices: int) -> ProductCut[TileT]:
    """A cut of about so many slices, of whole steps."""
    steps = max(1, -(-k // tile.k))
    each = -(-steps // slices)
    return ProductCut(tile, each * tile.k, -(-steps // each))


def output_blocks(tile: BlockTile, product: Product) -> int:
    """How many blocks have all outputs, if none shares its tile."""
    return -(-product.m // tile.m) * -(-product.n // tile.n) * product.batches


def split_cuts(
    tile: TileT, product: Product, target: Target, waves: int = WAVES, slice_k: int = SLICE_K
) -> list[ProductCut[TileT]]:
    """The whole sum, and split-K cuts that fill all multiprocessors a few times at most.

    Args:
        waves: how often at most.
        slice_k: values of k in a slice at least.
    """
    cuts = {}
    blocks, most = output_blocks(tile, product), product.k // slice_k or 1
    for wave in range(1, waves + 1):
        slices = min(max(1, target.multiprocessors * wave // blocks), most)
        for count in (1, slices):
            cut = split_k(tile, product.k, count)
            cuts[cut.slices] = cut
    return list(cuts.values())


def clocks(cut: ProductCut[Tile], product: Product, target: Target) -> float:
    """An estimate of a product's time, in clocks of a multiprocessor."""
    tile, itemsize = cut.tile, product.itemsize
    blocks = output_blocks(tile, product) * cut.slices
    steps = cut.chunk // tile.k
    each = -(-blocks // target.multiprocessors)
    resident = tile.resident(itemsize, target)
    work = tile.m * tile.n * tile.k / target.lanes / tile.speed * (itemsize / 4)
    alone = steps * max(work * ALONE, STEP + work * SHOWN)
    rounds, rest = divmod(each, resident)
    time = rounds * max(resident * steps * work, alone)
    time += max(rest * steps * work, alone) if rest else 0
    if cut.slices > 1:
        results = product.batches * product.m * product.n
        time += JOIN + cut.slices * results * itemsize / (JOIN_TRAFFIC * target.traffic)
    return time
