"""Initial values: bounds and moments from the formulas, and the layers' own defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.nn import init

SHAPE = (300, 200)


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    tc.manual_seed(0)
    yield
    tc.set_default_device(None)


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
