"""ATTENTION: the kernels of attention and of its gradients, by mma.sync or by wgmma."""

from __future__ import annotations

from tinygrad_cuda.lowering.codegen.skeleton import Stage
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.attention.mma import AttentionText
from tinygrad_cuda.lowering.skeletons.attention.tiles import parts_of, tile_of
from tinygrad_cuda.lowering.skeletons.attention.wgmma import WarpgroupText


def attention_stages(kernel: Kernel) -> list[Stage]:
    """One stage; of the gradients one for queries, and one or two for keys and values."""
    (node,) = kernel.anchors
    stored = {store.attributes["index"] for store in kernel.stores}
    stages = []
    for name, part in parts_of(node, stored).items():
        tile = tile_of(part, kernel.target)
        assert tile is not None, f"no tile fits {part}"
        text = WarpgroupText if tile.wgmma else AttentionText
        stages.append(text(kernel, name, part, tile).stage())
    return stages
