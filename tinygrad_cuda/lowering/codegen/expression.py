"""Values as text: a node at symbolic coordinates becomes statements of a kernel's body.

Movement ops change coordinates, loads and elementwise ops become named temporaries, each statement
stands in the outermost loop in which all it reads is defined, and stores end the body. What
variables are called and how numbers are written is here, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isinf, isnan, prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from tinygrad_cuda.core.dtypes import DType, bfloat16, float16, float64
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, indexing, reduction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.program import Argument
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.index_rewrites import Coordinates, Guard, moved
from tinygrad_cuda.lowering.codegen.skeleton import KernelParams
from tinygrad_cuda.lowering.schedule.fusion import TRANSPARENT, is_identity_value, value_of_nothing
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.narrowing import is_power_below_one
from tinygrad_cuda.lowering.schedule.resources import THREADS

EARLY = 48  # registers of a thread for operands that are loaded before the first loop needs them
VECTOR = 16  # bytes of a load at most
DEAR = 8  # cost from which a value stays in registers for later phases instead of being made again
_CALL = re.compile(r"\b(?!tgc_)([a-z]\w*)\(")
_INTEGER = re.compile(r"\(?(?:\([a-z ]+\))?(-?\d+)(?:U?LL|U)?\)?")  # as `literal` writes it


# Of half types these give a value that needs no rounding, or, as a cast, round it themselves.
_EXACT = frozenset((
    ew.where, ew.maximum, ew.minimum, ew.neg, ew.abs, ew.sign, ew.floor, ew.ceil, ew.trunc,
    ew.round, ew.cast, ew.contiguous, indexing.check_unit,
))  # fmt: skip


class AheadLoad(NamedTuple):
    """A load of neighbours that may be made before the loop that needs them.

    Attributes:
        ctype: of the vector.
        name: of its variable.
        text: the load.
        nbytes: of it.
    """

    ctype: str
    name: str
    text: str
    nbytes: int


class Nearer(Protocol):
    """Where a kernel reads operands that are being copied to shared memory."""

    def holds(self, node: Node) -> bool: ...

    def single(self, depth: int) -> None: ...

    def vector(self, node: Node, key: Any, width: int, offset: str, names: set[str]) -> str: ...


class CrossedValues(Protocol):
    """Values that a kernel takes from a tile in shared memory, where its loads were transposed."""

    def element(
        self, writer: Evaluator, node: Node, at: Coordinates, guard: Guard
    ) -> str | None: ...


class Scope:
    """Statements of one loop body, and the values that are named in it."""

    def __init__(self, *variables: str) -> None:
        self.variables = set(variables)
        self.lines: list[str] = []
        self.memo: dict[Any, str] = {}


class Lane:
    """The innermost, unrolled loop over `width` neighbouring elements, and where it stands."""

    def __init__(self, variable: Index, width: int) -> None:
        self.variable = variable
        self.width = width
        self.name = next(iter(variable.leaves)).name if variable.terms else ""


class Evaluator:
    """Turns nodes into statements of the scopes that stand open.

    Args:
        words: receives the parameters.
        memory: nodes that this kernel finds in memory.
        wide: whether indices need 64 bits.
        narrowed: float32 nodes that reach memory for good only as half values.
    """

    def __init__(
        self,
        words: KernelParams,
        memory: set[Node],
        wide: bool,
        narrowed: frozenset[Node] = frozenset(),
    ) -> None:
        self.words = words
        self.memory = memory
        self.wide = wide
        self.narrowed = narrowed
        self.scopes: list[Scope] = []
        self.lane: Lane | None = None
        self.anchored: dict[Node, str] = {}
        self.fields: dict[tuple[Node, int], str] = {}
        self.lines: dict[Node, Coordinates] = {}  # row values: made at the row's own coordinates
        self.floors: dict[Node, int] = {}  # scopes below which a node's operands are unknown
        self.loaded: list[tuple[Node, Index]] = []
        self.row_registers: RowRegisters | None = None
        self.nearer: Nearer | None = None
        self.crossing: CrossedValues | None = None
        self.stored: set[Node] = set()
        self.unrounded: dict[str, str] = {}  # what a name of a half type was rounded from
        self.lasting: set[Node] = set()  # operands that leave the GPU's cache last
        self.ahead: dict[str, AheadLoad] | None = None  # by their statements, where they may move
        self.pairs = False  # whether lanes of more than 16 bytes are two vectors
        self.inside = ""  # a variable of a scope: the test beyond which loads have zeros
        self._homes: dict[str, int] = {}
        self._made: dict[str, int] = {}  # the depth at which a name was made

    # Scopes

    def fresh(self, stem: str) -> str:
        return self.words.fresh(stem)

    def _depth(self, parts: Sequence[Index], guard: Guard) -> int:
        """The outermost scope where all leaves of these indices are defined."""
        depth = 0
        for part in (*parts, *(condition.index for condition in guard)):
            for leaf in part.leaves:
                depth = max(depth, self._home(leaf.name))
        return depth

    def _home(self, name: str) -> int:
        if name in self._homes:
            return self._homes[name]
        for depth in range(len(self.scopes) - 1, -1, -1):
            if name in self.scopes[depth].variables:
                return depth
        return 0

    def emit(self, depth: int, ctype: str, text: str, stem: str) -> str:
        name = self.fresh(stem)
        self._made[name] = depth
        self.scopes[depth].lines.append(f"const {ctype} {name} = {text};")
        return name

    def index_text(self, index: Index) -> str:
        return ix.render(index, self.wide)

    def guard_text(self, guard: Guard) -> str:
        return " && ".join(condition.render(self.wide) for condition in guard)

    # Values

    def value(self, node: Node, at: Coordinates, guard: Guard = ()) -> str:
        """C text (a name or a literal) of a node's element, in its compute type."""
        if node in self.anchored:
            return self._settled(node, self.anchored[node])
        if node.op is common.output and (node.sources[0], node.attributes["index"]) in self.fields:
            return self._settled(node, self.fields[node.sources[0], node.attributes["index"]])
        if node in self.lines:
            at, guard = self.lines[node], ()
        if self.crossing and (crossed := self.crossing.element(self, node, at, guard)):
            return crossed
        if node in self.memory:
            return self.load(node, ix.flatten(at, node.shape), guard)
        if node.op.kind == "movement" or node.op in TRANSPARENT or node.op is common.assign:
            return self._moved(node, at, guard)
        if node.op.kind == "elementwise":
            return self._elementwise(node, at, guard)
        if node.op.kind == "leaf":
            return self._leaf(node, at, guard)
        if node.op is indexing.gather:
            return self._gather(node, at, guard)
        assert is_identity_value(node), f"{node} cannot be evaluated inside a kernel"
        return literal(value_of_nothing(node), node.dtype)

    def _settled(self, node: Node, text: str) -> str:
        """The result of a skeleton, whose float32 accumulator a half type rounds."""
        if not node.dtype.is_half:
            return text
        depth = max(self.floors.values(), default=0)
        return self._rounded(node, depth, ("settled", node, text), text)

    def _rounded(self, node: Node, depth: int, key: Any, text: str) -> str:
        """A value as its half type holds it; a store of it rounds the value before."""
        memo = self.scopes[depth].memo
        if key not in memo:
            name = value_stem(node)
            if node in self.stored and not text.isidentifier():
                text = self.emit(depth, node.dtype.compute, text, name)
            if text.isidentifier():
                name = "rounded"
            rounded = f"tgc_cast<{node.dtype.c}>({text})"
            memo[key] = self.emit(depth, node.dtype.compute, rounded, name)
            self.unrounded[memo[key]] = text
        return memo[key]

    def _moved(self, node: Node, at: Coordinates, guard: Guard) -> str:
        source = node.sources[1] if node.op is common.assign else node.sources[0]
        if node.op.kind != "movement":
            return self.value(source, at, guard)
        inner, conditions, fill = moved(node, at, self._symbol)
        if conditions is True:
            return self.value(source, inner, guard)
        if conditions is False or not prod(source.shape):
            return self._fill(fill, node)
        assert not isinstance(conditions, bool)
        both = ix.all_of((*guard, *conditions))
        assert not isinstance(both, bool)
        value = self.value(source, inner, both)
        other = self._fill(fill, node)
        depth = self._depth(inner, both)
        key = ("guarded", node, at, guard)
        text = f"{self.guard_text(both)} ? {value} : {other}"
        return self._named(depth, key, node.dtype.compute, text, value_stem(node))

    def _fill(self, fill: Any, node: Node) -> str:
        if isinstance(fill, Argument):
            return self._argument(fill, node.dtype)
        return literal(fill, node.dtype)

    def _double(self, value: Any) -> str:
        if isinstance(value, Argument):
            return self.words.argument(value, "double")
        return literal(value, float64)

    def _symbol(self, argument: Argument, low: int, high: int) -> Index:
        """A slice's start that runs may change."""
        name = self.words.argument(argument, "long long")
        return ix.symbol(name if self.wide else f"(int){name}", low, high)

    def _named(self, depth: int, key: Any, ctype: str, text: str, stem: str) -> str:
        memo = self.scopes[depth].memo
        if key not in memo:
            memo[key] = self.emit(depth, ctype, text, stem)
        return memo[key]

    # Leaves

    def _argument(self, value: Argument, dtype: DType) -> str:
        if dtype.category > 1:
            return f"tgc_cast<{dtype.c}>({self.words.argument(value, 'double')})"
        return f"({dtype.compute})({self.words.argument(value, 'long long')})"

    def _leaf(self, node: Node, at: Coordinates, guard: Guard) -> str:
        attributes, dtype = node.attributes, node.dtype
        if node.op in (common.constant, common.scalar):
            value = attributes["value"]
            if isinstance(value, Argument):
                text = self._argument(value, dtype)
                return self._named(0, node, dtype.compute, text, node.op.name)
            return literal(value, dtype)
        if node.op is common.complex_constant:
            parts = [self._double(attributes[name]) for name in ("real", "imag")]
            text = f"tgc_cast<{dtype.c}>(tgc_complex_of({', '.join(parts)}))"
            return self._named(0, node, dtype.compute, text, "constant")
        if node.op is common.buffer:
            return self.load(node, ix.flatten(at, node.shape), guard)
        depth = self._depth(at, guard)
        position = ix.render(ix.flatten(at, node.shape), True)
        if node.op is common.arange:
            wide = "double" if dtype.is_floating else "long long"
            start = self.words.number(attributes["start"], wide)
            step = self.words.number(attributes["step"], wide)
            text = f"tgc_cast<{dtype.c}>({start} + {step} * ({wide})({position}))"
        else:
            text = self._random(node, position)
        if dtype.is_half and node.op is not common.arange:
            text = f"tgc_cast<{dtype.c}>({text})"
        return self._named(depth, (node, at), dtype.compute, text, value_stem(node))

    def _random(self, node: Node, position: str) -> str:
        names = ("seed", "number", "low", "high")
        numbers = [
            self.words.number(node.attributes[name], "long long")
            for name in names
            if name in node.attributes
        ]
        if node.op.name == "random_integer":
            seed, number, low, high = numbers
            draw = f"tgc_random_integer({seed}, {number}, {position}, {low}, {high})"
            return f"({node.dtype.compute}){draw}"
        return f"tgc_{node.op.name}<{node.dtype.c}>({', '.join(numbers)}, {position})"

    # Loads

    def load(self, node: Node, index: Index, guard: Guard) -> str:
        self.loaded.append((node, index))
        ctype = node.dtype.compute
        if prod(node.shape) == 0:
            return literal(0, node.dtype)
        depth = max(self._depth((index,), guard), self._home(self.inside) if self.inside else 0)
        key = (node, index, guard)
        memo = self.scopes[depth].memo
        if key not in memo:
            vector = self._vector(node, index, guard, depth)
            pair = self._pair(node, index, guard, depth) if vector is None else None
            pointer = self.words.read(node)
            name = pointer.removeprefix("p.")
            if vector is not None:
                memo[key] = self.emit(depth, ctype, f"tgc_element({vector})", name)
            elif pair is not None:
                memo[key] = self.emit(depth, ctype, pair, name)
            else:
                if self.nearer is not None:
                    self.nearer.single(depth)
                only, test = ("_if", f"{self.inside}, ") if self.inside else ("", "")
                text = f"tgc_load{only}({test}{pointer}, {self.index_text(index)})"
                if guard:
                    text = f"{self.guard_text(guard)} ? {text} : {literal(0, node.dtype)}"
                early = node if self._at_start(index, guard) else None
                register = self._hold(key, depth, ctype, text, name, early)
                memo[key] = register or self.emit(depth, ctype, text, name)
        return memo[key]

    def _vector(self, node: Node, index: Index, guard: Guard, depth: int) -> str | None:
        """A vector loaded outside the lane loop, and which element; where the index allows it."""
        lane = self.lane
        if lane is None or lane.width == 1 or depth != len(self.scopes) - 1:
            return None
        nbytes = lane.width * node.dtype.itemsize
        if nbytes > (VECTOR if self.ahead is None else 2 * VECTOR):
            return None
        both = nbytes > VECTOR  # two loads
        split = ix.split_lane(index, lane.variable)
        if split is None or split[0] != 1 or not ix.divisible(split[1], lane.width):
            return None
        if any(self._home(leaf.name) == depth for c in guard for leaf in c.index.leaves):
            return None
        rest = split[1]
        outer = max(self._depth((rest,), guard), self._home(self.inside) if self.inside else 0)
        if outer >= depth:
            return None
        vector = f"{'tgc_two_vectors' if both else 'tgc_vector'}<{node.dtype.c}, {lane.width}>"
        key = ("vector", node, rest, guard)
        memo = self.scopes[outer].memo
        if key not in memo and self.row_registers is not None and key in self.row_registers.names:
            memo[key] = self.row_registers.names[key]
        elif key not in memo:
            early = node if self._at_start(rest, guard) else None
            text = self._vector_text(key, lane.width, both)
            if guard:
                text = f"{self.guard_text(guard)} ? {text} : {vector}{{}}"
            register, name = None, f"{self.words.name(node)}x{lane.width}"
            if self.nearer is None or self.nearer.holds(node):
                register = self._hold(key, outer, vector, text, name, early)
            memo[key] = register or self.emit(outer, vector, text, name)
            if self.ahead is not None:
                statement = f"const {vector} {memo[key]} = {text};"
                self.ahead[statement] = AheadLoad(vector, memo[key], text, nbytes)
        return f"{memo[key]}, {lane.name}"

    def _pair(self, node: Node, index: Index, guard: Guard, depth: int) -> str | None:
        """An element of two vectors loaded outside the lane loop: of few values for all rows."""
        lane = self.lane
        if not self.pairs or lane is None or guard or depth != len(self.scopes) - 1:
            return None
        if lane.width * node.dtype.itemsize != 2 * VECTOR:
            return None
        half, split = lane.width // 2, ix.split_lane(index, lane.variable)
        if split is None or split[0] != 1:
            return None
        rest = split[1]
        outer = self._depth((rest,), guard)
        if outer >= depth or not ix.divisible(rest, lane.width):
            return None
        memo, names = self.scopes[outer].memo, []
        for first in (0, half):
            key = ("vector", node, rest + first, guard)
            if key not in memo:
                text = self._vector_text(key, half, False)
                name = f"{self.words.name(node)}x{half}"
                memo[key] = self.emit(outer, f"tgc_vector<{node.dtype.c}, {half}>", text, name)
            names.append(memo[key])
        low, high = names
        return (
            f"{lane.name} < {half} ? tgc_element({low}, {lane.name}) : "
            f"tgc_element({high}, {lane.name} - {half})"
        )

    def _vector_text(self, key: tuple[Any, ...], width: int, both: bool) -> str:
        """The load of a vector, from memory or from what has been copied nearer."""
        _, node, rest, guard = key
        offset = self.index_text(rest)
        if self.nearer is not None:
            early = self._at_start(rest, guard)
            names = {leaf.name for leaf in rest.leaves} if early else set[str]()
            return self.nearer.vector(node, key, width, offset, names)
        if self.inside:
            test, pointer = self.inside, self.words.read(node)
            return f"tgc_load_vector_if<{width}>({test}, {pointer}, {offset})"
        load = "tgc_load_vector" + "_lasting" * (node in self.lasting)
        load = "tgc_load_two_vectors" if both else load
        return f"{load}<{width}>({self.words.read(node)}, {offset})"

    def _at_start(self, index: Index, guard: Guard) -> bool:
        """Whether a load can be at the start: it needs no value that the kernel loads or tests."""
        return not guard and all(leaf.name not in self._homes for leaf in index.leaves)

    def _hold(
        self, key: Any, depth: int, ctype: str, text: str, stem: str, loaded: Node | None = None
    ) -> str | None:
        """Keeps a value of the row loop in registers for the phases to come."""
        if self.row_registers is None or depth < self.row_registers.depth:
            return None
        if loaded is not None and prod(loaded.shape) < self.row_registers.least:
            return None
        return self.row_registers.keep(self, key, depth, ctype, text, stem, loaded)

    # Elementwise and gather

    def _elementwise(self, node: Node, at: Coordinates, guard: Guard) -> str:
        depth = max(self._depth(at, guard), self.floors.get(node, 0))
        key = (node, at, guard)
        if key in self.scopes[depth].memo:
            return self.scopes[depth].memo[key]
        registers = self.row_registers
        if registers is not None and depth >= registers.depth and key in registers.names:
            return registers.names[key]
        operands = [self.value(source, at, guard) for source in node.sources]
        if node.op in indexing.CHECKS:
            text = self._check(node, operands[0], at, guard)
        elif node.op is ew.div and node.dtype.compute == "float":
            text = self._quotient(node, operands, depth)
        elif node.op is ew.eq and all(map(_fits_int, node.sources)):
            text = " == ".join(f"(int){operand}" for operand in operands)
        else:
            text = expression(node, operands, self._short(node))
        memo = self.scopes[depth].memo
        if node.op is ew.cast and text == operands[0] and text.isidentifier():
            memo[key] = text
            return text
        ctype, stem = node.dtype.compute, value_stem(node)
        rounds = node.dtype.is_half and node.op not in _EXACT
        if node.op.cost >= DEAR:
            whole = f"tgc_cast<{node.dtype.c}>({text})" if rounds else text
            register = self._hold(key, depth, ctype, whole, stem)
            if register:
                memo[key] = register
                return register
        if rounds:
            return self._rounded(node, depth, key, text)
        memo[key] = self.emit(depth, ctype, text, stem)
        if node.op is ew.cast and node.dtype.is_half and node.sources[0].dtype.compute == "float":
            self.unrounded[memo[key]] = operands[0]
        return memo[key]

    def _short(self, node: Node) -> bool:
        """Whether errors of a few parts in a million are lost when a half type rounds.

        A quotient's are those of any float32 operation, and a sigmoid's, whose operand's error is
        scaled by what it lacks to 1. A power's grow with its exponent, and a
        difference would show them: of float32 only those take part that no difference cancels.
        """
        if node.dtype.is_half:
            return True
        quick = node.op in (ew.div, ew.sigmoid)
        return node in self.narrowed and (quick or is_power_below_one(node))

    def _quotient(self, node: Node, operands: list[str], depth: int) -> str:
        """A division; by the same number in a whole loop it costs a few multiplications."""
        dividend, divisor = operands
        settled = divisor in self.anchored.values() or divisor in self.fields.values()
        settled = settled and "[" not in divisor  # an accumulator of each lane
        # A skeleton's result is defined from its floor on, anything else where it was made.
        floor = max(self.floors.values(), default=0)
        home = floor if settled else self._made.get(divisor, depth)
        if home >= depth:
            return expression(node, operands)
        key, text = ("divisor", divisor), f"tgc_divisor_of({divisor})"
        name = self._named(home, key, "tgc_divisor", text, "divisor")
        short = "_short" if self._short(node) else ""
        return f"tgc_divide{short}({dividend}, {name})"

    def _check(self, node: Node, operand: str, at: Coordinates, guard: Guard) -> str:
        limit = f"{int(node.attributes['limit'])}LL, " if "limit" in node.attributes else ""
        code = self.words.number(node.attributes["code"], "long long")
        position = ix.render(ix.flatten(at, node.shape), True)
        text = f"{node.op.cuda}({operand}, {limit}{self.words.error()}, {code}, {position})"
        text = f"({node.dtype.compute}){text}"
        return f"{self.guard_text(guard)} ? {text} : 0" if guard else text

    def _gather(self, node: Node, at: Coordinates, guard: Guard) -> str:
        source, index = node.sources
        rank = len(index.shape)
        if not source.shape[0]:
            self.value(index, at[:rank], guard)  # its check reports that nothing can be read
            return literal(0, node.dtype)
        row = self.position(index, at[:rank], guard, source.shape[0])
        return self.value(source, (row, *at[rank:]), guard)

    def position(self, index: Node, at: Coordinates, guard: Guard, limit: int) -> Index:
        """A loaded index, 0 <= index < limit, as a coordinate."""
        name = self.value(index, at, guard)
        number = _INTEGER.fullmatch(name)
        if number:
            return ix.constant(int(number[1]))
        # What the kernel computes is declared in the scope of its result, not of its coordinates.
        floor = max(self.floors.values(), default=0)
        depth = max(self._depth(at, guard), self._made.get(name, floor))
        if not name.isidentifier():
            name = self._named(depth, ("position", name), index.dtype.compute, name, "index")
        if index.dtype.itemsize == 8 and not self.wide:
            name = self._named(depth, ("int", name), "int", f"(int){name}", "index")
        self._homes[name] = depth
        return ix.opaque(name, 0, limit - 1)


