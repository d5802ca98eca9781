"""Resized images have the corners of those that they are made of, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.nn import functional as F


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["linear", "bilinear", "bicubic"])
def test_aligned_corners_are_the_same_elements(mode: str, dtype: str, device: str) -> None:
    """A last position a rounding below gave the elements before it a share: 1e-16 of 1e12."""
    rank = 1 if mode == "linear" else 2
    for size, wanted in ((2, 50), (4, 48), (7, 48), (16, 27)):
        x = np.zeros((1, 1, *(size,) * rank), dtype)
        x[(0, 0) + (size - 1,) * rank] = 1
        x = tc.tensor(1 - x, device=device, requires_grad=True)
        y = F.interpolate(x, size=(wanted,) * rank, mode=mode, align_corners=True)
        last = y[(0, 0) + (wanted - 1,) * rank]
        last.backward()
        assert float(last) == 0
        assert np.count_nonzero(x.grad.numpy()) == 1
