"""Losses and activations against torch, values and gradients, and the texts of their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layers import compare as compare_with_torch
from layers import compare_layer, real

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.nn import functional as F

torch = pytest.importorskip("torch")
Case = tuple[Callable[[Any, Any], Any], list[Any]]

rng = np.random.default_rng(5)
LOGITS = rng.standard_normal((7, 5)).astype(np.float32) * 3
LABELS = rng.integers(0, 5, 7)
SOME = np.where(np.arange(7) % 3 == 0, -100, LABELS)
SHARES = rng.dirichlet(np.ones(5), 7).astype(np.float32)
WEIGHTS = rng.uniform(0.2, 2.0, 5).astype(np.float32)
IMAGES = rng.standard_normal((2, 4, 3, 3)).astype(np.float32)
PIXELS = rng.integers(0, 4, (2, 3, 3))
A, B = (rng.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
YES = rng.integers(0, 2, (4, 6)).astype(np.float32)
WITH_ZERO = A * (rng.random((4, 6)) > 0.3)


def lib(x: Any) -> Any:
    """nn.functional of the library that x belongs to."""
    return F if isinstance(x, tc.Tensor) else torch.nn.functional


def each(name: str, *arrays: Any, **options: Any) -> dict[str, Case]:
    """A loss under all reductions."""

    def case(reduction: str) -> Case:
        def call(x: Any, *rest: Any) -> Any:
            given = dict(options)
            extra = [key for key in ("weight", "pos_weight") if key in given]
            target, *tensors = rest
            given |= dict(zip(extra, tensors))
            return getattr(lib(x), name)(x, target, reduction=reduction, **given)

        tensors = [options[key] for key in ("weight", "pos_weight") if key in options]
        return call, [*arrays, *tensors]

    label = ", ".join([name, *(key for key in options), str(np.asarray(arrays[0]).shape)])
    return {f"{label}, {r}": case(r) for r in ("mean", "sum", "none")}


LOSSES: dict[str, Case] = {
    **each("cross_entropy", LOGITS, LABELS),
    **each("cross_entropy", LOGITS * 300, LABELS, label_smoothing=0.0),
    **each("cross_entropy", LOGITS, LABELS, weight=WEIGHTS),
    **each("cross_entropy", LOGITS, SOME, ignore_index=-100),
    **each("cross_entropy", LOGITS, LABELS, ignore_index=int(LABELS[0])),
    **each("cross_entropy", LOGITS, SOME, weight=WEIGHTS, label_smoothing=0.2),
    **each("cross_entropy", LOGITS, SHARES, label_smoothing=0.1),
    **each("cross_entropy", LOGITS, SHARES, weight=WEIGHTS),
    **each("cross_entropy", IMAGES, PIXELS),
    **each("cross_entropy", LOGITS[0], LABELS[0]),
    **each("nll_loss", np.log(SHARES), LABELS),
    **each("nll_loss", np.log(SHARES), SOME, weight=WEIGHTS),
    **each("nll_loss", IMAGES, PIXELS),
    **each("mse_loss", A, B),
    **each("l1_loss", A, B),
    **each("huber_loss", A, B, delta=0.5),
    **each("smooth_l1_loss", A, B, beta=0.7),
    **each("binary_cross_entropy_with_logits", WITH_ZERO * 40, YES),
    **each("binary_cross_entropy_with_logits", WITH_ZERO, YES, weight=np.abs(B)),
    **each("binary_cross_entropy_with_logits", WITH_ZERO, YES, pos_weight=np.abs(B[0])),
}

ACTIVATIONS: dict[str, Case] = {
    name: (call, [WITH_ZERO * 4])
    for name, call in {
        "relu": lambda x: lib(x).relu(x),
        "relu6": lambda x: lib(x).relu6(x),
        "hardtanh": lambda x: lib(x).hardtanh(x, -0.5, 2.0),
        "leaky_relu": lambda x: lib(x).leaky_relu(x, 0.2),
        "elu": lambda x: lib(x).elu(x, 1.5),
        "elu, far out": lambda x: lib(x).elu(x * 100),
        "gelu": lambda x: lib(x).gelu(x),
        "gelu, tanh": lambda x: lib(x).gelu(x, approximate="tanh"),
        "silu": lambda x: lib(x).silu(x),
        "sigmoid": lambda x: lib(x).sigmoid(x),
        "tanh": lambda x: lib(x).tanh(x),
        "softplus": lambda x: lib(x).softplus(x, 2.0, 5.0),
        "logsigmoid": lambda x: lib(x).logsigmoid(x * 30),
        "softmax": lambda x: lib(x).softmax(x, dim=1),
        "log_softmax": lambda x: lib(x).log_softmax(x, dim=0),
    }.items()
}


def run(case: Case, make: Callable[[Any], Any], first: Any) -> tuple[Any, Any]:
    """The value, and the gradient of a weighted sum of it with respect to the first array."""
    call, arrays = case
    x = first(arrays[0])
    value = call(x, *(make(np.asarray(array)) for array in arrays[1:]))
    spread = make(np.cos(np.arange(value.numel(), dtype=np.float32)).reshape(tuple(value.shape)))
    (value * spread).sum().backward()
    return value.detach().cpu().numpy(), x.grad.detach().cpu().numpy()


@pytest.mark.parametrize("name", [*LOSSES, *ACTIVATIONS])
def test_as_torch(name: str) -> None:
    """Values and gradients, at kinks and far out as well."""
    compare({**LOSSES, **ACTIVATIONS}[name], "cpu")


def compare(case: Case, device: str) -> None:
    wanted = run(case, torch.tensor, lambda a: torch.tensor(a, requires_grad=True))
    found = run(
        case,
        lambda a: tc.tensor(a, device=device),
        lambda a: tc.tensor(a, device=device, requires_grad=True),
    )
    for ours, theirs in zip(found, wanted):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "name",
    ["cross_entropy, (7, 5), mean", "cross_entropy, weight, label_smoothing, (7, 5), mean",
     "cross_entropy, (2, 4, 3, 3), none", "nll_loss, (7, 5), sum", "mse_loss, (4, 6), mean",
     "binary_cross_entropy_with_logits, (4, 6), mean", "gelu", "elu, far out"],
)  # fmt: skip
def test_as_torch_on_devices(name: str, device: str) -> None:
    """Generated kernels give the same."""
    compare({**LOSSES, **ACTIVATIONS}[name], device)


def test_modules_call_the_functions() -> None:
    pairs: list[tuple[Any, Any, Any]] = [
        (nn.CrossEntropyLoss, LOGITS, LABELS),
        (nn.NLLLoss, np.log(SHARES), LABELS),
        (nn.MSELoss, A, B),
        (nn.L1Loss, A, B),
        (nn.HuberLoss, A, B),
        (nn.SmoothL1Loss, A, B),
        (nn.BCEWithLogitsLoss, A, YES),
    ]
    for kind, x, y in pairs:
        theirs = getattr(torch.nn, kind.__name__)()(torch.tensor(x), torch.tensor(y))
        ours = kind()(tc.tensor(x, device="cpu"), tc.tensor(y, device="cpu"))
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6), kind.__name__
    weighted = nn.CrossEntropyLoss(tc.tensor(WEIGHTS, device="cpu"), label_smoothing=0.1)
    assert list(weighted.state_dict()) == ["weight"]


def test_second_derivative_of_cross_entropy() -> None:
    """The gradient is more graph, with the detached maximum too."""
    x = rng.standard_normal((3, 4))
    labels = tc.tensor([0, 3, 1], device="cpu")
    assert tc.autograd.gradcheck(
        lambda t: F.cross_entropy(t, labels, label_smoothing=0.1),
        (tc.tensor(x, device="cpu", requires_grad=True),),
    )
    assert tc.autograd.gradgradcheck(
        lambda t: F.cross_entropy(t, labels),
        (tc.tensor(x, device="cpu", requires_grad=True),),
    )


# Errors -----------------------------------------------------------------------------------------


def test_label_out_of_range_names_index_and_value(device: str) -> None:
    """On every device; the device still works afterwards."""
    labels = LABELS.copy()
    labels[4] = 12
    logits = tc.tensor(LOGITS, requires_grad=True)
    loss = F.cross_entropy(logits, tc.tensor(labels))
    with pytest.raises(tc.IndexError) as caught:
        loss.item()
    text = str(caught.value)
    assert "target[4] is out of range" in text
    assert "0 <= target < 5" in text
    assert "actual: 12" in text
    assert "test_losses.py" in text
    assert F.cross_entropy(logits, tc.tensor(LABELS)).item() > 0


def test_negative_label_is_out_of_range_but_ignored_ones_are_not() -> None:
    with pytest.raises(tc.IndexError, match=r"target\[1\]"):
        F.nll_loss(tc.zeros(2, 3, device="cpu"), tc.tensor([0, -1], device="cpu")).item()
    assert F.nll_loss(
        tc.ones(2, 3, device="cpu"), tc.tensor([0, -1], device="cpu"), ignore_index=-1
    ).item() == -1.0  # fmt: skip


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.huber_loss])
def test_distances_refuse_to_broadcast(loss: Any) -> None:
    """The difference from PyTorch: (n, 1) against (n,) is an error, and says what it would be."""
    with pytest.raises(tc.ShapeError) as caught:
        loss(tc.zeros(8, 1, device="cpu"), tc.zeros(8, device="cpu"))
    text = str(caught.value)
    assert "expect: target (8, 1)" in text
    assert "actual: target (8,)" in text
    assert "averaged over (8, 8)" in text
    with pytest.raises(tc.ShapeError, match="different shapes"):
        loss(tc.zeros(8, 3, device="cpu"), tc.zeros(8, 2, device="cpu"))


def test_error_texts() -> None:
    x = tc.zeros(4, 3, device="cpu")
    with pytest.raises(tc.ShapeError, match=r"labels \(4,\) or probabilities \(4, 3\)"):
        F.cross_entropy(x, tc.zeros(3, dtype=tc.int64, device="cpu"))
    with pytest.raises(tc.DTypeError, match="labels must be integers"):
        F.cross_entropy(x, tc.zeros(4, device="cpu"))
    with pytest.raises(tc.ShapeError, match="one weight per class"):
        F.cross_entropy(x, tc.zeros(4, dtype=tc.int64, device="cpu"), weight=tc.ones(4))
    with pytest.raises(tc.ArgumentError, match="'none', 'mean' or 'sum'"):
        F.mse_loss(x, x, reduction="batchmean")
    with pytest.raises(tc.ArgumentError, match="label_smoothing"):
        F.cross_entropy(x, tc.zeros(4, dtype=tc.int64, device="cpu"), label_smoothing=2.0)
    with pytest.raises(tc.ShapeError, match=r"input: \(4, 3\)  weight: \(2, 5\)"):
        F.linear(x, tc.zeros(2, 5, device="cpu"))
    with pytest.warns(UserWarning, match="softmax without dim"):
        nn.Softmax()(x)


# Losses of distributions, margins, embeddings and sequences --------------------------------------

draws = np.random.default_rng(3)
P, Q = real(6, 5), real(6, 5, seed=1)
CHANCES = draws.uniform(0.05, 0.95, (6, 5))
EDGES = np.where(
    draws.random((6, 5)) < 0.3, 0.0, np.where(draws.random((6, 5)) < 0.3, 1.0, CHANCES)
)
BITS = draws.integers(0, 2, (6, 5)).astype(np.float64)
SIGNS = BITS * 2 - 1
SIDES = SIGNS[:, 0]
PARTS = draws.dirichlet(np.ones(5), 6)
PARTS[0] = [1, 0, 0, 0, 0]
COUNTS = draws.integers(0, 5, (6, 5)).astype(np.float64)
CLASSES = draws.integers(0, 5, 6)
SEVERAL = np.array([[1, -1, 2, 0], [3, 0, -1, 1], [-1, 0, 0, 0], [0, 1, 2, 3], [2, 2, -1, 0],
                    [1, 0, 3, -1]])  # fmt: skip
CLASS_WEIGHTS = draws.uniform(0.2, 2.0, 5)
SPEECH = real(9, 3, 5)
WORDS = np.array([[1, 2, 2, 4], [3, 3, 1, 1], [2, 1, 4, 3]])
HEARD, SAID = np.array([9, 7, 8]), np.array([4, 2, 0])
LossCase = tuple[Callable[..., Any], tuple[Any, ...]]


def spoken(F: Any, x: Any, *rest: Any, **options: Any) -> Any:
    return F.ctc_loss(F.log_softmax(x, -1), *rest, **options)


OTHER_LOSSES: dict[str, LossCase] = {
    f"{name}, {reduction}": ((lambda F, *t, f=call, r=reduction: f(F, *t, reduction=r)), arrays)
    for name, (call, arrays) in {
        "binary_cross_entropy": (
            lambda F, *t, **o: F.binary_cross_entropy(*t, **o), (CHANCES, BITS)),
        "binary_cross_entropy, edges": (
            lambda F, x, t, **o: F.binary_cross_entropy(x, t.detach(), **o), (EDGES, CHANCES)),
        "binary_cross_entropy, weight": (
            lambda F, x, t, w, **o: F.binary_cross_entropy(x, t, w.detach(), **o),
            (CHANCES, BITS, CLASS_WEIGHTS)),
        "kl_div": (lambda F, x, t, **o: F.kl_div(x, t.detach(), **o), (np.log(CHANCES), PARTS)),
        "kl_div, logs": (
            lambda F, *t, **o: F.kl_div(*t, log_target=True, **o), (np.log(CHANCES), P)),
        "gaussian_nll_loss": (
            lambda F, *t, **o: F.gaussian_nll_loss(*t, **o), (P, Q, np.abs(real(6, 5, seed=2)))),
        "gaussian_nll_loss, rows": (
            lambda F, *t, **o: F.gaussian_nll_loss(*t, full=True, **o),
            (P, Q, np.array([0.5, 1.0, 2.0, 0.1, 0.7, 3.0]))),
        "poisson_nll_loss": (
            lambda F, x, t, **o: F.poisson_nll_loss(x, t.detach(), full=True, **o), (P, COUNTS)),
        "poisson_nll_loss, rates": (
            lambda F, x, t, **o: F.poisson_nll_loss(x, t.detach(), log_input=False, **o),
            (CHANCES, COUNTS)),
        "soft_margin_loss": (
            lambda F, x, t, **o: F.soft_margin_loss(x * 3, t.detach(), **o), (P, SIGNS)),
        "multilabel_soft_margin_loss": (
            lambda F, x, t, w, **o: F.multilabel_soft_margin_loss(
                x, t.detach(), w.detach(), **o), (P, BITS, CLASS_WEIGHTS)),
        "hinge_embedding_loss": (
            lambda F, x, t, **o: F.hinge_embedding_loss(x, t.detach(), 0.7, **o), (P, SIGNS)),
        "margin_ranking_loss": (
            lambda F, a, b, t, **o: F.margin_ranking_loss(a, b, t.detach(), 0.3, **o),
            (P[:, 0], Q[:, 0], SIDES)),
        "multi_margin_loss": (lambda F, *t, **o: F.multi_margin_loss(*t, **o), (P, CLASSES)),
        "multi_margin_loss, squared": (
            lambda F, x, t, w, **o: F.multi_margin_loss(x, t, 2, 0.6, w.detach(), **o),
            (P, CLASSES, CLASS_WEIGHTS)),
        "multilabel_margin_loss": (
            lambda F, *t, **o: F.multilabel_margin_loss(*t, **o), (P[:, :4], SEVERAL)),
        "cosine_embedding_loss": (
            lambda F, a, b, t, **o: F.cosine_embedding_loss(a, b, t.detach(), -0.1, **o),
            (P, Q, SIDES)),
        "triplet_margin_loss": (
            lambda F, *t, **o: F.triplet_margin_loss(*t, **o), (P, Q, real(6, 5, seed=4))),
        "triplet_margin_loss, swap": (
            lambda F, *t, **o: F.triplet_margin_loss(*t, margin=2.0, p=3.0, swap=True, **o),
            (P, Q, real(6, 5, seed=4))),
        "ctc_loss": (spoken, (SPEECH, WORDS, HEARD, SAID)),
    }.items()
    for reduction in ("mean", "sum", "none")
} | {
    "kl_div, batchmean": (
        lambda F, x, t: F.kl_div(x, t.detach(), reduction="batchmean"), (np.log(CHANCES), PARTS)),
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
@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_loss(name: str, dtype: str) -> None:
    call, arrays = OTHER_LOSSES[name]
    compare_with_torch(call, arrays, dtype)


MODULES: dict[str, tuple[Any, ...]] = {
    "BCELoss": (CHANCES, BITS),
    "KLDivLoss": (np.log(CHANCES), PARTS + 0.01),
    "PoissonNLLLoss": (P, COUNTS),
    "GaussianNLLLoss": (P, Q, CHANCES),
    "MultiLabelSoftMarginLoss": (P, BITS),
    "HingeEmbeddingLoss": (P, SIGNS.astype(np.int64)),
    "MarginRankingLoss": (P, Q, SIGNS.astype(np.int64)),
    "MultiMarginLoss": (P, CLASSES),
    "CosineEmbeddingLoss": (P, Q, SIDES.astype(np.int64)),
    "TripletMarginLoss": (P, Q, real(6, 5, seed=4)),
    "CTCLoss": (np.log(draws.dirichlet(np.ones(5), (9, 3))), WORDS, HEARD, SAID),
    "TripletMarginWithDistanceLoss": (P, Q, real(6, 5, seed=4)),
}


@pytest.mark.filterwarnings(QUIET)
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_more_losses_call_the_functions(name: str) -> None:
    compare_layer(lambda lib: getattr(lib, name)(), MODULES[name], "float64")


def test_soft_margin_loss_differentiates_its_signs() -> None:
    """torch does not; the values are the same."""
    ours = nn.SoftMarginLoss()(*(tc.tensor(a, device="cpu") for a in (P, SIGNS)))
    theirs = torch.nn.SoftMarginLoss()(*map(torch.tensor, (P, SIGNS)))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-10)


@pytest.mark.filterwarnings(QUIET)
@pytest.mark.parametrize("name", ["ctc_loss, mean", "kl_div, mean", "multi_margin_loss, mean"])
def test_loss_on_devices(name: str, device: str) -> None:
    """Generated kernels give the same."""
    call, arrays = OTHER_LOSSES[name]
    compare_with_torch(call, arrays, "float32", device)


def test_cosine_embedding_of_a_row_of_zeros_has_torchs_slope_in_float64() -> None:
    """Its length is 1e-12 as a float32, in both libraries."""

    def slope(library: Any) -> Any:
        x = library.zeros(1, 3, dtype=library.float64, requires_grad=True)
        y = library.tensor([[1.0, 2.0, 3.0]], dtype=library.float64)
        loss = library.nn.functional.cosine_embedding_loss(x, y, library.tensor([1.0]))
        loss.backward()
        return x.grad.numpy()

    np.testing.assert_allclose(slope(tc), slope(torch), rtol=1e-13)
