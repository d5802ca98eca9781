"""A piece of graph as a flat list, recorded again for other sources without any rule or check.

It holds no node: only ops, attributes, outputs, and where each node's sources are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any
from weakref import WeakValueDictionary, ref

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import RawSite
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node, Op, Outputs, ResultNode
from tinygrad_cuda.graph.ops import common, indexing
from tinygrad_cuda.graph.order import topological

Pick = Callable[[list[Node]], tuple[Node, ...]]
# Op, sources, attributes, outputs, whether it has history, and which of the given lines is its.
Step = tuple[Op, Pick, dict[str, Any], Outputs, bool, int]


class Unfit(Exception):
    """A graph that cannot be recorded from a list: it depends on more than its inputs."""


class SubgraphTemplate:
    """What computes some nodes from others.

    Args:
        inputs: where it begins; each a node of its own.
        results: what it gives; may be among the inputs.
        line: which of the lines given to a call a node carries.

    Attributes:
        length: how many nodes it records.
        checks: the places, among all nodes, of index checks, with their codes: each call has a
            code of its own.
        heads: of each result what a node has besides its sources; None where a result cannot be
            there before the others, since some of them read it, or it is an input.

    Raises:
        Unfit: it contains a value, a function, or a leaf that arrives from elsewhere.
    """

    __slots__ = (
        "steps", "chosen", "length", "checks", "kind", "heads", "_ends", "_inputs", "_inner",
        "_ruled",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Sequence[Node],
        results: Sequence[Node],
        line: Callable[[Node], int] = lambda node: 0,
    ) -> None:
        places = {node: place for place, node in enumerate(inputs)}
        self.steps: list[Step] = []
        self.checks: dict[int, int] = {}
        made: list[Node] = []
        for node in topological(results, stop=places.__contains__):
            if node in places:
                continue
            op = node.op
            known = op is not common.custom or isinstance(
                node.attributes["function"], common.GradientRule
            )
            if op in _FOREIGN or not known or node.storage is not None or node.spent is not None:
                raise Unfit(op.name)
            if op in indexing.CHECKS:
                self.checks[len(places)] = node.attributes["code"]
            elif op.arguments:
                raise Unfit(op.name)
            pick = picking([places[source] for source in node.sources])
            places[node] = len(places)
            made.append(node)
            self.steps.append(
                (op, pick, node.attributes, node.outputs, node.requires_grad, line(node))
            )
        self.chosen = [places[node] for node in results]
        self.length = len(made)
        read = {source for node in made for source in node.sources}
        ends = [node for node in made if node not in read]
        needed = {*ends, *results}
        for node in reversed(made):
            if node in needed:
                needed.update(_value_sources(node))
        inner = [node for node in made if node in needed and node in read]
        self._ends = [places[node] for node in ends]
        self._inner = picking([places[node] for node in inner])
        self.kind, used = kind_of(inner) if len(inner) >= SMALLEST else (None, [])
        self._inputs = picking([places[node] for node in used])
        alone = len(set(results)) == len(results) and set(results) == set(ends)
        self.heads = None
        if alone:
            self.heads = [
                (n.op, n.attributes, n.outputs, *n.outputs[0], n.requires_grad, line(n))
                for n in results
            ]
        self._ruled = tuple(dict.fromkeys(node.op for node in made if node.requires_grad))

    @property
    def template(self) -> SubgraphTemplate:
        """Itself, as what a call is of."""
        return self

    def rules(self) -> tuple[Any, ...]:
        """The gradients of its ops: part of what says how a backward pass through it looks."""
        return tuple(map(_gradient_of, self._ruled))

    def expanded(self, call: Deferred) -> list[Node]:
        """All nodes of a call that waits."""
        return self([*call.inputs], call.device, call.lines)

    def __call__(
        self, inputs: list[Node], device: Device, lines: Sequence[RawSite | None]
    ) -> list[Node]:
        """Records all its nodes for other inputs; they come after these."""
        nodes = inputs.copy()
        add, new = nodes.append, object.__new__
        for op, pick, attributes, outputs, needs, line in self.steps:
            # What Node does, without the call: half the time of a step is spent here.
            node: Node = new(Node)
            node.op = op
            node.sources = pick(nodes)
            node.attributes = attributes
            node.outputs = outputs
            node.shape, node.dtype = outputs[0]
            node.device = device
            node.requires_grad = needs
            node.site = lines[line]
            node.storage = node.spent = node.piece = None
            add(node)
        if self.kind is not None:
            piece = SharedSubgraph(self.kind, self._inputs(nodes), self._inner(nodes))
            for place in self._ends:
                nodes[place].piece = piece
        return nodes


_gradient_of = attrgetter("gradient")
# Values, and cells' own nodes.
_FOREIGN = frozenset((common.buffer, common.variable))


def picking(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that takes the items at these places out of a sequence, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda items: ()
    (place,) = places
    return lambda items: (items[place],)


def _value_sources(node: Node) -> tuple[Node, ...]:
    """The sources of a value; a custom node has others for its gradient alone."""
    return node.sources[: node.attributes["results"]] if node.op is common.custom else node.sources


# Calls that wait ----------------------------------------------------------------------------------


class Deferred:
    """A call of a template whose nodes are recorded only when somebody looks at them.

    Its results are there, each a node with all but its sources; they refer to the call, and it to
    them weakly, so that there is no cycle. Who reads a result's sources has all nodes recorded, and
    what is found then is what would have been recorded at once. A plan that is known does not look.

    Args:
        origin: a `Template`, or what else has a `template` and gives all its nodes by `expanded`.
        inputs: the nodes from which it begins.
        device: where.
        lines: those that its nodes carry.
        calls: other calls whose inner nodes it reads.
        codes: of index checks, with their places.

    Attributes:
        ends: the results, weakly.
        used: the backward pass that used its history: its line, and the places it has passed.
    """

    __slots__ = (
        "origin", "inputs", "device", "lines", "calls", "codes", "ends", "used", "_nodes",
    )  # fmt: skip

    def __init__(
        self,
        origin: Any,
        inputs: tuple[Node, ...],
        device: Device,
        lines: Sequence[RawSite | None],
        calls: tuple[Deferred, ...] = (),
        codes: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.origin = origin
        self.inputs = inputs
        self.device = device
        self.lines = lines
        self.calls = calls
        self.codes = codes
        self.ends: list[ref[Node]] = []
        self.used: tuple[RawSite | None, Sequence[int]] | None = None
        self._nodes: list[Node] | None = None

    def results(self, heads: Sequence[Any], lines: Sequence[RawSite | None]) -> list[Node]:
        """The results, in the order of the template's `heads`, with their lines."""
        found: list[Node] = []
        add, new, device = found.append, object.__new__, self.device
        for op, attributes, outputs, shape, dtype, needs, line in heads:
            node: Node = new(ResultNode)
            node.op = op
            node.attributes = attributes
            node.outputs = outputs
            node.shape, node.dtype = shape, dtype
            node.device = device
            node.requires_grad = needs
            node.site = lines[line]
            node.storage = node.spent = None
            node.piece = self
            add(node)
        self.ends = list(map(ref, found))
        return found

    def expand(self) -> list[Node]:
        """Records its nodes, once: the inputs first, then those of the template.

        They stay as long as the call does, since each call that reads them asks by itself.
        """
        if self._nodes is not None:
            return self._nodes
        nodes: list[Node] = self.origin.expanded(self)
        for place, code in self.codes:
            node = nodes[place]
            node.attributes = {**node.attributes, "code": code}
        if self.used is not None:
            line, places = self.used
            for place in places:
                common.spend(nodes[place], line)
        for place, reference in zip(self.origin.template.chosen, self.ends):
            end = reference()
            if end is not None:
                if end.storage is None:
                    made = nodes[place]
                    end.sources, end.attributes = made.sources, made.attributes
                    end.piece = made.piece
                nodes[place] = end
        self._nodes = nodes
        self.inputs = self.calls = ()
        return nodes


