"""How an operand of a matrix product comes into shared memory: which elements a thread loads, what
it knows of their places before the loop over k, and what stands in a table of the block."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import gcd, prod

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope
from tinygrad_cuda.lowering.codegen.index import AffineLeaf, Bounded, Compound, FloorDiv, Index, Mod
from tinygrad_cuda.lowering.codegen.index_rewrites import Coordinates, Guard, moved
from tinygrad_cuda.lowering.codegen.params import KernelParams, literal
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, fill
from tinygrad_cuda.lowering.schedule.fusion import (
    BROADCAST_COST,
    CHEAP_COST,
    FLAT,
    TRANSPARENT,
    trace,
)
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import PAD, Plan, itemsize_of
from tinygrad_cuda.lowering.target import Target

NEIGHBOURS = 16  # threads that share a line at least
SECTOR = 8  # elements that come from memory together
BITS = 32  # cases that a mask tells apart
TABLE_LINE = 16  # bytes of a line of a table at most: what is loaded at once


@dataclass(frozen=True)
class Source:
    """An operand as the product sees it: ``node[batch, other, k]``, or with the axes exchanged."""

    name: str
    node: Node
    other: str
    extent: int
    tile: int
    k: int
    batch_shape: Shape

    @property
    def batches(self) -> int:
        return prod(self.batch_shape)

    def at(self, batch: Index, other: Index, k: Index) -> Coordinates:
        pair = (other, k) if self.name == "a" else (k, other)
        return (*ix.unflatten(batch, self.batch_shape), *pair)


def sources_of(a: Node, b: Node, tile_m: int = 1, tile_n: int = 1) -> tuple[Source, Source]:
    """Both operands of a product, with as many rows of A and columns of B as a block has."""
    *batch, m, k = a.shape
    n, batch_shape = b.shape[-1], tuple(batch)
    rows = Source("a", a, "m", m, tile_m, k, batch_shape)
    return rows, Source("b", b, "n", n, tile_n, k, batch_shape)


class Reader(Evaluator):
    """An evaluator that takes indices apart where it can.

    With a table, the terms of an index that depend on its lines alone are looked up in shared
    memory; the others are computed once for all lines of a thread.

    Attributes:
        step: the variable that says where along its lines a thread is.
        target: its shared memory limits the table.
    """

    def __init__(self, words: KernelParams, memory: set[Node], wide: bool, target: Target) -> None:
        super().__init__(words, memory, wide)
        self.target = target
        self.table: Table | None = None
        self.step = ""

    def index_text(self, index: Index) -> str:
        table = self.table
        if table is None or self.wide or table.line not in index.leaves:
            return super().index_text(index)
        index = index.expanded()
        own, rest, mixed = separated(index, table.line)
        parts = []
        if any(isinstance(term, Compound) for _, term in own.terms):
            parts.append(table.column(super().index_text(own)))
        elif own.terms:
            parts.append(super().index_text(own))
        if rest.terms:
            parts.append(self._once(rest))
        elif rest.constant:
            parts.append(str(rest.constant))
        for coefficient, term in mixed:
            text = f"({self.index_text(term.operand)})"
            if isinstance(term, (FloorDiv, Mod)):  # of what is not negative
                sign = "/" if isinstance(term, FloorDiv) else "%"
                text = f"(int)((unsigned){text} {sign} {term.divisor}u)"
            parts.append(f"{text} * {coefficient}")
        return " + ".join(parts)

    def _once(self, rest: Index) -> str:
        """The name of what is the same for all lines of a thread."""
        depth = self._depth((rest,), ())
        if depth == 2 and all(
            leaf.name == self.step or self._home(leaf.name) < 2 for leaf in rest.leaves
        ):
            depth = 1
        return self._named(depth, ("rest", rest), "int", super().index_text(rest), "offset")


@dataclass
class Table:
    """What a block keeps in shared memory for each line of an operand: parts of its index.

    Attributes:
        line: the variable that counts lines.
        columns: C text of what it holds, in terms of that variable.
    """

    side: str
    line: AffineLeaf
    columns: list[str] = field(default_factory=list)

    def column(self, text: str) -> str:
        """Where a line finds the value of this text."""
        if text not in self.columns:
            self.columns.append(text)
        return f"line_{self.side}.at[{self.columns.index(text)}]"

    @property
    def width(self) -> int:
        """KernelParams of a line, a power of two."""
        return 1 << (len(self.columns) - 1).bit_length()

    @property
    def too_wide(self) -> bool:
        """Whether a line is more than one load."""
        return 4 * self.width > TABLE_LINE

    def nbytes(self, lines: int) -> int:
        """Of shared memory."""
        return -(-4 * self.width * lines // 16) * 16


def separated(
    index: Index, line: AffineLeaf
) -> tuple[Index, Index, list[tuple[int, FloorDiv | Mod | Bounded]]]:
    """(own, rest, mixed): terms of `line` alone, terms without it, and those that have both."""
    own, rest = Index((), 0), Index((), index.constant)
    mixed: list[tuple[int, FloorDiv | Mod | Bounded]] = []
    for coefficient, term in index.terms:
        part = Index(((coefficient, term),), 0)
        leaves = part.leaves
        if line not in leaves:
            rest = rest + part
        elif leaves == {line}:
            own = own + part
        else:
            assert isinstance(term, (FloorDiv, Mod, Bounded))
            mixed.append((coefficient, term))
    return own, rest, mixed


def zero_outside(reader: Evaluator, node: Node, at: Coordinates) -> tuple[Node, Coordinates, Guard]:
    """The value behind an operand's index rewrites, and the guard where the operand is not 0."""
    guard: Guard = ()
    while node not in reader.memory and (node.op.kind == "movement" or node.op in TRANSPARENT):
        if node.op.kind != "movement":
            node = node.sources[0]
            continue
        inner, conditions, value = moved(node, at, reader._symbol)
        if conditions is not True:
            if conditions is False or not isinstance(value, (int, float)) or value != 0:
                break
            both = ix.all_of((*guard, *conditions))
            if isinstance(both, bool):
                break
            guard = both
        node, at = node.sources[0], inner
    return node, at, guard


