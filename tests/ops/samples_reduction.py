"""Samples of reductions and matrix products: every set of axes, awkward sizes, ties and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from samples_elementwise import stored
from sampling import (
    ALL,
    FLOATS,
    NUMBERS,
    VIEWS,
    Array,
    Sample,
    Source,
    cast,
    edge_values,
    generator,
    plain,
    some,
    variant,
    wide,
)

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType, from_numpy
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import reduction as red

Row = list[Any]


def by_row(*formulas: Callable[[Row], Any], result: DType | None = None) -> Callable[..., Any]:
    """A formula on the Python numbers of each reduced group, in row-major order."""

    def expected(x: Array, axes: tuple[int, ...]) -> Any:
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        length = math.prod(x.shape[axis] for axis in axes)
        rows = wide(x).transpose(kept + list(axes)).reshape(math.prod(shape), length)
        dtype = result or from_numpy(x.dtype)
        found = []
        for formula in formulas:
            values = [stored(formula(row.tolist()), dtype) for row in rows]
            found.append(np.array(values, dtype.numpy).reshape(shape))
        return found[0] if len(found) == 1 else tuple(found)

    return expected


def _sum(row: Row) -> Any:
    return math.fsum(row) if row and isinstance(row[0], float) else sum(row)


def _or_nan(pick: Callable[[Row], Any]) -> Callable[[Row], Any]:
    return lambda row: (
        next((x for x in row if x != x), None) if any(x != x for x in row) else pick(row)
    )


def _position(pick: Callable[[Row], Any]) -> Callable[[Row], int]:
    def formula(row: Row) -> int:
        for place, x in enumerate(row):
            if x != x:
                return place
        return row.index(pick(row))

    return formula


def _mean(row: Row) -> float:
    return math.fsum(row) / len(row)


def _squares(row: Row) -> float:
    center = _mean(row)
    return math.fsum((x - center) ** 2 for x in row)


class Spec(NamedTuple):
    """One row: a formula on Python numbers for each result, and what it takes.

    Attributes:
        result: the dtype of the results, where it is not that of the operand.
        nonempty: no elements at all are refused.
        exact: it selects, so that nothing is rounded.
    """

    formulas: tuple[Callable[[Row], Any], ...]
    accepts: tuple[DType, ...]
    torch: Callable[..., Any] | None = None
    result: DType | None = None
    nonempty: bool = False
    exact: bool = False


def _extreme(pick: Callable[[Row], Any], torch: Any = None, result: DType | None = None) -> Spec:
    return Spec((pick,), ALL, torch, result, nonempty=True, exact=True)


_BOOL = (dtypes.bool_,)

SPECS: dict[Op, Spec] = {
    red.sum: Spec((_sum,), NUMBERS, lambda t, x, axes: t.sum(x, axes, keepdim=True, dtype=x.dtype)),
    red.prod: Spec((math.prod,), NUMBERS, lambda t, x, axes: _torch_prod(t, x, axes)),
    red.max: _extreme(_or_nan(max), lambda t, x, axes: t.amax(x, axes, keepdim=True)),
    red.min: _extreme(_or_nan(min), lambda t, x, axes: t.amin(x, axes, keepdim=True)),
    red.any: Spec((any,), _BOOL, lambda t, x, axes: t.any(x, dim=axes, keepdim=True), exact=True),
    red.all: Spec((all,), _BOOL, lambda t, x, axes: t.all(x, dim=axes, keepdim=True), exact=True),
    red.argmax: _extreme(_position(max), result=dtypes.int64),
    red.argmin: _extreme(_position(min), result=dtypes.int64),
    red.welford: Spec(
        (_mean, _squares), FLOATS, lambda t, x, axes: _torch_welford(t, x, axes), nonempty=True
    ),
}

# Innermost, outermost, both, middle, all, non-adjacent, none; primes; long and wide.
AXES = (
    ((7, 13), (1,)), ((7, 13), (0,)), ((7, 13), (0, 1)), ((3, 5, 7), (1,)), ((3, 5, 7), (0, 2)),
    ((3, 5, 7), (1, 2)), ((2, 3, 4, 5), (0, 2)), ((2, 3, 4, 5), (1, 3)),
    ((2, 3, 4, 5), (0, 1, 3)), ((31, 257), (1,)), ((31, 257), (0,)), ((257,), (0,)),
    ((1, 1), (0, 1)), ((5, 1), (0,)), ((5,), ()), ((), ()), ((0, 3), (1,)), ((3, 0, 2), (0, 2)),
)  # fmt: skip
LONG = (((2, 5003), (1,)), ((5003, 3), (0,)), ((1, 40009), (1,)), ((3, 1009, 5), (1,)))
SMOOTH = (
    ("plain", (2, 3), (1,)), ("plain", (3, 2), (0,)), ("transposed", (3, 4), (0, 1)),
    ("sliced", (2, 3, 2), (0, 2)), ("plain", (2, 3, 2), (1,)), ("plain", (3,), ()),
    ("flipped", (5,), (0,)), ("plain", (2, 1), (1,)),
)  # fmt: skip


def _torch_prod(t: Any, x: Any, axes: tuple[int, ...]) -> Any:
    for axis in axes:
        x = t.prod(x, axis, keepdim=True, dtype=x.dtype)
    return x


def _torch_welford(t: Any, x: Any, axes: tuple[int, ...]) -> Any:
    mean = t.mean(x, axes, keepdim=True)
    return mean, t.sum((x - mean) ** 2, axes, keepdim=True)


def samples() -> Iterator[Sample]:
    for op in SPECS:
        yield from _reductions(op)
    yield from _products()


def _build(op: Op) -> Callable[..., tuple[Node, ...]] | None:
    count = len(SPECS[op].formulas)
    if count == 1:
        return None

    def each(x: Node, axes: tuple[int, ...]) -> tuple[Node, ...]:
        node = op(x, axes=axes)
        return tuple(common.output(node, index=number) for number in range(count))

    return each


def _make(op: Op, label: str, source: Source, axes: tuple[int, ...], **more: Any) -> Sample:
    spec = SPECS[op]
    # No axes are all axes in torch; the formula knows better.
    return Sample(
        op, f"{label} axes={axes}", (source,), {"axes": axes}, build=_build(op),
        **{
            "expected": by_row(*spec.formulas, result=spec.result), "exact": spec.exact,
            "torch": spec.torch if axes else None, **more,
        },
    )  # fmt: skip


def _values(op: Op, key: Any, shape: tuple[int, ...], dtype: DType) -> Array:
    rng = generator(op.name, key, shape, dtype.name)
    if op is red.prod and dtype.is_floating:
        # The logarithms of the factors cancel: products of thousands stay near one.
        return cast(np.exp(rng.uniform(-0.02, 0.02, shape)) * rng.choice([-1, 1], shape), dtype)
    if dtype.is_integer:
        return np.asarray(rng.integers(0, 5, shape)).astype(dtype.numpy)
    return some(rng, shape, dtype)


def _reductions(op: Op) -> Iterator[Sample]:
    spec = SPECS[op]
    accepts, first = spec.accepts, spec.accepts[0]
    for shape, axes in AXES:
        if spec.nonempty and math.prod(shape[axis] for axis in axes) == 0:
            continue
        yield _make(op, f"{shape}", plain(_values(op, "axes", shape, first)), axes)
    for shape, axes in LONG:
        yield _make(op, f"{shape}", plain(_values(op, "long", shape, first)), axes, loose=20)
    for number, dtype in enumerate(accepts):
        shape, axes = AXES[number % 6]
        yield _make(op, f"{dtype.name} {shape}", plain(_values(op, "types", shape, dtype)), axes)
        if not dtype.is_floating:
            # Sums and products wrap; ties and both limits for the others.
            edges = np.resize(edge_values(dtype), (5, 13))
            yield _make(op, f"{dtype.name} edges", plain(edges), (number % 2,))
    for number, view in enumerate(("transposed", "sliced", "expanded", "flipped", "reshaped")):
        shape, axes = AXES[number + 2]
        yield _make(op, view, VIEWS[view](_values(op, "views", shape, first)), axes)
    if first.is_floating:
        yield from _special(op)
        yield from _smooth(op)


def _special(op: Op) -> Iterator[Sample]:
    """NaN and infinities in some rows, ties in others, zeros of both signs."""
    x = np.ones((6, 7))
    x[0, 3], x[1, 2:5], x[2, 0], x[2, 1] = np.nan, 4, np.inf, -np.inf
    x[3], x[4, ::2], x[5, 5] = -2, -0.0, 0
    if op is red.welford:
        # A running mean passes infinity by as NaN; the reference does not.
        x[2, :2] = 1
    for dtype in FLOATS:
        for axes in ((1,), (0,)):
            yield _make(op, f"{dtype.name} special", plain(cast(x, dtype)), axes, expected=None,
                        torch=None)  # fmt: skip


def _smooth(op: Op) -> Iterator[Sample]:
    differentiable = isinstance(op.gradient, tuple) and op.gradient[0] is not None
    for view, shape, axes in SMOOTH:
        rng = generator("smooth", op.name, view, shape)
        # All different by a margin: no ties to fall into.
        x = rng.permutation(np.linspace(-2, 2, max(math.prod(shape), 2))[: math.prod(shape)])
        x = (x + rng.uniform(-0.05, 0.05, x.shape)).reshape(shape)
        yield _make(op, f"smooth {view} {shape}", VIEWS[view](x), axes,
                    differentiate=differentiable)  # fmt: skip
    if op is red.prod:
        for zeros in (1, 2):
            x = generator("zeros").uniform(0.5, 2, (3, 4))
            x[1, :zeros] = 0
            for axes in ((1,), (0, 1)):
                yield _make(op, f"{zeros} zeros", plain(x), axes, differentiate=True)
    if op in (red.max, red.min):
        x = np.array([[1.0, 3.0, 3.0, -2.0], [2.0, -2.0, 2.0, 2.0]])
        yield _make(op, "ties", plain(x), (1,))
        yield _make(op, "ties", plain(x), (0, 1))


# (batch, M, K, N)
SIZES = (
    ((), 65, 33, 129), ((), 1, 7, 13), ((), 13, 7, 1), ((), 1, 1, 1), ((), 7, 0, 13),
    ((), 0, 5, 3), ((), 31, 257, 7), ((), 128, 64, 128), ((2, 3), 7, 5, 4), ((5,), 1, 31, 1),
    ((0,), 3, 2, 4), ((), 3, 4099, 5),
)  # fmt: skip


def _matmul(a: Array, b: Array) -> Array:
    """Sums of products in float64, or in integers modulo 2**64."""
    exact = np.int64 if a.dtype.kind in "iu" else np.float64
    columns = [
        np.sum(a.astype(exact) * np.moveaxis(b, -2, -1)[..., None, n, :].astype(exact), axis=-1)
        for n in range(b.shape[-1])
    ]
    shape = (*a.shape[:-1], b.shape[-1])
    return (np.stack(columns, -1) if columns else np.zeros(shape)).astype(a.dtype)


def _product(label: str, a: Source, b: Source, **more: Any) -> Sample:
    return Sample(
        contraction.matmul, label, (a, b),
        **{
            "expected": _matmul, "loose": 4.0 * math.sqrt(max(a.value.shape[-1], 1)),
            "torch": lambda t, a, b: t.matmul(a, b), **more,
        },
    )  # fmt: skip


def _products() -> Iterator[Sample]:
    for number, (batch, m, k, n) in enumerate(SIZES):
        rng = generator("matmul", number)
        a, b = some(rng, (*batch, m, k), dtypes.float32), some(rng, (*batch, k, n), dtypes.float32)
        yield _product(f"{batch} {m}x{k}x{n}", plain(a), plain(b))
    for dtype in NUMBERS:
        rng = generator("matmul", dtype.name)
        a, b = some(rng, (17, 33), dtype), some(rng, (33, 9), dtype)
        yield _product(f"{dtype.name} 17x33x9", plain(a), plain(b))
    for first, second in (("plain", "transposed"), ("transposed", "plain"),
                          ("transposed", "transposed"), ("sliced", "flipped"),
                          ("expanded", "reshaped"), ("reshaped", "expanded")):  # fmt: skip
        for dtype, batch, (m, k, n) in (
            (dtypes.float32, (), (65, 33, 17)),
            (dtypes.float64, (2,), (2, 3, 4)),
        ):
            rng = generator("matmul", first, second)
            a, b = some(rng, (*batch, m, k), dtype), some(rng, (*batch, k, n), dtype)
            yield _product(
                f"{dtype.name} {first} {second}", VIEWS[first](a), VIEWS[second](b),
                differentiate=dtype is dtypes.float64,
            )  # fmt: skip
    for m, k, n in ((1, 3, 2), (3, 1, 1), (2, 3, 3), (2, 0, 3)):
        rng = generator("matmul smooth", m, k, n)
        a, b = some(rng, (m, k), dtypes.float64), some(rng, (k, n), dtypes.float64)
        yield _product(f"smooth {m}x{k}x{n}", plain(a), plain(b), differentiate=True)
    yield from _same_operand()


def _same_operand() -> Iterator[Sample]:
    x = some(generator("gram"), (5, 3), dtypes.float64)
    gram = _product("x @ x.T", plain(x), plain(x))
    yield variant(
        gram, sources=(plain(x),),
        build=lambda n: (contraction.matmul(n, contraction.transpose(n)),),
        expected=lambda x: _matmul(x, x.T), torch=lambda t, x: x @ x.T, differentiate=True,
    )  # fmt: skip
    bad = np.ones((3, 4), np.float32)
    bad[1, 2] = np.nan
    yield _product("NaN in one row", plain(bad), plain(np.ones((4, 2), np.float32)))
