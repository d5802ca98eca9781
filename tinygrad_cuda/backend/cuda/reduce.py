"""ROW and COL: reductions, with what comes before and after them, in one or two stages."""

from __future__ import annotations

from typing import NamedTuple

from tinygrad_cuda.backend.cuda import index as ix
from tinygrad_cuda.backend.cuda.expression import IDENTITIES, Evaluator, Held, Lane, Scope, Words
from tinygrad_cuda.backend.cuda.index import Index
from tinygrad_cuda.backend.cuda.store import Stores, comment, is_wide, stem, vector_width
from tinygrad_cuda.backend.cuda.template import THREADS, Scratch, Stage, fill, wrapped
from tinygrad_cuda.graph.fusion import Signature, length_of, rows_of
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.schedule import Kernel

WARP = 32
HELD = 32  # values of each operand that a thread keeps in registers
ENOUGH_BLOCKS = 528  # of a reduction that is split: four for each multiprocessor of a large GPU
PART = 4096  # elements that a block takes at least, before a row is split

# What combines two values, and what the accumulator holds.
_OPERATORS = {
    "sum": "tgc_sum_op",
    "prod": "tgc_product_op",
    "max": "tgc_max_op",
    "min": "tgc_min_op",
    "any": "tgc_or_op",
    "all": "tgc_and_op",
    "argmax": "tgc_argmax_op",
    "argmin": "tgc_argmin_op",
    "welford": "tgc_welford_op",
}


class Accumulator(NamedTuple):
    """A reduction's running value in a thread: its C type, operator, identity and name."""

    node: Node
    name: str
    ctype: str
    operator: str
    identity: str

    @property
    def start(self) -> str:
        """The identity as an expression."""
        return (self.ctype if self.identity.startswith("{") else "") + self.identity

    @property
    def bytes(self) -> int:
        itemsize: int = max(self.node.sources[0].dtype.itemsize, 4)
        return {"argmax": 16, "argmin": 16, "welford": 3 * itemsize}.get(
            self.node.op.name, itemsize
        )

    def take(self, value: str, position: str) -> str:
        """The statement that adds one element."""
        name = self.node.op.name
        if name == "welford":
            return f"{self.name} = tgc_welford_add({self.name}, {value});"
        if name in ("argmax", "argmin"):
            value = f"{self.ctype}{{{value}, {position}}}"
        return f"{self.name} = {self.operator}()({self.name}, {value});"

    def results(self) -> tuple[str, ...]:
        """The reduction's outputs, once the accumulator is final."""
        if self.node.op.name == "welford":
            return f"{self.name}.mean", f"{self.name}.m2"
        if self.node.op.name in ("argmax", "argmin"):
            return (f"{self.name}.index",)
        return (self.name,)


def accumulator(node: Node, number: int) -> Accumulator:
    """The accumulator of a reduction."""
    operator, element = _OPERATORS[node.op.name], node.sources[0].dtype
    ctype = element.compute
    if node.op.name in ("argmax", "argmin"):
        start = "tgc_lowest" if node.op.name == "argmax" else "tgc_highest"
        identity = f"{{{start}<{ctype}>(), 9223372036854775807LL}}"
        ctype = f"tgc_pair<{ctype}>"
    elif node.op.name == "welford":
        identity, ctype = "{0, 0, 0}", f"tgc_welford<{ctype}>"
    else:
        identity = IDENTITIES[node.op.name](element)
    return Accumulator(node, f"r{number}", ctype, operator, identity)


class _Space:
    """Where element `column` of line `line` stands, row-major over all axes."""

    def __init__(self, sign: Signature, line: Index, column: Index) -> None:
        kept = iter(ix.unflatten(line, [size for size, reduced in sign if not reduced]))
        inner = iter(ix.unflatten(column, [size for size, reduced in sign if reduced]))
        places = [next(inner) if reduced else next(kept) for _, reduced in sign]
        self.flat = ix.flatten(places, [size for size, _ in sign])
        self.line = line


