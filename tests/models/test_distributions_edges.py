"""Expanded batches, modes and perplexities of every distribution, beside torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

CASES: dict[str, list[list[float]]] = {
    "Normal": [[1.0, -2.0], [0.5, 2.0]], "Laplace": [[1.0, -2.0], [0.5, 2.0]],
    "Cauchy": [[1.0, -2.0], [0.5, 2.0]], "Gumbel": [[1.0, -2.0], [0.5, 2.0]],
    "LogNormal": [[1.0, -2.0], [0.5, 1.0]], "Uniform": [[0.0, 1.0], [2.0, 3.0]],
    "HalfNormal": [[0.5, 2.0]], "Exponential": [[0.5, 2.0]], "StudentT": [[3.0, 4.5]],
    "Gamma": [[0.5, 2.0], [1.0, 3.0]], "Chi2": [[1.0, 3.0]],
    "Beta": [[0.5, 2.0], [0.5, 3.0]], "Dirichlet": [[0.5, 2.0]],
    "Bernoulli": [[0.5, 0.75]], "Categorical": [[0.25, 0.75]], "OneHotCategorical": [[0.25, 0.75]],
    "Geometric": [[0.25, 0.75]], "Poisson": [[0.5, 2.5]],
}  # fmt: skip


def pair(name: str) -> tuple[Any, Any]:
    theirs = [torch.tensor(values, dtype=torch.float64) for values in CASES[name]]
    ours = [tc.tensor(values, dtype=tc.float64, device="cpu") for values in CASES[name]]
    return getattr(tc.distributions, name)(*ours), getattr(torch.distributions, name)(*theirs)


def same(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_modes_and_perplexities(name: str) -> None:
    ours, theirs = pair(name)
    same(ours.mode, theirs.mode)
    assert tuple(ours.sample_n(3).shape) == tuple(theirs.sample((3,)).shape)
    if name not in ("Geometric", "Poisson", "Chi2", "LogNormal"):
        same(ours.perplexity(), theirs.perplexity())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 3])
def test_expanded_batches(name: str, count: int) -> None:
    ours, theirs = pair(name)
    shape = (count, *theirs.batch_shape)
    ours, theirs = ours.expand(shape), theirs.expand(shape)
    assert tuple(ours.batch_shape) == tuple(theirs.batch_shape) == shape
    value = theirs.sample((2,))
    same(ours.log_prob(tc.tensor(value.numpy(), device="cpu")), theirs.log_prob(value))
    assert tuple(ours.sample((2,)).shape) == tuple(value.shape)
    same(ours.mean, theirs.mean)


def test_expanded_compositions() -> None:
    d = tc.distributions
    normal = d.Normal(tc.zeros(4, 3, device="cpu"), 1.0)
    assert d.Independent(normal, 1).expand((2, 4)).sample().shape == (2, 4, 3)
    weights = d.Categorical(logits=tc.zeros(3, device="cpu"))
    mixed = d.MixtureSameFamily(weights, d.Normal(tc.zeros(3, device="cpu"), 1.0)).expand((5,))
    assert mixed.log_prob(tc.zeros(5, device="cpu")).shape == (5,)
    assert mixed.batch_shape.numel() == 5
    with pytest.raises(tc.ShapeError):
        normal.expand((4, 2))