def _index(text: str, size: int) -> str:
    """The subscript of an array, of which one element is a plain variable."""
    return f"[{text}]" if size > 1 else ""


class RowRegisters:
    """Arrays of registers that carry values from one loop over a row to the next.

    Args:
        depth: of the row loop's scope.
        trips: of that loop; `lanes` of the one inside it.
        least: elements of an operand from which on it stays in registers.
    """

    def __init__(self, depth: int, trips: int, lanes: int, least: int = 0) -> None:
        self.depth, self.trips, self.lanes, self.least = depth, trips, lanes, least
        self.names: dict[Any, str] = {}
        self.declarations: list[str] = []
        # Their registers, scope and text, and whether that is of each lane.
        self.loads: list[tuple[Node, int, Scope, str, bool]] = []
        self._sizes: dict[str, int] = {}  # registers of a thread for each
        self.registers = 0  # for what lasts from one loop to another, once `count` knows

    def keep(
        self,
        writer: Evaluator,
        key: Any,
        depth: int,
        ctype: str,
        text: str,
        stem: str,
        loaded: Node | None,
    ) -> str:
        if key not in self.names:
            name = writer.fresh(stem)
            inner = depth > self.depth
            lanes = self.lanes if inner else 1
            size = _index(str(self.trips), self.trips) + _index(str(lanes), lanes)
            register = name + _index("k", self.trips) + _index("v", lanes)
            self.declarations.append(f"{ctype} {name}{size};")
            line = f"{register} = {text};"
            writer.scopes[depth].lines.append(line)
            nbytes = 8 if ctype in ("double", "long long", "unsigned long long") else 4
            if loaded is not None:
                nbytes = max(loaded.dtype.itemsize, 4 if inner else 0)
            registers = self.trips * self.lanes * nbytes // 4
            self._sizes[name] = registers
            if loaded is not None:
                self.loads.append((loaded, registers, writer.scopes[depth], line, inner))
            self.names[key] = register
        return self.names[key]

    def count(self, loops: Sequence[str]) -> None:
        """Finds out what more than one loop names, from their texts."""
        for name, size in self._sizes.items():
            if sum(re.search(rf"\b{name}\b", loop) is not None for loop in loops) > 1:
                self.registers += size

    def load_early(
        self, numel: int, outer: list[str], inner: list[str], registers_left: int = EARLY
    ) -> None:
        """Moves loads of later loops to the first one, so that they are in flight together.

        Args:
            numel: of the kernel's space: smaller operands are read by all rows and lie near.
            outer, inner: statements of the first loop, and of the one inside it.
            registers_left: of a thread, for operands of the first loop and those moved there.
        """
        for node, registers, scope, line, of_lane in self.loads:
            target = inner if of_lane else outer
            registers_left -= registers
            if prod(node.shape) >= numel and registers_left >= 0 and scope.lines is not target:
                scope.lines.remove(line)
                target.append(line)


