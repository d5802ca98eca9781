"""Scaled dot-product attention, and the multi-head attention built on it (Vaswani et al., 2017)."""

from __future__ import annotations

import math
from typing import Any

from tinygrad_cuda.core.dtypes import bool_
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.nn.functional_linear import dropout, linear
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.tensor.autocast import in_half
from tinygrad_cuda.tensor.creation import arange, zeros
from tinygrad_cuda.tensor.joining import cat
from tinygrad_cuda.tensor.tensor import Tensor


def _causal(queries: int, keys: int, like: Tensor) -> Tensor:
    """Which keys each query may see: those not after it."""
    device = like.device
    seen: Tensor = arange(keys, device=device) <= arange(queries, device=device).unsqueeze(1)
    return seen


def _attention_weights(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    factor = 1.0 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        scores = where(_causal(query.shape[-2], key.shape[-2], query), scores, -float("inf"))
    if attn_mask is not None and attn_mask.dtype is bool_:
        scores = where(attn_mask, scores, -float("inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1)


@in_half
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    r"""``softmax(query key.T * scale + mask) value``.

    Args:
        query: shape (\*, L, E).
        key: shape (\*, S, E).
        value: shape (\*, S, V).
        attn_mask: broadcasts to (\*, L, S); bool: True where a key is seen; else added.
        dropout_p: the probability with which a weight is dropped, also in evaluation.
        is_causal: a query sees keys up to its own position; excludes attn_mask.
        scale: ``1 / sqrt(E)`` when left out.
        enable_gqa: queries have a multiple of the heads of keys and values; heads are repeated.

    Returns:
        Shape (\*, L, V); a query that sees no key gives NaN.

    Raises:
        ArgumentError: both is_causal and attn_mask.
        ShapeError: the last sizes of query and key differ.

    Example:
        >>> import tinygrad_cuda as tc
        >>> q = tc.zeros(1, 2, 4, device="cpu")
        >>> v = tc.tensor([[[0.0], [1.0]]], device="cpu")
        >>> scaled_dot_product_attention(q, q, v, is_causal=True).tolist()
        [[[0.0], [0.5]]]
    """
    op = "scaled_dot_product_attention"
    if is_causal and attn_mask is not None:
        raise ArgumentError(
            op, "is_causal and attn_mask exclude each other", expect="one of them", actual="both"
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            op, "query, key and value do not fit", expect="(*, L, E), (*, S, E), (*, S, V)",
            actual=f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}",
        )  # fmt: skip
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    weights = _attention_weights(query, key, attn_mask, is_causal, scale)
    result: Tensor = dropout(weights, dropout_p) @ value
    return result


class Heads:
    """Multi-head attention on batch-first inputs with the projections already made.

    Args:
        query, key, value: shapes (N, L, E), (N, S, E), (N, S, E), projected.
        num_heads: how many heads share E.
    """

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> None:
        self.batch, self.queries, self.width = query.shape
        self.heads, self.each = num_heads, self.width // num_heads
        self.query = self._apart(query)
        self.key, self.value = self._apart(key), self._apart(value)

    def _apart(self, x: Tensor) -> Tensor:
        return x.reshape(self.batch, x.shape[1], self.heads, self.each).transpose(1, 2)

    def with_zero(self) -> None:
        """A key and a value of zeros at the end."""
        nothing = zeros(
            self.batch, self.heads, 1, self.each, device=self.key.device, dtype=self.key.dtype
        )
        self.key = cat([self.key, nothing], 2)
        self.value = cat([self.value, nothing], 2)

    def attend(
        self, mask: Tensor | None, dropout_p: float, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Values of shape (N, L, E), and the weights (N, heads, L, S)."""
        weights = _attention_weights(self.query, self.key, mask, False, None)
        weights = dropout(weights, dropout_p, training)
        mixed = weights @ self.value
        return mixed.transpose(1, 2).reshape(self.batch, self.queries, self.width), weights


def as_added(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask of hidden places (bool, True is hidden) as numbers to add."""
    if mask is None or mask.dtype is not bool_:
        return mask
    nothing = zeros((), device=like.device, dtype=like.dtype)
    return where(mask, -float("inf"), nothing)


def joint_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, heads: Heads, extra: int
) -> Tensor | None:
    """Both masks as one, to add to (N, heads, L, S); `extra` keys at the end are always seen."""
    like = heads.query
    mask = as_added(attn_mask, like)
    if mask is not None:
        if mask.ndim == 3:
            mask = mask.reshape(heads.batch, heads.heads, *mask.shape[1:])
        mask = _widened(mask, extra)
    padding = as_added(key_padding_mask, like)
    if padding is None:
        return mask
    padding = _widened(padding, extra).reshape(heads.batch, 1, 1, -1)
    return padding if mask is None else mask + padding


def _widened(mask: Tensor, extra: int) -> Tensor:
    if not extra:
        return mask
    seen = zeros(*mask.shape[:-1], extra, device=mask.device, dtype=mask.dtype)
    return cat([mask, seen], -1)


def in_projection(
    query: Tensor, key: Tensor, value: Tensor, weights: Any, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value through their own linear maps."""
    if not isinstance(weights, tuple):
        width = weights.shape[0] // 3
        if query is key and key is value:
            whole = linear(query, weights, bias)
            first, second, third = whole.split(width, -1)
            return first, second, third
        weights = weights.split(width, 0)
    width = weights[0].shape[0]
    shifts = (None, None, None) if bias is None else bias.split(width, 0)
    parts = [linear(x, w, b) for x, w, b in zip((query, key, value), weights, shifts)]
    return parts[0], parts[1], parts[2]
