"""Reductions through scheduler, generator and emulator against NumPy: rows, columns, both at once.

They stand for what samples of single ops cannot show: phases, parts, what kernels share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bench import Bench, softmax, spread
from sampling import INTEGERS

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction, indexing
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.codegen import pack
from tinygrad_cuda.lowering.schedule import fuse_column_sums
from tinygrad_cuda.lowering.schedule.kernel_dag import Schedule
from tinygrad_cuda.lowering.skeletons import column_partials, row_reduce, shared_rows
from tinygrad_cuda.lowering.target import Target


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((5, 7), (1,)),
        ((3, 300), (1,)),
        ((2, 4099), (1,)),  # in registers, an odd number of elements
        ((2, 20000), (1,)),  # read again in each phase
        ((70, 3, 5), (1, 2)),
        ((6, 5, 4), (0, 2)),  # not neighbours
        ((6, 50), (0,)),
        ((1, 1), (1,)),
        ((200001,), (0,)),  # in parts
    ],
)
def test_softmax_of_every_form_of_row(
    bench: Bench, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    bench.check(softmax(bench(*shape), axes))


SHORT = [(37, 3), (41, 5), (9, 9), (43, 17), (6, 31), (5, 33), (35001, 3), (40000, 4), (9001, 17)]


@pytest.mark.parametrize("shape", SHORT)
def test_rows_that_a_part_of_a_warp_makes(bench: Bench, shape: tuple[int, ...]) -> None:
    """One, two, ... threads a row; the last rows leave part of a warp without work."""
    x = bench(*shape)
    bench.check(softmax(x, (1,)), rd.argmax(x, axes=(1,)), rd.sum(ew.exp(x), axes=(1,)))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_a_one_hot_sum_loads_the_one_element(bench: Bench, dtype: DType) -> None:
    """The loss of each row reads the label's logit once, in place of a comparison an element."""
    logits, labels = bench(70, 600, dtype=dtype), bench(70, dtype=dtypes.int64, below=600)
    checked = indexing.check_index(labels, limit=600, what="label", code=0)
    label = mv.expand(mv.reshape(checked, shape=(70, 1)), shape=(70, 600))
    places = common.arange.leaf((600,), dtypes.int64, bench.device, start=0, step=1)
    hot = ew.eq(spread(places, (70, 600)), label)
    shifted = ew.sub(logits, mv.expand(rd.max(logits, axes=(1,)), shape=(70, 600)))
    zero = common.full_like(shifted, 0)
    picked = rd.sum(ew.where(hot, shifted, zero), axes=(1,))
    losses = ew.sub(ew.log(rd.sum(ew.exp(shifted), axes=(1,))), picked)
    (launch,) = bench.compile(losses).launches
    assert "const bool eq" not in launch.text
    # The element is on its way while the row's maximum is found.
    assert launch.text.index("tgc_check_index(") < launch.text.index("tgc_block_send(")
    bench.check(losses, tolerance=1e-5 if dtype is dtypes.float32 else 3e-2)
    bench.check(rd.sum(ew.where(hot, logits, zero), axes=(1,)))


def test_pooling_and_its_positions(bench: Bench) -> None:
    """Windows of four, each made by one thread from two rows of the image."""
    x = bench(3, 60, 62)
    for axis in (1, 3):
        size = x.shape[axis] // 2
        shape = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
        spread_out = mv.expand(
            mv.reshape(x, shape=shape), shape=(*shape[: axis + 1], 2, *shape[axis + 2 :])
        )
        x = mv.window(spread_out, axis=axis, over=axis + 1, length=size, stride=2, dilation=1)
    windows = mv.reshape(mv.permute(x, axes=(0, 1, 3, 2, 4)), shape=(3, 30, 31, 4))
    bench.check(rd.max(windows, axes=(3,)), rd.argmax(windows, axes=(3,)))


@pytest.mark.parametrize("shape", [(2000, 2, 32), (30, 3, 700), (4097, 2, 160), (900, 5, 129)])
def test_short_lines_that_are_not_innermost(bench: Bench, shape: tuple[int, ...]) -> None:
    """Each thread walks a line of its own, or two or four share one."""
    x = bench(*shape)
    total = rd.sum(x, axes=(1,))
    bench.check(rd.max(x, axes=(1,)), ew.add(total, total), rd.sum(ew.mul(x, x), axes=(1,)))


