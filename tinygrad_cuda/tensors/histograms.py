"""Counts of values between edges, in one and in several dimensions; the host counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import buffer_node

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "histogram", "histogramdd",
]  # fmt: skip

Array = np.ndarray[Any, Any]


class Histogram(NamedTuple):
    """What `histogram` gives."""

    hist: Tensor
    bin_edges: Tensor


class HistogramDD(NamedTuple):
    """What `histogramdd` gives."""

    hist: Tensor
    bin_edges: tuple[Tensor, ...]


def histogram(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """How many elements lie between neighbouring edges; the last bin has both its edges.

    Args:
        bins: how many equal ones, or a vector of rising edges.
        range: the outer edges; the smallest and the largest element when left out.
        weight: what each element counts, of the shape of `input`.
        density: divide so that the integral is 1.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.histogram(tc.tensor([0.0, 1.0, 1.5, 4.0], device="cpu"), 2).hist.tolist()
        [3.0, 1.0]
    """
    hist, edges = histogramdd(
        input.reshape(-1, 1), [bins], range=range,
        weight=None if weight is None else weight.reshape(-1), density=density,
    )  # fmt: skip
    return Histogram(hist, edges[0])


def histogramdd(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> HistogramDD:
    """How many points lie in each cell of a grid.

    Args:
        input: (.., d), the points.
        bins: how many for all dimensions, or for each, or vectors of edges.
        range: the outer edges of each dimension, ``[low_0, high_0, low_1, ...]``.
        weight: what each point counts, of the shape of `input` without its last dimension.
        density: divide so that the integral is 1.
    """
    if not input.dtype.is_floating:
        raise DTypeError(
            "histogramdd", "needs a floating dtype", expect="float32 or float64",
            actual=input.dtype.name,
        )  # fmt: skip
    if not input.ndim:
        raise ShapeError("histogramdd", "needs points", expect="(.., d)", actual="()")
    count = input.shape[-1]
    points = input.detach().array().reshape(-1, count)
    chosen = [bins] * count if isinstance(bins, int) else list(bins)
    if len(chosen) != count:
        raise ArgumentError(
            "histogramdd", "bins do not fit", expect=f"{count} of them", actual=str(len(chosen))
        )
    dimensions: list[int] = np.arange(count).tolist()
    edges = [
        _edges(points[:, k], chosen[k], None if range is None else range[2 * k : 2 * k + 2])
        for k in dimensions
    ]
    amounts = None if weight is None else weight.detach().array().reshape(-1)
    found = _counted(points, edges, amounts)
    if density:
        found = found / found.sum()
        for k, line in enumerate(edges):
            shape = [-1 if axis == k else 1 for axis in dimensions]
            found = found / np.diff(line).reshape(shape)
    grid = _buffer(found, input)
    return HistogramDD(grid, tuple(_buffer(line, input) for line in edges))


def _buffer(array: Array, like: Tensor) -> Tensor:
    return wrap(buffer_node(np.array(array, like.dtype.numpy, order="C"), like.device))


def _edges(values: Array, bins: Any, outer: Sequence[float] | None) -> Array:
    if isinstance(bins, TensorBase):
        return wrap(bins.node).array()
    low, high = outer if outer is not None else (0.0, 0.0)
    if outer is None and values.size:
        low, high = float(values.min()), float(values.max())
    if not np.isfinite(low) or not np.isfinite(high) or low > high or bins < 1:
        raise ArgumentError(
            "histogramdd", "there is no such grid", expect="bins >= 1, finite low <= high",
            actual=f"{bins} bins from {low} to {high}",
        )  # fmt: skip
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.asarray(np.linspace(low, high, bins + 1), values.dtype)


def _counted(points: Array, edges: list[Array], amounts: Array | None) -> Array:
    shape = tuple(len(line) - 1 for line in edges)
    inside = np.ones(len(points), bool)
    places = []
    for column, line in zip(points.T, edges):
        place = np.searchsorted(line, column, side="right") - 1
        place = np.where(column == line[-1], len(line) - 2, place)
        inside &= (column >= line[0]) & (column <= line[-1])
        places.append(place)
    found = np.zeros(shape)
    chosen = tuple(place[inside] for place in places)
    np.add.at(found, chosen, 1 if amounts is None else amounts[inside])
    return found
