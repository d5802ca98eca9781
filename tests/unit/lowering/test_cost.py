"""FLOPs and bytes against counts made by hand."""

from __future__ import annotations

import math

import pytest

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import DType, bfloat16, bool_, float32, float64, int64
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import TABLE, common, contraction, indexing, random
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.lowering.schedule.cost import _FLOPS, Cost, flops, kernel_cost, node_cost

R, N = 8, 100
FULL = R * N


def buffer(slot: int, *shape: int, dtype: DType = float32) -> Node:
    return common.buffer.leaf(shape, dtype, CPU, slot=slot)


X = buffer(0, R, N)


def row(x: Node) -> Node:
    return mv.expand(x, shape=(R, N))


def test_matmul() -> None:
    """2 M N K a matrix, for each of a batch; each matrix is read or written once."""
    m, n, k = 32, 10, 784
    cost = node_cost(contraction.matmul(buffer(0, m, k), buffer(1, k, n)))
    assert cost.flops == 2 * m * n * k
    assert (cost.read, cost.written) == (4 * (m * k + k * n), 4 * m * n)
    batch = contraction.matmul(
        buffer(0, 5, 6, m, k, dtype=bfloat16), buffer(1, 5, 6, k, n, dtype=bfloat16)
    )
    assert flops(batch) == 2 * 5 * 6 * m * n * k
    assert node_cost(batch).nbytes == 2 * 30 * (m * k + k * n + m * n)


def test_softmax() -> None:
    """max, subtract, exp, sum, divide: 5 an element; the rows are read and written once."""
    shifted = ew.exp(ew.sub(X, row(rd.max(X, axes=(1,)))))
    result = ew.div(shifted, row(rd.sum(shifted, axes=(1,))))
    cost = kernel_cost([result], [X])
    assert cost.flops == 5 * FULL
    assert (cost.read, cost.written) == (4 * FULL, 4 * FULL)
    assert cost.instructions == (2 + 1 + 8 + 2 + 4) * FULL


def test_layer_norm() -> None:
    """Welford 4; subtract, square-root of a row, divide, scale, shift: 4 more an element."""
    both = rd.welford(X, axes=(1,))
    mean, m2 = common.output(both, index=0), common.output(both, index=1)
    scale, shift = buffer(1, 1, N), buffer(2, 1, N)
    centered = ew.div(ew.sub(X, row(mean)), row(ew.sqrt(m2)))
    result = ew.add(ew.mul(centered, row(scale)), row(shift))
    cost = kernel_cost([result, mean], [X, scale, shift])
    assert cost.flops == 8 * FULL + R
    assert cost.read == 4 * (FULL + 2 * N)
    assert cost.written == 4 * (FULL + R)


def test_bias_and_relu_after_matmul() -> None:
    """The product stays on chip; casts and selections are no FLOPs, a comparison is one."""
    w, bias = buffer(1, N, 7), buffer(2, 1, 7)
    z = ew.add(contraction.matmul(X, w), mv.expand(bias, shape=(R, 7)))
    y = ew.where(ew.gt(z, common.full_like(z, 0)), z, common.full_like(z, 0))
    out = ew.cast(y, dtype=bfloat16)
    cost = kernel_cost([out], [X, w, bias])
    assert cost.flops == 2 * R * 7 * N + R * 7 + R * 7
    assert (cost.read, cost.written) == (4 * (FULL + 7 * N + 7), 2 * R * 7)


def test_optimizer_step() -> None:
    """An assign does not read the value it replaces unless the new one does."""
    p, g = buffer(0, 1000), buffer(1, 1000)
    rate = common.scalar.leaf((1000,), float32, CPU, value=0.1)
    new = common.assign(p, ew.sub(p, ew.mul(rate, g)))
    assert kernel_cost([new], [p, g]) == Cost(2000, 8000, 4000, 2000)
    fresh = common.assign(p, ew.mul(rate, g))
    assert kernel_cost([fresh], [p, g]).read == 4000


