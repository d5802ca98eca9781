"""`nn.attention.flex_attention`: values beside torch's, gradients beside scores written out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.nn.attention.flex_attention import (
    AuxRequest,
    create_block_mask,
    flex_attention,
)

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = pytest.mark.usefixtures("device")

B, H, L, S, E, V = 2, 4, 6, 9, 8, 5
SHAPES = ((B, H, L, E), (B, H, S, E), (B, H, S, V))
BIAS = np.random.default_rng(7).standard_normal((B, H, L, S)).astype(np.float32)
DOCUMENTS = np.array([0, 0, 1, 1, 1, 2, 2, 3, 3])

Made = Callable[[Any], Callable[..., Any]]
SCORES: dict[str, Made] = {
    "relative": lambda lib: lambda score, b, h, q, k: score + (q - k),
    "alibi": lambda lib: lambda score, b, h, q, k: score + (k - q) * 2.0 ** (-(h + 1) * 0.5),
    "causal": lambda lib: lambda score, b, h, q, k: lib.where(q >= k, score, -float("inf")),
    "softcap": lambda lib: lambda score, b, h, q, k: 20 * lib.tanh(score / 20),
    "bias": lambda lib: with_bias(lib),
    "nothing is seen": lambda lib: lambda score, b, h, q, k: lib.where(q > 2, score, -float("inf")),
    "of positions alone": lambda lib: lambda score, b, h, q, k: (q * k).float() * 0.1,
}
MASKS: dict[str, Made] = {
    "causal": lambda lib: lambda b, h, q, k: q >= k,
    "window": lambda lib: lambda b, h, q, k: (q - k).abs() <= 2,
    "documents": lambda lib: by_documents(lib),
    "heads": lambda lib: lambda b, h, q, k: (h + b) % 2 == k % 2,
    "nothing is seen": lambda lib: lambda b, h, q, k: q > k + 2,
}


def with_bias(library: Any) -> Callable[..., Any]:
    bias = library.tensor(BIAS)
    return lambda score, b, h, q, k: score + bias[b, h, q, k]


def by_documents(library: Any) -> Callable[..., Any]:
    documents = library.tensor(DOCUMENTS)
    return lambda b, h, q, k: documents[q] == documents[k]


def leaves(library: Any, shapes: Any = SHAPES) -> list[Any]:
    rng = np.random.default_rng(3)
    made = [library.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes]
    return [x.requires_grad_() for x in made]


def run(library: Any, function: Any, given: list[Any], **options: Any) -> list[Any]:
    """The result, whatever comes with it, and the gradients.

    torch's has none on cpu: there they are those of the scores, written out.
    """
    if library is torch:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*(x.detach() for x in given), **options)
    else:
        result = function(*given, **options)
    parts = list(result) if isinstance(result, tuple) else [result]
    parts = [part for x in parts for part in (x if isinstance(x, tuple) else (x,))]
    parts = [x for x in parts if x is not None]
    (parts[0] if library is tc else written_out(*given, **options)).square().sum().backward()
    parts += [library.zeros(x.shape) if x.grad is None else x.grad for x in given]
    return [x.detach().cpu().numpy() for x in parts]


def written_out(
    query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None,
    scale: float = E**-0.5, enable_gqa: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """By torch, without its flex_attention."""
    if enable_gqa:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    scores = query @ key.transpose(-2, -1) * scale
    at = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, *at)
    if block_mask is not None:
        scores = torch.where(block_mask.mask_mod(*at), scores, -float("inf"))
    nothing = (scores == -float("inf")).all(-1, keepdim=True)
    weights = torch.where(nothing, 0.0, scores).softmax(-1)
    return torch.where(nothing, 0.0, weights) @ value


def compare(ours: list[Any], others: list[Any]) -> None:
    assert len(ours) == len(others)
    for one, other in zip(ours, others):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("mask", [None, "causal", "window", "documents"])
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, mask: str | None) -> None:
    results = []
    for library, function, masked in (
        (tc, flex_attention, create_block_mask),
        (torch, theirs.flex_attention, theirs.create_block_mask),
    ):
        device = {} if library is tc else {"device": "cpu"}
        block = mask and masked(MASKS[mask](library), B, H, L, S, **device)
        given = {"score_mod": SCORES[name](library), "block_mask": block or None}
        results.append(run(library, function, leaves(library), **given))
    compare(*results)


@pytest.mark.parametrize("sizes", [(None, None), (B, H), (1, H)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, sizes: tuple[int | None, int | None]) -> None:
    sizes = (B, H) if name == "heads" else sizes  # which depends on both
    found = create_block_mask(MASKS[name](tc), *sizes, L, S, BLOCK_SIZE=4)
    want = theirs.create_block_mask(MASKS[name](torch), *sizes, L, S, device="cpu", BLOCK_SIZE=4)
    assert found.shape == want.shape and found.seq_lengths == want.seq_lengths
    assert found.to_dense().tolist() == want.to_dense().tolist()
    assert found.sparsity() == pytest.approx(want.sparsity())
    assert found.numel() == want.numel()
    ours = run(tc, flex_attention, leaves(tc), block_mask=found)
    compare(ours, run(torch, theirs.flex_attention, leaves(torch), block_mask=want))


def test_logarithms_groups_and_scales() -> None:
    """What is returned besides; two heads of queries for each of keys; another scale."""
    shapes = ((B, H, L, E), (B, 2, S, E), (B, 2, S, V))
    results = []
    for library, function in ((tc, flex_attention), (torch, theirs.flex_attention)):
        results.append(
            run(library, function, leaves(library), return_lse=True)
            + run(library, function, leaves(library, shapes), enable_gqa=True, scale=0.3)
            + run(
                library, function, leaves(library, shapes), enable_gqa=True, return_lse=True,
                score_mod=SCORES["nothing is seen"](library),
            )
        )  # fmt: skip
    compare(*results)


def test_what_is_asked_for_besides() -> None:
    given = [x.detach() for x in leaves(tc)]
    out, aux = flex_attention(*given, return_aux=AuxRequest(lse=True, max_scores=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = theirs.AuxRequest(lse=True)
        want, others = theirs.flex_attention(*(x.detach() for x in leaves(torch)), return_aux=asked)
    compare([out.cpu().numpy(), aux.lse.cpu().numpy()], [want.numpy(), others.lse.numpy()])
    scores = given[0] @ given[1].transpose(-2, -1) * E**-0.5
    compare([aux.max_scores.cpu().numpy()], [scores.amax(-1).cpu().numpy()])
    assert flex_attention(*given, return_aux=AuxRequest())[1] == (None, None)


def test_learned_scores_have_gradients() -> None:
    """A bias that the function refers to is trained."""
    grads = []
    for library, function in ((tc, flex_attention), (torch, written_out)):
        bias = library.tensor(BIAS).requires_grad_()
        given = leaves(library)

        def scored(score: Any, b: Any, h: Any, q: Any, k: Any, bias: Any = bias) -> Any:
            return score + bias[b, h, q, k]

        function(*given, score_mod=scored).square().sum().backward()
        grads.append([bias.grad.cpu().numpy()])
    compare(*grads)


def test_masks_are_joined() -> None:
    causal, window = MASKS["causal"](tc), MASKS["window"](tc)
    ours, others = tc.nn.attention.flex_attention, theirs
    pairs = [
        (ours.and_masks(causal, window), others.and_masks(causal, window)),
        (ours.or_masks(causal, window), others.or_masks(causal, window)),
        (ours.noop_mask, others.noop_mask),
    ]
    for one, other in pairs:
        found = ours.create_mask(one, 1, 1, L, S).tolist()
        assert found == others.create_mask(other, 1, 1, L, S, device="cpu").tolist()
    scores = [lib.create_mask(SCORES["causal"](of), 1, 1, L, S, device="cpu").tolist()
              for lib, of in ((ours, tc), (others, torch))]  # fmt: skip
    assert scores[0] == scores[1]


@pytest.mark.parametrize("masked", [False, True])
def test_compiled(masked: bool) -> None:
    """As programs write it: the function itself is compiled, or a step around it."""
    block = create_block_mask(MASKS["causal"](tc), None, None, L, S) if masked else None
    given = leaves(tc)
    score = None if masked else SCORES["alibi"](tc)
    want = run(tc, flex_attention, given, score_mod=score, block_mask=block)
    weight = tc.ones(1, requires_grad=True)
    optimizer = tc.optim.SGD([weight], lr=0.1)

    @tc.compile
    def step(*given: Any) -> Any:
        optimizer.zero_grad()
        out = flex_attention(*given, score_mod=score, block_mask=block) * weight
        out.square().sum().backward()
        optimizer.step()
        return out.detach()

    plain = [x.detach() for x in given]
    for _ in range(4):
        before = weight.item()
        np.testing.assert_allclose(step(*plain).cpu().numpy(), want[0] * before, 1e-4, 1e-5)
    alone = tc.compile(flex_attention)
    for _ in range(3):
        with tc.no_grad():
            made = alone(*plain, score_mod=score, block_mask=block)
        np.testing.assert_allclose(made.cpu().numpy(), want[0], 1e-4, 1e-5)


def test_what_does_not_fit() -> None:
    q, k, v = leaves(tc)
    with pytest.raises(ShapeError, match="query, key and value do not fit"):
        flex_attention(q, k[:, :2], v[:, :2])
    with pytest.raises(ShapeError, match="query, key and value do not fit"):
        flex_attention(q[0], k[0], v[0])
    block = create_block_mask(MASKS["causal"](tc), 1, 1, L, L)
    with pytest.raises(ShapeError, match="the mask is for other queries or keys"):
        flex_attention(q, k, v, block_mask=block)
    with pytest.raises(ArgumentError, match="the function returns no Tensor"):
        flex_attention(q, k, v, score_mod=lambda *given: None)
