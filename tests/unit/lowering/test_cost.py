"""FLOPs against counts made by hand."""

from __future__ import annotations

import pytest

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import DType, bfloat16, float32, int64
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import TABLE, common, contraction, indexing, random
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.lowering.schedule.cost import _FLOPS, flops

R, N = 8, 100
FULL = R * N


def buffer(slot: int, *shape: int, dtype: DType = float32) -> Node:
    return common.buffer.leaf(shape, dtype, CPU, slot=slot)


X = buffer(0, R, N)


def test_matmul() -> None:
    """2 M N K a matrix, for each of a batch."""
    m, n, k = 32, 10, 784
    assert flops(contraction.matmul(buffer(0, m, k), buffer(1, k, n))) == 2 * m * n * k
    batch = contraction.matmul(
        buffer(0, 5, 6, m, k, dtype=bfloat16), buffer(1, 5, 6, k, n, dtype=bfloat16)
    )
    assert flops(batch) == 2 * 5 * 6 * m * n * k


def test_reductions() -> None:
    """One for each element that is read; Welford's sums take 4."""
    assert flops(rd.max(X, axes=(1,))) == flops(rd.sum(X, axes=(1,))) == FULL
    assert flops(rd.welford(X, axes=(1,))) == 4 * FULL


def test_elements() -> None:
    """One for each result; casts and selections are none, a comparison is one."""
    zero = common.full_like(X, 0)
    assert flops(ew.exp(X)) == flops(ew.gt(X, zero)) == FULL
    assert flops(ew.cast(X, dtype=bfloat16)) == flops(ew.where(ew.gt(X, zero), X, zero)) == 0
    assert flops(ew.neg(buffer(0, 0, 3))) == 0


def test_movements_and_leaves() -> None:
    assert flops(X) == flops(common.detach(X)) == 0
    assert flops(mv.reshape(X, shape=(FULL,))) == 0
    assert flops(random.random_uniform.leaf((R, N), float32, CPU, seed=1, number=2)) == 0


def test_embedding() -> None:
    """A gather takes rows, its gradient adds each value once."""
    table, index = buffer(0, 50_000, 64), buffer(1, 32, dtype=int64)
    taken = indexing.gather(table, index)
    assert flops(taken) == 0
    assert flops(indexing.scatter_add(common.full_like(table, 0), index, taken)) == 32 * 64


def test_every_row_has_a_count() -> None:
    """A new contraction or kernel op must say what it costs."""
    for op in TABLE.values():
        if op.kind in ("contraction", "kernel"):
            assert op in _FLOPS, op.name
    with pytest.raises(AssertionError, match="no FLOPs for the row odd"):
        odd = type(contraction.matmul)("odd", "kernel", lambda op, sources, _: sources[0].outputs)
        flops(odd(X))
