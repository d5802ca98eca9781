"""Sums at computed rows: one block for several rows gives what one block for each gives."""

from __future__ import annotations

import numpy as np
import pytest
from execution import Batch, device_or_skip

from tinygrad_cuda.core.dtypes import DType, bfloat16, bool_, float32
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.lowering.skeletons.scatter import ROWS


@pytest.mark.parametrize("device", ["emu", "cuda"])
@pytest.mark.parametrize("dtype", [float32, bfloat16, bool_], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [30, 5001, ROWS * 2112 + 5])
def test_rows_of_one_block_keep_their_order(
    rows: int, dtype: DType, device: str, request: pytest.FixtureRequest
) -> None:
    """The entries of a row are added in their order; rows without one keep their value."""
    batch = Batch(device_or_skip(device, request))
    rng = np.random.default_rng(rows)
    base = rng.standard_normal((rows, 70)).astype(dtype.numpy)
    index = np.concatenate((rng.integers(0, rows, 290), [0, rows - 1, rows - 1, 7, 7, 7, 8, 9]))
    values = rng.standard_normal((len(index), 70)).astype(dtype.numpy)
    want = base.astype(np.float32) if dtype.is_floating else base.copy()
    for position, value in zip(index, values, strict=True):
        row = value.astype(np.float32) if dtype.is_floating else value
        want[position] = want[position] + row if dtype.is_floating else want[position] | row
    nodes = batch.input(base), batch.input(index), batch.input(values)
    batch.want("sums", [indexing.scatter_add(*nodes)])
    (found,) = batch.run()["sums"]
    np.testing.assert_array_equal(found, want.astype(dtype.numpy))
