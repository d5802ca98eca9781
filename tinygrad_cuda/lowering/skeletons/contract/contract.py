"""CONTRACT: matrix products, any transposition and batch through their loads, with an epilogue."""

from __future__ import annotations

from math import gcd, prod
from typing import Generic

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops.convolution import convolution
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import (
    Evaluator,
    Lane,
    Scope,
    Stores,
    is_wide,
    literal,
)
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.skeleton import (
    THREADS,
    KernelParams,
    Scratch,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.contract.epilogue_columns import EpilogueColumns
from tinygrad_cuda.lowering.skeletons.contract.loads import (
    Reader,
    ThreadMap,
    operand_fetch,
    sources_of,
    times,
)
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import (
    PAD,
    ProductCut,
    Tile,
    TileT,
    itemsize_of,
)
from tinygrad_cuda.lowering.skeletons.conv.direct import DirectCut, lanes_of
from tinygrad_cuda.lowering.skeletons.conv.direct import body as direct_body
from tinygrad_cuda.lowering.skeletons.conv.weight_gradient import WeightGradientCut
from tinygrad_cuda.lowering.skeletons.conv.weight_gradient import body as weight_gradient_body
from tinygrad_cuda.lowering.skeletons.conv.windows import operands_of

BAND = 8  # rows of tiles that blocks visit together, so that operands stay in the L2 cache
SLICES_PER_THREAD = 8  # slices that a thread of the second stage adds at least
SQUARE = (128, 128)  # m and n of the tile of large products
RESULTS_PER_BLOCK = 8  # neighbouring outputs of a block of the second stage at least


class Contraction:
    """The sizes of a contraction, and the slices of its sum over k (split-K)."""

    def __init__(self, kernel: Kernel, slices: int = 1) -> None:
        self.kernel = kernel
        self.node: Node = kernel.anchors[0]
        self.a, self.b = operands_of(self.node)
        *batch_shape, self.m, self.k = self.a.shape
        self.n, self.batches = self.b.shape[-1], prod(batch_shape)
        self.dtype = self.node.dtype
        self.type = self.dtype.compute
        self.slices = slices
        # The first slice lies where the second stage stores its sum, if one of the outputs is that.
        self.first = _held_sum(kernel) if slices > 1 else None
        nbytes = (slices - bool(self.first)) * kernel.numel * max(self.dtype.itemsize, 4)
        self.scratch = Scratch(nbytes) if slices > 1 else None
        self.columns: EpilogueColumns | None = None  # that the epilogue reduces

    def slice_at(self, words: KernelParams, last: bool) -> tuple[str, str]:
        """C text of a pointer, and of an offset from it, at which slice `k_slice` begins.

        Args:
            words: parameters of the stage.
            last: whether it is the stage that adds the slices.
        """
        assert self.scratch is not None
        others, numel = words.scratch(self.scratch, self.type, not last), f"{self.kernel.numel}LL"
        if self.first is None:
            return others, f"k_slice * {numel} + "
        first = words.write(self.first) if last else words.sums(self.first)
        return f"k_slice > 0 ? {others} + (k_slice - 1) * {numel} : {first}", ""

    def output_index(self, flat: Index) -> Index:
        """The offset at which an output is stored: in the order that its readers want."""
        split, axes = self._order
        if not axes:
            return flat
        at = ix.unflatten(flat, split)
        return ix.flatten([at[axis] for axis in axes], [split[axis] for axis in axes])

    @property
    def _order(self) -> tuple[Shape, Shape]:
        """The shape of the product's columns, and the order of its axes in memory if another."""
        node = self.node
        if node.op is convolution:  # channels, images, pixels
            return (node.shape[1], node.shape[0], prod(node.shape[2:])), (1, 0, 2)
        if node.op is contraction.matmul and node.attributes:
            return node.attributes["split"], node.attributes["axes"]
        return (self.n,), ()

    @property
    def run(self) -> int:
        """Neighbouring results of a row that are neighbours in memory."""
        split, axes = self._order
        return gcd(self.n, split[-1]) if not axes or axes[-1] == len(axes) - 1 else 1

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k


class TiledContraction(Contraction, Generic[TileT]):
    """One whose outputs are computed in tiles."""

    def __init__(self, kernel: Kernel, cut: ProductCut[TileT]) -> None:
        super().__init__(kernel, 1 if cut.cluster else cut.slices)
        self.slices = cut.slices
        self.cut, self.tile, self.chunk = cut, cut.tile, cut.chunk
        self.tiles_m = -(-self.m // self.tile.m)
        self.tiles_n = -(-self.n // self.tile.n)
        self.blocks = self.tiles_m * self.tiles_n * self.batches * self.slices


def tiled_stages(kernel: Kernel, cut: ProductCut[Tile]) -> list[Stage]:
    """One stage, or two where the sum over k is split among blocks."""
    problem = TiledContraction(kernel, cut)
    return with_sum(problem, _product(problem))


def direct_stages(kernel: Kernel, cut: DirectCut) -> list[Stage]:
    """One stage: blocks have bands of images."""
    return [_direct(Contraction(kernel), cut)]


def weight_gradient_stages(kernel: Kernel, cut: WeightGradientCut) -> list[Stage]:
    """One stage, or two where blocks share the images."""
    problem = Contraction(kernel, cut.blocks)
    return with_sum(problem, _weight_gradient(problem, cut))


def _held_sum(kernel: Kernel) -> Node | None:
    """An output of the second stage in whose memory a slice of the sum fits, element by element.

    A thread of that stage reads its element of the slice before it stores the output there. What
    lies over an input is none: the epilogue may read that input.
    """
    sums = kernel.anchors[0].dtype.compute
    for node in kernel.stores:
        apart = node.op is not common.assign and node not in kernel.overwrites
        if apart and node.dtype.c == sums and prod(node.shape) == kernel.numel:
            return node
    return None


def with_sum(problem: Contraction, first: Stage) -> list[Stage]:
    """A stage, and the one that adds its slices or joins its columns, if there are any."""
    if problem.columns is not None:
        return [first, problem.columns.join(problem.kernel, first)]
    return [first] if problem.scratch is None else [first, _sum_slices(problem, first)]


def _direct(problem: Contraction, cut: DirectCut) -> Stage:
    """The one stage of a convolution of few channels."""
    kernel = problem.kernel
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel))
    outer = Scope("image")
    lanes = lanes_of(cut, 4)
    epilogue = epilogue_text(problem, writer, outer, ix.constant(0), lanes)
    body = direct_body(cut, problem.a, problem.node.sources[0], writer, outer, lanes, epilogue)
    label = comment(
        kernel,
        f"conv_direct, {cut.windows.images} images of {cut.m} channels, {cut.rows} rows a block, "
        f"{cut.run} neighbours of {cut.outputs} channels a thread, {problem.flops} FLOPs",
        cut.blocks,
    )
    return wrapped(kernel, stem(kernel), body, words.list, cut.blocks, cut.shared, label)


def _weight_gradient(problem: Contraction, cut: WeightGradientCut) -> Stage:
    """The stage that sums over images; several blocks leave their slices in scratch memory."""
    kernel = problem.kernel
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel))
    outer = Scope("k_slice")
    epilogue = epilogue_text(problem, writer, outer, ix.constant(0), 1)
    body = weight_gradient_body(cut, problem.a, problem.node.sources[1], writer, outer, epilogue)
    label = comment(
        kernel,
        f"conv_weight_gradient of a kernel {cut.m} x {problem.n}, {cut.rows} rows of an image at "
        f"once, {cut.blocks} blocks, {problem.flops} FLOPs",
        cut.blocks,
    )
    name = stem(kernel) + ("_slices" if problem.scratch else "")
    return wrapped(kernel, name, body, words.list, cut.blocks, cut.shared, label)


