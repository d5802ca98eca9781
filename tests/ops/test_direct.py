"""Convolutions of few channels without a matrix, and gradients of small kernels, on the emulator.

One program holds several cuts of a problem whose sizes they do not divide.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import float32, float64
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.convolution import convolution as convolve
from tinygrad_cuda.graph.ops.convolution import convolution_weight_gradient
from tinygrad_cuda.graph.ops.geometry import Geometry
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.codegen.skeleton import THREADS
from tinygrad_cuda.lowering.skeletons.contract import contract
from tinygrad_cuda.lowering.skeletons.conv.direct import DirectCut, direct_cut_of, direct_cuts_of
from tinygrad_cuda.lowering.skeletons.conv.weight_gradient import (
    WeightGradientCut,
    weight_gradient_cuts_of,
)
from tinygrad_cuda.lowering.skeletons.conv.windows import Windows, windows_of
from tinygrad_cuda.lowering.target import Target

Array = np.ndarray[Any, Any]
TARGET = Target.h200()

# N, C, (H, W), O, kernel, stride, pads, dilation
PROBLEMS = [
    (2, 6, (14, 14), 16, (5, 5), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    (3, 4, (9, 13), 5, (3, 3), (2, 1), ((1, 1), (1, 2)), (1, 1)),
    (2, 3, (11, 10), 1, (3, 2), (1, 2), ((2, 0), (1, 1)), (2, 3)),
    (1, 8, (7, 12), 7, (2, 3), (1, 1), ((0, 0), (1, 1)), (1, 1)),
]


def geometry(problem: tuple) -> dict[str, Any]:
    """The attributes of a convolution's node."""
    *_, stride, pads, dilation = problem
    return {"stride": stride, "padding": pads, "dilation": dilation, "groups": 1}


def windows_in(x: Array, kernel: Any, stride: Any, pads: Any, dilation: Any) -> Array:
    """All windows of an array, shape (N, C, H', W', K, L)."""
    (sy, sx), (dy, dx) = stride, dilation
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    near = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))
    return near[:, :, ::sy, ::sx, ::dy, ::dx]


def products(a: Array, b: Array) -> Any:
    """The sum of products; an infinite one may appear in it."""
    return (a.astype(np.float64) * b).sum()


def convolution(x: Array, w: Array, problem: tuple) -> Any:
    """By its definition, in float64."""
    near = windows_in(x.astype(np.float64), *problem[4:])
    return np.einsum("ncyxuv,ocuv->noyx", near, w)


