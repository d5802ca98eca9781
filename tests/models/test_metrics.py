"""Accuracy and confusion matrix against NumPy, with ties, NaN and bad labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.utils.metrics import accuracy, confusion_matrix, top_k_accuracy

rng = np.random.default_rng(4)


def tensor(value: Any, **options: Any) -> Any:
    return tc.tensor(value, device="cpu", **options)


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 6), (2, 3, 4, 5), (9, 1)])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_as_sorted(shape: tuple[int, ...], k: int) -> None:
    """Coarse scores, so that there are ties: a stable sort puts lower classes first."""
    scores = rng.integers(0, 4, shape).astype(np.float32)
    labels = rng.integers(0, shape[1], shape[:1] + shape[2:])
    k = min(k, shape[1])
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    wanted = (best == np.expand_dims(labels, 1)).any(1).mean()
    found = top_k_accuracy(tensor(scores), tensor(labels), k)
    assert (found.dtype, found.shape) == (tc.float32, ())
    assert found.item() == pytest.approx(wanted)
    if k == 1:
        assert accuracy(tensor(scores), tensor(labels)).item() == pytest.approx(wanted)
        predicted = tensor(scores).argmax(1)
        assert accuracy(predicted, tensor(labels)).item() == pytest.approx(wanted)


def test_nan_is_no_right_answer() -> None:
    scores = tensor([[np.nan, 1.0], [np.nan, 1.0], [2.0, 1.0]])
    assert accuracy(scores, tensor([1, 0, 0])).item() == pytest.approx(1 / 3)


def test_one_sample_and_no_sample() -> None:
    assert accuracy(tensor([0.1, 3.0, 2.0]), tensor(1)).item() == 1.0
    assert np.isnan(accuracy(tc.zeros(0, 3, device="cpu"), tensor([], dtype=tc.int64)).item())


@pytest.mark.parametrize("dtype", [tc.uint8, tc.int32, tc.int64])
def test_confusion_matrix_as_counted(dtype: Any) -> None:
    scores = rng.standard_normal((50, 4)).astype(np.float32)
    labels = rng.integers(0, 3, 50)  # class 3 never occurs
    wanted = np.zeros((4, 4), int)
    np.add.at(wanted, (labels, scores.argmax(1)), 1)
    target = tensor(labels).to(dtype)
    found = confusion_matrix(tensor(scores), target)
    assert found.dtype is tc.int64
    assert found.tolist() == wanted.tolist()
    predicted = tensor(scores).argmax(1)
    assert confusion_matrix(predicted, target, num_classes=4).tolist() == wanted.tolist()
    with np.errstate(invalid="ignore"):
        parts = {
            "true": wanted / wanted.sum(1, keepdims=True),
            "pred": wanted / wanted.sum(0, keepdims=True),
            "all": wanted / 50,
        }
    for normalize, part in parts.items():
        found = confusion_matrix(tensor(scores), target, normalize=normalize)
        np.testing.assert_allclose(found.numpy(), part, rtol=1e-6)


def test_confusion_matrix_of_images() -> None:
    scores, labels = rng.standard_normal((2, 3, 5, 4)), rng.integers(0, 3, (2, 5, 4))
    found = confusion_matrix(tensor(scores), tensor(labels))
    assert found.sum().item() == 40
    assert found.diagonal().sum().item() / 40 == pytest.approx(
        accuracy(tensor(scores), tensor(labels)).item()
    )


def test_classes_out_of_range_are_reported() -> None:
    scores = tensor([[1.0, 2.0], [3.0, 0.0]])
    for call in (
        lambda: accuracy(scores, tensor([0, 2])),
        lambda: confusion_matrix(scores, tensor([0, 2])),
        lambda: confusion_matrix(tensor([1, 2]), tensor([0, 1]), num_classes=2),
    ):
        with pytest.raises(tc.IndexError, match="actual: 2"):
            call().tolist()


def test_refusals() -> None:
    scores, labels = tensor([[1.0, 2.0], [3.0, 0.0]]), tensor([0, 1])
    with pytest.raises(tc.ShapeError, match=r"a target of shape \(2,\)"):
        accuracy(scores, tensor([0, 1, 1]))
    with pytest.raises(tc.ShapeError, match="there are no scores"):
        accuracy(tensor(1.0), tensor(0))
    with pytest.raises(tc.DTypeError, match="the target has no classes"):
        accuracy(scores, tensor([0.0, 1.0]))
    with pytest.raises(tc.ArgumentError, match="1 <= k <= 2"):
        top_k_accuracy(scores, labels, 3)
    with pytest.raises(tc.ArgumentError, match="number of classes is unknown"):
        confusion_matrix(labels, labels)
    with pytest.raises(tc.ArgumentError, match="no such normalization"):
        confusion_matrix(scores, labels, normalize="rows")


def test_on_devices(device: str) -> None:
    scores, labels = tc.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]]), tc.tensor([1, 1, 0])
    assert accuracy(scores, labels).item() == pytest.approx(1 / 3)
    assert confusion_matrix(scores, labels).tolist() == [[0, 1], [1, 1]]
