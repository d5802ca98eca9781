"""Transformed, relaxed, mixed and rarer distributions against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

rng = np.random.default_rng(8)
A, B = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
POSITIVE, PART = np.exp(A), 1 / (1 + np.exp(-A))
VALUES = rng.standard_normal((2, 3, 4))
WHOLE = rng.integers(0, 5, (2, 3, 4)).astype(np.float64)
HOT = np.eye(4)[[[0, 1, 3], [2, 2, 0]]]
SHARES = np.exp(VALUES) / np.exp(VALUES).sum(-1, keepdims=True)
INSIDE = 1 / (1 + np.exp(-VALUES))
ALL = ("mean", "variance", "entropy", "log_prob", "cdf", "icdf")

# Of each: how it is made of a library's distributions and parameters, the parameters, values, and
# what is asked.
Row = tuple[Callable[..., Any], list[np.ndarray], np.ndarray, tuple[str, ...]]
MOMENTS = ("mean", "variance", "entropy", "log_prob")
ROWS: dict[str, Row] = {
    "HalfNormal": (lambda d, s: d.HalfNormal(s), [POSITIVE], np.abs(VALUES), ALL),
    "Cauchy": (lambda d, *p: d.Cauchy(*p), [A, POSITIVE], VALUES, ALL),
    "Gumbel": (lambda d, *p: d.Gumbel(*p), [A, POSITIVE], VALUES, ALL),
    "StudentT": (lambda d, *p: d.StudentT(*p), [POSITIVE * 3, A, np.exp(B)], VALUES, MOMENTS),
    "LogNormal": (lambda d, *p: d.LogNormal(*p), [A, POSITIVE], np.exp(VALUES), ALL),
    "Poisson": (lambda d, r: d.Poisson(r), [POSITIVE], WHOLE, ("mean", "variance", "log_prob")),
    "Geometric": (lambda d, p: d.Geometric(p), [PART], WHOLE, MOMENTS),
    "Geometric of logits": (lambda d, x: d.Geometric(logits=x), [A], WHOLE, MOMENTS),
    "OneHotCategorical": (lambda d, p: d.OneHotCategorical(p), [POSITIVE], HOT, MOMENTS),
    "OneHotCategoricalStraightThrough": (
        lambda d, x: d.OneHotCategoricalStraightThrough(logits=x), [A], HOT, MOMENTS,
    ),
    "RelaxedBernoulli": (
        lambda d, t, x: d.RelaxedBernoulli(t, logits=x), [np.array(0.7), A], INSIDE, ("log_prob",),
    ),
    "RelaxedOneHotCategorical": (
        lambda d, t, x: d.RelaxedOneHotCategorical(t, logits=x), [np.array(0.7), A], SHARES,
        ("log_prob",),
    ),
    "mixture of normals": (
        lambda d, w, m, s: d.MixtureSameFamily(d.Categorical(w), d.Normal(m, s)),
        [POSITIVE, A, np.exp(B)], VALUES[..., 0], ("mean", "variance", "log_prob", "cdf"),
    ),
    "mixture of vectors": (
        lambda d, w, m, s: d.MixtureSameFamily(
            d.Categorical(logits=w), d.Independent(d.Normal(m, s), 1)
        ),
        [A[0, :3], A, np.exp(B)], VALUES[0], ("mean", "variance", "log_prob"),
    ),
    "tanh of a normal": (
        lambda d, m, s: d.TransformedDistribution(
            d.Normal(m, s), [d.TanhTransform(cache_size=1)]
        ),
        [A, POSITIVE], np.tanh(VALUES), ("log_prob", "cdf"),
    ),
    "affine, exp and power of rows": (
        lambda d, m, s: d.TransformedDistribution(
            d.Independent(d.Normal(m, s), 1),
            [d.AffineTransform(0.5, -0.5), d.ExpTransform(), d.PowerTransform(2.0)],
        ),
        [A, POSITIVE], np.exp(VALUES / 2), ("log_prob",),
    ),
    "logistic": (
        lambda d, m, s: d.TransformedDistribution(
            d.Uniform(m * 0, m * 0 + 1),
            [d.transforms.SigmoidTransform().inv, d.AffineTransform(m, s)],
        ),
        [A, POSITIVE], VALUES, ("log_prob", "cdf", "icdf"),
    ),
    "softplus in one": (
        lambda d, m, s: d.TransformedDistribution(
            d.Normal(m, s),
            d.ComposeTransform([d.AffineTransform(m, s), d.SoftplusTransform()]),
        ),
        [A, POSITIVE], np.exp(VALUES), ("log_prob", "cdf"),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    tc.manual_seed(4)
    yield
    tc.set_default_device(None)


def results(lib: Any, row: Row) -> dict[str, Any]:
    """What is asked of a distribution, and the gradients of its sum to the parameters."""
    make, own, values, asked = row
    found: dict[str, Any] = {}
    for fact in asked:
        parameters = [lib.tensor(a, requires_grad=True) for a in own]
        mine = make(lib.distributions, *parameters)
        part = lib.tensor(1 / (1 + np.exp(-VALUES)))
        given = {"log_prob": lib.tensor(values), "cdf": lib.tensor(values), "icdf": part}
        result = getattr(mine, fact)
        if callable(result):
            result = result(given[fact]) if fact in given else result()
        found[fact] = result.detach().numpy()
        if result.requires_grad:
            result[result.isfinite()].sum().backward()
        for number, parameter in enumerate(parameters):
            if parameter.grad is not None:
                found[f"{fact}, gradient {number}"] = parameter.grad.numpy()
    found["shape"] = np.array(make(lib.distributions, *map(lib.tensor, own)).sample((5,)).shape)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_values_and_gradients_as_torch(name: str) -> None:
    found, wanted = results(tc, ROWS[name]), results(torch, ROWS[name])
    assert {k for k, v in wanted.items() if np.any(v)} <= found.keys()
    for key, value in found.items():
        other = wanted.get(key, np.zeros_like(value))
        np.testing.assert_allclose(value, other, rtol=3e-8, atol=1e-11, err_msg=key)


@pytest.mark.parametrize("name", ROWS)
def test_samples_by_their_statistics(name: str) -> None:
    """The middle half of samples lies as torch's does, and passes gradients where torch's does."""
    make, own, _, _ = ROWS[name]
    mine, theirs = (make(lib.distributions, *map(lib.tensor, own)) for lib in (tc, torch))
    torch.manual_seed(3)
    ours, other = (d.sample((20_000,)).numpy() for d in (mine, theirs))
    assert ours.dtype == other.dtype and ours.shape == other.shape
    spread = np.maximum(np.quantile(other, 0.75, 0) - np.quantile(other, 0.25, 0), 0.05)
    for part in (0.25, 0.5, 0.75):
        distance = np.abs(np.quantile(ours, part, 0) - np.quantile(other, part, 0))
        discrete = np.array_equal(other, np.round(other))
        assert (distance <= (1.01 if discrete else 0.08 * spread)).all()
    assert mine.has_rsample == theirs.has_rsample
    if mine.has_rsample:
        parameters = [tc.tensor(a, requires_grad=True) for a in own]
        make(tc.distributions, *parameters).rsample((2,)).sum().backward()
        # A place of no influence has a gradient that is there and zero.
        assert all(p.grad is not None for p in parameters[-1:])
    if discrete := np.array_equal(other, np.round(other)):
        assert discrete and np.abs(ours.mean(0) - other.mean(0)).max() < 0.2 * max(1, other.max())


def test_a_cached_inverse_is_the_argument_itself() -> None:
    """As soft actor-critic needs it: the inverse of tanh near 1 would be infinite."""
    for lib in (tc, torch):
        d = lib.distributions
        far = d.Normal(lib.tensor([9.5]), lib.tensor([0.1]))
        squashed = d.TransformedDistribution(far, [d.TanhTransform(cache_size=1)])
        assert bool(squashed.log_prob(squashed.rsample()).isfinite().all())
        x = lib.tensor([20.0])
        transform = d.TanhTransform(cache_size=1)
        assert transform.inv(transform(x)) is x


def test_a_transform_of_ones_own() -> None:
    def made(lib: Any) -> Any:
        class Squash(lib.distributions.transforms.Transform):  # type: ignore[name-defined, misc]
            domain = lib.distributions.constraints.real
            codomain = lib.distributions.constraints.interval(-1.0, 1.0)
            bijective = True
            sign = +1

            def _call(self, x: Any) -> Any:
                return x.tanh()

            def _inverse(self, y: Any) -> Any:
                return 0.5 * (y.log1p() - (-y).log1p())

            def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
                return (1 - y * y).log()

        class Squashed(  # type: ignore[misc]
            lib.distributions.transformed_distribution.TransformedDistribution  # type: ignore[name-defined]
        ):
            def __init__(self, loc: Any, scale: Any) -> None:
                base = lib.distributions.Normal(loc, scale)
                super().__init__(base, [Squash(cache_size=1)])

            @property
            def mean(self) -> Any:
                value = self.base_dist.loc
                for transform in self.transforms:
                    value = transform(value)
                return value

        both = Squashed(lib.tensor(A), lib.tensor(POSITIVE))
        return both.mean.tolist(), both.log_prob(lib.tensor(np.tanh(VALUES))).tolist()

    np.testing.assert_allclose(made(tc)[0], made(torch)[0])
    np.testing.assert_allclose(made(tc)[1], made(torch)[1], rtol=1e-9)


DIVERGENCES: dict[str, Callable[..., Any]] = {
    "HalfNormal": lambda d, x: d.HalfNormal(x),
    "LogNormal": lambda d, x: d.LogNormal(x, x + 1),
    "OneHotCategorical": lambda d, x: d.OneHotCategorical(x),
    "Geometric": lambda d, x: d.Geometric(x / (1 + x)),
    "Poisson": lambda d, x: d.Poisson(x),
}


@pytest.mark.parametrize("name", DIVERGENCES)
def test_divergences_as_torch(name: str) -> None:
    values = []
    for lib in (tc, torch):
        p, q = (DIVERGENCES[name](lib.distributions, lib.tensor(x)) for x in (POSITIVE, np.exp(B)))
        values.append(lib.distributions.kl_divergence(p, q).numpy())
    np.testing.assert_allclose(*values, rtol=1e-9)


def test_divergences_of_ones_own() -> None:
    for lib in (tc, torch):
        d = lib.distributions

        class Own(d.Normal):  # type: ignore[name-defined, misc]
            pass

        @d.kl.register_kl(Own, d.Poisson)
        def rule(p: Any, q: Any) -> Any:
            return p.loc + q.rate

        one = lib.tensor(1.0)
        assert d.kl_divergence(Own(one, one), d.Poisson(one)).item() == 2.0
    with pytest.raises(tc.ArgumentError, match="no closed form"):
        tc.distributions.kl_divergence(
            tc.distributions.Gumbel(0.0, 1.0), tc.distributions.Poisson(1.0)
        )


def test_constraints_as_torch() -> None:
    x = np.array([[-1.0, 0.0, 0.5], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5]])
    names = "real positive nonnegative unit_interval boolean nonnegative_integer simplex one_hot"
    for name in names.split():
        ours, theirs = (
            getattr(lib.distributions.constraints, name).check(lib.tensor(x)).tolist()
            for lib in (tc, torch)
        )
        assert ours == theirs, name
    for call in (
        lambda c: c.interval(0, 0.5), lambda c: c.greater_than(0), lambda c: c.less_than(0.5),
        lambda c: c.integer_interval(0, 1), lambda c: c.independent(c.positive, 1),
        lambda c: c.half_open_interval(0, 0.5), lambda c: c.greater_than_eq(0),
    ):  # fmt: skip
        ours, theirs = (
            call(lib.distributions.constraints).check(lib.tensor(x)).tolist() for lib in (tc, torch)
        )
        assert ours == theirs


def test_refusals() -> None:
    d, one, bad = tc.distributions, tc.ones(2), tc.tensor([1.0, -1.0])
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: d.HalfNormal(bad), "scale is out of range"),
        (lambda: d.HalfNormal(one).log_prob(bad), "value is out of range"),
        (lambda: d.StudentT(one, 0.0, bad), "scale is out of range"),
        (lambda: d.Poisson(bad), "rate is out of range"),
        (lambda: d.Poisson(one).log_prob(bad / 2), "value is out of range"),
        (lambda: d.Geometric(one * 0), "probs is out of range"),
        (lambda: d.Geometric(one / 2).log_prob(bad), "value is out of range"),
        (lambda: d.OneHotCategorical(one).log_prob(one), "value is out of range"),
        (lambda: d.RelaxedBernoulli(1.0, one / 2).log_prob(bad), "value is out of range"),
        (lambda: d.RelaxedOneHotCategorical(1.0, one).log_prob(one), "value is out of range"),
        (lambda: d.MixtureSameFamily(d.Categorical(one), d.Poisson(tc.ones(3))), "do not fit"),
        (lambda: d.TanhTransform(cache_size=2), "cache_size is out of range"),
    ]
    for call, text in cases:
        with pytest.raises((tc.ArgumentError, tc.ShapeError), match=text):
            call()
