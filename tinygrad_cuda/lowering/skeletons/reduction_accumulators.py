"""Reductions in a kernel: their accumulators, the loops they need, values with one element a line.

ROW and COL share this; so does the second stage of a reduction that is split into parts.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops.movement import reshape
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import (
    Evaluator,
    RowRegisters,
    Scope,
    Stores,
    is_wide,
    literal,
    value_stem,
)
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.skeleton import (
    KernelParams,
    Scratch,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.fusion import TRANSPARENT, Signature, length_of, rows_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, OneHotGather
from tinygrad_cuda.lowering.schedule.resources import (
    THREADS,
    accumulator_bytes,
    enough_blocks,
    row_of,
)
from tinygrad_cuda.lowering.target import WARP

IN_FLIGHT_BYTES = 256  # of a thread's registers, for vectors that are loaded before stores
IN_FLIGHT_REGISTERS = 96  # and those for single elements
_OPERAND = re.compile(r"(?<!p\.)\b\w+")
_VALUE = re.compile(r"(?:const [\w<>, ]+ )?(\w+)(?:\[\w+\])* = ")


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
        return accumulator_bytes(self.node)

    @property
    def takes_vectors(self) -> bool:
        """Whether `take` may be given an array."""
        return row_of(self.node).cuda.vectors

    def element(self, value: str, position: str) -> str:
        """The running value of one element."""
        element = self.node.sources[0].dtype.compute
        return row_of(self.node).cuda.element.format(T=element, x=value, at=position)

    def take(self, value: str, position: str) -> str:
        """The statement that adds one element."""
        text = row_of(self.node).cuda.take.format(r=self.name, x=value)
        text = text or f"{self.operator}()({self.name}, {self.element(value, position)})"
        return f"{self.name} = {text};"

    def results(self) -> tuple[str, ...]:
        """The reduction's outputs, once the accumulator is final."""
        element = self.node.sources[0].dtype.compute
        return tuple(text.format(T=element, r=self.name) for text in row_of(self.node).cuda.results)


def accumulator(node: Node, name: str) -> Accumulator:
    """The accumulator of a reduction."""
    row, element = row_of(node).cuda, node.sources[0].dtype
    identity = row.identity
    if isinstance(identity, str):
        start = identity.format(T=element.compute)
    else:
        start = literal(identity, element)
    ctype = row.state.format(T=element.compute)
    return Accumulator(node, name, ctype, row.functor, start)


class ReductionSpace:
    """Where element `column` of row `line` lies, row-major over all axes."""

    def __init__(self, sign: Signature, line: Index, column: Index) -> None:
        outer = iter(ix.unflatten(line, [size for size, reduced in sign if not reduced]))
        inner = iter(ix.unflatten(column, [size for size, reduced in sign if reduced]))
        position = [next(inner) if reduced else next(outer) for _, reduced in sign]
        self.flat = ix.flatten(position, [size for size, _ in sign])
        self.line = line


