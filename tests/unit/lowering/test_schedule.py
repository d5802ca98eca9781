"""Which nodes share a kernel: counts, reasons, order, and no circles."""

from __future__ import annotations

import random
from math import prod

import networkx
import numpy as np
import pytest
from programs import (
    TARGET,
    Inputs,
    cross_entropy,
    family,
    gradients,
    launches,
    layer_norm,
    mlp_step,
    scheduled,
    softmax,
    spread,
    times,
    variable,
)

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import common, contraction, indexing
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.lowering.emit import stages
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.schedule.fusion import signature
from tinygrad_cuda.lowering.schedule.kernel_dag import Schedule, schedule


def kinds(found: Schedule) -> list[str]:
    return [kernel.kind for kernel in found.kernels]


# Counts -------------------------------------------------------------------------------------------


@pytest.mark.smoke("lowering")
def test_softmax_is_one_kernel() -> None:
    new = Inputs()
    assert kinds(scheduled(new.program(softmax(new(64, 1000), (1,))))) == ["row_reduce"]


def test_softmax_over_several_trailing_axes_is_one_kernel() -> None:
    new = Inputs()
    assert kinds(scheduled(new.program(softmax(new(6, 7, 8), (1, 2))))) == ["row_reduce"]


def test_layer_norm_is_one_kernel() -> None:
    new = Inputs()
    assert kinds(scheduled(new.program(layer_norm(new(64, 256), new(256), new(256))))) == [
        "row_reduce"
    ]


def test_the_gradients_of_layer_norm_read_each_operand_twice_and_store_only_themselves() -> None:
    """The columns' sums make the normalized values again, from two numbers a row, in one pass."""
    new = Inputs()
    x, weight, bias = (variable(new(*shape)) for shape in ((640, 256), (256,), (256,)))
    y = layer_norm(x, weight, bias)
    loss = rd.sum(ew.mul(y, new(640, 256)), axes=(0, 1))
    found = scheduled(new.program(*gradients(loss, [x, weight, bias])))
    assert sorted(kinds(found)) == ["column_reduce", "row_reduce"]
    wide = [node for kernel in found.kernels for node in kernel.stores if node.shape == x.shape]
    assert len(wide) == 1
    assert all(len([n for n in k.reads if n.shape == x.shape]) == 2 for k in found.kernels)


def image_product(new: Inputs, lengths: int) -> Node:
    """A product (channels, images * lengths) as images of channels."""
    y = contraction.matmul(new(6, 25), new(25, 4 * lengths))
    y = mv.permute(mv.reshape(y, shape=(6, 4, lengths)), axes=(1, 0, 2))
    return ew.exp(y)


def test_an_elementwise_reader_joins_a_product_that_it_reads_in_another_order() -> None:
    new = Inputs()
    assert kinds(scheduled(new.program(image_product(new, 16)))) == ["contract"]


def test_a_product_keeps_its_order_where_the_other_would_scatter_its_elements() -> None:
    new = Inputs()
    assert kinds(scheduled(new.program(image_product(new, 4)))) == ["contract", "map"]


def test_a_product_read_in_two_orders_keeps_its_own() -> None:
    new = Inputs()
    y = contraction.matmul(new(6, 25), new(25, 64))
    turned = mv.permute(mv.reshape(y, shape=(6, 4, 16)), axes=(1, 0, 2))
    found = scheduled(new.program(ew.exp(turned), ew.exp(y)))
    assert sorted(kinds(found)) == ["contract", "map"]


def test_cross_entropy_with_its_gradient_is_two_kernels() -> None:
    """Rows of loss and gradient in one, the mean over the rows in the other."""
    new = Inputs()
    logits, labels = new(64, 10), new(64, dtype=dtypes.int64)
    leaf = variable(logits)
    loss = cross_entropy(leaf, labels)
    found = scheduled(new.program(loss, *gradients(loss, [leaf])))
    assert kinds(found) == ["row_reduce", "row_reduce"]
    assert {node.shape for node in found.kernels[0].stores} == {(64, 1), (64, 10)}


