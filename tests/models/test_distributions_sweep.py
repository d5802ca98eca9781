"""Every distribution, transform and constraint against torch, mechanically: each method of each."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

LIBRARIES = (torch, tc)
rng = np.random.default_rng(5)
A = rng.standard_normal((3, 4))
POSITIVE = np.exp(rng.standard_normal((3, 4)))
PART = 1 / (1 + np.exp(-rng.standard_normal((3, 4))))
ZEROS = np.array([[1.0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 0]])
FACTOR = np.tril(rng.standard_normal((4, 4)), -1) + np.diag([1.0, 0.5, 2.0, 1.5])


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with tc.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def made(lib: Any, name: str) -> Any:
    """A distribution of a name, of the same parameters in both libraries."""
    d = lib.distributions
    a, positive, part = (lib.tensor(x) for x in (A, POSITIVE, PART))
    constructors = {
        "Normal": lambda: d.Normal(a, positive),
        "Laplace": lambda: d.Laplace(a, positive),
        "Cauchy": lambda: d.Cauchy(a, positive),
        "Gumbel": lambda: d.Gumbel(a, positive),
        "LogNormal": lambda: d.LogNormal(a, part),
        "StudentT": lambda: d.StudentT(positive + 2.5, a, positive),
        "Uniform": lambda: d.Uniform(a, a + positive),
        "Uniform, inside": lambda: d.Uniform(part / 2, (1 + part) / 2),
        "Uniform, wide": lambda: d.Uniform(-positive - 1, positive + 2),
        "Exponential": lambda: d.Exponential(positive),
        "HalfNormal": lambda: d.HalfNormal(positive),
        "Gamma": lambda: d.Gamma(positive, part),
        "Chi2": lambda: d.Chi2(positive),
        "Beta": lambda: d.Beta(positive, part + 0.5),
        "Dirichlet": lambda: d.Dirichlet(positive),
        "MultivariateNormal": lambda: d.MultivariateNormal(a, scale_tril=lib.tensor(FACTOR)),
        "Bernoulli": lambda: d.Bernoulli(part),
        "Bernoulli, sure": lambda: d.Bernoulli(lib.tensor(np.array([[0.0, 1.0, 0.5, 0.0]] * 3))),
        "Bernoulli, logits": lambda: d.Bernoulli(logits=a),
        "Categorical": lambda: d.Categorical(positive),
        "Categorical, zeros": lambda: d.Categorical(positive * lib.tensor(ZEROS)),
        "Categorical, logits": lambda: d.Categorical(logits=a),
        "OneHotCategorical": lambda: d.OneHotCategorical(positive),
        "OneHotCategoricalStraightThrough": lambda: d.OneHotCategoricalStraightThrough(part),
        "Geometric": lambda: d.Geometric(part),
        "Poisson": lambda: d.Poisson(positive),
        "RelaxedBernoulli": lambda: d.RelaxedBernoulli(lib.tensor(0.5), part),
        "RelaxedOneHotCategorical": lambda: d.RelaxedOneHotCategorical(lib.tensor(0.5), positive),
        "Independent": lambda: d.Independent(d.Normal(a, positive), 1),
        "Independent, of none": lambda: d.Independent(d.Bernoulli(part), 0),
        "Independent, of bits": lambda: d.Independent(d.Bernoulli(part), 1),
        "Mixture": lambda: d.MixtureSameFamily(d.Categorical(part), d.Normal(a, positive)),
        "Transformed": lambda: d.TransformedDistribution(d.Normal(a, positive), TANH[lib]),
        "Transformed, shifted": lambda: d.TransformedDistribution(
            d.Normal(a, positive),
            [d.transforms.ExpTransform(), d.transforms.AffineTransform(lib.tensor(A), -2.0)],
        ),
        "Transformed, simplex": lambda: d.TransformedDistribution(
            d.Normal(a, positive), d.transforms.StickBreakingTransform()
        ),
        "Transformed, wider": lambda: d.TransformedDistribution(
            d.Normal(lib.tensor(0.0, dtype=lib.float64), lib.tensor(1.0, dtype=lib.float64)),
            d.transforms.AffineTransform(a, positive),
        ),
    }
    return constructors[name]() if name else list(constructors)


TANH: dict[Any, Any] = {
    lib: [lib.distributions.transforms.TanhTransform(cache_size=1)] for lib in LIBRARIES
}
NAMES = made(tc, "")
FACTS = ("mean", "mode", "variance", "stddev", "entropy", "perplexity")
OF_VALUES = ("log_prob", "cdf", "icdf")


def answer(call: Any) -> Any:
    """An array, or the kind of refusal."""
    try:
        result = call()
    except NotImplementedError:
        return "not implemented"
    return result.detach().numpy()


def fact_of(distribution: Any, fact: str) -> Any:
    result = getattr(distribution, fact)
    return result() if callable(result) else result


def same(ours: Any, theirs: Any, what: Any, rtol: float = 1e-8) -> None:
    if isinstance(ours, str) or isinstance(theirs, str):
        assert isinstance(ours, str) and isinstance(theirs, str) and ours == theirs, what
        return
    assert ours.shape == theirs.shape, what
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-10, err_msg=str(what))


@pytest.mark.parametrize("name", NAMES)
def test_sets_of_values(name: str) -> None:
    theirs, ours = (made(lib, name) for lib in LIBRARIES)
    assert ours.batch_shape == tuple(theirs.batch_shape)
    assert ours.event_shape == tuple(theirs.event_shape)
    for fact in ("has_rsample", "has_enumerate_support"):
        assert getattr(ours, fact) == getattr(theirs, fact), fact
    assert set(ours.arg_constraints) == set(theirs.arg_constraints)
    pairs = [(ours.arg_constraints[key], theirs.arg_constraints[key], getattr(theirs, key))
             for key in theirs.arg_constraints]  # fmt: skip
    drawn = theirs.sample((5,))
    for mine, other, value in [*pairs, (ours.support, theirs.support, drawn)]:
        assert type(mine).__name__ == type(other).__name__, (mine, other)
        assert (mine.event_dim, mine.is_discrete) == (other.event_dim, other.is_discrete)
        for values in (value, -value, value + 0.25, value * np.inf, value * 0):
            given = tc.tensor(values.detach().numpy())
            same(mine.check(given).numpy(), other.check(values).numpy(), (name, mine))
    kinds = [lib.distributions.constraints.is_dependent(type(one).support)
             for lib, one in zip(LIBRARIES, (theirs, ours))]  # fmt: skip
    assert kinds[0] == kinds[1]
    assert bool(ours.support.check(ours.sample((100,))).all())
    for expand in (True, False):
        results = [answer(partial(d.enumerate_support, expand=expand)) for d in (ours, theirs)]
        same(*results, name)


@pytest.mark.parametrize("name", NAMES)
def test_methods(name: str) -> None:
    theirs, ours = (made(lib, name) for lib in LIBRARIES)
    for fact in FACTS:
        same(*(answer(partial(fact_of, one, fact)) for one in (ours, theirs)), (name, fact))
    torch.manual_seed(0)
    values = theirs.sample((6,))
    shares = torch.rand(values.shape, dtype=torch.float64)
    for method in OF_VALUES:
        value = shares if method == "icdf" else values
        given = tc.tensor(value.numpy())
        results = [
            answer(partial(getattr(ours, method), given)),
            answer(partial(getattr(theirs, method), value)),
        ]
        same(*results, (name, method), 1e-7)
    wide = [one.expand((2, *theirs.batch_shape)) for one in (ours, theirs)]
    same(answer(lambda: wide[0].log_prob(tc.tensor(values[:2].numpy()))),
         answer(lambda: wide[1].log_prob(values[:2])), (name, "expand"), 1e-7)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_moments_of_samples(name: str) -> None:
    if name in ("Cauchy",) or ("Categorical" in name and "Hot" not in name):
        return
    tc.manual_seed(3)
    theirs, ours = (made(lib, name) for lib in LIBRARIES)
    count = 20_000
    drawn = ours.sample((count,)).numpy()
    other = theirs.sample((count,)).numpy()
    # By torch's moments where it has them, else by those of its samples.
    with contextlib.suppress(NotImplementedError):
        mean, deviation = theirs.mean.numpy(), theirs.stddev.numpy()
        assert (np.abs(drawn.mean(0) - mean) <= 6 * deviation / count**0.5 + 1e-9).all()
    bounded = [np.tanh(x) for x in (drawn, other)]
    apart = np.abs(bounded[0].mean(0) - bounded[1].mean(0))
    assert (apart <= 6 * 2**0.5 * bounded[1].std(0) / count**0.5 + 1e-9).all()
    assert (np.abs(bounded[0].std(0) - bounded[1].std(0)) <= 0.05).all()


def test_divergences_of_every_two() -> None:
    """torch's value, or torch's refusal."""
    ours, theirs = ({name: made(lib, name) for name in NAMES} for lib in (tc, torch))
    given = refused = 0
    for one, other in itertools.product(NAMES, repeat=2):
        results = []
        for library, all_of_it in ((tc, ours), (torch, theirs)):
            p, q = all_of_it[one], all_of_it[other]
            results.append(answer(partial(library.distributions.kl_divergence, p, q)))
        same(*results, (one, other))
        given, refused = (
            given + (not isinstance(results[1], str)),
            refused + isinstance(results[1], str),
        )
    assert (given, refused) == (132, 1164)


# Transforms ---------------------------------------------------------------------------------------

N = np.random.default_rng(9).standard_normal
X, X2 = N((2, 4)), N((2, 4))
TRANSFORMS: dict[str, tuple[Any, Any]] = {
    "abs": (lambda t, lib: t.AbsTransform(), X),
    "affine": (lambda t, lib: t.AffineTransform(0.5, -2.0), X),
    "affine of Tensors": (lambda t, lib: t.AffineTransform(lib.tensor(X2), lib.tensor(X2 - 3)), X),
    "affine of events": (lambda t, lib: t.AffineTransform(0.5, 3.0, event_dim=1), X),
    "affine, wider": (lambda t, lib: t.AffineTransform(lib.tensor(X2), 2.0), X[0]),
    "exp": (lambda t, lib: t.ExpTransform(), X),
    "power": (lambda t, lib: t.PowerTransform(lib.tensor(2.0)), np.abs(X)),
    "power, down": (lambda t, lib: t.PowerTransform(lib.tensor(X2)), np.abs(X) + 0.5),
    "sigmoid": (lambda t, lib: t.SigmoidTransform(), X * 3),
    "softplus": (lambda t, lib: t.SoftplusTransform(), X),
    "tanh": (lambda t, lib: t.TanhTransform(), X),
    "tanh, cached": (lambda t, lib: t.TanhTransform(cache_size=1), X * 30),
    "softmax": (lambda t, lib: t.SoftmaxTransform(), X),
    "stick breaking": (lambda t, lib: t.StickBreakingTransform(), X),
    "lower Cholesky": (lambda t, lib: t.LowerCholeskyTransform(), N((2, 3, 3))),
    "positive definite": (lambda t, lib: t.PositiveDefiniteTransform(), N((2, 3, 3))),
    "correlation": (lambda t, lib: t.CorrCholeskyTransform(), N((2, 6))),
    "correlation of two": (lambda t, lib: t.CorrCholeskyTransform(), N((2, 1))),
    "reshape": (lambda t, lib: t.ReshapeTransform((4,), (2, 2)), X),
    "independent": (lambda t, lib: t.IndependentTransform(t.ExpTransform(), 1), X),
    "identity": (lambda t, lib: t.identity_transform, X),
    "composed": (
        lambda t, lib: t.ComposeTransform([t.AffineTransform(1.0, 2.0), t.TanhTransform()]), X,
    ),
    "composed, events": (
        lambda t, lib: t.ComposeTransform(
            [t.AffineTransform(0.0, 2.0), t.StickBreakingTransform(),
             t.IndependentTransform(t.ExpTransform(), 1)]
        ), X,
    ),
    "inverse of exp": (lambda t, lib: t.ExpTransform().inv, np.abs(X)),
    "inverse of a composition": (
        lambda t, lib: t.ComposeTransform([t.ExpTransform(), t.AffineTransform(1.0, -1.0)]).inv,
        1 - np.abs(X),
    ),
    "cat": (
        lambda t, lib: t.CatTransform([t.ExpTransform(), t.AffineTransform(1.0, 3.0)], -1, [1, 3]),
        X,
    ),
    "stack": (lambda t, lib: t.StackTransform([t.ExpTransform(), t.TanhTransform()], 0), X),
    "cumulative": (
        lambda t, lib: t.CumulativeDistributionTransform(
            lib.distributions.Normal(lib.tensor(0.0), lib.tensor(2.0))
        ), X,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    make, array = TRANSFORMS[name]
    found: list[dict[str, Any]] = []
    for lib in LIBRARIES:
        transform, x = make(lib.distributions.transforms, lib), lib.tensor(array)
        y = transform(x)
        facts: dict[str, Any] = {"y": y, "bijective": transform.bijective}
        back = transform.inv(y)
        facts["back"] = back
        facts["same object"] = back is x
        facts["jacobian"] = answer(partial(transform.log_abs_det_jacobian, x, y))
        facts["shapes"] = (tuple(transform.forward_shape(x.shape)),
                           tuple(transform.inverse_shape(y.shape)))  # fmt: skip
        for side in ("domain", "codomain"):
            inside = getattr(transform, side)
            facts[side] = type(inside).__name__, inside.event_dim, inside.is_discrete
        facts["sign"] = answer(lambda: lib.as_tensor(transform.sign))  # noqa: B023
        facts["inverse of the inverse"] = transform.inv.inv is transform
        facts["equal"] = make(lib.distributions.transforms, lib) == transform
        cached = transform.with_cache()
        facts["cached"] = cached.inv(cached(x)) is x
        found.append(facts)
    for key, theirs in found[0].items():
        ours = found[1][key]
        if isinstance(theirs, torch.Tensor):
            ours, theirs = ours.numpy(), theirs.numpy()
        if isinstance(theirs, np.ndarray) or isinstance(ours, np.ndarray):
            same(ours, theirs, (name, key), 1e-6)
        else:
            assert ours == theirs, (name, key)


CONSTRAINTS: dict[str, Any] = {
    **{name: (lambda c, lib, name=name: getattr(c, name)) for name in (
        "boolean", "nonnegative", "nonnegative_integer", "positive", "positive_integer", "real",
        "unit_interval", "one_hot", "real_vector", "simplex", "lower_triangular", "lower_cholesky",
        "corr_cholesky", "square", "symmetric", "positive_definite", "positive_semidefinite",
    )},
    "greater_than": lambda c, lib: c.greater_than(0.5),
    "greater_than_eq": lambda c, lib: c.greater_than_eq(lower_bound=1),
    "less_than": lambda c, lib: c.less_than(0.5),
    "interval": lambda c, lib: c.interval(-1.0, lib.tensor(1.0)),
    "half_open_interval": lambda c, lib: c.half_open_interval(0.0, 1.0),
    "integer_interval": lambda c, lib: c.integer_interval(0, 2),
    "multinomial": lambda c, lib: c.multinomial(3),
    "independent": lambda c, lib: c.independent(c.positive, 2),
    "cat": lambda c, lib: c.cat([c.positive, c.real], -1, [1, 2]),
    "stack": lambda c, lib: c.stack([c.positive, c.real, c.boolean], -1),
}  # fmt: skip
MATRICES = [
    np.eye(3), np.zeros((3, 3)), -np.eye(3), np.ones((3, 3)), np.tril(np.ones((3, 3))),
    np.array([[1.0, 0, 0], [0.6, 0.8, 0], [0, 0.6, 0.8]]), np.full((3, 3), 1 / 3),
    np.array([[2.0, 1, 0], [1, 2, 1], [0, 1, 2]]), np.arange(9.0).reshape(3, 3) - 4,
    np.full((3, 3), np.nan), np.full((3, 3), 0.5),
]  # fmt: skip


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints(name: str) -> None:
    make = CONSTRAINTS[name]
    theirs, ours = (make(lib.distributions.constraints, lib) for lib in LIBRARIES)
    assert (ours.event_dim, ours.is_discrete) == (theirs.event_dim, theirs.is_discrete)
    assert type(ours).__name__ == type(theirs).__name__
    if name != "interval":
        assert repr(ours).replace("_", "") == repr(theirs).replace("_", "") or name in (
            "cat", "stack",
        )  # fmt: skip
    for matrix in MATRICES:
        # Of a singular matrix the sign of the least eigenvalue is a rounding's.
        if name == "positive_semidefinite" and (matrix == matrix[0, 0]).all() and matrix[0, 0] != 0:
            continue
        checked = ours.check(tc.tensor(matrix)).numpy(), theirs.check(torch.tensor(matrix)).numpy()
        assert checked[0].dtype == checked[1].dtype == np.bool_
        np.testing.assert_array_equal(*checked, err_msg=f"{name} {matrix}")


@pytest.mark.parametrize("registry", ["biject_to", "transform_to"])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_registry(registry: str, name: str) -> None:
    results: list[Any] = []
    for lib in LIBRARIES:
        constraint = CONSTRAINTS[name](lib.distributions.constraints, lib)
        try:
            transform = getattr(lib.distributions, registry)(constraint)
        except NotImplementedError:
            results.append(None)
            continue
        x = lib.tensor(N((3,)) * 0 + np.array([0.5, -1.0, 2.0]))
        x = x if constraint.event_dim < 2 else lib.tensor(np.arange(9.0).reshape(3, 3) / 9)
        y = transform(x)
        assert bool(constraint.check(y).all())
        results.append((type(transform).__name__, y.numpy(), transform.inv(y).numpy()))
    assert (results[0] is None) == (results[1] is None)
    if results[0] is not None:
        assert results[0][0] == results[1][0]
        same(results[1][1], results[0][1], name)
        same(results[1][2], results[0][2], name, 1e-6)
