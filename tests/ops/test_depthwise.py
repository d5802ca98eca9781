"""Direct kernels of depthwise and other thin groups, beside their definition in float64.

One program holds many problems; each is divided at random among blocks and threads.
"""

from __future__ import annotations

import random
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from execution import Batch, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU, as_device
from tinygrad_cuda.core.dtypes import DType, bfloat16, float16, float32, float64, int32
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, movement
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.convolution import (
    convolution,
    convolution_input_gradient,
    convolution_weight_gradient,
)
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.lower import lower, scheduled
from tinygrad_cuda.lowering.skeletons.conv import depthwise
from tinygrad_cuda.lowering.skeletons.conv.depthwise import DepthwiseCut, depthwise_cuts_of
from tinygrad_cuda.lowering.target import Target

TARGET = Target.h200()
# Of the largest result.
TOLERANCE = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2e-6, "float64": 1e-14}


class Problem(NamedTuple):
    """A convolution; `outputs` and `inner` are channels of a group."""

    images: int
    groups: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    outputs: int = 1
    inner: int = 1

    @property
    def at(self) -> dict[str, Any]:
        return {
            "stride": self.stride, "padding": self.pads, "dilation": self.dilation,
            "groups": self.groups,
        }  # fmt: skip


def square(
    images: int, groups: int, size: int, kernel: int, stride: int = 1, **more: Any
) -> Problem:
    pad = ((kernel // 2, kernel // 2),) * 2
    more = {"dilation": (1, 1), **more}
    return Problem(
        images, groups, (size, size), (kernel, kernel), (stride, stride), pad, **more
    )  # fmt: skip


PROBLEMS = (
    square(2, 8, 12, 3),
    square(3, 5, 7, 3),
    square(2, 4, 13, 5, 2),
    square(1, 3, 16, 7),
    square(2, 33, 8, 3, 2),
    square(1, 2, 1, 3),
    square(1, 40, 2, 5),
    square(2, 3, 9, 3, 3),
    square(2, 4, 9, 1, 2),
    square(2, 3, 8, 3, outputs=3),
    square(2, 3, 8, 3, 2, inner=2, outputs=2),
    square(1, 2, 6, 3, inner=4),
    Problem(2, 4, (11, 8), (3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2)),
    Problem(3, 5, (13, 5), (3, 2), (2, 1), ((0, 2), (1, 0)), (1, 2)),
    Problem(2, 3, (9, 10), (3, 3), (2, 2), ((2, 2), (2, 2)), (2, 2)),
    Problem(2, 3, (9, 10), (3, 3), (3, 2), ((3, 1), (2, 2)), (2, 3)),
    Problem(1, 130, (17,), (7,), (1,), ((3, 3),), (1,)),
    Problem(2, 6, (16,), (3,), (2,), ((1, 1),), (1,)),
    Problem(1, 4, (300, 4), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
)


@pytest.fixture(params=["emu", "cuda"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return Batch(device_or_skip(request.param, request))


def channels_last(x: Node) -> Node:
    """Images of an input whose channels lie last."""
    rank = len(x.shape)
    return movement.permute(x, axes=(0, rank - 1, *range(1, rank - 1)))


class Operands:
    """Inputs of two programs with the same values, rounded to a dtype; channels may lie last."""

    def __init__(self, batch: Batch, exact: Batch, dtype: DType, last: bool) -> None:
        self.batch, self.exact, self.dtype, self.last = batch, exact, dtype, last
        self.rng = np.random.default_rng(3)

    def __call__(self, *shape: int, images: bool = True) -> tuple[Node, Node]:
        array = self.rng.standard_normal(shape).astype(self.dtype.numpy)
        wide = self.exact.input(array.astype(np.float64))
        if not images or not self.last:
            return self.batch.input(array), wide
        turned = np.ascontiguousarray(np.moveaxis(array, 1, -1))
        return channels_last(self.batch.input(turned)), wide


def want_passes(problem: Problem, name: str, operand: Operands) -> None:
    """The result and both gradients, in both programs."""
    channels = problem.groups * problem.inner
    shape = (problem.groups * problem.outputs, problem.inner, *problem.kernel)
    xs = operand(problem.images, channels, *problem.size)
    ws = operand(*shape, images=False)
    y = convolution(*(pair[1] for pair in (xs, ws)), **problem.at)
    gs = operand(*y.shape)
    for where, x, w, g in zip((operand.batch, operand.exact), xs, ws, gs, strict=True):
        made = {
            "result": convolution(x, w, **problem.at),
            "input": convolution_input_gradient(g, w, size=problem.size, **problem.at),
            "weight": convolution_weight_gradient(g, x, kernel=problem.kernel, **problem.at),
        }
        for what, node in made.items():
            if operand.last and where is operand.batch and what != "weight":
                node = movement.permute(node, axes=(0, *range(2, len(node.shape)), 1))
            where.want(f"{name} {what}", [node])


def compare(batch: Batch, exact: Batch, dtype: DType, last: bool) -> None:
    found = batch.run()
    for name, (want,) in exact.run().items():
        (values,) = found[name]
        if last and not name.endswith("weight"):
            want = np.moveaxis(want, 1, -1)
        error = np.abs(values.astype(np.float64) - want).max()
        assert error <= TOLERANCE[dtype.name] * np.abs(want).max(), f"{name}: {error}"


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32, float64], ids=lambda d: d.name)
def test_any_cut_gives_all_passes(
    batch: Batch, dtype: DType, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, cuts = random.Random(dtype.name), list[DepthwiseCut]()

    def chosen(grouped: depthwise.Grouped, target: Target, lies_last: bool) -> DepthwiseCut:
        cut = draw.choice(list(depthwise_cuts_of(grouped, target, lies_last)))
        cuts.append(cut)
        return cut

    monkeypatch.setattr(algorithms, "depthwise_cut_of", chosen)
    monkeypatch.setattr(algorithms.Tier, "refusal", lambda *_: "")
    exact = Batch(CPU)
    operand = Operands(batch, exact, dtype, last)
    for number, problem in enumerate(PROBLEMS):
        want_passes(problem, f"{number} {problem}", operand)
    compare(batch, exact, dtype, last)
    # Each is asked twice: whether it is to be taken, and for the order in which images lie.
    assert len(cuts) == 6 * len(PROBLEMS), "not every convolution went this way"
    assert sum(cut.last for cut in cuts) == (3 * len(PROBLEMS) if last else 0)


def image(problem: Problem, dtype: DType = float32) -> Node:
    batch = Batch(CPU)
    channels = problem.groups * problem.inner
    shape = (problem.groups * problem.outputs, problem.inner, *problem.kernel)
    x, w = (
        batch.input(np.zeros(size, dtype.numpy))
        for size in ((problem.images, channels, *problem.size), shape)
    )
    return convolution(x, w, **problem.at)


@pytest.mark.parametrize("dtype", [float32, bfloat16, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_layers_of_usual_networks_are_made_this_way(kernel: int, dtype: DType) -> None:
    """Result and weight gradient, one pass over memory, whatever the dtype."""
    node = image(square(32, 96, 28, kernel), dtype)
    at = {name: node.attributes[name] for name in ("stride", "padding", "dilation", "groups")}
    gradient = convolution_weight_gradient(node, node.sources[0], kernel=(kernel, kernel), **at)
    assert algorithms.choose(node, TARGET).tier == algorithms.DEPTHWISE
    assert algorithms.choose(gradient, TARGET).tier == algorithms.DEPTHWISE_GRADIENT


def test_what_has_no_such_kernel_says_why() -> None:
    cube = Problem(2, 4, (5, 5, 5), (3, 3, 3), (1,) * 3, ((1, 1),) * 3, (1,) * 3)
    for node, reason in (
        (image(square(2, 4, 9, 3)), ""),
        (image(square(2, 4, 19, 9)), "81 taps of a window"),
        (image(square(2, 4, 9, 3, inner=5)), "more than 4 channels of a group"),
        (image(square(2, 1, 9, 3)), "one group"),
        (image(cube), "3 spatial axes"),
        (image(square(2, 4, 9, 3), int32), "int32 is not summed in floating point"),
    ):
        assert depthwise.refusal(node) == reason


def test_cuts_fit_a_block_and_the_best_is_taken() -> None:
    for last in (False, True):
        grouped = depthwise.grouped_of(image(square(32, 96, 28, 7)))
        cuts = list(depthwise_cuts_of(grouped, TARGET, last))
        best = depthwise.depthwise_cut_of(grouped, TARGET, last)
        assert best is not None and best.clocks(TARGET) == min(c.clocks(TARGET) for c in cuts)
        assert all(cut.shared <= TARGET.tile_shared for cut in cuts)


def test_infinite_inputs_reach_only_the_weights_that_they_meet(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No result beyond the last row or column multiplies zero and infinity."""
    monkeypatch.setattr(algorithms.Tier, "refusal", lambda *_: "")
    x = np.ones((1, 3, 5, 5), np.float32)
    x[0, 1, 4, 4] = np.inf
    at = square(1, 3, 5, 3, 2)._replace(pads=((0, 0), (0, 0))).at
    g = batch.input(np.ones((1, 3, 2, 2), np.float32))
    batch.want("", [convolution_weight_gradient(g, batch.input(x), kernel=(3, 3), **at)])
    ((found,),) = batch.run().values()
    want = np.full((3, 1, 3, 3), 4.0, np.float32)
    want[1, 0, 2, 2] = np.inf
    np.testing.assert_array_equal(found, want)


def test_what_follows_is_in_the_same_kernel_in_either_order() -> None:
    """Bias, activation and a residual; between channels-last images nothing is turned."""
    inputs = Batch(as_device("emu"))
    x, other = (channels_last(inputs.input(np.zeros((8, 28, 28, 32), np.float32))) for _ in "xr")
    w, bias = (inputs.input(np.zeros(s, np.float32)) for s in ((32, 1, 3, 3), (32, 1, 1)))
    y = convolution(x, w, **square(8, 32, 28, 3).at)
    y = ew.add(y, movement.expand(movement.reshape(bias, shape=(1, 32, 1, 1)), shape=y.shape))
    y = ew.add(ew.maximum(y, common.full_like(y, 0)), other)
    inputs.want("", [movement.permute(y, axes=(0, 2, 3, 1))])
    (kernel,) = scheduled(inputs.program(), TARGET).kernels
    assert kernel.choice is not None and kernel.choice.tier == algorithms.DEPTHWISE
    assert kernel.choice.cut.last


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_weights_may_be_one_value(batch: Batch, last: bool) -> None:
    """Its load needs no coordinate, and stood behind the loop that puts weights into memory."""
    images = batch.input(np.ones((2, 5, 5, 8) if last else (2, 8, 5, 5), np.float32))
    one = batch.input(np.full((1, 1, 1, 1), 2.0, np.float32))
    weight = movement.expand(one, shape=(8, 1, 3, 3))
    y = convolution(channels_last(images) if last else images, weight, **square(2, 8, 5, 3).at)
    batch.want("", [movement.permute(y, axes=(0, 2, 3, 1)) if last else y])
    ((found,),) = batch.run().values()
    middle = found[:, 1:4, 1:4] if last else found[:, :, 1:4, 1:4]
    np.testing.assert_array_equal(middle, np.full(middle.shape, 18.0, np.float32))


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_loads_of_images_have_no_branches(last: bool) -> None:
    """A load whose branch converts its value waits for the one before it."""
    inputs = Batch(as_device("emu"))
    problem = square(4, 32, 15, 3)
    want_passes(problem, "", Operands(inputs, Batch(CPU), bfloat16, last))
    text = "".join(one.text for one in lower(inputs.program(), TARGET).launches)
    assert text.count("// conv_depthwise") == 3
    assert text.count("(inside, p.in") >= 3
    assert not re.search(
        r"if \([^{}]*\) \{\s*const [^=]* = tgc_load(_vector)?(<\d>)?\(p\.in1", text
    )


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("dtype", [tc.float32, tc.float64])
def test_behind_a_transposed_convolution_with_a_stride(dtype: Any, taps: int) -> None:
    """Its zeros between elements are stored by a kernel of their own, and read as they lie."""
    draw = np.random.default_rng(5)
    arrays = [draw.integers(-2, 3, shape) for shape in ((2, 4, 7), (4, 3, 1), (12, 1, taps))]

    def values(device: str) -> Any:
        x, up, weight = (tc.tensor(array, dtype=dtype, device=device) for array in arrays)
        wide = tc.nn.functional.conv_transpose1d(
            x, up, stride=2, padding=1, output_padding=1, groups=4, dilation=2
        )
        return tc.nn.functional.conv1d(wide, weight, padding=2, groups=12).numpy()

    np.testing.assert_array_equal(values("emu"), values("cpu"))


def test_a_cheaper_cut_of_a_small_gpu_has_the_same_values(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    small = Target("small", (7, 5), 16, 48 << 10, 64 << 10, 4 << 20, 200)
    device = device_or_skip("emu", request)
    monkeypatch.setattr(registry.get(device), "target", small)
    batch, exact = Batch(device), Batch(CPU)
    want_passes(square(2, 24, 20, 7), "7 x 7", Operands(batch, exact, float32, False))
    compare(batch, exact, float32, False)


def test_each_kernel_of_channels_last_images_is_validated(request: pytest.FixtureRequest) -> None:
    """`TGC_VALIDATE` computes with NumPy what a kernel stores with the channels last."""
    batch, exact = Batch(device_or_skip("emu", request)), Batch(CPU)
    want_passes(square(8, 32, 16, 3), "3 x 3", Operands(batch, exact, float32, True))
    tiers = {k.choice.tier for k in scheduled(batch.program(), TARGET).kernels if k.choice}
    assert tiers == {algorithms.DEPTHWISE, algorithms.DEPTHWISE_GRADIENT}
    with settings.override(validate=True):
        compare(batch, exact, float32, True)