def _fits_int(node: Node) -> bool:
    """Whether an integer is a position: it takes 32 bits, whatever its type."""
    walked = ("reshape", "permute", "expand")
    while node.op in TRANSPARENT or node.op.name in walked:
        node = node.sources[0]
    attributes = node.attributes
    if node.op is indexing.check_index:
        return int(attributes["limit"]) <= ix.INT_MAX
    if node.op is not common.arange or not node.dtype.is_integer:
        return False
    start, step = attributes["start"], attributes["step"]
    if isinstance(start, Argument) or isinstance(step, Argument):
        return False
    return all(abs(end) <= ix.INT_MAX for end in (start, start + step * prod(node.shape)))


def expression(node: Node, operands: list[str], short: bool = False) -> str:
    """The C expression of an elementwise op's row; `short`: of float32 as of a half type."""
    if node.op is ew.cast:
        source, target = node.sources[0].dtype, node.dtype
        if source is target or (source.compute == target.compute and target.name == "float32"):
            return operands[0]
        if source.is_complex and not target.is_complex and target.name != "bool":
            return f"tgc_cast<{target.c}>({operands[0]}.re)"
        return f"tgc_cast<{target.c}>({operands[0]})"
    text = node.op.cuda
    if callable(text):
        dtype = node.sources[0].dtype
        if short and not dtype.is_half:
            # A factor may bring a sigmoid below 2^-126 back into bfloat16's range, as silu does.
            dtype = bfloat16 if node.op is ew.sigmoid else float16
        text = text(dtype)
    return _CALL.sub(r"tgc_\1(", text).format(*operands)


