"""A pending graph that looks as an earlier one did, recognised by walking over it as it was then.

The walk is a function of its own for each such graph, written once as text: nothing in it is
looked up and nothing repeats. Each line says where a node was and of which call it was a result.
Without it a plain step of mlp_64 takes 24 % more of the host's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.program import Number, structure
from tinygrad_cuda.replay.generated_functions import guard_from, refusal
from tinygrad_cuda.replay.subgraph_template import Deferred


@dataclass(slots=True, eq=False)
class GuardMatch:
    """The pending graph behind some roots, a call that waits being one thing in it.

    Attributes:
        inputs: nodes that have a value, each once.
        slots: of each input the number of its storage.
        storages: each once; nothing else here refers to them.
        pending: the other nodes, sources first.
        calls: those that wait.
        references: to each of them by this, its results and other calls, as they are counted.
        numbers: of single nodes.
        codes: of index checks inside of calls.
    """

    inputs: list[Node]
    slots: list[int]
    storages: list[Any]
    pending: list[Node]
    calls: list[Deferred]
    references: list[int]
    numbers: list[Number]
    codes: list[Number]


Guard = Callable[[list[Node]], GuardMatch | None]  # given roots


def guard_over(match: GuardMatch, wanted: list[Node]) -> Guard:
    """A function that gives the graph behind other roots, if it is as the one behind these.

    Args:
        match: the graph.
        wanted: its roots, each once.
    """
    return _GuardWriter(match).written(wanted)


class _GuardWriter:
    """Writes the function: a node is ``n7``, a call ``c2``, a storage ``s3``, a constant ``k9``.

    Nodes have numbers in the order of the walk; in any other graph of this structure
    one that comes again is the same one, and a new one is none of those before.
    """

    def __init__(self, match: GuardMatch) -> None:
        self.match = match
        self.lines: list[str] = []
        self.constants: list[Any] = []
        self.names: dict[Node, str] = {}
        self.calls: dict[Deferred, str] = {}
        self.numbers: dict[Node, str] = {}
        self.codes: dict[Deferred, list[str]] = {}

    def know(self, thing: Any) -> str:
        """The name of something that every such graph has in common."""
        self.constants.append(thing)
        return f"k{len(self.constants) - 1}"

    def refuse(self, *conditions: str) -> None:
        """A graph for which one of these is true is another one."""
        if conditions:
            self.lines.append(refusal(*conditions))

    def take(self, nodes: list[Node] | tuple[Node, ...], source: str) -> None:
        """Gives names to nodes that are reached together."""
        targets: list[str] = []
        again: list[tuple[str, str]] = []
        for node in nodes:
            if node in self.names:
                again.append((f"again{len(again)}", self.names[node]))
                targets.append(again[-1][0])
            else:
                self.names[node] = f"n{len(self.names)}"
                targets.append(self.names[node])
        if targets:
            self.lines.append(f"{', '.join(targets)}, = {source}")
        else:
            self.refuse(source)
        self.refuse(*[f"{name} is not {other}" for name, other in again])

    def written(self, wanted: list[Node]) -> Guard:
        """The function, whose body goes from the roots to the inputs, then compares all of them."""
        match = self.match
        self.take(wanted, "wanted")
        for node in reversed(match.pending):
            call: Deferred | None = node.piece
            if call is None:
                self.single(node)
            elif call not in self.calls:
                self.call(call)
        for call, name in self.calls.items():
            if call.calls:
                others = " ".join(f"{self.calls[other]}," for other in call.calls)
                self.refuse(f"{name}.calls != ({others})")
        storages: dict[int, str] = {}
        for node, slot in zip(match.inputs, match.slots):
            self.input(node, slot, storages)
        self.apart(match)
        ordered = [storages[slot] for slot in range(len(storages))]
        identities = ", ".join(f"id({name})" for name in ordered)
        self.refuse(*[f"len({{{identities}}}) != {len(ordered)}"] * bool(ordered))
        calls = ", ".join(self.calls[call] for call in match.calls)
        self.lines.append(
            f"return GuardMatch({_listed(self.names, match.inputs)}, {self.know(match.slots)}, "
            f"[{', '.join(ordered)}], {_listed(self.names, match.pending)}, "
            f"[{calls}], {self.know(match.references)}, "
            f"[{', '.join(self.numbers[n] for n in match.pending if n in self.numbers)}], "
            f"[{', '.join(name for call in match.calls for name in self.codes[call])}])"
        )
        names: dict[str, Any] = {
            "GuardMatch": GuardMatch, "NO_ATTRIBUTES": NO_ATTRIBUTES, "structure": structure,
        }  # fmt: skip
        names |= {f"k{number}": thing for number, thing in enumerate(self.constants)}
        walk: Guard = guard_from("walk(wanted)", self.lines, names)
        return walk

    def apart(self, match: GuardMatch) -> None:
        """Nodes that were several may not be one now, where nothing said of them excludes that.

        Those of other ops, results of other calls or at other indices of one, and those with other
        storages are others.
        """
        groups: dict[Any, list[str]] = {}
        for node in match.pending:
            if node.piece is None:
                groups.setdefault(node.op, []).append(self.names[node])
        for call, name in self.calls.items():
            groups.setdefault(call.origin, []).append(name)
        for node, slot in zip(match.inputs, match.slots):
            groups.setdefault(slot, []).append(self.names[node])
        for names in groups.values():
            if len(names) > 1:
                self.refuse(f"len({{{', '.join(names)}}}) != {len(names)}")

    def call(self, call: Deferred) -> None:
        """A call by one of its results that has a name, and its other results."""
        ends = [end for reference in call.ends if (end := reference()) is not None]
        named = next(self.names[end] for end in ends if end in self.names)
        name = self.calls[call] = f"c{len(self.calls)}"
        self.lines.append(f"{name} = {named}.piece")
        # What is no call has no origin.
        self.refuse(f"{name}.origin is not {self.know(call.origin)}")
        del ends
        if len(call.ends) > 1:
            self.ends(call, name)
        self.take(call.inputs, f"{name}.inputs")
        codes = self.codes[call] = [f"{name}_{k}" for k in range(len(call.codes))]
        if codes:
            self.lines.append(" ".join(f"(_, {code})," for code in codes) + f" = {name}.codes")

    def ends(self, call: Deferred, name: str) -> None:
        """Which results are gone, and what the others are."""
        references = [f"{name}_end{k}" for k in range(len(call.ends))]
        self.lines.append(f"{', '.join(references)}, = {name}.ends")
        for text, reference in zip(references, call.ends):
            end = reference()
            if end is None:
                self.refuse(f"{text}() is not None")
            elif end in self.names:
                self.refuse(f"{text}() is not {self.names[end]}")
            else:
                new = self.names[end] = f"n{len(self.names)}"
                self.lines.append(f"{new} = {text}()")
                self.refuse(f"{new} is None")

    def single(self, node: Node) -> None:
        """A node that is recorded by itself."""
        name, op, attributes = self.names[node], node.op, node.attributes
        conditions = [
            f"{name}.piece is not None",
            f"{name}.op is not {self.know(op)}",
            f"{name}.storage is not None",
        ]
        if attributes is NO_ATTRIBUTES:
            conditions.append(f"{name}.attributes is not NO_ATTRIBUTES")
        if attributes is not NO_ATTRIBUTES or op.kind != "elementwise":
            # Otherwise they follow from those of its sources.
            conditions.append(self.differ(node))
        self.refuse(*conditions)
        # Of the others, what an identity refers to besides its source is for gradients.
        if attributes is not NO_ATTRIBUTES and (op.kind != "identity" or op is common.output):
            self.attributes(node, name)
        if op is common.custom:  # its other sources are there for its gradient alone
            count = attributes["results"]
            self.take(node.sources[:count], f"{name}.sources[:{name}.attributes['results']]")
        elif op.kind != "leaf":
            self.take(node.sources, f"{name}.sources")

    def attributes(self, node: Node, name: str) -> None:
        """What is structure must be the same; numbers are noted."""
        numbers: list[Number] = []
        described = structure(node.op, node.attributes, numbers, [])
        if numbers and len(node.attributes) == 1 and len(described) == 1:
            # Mostly one number and nothing else: a call for each is a third of mlp_64's lookup.
            (key,) = node.attributes
            self.lines.append(f"{name}_number = {name}.attributes[{key!r}]")
            self.refuse(f"type({name}_number) is tuple", f"len({name}.attributes) != 1")
            self.numbers[node] = f"{name}_number"
            return
        self.lines.append(f"{name}_numbers = []")
        arguments = f"{name}.op, {name}.attributes, {name}_numbers, []"
        self.refuse(f"structure({arguments}) != {self.know(described)}")
        if numbers:
            self.numbers[node] = f"*{name}_numbers"

    def input(self, node: Node, slot: int, storages: dict[int, str]) -> None:
        """A node that has a value, and nothing before it."""
        name = self.names[node]
        if slot in storages:
            self.refuse(f"{name}.storage is not {storages[slot]}")
        else:
            storage = storages[slot] = f"s{slot}"
            self.lines.append(f"{storage} = {name}.storage")
            self.refuse(f"{storage} is None")
        self.refuse(f"{name}.sources", self.differ(node))

    def differ(self, node: Node) -> str:
        """Whether shape or dtype are others; mostly they are the same object."""
        outputs, recorded = f"{self.names[node]}.outputs", self.know(node.outputs)
        return f"{outputs} is not {recorded} and {outputs} != {recorded}"


def _listed(names: dict[Node, str], nodes: list[Node]) -> str:
    return f"[{', '.join([names[node] for node in nodes])}]"
