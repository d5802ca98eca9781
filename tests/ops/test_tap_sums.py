"""Depthwise convolutions and their gradients as sums over taps, beside the same in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import DType, bfloat16, float16, float32, float64
from tinygrad_cuda.graph.ops.convolution import (
    convolution,
    convolution_input_gradient,
    convolution_weight_gradient,
)
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.target import Target

SUMS = "sums of taps"
TOLERANCE = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2e-6}  # of the largest result
# N, C, size, kernel, stride, pads, dilation
PROBLEMS = (
    (2, 8, (7, 11), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    (3, 5, (13, 5), (3, 2), (2, 1), ((0, 2), (1, 0)), (1, 2)),
    (2, 3, (8, 8), (1, 1), (3, 2), ((0, 0), (1, 1)), (1, 1)),
    (1, 130, (17,), (7,), (1,), ((3, 3),), (1,)),
    (2, 4, (5, 4, 6), (2, 1, 3), (1, 1, 2), ((1, 0), (0, 0), (1, 1)), (1, 1, 1)),
)


@pytest.fixture(params=["emu", "cuda"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return Batch(device_or_skip(request.param, request))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32], ids=lambda dtype: dtype.name)
def test_all_passes(
    batch: Batch, dtype: DType, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, c, size, kernel, stride, pads, dilation = problem
    only = tuple(tier for tier in algorithms.TIERS if tier.name in (SUMS, "implicit GEMM"))
    monkeypatch.setattr(algorithms, "TIERS", only)
    monkeypatch.setattr(algorithms.tap_sums, "clocks", lambda *_: 0.0)
    at = {"stride": stride, "padding": pads, "dilation": dilation, "groups": c}
    rng, exact = np.random.default_rng(3), Batch(CPU)

    def operand(*shape: int) -> tuple[Any, Any]:
        array = rng.standard_normal(shape).astype(dtype.numpy)
        return batch.input(array), exact.input(array.astype(np.float64))

    (x, x64), (w, w64) = operand(n, c, *size), operand(c, 1, *kernel)
    y = convolution(x, w, **at)
    (g, g64) = operand(*y.shape)
    assert algorithms.choose(y, Target.h200(), only).tier == SUMS
    batch.want("result", [y])
    batch.want("input", [convolution_input_gradient(g, w, size=size, **at)])
    batch.want("weight", [convolution_weight_gradient(g, x, kernel=kernel, **at)])
    exact.want("result", [convolution(x64, w64, **at)])
    exact.want("input", [convolution_input_gradient(g64, w64, size=size, **at)])
    exact.want("weight", [convolution_weight_gradient(g64, x64, kernel=kernel, **at)])
    found = batch.run()
    for name, (want,) in exact.run().items():
        (values,) = found[name]
        error = np.abs(values.astype(np.float64) - want).max()
        assert error <= TOLERANCE[dtype.name] * np.abs(want).max(), f"{name}: {error}"


def test_what_is_no_such_sum_says_why() -> None:
    """float64, several channels of a group, and many taps."""
    inputs = Batch(CPU)

    def reason(c: int, groups: int, kernel: int, dtype: DType) -> str:
        x, w = (
            inputs.input(np.zeros(shape, dtype.numpy))
            for shape in ((2, c, 9, 9), (c, c // groups, kernel, kernel))
        )
        at = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": groups}
        return algorithms.tap_sums.refusal(convolution(x, w, **at))

    assert reason(4, 4, 3, float32) == ""
    assert "float64" in reason(4, 4, 3, float64)
    assert "several channels" in reason(4, 2, 3, float32)
    assert "25 taps" in reason(4, 4, 5, float32)