class _Lines:
    """What ROW and COL share: accumulators, phases, and values with one element a line."""

    def __init__(self, kernel: Kernel, width: int = 1, name: str = "line") -> None:
        self.kernel = kernel
        self.width = width
        self.lines = rows_of(kernel.sign)
        self.length = length_of(kernel.sign)
        self.words = Words()
        self.writer = Evaluator(self.words, set(kernel.reads), is_wide(kernel))
        if width > 1:
            strip = ix.variable(name, self.lines // width)
            self.line = strip * width + ix.variable("v", width)
        else:
            self.line = ix.variable(name, self.lines)
        self.accumulators = [accumulator(node, i) for i, node in enumerate(kernel.anchors)]
        self.phase = self._phases()
        for node in kernel.nodes:
            if kernel.is_line(node):
                self.writer.lines[node] = ix.unflatten(self.line, node.shape)

    def _phases(self) -> dict[Node, int]:
        """The loop in which each node can first be made: one after the reductions it needs."""
        phase: dict[Node, int] = {}
        anchors = set(self.kernel.anchors)
        known: dict[Node, int] = {}

        def ready(node: Node) -> int:
            stack = [node]
            while stack:
                top = stack[-1]
                missing = [s for s in _operands(top) if s not in known and s not in phase]
                if top in known or not missing:
                    stack.pop()
                    value = max((phase.get(s, known.get(s, 0)) for s in _operands(top)), default=0)
                    known[top] = value
                    if top in anchors:
                        phase[top] = value + 1
                else:
                    stack.extend(missing)
            return phase.get(node, known[node])

        def _operands(node: Node) -> tuple[Node, ...]:
            return () if node in self.writer.memory else node.sources

        return {node: ready(node) for node in self.kernel.nodes}

    @property
    def wide_stores(self) -> list[Node]:
        return [node for node in self.kernel.stores if not self.kernel.is_line(node)]

    @property
    def line_stores(self) -> list[Node]:
        return [node for node in self.kernel.stores if self.kernel.is_line(node)]

    @property
    def index_type(self) -> str:
        return "long long" if self.writer.wide else "int"

    def loop(self, loop: int, flat: Index, column: Index, stores: Stores) -> list[Accumulator]:
        """Fills the open scopes with loop number `loop` (the first is 1)."""
        writer = self.writer
        taken = [a for a in self.accumulators if self.phase[a.node] == loop]
        for one in taken:
            source = one.node.sources[0]
            value = writer.value(source, ix.unflatten(flat, source.shape))
            position = ix.render(column, True)
            writer.scopes[-1].lines.append(one.take(value, position))
        for node in self.wide_stores:
            if self.phase[node] + 1 == loop:
                value = writer.value(node, ix.unflatten(flat, node.shape))
                live = "live" if self.kernel.kind == "col" else ""
                stores.put(node, flat, value, live)
        return taken

    def start(self, taken: list[Accumulator]) -> list[str]:
        return [f"{a.ctype} {a.name} = {a.identity};" for a in taken]

    def settle(self, taken: list[Accumulator]) -> None:
        """From here on the reductions' values can be used."""
        for one in taken:
            results = one.results()
            self.writer.anchored[one.node] = results[0]
            for number, text in enumerate(results):
                self.writer.fields[one.node, number] = text

    def finish(self) -> tuple[list[str], list[str]]:
        """Statements that make the values with one element a line, and those that store them."""
        writer = self.writer
        writer.scopes, writer.lane, writer.held = [Scope("line")], None, None
        writer.scopes[0].memo = self.outer.memo
        texts = [
            (node, writer.value(node, ix.unflatten(self.line, node.shape)))
            for node in self.line_stores
        ]
        made = writer.scopes[0].lines
        writer.scopes.append(Scope())
        stores = Stores(writer, self.kernel)
        for node, text in texts:
            stores.put(node, self.line, text)
        return made, writer.scopes[1].lines

    outer: Scope

    def reduction(self, one: Accumulator, group: int) -> str:
        """The statement that combines the threads of a row; each reduction has its own memory."""
        if group == WARP:
            return f"{one.name} = tgc_warp_reduce({one.name}, {one.operator}());"
        before = self.accumulators[: self.accumulators.index(one)]
        offset = sum(a.bytes for a in before) * WARP
        place = f"smem + {offset}" if offset else "smem"
        return f"{one.name} = tgc_block_reduce_once({one.name}, {one.operator}(), {place});"

    @property
    def scratch_bytes(self) -> int:
        """Shared memory for the block reductions of a row."""
        return sum(a.bytes for a in self.accumulators) * WARP


# ROW ----------------------------------------------------------------------------------------------


def row_stages(kernel: Kernel) -> list[Stage]:
    """A warp or a block for each row; several blocks and a second stage for few long rows."""
    lines, length = rows_of(kernel.sign), length_of(kernel.sign)
    parts = min(-(-length // PART), max(1, ENOUGH_BLOCKS // lines))
    single = all(phase <= 1 for phase in _Lines(kernel).phase.values())
    tainted_wide = any(_Lines(kernel).phase[node] for node in _Lines(kernel).wide_stores)
    if parts > 1 and single and not tainted_wide:
        return _split_row(kernel, parts)
    return [_whole_row(kernel)]


def _row_width(kernel: Kernel, group: int) -> int:
    last = kernel.sign[-1][0] if kernel.sign else 1
    width = vector_width(kernel, last)
    while width > 1 and length_of(kernel.sign) // width * 4 < group * 3:
        width //= 2
    return width


def _whole_row(kernel: Kernel) -> Stage:
    row = _Lines(kernel)
    group = WARP if row.length <= 256 or (row.length <= 1024 and row.lines >= 1024) else THREADS
    width = _row_width(kernel, group)
    items = row.length // width
    trips = -(-items // group)
    loops = max([*row.phase.values(), *(row.phase[n] + 1 for n in row.wide_stores)])
    fits = trips * width <= HELD
    writer = row.writer
    writer.held = Held(1, trips, width) if fits and loops > 1 else None
    row.outer = Scope("line")
    item, v = ix.variable("item", items), ix.variable("v", width)
    space = _Space(kernel.sign, row.line, item * width + v)
    text: list[str] = []
    for loop in range(1, loops + 1):
        writer.scopes = [row.outer, Scope("item"), Scope("v")]
        writer.lane = Lane(v, width)
        stores = Stores(writer, kernel)
        taken = row.loop(loop, space.flat, item * width + v, stores)
        before = row.outer.lines + row.start(taken)
        row.outer.lines = []
        text += fill(
            "row.cuh",
            "phase",
            before=before,
            unroll=trips if fits else 4,
            trips=trips,
            index=row.index_type,
            group=group,
            items=items,
            load=writer.scopes[1].lines,
            width=width,
            map=writer.scopes[2].lines,
            store=stores.after,
            combine=[row.reduction(a, group) for a in taken],
        ).splitlines()
        row.settle(taken)
    if writer.held is not None:
        text = writer.held.declarations + text
    if row.line_stores:
        made, stored = row.finish()
        text += fill("row.cuh", "finish", epilogue=made, store=stored).splitlines()
    per_block = THREADS // group
    body = fill("row.cuh", "body", group=group, per_block=per_block, lines=row.lines, phases=text)
    blocks = -(-row.lines // per_block)
    where = "in registers" if fits else "read again in each phase" if loops > 1 else "read once"
    label = comment(
        kernel, f"ROW, {row.lines} rows of {row.length}, {loops} loops, {where}", blocks
    )
    return wrapped(kernel, stem(kernel), body, row.words.list, blocks, row.scratch_bytes, label)


def _split_row(kernel: Kernel, parts: int) -> list[Stage]:
    row = _Lines(kernel)
    width = _row_width(kernel, THREADS)
    items = row.length // width
    chunk = -(-items // parts)
    parts = -(-items // chunk)
    writer = row.writer
    row.outer = Scope("line", "part")
    item, v = ix.variable("item", items), ix.variable("v", width)
    space = _Space(kernel.sign, row.line, item * width + v)
    writer.scopes = [row.outer, Scope("item"), Scope("v")]
    writer.lane = Lane(v, width)
    stores = Stores(writer, kernel)
    taken = row.loop(1, space.flat, item * width + v, stores)
    scratches = {a: Scratch(row.lines * parts * max(a.bytes, 16)) for a in taken}
    phase = fill(
        "row.cuh",
        "part_phase",
        before=row.outer.lines + row.start(taken),
        chunk=chunk,
        items=items,
        index=row.index_type,
        group=THREADS,
        load=writer.scopes[1].lines,
        width=width,
        map=writer.scopes[2].lines,
        store=stores.after,
        combine=[row.reduction(a, THREADS) for a in taken],
        keep=_keep(row, taken, scratches, parts),
    )
    body = fill("row.cuh", "part_body", parts=parts, phases=phase)
    blocks = row.lines * parts
    label = comment(kernel, f"ROW, {row.lines} rows of {row.length}, each in {parts} parts", blocks)
    shared = row.scratch_bytes
    first = wrapped(kernel, stem(kernel) + "_parts", body, row.words.list, blocks, shared, label)
    return [first, _join(kernel, scratches, parts, first)]


def _keep(
    row: _Lines,
    taken: list[Accumulator],
    scratches: dict[Accumulator, Scratch],
    parts: int,
    line: str = "line",
) -> list[str]:
    """Statements that leave a part's results in memory."""
    found = []
    for one in taken:
        pointer = row.words.scratch(scratches[one], one.ctype, True)
        found.append(f"tgc_store({pointer}, {line} * {parts} + part, {one.name});")
    return found


def _join(kernel: Kernel, scratches: dict[Accumulator, Scratch], parts: int, first: Stage) -> Stage:
    """The second stage of a split reduction."""
    row = _Lines(kernel)
    row.outer = Scope("line")
    taken = list(scratches)
    load = []
    for one in taken:
        pointer = row.words.scratch(scratches[one], one.ctype, False)
        load.append(
            f"{one.name} = {one.operator}()({one.name}, tgc_load({pointer}, "
            f"line * {parts} + part));"
        )
    row.settle(taken)
    made, stored = row.finish()
    body = fill(
        "row.cuh",
        "join_body",
        threads=THREADS,
        lines=row.lines,
        parts=parts,
        before=row.start(taken),
        load=load,
        combine=[f"{a.name} = tgc_warp_reduce({a.name}, {a.operator}());" for a in taken],
        epilogue=made,
        store=stored,
    )
    blocks = -(-row.lines // (THREADS // WARP))
    label = comment(kernel, f"Second stage, {row.lines} lines of {parts} parts", blocks)
    stage = wrapped(
        kernel, stem(kernel) + "_join", body, row.words.list, blocks, 0, label, second=True
    )
    stage.after.append(first)
    return stage


# COL ----------------------------------------------------------------------------------------------


def col_stages(kernel: Kernel) -> list[Stage]:
    """Tiles of lines; where these are few, each line in several parts with a second stage."""
    width = _col_width(kernel)
    col = _Lines(kernel, width, "strip")
    strips = col.lines // width
    across = WARP
    while across > 8 and across // 2 >= strips:
        across //= 2
    down = THREADS // across
    tiles = -(-strips // across)
    parts = max(1, min(ENOUGH_BLOCKS // tiles, col.length // (down * 16)))
    chunk = -(-col.length // parts)
    parts = -(-col.length // chunk)
    writer = col.writer
    col.outer = Scope("strip")
    item, v = ix.variable("item", col.length), ix.variable("v", width)
    space = _Space(kernel.sign, col.line, item)
    writer.scopes = [col.outer, Scope("item"), Scope("v")]
    writer.lane = Lane(v, width)
    accumulators = [one._replace(name=f"{one.name}[v]") for one in col.accumulators]
    names = [one.name for one in col.accumulators]
    col.accumulators = accumulators
    stores = Stores(writer, kernel)
    taken = col.loop(1, space.flat, item, stores)
    load, map_ = writer.scopes[1].lines, writer.scopes[2].lines
    before = [*col.outer.lines, *(f"{a.ctype} {n}[{width}];" for a, n in zip(taken, names))]
    col.outer.lines = []
    combine = [
        line
        for a, n in zip(taken, names)
        for line in fill(
            "col.cuh", "combine", ctype=a.ctype, name=n, operator=f"{a.operator}()",
            down=down, across=across, width=width, threads=THREADS,
        ).splitlines()
    ]  # fmt: skip
    scratches = {a: Scratch(col.lines * parts * max(a.bytes, 16)) for a in taken}
    made: list[str] = []
    after: list[str] = []
    if parts > 1:
        finish = _keep(col, taken, scratches, parts, f"(strip * {width} + v)")
    else:
        made, finish, after = _col_finish(col, taken, v)
    body = fill(
        "col.cuh",
        "body",
        across=across,
        down=down,
        parts=parts,
        strips=strips,
        width=width,
        length=col.length,
        chunk=chunk,
        index=col.index_type,
        before=before,
        start=[f"{a.name} = {a.start};" for a in taken],
        load=load,
        map=map_,
        store=stores.after,
        combine=combine,
        epilogue=made,
        finish=finish,
        after=after,
    )
    blocks = tiles * parts
    shared = max(a.bytes for a in taken) * THREADS * width
    label = comment(
        kernel, f"COL, {col.lines} lines of {col.length}, each in {parts} parts", blocks
    )
    name = stem(kernel) + ("_parts" if parts > 1 else "")
    first = wrapped(kernel, name, body, col.words.list, blocks, shared, label)
    if parts == 1:
        return [first]
    plain = {a._replace(name=n): scratches[a] for a, n in zip(taken, names)}
    return [first, _join(kernel, plain, parts, first)]


def _col_width(kernel: Kernel) -> int:
    """Neighbouring lines that a thread takes: a vector of them, if a warp's are all there."""
    inner = kernel.sign[-1][0]
    width = min(4, vector_width(kernel, inner))
    return width if inner // width >= WARP else 1


def _col_finish(
    col: _Lines, taken: list[Accumulator], v: Index
) -> tuple[list[str], list[str], list[str]]:
    """The epilogue: statements before, in and after the loop over a thread's lines."""
    col.settle(taken)
    writer = col.writer
    writer.scopes = [Scope("strip"), Scope("v")]
    writer.scopes[0].memo = col.outer.memo
    writer.floors = dict.fromkeys(col.kernel.nodes, 1)
    stores = Stores(writer, col.kernel)
    for node in col.line_stores:
        value = writer.value(node, ix.unflatten(col.line, node.shape))
        stores.put(node, col.line, value)
    return writer.scopes[0].lines, writer.scopes[1].lines, stores.after


__all__ = ["col_stages", "row_stages"]
