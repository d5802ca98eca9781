"""Which kernels become one whose rows all blocks of the GPU hold together: reductions of few long
rows, and those after them that would read the same values from memory again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, indexing, reduction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.lowering.schedule.fusion import (
    TRANSPARENT,
    edges_of,
    length_of,
    lines_up,
    rows_of,
    works,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import GridTiles, Kernel, Schedule, TileSums
from tinygrad_cuda.lowering.schedule.operands import follows, needs_other_rows, operands
from tinygrad_cuda.lowering.schedule.resources import THREADS
from tinygrad_cuda.lowering.target import BLOCK_RESERVED, WARP, Target

WARPS = THREADS // WARP
REGISTERS = {2: 100, 1: 200}  # of a thread for its tile, by blocks on a multiprocessor
LEAST_TILE = 1024  # bytes: shorter copies do not keep memory busy
TABLES = 128  # bytes of it for barriers
SUMS = 8  # numbers that a tile publishes


def fuse_grid_reduce(schedule: Schedule, target: Target) -> None:
    """Makes one kernel of a row kernel and those that go on with its rows, where that is possible.

    Two such kernels never run at one time: their blocks would wait for each other's room.

    Args:
        schedule: its kernels are replaced.
        target: without co-resident blocks it has no such kernels.
    """
    made: list[Kernel] = []
    for first in list(schedule.kernels) if target.co_resident else ():
        if first not in schedule.kernels or not _begins(first):
            continue
        parts, joined = [first], None
        for other in schedule.kernels:
            if _goes_on(parts, other):
                wider = _joined(schedule, [*parts, other])
                wider.grid = grid_tiles(wider) if _lines_up(wider) else None
                if wider.grid is not None:
                    parts, joined = [*parts, other], wider
        if joined is not None:
            schedule.replace(set(parts), joined)
            made.append(joined)
    schedule.put_before(())
    made.sort(key=schedule.kernels.index)
    schedule.put_before(pairwise(made))


def _begins(kernel: Kernel) -> bool:
    """Whether it reduces few long rows of more than a cache holds."""
    wide = [node for node in kernel.reads if prod(node.shape) == kernel.numel]
    again = sum(prod(node.shape) * node.dtype.itemsize for node in wide)
    return (
        kernel.kind == "row_reduce"
        and kernel.one_phase
        and again >= kernel.target.cached
        and _plain(kernel)
    )


def _plain(kernel: Kernel) -> bool:
    """Whether it writes nothing in place and checks nothing."""
    return not kernel.update and not any(
        node.op in (common.assign, *indexing.CHECKS) for node in kernel.nodes
    )


def _goes_on(parts: list[Kernel], other: Kernel) -> bool:
    """Whether a kernel walks over the same elements, and needs what the others make, and nothing
    that waits for them."""
    first = parts[0]
    same = other.sign == first.sign if other.kind == "row_reduce" else other.kind == "map"
    if other in parts or other.grid or not same or other.numel != first.numel:
        return False
    if not _plain(other) or not any(part in other.before for part in parts):
        return False
    outside = [kernel for kernel in other.before if kernel not in parts]
    return not any(kernel.waits_for(part) for kernel in outside for part in parts)


def _lines_up(kernel: Kernel) -> bool:
    """Whether each value is at hand where another one of the kernel needs it."""
    inside = set(kernel.nodes)
    stored = {node for node in kernel.nodes if not works(node)}
    return all(
        edge.base not in inside or lines_up(kernel, edge, node)
        for node in kernel.nodes
        for edge in edges_of(node, stored)
    )


def _joined(schedule: Schedule, parts: list[Kernel]) -> Kernel:
    others = [kernel for kernel in schedule.kernels if kernel not in parts]
    needed = {*schedule.outputs, *(node for kernel in others for node in kernel.reads)}
    nodes = list(dict.fromkeys(node for part in parts for node in part.nodes))
    return replace(
        parts[0],
        nodes=nodes,
        anchors=[node for part in parts for node in part.anchors],
        stores=[node for part in parts for node in part.stores if node in needed],
        reads=[
            node for node in dict.fromkeys(n for part in parts for n in part.reads)
            if node not in nodes
        ],
        before=list(dict.fromkeys(k for part in parts for k in part.before if k not in parts)),
        reason=f"{parts[0].reason}; it holds its rows, since others go on with them",
        reverse=False,
    )  # fmt: skip


# Tiles --------------------------------------------------------------------------------------------


def grid_tiles(kernel: Kernel) -> GridTiles | None:
    """The largest tiles of its rows for which there is room; None if there are none.

    The rows need more than their blocks' memory, or a tile publishes too much or in two turns, or
    an operand does not lie as the rows do.
    """
    rows, run = rows_of(kernel.sign), kernel.sign[-1][0] if kernel.sign else 0
    if not run or not kernel.sign[-1][1] or rows > kernel.target.multiprocessors:
        return None
    wide, sums = _wide_operands(kernel, run), _tile_sums(kernel)
    if not wide or sums is None or sums.published > SUMS:
        return None
    width = min(8, 16 // max(n.dtype.itemsize for n in (*wide, *kernel.wide_stores)))
    outer = length_of(kernel.sign) // run
    for slices in range(1, run // width + 1):
        tile, rest = divmod(run, slices)
        tile_bytes = sum(tile * node.dtype.itemsize for node in wide)
        if tile_bytes < LEAST_TILE:
            break
        if width == 1 or rest or tile % width or any(tile * n.dtype.itemsize % 16 for n in wide):
            continue
        trips = -(-tile // (width * WARP))
        registers = sum(trips * max(1, width * node.dtype.itemsize // 4) for node in wide)
        shared = (WARPS - 1) * tile_bytes + 8 * rows * SUMS + TABLES
        for per_sm, most in REGISTERS.items():
            shared_limit = (kernel.target.block_shared + BLOCK_RESERVED) // per_sm - BLOCK_RESERVED
            if registers <= most and shared <= shared_limit:
                blocks, parts = dict(kernel.target.co_resident)[per_sm], outer * slices
                reducers = min(rows, blocks)
                producers = blocks * (WARPS - 1) - reducers
                # The blocks hold a whole row, so that each tile is published before a warp waits
                # for its totals, and not all of them, so that something flows.
                flows = parts <= producers and 2 * producers <= rows * parts
                sizes = (slices, tile, width, parts, per_sm, blocks, reducers, producers)
                return GridTiles(wide, sums, *sizes) if flows else None
    return None


def _wide_operands(kernel: Kernel, run: int) -> list[Node] | None:
    """Operands whose elements lie as the rows do; None if a run meets any other in more than one.

    Args:
        run: neighbours of a row.
    """
    made = (*(node.sources[0] for node in kernel.anchors), *kernel.wide_stores)
    met = operands(made, kernel.reads)
    one_a_run = all(sign[-1][1] and sign[-1][0] % run == 0 for sign, _ in met.spread)
    if met.other or not one_a_run:
        return None
    if needs_other_rows(met, kernel, {*kernel.nodes, *kernel.reads}):
        return None
    return [node for node in kernel.reads if node in met.flat]


def _tile_sums(kernel: Kernel) -> TileSums | None:
    """The reductions, if all of them can be made in one loop over a tile."""
    deviations = [node for node in kernel.anchors if node.op is reduction.welford]
    sums = [node for node in kernel.anchors if node.op is reduction.sum]
    if len(deviations) > 1 or len(deviations) + len(sums) != len(kernel.anchors):
        return None
    if any(node.sources[0].dtype.compute != "float" for node in kernel.anchors):
        return None
    welford = deviations[0] if deviations else None
    if welford is not None and loaded(welford.sources[0], kernel) is None:
        return None
    partners: dict[Node, Node | None] = {}
    for node in sums:
        partner = None
        if follows(node.sources, kernel):
            partner = _partner(node.sources[0], welford, kernel)
            if partner is None:
                return None
        partners[node] = partner
    return TileSums(welford, partners)


def loaded(node: Node, kernel: Kernel) -> Node | None:
    """The value in memory whose elements these are."""
    while node not in kernel.reads:
        if node.op is not ew.cast and node.op not in TRANSPARENT:
            return None
        node = node.sources[0]
    return node if prod(node.shape) == kernel.numel else None


def _partner(source: Node, welford: Node | None, kernel: Kernel) -> Node | None:
    """`a` where the source is ``a * (b - mean)`` and neither `a` nor `b` depends on a row."""
    if source.op is not ew.mul or welford is None:
        return None
    for one, other in (source.sources, source.sources[::-1]):
        if other.op is not ew.sub or follows((one, other.sources[0]), kernel):
            continue
        mean = other.sources[1]
        while mean.op.kind == "movement" or mean.op in TRANSPARENT:
            mean = mean.sources[0]
        if mean.op is common.output and mean.sources[0] is welford and not mean.attributes["index"]:
            return one
    return None
