"""The table of samples as kernels of a small machine, on which most rules of fusion apply.

Skeletons raise where the schedule promises what they cannot generate; nothing is compiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import samples
from derivatives import record
from execution import Batch

from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.schedule import fuse_column_sums, fuse_grid_reduce, fusion
from tinygrad_cuda.lowering.target import Target

TARGET = replace(Target.h200(), multiprocessors=8, co_resident=((1, 1), (2, 1)))
SMOOTH = samples.chunks(60, differentiate=True)


@pytest.mark.parametrize("name", SMOOTH)
def test_what_the_schedule_promises_is_generated(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, gradients and second derivatives of every smooth sample."""
    monkeypatch.setattr(fusion, "LONG_ROW", 8)
    monkeypatch.setattr(Target, "cached", 0)
    monkeypatch.setattr(fuse_grid_reduce, "LEAST_TILE", 16)
    monkeypatch.setattr(fuse_column_sums, "ROWS_A_BLOCK", 1)
    batch = Batch(as_device("cuda"))
    for sample in SMOOTH[name]:
        record(batch, sample)
    lowered = lower(batch.program(), TARGET)
    assert all(launch.shared <= TARGET.block_shared for launch in lowered.launches)