def waiting(
    template: SubgraphTemplate,
    head: Any,
    inputs: tuple[Node, ...],
    device: Device,
    site: RawSite | None,
    codes: Sequence[tuple[int, int]] = (),
) -> Node:
    """The result, with the template's only head, of a call that waits: all that it costs."""
    call: Deferred = _new(Deferred)
    call.origin = template
    call.inputs = inputs
    call.device = device
    call.lines = (site,)
    call.calls = ()
    call.codes = codes
    call.used = call._nodes = None
    node: Node = ResultNode()
    node.op, node.attributes, node.outputs, node.shape, node.dtype, node.requires_grad, _ = head
    node.device = device
    node.site = site
    node.storage = node.spent = None
    node.piece = call
    call.ends = [ref(node)]
    return node


_new = object.__new__


# Pieces -------------------------------------------------------------------------------------------

# Fewer nodes are traced one by one.
SMALLEST = 3


class SharedSubgraph:
    """What a template has recorded but for its ends, which refer to it: traced as one.

    The ends, which nothing else in it reads, are not part of it, so that it is in no cycle.

    Args:
        kind: its structure.
        inputs: what its values are computed from.
        nodes: all but the ends, sources first.
    """

    __slots__ = ("kind", "inputs", "nodes")

    def __init__(self, kind: Kind, inputs: tuple[Node, ...], nodes: tuple[Node, ...]) -> None:
        self.kind = kind
        self.inputs = inputs
        self.nodes = nodes

    def dissolve(self) -> None:
        """Lets go of its nodes, which are single ones from now on."""
        self.inputs = self.nodes = ()