@pytest.mark.parametrize("problem", PROBLEMS, ids=["plain", "stride", "dilation", "odd"])
def test_any_cut_gives_the_convolution(
    problem: tuple,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Its reader joins it; values outside the input count as zeros, whatever memory held."""
    n, c, sizes, m, kernel, *_ = problem
    batch = Batch(device_or_skip("emu", request))
    rng = np.random.default_rng(5)
    cuts: list[DirectCut] = []
    expected = {}
    for number in range(4):
        x = rng.standard_normal((n, c, *sizes)).astype(np.float32)
        w = rng.standard_normal((m, c, *kernel)).astype(np.float32)
        y = convolve(batch.input(x), batch.input(w), **geometry(problem))
        batch.want(str(number), [ew.neg(y)])
        expected[str(number)] = -convolution(x, w, problem)
    draw = random.Random(6)

    def chosen(found: Windows, outputs: int, target: Target) -> DirectCut:
        cut = draw.choice(list(direct_cuts_of(found, outputs, target)))
        cuts.append(cut)
        return cut

    monkeypatch.setattr(algorithms, "direct_cut_of", chosen)
    monkeypatch.setattr(algorithms.Tier, "refusal", lambda *_: "")
    for name, (found,) in batch.run().items():
        np.testing.assert_allclose(found, expected[name], atol=1e-4, err_msg=name)
    assert len(cuts) == 4, "not every product went this way"


@pytest.mark.parametrize("problem", PROBLEMS, ids=["plain", "stride", "dilation", "odd"])
def test_any_parts_give_the_gradient_of_the_kernel(
    problem: tuple,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Infinite values of the input reach those weights that they meet, and no others."""
    n, c, sizes, m, kernel, stride, pads, dilation = problem
    batch = Batch(device_or_skip("emu", request))
    rng = np.random.default_rng(7)
    parts: list[WeightGradientCut] = []
    expected = {}
    for number in range(4):
        x = rng.standard_normal((n, c, *sizes)).astype(np.float32)
        x[-1, 0, -1, -1] = np.inf if number == 3 else 1.0
        at = geometry(problem)
        lengths = Geometry(**at).sizes(sizes, kernel)
        g = rng.standard_normal((n, m, *lengths)).astype(np.float32)
        y = convolution_weight_gradient(batch.input(g), batch.input(x), kernel=kernel, **at)
        batch.want(str(number), [y])
        near = windows_in(x.astype(np.float64), kernel, stride, pads, dilation)
        expected[str(number)] = np.stack(
            [
                [
                    [[products(g[:, o], near[:, i, :, :, u, v]) for v in range(kernel[1])]
                     for u in range(kernel[0])]
                    for i in range(c)
                ]
                for o in range(m)
            ]
        )  # fmt: skip
    draw = random.Random(8)

    def chosen(found: Windows, outputs: int, target: Target) -> WeightGradientCut:
        part = draw.choice(list(weight_gradient_cuts_of(found, outputs, target)))
        parts.append(part)
        return part

    monkeypatch.setattr(algorithms, "weight_gradient_cut_of", chosen)
    monkeypatch.setattr(algorithms.Tier, "refusal", lambda *_: "")
    for name, (found,) in batch.run().items():
        np.testing.assert_allclose(found, expected[name], atol=2e-4, rtol=1e-4, err_msg=name)
    assert len(parts) == 4, "not every product went this way"


def image(problem: tuple, **changes: Any) -> Node:
    """A convolution of inputs."""
    n, c, sizes, m, kernel, *_ = problem
    dtype = changes.pop("dtype", float32)
    x = common.buffer.leaf((n, c, *sizes), dtype, CPU, slot=0)
    at = geometry(problem) | changes
    w = common.buffer.leaf((m, c // at["groups"], *kernel), dtype, CPU, slot=1)
    return convolve(x, w, **at)


def test_windows_are_those_of_the_op() -> None:
    problem = PROBLEMS[1]
    node = image(problem)
    found = windows_of(node)
    assert found is not None
    assert (found.output_size, found.taps, found.stride) == (node.shape[2:], (3, 3), (2, 1))
    assert (found.shape, found.top, found.left) == (node.sources[0].shape, 1, 1)
    assert found.size == (9 + 2, 13 + 3)
    gradient = convolution_weight_gradient(
        node, node.sources[0], kernel=(3, 3), **geometry(problem)
    )
    assert windows_of(gradient) == found
    assert windows_of(ew.neg(node)) is None


@pytest.mark.parametrize(
    ("kernel", "stride", "groups", "direct"),
    [
        ((3, 3), (1, 1), 1, True), ((3, 3), (1, 1), 2, False), ((1, 1), (2, 2), 1, True),
        ((1, 1), (1, 1), 1, False), ((1, 3), (1, 1), 1, False), ((4, 4), (4, 4), 1, False),
    ],
)  # fmt: skip
def test_windows_that_do_not_overlap_are_left_to_the_product(
    kernel: tuple[int, int], stride: tuple[int, int], groups: int, direct: bool
) -> None:
    problem = (2, 4, (12, 12), 4, kernel, stride, ((0, 0), (0, 0)), (1, 1))
    assert (windows_of(image(problem, groups=groups)) is not None) == direct


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        ((128, 6, (14, 14), 16, (5, 5), (1, 1), ((0, 0),) * 2, (1, 1)), "direct"),
        ((128, 1, (28, 28), 6, (5, 5), (1, 1), ((2, 2),) * 2, (1, 1)), "direct"),
        ((256, 64, (28, 28), 64, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1)), "winograd"),
        ((256, 64, (28, 28), 128, (3, 3), (2, 2), ((1, 1),) * 2, (1, 1)), "implicit GEMM"),
        ((128, 64, (32, 32), 1, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1)), "direct"),
    ],
    ids=["lenet 2", "lenet 1", "resnet", "resnet down", "unet out"],
)
def test_the_tier_of_a_convolution_of_the_benchmarks(
    problem: tuple,
    name: str,
) -> None:
    node = image(problem)
    choice = algorithms.choose(node, TARGET)
    assert choice.tier == name
    assert choice.reason.startswith(f"{name}, ") and " clocks" in choice.reason


