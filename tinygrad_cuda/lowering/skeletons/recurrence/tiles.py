"""Which recurrent steps the kernels make, and how blocks divide their units and sequences."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tinygrad_cuda.core.config import ROUNDED, settings
from tinygrad_cuda.core.dtypes import float64
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import recurrence
from tinygrad_cuda.lowering.codegen.index import INT_MAX
from tinygrad_cuda.lowering.schedule.resources import THREADS
from tinygrad_cuda.lowering.target import WARP, Target

WARPS = THREADS // WARP
GROUP = 8  # rows of a warp's lanes, 4 of which share one
MMA_GROUP = 16  # rows of an instruction's first operand
MOST_GROUPS, MOST_MMA_GROUPS = 8, 4  # of rows of a tile
MOST_COLUMNS = 40  # gates of a block's units
QUAD = 4  # elements of an asynchronous copy
STEPS = {"simt": QUAD, "mma": 32, "tf32": 16, "tf32x3": 16}  # of a row: what 1 or 4 lanes load
PROMOTED = 64  # elements of k that matrix units sum before float32 units add them; of split ones 8
MOST_SUMS = 80  # of a lane
PITCH = 20  # floats of a row of 4 quads in shared memory: 8 rows begin in different banks
MOST_WEIGHTS = 136  # registers of a thread for weights, by mma
MOST_OTHER_GROUPS = 2  # by mma but on sm_90: compiled for others four spill, and tf32 does
# Registers of a thread for states that it loads at one time.
STATE_REGISTERS = {"simt": 0, "mma": 96, "tf32": 64, "tf32x3": 32}
MOST_SPLIT_SUMS = 104  # registers of a thread for sums of split products
SLOTS = 2  # of a warp's ring of copies, 4 quads of each row in each
HALVES = (1, 2)  # of k, that lanes of a warp may take
SYNC = 2200  # clocks from a step's last store to the loads of the next one, about a grid barrier's
LOADED = 40  # bytes of states that a multiprocessor copies in a clock
# At "highest" split products are made from so many hidden units on: of fewer the parts that they
# leave out, and an accumulator that truncates, add more than float32 units err (docs/matmul.md).
LEAST_UNITS = 256
LEAST_FULL = 0.6  # of a tile's rows, the share that are sequences, for the same
# Sequences times units, below which they were up to 1.6 times slower on an H200, or no faster.
LEAST_STATES = 8192
WORTH_A_SPLIT = 0.97  # of the clocks of float32 units at most: a model's time is no closer
# Multiply-adds of a multiprocessor in a clock.
PRODUCTS = {"simt": 0.7 * 128, "mma": 500.0, "tf32": 300.0, "tf32x3": 120.0}


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
        unit: ``simt``, ``mma`` of half types, whose weights are in registers, or ``tf32`` and
            ``tf32x3`` of float32.
        whole: of a gradient, whether a block sums over all gates for its own units; else blocks sum
            over one gate for each other's.
    """

    sizes: Sizes
    parts: int
    units: int
    groups: int
    unit: str = "simt"
    whole: bool = False

    @property
    def mma(self) -> bool:
        """Whether states and weights have 16 bits."""
        return self.unit == "mma"

    @property
    def matrix(self) -> bool:
        """Whether matrix units multiply."""
        return self.unit != "simt"

    @property
    def gathers(self) -> bool:
        """Whether blocks sum for each other."""
        return self.sizes.backward and not self.whole

    @property
    def owners(self) -> int:
        """Blocks of a part that make states."""
        return -(-self.sizes.units // self.units)

    @property
    def unit_blocks(self) -> int:
        """Blocks of a part. Of a gradient as many as there are gates sum for each other's units."""
        if not self.gathers:
            return self.owners
        return -(-self.owners // self.sizes.gates) * self.sizes.gates

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.parts * self.unit_blocks

    @property
    def rows(self) -> int:
        """Sequences of a tile."""
        return self.groups * (MMA_GROUP if self.matrix else GROUP)

    @property
    def part_rows(self) -> int:
        """Sequences of a part."""
        return -(-self.sizes.batch // self.parts)

    @property
    def tiles(self) -> int:
        """Tiles of a part."""
        return -(-self.part_rows // self.rows)

    @property
    def full(self) -> float:
        """The share of a part's rows that are sequences."""
        return self.part_rows / (self.tiles * self.rows)

    @property
    def columns(self) -> int:
        """Sums of a row that a block makes, whole quads, or whole instructions of 8."""
        whole = 8 if self.matrix else QUAD
        own = self.units * (1 if self.whole else self.sizes.gates)
        return -(-own // whole) * whole

    @property
    def step(self) -> int:
        """Elements of a row that lanes take at one time."""
        return STEPS[self.unit]

    @property
    def gate_elements(self) -> int:
        """Of a row of states, or of a gate's gradients, in the exchange."""
        return -(-self.sizes.units // self.step) * self.step

    @property
    def row_elements(self) -> int:
        """Of a row that a block multiplies."""
        return self.gate_elements * (self.sizes.gates if self.whole else 1)

    @property
    def warp_steps(self) -> int:
        """Of a row, that a warp multiplies."""
        return -(-self.row_elements // (self.step * WARPS))

    @property
    def sum_pitch(self) -> int:
        """Floats from row to row of a warp's sums: 8 rows begin in different banks."""
        if self.matrix:
            return self.columns + (0 if self.columns % 16 else 8)
        return self.columns + (0 if self.columns // QUAD % 2 else QUAD)

    @property
    def staged(self) -> int:
        """Floats of a warp's copies, and of its sums."""
        return self.rows * max(0 if self.matrix else SLOTS * PITCH, self.sum_pitch)

    @property
    def own(self) -> int:
        """Floats of the states that a block keeps, whole quads."""
        return -(-self.rows * self.units // QUAD) * QUAD

    @property
    def lanes(self) -> tuple[int, int, int]:
        """Lanes of a warp by rows, columns and halves of k: those that load least for a product.

        Without mma. A lane has 80 sums at most; rows are halved where halves of k are added.
        """
        layouts = []
        for halves in HALVES:
            for columns in (1, 2, 4, 8):
                rows = WARP // (halves * columns)
                own = self.rows // rows, self.columns // columns
                whole = self.rows % (rows * halves) == self.columns % columns == 0
                if whole and own[0] * own[1] <= MOST_SUMS:
                    loads = sum(own) / halves
                    layouts.append((loads, halves, (rows, columns, halves)))
        return min(layouts)[2]

    @property
    def weight_k(self) -> int:
        """Elements of a column of weights.

        Halves of k may read a quad behind the last one. By tf32 eight columns begin in two halves
        of the banks.
        """
        if self.unit == "simt":
            return self.row_elements + QUAD
        return self.row_elements + (0 if self.mma or self.row_elements % 32 else 16)

    @property
    def weights(self) -> int:
        """Elements of a block's weights."""
        return self.weight_k * self.columns

    @property
    def chunks(self) -> int:
        """Turns of a warp's loop over its part of a row."""
        return self.warp_steps if self.matrix else -(-self.warp_steps // 4)

    @property
    def together(self) -> int:
        """Chunks whose states lanes load at one time, by matrix units."""
        most = STATE_REGISTERS[self.unit] // (8 * self.groups)
        return max(1, min(self.chunks, most if self.mma else min(most, PROMOTED // self.step)))

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
        products = states * self.columns / PRODUCTS[self.unit]
        loads = states * (2 if self.mma else 4) / LOADED
        waits = SYNC * (1.6 if self.gathers else 1)
        return self.tiles * (waits + max(products, loads) + min(products, loads) / 4)

    def fits(self, target: Target) -> bool:
        """Whether a block has the memory and a thread the registers."""
        registers = self.weight_registers if self.mma else 0
        few = self.columns <= MOST_COLUMNS and registers <= MOST_WEIGHTS
        few = few and (self.unit != "tf32x3" or self.groups * self.columns <= MOST_SPLIT_SUMS)
        if target.architecture != (9, 0) and self.matrix:
            few = few and self.unit == "mma" and self.groups <= MOST_OTHER_GROUPS
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
    fitting = tiles_for(sizes, target, unit_of(node, target))
    if not fitting:
        return f"the weights of {sizes.units} units do not fit in shared memory"
    return quickest(fitting)


def quickest(tiles: list[RecurrenceTile]) -> RecurrenceTile:
    """The tile of least time, of the fewest blocks."""
    return min(tiles, key=lambda tile: (tile.clocks, tile.blocks))


def unit_of(node: Node, target: Target) -> str:
    """What is to multiply: matrix units where the dtype or the settings permit it.

    At ``highest`` they multiply split operands where that is faster, at ``tf32x3`` always.
    """
    if target.architecture < (8, 0):
        return "simt"
    if node.dtype.is_half:
        return "mma"
    precision = settings.matmul_precision
    if precision in ROUNDED:
        return "tf32"
    if precision == "highest":
        return "tf32x3" if is_split(sizes_of(node), target) else "simt"
    return precision if precision == "tf32x3" else "simt"


def is_split(sizes: Sizes, target: Target) -> bool:
    """Whether split products are as exact as float32 units and predicted to take less time."""
    if sizes.units < LEAST_UNITS or sizes.batch * sizes.units < LEAST_STATES:
        return False
    split = [tile for tile in tiles_for(sizes, target, "tf32x3") if tile.matrix]
    if not split or quickest(split).full < LEAST_FULL:
        return False
    own = tiles_for(sizes, target, "simt")
    return not own or quickest(split).clocks <= WORTH_A_SPLIT * quickest(own).clocks


def tiles_for(sizes: Sizes, target: Target, wanted: str) -> list[RecurrenceTile]:
    """All that fit with a unit, or with float32 units if none does."""
    tiles = []
    for parts in (1, 2, 4, 8, 16, 32, 64, 128):
        most, rows = target.waiting_blocks // parts, -(-sizes.batch // parts)
        for unit in dict.fromkeys((wanted, "simt")):
            matrix = unit != "simt"
            full = -(-rows // (MMA_GROUP if matrix else GROUP))
            for whole in (True, False) if matrix and sizes.backward else (False,):
                blocks = most
                if sizes.backward and not whole:
                    blocks = most // sizes.gates * sizes.gates
                if not blocks or parts > sizes.batch:
                    continue
                units = -(-sizes.units // blocks)
                limit = MOST_MMA_GROUPS if matrix else MOST_GROUPS
                for groups in range(min(limit, full), 0, -1):
                    tile = RecurrenceTile(sizes, parts, units, groups, unit, whole=whole)
                    tiles.append(tile)
    fitting = [tile for tile in tiles if tile.fits(target)]
    return [tile for tile in fitting if tile.matrix] or fitting


def refusal(node: Node, target: Target) -> str:
    """Why no kernel makes the row; empty if one does."""
    tile = tile_of(node, target)
    return tile if isinstance(tile, str) else ""
