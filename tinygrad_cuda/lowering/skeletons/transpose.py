"""TRANSPOSE: a map whose operands lie along another axis in memory than its output.

A tile of both axes passes through shared memory, so that loads and stores are of neighbours. What
crosses is the value below the movement that changes the order, an operand or an expression.
"""

from __future__ import annotations

from math import isqrt, prod
from typing import NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope, Stores, is_wide
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.index_rewrites import Coordinates, Guard
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
from tinygrad_cuda.lowering.schedule.operands import operands

CHUNK = 16  # bytes of one access
SHORT = 16  # elements of an axis up to which neighbours share a sector of memory anyway
SHORTEST = 4  # elements of rows that follow each other
LONG = 64  # elements of an axis of a tile at first
ELEMENTS = 4096  # of a tile
SECTOR = 16  # elements of 2 bytes that memory moves together
MIN_BLOCKS_PER_SM = 1  # blocks that a multiprocessor should hold
TILE_BYTES = 32 << 10  # of a block's tiles: six of them share a multiprocessor


class Axes(NamedTuple):
    """The output as ``(outer, along_in, between, along_out)``, row-major.

    Attributes:
        outer: planes that neither axis walks.
        along_in: elements of the axis along which operands are contiguous.
        between: positions of axes between the two.
        along_out: elements of the output's innermost axis.
    """

    outer: int
    along_in: int
    between: int
    along_out: int

    @property
    def planes(self) -> int:
        """All positions of the other axes."""
        return self.outer * self.between

    def flat(self, plane: Index, along_in: Index, along_out: Index) -> Index:
        """The position in the output."""
        outer, between = ix.divide(plane, self.between)
        row = (outer * self.along_in + along_in) * self.between + between
        return row * self.along_out + along_out


class Digit(NamedTuple):
    """``(flat // stride) % extent``, which an index has with a coefficient."""

    coefficient: int
    stride: int
    extent: int


