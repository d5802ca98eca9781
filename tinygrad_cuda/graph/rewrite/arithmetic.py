"""Rewrite rules of elementwise ops and of the identities that carry autograd.

Each function is one pattern: the replacement of a node, or None where the pattern does not hold.
"""

from __future__ import annotations

import math

import numpy as np

from tinygrad_cuda.core.dtypes import DType, bool_
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.rewrite.pattern import (
    Number,
    both_orders,
    constant_like,
    holds_number,
    inner,
    is_negative_zero,
    literal,
    rounded,
)

# Identities of autograd ----------------------------------------------------------------------


def erase(node: Node) -> Node | None:
    return node.sources[0]


def erase_output(node: Node) -> Node | None:
    x = node.sources[0]
    while x.op is common.variable or x.op is common.detach:
        x = x.sources[0]
    return x.sources[node.attributes["index"]] if x.op is common.custom else None


def first_if_same(node: Node) -> Node | None:
    a, b = node.sources
    return a if a is b else None


_NEVER_NEGATIVE_ZERO = (ew.abs, ew.exp, ew.exp2, ew.sigmoid, ew.cosh)


def _never_negative_zero(x: Node) -> bool:
    if x.op is ew.cast:
        return x.sources[0].dtype.category < 2
    if x.op is ew.mul:
        return x.sources[0] is x.sources[1]
    return x.op in _NEVER_NEGATIVE_ZERO


# Arithmetic ----------------------------------------------------------------------------------


def fold(node: Node) -> Node | None:
    """Computes with the row's reference; half types with a detour over float32, as it does."""
    if node.dtype.is_complex:
        return None
    arrays = []
    for source in node.sources:
        value = literal(source)
        if value is None:
            return None
        arrays.append(np.asarray(value).astype(common.wide(source.dtype.numpy)))
    assert node.op.numpy is not None
    with np.errstate(all="ignore"):
        return constant_like(node.op.numpy(*arrays, **node.attributes), node)


def add_zero(node: Node) -> Node | None:
    for x, other in both_orders(node):
        value = literal(other)
        if value == 0 and (
            not x.dtype.is_floating or is_negative_zero(value) or _never_negative_zero(x)
        ):
            return x
    return None


def add_negated(node: Node) -> Node | None:
    for x, other in both_orders(node):
        if other.op is ew.neg:
            return ew.sub(x, other.sources[0])
    return None


def sub_zero(node: Node) -> Node | None:
    x, other = node.sources
    value = literal(other)
    if value == 0 and not (x.dtype.is_floating and is_negative_zero(value)):
        return x
    return None


def zero_sub(node: Node) -> Node | None:
    first, x = node.sources
    value = literal(first)
    if value == 0 and (not x.dtype.is_floating or is_negative_zero(value)):
        return ew.neg(x)
    return None


def sub_negated(node: Node) -> Node | None:
    a, b = node.sources
    return ew.add(a, b.sources[0]) if b.op is ew.neg else None


def sub_itself(node: Node) -> Node | None:
    a, b = node.sources
    return constant_like(0, node) if a is b and node.dtype.category < 2 else None


def mul_one(node: Node) -> Node | None:
    return next((x for x, other in both_orders(node) if holds_number(other, 1)), None)


def mul_minus_one(node: Node) -> Node | None:
    if node.dtype is bool_:
        return None
    return next((ew.neg(x) for x, other in both_orders(node) if holds_number(other, -1)), None)


def mul_zero(node: Node) -> Node | None:
    if node.dtype.is_floating or not any(holds_number(source, 0) for source in node.sources):
        return None
    return constant_like(0, node)


def both_negated(node: Node) -> Node | None:
    a, b = node.sources
    if a.op is ew.neg and b.op is ew.neg and (node.op is ew.mul or node.dtype.is_floating):
        return node.op(a.sources[0], b.sources[0])
    return None


def negated_times_constant(node: Node) -> Node | None:
    for x, other in both_orders(node):
        value = literal(other)
        if value is not None and x.op is ew.neg:
            return ew.mul(x.sources[0], constant_like(-value, other))
    return None


def associate(node: Node) -> Node | None:
    """(x + c) + d and (x * c) * d over integers, where wrapping makes them exact."""
    if not node.dtype.is_integer:
        return None
    for x, last in both_orders(node):
        if literal(last) is None or x.op is not node.op:
            continue
        for first, middle in both_orders(x):
            if literal(middle) is not None:
                return node.op(first, node.op(middle, last))
    return None


def div_one(node: Node) -> Node | None:
    return node.sources[0] if holds_number(node.sources[1], 1) else None


def div_power_of_two(node: Node) -> Node | None:
    """Exact, where the dtype holds the reciprocal: both round the same real number."""
    x, other = node.sources
    value = literal(other)
    if not value or not math.isfinite(value) or abs(math.frexp(value)[0]) != 0.5:
        return None
    inverse = rounded(1 / value, node.dtype)
    return ew.mul(x, constant_like(inverse, node)) if inverse * value == 1 else None