def _product(problem: TiledContraction[Tile]) -> Stage:
    """The stage that multiplies; with split-K it leaves the slices in scratch memory."""
    kernel, tile = problem.kernel, problem.tile
    words = KernelParams()
    writer = Reader(words, set(kernel.reads), is_wide(kernel), kernel.target, kernel.narrowed)
    outer = Scope("batch")
    batch = ix.variable("batch", problem.batches)
    shared = tile.shared(itemsize_of(problem.dtype))
    sources = sources_of(problem.a, problem.b, tile.m, tile.n)
    a = operand_fetch(sources[0], problem.cut, shared, writer, outer, problem.dtype)
    shared += a.shared
    b = operand_fetch(sources[1], problem.cut, shared, writer, outer, problem.dtype)
    shared += b.shared
    results = _results(problem, writer, outer, batch)
    factor = "column_b[step]" if tile.streamed else "b[step % 2][j]"
    sizes = _sizes(problem)
    read_b = [] if tile.streamed else fill("contract.cuh", "read", **sizes, stride_b=tile.n + PAD)
    copy_column = fill("contract.cuh", "copy_column", **sizes) if tile.streamed else []
    looped = problem.chunk > tile.k  # over more than one tile of k
    body = fill(
        "contract.cuh",
        "body",
        **sizes,
        tile=_tile_text(problem, "virtual_block", "threadIdx.x"),
        stride_a=tile.m + PAD,
        read_b=read_b,
        copy_column=copy_column,
        declare_column=[f"{problem.type} column_b[{tile.k}];"] if tile.streamed else [],
        loads_a=a.threads.loads,
        loads_b=b.threads.loads,
        width_a=a.threads.width,
        width_b=b.threads.width,
        outer=outer.lines,
        setup=[
            *a.before,
            *b.before,
            *(["__syncthreads();"] if a.shared + b.shared else []),
        ],
        fetch_a=a.fetch,
        fetch_b=b.fetch,
        put_a=_put(a.threads, problem.type),
        put_b=[] if tile.streamed else _put(b.threads, problem.type),
        factor=factor,
        fetch_next=[f"fetch(k_first + {tile.k});  // beyond the last tile nothing is loaded"]
        * looped,
        put_next=fill("contract.cuh", "put_next") if looped else [],
        results=results,
    )
    shape = f"{problem.batches} x {problem.m} x {problem.n} x {problem.k}"
    label = comment(
        kernel,
        f"contract {shape}, tiles of {tile.m} x {tile.n} x {tile.k}, split-K {problem.slices}, "
        f"{problem.flops} FLOPs",
        problem.blocks,
    )
    name = stem(kernel) + ("_slices" if problem.scratch else "")
    stage = wrapped(kernel, name, body, words.list, problem.blocks, shared, label)
    stage.min_blocks_per_sm = (
        tile.resident(itemsize_of(problem.dtype), kernel.target) if tile.groups == 1 else 1
    )
    return stage


