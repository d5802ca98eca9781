"""Convolutions of a size for which tiles are chosen, beside the same by their definition."""

from __future__ import annotations

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.nn import functional as F

Results = list["np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]


def convolved(device: str, size: int, padding: int) -> Results:
    """A step of training with a bias and an activation: result, gradients, new weight.

    The activation is smooth: beside a kink two roundings of one value have two derivatives.
    """
    rng = np.random.default_rng(size)
    x, w, b = (
        tc.tensor(rng.standard_normal(shape).astype(np.float32), device=device, requires_grad=True)
        for shape in ((64, 64, size, size), (48, 64, 3, 3), (48,))
    )
    optimizer = tc.optim.SGD([w], lr=1e-4)
    y = F.softplus(F.conv2d(x, w, b, padding=padding))
    g = tc.tensor(rng.standard_normal(tuple(y.shape)).astype(np.float32), device=device)
    (y * g).sum().backward()
    optimizer.step()
    assert x.grad is not None
    assert w.grad is not None
    return [t.detach().cpu().numpy() for t in (y, x.grad, w.grad, w)]


@pytest.mark.parametrize(("size", "padding"), [(32, 1), (30, 0), (29, 2)])
def test_tiles_agree_with_the_definition_and_give_the_same_bits_again(
    cuda_device: str, size: int, padding: int
) -> None:
    runs = [convolved(cuda_device, size, padding) for _ in range(3)]
    with settings.override(winograd=False):
        cache.clear()  # plans are found by what records them
        expected = convolved(cuda_device, size, padding)
    cache.clear()
    for run in runs[1:]:
        for found, first in zip(run, runs[0], strict=True):
            np.testing.assert_array_equal(found, first)
    for found, exact in zip(runs[0], expected, strict=True):
        assert np.abs(found - exact).max() < 2e-5 * np.abs(exact).max()
    assert any(np.any(a != b) for a, b in zip(runs[0], expected, strict=True)), "no tiles were used"