@pytest.mark.parametrize(("length", "kernels"), [(8192, 1), (1 << 15, 2)])
def test_few_elements_of_other_values_are_summed_with_those_that_they_divide(
    length: int, kernels: int
) -> None:
    """The mean over the labels that count: a launch for their number would take longer."""
    new = Inputs()
    losses, weights = new(length), new(length)
    mean = ew.div(rd.sum(losses, axes=(0,)), rd.sum(weights, axes=(0,)))
    assert kinds(scheduled(new.program(mean))) == ["row_reduce"] * kernels


@pytest.mark.smoke("lowering")
def test_mlp_step_needs_few_launches_and_none_for_the_update() -> None:
    """Each parameter is updated, in place, where its gradient is computed."""
    lowered = lower(mlp_step(), TARGET)
    found = lowered.schedule
    assert len(lowered.launches) <= 6
    assert not any(launch.stages[0].kernel.update for launch in lowered.launches)
    places = [kernel for kernel in found.kernels for _ in kernel.overwrites]
    assert [kernel.kind for kernel in places].count("contract") == 4
    assert [kernel.kind for kernel in places].count("column_reduce") == 4
    logits = [k for k in found.kernels if any(node.op is ew.exp for node in k.nodes)]
    assert len(logits) == 1


def test_short_copies_share_a_launch() -> None:
    """Casts of weights, of more blocks than fill the machine; a long one has its own."""
    new = Inputs()
    sizes = [(2304, 768), (768, 768), (3072, 768)] * 2 + [(50304, 768)]
    values = [new(*size) for size in sizes]
    turned = [mv.permute(new(512, 512), axes=(1, 0)) for _ in range(2)]
    casts = [ew.cast(value, dtype=dtypes.bfloat16) for value in values]
    found = launches(new.program(*casts, *map(ew.contiguous, turned)))
    assert sorted(len(launch.stages) for launch in found) == [1, 8]
    together = max(found, key=lambda launch: len(launch.stages))
    assert together.blocks > 8 * TARGET.multiprocessors and together.text.count("TGC_STAGE(") == 5


def test_an_update_of_many_parameters_is_one_launch() -> None:
    new = Inputs()
    outputs, overwrites = [], {}
    for number in range(20):
        old, gradient = new(number + 1, 7), new(number + 1, 7)
        overwrites[number] = 2 * number
        outputs.append(common.assign(old, ew.sub(old, times(gradient, 0.1))))
    assert len(launches(new.program(*outputs, overwrites=overwrites))) == 1


def test_bias_and_activation_are_the_epilogue_of_a_product() -> None:
    new = Inputs()
    product = contraction.matmul(new(64, 32), new(32, 48))
    y = ew.maximum(ew.add(product, spread(new(48), product.shape)), common.full_like(product, 0))
    found = scheduled(new.program(y))
    assert kinds(found) == ["contract"]
    assert found.kernels[0].stores[0].op is ew.maximum


def test_a_transposed_product_is_stored_as_it_is_wanted() -> None:
    new = Inputs()
    product = contraction.matmul(new(64, 32), new(32, 48))
    assert kinds(scheduled(new.program(contraction.transpose(product)))) == ["contract"]


def test_batch_statistics_reduce_axes_that_are_not_neighbours_in_one_kernel() -> None:
    new = Inputs()
    both = rd.welford(new(8, 16, 12, 12), axes=(0, 2, 3))
    outputs = [common.output(both, index=0), common.output(both, index=1)]
    found = scheduled(new.program(*outputs))
    assert kinds(found) == ["row_reduce"]
    assert found.kernels[0].sign == ((8, True), (16, False), (144, True))