class TransposeCut(NamedTuple):
    """How a transposing map is divided.

    Attributes:
        axes: of its output.
        tile_in, tile_out, planes: of a tile, powers of two.
        out_width: neighbours of the output that a thread stores.
    """

    axes: Axes
    tile_in: int
    tile_out: int
    planes: int
    out_width: int

    @property
    def elements(self) -> int:
        """Of a tile."""
        return self.tile_in * self.tile_out * self.planes

    def swizzled(self, chunk: int) -> int:
        """Elements with one swizzle: a vector's rows, and more than a chunk, or two would meet."""
        return max(self.out_width * self.tile_in, 2 * chunk)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tiles of planes, along the operand's axis and along the output's."""
        axes = self.axes
        return (
            -(-axes.planes // self.planes),
            -(-axes.along_in // self.tile_in),
            -(-axes.along_out // self.tile_out),
        )


def transpose_cut(kernel: Kernel) -> TransposeCut | None:
    """The tiles of a map that transposes; None for one whose accesses are neighbours anyway.

    By bytes: the operands that lie along another axis are at least as many as its stores, and each
    of both axes is longer than a sector of memory.
    """
    if not operands(kernel.stores, set(kernel.reads)).other:
        return None
    across = _across(kernel)
    if not across:
        return None
    moved = {axes: sum(node.dtype.itemsize for node in nodes) for axes, nodes in across.items()}
    axes = max(moved, key=moved.__getitem__)
    widest = max(node.dtype.itemsize for node in kernel.stores)
    if 2 * moved[axes] < widest:
        return None
    width = _divisor(axes.along_out, min(8, CHUNK // widest, _power(axes.along_out // 2)))
    cut = _tiled(kernel, axes, width, max(moved[axes], widest))
    crossing = CrossedTiles(cut)
    _evaluated(kernel, crossing, KernelParams())
    return cut if crossing.tiles else None


def _tiled(kernel: Kernel, axes: Axes, width: int, nbytes: int) -> TransposeCut:
    """A tile as long on both axes as they are, of few bytes; small where blocks are few."""
    elements, busy = ELEMENTS, THREADS * CHUNK // nbytes
    while elements > max(busy, THREADS) and (
        elements * nbytes > TILE_BYTES or kernel.numel // elements < kernel.target.multiprocessors
    ):
        elements //= 2
    along_in, along_out = _power(axes.along_in), _power(axes.along_out)
    tile_in = min(LONG, along_in, _power(isqrt(elements)))
    tile_out = min(along_out, elements // tile_in)
    tile_in = min(along_in, elements // tile_out)
    planes = min(_power(axes.planes), max(1, elements // (tile_in * tile_out)))
    return TransposeCut(axes, tile_in, tile_out, planes, width)


def _power(size: int) -> int:
    """The least power of two that is no less."""
    return 1 << (size - 1).bit_length()


def _divisor(size: int, width: int) -> int:
    """The largest width, or a half, quarter... of it, that divides a size."""
    while size % width:
        width //= 2
    return width


def _across(kernel: Kernel) -> dict[Axes, set[Node]]:
    """Operands that lie along another axis than the output, by the axes of a tile for them."""
    writer = Evaluator(KernelParams(), set(kernel.reads), True, kernel.narrowed)
    writer.scopes = [Scope("item")]
    item = ix.variable("item", kernel.numel)
    for node in kernel.stores:
        writer.value(node, ix.unflatten(item, node.shape))
    nodes_by_axes: dict[Axes, set[Node]] = {}
    for node, index in writer.loaded:
        axes = _axes_of(index, kernel.numel)
        if axes is not None:
            nodes_by_axes.setdefault(axes, set()).add(node)
    return nodes_by_axes


def _axes_of(index: Index, numel: int) -> Axes | None:
    """The axes of the output that a load walks as if it were transposed, if it does."""
    digits = _digits(index, numel)
    near = next((digit for digit in digits if digit.coefficient == 1), None)
    far = next((digit for digit in digits if digit.stride == 1), None)
    if near is None or far is None or near is far:
        return None
    whole = prod(digit.extent for digit in digits) == numel
    least = SHORTEST if far.coefficient == near.extent else SHORT  # its rows may be one run
    if not whole or near.extent < least or far.extent < SHORT or near.stride % far.extent:
        return None
    outer = numel // (near.stride * near.extent)
    return Axes(outer, near.extent, near.stride // far.extent, far.extent)


def _digits(index: Index, numel: int) -> list[Digit]:
    """An index of ``item < numel`` as the sum of its digits, or nothing if it is no such sum."""
    digits: list[Digit] = []
    for coefficient, term in reversed(index.expanded().terms):  # the least coefficient first
        digit = _digit(coefficient, term, numel)
        if digit is None:
            return []
        last = digits[-1] if digits else digit
        follows = digit.stride == last.stride * last.extent
        if digits and follows and digit.coefficient == last.coefficient * last.extent:
            digits[-1] = last._replace(extent=last.extent * digit.extent)
        else:
            digits.append(digit)
    return digits


def _digit(coefficient: int, term: ix.Term, extent: int) -> Digit | None:
    """What a term of an index is of the one variable in it, whose extent is given."""
    if isinstance(term, ix.AffineLeaf):
        return Digit(coefficient, 1, extent) if isinstance(term, ix.IndexVariable) else None
    if not isinstance(term, (ix.FloorDiv, ix.Mod)) or len(term.operand.terms) != 1:
        return None
    ((inner, operand),) = term.operand.terms
    digit = _digit(coefficient, operand, extent)
    if inner != 1 or term.operand.constant or digit is None or digit.extent % term.divisor:
        return None
    if isinstance(term, ix.Mod):
        return digit._replace(extent=term.divisor)
    return Digit(coefficient, digit.stride * term.divisor, digit.extent // term.divisor)


class CrossedTile(NamedTuple):
    """What crosses in shared memory.

    Attributes:
        node: whose elements they are.
        first: in the node's order, the element of a plane at the beginning of both axes.
        step: between neighbours on the output's axis.
    """

    node: Node
    first: Index
    step: int


class CrossedTiles:
    """The second half of a kernel: it asks for tiles while its text is made.

    Attributes:
        tiles: those asked for, and the names of their pointers.
    """

    def __init__(self, cut: TransposeCut) -> None:
        axes, width = cut.axes, cut.out_width
        self.cut = cut
        self.plane = ix.variable("plane", axes.planes)
        self.along_in = ix.variable("along_in", axes.along_in)
        self.vector = ix.variable("vector", axes.along_out // width)
        self.lane = ix.variable("v", width)
        self.flat = axes.flat(self.plane, self.along_in, self.vector * width + self.lane)
        self.tiles: dict[CrossedTile, str] = {}

    def element(self, writer: Evaluator, node: Node, at: Coordinates, guard: Guard) -> str | None:
        """The element as C text, if a tile can hold what is read of the node."""
        if guard or (node.op.kind == "leaf" and node.op is not common.buffer):
            return None
        begins = self._begins(ix.flatten(at, node.shape))
        if begins is None:
            return None
        tile = CrossedTile(node, *begins)
        name = self.tiles.setdefault(tile, f"tile{len(self.tiles)}")
        depth = int(self.cut.out_width > 1)  # the scope of an element
        memo = writer.scopes[depth].memo
        if tile not in memo:
            text = f"tgc_to_compute({name}[{self._position(node)}])"
            memo[tile] = writer.emit(depth, node.dtype.compute, text, "crossed")
        return memo[tile]

    def _begins(self, index: Index) -> tuple[Index, int] | None:
        """Where a tile begins, and its step; None for what does not lie across."""
        width = self.cut.out_width
        along = ix.split_lane(index, self.along_in)
        across = ix.split_lane(along[1], self.vector) if along and along[0] == 1 else None
        if across is None or across[0] < 2 * width or across[0] % width:
            return None
        step, rest = across[0] // width, across[1]
        if width > 1:
            own = ix.split_lane(rest, self.lane)
            if own is None or own[0] != step:
                return None
            rest = own[1]
        return (rest, step) if rest.leaves <= self.plane.leaves else None

    def _position(self, node: Node) -> str:
        """Of an element in its tile: the chunks of a column's rows are swizzled by the column."""
        chunk, row = CHUNK // node.dtype.itemsize, self.cut.tile_in
        whole = self.cut.swizzled(chunk) == self.cut.out_width * row
        by = "column" if whole else f"start / {self.cut.swizzled(chunk)} % 8"
        lane = f" + v * {row}" if self.cut.out_width > 1 else ""
        if row >= 8 * chunk:  # the swizzle leaves the lane alone
            return f"(start ^ {by} * {chunk}){lane}"
        return f"(start{lane}) ^ {by} * {chunk}"


