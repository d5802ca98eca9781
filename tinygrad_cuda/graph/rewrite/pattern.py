"""What rewrite rules are written with: rules themselves, literal numbers, operands.

A literal is the number of a constant as its dtype holds it; an argument of a plan is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import common

Number = bool | int | float


class When(Enum):
    """At which nodes a rule is tried."""

    BEFORE_SOURCES = "before its sources are simplified, since it drops some of them"
    WITHOUT_ELEMENTS = "where the node has no elements"
    OF_CONSTANTS = "where every source is a constant"
    ALWAYS = "once its sources are simplified"


class RewriteRule(NamedTuple):
    """One rewrite.

    Attributes:
        name: as `simplify` counts it.
        ops: the ops at the root of the pattern.
        apply: the node's replacement, or None where the pattern does not hold.
        when: at which nodes it is tried.
    """

    name: str
    ops: tuple[Op, ...]
    apply: Callable[[Node], Node | None]
    when: When = When.ALWAYS


def literal(node: Node) -> Number | None:
    """The number a constant holds, rounded to its dtype; None for anything else.

    None also of a complex dtype: rules of arithmetic have real numbers in mind.
    """
    if node.op is not common.constant or node.dtype.is_complex:
        return None
    value = node.attributes["value"]
    return rounded(value, node.dtype) if is_literal(value) else None


def is_literal(value: Any) -> bool:
    """Whether an attribute is a number and not an argument of the plan."""
    return isinstance(value, bool | int | float | np.generic)


def rounded(value: Any, dtype: DType) -> Number:
    """A Python number that the dtype holds exactly; integers of any size wrap."""
    if dtype.is_integer and isinstance(value, int):
        value = _wrapped(value, dtype)
    with np.errstate(all="ignore"):
        array = np.asarray(value).astype(dtype.numpy)
    number: Any = float(array) if dtype.is_floating else array.item()
    if dtype.is_complex:  # a real one stays a number of `constant`
        return number if number.imag else number.real  # type: ignore[no-any-return]
    return number  # type: ignore[no-any-return]


def _wrapped(value: int, dtype: DType) -> int:
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.is_signed and value >> (bits - 1) else value


def constant_like(value: Any, like: Node) -> Node:
    return common.full_like(like, rounded(value, like.dtype))


def holds_number(node: Node, number: Number) -> bool:
    return literal(node) == number


def is_negative_zero(value: Number) -> bool:
    return value == 0 and math.copysign(1, value) < 0


def both_orders(node: Node) -> Iterator[tuple[Node, Node]]:
    a, b = node.sources
    yield a, b
    yield b, a


def inner(node: Node, op: Op) -> Node | None:
    """The operand of the operand, where that is an `op`."""
    x = node.sources[0]
    return x.sources[0] if x.op is op else None
