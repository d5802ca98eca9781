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
from tinygrad_cuda.lowering.codegen.affine import AffineLeaf, Index
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Scope, is_wide
from tinygrad_cuda.lowering.codegen.skeleton import (
    Exchange,
    KernelParams,
    Scratch,
    Stage,
    TensorMap,
    fill,
)
from tinygrad_cuda.lowering.schedule.fusion import trace
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles
from tinygrad_cuda.lowering.skeletons.contract.contract import with_sum
from tinygrad_cuda.lowering.skeletons.contract.loads import (
    Reader,
    Source,
    memory_of,
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
from tinygrad_cuda.lowering.skeletons.contract.mma_tiles import (
    COPY,
    SWIZZLE,
    TMA_TILES,
    WARPS,
    MnMajorTile,
    TmaTile,
)
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Product, ProductCut
from tinygrad_cuda.lowering.skeletons.contract.tma_pixels import Pixels, load_of, map_of, pixels_of

TMA = "contract_tma.cuh"
MAX_STRIDE = 1 << 40  # bytes between neighbours of an axis
MAX_EXTENT = 1 << 32  # elements of an axis, as MAX_STRIDE a limit of tensor maps
PRODUCERS = 4  # warps that copy at most: one thread takes longer for four boxes of windows
BAND_ROWS = 1024  # of outputs that blocks compute at one time, so that operands stay in L2
# Registers of a producer's thread and of a consumer's: together those of a multiprocessor.
FEW, MANY = 40, 232
FEW_BESIDE_COLUMNS, MANY_FOR_COLUMNS = 24, 240  # where an epilogue carries columns
# With a warpgroup that transposes, whose thread has 32 numbers of a box.
SOME, MANY_BESIDE = 72, 200


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
    along_k: bool = False,
) -> bool:
    """Whether TMA has maps of both operands, once they are in memory.

    Args:
        copied: which of them is stored along k before.
        columns: the windows of which B is columns, if it is.
        along_k: whether the others are to lie along k.
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
        if along_k and isinstance(operand, Matrix) and not operand.along_k:
            return False
    return True


def tma_stages(kernel: Kernel, cut: ProductCut[TmaTile]) -> list[Stage]:
    """One stage, or two where the sum over k is split among blocks."""
    problem = MatrixContraction(kernel, cut)
    if cut.shares and _reads_more(problem):
        product = Product(problem.batches, problem.m, problem.n, problem.k, 4)
        problem = MatrixContraction(
            kernel, mma_tiles.quickest_cut(product, kernel.target, TMA_TILES)
        )
    return with_sum(problem, _product(problem, problem.tile))


def _reads_more(problem: MatrixContraction) -> bool:
    """Whether the epilogue reads a value of the outputs' size: a parameter, its moments.

    The blocks that store tiles are too few to bring it: with AdamW's update behind it the weight's
    gradient of 768 x 3072 x 8192 takes 103 us on an H200, slices and their join 93.
    """
    operands = memory_of(problem.a) | memory_of(problem.b)
    return not operands.issuperset(problem.kernel.full_size_reads)


def _product(problem: MatrixContraction, tile: TmaTile) -> Stage:
    """The stage that multiplies; with split-K it leaves the slices in scratch memory."""
    kernel, params = problem.kernel, KernelParams()
    reader = Reader(params, set(kernel.reads), is_wide(kernel), kernel.target, kernel.narrowed)
    outer = Scope("batch")
    sources = sources_of(problem.a, problem.b, tile.m, tile.n)
    reader.scopes = [outer, Scope("k", "m", "n")]
    columns = problem.node.attributes.get("windows")
    operands = [_described(source, reader, columns) for source in sources]
    maps = [_map(*each, tile) for each in zip(sources, operands, strict=True)]
    epilogue = results_text(problem, reader, outer)
    holes = _sizes(problem, *operands)
    roles = (_shared if problem.cut.shares else _whole)(problem, holes, params, outer)
    names = params.tensor_maps(maps)  # behind all other parameters
    loads = [_load(*each, tile, reader) for each in zip(sources, operands, names, strict=True)]
    copies, producers = _copies(sources, operands, loads, tile)
    body = fill(
        TMA,
        "body",
        **holes,
        **copies,
        **_roles(tile, holes) | roles,
        **_products(problem, holes | roles, *operands),
        barriers=tile.barriers,
        producers=producers,
        map_a=names[0],
        map_b=names[1],
        few=FEW if problem.columns is None else FEW_BESIDE_COLUMNS,
        results=epilogue,
    )
    stage = stage_of(problem, params, body)
    transposes = isinstance(tile, MnMajorTile) and not operands[1].along_k
    stage.threads = tile.threads + (128 if transposes else 0)
    stage.waits = bool(problem.cut.shares)
    stage.cluster = problem.slices if problem.cut.cluster else 1
    return stage


def _sizes(problem: MatrixContraction, a: Matrix | Pixels, b: Matrix | Pixels) -> dict[str, object]:
    """The sizes that fill the skeleton, once it is clear how operands lie."""
    tile: TmaTile = problem.tile
    return {
        **sizes_of(problem),
        **descriptors(tile, *_across(tile, a, b)),
        "band": _band(problem, tile),
        "bytes_a": tile.slot(False, tile.m),
        "bytes_b": tile.slot(False, tile.n),
        "tiles": problem.tiles,
        "blocks": problem.blocks,
    }


def _across(tile: TmaTile, a: Matrix | Pixels, b: Matrix | Pixels) -> tuple[bool, bool]:
    """Which operands wgmma reads across k: those of 32 bits come to it along k."""
    return (False, False) if tile.itemsize == 4 else (not a.along_k, not b.along_k)


def _products(
    problem: MatrixContraction,
    holes: dict[str, object],
    a: Matrix | Pixels,
    b: Matrix | Pixels,
) -> dict[str, object]:
    """How the consumers multiply a slot, and what makes it ready for them."""
    tile: TmaTile = problem.tile
    made: dict[str, object] = {key: [] for key in ("ready", "init_ready", "await_ready")}
    made |= {name: fill(TMA, name, **holes) for name in ("matrix_a", "products", "last_products")}
    many = MANY if problem.columns is None else MANY_FOR_COLUMNS
    made |= {"many": many, "transpose": [], "columns_b": f"group_n / 64 * {tile.block_bytes}"}
    if not isinstance(tile, MnMajorTile):
        return made
    natural = a.along_k or b.along_k  # the order of k in memory; else 0 2 4 6 1 3 5 7 of eight
    sizes = holes | {
        "k_step": 1 if natural else 2, "k_half": 4 if natural else 1, "box_bytes": tile.box_bytes,
        "boxes_b": tile.n // tile.box, "transposers": tile.threads, "some": SOME,
    }  # fmt: skip
    made["columns_b"] = f"group_n * {SWIZZLE}"  # of which a group may have 96
    if not a.along_k:
        made |= {
            "matrix_a": fill(TMA, "rows_a", **sizes), "last_products": [],
            "products": fill(TMA, "register_products", **sizes),
        }  # fmt: skip
    if not b.along_k:
        made |= {
            "many": MANY_BESIDE,
            "ready": [f"unsigned long long* const ready = empty + {tile.stages};"],
            "init_ready": ["tgc_barrier_init(ready + slot, 4);"],
            "await_ready": ["tgc_barrier_wait(ready + slot, parity);"],
            "transpose": fill(TMA, "transpose", **sizes),
        }
    return made


def _whole(
    problem: MatrixContraction, holes: dict[str, object], params: KernelParams, outer: Scope
) -> dict[str, object]:
    """Of blocks that have whole tiles, or slices: which ones, in turn."""
    cluster = problem.cut.cluster
    head = fill(MMA, "tile", **holes, block="unit" if cluster else "block")
    file, section = (TMA, "cluster_fetches") if cluster else (MMA, "fetches")
    sizes = holes | {"slices": problem.slices}
    return {
        "share": [], "join": [], "last": holes["tiles"],
        "fetch_begin": "virtual_block", "fetch_next": f"block += {holes['blocks']}",
        "fetches": fill(file, section, **sizes, outer=outer.lines, tile=head),
    }  # fmt: skip


def _shared(
    problem: MatrixContraction, holes: dict[str, object], params: KernelParams, outer: Scope
) -> dict[str, object]:
    """Of blocks that have equal shares of all tiles' turns of the ring: see contract_tma.cuh."""
    tile, cut = problem.tile, shares_of(problem)
    assert not tile.ping_pong, "warpgroups with tiles of their own have no sums to share"
    partials = params.scratch(Scratch(cut.partials * tile.m * tile.n * 4), "float", True)
    sizes = holes | cut._asdict() | {
        "owners": cut.slices * cut.tiles, "first_rest": cut.slices * cut.slice, "warps": WARPS,
        "consumers": 32 * WARPS, "quads": tile.m * tile.n // (32 * WARPS) // 4,
        "partials": partials, "flags": params.exchange(Exchange(8 * WARPS * problem.blocks)),
    }  # fmt: skip
    head = fill(MMA, "tile", **sizes, block="unit")
    end = f"share_begin + {cut.slice}"
    if not cut.helpers:
        last = f"(number % {cut.tiles} + 1) * {cut.turns}"
        end = f"(number / {cut.tiles} < {cut.slices - 1} ? {end} : {last})"
    next_tile = "block = (block / length + 1) * length"
    return {
        "share": fill(TMA, "share", **sizes, slice_end=end),
        "fetches": fill(TMA, "share_fetches", **sizes, outer=outer.lines, tile=head),
        "first": fill(TMA, "share_first", **sizes),
        "join": fill(TMA, "share_join", **sizes, **_helped(cut, sizes)),
        "begin": "share_begin", "last": "share_end", "next": next_tile,
        "fetch_begin": "share_begin", "fetch_next": next_tile,
    }  # fmt: skip


