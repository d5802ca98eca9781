"""Images of bytes resized as PyTorch's CPU does: integer weights, each axis rounded apart.

The weights of an axis are computed in float64 and scaled by the largest power of two that keeps
them in 16 bits; sums are exact in int32, then rounded and clamped to a byte.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import int32, uint8
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]
# PyTorch tries no more bits than these for the fraction of a weight.
MAX_PRECISION = 22


class Taps(NamedTuple):
    """What each output depends on: positions and weights, (wanted, taps), and the largest sum."""

    positions: Array
    weights: Array
    largest: float


def resized_bytes(
    input: Tensor, axis: int, wanted: int, factor: float | None, mode: str, aligned: bool,
    antialias: bool,
) -> Tensor:  # fmt: skip
    """A uint8 Tensor resized along one axis, ``bilinear`` or ``bicubic``.

    Args:
        factor: of the scale; None takes the sizes' quotient.
    """
    size = input.shape[axis]
    scale = size / wanted if factor is None else 1.0 / factor
    if aligned:
        scale = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    if antialias:
        taps = _antialiased(size, wanted, scale, 2 if mode == "bilinear" else 4)
    else:
        taps = _interpolated(size, wanted, scale, 2 if mode == "bilinear" else 4, aligned)
    bits = _precision(taps.largest)
    scaled = taps.weights * (1 << bits)
    weights = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32)
    positions = tensor(taps.positions, device=input.device)
    rows: Tensor = wrap(indexing.gather(input.movedim(axis, 0).node, positions.node))
    shape = (*weights.shape, *(1,) * (input.ndim - 1))
    products = rows.to(int32) * tensor(weights, device=input.device).reshape(shape)
    total = products.sum(1, dtype=int32) + (1 << (bits - 1))
    result: Tensor = (total >> bits).clamp(0, 255).to(uint8).movedim(0, axis)
    return result


def _precision(largest: float) -> int:
    """The bits of fraction with which the largest weight is below 2**15."""
    bits = 0
    while bits < MAX_PRECISION and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    return bits


def _interpolated(size: int, wanted: int, scale: float, count: int, aligned: bool) -> Taps:
    """Two or four neighbours; weights of those outside are added to the border's."""
    outputs = np.arange(wanted)
    source = scale * outputs if aligned else scale * (outputs + 0.5) - 0.5
    if count == 2 and not aligned:
        source = np.maximum(source, 0.0)
    # PyTorch takes the floor in float32: a source just below an integer counts as that integer.
    first = np.minimum(np.floor(source.astype(np.float32)).astype(np.int64), size - 1)
    distance = np.clip(source - first, 0.0, 1.0)
    start = np.maximum(first - count // 2 + 1, 0)
    weights = np.zeros((wanted, count))
    largest = 0.0
    for tap in range(count):
        offset = tap + 1 - count // 2
        slots = np.clip(first + offset, 0, size - 1) - start
        weights[outputs, slots] += _kernel(offset - distance, count, -0.75)
        # The largest of the partial sums, not of the sums.
        largest = max(largest, float(weights[outputs, slots].max()))
    positions = np.minimum(start[:, None] + np.arange(count), size - 1)
    return Taps(positions, weights, largest)


def _antialiased(size: int, wanted: int, scale: float, count: int) -> Taps:
    """As many elements as an output covers; their weights sum to one."""
    support = count * 0.5 * max(scale, 1.0)
    most = int(np.ceil(support)) * 2 + 1
    center = scale * (np.arange(wanted) + 0.5)
    start = np.maximum((center - support + 0.5).astype(np.int64), 0)
    covered = np.minimum((center + support + 0.5).astype(np.int64), size) - start
    columns = start[:, None] + np.arange(most)
    apart = (columns - center[:, None] + 0.5) * (1.0 / max(scale, 1.0))
    weights = np.where(np.arange(most) < covered[:, None], _kernel(apart, count, -0.5), 0.0)
    # A running sum adds from left to right, as PyTorch does.
    totals = np.cumsum(weights, axis=1)[:, -1:]
    weights = np.divide(weights, totals, out=weights, where=totals != 0.0)
    return Taps(np.minimum(columns, size - 1), weights, max(float(weights.max()), 0.0))


def _kernel(x: Array, count: int, a: float) -> Array:
    """The triangle for two taps, Keys' kernel (1981) for four."""
    x = np.abs(x)
    if count == 2:
        return np.maximum(1.0 - x, 0.0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
