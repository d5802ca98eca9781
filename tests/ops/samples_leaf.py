"""Samples of leaves, random ones among them, and of identities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sampling import (
    ALL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    VIEWS,
    Sample,
    cast,
    edge_values,
    generator,
    plain,
    some,
)

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import LeafOp, Node
from tinygrad_cuda.graph.ops import common, random
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import reduction as red
from tinygrad_cuda.graph.program import Argument

# Leaves -------------------------------------------------------------------------------------


def leaves() -> Iterator[Sample]:
    for dtype in ALL:
        yield Sample(
            common.buffer, f"{dtype.name}", (plain(edge_values(dtype)),),
            build=lambda x: (x,), expected=lambda x: x, exact=True, signs=True,
        )  # fmt: skip
        for number, value in enumerate(_numbers(dtype)):
            shape = ((3, 5), (), (7,), (0, 2), (1, 257))[number % 5]
            yield _number(common.constant, shape, dtype, value, ())
            yield _number(common.scalar, shape, dtype, Argument(0), (value,))
    yield _number(common.constant, (7,), dtypes.float32, Argument(0), (0.1,))
    for dtype in NUMBERS:
        yield _range((13,), dtype, 0, 1, ())
        if dtype.is_signed:
            yield _range((7,), dtype, 5, -2, ())
    yield _range((257,), dtypes.float32, 0.25, 0.1, ())
    yield _range((5003,), dtypes.float64, -1.0, 1 / 3, ())
    yield _range((0,), dtypes.int64, 3, 1, ())
    yield _range((1,), dtypes.float32, 0.5, 2.0, ())
    yield _range((31,), dtypes.int64, 2**40, 2**33, ())
    yield _range((7,), dtypes.float32, Argument(0), Argument(1), (2.5, -0.5))
    yield _range((7,), dtypes.int32, Argument(0), 3, (11,))


def _numbers(dtype: DType) -> tuple[Any, ...]:
    if dtype is dtypes.bool_:
        return True, False
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return 0, 3, int(info.min), int(info.max)
    return 0.1, -0.0, float("inf"), float("nan"), -3.5


def _number(
    op: LeafOp, shape: tuple[int, ...], dtype: DType, value: Any, numbers: tuple[Any, ...]
) -> Sample:
    known = numbers[0] if numbers else value
    # A scalar leaf of the graph carries its value as an attribute before it becomes an argument.
    return Sample(
        op, f"{shape} {dtype.name} {known}{' argument' if numbers else ''}", (),
        {"value": value}, leaf=(shape, dtype), numbers=numbers, exact=True, signs=True,
        expected=lambda **_: cast(np.full(shape, known), dtype),
    )  # fmt: skip


def _range(
    shape: tuple[int, ...], dtype: DType, start: Any, step: Any, numbers: tuple[Any, ...]
) -> Sample:
    first = numbers[0] if numbers else start
    by = numbers[1] if len(numbers) > 1 else step
    return Sample(
        common.arange, f"{shape} {dtype.name} {first} {by}{' argument' if numbers else ''}", (),
        {"start": start, "step": step}, leaf=(shape, dtype), numbers=numbers,
        expected=lambda **_: cast(np.array([first + by * i for i in range(shape[0])]), dtype),
    )  # fmt: skip


# Identities ---------------------------------------------------------------------------------


def identities() -> Iterator[Sample]:
    x, y = (some(generator("identity", k), (3, 4), dtypes.float64) for k in range(2))
    same: dict[str, Any] = {"expected": lambda x, **_: x, "exact": True, "signs": True}
    yield Sample(common.variable, "a leaf", (plain(x),), {"leaf": None}, **same)
    yield Sample(common.detach, "a value", (plain(x),), **same)
    yield Sample(
        common.detach, "stops the gradient of one factor", (plain(x),), exact=True,
        build=lambda n: (ew.mul(n, common.detach(n)),), expected=lambda x: x * x,
    )  # fmt: skip
    for view in ("plain", "transposed"):
        yield Sample(
            common.assign, f"{view}", (plain(x), VIEWS[view](y)), exact=True,
            expected=lambda old, new: new, differentiate=True,
        )  # fmt: skip
    yield Sample(
        common.assign, "reads what it replaces", (plain(x), plain(y)), exact=True,
        build=lambda old, new: (common.assign(old, ew.add(old, new)),),
        expected=lambda old, new: old + new, differentiate=True,
    )  # fmt: skip
    yield Sample(
        common.custom, "its own derivative", (plain(x),), build=_custom_exp,
        expected=np.exp, differentiate=True,
    )  # fmt: skip
    yield Sample(
        common.custom, "two results", (plain(x), plain(y)), build=_custom_pair,
        expected=lambda x, y: (x * y, x + y), differentiate=True,
    )  # fmt: skip
    yield Sample(
        common.output, "of a reduction with two", (plain(x),), build=_spread,
        expected=lambda x: x.var(1, keepdims=True) * 4 + x.mean(1, keepdims=True),
        differentiate=True,
    )  # fmt: skip


def _custom_exp(x: Node) -> tuple[Node, ...]:
    value = ew.exp(common.detach(x))
    return (common.custom(value, x, results=1, function=lambda g: (ew.mul(g, ew.exp(x)),)),)


def _custom_pair(x: Node, y: Node) -> tuple[Node, ...]:
    a, b = common.detach(x), common.detach(y)

    def function(g_product: Node | None, g_sum: Node | None) -> tuple[Node, ...]:
        assert g_product is not None
        assert g_sum is not None
        return ew.add(ew.mul(g_product, y), g_sum), ew.add(ew.mul(g_product, x), g_sum)

    pair = common.custom(ew.mul(a, b), ew.add(a, b), x, y, results=2, function=function)
    return common.output(pair, index=0), common.output(pair, index=1)


def _spread(x: Node) -> tuple[Node, ...]:
    node = red.welford(x, axes=(1,))
    return (ew.add(common.output(node, index=1), common.output(node, index=0)),)


# Random leaves --------------------------------------------------------------------------------


def randoms() -> Iterator[Sample]:
    for op in (random.random_uniform, random.random_normal):
        for dtype in FLOATS:
            yield _random(op, (257,), dtype, 1, 0)
        for shape in ((), (0,), (1,), (7, 13), (3, 0, 2), (5003,)):
            yield _random(op, shape, dtypes.float32, 12345, 7)
        yield _random(op, (31,), dtypes.float32, 2**63 + 5, 2**31)
        yield _random(op, (31,), dtypes.float64, 0, 2**40)
    limits: Callable[[DType], tuple[int, int]] = lambda dtype: (  # noqa: E731
        int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)
    )  # fmt: skip
    for dtype in INTEGERS:
        low, high = limits(dtype)
        yield _random(random.random_integer, (257,), dtype, 3, 1, low=0, high=10)
        if dtype.itemsize < 8:
            yield _random(random.random_integer, (31,), dtype, 3, 2, low=low, high=high)
    yield _random(random.random_integer, (7, 13), dtypes.int64, 3, 4, low=-(2**40), high=2**41)
    yield _random(random.random_integer, (5,), dtypes.int64, 3, 5, low=-3, high=-2)
    yield _random(random.random_integer, (), dtypes.int64, 9, 5, low=0, high=1000)


def _random(
    op: LeafOp, shape: tuple[int, ...], dtype: DType, seed: int, number: int, **more: Any
) -> Sample:
    return Sample(
        op, f"{shape} {dtype.name} {seed} {number} {more or ''}", (),
        {"seed": Argument(0), "number": Argument(1), **more}, leaf=(shape, dtype),
        numbers=(seed, number), exact=True, signs=True,
    )  # fmt: skip
