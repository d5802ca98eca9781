"""Samples of many rows together: what fusion makes of layers, losses, updates and random graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from sampling import Array, Sample, Source, cast, generator, plain, sliced, some, transposed

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction, indexing, random
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as red
from tinygrad_cuda.graph.program import Argument

Build = Callable[..., tuple[Node, ...]]


# What a user's layers record -----------------------------------------------------------------


def like(x: Node, target: Node) -> Node:
    """x, of fewer or unit axes, repeated to the shape of `target`."""
    missing = len(target.shape) - len(x.shape)
    if missing:
        x = mv.reshape(x, shape=(1,) * missing + x.shape)
    return x if x.shape == target.shape else mv.expand(x, shape=target.shape)


def plus(x: Node, y: Node) -> Node:
    return ew.add(x, like(y, x))


def minus(x: Node, y: Node) -> Node:
    return ew.sub(x, like(y, x))


def times(x: Node, y: Node) -> Node:
    return ew.mul(x, like(y, x))


def scaled(x: Node, number: float) -> Node:
    return ew.mul(x, common.full_like(x, number))


def softmax(x: Node, axis: int = -1) -> Node:
    axes = (axis % len(x.shape),)
    e = ew.exp(minus(x, common.detach(red.max(x, axes=axes))))
    return ew.div(e, like(red.sum(e, axes=axes), e))


def log_softmax(x: Node) -> Node:
    axes = (len(x.shape) - 1,)
    shifted = minus(x, common.detach(red.max(x, axes=axes)))
    return minus(shifted, ew.log(red.sum(ew.exp(shifted), axes=axes)))


def normalized(x: Node, axes: tuple[int, ...]) -> Node:
    statistics = red.welford(x, axes=axes)
    mean, m2 = common.output(statistics, index=0), common.output(statistics, index=1)
    variance = scaled(m2, 1 / prod(x.shape[axis] for axis in axes))
    return times(minus(x, mean), ew.rsqrt(ew.add(variance, common.full_like(variance, 1e-3))))


def relu(x: Node) -> Node:
    return ew.maximum(x, common.full_like(x, 0))


def gelu(x: Node) -> Node:
    half = scaled(x, 0.5)
    return ew.mul(half, ew.add(ew.erf(scaled(x, 0.5**0.5)), common.full_like(x, 1)))


def linear(x: Node, w: Node, b: Node) -> Node:
    return plus(contraction.matmul(x, contraction.transpose(w)), b)


def mean_of_all(x: Node) -> Node:
    return red.mean(x, tuple(range(len(x.shape))))


def cross_entropy(x: Node, labels: Node) -> tuple[Node, ...]:
    picked = ew.cast(
        ew.eq(like(mv.reshape(labels, shape=(*labels.shape, 1)), x), classes(x)), dtype=x.dtype
    )
    loss = red.sum(ew.mul(log_softmax(x), picked), axes=(0, 1))
    return (scaled(loss, -1 / x.shape[0]),)


def classes(x: Node) -> Node:
    line = common.arange.leaf((x.shape[1],), dtypes.int64, x.device, start=0, step=1)
    return like(line, x)


def mlp(x: Node, w1: Node, b1: Node, w2: Node, b2: Node) -> tuple[Node, ...]:
    hidden = ew.tanh(linear(x, w1, b1))
    return (linear(hidden, w2, b2),)


def relu_mlp(x: Node, w1: Node, b1: Node, w2: Node, b2: Node) -> tuple[Node, ...]:
    hidden = relu(linear(x, w1, b1))
    y = linear(hidden, w2, b2)
    return y, hidden, mean_of_all(ew.mul(y, y))


def attention(q: Node, k: Node, v: Node) -> tuple[Node, ...]:
    scores = scaled(contraction.matmul(q, contraction.transpose(k)), q.shape[-1] ** -0.5)
    return (contraction.matmul(softmax(scores), v),)


def convolution(x: Node, w: Node) -> tuple[Node, ...]:
    """(N, C, L) and (K, C, 3), stride 2 and padding 1, as a matrix product over windows."""
    n, c, length = x.shape
    k = w.shape[0]
    out = (length + 2 - 3) // 2 + 1
    padded = mv.pad(x, starts=(0, 0, 1), shape=(n, c, length + 2), steps=(1, 1, 1), value=0)
    spread = mv.expand(mv.reshape(padded, shape=(n, c, length + 2, 1)), shape=(n, c, length + 2, 3))
    windows = mv.window(spread, axis=2, over=3, length=out, stride=2, dilation=1)
    columns = mv.reshape(mv.permute(windows, axes=(0, 2, 1, 3)), shape=(n * out, c * 3))
    kernel = contraction.transpose(mv.reshape(w, shape=(k, c * 3)))
    y = mv.reshape(contraction.matmul(columns, kernel), shape=(n, out, k))
    return (mv.permute(y, axes=(0, 2, 1)),)


def batch_norm(x: Node, weight: Node, bias: Node) -> tuple[Node, ...]:
    shape = (1, x.shape[1], 1, 1)
    y = times(normalized(x, (0, 2, 3)), mv.reshape(weight, shape=shape))
    return (plus(y, mv.reshape(bias, shape=shape)),)


def layer_norm(x: Node, weight: Node, bias: Node) -> tuple[Node, ...]:
    return (plus(times(normalized(x, (len(x.shape) - 1,)), weight), bias),)


def embedding(table: Node, index: Node, w: Node) -> tuple[Node, ...]:
    return (contraction.matmul(ew.tanh(indexing.gather(table, index)), w),)


def momentum(p: Node, m: Node, g: Node) -> tuple[Node, ...]:
    """One step of SGD; the rate is an argument of the program."""
    rate = common.scalar.leaf(p.shape, p.dtype, p.device, value=0.125)
    velocity = ew.add(scaled(m, 0.9), g)
    return common.assign(m, velocity), common.assign(p, ew.sub(p, ew.mul(rate, velocity)))


def long_chain(x: Node) -> tuple[Node, ...]:
    """More nodes than one kernel holds."""
    y = x
    for number in range(60):
        y = ew.sin(ew.add(scaled(y, 1.25), common.full_like(y, number / 60)))
    return (ew.add(y, x),)


def shared(x: Node) -> tuple[Node, ...]:
    """One value wanted itself, reduced along two axes, and transposed."""
    y = ew.tanh(x)
    rows, columns = red.sum(y, axes=(1,)), red.sum(y, axes=(0,))
    return y, rows, columns, ew.mul(like(rows, y), like(columns, y)), mv.permute(y, axes=(1, 0))


def reduced_twice(x: Node) -> tuple[Node, ...]:
    inner = red.sum(ew.exp(x), axes=(2,))
    return (red.sum(ew.log(inner), axes=(0,)), red.prod(ew.tanh(inner), axes=(1,)))


def differences(x: Node) -> tuple[Node, ...]:
    """Neighbours along both axes, with zeros beyond the border."""
    right, below = mv.shifted(x, 1, -1, 0), mv.shifted(x, 0, -1, 0)
    laplacian = ew.sub(ew.add(right, below), scaled(x, 2.0))
    return (ew.mul(laplacian, laplacian),)


def accuracy(x: Node, labels: Node) -> tuple[Node, ...]:
    best = mv.reshape(red.argmax(x, axes=(1,)), shape=labels.shape)
    right = ew.cast(ew.eq(best, labels), dtype=dtypes.float32)
    return best, mean_of_all(right)


def dropout(x: Node) -> tuple[Node, ...]:
    draws = random.random_uniform.leaf(x.shape, dtypes.float32, x.device, seed=7, number=11)
    keep = ew.lt(draws, common.full_like(draws, 0.75))
    dropped = ew.where(keep, scaled(x, 4 / 3), common.full_like(x, 0))
    return dropped, red.sum(dropped, axes=(0,))


def half_product(x: Node, w: Node) -> tuple[Node, ...]:
    """A product of half types whose epilogue is float32."""
    y = ew.cast(contraction.matmul(x, w), dtype=dtypes.float32)
    return ew.tanh(y), red.max(y, axes=(1,))


def products_reduced(a: Node, b: Node) -> tuple[Node, ...]:
    y = contraction.matmul(a, b)
    return (
        red.sum(y, axes=(0,)),
        red.sum(y, axes=(1,)),
        contraction.matmul(y, mv.flip(b, axes=(0,))),
    )


def scattered(base: Node, index: Node, values: Node) -> tuple[Node, ...]:
    total = indexing.scatter_add(base, index, ew.tanh(values))
    return (indexing.scatter(ew.mul(total, total), index, values), red.sum(total, axes=(0,)))


def mixed_widths(x: Node) -> tuple[Node, ...]:
    """Integers, bools and both floats in one chain."""
    whole = ew.cast(scaled(x, 10.0), dtype=dtypes.int32)
    odd = ew.eq(ew.bitwise_and(whole, common.full_like(whole, 1)), common.full_like(whole, 1))
    narrow = ew.cast(whole, dtype=dtypes.int8)
    return (
        ew.where(odd, ew.cast(narrow, dtype=dtypes.float64), ew.cast(x, dtype=dtypes.float64)),
        red.sum(ew.cast(odd, dtype=dtypes.int64), axes=(1,)),
    )


# Operands ------------------------------------------------------------------------------------


def _arrays(label: str, dtype: DType, *shapes: tuple[int, ...]) -> tuple[Array, ...]:
    rng = generator(label, dtype.name)
    return tuple(some(rng, shape, dtype) for shape in shapes)


def _labels(count: int, classes: int) -> Source:
    return plain(generator("labels", count).integers(0, classes, count))


# (name, build, representative row, small shapes to differentiate, large shapes); the shape of
# labels or positions is (count, "below", limit).
Case = tuple[str, Build, Any, tuple[Any, ...], tuple[Any, ...]]
_MLP_SMALL = ((3, 4), (5, 4), (5,), (2, 5), (2,))
_MLP_LARGE = ((37, 784), (128, 784), (128,), (10, 128), (10,))
CASES: tuple[Case, ...] = (
    ("softmax", lambda x: (softmax(x),), ew.exp, ((3, 4),), ((31, 257),)),
    ("softmax of columns", lambda x: (softmax(x, 0),), ew.exp, ((4, 3),), ((257, 31),)),
    ("softmax of long rows", lambda x: (softmax(x),), ew.exp, ((1, 5),), ((3, 5003),)),
    ("log softmax", lambda x: (log_softmax(x),), ew.log, ((3, 4),), ((64, 10),)),
    ("cross entropy", cross_entropy, ew.log, ((3, 4), (3, "below", 4)),
     ((64, 10), (64, "below", 10))),
    ("layer norm", layer_norm, red.welford, ((3, 4), (4,), (4,)), ((31, 257), (257,), (257,))),
    ("batch norm", batch_norm, red.welford, ((2, 3, 2, 1), (3,), (3,)),
     ((5, 13, 7, 7), (13,), (13,))),
    ("mlp", mlp, contraction.matmul, _MLP_SMALL, _MLP_LARGE),
    ("relu mlp", relu_mlp, contraction.matmul, (), _MLP_LARGE),
    ("attention", attention, contraction.matmul, ((2, 3, 2), (2, 4, 2), (2, 4, 3)),
     ((3, 31, 16), (3, 65, 16), (3, 65, 13))),
    ("convolution", convolution, mv.window, ((2, 2, 5), (2, 2, 3)), ((3, 7, 31), (13, 7, 3))),
    ("gelu", lambda x: (gelu(x),), ew.erf, ((5,),), ((7, 257),)),
    ("embedding", embedding, indexing.gather, ((4, 3), (5, "below", 4), (3, 2)),
     ((31, 13), (65, "below", 31), (13, 7))),
    ("momentum", momentum, common.assign, ((3, 2), (3, 2), (3, 2)), ((784, 13),) * 3),
    ("a long chain", long_chain, ew.sin, (), ((7, 13),)),
    ("shared value", shared, ew.tanh, ((3, 4),), ((31, 257),)),
    ("reduced twice", reduced_twice, red.sum, ((2, 3, 2),), ((5, 7, 31),)),
    ("differences", differences, mv.pad, ((3, 4),), ((13, 31),)),
    ("accuracy", accuracy, red.argmax, (), ((64, 10), (64, "below", 10))),
    ("dropout", dropout, ew.where, ((3, 4),), ((31, 257),)),
    ("products reduced", products_reduced, contraction.matmul, ((3, 2), (2, 2)),
     ((65, 33), (33, 33))),
    ("scattered", scattered, indexing.scatter, ((4, 2), (3, "below", 4), (3, 2)),
     ((13, 7), (31, "below", 13), (31, 7))),
    ("mixed widths", mixed_widths, ew.cast, (), ((7, 31),)),
)  # fmt: skip


def samples() -> Iterator[Sample]:
    for name, build, op, small, large in CASES:
        if small:
            yield Sample(
                op, f"{name}, small", _sources(name, small, dtypes.float64), build=build,
                differentiate=True, loose=10,
            )  # fmt: skip
        sources = _sources(name, large, dtypes.float32)
        yield Sample(op, f"{name}, float32", sources, build=build, loose=100)
        if name in ("softmax", "layer norm", "gelu", "mlp", "shared value"):
            for dtype in (dtypes.float16, dtypes.bfloat16):
                yield Sample(
                    op, f"{name}, {dtype.name}", _sources(name, large, dtype), build=build,
                    # A kernel rounds where it stores, the reference after each row.
                    loose=40,
                )  # fmt: skip
    for dtype in (dtypes.float16, dtypes.bfloat16):
        x, w = _arrays("half product", dtype, (17, 64), (64, 9))
        yield Sample(
            contraction.matmul, f"epilogue of {dtype.name}", (sliced(x), transposed(w)),
            build=half_product, loose=1e5 if dtype is dtypes.bfloat16 else 1e4,
        )  # fmt: skip
    for seed in range(16):
        yield _random_graph(seed)
    yield _rate()


def _sources(name: str, shapes: tuple[Any, ...], dtype: DType) -> tuple[Source, ...]:
    found = []
    for number, shape in enumerate(shapes):
        if "below" in shape:
            found.append(_labels(shape[0], shape[2]))
            continue
        (x,) = _arrays(f"{name} {number}", dtype, shape)
        if len(shape) == 2 and min(shape) > 8:
            x = cast(x / np.sqrt(shape[-1] / 8), dtype)
        found.append(plain(x))
    return tuple(found)


def _rate() -> Sample:
    """A learning rate that a run supplies."""
    p, g = _arrays("rate", dtypes.float32, (13, 7), (13, 7))

    def build(p: Node, g: Node, rate: Any) -> tuple[Node, ...]:
        number = common.scalar.leaf(p.shape, p.dtype, p.device, value=rate)
        return (common.assign(p, ew.sub(p, ew.mul(number, g))),)

    return Sample(
        common.scalar, "a learning rate", (plain(p), plain(g)), {"rate": Argument(0)},
        build=build, numbers=(0.1,), expected=lambda p, g, rate: p - np.float32(0.1) * g,
    )  # fmt: skip


# Random graphs --------------------------------------------------------------------------------

_SMOOTH_UNARY = (ew.tanh, ew.sin, ew.cos, ew.sigmoid, ew.neg)
_BINARY = (ew.add, ew.sub, ew.mul)


def _random_graph(seed: int) -> Sample:
    """Some twenty rows over matrices of one shape, several of them wanted."""
    shape = ((7, 13), (5, 8), (1, 31), (16, 16))[seed % 4]
    small, differentiate = (3, 2), seed % 8 == 0
    arrays = _arrays(
        f"random graph {seed}", dtypes.float64, *[small if differentiate else shape] * 3
    )
    views = (plain, transposed, sliced)
    sources = tuple(view(array) for view, array in zip(views, arrays))

    def build(*nodes: Node) -> tuple[Node, ...]:
        rng = np.random.default_rng(seed)
        pool = list(nodes)
        for _ in range(20):
            pool.append(_grown(rng, pool))
        return (pool[-1], pool[-4], red.sum(pool[-7], axes=(int(rng.integers(2)),)))

    return Sample(
        ew.tanh, f"random graph {seed}", sources, build=build, differentiate=differentiate,
        loose=1000,
    )  # fmt: skip


def _grown(rng: np.random.Generator, pool: list[Node]) -> Node:
    """One more value of the same shape, bounded by 2 or so."""
    x = pool[int(rng.integers(len(pool)))]
    y = pool[int(rng.integers(len(pool)))]
    rows, columns = x.shape
    choice = int(rng.integers(9))
    if choice <= 1:
        return _SMOOTH_UNARY[int(rng.integers(len(_SMOOTH_UNARY)))](x)
    if choice <= 3:
        return ew.tanh(_BINARY[int(rng.integers(3))](x, y))
    if choice == 4:
        axis = int(rng.integers(2))
        return ew.mul(x, like(ew.tanh(red.sum(y, axes=(axis,))), x))
    if choice == 5:
        return mv.flip(
            mv.shifted(x, int(rng.integers(2)), int(rng.integers(-2, 3)), 0.5), axes=(1,)
        )
    if choice == 6:
        flat = mv.reshape(mv.permute(x, axes=(1, 0)), shape=(rows * columns,))
        return mv.reshape(flat, shape=(rows, columns))
    if choice == 7:
        square = contraction.matmul(x, contraction.transpose(y))
        return ew.tanh(contraction.matmul(square, x))
    return normalized(x, (int(rng.integers(2)),))
