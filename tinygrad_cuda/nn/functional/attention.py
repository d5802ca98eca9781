"""Scaled dot-product attention, and the multi-head attention built on it (Vaswani et al., 2017)."""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import Any

from tinygrad_cuda.core.config import SPLIT, settings
from tinygrad_cuda.core.dtypes import bool_, float32
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError, describe_site
from tinygrad_cuda.graph.node import current_site
from tinygrad_cuda.graph.ops.attention import WIDTHS, attention, no_mask
from tinygrad_cuda.graph.ops.common import full, output
from tinygrad_cuda.nn.functional.linears import dropout, linear
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.tensors.autocast import in_half, is_autocast_enabled
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import arange, zeros
from tinygrad_cuda.tensors.layout import fresh
from tinygrad_cuda.tensors.opmath import rounded_once
from tinygrad_cuda.tensors.random import draw_keep_mask
from tinygrad_cuda.tensors.reductions import masked_softmax
from tinygrad_cuda.tensors.shaping import broadcast_shapes, cat
from tinygrad_cuda.tensors.tensor import Tensor

LONG = 1024  # tokens from which on most tiles of float32 units lie on one side of the border
WIDE = 128  # of heads, whose gradients' tiles fit in shared memory


def _causal(queries: int, keys: int, like: Tensor) -> Tensor:
    """Which keys each query may see: those not after it."""
    device = like.device
    seen: Tensor = arange(keys, device=device) <= arange(queries, device=device).unsqueeze(1)
    return seen