class ReductionAccumulators:
    """What ROW and COL share: accumulators, phases, and values with one element a line.

    Args:
        width: neighbouring lines that a thread takes, as a strip called `name`.
    """

    def __init__(self, kernel: Kernel, width: int = 1, name: str = "row") -> None:
        self.kernel = kernel
        self.width = width
        self.name = name
        self.lines = rows_of(kernel.sign)
        self.length = length_of(kernel.sign)
        self.slots = "smem"  # where a block's reductions have their memory
        self.spare = (
            kernel.kind == "column_reduce"
        )  # some threads may repeat a line, and store nothing
        self.words = KernelParams()
        self.writer = Evaluator(self.words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
        if width > 1:
            strip = ix.variable(name, self.lines // width)
            self.line = strip * width + ix.variable("v", width)
        else:
            self.line = ix.variable(name, self.lines)
        anchors = [node for node in kernel.anchors if node not in kernel.one_hot]
        self.accumulators = [
            accumulator(node, self.words.fresh(value_stem(node))) for node in anchors
        ]
        self.phase: dict[Node, int] = {}  # the loop in which each node can first be made
        self._loops_before: dict[Node, int] = {}
        self.phase |= {node: self.ready(node) for node in kernel.nodes}
        for node in kernel.nodes:
            if kernel.is_line(node):
                self.writer.lines[node] = ix.unflatten(self.line, node.shape)

    def ready(self, node: Node) -> int:
        """How many loops must be done before a node can be made: those of reductions it needs."""
        phase, loops_before, stack = self.phase, self._loops_before, [node]
        while stack:
            top = stack[-1]
            sources = () if top in self.writer.memory else top.sources
            missing = [s for s in sources if s not in loops_before and s not in phase]
            if top in loops_before or not missing:
                stack.pop()
                value = max((phase.get(s, loops_before.get(s, 0)) for s in sources), default=0)
                loops_before[top] = value
                if top in self.kernel.anchors:
                    phase[top] = value if top in self.kernel.one_hot else value + 1
            else:
                stack.extend(missing)
        return phase.get(node, loops_before[node])

    @property
    def line_stores(self) -> list[Node]:
        return [node for node in self.kernel.stores if self.kernel.is_line(node)]

    @property
    def index_type(self) -> str:
        return "long long" if self.writer.wide else "int"

    def loop(self, loop: int, flat: Index, column: Index, stores: Stores) -> list[Accumulator]:
        """Fills the open scopes with loop number `loop` (the first is 1)."""
        writer = self.writer
        if loop == 1:
            for gather in self.kernel.one_hot.values():
                if self.ready(gather.unchecked) == 0:
                    writer.value(gather.unchecked, self._at(gather))
        self.gather(loop - 1)
        taken = [a for a in self.accumulators if self.phase[a.node] == loop]
        for one in taken:
            source = one.node.sources[0]
            value = writer.value(source, ix.unflatten(flat, source.shape))
            lane = writer.lane
            if one.takes_vectors and lane is not None and 1 < lane.width > self.width:
                batch = writer.fresh("batch")
                writer.scopes[-2].lines.append(f"{one.node.dtype.compute} {batch}[{lane.width}];")
                writer.scopes[-1].lines.append(f"{batch}[{lane.name}] = {value};")
                stores.after.append(one.take(batch, ""))
                continue
            writer.scopes[-1].lines.append(one.take(value, ix.render(column, True)))
        for node in self.kernel.wide_stores:
            if self.phase[node] + 1 == loop:
                value = writer.value(node, ix.unflatten(flat, node.shape))
                live = "live" if self.spare else ""
                stores.put(node, flat, value, live)
        return taken

    def gather(self, loop: int) -> None:
        """Loads the one elements that can be made after loop number `loop`."""
        writer = self.writer
        for node, gather in self.kernel.one_hot.items():
            if self.phase[node] == loop:
                shape = gather.value.shape
                value = writer.value(gather.value, ix.unflatten(self._flat(gather), shape))
                text = f"0 + {value}"
                writer.anchored[node] = writer.emit(0, node.dtype.compute, text, "picked")

    def load_gathered(self, loop: int) -> None:
        """Loads, while a row is reduced, the elements that `gather` needs after this loop."""
        for node, gather in self.kernel.one_hot.items():
            if self.phase[node] == loop and self.ready(gather.position) < loop:
                flat = self._flat(gather)
                for stored in self._elements(gather.value):
                    self.writer.value(stored, ix.unflatten(flat, stored.shape))

    def _elements(self, node: Node) -> list[Node]:
        """Values in memory of which an element of this one needs the same element."""
        values, stack = [], [node]
        while stack:
            top = stack.pop()
            if top in self.writer.memory:
                values.append(top)
            elif top.op.kind == "elementwise" or top.op in TRANSPARENT or top.op is reshape:
                stack.extend(top.sources)
        return values

    def _at(self, gather: OneHotGather) -> tuple[Index, ...]:
        """The coordinates of a row's position."""
        return ix.unflatten(self.line, gather.position.shape)

    def _flat(self, gather: OneHotGather) -> Index:
        """Where the one element is; checks its position."""
        column = self.writer.position(gather.position, self._at(gather), (), self.length)
        return ReductionSpace(self.kernel.sign, self.line, column).flat

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
        writer.scopes, writer.lane, writer.row_registers = [Scope(self.name)], None, None
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

    def reductions(self, taken: list[Accumulator], group: int) -> list[str]:
        """Statements that combine the threads of a row; those of a block meet once for all."""
        if group <= WARP:
            size = f"<{group}>" if group < WARP else ""
            return [
                f"{one.name} = tgc_warp_reduce{size}({one.name}, {one.operator}());"
                for one in taken
            ]
        memory_of = {}
        offset = 0
        for one in self.accumulators:  # each has its own memory
            memory_of[one.name] = f"{self.slots} + {offset}" if offset else self.slots
            offset += one.bytes * WARP
        calls = [(one, f"{one.name}, {one.operator}(), {memory_of[one.name]}") for one in taken]
        if not calls:
            return []
        return [
            *(f"tgc_block_send({arguments});" for _, arguments in calls),
            "__syncthreads();",
            *(f"tgc_block_receive<{group // WARP}>({arguments});" for _, arguments in calls),
        ]

    @property
    def scratch_bytes(self) -> int:
        """Shared memory for the block reductions of a row."""
        return sum(a.bytes for a in self.accumulators) * WARP


def keep(
    row: ReductionAccumulators,
    taken: list[Accumulator],
    scratches: dict[Accumulator, Scratch],
    parts: int,
    index: str = "row",
) -> list[str]:
    """Statements that leave a part's results in memory."""
    statements = []
    for one in taken:
        pointer = row.words.scratch(scratches[one], one.ctype, True)
        statements.append(f"tgc_store({pointer}, {index} * {parts} + part, {one.name});")
    return statements


def join_stage(
    kernel: Kernel, scratches: dict[Accumulator, Scratch], parts: int, first: Stage
) -> Stage:
    """The second stage of a split reduction."""
    row = ReductionAccumulators(kernel)
    row.outer = Scope("row")
    taken = list(scratches)
    load = []
    for one in taken:
        pointer = row.words.scratch(scratches[one], one.ctype, False)
        load.append(
            f"{one.name} = {one.operator}()({one.name}, tgc_load({pointer}, row * {parts} + part));"
        )
    row.settle(taken)
    made, stored = row.finish()
    group = THREADS if parts > 2 * WARP and row.lines <= enough_blocks(row.kernel.target) else WARP
    body = fill(
        "row_reduce.cuh",
        "join_body",
        threads=THREADS,
        rows=row.lines,
        parts=parts,
        before=row.start(taken),
        load=load,
        group=group,
        combine=row.reductions(taken, group),
        epilogue=made,
        store=stored,
    )
    blocks = -(-row.lines // (THREADS // group))
    shared = row.scratch_bytes if group == THREADS else 0
    label = comment(kernel, f"Second stage, {row.lines} rows of {parts} parts", blocks)
    stage = wrapped(
        kernel, stem(kernel) + "_join", body, row.words.list, blocks, shared, label, second=True
    )
    stage.after.append(first)
    return stage


def in_flight(kernel: Kernel, turns: int, width: int) -> bool:
    """Whether a thread has registers for what so many turns of a loop load of large operands."""
    wide = [node for node in kernel.reads if prod(node.shape) >= kernel.numel]
    return turns * width * sum(node.dtype.itemsize for node in wide) <= IN_FLIGHT_BYTES


def loads_before_stores(ahead: RowRegisters, load: list[str], map_: list[str]) -> list[str]:
    """The loads of a turn that need nothing but their position; they leave the loop's statements.

    Behind a store a load would wait for it, since the compiler cannot tell their memory apart: a
    loop would take as many latencies as turns.

    Args:
        ahead: arrays that take what several turns load.
        load, map_: statements of a turn, and of each of its lanes.
    """
    waiting = {name for line in (*load, *map_) if (name := _defined(line)) is not None}
    first: list[str] = []
    of_lanes: list[str] = []
    registers = IN_FLIGHT_REGISTERS
    for _, needed, _, line, of_lane in ahead.loads:
        statements, moved = (map_, of_lanes) if of_lane else (load, first)
        registers -= needed if of_lane else 0  # those of vectors were counted before
        operands = set(_OPERAND.findall(line.partition(" = ")[2]))
        if line in statements and registers >= 0 and waiting.isdisjoint(operands):
            statements.remove(line)
            moved.append(line)
            waiting.discard(str(_defined(line)))
    if of_lanes:
        lanes = fill("row_reduce.cuh", "of_lanes", width=ahead.lanes, ahead=of_lanes)
        first += lanes.splitlines()
    return first


def _defined(line: str) -> str | None:
    """The name of the value that a statement makes."""
    made = _VALUE.match(line)
    return made and made.group(1)
