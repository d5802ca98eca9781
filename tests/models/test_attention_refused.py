"""Masks of integers and heads that do not divide are refused by attention."""

from __future__ import annotations

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn


def test_masks_of_integers() -> None:
    q = tc.zeros(1, 2, 4, device="cpu")
    integers = tc.ones(2, 2, dtype=tc.int64, device="cpu")
    with pytest.raises(tc.DTypeError, match="attn_mask"):
        nn.functional.scaled_dot_product_attention(q, q, q, integers)
    layer = nn.MultiheadAttention(4, 2, batch_first=True, device="cpu")
    with pytest.raises(tc.DTypeError, match="attn_mask"):
        layer(q, q, q, attn_mask=integers)
    with pytest.raises(tc.DTypeError, match="key_padding_mask"):
        layer(q, q, q, key_padding_mask=integers[:1])
    assert layer(q, q, q, attn_mask=integers.bool().logical_not())[0].shape == (1, 2, 4)


def test_heads_that_do_not_divide() -> None:
    q, k = tc.zeros(1, 3, 2, 4, device="cpu"), tc.zeros(1, 2, 2, 4, device="cpu")
    with pytest.raises(tc.ShapeError, match="divide"):
        nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    nothing = tc.zeros(0, 2, 4, device="cpu")
    result = nn.functional.scaled_dot_product_attention(nothing, nothing, nothing, enable_gqa=True)
    assert result.shape == (0, 2, 4)
