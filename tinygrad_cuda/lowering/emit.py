"""A kernel of the schedule as text: which skeleton, which loops, and what fills its holes."""

from __future__ import annotations

from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope
from tinygrad_cuda.lowering.codegen.params import KernelParams
from tinygrad_cuda.lowering.codegen.skeleton import Stage, fill, wrapped
from tinygrad_cuda.lowering.codegen.store import Stores, comment, is_wide, stem
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import THREADS, vector_width
from tinygrad_cuda.lowering.skeletons.column_reduce import col_stages
from tinygrad_cuda.lowering.skeletons.conv.winograd_transforms import winograd_stages
from tinygrad_cuda.lowering.skeletons.row_reduce import row_stages
from tinygrad_cuda.lowering.skeletons.scatter import scatter_stages


def stages(kernel: Kernel) -> list[Stage]:
    """The stages of a kernel: one, or two where a long reduction is split."""
    if kernel.choice is not None and kernel.choice.stages is not None:
        return kernel.choice.stages(kernel, kernel.choice.cut)
    return {
        "map": map_stages,
        "row": row_stages,
        "col": col_stages,
        "scatter": scatter_stages,
        "winograd": winograd_stages,
    }[kernel.kind](kernel)


def map_stages(kernel: Kernel) -> list[Stage]:
    """Pointwise: each thread makes a few neighbouring elements of every output."""
    width, wide = vector_width(kernel, kernel.numel), is_wide(kernel)
    items = kernel.numel // width
    blocks = -(-items // THREADS)
    label = comment(kernel, f"map over {kernel.numel} elements, {width} a thread", blocks)
    name = stem(kernel)
    item, v = ix.variable("item", items), ix.variable("v", width)
    flat = item * width + v
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), wide, kernel.narrowed)
    writer.scopes = [Scope("item"), Scope("v")]
    writer.lane = Lane(v, width)
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


__all__ = ["map_stages", "stages"]
