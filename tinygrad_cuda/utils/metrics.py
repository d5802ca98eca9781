"""Measures of classification: accuracy, top-k accuracy, confusion matrix.

They stay on the device and are recorded like anything else; `.item()` waits for them.
"""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.dtypes import float32, int64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors.creation import arange, ones, zeros
from tinygrad_cuda.tensors.tensor import Tensor


def accuracy(input: Tensor, target: Tensor) -> Tensor:
    """The part of the targets whose class has the highest score, or that equal the prediction.

    Args:
        input: scores (N, C, ...) or (C,) of a floating dtype, or predicted classes of the
            target's shape.
        target: classes (N, ...), integers.

    Returns:
        A float32 Tensor of no dimensions; NaN if there are no targets.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: the target has no classes.

    Example:
        >>> import tinygrad_cuda as tc
        >>> scores = tc.tensor([[0.1, 0.9], [0.8, 0.2]], device="cpu")
        >>> accuracy(scores, tc.tensor([1, 1], device="cpu")).item()
        0.5
    """
    if input.dtype.is_floating:
        return top_k_accuracy(input, target, 1)
    _check_classes("accuracy", target)
    _check_shapes("accuracy", input, target, tuple(input.shape))
    with gradient_mode(False):
        result: Tensor = (input == target).to(float32).mean()
    return result


def top_k_accuracy(input: Tensor, target: Tensor, k: int = 5) -> Tensor:
    """The part of the targets whose class is among those with the `k` highest scores.

    Of equal scores that of the lower class is the higher; NaN is higher than all numbers.

    Args:
        input: scores (N, C, ...) or (C,).
        target: classes (N, ...), integers.
        k: from 1 to C.

    Returns:
        A float32 Tensor of no dimensions; NaN if there are no targets.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: the target has no classes.
        ArgumentError: k is out of range. IndexError: a class is (when the value is looked at).
    """
    axis, count = _classes("top_k_accuracy", input, target)
    if not 1 <= k <= count:
        raise ArgumentError(
            "top_k_accuracy", "k is out of range", expect=f"1 <= k <= {count}", actual=str(k)
        )
    with gradient_mode(False):
        scores = input.detach().movedim(axis, -1)
        labels = target.to(int64).unsqueeze(-1)
        own = scores.gather(-1, labels)
        positions = arange(count, device=input.device)
        before = (scores <= own).logical_not() | ((scores == own) & (positions < labels))
        result: Tensor = (before.sum(-1) < k).to(float32).mean()
    return result


def confusion_matrix(
    input: Tensor, target: Tensor, num_classes: int | None = None, normalize: str | None = None
) -> Tensor:
    """How often targets of class i (rows) were predicted as class j (columns).

    Args:
        input: scores (N, C, ...) or (C,) of a floating dtype, or predicted classes of the
            target's shape.
        target: classes (N, ...), integers.
        num_classes: C, needed where `input` has classes.
        normalize: None for counts, "true" for rows that sum to one, "pred" for columns that do,
            "all" for one sum; NaN where there is nothing to divide.

    Returns:
        int64 counts of shape (C, C), or float32 parts.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: the target has no classes.
        ArgumentError: num_classes is missing, or normalize is unknown.
        IndexError: a class is out of range (when the value is looked at).
    """
    if normalize not in (None, "true", "pred", "all"):
        raise ArgumentError(
            "confusion_matrix", "no such normalization", expect="None, 'true', 'pred' or 'all'",
            actual=repr(normalize),
        )  # fmt: skip
    with gradient_mode(False):
        predicted, count = _predicted(input, target, num_classes)
        # Two indices, so that a class out of range cannot count for another one.
        rows = zeros(count, predicted.numel(), dtype=int64, device=input.device)
        labels = target.to(int64).reshape(1, -1)
        rows = rows.scatter_add(0, labels, ones(labels.shape, dtype=int64, device=input.device))
        counts = zeros(count, count, dtype=int64, device=input.device)
        columns = predicted.to(int64).reshape(1, -1).expand(count, -1)
        counts = counts.scatter_add(1, columns, rows)
        if normalize is None:
            return counts
        axes: Any = {"true": 1, "pred": 0, "all": (0, 1)}[normalize]
        parts: Tensor = counts.to(float32)
        return parts / parts.sum(axes, keepdim=True)


def _predicted(input: Tensor, target: Tensor, count: int | None) -> tuple[Tensor, int]:
    """The predicted classes, and how many classes there are."""
    if input.dtype.is_floating:
        axis, classes = _classes("confusion_matrix", input, target)
        return input.detach().argmax(axis), count or classes
    _check_classes("confusion_matrix", target)
    _check_shapes("confusion_matrix", input, target, tuple(input.shape))
    if count is None:
        raise ArgumentError(
            "confusion_matrix", "the number of classes is unknown", expect="num_classes",
            actual="None", hint="only scores show it",
        )  # fmt: skip
    return input, count


def _classes(op: str, input: Tensor, target: Tensor) -> tuple[int, int]:
    """The dimension of the scores that counts classes, and its size."""
    _check_classes(op, target)
    axis = 1 if input.ndim > 1 else 0
    shape = tuple(input.shape)
    if not shape or shape[axis] == 0:
        raise ShapeError(op, "there are no scores", expect="(N, C, ...)", actual=str(shape))
    _check_shapes(op, input, target, shape[:axis] + shape[axis + 1 :])
    return axis, shape[axis]


def _check_classes(op: str, target: Tensor) -> None:
    if target.dtype.is_floating or target.dtype.name == "bool":
        raise DTypeError(
            op, "the target has no classes", expect="an integer dtype", actual=target.dtype.name
        )


def _check_shapes(op: str, input: Tensor, target: Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(target.shape) != wanted:
        raise ShapeError(
            op, "shapes do not fit", expect=f"a target of shape {wanted}",
            actual=f"{tuple(target.shape)}, input {tuple(input.shape)}",
        )  # fmt: skip
