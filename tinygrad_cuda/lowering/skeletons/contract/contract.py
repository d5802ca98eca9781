"""CONTRACT: matrix products, any transposition and batch through their loads, with an epilogue."""

from __future__ import annotations

from math import gcd, prod

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.graph.ops.convolution import convolution
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.params import KernelParams, literal
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, Scratch, Stage, fill, wrapped
from tinygrad_cuda.lowering.codegen.store import Stores, comment, is_wide, stem
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.contract.loads import Reader, fetched, sources_of
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import (
    PAD,
    Plan,
    itemsize_of,
)
from tinygrad_cuda.lowering.skeletons.conv.direct import Cut, lanes_of
from tinygrad_cuda.lowering.skeletons.conv.direct import body as direct_body
from tinygrad_cuda.lowering.skeletons.conv.weight_gradient import ImagePart
from tinygrad_cuda.lowering.skeletons.conv.weight_gradient import body as correlated_body
from tinygrad_cuda.lowering.skeletons.conv.windows import operands_of

BAND = 8  # rows of tiles that are walked together, so that their operands stay in the L2 cache
JOINED = 8  # parts that a thread of the second stage adds at least
SQUARE = (128, 128)  # the tile of large products
RESULTS = 8  # neighbouring results of a block of the second stage at least


class _Problem:
    """The sizes of a contraction, and into how many parts its sum is split."""

    def __init__(self, kernel: Kernel, parts: int = 1) -> None:
        self.kernel = kernel
        self.node: Node = kernel.anchors[0]
        self.a, self.b = operands_of(self.node)
        *batch_shape, self.m, self.k = self.a.shape
        self.n, self.batches = self.b.shape[-1], prod(batch_shape)
        self.dtype = self.node.dtype
        self.type = self.dtype.compute
        nbytes = parts * kernel.numel * max(self.dtype.itemsize, 4)
        self.parts = parts
        self.scratch = Scratch(nbytes) if parts > 1 else None

    def place(self, flat: Index) -> Index:
        """Where a result is stored: in the order that its readers want."""
        split, axes = self._order
        if not axes:
            return flat
        at = ix.unflatten(flat, split)
        return ix.flatten([at[axis] for axis in axes], [split[axis] for axis in axes])

    @property
    def _order(self) -> tuple[Shape, Shape]:
        """The axes that the product's elements fall into, and their order in memory if another."""
        node = self.node
        if node.op is convolution:  # channels, images, places
            return (node.shape[1], node.shape[0], prod(node.shape[2:])), (1, 0, 2)
        if node.op is contraction.matmul and node.attributes:
            return node.attributes["split"], node.attributes["axes"]
        return (self.n,), ()

    @property
    def run(self) -> int:
        """Neighbouring results of a row that are neighbours in memory."""
        split, _ = self._order
        return gcd(self.n, split[-1])

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k


class _Tiled(_Problem):
    """One whose results fall into tiles."""

    def __init__(self, kernel: Kernel, plan: Plan) -> None:
        super().__init__(kernel, plan.parts)
        self.plan, self.tile, self.chunk = plan, plan.tile, plan.chunk
        self.tiles_m = -(-self.m // self.tile.m)
        self.tiles_n = -(-self.n // self.tile.n)
        self.blocks = self.tiles_m * self.tiles_n * self.batches * self.parts


def tiled_stages(kernel: Kernel, plan: Plan) -> list[Stage]:
    """One stage, or two where the sum over k is split among blocks."""
    problem = _Tiled(kernel, plan)
    return _with_sum(problem, _product(problem))


def direct_stages(kernel: Kernel, cut: Cut) -> list[Stage]:
    """One stage: blocks have parts of images."""
    return [_direct(_Problem(kernel), cut)]


def weight_gradient_stages(kernel: Kernel, part: ImagePart) -> list[Stage]:
    """One stage, or two where blocks share the images."""
    problem = _Problem(kernel, part.blocks)
    return _with_sum(problem, _correlated(problem, part))


def _with_sum(problem: _Problem, first: Stage) -> list[Stage]:
    """A stage, and the one that adds its parts if there are several."""
    return [first] if problem.scratch is None else [first, _sum_parts(problem, first)]


def _direct(problem: _Problem, cut: Cut) -> Stage:
    """The one stage of a convolution of few channels."""
    kernel = problem.kernel
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel))
    outer = Scope("image")
    lanes = lanes_of(cut, 4)
    epilogue = _epilogue(problem, writer, outer, ix.constant(0), lanes)
    body = direct_body(cut, problem.a, problem.node.sources[0], writer, outer, lanes, epilogue)
    label = comment(
        kernel,
        f"conv_direct, {cut.windows.images} images of {cut.m} channels, {cut.rows} rows a block, "
        f"{cut.run} neighbours of {cut.outputs} channels a thread, {problem.flops} FLOPs",
        cut.blocks,
    )
    return wrapped(kernel, stem(kernel), body, words.list, cut.blocks, cut.shared, label)


