"""CONTRACT on matrix units of sm_90a with operands that TMA brings: those that lie in memory as
matrices or as images, in boxes."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops.windows import WindowColumns
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Scope
from tinygrad_cuda.lowering.codegen.index import AffineLeaf, Index
from tinygrad_cuda.lowering.codegen.params import KernelParams
from tinygrad_cuda.lowering.codegen.skeleton import Stage, TensorMap, fill
from tinygrad_cuda.lowering.codegen.store import is_wide
from tinygrad_cuda.lowering.schedule.fusion import trace
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.contract.contract import with_sum
from tinygrad_cuda.lowering.skeletons.contract.loads import (
    Reader,
    Source,
    sources_of,
    zero_outside,
)
from tinygrad_cuda.lowering.skeletons.contract.mma import (
    MMA,
    MatrixContraction,
    descriptors,
    results_text,
    sizes_of,
    stage_of,
)
from tinygrad_cuda.lowering.skeletons.contract.mma_tiles import COPY, SWIZZLE, WARPS, TmaTile
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Plan
from tinygrad_cuda.lowering.skeletons.contract.tma_pixels import Pixels, load_of, map_of, pixels_of

TMA = "contract_tma.cuh"
MAX_STRIDE = 1 << 40  # bytes between neighbours of an axis
MAX_EXTENT = 1 << 32
PRODUCERS = 4  # warps that copy at most: one thread takes longer for four boxes of windows
BAND_ROWS = 1024  # of outputs that blocks compute at one time, so that operands stay in L2
# Registers of a producer's thread and of a consumer's: together those of a multiprocessor.
FEW, MANY = 40, 232


class Matrix(NamedTuple):
    """An operand as it lies in memory: a matrix for each batch.

    Attributes:
        node: the value.
        offset: elements before the first one.
        along_k: whether neighbouring values of k are neighbours in memory.
        stride: elements from row to row: along the other axis, or along k.
        batch: which matrix, in units of `apart` elements.
        apart: 0 where there is one.
    """

    node: Node
    offset: int
    along_k: bool
    stride: int
    batch: Index
    apart: int


def matrix_of(source: Source, reader: Evaluator) -> Matrix | None:
    """An operand as matrices in memory; None where TMA has no map of it."""
    k, other = ix.variable("k", source.k), ix.variable(source.other, source.extent)
    at = source.at(ix.variable("batch", source.batches), other, k)
    node, inner, guard = zero_outside(reader, source.node, at)
    if guard or node not in reader.memory:
        return None
    index = ix.flatten(inner, node.shape).expanded()
    steps, batch, apart = {"k": 0, source.other: 0}, Index((), 0), 0
    for coefficient, term in index.terms:
        if isinstance(term, AffineLeaf) and term.name in steps:
            steps[term.name] = coefficient
        elif coefficient > 0 and {leaf.name for leaf in Index(((1, term),), 0).leaves} == {"batch"}:
            batch, apart = batch + Index(((coefficient, term),), 0), gcd(apart, coefficient)
        else:
            return None
    along_k = steps["k"] == 1
    if not along_k and steps[source.other] != 1:
        return None
    stride = steps[source.other if along_k else "k"]
    nbytes = node.dtype.itemsize
    apart_bytes, row_bytes = apart * nbytes, stride * nbytes
    if stride <= 0 or row_bytes % COPY or apart_bytes % COPY or index.constant * nbytes % COPY:
        return None
    if max(row_bytes, apart_bytes) >= MAX_STRIDE or max(source.k, source.extent) > MAX_EXTENT:
        return None
    units = Index(tuple((c // apart, term) for c, term in batch.terms), 0) if apart else batch
    return Matrix(node, index.constant, along_k, stride, units, apart)


def describes(
    a: Node,
    b: Node,
    copied: tuple[bool, bool] = (False, False),
    columns: WindowColumns | None = None,
) -> bool:
    """Whether TMA has maps of both operands, once they are in memory.

    Args:
        copied: which of them is stored along k before.
        columns: the windows of which B is columns, if it is.
    """
    for source, node, anew in zip(sources_of(a, b), (a, b), copied, strict=True):
        if anew:
            continue
        base = trace(node, set()).base
        if base.op.kind == "leaf" and base.op is not common.buffer:
            return False
        reader = Evaluator(KernelParams(), {base}, True)
        reader.scopes = [Scope("batch"), Scope("k", source.other)]
        operand = matrix_of(source, reader) or pixels_of(source, reader, columns)
        if operand is None or operand.node.dtype is not source.node.dtype:
            return False
    return True


def tma_stages(kernel: Kernel, plan: Plan[TmaTile]) -> list[Stage]:
    """One stage, or two where the sum over k is split among blocks."""
    problem = MatrixContraction(kernel, plan)
    return with_sum(problem, _product(problem, plan.tile))


def _product(problem: MatrixContraction, tile: TmaTile) -> Stage:
    """The stage that multiplies; with split-K it leaves the slices in scratch memory."""
    kernel, params = problem.kernel, KernelParams()
    reader = Reader(params, set(kernel.reads), is_wide(kernel), kernel.target)
    outer = Scope("batch")
    sources = sources_of(problem.a, problem.b, tile.m, tile.n)
    reader.scopes = [outer, Scope("k", "m", "n")]
    columns = problem.node.attributes.get("windows")
    operands = [_described(source, reader, columns) for source in sources]
    maps = [_map(*each, tile) for each in zip(sources, operands, strict=True)]
    epilogue = results_text(problem, reader, outer)
    names = params.tensor_maps(maps)
    a, b = operands
    holes = sizes_of(problem)
    holes["band"] = min(BAND_ROWS // tile.m, problem.tiles_m)
    holes |= descriptors(tile, not a.along_k, not b.along_k)
    holes |= {"bytes_a": tile.slot(False, tile.m), "bytes_b": tile.slot(False, tile.n)}
    holes |= {"tiles": problem.tiles, "blocks": problem.blocks}
    loads = [_load(*each, tile, reader) for each in zip(sources, operands, names, strict=True)]
    copies, producers = _copies(sources, operands, loads)
    head = fill(MMA, "tile", **holes, block="block")
    body = fill(
        TMA,
        "body",
        **holes,
        **copies,
        **_roles(tile, holes),
        barriers=tile.barriers,
        producers=producers,
        map_a=names[0],
        map_b=names[1],
        few=FEW,
        many=MANY,
        fetches=fill(MMA, "fetches", **holes, outer=outer.lines, tile=head),
        results=epilogue,
    )
    stage = stage_of(problem, params, body)
    stage.threads = tile.threads
    return stage


def _copies(
    sources: Sequence[Source], operands: Sequence[Matrix | Pixels], loads: list[dict[str, Any]]
) -> tuple[dict[str, str], int]:
    """Both operands' copies of a slot as text, and how many warps share their boxes."""
    boxes = [1 if each.along_k else s.tile // 64 for each, s in zip(operands, sources)]
    producers = min(PRODUCERS, sum(boxes))
    texts = {}
    both = zip(sources, loads, boxes, (0, boxes[0]), strict=True)
    for source, load, count, first in both:
        owner = _owner(first, count, producers)
        texts[f"load_{source.name}"] = fill(TMA, **load, boxes=count, owner=owner)
    return texts, producers


def _roles(tile: TmaTile, holes: dict[str, object]) -> dict[str, object]:
    """Which tiles a warpgroup of consumers has, and when it multiplies."""
    if not tile.ping_pong:
        rows = f"group * {tile.unit_m}" if tile.down == 2 else "0"
        columns = f"group * {tile.unit_n}" if tile.down == 1 else "0"
        part = f"const int group_m = {rows}, group_n = {columns};"
        return {
            "readers": WARPS, "part": part, "first": [], "begin": "virtual_block",
            "step": holes["blocks"], "enter": [], "leave": [], "others": [],
        }  # fmt: skip
    turns = fill(TMA, "turns", **holes)
    return {
        "readers": WARPS // 2,
        "part": "const int group_m = 0, group_n = 0;",
        "first": turns + fill(TMA, "first", **holes),
        "begin": f"virtual_block + group * {holes['blocks']}",
        "step": f"2 * {holes['blocks']}",
        "enter": ["tgc_named_barrier(1 + group, 256);  // its turn to multiply"],
        "leave": ["tgc_named_barrier_arrive(2 - group, 256);"],
        "others": [f"turn += turns(block + {holes['blocks']});"],
    }


def _described(source: Source, reader: Reader, columns: WindowColumns | None) -> Matrix | Pixels:
    operand = matrix_of(source, reader) or pixels_of(source, reader, columns)
    assert operand, f"the schedule stores {source.name} otherwise than it was chosen for"
    return operand


def _map(source: Source, matrix: Matrix | Pixels, tile: TmaTile) -> TensorMap:
    """Boxes of a slot: rows of 128 bytes, of one value of k or of one row or column each."""
    if isinstance(matrix, Pixels):
        return map_of(source, matrix, tile)
    itemsize = matrix.node.dtype.itemsize
    shape = [source.k, source.extent] if matrix.along_k else [source.extent, source.k]
    rows = source.tile if matrix.along_k else tile.k
    strides, box = [matrix.stride * itemsize], [SWIZZLE // itemsize, rows]
    if matrix.apart:
        shape.append(matrix.batch.high + 1)
        strides.append(matrix.apart * itemsize)
        box.append(1)
    offset, axes = matrix.offset * itemsize, tuple(shape)
    return TensorMap(matrix.node, offset, axes, tuple(strides), tuple(box), SWIZZLE)


def _owner(first: int, boxes: int, producers: int) -> str:
    """C text of the producer of a box, of which the operand's first has this number."""
    if boxes == 1:
        return str(first % producers)
    return f"(box + {first}) % {producers}" if first else f"box % {producers}"


def _load(
    source: Source, matrix: Matrix | Pixels, name: str, tile: TmaTile, reader: Reader
) -> dict[str, Any]:
    """The section of the copies of a slot, and what fills it."""
    if isinstance(matrix, Pixels):
        return load_of(source, matrix, tile, name)
    first = f"tile_{source.other} * {source.tile}"
    at = ["k_first", first] if matrix.along_k else [f"{first} + box * 64", "k_first"]
    if matrix.apart:
        at.append(reader.index_text(matrix.batch))
    return {
        "section": "load",
        "axes": len(at),
        "at": ", ".join(at),
        "side": source.name,
        "bytes": tile.slot(False, source.tile),
        "block_bytes": tile.block_bytes,
        "map": name,
    }
