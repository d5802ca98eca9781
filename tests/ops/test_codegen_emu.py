"""Hand-picked programs through scheduler, generator and emulator against NumPy.

They stand for what samples of single ops cannot show: fusion, splits, places, errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from execution import device_or_skip

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.base import Argument, Program
from tinygrad_cuda.backend.cuda import carry, columns, ring
from tinygrad_cuda.backend.emulator.backend import EmuBackend
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU, Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction, indexing
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd

Array = np.ndarray[Any, Any]


class Bench:
    """Inputs, outputs, and a run on both devices."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.nodes: list[Node] = []
        self.arrays: list[Array] = []
        self.rng = np.random.default_rng(7)

    def __call__(self, *shape: int, dtype: DType = dtypes.float32, below: int = 0) -> Node:
        """An input of random values (`below`: integers under this)."""
        if below:
            array = self.rng.integers(0, below, shape)
        elif dtype is dtypes.bool_:
            array = self.rng.integers(0, 2, shape)
        else:
            array = self.rng.uniform(-1, 1, shape) * (1 if dtype.is_floating else 50)
        return self.given(np.asarray(array).astype(dtype.numpy), dtype)

    def given(self, array: Array, dtype: DType) -> Node:
        node = common.buffer.leaf(array.shape, dtype, self.device, slot=len(self.nodes))
        self.nodes.append(node)
        self.arrays.append(array)
        return node

    def compile(self, *outputs: Node, overwrites: dict[int, int] | None = None) -> Any:
        program = Program(self.device, outputs, tuple(self.nodes), overwrites or {}, 2)
        return registry.get(self.device).compile(program)

    def run(
        self,
        *outputs: Node,
        overwrites: dict[int, int] | None = None,
        arguments: tuple[Any, ...] = (0, 0),
    ) -> list[Array]:
        backend = registry.get(self.device)
        executable = self.compile(*outputs, overwrites=overwrites)
        storages = [backend.from_host(array) for array in self.arrays]
        found = executable.run(storages, arguments)
        return [backend.to_host(s, n.shape, n.dtype) for s, n in zip(found, outputs)]

    def check(
        self,
        *outputs: Node,
        tolerance: float = 1e-5,
        overwrites: dict[int, int] | None = None,
        arguments: tuple[Any, ...] = (0, 0),
    ) -> None:
        """Both devices agree."""
        found = self.run(*outputs, overwrites=overwrites, arguments=arguments)
        program = Program(CPU, outputs, tuple(self.nodes), {}, 2)
        expected = registry.get(CPU).compile(program).run(
            [array.copy() for array in self.arrays], arguments
        )  # fmt: skip
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            if a.dtype.kind in "iub":
                np.testing.assert_array_equal(a, b)
            else:
                wide = [value.astype(np.float64) for value in (a, b)]
                np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(device_or_skip("emu", request))


def spread(x: Node, shape: tuple[int, ...]) -> Node:
    ones = (1,) * (len(shape) - len(x.shape))
    return mv.expand(mv.reshape(x, shape=ones + x.shape), shape=shape)


def softmax(x: Node, axes: tuple[int, ...]) -> Node:
    e = ew.exp(ew.sub(x, mv.expand(rd.max(x, axes=axes), shape=x.shape)))
    return ew.div(e, mv.expand(rd.sum(e, axes=axes), shape=x.shape))


# Rows and columns ---------------------------------------------------------------------------------


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
    assert "== x" not in launch.text
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
    assert launch.text.count("_stage(int virtual_block") == 3  # two kinds, and the launch itself
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


