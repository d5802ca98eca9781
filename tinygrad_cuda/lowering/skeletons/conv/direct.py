"""Convolutions of few channels without im2col: how blocks and threads divide an image, as text.

Such a product reads each element of its input many times; here that happens in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, fill
from tinygrad_cuda.lowering.skeletons.conv.windows import Windows
from tinygrad_cuda.lowering.target import BANKS, SCHEDULERS, WARP, Target

MOST_OUTPUTS = 16  # channels of the output
LOADS = 8  # vectors of the input that a thread has in flight
MOST_WEIGHTS = 12  # weights that a thread has in flight
BUSY = 64  # threads of a block at least
MOST_CHANNEL_SHARES = 8  # threads that divide the channels of the input at most
RESIDENT = 4  # resident blocks of a multiprocessor at most

# Fitted to 100 measurements on an H200, with an error of 9 % at the mean.
TRIP = 1600  # clocks of a round trip to memory with a barrier
ELEMENT = 13  # clocks of one of 128 lanes to copy an element of the input to shared memory
WEIGHT = 63  # clocks of one of 128 lanes to copy a weight to shared memory
SUM = 10  # clocks of one of 128 lanes to add a share of an output through shared memory
SLOWER = 1.17  # clocks of a warp's loop for each of its instructions
READ = 1.34  # clocks of a warp's read of shared memory


@dataclass(frozen=True)
class Bands:
    """Bands of an image's output rows, one a block, and the rows of the input that they need.

    Attributes:
        windows, m: the problem: its windows, and the channels of the output.
        rows: rows of an image's output in a band.
        run: neighbouring outputs of a row that a thread computes at once.
        outputs: channels of the output that a thread computes.
        shares: threads that divide the sum of each output.
    """

    windows: Windows
    m: int
    rows: int
    run: int
    outputs: int
    shares: int

    @property
    def channel_groups(self) -> int:
        """Threads along the channels of the output."""
        return -(-self.m // self.outputs)

    @property
    def bands(self) -> int:
        """Bands of an image."""
        return -(-self.windows.output_size[0] // self.rows)

    @property
    def height(self) -> int:
        """Rows of the input that a block needs at once."""
        return self.windows.height(self.rows)

    @property
    def loaded_rows(self) -> int:
        """Rows of each channel of the input that a block loads at most."""
        windows = self.windows
        if self.bands > 1:
            return self.height
        return min(windows.shape[2], self.height - windows.top)

    @property
    def wide(self) -> int:
        """Neighbouring inputs that a thread loads at once."""
        return vector_of(self.windows.shape[3])

    @property
    def loads(self) -> int:
        """Loads of the input by all threads together."""
        return self.windows.channels * self.loaded_rows * self.windows.shape[3] // self.wide


class DirectCut(Bands):
    """The outputs of a block and of its threads; `shares` divide the channels of the input."""

    @property
    def runs(self) -> int:
        """Threads along a row."""
        return -(-self.windows.output_size[1] // self.run)

    @property
    def threads(self) -> int:
        return self.rows * self.runs * self.channel_groups * self.shares

    @property
    def blocks(self) -> int:
        return self.windows.images * self.bands

    @property
    def lanes_m(self) -> int:
        """Weights of a thread, padded to whole vectors."""
        return -(-self.outputs // self.fragment) * self.fragment

    @property
    def fragment(self) -> int:
        """Weights that are read at once."""
        return 1 if self.outputs == 1 else 2 if self.outputs == 2 else 4

    @property
    def width(self) -> int:
        """Columns of the input that a block needs."""
        return self.windows.width(self.windows.output_size[1])

    @property
    def cleared(self) -> bool:
        """Whether shared memory holds zeros around the rows that are loaded."""
        return self.windows.shape[2:] != self.windows.size or self.bands > 1

    @property
    def pitch(self) -> int:
        """Elements from row to row of shared memory, with the fewest bank conflicts."""
        windows = self.windows
        inner = windows.left + windows.shape[3]
        least = max(self.width, windows.width(self.runs * self.run), inner)
        return _pitch(least, self.rows, self.runs, windows.stride[0], self.run * windows.stride[1])

    @property
    def plane(self) -> int:
        """Elements of a channel in shared memory."""
        return self.height * self.pitch

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        windows = self.windows
        weights = windows.channels * prod(windows.taps) * self.channel_groups * self.lanes_m
        patch = -(-windows.channels * self.plane // 4) * 4
        sums = self.shares * self.m * self.rows * windows.output_size[1]
        return 4 * max(patch + weights, sums)

    def clocks(self, target: Target) -> float:
        """An estimate of the time, in clocks of a multiprocessor."""
        windows = self.windows
        loads = windows.width(self.run) + windows.taps[1] * self.lanes_m // self.fragment
        tap_rows = windows.channels // self.shares * windows.taps[0]
        own = tap_rows * (windows.taps[1] * self.run * self.outputs + loads) * SLOWER
        warps = -(-self.threads // WARP)
        weights = self.m * windows.channels * prod(windows.taps)
        sums = self.shares * self.m * self.rows * windows.output_size[1]
        staged = ELEMENT * self.loads * self.wide + WEIGHT * weights + SUM * sums
        trips = -(-self.loads // (LOADS * THREADS)) - (-weights // (MOST_WEIGHTS * THREADS))
        each = -(-self.blocks // target.multiprocessors)
        waves = -(-each // target.resident(self.shared, RESIDENT))
        full = each * max(-(-warps // SCHEDULERS) * own, warps * tap_rows * loads * READ)
        alone = waves * -(-warps // SCHEDULERS) * own
        return waves * trips * TRIP + each * staged / target.lanes + max(full, alone)


@lru_cache(maxsize=1 << 14)
def _pitch(least: int, rows: int, runs: int, down: int, step: int) -> int:
    """The distance of rows at which a warp has the fewest bank conflicts."""

    def conflicts(pitch: int) -> int:
        worst = 0
        for first in range(0, min(rows * runs, 2 * WARP), WARP):
            positions = range(first, min(first + WARP, rows * runs))
            banks = [(at // runs * down * pitch + at % runs * step) % BANKS for at in positions]
            worst = max(worst, *(banks.count(bank) for bank in set(banks)))
        return worst

    return min(range(least, least + 9), key=conflicts)


@lru_cache(maxsize=1 << 10)
def direct_cut_of(windows: Windows, m: int, target: Target) -> DirectCut | None:
    """The cut of least time, or None where no cut fits a block."""
    if m > MOST_OUTPUTS or min(windows.output_size) < 1:
        return None
    cuts = direct_cuts_of(windows, m, target)
    return min(cuts, key=lambda cut: cut.clocks(target), default=None)


def direct_cuts_of(windows: Windows, m: int, target: Target) -> Iterator[DirectCut]:
    """All cuts that keep enough threads of a block busy and fit its shared memory."""
    shares = [s for s in range(1, MOST_CHANNEL_SHARES + 1) if windows.channels % s == 0]
    bands = {-(-windows.output_size[0] // parts) for parts in range(1, windows.output_size[0] + 1)}
    for rows in sorted(bands):
        for run in range(2, 9):
            for outputs in sorted({min(m, size) for size in (1, 2, 3, 4, 6, 8)}):
                for share in shares:
                    cut = DirectCut(windows, m, rows, run, outputs, share)
                    if BUSY <= cut.threads <= THREADS and cut.shared <= target.tile_shared:
                        yield cut


def lanes_of(cut: DirectCut, most: int) -> int:
    """Neighbouring outputs that are stored together."""
    lanes = most
    while cut.windows.output_size[1] % lanes:
        lanes //= 2
    return lanes


def body(
    cut: DirectCut,
    a: Node,
    x: Node,
    writer: Evaluator,
    outer: Scope,
    lanes: int,
    epilogue: tuple[list[str], list[str], list[str], list[str]],
) -> str:
    """The text of the stage.

    Args:
        cut: of the problem.
        a: the weights, shape (.., m, k).
        x: the images.
        writer: its evaluator; the epilogue has written statements into `outer`.
        lanes: outputs that the epilogue computes at once.
        epilogue: statements of each row, of each strip before its lanes, in them, and after them.
    """
    windows = cut.windows
    k = windows.channels * prod(windows.taps)
    image = image_text(cut, x, writer, outer, ("channel", "y", "x"), (cut.pitch, cut.plane))
    load_weight = Scope("m", "k")
    writer.scopes = [outer, load_weight]
    none = tuple(ix.constant(0) for _ in a.shape[:-2])
    weight = writer.value(a, (*none, ix.variable("m", cut.m), ix.variable("k", k)))
    row, strip_load, map_, store = epilogue
    block_pixels = cut.rows * windows.output_size[1]
    weights = cut.channel_groups * cut.outputs * k
    patch = -(-windows.channels * cut.plane // 4)
    weight_loads = min(MOST_WEIGHTS, -(-weights // THREADS))
    return fill(
        "direct.cuh",
        "body",
        threads=THREADS,
        bands=cut.bands,
        rows=cut.rows,
        patch=4 * patch,
        outer=outer.lines,
        image=image,
        further_loads=further_loads("patch", cut.loads),
        stride_y=windows.stride[0],
        stride_x=windows.stride[1],
        dilation_y=windows.dilation[0],
        dilation_x=windows.dilation[1],
        clear=fill("direct.cuh", "clear", vectors=patch, threads=THREADS) if cut.cleared else [],
        cleared=["__syncthreads();"] if cut.cleared else [],
        pitch=cut.pitch,
        plane_pitch=cut.plane,
        weight_loads=weight_loads,
        weight_loop=loop_of(weights, weight_loads),
        weight_in_bounds=bounds_test(weights, weight_loads),
        weight_pitch=cut.channel_groups * cut.lanes_m,
        lanes_m=cut.lanes_m,
        fragment=cut.fragment,
        m=cut.m,
        k=k,
        load_weight=load_weight.lines,
        weight=weight,
        outputs=cut.outputs,
        positions=cut.rows * cut.runs,
        runs=cut.runs,
        run=cut.run,
        channel_groups=cut.channel_groups,
        shares=cut.shares,
        channels=windows.channels // cut.shares,
        taps=prod(windows.taps),
        taps_y=windows.taps[0],
        taps_x=windows.taps[1],
        reach=windows.width(cut.run),
        row_length=windows.output_size[1],
        block_pixels=block_pixels,
        image_pixels=prod(windows.output_size),
        lanes=lanes,
        turns=min(4, -(-cut.m * block_pixels // (lanes * THREADS))),
        row=row,
        strip_load=strip_load,
        map=map_,
        store=store,
    )


def vector_of(size: int) -> int:
    """Neighbours of a row of this length that are loaded at once."""
    return next(wide for wide in (4, 2, 1) if size % wide == 0)


def image_text(
    cut: Bands,
    x: Node,
    writer: Evaluator,
    outer: Scope,
    names: tuple[str, ...],
    pitches: tuple[int, int],
    reused: bool = False,
) -> list[str]:
    """Text that loads rows of an image into shared memory: `fetch_patch`, then `put_patch`.

    Args:
        cut: the rows.
        x: the images.
        writer: its evaluator; the epilogue has written statements into `outer`.
        outer: the scope around the loads.
        names: variables that change from load to load.
        pitches: elements from row to row of shared memory, and from channel to channel.
        reused: store zeros for rows outside of the image, since shared memory held another band.
    """
    windows, wide = cut.windows, cut.wide
    height, size = windows.shape[2:]
    v, strip = ix.variable("v", wide), ix.variable("x", size // wide)
    load, each = Scope(*names), Scope("v")
    writer.scopes, writer.lane = [outer, load, each], Lane(v, wide)
    at = (
        *map(ix.variable, ("image", "channel", "y"), windows.shape[:3]), strip * wide + v
    )  # fmt: skip
    value = writer.value(x, at)
    writer.lane = None
    image_rows = f" && y >= 0 && y < {height}" if cut.bands > 1 else ""
    loads = loads_a_trip(cut.loads)
    return fill(
        "direct.cuh",
        "image",
        threads=THREADS,
        loads=loads,
        load_in_bounds=f"({bounds_test(cut.loads, loads)})",
        wide=wide,
        plane=cut.loaded_rows * (size // wide),
        strips=size // wide,
        patch_rows=cut.loaded_rows,
        first_patch_row=0 if cut.bands > 1 else windows.top,
        top=windows.top,
        left=windows.left,
        stride_y=windows.stride[0],
        image_rows=image_rows,
        put_rows="" if reused else image_rows,
        zeroed=wide if reused else 0,
        load=load.lines,
        map=each.lines,
        value=value,
        pitch=pitches[0],
        plane_pitch=pitches[1],
    ).splitlines()


def loads_a_trip(count: int) -> int:
    """Loads of a thread in one round trip to memory."""
    return min(LOADS, -(-count // THREADS))


def further_loads(what: str, count: int) -> list[str]:
    """The loop of further round trips to memory."""
    step = loads_a_trip(count) * THREADS
    holes = {"what": what, "elements": count, "step": step}
    return fill("direct.cuh", "further_loads", **holes).splitlines() if count > step else []


def bounds_test(count: int, loads: int) -> str:
    """The test that a thread's load is one of `count`; only the last load of one trip needs it."""
    test = f"e < {count}"
    if loads == 1 and count < THREADS:
        return test
    return test if count > loads * THREADS else f"(i + 1) * {THREADS} <= {count} || {test}"


def loop_of(count: int, loads: int) -> list[str]:
    """The head of a loop over `count` elements, so many loads of a thread at a time."""
    if count > loads * THREADS:
        step = loads * THREADS
        return [
            "#pragma unroll 1",
            f"for (int first = threadIdx.x; first < {count}; first += {step}) {{",
        ]
    return ["{", "  const int first = threadIdx.x;"]
