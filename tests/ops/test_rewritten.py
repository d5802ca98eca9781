"""Simplified graphs give what the recorded ones give, for every sample and its derivatives."""

from __future__ import annotations

import random

import numpy as np
import pytest
import samples
from derivatives import derivatives
from execution import Batch, values
from sampling import difference, variant

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops import TABLE
from tinygrad_cuda.graph.ops.convolution import convolution_input_gradient
from tinygrad_cuda.graph.ops.geometry import Geometry
from tinygrad_cuda.graph.rewrite import convolutions, simplify

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


def _problem(draw: random.Random) -> tuple[Geometry, tuple[int, ...], tuple[int, ...]]:
    """A geometry that has a result, the input's size, and the kernel's."""
    while True:
        rank = draw.randint(1, 2)
        kernel, stride = (tuple(draw.randint(1, most) for _ in range(rank)) for most in (5, 3))
        pads = tuple((draw.randint(0, 4), draw.randint(0, 4)) for _ in range(rank))
        dilation = tuple(draw.choice((1, 1, 1, 2)) for _ in range(rank))
        at = Geometry(stride, pads, dilation, draw.choice((1, 1, 2)))
        size = tuple(draw.randint(3, 9) for _ in range(rank))
        if min(at.sizes(size, kernel)) > 0:
            return at, size, kernel


def test_input_gradients_of_half_types_are_one_convolution() -> None:
    """Without a stride other padding; with one, phases as channels, where few taps are zeros."""
    draw, rng, batch = random.Random(1), np.random.default_rng(1), Batch(CPU)
    ways = {"flipped": 0, "blocks": 0}
    for number in range(120):
        at, size, kernel = _problem(draw)
        w = batch.input(rng.standard_normal((2 * at.groups, 3, *kernel)))
        g = batch.input(rng.standard_normal((2, 2 * at.groups, *at.sizes(size, kernel))))
        if all(step == 1 for step in at.stride):
            way, made = "flipped", convolutions._flipped(g, w, size, at)
        elif convolutions._fills_blocks(kernel, at):
            way, made = "blocks", convolutions._blocks(g, w, size, at)
        else:
            continue
        ways[way] += 1
        exact = convolution_input_gradient(g, w, size=size, **at._asdict())
        batch.want(f"{number} {way} {at} {size} {kernel}", [exact, made])
    assert min(ways.values()) > 10, ways
    for name, (exact, found) in batch.run().items():
        np.testing.assert_allclose(found, exact, atol=1e-12, err_msg=name)
