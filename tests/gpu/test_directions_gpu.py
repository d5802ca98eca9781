"""Passes over values larger than the cache, which begin where the one before them ended."""

from __future__ import annotations

import numpy as np

import tinygrad_cuda as tc
from tinygrad_cuda.nn import functional as F


def test_batch_norm_and_its_gradient_are_numpys_and_the_same_bits_in_every_replay(
    cuda_device: str,
) -> None:
    rng = np.random.default_rng(11)
    shape = (32, 20, 128, 64)  # 20 MiB; each of 20 rows is cut into parts
    values, cotangent = (rng.normal(0.5, 2, shape).astype(np.float32) for _ in range(2))
    x = tc.tensor(values, device=cuda_device, requires_grad=True)
    given = tc.tensor(cotangent, device=cuda_device)
    runs = []
    for _ in range(4):
        y = F.batch_norm(x, None, None, training=True)
        (gradient,) = tc.autograd.grad(y, [x], given)
        runs.append((y.detach().cpu().numpy(), gradient.cpu().numpy()))
    axes, wide, over = (0, 2, 3), values.astype(np.float64), cotangent.astype(np.float64)
    scale = 1 / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
    normal = (wide - wide.mean(axes, keepdims=True)) * scale
    along = normal * (over * normal).mean(axes, keepdims=True)
    expected = scale * (over - over.mean(axes, keepdims=True) - along)
    np.testing.assert_allclose(runs[0][0], normal, atol=1e-5)
    np.testing.assert_allclose(runs[0][1], expected, atol=1e-5)
    for run in runs[1:]:
        for found, first in zip(run, runs[0], strict=True):
            np.testing.assert_array_equal(found, first)