def _has_kernels(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> bool:
    """Whether one op attends without the matrix of weights; `TGC_DEBUG=3` prints why not."""
    reason = _refusal(query, key, value, mask, causal)
    if reason and settings.debug >= 3 and query.device.kind != "cpu":
        line = describe_site(current_site())
        _print_once(f"attention by products and softmax: {line}: {reason}")
    return not reason


@lru_cache(maxsize=1024)
def _print_once(text: str) -> None:
    """A loop passes the same line with the same reason in every step."""
    print(text, file=sys.stderr)


def _refusal(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> str:
    """Why products and a softmax attend instead of one op; empty where the op does."""
    kind, dtype = query.device.kind, query.dtype
    if kind == "cpu":
        return "cpu has no kernels"
    if not dtype is key.dtype is value.dtype:
        return f"dtypes {dtype.name}, {key.dtype.name} and {value.dtype.name}"
    if not (dtype.is_half or dtype is float32):
        return f"{dtype.name} has no kernels"
    exact = dtype is float32 and settings.matmul_precision not in SPLIT
    if exact and not _worth_float_units(query, key, causal):
        precision = f"float32 at {settings.matmul_precision!r} has no matrix units"
        return (
            f"{precision}, and without them one op is as quick for long causal rows on cuda alone"
        )
    for width in (query.shape[-1], value.shape[-1]):
        if width not in WIDTHS:
            return f"heads of {width}, not of a multiple of 16 from {WIDTHS[0]} to {WIDTHS[-1]}"
    if 0 in (*query.shape, *key.shape):
        return "a dimension of size 0"
    return "" if mask is None else _mask_refusal(query, key, value, mask)


def _mask_refusal(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> str:
    if mask.ndim > max(query.ndim, key.ndim, value.ndim):
        return "the mask has more dimensions than the operands"
    if mask.dtype is bool_:
        return ""
    if mask.dtype is not query.dtype:
        return f"a mask of {mask.dtype.name} beside {query.dtype.name}"
    return "the mask requires grad" if mask.requires_grad else ""


def _worth_float_units(query: Tensor, key: Tensor, causal: bool) -> bool:
    """Whether the op takes no longer than the composition where neither has matrix units.

    8 x 12 heads of 1024 x 64, causal, with gradients: the op multiplies in 9 products of half the
    scores, 58 GFLOP in 2.45 ms on an H200, and stores no matrix of 0.4 GB. The composition
    multiplies in 6 products of all scores, 77 GFLOP, moves 11 such matrices and keeps one, some
    2.7 ms. Without the border, or where it crosses every tile, the op's FLOPs double.
    """
    long = min(query.shape[-2], key.shape[-2]) >= LONG
    return query.device.kind == "cuda" and causal and long and query.shape[-1] <= WIDE


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
    scale: float | None, dropout_p: float,
) -> Tensor:  # fmt: skip
    """Attention as one op; the gradient makes weights, and which are dropped, again."""
    batch = broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    if mask is not None:
        batch = broadcast_shapes(batch, mask.shape[:-2])
    q, k, v = (x.expand(*batch, *x.shape[-2:]).node for x in (query, key, value))
    seen = no_mask(q)
    if mask is not None:
        seen = mask.reshape(*(1,) * (len(batch) + 2 - mask.ndim), *mask.shape).node
    keep_mask = no_mask(q)
    if dropout_p:
        if not 0.0 <= dropout_p <= 1.0:
            raise ArgumentError(
                "dropout", "p is no probability", expect="0 <= p <= 1", actual=str(dropout_p)
            )
        scores = full(0.0, (*q.shape[:-1], k.shape[-2]), q, float32)
        keep_mask = draw_keep_mask(scores, 1.0 - dropout_p)
    how = {"causal": causal, "scale": _factor(query, scale), "dropout": float(dropout_p)}
    return wrap(output(attention(q, k, v, seen, keep_mask, **how), index=0))


def _factor(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)


def _plain_weights(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    scores = (query * _factor(query, scale)) @ key.transpose(-2, -1)
    if is_causal:
        scores = where(_causal(query.shape[-2], key.shape[-2], query), scores, -float("inf"))
    if attn_mask is not None and attn_mask.dtype is bool_:
        scores = where(attn_mask, scores, -float("inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) if attn_mask is None else masked_softmax(scores)


# A score of a half type has an error of half a unit of its last digit: exp amplifies it.
_attention_weights = rounded_once(_plain_weights)


@templated
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
        Shape (\*, L, V); a query that sees no key gives zeros.

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
    check_mask(op, "attn_mask", attn_mask)
    if enable_gqa:
        times = _group_size(op, query.shape[-3], key.shape[-3])
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    if _has_kernels(query, key, value, attn_mask, is_causal):
        return _attend(query, key, value, attn_mask, is_causal, scale, dropout_p)
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
        self, mask: Tensor | None, dropout_p: float, training: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Values of shape (N, L, E), and the weights (N, heads, L, S) if they are needed."""
        if not need_weights and _has_kernels(self.query, self.key, self.value, mask, False):
            dropped = dropout_p if training else 0.0
            mixed = _attend(self.query, self.key, self.value, mask, False, None, dropped)
            return self._joined(mixed), None
        # Under autocast the product is in a half type, and the weights in float32.
        cast = is_autocast_enabled(self.query.device.kind)
        made = _plain_weights if cast else _attention_weights
        weights = made(self.query, self.key, mask, False, None)
        weights = dropout(weights, dropout_p, training)
        return self._joined(weights @ self.value), weights

    def _joined(self, mixed: Tensor) -> Tensor:
        joined: Tensor = mixed.transpose(1, 2).reshape(self.batch, self.queries, self.width)
        return joined


def check_mask(op: str, name: str, mask: Tensor | None) -> None:
    """Raises for a mask of integers, which could mean either kind of mask."""
    if mask is not None and mask.dtype is not bool_ and not mask.dtype.is_floating:
        raise DTypeError(
            op, f"{name} is neither a mask nor added", expect="bool, or a floating dtype",
            actual=mask.dtype.name, hint=f"{name}.bool()",
        )  # fmt: skip


def _group_size(op: str, queries: int, keys: int) -> int:
    """How many heads of the query share a head of key and value."""
    if queries == keys:
        return 1
    if not keys or queries % keys:
        raise ShapeError(
            op, "the heads do not divide", expect="heads of key and value that divide the query's",
            actual=f"{keys} and {queries}",
        )  # fmt: skip
    return queries // keys


def as_added(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask of hidden positions (bool, True is hidden) as numbers to add."""
    if mask is None or mask.dtype is not bool_:
        return mask
    nothing = zeros((), device=like.device, dtype=like.dtype)
    return where(mask, -float("inf"), nothing)


def joint_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, heads: Heads, extra: int
) -> Tensor | None:
    """Both masks as one, to add to (N, heads, L, S); `extra` keys at the end are always seen."""
    like = heads.query
    check_mask("multi_head_attention", "attn_mask", attn_mask)
    check_mask("multi_head_attention", "key_padding_mask", key_padding_mask)
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


def attend_heads(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, weights: Any, bias: Tensor | None,
    extra: tuple[Tensor | None, Tensor | None], add_zero_attn: bool, attn_mask: Tensor | None,
    key_padding_mask: Tensor | None, dropout_p: float, training: bool,
    need_weights: bool, static: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What all heads see of batch-first inputs, side by side, and the weights (N, heads, L, S).

    Weights are None where they are not needed and never made.
    """
    query, key, value = in_projection(query, key, value, weights, bias)
    added = 0
    more_key, more_value = extra
    if more_key is not None and more_value is not None:
        shape = (key.shape[0], 1, key.shape[-1])
        key = cat([key, more_key.expand(shape)], 1)
        value = cat([value, more_value.expand(shape)], 1)
        added += 1
    heads = Heads(query, key, value, num_heads)
    for name, given in zip(("key", "value"), static):
        if given is not None:
            setattr(heads, name, given.reshape(heads.batch, num_heads, -1, heads.each))
    if add_zero_attn:
        heads.with_zero()
        added += 1
    mask = joint_mask(attn_mask, key_padding_mask, heads, added)
    return heads.attend(mask, dropout_p, training, need_weights)


def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None,
    bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor,
    out_proj_bias: Tensor | None, training: bool = True, key_padding_mask: Tensor | None = None,
    need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None, v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention by several heads with the parameters of `MultiheadAttention` as arguments.

    Args:
        query, key, value: shapes (L, N, E), (S, N, kdim), (S, N, vdim), or without N.
        embed_dim_to_check: E.
        num_heads: must divide E.
        in_proj_weight, in_proj_bias: (3 E, E) and (3 E,): of queries, keys and values.
        bias_k, bias_v: one trained key and value more, (1, 1, E).
        add_zero_attn: one key and value of zeros more.
        dropout_p: the probability with which a weight is dropped if `training`.
        out_proj_weight, out_proj_bias: of the last linear map.
        use_separate_proj_weight: take q_proj_weight, k_proj_weight and v_proj_weight instead.
        static_k, static_v: keys and values of all heads, (N * heads, S, E / heads), to be taken
            instead of the projected ones.
        key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal: as for the
            call of `MultiheadAttention`.

    Raises:
        ArgumentError: E is not embed_dim_to_check, or num_heads does not divide it; or is_causal
            without attn_mask.
    """
    op = "multi_head_attention_forward"
    if query.shape[-1] != embed_dim_to_check or embed_dim_to_check % num_heads:
        raise ArgumentError(
            op, "the width does not fit",
            expect=f"queries of width {embed_dim_to_check}, divisible by {num_heads} heads",
            actual=str(query.shape[-1]),
        )  # fmt: skip
    if is_causal and attn_mask is None:
        raise ArgumentError(
            op, "is_causal is a hint about attn_mask", expect="attn_mask too", actual="None"
        )
    single = query.ndim == 2
    same = query is key and key is value
    query, key, value = (
        x.unsqueeze(0) if single else x.transpose(0, 1) for x in (query, key, value)
    )
    if same:
        key = value = query
    if single and key_padding_mask is not None:
        key_padding_mask = key_padding_mask.unsqueeze(0)
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    mixed, shares = attend_heads(
        query, key, value, num_heads, separate if use_separate_proj_weight else in_proj_weight,
        in_proj_bias, (bias_k, bias_v), add_zero_attn, attn_mask, key_padding_mask, dropout_p,
        training, need_weights, (static_k, static_v),
    )  # fmt: skip
    output = linear(mixed, out_proj_weight, out_proj_bias)
    output = output.squeeze(0) if single else fresh(output.transpose(0, 1))
    if not need_weights or shares is None:
        return output, None
    shares = shares.squeeze(0) if single else shares
    return output, shares.mean(-3) if average_attn_weights else shares
