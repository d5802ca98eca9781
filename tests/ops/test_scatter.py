"""Sums at computed rows: each row adds its entries in their order, whoever finds them."""

from __future__ import annotations

import numpy as np
import pytest
from execution import Batch, device_or_skip

from tinygrad_cuda.core.dtypes import DType, bfloat16, bool_, float32
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.skeletons import scatter
from tinygrad_cuda.lowering.skeletons.scatter import ROWS
from tinygrad_cuda.lowering.target import Target


@pytest.mark.parametrize("device", ["emu", "cuda"])
@pytest.mark.parametrize("dtype", [float32, bfloat16, bool_], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [30, 5001, ROWS * 528 + 5])
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


@pytest.mark.parametrize("device", ["emu", "cuda"])
@pytest.mark.parametrize("dtype", [float32, bfloat16, bool_], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("listed", "rows"), [(4096, 65), (8, 65), (8, 1)])
def test_few_rows_take_parts_of_the_entries(
    listed: int,
    rows: int,
    dtype: DType,
    device: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nearly all entries are of one row; a block lists its own, or reads all positions again."""
    monkeypatch.setattr(scatter, "LISTED", listed)
    batch = Batch(device_or_skip(device, request))
    rng = np.random.default_rng(rows)
    base = rng.integers(0, 2, (rows, 200)).astype(dtype.numpy)
    index = np.where(rng.random(1100) < 0.8, rows // 2, rng.integers(0, rows, 1100))
    values = rng.integers(0, 2, (1100, 200)).astype(dtype.numpy)
    want = base.astype(np.float32)
    np.add.at(want, index, values.astype(np.float32))
    nodes = batch.input(base), batch.input(index), batch.input(values)
    batch.want("both", [op(*nodes) for op in (indexing.scatter_add, indexing.scatter)])
    names = [launch.name for launch in lower(batch.program(), Target.h200()).launches]
    assert sum("scatter_add_join" in name for name in names) == 1
    sums, last = batch.run()["both"]
    np.testing.assert_array_equal(sums, want.astype(dtype.numpy))
    base[index] = values
    np.testing.assert_array_equal(last, base)
