"""GELU by tanh: a gradient without lost digits, of few operations, and its own gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.graph.gradient import backward
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.nn import functional as F

torch = pytest.importorskip("torch")


def gradient(lib: Any, values: Any, dtype: Any, order: int = 1) -> Any:
    x = lib.tensor(values, dtype=dtype, requires_grad=True)
    result = lib.nn.functional.gelu(x, approximate="tanh")
    for _ in range(order):
        (result,) = lib.autograd.grad(result.sum(), x, create_graph=True)
    return result.detach().cpu().numpy().astype(np.float64)


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_no_digits_are_lost_where_the_sigmoid_is_near_one(device: str) -> None:
    """By the sigmoid's own gradient the error was 2.1e-6 at x = 5; torch's is 1.0e-6."""
    values = np.linspace(-12, 12, 20001).astype(np.float32)
    expected = gradient(torch, values, torch.float64)
    with tc.device(device):
        x = tc.tensor(values, requires_grad=True)
        F.gelu(x, approximate="tanh").sum().backward()
    assert np.abs(x.grad.cpu().numpy() - expected).max() < 1.5e-7


@pytest.mark.parametrize("order", [1, 2, 3])
def test_gradients_of_any_order_are_torchs(order: int) -> None:
    """At zero too, where the two branches meet, and at values whose square is infinite."""
    values = [0.0, -0.0, 1.0, -1.0, -0.75, 3.0, -3.0, 1e13, -1e13, np.inf, -np.inf, np.nan, 1e20]
    for name in ("float32", "float64"):
        expected = gradient(torch, values, getattr(torch, name), order)
        with tc.device("cpu"):
            actual = gradient(tc, values, getattr(tc, name), order)
        if order == 3:  # of large values torch's overflows
            actual, expected = actual[:7], expected[:7]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)


def test_its_derivative_has_eight_multiplications() -> None:
    """It is computed in the epilogue of a product: from the value's own rows there were eleven."""
    x = tc.zeros(3, device="cpu", requires_grad=True)
    y = F.gelu(x, approximate="tanh").node
    g = common.full_like(y, 1.0)
    (result,) = backward([y], [g], retain_graph=True).values()
    nodes = list(topological([result], stop=lambda n: n is x.node))
    assert sum(node.op is elementwise.mul for node in nodes) == 8
    assert sum(node.op is elementwise.sigmoid for node in nodes) == 1


def test_integers_are_refused() -> None:
    """As in PyTorch: constants would be rounded to their dtype."""
    with pytest.raises(tc.DTypeError, match="gelu"):
        F.gelu(tc.ones(3, dtype=tc.int64), approximate="tanh")
