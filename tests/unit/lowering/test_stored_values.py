"""Which values are stored between kernels, and which are made again by those that read them."""

from __future__ import annotations

from math import prod

import pytest
from programs import (
    Inputs,
    family,
    gradients,
    layer_norm,
    scheduled,
    spread,
    times,
    variable,
)

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import bfloat16, float32
from tinygrad_cuda.graph.node import Node, gradient_mode, topological
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.gelu import gelu_tanh
from tinygrad_cuda.lowering.schedule.kernel_dag import Schedule

ROWS, WIDTH = 2048, 512


def gelu(x: Node) -> Node:
    """As F.gelu(x, approximate="tanh") records it."""
    slope = times(ew.mul(x, x), 0.0713548162726009)
    slope = ew.add(slope, common.full_like(slope, 1.5957691216057308))
    return ew.mul(x, ew.sigmoid(ew.mul(x, slope)))


def linear(x: Node, weight: Node) -> Node:
    """A product of halves, as autocast has it."""
    operands = (ew.cast(x, dtype=bfloat16), ew.cast(weight, dtype=bfloat16))
    return contraction.matmul(operands[0], contraction.transpose(operands[1]))


def stored_in_float32(found: Schedule) -> list[Node]:
    """Values of an activation's size in float32."""
    nodes = [node for kernel in found.kernels for node in kernel.stores]
    return [n for n in nodes if n.dtype is float32 and prod(n.shape) >= ROWS * WIDTH]


def test_the_derivative_of_an_activation_is_made_of_its_bf16_operand() -> None:
    """s (1 - s) costs more than a cheap value, but its readers compute the sigmoid already."""
    new = Inputs()
    leaves = [variable(new(WIDTH, WIDTH)) for _ in range(2)]
    hidden = linear(new(ROWS, WIDTH), leaves[0])
    out = linear(gelu(ew.cast(hidden, dtype=float32)), leaves[1])
    loss = rd.sum(ew.mul(out, new(ROWS, WIDTH, dtype=bfloat16)), axes=(0, 1))
    found = scheduled(new.program(loss, *gradients(loss, leaves)))
    assert stored_in_float32(found) == []


def test_the_slope_of_gelu_by_tanh_is_made_of_its_bf16_operand() -> None:
    """Its arithmetic leaves the product that would store it in float32, and costs nothing more."""
    new = Inputs()
    rows, width, inner = 8192, 768, 3072
    leaves = [variable(new(inner, width)), variable(new(width, inner))]
    bias = spread(new(inner, dtype=bfloat16), (rows, inner))
    hidden = ew.cast(ew.add(linear(new(rows, width), leaves[0]), bias), dtype=float32)
    out = linear(gelu_tanh(hidden), leaves[1])
    loss = rd.sum(ew.mul(out, out), axes=(0, 1))
    found = scheduled(new.program(loss, *gradients(loss, leaves)))
    large = [node for node in stored_in_float32(found) if node not in found.outputs]
    assert large == []
    first = found.kernels[[kernel.kind for kernel in found.kernels].index("contract")]
    assert [node.op for node in first.nodes].count(ew.sigmoid) == 1
    assert [(node.shape, node.dtype) for node in first.stores] == [((rows, inner), bfloat16)] * 2


def test_a_sum_of_a_bf16_value_and_a_float32_one_is_stored() -> None:
    """Readers of a residual's sum would load both operands again: they load the sum."""
    new = Inputs()
    weight, x = new(WIDTH, WIDTH), new(ROWS, WIDTH)
    branch = ew.add(linear(x, weight), spread(new(WIDTH, dtype=bfloat16), (ROWS, WIDTH)))
    total = ew.add(x, ew.cast(branch, dtype=float32))
    other = contraction.matmul(total, new(WIDTH, WIDTH))
    found = scheduled(new.program(rd.sum(total, axes=(1,)), rd.sum(total, axes=(0,)), other))
    assert total in stored_in_float32(found)


def test_an_update_of_a_weight_that_a_product_copies_stores_no_part_of_it() -> None:
    """The decayed weight is made of what is in memory anyway, where the update joins a product."""
    new = Inputs()
    x, weight = new(8192, 2048), new(2048, 2048)
    leaf = variable(weight)
    out = contraction.matmul(x, contraction.transpose(leaf))
    loss = rd.sum(ew.mul(out, out), axes=(0, 1))
    (gradient,) = gradients(loss, [leaf])
    with gradient_mode(False):
        step = common.assign(weight, ew.sub(times(weight, 0.99), times(gradient, 0.1)))
    with settings.override(matmul_precision="high"):
        found = scheduled(new.program(loss, step, overwrites={1: 1}))
    products = [kernel for kernel in found.kernels if kernel.kind == "contract"]
    assert all(kernel.choice is not None and kernel.choice.copies for kernel in products)
    (update,) = [kernel for kernel in found.kernels if kernel.overwrites]
    assert update.kind == "contract" and weight in update.reads
    assert not any(kernel.update for kernel in found.kernels)


