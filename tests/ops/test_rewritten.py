"""Simplified graphs give what the recorded ones give, for every sample and its derivatives."""

from __future__ import annotations

import pytest
import samples
from derivatives import derivatives
from execution import values
from sampling import difference, variant

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops import TABLE
from tinygrad_cuda.graph.rewrite import simplify

ROWS = pytest.mark.parametrize("op", TABLE.values(), ids=list(TABLE))
SMOOTH = [op for op in TABLE.values() if any(s.differentiate for s in samples.of(op))]


@ROWS
def test_values_survive_simplification(op: Op) -> None:
    """Edges included: zeros of both signs, NaN and infinities, sizes 0 and 1."""
    recorded = values(samples.of(op), CPU)
    simplified = values(samples.of(op), CPU, simplify)
    for sample in samples.of(op):
        for found, expected in zip(simplified[sample.name], recorded[sample.name], strict=True):
            text = difference(found, expected, sample)
            assert text is None, f"{sample.name}: {text}"


@pytest.mark.parametrize("op", SMOOTH, ids=[op.name for op in SMOOTH])
def test_derivatives_survive_simplification(op: Op) -> None:
    """Gradient graphs are where rewrites find most to do."""
    smooth = [sample for sample in samples.of(op) if sample.differentiate]
    recorded = derivatives(smooth, CPU)
    simplified = derivatives(smooth, CPU, simplify)
    assert recorded.keys() == simplified.keys()
    for sample in smooth:
        loose = variant(sample, exact=False, loose=max(sample.loose, 10))
        for kind in ("g", "h"):
            label = f"{sample.name} {kind}"
            pairs = zip(simplified.get(label, []), recorded.get(label, []), strict=True)
            for found, expected in pairs:
                text = difference(found, expected, loose)
                assert text is None, f"{label}: {text}"