def test_sums_down_the_columns_of_one_value_share_a_kernel() -> None:
    new = Inputs()
    x, y = new(500, 96), new(500, 96)
    found = scheduled(new.program(rd.sum(x, axes=(0,)), rd.sum(ew.mul(x, y), axes=(0,))))
    assert kinds(found) == ["column_reduce"]


# Boundaries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "kernels"), [(64, 1), (65, 2), (128, 2), (200, 4)])
def test_readers_of_one_value_share_a_kernel(count: int, kernels: int) -> None:
    """64 neighbours at most are compared: each with each of more would take long."""
    new = Inputs()
    x = new(64, 512)
    products = [ew.mul(x, common.full_like(x, k + 2)) for k in range(count)]
    assert kinds(scheduled(new.program(*products))) == ["map"] * kernels


def test_sums_down_the_columns_of_a_half_value_share_a_kernel_through_its_casts() -> None:
    """As the gradients of a normalization's weight and bias, which are summed in float32."""
    new = Inputs()
    x, y = new(4096, 512, dtype=dtypes.bfloat16), new(4096, 512, dtype=dtypes.bfloat16)
    wide = ew.cast(y, dtype=dtypes.float32)
    sums = (
        rd.sum(ew.mul(wide, ew.cast(x, dtype=dtypes.float32)), axes=(0,)),
        rd.sum(wide, axes=(0,)),
    )
    found = scheduled(new.program(*[ew.cast(total, dtype=dtypes.bfloat16) for total in sums]))
    assert [(kernel.kind, len(kernel.anchors)) for kernel in found.kernels] == [
        ("column_reduce", 2)
    ]


def test_every_kernel_says_why_it_exists() -> None:
    for kernel in scheduled(mlp_step()).kernels:
        assert kernel.reason


def test_a_reduction_along_other_axes_is_another_kernel_and_says_so() -> None:
    new = Inputs()
    x = new(64, 32)
    rows = ew.sub(x, mv.expand(rd.max(x, axes=(1,)), shape=x.shape))
    found = scheduled(new.program(rd.sum(rows, axes=(0,))))
    assert kinds(found) == ["row_reduce", "column_reduce"]
    assert found.kernels[1].reason == "they reduce along other axes"


def test_a_value_is_not_computed_again_at_shifted_places() -> None:
    """x + flip(x) of a dear x: x is stored, or doubling would grow without bound."""
    new = Inputs()
    x = new(64)
    for _ in range(6):
        y = ew.tanh(ew.mul(x, x))
        x = ew.add(y, mv.flip(y, axes=(0,)))
    found = scheduled(new.program(x))
    assert max(len(kernel.nodes) for kernel in found.kernels) <= 4


def test_a_chain_of_expressions_is_cut_at_the_limit() -> None:
    new = Inputs()
    x = new(1000)
    for _ in range(200):
        x = ew.tanh(x)
    found = scheduled(new.program(x))
    assert [len(kernel.nodes) for kernel in found.kernels] == [64, 64, 64, 8]


def test_phases_of_a_kernel_are_bounded() -> None:
    """Forty softmaxes of softmaxes: several kernels, each with text of a bounded length."""
    new = Inputs()
    x = new(64, 100)
    for _ in range(40):
        x = softmax(x, (1,))
    found = scheduled(new.program(x))
    assert 7 <= len(found.kernels) <= 14
    text = max(len(stage.text) for kernel in found.kernels for stage in stages(kernel))
    assert text < 40_000


def test_a_long_row_among_few_is_reduced_in_parts_phase_by_phase() -> None:
    new = Inputs()
    found = scheduled(new.program(softmax(new(1 << 20), (0,))))
    assert len(found.kernels) >= 3
    assert all(kernel.one_phase or kernel.kind == "map" for kernel in found.kernels)


