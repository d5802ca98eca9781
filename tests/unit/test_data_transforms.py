"""Transforms: values, channels, refusals, and that a composition knows whether it takes batches."""

from __future__ import annotations

import numpy as np
import pytest

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.data import Compose, Normalize
from tinygrad_cuda.data.transforms import works_on_batches


def test_normalize_each_channel() -> None:
    """(x - mean) / std per channel, on an image and on a batch, in the image's dtype."""
    normalize = Normalize([0.0, 1.0], [1.0, 0.5])
    image = np.ones((2, 3, 4), dtype=np.float32)
    out = normalize(image)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out[0], np.ones((3, 4)))
    np.testing.assert_array_equal(out[1], np.zeros((3, 4)))
    np.testing.assert_array_equal(normalize(np.stack([image, image]))[1], out)
    np.testing.assert_array_equal(image, np.ones((2, 3, 4)))  # the input is left alone


@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 4), (2, 1, 3, 3)])
def test_normalize_refuses_other_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"\(\.\.\., 2, height, width\)"):
        Normalize([0.0, 0.0], [1.0, 1.0])(np.zeros(shape))


@pytest.mark.parametrize(("mean", "std"), [([0.0], [1.0, 1.0]), ([0.0], [0.0])])
def test_normalize_refuses_its_arguments(mean: list[float], std: list[float]) -> None:
    with pytest.raises(ArgumentError, match="Normalize"):
        Normalize(mean, std)


def test_compose() -> None:
    """In order; batched only if every part is."""
    normalize = Normalize([1.0], [2.0])
    both = Compose([lambda x: x * 4, normalize])
    assert both(np.ones((1, 1, 1)))[0, 0, 0] == 1.5
    assert not works_on_batches(both)
    assert works_on_batches(Compose([normalize, normalize]))
    assert repr(Compose([normalize])) == "Compose([Normalize(mean=(1.0,), std=(2.0,))])"
