"""Losses of distributions, margins, embeddings and sequences against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layers import compare, compare_layer, real, torch

import tinygrad_cuda as tc
from tinygrad_cuda import nn

rng = np.random.default_rng(3)
A, B = real(6, 5), real(6, 5, seed=1)
CHANCES = rng.uniform(0.05, 0.95, (6, 5))
EDGES = np.where(rng.random((6, 5)) < 0.3, 0.0, np.where(rng.random((6, 5)) < 0.3, 1.0, CHANCES))
YES = rng.integers(0, 2, (6, 5)).astype(np.float64)
SIGNS = YES * 2 - 1
SIDES = SIGNS[:, 0]
SHARES = rng.dirichlet(np.ones(5), 6)
SHARES[0] = [1, 0, 0, 0, 0]
COUNTS = rng.integers(0, 5, (6, 5)).astype(np.float64)
LABELS = rng.integers(0, 5, 6)
SEVERAL = np.array([[1, -1, 2, 0], [3, 0, -1, 1], [-1, 0, 0, 0], [0, 1, 2, 3], [2, 2, -1, 0],
                    [1, 0, 3, -1]])  # fmt: skip
WEIGHTS = rng.uniform(0.2, 2.0, 5)
SPEECH = real(9, 3, 5)
WORDS = np.array([[1, 2, 2, 4], [3, 3, 1, 1], [2, 1, 4, 3]])
HEARD, SAID = np.array([9, 7, 8]), np.array([4, 2, 0])
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def spoken(F: Any, x: Any, *rest: Any, **options: Any) -> Any:
    return F.ctc_loss(F.log_softmax(x, -1), *rest, **options)


LOSSES: dict[str, Case] = {
    f"{name}, {reduction}": ((lambda F, *t, f=call, r=reduction: f(F, *t, reduction=r)), arrays)
    for name, (call, arrays) in {
        "binary_cross_entropy": (
            lambda F, *t, **o: F.binary_cross_entropy(*t, **o), (CHANCES, YES)),
        "binary_cross_entropy, edges": (
            lambda F, x, t, **o: F.binary_cross_entropy(x, t.detach(), **o), (EDGES, CHANCES)),
        "binary_cross_entropy, weight": (
            lambda F, x, t, w, **o: F.binary_cross_entropy(x, t, w.detach(), **o),
            (CHANCES, YES, WEIGHTS)),
        "kl_div": (lambda F, x, t, **o: F.kl_div(x, t.detach(), **o), (np.log(CHANCES), SHARES)),
        "kl_div, logs": (
            lambda F, *t, **o: F.kl_div(*t, log_target=True, **o), (np.log(CHANCES), A)),
        "gaussian_nll_loss": (
            lambda F, *t, **o: F.gaussian_nll_loss(*t, **o), (A, B, np.abs(real(6, 5, seed=2)))),
        "gaussian_nll_loss, rows": (
            lambda F, *t, **o: F.gaussian_nll_loss(*t, full=True, **o),
            (A, B, np.array([0.5, 1.0, 2.0, 0.1, 0.7, 3.0]))),
        "poisson_nll_loss": (
            lambda F, x, t, **o: F.poisson_nll_loss(x, t.detach(), full=True, **o), (A, COUNTS)),
        "poisson_nll_loss, rates": (
            lambda F, x, t, **o: F.poisson_nll_loss(x, t.detach(), log_input=False, **o),
            (CHANCES, COUNTS)),
        "soft_margin_loss": (
            lambda F, x, t, **o: F.soft_margin_loss(x * 3, t.detach(), **o), (A, SIGNS)),
        "multilabel_soft_margin_loss": (
            lambda F, x, t, w, **o: F.multilabel_soft_margin_loss(
                x, t.detach(), w.detach(), **o), (A, YES, WEIGHTS)),
        "hinge_embedding_loss": (
            lambda F, x, t, **o: F.hinge_embedding_loss(x, t.detach(), 0.7, **o), (A, SIGNS)),
        "margin_ranking_loss": (
            lambda F, a, b, t, **o: F.margin_ranking_loss(a, b, t.detach(), 0.3, **o),
            (A[:, 0], B[:, 0], SIDES)),
        "multi_margin_loss": (lambda F, *t, **o: F.multi_margin_loss(*t, **o), (A, LABELS)),
        "multi_margin_loss, squared": (
            lambda F, x, t, w, **o: F.multi_margin_loss(x, t, 2, 0.6, w.detach(), **o),
            (A, LABELS, WEIGHTS)),
        "multilabel_margin_loss": (
            lambda F, *t, **o: F.multilabel_margin_loss(*t, **o), (A[:, :4], SEVERAL)),
        "cosine_embedding_loss": (
            lambda F, a, b, t, **o: F.cosine_embedding_loss(a, b, t.detach(), -0.1, **o),
            (A, B, SIDES)),
        "triplet_margin_loss": (
            lambda F, *t, **o: F.triplet_margin_loss(*t, **o), (A, B, real(6, 5, seed=4))),
        "triplet_margin_loss, swap": (
            lambda F, *t, **o: F.triplet_margin_loss(*t, margin=2.0, p=3.0, swap=True, **o),
            (A, B, real(6, 5, seed=4))),
        "ctc_loss": (spoken, (SPEECH, WORDS, HEARD, SAID)),
    }.items()
    for reduction in ("mean", "sum", "none")
} | {
    "kl_div, batchmean": (
        lambda F, x, t: F.kl_div(x, t.detach(), reduction="batchmean"), (np.log(CHANCES), SHARES)),
    "ctc_loss, not normalized": (lambda F, *t: F.ctc_loss(*t), (SPEECH, WORDS, HEARD, SAID)),
    "ctc_loss, not normalized, impossible": (
        lambda F, *t: F.ctc_loss(*t, zero_infinity=True),
        (SPEECH[:4], WORDS, np.array([4, 4, 4]), np.array([4, 4, 2]))),
    "ctc_loss, one row": (spoken, (SPEECH, np.array([1, 2, 2, 4, 3, 3]), HEARD, SAID)),
    "ctc_loss, impossible": (
        lambda F, *t: spoken(F, *t, zero_infinity=True),
        (SPEECH[:4], WORDS, np.array([4, 4, 4]), np.array([4, 4, 2]))),
}  # fmt: skip


# torch announces another meaning of the mean.
QUIET = "ignore:reduction. 'mean' divides the total loss"


@pytest.mark.filterwarnings(QUIET)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str, dtype: str) -> None:
    call, arrays = LOSSES[name]
    compare(call, arrays, dtype)


MODULES: dict[str, tuple[Any, ...]] = {
    "BCELoss": (CHANCES, YES),
    "KLDivLoss": (np.log(CHANCES), SHARES + 0.01),
    "PoissonNLLLoss": (A, COUNTS),
    "GaussianNLLLoss": (A, B, CHANCES),
    "MultiLabelSoftMarginLoss": (A, YES),
    "HingeEmbeddingLoss": (A, SIGNS.astype(np.int64)),
    "MarginRankingLoss": (A, B, SIGNS.astype(np.int64)),
    "MultiMarginLoss": (A, LABELS),
    "CosineEmbeddingLoss": (A, B, SIDES.astype(np.int64)),
    "TripletMarginLoss": (A, B, real(6, 5, seed=4)),
    "CTCLoss": (np.log(rng.dirichlet(np.ones(5), (9, 3))), WORDS, HEARD, SAID),
    "TripletMarginWithDistanceLoss": (A, B, real(6, 5, seed=4)),
}


@pytest.mark.filterwarnings(QUIET)
@pytest.mark.parametrize("name", MODULES)
def test_modules_call_the_functions(name: str) -> None:
    compare_layer(lambda lib: getattr(lib, name)(), MODULES[name], "float64")


def test_soft_margin_loss_differentiates_its_signs() -> None:
    """torch does not; the values are the same."""
    ours = nn.SoftMarginLoss()(*(tc.tensor(a, device="cpu") for a in (A, SIGNS)))
    theirs = torch.nn.SoftMarginLoss()(*map(torch.tensor, (A, SIGNS)))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-10)


@pytest.mark.filterwarnings(QUIET)
@pytest.mark.parametrize("name", ["ctc_loss, mean", "kl_div, mean", "multi_margin_loss, mean"])
def test_loss_on_devices(name: str, device: str) -> None:
    """Generated kernels give the same."""
    call, arrays = LOSSES[name]
    compare(call, arrays, "float32", device)
