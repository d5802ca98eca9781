"""Hand-picked programs through scheduler, generator and emulator against NumPy.

They stand for what samples of single ops cannot show: fusion, splits, places, errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from bench import Bench, softmax, spread

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.emu.backend import EmuBackend
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.graph.node import Node, node_made
from tinygrad_cuda.graph.ops import common, contraction, indexing
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.program import Argument

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
    moving = node_made(
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
    assert [kernel.kind for kernel in executable.schedule.kernels] == ["row_reduce"]
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
    assert "why:   no kernel before it to join" in text
    assert "test_codegen_emu.py" in text
    assert "TGC_KERNEL" in text
    assert "row_reduce_sum_tanh_exp" in text.splitlines()[-1]


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