def test_a_count_that_a_row_kernel_needs_does_not_wait_for_it() -> None:
    """Loss and gradient of rows over a count: the rows are read once, by one kernel."""
    new = Inputs()
    x, weights = new(256, 512), new(256, 1)
    count = rd.sum(weights, axes=(0,))
    losses = ew.mul(rd.sum(x, axes=(1,)), weights)
    mean = ew.div(rd.sum(losses, axes=(0,)), count)
    share = mv.expand(ew.div(losses, mv.expand(count, shape=(256, 1))), shape=(256, 512))
    found = scheduled(new.program(mean, ew.mul(x, share)))
    assert kinds(found) == ["row_reduce", "row_reduce", "row_reduce"]
    assert [len(kernel.before) for kernel in found.kernels] == [0, 1, 2]


def test_cheap_values_are_made_again_by_each_reader() -> None:
    """A mask of a comparison is read by two kernels and stored by none."""
    new = Inputs()
    x, y = new(64, 32), new(64, 32)
    mask = ew.cast(ew.gt(x, common.full_like(x, 0)), dtype=dtypes.float32)
    a = rd.sum(ew.mul(mask, y), axes=(0,))
    b = contraction.matmul(contraction.transpose(mask), y)
    found = scheduled(new.program(a, b))
    assert sorted(kinds(found)) == ["column_reduce", "contract"]


def test_what_follows_from_a_stored_value_is_not_stored_too() -> None:
    """Two later products read x and sigmoid(x): x alone is kept, each reader makes the other."""
    new = Inputs()
    x = contraction.matmul(new(64, 32), new(32, 48))
    gate = ew.sigmoid(x)
    other = contraction.matmul(new(64, 16), new(16, 48))
    found = scheduled(new.program(x, ew.mul(other, gate), ew.mul(other, ew.sub(x, gate))))
    assert kinds(found) == ["contract", "contract"]
    assert [node.op for node in found.kernels[0].stores] == [contraction.matmul]
    assert found.kernels[1].reads[-1].op is contraction.matmul


def test_no_third_kernel_may_stand_between_fused_nodes() -> None:
    """a -> product -> a * product: the last cannot join the first."""
    new = Inputs()
    x = new(32, 32)
    a = ew.tanh(x)
    product = contraction.matmul(a, a)
    found = scheduled(new.program(ew.mul(a, product)))
    assert kinds(found) == ["map", "contract"]
    assert [node.op for node in found.kernels[1].nodes] == [contraction.matmul, ew.mul]


def test_an_update_is_an_epilogue_of_its_gradient() -> None:
    """Of a product and of a sum of columns; what a row reduces is updated by itself."""
    new = Inputs()
    weight, bias, scale = new(48, 32), new(32), new(48)
    gradient = contraction.matmul(new(48, 64), new(64, 32))
    given = new(48, 32)
    down, across = (rd.sum(given, axes=(axis,)) for axis in (0, 1))
    parts = (
        (weight, gradient), (bias, mv.reshape(down, shape=(32,))),
        (scale, mv.reshape(across, shape=(48,))),
    )  # fmt: skip
    steps = [common.assign(old, ew.sub(old, times(by, 0.1))) for old, by in parts]
    found = scheduled(new.program(*steps, overwrites={0: 0, 1: 1, 2: 2}))
    assert sorted(kinds(found)) == ["column_reduce", "contract", "map", "row_reduce"]
    places = {kernel.kind: list(kernel.overwrites.values()) for kernel in found.kernels}
    assert places == {
        "contract": [weight],
        "column_reduce": [bias],
        "map": [scale],
        "row_reduce": [],
    }
    assert [kernel.kind for kernel in found.kernels if kernel.update] == ["map"]


