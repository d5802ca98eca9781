"""A pending graph that looks as an earlier one did, found by walking over it as it was then.

Nothing is looked up: each step says where a node was and of what call it was the result.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from tinygrad_cuda.backend.base import Number
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.template import Deferred, picking, structure

_sources_of, _storage_of = attrgetter("sources"), attrgetter("storage")
_outputs_of = attrgetter("outputs")


class Found:
    """The pending graph behind some roots, a call that waits being one thing in it.

    Attributes:
        inputs: nodes that have a value, each once.
        slots: of each input the number of its storage.
        storages: each once; nothing else here refers to them.
        pending: the other nodes, sources first.
        calls: those that wait, with how many of their results are alive.
        numbers: of single nodes.
        codes: of index checks inside of calls.
    """

    __slots__ = ("inputs", "slots", "storages", "pending", "calls", "numbers", "codes")

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.slots: list[int] = []
        self.storages: list[Any] = []
        self.pending: list[Node] = []
        self.calls: dict[Deferred, int] = {}
        self.numbers: list[Number] = []
        self.codes: list[Number] = []


def read_by(node: Node) -> tuple[Node, ...]:
    """What a pending node, or the call that it is a result of, reads for its value."""
    call = node.piece
    if call is not None:
        inputs: tuple[Node, ...] = call.inputs
        return inputs
    # The others are there for its gradient alone.
    return node.sources[: node.attributes["results"]] if node.op is common.custom else node.sources


class Path:
    """How to walk over a graph, from what is wanted of it to its inputs.

    Args:
        found: the graph.
        wanted: its roots.
    """

    def __init__(self, found: Found, wanted: list[Node]) -> None:
        pending, inputs = found.pending, found.inputs
        places = {node: place for place, node in enumerate([*pending, *inputs])}
        met, self.roots = [*wanted], len(wanted)
        where: dict[Node, int] = {}
        # Where a node or a result of a call is met first, the op or origin, how many nodes have
        # been met after it, and which of a call's several results are gone.
        self.steps: list[tuple[int, Any, int, list[bool] | None]] = []
        for place, node in enumerate(met):
            where.setdefault(node, place)
        done: set[Deferred] = set()
        for node in reversed(pending):
            call: Deferred | None = node.piece
            if call in done:
                continue
            at, gone = where.get(node), None
            if call is not None:
                done.add(call)
                ends = [reference() for reference in call.ends]
                at = min(where[end] for end in ends if end is not None and end in where)
                gone = [end is None for end in ends] if len(ends) > 1 else None
            assert at is not None
            for source in read_by(node):
                where.setdefault(source, len(met))
                met.append(source)
            self.steps.append((at, node.op if call is None else call.origin, len(met), gone))
        self.firsts = picking([where[node] for node in inputs])
        self.everything = picking([places[node] for node in met])
        self.total = len(places)
        self.slots = found.slots
        self.storages = picking([self.slots.index(slot) for slot in range(len(found.storages))])
        singles = [k for k, node in enumerate(pending) if node.piece is None]
        self.singles = picking(singles)
        self.outputs = [*map(_outputs_of, [*self.singles(pending), *inputs])]
        plain = [k for k in singles if pending[k].attributes is NO_ATTRIBUTES]
        self.plain = picking(plain)
        self.structured = [
            (k, structure(node.op, node.attributes, [], []), _only_number(node))
            for k in singles
            if (node := pending[k]).attributes is not NO_ATTRIBUTES and not _is_identity(node)
        ]

    def walk(self, wanted: list[Node]) -> Found | None:
        """The graph behind `wanted`, if it is as the other one was."""
        found = Found()
        pending, calls, custom = found.pending, found.calls, common.custom
        met = wanted.copy()
        if len(met) != self.roots:
            return None
        for at, origin, length, gone in self.steps:
            node = met[at]
            piece = node.piece
            if piece is None:
                if node.op is not origin or node.storage is not None:
                    return None
                met += node.sources if origin is not custom else read_by(node)
                pending.append(node)
            elif type(piece) is Deferred and piece.origin is origin:
                met += piece.inputs
                if gone is None:
                    pending.append(node)
                    calls[piece] = 1
                else:
                    ends = [reference() for reference in piece.ends]
                    if [end is None for end in ends] != gone:
                        return None
                    alive = [end for end in reversed(ends) if end is not None]
                    pending += alive
                    calls[piece] = len(alive)
            else:
                return None
            if len(met) != length:
                return None
        pending.reverse()
        inputs = found.inputs
        inputs += self.firsts(met)
        everything = pending + inputs
        # Each where it was, and no two one.
        if tuple(met) != self.everything(everything) or len(set(everything)) != self.total:
            return None
        if not self._same_inputs(found) or not self._same_singles(found):
            return None
        found.codes = [code for call in reversed(calls) for _, code in call.codes]
        return found

    def _same_inputs(self, found: Found) -> bool:
        storages = list(map(_storage_of, found.inputs))
        numbers: dict[int, int] = {}
        found.slots = [numbers.setdefault(id(storage), len(numbers)) for storage in storages]
        found.storages = [*self.storages(storages)]
        same = found.slots == self.slots and id(None) not in numbers
        return same and not any(map(_sources_of, found.inputs))

    def _same_singles(self, found: Found) -> bool:
        """Whether the nodes by themselves are of the same structure; notes their numbers."""
        pending, numbers = found.pending, found.numbers
        outputs = [*map(_outputs_of, self.singles(pending)), *map(_outputs_of, found.inputs)]
        if outputs != self.outputs:
            return False
        for node in self.plain(pending):
            if node.attributes is not NO_ATTRIBUTES:
                return False
        for place, kept, name in self.structured:
            node = pending[place]
            attributes = node.attributes
            if name is not None:
                value = attributes.get(name)
                if value is None or len(attributes) != 1 or type(value) is tuple:
                    return False
                numbers.append(value)
            elif structure(node.op, attributes, numbers, []) != kept:
                return False
        return True


def _is_identity(node: Node) -> bool:
    """Whether what it refers to besides its source is for gradients."""
    return node.op.kind == "identity" and node.op is not common.output


def _only_number(node: Node) -> str | None:
    """The name of its attribute, if that is one number and there is no other."""
    op, attributes = node.op, node.attributes
    (name, *others), value = attributes, next(iter(attributes.values()))
    number = (name in op.literals or name in op.arguments) and type(value) is not tuple
    return name if number and not others else None
