"""Results of attention lie in memory as their readers see them.

Heads stand beside each other where they are read so, and gradients that are joined have one buffer:
each kernel stores its part. Unlike the rules of the table this must know every reader of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import NamedTuple

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape, contiguous_strides, reshape_strides
from tinygrad_cuda.graph.node import Node, node_made, topological, with_sources
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.attention import ROWS, Placement, attention_backward
from tinygrad_cuda.graph.ops.common import output
from tinygrad_cuda.graph.rewrite.products import readers_of

RUN = 8  # elements that must stay neighbours in memory: they are stored together
MOVES = (mv.reshape, mv.permute)  # each element has one position, and all have one


class StoreTarget(NamedTuple):
    """The value in which a result is stored.

    Attributes:
        end: the value of which it is a part, or which it is.
        offset: of its first element in `end`.
        strides: from element to element along its own axes.
        inverse: axes in which its other readers see `end`; none without such readers.
    """

    end: Node
    offset: int
    strides: Shape
    inverse: Shape = ()


Targets = dict[Node, dict[int, StoreTarget]]


def arrange_attention(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The same values; results of attention in the order, and the buffer, of their readers."""
    targets = _TargetSearch(outputs).targets
    return _rewritten(outputs, targets) if targets else tuple(outputs)


class _TargetSearch:
    """Looks at the readers of each result.

    Attributes:
        targets: of each row, by the numbers of its results.
    """

    def __init__(self, outputs: Sequence[Node]) -> None:
        order = topological(outputs)
        self.wanted, self.readers = set(outputs), readers_of(order)
        self.targets: Targets = {}
        for node in order:
            if node.op is ew.add:
                self._join(node)
        for node in order:
            if node.op is output and node.sources[0].op in ROWS:
                self._store_permuted(node)

    def _reader(self, node: Node) -> Node | None:
        """The one reader of a value that is not wanted in memory."""
        readers = self.readers[node]
        return readers[0] if len(readers) == 1 and node not in self.wanted else None

    def _chain(self, node: Node) -> list[Node]:
        """A value and the movements behind it up to the last permutation, each read by the next."""
        chain, length = [node], 1
        while (reader := self._reader(chain[-1])) is not None and reader.op in MOVES:
            chain.append(reader)
            if reader.op is mv.permute:
                length = len(chain)
        return chain[:length]

    # Joined results

    def _join(self, root: Node) -> None:
        """Notes the parts of a sum that is nothing but results of one row beside each other."""
        reader = self._reader(root)
        if reader is not None and reader.op is ew.add:
            return  # it is part of a longer sum
        pads = self._addends(root)
        origins = [self._origin(pad) for pad in pads]
        rows = {chain[-1].sources[0] for chain in origins if chain}
        if not all(origins) or len(rows) != 1 or not _covers(pads, root.shape):
            return
        ends = self._chain(root)
        whole = _followed(contiguous_strides(ends[-1].shape), ends[:0:-1])
        parts: dict[int, StoreTarget] = {}
        for pad, chain in zip(pads, origins, strict=True):
            strides = _followed(whole, chain[:-1]) if whole is not None else None
            if whole is None or strides is None:
                return
            starts = zip(pad.attributes["starts"], whole, strict=True)
            offset = sum(start * stride for start, stride in starts)
            parts[chain[-1].attributes["index"]] = StoreTarget(ends[-1], offset, strides)
        (row,) = rows
        results = [chain[-1] for chain in origins]
        if all(map(_is_stored, parts.values(), [one.shape for one in results])):
            self.targets.setdefault(row, {}).update(parts)

    def _addends(self, root: Node) -> list[Node]:
        """What a sum of sums adds."""
        addends: list[Node] = []
        stack = [root]
        while stack:
            node = stack.pop()
            if node.op is ew.add and (node is root or self._reader(node) is not None):
                stack += reversed(node.sources)
            else:
                addends.append(node)
        return addends

    def _origin(self, pad: Node) -> list[Node]:
        """The movements from a pad back to a result of attention, and it; empty if it is none."""
        how = pad.attributes
        if pad.op is not mv.pad or self._reader(pad) is None or how["value"] != 0:
            return []
        numbers = all(type(start) is int for start in how["starts"])
        if not numbers or any(step != 1 for step in how["steps"]):
            return []
        chain = [pad.sources[0]]
        while chain[-1].op in MOVES:
            chain.append(chain[-1].sources[0])
        own = chain[-1].op is output and chain[-1].sources[0].op in ROWS
        return chain if own and all(self._reader(node) is not None for node in chain) else []

    # Results alone

    def _store_permuted(self, result: Node) -> None:
        """Notes a result that a reader sees in another order; the others look at it from there."""
        row, index = result.sources[0], result.attributes["index"]
        if result in self.wanted or index in self.targets.get(row, {}):
            return
        chain, inverse = self._chain(result), ()
        if len(self.readers[result]) > 1:
            permutations = [node for node in self.readers[result] if node.op is mv.permute]
            if not permutations:
                return
            chain = [result, permutations[0]]
            axes = permutations[0].attributes["axes"]
            inverse = tuple(axes.index(axis) for axis in range(len(axes)))
        end = chain[-1]
        strides = _followed(contiguous_strides(end.shape), chain[:0:-1])
        if strides is not None and end is not result:
            target = StoreTarget(end, 0, strides, inverse)
            if _is_stored(target, result.shape):
                self.targets.setdefault(row, {})[index] = target


