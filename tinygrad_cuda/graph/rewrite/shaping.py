"""Rewrite rules of index rewrites, reductions, contractions and everything empty.

Each function is one pattern: the replacement of a node, or None where the pattern does not hold.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tinygrad_cuda.graph.node import LeafOp, Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.rewrite.pattern import constant_like, inner, is_literal, literal, rounded

# Index rewrites ------------------------------------------------------------------------------


def identity(node: Node) -> Node | None:
    """A rewrite that leaves every element where it is."""
    x, attributes = node.sources[0], node.attributes
    if x.shape != node.shape:
        return None
    if node.op is mv.permute:
        moved = [axis for axis in attributes["axes"] if x.shape[axis] != 1]
        return x if moved == sorted(moved) else None
    if node.op is mv.flip:
        return None if any(x.shape[axis] > 1 for axis in attributes["axes"]) else x
    # A slice or pad of the same shape has room for no other start and step.
    return x


def of_constant(node: Node) -> Node | None:
    """One number seen through any index rewrite is that number."""
    x = node.sources[0]
    if x.op is not common.constant and x.op is not common.scalar:
        return None
    if node.op is mv.unwindow:
        return constant_like(0, node) if literal(x) == 0 else None
    if node.op is mv.pad:
        value = node.attributes["value"]
        if not is_literal(value):
            return None
        # Compared as texts: NaN equals itself, and -0.0 differs from 0.0.
        if prod(x.shape) and repr(rounded(value, x.dtype)) != repr(literal(x)):
            return None
        return constant_like(value, node)
    assert isinstance(x.op, LeafOp)
    return x.op.leaf(node.shape, node.dtype, node.device, **x.attributes)


def reshape_reshape(node: Node) -> Node | None:
    x = inner(node, mv.reshape)
    return None if x is None else mv.reshape(x, shape=node.shape)


def permute_permute(node: Node) -> Node | None:
    x = inner(node, mv.permute)
    if x is None:
        return None
    first = node.sources[0].attributes["axes"]
    return mv.permute(x, axes=tuple(first[axis] for axis in node.attributes["axes"]))


def expand_expand(node: Node) -> Node | None:
    x = inner(node, mv.expand)
    return None if x is None else mv.expand(x, shape=node.shape)


def flip_flip(node: Node) -> Node | None:
    x = inner(node, mv.flip)
    if x is None:
        return None
    once = set(node.attributes["axes"]) ^ set(node.sources[0].attributes["axes"])
    return mv.flip(x, axes=tuple(sorted(once)))


def _composed(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any] | None:
    """Starts and steps of positions within positions: start + step * (start' + step' * i)."""
    starts, steps = first["starts"], first["steps"]
    if not all(map(is_literal, starts)) or not all(map(is_literal, second["starts"])):
        return None
    return {
        "starts": tuple(
            start + step * inside for start, step, inside in zip(starts, steps, second["starts"])
        ),
        "steps": tuple(a * b for a, b in zip(steps, second["steps"])),
    }


def slice_slice(node: Node) -> Node | None:
    x = inner(node, mv.slice_)
    if x is None:
        return None
    positions = _composed(node.sources[0].attributes, node.attributes)
    return None if positions is None else mv.slice_(x, shape=node.shape, **positions)


def pad_pad(node: Node) -> Node | None:
    x = inner(node, mv.pad)
    if x is None:
        return None
    value, other = node.attributes["value"], node.sources[0].attributes["value"]
    if not is_literal(value) or not is_literal(other):
        return None
    if repr(rounded(value, x.dtype)) != repr(rounded(other, x.dtype)):
        return None
    positions = _composed(node.attributes, node.sources[0].attributes)
    return None if positions is None else mv.pad(x, shape=node.shape, value=value, **positions)


def slice_of_pad(node: Node) -> Node | None:
    """Cuts out again what the pad placed, or a pad of less."""
    x = inner(node, mv.pad)
    if x is None:
        return None
    placed, cut = node.sources[0].attributes, node.attributes
    if x.shape != node.shape:
        return _less_padded(node, x)
    for size, start, other, step, stride in zip(
        x.shape, placed["starts"], cut["starts"], placed["steps"], cut["steps"]
    ):
        if start != other or (step != stride and size > 1):
            return _less_padded(node, x)
    return x


def _less_padded(node: Node, x: Node) -> Node | None:
    """A slice that cuts of a pad no more than what is around `x`: the rest of the pad."""
    placed, cut = node.sources[0].attributes, node.attributes
    starts = []
    for first, begin, step, size, length in zip(
        placed["starts"], cut["starts"], placed["steps"], x.shape, node.shape, strict=True
    ):
        if not is_literal(first) or not is_literal(begin):
            return None
        last = first + (size - 1) * step
        if not size or begin > first or begin + length <= last:
            return None
        starts.append(first - begin)
    if any(step != 1 for step in cut["steps"]):
        return None
    return mv.pad(x, **{**placed, "starts": tuple(starts), "shape": node.shape})


def window_of_unwindow(node: Node) -> Node | None:
    """For each k every window position has an element of its own, so it is read back unchanged."""
    x = inner(node, mv.unwindow)
    if x is None or x.shape != node.shape:
        return None
    first, second = node.sources[0].attributes, node.attributes
    same = all(first[name] == second[name] for name in ("axis", "over", "stride", "dilation"))
    return x if same else None


# Reductions ----------------------------------------------------------------------------------


def reduce_nothing(node: Node) -> Node | None:
    """A sum, product, ... of no elements at all."""
    x, value = node.sources[0], _row(node).cuda.of_nothing
    if value is None or prod(x.shape[axis] for axis in node.attributes["axes"]):
        return None
    return constant_like(value, node)


def reduce_single(node: Node) -> Node | None:
    """Reducing axes of size 1."""
    x, row = node.sources[0], _row(node)
    if any(x.shape[axis] != 1 for axis in node.attributes["axes"]):
        return None
    if row.extreme is not None:
        return constant_like(0, node)
    return x if row.cuda.keeps_one else None


def reduce_constant(node: Node) -> Node | None:
    x, axes = node.sources[0], node.attributes["axes"]
    if x.op is not common.constant and x.op is not common.scalar:
        return None
    assert isinstance(x.op, LeafOp)
    if _row(node).extreme is not None:
        return constant_like(0, node)
    one = x.op.leaf(node.shape, node.dtype, node.device, **x.attributes)
    if _row(node).idempotent:
        return one
    count = prod(x.shape[axis] for axis in axes)
    value = literal(x)
    if node.op is rd.sum:
        if value is None:
            return _times_count(one, count)
        return constant_like(value * count, node)
    if node.op is not rd.prod or value is None:
        return None
    if node.dtype.is_floating:
        return constant_like(1, node) if value == 1 else None
    return constant_like(pow(int(value), count, 1 << 64), node)


def _row(node: Node) -> rd.ReductionOp:
    assert isinstance(node.op, rd.ReductionOp), node
    return node.op


def reduce_expanded(node: Node) -> Node | None:
    """Expanded axes hold copies: their sum is one product, and axes that stay expand later."""
    x = inner(node, mv.expand)
    if x is None or (node.op is not rd.sum and not _row(node).idempotent):
        return None
    sizes, axes = node.sources[0].shape, node.attributes["axes"]
    rest = tuple(axis for axis in axes if x.shape[axis] != 1)
    total: Node | None = node.op(x, axes=rest) if rest else x
    if node.op is rd.sum and total is not None:
        total = _times_count(total, prod(sizes[axis] for axis in axes if axis not in rest))
    return None if total is None else mv.expand(total, shape=node.shape)


def _times_count(x: Node, count: int) -> Node | None:
    """None where a half type does not hold the count: then the product is not the sum."""
    if x.dtype.is_floating and rounded(count, x.dtype) != count:
        return None
    return ew.mul(x, constant_like(count, x))


# Anything ------------------------------------------------------------------------------------


def matmul_nothing(node: Node) -> Node | None:
    """An inner dimension of 0: every sum is empty."""
    return None if node.sources[0].shape[-1] else constant_like(0, node)


def empty(node: Node) -> Node | None:
    """A result without elements depends on nothing."""
    return constant_like(0, node) if 0 in node.shape and len(node.outputs) == 1 else None
