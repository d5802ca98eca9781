"""Derivatives that become small keep their digits: nothing is subtracted from 1 on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.nn import functional as F

X = np.concatenate([np.linspace(-80, 80, 321), [1e-7, -1e-7, 1e-3, -1e-3]])

Case = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def sigmoid(x: Any) -> Any:
    return np.where(x > 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x)))


def logistic(t: float, w: float = 1.0) -> Callable[[Any], Any]:
    """The derivative of ``w t softplus(-x) + (1 - t) softplus(x)``."""
    return lambda x: (1 - t) * sigmoid(x) - w * t * sigmoid(-x)


def entropy(t: float, w: float | None = None) -> Callable[[Any], Any]:
    return lambda x: F.binary_cross_entropy_with_logits(
        x, tc.full(x.shape, t), reduction="sum", pos_weight=None if w is None else tc.tensor(w)
    )


def rows(t: float) -> Callable[[Any], Any]:
    return lambda x: F.multilabel_soft_margin_loss(
        x.unsqueeze(1), tc.full((len(x), 1), t), reduction="sum"
    )


# A function, and its derivative in float64.
CASES: dict[str, Case] = {
    "expm1": (lambda x: x.expm1(), np.exp),
    "elu": (lambda x: F.elu(x, alpha=2.0), lambda x: np.where(x > 0, 1, 2 * np.exp(x))),
    "selu": (
        F.selu, lambda x: 1.0507009873554805 * np.where(x > 0, 1, 1.6732632423543772 * np.exp(x))
    ),
    "celu": (F.celu, lambda x: np.where(x > 0, 1, np.exp(x))),
    "entropy of 0": (entropy(0.0), logistic(0.0)),
    "entropy of 1": (entropy(1.0), logistic(1.0)),
    "weighted entropy of 0": (entropy(0.0, 3.0), logistic(0.0, 3.0)),
    "weighted entropy of 1": (entropy(1.0, 3.0), logistic(1.0, 3.0)),
    "multilabel of 0": (rows(0.0), logistic(0.0)),
    "multilabel of 1": (rows(1.0), logistic(1.0)),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_first_derivatives(device: str) -> None:
    """To 2e-6 of each element, however small it is; the emulator has one plan for all."""
    gradients = {}
    with tc.device(device):
        for name, (function, _) in CASES.items():
            x = tc.tensor(X, dtype=tc.float32, requires_grad=True)
            function(x).sum().backward()
            gradients[name] = x.grad
    at = X.astype(np.float32).astype(np.float64)
    for name, (_, derivative) in CASES.items():
        expected = derivative(at)
        assert gradients[name] is not None
        error = np.abs(gradients[name].numpy() - expected) / np.abs(expected)
        assert error.max() < 2e-6, (name, at[error.argmax()], error.max())


def test_the_loss_and_its_slope_by_targets() -> None:
    """Values between 0 and 1 as target; the derivative by it is -x, without pos_weight."""
    x, t = X.astype(np.float32), np.linspace(0, 1, len(X)).astype(np.float32)
    with tc.device("cpu"):
        logits, target = tc.tensor(x), tc.tensor(t, requires_grad=True)
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        losses.sum().backward()
        at, by = x.astype(np.float64), t.astype(np.float64)
        softplus = np.maximum(at, 0) + np.log1p(np.exp(-np.abs(at)))
        np.testing.assert_allclose(losses.detach().numpy(), softplus - at * by, rtol=2e-6)
        assert target.grad is not None
        np.testing.assert_array_equal(target.grad.numpy(), -x)


def test_infinite_logits() -> None:
    """The loss is its limit where that is infinite, and NaN for a target that it fits: 0 * inf."""
    with tc.device("cpu"):
        logits = tc.tensor([-np.inf, -np.inf, -np.inf, np.inf, np.inf, np.inf], requires_grad=True)
        target = tc.tensor([0.0, 0.5, 1.0] * 2)
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        losses.sum().backward()
        expected = [np.nan, np.inf, np.inf, np.inf, np.inf, np.nan]
        np.testing.assert_array_equal(losses.detach().numpy(), expected)
        assert logits.grad is not None
        np.testing.assert_array_equal(logits.grad.numpy(), [0, -0.5, -1, 1, 0.5, 0])