def test_a_copy_for_the_gradient_of_a_weight_makes_the_normalized_rows_again() -> None:
    """What is normalized is in memory for the norm's gradient: the rows are free much earlier."""
    new = Inputs()
    rows, width, inner = 8192, 768, 3072
    sizes = (width,), (width,), (inner, width)
    buffers = [new(*size) for size in sizes]
    leaves = [variable(buffer) for buffer in buffers]
    x = variable(ew.exp(contraction.matmul(new(rows, width), new(width, width))))
    out = contraction.matmul(layer_norm(x, *leaves[:2]), contraction.transpose(leaves[2]))
    loss = rd.sum(ew.mul(out, out), axes=(0, 1))
    found = gradients(loss, [x, *leaves])
    with gradient_mode(False):
        steps = [
            common.assign(old, ew.sub(old, times(gradient, 0.1)))
            for old, gradient in zip(buffers, found[1:])
        ]
    places = {k: k for k in range(len(steps))}
    with settings.override(matmul_precision="high"):
        made = scheduled(new.program(*steps, found[0], overwrites=places))
    turned = [k for k in made.kernels if [n.shape for n in k.stores] == [(width, rows)]]
    assert len(turned) == 1
    writer = made.stored[max(turned[0].reads, key=lambda node: prod(node.shape))]
    assert writer.kind == "contract" and writer.stores[0].op is ew.exp
    assert sum(len(kernel.overwrites) for kernel in made.kernels) == len(buffers)
    assert all(turned[0] is k or k.waits_for(turned[0]) for k in made.kernels if k.overwrites)


def test_a_product_is_stored_instead_of_several_values_that_follow_from_it() -> None:
    """Of gelu by erf the gradient reads three values, each of them dear and made of one."""
    new = Inputs()
    leaves = [variable(new(WIDTH, WIDTH)) for _ in range(2)]
    hidden = contraction.matmul(new(ROWS, WIDTH), leaves[0])
    bent = ew.add(ew.erf(times(hidden, 0.7071067811865476)), common.full_like(hidden, 1.0))
    out = contraction.matmul(ew.mul(times(hidden, 0.5), bent), leaves[1])
    loss = rd.sum(ew.mul(out, new(ROWS, WIDTH)), axes=(0, 1))
    found = scheduled(new.program(loss, *gradients(loss, leaves)))
    assert [node.op for node in found.kernels[0].stores] == [contraction.matmul, ew.mul]


def test_a_product_before_a_layer_norm_stores_its_result_alone() -> None:
    """Parts of the norm's gradient follow from it and from the operand, though weights change."""
    new = Inputs()
    buffers = [new(WIDTH), new(WIDTH), new(WIDTH, WIDTH)]
    leaves = [variable(buffer) for buffer in buffers]
    x = variable(new(ROWS, WIDTH))
    out = linear(layer_norm(x, *leaves[:2]), leaves[2])
    loss = rd.sum(ew.mul(out, new(ROWS, WIDTH, dtype=bfloat16)), axes=(0, 1))
    found = gradients(loss, [x, *leaves])
    with gradient_mode(False):
        steps = [
            common.assign(old, ew.sub(old, times(gradient, 0.1)))
            for old, gradient in zip(buffers, found[1:])
        ]
    made = scheduled(new.program(*steps, found[0], overwrites={k: k for k in range(len(steps))}))
    assert stored_in_float32(made) == [made.outputs[3]]  # the gradient of x, which is wanted
    products = [kernel for kernel in made.kernels if kernel.kind == "contract"]
    assert all(len(kernel.stores) == 1 for kernel in products)
    assert sum(len(kernel.overwrites) for kernel in made.kernels) == len(buffers)


def test_what_a_later_kernel_would_read_too_late_is_stored() -> None:
    """A scaled product is read by what waits for the new scale: the old one is gone by then."""
    new = Inputs()
    scale = new(WIDTH)
    product = contraction.matmul(new(ROWS, 64), new(64, WIDTH))
    scaled = ew.mul(product, spread(scale, (ROWS, WIDTH)))
    total = rd.sum(ew.mul(product, product), axes=(0,))
    updated = common.assign(scale, ew.add(scale, mv.reshape(total, shape=(WIDTH,))))
    late = ew.add(scaled, spread(rd.sum(updated, axes=(0,)), (ROWS, WIDTH)))
    made = scheduled(new.program(updated, product, late, overwrites={0: 0}))
    (writer,) = [kernel for kernel in made.kernels if updated in kernel.stores]
    (reader,) = [kernel for kernel in made.kernels if late in kernel.stores]
    assert writer.overwrites == {updated: scale}
    assert scaled in reader.reads and scale not in reader.reads


@pytest.mark.parametrize("name", list(family()))
def test_a_kernel_has_no_node_that_none_of_its_results_needs(name: str) -> None:
    """What other kernels make again is no work of the one where it was before."""
    for kernel in scheduled(family()[name]).kernels:
        needed = set(topological(kernel.stores, stop=set(kernel.reads).__contains__))
        assert needed.issuperset(kernel.nodes)
