"""Movement ops as changes of coordinates, with the conditions under which they lead somewhere."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.graph.program import Argument
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.index import Condition, Index

Coordinates = tuple[Index, ...]
Guard = tuple[Condition, ...]


def moved(
    node: Node, at: Coordinates, symbol: Callable[[Argument, int, int], Index]
) -> tuple[Coordinates, Guard | bool, Any]:
    """The source's coordinates, when they are valid, and the value where they are not."""
    op, attributes, shape = node.op, node.attributes, node.sources[0].shape
    if op is movement.reshape:
        return ix.unflatten(ix.flatten(at, node.shape), shape), True, 0
    if op is movement.permute:
        inner = [ix.constant(0)] * len(at)
        for place, axis in enumerate(attributes["axes"]):
            inner[axis] = at[place]
        return tuple(inner), True, 0
    if op is movement.expand:
        zero = ix.constant(0)
        return tuple(zero if size == 1 else c for c, size in zip(at, shape)), True, 0
    if op is movement.flip:
        axes = attributes["axes"]
        return (
            tuple(size - 1 - c if i in axes else c for i, (c, size) in enumerate(zip(at, shape))),
            True,
            0,
        )
    if op is movement.slice_:
        starts = [
            symbol(start, 0, max(size - 1 - (length - 1) * step, 0))
            if isinstance(start, Argument)
            else ix.constant(start)
            for start, size, length, step in zip(
                attributes["starts"], shape, node.shape, attributes["steps"]
            )
        ]
        inner = [c * step + start for c, step, start in zip(at, attributes["steps"], starts)]
        return tuple(c.within(0, size - 1) for c, size in zip(inner, shape)), True, 0
    if op is movement.pad:
        return _padded(node, at, symbol)
    return _windowed(node, at)


def _padded(
    node: Node, at: Coordinates, symbol: Callable[[Argument, int, int], Index]
) -> tuple[Coordinates, Guard | bool, Any]:
    attributes, shape = node.attributes, node.sources[0].shape
    fill = attributes["value"]
    if not prod(shape):
        return at, False, fill
    inner: list[Index] = []
    conditions: list[Condition | bool] = []
    for c, start, step, size, outer in zip(
        at, attributes["starts"], attributes["steps"], shape, node.shape
    ):
        if isinstance(start, Argument):
            start = symbol(start, 0, max(outer - 1 - (size - 1) * step, 0))
        shifted = c - start
        conditions += [ix.nonnegative(shifted), ix.below(shifted, (size - 1) * step + 1)]
        if False in conditions:
            return at, False, fill
        if step > 1:
            shifted = shifted.within(0, (size - 1) * step)
            quotient, rest = ix.divide(shifted, step)
            conditions.append(ix.below(rest, 1))
            shifted = quotient
        inner.append(shifted.within(0, size - 1))
    return tuple(inner), ix.all_of(conditions), fill


def _windowed(node: Node, at: Coordinates) -> tuple[Coordinates, Guard | bool, Any]:
    attributes, shape = node.attributes, node.sources[0].shape
    axis, over = attributes["axis"], attributes["over"]
    stride, dilation = attributes["stride"], attributes["dilation"]
    inner = list(at)
    if node.op is movement.window:
        inner[axis] = (at[axis] * stride + at[over] * dilation).within(0, shape[axis] - 1)
        return tuple(inner), True, 0
    if not prod(shape):
        return at, False, 0
    start = at[axis] - at[over] * dilation
    top = (shape[axis] - 1) * stride
    conditions = [ix.nonnegative(start), ix.below(start, top + 1)]
    if False in conditions:
        return at, False, 0
    quotient, rest = ix.divide(start.within(0, top), stride)
    conditions.append(ix.below(rest, 1))
    inner[axis] = quotient.within(0, shape[axis] - 1)
    return tuple(inner), ix.all_of(conditions), 0
