"""Convolutions whose windows TMA reads from images: each tile, pass and geometry beside float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import bfloat16, float16, float32, float64
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.convolution import (
    convolution,
    convolution_input_gradient,
    convolution_weight_gradient,
)
from tinygrad_cuda.graph.ops.movement import expand, permute
from tinygrad_cuda.graph.ops.windows import WindowColumns
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles, tma_pixels
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Product, ProductCut, split_k
from tinygrad_cuda.lowering.skeletons.conv import channels_last
from tinygrad_cuda.lowering.target import Target

Array = np.ndarray[Any, Any]
TOLERANCE = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-9}  # of the largest result
TIERS = ("channels last", "wgmma tma", "wgmma", algorithms.TMA_TF32, algorithms.MN_MAJOR)
ALL_TIERS = algorithms.TIERS
# N, C, size, O, kernel, stride, pads, dilation, groups
PROBLEMS = (
    (3, 64, (7, 11), 72, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (2, 128, (9, 5), 64, (3, 2), (2, 1), ((1, 0), (0, 2)), (1, 2), 1),
    (2, 64, (13, 9), 64, (2, 5), (3, 2), ((0, 1), (3, 1)), (2, 1), 1),
    (2, 128, (6, 7), 128, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 2),
    (3, 64, (37,), 64, (4,), (2,), ((1, 3),), (2,), 1),
)


@pytest.fixture(params=["emu", "cuda"])
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Batch:
    device = device_or_skip(request.param, request)
    if registry.get(device).target.architecture != (9, 0):
        pytest.skip("TMA is of sm_90a")
    only = tuple(tier for tier in algorithms.TIERS if tier.name in TIERS)
    monkeypatch.setattr(algorithms, "TIERS", only)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    if request.param == "emu":  # images of a test are small, which drivers describe wrongly
        monkeypatch.setattr(tma_pixels, "LEAST_IMAGES", 0)
    return Batch(device)


class Passes:
    """Both operands' values, and each pass of a convolution as a node and in float64.

    `last`: a program's inputs and outputs have the channels last.
    """

    def __init__(
        self, batch: Batch, problem: Any, dtype: Any, images: int = 1, last: bool = False
    ) -> None:
        self.last = last
        n, c, self.size, o, self.kernel, stride, pads, dilation, groups = problem
        self.batch, self.exact, self.dtype = batch, Batch(CPU), dtype
        self.at = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}
        self.rng = np.random.default_rng(4)
        self.x = self.operand(n * images, c, *self.size)
        self.w = self.operand(o, c // groups, *self.kernel)
        self.y = convolution(self.x[0], self.w[0], **self.at)
        self.g = self.operand(*self.y.shape)

    def operand(self, *shape: int) -> tuple[Any, Any]:
        array = self.rng.standard_normal(shape).astype(self.dtype.numpy)
        exact = self.exact.input(array.astype(np.float64))
        if not self.last:
            return self.batch.input(array), exact
        node = self.batch.input(np.ascontiguousarray(np.moveaxis(array, 1, -1)))
        return permute(node, axes=(0, len(shape) - 1, *range(1, len(shape) - 1))), exact

    def want(self, *names: str) -> None:
        """Passes by name: result, input, weight."""
        (x, x64), (w, w64), (g, g64) = self.x, self.w, self.g
        sizes, taps = {"size": self.size, **self.at}, {"kernel": self.kernel, **self.at}
        made = {
            "result": lambda x, w, g: convolution(x, w, **self.at),
            "input": lambda x, w, g: convolution_input_gradient(g, w, **sizes),
            "weight": lambda x, w, g: convolution_weight_gradient(g, x, **taps),
        }
        for name in names:
            self.batch.want(name, [self.laid_out(made[name](x, w, g))])
            self.exact.want(name, [self.laid_out(made[name](x64, w64, g64))])

    def laid_out(self, node: Any) -> Any:
        rank = len(node.shape)
        return permute(node, axes=(0, *range(2, rank), 1)) if self.last else node

    def compare(self) -> None:
        found = self.batch.run()
        for name, (want,) in self.exact.run().items():
            error = np.abs(found[name][0].astype(np.float64) - want).max()
            assert error <= TOLERANCE[self.dtype.name] * np.abs(want).max(), f"{name}: {error}"

    @property
    def text(self) -> str:
        return lower(self.batch.program(), Target.h200()).source


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=lambda dtype: dtype.name)
def test_all_passes(batch: Batch, problem: Any, dtype: Any, last: bool) -> None:
    if last and dtype is float16 and batch.device.kind == "emu":
        pytest.skip("dtypes differ in what a unit multiplies alone")
    images = 1 if batch.device.kind == "emu" else 64  # so that drivers describe them
    passes = Passes(batch, problem, dtype, images, last)
    passes.want("result", "input", "weight")
    assert passes.text.count("tgc_tma_load_pixels(") >= 2  # its definition, and a kernel's
    passes.compare()


@pytest.mark.parametrize(("slices", "last"), [(1, False), (3, False), (1, True)])
@pytest.mark.parametrize("number", range(len(mma_tiles.TMA_TILES)))
def test_every_tile(
    batch: Batch, number: int, slices: int, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = mma_tiles.TMA_TILES[number]

    def quickest_cut(product: Product, target: Target, others: Any) -> ProductCut[Any]:
        return split_k(tile, product.k, slices)

    monkeypatch.setattr(mma_tiles, "quickest_cut", quickest_cut)
    monkeypatch.setattr(mma_tiles, "clocks", lambda *_: 0.0)
    passes = Passes(batch, PROBLEMS[0], bfloat16, 1 if batch.device.kind == "emu" else 64, last)
    passes.want("result", "weight")
    assert passes.text.count("tgc_tma_load_pixels(") == 3
    passes.compare()


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_tf32(batch: Batch, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms.settings, "matmul_precision", "high")
    images = 1 if batch.device.kind == "emu" else 64
    passes = Passes(batch, PROBLEMS[1], float32, images, last)
    passes.want("result")
    assert passes.text.count("tgc_tma_load_pixels(") == 2
    passes.compare()


# Groups of 32 channels, strides and dilations; 36 and 20 results are no tile's.
PIXELS_ALONG_K = (
    *PROBLEMS,
    (2, 32, (7, 9), 36, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (3, 64, (9, 7), 40, (3, 2), (2, 1), ((1, 0), (2, 1)), (1, 2), 2),
    (2, 32, (11, 8), 20, (1, 3), (1, 2), ((0, 0), (1, 1)), (1, 1), 1),
)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("problem", PIXELS_ALONG_K)
def test_tf32_weight_gradient(
    batch: Batch, problem: Any, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels follow k, channels are neighbours: nothing is stored along k for the product."""
    monkeypatch.setattr(algorithms.settings, "matmul_precision", "high")
    images = 1 if batch.device.kind == "emu" else 64
    passes = Passes(batch, problem, float32, images, last)
    passes.want("weight")
    assert "wgmma tf32 MN-major" in passes.text
    assert passes.text.count("tgc_tma_load_pixels(") == 2
    passes.compare()