def transpose_stages(kernel: Kernel, cut: TransposeCut) -> list[Stage]:
    """One stage: a block for each tile."""
    words, crossing = KernelParams(), CrossedTiles(cut)
    writer, stores = _evaluated(kernel, crossing, words)
    first = FirstHalf(kernel, crossing, words)
    blocks = prod(cut.grid)
    body = fill(
        "transpose.cuh",
        "body",
        threads=THREADS,
        tiles=first.tiles,
        declare=first.declare,
        loads=first.trips,
        load=first.load(),
        put=first.store(),
        stores=-(-cut.elements // cut.out_width // THREADS),
        store=_second_half(cut, writer, stores.after),
    )
    tile = " x ".join(str(size) for size in (cut.planes, cut.tile_in, cut.tile_out) if size > 1)
    label = comment(kernel, f"transposing map over {kernel.numel} elements, {tile} a block", blocks)
    stage = wrapped(kernel, stem(kernel), body, words.list, blocks, first.shared, label)
    stage.min_blocks_per_sm = MIN_BLOCKS_PER_SM
    return [stage]


def _evaluated(
    kernel: Kernel, crossing: CrossedTiles, words: KernelParams
) -> tuple[Evaluator, Stores]:
    """The second half of a kernel, which fills `crossing` with the tiles that it takes."""
    width = crossing.cut.out_width
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
    writer.scopes = [Scope("plane", "along_in", "vector"), Scope("v")]
    writer.lane = Lane(crossing.lane, width)
    writer.crossing = crossing
    stores = Stores(writer, kernel)
    for node in kernel.stores:
        value = writer.value(node, ix.unflatten(crossing.flat, node.shape))
        stores.put(node, crossing.flat, value)
    return writer, stores


class FirstHalf:
    """Loads along the operands' axis, and what they are made of, into the tiles.

    Attributes:
        width: neighbours that a thread loads.
        trips: vectors of a thread.
        tiles, declare, hold, put: statements.
        partial: the condition that the tile has a vector; empty if it always has.
        shared: bytes of the tiles.
    """

    def __init__(self, kernel: Kernel, crossing: CrossedTiles, words: KernelParams) -> None:
        cut, axes = crossing.cut, crossing.cut.axes
        self.words, self.memory = words, set(kernel.reads)
        self.cut, self.shared = cut, 0
        rows, runs = (min(map(width, crossing.tiles)) for width in (self._width, self._run_width))
        self.by_runs, self.width = runs > rows, max(rows, runs)
        self.vectors = (
            cut.planes * cut.tile_out * axes.along_in if self.by_runs else cut.elements
        ) // self.width
        self.trips = -(-self.vectors // THREADS)
        self.reader = Evaluator(words, self.memory, is_wide(kernel), kernel.narrowed)
        self.reader.scopes = [Scope("plane", "vector", "along_out"), Scope("v")]
        self.lane = ix.variable("v", self.width)
        self.reader.lane = Lane(self.lane, self.width)
        self.tiles: list[str] = []
        self.declare: list[str] = []
        self.hold: list[str] = []
        self.put: list[str] = []
        for tile, name in crossing.tiles.items():
            self._add(tile, name)
        self.partial = f"item < {self.vectors}" if self.vectors % THREADS else ""

    def _width(self, tile: CrossedTile) -> int:
        """Neighbours of a row of a tile that one access loads."""
        return self._aligned(tile, self.cut.axes.along_in, tile.step)

    def _run_width(self, tile: CrossedTile) -> int:
        """The same where a tile's rows follow each other in memory and are one run; else 0."""
        cut, length = self.cut, self.cut.axes.along_in
        if tile.step != length or length > cut.tile_in:
            return 0
        return self._aligned(tile, length * cut.tile_out, length * cut.axes.along_out)

    def _aligned(self, tile: CrossedTile, *steps: int) -> int:
        """Elements of an access that divide where a tile begins, and these steps."""
        nodes = [tile.node, *([] if tile.node in self.memory else self.memory)]
        large = [node for node in nodes if prod(node.shape) >= prod(tile.node.shape)]
        width = min(8, CHUNK // max(node.dtype.itemsize for node in large))
        while not ix.divisible(tile.first, width) or any(step % width for step in steps):
            width //= 2
        return width

    def _add(self, tile: CrossedTile, name: str) -> None:
        """The statements of one tile."""
        node, width = tile.node, self.width
        ctype = node.dtype.c
        start = f" + {self.shared}" if self.shared else ""
        self.tiles.append(f"{ctype}* const {name} = reinterpret_cast<{ctype}*>(smem{start});")
        self.shared += self.cut.elements * node.dtype.itemsize
        vector, vector_name = f"tgc_vector<{ctype}, {width}>", f"{name}_held"
        several = self.trips > 1
        self.declare.append(f"{vector} {vector_name}{f'[{self.trips}]' if several else ''};")
        vector_name += "[k]" if several else ""
        self._make(tile, vector_name)
        chunk = CHUNK // node.dtype.itemsize
        position = f"start ^ start / {self.cut.swizzled(chunk)} % 8 * {chunk}"
        if not self.by_runs:
            self.put.append(f"*reinterpret_cast<{vector}*>({name} + ({position})) = {vector_name};")
            return
        self.put.append(f"{name}[{position}] = {vector_name}.at[{'v' if width > 1 else 0}];")

    def _first(self, tile: CrossedTile) -> Index:
        """The position of a vector's first element."""
        axes, width = self.cut.axes, self.width
        if self.by_runs:
            run = ix.variable("vector", axes.along_in * axes.along_out // width)
            return tile.first + run * width
        row = ix.variable("along_out", axes.along_out) * tile.step
        return tile.first + row + ix.variable("vector", axes.along_in // width) * width

    def _make(self, tile: CrossedTile, vector_name: str) -> None:
        """A vector of a tile: loaded as it lies in memory, or evaluated."""
        node, reader, width = tile.node, self.reader, self.width
        base = self._first(tile)
        if node in self.memory:
            position = reader.index_text(base)
            text = f"tgc_load_vector<{width}>({self.words.read(node)}, {position})"
            reader.scopes[0].lines.append(f"{vector_name} = {text};")
            return
        value = reader.value(node, ix.unflatten(base + self.lane, node.shape))
        ctype, lane = node.dtype.c, reader.lane.name if reader.lane and width > 1 else "0"
        if node.dtype.is_half and width > 1:  # rounded in pairs
            values = reader.fresh("crossing")
            reader.scopes[0].lines.append(f"float {values}[{width}];")
            value = reader.unrounded.get(value, value)
            reader.scopes[1].lines.append(f"{values}[{lane}] = {value};")
            self.hold.append(f"{vector_name} = tgc_rounded<{ctype}>({values});")
            return
        reader.scopes[1].lines.append(
            f"{vector_name}.at[{lane}] = tgc_to_storage<{ctype}>({value});"
        )

    def load(self) -> list[str]:
        """Which vector of its tile a thread loads, and that it does."""
        cut, axes = self.cut, self.cut.axes
        item = ix.variable("item", self.vectors)
        if self.by_runs:
            run = self.vectors // cut.planes
            whole = axes.along_in * axes.along_out // self.width
            positions = (
                Position("plane", item // run, cut.planes, axes.planes),
                Position("", item, 1, 1),
                Position("vector", item % run, run, whole),
            )
        else:
            row = cut.tile_in // self.width
            column = item // row % cut.tile_out
            positions = (
                Position("plane", item // (row * cut.tile_out), cut.planes, axes.planes),
                Position("vector", item % row, row, axes.along_in // self.width),
                Position("along_out", column, cut.tile_out, axes.along_out),
            )
        lines, tests = _positions(cut, *positions)
        if self.partial:
            tests.insert(0, self.partial)
        return [*lines, *_guarded(tests, _vector(self.reader, self.hold))]

    def store(self) -> list[str]:
        """That a thread stores its vector in the tile, of a run each element in its row."""
        put = [f"const int start = item * {self.width};", *self.put]
        if self.by_runs:
            element, length = (
                ix.variable("element", self.vectors * self.width),
                self.cut.axes.along_in,
            )
            row, inside = ix.divide(element, length)
            start = ix.render(row * self.cut.tile_in + inside, False)
            each = f"item * {self.width}{' + v' if self.width > 1 else ''}"
            put = [f"const int element = {each};", f"const int start = {start};", *self.put]
            text = fill("transpose.cuh", "vector", before=[], width=self.width, map=put, after=[])
            put = text.splitlines()
        return _guarded([self.partial] if self.partial else [], put)


def _second_half(cut: TransposeCut, writer: Evaluator, after: list[str]) -> list[str]:
    """Which vector of the output a thread stores: a few of a row, then those of the next row."""
    width = cut.out_width
    row = cut.tile_out // width
    near = min(row, max(8, SECTOR // width))
    vectors = cut.elements // width
    item = ix.variable("item", vectors)
    rest = item // (near * cut.tile_in)
    column, plane = rest % (row // near) * near + item % near, rest // (row // near)
    along_in = item // near % cut.tile_in
    lines, tests = _positions(
        cut,
        Position("plane", plane, cut.planes, cut.axes.planes),
        Position("along_in", along_in, cut.tile_in, cut.axes.along_in),
        Position("vector", column, row, cut.axes.along_out // width),
    )
    column = plane * row + column
    start = column * (width * cut.tile_in) + along_in
    lines.append(f"const int start = {ix.render(start, False)};")
    lines.append(f"const int column = {ix.render(column % 8, False)};")
    if vectors % THREADS:
        tests.insert(0, f"item < {vectors}")
    return [*lines, *_guarded(tests, _vector(writer, after))]


def _vector(writer: Evaluator, after: list[str]) -> list[str]:
    """The statements of a vector: those before its elements, of each, and behind them."""
    before, each = (scope.lines for scope in writer.scopes)
    assert writer.lane is not None
    width = writer.lane.width if each else 0
    text = fill("transpose.cuh", "vector", before=before, width=width, map=each, after=after)
    return text.splitlines()


def _guarded(tests: list[str], lines: list[str]) -> list[str]:
    """Statements under conditions, if there are any."""
    if not tests:
        return lines
    inner = [line if line.startswith("#") else f"  {line}" for line in lines]
    return [f"if ({' && '.join(tests)}) {{", *inner, "}"]


class Position(NamedTuple):
    """A thread's position on an axis: its name, the position in a tile, sizes of tile and axis."""

    name: str
    inside: Index
    size: int
    extent: int


def _positions(cut: TransposeCut, *axes: Position) -> tuple[list[str], list[str]]:
    """Statements of the positions along plane, the operands' axis and the output's, and tests."""
    block = ix.variable("virtual_block", prod(cut.grid))
    lines, tests = [], []
    for axis, tile in zip(axes, ix.unflatten(block, cut.grid), strict=True):
        if axis.extent > 1:
            position = ix.render(tile * axis.size + axis.inside, False)
            lines.append(f"const int {axis.name} = {position};")
        if axis.extent % axis.size:
            tests.append(f"{axis.name} < {axis.extent}")
    return lines, tests


__all__ = ["TransposeCut", "transpose_cut", "transpose_stages"]
