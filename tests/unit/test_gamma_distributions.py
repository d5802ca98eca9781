"""Gamma, Beta, Dirichlet, Chi2 and MultivariateNormal: torch's values; samples of the right law."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.distributions import Normal, gamma


def pairs_of(t: Any, name: str) -> tuple[list[Any], list[Any]]:
    """Parameters of two distributions of a kind."""
    rows = {
        "Gamma": ([[0.5, 2.0, 30.0], [1.0, 0.3, 2.0]], [[1.5, 1.0, 20.0], [2.0, 1.0, 1.0]]),
        "Beta": ([[0.5, 2.0, 5.0], [1.0, 3.0, 0.4]], [[1.5, 1.0, 2.0], [2.0, 1.0, 1.0]]),
        "Chi2": ([[0.5, 2.0, 5.0]], [[1.5, 1.0, 2.0]]),
        "Dirichlet": ([[0.5, 2.0, 5.0]], [[1.5, 1.0, 2.0]]),
    }
    if name != "MultivariateNormal":
        first, second = rows[name]
        return [t.tensor(p, dtype=t.float64, requires_grad=True) for p in first], [
            t.tensor(p, dtype=t.float64) for p in second
        ]
    random = np.random.default_rng(4)
    made = []
    for _ in range(2):
        root = random.standard_normal((2, 3, 3))
        loc, matrix = random.standard_normal((2, 3)), root @ np.swapaxes(root, 1, 2) + np.eye(3)
        made.append([t.tensor(loc), t.tensor(matrix)])
    return made[0], made[1]


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Chi2", "Dirichlet", "MultivariateNormal"])
def test_kinds_of_gamma_and_vectors_agree_with_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(5)
    value = random.random(3)
    value = {
        "Dirichlet": value / value.sum(),
        "MultivariateNormal": random.standard_normal((4, 2, 3)),
    }.get(name, value)
    results = []
    for t in (torch, tc):
        with t.device("cpu"):
            first, second = pairs_of(t, name)
            kind = getattr(t.distributions, name)
            p, q = kind(*first), kind(*second)
            x = t.tensor(value)
            found = [
                p.log_prob(x), p.entropy(), p.mean, p.variance, p.stddev,
                t.distributions.kl_divergence(p, q),
            ]  # fmt: skip
            if first[0].requires_grad:
                sum(part.sum() for part in found).backward()
                found += [parameter.grad for parameter in first]
            else:
                found += [p.covariance_matrix, p.precision_matrix, p.scale_tril, p.mode]
                found += [
                    kind(first[0][0], scale_tril=p.scale_tril[0]).log_prob(x),
                    kind(first[0], precision_matrix=first[1]).entropy(),
                ]
            results.append([part.detach().numpy() for part in found])
    for number, (expected, found) in enumerate(zip(*results)):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=str(number))


@pytest.mark.parametrize("concentration", [0.05, 0.6, 1.0, 3.0, 200.0])
def test_samples_of_gamma_have_its_moments(concentration: float) -> None:
    from scipy import stats

    tc.manual_seed(3)
    alpha = tc.tensor(concentration, device="cpu", dtype=tc.float64)
    drawn = tc.distributions.Gamma(alpha, 2.0).sample((4000,)).numpy()
    assert drawn.shape == (4000,) and (drawn > 0).all()
    assert stats.kstest(drawn, stats.gamma(concentration, scale=0.5).cdf).pvalue > 1e-3


@pytest.mark.parametrize("concentration", [0.3, 1.0, 4.0, 60.0, 900.0])
def test_path_derivative_of_gamma(concentration: float) -> None:
    """The gradient of a sample is torch's at the same value."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(6)
    x = random.gamma(concentration, size=200)
    x = np.concatenate([x, concentration * np.array([1e-3, 0.1, 0.7, 1.0, 1.3])])
    alpha = np.full_like(x, concentration)
    expected = torch._standard_gamma_grad(torch.tensor(alpha), torch.tensor(x)).numpy()
    found = gamma._path_derivative(alpha, x)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-6)


def test_gradients_of_samples_move_the_mean() -> None:
    tc.manual_seed(5)
    a = tc.tensor([0.7, 3.0], device="cpu", dtype=tc.float64, requires_grad=True)
    (grad,) = tc.autograd.grad(tc.distributions.Gamma(a, 2.0).rsample((20000,)).mean(0).sum(), a)
    np.testing.assert_allclose(grad.numpy(), [0.5, 0.5], atol=0.03)
    (grad,) = tc.autograd.grad(tc.distributions.Beta(a, 2.0).rsample((20000,)).mean(0).sum(), a)
    np.testing.assert_allclose(grad.numpy(), 2 / (a.detach().numpy() + 2) ** 2, atol=0.03)
    weights = tc.tensor([1.0, -2.0], device="cpu", dtype=tc.float64)
    drawn = tc.distributions.Dirichlet(a).rsample((20000,))
    np.testing.assert_allclose(drawn.detach().sum(-1).numpy(), 1.0)
    (grad,) = tc.autograd.grad((drawn.mean(0) * weights).sum(), a)
    whole = 3.7**2
    np.testing.assert_allclose(grad.numpy(), [3 * 3.0 / whole, -3 * 0.7 / whole], atol=0.03)


def test_vectors_of_a_covariance() -> None:
    tc.manual_seed(7)
    matrix = tc.tensor([[2.0, 0.6], [0.6, 1.0]], device="cpu", dtype=tc.float64)
    loc = tc.tensor([1.0, -1.0], device="cpu", dtype=tc.float64)
    drawn = tc.distributions.MultivariateNormal(loc, matrix).sample((20000,)).numpy()
    np.testing.assert_allclose(drawn.mean(0), loc.numpy(), atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), matrix.numpy(), atol=0.08)
    with pytest.raises(tc.ArgumentError, match="one matrix says"):
        tc.distributions.MultivariateNormal(loc)


def test_modules_of_distributions() -> None:
    for name in [
        "normal",
        "beta",
        "gamma",
        "dirichlet",
        "multivariate_normal",
        "categorical",
        "kl",
        "uniform",
    ]:
        assert importlib.import_module(f"tinygrad_cuda.distributions.{name}")
    assert importlib.import_module("tinygrad_cuda.distributions.normal").Normal is Normal
