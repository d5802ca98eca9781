"""ATTENTION: the kernels of attention and of its gradients, by mma.sync or by wgmma, of 16-bit
operands or of float32 ones as tf32."""

from __future__ import annotations

from tinygrad_cuda.lowering.codegen.skeleton import Stage
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.attention.mma import AttentionText
from tinygrad_cuda.lowering.skeletons.attention.simt import FloatText
from tinygrad_cuda.lowering.skeletons.attention.tf32 import TensorFloatText
from tinygrad_cuda.lowering.skeletons.attention.tiles import (
    HALF,
    SIMT,
    TF32,
    TF32X3,
    AttentionPart,
    AttentionTile,
    parts_of,
    stored_results,
    tile_of,
    tma_gradient_tile_of,
    tma_tile_of,
)
from tinygrad_cuda.lowering.skeletons.attention.tma import TmaGradientText, TmaText, has_maps
from tinygrad_cuda.lowering.skeletons.attention.wgmma import WarpgroupText


def attention_stages(kernel: Kernel) -> list[Stage]:
    """One stage; of the gradients one for queries, and one or two for keys and values."""
    (node,) = kernel.anchors
    stored = stored_results(kernel).keys()
    stages = []
    for name, part in parts_of(node, kernel.target, stored).items():
        stages.append(_text(kernel, name, part).stage())
    return stages


def _text(kernel: Kernel, name: str, part: AttentionPart) -> AttentionText:
    """What makes a part: by TMA where it has a tile and maps of the operands."""
    target = kernel.target
    if name == "forward":
        tile, by_tma = tma_tile_of(part, target), TmaText
    else:
        tile, by_tma = tma_gradient_tile_of(part, target), TmaGradientText
    if tile is not None and has_maps(kernel):
        return by_tma(kernel, name, part, tile)
    tile = tile_of(part, kernel.target)
    assert tile is not None, f"no tile fits {part}"
    return _text_of(tile)(kernel, name, part, tile)


def _text_of(tile: AttentionTile) -> type[AttentionText]:
    if tile.wgmma:
        return WarpgroupText
    return TEXTS[tile.unit]


TEXTS = {HALF: AttentionText, TF32: TensorFloatText, TF32X3: TensorFloatText, SIMT: FloatText}
