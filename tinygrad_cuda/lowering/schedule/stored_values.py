"""Which values end up in memory: those that their readers would take longer to make again."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.lowering.schedule.fusion import (
    ALONE,
    CHEAP_COST,
    FLAT,
    OTHER,
    Edge,
    Group,
    Groups,
)

# Arithmetic of a value that a kernel does while it waits for memory anyway.
HIDDEN_COST = 24
FEW_LOADS = 2  # values in memory of which another one is made again whatever else is loaded
SMALL_SHARE = 64  # a value with this many times fewer elements is stored for a reader at no cost
WORTH_FREEING = 1 << 20  # bytes; see WORTH_AN_ORDER of order.py
COPIES = (ew.cast, ew.contiguous)


class _Remade(NamedTuple):
    """What a kernel that makes values again needs for it.

    Attributes:
        loads: values in memory.
        made: expressions, without those that cost nothing.
        small: values of few elements that must be stored for it.
    """

    loads: set[Node]
    made: set[Node]
    small: set[Node]

    @property
    def cost(self) -> int:
        """Operations for each element."""
        return sum(node.op.cost for node in self.made if node.op.kind == "elementwise")


class StoredValues(NamedTuple):
    """What kernels put in memory.

    Attributes:
        stored: wanted values, and those that others read and do not make again.
        remade: values that some kernels make again all the same, though others load them.
    """

    stored: set[Node]
    remade: dict[Group, Node]


def stored_values(groups: Groups) -> StoredValues:
    """The values that kernels store.

    A value is made again by all its readers where this is little work, or else where it moves no
    more bytes; arithmetic counts as what the machine moves meanwhile. A float32 value that follows
    from one of 16 bits gives way to that, which is stored in its stead. Several values that follow
    from one product give way to the product where that moves fewer bytes. Tiles of a product's
    operand are loaded by many blocks, gathered elements by chance: these are made again of one
    value only.

    A copy that is needed late, such as the transposed one of a layer's input for the gradient of
    its weight, makes the input again of what is in memory by then anyway, if it moves no more
    bytes: of a normalization the operand. The input itself is then free after the forward pass.
    """
    values = _StoredValuesBuilder(groups)
    order = groups.sorted(set(groups.after))
    for group in order:
        values.reconsider(group)
    remade = {group: value for group in order if (value := values.remade_by_copy(group))}
    return StoredValues(values.stored, remade)


def is_copy(nodes: Sequence[Node]) -> bool:
    """Whether a kernel of these nodes only puts values in another layout or dtype."""
    return all(node.op in COPIES or node.op.kind == "movement" for node in nodes)


class _StorageState(NamedTuple):
    """What `_StoredValuesBuilder` has, whose sets are replaced and never changed."""

    stored: set[Node]
    loads: dict[Group, set[Node]]
    made: dict[Group, set[Node]]
    tiles: dict[Group, set[Node]]
    users: dict[Node, frozenset[Group]]


class _StoredValuesBuilder:
    """Values in memory, and what each kernel loads and makes again, as they are now.

    Attributes:
        stored: values that kernels store.
        users: for each value in memory the kernels that load it.
        tiles: of what a kernel loads, values that operands of products and gathers are made of.
        assigns: for each input that is overwritten, the new values.
    """

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.target = groups.target
        read = {
            edge.base
            for node in groups.order
            for edge in groups.edges[node]
            if groups.owner.get(edge.base) is not groups.owner[node]
        }
        self.stored = {node for node in groups.order if node in groups.wanted or node in read}
        self.loads: dict[Group, set[Node]] = {}
        self.made: dict[Group, set[Node]] = {}
        self.tiles: dict[Group, set[Node]] = {}
        self.users: dict[Node, frozenset[Group]] = {}
        self.assigns: dict[Node, list[Node]] = {}
        for node in groups.order:
            if node.op is common.assign:
                self.assigns.setdefault(node.sources[0], []).append(node)
        for group in groups.after:
            self._open(group)

    def _open(self, group: Group) -> None:
        """Notes what a kernel loads and makes again while all that others read is stored."""
        gathering = [n for n in group.members if n.op.kind in ("contraction", "kernel")]
        opened = [
            self._opened([edge for node in nodes for edge in self.groups.edges[node]], group)
            for nodes in (group.members, gathering)
        ]
        operands, tiles = (part for part in opened if part is not None)
        self.loads[group], self.made[group] = operands.loads, operands.made
        self.tiles[group] = tiles.loads
        for node in operands.loads:
            self.users[node] = self.users.get(node, frozenset()) | {group}

    def may_be_remade(self, node: Node) -> bool:
        """Whether a stored value is neither wanted in memory nor what its kernel is there for."""
        groups = self.groups
        free = node in self.stored and node not in groups.wanted and node not in groups.copied
        return free and node not in groups.owner[node].anchors

    def reconsider(self, group: Group) -> None:
        """Chooses which values of a kernel are stored.

        One by one; of several values that follow from a product, also the product in their stead.
        """
        values = [node for node in reversed(group.members) if self.may_be_remade(node)]
        missing = {node for node in group.anchors if node not in self.stored}
        if group.kind not in ALONE or len(values) < 2 or not missing:
            for node in values:
                self._reconsider(node)
            return
        readers = {user for node in values for user in self.users[node]}
        start = self._state()
        for node in values:
            self._reconsider(node)
        single = self._state(), self._cost(group, readers)
        self._restore(start)
        self.stored |= missing
        for node in values:
            self._reconsider(node, forced=True)
        if self._cost(group, readers) >= single[1]:
            self._restore(single[0])

    def remade_by_copy(self, group: Group) -> Node | None:
        """The stored value that a kernel, which only copies it, had better make again, or None."""
        if group.kind != "map" or not is_copy(group.members) or len(self.loads[group]) != 1:
            return None
        (value,) = self.loads[group]
        large = nbytes_of(value) >= WORTH_FREEING and value.op.kind == "elementwise"
        if not large or value in self.groups.wanted or value not in self.stored:
            return None
        self.stored.remove(value)
        made = self._opened([Edge(value, FLAT)], group, value)
        self.stored.add(value)
        if made is None or made.small - self.stored or made.cost > HIDDEN_COST:
            return None
        moved = sum(map(nbytes_of, made.loads)) - nbytes_of(value)
        if moved * SMALL_SHARE > nbytes_of(value) or not self._frees(value, group, made.loads):
            return None
        self.users[value] -= {group}
        for load in made.loads:
            self.users[load] = self.users.get(load, frozenset()) | {group}
        return value

    def _frees(self, value: Node, copy: Group, loads: set[Node]) -> bool:
        """Whether a value would be free earlier if a copy of it were made of other values.

        Then its other readers are done before what reads the copy. What the copy is made of is an
        input, or has a reader that need not be: it is in memory by then anyway.
        """
        groups = self.groups
        late = {user for node in copy.members for user in self.users.get(node, ())}

        def is_early(user: Group) -> bool:
            return all(user is not last and groups.reaches(user, last) for last in late)

        def stays(load: Node) -> bool:
            return load.op is common.buffer or not all(
                user is copy or is_early(user) for user in self.users[load]
            )

        others = self.users[value] - {copy}
        large = [load for load in loads if nbytes_of(load) * SMALL_SHARE > nbytes_of(value)]
        return bool(late and others) and all(map(is_early, others)) and all(map(stays, large))

    def _state(self) -> _StorageState:
        return _StorageState(
            self.stored.copy(), self.loads.copy(), self.made.copy(), self.tiles.copy(),
            self.users.copy(),
        )  # fmt: skip

    def _restore(self, state: _StorageState) -> None:
        self.stored, self.loads, self.made, self.tiles, self.users = state

    def _cost(self, group: Group, readers: set[Group]) -> float:
        """Bytes that a kernel stores and its readers load, their arithmetic counted as bytes."""
        moved = sum(nbytes_of(node) for node in group.members if node in self.stored)
        operations = 0
        for reader in readers:
            moved += sum(map(nbytes_of, self.loads[reader]))
            if reader.kind in ALONE:
                made = (node for node in self.made[reader] if node.op.kind == "elementwise")
                operations += sum(node.op.cost * prod(node.shape) for node in made)
        return moved + self._moved_meanwhile(operations)

    def _moved_meanwhile(self, operations: int) -> float:
        """Bytes that the machine moves in the time of some operations on single elements."""
        clocks = operations / (self.target.multiprocessors * self.target.lanes)
        return clocks * self.target.traffic

    def _reconsider(self, node: Node, forced: bool = False) -> None:
        """Stores a value no longer if its readers had better make it again, or can if `forced`."""
        narrow = self._half_source(node)
        if narrow is not None and node.op is ew.cast:
            self._remake(node, narrow, wanted=True)
        elif not self._remake(node, None, forced) and narrow is not None:
            self._remake(node, narrow, forced)

    def _remake(self, node: Node, narrow: Node | None, wanted: bool) -> bool:
        """Whether a value is stored no longer, since its readers make it again.

        Args:
            node: the value.
            narrow: one that it is made of, and that is stored in its stead.
            wanted: whether the readers are to make it if they can, at whatever cost.
        """
        users = self.users.get(node, frozenset())
        before = self.stored.copy()
        self.stored.remove(node)
        if narrow is not None:
            self.stored.add(narrow)
        remade = {group: self._remade(node, group) for group in users}
        possible = {group: made for group, made in remade.items() if made is not None}
        wanted = wanted or self._is_cheap(node, possible)
        alone = narrow is None or all(_full(node, made) <= 1 for made in possible.values())
        refused = len(possible) < len(users) or not alone
        if refused or not (wanted or self._worth_it(node, possible, before)):
            self.stored = before
            return False
        for group, made in possible.items():
            self.stored |= made.small
            self.made[group] = self.made[group] | made.made
            self.loads[group] = self.loads[group] - {node} | made.loads
            if node in self.tiles[group]:
                self.tiles[group] = self.tiles[group] - {node} | made.loads
            for load in made.loads:
                self.users[load] = self.users.get(load, frozenset()) | {group}
        self.users.pop(node, None)
        return True

    def _half_source(self, node: Node) -> Node | None:
        """The one value of 16 bits in its kernel that a float32 value is made of, or None.

        What is made in no kernel or in another one does not count.
        """
        if node.dtype is not float32:
            return None
        groups, group = self.groups, self.groups.owner[node]
        bases, stack, seen = set[Node](), [node], {node}
        while stack:
            for edge in groups.edges[stack.pop()]:
                base = edge.base
                if groups.owner.get(base) is not group or base in groups.inline or base in seen:
                    continue
                seen.add(base)
                if edge.kind != FLAT or len(bases) > 1:
                    return None
                if base.dtype.is_half:
                    bases.add(base)
                elif base.op.kind == "elementwise":
                    stack.append(base)
                else:
                    return None
        return bases.pop() if len(bases) == 1 else None

    def _remade(self, node: Node, group: Group) -> _Remade | None:
        """What a kernel needs to make a value that is stored no longer; None if it cannot."""
        operands = self._opened([Edge(node, FLAT)], group, node)
        if operands is None or node not in self.tiles[group]:
            return operands
        return operands if operands.cost <= CHEAP_COST and _full(node, operands) <= 1 else None

    def _opened(
        self, edges: list[Edge], group: Group, remade: Node | None = None
    ) -> _Remade | None:
        """What lies behind operands of a kernel.

        Args:
            edges: the operands.
            group: the kernel.
            remade: a value of another kernel that is made again, each element from its own.
        """
        groups = self.groups
        opened = _Remade(set(), set(), set())
        stack, seen = list(edges), set[Edge]()
        while stack:
            edge = stack.pop()
            base = edge.base
            owner = groups.owner.get(base)
            if edge in seen or owner is group:
                continue
            seen.add(edge)
            if remade is not None and (edge.kind == OTHER or not self._outlives(base, group)):
                return None
            if base in self.stored or base.op is common.buffer:
                opened.loads.add(base)
            elif remade and owner is groups.owner[remade] and self._is_small(base, remade):
                opened.loads.add(base)
                opened.small.add(base)
            elif owner is None or base.op.kind == "elementwise":
                opened.made.add(base)
                stack.extend(groups.edges.get(base, ()))
            else:
                return None
        return opened

    def _is_small(self, base: Node, remade: Node) -> bool:
        return prod(base.shape) * SMALL_SHARE <= prod(remade.shape)

    def _outlives(self, base: Node, group: Group) -> bool:
        """Whether an input still has its old value when a kernel runs."""
        updates = (self.groups.owner.get(node) for node in self.assigns.get(base, ()))
        return not any(
            update is group or (update is not None and self.groups.reaches(update, group))
            for update in updates
        )

    def _is_cheap(self, node: Node, remade: dict[Group, _Remade]) -> bool:
        """Whether it is little work, of few values: more loads weigh less than memory."""
        return all(
            made.cost <= HIDDEN_COST and _full(node, made) <= FEW_LOADS for made in remade.values()
        )

    def _worth_it(self, node: Node, remade: dict[Group, _Remade], before: set[Node]) -> bool:
        """Whether it takes no longer if all kernels that load a value make it again.

        Args:
            node: the value.
            remade: what each of these kernels needs for it.
            before: the values that were stored with it.
        """
        saved = nbytes_of(node) * (1 + len(remade))
        saved -= sum(nbytes_of(narrow) for narrow in self.stored - before)
        operations = 0
        for group, made in remade.items():
            saved -= sum(nbytes_of(load) for load in made.loads - self.loads[group])
            cost = made._replace(made=made.made - self.made[group]).cost
            # Kernels but those of products wait for memory.
            operations += cost if group.kind in ALONE else max(0, cost - HIDDEN_COST)
        if self.stored - before:  # the arithmetic behind it leaves its own kernel
            operations -= self._spared(self.groups.owner[node], before)
        return saved >= self._moved_meanwhile(operations * prod(node.shape))

    def _spared(self, group: Group, before: set[Node]) -> int:
        """Operations for each element that a product's kernel did for values stored before."""
        if group.kind not in ALONE:
            return 0
        unused = self._behind(group, before) - self._behind(group, self.stored)
        return sum(node.op.cost for node in unused if node.op.kind == "elementwise")

    def _behind(self, group: Group, stored: set[Node]) -> set[Node]:
        """The members of a kernel that its stored values are made of."""
        stack = [node for node in group.members if node in stored]
        behind = set(stack)
        while stack:
            for edge in self.groups.edges[stack.pop()]:
                if edge.base not in behind and self.groups.owner.get(edge.base) is group:
                    behind.add(edge.base)
                    stack.append(edge.base)
        return behind


def _full(node: Node, remade: _Remade) -> int:
    """How many values of its size one is made of."""
    return sum(prod(load.shape) == prod(node.shape) for load in remade.loads)


def nbytes_of(node: Node) -> int:
    """The size of a value in memory."""
    return prod(node.shape) * node.dtype.itemsize
