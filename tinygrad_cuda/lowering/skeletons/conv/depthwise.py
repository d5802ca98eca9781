"""Convolutions of few channels a group, depthwise ones first of all, and their weight gradients.

They multiply about as often as they read, so memory is their limit. A thread has neighbouring
results of one channel, or of several where channels lie last, and loads rows of the input once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, log2, prod, sqrt
from typing import NamedTuple

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, gradient_mode, node_made, recorded_at
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.graph.ops.convolution import convolution, geometry_of
from tinygrad_cuda.graph.rewrite.pattern import is_literal
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope, Stores, is_wide
from tinygrad_cuda.lowering.codegen.index import INT_MAX, Index
from tinygrad_cuda.lowering.codegen.skeleton import (
    THREADS,
    KernelParams,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.contract.contract import (
    Contraction,
    epilogue_text,
    with_sum,
)
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import JOIN, JOIN_TRAFFIC
from tinygrad_cuda.lowering.target import REGISTERS, SCHEDULERS, WARP, Target

TEXT = "depthwise.cuh"
TAPS = 49  # of a window at most: each takes a register
INNER = 4  # channels of the input in a group at most
VECTOR = 16  # bytes of a load at most
LINE = 128  # bytes that a multiprocessor's L1 cache gives in a clock
THREAD_REGISTERS = 124  # of a thread, with which two blocks of 256 threads are resident
RESIDENT = 4  # blocks of a multiprocessor at most that are asked for
OVERHEAD = 28  # registers of a thread for positions and addresses
ROWS = (1, 2, 3, 4, 6, 7, 8)  # of results that a thread may have
RUNS = (1, 2, 3, 4, 5, 6, 7, 8)  # neighbours of a row that it may have
TURNS = (1, 2, 4, 8, 16, 32, 64)  # times that threads of a weight gradient fetch results
# By counting instructions; of 24 float32 passes on an H200 the median error is a sixth, the
# largest a half.
TRIP = 1600  # clocks of a round trip to memory
LATENCY = 3  # clocks from one instruction of a warp to its next
SETUP = 60  # instructions of a thread before its loads
LOAD = 6  # instructions of a load: its address, its tests, itself
CONVERT = 1  # instructions for an element of a half type
MISSED = 0.4  # of what neighbouring threads read again, the share that comes from the L2 cache
L2_SPEED = 2.0  # its bytes a clock over those of memory


class WindowAxis(NamedTuple):
    """Windows along one axis: result j has, of tap t, element ``(j stride + t dilation + shift) /
    spread`` of the input, where that is whole.

    Attributes:
        size: of the input; elements beyond it are zeros.
        results: windows along the axis.
        taps, stride, dilation, shift: as above.
        spread: from 2 on the elements stand apart, zeros between them: an input gradient.
    """

    size: int
    results: int
    taps: int = 1
    stride: int = 1
    dilation: int = 1
    shift: int = 0
    spread: int = 1

    def step(self, run: int) -> int:
        """Elements from one strip of `run` results to the next."""
        return run * self.stride // self.spread

    def suits(self, run: int) -> bool:
        """Whether strips of `run` results each have the same windows."""
        return run * self.stride % self.spread == 0

    def reach(self, run: int) -> tuple[int, int]:
        """(first, last) element that a strip reads, from where it begins."""
        at = [
            j * self.stride + t * self.dilation + self.shift
            for j in range(run)
            for t in range(self.taps)
        ]
        whole = [n // self.spread for n in at if n % self.spread == 0]
        return min(whole, default=0), max(whole, default=0)


class Grouped(NamedTuple):
    """A convolution of few channels a group, or its weight gradient.

    Attributes:
        images: their number.
        outputs: channels of the result.
        inner: channels of the input in a group.
        repeats: channels of the result in a group.
        down, across: the windows.
        itemsize: bytes of an element.
        double: whether sums are of float64.
        gradient: whether it is the weight gradient; results are its cotangent then.
    """

    images: int
    outputs: int
    inner: int
    repeats: int
    down: WindowAxis
    across: WindowAxis
    itemsize: int
    double: bool
    gradient: bool

    @property
    def taps(self) -> int:
        return self.down.taps * self.across.taps

    @property
    def nbytes(self) -> int:
        """What is read and written, each value once."""
        channels = self.outputs // self.repeats * self.inner
        values = channels * self.down.size * self.across.size
        values += self.outputs * self.down.results * self.across.results
        return self.images * values * self.itemsize


@dataclass(frozen=True)
class DepthwiseCut:
    """What a thread has.

    Attributes:
        grouped: the problem.
        rows, run: neighbouring results down and across.
        lanes: neighbouring channels; 1 where channels do not lie last.
        last: whether threads walk along channels first.
        vectors: neighbouring `lanes` of a block with channels last; channels of a block of a weight
            gradient, a power of two.
        slices: blocks that share the sum of a weight gradient.
    """

    grouped: Grouped
    rows: int
    run: int
    lanes: int
    last: bool
    vectors: int
    slices: int = 1

    @property
    def wide(self) -> int:
        """Elements of a row of the input that are loaded at once, channels not last."""
        if self.last:
            return self.lanes
        across, wide = self.grouped.across, VECTOR // self.grouped.itemsize
        return gcd(wide, across.size, across.step(self.run))

    @property
    def above(self) -> int:
        """Rows of the input before a strip's own that it reads."""
        return -self.grouped.down.reach(self.rows)[0]

    @property
    def reach(self) -> int:
        """Rows of the input that a strip reads."""
        first, last = self.grouped.down.reach(self.rows)
        return last - first + 1

    @property
    def columns_wide(self) -> int:
        """Columns of a load."""
        return 1 if self.last else self.wide

    @property
    def before(self) -> int:
        """Loads of a row before a strip's own."""
        return -(self.grouped.across.reach(self.run)[0] // self.columns_wide)

    @property
    def loads(self) -> int:
        """Loads of a row of the input."""
        return self.grouped.across.reach(self.run)[1] // self.columns_wide + self.before + 1

    @property
    def columns(self) -> int:
        """Strips of a row."""
        return -(-self.grouped.across.results // self.run)

    @property
    def row_count(self) -> int:
        """Strips of a column."""
        return -(-self.grouped.down.results // self.rows)

    @property
    def stored(self) -> int:
        """Neighbours in memory of a thread's results, which are stored together."""
        if self.last:
            return self.lanes
        most = min(4, VECTOR // self.grouped.itemsize)
        return gcd(most, self.run, self.grouped.across.results)

    @property
    def channel_blocks(self) -> int:
        """Blocks along the channels, if these lie last, or of a weight gradient."""
        grouped = self.grouped
        count = grouped.outputs * (grouped.inner if grouped.gradient else 1) // self.lanes
        return -(-count // self.vectors)

    @property
    def block_strips(self) -> int:
        """Strips of a block with channels last; threads of a channel of a weight gradient."""
        return THREADS // self.vectors

    @property
    def blocks(self) -> int:
        grouped, strips = self.grouped, self.columns * self.row_count
        if grouped.gradient:
            return self.channel_blocks * self.slices
        strips *= grouped.images
        if self.last:
            return self.channel_blocks * -(-strips // self.block_strips)
        return -(-strips * grouped.outputs // THREADS)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        grouped, size = self.grouped, 8 if self.grouped.double else 4
        if grouped.gradient:
            return size * grouped.taps * self.lanes * max(THREADS // 2, self.vectors)
        weights = grouped.inner * grouped.taps * self.vectors * self.lanes
        return size * weights if self.last else 0

    @property
    def registers(self) -> int:
        """Of a thread, about: sums, weights or cotangents, and three rows of the input."""
        first, last = self.grouped.across.reach(self.run)
        own = self.rows * self.run + self.grouped.taps + 3 * (last - first + 1)
        own *= self.lanes * (2 if self.grouped.double else 1)
        return OVERHEAD + own + (4 if self.grouped.gradient else 0)

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor at one time, for which the compiler is to leave registers."""
        return max(1, min(RESIDENT, REGISTERS // (THREADS * self.registers)))

    def instructions(self) -> float:
        """Of a thread for one strip."""
        grouped, wide = self.grouped, self.wide
        of_load = LOAD + (CONVERT * wide if grouped.itemsize == 2 else 0)
        spread = grouped.down.spread * grouped.across.spread
        results = self.rows * self.run * self.lanes
        sums = results * grouped.taps / spread
        if grouped.double:
            sums *= 2
        own = LOAD * results / self.stored
        inner = 1 if grouped.gradient else grouped.inner
        return inner * (self.reach * self.loads * of_load + sums) + own

    def clocks(self, target: Target) -> float:
        """An estimate of the time, in clocks of a multiprocessor."""
        grouped = self.grouped
        turns, own = 1, float(SETUP + grouped.taps * self.lanes)
        if grouped.gradient:
            jobs = grouped.images * self.columns * self.row_count
            turns = -(-jobs // (self.slices * self.block_strips))
            own = SETUP + 2 * grouped.taps * self.lanes * log2(self.block_strips)
        own += turns * self.instructions()
        span = self.wide if self.last else grouped.across.step(self.run)
        lines = max(1.0, min(WARP, WARP * span * grouped.itemsize / LINE))
        lines *= turns * (1 if grouped.gradient else grouped.inner) * self.reach * self.loads
        each = -(-self.blocks // target.multiprocessors)
        warps = THREADS // WARP
        latency = -(-each // self.resident) * (turns * TRIP + LATENCY * own)
        work = each * warps * max(own / SCHEDULERS, lines)
        again = self.reach / max(1, grouped.down.step(self.rows)) - 1
        moved = grouped.nbytes * (1 + max(0.0, again) * MISSED / L2_SPEED) / target.traffic
        joined = 0.0
        if self.slices > 1:
            sums = self.slices * grouped.outputs * grouped.inner * grouped.taps
            joined = JOIN + sums * 4 / (JOIN_TRAFFIC * target.traffic)
        # They overlap, though not wholly.
        return sqrt(moved**2 + work**2 + latency**2) + joined


def refusal(node: Node) -> str:
    """Why a convolution, or a weight gradient, is none of few channels a group; empty if so."""
    w = node.sources[1] if node.op is convolution else node
    at = geometry_of(node.attributes)
    if len(at.stride) > 2:
        return f"{len(at.stride)} spatial axes"
    if at.groups == 1 or w.shape[1] > INNER:
        return f"more than {INNER} channels of a group" if at.groups > 1 else "one group"
    if w.shape[1] > 1 and w.shape[0] > at.groups * INNER:
        return f"more than {INNER} channels of a group"
    if node.dtype.compute not in ("float", "double"):
        return f"{node.dtype.name} is not summed in floating point"
    if (taps := prod(w.shape[2:])) > TAPS:
        return f"{taps} taps of a window"
    x = node.sources[node.op is not convolution]
    if max(prod(images.shape) for images in (x, node.sources[0])) > INT_MAX * at.groups:
        return "positions in a channel take 64 bits"
    return ""


def grouped_of(node: Node) -> Grouped:
    """The sizes of a convolution, or of a weight gradient, that is not refused."""
    own, at = node.op is convolution, geometry_of(node.attributes)
    x = node.sources[not own]
    w = node.sources[1].shape if own else node.shape
    y = _result_shape(node) if own else node.sources[0].shape
    inner, starts, steps = spread_input(x, at.stride) if own else (x, (), ())
    axes = []
    for axis, (results, taps) in enumerate(zip(y[2:], w[2:], strict=True)):
        start, spread = (starts[axis], steps[axis]) if steps else (0, 1)
        shift = -at.padding[axis][0] - start
        stride, dilation = at.stride[axis], at.dilation[axis]
        axes.append(
            WindowAxis(inner.shape[2 + axis], results, taps, stride, dilation, shift, spread)
        )
    down, across = [WindowAxis(1, 1), *axes][-2:]
    return Grouped(
        x.shape[0], w[0], w[1], w[0] // at.groups, down, across, node.dtype.itemsize,
        node.dtype.compute == "double", not own,
    )  # fmt: skip


def _result_shape(node: Node) -> Shape:
    """Of a convolution, channels first."""
    if not node.attributes.get("last"):
        return node.shape
    images, *sizes, channels = node.shape
    return (images, channels, *sizes)


def spread_input(x: Node, stride: Shape) -> tuple[Node, Shape, Shape]:
    """The images among whose elements an input has zeros; where the first is, and their distance.

    An input without such zeros is itself, and so is one of windows with a stride.
    """
    axes: Shape = tuple(range(len(x.shape)))
    pad = x
    if x.op is movement.permute:
        (pad,), axes = x.sources, x.attributes["axes"]
    if pad.op is not movement.pad or any(s != 1 for s in stride):
        return x, (), ()
    starts, steps, value = (pad.attributes[name] for name in ("starts", "steps", "value"))
    (inner,) = pad.sources
    if not is_literal(value) or value != 0 or not all(map(is_literal, starts)):
        return x, (), ()
    if any(inner.shape[axis] != pad.shape[axis] for axis in axes[:2]):
        return x, (), ()
    if axes != tuple(range(len(axes))):
        with gradient_mode(False), recorded_at(x.site):
            inner = movement.permute(inner, axes=axes)
    first, apart = (tuple(part[axis] for axis in axes[2:]) for part in (starts, steps))
    return inner, first, apart


@lru_cache(maxsize=1 << 10)
def depthwise_cut_of(grouped: Grouped, target: Target, last: bool) -> DepthwiseCut | None:
    """The cut of least time, or None where none fits a block."""
    cuts = depthwise_cuts_of(grouped, target, last)
    return min(cuts, key=lambda cut: cut.clocks(target), default=None)


def depthwise_cuts_of(grouped: Grouped, target: Target, last: bool) -> Iterator[DepthwiseCut]:
    """Cuts of results whose registers and shared memory fit."""
    down, across = grouped.down, grouped.across
    for rows in (n for n in ROWS if down.suits(n) and n < down.results + down.spread):
        for run in (n for n in RUNS if across.suits(n) and n < across.results + across.spread):
            for lanes, vectors in _channels_of(grouped, last):
                for slices in _slices_of(grouped, rows * run, vectors):
                    cut = DepthwiseCut(grouped, rows, run, lanes, last, vectors, slices)
                    fits = cut.registers <= THREAD_REGISTERS or rows * run * lanes == 1
                    if fits and cut.shared <= target.tile_shared:
                        yield cut


def _channels_of(grouped: Grouped, last: bool) -> Iterator[tuple[int, int]]:
    """(channels of a thread, such vectors of a block)."""
    count = grouped.outputs * (grouped.inner if grouped.gradient else 1)
    single = grouped.inner == grouped.repeats == 1
    wide = (1, 2, 4) if last and single else (1,)
    for lanes in (n for n in wide if count % n == 0 and n * grouped.itemsize <= VECTOR):
        if grouped.gradient:
            least = 4 if last else 0
            for power in range(least, 6 if last else 4):
                if not power or 1 << (power - 1) < count // lanes:
                    yield lanes, 1 << power
            if last and count // lanes <= 1 << (least - 1):
                yield lanes, 1 << (count // lanes - 1).bit_length()
        else:
            blocks = -(-count // lanes // WARP)
            yield lanes, -(-count // lanes // blocks) if last else 1


def _slices_of(grouped: Grouped, results: int, vectors: int) -> list[int]:
    """Blocks that may share a weight gradient's sum."""
    if not grouped.gradient:
        return [1]
    strips = -(-grouped.images * grouped.down.results * grouped.across.results // results)
    parts = THREADS // vectors
    return sorted({-(-strips // (turns * parts)) for turns in TURNS})


# Text ---------------------------------------------------------------------------------------------


def with_channels_last(node: Node) -> Node:
    """A convolution whose result has the channels last, as its images lie."""
    images, channels, *sizes = node.shape
    attributes, shape = {**node.attributes, "last": True}, (images, *sizes, channels)
    outputs = ((shape, node.dtype),)
    return node_made(
        node.op, node.sources, attributes, outputs, node.device, False, node.site
    )  # fmt: skip


def depthwise_stages(kernel: Kernel, cut: DepthwiseCut) -> list[Stage]:
    """The one stage of a convolution."""
    node, grouped, words = kernel.anchors[0], cut.grouped, KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
    outer = Scope("image", "output")
    row, strip_load, map_, store = _results(kernel, cut, writer, outer)
    (whole, *_), stride = node.sources, geometry_of(node.attributes).stride
    x, first, apart = spread_input(whole, stride)
    weights = _weights_text(cut, node.sources[1], writer, outer)
    # A kernel of its own may have stored the zeros between the elements, and not the elements.
    stored = (whole, first, apart) if whole is not x and whole in writer.memory else None
    inputs = _input_rows(cut, x, writer, outer, stored)
    index = "long long" if writer.wide else "int"
    holes = {**_sizes(cut), "index": index}
    body = fill(
        TEXT,
        "body",
        **holes,
        position=weights if cut.last else fill(TEXT, "images_first", **holes),
        leave=_leave(cut),
        outer=outer.lines,
        sums=_sums(cut, weights, inputs),
        row_guard=_guard("row", grouped.down.results, cut.rows),
        column_guard=_guard("column", _columns_stored(cut), cut.run * cut.lanes // cut.stored),
        row=row,
        strip_load=strip_load,
        map=map_,
        store=store,
    )
    order = "channels last, " if cut.last else ""
    label = comment(
        kernel,
        f"conv_depthwise, {grouped.images} images of {grouped.outputs} channels, {order}"
        f"{cut.rows} x {cut.run} results of {_counted(cut.lanes, 'channel')} a thread",
        cut.blocks,
    )
    stage = wrapped(kernel, stem(kernel), body, words.list, cut.blocks, cut.shared, label)
    stage.min_blocks_per_sm = cut.resident
    return [stage]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _sizes(cut: DepthwiseCut) -> dict[str, object]:
    """The sizes that fill the skeleton."""
    grouped, plane = cut.grouped, cut.columns * cut.row_count
    return {
        "type": "double" if grouped.double else "float",
        "threads": THREADS,
        "rows": cut.rows,
        "run": cut.run,
        "width": cut.run * cut.lanes,
        "strips": cut.run * cut.lanes // cut.stored,
        "lanes": cut.stored,
        "columns": cut.columns,
        "row_count": cut.row_count,
        "plane": plane,
        "outputs": grouped.outputs // cut.lanes,
        "plane_outputs": plane * (grouped.outputs // cut.lanes),
        "taps": grouped.taps,
        "inner": grouped.inner,
        "fragment": min(4, cut.lanes),
    }


def _channel(grouped: Grouped) -> str:
    """The input's channel that a channel of the result reads."""
    group = f"output / {grouped.repeats}" if grouped.repeats > 1 else "output"
    if grouped.inner == 1:
        return group
    return f"{group} * {grouped.inner} + {'pair' if grouped.gradient else 'inner'}" + (
        f" % {grouped.inner}" if grouped.gradient else ""
    )


def _guard(name: str, size: int, of_thread: int) -> list[str]:
    """What leaves out results beyond the last, if threads do not divide these."""
    return [f"if ({name} >= {size}) continue;"] if size % of_thread else []


def _columns_stored(cut: DepthwiseCut) -> int:
    """Strips of a row that are stored together."""
    return cut.grouped.across.results // (1 if cut.last else cut.stored)


def _leave(cut: DepthwiseCut) -> list[str]:
    """The test with which threads leave that have no results."""
    grouped, strips = cut.grouped, cut.grouped.images * cut.columns * cut.row_count
    if not cut.last:
        total = strips * grouped.outputs
        return [f"if (position >= {total}) return;"] if total % THREADS else []
    tests = [f"output >= {grouped.outputs // cut.lanes}"] * (
        grouped.outputs // cut.lanes % cut.vectors > 0
    )
    tests += [f"strip_in_block >= {cut.block_strips}"] * (THREADS % cut.vectors > 0)
    tests += [f"position >= {strips}"] * (strips % cut.block_strips > 0)
    return [f"if ({' || '.join(tests)}) return;"] if tests else []


def _sums(cut: DepthwiseCut, weights: str, inputs: str) -> str:
    """Text that sums a thread's results, one channel of the input after another."""
    grouped = cut.grouped
    tap = f"(inner * {grouped.taps} + tap)" if grouped.inner > 1 else "tap"
    holes = {**_sizes(cut), "lanes": cut.lanes, "shared_tap": tap}
    holes["block_outputs"] = cut.vectors * cut.lanes
    text = fill(
        TEXT,
        "sums",
        type=holes["type"],
        channel=_channel(grouped),
        weights=grouped.taps * cut.lanes,
        load_weights=fill(TEXT, "shared_weights", **holes) if cut.last else weights,
        input_rows=inputs,
    )
    return fill(TEXT, "inner_loop", inner=grouped.inner, sums=text) if grouped.inner > 1 else text


def _weights_text(cut: DepthwiseCut, w: Node, writer: Evaluator, outer: Scope) -> str:
    """Text that loads weights: into a thread's registers, or a block's into shared memory."""
    grouped = cut.grouped
    load = Scope("tap", "inner", "o")
    # A block loads weights before the statements of `outer`: one value for all is in its loop, too.
    writer.scopes = [load] if cut.last else [outer, load]
    name = "o" if cut.last else "output"
    at = [ix.variable(name, grouped.outputs), ix.variable("inner", grouped.inner)]
    at += ix.unflatten(ix.variable("tap", grouped.taps), w.shape[2:])
    value = writer.value(w, tuple(at))
    if not cut.last:
        return fill(TEXT, "weights", taps=grouped.taps, load=load.lines, value=value)
    block = cut.vectors * cut.lanes
    tap, part = f"e / {block}", f"e / {block * grouped.taps}"
    if grouped.inner > 1:
        tap += f" % {grouped.taps}"
    return fill(
        TEXT,
        "channels_last",
        **_sizes(cut),
        index="long long" if writer.wide else "int",
        channel_blocks=cut.channel_blocks,
        vectors=cut.vectors,
        block_strips=cut.block_strips,
        which=[f"const int tap = {tap};", *([f"const int inner = {part};"] * (grouped.inner > 1))],
        all_weights=grouped.inner * grouped.taps * block,
        block_outputs=block,
        whole_outputs=grouped.outputs,
        load=load.lines,
        value=value,
    )


def _among_zeros(
    at: tuple[Index, ...], whole: Node, first: Shape, apart: Shape, writer: Evaluator
) -> str:
    """An element of images that are stored with the zeros between their elements."""
    places = [i * step + start for i, start, step in zip(at[2:], first, apart, strict=True)]
    return writer.value(whole, (*at[:2], *places))


def _input_rows(
    cut: DepthwiseCut,
    x: Node,
    writer: Evaluator,
    outer: Scope,
    stored: tuple[Node, Shape, Shape] | None = None,
) -> str:
    """Text of the loop over rows of the input, and what a thread does with each."""
    grouped, wide = cut.grouped, cut.wide
    down, across = grouped.down, grouped.across
    load, each = Scope("image", "channel", "y", "x", "inside"), Scope("v")
    writer.scopes = [outer, load, each]
    v = ix.variable("v", wide)
    inside = _where(_inputs_inside(cut), x, writer)
    writer.lane = Lane(v, wide)
    at = _at(cut, x.shape, ("channel", "y", "x"), wide, v)
    value = writer.value(x, at) if stored is None else _among_zeros(at, *stored, writer)
    writer.lane, writer.inside = None, ""
    gradient = grouped.gradient
    tap, result = f"tap_y * {across.taps} + tap_x", "[r][j]"
    if cut.lanes > 1:
        tap, result = f"({tap}) * {cut.lanes} + v", f"[r][j * {cut.lanes} + v]"
    weight = f"weight[{tap}]"
    return fill(
        TEXT,
        "input_rows",
        type="double" if grouped.double else "float",
        reach=cut.reach,
        step_y=down.step(cut.rows),
        above=cut.above,
        inputs=cut.loads * wide,
        loads=cut.loads,
        step_x=across.step(cut.run) // cut.columns_wide,
        before=cut.before,
        inside=inside,
        load=load.lines,
        wide=wide,
        map=each.lines,
        value=value,
        taps_y=down.taps,
        taps_x=across.taps,
        spread_y=down.spread,
        spread_x=across.spread,
        dilation_y=down.dilation,
        dilation_x=across.dilation,
        stride_y=down.stride,
        stride_x=across.stride,
        shift_y=_plus(-cut.above * down.spread - down.shift),
        shift_x=_plus(across.shift + cut.before * cut.columns_wide * across.spread),
        rows=cut.rows,
        run=cut.run,
        lanes=cut.lanes,
        sum=weight.replace("weight", "sum") if gradient else "sum" + result,
        factor="cotangent" + result if gradient else weight,
        no_row=[f"if (down % {down.stride} != 0) continue;"] * (down.stride > 1),
        no_column=[f"if (across % {across.spread} != 0) continue;"] * (across.spread > 1),
        row_guard=_guard(f"row_index * {cut.rows} + r", down.results, cut.rows) if gradient else [],
        column_guard=_guard(f"column_index * {cut.run} + j", across.results, cut.run)
        if gradient
        else [],
    )


def _plus(number: int) -> str:
    return f" {'+' if number > 0 else '-'} {abs(number)}" if number else ""


def _inputs_inside(cut: DepthwiseCut) -> list[str]:
    """Tests whether row y and column x of the input exist; none where they must."""
    grouped, tests = cut.grouped, []
    down, across, columns = grouped.down, grouped.across, cut.columns_wide
    for name, size, before, count, step, strips in (
        ("y", down.size, cut.above, cut.reach, down.step(cut.rows), cut.row_count),
        (
            "x", across.size // columns, cut.before, cut.loads,
            across.step(cut.run) // columns, cut.columns,
        ),
    ):  # fmt: skip
        if before > 0:
            tests.append(f"{name} >= 0")
        if (strips - 1) * step + count - before > size:
            tests.append(f"{name} < {size}")
    return tests


def _where(tests: list[str], images: Node, writer: Evaluator) -> list[str]:
    """The start of a block that loads images; beyond them, zeros are loaded or nothing is done."""
    while images.op.kind == "movement" and images.op is not movement.pad:
        if images in writer.memory:
            break
        (images,) = images.sources
    if not tests:
        return ["{"]
    text = " && ".join(tests)
    if images not in writer.memory:  # what follows loads need not be zero there
        return [f"if ({text}) {{"]
    writer.inside = "inside"
    return ["{", f"  const bool inside = {text};"]


def _at(
    cut: DepthwiseCut, shape: Shape, names: tuple[str, str, str], wide: int, v: Index
) -> tuple[Index, ...]:
    """Coordinates of element v of a load, or of a store, of images in the order of their axes."""
    channel, row, column = names
    lanes, columns = (wide, 1) if cut.last else (1, wide)
    channels = ix.variable(channel, shape[1] // lanes)
    across = ix.variable(column, shape[-1] // columns)
    channels, across = (channels * wide + v, across) if cut.last else (channels, across * wide + v)
    rows = [ix.variable(row, size) for size in shape[2:-1]]
    return (ix.variable("image", shape[0]), channels, *rows, across)


def _results(
    kernel: Kernel, cut: DepthwiseCut, writer: Evaluator, outer: Scope
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Statements of each row of results, of each strip before its lanes, in them, and after."""
    node, stores = kernel.anchors[0], Stores(writer, kernel)
    v = ix.variable("v", cut.stored)
    writer.scopes = [outer, Scope("row"), Scope("column"), Scope("v")]
    writer.lane = Lane(v, cut.stored)
    image, channel, *inside = _at(
        cut, _result_shape(node), ("output", "row", "column"), cut.stored, v
    )
    at = (image, *inside, channel) if node.attributes.get("last") else (image, channel, *inside)
    flat = ix.flatten(at, node.shape)
    writer.anchored[node] = "total"
    writer.floors = dict.fromkeys(kernel.nodes, 3)
    for other in kernel.stores:
        own = at if other.shape == node.shape else ix.unflatten(flat, other.shape)
        stores.put(other, flat, writer.value(other, own))
    writer.lane, writer.floors = None, {}
    return writer.scopes[1].lines, writer.scopes[2].lines, writer.scopes[3].lines, stores.after


# The weight gradient ------------------------------------------------------------------------------


def depthwise_weight_stages(kernel: Kernel, cut: DepthwiseCut) -> list[Stage]:
    """One stage, or two where blocks share the images."""
    problem = Contraction(kernel, cut.slices)
    return with_sum(problem, _weight_gradient(problem, cut))


def _weight_gradient(problem: Contraction, cut: DepthwiseCut) -> Stage:
    """The stage that sums over images; several blocks leave their slices in scratch memory."""
    kernel, grouped, words = problem.kernel, cut.grouped, KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
    outer, ends = Scope(), Scope("k_slice", "group")
    group = ix.variable("group", problem.batches)
    epilogue = epilogue_text(problem, writer, ends, group, 1)
    writer.floors, writer.lane = {}, None
    inputs = _input_rows(cut, problem.node.sources[1], writer, outer)
    sizes, parts, vectors = _sizes(cut), cut.block_strips, cut.vectors
    cotangents = _cotangents(cut, problem.node.sources[0], writer, outer)
    body = fill(
        TEXT,
        "weight_gradient",
        **sizes,
        slices=cut.slices,
        channels=vectors,
        **_threads(cut),
        outer=outer.lines,
        sums=grouped.taps * cut.lanes,
        pairs=grouped.outputs * grouped.inner // cut.lanes,
        channel=_channel(grouped),
        parts=parts,
        turn=parts * cut.slices,
        jobs=grouped.images * cut.columns * cut.row_count,
        **cotangents,
        input_rows=inputs,
        half_threads=THREADS // 2,
        vector=cut.lanes,
        vector_taps=cut.lanes * grouped.taps,
        block_sums=vectors * cut.lanes * grouped.taps,
        numel=prod(problem.node.shape),
        group=problem.m * problem.n,
        m=problem.m,
        n=problem.n,
        epilogue=[*ends.lines, *(line for part in epilogue for line in part)],
    )
    label = comment(
        kernel,
        f"conv_depthwise weight gradient of {grouped.outputs} x {grouped.inner} windows, "
        f"{cut.rows} x {cut.run} results of {_counted(cut.lanes, 'channel')} at once, "
        f"{_counted(cut.slices, 'slice')}",
        cut.blocks,
    )
    name = stem(kernel) + ("_slices" if problem.scratch else "")
    stage = wrapped(kernel, name, body, words.list, cut.blocks, cut.shared, label)
    stage.min_blocks_per_sm = cut.resident
    return stage


def _threads(cut: DepthwiseCut) -> dict[str, str]:
    """How a block's threads divide its channels and their results."""
    vectors, parts = cut.vectors, cut.block_strips
    job = f"k_slice * {parts} + part" if cut.slices > 1 else "part"
    if vectors == 1:
        own = {"in_block": "0", "part": "threadIdx.x", "pair": "first_pair", "slot": "part % half"}
    elif cut.last:
        own = {"in_block": f"threadIdx.x % {vectors}", "part": f"threadIdx.x / {vectors}"}
        own |= {"pair": "first_pair + in_block", "slot": f"part % half * {vectors} + in_block"}
    else:
        own = {"in_block": f"threadIdx.x / {parts}", "part": f"threadIdx.x % {parts}"}
        own |= {"pair": "first_pair + in_block", "slot": "in_block * half + part % half"}
    return {**own, "first_job": job}


def _cotangents(cut: DepthwiseCut, g: Node, writer: Evaluator, outer: Scope) -> dict[str, object]:
    """Statements that load some of a row, of each element, and its value."""
    load, each = Scope("image", "output", "row", "column", "inside"), Scope("v")
    writer.scopes = [outer, load, each]
    v = ix.variable("v", cut.stored)
    inside = _where(_cotangents_inside(cut), g, writer)
    writer.lane = Lane(v, cut.stored)
    value = writer.value(g, _at(cut, g.shape, ("output", "row", "column"), cut.stored, v))
    writer.lane, writer.inside = None, ""
    return {"inside": inside, "load": load.lines, "map": each.lines, "value": value}


def _cotangents_inside(cut: DepthwiseCut) -> list[str]:
    """Tests whether a strip of the cotangent exists."""
    grouped, tests = cut.grouped, []
    if grouped.down.results % cut.rows:
        tests.append(f"row < {grouped.down.results}")
    if grouped.across.results % cut.run:
        tests.append(f"column < {_columns_stored(cut)}")
    return tests