def test_a_tier_is_refused_with_the_reason() -> None:
    problem = (128, 6, (14, 14), 16, (5, 5), (1, 1), ((0, 0),) * 2, (1, 1))
    many = (128, 6, (14, 14), 17, *problem[4:])
    few = (1, *problem[1:])
    for node, reason in (
        (image(few), "not direct: 10 blocks for 132 multiprocessors"),
        (image(many), "not direct: no cut fits a block"),
        (image(problem, dtype=float64), "not direct: float64 is not summed in float32"),
        (image((1, 1, (1 << 16, 1 << 15), 1, *problem[4:])), "not direct: positions take 64 bits"),
        (image(problem, groups=2), "not direct: no overlapping windows of one group"),
    ):
        choice = algorithms.choose(node, TARGET)
        assert choice.tier == "implicit GEMM"
        assert reason in choice.reason
    direct = next(tier for tier in algorithms.TIERS if tier.name == "direct")
    proposed = direct.propose(algorithms.problem_of(image(problem), TARGET))
    assert isinstance(proposed, algorithms.Candidate)
    usual = proposed.clocks - algorithms.UNCOUNTED  # of a product that takes as long
    assert direct.refusal(proposed, usual + 1, TARGET) == ""
    assert direct.refusal(proposed, usual - 1, TARGET) == f"{proposed.clocks:.0f} clocks"


def test_cuts_fit_a_block_and_many_outputs_have_none() -> None:
    found = windows_of(image((128, *PROBLEMS[0][1:])))
    assert found is not None
    for cut in direct_cuts_of(found, 16, TARGET):
        assert cut.threads <= THREADS
        assert cut.shared <= TARGET.tile_shared
    best = direct_cut_of(found, 16, TARGET)
    assert best is not None
    least = min(cut.clocks(TARGET) for cut in direct_cuts_of(found, 16, TARGET))
    assert best.clocks(TARGET) == least
    assert direct_cut_of(found, 64, TARGET) is None


@pytest.mark.parametrize("gradient", [False, True])
def test_positions_of_64_bits_come_from_what_joins_the_kernel(
    gradient: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """An epilogue that reads from a huge value changes the text of positions, not the tier."""
    device = device_or_skip("emu", request)
    batch, rng = Batch(device), np.random.default_rng(9)
    _, c, sizes, m, kernel, *_ = problem = PROBLEMS[0]
    shapes = ((80, m, 10, 10), (80, c, *sizes)) if gradient else ((80, c, *sizes), (m, c, *kernel))
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
    sources = batch.input(a), batch.input(b)
    if gradient:
        made = convolution_weight_gradient(*sources, kernel=kernel, **geometry(problem))
    else:
        made = convolve(*sources, **geometry(problem))
    batch.want("", [ew.neg(made)])
    monkeypatch.setattr(algorithms.Tier, "refusal", lambda *_: "")
    narrow: Any = registry.get(device).compile(batch.program())
    monkeypatch.setattr(contract, "is_wide", lambda kernel: True)
    wide: Any = registry.get(device).compile(batch.program())
    assert wide.launches[0].text != narrow.launches[0].text
    tier = "direct weight gradient" if gradient else "direct"
    assert [k.choice.tier for plan in (narrow, wide) for k in plan.schedule.kernels] == [tier] * 2
    found, expected = (batch.runner(plan)(batch.arrays)[""][0] for plan in (wide, narrow))
    np.testing.assert_array_equal(found, expected)