def _helped(cut: Shares, sizes: dict[str, object]) -> dict[str, object]:
    """How a tile's block goes through the helpers behind the slices."""
    if not cut.helpers:
        return {"first_helper": [], "next_helper": ["break;"]}
    return {name: fill(TMA, name, **sizes) for name in ("first_helper", "next_helper")}


class Shares(NamedTuple):
    """How blocks share the turns of the ring that tiles take.

    Attributes:
        tiles: of all batches.
        turns: of a tile.
        slices: of a tile that have a block each, of `slice` turns, from its first one on.
        slice: turns of such a block.
        rest: turns of a tile behind its slices, which helpers share.
        helpers: the other blocks; helper h begins with turn `each` h + min(h, `more`) of all rests.
        pieces: tiles that one helper has a part of, at most.
    """

    tiles: int
    turns: int
    slices: int
    slice: int
    rest: int
    helpers: int
    each: int
    more: int
    pieces: int

    @property
    def partials(self) -> int:
        """Sums of a tile that blocks leave for others."""
        return (self.slices - 1) * self.tiles + self.helpers * self.pieces

    def begin(self, helper: int) -> int:
        return helper * self.each + min(helper, self.more)

    @property
    def begins(self) -> list[tuple[int, int]]:
        """The tile and the turn in it with which each block begins."""
        slices = [(u, s * self.slice) for s in range(self.slices) for u in range(self.tiles)]
        starts = [divmod(self.begin(h), self.rest) for h in range(self.helpers)]
        return slices + [(unit, self.slices * self.slice + turn) for unit, turn in starts]


