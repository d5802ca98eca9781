"""Draws: they repeat with their generator, have the right moments, and refuse what has no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

Draw = Callable[[tc.Generator], tc.Tensor]
COUNT = 20_000


def blank(kind: str = "cpu", dtype: Any = tc.float64) -> tc.Tensor:
    return tc.zeros(COUNT, device=kind, dtype=dtype)


# A draw, its mean and its standard deviation.
DRAWS: dict[str, tuple[Draw, float, float]] = {
    "exponential_": (lambda g: blank().exponential_(4.0, generator=g), 0.25, 0.25),
    "geometric_": (lambda g: blank().geometric_(0.25, generator=g), 4.0, 12**0.5),
    "log_normal_": (
        lambda g: blank().log_normal_(0.0, 0.5, generator=g), np.exp(0.125),
        (np.exp(0.25) - 1) ** 0.5 * np.exp(0.125),
    ),
    "random_": (lambda g: blank().random_(-3, 5, generator=g), 0.5, (63 / 12) ** 0.5),
    "random_ below": (lambda g: blank().random_(6, generator=g), 2.5, (35 / 12) ** 0.5),
    "poisson": (lambda g: tc.poisson(blank() + 3.0, generator=g), 3.0, 3**0.5),
    "bernoulli": (lambda g: blank().bernoulli(0.3, generator=g), 0.3, 0.21**0.5),
    "multinomial": (
        lambda g: tc.multinomial(
            tc.tensor([1.0, 0.0, 3.0], device="cpu"), COUNT, True, generator=g
        ).double(),
        1.5, 0.75**0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_moments_and_repetition(name: str) -> None:
    """Mean and spread within five standard errors; the same seed gives the same numbers."""
    draw, mean, spread = DRAWS[name]
    first = draw(tc.Generator().manual_seed(3)).numpy()
    assert abs(first.mean() - mean) < 5 * spread / COUNT**0.5
    assert abs(first.std() - spread) < 0.1 * spread
    assert np.array_equal(first, draw(tc.Generator().manual_seed(3)).numpy())
    assert not np.array_equal(first, draw(tc.Generator().manual_seed(4)).numpy())


def test_quartiles_of_cauchy() -> None:
    """It has no mean."""
    drawn = blank().cauchy_(2.0, 0.5, generator=tc.Generator().manual_seed(1)).numpy()
    np.testing.assert_allclose(np.quantile(drawn, [0.25, 0.5, 0.75]), [1.5, 2.0, 2.5], atol=0.05)


def test_multinomial_without_replacement() -> None:
    """Each position at most once, those of weight 0 never; the first by its weight."""
    weights = tc.tensor([[0.5, 0.0, 2.0, 1.5]] * 4000, device="cpu")
    drawn = tc.multinomial(weights, 3, generator=tc.Generator().manual_seed(5)).numpy()
    assert drawn.shape == (4000, 3)
    assert (np.sort(drawn, 1) == [0, 2, 3]).all()
    share = np.bincount(drawn[:, 0], minlength=4) / 4000
    np.testing.assert_allclose(share, [0.125, 0, 0.5, 0.375], atol=0.04)


def test_all_devices_draw_the_same() -> None:
    def draws(kind: str) -> list[np.ndarray]:
        weights = tc.tensor([0.1, 0.4, 0.2, 0.3], device=kind)
        g = tc.Generator().manual_seed(11)
        return [
            tc.multinomial(weights, 50, True, generator=g).numpy(),
            tc.multinomial(weights, 3, generator=g).numpy(),
            tc.zeros(99, device=kind).random_(0, 1000, generator=g).numpy(),
        ]

    for a, b in zip(draws("cpu"), draws("emu")):
        assert np.array_equal(a, b)


def test_what_has_no_distribution_is_refused() -> None:
    x = tc.zeros(3, device="cpu")
    for call in (
        lambda: x.exponential_(0.0), lambda: x.geometric_(1.0), lambda: x.cauchy_(0, -1),
        lambda: x.log_normal_(0, 0), lambda: x.random_(3, 3), lambda: tc.poisson(x - 1),
        lambda: tc.multinomial(x, 1), lambda: tc.multinomial(x - 1, 1),
        lambda: tc.multinomial(tc.tensor([1.0, 0.0], device="cpu"), 2),
    ):  # fmt: skip
        with pytest.raises(tc.ArgumentError):
            call()
    with pytest.raises(tc.DTypeError):
        tc.zeros(3, device="cpu", dtype=tc.int64).exponential_()