@pytest.mark.parametrize("again", [False, True], ids=["first layer", "with a gradient before it"])
def test_an_update_joins_a_long_product_if_nothing_else_waits_for_the_old_value(
    again: bool,
) -> None:
    """Else the product would have to wait for that reader, and could not share a launch with it."""
    new = Inputs()
    weight, given = new(32, 16), new(4096, 32)
    hidden = ew.exp(contraction.matmul(given, weight))
    gradient = contraction.matmul(mv.permute(given, axes=(1, 0)), hidden)
    outputs = [common.assign(weight, ew.sub(weight, times(gradient, 0.1)))]
    if again:
        outputs.append(contraction.matmul(hidden, mv.permute(weight, axes=(1, 0))))
    found = scheduled(new.program(*outputs, overwrites={0: 0}))
    (update,) = [kernel for kernel in found.kernels if kernel.overwrites]
    assert update.kind == ("map" if again else "contract")
    assert len(found.kernels) == (4 if again else 2)


@pytest.mark.parametrize(("extreme", "position"), [(rd.max, rd.argmax), (rd.min, rd.argmin)])
def test_the_place_of_an_extreme_is_found_with_it_and_not_when_its_gradient_comes(
    extreme: Op, position: Op
) -> None:
    """So whoever needs the gradient makes it from the place, and the windows are read once."""
    new = Inputs()
    wide = mv.permute(new(8, 6, 4, 10), axes=(0, 1, 3, 2))
    pooled, place = extreme(wide, axes=(3,)), position(wide, axes=(3,))
    back = contraction.matmul(new(8, 6, 10, 10), pooled)
    chosen = ew.eq(spread(place, wide.shape), new(8, 6, 10, 4, dtype=dtypes.int64))
    gradient = ew.where(chosen, spread(back, wide.shape), common.full_like(wide, 0.0))
    found = scheduled(new.program(pooled, rd.sum(gradient, axes=(0, 2, 3))))
    (first,) = [kernel for kernel in found.kernels if pooled in kernel.anchors]
    assert {node.op for node in first.anchors} == {extreme, position}
    assert len([k for k in found.kernels if any(n.shape == (8, 6, 4, 10) for n in k.reads)]) == 1


def test_an_update_waits_for_readers_of_the_old_value() -> None:
    """The gradient of a layer's input needs the weight as it was."""
    new = Inputs()
    weight, hidden, back = new(64, 32), new(48, 64), new(48, 32)
    gradient = contraction.matmul(mv.permute(hidden, axes=(1, 0)), back)
    step = common.assign(weight, ew.sub(weight, times(gradient, 0.1)))
    before = contraction.matmul(back, mv.permute(weight, axes=(1, 0)))
    found = scheduled(new.program(step, before, overwrites={0: 0}))
    (update,) = [kernel for kernel in found.kernels if kernel.overwrites]
    (reader,) = [kernel for kernel in found.kernels if kernel is not update]
    assert reader in update.before


# Places and order ---------------------------------------------------------------------------------


def test_readers_of_the_old_value_run_before_it_is_overwritten() -> None:
    new = Inputs()
    x = new(64, 32)
    assigned = common.assign(x, ew.tanh(x))
    total = rd.sum(x, axes=(0,))
    found = scheduled(new.program(assigned, total, overwrites={0: 0}))
    writer = next(kernel for kernel in found.kernels if kernel.overwrites)
    reader = next(kernel for kernel in found.kernels if kernel.kind == "column_reduce")
    assert reader in writer.before
    assert found.kernels.index(reader) < found.kernels.index(writer)


def test_a_value_read_at_other_places_is_not_overwritten() -> None:
    """x <- flip(x) in place would read what it has written."""
    new = Inputs()
    x = new(64)
    found = scheduled(
        new.program(common.assign(x, ew.tanh(mv.flip(x, axes=(0,)))), overwrites={0: 0})
    )
    assert not any(kernel.overwrites for kernel in found.kernels)


def test_a_value_needed_after_its_successor_is_not_overwritten() -> None:
    """y = x + sum(tanh(x)) with x <- tanh(x): a reader of the old x waits for the new one."""
    new = Inputs()
    x = new(4096, 32)
    assigned = common.assign(x, ew.tanh(x))
    total = rd.sum(assigned, axes=(0,))
    late = ew.add(x, mv.expand(total, shape=x.shape))
    found = scheduled(new.program(assigned, late, overwrites={0: 0}))
    assert not any(kernel.overwrites for kernel in found.kernels)


