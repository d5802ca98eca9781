"""What a block of a matrix product makes, and how many share a sum: the least time by a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tinygrad_cuda.backend.cuda.template import THREADS

MULTIPROCESSORS = 132  # of the largest GPUs
LANES = 128  # multiply-adds of a multiprocessor in a clock
PAD = 4  # elements between the lines of a tile in shared memory, against bank conflicts
PART_K = 32  # products that a part has at least when the sum over k is split
SHARED = 200 << 10  # bytes of shared memory that the blocks of a multiprocessor may take

# Clocks, fitted to measurements on an H200.
STEP = 700  # a step of the loop over k takes at least: a trip to memory and two barriers
ALONE = (
    1.08  # how much longer a block takes that has a multiprocessor for itself than its share of it
)
START = 2500  # the first operands of a block, its results
JOIN = 4000  # a second launch
JOIN_BYTES = 1200  # of parts that the second launch reads in a clock


@dataclass(frozen=True)
class Tile:
    """What a block makes: m x n results, k products at a time.

    A thread makes rows x cols of them; a warp has lanes_m x (32 / lanes_m) threads. `speed` is the
    share of all multiply-adds that a multiprocessor with enough to do has reached on an H200.
    """

    m: int
    n: int
    k: int
    rows: int
    cols: int
    speed: float
    lanes_m: int = 4

    @property
    def lanes_n(self) -> int:
        return 32 // self.lanes_m

    @property
    def places(self) -> int:
        """Threads that the results need; the block's others take turns at k."""
        return self.m * self.n // (self.rows * self.cols)

    @property
    def groups(self) -> int:
        return THREADS // self.places

    def shared(self, itemsize: int) -> int:
        """Bytes of shared memory: two tiles of both operands, or the sums of all groups."""
        elements = 2 * self.k * (self.m + self.n + 2 * PAD)
        if self.groups > 1:
            elements = max(elements, self.groups * self.m * self.n)
        return elements * itemsize

    def resident(self, itemsize: int) -> int:
        """Blocks that a multiprocessor holds at once."""
        return max(1, min(2, SHARED // self.shared(itemsize)))


TILES = (
    Tile(128, 128, 16, 8, 8, 0.67),
    Tile(64, 256, 16, 8, 8, 0.63),
    Tile(256, 64, 16, 8, 8, 0.65),
    Tile(128, 64, 16, 8, 4, 0.57),
    Tile(64, 128, 16, 8, 4, 0.56),
    Tile(32, 256, 16, 8, 4, 0.52),
    Tile(256, 32, 16, 8, 4, 0.52),
    Tile(64, 64, 16, 4, 4, 0.46),
    Tile(32, 128, 16, 4, 4, 0.44),
    Tile(128, 32, 16, 4, 4, 0.44, 8),
    Tile(16, 256, 16, 4, 4, 0.36),
    Tile(256, 16, 16, 4, 4, 0.34, 8),
    Tile(16, 128, 32, 4, 4, 0.35),
    Tile(128, 16, 32, 4, 4, 0.31, 8),
    Tile(32, 32, 32, 4, 4, 0.35),
    Tile(64, 16, 32, 4, 4, 0.29, 8),
    Tile(8, 256, 16, 4, 4, 0.26, 2),
    Tile(8, 128, 32, 4, 4, 0.26, 2),
    Tile(16, 32, 64, 4, 4, 0.23),
    Tile(32, 16, 64, 4, 4, 0.19, 8),
)


@dataclass(frozen=True)
class Plan:
    """How a matrix product is cut: the tile of a block, and the parts of the sum over k."""

    tile: Tile
    chunk: int
    parts: int


@lru_cache(maxsize=1 << 12)
def plan(batches: int, m: int, n: int, k: int, itemsize: int) -> Plan:
    """The tile and the number of parts that take the least time."""
    tiles = [tile for tile in TILES if itemsize <= 4 or tile.rows * tile.cols == 16]
    plans = [found for tile in tiles for found in _parted(tile, _blocks(tile, batches, m, n), k)]
    return min(plans, key=lambda found: clocks(found, batches, m, n, itemsize))


def _blocks(tile: Tile, batches: int, m: int, n: int) -> int:
    return -(-m // tile.m) * -(-n // tile.n) * batches


def _parted(tile: Tile, blocks: int, k: int) -> list[Plan]:
    """The whole sum, and cuts of it that fill all multiprocessors a few times at most."""
    steps = max(1, -(-k // tile.k))
    found = {}
    for turns in range(1, 9):
        parts = min(max(1, MULTIPROCESSORS * turns // blocks), k // PART_K or 1)
        for count in (1, parts):
            each = -(-steps // count)
            found[-(-steps // each)] = Plan(tile, each * tile.k, -(-steps // each))
    return list(found.values())


def clocks(found: Plan, batches: int, m: int, n: int, itemsize: int) -> float:
    """An estimate of a product's time, in clocks of a multiprocessor."""
    tile = found.tile
    blocks = _blocks(tile, batches, m, n) * found.parts
    steps = found.chunk // tile.k
    each = -(-blocks // MULTIPROCESSORS)
    resident = tile.resident(itemsize)
    work = tile.m * tile.n * tile.k / LANES / tile.speed * (itemsize / 4)
    alone = steps * max(work * ALONE, STEP + work * 0.5) + START
    rounds, rest = divmod(each, resident)
    time = rounds * max(resident * steps * work, alone)
    time += max(rest * steps * work, alone) if rest else 0
    if found.parts > 1:
        time += JOIN + found.parts * batches * m * n * itemsize / JOIN_BYTES
    return time
