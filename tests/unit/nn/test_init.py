"""Initial values: bounds and moments from the formulas, and the layers' own defaults."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.nn import init

pytestmark = pytest.mark.usefixtures("on_cpu")
SHAPE = (300, 200)


UNIFORM: dict[str, tuple[Callable[[Any], Any], float]] = {
    "xavier": (init.xavier_uniform_, math.sqrt(6 / 500)),
    "xavier, gain 2": (lambda t: init.xavier_uniform_(t, gain=2.0), 2 * math.sqrt(6 / 500)),
    "kaiming": (init.kaiming_uniform_, math.sqrt(2) * math.sqrt(3 / 200)),
    "kaiming, fan_out": (
        lambda t: init.kaiming_uniform_(t, mode="fan_out", nonlinearity="relu"),
        math.sqrt(2) * math.sqrt(3 / 300),
    ),
    "as Linear": (lambda t: init.kaiming_uniform_(t, a=math.sqrt(5)), 1 / math.sqrt(200)),
}
NORMAL: dict[str, tuple[Callable[[Any], Any], float]] = {
    "xavier": (init.xavier_normal_, math.sqrt(2 / 500)),
    "kaiming": (lambda t: init.kaiming_normal_(t, nonlinearity="relu"), math.sqrt(2 / 200)),
    "kaiming, tanh": (
        lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="tanh"),
        5 / 3 / math.sqrt(300),
    ),
}


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform(name: str) -> None:
    """Draws fill (-b, b) and have the variance b**2 / 3."""
    function, bound = UNIFORM[name]
    weight = tc.empty(*SHAPE)
    assert function(weight) is weight
    values = weight.numpy()
    assert np.abs(values).max() <= bound
    assert np.abs(values).max() > 0.999 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert values.mean() == pytest.approx(0, abs=0.01 * bound)


@pytest.mark.parametrize("name", NORMAL)
def test_normal(name: str) -> None:
    """Draws have the deviation of the formula, and tails."""
    function, deviation = NORMAL[name]
    values = function(tc.empty(*SHAPE)).numpy()
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert values.mean() == pytest.approx(0, abs=0.02 * deviation)
    assert np.abs(values).max() > 3.5 * deviation


def test_constants_write_to_parameters_without_history() -> None:
    weight = nn.Parameter(tc.rand(3))
    assert init.constant_(weight, 2.5).tolist() == [2.5] * 3
    assert init.ones_(weight).tolist() == [1.0] * 3
    assert init.zeros_(weight).tolist() == [0.0] * 3
    assert weight.is_leaf
    assert weight.requires_grad


def test_fans_of_a_convolution() -> None:
    """Each output sums over channels times kernel; torch agrees."""
    torch = pytest.importorskip("torch")
    shape = (8, 3, 5, 7)
    assert init._calculate_fan_in_and_fan_out(tc.empty(*shape)) == (105, 280)
    fans = torch.nn.init._calculate_fan_in_and_fan_out(torch.empty(shape))
    assert init._calculate_fan_in_and_fan_out(tc.empty(*shape)) == fans


def test_gains_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for name in ("linear", "conv2d", "sigmoid", "tanh", "relu", "selu"):
        assert init.calculate_gain(name) == torch.nn.init.calculate_gain(name)
    for slope in (None, 0.01, 0.3):
        ours = init.calculate_gain("leaky_relu", slope)
        assert ours == torch.nn.init.calculate_gain("leaky_relu", slope)


def test_seed_and_generator_decide_the_values() -> None:
    """The same seed gives the same layer; a generator of one's own leaves the default alone."""
    tc.manual_seed(3)
    first = nn.Linear(5, 4).weight.tolist()
    tc.manual_seed(3)
    init.uniform_(tc.empty(5), generator=tc.Generator().manual_seed(9))
    assert nn.Linear(5, 4).weight.tolist() == first
    draws = [
        init.normal_(tc.empty(5), generator=tc.Generator().manual_seed(9)).tolist()
        for _ in range(2)
    ]
    assert draws[0] == draws[1]


