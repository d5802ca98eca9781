"""What the graph fuzzer leaves out of normalizations: rows without variance, third derivatives.

torch's value of a row without variance is its rounding error times 1 / sqrt(eps), and its third
derivatives of batch_norm and layer_norm take the statistics for constants. Both are compared with
the formula here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

Norm = Callable[[Any, Any], Any]
EPS = 0.01

# Of a (2, 3, 5); with the axes over which a mean is taken.
NORMS: dict[str, tuple[Norm, tuple[int, ...]]] = {
    "batch_norm": (
        lambda lib, x: lib.nn.functional.batch_norm(x, None, None, training=True, eps=EPS), (0, 2)
    ),
    "instance_norm": (lambda lib, x: lib.nn.functional.instance_norm(x, eps=EPS), (2,)),
    "layer_norm": (lambda lib, x: lib.nn.functional.layer_norm(x, (5,), eps=EPS), (2,)),
    "group_norm": (lambda lib, x: lib.nn.functional.group_norm(x, 3, eps=EPS), (2,)),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "emu"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NORMS)
def test_rows_without_variance(name: str, dtype: str, device: str) -> None:
    norm, axes = NORMS[name]
    constant, slope = 0.7, np.linspace(-1, 1, 30).reshape(2, 3, 5)
    kind = getattr(tc, dtype)
    x = tc.full((2, 3, 5), constant, device=device, dtype=kind).requires_grad_()
    y = norm(tc, x)
    (y.float() * tc.tensor(slope, device=device, dtype=tc.float32)).sum().backward()
    assert x.grad is not None
    exact = (slope - slope.mean(axes, keepdims=True)) / np.sqrt(EPS)
    digits = {"float64": 1e-12, "float32": 1e-5, "float16": 0.02, "bfloat16": 0.15}[dtype]
    np.testing.assert_allclose(y.detach().double().numpy(), np.zeros((2, 3, 5)), atol=digits)
    np.testing.assert_allclose(
        x.grad.double().numpy(), exact, atol=10 * max(digits, 1e-6), rtol=digits
    )


def formula(x: Any, axes: tuple[int, ...]) -> Any:
    apart = x - x.mean(axes, keepdim=True)
    return apart / ((apart * apart).mean(axes, keepdim=True) + EPS).sqrt()


def derivatives(lib: Any, norm: Callable[[Any], Any]) -> list[Any]:
    """The first four derivatives along one direction each."""
    x = lib.tensor(np.sin(np.linspace(-2, 2, 30)).reshape(2, 3, 5)).requires_grad_()
    weights = lib.tensor(np.cos(np.linspace(-1, 3, 30)).reshape(2, 3, 5))
    loss, found = (norm(x) ** 2 * weights).sum(), []
    for _ in range(4):
        (slope,) = lib.autograd.grad(loss, [x], create_graph=True)
        found.append(np.asarray(slope.detach().numpy()))
        loss = (slope * slope * weights).sum()
    return found


@pytest.mark.parametrize("name", NORMS)
def test_third_derivatives_are_those_of_the_formula(name: str) -> None:
    norm, axes = NORMS[name]
    with tc.device("cpu"):
        ours = derivatives(tc, lambda x: norm(tc, x))
    for found, exact in zip(ours, derivatives(torch, lambda x: formula(x, axes))):
        np.testing.assert_allclose(found, exact, rtol=1e-11, atol=1e-11 * np.abs(exact).max())
