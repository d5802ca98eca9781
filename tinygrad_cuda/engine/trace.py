"""A trace: what is pending, written as a key that says whether a known plan fits.

Identity nodes vanish here. Numbers stand apart from structure, so that a plan can take them as
arguments.
"""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.backend.base import Argument, Number, Program
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node, Op
from tinygrad_cuda.graph.ops import common


class Trace:
    """The pending graph behind some roots.

    Attributes:
        nodes: in order, sources first; realized ones are the inputs.
        records: per value the structure of its node; the key of the trace.
        places: the value number of each node (identities share their source's).
        inputs: realized nodes, by slot.
        numbers: every number among the attributes, in order.
        always: positions in `numbers` that are arguments from the start.
        assigns: value number of an assign -> value number of the input it would overwrite.
    """

    def __init__(self, roots: list[Node]) -> None:
        self.nodes: list[Node] = []
        self.records: list[Any] = []
        self.owners: list[Node] = []
        self.places: dict[Node, int] = {}
        self.inputs: list[Node] = []
        self.numbers: list[Number] = []
        self.always: list[int] = []
        self.assigns: dict[int, int] = {}
        self._input_of: dict[int, int] = {}
        self._walk(roots)

    def _walk(self, roots: list[Node]) -> None:
        """What the roots' values need, sources first, up to what has a value already."""
        nodes, records, owners, places = self.nodes, self.records, self.owners, self.places
        place_of = places.__getitem__
        custom, none = common.custom, NO_ATTRIBUTES
        stack = roots[::-1]
        while stack:
            node = stack[-1]
            if node in places:
                stack.pop()
                continue
            op = node.op
            if node.storage is not None:
                self._add_realized(node)
            else:
                sources = node.sources
                if op is custom:
                    # The others are there for its gradient alone.
                    sources = sources[: node.attributes["results"]]
                for source in sources:
                    if source not in places:
                        stack += [source for source in reversed(sources) if source not in places]
                        break
                else:
                    kind = op.kind
                    if kind == "identity" or kind == "leaf":
                        self._add_special(node)
                    else:
                        # What most nodes are, without a call.
                        attributes = node.attributes
                        structure = () if attributes is none else self._structure(op, attributes)
                        places[node] = len(records)
                        records.append((op, structure, tuple(map(place_of, sources))))
                        owners.append(node)
                    nodes.append(node)
                    stack.pop()
                continue
            nodes.append(node)
            stack.pop()

    def _add_realized(self, node: Node) -> None:
        if type(node.storage) is tuple:
            # Its `output` nodes are the inputs.
            self.places[node] = -1
        else:
            self._add_input(node, node.storage)

    def _add_special(self, node: Node) -> None:
        """A leaf, or an identity: most of these are their source's value."""
        places, op, sources = self.places, node.op, node.sources
        if op.kind == "leaf":
            structure = self._structure(op, node.attributes)
            record: Any = (op, structure, node.shape, node.dtype)
        elif op is common.assign:
            if sources[0].storage is None:
                places[node] = places[sources[1]]
                return
            self.assigns[len(self.records)] = places[sources[0]]
            record = (op, (), (places[sources[0]], places[sources[1]]))
        elif op is common.output:
            (source,), index = sources, node.attributes["index"]
            if source.storage is not None:
                self._add_input(node, source.storage[index])
                return
            if source.op is common.custom:
                places[node] = places[source.sources[index]]
                return
            record = (op, ("index", index), (places[source],))
        else:
            places[node] = places[sources[0]]
            return
        places[node] = len(self.records)
        self.records.append(record)
        self.owners.append(node)

    def _add_input(self, node: Node, storage: Any) -> None:
        # Nodes that share a storage are one input.
        known = self._input_of.get(id(storage))
        if known is not None and self.records[known][1:] == (node.shape, node.dtype):
            self.places[node] = known
            return
        self.places[node] = self._input_of[id(storage)] = len(self.records)
        self.records.append((common.buffer, node.shape, node.dtype))
        self.owners.append(node)
        self.inputs.append(node)

    def _structure(self, op: Op, attributes: dict[str, Any]) -> Any:
        """The attributes that are structure; numbers are set apart, in the order of the names.

        The names are in the key, since calls may give them in any order.
        """
        literals, arguments = op.literals, op.arguments
        if not literals and not arguments:
            return tuple(attributes.items())
        kept: list[Any] = []
        for name, value in attributes.items():
            kept.append(name)
            if name in literals:
                if type(value) is tuple:
                    self.numbers.extend(value)
                    kept.append(len(value))
                else:
                    self.numbers.append(value)
            elif name in arguments:
                self.always.append(len(self.numbers))
                self.numbers.append(value)
            else:
                kept.append(value)
        return tuple(kept)

    def storages(self) -> list[Any]:
        """The storage of each input slot."""
        return [storage_of(node) for node in self.inputs]

    def program(
        self, device: Device, outputs: list[int], overwrites: dict[int, int], varying: set[int]
    ) -> Program:
        """The plan's own graph: fresh nodes, numbered inputs, numbers at `varying` as arguments."""
        builder = _Builder(varying)
        fresh: list[Node] = []
        inputs: list[Node] = []
        for record, owner in zip(self.records, self.owners):
            if record[0] is common.buffer:
                node = Node(
                    common.buffer, (), {"slot": len(inputs)},
                    ((owner.shape, owner.dtype),), device, False, owner.site,
                )  # fmt: skip
                inputs.append(node)
            else:
                sources = () if owner.op.kind == "leaf" else tuple(fresh[i] for i in record[2])
                node = Node(
                    owner.op, sources, builder.attributes(owner),
                    owner.outputs, device, False, owner.site,
                )  # fmt: skip
            fresh.append(node)
        return Program(
            device,
            tuple(fresh[place] for place in outputs),
            tuple(inputs),
            overwrites,
            builder.count,
        )


class _Builder:
    """Turns the numbers at `varying` positions into arguments, in the order of the trace."""

    def __init__(self, varying: set[int]) -> None:
        self.varying = varying
        self.position = 0
        self.count = 0

    def _number(self, value: Number) -> Any:
        position = self.position
        self.position += 1
        if position not in self.varying:
            return value
        self.count += 1
        return Argument(self.count - 1)

    def attributes(self, node: Node) -> dict[str, Any]:
        op = node.op
        if not op.literals and not op.arguments:
            return node.attributes
        found: dict[str, Any] = {}
        for name, value in node.attributes.items():
            if name not in op.literals and name not in op.arguments:
                found[name] = value
            elif type(value) is tuple:
                found[name] = tuple([self._number(item) for item in value])
            else:
                found[name] = self._number(value)
        return found


def storage_of(node: Node) -> Any:
    """The storage of a realized node, or of one result of a realized node with several."""
    if node.storage is not None:
        return node.storage
    return node.sources[0].storage[node.attributes["index"]]
