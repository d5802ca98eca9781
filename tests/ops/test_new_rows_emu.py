"""Rows that the package has never heard of: a reduction's and a movement's row are all that kernels
and NumPy's backend need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bench import Array, Bench

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.gradient import backward
from tinygrad_cuda.graph.node import Node, Op, Outputs, node_made
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd


def _largest(x: Array, axes: tuple[int, ...]) -> Any:
    return np.max(np.abs(x), axis=axes, keepdims=True, initial=0).astype(x.dtype)


def _log_sum(x: Array, axes: tuple[int, ...]) -> Any:
    return np.log(np.sum(np.exp(x), axis=axes, keepdims=True))


def _nearest(x: Array, axes: tuple[int, ...]) -> Any:
    return np.min(np.abs(x), axis=axes, keepdims=True, initial=np.inf).astype(x.dtype)


# An element enters as its absolute value; the combine is one that the prelude has.
MAX_ABS = rd._op(
    "max_abs", _largest,
    rd.Accumulation("tgc_max_op", 0, element="tgc_abs({x})"), None, rd._checked("float"),
)  # fmt: skip
# A pair as the running value, two functions of its own, a result that is computed from the pair.
LOG_SUM = rd._op(
    "log_sum", _log_sum,
    rd.Accumulation(
        "tgc_log_sum_op", "{{tgc_lowest<{T}>(), 0}}",
        state="tgc_log_sum<{T}>", element="tgc_log_sum<{T}>{{{x}, 1}}",
        results=("({r}.top + tgc_log({r}.sum))",), empty=-float("inf"),
        nbytes=lambda itemsize: 2 * itemsize,
        device="""
template <class T> struct tgc_log_sum { T top, sum; };
struct tgc_log_sum_op {
  template <class T>
  __device__ __forceinline__ tgc_log_sum<T> operator()(tgc_log_sum<T> a, tgc_log_sum<T> b) const {
    T top = tgc_max(a.top, b.top);
    if (top == a.top && top == b.top) return {top, a.sum + b.sum};
    return {top, a.sum * tgc_exp(a.top - top) + b.sum * tgc_exp(b.top - top)};
  }
};
""",
    ),
    None, rd._checked("float"),
)  # fmt: skip
# An expression makes the combine.
NEAREST = rd._op(
    "nearest", _nearest,
    rd.Accumulation(
        "tgc_nearest_op", "tgc_highest<{T}>()", element="tgc_abs({x})", empty=float("inf"),
        device=rd.functor("tgc_nearest_op", "a < b ? a : b"),
    ),
    None, rd._checked("float"),
)  # fmt: skip
NEW = (MAX_ABS, LOG_SUM, NEAREST)


def _same(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    return sources[0].outputs


def _repeated(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    ((shape, dtype),) = sources[0].outputs
    return (((*shape[:-1], shape[-1] * attributes["times"]), dtype),)


# Every element has a source, which is another one.
ROLL = mv.MovementOp(
    "roll", "movement", _same,
    numpy=lambda x, axis, by: np.roll(x, by, axis),
    cuda=lambda at, reading, size, axis, by: [
        (c - by) % n if k == axis else c for k, (c, n) in enumerate(zip(at, size))
    ],
    whole=True, gradient=(lambda g, out, x, axis, by: ROLL(g, axis=axis, by=-by),),
)  # fmt: skip
REPEAT = mv.MovementOp(
    "repeat", "movement", _repeated,
    numpy=lambda x, times: np.repeat(x, times, -1),
    cuda=lambda at, reading, size, times: [*at[:-1], at[-1] // times], whole=True,
)  # fmt: skip
# The lower triangle; a condition on two coordinates, zeros above.
LOWER = mv.MovementOp(
    "lower", "movement", _same, numpy=lambda x: np.tril(x),
    cuda=lambda at, reading, size: [*at[:-1], at[-2] - reading.inside(at[-2] - at[-1], size[-2])],
    fills=True,
)  # fmt: skip
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((7, 13), (1,)), ((33, 300), (1,)), ((33, 300), (0,)), ((2, 40001), (1,)), ((40001, 3), (0,)),
    ((3, 5, 7), (0, 2)), ((6,), ()), ((4, 1), (1,)), ((2, 0), (1,)), ((600, 8), (1,)),
)  # fmt: skip


@pytest.fixture
def bench() -> Bench:
    return Bench(as_device("emu"))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_its_row_is_all_that_kernels_need(bench: Bench, dtype: DType) -> None:
    """Rows and columns, short, split into parts, of nothing; beside what they are read by."""
    outputs: list[Node] = []
    for shape, axes in SHAPES:
        x = bench(*shape, dtype=dtype)
        for op in NEW:
            value = op(x, axes=axes)
            outputs += [value, ew.mul(x, mv.expand(value, shape=shape))]
    bench.check(*outputs, tolerance=1e-4 if dtype is dtypes.float32 else 3e-2)


def test_a_row_kernel_carries_its_columns(bench: Bench) -> None:
    """Where the running value is one number; a pair has a kernel of its own."""
    x = bench(2200, 1536)
    shifted = ew.sub(x, mv.expand(rd.max(x, axes=(1,)), shape=x.shape))
    launches = bench.compile(shifted, MAX_ABS(shifted, axes=(0,))).launches
    assert any(stage.kernel.pair for launch in launches for stage in launch.stages)
    assert "tgc_abs(" in "".join(launch.text for launch in launches)
    bench.check(shifted, MAX_ABS(shifted, axes=(0,)))


def test_constants_and_single_elements_are_left_to_it(bench: Bench) -> None:
    """Nothing is assumed: the reduction of one element may be another number."""
    x = bench.given(np.full((3, 1), -2, np.float32), dtypes.float32)
    filled = common.full(-3.0, (2, 5), x)
    bench.check(MAX_ABS(x, axes=(1,)), MAX_ABS(filled, axes=(1,)), LOG_SUM(filled, axes=(1,)))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.int64])
def test_a_movement_is_its_row(bench: Bench, dtype: DType) -> None:
    """Alone, one behind another, inside elementwise values and reductions, and read twice."""
    x = bench(6, 9, 11, dtype=dtype)
    rolled = ROLL(x, axis=1, by=4)
    twice = ROLL(mv.permute(rolled, axes=(0, 2, 1)), axis=2, by=-3)
    repeated = REPEAT(LOWER(rolled), times=3)
    outputs = [
        rolled, twice, repeated, ew.add(rolled, x), rd.sum(twice, axes=(2,)), LOWER(x),
        ew.mul(LOWER(ew.add(x, x)), x), rd.max(repeated, axes=(0, 1)), mv.flip(repeated, axes=(2,)),
        mv.reshape(LOWER(mv.reshape(x, shape=(18, 33))), shape=(6, 9, 11)),
    ]  # fmt: skip
    bench.check(*outputs, tolerance=1e-5 if dtype is dtypes.float32 else 2e-2)


def test_a_movement_is_part_of_a_product(bench: Bench) -> None:
    x, y = bench(40, 32), bench(32, 48)
    bench.check(contraction.matmul(ROLL(x, axis=0, by=7), LOWER(y)), tolerance=1e-4)


def test_a_movement_has_its_gradient(bench: Bench) -> None:
    x, g = bench(5, 7), bench(5, 7)
    leaf = node_made(common.variable, (x,), {}, x.outputs, x.device, True, None)
    found = backward([ew.mul(ROLL(leaf, axis=1, by=2), g)], [g])[leaf]
    bench.check(found)
    np.testing.assert_allclose(bench.run(found)[0], np.roll(bench.arrays[1] ** 2, -2, 1))
