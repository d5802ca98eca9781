"""A ReLU's mask is read off its result where that lies in memory, and has the same values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tinygrad_cuda.backend.cpu.backend import CpuBackend
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import DType, float16, float32
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.graph.rewrite.masks import read_masks_off_results

SHAPE = (6, 4)


def _leaves(dtype: DType) -> list[Node]:
    shapes = (SHAPE, (4, 3), SHAPE)
    return [common.buffer.leaf(s, dtype, CPU, slot=n) for n, s in enumerate(shapes)]


def _layer(x: Node, w: Node, cotangent: Node) -> tuple[Node, Node, Node]:
    """relu(x) @ w, the gradient of relu(x), and relu(x)."""
    zero = common.full_like(x, 0)
    mask = ew.le(x, zero)
    y = ew.where(mask, zero, x)
    return contraction.matmul(y, w), ew.where(mask, zero, cotangent), y


def _centered(x: Node) -> Node:
    return ew.sub(x, mv.expand(rd.max(x, axes=(1,)), shape=x.shape))


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("dtype", [float32, float16])
def test_mask_is_read_off_the_result(dtype: DType, joined: bool) -> None:
    """Of half values, and of a residual block's sum."""
    leaves = _leaves(dtype)
    x = _centered(leaves[0])
    first, gradient, _ = _layer(ew.add(x, leaves[2]) if joined else x, *leaves[1:])
    if dtype is float32 and not joined:
        assert read_masks_off_results((gradient, first)) == (gradient, first)
        return
    made = read_masks_off_results((gradient, first))[::-1]  # whichever reader comes first
    product, masked = made
    assert masked.sources[0].sources[0] is product.sources[0]  # the same y
    values = np.array(
        [
            [math.nan, 1, -1, 0], [math.inf, 1, 2, -math.inf], [-0.0, 0.0, -1e-7, 6e-8],
            [1, 2, 3, 3], [6e-8, 0, -6e-8, 6e-8], [-math.inf, -1, -2, -3],
        ],
        dtype.numpy,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    arrays = [values, draw.normal(size=(4, 3)), draw.normal(size=SHAPE)]
    arrays = [array.astype(dtype.numpy) for array in arrays]
    with np.errstate(invalid="ignore"):
        before, after = (
            CpuBackend(CPU).compile(Program(CPU, outputs, tuple(leaves))).run(arrays, [])
            for outputs in ((first, gradient), made)
        )
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_mask_of_a_product_and_a_bias_stays() -> None:
    """It is stored in a byte beside the result."""
    x, w, cotangent = _leaves(float32)
    hidden = contraction.matmul(contraction.matmul(x, w), contraction.transpose(w))
    outputs = _layer(hidden, w, cotangent)[:2]
    assert read_masks_off_results(outputs) == outputs


def test_mask_of_a_result_that_no_product_reads_stays() -> None:
    x, w, cotangent = _leaves(float32)
    _, gradient, y = _layer(_centered(x), w, cotangent)
    outputs = gradient, rd.sum(y, axes=(0, 1))
    assert read_masks_off_results(outputs) == outputs