def shares_of(problem: MatrixContraction) -> Shares:
    """Slices for as many blocks as there are for all tiles evenly, and what is left for the others.

    Blocks with slices read the same values of k at one time, and share them in the L2 cache.
    """
    tiles, blocks = problem.tiles, problem.blocks
    turns, slices = -(-problem.k // problem.tile.k), blocks // tiles
    assert slices, "each tile has a block that stores it"
    slice_, helpers = tiles * turns // blocks, blocks - slices * tiles
    if not helpers:  # the last slice of a tile has all that is left
        return Shares(tiles, turns, slices, slice_, 1, 0, 0, 0, 1)
    rest = turns - slices * slice_
    assert tiles * rest >= helpers, "each helper has a turn"
    each, more = divmod(tiles * rest, helpers)
    cut = Shares(tiles, turns, slices, slice_, rest, helpers, each, more, 0)
    ends = [(cut.begin(h), cut.begin(h + 1) - 1) for h in range(helpers)]
    return cut._replace(pieces=max(last // rest - first // rest + 1 for first, last in ends))


def _band(problem: MatrixContraction, tile: TmaTile) -> int:
    """Rows of tiles that blocks compute at one time.

    Helpers read other values of k than the blocks with slices: those with the same k are to have
    the same rows or columns.
    """
    usual = min(BAND_ROWS // tile.m, problem.tiles_m)
    if not problem.cut.shares:
        return usual
    m, n = problem.tiles_m, problem.tiles_n
    begins = shares_of(problem).begins

    def loaded(band: int) -> int:
        boxes = set()
        for unit, turn in begins:
            batch, index = divmod(unit, m * n)
            first = index // (band * n) * band
            rows, inner = min(m - first, band), index % (band * n)
            row, column = first + inner % rows, inner // rows
            boxes.update({(batch, "a", row, turn), (batch, "b", column, turn)})
        return sum(tile.m if box[1] == "a" else tile.n for box in boxes)

    return min(dict.fromkeys((usual, 1, min(2, m), min(4, m), m)), key=loaded)


def _copies(
    sources: Sequence[Source],
    operands: Sequence[Matrix | Pixels],
    loads: list[dict[str, Any]],
    tile: TmaTile,
) -> tuple[dict[str, str], int]:
    """Both operands' copies of a slot as text, and how many warps share their boxes."""
    boxes = [1 if each.along_k else s.tile // tile.box for each, s in zip(operands, sources)]
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
            "next": f"block += {holes['blocks']}", "enter": [], "leave": [], "others": [],
        }  # fmt: skip
    turns = fill(TMA, "turns", **holes)
    return {
        "readers": WARPS // 2,
        "part": "const int group_m = 0, group_n = 0;",
        "first": turns + fill(TMA, "first", **holes),
        "begin": f"virtual_block + group * {holes['blocks']}",
        "next": f"block += 2 * {holes['blocks']}",
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
    at = ["k_first", first] if matrix.along_k else [f"{first} + box * {tile.box}", "k_first"]
    if matrix.apart:
        at.append(reader.index_text(matrix.batch))
    return {
        "section": "load",
        "axes": len(at),
        "at": ", ".join(at),
        "side": source.name,
        "bytes": tile.slot(False, source.tile),
        "box_bytes": tile.box_bytes,
        "map": name,
    }