class Kind:
    """The structure of pieces; equal ones are one object.

    Attributes:
        values: of each node: its number among the piece's values, or ``~k`` for input k's value.
        own: the nodes that have a value of their own.
        numbers: the numbers among the attributes, in order.
        codes: positions in `numbers` of the codes of checks, with their nodes.
        several: inputs of which single results are read.
        held: how often a trace and the other nodes of the piece refer to each node.
        read: the inputs, each as often as nodes of the piece refer to it.
        customs: nodes that refer to more than their values need.
    """

    __slots__ = (
        "values", "own", "numbers", "codes", "several", "held", "read", "customs", "__weakref__",
    )  # fmt: skip

    def __init__(self) -> None:
        self.values: list[int] = []
        self.own: list[int] = []
        self.numbers: list[Any] = []
        self.codes: list[tuple[int, int]] = []
        self.several: list[int] = []
        self.held: list[int] = []
        self.read: list[int] = []
        self.customs: list[int] = []


_kinds: WeakValueDictionary[Any, Kind] = WeakValueDictionary()


def kind_of(nodes: list[Node]) -> tuple[Kind | None, list[Node]]:
    """The structure of nodes that are given sources first, and what they are computed from.

    None where a trace would not take them as they are.
    """
    kind = Kind()
    inputs: dict[Node, int] = {}
    local: dict[Node, int] = {}
    content: list[Any] = []

    at = {node: position for position, node in enumerate(nodes)}

    def value(source: Node) -> int:
        found = local.get(source)
        if found is not None:
            kind.held[at[source]] += 1
            return found
        place = inputs.setdefault(source, len(inputs))
        kind.read.append(place)
        return ~place

    for position, node in enumerate(nodes):
        op, sources = node.op, node.sources
        if op is common.output and sources[0].op is common.custom:
            return None, []
        if op is common.custom or op is common.detach:
            local[node] = value(sources[0])
            kind.held.append(1)
            if len(sources) > 1:
                kind.customs.append(position)
        else:
            refs = tuple([value(source) for source in sources])
            if op is common.output and refs[0] < 0:
                kind.several.append(~refs[0])
            if op in indexing.CHECKS:
                kind.codes.append((len(kind.numbers), position))
            leaf = node.outputs if op.kind == "leaf" else None
            content.append((op, structure(op, node.attributes, kind.numbers, []), refs, leaf))
            local[node] = len(kind.own)
            kind.own.append(position)
            kind.held.append(2)
        kind.values.append(local[node])
    for place, _ in kind.codes:
        kind.numbers[place] = 0  # each piece has its own
    # Numbers as text: a zero and its negative are two.
    references = tuple(kind.held), tuple(kind.read), tuple(kind.customs)
    key = (tuple(content), tuple(kind.values), references, repr(kind.numbers))
    try:
        return _kinds.setdefault(key, kind), list(inputs)
    except TypeError:
        return None, []


def structure(
    op: Op, attributes: dict[str, Any], numbers: list[Any], always: list[int]
) -> tuple[Any, ...]:
    """The attributes that are structure; numbers are set apart, in the order of the names.

    The names are in the key, since calls may give them in any order.

    Args:
        op, attributes: of a node.
        numbers: receives the numbers.
        always: receives the positions of those that are arguments from the start.
    """
    if attributes is NO_ATTRIBUTES:
        return ()
    literals, arguments = op.literals, op.arguments
    if not literals and not arguments:
        return tuple(attributes.items())
    kept: list[Any] = []
    for name, value in attributes.items():
        kept.append(name)
        if name in literals:
            if type(value) is tuple:
                numbers.extend(value)
                kept.append(len(value))
            else:
                numbers.append(value)
        elif name in arguments:
            always.append(len(numbers))
            numbers.append(value)
        else:
            kept.append(value)
    return tuple(kept)