def test_checks_of_indices_come_before_assigns() -> None:
    new = Inputs()
    x, index = new(64, 8), new(5, dtype=dtypes.int64)
    counter = new(3)
    checked = indexing.check_index(index, limit=64, what="index", code=0)
    rows = indexing.gather(x, checked)
    step = common.assign(counter, ew.add(counter, common.full_like(counter, 1)))
    found = scheduled(new.program(step, rows, overwrites={0: 2}))
    names = [[node.op.name for node in kernel.stores] for kernel in found.kernels]
    assert names == [["gather"], ["assign"]]


def test_an_index_that_two_kernels_check_is_waited_for_once() -> None:
    """Rows are read and their gradient is added up: an update needs the first check alone."""
    new = Inputs()
    x, index, counter = new(64, 8), new(5, dtype=dtypes.int64), new(3)
    checked = indexing.check_index(index, limit=64, what="index", code=0)
    rows = indexing.gather(x, checked)
    gradient = indexing.scatter_add(new(64, 8), checked, ew.mul(rows, rows))
    step = common.assign(counter, ew.add(counter, common.full_like(counter, 1)))
    found = scheduled(new.program(step, gradient, overwrites={0: 2}))
    gather, scatter = (
        next(k for k in found.kernels if any(node.op is op for node in k.nodes))
        for op in (indexing.gather, indexing.scatter_add)
    )
    (update,) = [kernel for kernel in found.kernels if kernel.overwrites]
    assert update.before == [gather]
    assert not scatter.waits_for(update) and not update.waits_for(scatter)


def test_a_check_of_some_values_does_not_stand_for_all() -> None:
    """The first kernel reads two of five rows."""
    new = Inputs()
    x, index, counter = new(64, 8), new(5, dtype=dtypes.int64), new(3)
    checked = indexing.check_index(index, limit=64, what="index", code=0)
    some = mv.slice_(checked, starts=(0,), shape=(2,), steps=(1,))
    few = ew.exp(indexing.gather(x, some))
    rows = indexing.gather(x, checked)
    step = common.assign(counter, ew.add(counter, common.full_like(counter, 1)))
    found = scheduled(new.program(step, few, rows, overwrites={0: 2}))
    (update,) = [kernel for kernel in found.kernels if kernel.overwrites]
    assert len(found.kernels) == 3
    whole = next(kernel for kernel in found.kernels if rows in kernel.stores)
    assert update.waits_for(whole)


def test_what_is_only_widened_lies_in_memory_in_16_bits() -> None:
    """A product's reader casts it again, rather than read twice the bytes."""
    new = Inputs()
    half = dtypes.bfloat16
    product = contraction.matmul(new(64, 32, dtype=half), new(32, 96, dtype=half))
    scores = ew.cast(ew.mul(product, product), dtype=dtypes.float32)
    weights = ew.cast(softmax(scores, (1,)), dtype=half)
    found = scheduled(new.program(weights))
    stored = [(kernel.kind, [n.dtype for n in kernel.stores]) for kernel in found.kernels]
    assert stored == [("contract", [half]), ("row_reduce", [half])]


def test_what_follows_from_a_widened_value_is_not_stored_in_32_bits() -> None:
    """Readers of a normalized value make it again from the 16 bits that the product stores."""
    new = Inputs()
    half, rows = dtypes.bfloat16, 256
    product = contraction.matmul(new(rows, 64, dtype=half), new(64, 512, dtype=half))
    x = ew.cast(product, dtype=dtypes.float32)
    centered = ew.sub(x, mv.expand(rd.mean(x, (0,)), shape=x.shape))
    crossed = ew.contiguous(mv.permute(ew.cast(centered, dtype=half), axes=(1, 0)))
    found = scheduled(new.program(crossed, rd.sum(ew.mul(centered, new(rows, 512)), axes=(1,))))
    stored = [node for kernel in found.kernels for node in kernel.stores]
    assert [node.op for node in stored if prod(node.shape) == rows * 512] == [
        contraction.matmul, ew.contiguous
    ]  # fmt: skip


