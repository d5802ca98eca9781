"""A kernel of the schedule as text: which skeleton, which loops, and what fills its holes."""

from __future__ import annotations

from math import prod

from tinygrad_cuda.graph.ops.elementwise import contiguous
from tinygrad_cuda.graph.ops.movement import permute
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import (
    VECTOR,
    Evaluator,
    Lane,
    RowRegisters,
    Scope,
    Stores,
    is_wide,
)
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.skeleton import (
    KernelParams,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import THREADS, TILED, enough_blocks
from tinygrad_cuda.lowering.skeletons.attention.attention import attention_stages, attention_tiers
from tinygrad_cuda.lowering.skeletons.column_reduce import col_stages
from tinygrad_cuda.lowering.skeletons.conv.winograd_transforms import winograd_stages
from tinygrad_cuda.lowering.skeletons.fft.fft import fft_stages
from tinygrad_cuda.lowering.skeletons.recurrence.recurrence import (
    recurrence_stages,
    recurrence_tier,
)
from tinygrad_cuda.lowering.skeletons.reduction_accumulators import in_flight, loads_before_stores
from tinygrad_cuda.lowering.skeletons.row_reduce import row_stages
from tinygrad_cuda.lowering.skeletons.scatter import scatter_stages
from tinygrad_cuda.lowering.skeletons.transpose import transpose_cut, transpose_stages

ROWS = 4  # of which a thread of a map makes the same columns
ROW_VECTORS = 2  # vectors that rows have in common from which on that is worth it


def stages(kernel: Kernel) -> list[Stage]:
    """The stages of a kernel: one, or two where a long reduction is split."""
    if kernel.choice is not None and kernel.choice.stages is not None:
        return kernel.choice.stages(kernel, kernel.choice.cut)
    return {
        "map": map_stages,
        "row_reduce": row_stages,
        "column_reduce": col_stages,
        "scatter": scatter_stages,
        "winograd": winograd_stages,
        "attention": attention_stages,
        "recurrence": recurrence_stages,
        "fft": fft_stages,
    }[kernel.kind](kernel)


def tier_of(kernel: Kernel) -> str:
    """What makes a kernel whose work several could make, and why it does; empty of others."""
    if kernel.choice is not None:
        return kernel.choice.reason
    makers = {"attention": attention_tiers, "recurrence": recurrence_tier}
    return makers[kernel.kind](kernel) if kernel.kind in makers else ""


def map_stages(kernel: Kernel) -> list[Stage]:
    """Pointwise: each thread makes a few neighbouring elements of every output."""
    width, wide = kernel.vector_width(kernel.numel), is_wide(kernel)
    if kernel.numel >= TILED:
        if (cut := transpose_cut(kernel)) is not None:
            return transpose_stages(kernel, cut)
        if (rows := _rows_of_thread(kernel, width)) > 1:
            return [_map_of_rows(kernel, width, rows)]
    items = kernel.numel // width
    blocks = -(-items // THREADS)
    label = comment(kernel, f"map over {kernel.numel} elements, {width} a thread", blocks)
    name = stem(kernel)
    first, v = _first_element(kernel, items, width), ix.variable("v", width)
    flat = first + v
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), wide, kernel.narrowed)
    writer.scopes = [Scope("item"), Scope("v")]
    writer.lane, writer.pairs = Lane(v, width), True
    stores = Stores(writer, kernel)
    for node in kernel.stores:
        stores.put(node, flat, writer.value(node, ix.unflatten(flat, node.shape)))
    body = fill(
        "map.cuh",
        "body",
        index="long long" if wide else "int",
        threads=THREADS,
        items=items,
        width=width,
        load=writer.scopes[0].lines,
        map=writer.scopes[1].lines,
        store=stores.after,
    )
    return [wrapped(kernel, name, body, words.list, blocks, 0, label)]


def _rows_of_thread(kernel: Kernel, width: int) -> int:
    """Of how many rows a thread of a map makes the same columns.

    One where rows have little in common, such as a bias alone, or where blocks would be few.
    """
    columns = (kernel.stores[0].shape or (1,))[-1]
    threads = kernel.numel // width
    rows = min(ROWS, threads // (THREADS * enough_blocks(kernel.target)))
    common = [n for n in kernel.reads if n.shape[-1:] == (columns,) and prod(n.shape) == columns]
    vectors = sum(width * node.dtype.itemsize / VECTOR for node in common)
    if rows < 2 or vectors < ROW_VECTORS or not in_flight(kernel, rows, width):
        return 1
    return 1 if (width * THREADS) % columns or is_wide(kernel) else rows


def _map_of_rows(kernel: Kernel, width: int, turns: int) -> Stage:
    """Each thread makes the same columns of `turns` rows, and loads once what they have in common.

    The rows are those that `_rows_of_thread` allows.
    """
    items = kernel.numel // width
    blocks = -(-items // (THREADS * turns))
    block, thread = ix.variable("virtual_block", blocks), ix.variable("thread", THREADS)
    k, v = ix.variable("k", turns), ix.variable("v", width)
    flat = (block * (THREADS * turns) + k * THREADS + thread) * width + v
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), False, kernel.narrowed)
    outer, item, lane = Scope("virtual_block", "thread"), Scope("k"), Scope("v")
    writer.scopes = [outer, item, lane]
    writer.lane, writer.pairs = Lane(v, width), True
    ahead = writer.row_registers = RowRegisters(1, turns, width)
    stores = Stores(writer, kernel)
    for node in kernel.stores:
        stores.put(node, flat, writer.value(node, ix.unflatten(flat, node.shape)))
    body = fill(
        "map.cuh",
        "rows",
        threads=THREADS,
        items=items,
        turns=turns,
        width=width,
        before=outer.lines,
        ahead=loads_before_stores(ahead, item.lines, lane.lines),
        declare=ahead.declarations,
        load=item.lines,
        map=lane.lines,
        store=stores.after,
    )
    about = f"map over {kernel.numel} elements, {width} of {turns} rows a thread"
    label = comment(kernel, about, blocks)
    return wrapped(kernel, stem(kernel), body, words.list, blocks, 0, label)


def _first_element(kernel: Kernel, items: int, width: int) -> Index:
    """The position in memory of the first element of an item.

    Where the axes of what is read are in another order, neighbouring threads take elements that
    are neighbours there: of values whose channels are put last, those of one channel; of a
    transposed matrix, those of a column.
    """
    item = ix.variable("item", items)
    node = kernel.stores[0]
    (source,) = node.sources[:1] or (node,)
    if node.op is not contiguous or source.op is not permute or len(kernel.stores) > 1:
        return item * width
    axes, shape = source.attributes["axes"], node.shape
    lead = int(len(axes) > 2)  # axes before those that change places
    if axes != (*range(lead), *range(lead + 1, len(axes)), lead) or shape[-1] % width:
        return item * width
    channels, pixels = shape[-1] // width, prod(shape[lead:-1])
    image, channel, pixel = ix.unflatten(item, (prod(shape[:lead]), channels, pixels))
    return ((image * pixels + pixel) * channels + channel) * width


__all__ = ["map_stages", "stages"]