def pow_literal(node: Node) -> Node | None:
    x, exponent = node.sources
    value = literal(exponent)
    if value == 0:
        return constant_like(1, node)
    if value == 1:
        return x
    return ew.mul(x, x) if value == 2 else None


def abs_sign(node: Node) -> Node | None:
    x = node.sources[0]
    if x.op is ew.abs:
        return x
    return ew.abs(x.sources[0]) if x.op is ew.neg and x.dtype.is_signed else None


def neg_neg(node: Node) -> Node | None:
    return inner(node, ew.neg)


ROUNDINGS = (ew.floor, ew.ceil, ew.trunc, ew.round)


def round_twice(node: Node) -> Node | None:
    x = node.sources[0]
    return x if x.op in ROUNDINGS else None


# Logic ---------------------------------------------------------------------------------------

_CONJUNCTIONS = (ew.logical_and, ew.bitwise_and)
_EXCLUSIONS = (ew.logical_xor, ew.bitwise_xor)


def _all_ones(value: Number | None, dtype: DType) -> bool:
    return value is not None and bool(value == rounded(True if dtype is bool_ else -1, dtype))


def logic_literal(node: Node) -> Node | None:
    op = node.op
    for x, other in both_orders(node):
        value = literal(other)
        if value == 0:
            return other if op in _CONJUNCTIONS else x
        if _all_ones(value, node.dtype):
            if op in _EXCLUSIONS:
                return (ew.logical_not if op is ew.logical_xor else ew.bitwise_not)(x)
            return x if op in _CONJUNCTIONS else other
    return None


def not_not(node: Node) -> Node | None:
    return inner(node, node.op)


def exclusive_itself(node: Node) -> Node | None:
    return constant_like(0, node) if node.sources[0] is node.sources[1] else None


def compare_itself(node: Node) -> Node | None:
    """x < x is false even for NaN; x == x is true only where there is none."""
    a, b = node.sources
    if a is not b:
        return None
    if node.op in (ew.lt, ew.gt):
        return constant_like(False, node)
    return None if a.dtype.category > 1 else constant_like(node.op is not ew.ne, node)


_PAIRS = ((ew.eq, ew.ne), (ew.lt, ew.ge), (ew.gt, ew.le))
_OPPOSITES: dict[Op, Op] = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}


def not_compared(node: Node) -> Node | None:
    """NaN makes both x < y and x >= y false, so only equality has an opposite for floats."""
    x = node.sources[0]
    opposite = _OPPOSITES.get(x.op)
    if opposite is None:
        return None
    exact = x.op in (ew.eq, ew.ne) or not x.sources[0].dtype.is_floating
    return opposite(*x.sources) if exact else None


def where_literal(node: Node) -> Node | None:
    condition, a, b = node.sources
    value = literal(condition)
    return None if value is None else a if value else b


def where_same(node: Node) -> Node | None:
    _, a, b = node.sources
    return a if a is b else None


def where_not(node: Node) -> Node | None:
    condition, a, b = node.sources
    return ew.where(condition.sources[0], b, a) if condition.op is ew.logical_not else None


def where_where(node: Node) -> Node | None:
    condition, a, b = node.sources
    if a.op is ew.where and a.sources[0] is condition:
        return ew.where(condition, a.sources[1], b)
    if b.op is ew.where and b.sources[0] is condition:
        return ew.where(condition, a, b.sources[2])
    return None


def where_truth(node: Node) -> Node | None:
    condition, a, b = node.sources
    if node.dtype is not bool_ or literal(a) is None or literal(b) is None:
        return None
    return condition if literal(a) else ew.logical_not(condition)


# Casts ---------------------------------------------------------------------------------------

_MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def _holds(narrow: DType, wide: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if narrow is wide or narrow is bool_:
        return True
    if narrow.is_complex or wide.is_complex:
        return _holds(narrow.to_real(), wide.to_real()) and wide.is_complex
    if narrow.is_floating:
        return bool(wide.is_floating and narrow.itemsize < wide.itemsize)
    bits = 8 * narrow.itemsize - narrow.is_signed
    if wide.is_floating:
        return bool(bits <= _MANTISSA[wide.name])
    if narrow.is_signed and not wide.is_signed:
        return False
    return bool(wide.is_integer and narrow.itemsize < wide.itemsize)


def cast_same(node: Node) -> Node | None:
    x = node.sources[0]
    return x if x.dtype is node.dtype else None


def cast_cast(node: Node) -> Node | None:
    x = inner(node, ew.cast)
    if x is None or not _holds(x.dtype, node.sources[0].dtype):
        return None
    if x.dtype is node.dtype:
        return x
    # Wide integers go to half types through float32: from float64 they are rounded once less.
    if x.dtype.is_integer and x.dtype.itemsize > 2 and node.dtype.itemsize == 2:
        return None
    return ew.cast(x, dtype=node.dtype)
