"""Attention and its gradient, without the matrix of probabilities between them.

NumPy computes with the whole matrix, as do other targets whose kernels do not have the dtype or
the sizes: `as_nodes` is that composition. Its gradients of second and higher order are compositions
in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType, bool_, float32, int64
from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.common import arange, full, full_like, output, require_dtype, wide
from tinygrad_cuda.graph.ops.contraction import matmul, transpose

Array = np.ndarray[Any, Any]
NO_MASK = True  # of a constant mask: every query sees every key
WIDTHS = range(32, 257, 16)  # of heads of half types for which there are kernels


def summing(dtype: DType) -> DType:
    """The dtype of scores and of sums over keys."""
    return float32 if dtype.is_half else dtype


# Shapes -------------------------------------------------------------------------------------------


def _infer(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    q, k, v, mask = sources
    require_dtype(op.name, q, "float")
    _check_operands(op, q, k, v, mask)
    return (((*q.shape[:-1], v.shape[-1]), q.dtype), (q.shape[:-1], summing(q.dtype)))


def _infer_backward(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    g, q, k, v, logsumexp, delta, mask = sources
    _check_operands(op, q, k, v, mask)
    rows = q.shape[:-1], summing(q.dtype)
    given = (g.outputs[0], logsumexp.outputs[0], delta.outputs[0])
    expected = ((*q.shape[:-1], v.shape[-1]), q.dtype), rows, rows
    if given != expected:
        raise ShapeError(
            op.name, "the cotangent or the sums of rows do not fit", expect=str(expected),
            actual=str(given),
        )  # fmt: skip
    return q.outputs[0], k.outputs[0], v.outputs[0]


def _check_operands(op: Op, q: Node, k: Node, v: Node, mask: Node) -> None:
    if not q.dtype is k.dtype is v.dtype:
        raise DTypeError(
            op.name, "operands have different dtypes", expect=q.dtype.name,
            actual=f"{k.dtype.name}, {v.dtype.name}",
        )  # fmt: skip
    fits = k.shape[:-1] == v.shape[:-1] and q.shape[:-2] == k.shape[:-2]
    if not fits or q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            op.name, "query, key and value do not fit", expect="(*, L, E), (*, S, E), (*, S, V)",
            actual=f"{q.shape}, {k.shape}, {v.shape}",
        )  # fmt: skip
    scores = (*q.shape[:-1], k.shape[-2])
    spread = len(mask.shape) == len(scores)
    if not spread or any(a not in (1, b) for a, b in zip(mask.shape, scores)):
        raise ShapeError(
            op.name, "the mask does not fit the scores", expect=f"{scores}, or sizes of 1",
            actual=str(mask.shape),
        )  # fmt: skip


# NumPy --------------------------------------------------------------------------------------------


def _scores(q: Array, k: Array, mask: Array, causal: bool, scale: float) -> Array:
    """Scaled and masked scores."""
    scores = q @ np.swapaxes(k, -1, -2) * np.asarray(scale, q.dtype)
    if causal:
        seen = np.arange(k.shape[-2]) <= np.arange(q.shape[-2])[:, None]
        scores = np.where(seen, scores, -np.inf)
    if mask.dtype == np.bool_:
        return np.where(mask, scores, -np.inf).astype(q.dtype)
    return np.asarray(scores + mask.astype(q.dtype), q.dtype)


def _powers(scores: Array, largest: Array) -> Array:
    """exp(scores - largest); 0 in a row without a largest score."""
    hidden = np.isneginf(largest)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - largest[..., None])
    return np.where(hidden[..., None], 0, powers).astype(scores.dtype)


def _attention(
    q: Array, k: Array, v: Array, mask: Array, causal: bool, scale: float
) -> tuple[Array, Array]:
    high, low = wide(q.dtype), q.dtype
    scores = _scores(q.astype(high), k.astype(high), mask, causal, scale)
    largest = scores.max(-1, initial=-np.inf)
    powers = _powers(scores, largest)
    total = powers.sum(-1)
    with np.errstate(divide="ignore"):
        logsumexp = np.where(np.isneginf(largest), largest, largest + np.log(total))
    divisor = np.where(np.isneginf(largest), 1, total)[..., None]
    out = (powers / divisor) @ v.astype(high)
    return out.astype(low), logsumexp.astype(high)


def _attention_backward(
    g: Array, q: Array, k: Array, v: Array, logsumexp: Array, delta: Array, mask: Array,
    causal: bool, scale: float,
) -> tuple[Array, Array, Array]:  # fmt: skip
    high, low = wide(q.dtype), q.dtype
    g, q, k, v = (x.astype(high) for x in (g, q, k, v))
    shares = _powers(_scores(q, k, mask, causal, scale), logsumexp)
    factor = np.asarray(scale, high)
    with np.errstate(invalid="ignore"):
        scores = shares * (g @ np.swapaxes(v, -1, -2) - delta[..., None]) * factor
    dq, dk = scores @ k, np.swapaxes(scores, -1, -2) @ q
    return dq.astype(low), dk.astype(low), (np.swapaxes(shares, -1, -2) @ g).astype(low)


# Compositions -------------------------------------------------------------------------------------


def _widened(*nodes: Node) -> list[Node]:
    return [ew.cast(node, dtype=summing(node.dtype)) for node in nodes]


def _rows(node: Node, shape: Shape) -> Node:
    """A number of each row, for each of its elements."""
    return mv.expand(mv.reshape(node, shape=(*node.shape, 1)), shape=shape)


def row_sum(node: Node) -> Node:
    """The sum along the last axis, which is dropped."""
    total = rd.sum(node, axes=(len(node.shape) - 1,))
    return mv.reshape(total, shape=node.shape[:-1])


def _times(node: Node, number: float) -> Node:
    return ew.mul(node, full_like(node, number))


def _masked(scores: Node, mask: Node, causal: bool) -> Node:
    shape, hidden = scores.shape, full_like(scores, -float("inf"))
    if causal:
        seen = ew.le(_positions(shape, len(shape) - 1, scores), _positions(shape, -2, scores))
        scores = ew.where(seen, scores, hidden)
    wide_mask = mv.expand(mask, shape=shape)
    if mask.dtype is bool_:
        return ew.where(wide_mask, scores, hidden)
    return ew.add(scores, ew.cast(wide_mask, dtype=scores.dtype))


def _positions(shape: Shape, axis: int, like: Node) -> Node:
    axis %= len(shape)
    line = arange.leaf((shape[axis],), int64, like.device, start=0, step=1)
    apart = tuple(size if place == axis else 1 for place, size in enumerate(shape))
    return mv.expand(mv.reshape(line, shape=apart), shape=shape)


def _score_nodes(q: Node, k: Node, mask: Node, causal: bool, scale: float) -> Node:
    """Scaled and masked scores of wide operands."""
    return _masked(_times(matmul(q, transpose(k)), scale), mask, causal)


def _forward_nodes(
    q: Node, k: Node, v: Node, mask: Node, causal: bool, scale: float
) -> tuple[Node, ...]:
    """What the results of `attention` are, as other rows make them."""
    high = _widened(q, k, v)
    scores = _score_nodes(high[0], high[1], mask, causal, scale)
    rows = scores.shape[:-1]
    largest = mv.reshape(rd.max(scores, axes=(len(rows),)), shape=rows)
    hidden = ew.eq(largest, full_like(largest, -float("inf")))
    shift = ew.where(hidden, full_like(largest, 0), largest)
    powers = ew.exp(ew.sub(scores, _rows(shift, scores.shape)))
    total = row_sum(powers)
    divisor = ew.where(hidden, full_like(total, 1), total)
    shares = ew.div(powers, _rows(divisor, scores.shape))
    out = ew.cast(matmul(shares, high[2]), dtype=q.dtype)
    return out, ew.add(shift, ew.log(total))


class _GradientNodes:
    """The matrices that gradients of a first and second order share.

    Attributes:
        shares: the probabilities, from the rows' logarithms.
        moved: the gradient of the loss by a share, less its mean over the row.
        scores: the gradient by a score.
    """

    def __init__(self, sources: Sequence[Node], causal: bool, scale: float) -> None:
        g, q, k, v, logsumexp, delta, mask = sources
        self.scale = scale
        self.g, self.q, self.k, self.v = _widened(g, q, k, v)
        scores = _score_nodes(self.q, self.k, mask, causal, scale)
        hidden = ew.eq(logsumexp, full_like(logsumexp, -float("inf")))
        shift = ew.where(hidden, full_like(logsumexp, 0), logsumexp)
        self.shares = ew.exp(ew.sub(scores, _rows(shift, scores.shape)))
        by_share = matmul(self.g, transpose(self.v))
        self.moved = ew.sub(by_share, _rows(delta, scores.shape))
        self.scores = ew.mul(self.shares, self.moved)

    def results(self, dtype: DType) -> tuple[Node, ...]:
        """The gradients by queries, keys and values."""
        scores = _times(self.scores, self.scale)
        found = matmul(scores, self.k), matmul(transpose(scores), self.q)
        by_value = matmul(transpose(self.shares), self.g)
        return tuple(ew.cast(node, dtype=dtype) for node in (*found, by_value))


class _SecondOrderNodes(_GradientNodes):
    """Of cotangents of the three gradients: those of what the gradients were made from.

    Attributes:
        by_scores: of the gradient by a score.
        by_shares: of the probabilities.
        through: of scores, through the probabilities.
    """

    def __init__(
        self, gs: Sequence[Node | None], sources: Sequence[Node], causal: bool, scale: float
    ) -> None:
        super().__init__(sources, causal, scale)
        own = (self.q, self.k, self.v)
        a, b, self.e = (
            full_like(x, 0) if g is None else _widened(g)[0] for g, x in zip(gs, own, strict=True)
        )
        self.a, self.b = _times(a, scale), _times(b, scale)
        self.by_scores = ew.add(
            matmul(self.a, transpose(self.k)), matmul(self.q, transpose(self.b))
        )
        self.by_moved = ew.mul(self.by_scores, self.shares)
        by_shares = ew.add(matmul(self.g, transpose(self.e)), ew.mul(self.by_scores, self.moved))
        self.through = ew.mul(by_shares, self.shares)

    def cotangent(self, name: str) -> Node:
        """Of the source with this name."""
        return {
            "g": lambda: ew.add(matmul(self.by_moved, self.v), matmul(self.shares, self.e)),
            "q": lambda: ew.add(
                _times(matmul(self.through, self.k), self.scale), matmul(self.scores, self.b)
            ),
            "k": lambda: ew.add(
                _times(matmul(transpose(self.through), self.q), self.scale),
                matmul(transpose(self.scores), self.a),
            ),
            "v": lambda: matmul(transpose(self.by_moved), self.g),
            "logsumexp": lambda: ew.neg(row_sum(self.through)),
            "delta": lambda: ew.neg(row_sum(self.by_moved)),
            "mask": lambda: self.through,
        }[name]()


def as_nodes(node: Node) -> tuple[Node, ...]:
    """The results of a row as the composition that it stands for."""
    how = node.attributes
    if node.op is attention:
        q, k, v, mask = node.sources
        return _forward_nodes(q, k, v, mask, **how)
    return _GradientNodes(node.sources, **how).results(node.dtype)


# Gradients ----------------------------------------------------------------------------------------

Cotangents = tuple[Node | None, ...]


def _summed_to(node: Node, shape: Shape) -> Node:
    axes = tuple(axis for axis, size in enumerate(shape) if size != node.shape[axis])
    return rd.sum(node, axes=axes) if axes else node


def _of_results(index: int) -> Callable[..., Node]:
    """The rule of a query, key or value: a result of `attention_backward`."""

    def rule(
        gs: Cotangents, out: Node, q: Node, k: Node, v: Node, mask: Node, causal: bool, scale: float
    ) -> Node:
        given = _cotangents(gs, out)
        sources = (given[0], q, k, v, *given[1:], mask)
        return output(attention_backward(*sources, causal=causal, scale=scale), index=index)

    return rule


def _cotangents(gs: Cotangents, out: Node) -> tuple[Node, Node, Node]:
    """The cotangent of the values, the rows' logarithms, and what moves with all of a row."""
    value, logsumexp = output(out, index=0), output(out, index=1)
    g, g_rows = gs
    if g is None:
        g = full_like(value, 0)
    delta = row_sum(ew.mul(*_widened(g, value)))
    return g, logsumexp, delta if g_rows is None else ew.sub(delta, g_rows)


