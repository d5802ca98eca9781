"""Gradients of small convolution kernels without im2col: how blocks divide the images, as text.

Such a product has few outputs and a long sum; a block sums some images, an output all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, fill
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import JOIN, JOIN_TRAFFIC
from tinygrad_cuda.lowering.skeletons.conv.direct import (
    ELEMENT,
    LOADS,
    READ,
    RESIDENT,
    SLOWER,
    SUM,
    TRIP,
    Bands,
    bounds_test,
    further_loads,
    image_text,
    loads_a_trip,
    vector_of,
)
from tinygrad_cuda.lowering.skeletons.conv.windows import Windows
from tinygrad_cuda.lowering.target import SCHEDULERS, WARP, Target

LONGEST = 14  # neighbouring cotangents of a row that a thread reads at once at most
MOST_SHARES = 32  # threads that divide the rows of a band at most
SUMS = 40  # sums of a thread at most
BUSY = 64  # threads of a block at least


@dataclass(frozen=True)
class WeightGradientCut(Bands):
    """The sums of a block and of its threads; `rows` divides the output's, and `run` a row.

    `shares` divide the rows; the output of the windows is the cotangent here.

    Attributes:
        jobs: bands of rows that a block sums, one after another.
    """

    jobs: int

    @property
    def tap_rows(self) -> int:
        """Rows of taps in all channels of the input."""
        return self.windows.channels * self.windows.taps[0]

    @property
    def threads(self) -> int:
        return self.tap_rows * self.channel_groups * self.shares

    @property
    def blocks(self) -> int:
        return -(-self.windows.images * self.bands // self.jobs)

    @property
    def fragment(self) -> int:
        """Elements of the cotangent that are read at once."""
        return next(size for size in (4, 2, 1) if self.run % size == 0)

    @property
    def cotangent_pitch(self) -> int:
        """Elements from row to row of the cotangent, in shared memory."""
        return -(-self.windows.output_size[1] // self.fragment) * self.fragment

    @property
    def pitch(self) -> int:
        """Elements from row to row of the input, in shared memory."""
        windows = self.windows
        wide = max(windows.width(windows.output_size[1]), windows.left + windows.shape[3])
        return wide | 1  # odd: rows of taps begin in different banks

    @property
    def patch(self) -> int:
        """Elements of the input in shared memory."""
        return -(-self.windows.channels * self.height * self.pitch // 4) * 4

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        cotangent = self.channel_groups * self.outputs * self.rows * self.cotangent_pitch
        sums = self.shares * self.m * self.tap_rows * self.windows.taps[1]
        return 4 * max(self.patch + cotangent, sums)

    def clocks(self, target: Target) -> float:
        """An estimate of the time, in clocks of a multiprocessor."""
        windows = self.windows
        reads = windows.width(self.run) + self.outputs * self.run // self.fragment
        runs = -(-self.rows // self.shares) * (windows.output_size[1] // self.run)
        own = runs * (windows.taps[1] * self.run * self.outputs + reads) * SLOWER
        warps = -(-self.threads // WARP)
        wide = [vector_of(size) for size in (windows.shape[3], windows.output_size[1])]
        elements = [
            windows.channels * self.loaded_rows * windows.shape[3],
            self.m * self.rows * windows.output_size[1],
        ]
        trips = sum(-(-n // w // (LOADS * THREADS)) for n, w in zip(elements, wide)) - 1
        results = self.m * self.tap_rows * windows.taps[1]
        staged = ELEMENT * sum(elements) / target.lanes
        work = max(-(-warps // SCHEDULERS) * own, warps * runs * reads * READ)
        each = -(-self.blocks // target.multiprocessors)
        waves = -(-each // target.resident(self.shared, RESIDENT))
        time = waves * self.jobs * trips * TRIP + each * self.jobs * (staged + work)
        time += each * SUM * self.shares * results / target.lanes
        if self.blocks > 1:
            time += JOIN + self.blocks * results * 4 / (JOIN_TRAFFIC * target.traffic)
        return time


@lru_cache(maxsize=1 << 10)
def weight_gradient_cut_of(windows: Windows, m: int, target: Target) -> WeightGradientCut | None:
    """The cut of least time, or None where no cut fits a block."""
    cuts = weight_gradient_cuts_of(windows, m, target)
    return min(cuts, key=lambda cut: cut.clocks(target), default=None)


def weight_gradient_cuts_of(
    windows: Windows, m: int, target: Target
) -> Iterator[WeightGradientCut]:
    """All cuts that keep enough threads of a block busy and fit its shared memory."""
    height, width = windows.output_size
    tap_rows, blocks = windows.channels * windows.taps[0], target.multiprocessors
    for outputs in sorted({min(m, size) for size in (1, 2, 3, 4, 6, 8)}):
        threads = tap_rows * -(-m // outputs)
        if threads > THREADS or outputs * windows.taps[1] > SUMS:
            continue
        for shares in range(1, min(MOST_SHARES, THREADS // threads) + 1):
            if threads * shares < BUSY:
                continue
            for rows in (rows for rows in range(shares, height + 1) if height % rows == 0):
                for run in (run for run in range(1, LONGEST + 1) if width % run == 0):
                    bands = windows.images * (height // rows)
                    for jobs in sorted({-(-bands // (turns * blocks)) for turns in (1, 2, 4)}):
                        cut = WeightGradientCut(windows, m, rows, run, outputs, shares, jobs)
                        if cut.shared <= target.tile_shared:
                            yield cut


def body(
    cut: WeightGradientCut,
    a: Node,
    x: Node,
    writer: Evaluator,
    outer: Scope,
    epilogue: tuple[list[str], list[str], list[str], list[str]],
) -> str:
    """The text of the stage.

    Args:
        cut: that of the problem.
        a: the cotangent, shape (.., m, k).
        x: the images.
        writer: its evaluator; the epilogue has written statements into `outer`.
        epilogue: statements of each row, of each output before its loop, in it, and after it.
    """
    windows = cut.windows
    plane = cut.height * cut.pitch
    names = ("image", "channel", "y", "x")
    image_lines = image_text(cut, x, writer, outer, names, (cut.pitch, plane), reused=True)

    cotangent_wide, length = vector_of(windows.output_size[1]), windows.output_size[1]
    v, strip = ix.variable("v", cotangent_wide), ix.variable("strip", length // cotangent_wide)
    cotangent_load, cotangent_each = Scope("image", "m", "row", "strip"), Scope("v")
    writer.scopes, writer.lane = [outer, cotangent_load, cotangent_each], Lane(v, cotangent_wide)
    image, row = ix.variable("image", windows.images), ix.variable("row", windows.output_size[0])
    k = (image * windows.output_size[0] + row) * length + strip * cotangent_wide + v
    none = tuple(ix.constant(0) for _ in a.shape[:-2])
    value = writer.value(a, (*none, ix.variable("m", cut.m), k))
    writer.lane = None

    cotangents_all = cut.m * cut.rows * (length // cotangent_wide)
    cotangents = loads_a_trip(cotangents_all)
    row_text, strip_load, map_, store = epilogue
    return fill(
        "weight_gradient.cuh",
        "body",
        threads=THREADS,
        patch=cut.patch,
        vectors=cut.patch // 4,
        outer=outer.lines,
        tap_rows=cut.tap_rows,
        channel_groups=cut.channel_groups,
        outputs=cut.outputs,
        jobs=cut.jobs,
        all_jobs=windows.images * cut.bands,
        bands=cut.bands,
        rows=cut.rows,
        image=image_lines,
        further_patch=further_loads("patch", cut.loads),
        further_cotangent=further_loads("cotangent", cotangents_all),
        stride_y=windows.stride[0],
        stride_x=windows.stride[1],
        dilation_y=windows.dilation[0],
        dilation_x=windows.dilation[1],
        plane_pitch=plane,
        pitch=cut.pitch,
        cotangent_loads=cotangents,
        cotangent_in_bounds=f"({bounds_test(cotangents_all, cotangents)})",
        cotangent_wide=cotangent_wide,
        cotangent_strips=length // cotangent_wide,
        cotangent_plane=cut.rows * (length // cotangent_wide),
        cotangent_pitch=cut.cotangent_pitch,
        cotangent_load=cotangent_load.lines,
        cotangent_map=cotangent_each.lines,
        cotangent_value=value,
        shares=cut.shares,
        shares_unrolled=min(8, cut.shares),
        taps_y=windows.taps[0],
        taps_x=windows.taps[1],
        runs=length // cut.run,
        runs_unrolled=1 if cut.run * cut.outputs * windows.taps[1] > 100 else 2,
        run=cut.run,
        reach=windows.width(cut.run),
        fragment=cut.fragment,
        m=cut.m,
        n=cut.tap_rows * windows.taps[1],
        row=row_text,
        strip_load=strip_load,
        map=map_,
        store=store,
    )