def _correlated(problem: _Problem, part: ImagePart) -> Stage:
    """The stage that goes over the images; of several blocks it leaves the parts in memory."""
    kernel = problem.kernel
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel))
    outer = Scope("part")
    epilogue = _epilogue(problem, writer, outer, ix.constant(0), 1)
    body = correlated_body(part, problem.a, problem.node.sources[1], writer, outer, epilogue)
    label = comment(
        kernel,
        f"conv_weight_gradient of a kernel {part.m} x {problem.n}, {part.rows} rows of an image at "
        f"once, {part.blocks} parts, {problem.flops} FLOPs",
        part.blocks,
    )
    name = stem(kernel) + ("_parts" if problem.scratch else "")
    return wrapped(kernel, name, body, words.list, part.blocks, part.shared, label)


def _product(problem: _Tiled) -> Stage:
    """The stage that multiplies; of a split sum it leaves the parts in scratch memory."""
    kernel, tile = problem.kernel, problem.tile
    words = KernelParams()
    writer = Reader(words, set(kernel.reads), is_wide(kernel), kernel.target)
    outer = Scope("batch")
    batch = ix.variable("batch", problem.batches)
    shared = tile.shared(itemsize_of(problem.dtype))
    sources = sources_of(problem.a, problem.b, tile.m, tile.n)
    a = fetched(sources[0], problem.plan, shared, writer, outer, problem.dtype)
    shared += a.shared
    b = fetched(sources[1], problem.plan, shared, writer, outer, problem.dtype)
    shared += b.shared
    results = _results(problem, writer, outer, batch)
    factor = "kept[step]" if tile.streamed else "b[step % 2][j]"
    sizes = _sizes(problem)
    read_b = [] if tile.streamed else fill("contract.cuh", "read", **sizes, stride_b=tile.n + PAD)
    keep = fill("contract.cuh", "keep", **sizes) if tile.streamed else []
    more = problem.chunk > tile.k  # of k than one tile
    body = fill(
        "contract.cuh",
        "body",
        **sizes,
        tile=_place(problem, "virtual_block", "threadIdx.x"),
        stride_a=tile.m + PAD,
        read_b=read_b,
        keep=keep,
        kept=[f"{problem.type} kept[{tile.k}];"] if tile.streamed else [],
        loads_a=a.loads,
        loads_b=b.loads,
        width_a=a.width,
        width_b=b.width,
        outer=outer.lines,
        before=[*a.before, *b.before, *(["__syncthreads();"] if a.shared + b.shared else [])],
        fetch_a=a.fetch,
        fetch_b=b.fetch,
        put_a=a.put,
        put_b=[] if tile.streamed else b.put,
        factor=factor,
        fetch_next=[f"fetch(k_first + {tile.k});  // beyond the last tile nothing is loaded"]
        * more,
        put_next=fill("contract.cuh", "put_next") if more else [],
        results=results,
    )
    shape = f"{problem.batches} x {problem.m} x {problem.n} x {problem.k}"
    label = comment(
        kernel,
        f"contract {shape}, tiles of {tile.m} x {tile.n} x {tile.k}, k in {problem.parts} parts, "
        f"{problem.flops} FLOPs",
        problem.blocks,
    )
    name = stem(kernel) + ("_parts" if problem.scratch else "")
    stage = wrapped(kernel, name, body, words.list, problem.blocks, shared, label)
    stage.dense = (
        tile.resident(itemsize_of(problem.dtype), kernel.target) if tile.groups == 1 else 1
    )
    return stage