@pytest.mark.parametrize("shape", [(1 << 16,), (100003,), (300, 1000), (37, 41)])
def test_sum_of_everything_with_epilogue_and_stored_prologue(
    bench: Bench, shape: tuple[int, ...]
) -> None:
    x = bench(*shape)
    y = ew.tanh(x)
    bench.check(ew.sqrt(ew.abs(rd.sum(y, axes=tuple(range(len(shape)))))), y, tolerance=1e-3)


def test_stages_of_one_text_share_a_launch_that_holds_it_once(bench: Bench) -> None:
    """Twenty sums of one shape and one of another, in turn: each block finds its operands."""
    xs = [bench(64, 40 if number == 7 else 96) for number in range(21)]
    sums = [rd.sum(x, axes=(0,)) for x in xs]
    (launch,) = bench.compile(*sums).launches
    assert len(launch.stages) == 21
    assert "stage0[20];" in launch.text
    assert launch.text.count("TGC_STAGE(") == 3  # two kinds, and the launch itself
    bench.check(*sums)


def test_columns_are_divided_by_their_own_sums(bench: Bench) -> None:
    """A column's reduction is known in the loop over the lanes only."""
    x = bench(40, 256)
    total = rd.sum(ew.abs(x), axes=(0,))
    bench.check(ew.div(x, mv.expand(total, shape=x.shape)), ew.div(rd.max(x, axes=(0,)), total))


def test_every_kind_of_reduction_in_parts(bench: Bench) -> None:
    """A row that several blocks share: moments, places of extremes, products."""
    x = bench(2, 40001)
    moments = [common.output(rd.welford(x, axes=(1,)), index=i) for i in (0, 1)]
    bench.check(*moments, rd.argmax(x, axes=(1,)), rd.min(x, axes=(1,)), tolerance=1e-4)
    bench.check(rd.any(ew.lt(x, common.full_like(x, -9)), axes=(1,)))


@pytest.mark.parametrize("shape", [(5000, 10), (1000, 129), (64, 256), (7, 1024), (3, 2, 640)])
def test_columns_share_a_pass(bench: Bench, shape: tuple[int, ...]) -> None:
    """A sum, a largest value and statistics of the same columns, one or two stages."""
    x = bench(*shape)
    axes = tuple(range(len(shape) - 1))
    both = rd.welford(x, axes=axes)
    outputs = [common.output(both, index=0), common.output(both, index=1)]
    bench.check(rd.sum(x, axes=axes), rd.max(x, axes=axes), *outputs, tolerance=1e-3)


def walk_by_five_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows are enough for a row kernel that carries columns."""
    monkeypatch.setattr(fuse_column_sums, "ROWS_A_BLOCK", 1)
    for module in (fuse_column_sums, column_partials):
        monkeypatch.setattr(module, "column_blocks", lambda target: 5)
    monkeypatch.setattr(column_partials, "pipeline_blocks", lambda target: 5)
    monkeypatch.setattr(column_partials, "walking_blocks", lambda rows, columns: 5)


def call_large(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """From so many bytes on a value is one that the emulated cache does not hold."""
    backend: Any = registry.get(as_device("emu"))
    monkeypatch.setattr(backend, "target", replace(backend.target, l2=3 * nbytes))


@pytest.mark.parametrize(("rows", "length"), [(11, 4100), (21, 1027), (17, 2048)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("ahead", [False, True])
def test_rows_carry_the_columns_that_they_have_at_hand(
    bench: Bench, rows: int, length: int, dtype: DType, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A normalization's gradients: five blocks walk over the rows and sum the columns with it.

    Rows are sent for ahead where they can be: odd ones have no vectors.
    """
    walk_by_five_blocks(monkeypatch)
    monkeypatch.setattr(fuse_column_sums, "LEAST", 1 if ahead else fuse_column_sums.LEAST)
    call_large(monkeypatch, 1)
    outputs = normalization_gradients(bench, rows, length, dtype)
    executable = bench.compile(*outputs)
    (kernel,) = executable.schedule.kernels
    assert kernel.pair is not None
    assert len(executable.launches) == 2
    sent = ahead and length % 2 == 0
    assert ("tgc_copy_ahead" in executable.launches[0].text) is sent
    bench.check(*outputs, tolerance=1e-4 if dtype is dtypes.float32 else 5e-2)
    found = [array.tobytes() for array in bench.run(*outputs)]
    for order in range(2, 6):  # a warp may be a row ahead of the others, a copy late or early
        with settings.override(emu_order=order):
            assert [array.tobytes() for array in bench.run(*outputs)] == found