def _of_mask(
    gs: Cotangents, out: Node, q: Node, k: Node, v: Node, mask: Node, causal: bool, scale: float
) -> Node | None:
    """That of numbers that are added to the scores; it is as large as they are."""
    if mask.dtype is bool_:
        return None
    g, logsumexp, delta = _cotangents(gs, out)
    parts = _GradientNodes((g, q, k, v, logsumexp, delta, mask), causal, scale)
    return ew.cast(_summed_to(parts.scores, mask.shape), dtype=mask.dtype)


_SOURCES = ("g", "q", "k", "v", "logsumexp", "delta", "mask")


def _of_source(name: str) -> Callable[..., Node | None]:
    """The rule of a source of `attention_backward`."""

    def rule(gs: Cotangents, out: Node, *sources: Node, causal: bool, scale: float) -> Node | None:
        source = sources[_SOURCES.index(name)]
        if source.dtype is bool_:
            return None
        found = _SecondOrderNodes(gs, sources, causal, scale).cotangent(name)
        return ew.cast(_summed_to(found, source.shape), dtype=source.dtype)

    return rule


# Rows ---------------------------------------------------------------------------------------------


def _batched(row: Callable[[], Op]) -> Callable[..., Node]:
    def batch(size: int, sources: tuple[Node, ...], on: tuple[bool, ...], **how: Any) -> Node:
        *operands, mask = sources
        own = [x if y else mv.batched(x, size) for x, y in zip(operands, on)]
        wide_mask = mask if on[-1] else mv.reshape(mask, shape=(1, *mask.shape))
        return row()(*own, wide_mask, **how)

    return batch


# q (*, L, E), k (*, S, E), v (*, S, V), mask (*, L, S) or sizes of 1: bool, True where a key is
# seen, or numbers that are added ->
#   softmax(q k.T * scale, masked) v (*, L, V), and log(sum(exp(scores))) (*, L)
# `causal`: a query sees keys up to its own position. A query that sees no key gives 0 and -inf.
attention: Op = Op(
    "attention", "kernel", _infer, numpy=_attention,
    gradient=(*map(_of_results, range(3)), _of_mask), batch=_batched(lambda: attention),
)  # fmt: skip

# The cotangents of q, k and v, from that of the values, g (*, L, V); logsumexp (*, L) is the second
# result of `attention`, and delta (*, L) the sum of g * values less the cotangent of logsumexp.
attention_backward: Op = Op(
    "attention_backward", "kernel", _infer_backward, numpy=_attention_backward,
    gradient=tuple(map(_of_source, _SOURCES)), batch=_batched(lambda: attention_backward),
)  # fmt: skip

ROWS: tuple[Op, ...] = (attention, attention_backward)


def no_mask(q: Node) -> Node:
    """The mask of which every key is seen."""
    return full(NO_MASK, (1,) * len(q.shape), q, bool_)