@pytest.mark.parametrize(("rows", "length"), [(11, 4100), (21, 1027), (17, 2048)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize("ahead", [False, True])
def test_rows_carry_the_columns_that_they_have_at_hand(
    bench: Bench, rows: int, length: int, dtype: DType, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A normalization's gradients: five blocks walk over the rows and sum the columns with it.

    Rows are sent for ahead where they can be: odd ones have no vectors.
    """
    monkeypatch.setattr(carry, "ENOUGH_ROWS", 8)
    monkeypatch.setattr(columns, "WALKERS", 5)
    monkeypatch.setattr(ring, "WALKERS", 5)
    monkeypatch.setattr(ring, "LEAST", 1 if ahead else ring.LEAST)
    x, g, weight = (bench(*shape, dtype=dtype) for shape in ((rows, length),) * 2 + ((length,),))
    size = common.full_like(rd.sum(x, axes=(1,)), length)
    mean = mv.expand(ew.div(rd.sum(x, axes=(1,)), size), shape=x.shape)
    scale = ew.rsqrt(ew.div(rd.sum(ew.mul(x, x), axes=(1,)), size))
    normal = ew.mul(ew.sub(x, mean), mv.expand(scale, shape=x.shape))
    gradient = ew.mul(g, spread(weight, x.shape))
    change = mv.expand(ew.div(rd.sum(ew.mul(gradient, normal), axes=(1,)), size), shape=x.shape)
    outputs = [
        ew.sub(gradient, ew.mul(normal, change)),
        ew.add(rd.sum(ew.mul(g, normal), axes=(0,)), mv.reshape(weight, shape=(1, length))),
        rd.sum(g, axes=(0,)),
    ]
    executable = bench.compile(*outputs)
    (kernel,) = executable.schedule.kernels
    assert kernel.pair is not None
    assert len(executable.launches) == 2
    sent = ahead and length % 2 == 0
    assert ("tgc_copy_ahead" in executable.launches[0].text) is sent
    bench.check(*outputs, tolerance=1e-4 if dtype is dtypes.float32 else 5e-2)
    found = [array.tobytes() for array in bench.run(*outputs)]
    with settings.override(emu_order=5):  # a warp may be a row ahead of the others
        assert [array.tobytes() for array in bench.run(*outputs)] == found


def test_carried_columns_meet_values_of_the_rows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rows as columns: what a row kernel stores for each row, its second stage reads."""
    monkeypatch.setattr(carry, "ENOUGH_ROWS", 8)
    monkeypatch.setattr(columns, "WALKERS", 5)
    x = bench(300, 300)
    tops = rd.max(x, axes=(1,))
    centered = ew.sub(x, mv.expand(tops, shape=x.shape))
    sums = rd.sum(ew.mul(x, centered), axes=(0,))
    outputs = [ew.exp(centered), ew.mul(sums, mv.reshape(tops, shape=(1, 300)))]
    assert any(kernel.pair for kernel in bench.compile(*outputs).schedule.kernels)
    bench.check(*outputs, tolerance=1e-4)


@pytest.mark.parametrize("between", [False, True])
def test_rows_that_wait_for_columns_do_not_carry_them(
    bench: Bench, between: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softmax of what column sums, or a product of these, have changed."""
    monkeypatch.setattr(carry, "ENOUGH_ROWS", 8)
    monkeypatch.setattr(columns, "WALKERS", 5)
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


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int64, dtypes.bool_])
def test_integers_wrap_and_booleans_stay(bench: Bench, dtype: DType) -> None:
    x, y = bench(9, 130, dtype=dtype), bench(9, 130, dtype=dtype)
    outputs = [ew.add(x, y), ew.mul(x, y), rd.max(x, axes=(0,)), rd.min(x, axes=(1,))]
    if dtype is not dtypes.bool_:
        outputs += [rd.sum(x, axes=(0, 1)), rd.prod(x, axes=(0,))]
    bench.check(*outputs)


# Views --------------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Bench], Node]] = {
    "transposed": lambda b: mv.permute(b(24, 16), axes=(1, 0)),
    "padded": lambda b: mv.pad(b(13, 11), starts=(2, 3), shape=(16, 24), steps=(1, 1), value=0.5),
    "dilated": lambda b: mv.pad(b(8, 12), starts=(1, 0), shape=(16, 24), steps=(2, 2), value=0),
    "sliced": lambda b: mv.slice_(b(40, 50), starts=(3, 1), shape=(16, 24), steps=(2, 2)),
    "flipped": lambda b: mv.flip(b(16, 24), axes=(0, 1)),
    "windows": lambda b: mv.reshape(
        mv.window(
            mv.expand(b(16, 10, 1), shape=(16, 10, 4)),
            axis=1, over=2, length=6, stride=1, dilation=1,
        ),
        shape=(16, 24),
    ),
    "unwound": lambda b: mv.slice_(
        mv.reshape(
            mv.unwindow(b(16, 5, 3), axis=1, over=2, length=8, stride=1, dilation=1),
            shape=(16, 24),
        ),
        starts=(0, 0), shape=(16, 24), steps=(1, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(VIEWS))
def test_views_inside_every_skeleton(bench: Bench, name: str) -> None:
    """One view read by a map, a row, a column and both sides of a product."""
    x = VIEWS[name](bench)
    other = bench(24, 20)
    outputs = [
        ew.tanh(x),
        rd.sum(ew.mul(x, x), axes=(1,)),
        rd.max(x, axes=(0,)),
        contraction.matmul(x, other),
        contraction.matmul(contraction.transpose(other), contraction.transpose(x)),
    ]
    bench.check(*outputs, tolerance=1e-4)


def test_slices_and_constants_that_vary_from_run_to_run(bench: Bench) -> None:
    x = bench(40, 8)
    part = mv.slice_(x, starts=(3, 0), shape=(16, 8), steps=(2, 1))
    moving = Node(
        part.op, part.sources, {**part.attributes, "starts": (Argument(0), 0)}, part.outputs,
        part.device, False, part.site,
    )  # fmt: skip
    factor = common.scalar.leaf((), dtypes.float32, bench.device, value=Argument(1))
    y = ew.mul(moving, spread(factor, moving.shape))
    for arguments in ((0, 0.5), (9, -2.0)):
        bench.check(y, arguments=arguments)


# Products -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1), (5, 3, 7), (17, 1, 33), (1, 40, 64), (64, 10, 128), (33, 65, 129),
        (130, 140, 50), (16, 16, 1000), (8, 200, 4), (200, 16, 260),
    ],
)  # fmt: skip
def test_products_of_every_shape_and_transposition(bench: Bench, m: int, n: int, k: int) -> None:
    a, b, at, bt = bench(m, k), bench(k, n), bench(k, m), bench(n, k)
    turned_a, turned_b = contraction.transpose(at), contraction.transpose(bt)
    products = [contraction.matmul(x, y) for x in (a, turned_a) for y in (b, turned_b)]
    bench.check(*products, tolerance=1e-4)


def test_a_batch_of_products_with_an_epilogue_of_several_outputs(bench: Bench) -> None:
    a, b, bias = bench(3, 2, 33, 20), bench(3, 2, 20, 36), bench(36)
    product = ew.add(contraction.matmul(a, b), spread(bias, (3, 2, 33, 36)))
    mask = ew.gt(product, common.full_like(product, 0))
    active = ew.where(mask, product, common.full_like(product, 0))
    executable = bench.compile(active, mask)
    assert [kernel.kind for kernel in executable.schedule.kernels] == ["contract"]
    bench.check(active, mask, tolerance=1e-4)


def test_a_product_over_nothing_is_zero(bench: Bench) -> None:
    bench.check(contraction.matmul(bench(3, 0), bench(0, 4)))


@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.float16, dtypes.int32, dtypes.int8])
def test_products_of_other_dtypes(bench: Bench, dtype: DType) -> None:
    bench.check(
        contraction.matmul(bench(40, 70, dtype=dtype), bench(70, 50, dtype=dtype)), tolerance=3e-2
    )


# Gather and scatter -------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [1, 5, 64, 300])
def test_repeated_positions_are_added_and_overwritten_in_order(bench: Bench, inner: int) -> None:
    base, values = bench(7, inner), bench(600, inner)
    index = bench(600, dtype=dtypes.int64, below=7)
    outputs = [op(base, index, values) for op in (indexing.scatter_add, indexing.scatter)]
    bench.check(*outputs, tolerance=1e-4)


def test_a_gather_inside_a_fused_kernel(bench: Bench) -> None:
    table = bench(50, 16)
    index = indexing.check_index(
        bench(30, dtype=dtypes.int64, below=50), limit=50, what="index", code=0
    )
    rows = indexing.gather(table, index)
    executable = bench.compile(softmax(rows, (1,)))
    assert [kernel.kind for kernel in executable.schedule.kernels] == ["row"]
    bench.check(softmax(rows, (1,)))


# Places and errors --------------------------------------------------------------------------------


def test_an_assign_takes_the_storage_of_the_old_value(bench: Bench) -> None:
    x = bench(64, 8)
    step = common.assign(x, ew.sub(x, ew.tanh(x)))
    backend = registry.get(bench.device)
    storage = backend.from_host(bench.arrays[0])
    found = bench.compile(step, overwrites={0: 0}).run([storage], (0, 0))
    assert found[0] is storage
    bench.check(step, overwrites={0: 0})


def test_an_assign_that_reads_elsewhere_still_ends_in_its_place(bench: Bench) -> None:
    x = bench(64, 8)
    step = common.assign(x, ew.tanh(mv.flip(x, axes=(0, 1))))
    backend = registry.get(bench.device)
    storage = backend.from_host(bench.arrays[0])
    found = bench.compile(step, overwrites={0: 0}).run([storage], (0, 0))
    assert found[0] is storage
    bench.check(step, overwrites={0: 0})


def test_all_readers_see_the_old_value(bench: Bench) -> None:
    x, y = bench(40, 30), bench(30, 20)
    step = common.assign(x, ew.tanh(x))
    bench.check(step, contraction.matmul(x, y), rd.sum(x, axes=(0,)), x, overwrites={0: 0})


@pytest.mark.parametrize("in_place", [True, False])
def test_a_bad_index_is_reported_and_changes_nothing(bench: Bench, in_place: bool) -> None:
    table, counter = bench(10, 4), bench(6)
    index = bench.given(np.array([3, 12, -1]), dtypes.int64)
    checked = indexing.check_index(index, limit=10, what="index", code=5)
    rows = indexing.gather(table, checked)
    step = common.assign(counter, ew.add(counter, common.full_like(counter, 1)))
    overwrites = {0: 1} if in_place else {}
    found = bench.run(step, rows, overwrites=overwrites)
    np.testing.assert_array_equal(found[0], bench.arrays[1])
    backend = registry.get(bench.device)
    error = backend.take_error()
    assert error is not None
    assert (error.code, error.position, error.index, error.limit) == (5, 1, 12, 10)
    assert backend.take_error() is None
    bench.arrays[2] = np.array([3, 2, 1])
    bench.check(step, rows, overwrites=overwrites)


def test_outputs_that_need_no_kernel_are_copies(bench: Bench) -> None:
    x = bench(4, 6)
    constant = common.full_like(x, 2.5)
    empty = mv.slice_(x, starts=(0, 0), shape=(0, 6), steps=(1, 1))
    bench.check(x, x, mv.permute(x, axes=(1, 0)), constant, empty, ew.tanh(empty))


# Looking inside -----------------------------------------------------------------------------------


def test_validation_passes_what_is_right_and_names_what_is_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = bench(8, 33), bench(33, 5)
    product = ew.exp(contraction.matmul(ew.tanh(x), y))
    with settings.override(validate=True):
        bench.check(product)
        monkeypatch.setattr(ew.exp, "cuda", "exp({0}) + 1")
        with pytest.raises(TgcError, match=r"contract_matmul_exp\w+' stores another exp") as caught:
            bench.run(product)
    assert "test_codegen_emu.py" in str(caught.value)


def test_debug_prints_a_line_per_kernel_its_reason_and_its_source(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    x = bench(8, 33)
    y = ew.exp(rd.sum(ew.tanh(x), axes=(1,)))
    with settings.override(debug=4):
        bench.run(y)
    text = capsys.readouterr().out
    assert "why:   it reads inputs only" in text
    assert "test_codegen_emu.py" in text
    assert "TGC_KERNEL" in text
    assert "row_sum_tanh_exp" in text.splitlines()[-1]


@pytest.fixture
def shuffled() -> Iterator[None]:
    """Threads between two barriers run in another order."""
    with settings.override(emu_order=3):
        yield


@pytest.mark.usefixtures("shuffled")
def test_results_do_not_depend_on_the_order_of_threads(bench: Bench) -> None:
    x, y = bench(20, 700), bench(700, 40)
    index = bench(20, dtype=dtypes.int64, below=20)
    outputs = [
        softmax(x, (1,)),
        rd.sum(x, axes=(0,)),
        contraction.matmul(x, y),
        indexing.scatter_add(x, index, x),
    ]
    permuted = bench.run(*outputs)
    with settings.override(emu_order=0):
        for a, b in zip(permuted, bench.run(*outputs)):
            assert a.tobytes() == b.tobytes()


def test_the_emulator_is_the_device(bench: Bench) -> None:
    assert isinstance(registry.get(bench.device), EmuBackend)
