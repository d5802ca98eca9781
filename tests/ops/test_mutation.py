"""A gradient rule with a flipped sign must be noticed: the check of each rule is itself checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from derivatives import Check
from samples_elementwise import FLAT
from test_gradients import differentiable

from tinygrad_cuda.graph.node import Gradient, Node, Op
from tinygrad_cuda.graph.ops import TABLE, special
from tinygrad_cuda.graph.ops import elementwise as ew

# -0 is 0: no check can notice.
FLAT_RULES = [*((op, 0) for op in FLAT), (special.copysign, 1), (special.nextafter, 1)]
EXEMPT = dict.fromkeys(FLAT_RULES, "the derivative is zero wherever it exists")


def rules() -> Iterator[tuple[Op, int]]:
    """Every rule of the table, by row and operand."""
    for op in TABLE.values():
        if isinstance(op.gradient, str):
            continue
        functions = op.gradient if isinstance(op.gradient, tuple) else (op.gradient,)
        for number, rule in enumerate(functions):
            if rule is not None:
                yield op, number


RULES = list(rules())


@contextmanager
def replaced(op: Op, number: int, change: Callable[[Gradient], Gradient]) -> Iterator[None]:
    """The row with one of its rules changed, for the duration of the block."""
    original = op.gradient
    if isinstance(original, tuple):
        changed = list(original)
        changed[number] = change(original[number])
        op.gradient = tuple(changed)
    else:
        op.gradient = change(original)
    try:
        yield
    finally:
        op.gradient = original


def flipped(rule: Gradient) -> Gradient:
    def negative(*operands: Any, **attributes: Any) -> Node | None:
        found = rule(*operands, **attributes)
        # add(neg) and neg are rules themselves, but of other nodes than the one checked.
        return None if found is None else ew.neg(found)

    return negative


def doubled(rule: Gradient) -> Gradient:
    def twice(*operands: Any, **attributes: Any) -> Node | None:
        found = rule(*operands, **attributes)
        return None if found is None else ew.add(found, found)

    return twice


def notices(op: Op) -> bool:
    """Whether the check of the row's own samples fails."""
    for sample in differentiable(op):
        try:
            Check(sample, order=1).run()
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("change", [flipped, doubled])
@pytest.mark.parametrize(("op", "number"), RULES, ids=[f"{op.name}-{n}" for op, n in RULES])
def test_a_wrong_rule_is_noticed(
    op: Op, number: int, change: Callable[[Gradient], Gradient]
) -> None:
    """The sign flipped, or the gradient doubled, one rule at a time."""
    with replaced(op, number, change):
        noticed = notices(op)
    exempt = (op, number) in EXEMPT
    assert noticed or exempt, f"{op.name}: rule {number} may be {change.__name__} unnoticed"
    assert not (noticed and exempt), f"{op.name} is exempt but noticed"


def test_exemptions_are_rules_of_the_table() -> None:
    """No exemption outlives its rule."""
    assert all(TABLE.get(op.name) is op for op, _ in EXEMPT)
