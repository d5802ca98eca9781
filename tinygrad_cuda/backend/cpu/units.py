"""What a program's nodes are computed in: single nodes and chains of long elementwise ones.

Chains are formed where values are first needed; what only later chains read is then computed in
those (`Deferral`), so that no array holds it in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, repeat
from math import prod

import numpy as np

from tinygrad_cuda.backend.cpu.chains import SMALLEST
from tinygrad_cuda.backend.cpu.forms import Form
from tinygrad_cuda.graph.node import Node, node_made


class LoweredUnit:
    """What becomes one step: a node, or a chain of them.

    Attributes:
        nodes: sources first.
        reads: nodes computed by other units.
    """

    __slots__ = ("nodes", "reads")

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.reads: list[Node] = []

    def find_reads(self, forms: dict[Node, Form]) -> None:
        """Lists what its nodes read from outside."""
        inside = set(self.nodes)
        self.reads = list(
            dict.fromkeys(
                source for node in self.nodes for source in forms[node].sources
                if isinstance(source, Node) and source not in inside
            )
        )  # fmt: skip


def is_long(node: Node, forms: dict[Node, Form]) -> bool:
    """Whether a node is computed a block at a time."""
    form = forms[node]
    return (
        form.kind in ("out", "map") and form.dynamic is None
        and prod(node.shape) >= SMALLEST
    )  # fmt: skip


def is_blocked(node: Node, forms: dict[Node, Form]) -> bool:
    """Whether a long node alone gains by blocks: one call goes over memory once anyway."""
    return is_long(node, forms) and not isinstance(forms[node].call, np.ufunc)


def bytes_of(node: Node) -> int:
    """Bytes of a value."""
    return node.dtype.itemsize * prod(node.shape)


def formed(order: list[Node], forms: dict[Node, Form]) -> list[LoweredUnit]:
    """Single nodes, and connected long elementwise nodes of one shape that nothing comes between.

    A stage grows where a path leaves a chain: what has one shape and one stage reads nothing that
    is computed from itself.
    """
    stages: dict[Node, int] = {}
    unit_of: dict[Node, LoweredUnit] = {}
    for node in order:
        long, stage = is_long(node, forms), 0
        joined: list[Node] = []
        for source in forms[node].sources:
            if not isinstance(source, Node) or source not in stages:
                continue
            leaves = is_long(source, forms)
            together = long and leaves and source.shape == node.shape
            stage = max(stage, stages[source] + (leaves and not together))
            if together:
                joined.append(source)
        stages[node] = stage
        unit = unit_of[node] = LoweredUnit([node])
        for source in joined:
            other = unit_of[source]
            if stages[source] == stage and other is not unit:
                # The smaller one into the larger one.
                small, large = sorted((unit, other), key=lambda unit: len(unit.nodes))
                large.nodes += small.nodes
                unit_of.update(zip(small.nodes, repeat(large)))
                unit = large
    numbers = {node: k for k, node in enumerate(order)}
    units = list(dict.fromkeys(unit_of.values()))
    for unit in units:
        unit.nodes.sort(key=numbers.__getitem__)
    return units


# The dearest op, in instructions, that is computed twice instead of being stored.
CHEAP = 4
# The dearest op that is computed twice instead of being stored for `LATE` units, such as exp.
DEAR = 8
# Units for which a value is stored from which on it is rather computed again.
LATE = 16
# A value so many times smaller than those of its chain is not counted, such as the means of rows.
SMALL = 8


class Deferral:
    """Computes in a later chain what an earlier one would store for it.

    A backward pass reads values that are computed for it alone, such as ``1 - t * t`` of a tanh,
    and others that follow from what is stored anyway, such as a quotient of stored powers.

    Args:
        units: in the order of execution.
        forms: of their nodes; receives those of what is computed elsewhere.
        results: what is read after all of them.
    """

    def __init__(
        self, units: Sequence[LoweredUnit], forms: dict[Node, Form], results: Sequence[Node]
    ) -> None:
        self._units, self._forms = units, forms
        self._unit_of = {node: number for number, unit in enumerate(units) for node in unit.nodes}
        self._order = {node: k for k, node in enumerate(self._unit_of)}
        # In whose memory a value lies: its own, or that of what it is a view of.
        self._roots: dict[Node, Node] = {}
        # The units that read that memory, by its owner.
        self._readers: dict[Node, set[int]] = {}
        for number, unit in enumerate(units):
            for node in unit.nodes:
                form = forms[node]
                source = form.sources[0] if form.kind == "view" else node
                self._roots[node] = self._root(source) if isinstance(source, Node) else node
            for read in unit.reads:
                self._readers.setdefault(self._root(read), set()).add(number)
        for node in results:
            self._readers.setdefault(self._root(node), set()).add(len(units))
        # What is computed a second time, by the units before which that is.
        self._inserted: dict[int, list[LoweredUnit]] = {}

    def run(self) -> list[LoweredUnit]:
        """The units that are left, in their order."""
        for number in reversed(range(len(self._units))):
            unit = self._units[number]
            if unit.nodes and is_long(unit.nodes[0], self._forms):
                self._defer_into(number, unit)
        for node in list(self._unit_of):
            self._compute_again(node)
        return [
            unit for number, own in enumerate(self._units)
            for unit in (*self._inserted.get(number, ()), own) if unit.nodes
        ]  # fmt: skip

    def _defer_into(self, number: int, unit: LoweredUnit) -> None:
        copies: dict[Node, Node] = {}
        while True:
            chosen = next((node for node in unit.reads if self._is_deferred(number, node)), None)
            if chosen is None:
                return
            if self._is_read_elsewhere(number, chosen):
                own = copies[chosen] = self._copy(chosen)
                unit.nodes.append(own)
            else:
                home = self._unit_of[chosen]
                self._units[home].nodes.remove(chosen)
                self._renew(home)
                unit.nodes.append(chosen)
                self._unit_of[chosen] = number
            self._read_copies(unit, copies)
            unit.nodes.sort(key=self._order.__getitem__)
            self._renew(number)

    def _is_deferred(self, number: int, node: Node) -> bool:
        """Whether no more is stored if a chain computes a value that it reads."""
        unit, home = self._units[number], self._unit_of.get(node)
        if home is None or node.shape != unit.nodes[0].shape or not is_long(node, self._forms):
            return False
        others = self._readers[node] - {number}
        if max(others, default=home) > number:
            return False  # it is stored longer anyway
        late = number - max(others, default=home) >= LATE
        if node.op.cost > (DEAR if late else CHEAP) and self._is_read_elsewhere(number, node):
            return False
        stored = self._stored_longer(number, node)
        # What follows from the others will be deferred, too.
        for source in list(stored):
            cheap = source.op.cost <= CHEAP and is_long(source, self._forms)
            if cheap and self._stored_longer(number, source).keys() < stored.keys():
                del stored[source]
        more = sum(stored.values())
        less = bytes_of(node) * (number - max(others, default=home))
        # About as much is a gain only if the value itself is not stored for others.
        return more < less or (SMALL * more <= (SMALL + 1) * less and not others)

    def _stored_longer(self, number: int, node: Node) -> dict[Node, int]:
        """What would be stored longer for a value to be computed there: bytes times units."""
        longer = {}
        for source in self._forms[node].sources:
            root = self._root(source) if isinstance(source, Node) else None
            if root in self._unit_of and SMALL * bytes_of(root) > bytes_of(node):
                last = max(self._readers.get(root, ()), default=self._unit_of[root])
                if last < number:
                    longer[root] = bytes_of(root) * (number - last)
        return longer

    def _compute_again(self, node: Node) -> None:
        """Computes a cheap value a second time before its late readers, if less is stored then."""
        readers = sorted(self._readers.get(node, ()))
        if not readers or readers[-1] == len(self._units) or not is_long(node, self._forms):
            return
        length, late = max((b - a, b) for a, b in pairwise((self._unit_of[node], *readers)))
        if length < LATE or late == readers[0]:
            return
        chosen: set[Node] = set()
        if self._cost_again(late, node, chosen) >= length * bytes_of(node):
            return
        if sum(one.op.cost for one in chosen) > CHEAP:
            return
        unit = LoweredUnit(sorted(chosen, key=self._order.__getitem__))
        copies = {one: self._copy(one) for one in unit.nodes}
        unit.nodes = [copies[one] for one in unit.nodes]
        self._insert(late, unit, copies)
        for number in readers:
            if number >= late:
                self._read_again(number, late, node, copies)
                self._readers[node].discard(number)

    def _cost_again(self, number: int, node: Node, chosen: set[Node]) -> int:
        """What is stored longer, in bytes times units, for a value to be computed again.

        Args:
            chosen: receives it, and what is computed again for it.
        """
        chosen.add(node)
        total = 0
        for source, cost in self._stored_longer(number, node).items():
            if source.op.cost <= CHEAP and is_long(source, self._forms):
                others: set[Node] = set()
                again = self._cost_again(number, source, others)
                if again < cost and source.shape == node.shape:
                    cost = again
                    chosen |= others
            total += cost
        return total

    def _insert(self, number: int, unit: LoweredUnit, copies: dict[Node, Node]) -> None:
        """Puts a unit of copies before another one."""
        self._read_copies(unit, copies)
        unit.find_reads(self._forms)
        for read in unit.reads:
            self._readers.setdefault(self._root(read), set()).add(number)
        self._inserted.setdefault(number, []).append(unit)

    def _read_copies(self, unit: LoweredUnit, copies: dict[Node, Node]) -> None:
        for node in unit.nodes:
            form = self._forms[node]
            sources = tuple(copies.get(s, s) if isinstance(s, Node) else s for s in form.sources)
            self._forms[node] = form._replace(sources=sources)

    def _read_again(self, number: int, late: int, node: Node, copies: dict[Node, Node]) -> None:
        """Has a unit read the copy of a value; of views that were made before, copies, too."""
        unit = self._units[number]
        for read in unit.reads:
            views = []
            while read is not node and read not in copies and self._root(read) is node:
                if self._unit_of[read] >= late:
                    break
                views.append(read)
                source = self._forms[read].sources[0]
                assert isinstance(source, Node)
                read = source
            for view in reversed(views):
                copies[view] = copy = self._copy(view)
                self._insert(late, LoweredUnit([copy]), copies)
        self._read_copies(unit, copies)
        unit.find_reads(self._forms)

    def _is_read_elsewhere(self, number: int, node: Node) -> bool:
        """Whether other units read a value, or the one that computes it does."""
        home = self._units[self._unit_of[node]]
        return self._readers[node] != {number} or any(
            source is node for other in home.nodes for source in self._forms[other].sources
        )

    def _copy(self, node: Node) -> Node:
        copy = node_made(
            node.op, node.sources, node.attributes, node.outputs, node.device, False, node.site
        )
        self._forms[copy] = self._forms[node]
        self._order[copy] = self._order[node]
        self._roots[copy] = copy
        return copy

    def _renew(self, number: int) -> None:
        """Lists again what a unit reads."""
        unit = self._units[number]
        before = set(map(self._root, unit.reads))
        unit.find_reads(self._forms)
        after = set(map(self._root, unit.reads))
        for root in before - after:
            self._readers[root].discard(number)
        for root in after - before:
            self._readers.setdefault(root, set()).add(number)

    def _root(self, node: Node) -> Node:
        return self._roots.get(node, node)