def _put(threads: ThreadMap, ctype: str) -> list[str]:
    """Stores of what a thread prefetched to shared memory, k-major."""
    step, row = threads.offsets
    stride = threads.source.tile + PAD
    along_k = threads.contiguous == "k"
    contiguous_step, strided_step = (stride, 1) if along_k else (1, stride)
    text = fill(
        "contract.cuh",
        "put",
        side=threads.source.name,
        type=ctype,
        tile_k=threads.cut.tile.k,
        stride=stride,
        loads=threads.loads,
        width=threads.width,
        rows=threads.rows,
        row=row,
        shared_index=times(step, threads.width * contiguous_step),
        contiguous_step=contiguous_step,
        strided_step=strided_step,
        skip=threads.skip(),
    )
    return text.splitlines()


def _sizes(problem: TiledContraction[Tile]) -> dict[str, object]:
    """The sizes that fill the skeleton."""
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
        "tile_threads": tile.threads,
        "groups": tile.groups,
        "steps": tile.k // tile.groups,
        "fragment": 4 if itemsize_of(problem.dtype) <= 4 else 2,
        "threads": THREADS,
    }


def _tile_text(problem: TiledContraction[Tile], block: str, thread: str) -> str:
    """Text that derives the block's tile and the thread's outputs in it.

    Where there is one slice or one group it says so: a compiler cannot derive it, and on sm_86,
    sm_89 and sm_120 it spilled registers of the largest tile for numbers that are zero.
    """
    sizes = _sizes(problem)
    k_slice = f"{block} / {sizes['tiles']} / {sizes['batches']}" if problem.slices > 1 else "0"
    k_group = f"{thread} / {problem.tile.threads}" if problem.tile.groups > 1 else "0"
    return fill(
        "contract.cuh", "tile", **sizes, block=block, thread=thread, k_slice=k_slice,
        k_group=k_group,
    )  # fmt: skip


