"""Which recurrent steps the kernels make, and how blocks divide their units and sequences."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tinygrad_cuda.core.dtypes import float64
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import recurrence
from tinygrad_cuda.lowering.codegen.index import INT_MAX
from tinygrad_cuda.lowering.schedule.resources import THREADS
from tinygrad_cuda.lowering.target import WARP, Target

WARPS = THREADS // WARP
GROUP = 8  # rows of a warp's lanes, 4 of which share one
MMA_GROUP = 16  # rows of an instruction's first operand
MOST_GROUPS = {False: 8, True: 4}  # rows of a lane, or instructions of a column, by mma
MOST_COLUMNS = 40  # gates of a block's units: with 8 rows a lane 80 sums are in registers
QUAD = 4  # elements of an asynchronous copy
CHUNK = 32  # elements of a row that four lanes load, 16 bytes each, by mma
PITCH = 20  # floats of a row of 4 quads in shared memory: 8 rows begin in different banks
MOST_WEIGHTS = 128  # registers of a thread for weights, by mma
SYNC = 2200  # clocks from a step's last store to the loads of the next one, about a grid barrier's
LOADED = 40  # bytes of states that a multiprocessor copies in a clock
PRODUCTS = {False: 0.7 * 128, True: 500}  # multiply-adds of a multiprocessor in a clock


@dataclass(frozen=True)
class Sizes:
    """Of a node: steps, sequences, hidden units and gates; whether it is the gradient."""

    steps: int
    batch: int
    units: int
    gates: int
    backward: bool


@dataclass(frozen=True)
class RecurrenceTile:
    """How blocks divide a step.

    Attributes:
        sizes: of the node.
        parts: of the sequences; blocks of different ones never wait for each other.
        units: of a block, whose states it makes.
        groups: of 8 sequences that a tile has, of 16 by mma; a part's tiles come one after another.
        mma: whether matrix units multiply; weights are in registers then, states of 16 bits.
    """

    sizes: Sizes
    parts: int
    units: int
    groups: int
    mma: bool = False

    @property
    def owners(self) -> int:
        """Blocks of a part that make states."""
        return -(-self.sizes.units // self.units)

    @property
    def unit_blocks(self) -> int:
        """Blocks of a part. Of a gradient as many as there are gates sum for each other's units."""
        if not self.sizes.backward:
            return self.owners
        return -(-self.owners // self.sizes.gates) * self.sizes.gates

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.parts * self.unit_blocks

    @property
    def rows(self) -> int:
        """Sequences of a tile."""
        return self.groups * (MMA_GROUP if self.mma else GROUP)

    @property
    def part_rows(self) -> int:
        """Sequences of a part."""
        return -(-self.sizes.batch // self.parts)

    @property
    def tiles(self) -> int:
        """Tiles of a part."""
        return -(-self.part_rows // self.rows)

    @property
    def columns(self) -> int:
        """Sums of a row that a block makes, whole quads, or whole instructions of 8."""
        whole = 8 if self.mma else QUAD
        return -(-self.units * self.sizes.gates // whole) * whole

    @property
    def step(self) -> int:
        """Elements of a row that lanes take at one time."""
        return CHUNK if self.mma else QUAD

    @property
    def row_elements(self) -> int:
        """Of states in the exchange."""
        return -(-self.sizes.units // self.step) * self.step

    @property
    def warp_steps(self) -> int:
        """Of a row, that a warp multiplies."""
        return -(-self.row_elements // (self.step * WARPS))

    @property
    def sum_pitch(self) -> int:
        """Floats from row to row of a warp's sums: 8 rows begin in different banks."""
        if self.mma:
            return self.columns + (0 if self.columns % 16 else 8)
        return self.columns + (0 if self.columns // QUAD % 2 else QUAD)

    @property
    def staged(self) -> int:
        """Floats of a warp's copies, and of its sums."""
        return self.rows * max(0 if self.mma else 2 * PITCH, self.sum_pitch)

    @property
    def own(self) -> int:
        """Floats of the states that a block keeps, whole quads."""
        return -(-self.rows * self.units // QUAD) * QUAD

    @property
    def weights(self) -> int:
        """Elements of a block's weights."""
        return self.row_elements * self.columns

    @property
    def weight_registers(self) -> int:
        """Of a thread, by mma."""
        return self.warp_steps * self.columns // 2

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.weights * (2 if self.mma else 4) + 4 * (self.own + WARPS * self.staged)

    @property
    def clocks(self) -> float:
        """An estimate of a step's time."""
        states = self.rows * self.row_elements
        products = states * self.columns / PRODUCTS[self.mma]
        loads = states * (2 if self.mma else 4) / LOADED
        return self.tiles * (SYNC + max(products, loads) + min(products, loads) / 4)

    def fits(self, target: Target) -> bool:
        """Whether a block has the memory and a thread the registers."""
        registers = self.weight_registers if self.mma else 0
        few = self.columns <= MOST_COLUMNS and registers <= MOST_WEIGHTS
        return few and self.shared <= target.block_shared


def sizes_of(node: Node) -> Sizes:
    """Of a row, forward or backward."""
    backward = node.op not in recurrence.FORWARD
    steps, batch = node.sources[0].shape[:2]
    weight = node.sources[-1 if backward else 1]
    units = weight.shape[1]
    return Sizes(steps, batch, units, weight.shape[0] // units, backward)


def tile_of(node: Node, target: Target) -> RecurrenceTile | str:
    """The tile of least time, or why there is no kernel."""
    sizes = sizes_of(node)
    if not target.waiting_blocks:
        return f"blocks of {target.name} cannot wait for each other"
    if target.architecture < (8, 0):
        return f"copies are asynchronous from sm_80 on, {target.name} is older"
    if node.dtype is float64:
        return "float64 is not summed in float32"
    shapes = (*(source.shape for source in node.sources), *(shape for shape, _ in node.outputs))
    if 0 in map(prod, shapes):
        return "it has no elements"
    if max(map(prod, shapes)) > INT_MAX // 4:
        return "positions take 64 bits"
    fitting = tiles_for(sizes, target, node.dtype.is_half and bool(target.matrix_lanes))
    if not fitting:
        return f"the weights of {sizes.units} units do not fit in shared memory"
    return min(fitting, key=lambda tile: (tile.clocks, tile.blocks))


def tiles_for(sizes: Sizes, target: Target, mma: bool) -> list[RecurrenceTile]:
    """All that fit; by mma none but if asked for, and then no others if one fits."""
    found = []
    for parts in (1, 2, 4, 8, 16, 32, 64, 128):
        most = target.waiting_blocks // parts
        if sizes.backward:
            most = most // sizes.gates * sizes.gates
        if not most or parts > sizes.batch:
            break
        units, rows = -(-sizes.units // most), -(-sizes.batch // parts)
        for unit in (True, False) if mma else (False,):
            whole = -(-rows // (MMA_GROUP if unit else GROUP))
            for groups in range(min(MOST_GROUPS[unit], whole), 0, -1):
                found.append(RecurrenceTile(sizes, parts, units, groups, unit))
    fitting = [tile for tile in found if tile.fits(target)]
    return [tile for tile in fitting if tile.mma] or fitting


def refusal(node: Node, target: Target) -> str:
    """Why no kernel makes the row; empty if one does."""
    tile = tile_of(node, target)
    return tile if isinstance(tile, str) else ""