@dataclass(frozen=True)
class Mask:
    """Guards as bits: a thread's mask of the cases that are inside, and the case of each line.

    Attributes:
        case: C text of a line's case, from 0.
        cases: how many there are.
        clears: conditions of the thread, with the cases that fail where one does not hold.
    """

    case: str
    cases: int
    clears: tuple[tuple[str, int], ...]


def masked(reader: Evaluator, guard: Guard, line: AffineLeaf) -> Mask | None:
    """A guard taken apart into what a thread knows and what a line does; None where it cannot."""
    bases: dict[Index, Index] = {}
    shares: list[tuple[Index, Index | None, int]] = []
    for condition in guard:
        own, rest, mixed = separated(condition.index.expanded(), line)
        if mixed or any(leaf.name == "v" for leaf in rest.leaves):
            return None
        terms = own.terms
        if not terms:
            shares.append((rest, None, 0))
            continue
        scale = gcd(*(c for c, _ in terms))
        scale = scale if terms[0][0] > 0 else -scale
        base = Index(tuple((c // scale, term) for c, term in terms), 0)
        bases[base] = base
        shares.append((rest, base, scale))
    if not bases:
        return None
    lows = {base: base.low for base in bases}
    counts = {base: base.high - base.low + 1 for base in bases}
    if prod(counts.values()) > BITS:
        return None
    strides, cases = {}, 1
    case = Index((), 0)
    for term, count in counts.items():
        strides[term] = cases
        case = case + (term - lows[term]) * cases
        cases *= count
    clears: dict[str, int] = {}
    for rest, known, scale in shares:
        for value in range(1 if known is None else counts[known]):
            low = 0 if known is None else lows[known]
            holds = ix.nonnegative(rest + scale * (value + low))
            if holds is True:
                continue
            failing = sum(
                1 << number
                for number in range(cases)
                if known is None or number // strides[known] % counts[known] == value
            )
            text = "false" if holds is False else holds.render(reader.wide)
            clears[text] = clears.get(text, 0) | failing
    return Mask(ix.render(case, reader.wide), cases, tuple(clears.items()))


def _signed(bits: int) -> int:
    """The number that a 32-bit int with these bits is."""
    bits &= (1 << BITS) - 1
    return bits - (1 << BITS) if bits >> (BITS - 1) else bits


@dataclass
class Fetch:
    """The text that brings one operand's tiles into shared memory.

    Attributes:
        before: statements before the loop over k; first those that fill a table.
        fetch: in which each thread loads its share of a tile into registers.
        put: in which the share goes to shared memory, k-major.
        loads, width: loads of a thread, and the elements of each.
        shared: bytes of shared memory that its table takes.
        crowded: whether there was no room for a table, which half as much of k would leave.
    """

    before: list[str]
    fetch: list[str]
    put: list[str]
    loads: int
    width: int
    shared: int
    crowded: bool


@dataclass(frozen=True)
class _Walk:
    """How the threads of a block share a tile of an operand.

    Attributes:
        along: the axis that neighbouring threads follow (``k``, or the operand's other one).
        width: elements a thread loads at once along it.
    """

    source: Source
    found: Plan
    along: str
    width: int

    @property
    def line(self) -> str:
        """The other axis: a thread has several lines, always at one place."""
        return self.source.other if self.along == "k" else "k"

    @property
    def lines(self) -> int:
        """Of a tile."""
        return self.source.tile if self.along == "k" else self.found.tile.k

    @property
    def extents(self) -> tuple[int, int]:
        """Of the axis followed, and of the lines."""
        sizes = self.source.k, self.source.extent
        return sizes if self.along == "k" else sizes[::-1]

    @property
    def length(self) -> int:
        """Threads along a line."""
        step = self.found.tile.k if self.along == "k" else self.source.tile
        return step // self.width

    @property
    def rows(self) -> int:
        """Lines that all threads load at once."""
        return THREADS // self.length

    @property
    def places(self) -> tuple[str, str]:
        """C text of a thread's step along its lines, and of the first of them.

        Neighbouring values of k go to lines of shared memory that are few banks apart, so no more
        threads follow k together than memory needs.
        """
        near = min(self.length, NEIGHBOURS // self.width) if self.along == "k" else self.length
        if near == self.length:
            return f"threadIdx.x % {near}", f"threadIdx.x / {near}"
        step = f"threadIdx.x % {near} + threadIdx.x / {near * self.rows} * {near}"
        return f"({step})", f"threadIdx.x / {near} % {self.rows}"

    @property
    def loads(self) -> int:
        return -(-self.lines // self.rows)

    @property
    def table_lines(self) -> int:
        """Lines that a block comes by, the tile after the last one included."""
        before = 0 if self.along == "k" else self.found.chunk
        return before + self.rows * self.loads


def fetched(
    source: Source, found: Plan, offset: int, reader: Reader, outer: Scope, dtype: DType
) -> Fetch:
    """The operand's loads, wide ones where its elements lie side by side.

    Args:
        source: the operand.
        found: the tile, and how much of k a block has.
        offset: bytes of shared memory before its table.
        reader: of the kernel.
        outer: the scope around the loop over k.
        dtype: of the operand.
    """
    along, itemsize = followed(source, reader.memory)
    width = _width(source, found, along, itemsize)
    if found.tile.streamed and source.name == "b":
        along, width = "n", 1  # a column is its thread's from load to result
    walk = _Walk(source, found, along, width)
    if width > 1:
        trial = Reader(KernelParams(), reader.memory, reader.wide, reader.target)
        _written(walk, trial, Scope("batch"), dtype, 0)
        keys = [key for scope in trial.scopes for key in scope.memo]
        if not any(type(key) is tuple and key[0] == "vector" for key in keys):
            walk = _Walk(source, found, along, 1)
    return _written(walk, reader, outer, dtype, offset)


def followed(source: Source, memory: set[Node]) -> tuple[str, int]:
    """The axis along which the operand lies in memory, and the bytes of its widest elements."""
    k, line = ix.variable("k", source.k), ix.variable(source.other, source.extent)
    trial = Evaluator(KernelParams(), memory, True)
    trial.scopes = [Scope("batch"), Scope("k", source.other)]
    trial.value(source.node, source.at(ix.variable("batch", source.batches), line, k))
    along, loads = "k", trial.loaded
    if loads and source.k > 1 and source.extent > 1:
        indices = [index for _, index in loads]
        by_k, by_line = (_sectors(indices, variable) for variable in (k, line))
        along = "k" if by_k <= by_line else source.other
    elif source.k == 1:
        along = source.other
    return along, max((node.dtype.itemsize for node, _ in loads), default=4)


def _width(source: Source, found: Plan, along: str, itemsize: int) -> int:
    """Elements that a thread might load at once."""
    tile_k = found.tile.k
    size, step = (source.k, tile_k) if along == "k" else (source.extent, source.tile)
    width = max(1, min(4, 16 // itemsize))
    while width > 1 and (size % width or step % width or tile_k * source.tile // width < THREADS):
        width //= 2
    return width


def _sectors(indices: list[Index], variable: Index) -> int:
    """Pieces of memory that neighbouring threads touch if they follow a variable."""
    ((_, leaf),) = variable.terms
    assert isinstance(leaf, AffineLeaf)
    count = 0
    for index in indices:
        others = {other.name: other.low for other in index.leaves}
        for share in range(4):
            first = (leaf.high + 1) * share // 4
            places = range(first, min(first + NEIGHBOURS, leaf.high + 1))
            found = {index.evaluate(others | {leaf.name: at}) // SECTOR for at in places}
            count += len(found) * NEIGHBOURS // len(places)
    return count


def _written(
    walk: _Walk, reader: Reader, outer: Scope, dtype: DType, offset: int, tabled: bool = True
) -> Fetch:
    """The text, without a table where that would be too large."""
    source, width, side = walk.source, walk.width, walk.source.name
    extent, lines = walk.extents
    step_name = f"step_{side}"
    steps, v = ix.variable(step_name, extent // width), ix.variable("v", width)
    line = ix.variable(walk.line, lines)
    thread = Scope()
    reader.scopes = [outer, thread, Scope(walk.line, step_name), Scope("v")]
    reader.lane = Lane(v, width)
    reader.step = step_name
    counted = line.terms[0][1] if line.terms else None
    reader.table = Table(side, counted) if tabled and isinstance(counted, AffineLeaf) else None
    along = steps * width + v
    other, k = (line, along) if walk.along == "k" else (along, line)
    node, at = source.node, source.at(ix.variable("batch", source.batches), other, k)
    last = "k_last" if walk.line == "k" else str(lines)
    step_inside = (
        f"{_times(step_name, width)} < k_last"
        if walk.along == "k"
        else (f"{step_name} < {extent // width}")
    )
    inside = [f"{walk.line} < {last}", step_inside]
    if walk.lines % walk.rows:
        inside.append(f"row < {walk.lines}")
    mask = None
    if reader.table is not None:
        behind, places, guard = zero_outside(reader, node, at)
        mask = masked(reader, guard, reader.table.line) if guard else None
    if mask is not None and reader.table is not None:
        node, at = behind, places
        name = f"mask_{side}"
        thread.lines.append(f"int {name} = {step_inside} ? -1 : 0;")
        thread.lines += [
            f"{name} &= {test} ? -1 : {_signed(~cases)};" for test, cases in mask.clears
        ]
        within = " && ".join([f"{walk.line} < {last}", *inside[2:]])
        inside = [
            f"({name} & {reader.table.column(f'{within} ? (int)(1u << ({mask.case})) : 0')}) != 0"
        ]
    value = reader.value(node, at)
    table, reader.table = reader.table, None
    if table is not None and not table.columns:
        table = None
    room = reader.target.tile_shared - offset
    if table is not None and (table.too_wide or table.nbytes(walk.table_lines) > room):
        found = _written(walk, reader, outer, dtype, offset, False)
        long = walk.along != "k" and walk.found.chunk > walk.found.tile.k
        return replace(found, crowded=long and not table.too_wide)
    return _filled(walk, reader, dtype, table, inside, offset, value)


def _times(text: str, factor: int) -> str:
    return f"{text} * {factor}" if factor > 1 else text


def _filled(
    walk: _Walk,
    reader: Reader,
    dtype: DType,
    table: Table | None,
    inside: list[str],
    offset: int,
    value: str,
) -> Fetch:
    """The skeleton's text around what was found."""
    source, width, side = walk.source, walk.width, walk.source.name
    first = f"tile_{source.other} * {source.tile}"
    start = "k_first" if walk.along == "k" else first
    step, row = walk.places
    if width > 1:
        start = f"{start} / {width}" if start.isidentifier() else f"({start}) / {width}"
    thread = [f"const int step_{side} = {start} + {step};", *reader.scopes[1].lines]
    before, entry = ([], thread) if walk.along == "k" else (thread, [])
    holes = {
        "threads": THREADS,
        "side": side,
        "line": walk.line,
        "width": width,
        "loads": walk.loads,
        "rows": walk.rows,
        "row": row,
    }
    entry_of = []
    if table is not None:
        place = "row" if walk.along == "k" else "k_first - k_begin + row"
        entry_of = [f"const tgc_vector<int, {table.width}> line_{side} = table_{side}[{place}];"]
        filling = fill(
            "contract.cuh",
            "table",
            **holes,
            words=table.width,
            offset=offset,
            size=walk.table_lines,
            line_first=first if walk.along == "k" else "k_begin",
            columns=[f"entry.at[{n}] = {text};" for n, text in enumerate(table.columns)],
        )
        before = [*filling.splitlines(), *before]
    stride = source.tile + PAD
    along_step, line_step = (stride, 1) if walk.along == "k" else (1, stride)
    test = f"if (i * {walk.rows} + {row} >= {walk.lines}) break;"
    return Fetch(
        before,
        fill(
            "contract.cuh",
            "fetch",
            **holes,
            thread=entry,
            entry=entry_of,
            line_first=first if walk.along == "k" else "k_first",
            inside=" && ".join(inside),
            zero=literal(0, dtype),
            load=reader.scopes[2].lines,
            map=reader.scopes[3].lines,
            value=value,
        ).splitlines(),
        fill(
            "contract.cuh",
            "put",
            **holes,
            type=dtype.compute,
            tile_k=walk.found.tile.k,
            stride=stride,
            place=_times(step, width * along_step),
            along_step=along_step,
            line_step=line_step,
            test=[test] if walk.lines % walk.rows else [],
        ).splitlines(),
        walk.loads,
        width,
        0 if table is None else table.nbytes(walk.table_lines),
        False,
    )


# Before kernels are formed: what index rewrites read is taken to be in memory. ------------------


def follows_columns(a: Node, b: Node) -> bool:
    """Whether neighbouring columns of B are neighbours in memory."""
    return followed(sources_of(a, b)[1], _behind(b))[0] == "n"


def crowded(a: Node, b: Node, found: Plan, dtype: DType, target: Target) -> bool:
    """Whether half as much of k would leave a block room for its tables, and less does not."""
    shared = found.tile.shared(itemsize_of(dtype))
    lines = found.chunk + found.tile.k + THREADS  # of a table at most
    if shared + 2 * TABLE_LINE * lines <= target.tile_shared:
        return False
    reader = Reader(KernelParams(), _behind(a) | _behind(b), False, target)
    for source in sources_of(a, b, found.tile.m, found.tile.n):
        fetch = fetched(source, found, shared, reader, Scope("batch"), dtype)
        if fetch.crowded:
            return True
        shared += fetch.shared
    return False


def _behind(node: Node, cost: int = 0) -> set[Node]:
    """What an operand's loads read: cheap values that are made of one other are inline."""
    edge = trace(node, set())
    node, cost = edge.base, cost + edge.base.op.cost
    if node.op.kind == "leaf":
        return {node} if node.op is common.buffer else set()  # others are not in memory
    if node.op.kind != "elementwise" or cost > (
        CHEAP_COST if edge.kind == FLAT else BROADCAST_COST
    ):
        return {node}
    found = {base for source in node.sources for base in _behind(source, cost)}
    return found if len(found) == 1 else {node}
