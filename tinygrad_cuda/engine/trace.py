"""A trace: what is pending, written as a key that selects a cached plan.

Identity nodes vanish here. Numbers stand apart from structure, so that a plan can take them as
arguments.
"""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node, node_made
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.program import Argument, Number, Program, structure


class Trace:
    """The pending graph behind some roots.

    Attributes:
        singles: all nodes, sources first; realized ones are the inputs.
        shared: those of them that have no value of their own.
        records: the structure of each node that has a value; the trace's key.
        owners: the node of each value.
        value_numbers: the value number of each node (identities share their source's).
        inputs: realized nodes, by slot.
        numbers: every number among the attributes, in order.
        always: positions in `numbers` that are arguments from the start.
        assigns: value number of an assign -> value number of the input it would overwrite.
    """

    def __init__(self, roots: list[Node]) -> None:
        self.singles: list[Node] = []
        self.shared: list[Node] = []
        self.records: list[Any] = []
        self.owners: list[Node] = []
        self.value_numbers: dict[Node, int] = {}
        self.inputs: list[Node] = []
        self.numbers: list[Number] = []
        self.always: list[int] = []
        self.assigns: dict[int, int] = {}
        self._input_of: dict[int, int] = {}
        self._walk(roots)

    def _walk(self, roots: list[Node]) -> None:
        """What the roots' values need, sources first, up to what has a value already."""
        singles, records, owners = self.singles, self.records, self.owners
        values = self.value_numbers
        number_of = values.__getitem__
        custom, none = common.custom, NO_ATTRIBUTES
        numbers, always = self.numbers, self.always
        stack = roots[::-1]
        pop, push = stack.pop, stack.append
        while stack:
            node = pop()
            # Down to the first source that is not there yet, and back up by the stack.
            while node not in values:
                if node.storage is not None:
                    self._add_realized(node)
                    singles.append(node)
                    break
                op, sources = node.op, node.sources
                if op is custom:
                    # The others are there for its gradient alone.
                    sources = sources[: node.attributes["results"]]
                for source in sources:
                    if source not in values:
                        push(node)
                        node = source
                        break
                else:
                    kind = op.kind
                    if kind == "identity" or kind == "leaf":
                        self._add_special(node)
                    else:
                        # What most nodes are, without a call.
                        attributes = node.attributes
                        described = (
                            () if attributes is none
                            else structure(op, attributes, numbers, always)
                        )  # fmt: skip
                        values[node] = len(owners)
                        records.append((op, described, tuple(map(number_of, sources))))
                        owners.append(node)
                    singles.append(node)
                    break

    def _add_realized(self, node: Node) -> None:
        if type(node.storage) is tuple:
            # Its `output` nodes are the inputs.
            self.value_numbers[node] = -1
            self.shared.append(node)
        else:
            self._add_input(node, node.storage)

    def _add_special(self, node: Node) -> None:
        """A leaf, or an identity: most of these are their source's value."""
        values, op, sources = self.value_numbers, node.op, node.sources
        if op.kind == "leaf":
            attributes = structure(op, node.attributes, self.numbers, self.always)
            record: Any = (op, attributes, node.shape, node.dtype)
        elif op is common.assign:
            if sources[0].storage is None:
                values[node] = values[sources[1]]
                self.shared.append(node)
                return
            self.assigns[len(self.owners)] = values[sources[0]]
            record = (op, (), (values[sources[0]], values[sources[1]]))
        elif op is common.output:
            (source,), index = sources, node.attributes["index"]
            if source.storage is not None:
                self._add_input(node, source.storage[index])
                return
            if source.op is common.custom:
                values[node] = values[source.sources[index]]
                self.shared.append(node)
                return
            record = (op, ("index", index), (values[source],))
        else:
            values[node] = values[sources[0]]
            self.shared.append(node)
            return
        values[node] = len(self.owners)
        self.records.append(record)
        self.owners.append(node)

    def _add_input(self, node: Node, storage: Any) -> None:
        # Nodes that share a storage are one input.
        existing = self._input_of.get(id(storage))
        if existing is not None and self.owners[existing].outputs[0] == node.outputs[0]:
            self.value_numbers[node] = existing
            self.shared.append(node)
            return
        self.value_numbers[node] = self._input_of[id(storage)] = len(self.owners)
        self.records.append((common.buffer, node.shape, node.dtype))
        self.owners.append(node)
        self.inputs.append(node)

    def storages(self) -> list[Any]:
        """The storage of each input slot."""
        return [storage_of(node) for node in self.inputs]

    def program(
        self, device: Device, outputs: list[int], overwrites: dict[int, int], varying: set[int]
    ) -> Program:
        """The plan's own graph: fresh nodes, numbered inputs, numbers at `varying` as arguments."""
        builder = _TraceBuilder(varying)
        fresh: list[Node] = []
        inputs: list[Node] = []
        number_of = self.value_numbers.__getitem__
        slots = set(map(number_of, self.inputs))
        for value, owner in enumerate(self.owners):
            if value in slots:
                node = node_made(
                    common.buffer, (), {"slot": len(inputs)},
                    ((owner.shape, owner.dtype),), device, False, owner.site,
                )  # fmt: skip
                inputs.append(node)
            else:
                sources = tuple(map(fresh.__getitem__, map(number_of, owner.sources)))
                attributes = owner.attributes
                if attributes is not NO_ATTRIBUTES:
                    attributes = builder.attributes(owner)
                node = node_made(
                    owner.op, sources, attributes, owner.outputs, device, False, owner.site
                )
            fresh.append(node)
        return Program(
            device,
            tuple(map(fresh.__getitem__, outputs)),
            tuple(inputs),
            overwrites,
        )


class _TraceBuilder:
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
        result: dict[str, Any] = {}
        for name, value in node.attributes.items():
            if name not in op.literals and name not in op.arguments:
                result[name] = value
            elif type(value) is tuple:
                result[name] = tuple([self._number(part) for part in value])
            else:
                result[name] = self._number(value)
        return result


def storage_of(node: Node) -> Any:
    """The storage of a realized node, or of one result of a realized node with several."""
    if node.storage is not None:
        return node.storage
    return node.sources[0].storage[node.attributes["index"]]
