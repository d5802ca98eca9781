"""Subnormal numbers are neither flushed when read nor when written, on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from execution import device_or_skip

import tinygrad_cuda as tc

# The least number above 0, and one below the least normal number.
LEAST = {"float32": 2.0**-149, "float64": 2.0**-1074, "float16": 2.0**-24, "bfloat16": 2.0**-133}
NORMAL = {"float32": 2.0**-126, "float64": 2.0**-1022, "float16": 2.0**-14, "bfloat16": 2.0**-126}

# Each is exact: (x, 1) -> what x becomes.
EXACT: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "copy": (lambda x, one: x.clone(), lambda v: v),
    "add": (lambda x, one: x + x, lambda v: 2 * v),
    "sub": (lambda x, one: 3 * x - x, lambda v: 2 * v),
    "neg": (lambda x, one: -x, lambda v: -v),
    "abs": (lambda x, one: x.abs(), np.abs),
    "mul": (lambda x, one: x * one, lambda v: v),
    "div": (lambda x, one: x / one, lambda v: v),
    "maximum": (lambda x, one: x.maximum(0 * one), lambda v: np.maximum(v, 0)),
    "where": (lambda x, one: tc.where(x != 0, x, one), lambda v: np.where(v != 0, v, 1)),
    "compare": (lambda x, one: (x > 0).to(x.dtype), lambda v: (v > 0) * 1.0),
    "sum": (lambda x, one: x.reshape(2, 4).sum(0), lambda v: v.reshape(2, 4).sum(0)),
    "max": (lambda x, one: x.amax(), lambda v: v.max()),
    "matmul": (
        lambda x, one: tc.eye(8, dtype=x.dtype, device=x.device) @ x.unsqueeze(1),
        lambda v: v[:, None],
    ),
    "cumsum": (lambda x, one: x.cumsum(0), lambda v: np.cumsum(v)),
}


def values(dtype: str) -> np.ndarray[Any, Any]:
    """Multiples of the least number, and normal ones that come of sums of these."""
    least, normal = LEAST[dtype], NORMAL[dtype]
    return np.array([least, -least, 3 * least, 0.0, normal / 2, -normal / 4, normal, -0.0])


@pytest.fixture(params=["cpu", "emu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    return str(device_or_skip(request.param, request))


@pytest.mark.parametrize("dtype", LEAST)
def test_exact_operations_keep_subnormal_numbers(dtype: str, device: str) -> None:
    x = tc.tensor(values(dtype), dtype=getattr(tc, dtype), device=device)
    one = tc.ones_like(x)
    results = {name: ours(x, one) for name, (ours, _) in EXACT.items()}
    for name, found in results.items():
        expected = EXACT[name][1](values(dtype))
        np.testing.assert_array_equal(found.double().cpu().numpy(), expected, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_give_and_take_subnormal_numbers(dtype: str, device: str) -> None:
    kind, least, normal = getattr(tc, dtype), LEAST[dtype], NORMAL[dtype]
    x = tc.tensor([64 * least, normal / 2], dtype=kind, device=device)
    low = np.log(np.array([1e4 * least, normal / 8]))
    powers = tc.tensor(low, dtype=kind, device=device)
    cases = [
        (x.sqrt(), np.sqrt([64 * least, normal / 2])),
        (x.rsqrt(), 1 / np.sqrt([64 * least, normal / 2])),
        (x.log(), np.log([64 * least, normal / 2])),
        (x.tanh(), [64 * least, normal / 2]),
        (x.sin(), [64 * least, normal / 2]),
        (powers.exp(), [1e4 * least, normal / 8]),
    ]
    for found, expected in cases:
        # A subnormal number of 10,000 units has four digits.
        np.testing.assert_allclose(found.double().cpu().numpy(), expected, rtol=2e-3)


def test_quick_functions_of_bfloat16_keep_subnormal_numbers(device: str) -> None:
    x = tc.tensor([-92.0, -90.0, -88.0, -87.5, 3.0], dtype=tc.bfloat16, device=device)
    wide = np.exp(x.double().cpu().numpy())
    # Beyond -88 exp(-x) overflows in float32, in PyTorch too.
    for found, expected in ((x.exp(), wide), (x[2:].sigmoid(), (wide / (1 + wide))[2:])):
        # Of a subnormal number the last unit may differ, of others eight digits stay.
        np.testing.assert_allclose(
            found.double().cpu().numpy(), expected, rtol=2.0**-8, atol=LEAST["bfloat16"]
        )
