"""Reading and writing at computed positions along axis 0, and the check of those positions."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import numeric
from tinygrad_cuda.graph.ops.common import arange, full, require_dtype


def _infer_check_index(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    require_dtype("index", sources[0], "integer")
    return sources[0].outputs


def _check_index(index: Any, limit: int, what: str, code: int) -> Any:
    # The reference backend reports a bad position before it runs this row.
    return np.where((index >= 0) & (index < limit), index, 0)


# The index itself where 0 <= index < limit; a bad one is reported and reads as 0. `code` tells
# which of the recorded checks it was, `what` is the user's name for the index.
check_index: Op = Op(
    "check_index", "elementwise", _infer_check_index,
    numpy=_check_index, cuda="tgc_check_index", gradient=(None,), arguments=("code",),
)  # fmt: skip


def _infer_check_unit(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    require_dtype(attributes["what"], sources[0], "float")
    return sources[0].outputs


# The value itself; one outside 0 <= x <= 1, NaN among them, is reported.
check_unit: Op = Op(
    "check_unit", "elementwise", _infer_check_unit,
    numpy=lambda x, what, code: x, cuda="tgc_check_unit", gradient=(lambda g, out, x, **_: g,),
    arguments=("code",),
)  # fmt: skip

CHECKS = (check_index, check_unit)


def _infer_gather(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    source, index = sources
    require_dtype("gather", index, "integer")
    if not source.shape:
        raise ShapeError(
            "gather",
            "the source has no axis to index",
            expect="at least 1-d",
            actual="a 0-d source",
        )
    return ((index.shape + source.shape[1:], source.dtype),)


def _apart(index: Node, size: int, limit: int) -> Node:
    """Positions in the rows of each example as positions in the rows of all, one after another."""
    position = ew.cast(index, dtype=int64)
    first = arange.leaf((size,), int64, index.device, start=0, step=limit)
    first = mv.reshape(first, shape=(size,) + (1,) * (len(position.shape) - 1))
    return ew.add(position, mv.expand(first, shape=position.shape))


def _swapped(x: Node, axis: int) -> Node:
    """The batch axis behind `axis` others: examples stand beside each other in each row."""
    rest = range(axis + 1, len(x.shape))
    return mv.permute(x, axes=(*range(1, axis + 1), 0, *rest))


def _swapped_back(x: Node, axis: int) -> Node:
    return mv.permute(x, axes=(axis, *range(axis), *range(axis + 1, len(x.shape))))


def _batch_gather(size: int, sources: tuple[Node, Node], on: tuple[bool, bool]) -> Node:
    source, index = sources
    if not on[0]:
        return gather(source, index)
    if not on[1]:
        return _swapped_back(gather(_swapped(source, 1), index), len(index.shape))
    count = source.shape[1]
    rows = mv.reshape(source, shape=(size * count, *source.shape[2:]))
    return gather(rows, _apart(index, size, count))


def _batch_scatter(op: Op, size: int, sources: tuple[Node, ...], on: tuple[bool, ...]) -> Node:
    base, index, values = sources
    base = base if on[0] else mv.batched(base, size)
    values = values if on[2] else mv.batched(values, size)
    if not on[1]:
        rank = len(index.shape)
        return _swapped_back(op(_swapped(base, 1), index, _swapped(values, rank)), 1)
    rows = mv.reshape(base, shape=(size * base.shape[1], *base.shape[2:]))
    result = op(rows, _apart(index, size, base.shape[1]), values)
    return mv.reshape(result, shape=base.shape)


def _gather(source: Any, index: Any) -> Any:
    if not source.shape[0]:
        return np.zeros(index.shape + source.shape[1:], source.dtype)
    return np.take(source, index, axis=0)


# out[i.., j..] = source[index[i..], j..]
gather: Op = Op(
    "gather", "kernel", _infer_gather,
    numpy=_gather,
    gradient=(
        lambda g, out, source, index: scatter_add(full(0, source.shape, g), index, g),
        None,
    ),
    batch=_batch_gather,
)  # fmt: skip


def _infer_scatter(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    base, index, values = sources
    require_dtype(op.name, index, "integer")
    expected = index.shape + base.shape[1:]
    if not base.shape or values.shape != expected or values.dtype is not base.dtype:
        raise ShapeError(
            op.name,
            "the values do not fit",
            expect=f"{expected} {base.dtype.name}",
            actual=f"{values.shape} {values.dtype.name}",
        )
    return base.outputs


def _scatter(base: Any, index: Any, values: Any) -> Any:
    result = base.copy()
    # NumPy keeps the last of repeated positions; so does the kernel.
    result[index.reshape(-1)] = values.reshape((index.size,) + base.shape[1:])
    return result


# base plus values added at their positions, in the order of the index.
scatter_add: Op = Op(
    "scatter_add", "kernel", _infer_scatter, numpy=numeric.add_at,
    gradient=(
        lambda g, out, base, index, values: g,
        None,
        lambda g, out, base, index, values: gather(g, index),
    ),
    batch=lambda size, sources, on: _batch_scatter(scatter_add, size, sources, on),
)  # fmt: skip


def _remains(base: Node, index: Node, values: Node) -> Node:
    """Which values are the last for their position."""
    order = arange.leaf((prod(index.shape),), int64, index.device, start=0, step=1)
    order = mv.reshape(order, shape=index.shape)
    last = scatter(full(0, base.shape[:1], index, int64), index, order)
    remains = ew.eq(gather(last, index), order)
    rest = values.shape[len(index.shape) :]
    return mv.expand(mv.reshape(remains, shape=index.shape + (1,) * len(rest)), shape=values.shape)


# base with values written at their positions; of several for one position the last remains.
scatter: Op = Op(
    "scatter", "kernel", _infer_scatter, numpy=_scatter,
    gradient=(
        lambda g, out, base, index, values: scatter(g, index, full(0, values.shape, g)),
        None,
        lambda g, out, base, index, values: ew.where(
            _remains(base, index, values), gather(g, index), full(0, values.shape, g)
        ),
    ),
    batch=lambda size, sources, on: _batch_scatter(scatter, size, sources, on),
)  # fmt: skip

ROWS: tuple[Op, ...] = (*CHECKS, gather, scatter_add, scatter)
