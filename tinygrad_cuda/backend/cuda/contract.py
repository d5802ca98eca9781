"""CONTRACT: matrix products, any transposition and batch through their loads, with an epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tinygrad_cuda.backend.cuda import index as ix
from tinygrad_cuda.backend.cuda.expression import Evaluator, Lane, Scope
from tinygrad_cuda.backend.cuda.index import Index
from tinygrad_cuda.backend.cuda.store import Stores, comment, is_wide, stem
from tinygrad_cuda.backend.cuda.template import THREADS, Scratch, Stage, fill, wrapped
from tinygrad_cuda.backend.cuda.tiling import MULTIPROCESSORS, PAD, Tile, plan
from tinygrad_cuda.backend.cuda.words import Words, literal
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.schedule import Kernel

BAND = 8  # rows of tiles that are walked together, so that their operands stay in the L2 cache
JOINED = 8  # parts that a thread of the second stage adds at least
RESULTS = 8  # neighbouring results of a block of the second stage at least


class _Problem:
    """The sizes of a contraction and the tile that they get."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.node: Node = kernel.anchors[0]
        self.a, self.b = self.node.sources
        self.m, self.k = self.a.shape[-2:]
        self.n = self.b.shape[-1]
        self.batch_shape = self.a.shape[:-2]
        self.batches = prod(self.batch_shape)
        self.dtype = self.node.dtype
        found = plan(self.batches, self.m, self.n, self.k, _bytes(self.dtype))
        self.tile, self.chunk, self.parts = found.tile, found.chunk, found.parts
        self.tiles_m = -(-self.m // self.tile.m)
        self.tiles_n = -(-self.n // self.tile.n)
        self.blocks = self.tiles_m * self.tiles_n * self.batches * self.parts
        self.type = self.dtype.compute

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k


def contract_stages(kernel: Kernel) -> list[Stage]:
    """One stage, or two where the sum over k is split among blocks."""
    problem = _Problem(kernel)
    if problem.parts == 1:
        return [_product(problem, None)]
    scratch = Scratch(problem.parts * kernel.numel * max(problem.dtype.itemsize, 4))
    first = _product(problem, scratch)
    return [first, _sum_parts(problem, scratch, first)]


@dataclass
class _Side:
    """How one operand comes into shared memory.

    Attributes:
        along: the axis that neighbouring threads follow (``k``, or the operand's other one).
        width: elements a thread loads at once along it.
    """

    name: str
    node: Node
    other: str
    extent: int
    tile: int
    along: str
    width: int


def _side(problem: _Problem, name: str) -> _Side:
    """Follows the axis along which the operand lies in memory."""
    node = problem.a if name == "a" else problem.b
    other, extent, tile = (
        ("m", problem.m, problem.tile.m) if name == "a" else ("n", problem.n, problem.tile.n)
    )
    k, line = ix.variable("k", problem.k), ix.variable(other, extent)
    trial = Evaluator(Words(), set(problem.kernel.reads), True)
    trial.scopes = [Scope("batch"), Scope("k", other)]
    batch = ix.unflatten(ix.variable("batch", problem.batches), problem.batch_shape)
    trial.value(node, (*batch, *((line, k) if name == "a" else (k, line))))
    along, loads = "k", trial.loaded
    if loads and problem.k > 1 and extent > 1:
        split = [(ix.split_lane(index, k), ix.split_lane(index, line)) for _, index in loads]
        follows_k = any(a and a[0] == 1 for a, _ in split)
        follows_line = any(b and b[0] == 1 for _, b in split)
        along = "k" if follows_k or not follows_line else other
    elif problem.k == 1:
        along = other
    size, step = (problem.k, problem.tile.k) if along == "k" else (extent, tile)
    width = max(1, min(4, 16 // max((n.dtype.itemsize for n, _ in loads), default=4)))
    while size % width or step % width or problem.tile.k * tile // width < THREADS:
        width //= 2
        if width <= 1:
            width = 1
            break
    return _Side(name, node, other, extent, tile, along, width)


def _product(problem: _Problem, scratch: Scratch | None) -> Stage:
    """The stage that multiplies; with `scratch` it leaves parts of the sums there."""
    kernel, tile = problem.kernel, problem.tile
    words = Words()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel))
    outer = Scope("batch")
    a, b = _side(problem, "a"), _side(problem, "b")
    batch = ix.variable("batch", problem.batches)
    fetch_a, fetch_b = (_fetch(problem, writer, outer, side, batch) for side in (a, b))
    results = _results(problem, writer, outer, batch, scratch)
    product = _sum(problem.dtype, "sum[i][j]", "a[step % 2][i] * b[step % 2][j]")
    body = fill(
        "contract.cuh",
        "body",
        **_sizes(problem),
        stride_a=tile.m + PAD,
        stride_b=tile.n + PAD,
        loads_a=_loads(tile, a),
        loads_b=_loads(tile, b),
        width_a=a.width,
        width_b=b.width,
        outer=outer.lines,
        fetch_a=fetch_a,
        fetch_b=fetch_b,
        put_a=_put(problem, a),
        put_b=_put(problem, b),
        multiply=f"sum[i][j] = {product};",
        results=results,
    )
    sizes = f"{problem.batches} x {problem.m} x {problem.n} x {problem.k}"
    label = comment(
        kernel,
        f"CONTRACT {sizes}, tiles of {tile.m} x {tile.n} x {tile.k}, k in {problem.parts} parts, "
        f"{problem.flops} FLOPs",
        problem.blocks,
    )
    name = stem(kernel) + ("_parts" if scratch else "")
    stage = wrapped(
        kernel, name, body, words.list, problem.blocks, tile.shared(_bytes(problem.dtype)), label
    )
    stage.dense = 2 if tile.groups == 1 and _bytes(problem.dtype) <= 4 else 1
    return stage


def _sizes(problem: _Problem) -> dict[str, object]:
    """What the skeleton must know of the problem and its tile."""
    tile = problem.tile
    return {
        "type": problem.type,
        "m": problem.m,
        "k": problem.k,
        "chunk": problem.chunk,
        "batches": problem.batches,
        "tiles_m": problem.tiles_m,
        "tiles_n": problem.tiles_n,
        "tiles": problem.tiles_m * problem.tiles_n,
        "band": min(BAND, problem.tiles_m),
        "tile_m": tile.m,
        "tile_n": tile.n,
        "tile_k": tile.k,
        "rows": tile.rows,
        "cols": tile.cols,
        "lanes_m": tile.lanes_m,
        "lanes_n": tile.lanes_n,
        "warps_n": tile.n // (tile.lanes_n * tile.cols),
        "places": tile.places,
        "groups": tile.groups,
        "fragment": 4 if _bytes(problem.dtype) <= 4 else 2,
        "threads": THREADS,
    }


def _results(
    problem: _Problem, writer: Evaluator, outer: Scope, batch: Index, scratch: Scratch | None
) -> str:
    """The end of the kernel: each result through the epilogue into memory."""
    tile = problem.tile
    lanes = 4 if tile.groups == 1 else max(1, min(4, tile.m * tile.n // THREADS))
    while problem.n % lanes:
        lanes //= 2
    row, load, map_, stored = _epilogue(problem, writer, outer, batch, lanes, scratch)
    return fill(
        "contract.cuh",
        "registers" if tile.groups == 1 else "shared",
        **_sizes(problem),
        lanes=lanes,
        strips=problem.n // lanes,
        turns=-(-tile.m * tile.n // (lanes * THREADS)),
        add=_sum(problem.dtype, "total", "more"),
        row=row,
        load=load,
        map=map_,
        store=stored,
    )


def _bytes(dtype: DType) -> int:
    return 4 if dtype.compute == "float" else dtype.itemsize


def _sum(dtype: DType, a: str, b: str) -> str:
    """The sum of two values; byte types wrap."""
    return f"({dtype.compute})({a} + {b})"


def _loads(tile: Tile, side: _Side) -> int:
    return -(-tile.k * side.tile // (THREADS * side.width))


def _fetch(
    problem: _Problem, writer: Evaluator, outer: Scope, side: _Side, batch: Index
) -> list[str]:
    """The loop in which each thread loads its share of a tile into registers."""
    tile, width = problem.tile, side.width
    line = side.other if side.along == "k" else "k"
    size = problem.k if side.along == "k" else side.extent
    steps = ix.variable("step", size // width)
    v = ix.variable("v", width)
    along = steps * width + v
    across = ix.variable(line, side.extent if line != "k" else problem.k)
    k, other = (along, across) if side.along == "k" else (across, along)
    writer.scopes = [outer, Scope(line, "step"), Scope("v")]
    writer.lane = Lane(v, width)
    places = (
        *ix.unflatten(batch, problem.batch_shape),
        *((other, k) if side.name == "a" else (k, other)),
    )
    value = writer.value(side.node, places)
    writer.scopes[2].lines.append(f"hold_{side.name}[i * {width} + v] = {value};")
    tile_first = f"tile_{side.other} * {side.tile}"
    along_first = "k_first" if side.along == "k" else tile_first
    line_length = (tile.k if side.along == "k" else side.tile) // width
    lines = side.tile if side.along == "k" else tile.k
    inside = [f"e < {lines * line_length}"]
    if side.along == "k":
        inside += [f"{line} < {side.extent}", f"step * {width} < k_last"]
    else:
        inside += ["k < k_last", f"step < {size // width}"]
    return fill(
        "contract.cuh",
        "fetch",
        loads=_loads(tile, side),
        threads=THREADS,
        line=line,
        line_first=tile_first if side.along == "k" else "k_first",
        line_length=line_length,
        along="step",
        along_first=along_first if width == 1 else f"({along_first}) / {width}",
        inside=" && ".join(inside),
        width=width,
        side=side.name,
        zero=literal(0, problem.dtype),
        load=writer.scopes[1].lines,
        map=writer.scopes[2].lines,
    ).splitlines()


def _put(problem: _Problem, side: _Side) -> list[str]:
    """The loop in which a thread's share goes from registers to shared memory, k-major."""
    tile, width = problem.tile, side.width
    line_length = (tile.k if side.along == "k" else side.tile) // width
    lines = side.tile if side.along == "k" else tile.k
    stride = side.tile + PAD
    along, line = f"(e % {line_length} * {width} + v)", f"e / {line_length}"
    place = f"{along} * {stride} + {line}" if side.along == "k" else f"{line} * {stride} + {along}"
    return fill(
        "contract.cuh",
        "put",
        loads=_loads(tile, side),
        threads=THREADS,
        width=width,
        count=lines * line_length,
        side=side.name,
        place=place,
        tile_k=tile.k,
        stride=stride,
    ).splitlines()


def _epilogue(
    problem: _Problem,
    writer: Evaluator,
    outer: Scope,
    batch: Index,
    lanes: int,
    scratch: Scratch | None,
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Statements for each row, each strip before and in its lanes, and after them."""
    m = ix.variable("m", problem.m)
    strip, v = ix.variable("strip", problem.n // lanes), ix.variable("v", lanes)
    flat = (batch * problem.m + m) * problem.n + strip * lanes + v
    writer.scopes = [outer, Scope("m"), Scope("strip"), Scope("v")]
    writer.lane = Lane(v, lanes)
    if scratch is not None:
        pointer = writer.words.scratch(scratch, problem.type, True)
        place = f"part * {problem.kernel.numel}LL + {writer.index_text(flat)}"
        writer.scopes[3].lines.append(f"tgc_store({pointer}, {place}, total);")
        return [], [], writer.scopes[3].lines, []
    stores = Stores(writer, problem.kernel)
    writer.anchored[problem.node] = "total"
    writer.floors = dict.fromkeys(problem.kernel.nodes, 3)
    for node in problem.kernel.stores:
        stores.put(node, flat, writer.value(node, ix.unflatten(flat, node.shape)))
    return writer.scopes[1].lines, writer.scopes[2].lines, writer.scopes[3].lines, stores.after


def _sum_parts(problem: _Problem, scratch: Scratch, first: Stage) -> Stage:
    """The second stage: adds the parts in their order, and the epilogue.

    Where there are few results, several threads share the parts of each.
    """
    kernel = problem.kernel
    groups = 1
    while (
        2 * groups * kernel.numel <= MULTIPROCESSORS * THREADS
        and problem.parts >= 2 * groups * JOINED
        and THREADS // groups > RESULTS
    ):
        groups *= 2
    words = Words()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel))
    item = ix.variable("item", kernel.numel)
    writer.scopes = [Scope("item"), Scope("v")]
    pointer = words.scratch(scratch, problem.type, False)
    writer.anchored[problem.node] = "total"
    stores = Stores(writer, kernel)
    for node in kernel.stores:
        stores.put(node, item, writer.value(node, ix.unflatten(item, node.shape)))
    body = fill(
        "contract.cuh",
        "join",
        index="long long" if writer.wide else "int",
        type=problem.type,
        zero=literal(0, problem.dtype),
        threads=THREADS,
        items=kernel.numel,
        results=THREADS // groups,
        groups=groups,
        parts=problem.parts,
        turns=-(-problem.parts // groups),
        add=_sum(problem.dtype, "sum", f"tgc_load({pointer}, part * {kernel.numel}LL + item)"),
        more=_sum(problem.dtype, "total", f"shared[other * {THREADS // groups} + place]"),
        load=writer.scopes[0].lines + writer.scopes[1].lines + stores.after,
    )
    blocks = -(-kernel.numel // (THREADS // groups))
    label = comment(kernel, f"Second stage, {kernel.numel} sums of {problem.parts} parts", blocks)
    name = stem(kernel) + "_join"
    shared = THREADS * _bytes(problem.dtype) if groups > 1 else 0
    stage = wrapped(kernel, name, body, words.list, blocks, shared, label, second=True)
    stage.after.append(first)
    return stage
