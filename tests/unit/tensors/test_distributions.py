"""Draws: they repeat with their generator, have the right moments, and refuse what has no sense."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.distributions import Normal, gamma

Draw = Callable[[tc.Generator], tc.Tensor]
COUNT = 20_000


def blank(kind: str = "cpu", dtype: Any = tc.float64) -> tc.Tensor:
    return tc.zeros(COUNT, device=kind, dtype=dtype)


# A draw, its mean and its standard deviation.
DRAWS: dict[str, tuple[Draw, float, float]] = {
    "exponential_": (lambda g: blank().exponential_(4.0, generator=g), 0.25, 0.25),
    "geometric_": (lambda g: blank().geometric_(0.25, generator=g), 4.0, 12**0.5),
    "log_normal_": (
        lambda g: blank().log_normal_(0.0, 0.5, generator=g), np.exp(0.125),
        (np.exp(0.25) - 1) ** 0.5 * np.exp(0.125),
    ),
    "random_": (lambda g: blank().random_(-3, 5, generator=g), 0.5, (63 / 12) ** 0.5),
    "random_ below": (lambda g: blank().random_(6, generator=g), 2.5, (35 / 12) ** 0.5),
    "poisson": (lambda g: tc.poisson(blank() + 3.0, generator=g), 3.0, 3**0.5),
    "bernoulli": (lambda g: blank().bernoulli(0.3, generator=g), 0.3, 0.21**0.5),
    "multinomial": (
        lambda g: tc.multinomial(
            tc.tensor([1.0, 0.0, 3.0], device="cpu"), COUNT, True, generator=g
        ).double(),
        1.5, 0.75**0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_moments_and_repetition(name: str) -> None:
    """Mean and spread within five standard errors; the same seed gives the same numbers."""
    draw, mean, spread = DRAWS[name]
    first = draw(tc.Generator().manual_seed(3)).numpy()
    assert abs(first.mean() - mean) < 5 * spread / COUNT**0.5
    assert abs(first.std() - spread) < 0.1 * spread
    assert np.array_equal(first, draw(tc.Generator().manual_seed(3)).numpy())
    assert not np.array_equal(first, draw(tc.Generator().manual_seed(4)).numpy())


def test_quartiles_of_cauchy() -> None:
    """It has no mean."""
    drawn = blank().cauchy_(2.0, 0.5, generator=tc.Generator().manual_seed(1)).numpy()
    np.testing.assert_allclose(np.quantile(drawn, [0.25, 0.5, 0.75]), [1.5, 2.0, 2.5], atol=0.05)


def test_multinomial_without_replacement() -> None:
    """Each position at most once, those of weight 0 never; the first by its weight."""
    weights = tc.tensor([[0.5, 0.0, 2.0, 1.5]] * 4000, device="cpu")
    drawn = tc.multinomial(weights, 3, generator=tc.Generator().manual_seed(5)).numpy()
    assert drawn.shape == (4000, 3)
    assert (np.sort(drawn, 1) == [0, 2, 3]).all()
    share = np.bincount(drawn[:, 0], minlength=4) / 4000
    np.testing.assert_allclose(share, [0.125, 0, 0.5, 0.375], atol=0.04)


def test_all_devices_draw_the_same() -> None:
    def draws(kind: str) -> list[np.ndarray]:
        weights = tc.tensor([0.1, 0.4, 0.2, 0.3], device=kind)
        g = tc.Generator().manual_seed(11)
        return [
            tc.multinomial(weights, 50, True, generator=g).numpy(),
            tc.multinomial(weights, 3, generator=g).numpy(),
            tc.zeros(99, device=kind).random_(0, 1000, generator=g).numpy(),
        ]

    for a, b in zip(draws("cpu"), draws("emu")):
        assert np.array_equal(a, b)


def test_what_has_no_distribution_is_refused() -> None:
    x = tc.zeros(3, device="cpu")
    for call in (
        lambda: x.exponential_(0.0), lambda: x.geometric_(1.0), lambda: x.cauchy_(0, -1),
        lambda: x.log_normal_(0, 0), lambda: x.random_(3, 3), lambda: tc.poisson(x - 1),
        lambda: tc.multinomial(x, 1), lambda: tc.multinomial(x - 1, 1),
        lambda: tc.multinomial(tc.tensor([1.0, 0.0], device="cpu"), 2),
    ):  # fmt: skip
        with pytest.raises(tc.ArgumentError):
            call()
    with pytest.raises(tc.DTypeError):
        tc.zeros(3, device="cpu", dtype=tc.int64).exponential_()


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