@pytest.mark.parametrize("name", list(family()))
def test_the_kernels_form_a_dag_in_their_order(name: str) -> None:
    found = scheduled(family()[name])
    graph = found.graph()
    assert networkx.is_directed_acyclic_graph(graph)
    position = {kernel: place for place, kernel in enumerate(found.kernels)}
    assert all(position[a] < position[b] for a, b in graph.edges)
    stored = found.stored
    for kernel in found.kernels:
        for node in kernel.reads:
            assert node.op is common.buffer or stored[node] in kernel.before


def test_what_is_made_from_a_wanted_value_waits_for_it() -> None:
    """A cheap output is stored once; its cheap readers must not slip past the kernel that does."""
    new = Inputs()
    x, y = new(1, 1), new(10, 8)
    wanted = times(x, 0.5)
    shifted = ew.add(y, mv.expand(wanted, shape=y.shape))
    found = scheduled(new.program(wanted, contraction.matmul(y, contraction.transpose(shifted))))
    stored = found.stored
    for kernel in found.kernels:
        assert all(n.op is common.buffer or stored[n] in kernel.before for n in kernel.reads)


@pytest.mark.smoke("lowering")
def test_random_graphs_make_no_circles() -> None:
    """Fusion of random diamonds: every schedule has an order, every read a writer before it.

    The last one has a kernel of early and late sums, by which kernels wait for earlier ones.
    """
    for seed in (*range(60), 1_001_257):
        rng = random.Random(seed)
        new = Inputs()
        pool: list[Node] = [new(16, 16) for _ in range(3)]
        for _ in range(40):
            pool.append(_random_node(rng, pool))
        found = schedule(rng.sample(pool[3:], 6), TARGET)
        done: set[Node] = set()
        for kernel in found.kernels:
            assert all(n.op is common.buffer or n in done for n in kernel.reads)
            done.update(kernel.stores)


def test_each_result_of_a_reduction_is_in_its_kernel() -> None:
    """The mean's readers fill the kernel before the squares are asked for."""
    new = Inputs()
    both = rd.welford(new(3, 5), axes=(1,))
    mean = common.output(both, index=0)
    for _ in range(80):
        mean = ew.tanh(mean)
    found = scheduled(new.program(mean, common.output(both, index=1)))
    assert len(found.kernels) > 1
    assert {node for node in found.kernels[0].nodes if node.op is common.output} == {
        node for kernel in found.kernels for node in kernel.nodes if node.op is common.output
    }


def _random_node(rng: random.Random, pool: list[Node]) -> Node:
    a, b = rng.choice(pool), rng.choice(pool)
    match rng.randrange(6):
        case 0:
            return contraction.matmul(a, b)
        case 1:
            return mv.expand(rd.sum(a, axes=(rng.randrange(2),)), shape=a.shape)
        case 2:
            return mv.permute(a, axes=(1, 0))
        case 3:
            return ew.tanh(a)
        case _:
            return ew.add(a, b)


def test_signature_merges_neighbours_and_drops_ones() -> None:
    assert signature((8, 1, 3, 5, 7), (3, 4)) == ((24, False), (35, True))
    assert signature((2, 3, 1, 4), (0, 2, 3)) == ((2, True), (3, False), (4, True))
    assert signature((1, 1), (0,)) == ()


def test_scheduling_is_deterministic() -> None:
    names = [
        [stage.name for kernel in scheduled(mlp_step()).kernels for stage in stages(kernel)]
        for _ in range(2)
    ]
    assert names[0] == names[1]
    assert np.unique(names[0]).size <= len(names[0])
