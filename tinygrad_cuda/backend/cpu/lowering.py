"""From a program to what the cpu device runs: steps over a table of values.

Forms are chosen (forms.py), long elementwise values are gathered into chains (chains.py), and
each value gets a slot; a value that nobody reads any more gives its memory to the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from tinygrad_cuda.backend.cpu.chains import ElementwiseChain, Member
from tinygrad_cuda.backend.cpu.forms import Form, Forms
from tinygrad_cuda.backend.cpu.pool import SMALLEST as SMALLEST_POOLED
from tinygrad_cuda.backend.cpu.pool import pool
from tinygrad_cuda.backend.cpu.rows import check, resolved
from tinygrad_cuda.backend.cpu.strided import join_movements
from tinygrad_cuda.backend.cpu.units import (
    Deferral,
    LoweredUnit,
    bytes_of,
    formed,
    is_blocked,
)
from tinygrad_cuda.graph.node import Node, topological
from tinygrad_cuda.graph.ops import common, indexing
from tinygrad_cuda.graph.program import Program

Array = np.ndarray[Any, Any]
Step = Callable[[list[Any]], None]

ARGUMENTS = 0  # the slot of the numbers that a run supplies


class NumpyProgram:
    """The steps of a program.

    Attributes:
        initial: the table of values with what is the same in each run.
        inputs: (slot of the program, slot of the table).
        steps: in their order.
        owners: the last node of each step; None of one that only lets values go.
        members: the nodes of each step; none of one that only lets values go.
        nodes: what is computed, in that order.
        outputs: slots of the results.
        over: values that take the memory of an operand, if that lies as they do, and which.
    """

    def __init__(self, program: Program) -> None:
        self.initial: list[Any] = [None]
        self.steps: list[Step] = []
        self.owners: list[Node | None] = []
        self.members: list[list[Node]] = []
        self.nodes: list[Node] = []
        self.over: dict[Node, Node] = {}
        self._slots: dict[Node, int] = {}
        self._arrays: dict[int, int] = {}
        order = topological(program.outputs)
        forms = Forms(order, program.outputs)
        self._forms: dict[Node, Form] = {}
        for node in order:
            if node.op is not common.buffer and forms.canonical(node) is node:
                form = forms.of(node)
                if form is not None:
                    self._forms[node] = form
        self._forms |= forms.added
        full = [forms.full(node) for node in program.outputs]
        self._results = [source for source in full if isinstance(source, Node)]
        self._roots = list(self._results)
        # A check is made even if what it guards is not read.
        self._roots += [node for node in self._forms if node.op in indexing.CHECKS]
        join_movements(self._needed(), self._forms, self._roots)
        units = self._ordered(formed(self._needed(), self._forms))
        self._emit(Deferral(units, self._forms, self._results).run())
        self.outputs = [self._slot_of(source) for source in full]
        # Results must not be what other runs use.
        self.static = {id(array) for array in self.initial if array is not None}
        self.inputs = [
            (node.attributes["slot"], slot)
            for node, slot in self._slots.items()
            if node.op is common.buffer
        ]

    def slot(self, node: Node) -> int:
        """Where the value of a node that is computed stands in the table."""
        return self._slots.get(node, -1)

    def _needed(self) -> list[Node]:
        """Nodes that some result is computed from, sources first."""
        seen: set[Node] = set()
        order: list[Node] = []
        stack = [(node, False) for node in reversed(self._roots)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
                continue
            if node in seen or node.op is common.buffer:
                continue
            seen.add(node)
            stack.append((node, True))
            for source in reversed(self._forms[node].sources):
                if isinstance(source, Node) and source not in seen:
                    stack.append((source, False))
        return order

    def _ordered(self, units: list[LoweredUnit]) -> list[LoweredUnit]:
        """The units in an order that lets values die early: those of each result in turn.

        A result with fewer units before it comes first: gradients of the last layer's weights.
        """
        for unit in units:
            unit.find_reads(self._forms)
        unit_of = {node: unit for unit in units for node in unit.nodes}
        roots = [unit_of[node] for node in self._roots if node in unit_of]
        depths: dict[LoweredUnit, int] = {}
        for unit in _walked(roots, unit_of):
            before = [depths[unit_of[read]] for read in unit.reads if read in unit_of]
            depths[unit] = 1 + max(before, default=0)
        return _walked(sorted(roots, key=depths.__getitem__), unit_of)

    # Slots ------------------------------------------------------------------------------------

    def _slot_of(self, source: Node | Array) -> int:
        """Where a value stands in the table."""
        if isinstance(source, Node):
            slot = self._slots.get(source)
            if slot is None:
                slot = self._slots[source] = len(self.initial)
                self.initial.append(None)
            return slot
        slot = self._arrays.get(id(source))
        if slot is None:
            slot = self._arrays[id(source)] = len(self.initial)
            self.initial.append(source)
        return slot

    # Steps ------------------------------------------------------------------------------------

    def _emit(self, units: list[LoweredUnit]) -> None:
        lives = _Lives(units, self._forms, self._results)
        for number, unit in enumerate(units):
            if len(unit.nodes) > 1 or is_blocked(unit.nodes[0], self._forms):
                step: Step = self._chain(unit, number, lives)
            else:
                step = self._single(unit.nodes[0], number, lives)
            self.steps.append(step)
            dead = [self._slot_of(node) for node in lives.ending(number)]
            if dead:
                self.steps.append(_forgetting(dead))
            self.nodes += unit.nodes
            self.owners += [unit.nodes[-1], None][: len(self.steps) - len(self.owners)]
            self.members += [unit.nodes, []][: len(self.steps) - len(self.members)]

    def _single(self, node: Node, number: int, lives: _Lives) -> Step:
        form = self._forms[node]
        read = [self._slot_of(source) for source in form.sources]
        write, call = self._slot_of(node), form.call
        if form.dynamic is not None:
            is_check = node.op in indexing.CHECKS
            return _dynamic(call, read, write, form.dynamic, is_check)
        if form.kind == "fill" and bytes_of(node) >= SMALLEST_POOLED:
            return _filling(call, read, write, node)
        if form.kind == "update":
            target = form.sources[0]
            if isinstance(target, Node) and lives.free_at(target, number):
                self.over[node] = target
            return _updating(call, read, write, node not in self.over)
        if form.kind != "out" or not node.shape:
            return _calling(call, read, write)
        pooled = bytes_of(node) >= SMALLEST_POOLED
        new = _filling(call, read, write, node) if pooled else _calling(call, read, write)
        for slot, source in zip(read, form.sources):
            if _may_hold(source, node) and lives.free_at(source, number):
                self.over[node] = source
                others = [other for other in form.sources if other is not source]
                if pooled or any(map(_has_order, others)):
                    return _into_row_major(call, read, write, slot, new)
                return _into(call, read, write, slot)
        return new

    def _chain(self, unit: LoweredUnit, number: int, lives: _Lives) -> ElementwiseChain:
        """The step of a chain; long arrays that die in it may hold its results."""
        nodes = unit.nodes
        inside = {node: k for k, node in enumerate(nodes)}
        read: dict[int, int] = {}
        whole: dict[int, int] = {}
        last_read: dict[Node, int] = {}
        sources: list[list[Any]] = []
        for k, node in enumerate(nodes):
            row: list[Any] = []
            for source in self._forms[node].sources:
                if isinstance(source, Node) and source in inside:
                    row.append(source)
                else:
                    slot = self._slot_of(source)
                    row.append(read.setdefault(slot, len(read)))
                    if source.shape == node.shape:
                        whole[slot] = source.dtype.itemsize
                    if isinstance(source, Node):
                        last_read[source] = k
            sources.append(row)
        reusable = {k: source for source, k in last_read.items() if lives.free_at(source, number)}
        outside = lives.read_outside(unit)
        members = []
        for k, (node, row) in enumerate(zip(nodes, sources)):
            form = self._forms[node]
            positions = tuple(
                len(read) + inside[source] if isinstance(source, Node) else source for source in row
            )
            result = self._slot_of(node) if node in outside else -1
            reuses = -1
            given = reusable.get(k)
            if result >= 0 and form.kind == "out" and given and _may_hold(given, node):
                reuses = read[self._slot_of(given)]
                self.over[node] = given
            members.append(
                Member(form.call, form.kind == "out", positions, node.dtype.numpy, result, reuses)
            )
        return ElementwiseChain(nodes[0].shape, list(read), members, sum(whole.values()))


def _may_hold(source: Node | Array, node: Node) -> TypeGuard[Node]:
    """Whether a value's memory is as large as another's."""
    return isinstance(source, Node) and source.outputs[0] == node.outputs[0]


def _has_order(source: Node | Array) -> bool:
    """Whether a value's strides can change the order of axes that NumPy gives to a result."""
    return len([size for size in source.shape if size != 1]) > 1


