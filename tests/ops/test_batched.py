"""Every row of the op table, recorded for one example and rewritten for a batch, as `vmap` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import samples
from execution import erased, values
from sampling import Sample, difference, variant

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import bool_
from tinygrad_cuda.graph.batching import Rewriting
from tinygrad_cuda.graph.node import Node, Op, topological
from tinygrad_cuda.graph.ops import TABLE, common, movement
from tinygrad_cuda.graph.ops.elementwise import where

ROWS = pytest.mark.parametrize("op", TABLE.values(), ids=list(TABLE))
# Which operands differ from example to example.
CHOICES: dict[str, Callable[[int], bool]] = {
    "all": lambda position: True,
    "the first": lambda position: position == 0,
    "all but the first": lambda position: position > 0,
}


def turned(node: Node) -> Node:
    """Another operand of the same shape, and with the same values, so valid where this one is."""
    axes = tuple(axis for axis, size in enumerate(node.shape) if size > 1)
    return movement.flip(node, axes=axes) if axes else node


def pair(node: Node) -> Node:
    """Two examples: the operand, and the same turned around."""
    one, other = (
        movement.pad(
            movement.reshape(part, shape=(1, *node.shape)),
            starts=(place, *(0,) * len(node.shape)), shape=(2, *node.shape),
            steps=(1,) * (len(node.shape) + 1), value=False,
        )
        for place, part in enumerate((node, turned(node)))
    )  # fmt: skip
    inside = common.full(True, (1, *node.shape), node, bool_)
    first = movement.pad(
        inside, starts=(0,) * (len(node.shape) + 1), shape=(2, *node.shape),
        steps=(1,) * (len(node.shape) + 1), value=False,
    )  # fmt: skip
    return where(first, one, other)


def example(node: Node, place: int) -> Node:
    """One example of a batch of two."""
    part = movement.slice_(
        node, starts=(place, *(0,) * (len(node.shape) - 1)), shape=(1, *node.shape[1:]),
        steps=(1,) * len(node.shape),
    )  # fmt: skip
    return movement.reshape(part, shape=node.shape[1:])


def operands(root: Node, chosen: Callable[[int], bool]) -> list[Node]:
    found = [node for node in topological([root]) if node.op is common.buffer]
    return [node for position, node in enumerate(found) if chosen(position)]


def batched(chosen: Callable[[int], bool], place: int) -> Callable[[Sequence[Node]], list[Node]]:
    """One example of each output of a batch."""

    def prepare(roots: Sequence[Node]) -> list[Node]:
        found = []
        for root in roots:
            rewriting = Rewriting({node: pair(node) for node in operands(root, chosen)}, 2)
            rewriting([root])
            found.append(example(rewriting.batched(root), place))
        return erased(found)

    return prepare


def alone(chosen: Callable[[int], bool]) -> Callable[[Sequence[Node]], list[Node]]:
    """The second example by itself."""

    def prepare(roots: Sequence[Node]) -> list[Node]:
        return erased(
            [
                Rewriting({node: turned(node) for node in operands(root, chosen)}, None)([root])[0]
                for root in roots
            ]
        )

    return prepare


def suiting(op: Op) -> tuple[Sample, ...]:
    """Samples that are no argument of a plan, which nobody records; without views, whose buffers
    hold poison; and of one floating dtype: float64, unless the op takes float32 alone."""
    found = [
        sample
        for sample in samples.of(op)
        if not sample.numbers and not any(source.steps for source in sample.sources)
    ]
    for others in ({"float16", "bfloat16", "float32"}, {"float16", "bfloat16"}):
        given = [
            sample
            for sample in found
            if others.isdisjoint(source.value.dtype.name for source in sample.sources)
        ]
        if given:
            return tuple(given)
    return ()


@ROWS
@pytest.mark.parametrize("which", CHOICES)
def test_a_batch_is_its_examples(op: Op, which: str) -> None:
    """With every choice of operands that are the same for all examples."""
    chosen = CHOICES[which]
    given = suiting(op)
    if not given:
        pytest.skip("a leaf that is only an argument")
    for place, expected in enumerate((values(given, CPU), values(given, CPU, alone(chosen)))):
        found = values(given, CPU, batched(chosen, place))
        for sample in given:
            loose = variant(sample, exact=False, loose=max(sample.loose, 4))
            for one, other in zip(found[sample.name], expected[sample.name], strict=True):
                text = difference(one, other, loose)
                assert text is None, f"{sample.name}, example {place}: {text}"


def test_every_row_that_needs_a_rule_has_one() -> None:
    """Elementwise ops, reductions, leaves and identities are batched by their kind."""
    kinds = {"movement", "contraction", "kernel"}
    assert not [op.name for op in TABLE.values() if op.kind in kinds and op.batch is None]