def _sizes(problem: _Tiled) -> dict[str, object]:
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
        "quad": min(4, tile.cols),
        "places": tile.places,
        "groups": tile.groups,
        "steps": tile.k // tile.groups,
        "fragment": 4 if itemsize_of(problem.dtype) <= 4 else 2,
        "threads": THREADS,
    }


def _place(problem: _Tiled, block: str, thread: str) -> str:
    """Which tile is the block's, and which of its results are the thread's."""
    return fill("contract.cuh", "tile", **_sizes(problem), block=block, thread=thread)


def _results(problem: _Tiled, writer: Evaluator, outer: Scope, batch: Index) -> str:
    """The end of the kernel: each result through the epilogue into memory."""
    tile = problem.tile
    lanes = min(4, tile.cols if tile.groups == 1 else max(1, tile.m * tile.n // THREADS))
    while problem.run % lanes:
        lanes //= 2
    row, load, map_, stored = _epilogue(problem, writer, outer, batch, lanes)
    text = fill(
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
    if (tile.m, tile.n) != SQUARE:
        return text
    # Its sums fill the registers: addresses kept for the results would be spilled in the loop.
    again = _place(problem, "block_again", "thread_again")
    return fill("contract.cuh", "anew", tile=again, results=text)


def _sum(dtype: DType, a: str, b: str) -> str:
    """The sum of two values; byte types wrap."""
    return f"({dtype.compute})({a} + {b})"


def _epilogue(
    problem: _Problem,
    writer: Evaluator,
    outer: Scope,
    batch: Index,
    lanes: int,
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Statements for each row, each strip before and in its lanes, and after them."""
    m = ix.variable("m", problem.m)
    strip, v = ix.variable("strip", problem.n // lanes), ix.variable("v", lanes)
    flat = problem.place((batch * problem.m + m) * problem.n + strip * lanes + v)
    writer.scopes = [outer, Scope("m"), Scope("strip"), Scope("v")]
    writer.lane = Lane(v, lanes)
    if problem.scratch is not None:
        pointer = writer.words.scratch(problem.scratch, problem.type, True)
        place = f"part * {problem.kernel.numel}LL + {writer.index_text(flat)}"
        writer.scopes[3].lines.append(f"tgc_store({pointer}, {place}, total);")
        return [], [], writer.scopes[3].lines, []
    stores = Stores(writer, problem.kernel)
    writer.anchored[problem.node] = "total"
    writer.floors = dict.fromkeys(problem.kernel.nodes, 3)
    for node in problem.kernel.stores:
        stores.put(node, flat, writer.value(node, ix.unflatten(flat, node.shape)))
    return writer.scopes[1].lines, writer.scopes[2].lines, writer.scopes[3].lines, stores.after


def _sum_parts(problem: _Problem, first: Stage) -> Stage:
    """The second stage: adds the parts in their order, and the epilogue.

    Where there are few results, several threads share the parts of each.
    """
    kernel, scratch = problem.kernel, problem.scratch
    assert scratch is not None
    groups = 1
    while (
        2 * groups * kernel.numel <= kernel.target.multiprocessors * THREADS
        and problem.parts >= 2 * groups * JOINED
        and THREADS // groups > RESULTS
    ):
        groups *= 2
    split = groups > 1
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
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
        shared=[f"{problem.type}* const shared = reinterpret_cast<{problem.type}*>(smem);"] * split,
        exchange=["shared[threadIdx.x] = sum;", "__syncthreads();"] * split,
        parts=problem.parts,
        turns=-(-problem.parts // groups),
        add=_sum(problem.dtype, "sum", f"tgc_load({pointer}, part * {kernel.numel}LL + item)"),
        more=_sum(problem.dtype, "total", f"shared[other * {THREADS // groups} + place]"),
        load=writer.scopes[0].lines + writer.scopes[1].lines + stores.after,
    )
    blocks = -(-kernel.numel // (THREADS // groups))
    label = comment(kernel, f"Second stage, {kernel.numel} sums of {problem.parts} parts", blocks)
    name = stem(kernel) + "_join"
    shared = THREADS * itemsize_of(problem.dtype) if groups > 1 else 0
    stage = wrapped(kernel, name, body, words.list, blocks, shared, label, second=True)
    stage.after.append(first)
    return stage