def _walked(roots: Sequence[LoweredUnit], unit_of: Mapping[Node, LoweredUnit]) -> list[LoweredUnit]:
    """The units that some roots are computed from, for one root after the other."""
    seen: set[LoweredUnit] = set()
    order: list[LoweredUnit] = []
    stack = [(unit, False) for unit in reversed(roots)]
    while stack:
        unit, done = stack.pop()
        if done:
            order.append(unit)
            continue
        if unit in seen:
            continue
        seen.add(unit)
        stack.append((unit, True))
        stack += [
            (unit_of[source], False) for source in reversed(unit.reads)
            if source in unit_of and unit_of[source] not in seen
        ]  # fmt: skip
    return order


class _Lives:
    """When values are read for the last time, views of the same memory together.

    Args:
        units: in the order of execution.
        results: what is read after all of them.
    """

    def __init__(
        self, units: list[LoweredUnit], forms: dict[Node, Form], results: Sequence[Node]
    ) -> None:
        self._forms = forms
        # Whose memory a value lies in: None for what is the same in each run.
        self._roots: dict[Node, Node | None] = {}
        self._last: dict[Node | None, int] = {}
        self._readers: dict[Node, set[LoweredUnit]] = {}
        # Memory that a unit reads through a view: in another order than it would write it.
        self._viewed: set[tuple[int, Node | None]] = set()
        self._results = set(results)
        self._ending: dict[int, list[Node]] = {}
        roots = self._roots
        for number, unit in enumerate(units):
            for node in unit.nodes:
                form = forms[node]
                root: Node | None = node
                if form.kind == "view":
                    first = form.sources[0]
                    root = roots.get(first, first) if isinstance(first, Node) else None
                roots[node] = root
                for read in (node, *form.sources):
                    if isinstance(read, Node):
                        owner = roots.get(read, read)
                        self._last[owner] = number
                        if owner is not read:
                            self._viewed.add((number, owner))
            for read in unit.reads:
                self._readers.setdefault(read, set()).add(unit)
        lasting = {roots.get(node, node) for node in results}
        for root in lasting:
            self._last[root] = len(units)
        for node, original in roots.items():
            if (
                original in forms
                and original not in lasting
                and bytes_of(original) >= SMALLEST_POOLED
            ):
                self._ending.setdefault(self._last[original], []).append(node)

    def free_at(self, node: Node, number: int) -> bool:
        """Whether a value owns its memory, which nothing reads after this unit or by a view."""
        forms = self._forms
        if node not in forms or self._roots[node] is not node or self._last[node] != number:
            return False
        if (number, node) in self._viewed:
            return False
        return forms[node].kind in ("out", "map") or (
            forms[node].kind in ("new", "update", "fill") and len(node.outputs) == 1
        )

    def ending(self, number: int) -> list[Node]:
        """Values of long arrays, and views of such, that are read here for the last time."""
        return self._ending.get(number, [])

    def read_outside(self, unit: LoweredUnit) -> set[Node]:
        """Nodes of a unit that others read, or that are results."""
        return {node for node in unit.nodes if node in self._results or node in self._readers}