class Stores:
    """The stores of a kernel's body.

    Attributes:
        after: statements that follow the lane loop: the vectors that it filled.
    """

    def __init__(self, writer: Evaluator, kernel: Kernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.after: list[str] = []
        for node in kernel.stores:
            while node.op is common.assign:
                node = node.sources[1]
            writer.stored.add(node)

    def put(self, node: Node, index: Index, value: str, condition: str = "") -> None:
        """Stores `value` as element `index` of a node, if `condition` holds."""
        writer = self.writer
        depth = len(writer.scopes) - 1
        if node.dtype.is_half:  # the store rounds; of float32, a cast keeps the rounded value
            value = writer.unrounded.get(value, value)
        value, condition = self._guarded(node, index, value, condition)
        pointer = writer.words.write(node)
        test = f"if ({condition}) " if condition else ""
        lane = writer.lane
        vector = lane is not None and lane.width > 1
        if vector:
            assert lane is not None
            split = ix.split_lane(index, lane.variable)
            fits = lane.width * node.dtype.itemsize <= 16
            if fits and split and split[0] == 1 and ix.divisible(split[1], lane.width):
                name = writer.fresh(f"{pointer.removeprefix('p.')}x{lane.width}")
                ctype = node.dtype.c
                if node.dtype.is_half:  # rounded in pairs
                    writer.scopes[-2].lines.append(f"float {name}[{lane.width}];")
                    writer.scopes[-1].lines.append(f"{name}[{lane.name}] = {value};")
                    self.after.append(
                        f"{test}tgc_store_vector({pointer}, {writer.index_text(split[1])}, "
                        f"tgc_rounded<{ctype}>({name}));"
                    )
                    return
                writer.scopes[-2].lines.append(f"tgc_vector<{ctype}, {lane.width}> {name};")
                writer.scopes[-1].lines.append(
                    f"{name}.at[{lane.name}] = tgc_to_storage<{ctype}>({value});"
                )
                self.after.append(
                    f"{test}tgc_store_vector({pointer}, {writer.index_text(split[1])}, {name});"
                )
                return
        line = f"{test}tgc_store({pointer}, {writer.index_text(index)}, {value});"
        writer.scopes[depth].lines.append(line)

    def _guarded(self, node: Node, index: Index, value: str, condition: str) -> tuple[str, str]:
        """An assign keeps the old value while an error waits to be reported."""
        if node.op is not common.assign:
            return value, condition
        writer = self.writer
        memo = writer.scopes[0].memo
        if "failed" not in memo:
            text = f"tgc_load({writer.words.error()}, 0) != 0ull"
            writer.scopes[0].lines.append(f"const bool failed = {text};")
            memo["failed"] = "failed"
        if node in self.kernel.overwrites:
            return value, f"!failed && {condition}" if condition else "!failed"
        old = node
        while old.op is common.assign:
            old = old.sources[0]
        if old.op is not common.buffer:
            return value, condition
        return f"failed ? {writer.load(old, index, ())} : {value}", condition


def is_wide(kernel: Kernel) -> bool:
    """Whether some index of the kernel may pass 2**31."""
    nodes = [*kernel.stores, *kernel.reads, *kernel.nodes]
    nodes += [source for node in kernel.nodes for source in node.sources]
    return kernel.numel + THREADS * 8 > ix.INT_MAX or any(
        prod(shape) > ix.INT_MAX for node in nodes for shape, _ in node.outputs
    )


def value_stem(node: Node) -> str:
    """What a value is called: a statistic's usual name, or its op's."""
    name = _statistic(node) or re.sub(r"\W|_$", "", node.op.name)
    return f"{name}_" if name[-1].isdigit() else name  # log2_0, not the third of log


def _statistic(node: Node) -> str:
    """The name of a mean, a variance, or the reciprocal of their root; else nothing."""
    if node.op is ew.rsqrt:
        shifted = _value(node.sources[0])
        parts = map(_value, shifted.sources) if shifted.op is ew.add else ()
        names = {_statistic(part) for part in parts}
        return "rstd" if "var" in names else "rrms" if "mean_square" in names else ""
    if node.op is ew.mul:
        for one, other in (node.sources, node.sources[::-1]):
            total, factor = _value(one), _value(other).attributes.get("value")
            if isinstance(factor, int | float):
                if total.op is common.output and total.sources[0].op is reduction.welford:
                    return "var"
                if total.op is reduction.sum and _is_reciprocal(factor, total):
                    return _mean_of(_value(total.sources[0]))
    return ""


def _mean_of(summed: Node) -> str:
    if summed.op is not ew.mul or summed.sources[0] is not summed.sources[1]:
        return "mean"
    return "var" if _value(summed.sources[0]).op is ew.sub else "mean_square"


def _is_reciprocal(factor: float, total: Node) -> bool:
    count = prod(total.sources[0].shape) // max(prod(total.shape), 1)
    return abs(factor * count - 1) < 1e-3


def _value(node: Node) -> Node:
    """The value behind movements, casts and names."""
    while node.op.kind == "movement" or node.op in TRANSPARENT or node.op is ew.cast:
        node = node.sources[0]
    return node


# Of literals in C, which are int without one.
_SUFFIXES = {"int64": "LL", "uint32": "U", "uint64": "ULL"}


def literal(value: Any, dtype: DType) -> str:
    """A number as C text of the dtype's compute type."""
    with np.errstate(all="ignore"):
        item = np.asarray(value).astype(dtype.numpy)
    if dtype.name == "bool":
        return "true" if item else "false"
    if dtype.is_complex:
        parts = [literal(part, dtype.to_real()) for part in (item.real, item.imag)]
        return f"{dtype.c}({', '.join(parts)})"
    if dtype.category == 1:
        number = int(item)
        if number == -(2**63):
            return "(-9223372036854775807LL - 1)"
        text = str(number) + _SUFFIXES.get(dtype.name, "")
        if number == -(2**31) and dtype.itemsize == 4:
            return "(-2147483647 - 1)"
        if dtype.itemsize < 4:  # C has no literals of these types, and templates compare types
            return f"({dtype.compute}){text}"
        return f"({text})" if number < 0 else text
    real = float(item)
    cast = "" if dtype.compute == "float" else "(double)"
    if isnan(real):
        return f"({cast}NAN)"
    if isinf(real):
        return f"({cast}{'-' if real < 0 else ''}INFINITY)"
    text = repr(real) if dtype.compute == "double" else _short_float(real)
    return f"({text})" if text.startswith("-") else text


def _short_float(number: float) -> str:
    text = str(np.float32(number))
    return (text if any(mark in text for mark in ".e") else text + ".0") + "f"
