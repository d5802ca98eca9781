"""How an operand of a matrix product comes into shared memory: which elements a thread loads, which
terms of their indices it computes before the loop over k, and which a block's table holds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import Any

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.affine import (
    AffineLeaf,
    Bounded,
    Compound,
    FloorDiv,
    Index,
    Mod,
)
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope, literal
from tinygrad_cuda.lowering.codegen.index_rewrites import Coordinates, Guard, moved
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, KernelParams, fill
from tinygrad_cuda.lowering.schedule.fusion import (
    BROADCAST_COST,
    CHEAP_COST,
    FLAT,
    TRANSPARENT,
    trace,
)
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import ProductCut, itemsize_of
from tinygrad_cuda.lowering.target import Target

NEIGHBOURS = 16  # threads along the contiguous axis at least
SECTOR = 8  # elements of a 32-byte sector of memory, of 4 bytes each
BITS = 32  # cases of a mask, one a bit
TABLE_ENTRY = 16  # bytes of an index table's entry at most: the widest load


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
    """An evaluator that separates an index's terms by axis where it can.

    With a table, the terms that depend on the strided axis alone are looked up in shared memory;
    the others are computed once for all loads of a thread.

    Attributes:
        step: the variable of a thread's position along the contiguous axis.
        target: its shared memory limits the table.
    """

    def __init__(
        self,
        words: KernelParams,
        memory: set[Node],
        wide: bool,
        target: Target,
        narrowed: frozenset[Node] = frozenset(),
    ) -> None:
        super().__init__(words, memory, wide, narrowed)
        self.target = target
        self.table: Table | None = None
        self.step = ""

    def index_text(self, index: Index) -> str:
        table = self.table
        if table is None or self.wide or table.strided not in index.leaves:
            return super().index_text(index)
        index = index.expanded()
        own, rest, mixed = separated(index, table.strided)
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
        """The variable of terms that are the same for all loads of a thread."""
        depth = self._depth((rest,), ())
        if depth == 2 and all(
            leaf.name == self.step or self._home(leaf.name) < 2 for leaf in rest.leaves
        ):
            depth = 1
        return self._named(depth, ("rest", rest), "int", super().index_text(rest), "offset")


@dataclass
class Table:
    """Index terms in shared memory, an entry for each value of an operand's strided axis.

    Attributes:
        strided: the variable of that axis.
        columns: C text of an entry's integers, in terms of that variable.
    """

    side: str
    strided: AffineLeaf
    columns: list[str] = field(default_factory=list)

    def column(self, text: str) -> str:
        """The entry's element with the value of this text."""
        if text not in self.columns:
            self.columns.append(text)
        return f"entry_{self.side}.at[{self.columns.index(text)}]"

    @property
    def width(self) -> int:
        """Integers of an entry, a power of two."""
        return 1 << (len(self.columns) - 1).bit_length()

    @property
    def too_wide(self) -> bool:
        """Whether an entry takes more than one load."""
        return 4 * self.width > TABLE_ENTRY

    def nbytes(self, entries: int) -> int:
        """Bytes of shared memory."""
        return -(-4 * self.width * entries // 16) * 16


def separated(
    index: Index, leaf: AffineLeaf
) -> tuple[Index, Index, list[tuple[int, FloorDiv | Mod | Bounded]]]:
    """(own, rest, mixed): terms of `leaf` alone, terms without it, and those that have both."""
    own, rest = Index((), 0), Index((), index.constant)
    mixed: list[tuple[int, FloorDiv | Mod | Bounded]] = []
    for coefficient, term in index.terms:
        single = Index(((coefficient, term),), 0)
        leaves = single.leaves
        if leaf not in leaves:
            rest = rest + single
        elif leaves == {leaf}:
            own = own + single
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
    """Guards as bits: a thread's mask of the cases in bounds, and the case of each table entry.

    Attributes:
        case: C text of an entry's case, from 0.
        clears: conditions of the thread, with the cases that fail where one does not hold.
    """

    case: str
    clears: tuple[tuple[str, int], ...]


def masked(reader: Evaluator, guard: Guard, strided: AffineLeaf) -> Mask | None:
    """A guard as a mask of the thread and cases of the strided axis; None where they mix."""
    bases: dict[Index, Index] = {}
    bounds: list[tuple[Index, Index | None, int]] = []
    for condition in guard:
        own, rest, mixed = separated(condition.index.expanded(), strided)
        if mixed or any(leaf.name == "v" for leaf in rest.leaves):
            return None
        terms = own.terms
        if not terms:
            bounds.append((rest, None, 0))
            continue
        scale = gcd(*(c for c, _ in terms))
        scale = scale if terms[0][0] > 0 else -scale
        base = Index(tuple((c // scale, term) for c, term in terms), 0)
        bases[base] = base
        bounds.append((rest, base, scale))
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
    for rest, key, scale in bounds:
        for value in range(1 if key is None else counts[key]):
            low = 0 if key is None else lows[key]
            holds = ix.nonnegative(rest + scale * (value + low))
            if holds is True:
                continue
            failing = sum(
                1 << number
                for number in range(cases)
                if key is None or number // strides[key] % counts[key] == value
            )
            text = "false" if holds is False else holds.render(reader.wide)
            clears[text] = clears.get(text, 0) | failing
    return Mask(ix.render(case, reader.wide), tuple(clears.items()))


def _signed(bits: int) -> int:
    """The number that a 32-bit int with these bits is."""
    bits &= (1 << BITS) - 1
    return bits - (1 << BITS) if bits >> (BITS - 1) else bits


@dataclass
class Fetch:
    """The text that brings one operand's tiles into shared memory.

    Attributes:
        before: statements before the loop over k; first those that fill a table.
        fetch: in which each thread prefetches its elements of a tile into registers.
        threads: which elements those are.
        shared: bytes of shared memory that its table takes.
        table_overflows: whether its table exceeds shared memory and half as much of k would fit.
    """

    before: list[str]
    fetch: list[str]
    threads: ThreadMap
    shared: int
    table_overflows: bool


@dataclass(frozen=True)
class ThreadMap:
    """Which elements of an operand's tile each thread of a block loads.

    Attributes:
        contiguous: the axis along which neighbouring threads load (``k``, or the operand's other).
        width: elements a thread loads at once along it.
        k_major: whether shared memory has rows of the other axis, whichever is contiguous.
    """

    source: Source
    cut: ProductCut[Any]
    contiguous: str
    width: int
    k_major: bool = True

    @property
    def strided(self) -> str:
        """The other axis: a thread loads several rows along it, in the same columns."""
        return self.source.other if self.contiguous == "k" else "k"

    @property
    def strided_size(self) -> int:
        """Rows of a tile along the strided axis."""
        return self.source.tile if self.contiguous == "k" else self.cut.tile.k

    @property
    def extents(self) -> tuple[int, int]:
        """Sizes of the operand's contiguous and strided axes."""
        sizes = self.source.k, self.source.extent
        return sizes if self.contiguous == "k" else sizes[::-1]

    @property
    def length(self) -> int:
        """Threads along the contiguous axis."""
        step = self.cut.tile.k if self.contiguous == "k" else self.source.tile
        return step // self.width

    @property
    def rows(self) -> int:
        """Rows that all threads load at once."""
        return THREADS // self.length

    @property
    def offsets(self) -> tuple[str, str]:
        """C text of a thread's first position along the contiguous and the strided axis.

        Neighbouring values of k go to k-major rows that are few banks apart, so no more threads
        load along k together than a sector needs.
        """
        scattered = self.k_major and self.contiguous == "k"
        near = min(self.length, NEIGHBOURS // self.width) if scattered else self.length
        if near == self.length:
            return f"threadIdx.x % {near}", f"threadIdx.x / {near}"
        step = f"threadIdx.x % {near} + threadIdx.x / {near * self.rows} * {near}"
        return f"({step})", f"threadIdx.x / {near} % {self.rows}"

    @property
    def loads(self) -> int:
        """Loads of a thread for one tile."""
        return -(-self.strided_size // self.rows)

    def skip(self) -> list[str]:
        """The statement that ends the loop over loads before a row that the tile has not."""
        _, row = self.offsets
        if self.strided_size % self.rows == 0:
            return []
        return [f"if (i * {self.rows} + {row} >= {self.strided_size}) break;"]

    @property
    def table_entries(self) -> int:
        """Entries that a block reads, the tile after the last one included."""
        before = 0 if self.contiguous == "k" else self.cut.chunk
        return before + self.rows * self.loads


@dataclass(frozen=True)
class RunsOfRows(ThreadMap):
    """Rows along k that follow each other, one element of each: a thread has a run of k."""

    @property
    def rows(self) -> int:
        return 1

    @property
    def offsets(self) -> tuple[str, str]:
        row = times(f"threadIdx.x / {self.length}", self.loads)
        return f"threadIdx.x % {self.length}", row

    @property
    def loads(self) -> int:
        return self.strided_size * self.length // THREADS


def fetch_by(threads: ThreadMap, reader: Reader, outer: Scope, dtype: DType) -> Fetch:
    """The loads of a thread map, without an index table."""
    return _emit_loads(threads, reader, outer, dtype, 0, False)


def operand_fetch(
    source: Source,
    cut: ProductCut[Any],
    shared_offset: int,
    reader: Reader,
    outer: Scope,
    dtype: DType,
    k_major: bool = True,
    along: str = "",
) -> Fetch:
    """The operand's loads, wide ones where its elements lie side by side.

    Args:
        source: the operand.
        cut: the tile, and how much of k a block has.
        shared_offset: bytes of shared memory before its table.
        reader: of the kernel.
        outer: the scope around the loop over k.
        dtype: of the operand.
        k_major: see `ThreadMap`. Other tiles have no index table.
        along: the axis that neighbouring threads follow; that of memory if none is given.
    """
    contiguous, itemsize = contiguous_axis(source, reader.memory)
    contiguous = along or contiguous
    width = _width(source, cut, contiguous, itemsize)
    if cut.tile.streamed and source.name == "b":
        contiguous, width = "n", 1  # one thread loads a column and computes its outputs
    threads = ThreadMap(source, cut, contiguous, width, k_major)
    if width > 1:
        trial = Reader(KernelParams(), reader.memory, reader.wide, reader.target)
        _emit_loads(threads, trial, Scope("batch"), dtype, 0, k_major)
        keys = [key for scope in trial.scopes for key in scope.memo]
        if not any(type(key) is tuple and key[0] == "vector" for key in keys):
            threads = ThreadMap(source, cut, contiguous, 1, k_major)
    return _emit_loads(threads, reader, outer, dtype, shared_offset, k_major)


def contiguous_axis(source: Source, memory: set[Node]) -> tuple[str, int]:
    """The axis along which the operand lies in memory, and the bytes of its widest elements."""
    k, other = ix.variable("k", source.k), ix.variable(source.other, source.extent)
    trial = Evaluator(KernelParams(), memory, True)
    trial.scopes = [Scope("batch"), Scope("k", source.other)]
    trial.value(source.node, source.at(ix.variable("batch", source.batches), other, k))
    contiguous, loads = "k", trial.loaded
    if loads and source.k > 1 and source.extent > 1:
        indices = [index for _, index in loads]
        along_k, along_other = (_sectors(indices, variable) for variable in (k, other))
        contiguous = "k" if along_k <= along_other else source.other
    elif source.k == 1:
        contiguous = source.other
    return contiguous, max((node.dtype.itemsize for node, _ in loads), default=4)


def _width(source: Source, cut: ProductCut[Any], contiguous: str, itemsize: int) -> int:
    """Elements that a thread might load at once."""
    tile_k = cut.tile.k
    size, step = (source.k, tile_k) if contiguous == "k" else (source.extent, source.tile)
    width = max(1, min(4, 16 // itemsize))
    while width > 1 and (size % width or step % width or tile_k * source.tile // width < THREADS):
        width //= 2
    return width


def _sectors(indices: list[Index], variable: Index) -> int:
    """Sectors of memory that neighbouring threads touch if they load along a variable."""
    ((_, leaf),) = variable.terms
    assert isinstance(leaf, AffineLeaf)
    count = 0
    for index in indices:
        others = {other.name: other.low for other in index.leaves}
        for quarter in range(4):
            first = (leaf.high + 1) * quarter // 4
            values = range(first, min(first + NEIGHBOURS, leaf.high + 1))
            sectors = {index.evaluate(others | {leaf.name: at}) // SECTOR for at in values}
            count += len(sectors) * NEIGHBOURS // len(values)
    return count


def _emit_loads(
    threads: ThreadMap,
    reader: Reader,
    outer: Scope,
    dtype: DType,
    shared_offset: int,
    use_table: bool = True,
) -> Fetch:
    """The operand's loads as text, without a table where that would be too large.

    Args:
        shared_offset: bytes of shared memory before the table.
        use_table: whether there is one, if it fits.
    """
    source, width, side = threads.source, threads.width, threads.source.name
    extent, strided_extent = threads.extents
    step_name = f"step_{side}"
    steps, v = ix.variable(step_name, extent // width), ix.variable("v", width)
    strided = ix.variable(threads.strided, strided_extent)
    thread = Scope()
    reader.scopes = [outer, thread, Scope(threads.strided, step_name), Scope("v")]
    reader.lane = Lane(v, width)
    reader.step = step_name
    leaf = strided.terms[0][1] if strided.terms else None
    reader.table = Table(side, leaf) if use_table and isinstance(leaf, AffineLeaf) else None
    contiguous = steps * width + v
    other, k = (strided, contiguous) if threads.contiguous == "k" else (contiguous, strided)
    node, at = source.node, source.at(ix.variable("batch", source.batches), other, k)
    end = "k_end" if threads.strided == "k" else str(strided_extent)
    step_in_bounds = (
        f"{times(step_name, width)} < k_end"
        if threads.contiguous == "k"
        else (f"{step_name} < {extent // width}")
    )
    in_bounds = [f"{threads.strided} < {end}", step_in_bounds]
    if threads.strided_size % threads.rows:
        in_bounds.append(f"row < {threads.strided_size}")
    mask = None
    if reader.table is not None:
        inner, inner_at, guard = zero_outside(reader, node, at)
        mask = masked(reader, guard, reader.table.strided) if guard else None
    if mask is not None and reader.table is not None:
        node, at = inner, inner_at
        name = f"mask_{side}"
        thread.lines.append(f"int {name} = {step_in_bounds} ? -1 : 0;")
        thread.lines += [
            f"{name} &= {test} ? -1 : {_signed(~cases)};" for test, cases in mask.clears
        ]
        valid = " && ".join([f"{threads.strided} < {end}", *in_bounds[2:]])
        in_bounds = [
            f"({name} & {reader.table.column(f'{valid} ? (int)(1u << ({mask.case})) : 0')}) != 0"
        ]
    value = reader.value(node, at)
    table, reader.table = reader.table, None
    if table is not None and not table.columns:
        table = None
    free = reader.target.tile_shared - shared_offset
    if table is not None and (table.too_wide or table.nbytes(threads.table_entries) > free):
        fetch = _emit_loads(threads, reader, outer, dtype, shared_offset, False)
        long = threads.contiguous != "k" and threads.cut.chunk > threads.cut.tile.k
        return replace(fetch, table_overflows=long and not table.too_wide)
    return _fill_loads(threads, reader, dtype, table, in_bounds, shared_offset, value)


def times(text: str, factor: int) -> str:
    return f"{text} * {factor}" if factor > 1 else text


def _fill_loads(
    threads: ThreadMap,
    reader: Reader,
    dtype: DType,
    table: Table | None,
    in_bounds: list[str],
    shared_offset: int,
    value: str,
) -> Fetch:
    """The skeleton filled with an operand's loads."""
    source, width, side = threads.source, threads.width, threads.source.name
    first = f"tile_{source.other} * {source.tile}"
    start = "k_first" if threads.contiguous == "k" else first
    step, row = threads.offsets
    if width > 1:
        start = f"{start} / {width}" if start.isidentifier() else f"({start}) / {width}"
    thread = [f"const int step_{side} = {start} + {step};", *reader.scopes[1].lines]
    before, inner = ([], thread) if threads.contiguous == "k" else (thread, [])
    holes = {
        "threads": THREADS,
        "side": side,
        "strided": threads.strided,
        "width": width,
        "loads": threads.loads,
        "rows": threads.rows,
        "row": row,
    }
    entry: list[str] = []
    if table is not None:
        at = "row" if threads.contiguous == "k" else "k_first - k_begin + row"
        entry = [f"const tgc_vector<int, {table.width}> entry_{side} = table_{side}[{at}];"]
        filling = fill(
            "contract.cuh",
            "table",
            **holes,
            words=table.width,
            shared_offset=shared_offset,
            size=threads.table_entries,
            strided_first=first if threads.contiguous == "k" else "k_begin",
            columns=[f"entry.at[{n}] = {text};" for n, text in enumerate(table.columns)],
        )
        before = [*filling.splitlines(), *before]
    return Fetch(
        before,
        fill(
            "contract.cuh",
            "fetch",
            **holes,
            thread=inner,
            entry=entry,
            strided_first=first if threads.contiguous == "k" else "k_first",
            in_bounds=" && ".join(in_bounds),
            zero=literal(0, dtype),
            load=reader.scopes[2].lines,
            map=reader.scopes[3].lines,
            value=value,
        ).splitlines(),
        threads,
        0 if table is None else table.nbytes(threads.table_entries),
        False,
    )


# Before kernels are formed: sources of index rewrites are assumed to be in memory. -------------


def is_row_major(a: Node, b: Node) -> bool:
    """Whether neighbouring columns of B are neighbours in memory."""
    return contiguous_axis(sources_of(a, b)[1], memory_of(b))[0] == "n"


def lie_along_k(a: Node, b: Node) -> tuple[bool, bool]:
    """Whether neighbouring values of k are neighbours in memory, in A and in B.

    Operands of such a product are stored as they are below their movements, however cheap.
    """
    both = zip(sources_of(a, b), (a, b), strict=True)
    first, second = (_lies_along_k(source, {trace(node, set()).base}) for source, node in both)
    return first, second


def _lies_along_k(source: Source, memory: set[Node]) -> bool:
    """By strides where the other axis has stride 1, else by the sectors that loads touch."""
    k, other = ix.variable("k", source.k), ix.variable(source.other, source.extent)
    trial = Evaluator(KernelParams(), memory, True)
    trial.scopes = [Scope("batch"), Scope("k", source.other)]
    trial.value(source.node, source.at(ix.variable("batch", source.batches), other, k))
    for _, index in trial.loaded:
        terms = index.expanded().terms
        steps = {t.name: step for step, t in terms if isinstance(t, AffineLeaf)}
        if steps.get(source.other) == 1 and steps.get("k") != 1:
            return False
    return contiguous_axis(source, memory)[0] == "k"


def table_overflows(a: Node, b: Node, cut: ProductCut[Any], dtype: DType, target: Target) -> bool:
    """Whether a block's index tables exceed shared memory and those of half as much of k fit."""
    shared = cut.tile.shared(itemsize_of(dtype))
    entries = cut.chunk + cut.tile.k + THREADS  # of a table at most
    if shared + 2 * TABLE_ENTRY * entries <= target.tile_shared:
        return False
    reader = Reader(KernelParams(), memory_of(a) | memory_of(b), False, target)
    for source in sources_of(a, b, cut.tile.m, cut.tile.n):
        fetch = operand_fetch(source, cut, shared, reader, Scope("batch"), dtype)
        if fetch.table_overflows:
            return True
        shared += fetch.shared
    return False


def memory_of(node: Node, cost: int = 0) -> set[Node]:
    """The values that an operand's loads read: cheap ones computed from one other are inlined."""
    edge = trace(node, set())
    node, cost = edge.base, cost + edge.base.op.cost
    if node.op.kind == "leaf":
        return {node} if node.op is common.buffer else set()  # others are not in memory
    if node.op.kind != "elementwise" or cost > (
        CHEAP_COST if edge.kind == FLAT else BROADCAST_COST
    ):
        return {node}
    bases = {base for source in node.sources for base in memory_of(source, cost)}
    return bases if len(bases) == 1 else {node}
