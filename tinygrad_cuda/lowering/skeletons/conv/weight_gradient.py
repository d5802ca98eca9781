"""Gradients of small convolution kernels without a matrix: how images are cut, as text.

Such a product has few results and a long sum; each block has some images, each result all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, fill
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import JOIN, JOINED
from tinygrad_cuda.lowering.skeletons.conv.direct import (
    ELEMENT,
    LOADS,
    READ,
    RESIDENT,
    SLOWER,
    SUM,
    TRIP,
    Bands,
    image_text,
    loads_a_trip,
    others,
    some_of,
    vector_of,
)
from tinygrad_cuda.lowering.skeletons.conv.windows import Windows
from tinygrad_cuda.lowering.target import SCHEDULERS, WARP, Target

LONGEST = 14  # neighbours of a row that a thread has at once
MOST_SHARES = 32
SUMS = 40  # results of a thread at most
BUSY = 64  # threads of a block at least


@dataclass(frozen=True)
class ImagePart(Bands):
    """What a block and its threads make; `rows` divides the result's, and `run` a row.

    `shares` are of the rows; the result of the windows is the cotangent here.

    Attributes:
        jobs: bands of rows that a block has, one after another.
    """

    jobs: int

    @property
    def tap_lines(self) -> int:
        """Lines of taps in all channels of the input."""
        return self.windows.channels * self.windows.taps[0]

    @property
    def threads(self) -> int:
        return self.tap_lines * self.teams * self.shares

    @property
    def blocks(self) -> int:
        return -(-self.windows.images * self.bands // self.jobs)

    @property
    def fragment(self) -> int:
        """Elements of the cotangent that are read at once."""
        return next(size for size in (4, 2, 1) if self.run % size == 0)

    @property
    def slope_pitch(self) -> int:
        """Elements from row to row of the cotangent, in shared memory."""
        return -(-self.windows.places[1] // self.fragment) * self.fragment

    @property
    def pitch(self) -> int:
        """Elements from row to row of the input, in shared memory."""
        windows = self.windows
        wide = max(windows.width(windows.places[1]), windows.left + windows.shape[3])
        return wide | 1  # lines of taps are few banks apart

    @property
    def patch(self) -> int:
        """Elements of the input in shared memory."""
        return -(-self.windows.channels * self.height * self.pitch // 4) * 4

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        slope = self.teams * self.outputs * self.rows * self.slope_pitch
        sums = self.shares * self.m * self.tap_lines * self.windows.taps[1]
        return 4 * max(self.patch + slope, sums)

    def clocks(self, target: Target) -> float:
        """An estimate of the time, in clocks of a multiprocessor."""
        windows = self.windows
        reads = windows.width(self.run) + self.outputs * self.run // self.fragment
        runs = -(-self.rows // self.shares) * (windows.places[1] // self.run)
        own = runs * (windows.taps[1] * self.run * self.outputs + reads) * SLOWER
        warps = -(-self.threads // WARP)
        wide = [vector_of(size) for size in (windows.shape[3], windows.places[1])]
        elements = [
            windows.channels * self.lines * windows.shape[3],
            self.m * self.rows * windows.places[1],
        ]
        trips = sum(-(-n // w // (LOADS * THREADS)) for n, w in zip(elements, wide)) - 1
        results = self.m * self.tap_lines * windows.taps[1]
        staged = ELEMENT * sum(elements) / target.lanes
        work = max(-(-warps // SCHEDULERS) * own, warps * runs * reads * READ)
        each = -(-self.blocks // target.multiprocessors)
        waves = -(-each // target.resident(self.shared, RESIDENT))
        time = waves * self.jobs * trips * TRIP + each * self.jobs * (staged + work)
        time += each * SUM * self.shares * results / target.lanes
        if self.blocks > 1:
            time += JOIN + self.blocks * results * 4 / (JOINED * target.traffic)
        return time


@lru_cache(maxsize=1 << 10)
def part_of(windows: Windows, m: int, target: Target) -> ImagePart | None:
    """The parts of least time, or None where none fits."""
    parts = parts_of(windows, m, target)
    return min(parts, key=lambda part: part.clocks(target), default=None)


def parts_of(windows: Windows, m: int, target: Target) -> Iterator[ImagePart]:
    """All that keep enough threads of a block busy and fit its shared memory."""
    height, width = windows.places
    lines, many = windows.channels * windows.taps[0], target.multiprocessors
    for outputs in sorted({min(m, size) for size in (1, 2, 3, 4, 6, 8)}):
        threads = lines * -(-m // outputs)
        if threads > THREADS or outputs * windows.taps[1] > SUMS:
            continue
        for shares in range(1, min(MOST_SHARES, THREADS // threads) + 1):
            if threads * shares < BUSY:
                continue
            for rows in (rows for rows in range(shares, height + 1) if height % rows == 0):
                for run in (run for run in range(1, LONGEST + 1) if width % run == 0):
                    bands = windows.images * (height // rows)
                    for jobs in sorted({-(-bands // (turns * many)) for turns in (1, 2, 4)}):
                        part = ImagePart(windows, m, rows, run, outputs, shares, jobs)
                        if part.shared <= target.tile_shared:
                            yield part


def body(
    part: ImagePart,
    a: Node,
    x: Node,
    writer: Evaluator,
    outer: Scope,
    epilogue: tuple[list[str], list[str], list[str], list[str]],
) -> str:
    """The text of the stage.

    Args:
        part: of the problem.
        a: the cotangent, shape (.., m, k).
        x: the images.
        writer: with what the epilogue has put into `outer`.
        epilogue: statements for each row, each result before and in its loop, and after them.
    """
    windows = part.windows
    plane = part.height * part.pitch
    names = ("image", "channel", "y", "x")
    image_lines = image_text(part, x, writer, outer, names, (part.pitch, plane), again=True)

    slope_wide, length = vector_of(windows.places[1]), windows.places[1]
    v, strip = ix.variable("v", slope_wide), ix.variable("strip", length // slope_wide)
    slope_load, slope_each = Scope("image", "m", "row", "strip"), Scope("v")
    writer.scopes, writer.lane = [outer, slope_load, slope_each], Lane(v, slope_wide)
    image, row = ix.variable("image", windows.images), ix.variable("row", windows.places[0])
    k = (image * windows.places[0] + row) * length + strip * slope_wide + v
    none = tuple(ix.constant(0) for _ in a.shape[:-2])
    value = writer.value(a, (*none, ix.variable("m", part.m), k))
    writer.lane = None

    slopes_all = part.m * part.rows * (length // slope_wide)
    slopes = loads_a_trip(slopes_all)
    row_text, strip_load, map_, store = epilogue
    return fill(
        "weight_gradient.cuh",
        "body",
        threads=THREADS,
        patch=part.patch,
        vectors=part.patch // 4,
        outer=outer.lines,
        lines_n=part.tap_lines,
        teams=part.teams,
        outputs=part.outputs,
        jobs=part.jobs,
        all_jobs=windows.images * part.bands,
        bands=part.bands,
        rows=part.rows,
        image=image_lines,
        other_patch=others("patch", part.loads),
        other_slope=others("slope", slopes_all),
        stride_y=windows.stride[0],
        stride_x=windows.stride[1],
        dilation_y=windows.dilation[0],
        dilation_x=windows.dilation[1],
        plane_pitch=plane,
        pitch=part.pitch,
        slope_loads=slopes,
        slope_some=f"({some_of(slopes_all, slopes)})",
        slope_wide=slope_wide,
        slope_strips=length // slope_wide,
        slope_plane=part.rows * (length // slope_wide),
        slope_pitch=part.slope_pitch,
        slope_load=slope_load.lines,
        slope_map=slope_each.lines,
        slope_value=value,
        shares=part.shares,
        shares_unrolled=min(8, part.shares),
        taps_y=windows.taps[0],
        taps_x=windows.taps[1],
        runs=length // part.run,
        runs_unrolled=1 if part.run * part.outputs * windows.taps[1] > 100 else 2,
        run=part.run,
        reach=windows.width(part.run),
        fragment=part.fragment,
        m=part.m,
        n=part.tap_lines * windows.taps[1],
        row=row_text,
        strip_load=strip_load,
        map=map_,
        store=store,
    )
