"""What row kernels give the machine: blocks that share a multiprocessor, and rows on their way."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from programs import (
    TARGET,
    Inputs,
    cross_entropy,
    family,
    gradients,
    layer_norm,
    scheduled,
    softmax,
    variable,
)

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.codegen.pack import packed
from tinygrad_cuda.lowering.codegen.skeleton import Stage
from tinygrad_cuda.lowering.emit import stages
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.target import Target


def only_stage(new: Inputs, *outputs: Node) -> Stage:
    (kernel,) = scheduled(new.program(*outputs)).kernels
    (stage,) = stages(kernel)
    return stage


@pytest.mark.parametrize(("dtype", "blocks"), [(dtypes.bfloat16, 4), (dtypes.float32, 3)])
def test_as_many_blocks_share_a_multiprocessor_as_registers_allow(
    dtype: DType, blocks: int
) -> None:
    """A thread holds 16 or 32 registers of a row and 32 of its exponentials."""
    new = Inputs()
    assert only_stage(new, softmax(new(600, 8192, dtype=dtype), (1,))).min_blocks_per_sm == blocks


@pytest.mark.parametrize(("dtype", "blocks"), [(dtypes.bfloat16, 5), (dtypes.float32, 4)])
def test_what_no_later_loop_reads_takes_no_room(dtype: DType, blocks: int) -> None:
    """The exponentials whose sum is all that is wanted, 32 registers, end with their loop."""
    new = Inputs()
    x = new(600, 8192, dtype=dtype)
    shifted = ew.sub(x, mv.expand(rd.max(x, axes=(1,)), shape=x.shape))
    assert only_stage(new, rd.sum(ew.exp(shifted), axes=(1,))).min_blocks_per_sm == blocks


def test_few_rows_and_dear_expressions_are_left_to_the_compiler() -> None:
    few, dear = Inputs(), Inputs()
    assert only_stage(few, softmax(few(300, 8192), (1,))).min_blocks_per_sm == 1
    assert only_stage(dear, softmax(ew.tanh(dear(600, 8192)), (1,))).min_blocks_per_sm == 1


def test_a_label_is_compared_with_positions_in_32_bits() -> None:
    """Labels are 64-bit integers; what is known to be a column is not compared as such."""
    new = Inputs()
    logits, labels = new(64, 10), new(64, dtype=dtypes.int64)
    leaf = variable(logits)
    loss = cross_entropy(leaf, labels)
    found = scheduled(new.program(loss, *gradients(loss, [leaf])))
    text = "\n".join(stage.text for kernel in found.kernels for stage in stages(kernel))
    masks = [line for line in text.splitlines() if line.lstrip().startswith("const bool eq")]
    assert masks and all(line.count("(int)") == 2 for line in masks)


def carrier(target: Target = TARGET) -> Kernel:
    """Layer norm's gradients over rows of 8192 bfloat16."""
    (kernel,) = lower.scheduled(family()["layer_norm_gradients"], target).kernels
    return kernel


def test_rows_are_sent_for_where_shared_memory_holds_two_and_what_all_share() -> None:
    kernel = carrier()
    first, _ = stages(kernel)
    own, _ = kernel.pair or (None, None)
    assert own is not None
    rows, weight = 2 * 2 * 8192 * 2, 8192 * 2  # two rows of two operands, of two bytes each
    assert rows + weight < first.shared < rows + weight + 4096
    assert "tgc_copy_ahead" in first.text
    assert carrier(replace(TARGET, block_shared=first.shared)).ahead
    assert not carrier(replace(TARGET, block_shared=first.shared - 16)).ahead


def test_rows_that_are_sent_for_share_no_launch() -> None:
    """Their blocks are few, but each wants a multiprocessor."""
    new = Inputs()
    other = scheduled(new.program(ew.exp(new(100)))).kernels[0]
    launches = packed([stages(carrier()), stages(other)], TARGET)
    assert [len(launch.stages) for launch in launches if "tgc_copy_ahead" in launch.text] == [1]
    assert len(launches) == 3


@pytest.mark.parametrize("shift", [False, True])
def test_rows_that_wait_for_other_loads_are_not_sent_for(shift: bool) -> None:
    """A number for each row is loaded when the row is made: two blocks hide each other's wait."""
    new = Inputs()
    x, scale = new(4096, 8192), new(4096, 1)
    product = ew.mul(x, mv.expand(scale, shape=x.shape)) if shift else x
    centered = ew.sub(product, mv.expand(rd.max(product, axes=(1,)), shape=x.shape))
    (kernel,) = scheduled(new.program(ew.exp(centered), rd.sum(centered, axes=(0,)))).kernels
    assert kernel.pair is not None
    assert ("tgc_copy_ahead" in stages(kernel)[0].text) is not shift


def loads(*kernels: Kernel) -> list[str]:
    """How the vectors of each operand are loaded."""
    text = "\n".join(stage.text for kernel in kernels for stage in stages(kernel))
    found = re.findall(r"tgc_(load_vector\w*|copy_ahead\w*)[(<][^;]*?p\.(in\d)", text)
    return sorted({f"{operand} {load}" for load, operand in found})


def test_large_operands_are_loaded_as_the_last_to_leave_the_cache() -> None:
    """A row's own, where the kernel stores as much; not a weight, and not what all rows share."""
    new = Inputs()
    kernels = scheduled(new.program(layer_norm(new(512, 8192), new(8192), new(8192)))).kernels
    assert loads(*kernels) == ["in0 load_vector_lasting", "in1 load_vector", "in2 load_vector"]
    sent = ["in0 copy_ahead_lasting", "in1 copy_ahead_lasting"]
    assert loads(carrier()) == [*sent, "in2 load_vector"]


def test_other_loads_leave_the_cache_as_they_came() -> None:
    new = Inputs()
    small, x = new(511, 8192), new(512, 8192)  # 16 MiB
    centered = ew.sub(x, mv.expand(rd.max(x, axes=(1,)), shape=x.shape))
    for value in (
        softmax(small, (1,)),  # it stays in the cache, and so does the result
        rd.sum(ew.exp(centered), axes=(1,)),  # nothing large is stored
        ew.exp(x),  # pointwise: it gains nothing
    ):
        assert set(loads(*scheduled(new.program(value)).kernels)) == {"in0 load_vector"}
    (kernel,) = scheduled(new.program(softmax(x, (1,)))).kernels
    assert loads(kernel) == ["in0 load_vector_lasting"]