def _results(problem: TiledContraction[Tile], writer: Evaluator, outer: Scope, batch: Index) -> str:
    """The end of the kernel: each output through the epilogue into memory."""
    tile = problem.tile
    lanes = min(4, tile.cols if tile.groups == 1 else max(1, tile.m * tile.n // THREADS))
    while problem.run % lanes:
        lanes //= 2
    row, load, map_, stored = epilogue_text(problem, writer, outer, batch, lanes)
    text = fill(
        "contract.cuh",
        "registers" if tile.groups == 1 else "shared",
        **_sizes(problem),
        lanes=lanes,
        strips=problem.n // lanes,
        turns=-(-tile.m * tile.n // (lanes * THREADS)),
        add=_sum(problem.dtype, "total", "addend"),
        row=row,
        load=load,
        map=map_,
        store=stored,
    )
    if (tile.m, tile.n) != SQUARE:
        return text
    # Its sums fill the registers: the outputs' addresses would be spilled in the loop.
    again = _tile_text(problem, "opaque_block", "opaque_thread")
    return fill("contract.cuh", "recompute", tile=again, results=text)


def _sum(dtype: DType, a: str, b: str) -> str:
    """The sum of two values; byte types wrap."""
    return f"({dtype.compute})({a} + {b})"


def epilogue_text(
    problem: Contraction,
    writer: Evaluator,
    outer: Scope,
    batch: Index,
    lanes: int,
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Statements of each row, of each strip before its lanes, in them, and after them."""
    m = ix.variable("m", problem.m)
    strip, v = ix.variable("strip", problem.n // lanes), ix.variable("v", lanes)
    flat = problem.output_index((batch * problem.m + m) * problem.n + strip * lanes + v)
    writer.scopes = [outer, Scope("m"), Scope("strip"), Scope("v")]
    writer.lane = Lane(v, lanes)
    if problem.scratch is not None:
        pointer, start = problem.slice_at(writer.words, False)
        split = ix.split_lane(flat, v) if lanes > 1 else None
        wide = split and split[0] == 1 and ix.divisible(split[1], lanes)
        if split is None or not wide or problem.kernel.numel % lanes:
            return [], [], [f"tgc_store({pointer}, {start}{writer.index_text(flat)}, total);"], []
        declare = f"tgc_vector<{problem.type}, {lanes}> slice;"
        store = f"tgc_store_vector({pointer}, {start}{writer.index_text(split[1])}, slice);"
        return [], [declare], [f"slice.at[{writer.lane.name}] = total;"], [store]
    stores = Stores(writer, problem.kernel)
    writer.anchored[problem.node] = "total"
    writer.floors = dict.fromkeys(problem.kernel.nodes, 3)
    own, _ = problem.kernel.pair or (problem.kernel, None)
    for node in own.stores:
        stores.put(node, flat, writer.value(node, ix.unflatten(flat, node.shape)))
    if problem.columns is not None:
        problem.columns.take(writer, flat, problem.node)
    return writer.scopes[1].lines, writer.scopes[2].lines, writer.scopes[3].lines, stores.after


def _sum_slices(problem: Contraction, first: Stage) -> Stage:
    """The second stage: adds the slices in their order, then the epilogue.

    Where there are few outputs, several threads share the slices of each.
    """
    kernel = problem.kernel
    groups = 1
    while (
        2 * groups * kernel.numel <= kernel.target.multiprocessors * THREADS
        and problem.slices >= 2 * groups * SLICES_PER_THREAD
        and THREADS // groups > RESULTS_PER_BLOCK
    ):
        groups *= 2
    split = groups > 1
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
    output = ix.variable("output", kernel.numel)
    writer.scopes = [Scope("output"), Scope("v")]
    pointer, start = problem.slice_at(words, True)
    declare = []
    if problem.first is not None:
        declare, pointer = [f"const {problem.type}* const slice = {pointer};"], "slice"
    writer.anchored[problem.node] = "total"
    stores = Stores(writer, kernel)
    for node in kernel.stores:
        stores.put(node, output, writer.value(node, ix.unflatten(output, node.shape)))
    body = fill(
        "contract.cuh",
        "join",
        index="long long" if writer.wide else "int",
        type=problem.type,
        zero=literal(0, problem.dtype),
        threads=THREADS,
        outputs=kernel.numel,
        results=THREADS // groups,
        groups=groups,
        shared=[f"{problem.type}* const shared = reinterpret_cast<{problem.type}*>(smem);"] * split,
        exchange=["shared[threadIdx.x] = sum;", "__syncthreads();"] * split,
        k_slices=problem.slices,
        turns=-(-problem.slices // groups),
        slice=declare,
        add=_sum(problem.dtype, "sum", f"tgc_load({pointer}, {start}output)"),
        addend=_sum(problem.dtype, "total", f"shared[other * {THREADS // groups} + result]"),
        load=writer.scopes[0].lines + writer.scopes[1].lines + stores.after,
    )
    blocks = -(-kernel.numel // (THREADS // groups))
    label = comment(kernel, f"Second stage, {kernel.numel} sums of {problem.slices} slices", blocks)
    name = stem(kernel) + "_join"
    shared = THREADS * itemsize_of(problem.dtype) if groups > 1 else 0
    stage = wrapped(kernel, name, body, words.list, blocks, shared, label, second=True)
    stage.after.append(first)
    return stage