def test_only_what_is_read_counts() -> None:
    """A slice of an input, and what is computed for a slice; two slices add up to the whole."""

    def half(x: Node, start: int) -> Node:
        return mv.slice_(x, starts=(start, 0), shape=(R // 2, N), steps=(1, 1))

    assert kernel_cost([ew.neg(half(X, 0))], [X]).read == 4 * FULL // 2
    assert kernel_cost([ew.add(half(X, 0), half(X, 4))], [X]).read == 4 * FULL
    assert kernel_cost([half(ew.exp(X), 0)], [X]).flops == FULL // 2
    assert kernel_cost([ew.add(X, mv.flip(X, axes=(0,)))], [X]).read == 4 * FULL


def test_broadcast_reads_its_operand_once() -> None:
    small = buffer(1, 1, N)
    cost = kernel_cost([ew.add(X, row(small))], [X, small])
    assert cost.read == 4 * (FULL + N)
    assert kernel_cost([row(ew.exp(small))], [small]).flops == N


def test_embedding() -> None:
    """A gather reads the rows it takes, not the table; its gradient adds each value once."""
    table, index = buffer(0, 50_000, 64), buffer(1, 32, dtype=int64)
    taken = indexing.gather(table, index)
    cost = node_cost(taken)
    assert cost == Cost(0, 4 * 32 * 64 + 8 * 32, 4 * 32 * 64, 0)
    zeros = common.full_like(table, 0)
    back = indexing.scatter_add(zeros, index, taken)
    cost = kernel_cost([back], [index, taken])
    assert cost.flops == 32 * 64
    assert (cost.read, cost.written) == (8 * 32 + 4 * 32 * 64, 4 * 50_000 * 64)


def test_leaves_and_rewrites_are_free_of_bytes() -> None:
    mask = random.random_uniform.leaf((R, N), float32, CPU, seed=1, number=2)
    keep = ew.cast(ew.lt(mask, common.full_like(mask, 0.5)), dtype=float32)
    cost = kernel_cost([ew.mul(X, keep)], [X])
    assert (cost.flops, cost.read, cost.written) == (2 * FULL, 4 * FULL, 4 * FULL)
    assert cost.instructions == (16 + 1 + 1 + 1) * FULL
    assert node_cost(mv.reshape(X, shape=(FULL,))) == Cost()
    assert node_cost(common.detach(X)) == Cost()
    assert node_cost(X) == Cost()


def test_shared_and_repeated_nodes_count_once() -> None:
    y = ew.exp(X)
    cost = kernel_cost([ew.mul(y, y), y, y], [X])
    assert cost == Cost(2 * FULL, 4 * FULL, 8 * FULL, 9 * FULL)


def test_dtypes_and_empty_shapes() -> None:
    x = buffer(0, 10, dtype=float64)
    assert kernel_cost([ew.eq(x, x)], [x]) == Cost(10, 80, 10, 10)
    assert ew.eq(x, x).dtype is bool_
    assert node_cost(ew.neg(buffer(0, 0, 3))) == Cost()


def test_roof() -> None:
    cost = Cost(flops=3_000, read=500, written=500)
    assert cost.nbytes == 1000
    assert cost.intensity == 3.0
    assert cost.seconds(1e3, 1e6) == 1.0
    assert cost.seconds(1e6, 1e3) == 3.0
    assert Cost().intensity == 0
    assert Cost(flops=1).intensity == math.inf
    assert cost.plus(Cost(1, 2, 3, 4)) == Cost(3001, 502, 503, 4)


def test_every_row_has_a_count() -> None:
    """A new contraction or kernel op must say what it costs."""
    for op in TABLE.values():
        if op.kind in ("contraction", "kernel"):
            assert op in _FLOPS, op.name
    with pytest.raises(AssertionError, match="no FLOPs for the row odd"):
        odd = type(contraction.matmul)("odd", "kernel", lambda op, sources, _: sources[0].outputs)
        flops(odd(X))
