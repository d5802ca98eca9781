"""Along which axis an operand of a product lies in memory, whatever loads along it would touch."""

from __future__ import annotations

import pytest
from programs import Inputs

from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.lowering.skeletons.contract import tma
from tinygrad_cuda.lowering.skeletons.contract.loads import lie_along_k


@pytest.mark.parametrize("rows", [2, 4, 8, 64])
@pytest.mark.parametrize("k", [8, 16, 128])
def test_a_transposed_operand_lies_along_its_rows(rows: int, k: int) -> None:
    """4 rows of 8 touch as many sectors along either axis, and counted as lying along k."""
    new = Inputs()
    turned, straight = contraction.transpose(new(2, k, rows)), new(2, rows, k)
    other = contraction.transpose(new(2, 64, k))
    assert lie_along_k(turned, other) == (False, True)
    assert lie_along_k(straight, other) == (True, True)
    if rows % 4 == 0:
        assert tma.describes(turned, other) and tma.describes(straight, other, along_k=True)
        assert not tma.describes(turned, other, along_k=True)
        assert tma.describes(turned, other, (True, False), along_k=True)
