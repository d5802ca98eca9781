"""Kernels that begin where the one before them ended: the same values, whichever way they walk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda import Tensor
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.nn import functional as F


def batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def centred(x: Tensor) -> Tensor:
    """Three passes over rows that are cut into parts."""
    return x / (x - x.mean(1, keepdim=True)).square().sum(1, keepdim=True)


def of_long_rows(x: Tensor) -> Tensor:
    """Each block reads its row again in each phase."""
    return F.softmax(x, dim=1)


@pytest.mark.parametrize("order", [0, 5])
@pytest.mark.parametrize(
    ("function", "shape"),
    [(batch_norm, (10, 2, 60, 61)), (centred, (3, 34001)), (of_long_rows, (2, 20003))],
)
def test_values_and_gradients_are_those_of_the_definition(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    order: int,
) -> None:
    device = str(device_or_skip("emu", request))
    backend: Any = registry.get(as_device(device))
    monkeypatch.setattr(backend, "target", replace(backend.target, l2=3 << 12))
    rng = np.random.default_rng(3)
    values, cotangent = (rng.normal(1, 2, shape).astype(np.float32) for _ in range(2))

    def made(on: str) -> list[np.ndarray]:
        x = tc.tensor(values, device=on, requires_grad=True)
        y = function(x)
        (gradient,) = tc.autograd.grad(y, [x], tc.tensor(cotangent, device=on))
        return [y.detach().cpu().numpy(), gradient.cpu().numpy()]

    expected = made("cpu")
    with settings.override(emu_order=order):
        for found, wanted in zip(made(device), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)