def _undilated(problem: Any) -> Any:
    return (*problem[:7], (1, 1), problem[8])


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_windows_of_a_part_of_images(batch: Batch, last: bool) -> None:
    """No window of this stride reads the cotangent's last column: TMA would walk along it."""
    images = 1 if batch.device.kind == "emu" else 256  # 64: under LEAST_IMAGES
    passes = Passes(batch, _undilated(PROBLEMS[1]), bfloat16, images, last)
    passes.want("input")
    assert (passes.text.count("tgc_tma_load_pixels(") == 2) is not last
    passes.compare()


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("problem", PROBLEMS[1:3])
def test_tf32_input_gradient_of_a_stride_is_one_product(
    batch: Batch, problem: Any, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phases of an axis' stride are channels, as for half types: one product."""
    monkeypatch.setattr(algorithms, "TIERS", ALL_TIERS)
    monkeypatch.setattr(algorithms.settings, "matmul_precision", "high")
    images = 1 if batch.device.kind == "emu" else 64
    passes = Passes(batch, _undilated(problem), float32, images, last)
    passes.want("input")
    assert len(re.findall(r"^// contract ", passes.text, re.MULTILINE)) == 1
    passes.compare()


@pytest.mark.parametrize("change", [{"padding": ((0, 1), (1, 1))}, {"stride": (1, 2)}])
def test_columns_of_other_windows_are_not_believed(
    batch: Batch, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where positions differ from what the operand says of itself, masks read it."""

    def wrong(taps: Any, sizes: Any, at: Any, turned: bool, side: str) -> WindowColumns:
        return WindowColumns(taps, sizes, at._replace(**change), turned, side)

    monkeypatch.setattr(channels_last, "WindowColumns", wrong)
    passes = Passes(batch, PROBLEMS[0], bfloat16)
    passes.want("result", "weight")
    assert passes.text.count("tgc_tma_load_pixels(") == 1  # its definition
    passes.compare()


def test_numbers_of_channels_are_loaded_once_a_part(batch: Batch) -> None:
    """An epilogue of three numbers a channel and a residual, whose loads are made ahead."""
    images = 1 if batch.device.kind == "emu" else 64
    passes = Passes(batch, PROBLEMS[0], bfloat16, images, True)
    channels, shape = passes.y.shape[1], passes.y.shape
    vectors = [
        (size * passes.rng.standard_normal((1, channels, 1, 1))).astype(np.float32)
        for size in (0.02, 1, 1)  # the result's own rounding is small beside the residual's
    ]

    def epilogue(result: Any, residual: Any, inputs: Any, dtype: Any) -> Any:
        scale, mean, factor = (expand(inputs(vector), shape=shape) for vector in vectors)
        wide, near = (ew.cast(x, dtype=scale.dtype) for x in (result, residual))
        made = ew.add(ew.mul(wide, scale), ew.mul(ew.sub(near, mean), factor))
        return passes.laid_out(ew.cast(made, dtype=dtype))

    (x, x64), (w, w64), (g, g64) = passes.x, passes.w, passes.g
    batch.want("result", [epilogue(convolution(x, w, **passes.at), g, batch.input, bfloat16)])
    exact = passes.exact
    wide = ew.cast(convolution(x64, w64, **passes.at), dtype=bfloat16)
    exact.want("result", [epilogue(wide, g64, lambda v: exact.input(v.astype(float)), float64)])
    assert "if (turn == 0)" in passes.text
    passes.compare()
