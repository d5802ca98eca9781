"""tc.distributions against torch: values, gradients, divergences; samples by their statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import distributions

torch = pytest.importorskip("torch")

rng = np.random.default_rng(8)
A, B = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
POSITIVE, PART = np.exp(A), 1 / (1 + np.exp(-A))
VALUES = rng.standard_normal((2, 3, 4))
BITS = (VALUES > 0).astype(np.float64)

# Of each: how it is made of parameters, the parameters, others of the same kind, and values.
Row = tuple[Callable[..., Any], list[np.ndarray], list[np.ndarray], np.ndarray]
ROWS: dict[str, Row] = {
    "Normal": (lambda d, *p: d.Normal(*p), [A, POSITIVE], [B, np.exp(B)], VALUES),
    "Normal of rows": (
        lambda d, *p: d.Normal(*p), [A, np.exp(B[:, :1])], [B, np.exp(A[:, :1])], VALUES,
    ),
    "Laplace": (lambda d, *p: d.Laplace(*p), [A, POSITIVE], [B, np.exp(B)], VALUES),
    "Uniform": (
        lambda d, *p: d.Uniform(*p), [A - 5, A + 5], [A - 6, A + np.abs(B) * 9], A + VALUES,
    ),
    "Exponential": (lambda d, *p: d.Exponential(*p), [POSITIVE], [np.exp(B)], np.abs(VALUES)),
    "Bernoulli": (lambda d, *p: d.Bernoulli(*p), [PART], [1 / (1 + np.exp(-B))], BITS),
    "Bernoulli of logits": (lambda d, *p: d.Bernoulli(logits=p[0]), [A], [B], BITS),
    "Categorical": (
        lambda d, *p: d.Categorical(*p), [POSITIVE], [np.exp(B)], np.array([[0, 1, 3], [2, 2, 0]]),
    ),
    "Categorical of logits": (
        lambda d, *p: d.Categorical(logits=p[0]), [A], [B], np.array([0, 3, 1]),
    ),
    "Independent": (
        lambda d, *p: d.Independent(d.Normal(*p), 1), [A, POSITIVE], [B, np.exp(B)], VALUES,
    ),
}  # fmt: skip
FACTS = ("mean", "variance", "stddev")
PLAIN = ("Normal", "Laplace", "Uniform", "Exponential")


def results(lib: Any, kinds: Any, row: Row, plain: bool) -> dict[str, Any]:
    """Everything a distribution says, and the gradient of its sum to each parameter."""
    make, own, others, values = row
    found: dict[str, Any] = {}

    def noted(name: str, parameters: list[Any], result: Any) -> None:
        found[name] = result.detach().numpy()
        for parameter in parameters:
            parameter.grad = None
        if result.requires_grad:
            result.sum().backward()
        for number, parameter in enumerate(parameters):
            if parameter.grad is not None:
                found[f"{name}, gradient {number}"] = parameter.grad.numpy()

    def ask(name: str, given: Callable[[Any], Any]) -> None:
        parameters = [lib.tensor(a, requires_grad=True) for a in own]
        noted(name, parameters, given(make(kinds, *parameters)))

    x = lib.tensor(values)
    ask("log_prob", lambda d: d.log_prob(x))
    ask("entropy", lambda d: d.entropy())
    if plain:
        part = lib.tensor(1 / (1 + np.exp(-VALUES)))
        ask("cdf", lambda d: d.cdf(x))
        ask("icdf", lambda d: d.icdf(part))
    if "ategorical" not in type(make(kinds, *map(lib.tensor, own))).__name__:
        for fact in FACTS:
            ask(fact, lambda d, fact=fact: getattr(d, fact))
    second = make(kinds, *map(lib.tensor, others))
    ask("divergence", lambda d: kinds.kl_divergence(d, second))
    shape = make(kinds, *map(lib.tensor, own)).sample((5,)).shape
    return {**found, "shape": np.array(shape)}


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    tc.manual_seed(4)
    yield
    tc.set_default_device(None)


@pytest.mark.parametrize("name", ROWS)
def test_values_and_gradients_as_torch(name: str) -> None:
    plain = name.partition(" ")[0] in PLAIN
    wanted = results(torch, torch.distributions, ROWS[name], plain)
    found = results(tc, distributions, ROWS[name], plain)
    assert {k for k, v in wanted.items() if np.any(v)} <= found.keys()
    for key, value in found.items():
        other = wanted.get(key, np.zeros_like(value))
        np.testing.assert_allclose(value, other, rtol=1e-9, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", ROWS)
def test_samples_by_their_statistics(name: str) -> None:
    """Mean and variance of 20,000 samples within six standard errors; shares of classes too."""
    make, own, _, _ = ROWS[name]
    mine = make(distributions, *map(tc.tensor, own))
    samples = mine.sample((20_000,)).numpy()
    if "Categorical" in name:
        shares = np.stack([(samples == k).mean(0) for k in range(4)], -1)
        assert np.abs(shares - mine.probs.numpy()).max() < 6 * 0.5 / 20_000**0.5
        return
    mean, variance = mine.mean.numpy(), mine.variance.numpy()
    assert (np.abs(samples.mean(0) - mean) <= 6 * np.sqrt(variance / 20_000)).all()
    np.testing.assert_allclose(samples.var(0), variance, rtol=0.15)


@pytest.mark.parametrize("name", ["Normal", "Laplace", "Uniform", "Exponential"])
def test_samples_have_gradients(name: str) -> None:
    """A sample moves with its parameters as the icdf at its own cdf does."""
    make, own, _, _ = ROWS[name]
    parameters = [tc.tensor(a, requires_grad=True) for a in own]
    sample = make(distributions, *parameters).rsample((2,))
    sample.sum().backward()
    theirs = [torch.tensor(a, requires_grad=True) for a in own]
    other = make(torch.distributions, *theirs)
    with torch.no_grad():
        place = other.cdf(torch.tensor(sample.detach().numpy()))
    other.icdf(place).sum().backward()
    for mine, their in zip(parameters, theirs, strict=True):
        np.testing.assert_allclose(mine.grad.numpy(), their.grad.numpy(), rtol=1e-6, atol=1e-9)


def test_refusals_as_torch() -> None:
    one, bad = tc.ones(2), tc.tensor([1.0, -1.0])
    d = distributions
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: d.Normal(one, bad), "scale is out of range"),
        (lambda: d.Laplace(0.0, bad), "scale is out of range"),
        (lambda: d.Uniform(one, bad), "high is out of range"),
        (lambda: d.Uniform(0.0, one).log_prob(bad), "value is out of range"),
        (lambda: d.Exponential(bad), "rate is out of range"),
        (lambda: d.Exponential(one).log_prob(bad), "value is out of range"),
        (lambda: d.Bernoulli(bad), "probs is out of range"),
        (lambda: d.Bernoulli(), "one of probs and logits"),
        (lambda: d.Bernoulli(one, one), "one of probs and logits"),
        (lambda: d.Bernoulli(one).log_prob(bad), "value is out of range"),
        (lambda: d.Categorical(bad), "probs is out of range"),
        (lambda: d.Categorical(tc.tensor(1.0)), "no dimension of classes"),
        (lambda: d.Categorical(one).log_prob(tc.tensor(2)), "value is out of range"),
        (lambda: d.Independent(d.Normal(one, one), 2), "fewer dimensions"),
        (lambda: d.kl_divergence(d.Exponential(one), d.Laplace(one, one)), "no closed form"),
    ]
    for call, text in cases:
        with pytest.raises(tc.ArgumentError, match=text):
            call()
    assert d.Normal(one, bad, validate_args=False).scale.tolist() == [1.0, -1.0]
    with pytest.raises(NotImplementedError, match="Bernoulli has no rsample"):
        d.Bernoulli(one).rsample()
