"""Host side of maps.cu and rows.cu: every launch shape worth a try for MAP, ROW, COL, full sums and
batch norm, each as a share of the copy bandwidth measured in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from lab.harness import PLAIN, WAIT_SIGNAL, Array, Gpu, Shape, node, source, words
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, KernelNode

SIDE = 8192
COUNT = SIDE * SIDE
BYTES = 4 * COUNT
IMAGES, CHANNELS, PLANE = 256, 64, 56 * 56
BATCH_BYTES = 4 * IMAGES * CHANNELS * PLANE


@dataclass(frozen=True)
class Kernel:
    """One instantiated macro: its line of text and its launch shape."""

    name: str
    line: str
    shape: Shape


@dataclass(frozen=True)
class Variant:
    """Kernels launched one after another for one result."""

    family: str
    label: str
    kernels: tuple[Kernel, ...]


def kernel(macro: str, name: str, arguments: Sequence[object], shape: Shape) -> Kernel:
    """A line `MACRO(name, arguments...)`."""
    given = ", ".join(str(a).lower() if isinstance(a, bool) else str(a) for a in arguments)
    return Kernel(name, f"{macro}({name}, {given})", shape)


def maps(multiprocessors: int) -> list[Variant]:
    """MAP: unroll, block, one-shot or a fixed grid, cached or streaming."""
    found = []
    for op in ("copy", "gelu"):
        for unroll in (1, 2, 4, 8):
            for threads in (64, 128, 256, 1024):
                for stream in (False, True) if threads == 256 else (False,):
                    name = f"map_{op}_{unroll}_{threads}_{int(stream)}"
                    grid = COUNT // (4 * unroll * threads)
                    arguments = (f"map_{op}", COUNT, unroll, threads, stream)
                    made = kernel("MAP_ONCE", name, arguments, Shape(grid, threads))
                    label = f"one-shot unroll {unroll} block {threads}" + " streaming" * stream
                    found.append(Variant(f"map {op}", label, (made,)))
        for unroll in (1, 4):
            for threads, blocks in ((256, 8), (512, 4)):
                grid = blocks * multiprocessors
                name = f"stride_{op}_{unroll}_{threads}_{grid}"
                walk = (f"map_{op}", COUNT, unroll, threads, grid)
                made = kernel("MAP_STRIDE", name, walk, Shape(grid, threads))
                label = f"grid-stride unroll {unroll} block {threads} x {blocks} a multiprocessor"
                found.append(Variant(f"map {op}", label, (made,)))
    return found


def other_maps() -> list[Variant]:
    """MAP with several arrays, with 16-bit types, and across the output's order."""
    found = []
    for unroll in (1, 2, 4):
        for threads in (128, 256, 512):
            grid = COUNT // (4 * unroll * threads)
            name = f"adam_{unroll}_{threads}"
            made = kernel("MAP_ADAM", name, (unroll, threads), Shape(grid, threads))
            found.append(Variant("adam", f"unroll {unroll} block {threads}", (made,)))
    for out in ("float", "tgc_bfloat16"):
        for vector in (2, 4, 8):
            for threads in (128, 256):
                grid = COUNT // (vector * threads)
                name = f"cast_{out}_{vector}_{threads}"
                made = kernel("MAP_CAST", name, (out, vector, threads), Shape(grid, threads))
                label = f"{vector} elements a thread, block {threads}"
                found.append(Variant(f"bfloat16 to {out.removeprefix('tgc_')}", label, (made,)))
    for unroll in (1, 2, 4, 8):
        for threads in (128, 256):
            name, shape = f"scalar_{unroll}_{threads}", Shape(COUNT // (unroll * threads), threads)
            made = kernel("MAP_SCALAR", name, ("map_copy", unroll, threads), shape)
            found.append(Variant("map unaligned", f"unroll {unroll} block {threads}", (made,)))
    sizes = (SIDE, SIDE)
    for threads in (128, 256):
        shape = Shape(COUNT // threads, threads)
        made = kernel("TRANSPOSE_LINEAR", f"across_{threads}", (*sizes, threads), shape)
        found.append(Variant("transpose", f"output order, block {threads}", (made,)))
    made = kernel("TRANSPOSE_BLOCKED", "across_blocked", sizes, Shape(COUNT // 1024, 256))
    found.append(Variant("transpose", "32 x 32 tiles of the output, no shared memory", (made,)))
    for side in (32, 64):
        shape = Shape(COUNT // side**2, 256, 4 * side * (side + 1))
        made = kernel("TRANSPOSE_TILE", f"across_tile_{side}", (*sizes, side), shape)
        found.append(Variant("transpose", f"{side} x {side} tiles by shared memory", (made,)))
    return found


def sums(multiprocessors: int) -> list[Variant]:
    """Full sums: unroll, block and blocks a multiprocessor, then one block."""
    found = []
    for unroll in (1, 2, 4, 8):
        for threads in (256, 512):
            for blocks in (1024 // threads, 2048 // threads):
                grid = blocks * multiprocessors
                name = f"sum_{unroll}_{threads}_{grid}"
                first = kernel(
                    "SUM_ALL", name, (COUNT, unroll, threads, grid), Shape(grid, threads, 256)
                )
                last = kernel("SUM_PARTIALS", f"{name}_end", (grid,), Shape(1, 1024, 256))
                label = f"unroll {unroll} block {threads} x {blocks} a multiprocessor"
                found.append(Variant("sum", label, (first, last)))
    return found


def columns() -> list[Variant]:
    """COL: rows in flight, block and row ranges, of a square and of a tall array."""
    found = []
    for rows, wide in ((SIDE, SIDE), (131072, 512)):
        family = f"column sum {rows} x {wide}"
        for unroll in (2, 4, 8):
            for threads in (128, 256, 512):
                for splits in (8, 16, 32) if wide == SIDE else (64, 128, 256):
                    if rows // splits % (threads // 32 * unroll):
                        continue
                    name = f"col_{wide}_{unroll}_{threads}_{splits}"
                    shape = Shape(wide // 128 * splits, threads, 16 * threads)
                    first = kernel("COL_SUM", name, (rows, wide, unroll, threads, splits), shape)
                    macro, shape = "COL_PARTIALS", Shape(wide // 64, 64)
                    if splits > 32:
                        macro, shape = "COL_PARTIALS_WIDE", Shape(wide // 32, 256, 1024)
                    last = kernel(macro, f"{name}_end", (wide, splits), shape)
                    label = f"unroll {unroll} block {threads} splits {splits}"
                    found.append(Variant(family, label, (first, last)))
    return found


ROWS = {  # width: (threads, vectors), 32 threads standing for a warp a row
    128: ((32, 1),),
    256: ((32, 2),),
    512: ((32, 4), (128, 1)),
    1024: ((32, 8), (128, 2), (256, 1)),
    2048: ((32, 16), (128, 4), (256, 2), (512, 1)),
    4096: ((128, 8), (256, 4), (512, 2), (1024, 1)),
    8192: ((128, 16), (256, 8), (512, 4), (1024, 2)),
    16384: ((256, 16), (512, 8), (1024, 4)),
    32768: ((512, 16), (1024, 8)),
}


def softmaxes(multiprocessors: int) -> list[Variant]:
    """ROW: how rows of each width lie over warps and blocks; for 8192 also streaming accesses,
    a bound on the registers, and the next row fetched ahead by a fixed grid."""
    found = []
    for width, layouts in ROWS.items():
        family, rows = f"softmax {COUNT // width} x {width}", COUNT // width
        for threads, vectors in layouts:
            name = f"softmax_{width}_{threads}"
            if threads == 32:
                for block in (128, 256):
                    shape = Shape(rows * 32 // block, block, 512)
                    made = kernel("SOFTMAX_WARP", f"{name}_{block}", (block, vectors), shape)
                    label = f"a warp a row, {vectors} vectors a thread, block {block}"
                    found.append(Variant(family, label, (made,)))
                continue
            label = f"block {threads}, {vectors} vectors a thread"
            tried = [(False, 1)]
            if width == SIDE:
                tried += [(True, 1)] + [(False, 2048 // threads)] * (threads >= 512)
            if width == 2 * SIDE:
                tried += [(False, 2)]
            for stream, least in tried:
                arguments = (threads, vectors, stream, least)
                made = kernel(
                    "SOFTMAX", f"{name}_{int(stream)}_{least}", arguments, Shape(rows, threads, 512)
                )
                extra = " streaming" * stream + f" at least {least} resident" * (least > 1)
                found.append(Variant(family, label + extra, (made,)))
    for threads, blocks in ((256, 3), (512, 2)):
        grid = blocks * multiprocessors
        name = f"ahead_{threads}_{blocks}"
        ahead = (threads, SIDE // 4 // threads, SIDE, grid, blocks)
        made = kernel("SOFTMAX_AHEAD", name, ahead, Shape(grid, threads, 512))
        label = f"block {threads} x {blocks} a multiprocessor, next row fetched ahead"
        found.append(Variant(f"softmax {SIDE} x {SIDE}", label, (made,)))
    return found


def row_text(variants: Sequence[Variant]) -> str:
    """The macro lines of all variants, each once."""
    lines = {k.name: k.line for v in variants for k in v.kernels}
    return "\n".join(lines.values()) + "\n"


# Batch norm ---------------------------------------------------------------------------------------

BATCH_LINES = f"""
BATCH_STATS(stats_16, {IMAGES}, {CHANNELS}, {PLANE}, 16, 7, 256)
BATCH_STATS(stats_32, {IMAGES}, {CHANNELS}, {PLANE}, 32, 7, 448)
BATCH_APPLY(apply_16, {IMAGES}, {CHANNELS}, {PLANE}, 16, 8, 7, 448, false, false, {CHANNELS})
BATCH_APPLY(apply_32, {IMAGES}, {CHANNELS}, {PLANE}, 32, 4, 7, 448, false, false, {CHANNELS})
BATCH_APPLY(apply_32s, {IMAGES}, {CHANNELS}, {PLANE}, 32, 4, 7, 448, false, true, {CHANNELS})
BATCH_APPLY(back_32, {IMAGES}, {CHANNELS}, {PLANE}, 32, 4, 7, 448, true, false, {CHANNELS})
BATCH_APPLY(back_32s, {IMAGES}, {CHANNELS}, {PLANE}, 32, 4, 7, 448, true, true, {CHANNELS})
BATCH_APPLY(back_8, {IMAGES}, {CHANNELS}, {PLANE}, 32, 4, 7, 448, true, true, 8)
BATCH_APPLY(back_16, {IMAGES}, {CHANNELS}, {PLANE}, 32, 4, 7, 448, true, true, 16)
BATCH_CLUSTER(cluster_448, {IMAGES}, {CHANNELS}, {PLANE}, 448)
BATCH_STREAM(stream_448_7, {IMAGES}, {CHANNELS}, {PLANE}, 448, 7)
BATCH_STREAM(stream_448_8, {IMAGES}, {CHANNELS}, {PLANE}, 448, 8)
BATCH_STREAM(stream_896_8, {IMAGES}, {CHANNELS}, {PLANE}, 896, 8)
"""
BATCH_KERNELS = [line.split("(")[1].split(",")[0] for line in BATCH_LINES.split("\n") if line]
CLUSTER_SHARED = 512 + IMAGES // 16 * PLANE * 4


@dataclass
class BatchNorm:
    """Buffers of one batch norm and the graphs of its variants."""

    gpu: Gpu
    functions: dict[str, Any]
    x: Any
    weight: Any
    bias: Any

    def __post_init__(self) -> None:
        self.out = self.gpu.empty(BATCH_BYTES)
        self.partials = self.gpu.empty(CHANNELS * 32 * 8)
        self.statistics = self.gpu.empty(CHANNELS * 8)

    def _stats(self, splits: int, first: int, channels: int) -> KernelNode:
        block = 256 if splits == 16 else 448
        shape = Shape(channels * splits, block, 512)
        return node(self.functions[f"stats_{splits}"], shape, words(self.x, self.partials, first))

    def _apply(self, name: str, images: int, first: int, channels: int) -> KernelNode:
        parameters = words(
            self.x, self.partials, self.weight, self.bias, self.out, self.statistics, first
        )
        shape = Shape(channels * (IMAGES // images), 448)
        return node(self.functions[name], shape, parameters)

    def two_passes(self, stats: int, apply: str, edge: int = WAIT_SIGNAL) -> CudaGraph:
        """Statistics of everything, then the normalisation of everything."""
        images = 8 if apply == "apply_16" else 4
        nodes = [self._stats(stats, 0, CHANNELS), self._apply(apply, images, 0, CHANNELS)]
        return self.gpu.chain(nodes, edge)

    def groups(self, channels: int, edge: int = WAIT_SIGNAL) -> CudaGraph:
        """Statistics and normalisation by groups of channels that fit the L2 cache."""
        nodes = []
        for first in range(0, CHANNELS, channels):
            nodes.append(self._stats(32, first, channels))
            nodes.append(self._apply(f"back_{channels}", 4, first, channels))
        return self.gpu.chain(nodes, edge)

    def cluster(self, name: str, threads: int, clusters: int = CHANNELS) -> CudaGraph:
        """A channel on the shared memory of a cluster of 16 blocks."""
        function = self.functions[name]
        kind = self.gpu.device.driver.CUfunction_attribute
        allow = kind.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        self.gpu.device.call("cuFuncSetAttribute", function.handle, allow, 1)
        parameters = words(self.x, self.weight, self.bias, self.out, self.statistics)
        shape = Shape(clusters * 16, threads, CLUSTER_SHARED)
        return self.gpu.chain([node(function, shape, parameters)], PLAIN)

    def variants(self) -> dict[str, Callable[[], CudaGraph]]:
        """Every variant by label."""
        return {
            "two passes, 16 splits": lambda: self.two_passes(16, "apply_16"),
            "two passes, 32 splits": lambda: self.two_passes(32, "apply_32"),
            "two passes, streaming": lambda: self.two_passes(32, "apply_32s"),
            "two passes, second backwards": lambda: self.two_passes(32, "back_32"),
            "two passes, second backwards, streaming": lambda: self.two_passes(32, "back_32s"),
            "groups of 8 channels through L2": lambda: self.groups(8),
            "groups of 16 channels through L2": lambda: self.groups(16),
            "cluster of 16 blocks": lambda: self.cluster("cluster_448", 448),
            "7 clusters, next channel ahead": lambda: self.cluster("stream_448_7", 448, 7),
            "8 clusters, next channel ahead": lambda: self.cluster("stream_448_8", 448, 8),
            "8 clusters of 896, the same": lambda: self.cluster("stream_896_8", 896, 8),
        }


def batch_source() -> str:
    """The translation unit of all batch-norm kernels."""
    return source("rows.cu", tail=BATCH_LINES, edge=WAIT_SIGNAL)


def variant_graph(
    gpu: Gpu, functions: dict[str, Any], variant: Variant, memory: Any, times: int = 10
) -> CudaGraph:
    """Some repetitions of a variant as one graph."""
    names: list[tuple[str, ...]]
    if len(variant.kernels) == 2:
        names = [("in", "partials"), ("partials", "out")]
    elif variant.family == "adam":
        names = [("out", "in", "mean", "square")]
    else:
        names = [("in16" if variant.family.startswith("bfloat16") else "in", "out")]
    nodes = [
        node(functions[k.name], k.shape, words(*(memory[name] for name in given)))
        for _ in range(times)
        for k, given in zip(variant.kernels, names)
    ]
    return gpu.chain(nodes, WAIT_SIGNAL if len(variant.kernels) > 1 else PLAIN)


def traffic(family: str) -> int:
    """The fewest bytes that a family moves."""
    if family.startswith("bfloat16"):
        return BYTES // 2 + (BYTES if family.endswith(" float") else BYTES // 2)
    return 7 * BYTES if family == "adam" else BYTES if "sum" in family else 2 * BYTES


def width_of(family: str) -> int:
    """The row length of a family's arrays, which its name ends with if it is not SIDE."""
    last = family.split()[-1]
    return int(last) if last.isdigit() else SIDE


def result_shape(family: str) -> tuple[int, ...]:
    """The part of a family's result that is checked: all of a sum, else the last 64 rows."""
    if family == "sum":
        return (1,)
    width = width_of(family)
    return (width,) if "sum" in family else (64, width)


def result_type(family: str) -> Any:
    """The dtype of a family's result."""
    return ml_dtypes.bfloat16 if family.endswith("to bfloat16") else np.float32


def wanted(family: str, x: Array) -> Array:
    """That part of the result in float64; for Adam, of the parameters after one step."""
    from scipy.special import erf

    shape = result_shape(family)
    if family == "sum":
        return np.array([x.sum(dtype=np.float64)])
    x = x.reshape(-1, shape[-1])
    if family == "transpose":
        return np.asarray(x.T[-64:] + 1.0)
    if "sum" in family:
        return np.asarray(x.sum(0, dtype=np.float64))
    x = x[-64:].astype(np.float64)
    if family in ("map copy", "map unaligned"):
        return x + 1
    if family.startswith("bfloat16"):
        rounded = x.astype(ml_dtypes.bfloat16).astype(np.float32) + np.float32(1)
        return rounded.astype(result_type(family)).astype(np.float64)
    if family == "adam":
        return -0.001 * 0.1 * x / (np.sqrt(0.001 * x * x) + 1e-8)
    if family == "map gelu":
        return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2))) * x + 1)
    power = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(power / power.sum(1, keepdims=True))
