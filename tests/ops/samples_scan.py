"""Samples of running sums and orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sampling import FLOATS, INTEGERS, Array, Sample, generator, plain, some

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.ops import scan

LINES = (((7,), 0), ((1,), 0), ((3, 130), 1), ((130, 3), 0), ((2, 5, 4), 1), ((0, 3), 1))
ORDERS = (((9,), 9), ((4, 13), 13), ((4, 13), 3), ((2, 3, 70), 5), ((5, 1), 1), ((0, 4), 2))


def samples() -> Iterator[Sample]:
    for shape, axis in LINES:
        yield _sum(shape, axis, dtypes.float32)
        yield _sum(shape, axis, dtypes.float64, differentiate=True)
    # Half types are widened before.
    for dtype in INTEGERS:
        yield _sum((5, 66), 1, dtype)
    for descending in (False, True):
        for shape, count in ORDERS:
            yield _order(f"{shape}", shape, count, descending, dtypes.float32)
        for dtype in (*FLOATS, *INTEGERS):
            yield _order("every dtype", (3, 17), 4, descending, dtype)


def _sum(shape: tuple[int, ...], axis: int, dtype: DType, differentiate: bool = False) -> Sample:
    rng = generator("cumsum", shape, axis, dtype.name)
    wide = np.float64 if dtype.is_floating else dtype.numpy
    return Sample(
        scan.cumsum, f"{shape} {axis} {dtype.name}" + " smooth" * differentiate,
        (plain(some(rng, shape, dtype)),), {"axis": axis},
        expected=lambda x, axis: np.cumsum(x.astype(wide), axis, dtype=wide).astype(x.dtype),
        differentiate=differentiate, loose=20,
    )  # fmt: skip


def _order(
    label: str, shape: tuple[int, ...], count: int, descending: bool, dtype: DType
) -> Sample:
    rng = generator("order", label, shape, count, descending, dtype.name)
    # Few different values: equal ones keep their order.
    values = rng.integers(0, 6, shape).astype(dtype.numpy)
    if dtype.is_floating and values.size:
        values[..., ::5] = np.nan
    return Sample(
        scan.order, f"{label} {count} {descending} {dtype.name}", (plain(values),),
        {"descending": descending, "count": count}, expected=_expected, exact=True,
    )  # fmt: skip


def _expected(x: Array, descending: bool, count: int) -> Any:
    found = np.zeros((*x.shape[:-1], count), np.int64)
    for place in np.ndindex(*x.shape[:-1]):
        row = [float(value) for value in x[place]]
        keys = [(value != value, value if value == value else 0.0) for value in row]
        sign = -1 if descending else 1
        order = sorted(range(len(row)), key=lambda k: (sign * keys[k][0], sign * keys[k][1]))
        found[place] = order[:count]
    return found