def test_linear_bounds() -> None:
    """Weight and bias of Linear lie within 1 / sqrt(in_features)."""
    layer = nn.Linear(16, 5000)
    for values in (layer.weight.detach().numpy(), layer.bias.detach().numpy()):
        assert 0.249 < np.abs(values).max() <= 0.25


def test_errors() -> None:
    with pytest.raises(tc.ShapeError, match=r"\(out, in\)"):
        init.xavier_uniform_(tc.empty(3))
    with pytest.raises(tc.ArgumentError, match="unknown nonlinearity"):
        init.calculate_gain("swiglu")
    with pytest.raises(tc.ArgumentError, match="fan_in or fan_out"):
        init.kaiming_normal_(tc.empty(3, 3), mode="fan_avg")


@pytest.mark.parametrize("limits", [(-2.0, 2.0), (-0.5, 1.5), (0.3, 0.9)])
def test_trunc_normal(limits: tuple[float, float]) -> None:
    """Draws have the moments of the normal distribution between its limits."""
    mean, deviation = 0.2, 0.5
    stats = pytest.importorskip("scipy.stats")
    a, b = ((limit - mean) / deviation for limit in limits)
    expected = stats.truncnorm(a, b, mean, deviation)
    values = init.trunc_normal_(tc.empty(*SHAPE), mean, deviation, *limits).numpy()
    assert limits[0] <= values.min() and values.max() <= limits[1]
    assert values.mean() == pytest.approx(expected.mean(), abs=0.01 * deviation)
    assert values.std() == pytest.approx(expected.std(), rel=0.01)
    assert np.median(values) == pytest.approx(expected.median(), abs=0.01 * deviation)


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (12, 3, 2, 2)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    """Rows or columns are orthonormal times gain; signs are even."""
    flat = init.orthogonal_(tc.empty(*shape, dtype=tc.float64), gain=3.0).numpy()
    flat = flat.reshape(shape[0], -1)
    small = flat if flat.shape[0] <= flat.shape[1] else flat.T
    np.testing.assert_allclose(small @ small.T, 9.0 * np.eye(len(small)), atol=1e-12)
    assert 0.3 < (flat > 0).mean() < 0.7


def test_sparse() -> None:
    """Each column has its zeros, at places of its own; the rest is normal."""
    values = init.sparse_(tc.empty(*SHAPE), 0.25, std=0.1).numpy()
    assert ((values == 0).sum(0) == 75).all()
    assert (values[:, 0] == 0).tolist() != (values[:, 1] == 0).tolist()
    kept = values[values != 0]
    assert kept.std() == pytest.approx(0.1, rel=0.01)
    assert kept.mean() == pytest.approx(0, abs=0.002)


def test_fixed_values_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for shape in ((3, 5), (5, 3)):
        assert init.eye_(tc.empty(*shape)).tolist() == torch.eye(*shape).tolist()
    for shape, groups in (((4, 2, 3), 1), ((6, 3, 3, 3), 3), ((2, 4, 3, 2, 5), 1)):
        expected = torch.nn.init.dirac_(torch.empty(shape), groups)
        assert init.dirac_(tc.empty(*shape), groups).tolist() == expected.tolist()


def test_older_names_warn() -> None:
    """They do what the new ones do, under the warning that torch gives."""
    for name in (
        "uniform", "normal", "xavier_uniform", "xavier_normal", "kaiming_uniform",
        "kaiming_normal", "eye", "orthogonal",
    ):  # fmt: skip
        tc.manual_seed(1)
        expected = getattr(init, f"{name}_")(tc.empty(4, 3)).tolist()
        tc.manual_seed(1)
        with pytest.warns(FutureWarning, match=rf"nn\.init\.{name}_`"):
            assert getattr(init, name)(tc.empty(4, 3)).tolist() == expected
    with pytest.warns(FutureWarning, match="constant_"):
        assert init.constant(tc.empty(2), 3.0).tolist() == [3.0, 3.0]
