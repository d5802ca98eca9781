"""How a loop over elements meets what it is made of: element by element, spread, or otherwise."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.lowering.schedule.fusion import TRANSPARENT, Signature, keeps_order, signature
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel


class Operands(NamedTuple):
    """What the elements of some values are made of.

    Attributes:
        flat: values where the search stopped: element k meets element k of the loop, row-major.
        spread: values one element of which meets all along some axes, and a signature of these.
        other: values that are permuted, shifted or gathered: any element may meet any other.
    """

    flat: set[Node]
    spread: list[tuple[Signature, Node]]
    other: list[Node]

    def along(self, sign: Signature) -> list[Node]:
        """Values that are spread along these axes."""
        return [node for axes, node in self.spread if axes == sign]

    def besides(self, sign: Signature) -> list[Node]:
        """Values that are met neither element by element nor spread along these axes."""
        return [*self.other, *(node for axes, node in self.spread if axes != sign)]


def operands(roots: Iterable[Node], stop: Container[Node]) -> Operands:
    """Searches elementwise values and plain movements for what they begin with.

    Args:
        roots: values of as many elements as the loop has.
        stop: values that are at hand, or in memory.
    """
    met = Operands(set(), [], [])
    stack, seen = list(roots), set[Node]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in stop:
            met.flat.add(node)
        elif node.op in TRANSPARENT or (node.op.kind == "movement" and keeps_order(node)):
            stack.append(node.sources[0])
        elif node.op.kind == "elementwise":
            stack.extend(node.sources)
        elif node.op is movement.expand:
            (source,) = node.sources
            axes = [k for k, (a, b) in enumerate(zip(source.shape, node.shape)) if a != b]
            met.spread.append((signature(node.shape, axes), source))
        elif node.op.kind != "leaf":
            met.other.append(node)
    return met


def needs_other_rows(met: Operands, rows: Kernel, at_hand: Container[Node]) -> bool:
    """Whether an element follows from reductions of a row that is not its own.

    Args:
        met: what the elements are made of.
        rows: the kernel that has the reductions.
        at_hand: values that it has, or that are in memory.
    """
    lines = operands(met.along(rows.sign), at_hand)
    return follows((*met.besides(rows.sign), *lines.besides(())), rows)


def follows(nodes: Iterable[Node], kernel: Kernel) -> bool:
    """Whether a value follows from a reduction of the kernel."""
    return reaches(nodes, kernel.anchors, kernel.reads)


def reaches(nodes: Iterable[Node], wanted: Container[Node], stop: Container[Node]) -> bool:
    """Whether a value is made of a wanted one, without one where the search stops."""
    stack, seen = list(nodes), set[Node]()
    while stack:
        top = stack.pop()
        if top in wanted:
            return True
        if top not in stop and top not in seen:
            seen.add(top)
            stack.extend(top.sources)
    return False


__all__ = ["Operands", "follows", "needs_other_rows", "operands", "reaches"]
