"""A kernel of the schedule as text: which skeleton, which loops, and what fills its holes."""

from __future__ import annotations

from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope
from tinygrad_cuda.lowering.codegen.params import Words
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, Stage, fill, wrapped
from tinygrad_cuda.lowering.codegen.store import Stores, comment, is_wide, stem, vector_width
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.column_reduce import col_stages
from tinygrad_cuda.lowering.skeletons.contract.contract import contract_stages
from tinygrad_cuda.lowering.skeletons.conv.winograd_transforms import tile_stages
from tinygrad_cuda.lowering.skeletons.row_reduce import row_stages
from tinygrad_cuda.lowering.skeletons.scatter import scatter_stages


def stages(kernel: Kernel) -> list[Stage]:
    """The stages of a kernel: one, or two where a long reduction is split."""
    return {
        "map": map_stages,
        "row": row_stages,
        "col": col_stages,
        "contract": contract_stages,
        "scatter": scatter_stages,
        "tile": tile_stages,
    }[kernel.kind](kernel)


def map_stages(kernel: Kernel) -> list[Stage]:
    """Pointwise: each thread makes a few neighbouring elements of every output."""
    width = vector_width(kernel, kernel.numel)
    items = kernel.numel // width
    words = Words()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
    item, v = ix.variable("item", items), ix.variable("v", width)
    writer.scopes = [Scope("item"), Scope("v")]
    writer.lane = Lane(v, width)
    stores = Stores(writer, kernel)
    flat = item * width + v
    for node in kernel.stores:
        stores.put(node, flat, writer.value(node, ix.unflatten(flat, node.shape)))
    body = fill(
        "map.cuh",
        "body",
        index="long long" if writer.wide else "int",
        threads=THREADS,
        items=items,
        width=width,
        load=writer.scopes[0].lines,
        map=writer.scopes[1].lines,
        store=stores.after,
    )
    blocks = -(-items // THREADS)
    label = comment(kernel, f"map over {kernel.numel} elements, {width} a thread", blocks)
    return [wrapped(kernel, stem(kernel), body, words.list, blocks, 0, label)]


__all__ = ["map_stages", "stages"]