def normalization_gradients(bench: Bench, rows: int, length: int, dtype: DType) -> list[Node]:
    """The gradients by input, weight and bias of a normalization of rows."""
    x, g, weight = (bench(*shape, dtype=dtype) for shape in ((rows, length),) * 2 + ((length,),))
    size = common.full_like(rd.sum(x, axes=(1,)), length)
    mean = mv.expand(ew.div(rd.sum(x, axes=(1,)), size), shape=x.shape)
    scale = ew.rsqrt(ew.div(rd.sum(ew.mul(x, x), axes=(1,)), size))
    normal = ew.mul(ew.sub(x, mean), mv.expand(scale, shape=x.shape))
    gradient = ew.mul(g, spread(weight, x.shape))
    change = mv.expand(ew.div(rd.sum(ew.mul(gradient, normal), axes=(1,)), size), shape=x.shape)
    return [
        ew.sub(gradient, ew.mul(normal, change)),
        ew.add(rd.sum(ew.mul(g, normal), axes=(0,)), mv.reshape(weight, shape=(1, length))),
        rd.sum(g, axes=(0,)),
    ]


@pytest.mark.parametrize(("rows", "length"), [(1030, 384), (1027, 770), (83, 140)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("reverse", [False, True])
def test_warps_carry_the_columns_of_short_rows(
    bench: Bench,
    rows: int,
    length: int,
    dtype: DType,
    reverse: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forty warps walk over the rows; sums of what they store are among their columns."""
    walk_by_five_blocks(monkeypatch)
    outputs = normalization_gradients(bench, rows, length, dtype)
    outputs.append(rd.sum(outputs[0], axes=(0,)))
    if reverse:
        monkeypatch.setattr(lower, "fuse_column_sums", begin_at_the_end)
    executable = bench.compile(*outputs)
    (kernel,) = executable.schedule.kernels
    assert kernel.pair is not None and len(kernel.pair[1].anchors) == 3
    first, _ = executable.launches
    assert first.blocks == (4 if rows == 83 else 5) and ("- turn;" in first.text) is reverse
    bench.check(*outputs, tolerance=1e-4 if dtype is dtypes.float32 else 5e-2)
    bits = [array.tobytes() for array in bench.run(*outputs)]
    with settings.override(emu_order=3):
        assert [array.tobytes() for array in bench.run(*outputs)] == bits


def begin_at_the_end(schedule: Schedule, target: Target) -> None:
    """As where the kernel before has left the last rows in the cache."""
    for kernel in schedule.kernels:
        kernel.reverse = kernel.kind == "row_reduce"
    fuse_column_sums.fuse_column_sums(schedule, target)


def test_columns_of_one_kernel_go_with_the_rows_that_have_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sums of columns read two values: two rows take theirs, and the third stays."""
    walk_by_five_blocks(monkeypatch)
    x, y, weight = bench(300, 384), bench(300, 384), bench(1, 384)
    of_x, of_y = rd.sum(x, axes=(0,)), ew.add(rd.max(y, axes=(0,)), weight)
    both = rd.sum(ew.mul(x, y), axes=(0,))
    outputs = [softmax(x, (1,)), softmax(y, (1,)), of_x, of_y, both, ew.mul(both, weight)]
    executable = bench.compile(*outputs)
    pairs = [kernel.pair[1] for kernel in executable.schedule.kernels if kernel.pair]
    assert [[node.op for node in columns.anchors] for columns in pairs] == [[rd.sum], [rd.max]]
    (rest,) = (kernel for kernel in executable.schedule.kernels if kernel.kind == "column_reduce")
    assert rest.anchors == [both] and len(rest.stores) == 2
    bench.check(*outputs, tolerance=1e-4)


def test_rows_that_are_not_waited_for_show(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator's copies take effect at the wait, so a row read too soon is not yet there."""
    walk_by_five_blocks(monkeypatch)
    monkeypatch.setattr(fuse_column_sums, "LEAST", 1)
    call_large(monkeypatch, 1)
    outputs = normalization_gradients(bench, 17, 2048, dtypes.float32)
    right = bench.run(*outputs)
    without = pack.prelude().replace("tgc_emu_copy_wait(PENDING);", "")
    assert without != pack.prelude()
    monkeypatch.setattr(pack, "prelude", lambda: without)
    for found, expected in zip(bench.run(*outputs), right):
        assert not np.array_equal(found, expected)


@pytest.mark.parametrize("length", [8192, 4099, 20000])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_rows_whose_operands_leave_the_cache_last(
    bench: Bench, length: int, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones: here all are. The emulator has no such cache, but the same text."""
    call_large(monkeypatch, 1)
    x, weight = bench(6, length, dtype=dtype), bench(length, dtype=dtype)
    outputs = [ew.mul(softmax(x, (1,)), spread(weight, x.shape))]
    text = bench.compile(*outputs).launches[0].text
    # Odd rows have no vectors, and what is read again in each phase is not marked.
    assert ("lasting" in text) is (length == 8192)
    bench.check(*outputs, tolerance=1e-4 if dtype is dtypes.float32 else 5e-2)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("reverse", [False, True])
def test_long_rows_stay_in_shared_memory(
    bench: Bench, dtype: DType, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softmax by a weight, and a product with a row of its own, read each element once."""
    monkeypatch.setattr(shared_rows, "STAY", True)
    monkeypatch.setattr(row_reduce, "REGISTER_VALUES", 4)
    monkeypatch.setattr(row_reduce, "REGISTER_VALUES_ALONE", 4)
    call_few_multiprocessors(monkeypatch)
    x, y = bench(11, 4000, dtype=dtype), bench(11, 4000, dtype=dtype)
    weight = bench(4000, dtype=dtype)
    shares = ew.mul(softmax(x, (1,)), spread(weight, x.shape))
    outputs = [ew.mul(shares, y), rd.sum(ew.mul(x, y), axes=(1,))]
    if reverse:
        monkeypatch.setattr(lower, "fuse_column_sums", begin_at_the_end)
    (launch,) = bench.compile(*outputs).launches
    assert "in shared memory" in launch.text and ("virtual_block = 10" in launch.text) is reverse
    assert launch.text.count("tgc_stage_vector(") == 2
    assert launch.text.count("tgc_load_vector") == 3  # one of the weight
    bench.check(*outputs, tolerance=1e-4 if dtype is dtypes.float32 else 5e-2)


def call_few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows are enough for all of them."""
    backend: Any = registry.get(as_device("emu"))
    monkeypatch.setattr(backend, "target", replace(backend.target, multiprocessors=4))


def test_rows_without_room_or_of_few_blocks_are_read_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks of a multiprocessor share its memory; fewer rows than blocks are not worth it."""
    monkeypatch.setattr(shared_rows, "STAY", True)
    call_few_multiprocessors(monkeypatch)
    for rows, length, inside in ((8, 20000, True), (8, 32000, False), (7, 20000, False)):
        (launch,) = bench.compile(softmax(bench(rows, length), (1,))).launches
        assert ("in shared memory" in launch.text) is inside


def test_carried_columns_meet_values_of_the_rows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rows as columns: what a row kernel stores for each row, its second stage reads."""
    walk_by_five_blocks(monkeypatch)
    x = bench(300, 300)
    tops = rd.max(x, axes=(1,))
    centered = ew.sub(x, mv.expand(tops, shape=x.shape))
    sums = rd.sum(ew.mul(x, centered), axes=(0,))
    outputs = [ew.exp(centered), ew.mul(sums, mv.reshape(tops, shape=(1, 300)))]
    assert any(kernel.pair for kernel in bench.compile(*outputs).schedule.kernels)
    bench.check(*outputs, tolerance=1e-4)


@pytest.mark.parametrize("what", ["values", "lines", "a flipped line"])
def test_rows_carry_no_columns_of_what_is_moved(
    bench: Bench, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns' elements need other rows: their statistics are not at hand."""
    walk_by_five_blocks(monkeypatch)
    x = bench(300, 300)
    tops = rd.max(x, axes=(1,))
    shares = softmax(x, (1,))
    moved = {
        "values": mv.permute(shares, axes=(1, 0)),
        "lines": mv.expand(mv.permute(tops, axes=(1, 0)), shape=x.shape),
        "a flipped line": mv.expand(mv.flip(tops, axes=(0,)), shape=x.shape),
    }[what]
    outputs = [shares, tops, rd.sum(ew.mul(moved, x), axes=(0,))]
    assert not any(kernel.pair for kernel in bench.compile(*outputs).schedule.kernels)
    bench.check(*outputs, tolerance=1e-4)


@pytest.mark.parametrize("between", [False, True])
def test_rows_that_wait_for_columns_do_not_carry_them(
    bench: Bench, between: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softmax of what column sums, or a product of these, have changed."""
    walk_by_five_blocks(monkeypatch)
    x, weight = bench(300, 300), bench(300, 1)
    sums = rd.sum(x, axes=(0,))
    change = contraction.matmul(sums, weight) if between else sums
    outputs = [softmax(ew.sub(x, mv.expand(change, shape=x.shape)), (1,)), sums]
    assert not any(kernel.pair for kernel in bench.compile(*outputs).schedule.kernels)
    bench.check(*outputs, tolerance=1e-4)


def test_batch_norm_over_axes_that_are_not_neighbours(bench: Bench) -> None:
    x, weight = bench(4, 6, 5, 7), bench(6)
    axes, count = (0, 2, 3), 140
    both = rd.welford(x, axes=axes)
    mean, m2 = common.output(both, index=0), common.output(both, index=1)
    variance = ew.div(m2, common.full_like(m2, count))
    scale = ew.rsqrt(ew.add(variance, common.full_like(variance, 1e-5)))
    normal = ew.mul(ew.sub(x, mv.expand(mean, shape=x.shape)), mv.expand(scale, shape=x.shape))
    shaped = mv.expand(mv.reshape(weight, shape=(1, 6, 1, 1)), shape=x.shape)
    executable = bench.compile(ew.mul(normal, shaped), mean, variance)
    assert len(executable.launches) == 1
    bench.check(ew.mul(normal, shaped), mean, variance)


def test_first_of_equals_and_nan_win(bench: Bench) -> None:
    array = np.tile(np.array([3, 7, 7, 1], np.float32), (5, 300))
    array[2, 1000:1002] = np.nan
    x = bench.given(array, dtypes.float32)
    bench.check(*(op(x, axes=axes) for op in (rd.argmax, rd.argmin) for axes in ((1,), (0,))))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64])
def test_chains_of_every_float(bench: Bench, dtype: DType) -> None:
    x, y = bench(33, 64, dtype=dtype), bench(33, 64, dtype=dtype)
    total = rd.sum(ew.mul(x, y), axes=(1,))
    bench.check(ew.add(ew.mul(x, y), mv.expand(total, shape=x.shape)), tolerance=3e-2)


@pytest.mark.parametrize("dtype", [*INTEGERS, dtypes.bool_])
def test_integers_wrap_and_booleans_stay(bench: Bench, dtype: DType) -> None:
    x, y = bench(9, 130, dtype=dtype), bench(9, 130, dtype=dtype)
    outputs = [ew.add(x, y), ew.mul(x, y), rd.max(x, axes=(0,)), rd.min(x, axes=(1,))]
    if dtype is not dtypes.bool_:
        outputs += [rd.sum(x, axes=(0, 1)), rd.prod(x, axes=(0,))]
    bench.check(*outputs)


@pytest.mark.parametrize(
    "shape", [(3001, 64), (1400, 24), (1 << 12, 128), (2, 1100, 256), (1025, 40), (9001, 16)]
)
def test_few_long_columns_of_16_bits(bench: Bench, shape: tuple[int, ...]) -> None:
    """Mean and deviations of a channel, of four rows at once and of those that are left."""
    x = ew.cast(bench(*shape, dtype=dtypes.bfloat16), dtype=dtypes.float32)
    axes = tuple(range(len(shape) - 1))
    moments = rd.welford(x, axes=axes)
    mean, deviations = (common.output(moments, index=index) for index in (0, 1))
    near = ew.sub(x, mv.expand(mean, shape=x.shape))
    assert "rows0[" in "".join(one.text for one in bench.compile(mean, deviations).launches)
    bench.check(mean, deviations, tolerance=1e-5)
    bench.check(rd.sum(ew.mul(near, x), axes=axes), rd.sum(x, axes=axes), tolerance=1e-3)
