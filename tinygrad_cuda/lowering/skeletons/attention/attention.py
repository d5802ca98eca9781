"""ATTENTION: the kernels of attention and of its gradients, by mma.sync or by wgmma, of 16-bit
operands or of float32 ones as tf32."""

from __future__ import annotations

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.lowering.codegen.skeleton import Stage
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.attention.mma import AttentionText
from tinygrad_cuda.lowering.skeletons.attention.simt import FloatText
from tinygrad_cuda.lowering.skeletons.attention.tf32 import TensorFloatText
from tinygrad_cuda.lowering.skeletons.attention.tiles import (
    HALF,
    LONG,
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


def attention_tiers(kernel: Kernel) -> str:
    """What multiplies in each part of a kernel, its tile, and why not a quicker unit."""
    (node,) = kernel.anchors
    parts = parts_of(node, kernel.target, stored_results(kernel).keys())
    return "; ".join(_tier(kernel, name, part) for name, part in parts.items())


def _tier(kernel: Kernel, name: str, part: AttentionPart) -> str:
    tile = _tile(kernel, name, part)
    unit = "wgmma tma" if tile.consumers else "wgmma" if tile.wgmma else UNITS[tile.unit]
    text = f"{name} by {unit}, {tile.rows} x {tile.columns}, {tile.stages} slots"
    if tile.consumers:
        return text
    if part.unit != HALF:
        return f"{text} (not wgmma: float32 at {settings.matmul_precision!r})"
    if not tile.wgmma:
        target = kernel.target
        lacks = "heads are no multiples of 64" if target.architecture == (9, 0) else target.name
        return f"{text} (not wgmma: {lacks})"
    few = part.columns < LONG
    return f"{text} (not wgmma tma: {f'{part.columns} columns' if few else 'memory or registers'})"


def _text(kernel: Kernel, name: str, part: AttentionPart) -> AttentionText:
    """What makes a part."""
    tile = _tile(kernel, name, part)
    if tile.consumers:
        return (TmaText if name == "forward" else TmaGradientText)(kernel, name, part, tile)
    return (WarpgroupText if tile.wgmma else TEXTS[tile.unit])(kernel, name, part, tile)


def _tile(kernel: Kernel, name: str, part: AttentionPart) -> AttentionTile:
    """That of a part: one by TMA where there is one, and maps of the operands."""
    by_tma = tma_tile_of if name == "forward" else tma_gradient_tile_of
    tile = by_tma(part, kernel.target)
    if tile is None or not has_maps(kernel):
        tile = tile_of(part, kernel.target)
    assert tile is not None, f"no tile fits {part}"
    return tile


UNITS = {HALF: "mma", TF32: "mma tf32", TF32X3: "mma tf32x3", SIMT: "float32 units"}
TEXTS = {HALF: AttentionText, TF32: TensorFloatText, TF32X3: TensorFloatText, SIMT: FloatText}