def _followed(strides: Shape, movements: Sequence[Node]) -> Shape | None:
    """The strides of what movements read, from those of their result; the last movement first."""
    for node in movements:
        source = node.sources[0].shape
        if node.op is mv.permute:
            axes = node.attributes["axes"]
            strides = tuple(strides[axes.index(axis)] for axis in range(len(axes)))
            continue
        through = reshape_strides(node.shape, strides, source)
        if through is None:
            return None
        strides = through
    return strides


def _is_stored(target: StoreTarget, shape: Shape) -> bool:
    """Whether rows of a result remain runs of memory."""
    *strides, last = (stride for stride, size in zip(target.strides, shape) if size > 1)
    return last == 1 and not any(number % RUN for number in (target.offset, *strides))


def _covers(pads: Sequence[Node], shape: Shape) -> bool:
    """Whether each element of a shape is in just one of the boxes."""

    def apart(a: Node, b: Node) -> bool:
        one, other = (
            list(zip(x.attributes["starts"], x.sources[0].shape, strict=True)) for x in (a, b)
        )
        return any(
            start + size <= start_b or start_b + size_b <= start
            for (start, size), (start_b, size_b) in zip(one, other, strict=True)
        )

    elements = sum(prod(pad.sources[0].shape) for pad in pads)
    return elements == prod(shape) and all(apart(a, b) for a, b in combinations(pads, 2))


def _rewritten(outputs: Sequence[Node], targets: Targets) -> tuple[Node, ...]:
    """The graph in which rows store their results at their targets."""
    new: dict[Node, Node] = {}
    results: dict[tuple[Node, int], Node] = {}  # a row's, by number: the values they are parts of
    for node in topological(outputs):
        if node in new:  # the end of a target
            continue
        if node.op is output and (row := node.sources[0]) in targets:
            index = node.attributes["index"]
            value, target = results[row, index], targets[row].get(index)
            if target is None:
                new[node] = value
            elif target.inverse:
                new[node] = mv.permute(value, axes=target.inverse)
        elif all(source in new for source in node.sources):  # others only lead to an end
            sources = tuple(new[source] for source in node.sources)
            if node.op is attention_backward:
                sources = (*sources[:5], _sums_of_memory(sources[5]), *sources[6:])
            new[node] = with_sources(node, sources)
            if node in targets:
                for index, value in enumerate(_placed(new[node], targets[node])):
                    results[node, index] = value
                    if index in targets[node]:
                        new[targets[node][index].end] = value
    return tuple(new[node] for node in outputs)


def _sums_of_memory(delta: Node) -> Node:
    """The sums over rows of the values times their cotangent, in the order that both have there."""
    total = delta.sources[0] if delta.op is mv.reshape else delta
    if total.op is not rd.sum or total.sources[0].op is not ew.mul:
        return delta
    for factor in total.sources[0].sources:
        value = factor.sources[0] if factor.op is ew.cast else factor
        if value.op is mv.permute and value.sources[0].op is output:
            axes = value.attributes["axes"]
            turned = _before(total, axes)
            if turned is not None:
                return mv.reshape(mv.permute(turned, axes=axes), shape=delta.shape)
    return delta


def _before(node: Node, axes: Shape) -> Node | None:
    """The value of which a node is the permutation, made in its order; None if it is of none."""
    if node.op is mv.permute:
        return node.sources[0] if node.attributes["axes"] == axes else None
    attributes = node.attributes
    if node.op is rd.sum:
        attributes = {"axes": tuple(sorted(axes[axis] for axis in attributes["axes"]))}
    elif node.op is not ew.mul and node.op is not ew.cast:
        return None
    parts = [_before(source, axes) for source in node.sources]
    sources = tuple(part for part in parts if part is not None)
    return node.op(*sources, **attributes) if len(sources) == len(parts) else None


def _placed(row: Node, targets: dict[int, StoreTarget]) -> list[Node]:
    """For each result of a row the output of which it is a part, or which it is."""
    outputs: list[tuple[Shape, DType]] = []
    numbers: dict[Node, int] = {}
    placements: list[Placement] = []
    for index, (shape, dtype) in enumerate(row.outputs):
        target = targets.get(index)
        number = numbers.get(target.end, len(outputs)) if target else len(outputs)
        if number == len(outputs):
            outputs.append((target.end.shape if target else shape, dtype))
        if target is None:
            placements.append(Placement(number, 0, contiguous_strides(shape)))
        else:
            numbers[target.end] = number
            placements.append(Placement(number, target.offset, target.strides))
    attributes = {**row.attributes, "placements": tuple(placements)}
    made = node_made(row.op, row.sources, attributes, tuple(outputs), row.device, False, row.site)
    parts = [output(made, index=number) for number in range(len(outputs))]
    return [parts[placement.output] for placement in placements]
