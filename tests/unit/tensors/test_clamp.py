"""A bound that is a number is recorded in another way where no gradient is asked for."""

from __future__ import annotations

import numpy as np
import pytest

import tinygrad_cuda as tc

NAN, INF = float("nan"), float("inf")
BOUNDS = [None, 0, 0.1, -2.5, NAN, INF, -INF, 1e39, 2**70, True, np.float32(0.3)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_bounds_give_one_value_with_and_without_gradients(dtype: str, on_cpu: None) -> None:
    values = [3, 0, 1, 2] if dtype[0] in "iu" else [NAN, INF, -INF, 0.0, -0.0, 0.1, -2.5, 7.0]
    x = tc.tensor(values, dtype=getattr(tc, dtype))
    compared = 0
    for low in BOUNDS:
        for high in BOUNDS:
            if low is None and high is None:
                continue
            results = []
            for leaf in (x, x.clone().requires_grad_(dtype[0] == "f")):
                try:
                    results.append(tc.clamp(leaf, low, high).detach().numpy())
                except tc.TgcError as error:
                    results.append(type(error))
            if isinstance(results[0], type):
                assert results[0] is results[1]
                continue
            np.testing.assert_array_equal(*results)
            assert results[0].dtype == results[1].dtype
            compared += 1
    assert compared > 20


def test_of_two_zeros_the_element_stays(on_cpu: None) -> None:
    x = tc.tensor([0.0, -0.0])
    for low, high in ((0, None), (None, 0), (-0.0, 0.0)):
        for leaf in (x, x.clone().requires_grad_()):
            found = tc.clamp(leaf, low, high).detach().numpy()
            assert np.signbit(found).tolist() == [False, True]
