"""Where a ReLU's gradient vanishes is read off its result, if that lies in memory anyway.

Unlike the rules of the table this must know every reader of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinygrad_cuda.graph.node import Node, topological, with_sources
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.rewrite.pattern import holds_number
from tinygrad_cuda.graph.rewrite.products import readers_of

FLAT = ("elementwise", "movement", "identity")


def read_masks_off_results(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The same values, with ``x <= 0`` as ``y <= 0`` for the readers of y = where(x <= 0, 0, x).

    Both are equal for every x, NaN included. It is done where y is an operand of a product, and so
    in memory, and x follows from a normalization: the mask then costs a load and a comparison
    instead of the normalization's arithmetic and all that it loads. Of one normalization in float32
    the mask is left as it is: the gradient's sums load the normalization's operand in any case. Of
    a product and a bias alone it is stored in a byte beside y.
    """
    order = topological(outputs)
    readers = readers_of(order)
    result_of_mask: dict[Node, Node] = {}  # masks, and the results that they are read off
    for node in order:
        result = _result_of(node, readers[node]) if node.op is ew.le else None
        if result is not None and _is_operand(result, readers):
            result_of_mask[node] = result
    if not result_of_mask:
        return tuple(outputs)
    new: dict[Node, Node] = {}
    masks: dict[Node, Node] = {}  # those of the results
    for node in order:
        if node in new:
            continue
        sources = [new[source] for source in node.sources]
        for position, source in enumerate(node.sources):
            if source in masks and not _is_relu(node):
                sources[position] = masks[source]
        new[node] = with_sources(node, tuple(sources))
        if result := result_of_mask.get(node):  # whose own zero is a literal, and new nowhere
            x, zero = sources
            new[result] = with_sources(result, (new[node], result.sources[1], x))
            masks[node] = ew.le(new[result], zero)
    return tuple(new[node] for node in outputs)


def _result_of(mask: Node, readers: list[Node]) -> Node | None:
    """The ReLU that a mask belongs to, where something else reads the mask, too."""
    results = [reader for reader in readers if _is_relu(reader)]
    others = set(readers).difference(results)
    return results[0] if results and others and _is_worth_reading(mask.sources[0]) else None


def _is_relu(node: Node) -> bool:
    """Whether it is where(x <= 0, 0, x)."""
    if node.op is not ew.where or node.sources[0].op is not ew.le:
        return False
    mask, zero, value = node.sources
    return value is mask.sources[0] and holds_number(zero, 0) and holds_number(mask.sources[1], 0)


def _is_operand(node: Node, readers: dict[Node, list[Node]]) -> bool:
    """Whether a product reads it, perhaps in another dtype or shape."""
    stack, seen = [node], {node}
    while stack:
        for reader in readers[stack.pop()]:
            if reader.op.kind == "contraction":
                return True
            if reader not in seen and (reader.op is ew.cast or reader.op.kind == "movement"):
                seen.add(reader)
                stack.append(reader)
    return False


def _is_worth_reading(node: Node) -> bool:
    """Whether it follows from a reduction, and if float32 from two products or inputs besides."""
    least = 1 if node.dtype.is_half else 2
    stack, seen, reduced, joined = [node], {node}, False, set[Node]()
    while stack and not (reduced and len(joined) >= least):
        for source in stack.pop().sources:
            reduced = reduced or source.op.kind == "reduction"
            if source in seen:
                continue
            seen.add(source)
            if source.op.kind in FLAT:
                stack.append(source)
            elif prod(source.shape) == prod(node.shape):
                joined.add(source)
    return reduced and len(joined) >= least
