"""A query that sees no key: zeros and no gradient, where a plain softmax gives NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
import tinygrad_cuda.nn.functional as F

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]

DEVICES = ["cpu", "emu"]
SEEN = np.random.default_rng(0).random((2, 1, 3, 3)) > 0.4
SEEN[0, 0, 1] = False


def _close(actual: list[Array], expected: list[Array]) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mask", [SEEN, np.where(SEEN, 0, -np.inf).astype(np.float32)])
def test_attention_with_a_hidden_row_is_torchs(device: str, mask: Array) -> None:
    random = np.random.default_rng(1)
    arrays = [random.standard_normal((2, 2, 3, 4)).astype(np.float32) for _ in range(3)]

    def run(make: Callable[..., Any], attention: Callable[..., Any]) -> list[Array]:
        leaves = [make(array).requires_grad_() for array in arrays]
        result = attention(*leaves, attn_mask=make(mask))
        (result * result).sum().backward()
        return [result.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves)]

    actual = run(lambda a: tc.tensor(a, device=device), F.scaled_dot_product_attention)
    assert not actual[0][0, :, 1].any()
    _close(actual, run(torch.tensor, torch.nn.functional.scaled_dot_product_attention))


def _layers(device: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    other = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    own = tc.nn.MultiheadAttention(4, 2, batch_first=True, device=device)
    state = {k: tc.tensor(v.numpy(), device=device) for k, v in other.state_dict().items()}
    own.load_state_dict(state)
    return own, other


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weighed", [False, True])
def test_a_layer_gives_zeros_with_and_without_weights(device: str, weighed: bool) -> None:
    """With weights PyTorch's are NaN, as are its values; ours are those without weights."""
    own, other = _layers(device)
    hidden = np.array([[True, True, True], [False, True, False]])
    x = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(np.float32)

    def run(make: Callable[..., Any], layer: Any, need_weights: bool) -> tuple[list[Array], Any]:
        leaf = make(x).requires_grad_()
        result, weights = layer(
            leaf, leaf, leaf, key_padding_mask=make(hidden), need_weights=need_weights
        )
        (result * result).sum().backward()
        return [result.detach().numpy(), leaf.grad.numpy()], weights

    actual, weights = run(lambda a: tc.tensor(a, device=device), own, weighed)
    _close(actual, run(torch.tensor, other, False)[0])
    if weighed:
        np.testing.assert_allclose(weights.sum(-1).tolist(), [[0, 0, 0], [1, 1, 1]], rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_a_mask_hides_no_nan_and_a_causal_one_no_row(device: str) -> None:
    q = tc.tensor([[[float("nan"), 0.0], [1.0, 0.0]]], device=device)
    k = tc.ones(1, 2, 2, device=device)
    mask = tc.tensor([[True, False], [True, True]], device=device)
    found = F.scaled_dot_product_attention(q, k, k, attn_mask=mask).isnan().tolist()
    assert found == [[[True, True], [False, False]]]
    assert F.scaled_dot_product_attention(k, k, k, is_causal=True).tolist() == k.tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_of_half_types_are_not_rounded(device: str, dtype: str) -> None:
    """A score of 60 has a last place of 1/32 in float16, 1/4 in bfloat16: torch's is float32."""
    random = np.random.default_rng(4)
    arrays = [random.standard_normal((2, 5, 8)) * 6 for _ in range(3)]
    mask = random.standard_normal((5, 5))

    def run(m: Any, kind: Any, given: list[Any]) -> list[Array]:
        leaves = [x.to(kind).requires_grad_() for x in given[:3]]
        attention = m.nn.functional.scaled_dot_product_attention
        result = attention(*leaves, attn_mask=given[3].to(kind))
        result.sum().backward()
        found = [result.detach(), *(leaf.grad for leaf in leaves)]
        return [one.double().cpu().numpy() for one in found]

    given = [torch.tensor(x).to(getattr(torch, dtype)) for x in (*arrays, mask)]
    ours = [tc.tensor(x.double().numpy(), device=device) for x in given]
    last = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    exact = run(torch, torch.float64, given)
    for one, other in zip(run(tc, getattr(tc, dtype), ours), exact, strict=True):
        assert np.abs(one - other).max() <= 2 * last * np.abs(other).max()
