"""Samples of attention and its gradient: masks, causal borders, hidden rows, views, all dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sampling import FLOATS, VIEWS, Array, Sample, generator, plain, some

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops.attention import attention, attention_backward
from tinygrad_cuda.graph.ops.common import output

# Batch, L, S, E, V, mask, causal.
SIZES: tuple[tuple[tuple[int, ...], int, int, int, int, str, bool], ...] = (
    ((), 3, 4, 2, 3, "none", False),
    ((2,), 4, 4, 3, 2, "none", True),
    ((2, 3), 3, 5, 4, 4, "bool", False),
    ((2, 1), 5, 3, 2, 2, "added", True),
    ((2,), 3, 4, 2, 2, "row", False),
)


def _mask(rng: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: Any) -> Array:
    ones = (1,) * len(shape)
    if kind == "bool":
        seen = rng.random((1, *shape[1:])) > 0.4
        seen[..., 1, :] = False  # this query sees nothing
        return seen
    if kind == "row":
        return np.arange(shape[-1]).reshape(*ones[1:], -1) < shape[-1] - 1
    if kind == "added":
        return rng.standard_normal(shape).astype(dtype)
    return np.ones(ones, bool)


def _one(
    x: Array, y: Array, z: Array, mask: Array, keep_mask: Array, causal: bool, scale: float,
    dropout: float,
) -> Any:  # fmt: skip
    """A query at a time."""
    x, y, z = (a.astype(np.float64) for a in (x, y, z))
    out, sums = np.zeros((*x.shape[:-1], z.shape[-1])), np.full(x.shape[:-1], -np.inf)
    wide = np.broadcast_to(mask, (*x.shape[:-1], y.shape[-2]))
    factors = np.broadcast_to(keep_mask / (1 - dropout), wide.shape)
    for at in np.ndindex(x.shape[:-1]):
        scores = y[at[:-1]] @ x[at] * scale
        shown = np.arange(len(scores)) <= at[-1] if causal else np.ones(len(scores), bool)
        if mask.dtype == np.bool_:
            shown = shown & wide[at]
        else:
            scores = scores + wide[at].astype(np.float64)
        powers = np.exp(scores[shown])
        if shown.any():
            out[at] = powers * factors[at][shown] @ z[at[:-1]][shown] / powers.sum()
            sums[at] = np.log(powers.sum())
    return out, sums


def samples() -> Iterator[Sample]:
    for dtype in FLOATS:
        for number, (batch, queries, keys, e, v, kind, causal) in enumerate(SIZES):
            label = f"{dtype.name} {batch} {queries} {keys} {e} {v} {kind} {causal}"
            rng = generator(label)
            view = VIEWS[("plain", "transposed", "sliced")[number % 3]]
            arrays = (
                some(rng, (*batch, queries, e), dtype),
                some(rng, (*batch, keys, e), dtype),
                some(rng, (*batch, keys, v), dtype),
            )
            mask = _mask(rng, kind, (*batch, queries, keys), dtype.numpy)
            smooth = dtype is dtypes.float64 and kind != "bool"  # a hidden row has no logarithm
            dropout = 0.25 * (number % 2)
            keep_mask = rng.random((*batch, queries, keys)) >= dropout
            how = {"causal": causal, "scale": 0.7, "dropout": dropout}
            sources = (*map(view, arrays), plain(mask), plain(keep_mask))
            yield Sample(
                attention, label, sources, how, build=_results, differentiate=smooth,
                expected=_expected if dtype is not dtypes.bfloat16 else None, loose=4,
            )  # fmt: skip
            g = some(rng, (*batch, queries, v), dtype)
            yield Sample(
                attention_backward, label, (view(g), *sources), how, build=_gradients,
                expected=_expected_gradients if dtype is dtypes.float64 else None,
                differentiate=smooth, loose=8,
            )  # fmt: skip


def _results(*sources: Node, **how: Any) -> tuple[Node, ...]:
    node = attention(*sources, **how)
    out, logsumexp = output(node, index=0), output(node, index=1)
    return out, logsumexp


def _expected(*arrays: Array, **how: Any) -> Any:
    out, sums = _one(*arrays, **how)
    return out.astype(arrays[0].dtype), sums.astype(_wide(arrays[0].dtype))


def _expected_gradients(g: Array, *arrays: Array, **how: Any) -> Any:
    """From the weights of each query: ``dS = P (dP - sum of P dP)``."""
    q, k, v, mask, keep_mask = arrays
    one = np.broadcast_to(np.eye(k.shape[-2]), (*k.shape[:-2], *2 * k.shape[-2:-1]))
    weights, _ = _one(q, k, one, mask, np.ones_like(keep_mask), **{**how, "dropout": 0.0})
    factors = keep_mask / (1 - how["dropout"])
    slopes = g @ np.swapaxes(v, -1, -2) * factors
    slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True)) * how["scale"]
    return slopes @ k, np.swapaxes(slopes, -1, -2) @ q, np.swapaxes(weights * factors, -1, -2) @ g


def _wide(dtype: Any) -> Any:
    return np.float32 if np.dtype(dtype).itemsize == 2 else dtype


def _gradients(
    g: Node, q: Node, k: Node, v: Node, mask: Node, keep_mask: Node, **how: Any
) -> tuple[Node, ...]:
    """With the rows' sums as `attention` gives them."""
    from tinygrad_cuda.graph.ops import elementwise as ew
    from tinygrad_cuda.graph.ops import reduction as rd
    from tinygrad_cuda.graph.ops.movement import reshape

    node = attention(q, k, v, mask, keep_mask, **how)
    out, logsumexp = output(node, index=0), output(node, index=1)
    wide = [ew.cast(x, dtype=logsumexp.dtype) for x in (g, out)]
    delta = reshape(rd.sum(ew.mul(*wide), axes=(len(g.shape) - 1,)), shape=g.shape[:-1])
    whole = attention_backward(g, q, k, v, logsumexp, delta, mask, keep_mask, **how)
    return tuple(output(whole, index=index) for index in range(3))
