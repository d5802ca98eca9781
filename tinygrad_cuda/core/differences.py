"""Says how two arrays differ that should be equal: by a ratio, an order of axes or of classes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
# A named difference explains the arrays to this part of their largest element.
EXACT = 1e-3
# Slices along an axis whose order is looked for, and axes whose order is.
CLASSES, AXES = 4096, 5


def largest_difference(expected: Array, actual: Array) -> float:
    """``max|actual - expected| / max|expected|``; infinite where shapes or nans differ."""
    if expected.shape != actual.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    finite = np.isfinite(a)
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(a - b))
    worst = float(np.where(np.isnan(gap), np.inf, gap).max())
    size = float(np.abs(a[finite]).max()) if finite.any() else 0.0
    return worst / size if size else float("inf")


def explained(expected: Array, actual: Array, counts: Mapping[int, str] | None = None) -> str:
    """What was done to `expected` to give `actual`, in words.

    Args:
        expected, actual: arrays that should be equal.
        counts: numbers by which a mean may divide, with what they count.
    """
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return _not_finite(a, b)
    if a.shape != b.shape and a.size != b.size:
        return f"another shape: {b.shape} instead of {a.shape}"
    return (
        _turned(a, b)
        or _ratio(a, b, counts or {})
        or _reordered(a, b)
        or _shifted(a, b)
        or _counted(a, b)
    )


def _close(a: Array, b: Array) -> bool:
    return a.shape == b.shape and largest_difference(a, b) <= EXACT


def _not_finite(a: Array, b: Array) -> str:
    counts = [int((~np.isfinite(part)).sum()) for part in (a, b)]
    return f"{counts[1]} of {b.size} elements are not finite, instead of {counts[0]}"


def _turned(a: Array, b: Array) -> str | None:
    """Axes in another order."""
    if a.ndim < 2 or a.ndim > AXES:
        return None
    for axes in permutations(range(a.ndim)):
        if axes != tuple(range(a.ndim)) and _close(a.transpose(axes), b):
            if a.ndim == 2:
                return "transposed: element [i, j] is at [j, i]"
            return f"transposed: its axes come in the order {axes}"
    if a.shape != b.shape and _close(a.reshape(-1), b.reshape(-1)):
        return f"reshaped: the same elements in shape {b.shape} instead of {a.shape}"
    return None


def _ratio(a: Array, b: Array, counts: Mapping[int, str]) -> str | None:
    """Every element times one number."""
    if a.shape != b.shape or not a.any():
        return None
    ratio = float((a * b).sum() / (a * a).sum())
    if not ratio or not _close(a * ratio, b):
        return "zero everywhere" if not b.any() else None
    if abs(ratio + 1) < EXACT:
        return "the sign is flipped: each element is -1 times what it should be"
    for n, what in counts.items():
        if n > 1 and abs(ratio / n - 1) < EXACT:
            return f"a mean is missing: each element is {n} times what it should be; {n} is {what}"
        if n > 1 and abs(ratio * n - 1) < EXACT:
            return f"a mean too many: each element is 1/{n} of what it should be; {n} is {what}"
    return f"a constant ratio: each element is {ratio:.6g} times what it should be"


def _reordered(a: Array, b: Array) -> str | None:
    """Slices along one axis, such as classes, in another order."""
    if a.shape != b.shape:
        return None
    for axis, count in enumerate(a.shape):
        if not 1 < count <= CLASSES:
            continue
        one, other = (np.moveaxis(part, axis, 0).reshape(count, -1) for part in (a, b))
        # The nearest slice of `expected` for each of `actual`, by their sums of squares.
        products = (other * other).sum(1)[:, None] + (one * one).sum(1) - 2 * other @ one.T
        order = products.argmin(1)
        if len(set(order.tolist())) == count and _close(one[order], other):
            moved = np.flatnonzero(order != np.arange(count))
            shown = ", ".join(f"{order[k]} at {k}" for k in moved[:6])
            more = f" and {len(moved) - 6} more" if len(moved) > 6 else ""
            return f"permuted along dimension {axis}: {shown}{more}"
    return None


def _shifted(a: Array, b: Array) -> str | None:
    """One number added to every element."""
    if a.shape != b.shape or a.size < 2:
        return None
    offset = float((b - a).mean())
    if offset and np.abs(b - a - offset).max() <= EXACT * abs(offset):
        return f"a constant offset: {offset:.6g} is added to each element"
    return None


def _counted(a: Array, b: Array) -> str:
    """How many elements differ, and the first of them."""
    if a.shape != b.shape:
        return f"another shape, and other elements: {b.shape} instead of {a.shape}"
    wrong = np.argwhere(np.abs(a - b) > 1e-5 * np.abs(a).max())
    at = tuple(int(k) for k in wrong[0]) if len(wrong) else (0,) * a.ndim
    where = f" at {list(at)}" if at else ""
    return (
        f"{len(wrong)} of {a.size} elements differ, the first{where}: {b[at]:.6g} for {a[at]:.6g}"
    )


class BitDifference(NamedTuple):
    """How far the bits of two arrays lie apart; the larger of two differences is the greater.

    Attributes:
        ulps: the most representable numbers that lie between two elements, or the largest
            difference of integers; infinite where shapes differ, or one is nan or infinite alone.
        elements: how many differ.
        of: how many there are.
    """

    ulps: float = 0.0
    elements: int = 0
    of: int = 0

    @property
    def same(self) -> bool:
        """Whether all bits are the same; nans count as equal."""
        return not self.elements

    def __str__(self) -> str:
        if self.same:
            return "same"
        size = "not finite" if self.ulps == float("inf") else f"{self.ulps:.0f} ulp"
        if not self.ulps:
            size = "sign of 0"
        return f"{size}, {self.elements} of {self.of}"


def bit_difference(first: Array, second: Array) -> BitDifference:
    """How the bits of two arrays of one dtype differ."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return BitDifference(float("inf"), first.size, first.size)
    if first.dtype.kind == "c":
        part = np.float32 if first.dtype.itemsize == 8 else np.float64
        return bit_difference(*(np.ascontiguousarray(x).view(part) for x in (first, second)))
    bits = f"i{first.dtype.itemsize}"
    a, b = (np.ascontiguousarray(x).reshape(-1).view(bits) for x in (first, second))
    differs = a != b
    if not differs.any():
        return BitDifference(0.0, 0, first.size)
    x, y = first.reshape(-1)[differs], second.reshape(-1)[differs]
    if first.dtype.kind in "biu":
        gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
        return BitDifference(float(gap.max()), int(differs.sum()), first.size)
    both = np.isnan(x.astype(np.float64)) & np.isnan(y.astype(np.float64))
    if both.all():
        return BitDifference(0.0, 0, first.size)
    return BitDifference(
        _most_ulps(x[~both], y[~both]), int(differs.sum() - both.sum()), first.size
    )


def _most_ulps(x: Array, y: Array) -> float:
    """Representable numbers between the elements of two arrays, at most."""
    wide = x.astype(np.float64), y.astype(np.float64)
    if not (np.isfinite(wide[0]) & np.isfinite(wide[1])).all():
        return float("inf")
    bits = f"i{x.dtype.itemsize}"
    lowest = np.iinfo(bits).min
    ranks = []
    for part in (x, y):
        whole = part.view(bits).astype(np.int64)
        # Numbers below zero count backwards from their bits; -0 is 0.
        ranks.append(np.where(whole < 0, lowest - whole, whole))
    a, b = ranks
    # Of two signs the difference may be no int64; of one sign it is exact as one.
    apart = np.abs(a.astype(np.float64)) + np.abs(b.astype(np.float64))
    return float(np.where((a < 0) == (b < 0), np.abs(a - b), apart).max())
