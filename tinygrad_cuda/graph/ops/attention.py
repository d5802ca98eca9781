"""Attention and its gradient, without the matrix of probabilities between them.

NumPy computes with the whole matrix, as do other targets whose kernels do not have the dtype or
the sizes: `as_nodes` is that composition. Its gradients of second and higher order are compositions
in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import DType, bool_, float32, int64
from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.core.shapes import Shape, contiguous_strides
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.common import arange, full, full_like, output, require_dtype, wide
from tinygrad_cuda.graph.ops.contraction import matmul, transpose

Array = np.ndarray[Any, Any]
NO_MASK = True  # of a constant mask: every query sees every key
ALL = np.ones((), bool)  # no weight is dropped
WIDTHS = range(32, 257, 16)  # of heads of half types for which there are kernels


class Placement(NamedTuple):
    """Where a kernel stores a result.

    Attributes:
        output: the number of the row's output of which it is a part, or which it is.
        offset: of its first element there.
        strides: from element to element along its axes.
    """

    output: int
    offset: int
    strides: Shape


def placements_of(node: Node) -> tuple[Placement, ...]:
    """Of each result of a row; without others they are outputs of their own, row-major."""
    given: tuple[Placement, ...] | None = node.attributes.get("placements")
    if given is not None:
        return given
    shapes = (shape for shape, _ in node.outputs)
    return tuple(Placement(k, 0, contiguous_strides(shape)) for k, shape in enumerate(shapes))


def summing(dtype: DType) -> DType:
    """The dtype of scores and of sums over keys."""
    return float32 if dtype.is_half else dtype


# Shapes -------------------------------------------------------------------------------------------


def _infer(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    q, k, v, mask, keep_mask = sources
    require_dtype(op.name, q, "float")
    _check_operands(op, q, k, v, mask, keep_mask)
    return (((*q.shape[:-1], v.shape[-1]), q.dtype), (q.shape[:-1], summing(q.dtype)))


def _infer_backward(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    g, q, k, v, logsumexp, delta, mask, keep_mask = sources
    _check_operands(op, q, k, v, mask, keep_mask)
    rows = q.shape[:-1], summing(q.dtype)
    given = (g.outputs[0], logsumexp.outputs[0], delta.outputs[0])
    expected = ((*q.shape[:-1], v.shape[-1]), q.dtype), rows, rows
    if given != expected:
        raise ShapeError(
            op.name, "the cotangent or the sums of rows do not fit", expect=str(expected),
            actual=str(given),
        )  # fmt: skip
    return q.outputs[0], k.outputs[0], v.outputs[0]


def _check_operands(op: Op, q: Node, k: Node, v: Node, mask: Node, keep_mask: Node) -> None:
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
    for name, node in (("the mask does", mask), ("the keep mask does", keep_mask)):
        spread = len(node.shape) == len(scores)
        if not spread or any(a not in (1, b) for a, b in zip(node.shape, scores)):
            raise ShapeError(
                op.name, f"{name} not fit the scores", expect=f"{scores}, or sizes of 1",
                actual=str(node.shape),
            )  # fmt: skip
    if keep_mask.dtype is not bool_:
        raise DTypeError(
            op.name, "the keep mask is not boolean", expect="bool", actual=keep_mask.dtype.name
        )


# NumPy --------------------------------------------------------------------------------------------


def dropout_scale(dropout: float) -> float:
    """What dropout multiplies the remaining weights by: 1 / (1 - p)."""
    return 1 / (1 - dropout) if dropout < 1 else 1.0


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
    q: Array, k: Array, v: Array, mask: Array, keep_mask: Array = ALL, *, causal: bool,
    scale: float, dropout: float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    high, low = wide(q.dtype), q.dtype
    scores = _scores(q.astype(high), k.astype(high), mask, causal, scale)
    largest = scores.max(-1, initial=-np.inf)
    powers = _powers(scores, largest)
    total = powers.sum(-1)
    with np.errstate(divide="ignore"):
        logsumexp = np.where(np.isneginf(largest), largest, largest + np.log(total))
    divisor = np.where(np.isneginf(largest), 1, total)[..., None]
    shares = np.where(keep_mask, powers / divisor * dropout_scale(dropout), 0).astype(high)
    out = shares @ v.astype(high)
    return out.astype(low), logsumexp.astype(high)


def _attention_backward(
    g: Array, q: Array, k: Array, v: Array, logsumexp: Array, delta: Array, mask: Array,
    keep_mask: Array = ALL, *, causal: bool, scale: float, dropout: float = 0.0,
    of_values: bool = False,
) -> tuple[Array, Array, Array]:  # fmt: skip
    high, low = wide(q.dtype), q.dtype
    g, q, k, v = (x.astype(high) for x in (g, q, k, v))
    if of_values:
        delta = (g * delta.astype(high)).sum(-1)
    shares = _powers(_scores(q, k, mask, causal, scale), logsumexp)
    factor = np.asarray(scale, high)
    weights = np.where(keep_mask, np.asarray(dropout_scale(dropout), high), 0)  # of shares
    with np.errstate(invalid="ignore"):
        by_share = g @ np.swapaxes(v, -1, -2) * weights
        scores = shares * (by_share - delta[..., None]) * factor
    dq, dk = scores @ k, np.swapaxes(scores, -1, -2) @ q
    dropped = shares * weights
    return dq.astype(low), dk.astype(low), (np.swapaxes(dropped, -1, -2) @ g).astype(low)


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
    apart = tuple(size if number == axis else 1 for number, size in enumerate(shape))
    return mv.expand(mv.reshape(line, shape=apart), shape=shape)


def _score_nodes(q: Node, k: Node, mask: Node, causal: bool, scale: float) -> Node:
    """Scaled and masked scores of wide operands."""
    return _masked(_times(matmul(q, transpose(k)), scale), mask, causal)


def _apply_dropout(shares: Node, keep_mask: Node, dropout: float) -> Node:
    """The shares where the keep mask is True, scaled to keep their expected value; else 0."""
    if not dropout:
        return shares
    spread = mv.expand(keep_mask, shape=shares.shape)
    return ew.where(spread, _times(shares, dropout_scale(dropout)), full_like(shares, 0))


def _forward_nodes(
    q: Node, k: Node, v: Node, mask: Node, keep_mask: Node, causal: bool, scale: float,
    dropout: float,
) -> tuple[Node, ...]:  # fmt: skip
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
    shares = _apply_dropout(ew.div(powers, _rows(divisor, scores.shape)), keep_mask, dropout)
    out = ew.cast(matmul(shares, high[2]), dtype=q.dtype)
    return out, ew.add(shift, ew.log(total))


class _GradientNodes:
    """The matrices that gradients of a first and second order share.

    Attributes:
        shares: the probabilities, from the rows' logarithms.
        dropped: the shares after dropout.
        moved: the gradient of the loss by a share, less its mean over the row.
        scores: the gradient by a score.
    """

    def __init__(self, sources: Sequence[Node], causal: bool, scale: float, dropout: float) -> None:
        g, q, k, v, logsumexp, delta, mask, self.keep_mask = sources
        self.scale, self.dropout = scale, dropout
        self.g, self.q, self.k, self.v = _widened(g, q, k, v)
        scores = _score_nodes(self.q, self.k, mask, causal, scale)
        hidden = ew.eq(logsumexp, full_like(logsumexp, -float("inf")))
        shift = ew.where(hidden, full_like(logsumexp, 0), logsumexp)
        self.shares = ew.exp(ew.sub(scores, _rows(shift, scores.shape)))
        self.dropped = self.apply_dropout(self.shares)
        by_share = self.apply_dropout(matmul(self.g, transpose(self.v)))
        self.moved = ew.sub(by_share, _rows(delta, scores.shape))
        self.scores = ew.mul(self.shares, self.moved)

    def apply_dropout(self, matrix: Node) -> Node:
        """Dropout of a matrix as large as the scores, with the mask of the weights."""
        return _apply_dropout(matrix, self.keep_mask, self.dropout)

    def results(self, dtype: DType) -> tuple[Node, ...]:
        """The gradients by queries, keys and values."""
        scores = _times(self.scores, self.scale)
        products = matmul(scores, self.k), matmul(transpose(scores), self.q)
        by_value = matmul(transpose(self.dropped), self.g)
        return tuple(ew.cast(node, dtype=dtype) for node in (*products, by_value))


class _SecondOrderNodes(_GradientNodes):
    """Of cotangents of the three gradients: those of what the gradients were made from.

    Attributes:
        by_scores: of the gradient by a score.
        by_moved: of the gradient by a share, less its mean.
        by_products: of the products of cotangents and values.
        through: of scores, through the probabilities.
    """

    def __init__(
        self, gs: Sequence[Node | None], sources: Sequence[Node], causal: bool, scale: float,
        dropout: float,
    ) -> None:  # fmt: skip
        super().__init__(sources, causal, scale, dropout)
        own = (self.q, self.k, self.v)
        a, b, self.e = (
            full_like(x, 0) if g is None else _widened(g)[0] for g, x in zip(gs, own, strict=True)
        )
        self.a, self.b = _times(a, scale), _times(b, scale)
        self.by_scores = ew.add(
            matmul(self.a, transpose(self.k)), matmul(self.q, transpose(self.b))
        )
        by_shares = self.apply_dropout(matmul(self.g, transpose(self.e)))
        by_shares = ew.add(by_shares, ew.mul(self.by_scores, self.moved))
        self.by_moved = ew.mul(self.by_scores, self.shares)
        self.by_products = self.apply_dropout(self.by_moved)
        self.through = ew.mul(by_shares, self.shares)

    def cotangent(self, name: str) -> Node:
        """Of the source with this name."""
        return {
            "g": lambda: ew.add(matmul(self.by_products, self.v), matmul(self.dropped, self.e)),
            "q": lambda: ew.add(
                _times(matmul(self.through, self.k), self.scale), matmul(self.scores, self.b)
            ),
            "k": lambda: ew.add(
                _times(matmul(transpose(self.through), self.q), self.scale),
                matmul(transpose(self.scores), self.a),
            ),
            "v": lambda: matmul(transpose(self.by_products), self.g),
            "logsumexp": lambda: ew.neg(row_sum(self.through)),
            "delta": lambda: ew.neg(row_sum(self.by_moved)),
            "mask": lambda: self.through,
        }[name]()


def as_nodes(node: Node) -> tuple[Node, ...]:
    """The results of a row as the composition that it stands for."""
    how = node.attributes
    if node.op is attention:
        q, k, v, mask, keep_mask = node.sources
        return _forward_nodes(q, k, v, mask, keep_mask, **how)
    return _GradientNodes(node.sources, **how).results(node.dtype)


# Gradients ----------------------------------------------------------------------------------------

Cotangents = tuple[Node | None, ...]


def _summed_to(node: Node, shape: Shape) -> Node:
    axes = tuple(axis for axis, size in enumerate(shape) if size != node.shape[axis])
    return rd.sum(node, axes=axes) if axes else node


def _of_results(index: int) -> Callable[..., Node]:
    """The rule of a query, key or value: a result of `attention_backward`."""

    def rule(
        gs: Cotangents, out: Node, q: Node, k: Node, v: Node, mask: Node, keep_mask: Node,
        **how: Any,
    ) -> Node:  # fmt: skip
        given = _cotangents(gs, out)
        sources = (given[0], q, k, v, *given[1:], mask, keep_mask)
        return output(attention_backward(*sources, **how), index=index)

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
    gs: Cotangents, out: Node, q: Node, k: Node, v: Node, mask: Node, keep_mask: Node, **how: Any
) -> Node | None:
    """That of numbers that are added to the scores; it is as large as they are."""
    if mask.dtype is bool_:
        return None
    g, logsumexp, delta = _cotangents(gs, out)
    parts = _GradientNodes((g, q, k, v, logsumexp, delta, mask, keep_mask), **how)
    return ew.cast(_summed_to(parts.scores, mask.shape), dtype=mask.dtype)


_SOURCES = ("g", "q", "k", "v", "logsumexp", "delta", "mask", "keep_mask")


def _of_source(name: str) -> Callable[..., Node | None]:
    """The rule of a source of `attention_backward`."""

    def rule(gs: Cotangents, out: Node, *sources: Node, **how: Any) -> Node | None:
        source = sources[_SOURCES.index(name)]
        if source.dtype is bool_:
            return None
        cotangent = _SecondOrderNodes(gs, sources, **how).cotangent(name)
        return ew.cast(_summed_to(cotangent, source.shape), dtype=source.dtype)

    return rule


# Rows ---------------------------------------------------------------------------------------------


def _batched(row: Callable[[], Op]) -> Callable[..., Node]:
    def batch(size: int, sources: tuple[Node, ...], on: tuple[bool, ...], **how: Any) -> Node:
        own = [x if y else mv.batched(x, size) for x, y in zip(sources[:-2], on)]
        spread = [
            x if y else mv.reshape(x, shape=(1, *x.shape)) for x, y in zip(sources[-2:], on[-2:])
        ]
        return row()(*own, *spread, **how)

    return batch


class AttentionOp(Op):
    """A row whose last source, the keep mask of dropout, may be left out: then nothing is dropped.

    Attributes:
        count: of its sources.
    """

    __slots__ = ("count",)

    def __init__(self, name: str, *row: Any, count: int, **options: Any) -> None:
        super().__init__(name, "kernel", *row, **options)
        self.count = count

    def __call__(self, *sources: Node, **attributes: Any) -> Node:
        if len(sources) < self.count:
            sources = (*sources, no_mask(sources[0]))
        return super().__call__(*sources, **{"dropout": 0.0, **attributes})


# q (*, L, E), k (*, S, E), v (*, S, V), mask (*, L, S) or sizes of 1: bool, True where a key is
# seen, or numbers that are added; keep_mask, as large: bool, True where a weight is not dropped ->
#   dropped(softmax(q k.T * scale, masked)) v (*, L, V), and log(sum(exp(scores))) (*, L)
# `causal`: a query sees keys up to its own position. A query that sees no key gives 0 and -inf.
# `dropout`: the probability p with which weights are dropped; others are divided by 1 - p.
attention: Op = AttentionOp(
    "attention", _infer, numpy=_attention, count=5,
    gradient=(*map(_of_results, range(3)), _of_mask, None), batch=_batched(lambda: attention),
)  # fmt: skip

# The cotangents of q, k and v, from that of the values, g (*, L, V); logsumexp (*, L) is the second
# result of `attention`, and delta (*, L) the sum of g * values less the cotangent of logsumexp.
# Within a plan the values may stand in delta's place, if the attribute `of_values` says so: a
# library sums their product with g itself (lowering/skeletons/attention/library.py).
attention_backward: Op = AttentionOp(
    "attention_backward", _infer_backward, numpy=_attention_backward, count=8,
    gradient=(*map(_of_source, _SOURCES[:-1]), None), batch=_batched(lambda: attention_backward),
)  # fmt: skip

ROWS: tuple[Op, ...] = (attention, attention_backward)


def no_mask(q: Node) -> Node:
    """The mask of which every key is seen."""
    return full(NO_MASK, (1,) * len(q.shape), q, bool_)
