"""What was done to an array is said in words."""

from __future__ import annotations

import numpy as np
import pytest

from tinygrad_cuda.core.differences import explained, largest_difference

RANDOM = np.random.default_rng(0)
A, SQUARE, B = (RANDOM.standard_normal(shape) for shape in ((4, 6), (5, 5), (2, 3, 4)))
ORDER = np.array([2, 0, 1, 3, 5, 4])
SPOILED = A.copy()
SPOILED[1, 2] = 7
NAN = A.copy()
NAN[0, 0] = np.nan


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (A, A.T, "transposed: element [i, j] is at [j, i]"),
        (SQUARE, SQUARE.T, "transposed: element [i, j] is at [j, i]"),
        (B, B.transpose(1, 2, 0), "transposed: its axes come in the order (1, 2, 0)"),
        (A, A.reshape(6, 4), "reshaped: the same elements in shape (6, 4) instead of (4, 6)"),
        (A, 2.5 * A, "a constant ratio: each element is 2.5 times what it should be"),
        (A, -A, "the sign is flipped: each element is -1 times what it should be"),
        (A, 32 * A, "a mean is missing: each element is 32 times what it should be; 32 is n"),
        (A, A / 32, "a mean too many: each element is 1/32 of what it should be; 32 is n"),
        (A, 0 * A, "zero everywhere"),
        (A, A[:, ORDER], "permuted along dimension 1: 2 at 0, 0 at 1, 1 at 2, 5 at 4, 4 at 5"),
        (A, A[[0, 2, 1, 3]], "permuted along dimension 0: 2 at 1, 1 at 2"),
        (A, A + 3, "a constant offset: 3 is added to each element"),
        (A, SPOILED, "1 of 24 elements differ, the first at [1, 2]: 7 for "),
        (A, NAN, "1 of 24 elements are not finite, instead of 0"),
        (A, A[:2], "another shape: (2, 6) instead of (4, 6)"),
    ],
)
def test_differences(before: np.ndarray, after: np.ndarray, said: str) -> None:
    noise = 1 + 1e-6 * RANDOM.standard_normal(after.shape)
    assert explained(before, after * noise, {32: "n"}).startswith(said)


def test_the_largest_difference_is_of_the_largest_element() -> None:
    assert largest_difference(np.array([1.0, 4.0]), np.array([1.5, 4.0])) == 0.125
    assert largest_difference(NAN, NAN) == 0
    assert largest_difference(A, NAN) == np.inf
    assert largest_difference(A, A.T) == np.inf
    assert largest_difference(np.zeros(0), np.zeros(0)) == 0
