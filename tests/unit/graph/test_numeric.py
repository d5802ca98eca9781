"""References that take more than one NumPy call agree with the call that defines them."""

from __future__ import annotations

import numpy as np
import pytest

from tinygrad_cuda.graph.ops import numeric


@pytest.mark.parametrize("shape", [(200, 50, 1), (1, 50, 4), (200, 50, 4), (1,)])
def test_select_by_bits_is_where(shape: tuple[int, ...]) -> None:
    """Conditions smaller than the result, too, above the size at which numpy.where is left."""
    random = np.random.default_rng(3)
    a, b = random.standard_normal((2, 200, 50, 4)).astype(np.float32)
    condition = random.random(shape) > 0.3
    number, zero = np.float32(-1.7), np.zeros((), np.float32)
    for pair in ((a, b), (a, np.asarray(number)), (a, zero), (zero, a), (a[:, :1], b[..., :1])):
        np.testing.assert_array_equal(numeric.select(condition, *pair), np.where(condition, *pair))
