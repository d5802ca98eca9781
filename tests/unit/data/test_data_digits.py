"""Generated digits: reproducible, balanced, plausible as images, and a real classification task."""

from __future__ import annotations

import numpy as np
import pytest

from tinygrad_cuda.data.digits import GLYPH, GLYPHS, _glyph, generated_digits

pytestmark = pytest.mark.smoke("data")


def test_same_seed_same_images() -> None:
    images, labels = generated_digits(300, seed=5)
    again, labels_again = generated_digits(300, seed=5)
    other, _ = generated_digits(300, seed=6)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(labels, labels_again)
    assert (images != other).any()


def test_shapes_and_balance() -> None:
    images, labels = generated_digits(5000, seed=0)
    assert images.shape == (5000, 28, 28)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert np.bincount(labels).tolist() == [500] * 10


@pytest.mark.parametrize("n", [0, 1, 7])
def test_small_numbers(n: int) -> None:
    images, labels = generated_digits(n)
    assert images.shape == (n, 28, 28)
    assert labels.shape == (n,)


def test_images_look_like_mnist_in_their_statistics() -> None:
    """White on black, ink in the middle, an empty margin, no two images alike."""
    images, _ = generated_digits(2000, seed=1)
    pixels = images / 255
    assert 0.08 < pixels.mean() < 0.16  # MNIST: 0.131
    assert 0.2 < pixels.std() < 0.33  # MNIST: 0.308
    assert images.max(axis=(1, 2)).min() > 100
    border = np.concatenate([pixels[:, 0], pixels[:, -1], pixels[:, :, 0], pixels[:, :, -1]], 1)
    assert border.mean() < 0.01
    centre = (pixels.sum(axis=2) @ np.arange(28)) / pixels.sum(axis=(1, 2))
    assert np.abs(centre - 13.5).max() < 5
    assert len(np.unique(images.reshape(2000, -1), axis=0)) == 2000


def test_closed_strokes_stay_closed() -> None:
    """Control points that coincide move together, so that a 0 and an 8 keep their holes."""
    for digit in (0, 8):
        glyph = _glyph(digit, 0)
        np.testing.assert_array_equal(glyph.moves[0], glyph.moves[-1])
        assert glyph.moves.shape[1] < len(glyph.control)


def test_ink_is_the_length_of_the_strokes() -> None:
    """Points are weighted by the length they stand for: a pen lift carries none."""
    for digit, ways in GLYPHS.items():
        for way in range(len(ways)):
            glyph = _glyph(digit, way)
            points = glyph.curve @ glyph.control
            step = np.linalg.norm(np.diff(points, axis=0), axis=1)
            drawn = step[step < 0.08].sum()
            assert glyph.ink.sum() / GLYPH == pytest.approx(drawn, rel=1e-4)


def test_a_linear_classifier_learns_them_but_not_perfectly() -> None:
    """Far above chance, so the labels mean something; below 97 %, so the task is no toy."""
    images, labels = generated_digits(8000, seed=0)
    test_images, test_labels = generated_digits(2000, seed=1)
    x = np.c_[images.reshape(-1, 784) / 255, np.ones(8000)]
    weights = np.linalg.solve(x.T @ x + 3 * np.eye(785), x.T @ np.eye(10)[labels])
    scores = np.c_[test_images.reshape(-1, 784) / 255, np.ones(2000)] @ weights
    accuracy = (scores.argmax(axis=1) == test_labels).mean()
    assert 0.8 < accuracy < 0.97