# Steps --------------------------------------------------------------------------------------------


def _calling(call: Callable[..., Any], read: list[int], write: int) -> Step:
    if len(read) == 1:
        (a,) = read

        def one(values: list[Any]) -> None:
            values[write] = call(values[a])

        return one
    if len(read) == 2:
        a, b = read

        def two(values: list[Any]) -> None:
            values[write] = call(values[a], values[b])

        return two

    def many(values: list[Any]) -> None:
        values[write] = call(*[values[slot] for slot in read])

    return many


def _into(call: Callable[..., Any], read: list[int], write: int, target: int) -> Step:
    """The result takes the memory of an operand."""
    if len(read) == 1:

        def one(values: list[Any]) -> None:
            array = values[target]
            values[write] = call(array, out=array)

        return one
    if len(read) == 2:
        a, b = read

        def two(values: list[Any]) -> None:
            values[write] = call(values[a], values[b], out=values[target])

        return two

    def many(values: list[Any]) -> None:
        values[write] = call(*[values[slot] for slot in read], out=values[target])

    return many


def _into_row_major(
    call: Callable[..., Any], read: list[int], write: int, target: int, new: Step
) -> Step:
    """The result takes the memory of an operand, if that lies as a new array would.

    A result's order of axes decides in which order it is summed. It must not depend on which
    operand dies here, since that follows from what else the program computes. Beside a row-major
    operand NumPy makes a row-major result.
    """

    def into(values: list[Any]) -> None:
        array = values[target]
        if array.flags.c_contiguous:
            values[write] = call(*[values[slot] for slot in read], out=array)
        else:
            new(values)

    return into


def _updating(call: Callable[..., Any], read: list[int], write: int, copies: bool) -> Step:
    target, *rest = read

    def update(values: list[Any]) -> None:
        array = values[target]
        flags = array.flags
        if copies or not (flags.c_contiguous and flags.owndata and flags.writeable):
            array = array.copy()  # row-major, whichever way it was found
        values[write] = call(array, *[values[slot] for slot in rest])

    return update


def _dynamic(
    call: Callable[..., Any], read: list[int], write: int, attributes: dict[str, Any], checks: bool
) -> Step:
    def dynamic(values: list[Any]) -> None:
        arguments = values[ARGUMENTS]
        given = {name: resolved(value, arguments) for name, value in attributes.items()}
        arrays = [values[slot] for slot in read]
        if checks:
            check(arrays[0], **given)
        values[write] = call(*arrays, **given)

    return dynamic


def _filling(call: Callable[..., Any], read: list[int], write: int, node: Node) -> Step:
    """The call writes to an array of the pool."""
    shape, dtype = node.shape, node.dtype.numpy

    def fill(values: list[Any]) -> None:
        out = pool.take(shape, dtype)
        values[write] = call(*[values[slot] for slot in read], out=out)

    return fill


def _forgetting(slots: list[int]) -> Step:
    def forget(values: list[Any]) -> None:
        pool.release(values, slots)

    return forget
