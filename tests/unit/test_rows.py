"""What row kernels give the machine: blocks that share a multiprocessor, and rows on their way."""

from __future__ import annotations

import pytest
from programs import Inputs, cross_entropy, gradients, scheduled, softmax, variable

from tinygrad_cuda.backend.cuda.codegen import stages
from tinygrad_cuda.backend.cuda.template import Stage
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import elementwise as ew


def only_stage(new: Inputs, *outputs: Node) -> Stage:
    (kernel,) = scheduled(new.program(*outputs)).kernels
    (stage,) = stages(kernel)
    return stage


@pytest.mark.parametrize(("dtype", "crowd"), [(dtypes.bfloat16, 4), (dtypes.float32, 3)])
def test_as_many_blocks_share_a_multiprocessor_as_registers_allow(dtype: DType, crowd: int) -> None:
    """A thread holds 16 or 32 registers of a row and 32 of its exponentials."""
    new = Inputs()
    assert only_stage(new, softmax(new(600, 8192, dtype=dtype), (1,))).dense == crowd


def test_few_rows_and_dear_expressions_are_left_to_the_compiler() -> None:
    few, dear = Inputs(), Inputs()
    assert only_stage(few, softmax(few(300, 8192), (1,))).dense == 1
    assert only_stage(dear, softmax(ew.tanh(dear(600, 8192)), (1,))).dense == 1


def test_a_label_is_compared_with_positions_in_32_bits() -> None:
    """Labels are 64-bit integers; what is known to be a column is not compared as such."""
    new = Inputs()
    logits, labels = new(64, 10), new(64, dtype=dtypes.int64)
    leaf = variable(logits)
    loss = cross_entropy(leaf, labels)
    found = scheduled(new.program(loss, *gradients(loss, [leaf])))
    text = "\n".join(stage.text for kernel in found.kernels for stage in stages(kernel))
    masks = [line for line in text.splitlines() if " == x" in line or " == (int)" in line]
    assert masks and all("(int)x" in line.split("=", 1)[1] for line in masks)
