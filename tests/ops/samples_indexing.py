"""Samples of gather, scatter and the checks of indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sampling import (
    ALL,
    FLOATS,
    INTEGERS,
    VIEWS,
    Array,
    Sample,
    generator,
    plain,
    some,
)

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.graph.program import Argument

Index = list[Any]


def _gather(source: Array, index: Array) -> Array:
    result = np.zeros(index.shape + source.shape[1:], source.dtype)
    for place in np.ndindex(index.shape):
        result[place] = source[int(index[place])]
    return result


def _scatter(base: Array, index: Array, values: Array) -> Array:
    result = base.copy()
    for place in np.ndindex(index.shape):
        result[int(index[place])] = values[place]
    return result


def _scatter_add(base: Array, index: Array, values: Array) -> Array:
    if base.dtype.kind == "b":
        combined, back = np.logical_or, base.dtype
        result = base.copy()
    else:
        # Half types are added in float32 and rounded once.
        combined, back = np.add, base.dtype
        result = base.astype(np.float64 if base.dtype.kind not in "iu" else base.dtype)
    with np.errstate(over="ignore"):
        for place in np.ndindex(index.shape):
            row = int(index[place])
            result[row] = combined(result[row], values[place])
    return result.astype(back)


# (shape of the source, positions)
PLACES: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((7, 13), [3, 0, 6, 3, 3]),
    ((7, 13), [[6, 5], [5, 0], [1, 5]]),
    ((7,), [2, 2, 2, 2]),
    ((5, 3, 2), [4]),
    ((5, 3), 2),
    ((3, 5), []),
    ((3, 0), [1, 1]),
    ((0, 4), []),
    ((1, 1), [0] * 31),
    ((31, 257), [30, 7, 13, 7]),
)


def samples() -> Iterator[Sample]:
    for shape, places in PLACES:
        yield from _indexing(f"{shape} {places}"[:50], shape, places, dtypes.float32)
    for dtype in ALL:
        yield from _indexing(f"{dtype.name}", (5, 3), [4, 0, 4, 2], dtype)
    for kind in INTEGERS:
        yield from _indexing(f"by {kind.name}", (5, 3), [4, 0, 4, 2], dtypes.float32, kind)
    for view in ("transposed", "sliced", "flipped", "expanded"):
        yield from _indexing(
            f"views {view}", (5, 3), [[4, 0], [4, 2], [1, 1]], dtypes.float32, view=view
        )
    for shape, places in (((4, 2), [3, 0, 3]), ((3,), [[1, 1], [2, 0]]), ((3, 2), 1), ((2, 2), [])):
        yield from _indexing(
            f"smooth {shape} {places}", shape, places, dtypes.float64, differentiate=True
        )
    yield from _indexing(
        "smooth sliced", (3, 2), [2, 0, 2], dtypes.float64, view="sliced", differentiate=True
    )
    # Many values for few places: the order of the additions is that of the index.
    rng = generator("many")
    index = rng.integers(0, 7, 2003)
    yield Sample(
        indexing.scatter_add, "2003 values, 7 places",
        (plain(np.zeros((7, 3), np.float32)), plain(index),
         plain(some(rng, (2003, 3), dtypes.float32))), expected=_scatter_add, loose=30,
    )  # fmt: skip
    for dtype in (*INTEGERS,):
        yield _checked(f"{dtype.name}", np.array([0, 6, 3], dtype.numpy), 7)
    yield _checked("0-d", np.array(4), 5)
    yield _checked("none", np.zeros((0, 3), np.int64), 1)
    yield _checked("2-d", rng.integers(0, 31, (7, 13)), 31)
    yield from map(_probabilities, FLOATS)


def _indexing(
    label: str, shape: tuple[int, ...], places: Any, dtype: DType, kind: DType = dtypes.int64,
    view: str = "plain", differentiate: bool = False,
) -> Iterator[Sample]:  # fmt: skip
    rng = generator(label)
    index = np.array(places, kind.numpy)
    base = some(rng, shape, dtype)
    values = some(rng, index.shape + shape[1:], dtype)
    look = VIEWS[view]
    shared: dict[str, Any] = {"differentiate": differentiate}
    yield Sample(
        indexing.gather, label, (look(base), look(index)), expected=_gather, exact=True, **shared
    )
    yield Sample(
        indexing.scatter_add, label, (plain(base), look(index), look(values)),
        expected=_scatter_add, loose=4, **shared,
    )  # fmt: skip
    yield Sample(
        indexing.scatter, label, (look(base), look(index), plain(values)),
        expected=_scatter, exact=True, **shared,
    )  # fmt: skip


def _checked(label: str, index: Array, limit: int) -> Sample:
    return Sample(
        indexing.check_index, label, (plain(index),),
        {"limit": limit, "what": "index", "code": Argument(0)}, numbers=(3,), exact=True,
        expected=lambda index, **_: index,
    )  # fmt: skip


def _probabilities(dtype: DType) -> Sample:
    values = np.array([0.125, 0.25, 0.5, 0.75], dtype.numpy)
    return Sample(
        indexing.check_unit, dtype.name, (plain(values),), {"what": "input", "code": Argument(0)},
        numbers=(3,), exact=True, expected=lambda x, **_: x,
        differentiate=dtype is dtypes.float64,
    )  # fmt: skip
