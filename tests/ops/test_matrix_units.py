"""Products and convolutions of 16-bit operands on matrix units: each tile against NumPy.

One program holds a product for each tile, with sizes that no tile divides, and with sizes whose
operands are copied asynchronously.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
from execution import Batch, Results, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU, as_device
from tinygrad_cuda.core.dtypes import DType, bfloat16, float16, float32
from tinygrad_cuda.graph.node import Node, topological
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.convolution import (
    convolution,
    convolution_input_gradient,
    convolution_weight_gradient,
)
from tinygrad_cuda.graph.ops.windows import padded
from tinygrad_cuda.lowering import algorithms, lower
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Product, ProductCut, split_k
from tinygrad_cuda.lowering.target import Target

Array = np.ndarray[Any, Any]
HALVES = (bfloat16, float16)
CHANNELS_LAST = "channels last"
TILES = {"mma": mma_tiles.MMA_TILES, "wgmma": mma_tiles.WGMMA_TILES}
TOLERANCE = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2e-6}  # of the largest result


@pytest.fixture(params=["emu", "cuda"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return Batch(device_or_skip(request.param, request))


@pytest.fixture(params=list(TILES))
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Nothing but one tier makes products."""
    name: str = request.param
    only = tuple(tier for tier in algorithms.TIERS if tier.name in (name, CHANNELS_LAST))
    monkeypatch.setattr(algorithms, "TIERS", only)
    return name


def chosen(monkeypatch: pytest.MonkeyPatch, tiles: dict[int, Any], slices: int = 1) -> None:
    """A product's k decides its tile."""

    def quickest_cut(product: Product, target: Target, others: Any) -> ProductCut[Any]:
        return split_k(tiles[product.k], product.k, slices)

    monkeypatch.setattr(mma_tiles, "quickest_cut", quickest_cut)


class Operands:
    """Random numbers that a half type has, as inputs of a batch and in float64."""

    def __init__(self, batch: Batch, seed: int) -> None:
        self.batch, self.rng = batch, np.random.default_rng(seed)

    def __call__(
        self, *shape: int, dtype: DType = bfloat16, turned: bool = False
    ) -> tuple[Node, Array]:
        """A node of this shape and its values; `turned`: memory has the last two axes exchanged."""
        if turned:
            node, values = self(*shape[:-2], shape[-1], shape[-2], dtype=dtype)
            return contraction.transpose(node), np.swapaxes(values, -1, -2)
        array = self.rng.standard_normal(shape).astype(dtype.numpy)
        return self.batch.input(array), array.astype(np.float64)


def compare(found: Results, expected: dict[str, Array], dtypes: dict[str, DType]) -> None:
    for name, want in expected.items():
        (values,) = found[name]
        bound = TOLERANCE[dtypes[name].name] * np.abs(want).max()
        error = np.abs(values.astype(np.float64) - want).max()
        assert error <= bound, f"{name}: {error} > {bound}"


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("wide", [False, True], ids=["odd sizes", "copied"])
def test_every_tile_in_every_layout(
    tier: str, batch: Batch, slices: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = Operands(batch, 5)
    tiles, expected, dtypes = {}, {}, {}
    for number, tile in enumerate(TILES[tier]):
        k = 2 * tile.k + (8 * number + 8 if wide else 101 + 2 * number)
        m, n = (tile.m + 8, tile.n + 16) if wide else (tile.m + 3, tile.n + 5)
        assert k not in tiles
        tiles[k] = tile
        dtype = HALVES[number % 2]
        for turned_a, turned_b in ((0, 1), (0, 0), (1, 0), (1, 1)) if number < 4 else ((0, 1),):
            name = f"{tile} {turned_a}{turned_b}"
            a, x = operands(m, k, dtype=dtype, turned=bool(turned_a))
            b, y = operands(k, n, dtype=dtype, turned=bool(turned_b))
            batch.want(name, [contraction.matmul(a, b)])
            expected[name], dtypes[name] = x @ y, dtype
    chosen(monkeypatch, tiles, slices)
    compare(batch.run(), expected, dtypes)


def test_awkward_sizes(tier: str, batch: Batch) -> None:
    """One row, column or product; and as many as fill a tile but for one."""
    operands = Operands(batch, 6)
    expected, dtypes = {}, {}
    for m, n, k in (
        (1, 1, 1),
        (1, 300, 7),
        (129, 1, 65),
        (64, 64, 1),
        (127, 255, 63),
        (17, 9, 1031),
    ):
        for dtype in HALVES:
            name = f"{m} {n} {k} {dtype.name}"
            (a, x), (b, y) = operands(m, k, dtype=dtype), operands(k, n, dtype=dtype)
            batch.want(name, [contraction.matmul(a, b)])
            expected[name], dtypes[name] = x @ y, dtype
    compare(batch.run(), expected, dtypes)


def test_prologues_epilogues_batches_and_orders(tier: str, batch: Batch) -> None:
    """Operands that are cast, broadcast or padded; results with bias, activation, residual."""
    operands = Operands(batch, 7)
    expected, dtypes = {}, {}

    def want(name: str, node: Node, values: Array) -> None:
        batch.want(name, [node])
        expected[name], dtypes[name] = values, node.dtype

    (a, x), (b, y) = operands(70, 48, dtype=float32), operands(48, 40, dtype=float32)
    cast = contraction.matmul(ew.cast(a, dtype=float16), ew.cast(b, dtype=float16))
    rounded = [v.astype(np.float16).astype(np.float64) for v in (x, y)]
    want("cast", cast, rounded[0] @ rounded[1])
    (a, x), (b, y) = operands(3, 65, 72), operands(3, 72, 56)
    want("batch", contraction.matmul(a, b), x @ y)
    (b, y), (bias, z) = operands(72, 56), operands(56)
    shared = mv.expand(mv.reshape(b, shape=(1, 72, 56)), shape=(3, 72, 56))
    product = contraction.matmul(a, shared)
    wide = mv.expand(mv.reshape(bias, shape=(1, 1, 56)), shape=(3, 65, 56))
    (residual, r) = operands(3, 65, 56)
    exact = (x @ y).astype(bfloat16.numpy).astype(np.float64)
    sum_ = (exact + z).astype(bfloat16.numpy).astype(np.float64)
    value = ew.add(ew.maximum(ew.add(product, wide), ew.sub(wide, wide)), residual)
    want("epilogue", value, np.maximum(sum_, 0) + r)
    wider_a = padded(a, ((1, 0), (3, 5)))
    (b, y) = operands(3, 80, 24)
    wider = np.pad(x, ((0, 0), (1, 0), (3, 5)))
    want("padded", contraction.matmul(wider_a, b), wider @ y)
    (a, x), (b, y) = operands(130, 64, dtype=float16), operands(64, 96, dtype=float16)
    turned = mv.permute(mv.reshape(contraction.matmul(a, b), shape=(13, 10, 96)), axes=(1, 0, 2))
    want("order", ew.mul(turned, turned), ((x @ y).astype(np.float16).astype(np.float64) ** 2)
         .reshape(13, 10, 96).transpose(1, 0, 2))  # fmt: skip
    sums = rd.sum(ew.cast(contraction.matmul(a, b), dtype=float32), axes=(0,))
    want("summed", sums, (x @ y).astype(np.float16).astype(np.float64).sum(0))
    compare(batch.run(), expected, {**dtypes, "summed": float16})


def test_infinities_and_nans_are_those_of_a_sum(tier: str, batch: Batch) -> None:
    a, b = np.ones((3, 40), np.float16), np.ones((40, 70), np.float16)
    a[0, 3], a[1, 5], a[1, 6], a[2, 7] = np.inf, np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float64) @ b.astype(np.float64)
    batch.want("values", [contraction.matmul(batch.input(a), batch.input(b))])
    (found,) = batch.run()["values"]
    np.testing.assert_array_equal(found.astype(np.float64), want)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("wide", [False, True], ids=["odd sizes", "copied"])
def test_every_tile_of_tf32_in_every_layout(
    batch: Batch, slices: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands lose 13 bits: a result errs by a part in a thousand of the sum of magnitudes."""
    operands = Operands(batch, 9)
    tiles, expected, dtypes = {}, {}, {}
    for number, tile in enumerate(mma_tiles.TF32_TILES):
        k = 2 * tile.k + (4 * number + 4 if wide else 101 + 2 * number)
        m, n = (tile.m + 8, tile.n + 16) if wide else (tile.m + 3, tile.n + 5)
        tiles[k] = tile
        for turned_a, turned_b in ((0, 1), (0, 0), (1, 0), (1, 1)) if number < 2 else ((0, 1),):
            name = f"{tile} {turned_a}{turned_b}"
            a, x = operands(m, k, dtype=float32, turned=bool(turned_a))
            b, y = operands(k, n, dtype=float32, turned=bool(turned_b))
            batch.want(name, [contraction.matmul(a, b)])
            expected[name], dtypes[name] = x @ y, float32

    def permitted(problem: algorithms.Problem) -> algorithms.Candidate:
        return algorithms.Candidate(split_k(tiles[problem.product.k], problem.product.k, slices), 0)

    tier = algorithms.Tier(
        algorithms.TF32, (contraction.matmul,), permitted, algorithms.mma_stages, product=True
    )
    monkeypatch.setattr(algorithms, "TIERS", (tier,))
    monkeypatch.setitem(TOLERANCE, "float32", 1e-3)
    compare(batch.run(), expected, dtypes)


def test_tf32_only_where_it_is_permitted(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `set_float32_matmul_precision`, for plans and compiled functions made before, too."""
    device = str(batch.device)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)  # so that a small product is worth it
    monkeypatch.setattr(mma_tiles, "clocks", lambda *_: 0.0)
    rng = np.random.default_rng(10)
    a, b = (rng.standard_normal((72, 64)).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    x, y = tc.tensor(a, device=device), tc.tensor(b, device=device)
    compiled = tc.compile(lambda x, y: x @ y.T)

    def errors() -> list[float]:
        results = (x @ y.T, compiled(x, y), compiled(x, y))
        return [float(np.abs(r.numpy() - exact).max() / np.abs(exact).max()) for r in results]

    before = errors()
    try:
        tc.set_float32_matmul_precision("high")
        permitted = errors()
    finally:
        tc.set_float32_matmul_precision("highest")
    assert max(before) < 2e-6 < 1e-5 < min(permitted)
    assert max(permitted) < 1e-3
    assert errors() == before


@pytest.fixture
def permissions() -> Iterator[None]:
    yield
    tc.set_float32_matmul_precision("highest")
    tc.backends.cudnn.allow_tf32 = True


@pytest.mark.usefixtures("permissions")
def test_tf32_of_convolutions_only_where_both_permit_it(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cudnn.allow_tf32` is of convolutions alone, and part of the key of a plan."""
    device = str(batch.device)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    monkeypatch.setattr(mma_tiles, "clocks", lambda *_: 0.0)
    monkeypatch.setattr(algorithms, "_transpose_clocks", lambda *_: 0.0)
    rng = np.random.default_rng(11)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 8, 9, 8), (16, 8, 3, 3))]
    x, w = (tc.tensor(array, device=device, requires_grad=True) for array in arrays)
    wide = tc.tensor(rng.standard_normal((64, 72)).astype(np.float32), device=device)

    def passes(x: Any, w: Any) -> list[Any]:
        y = tc.nn.functional.conv2d(x, w, padding=1)
        return [y, *tc.autograd.grad(y.square().sum(), (x, w)), wide @ wide.T]

    exact = [r.detach().numpy() for r in passes(*(t.detach().cpu().double().requires_grad_()
             for t in (x, w)))[:3]]  # fmt: skip
    exact.append(wide.cpu().double().numpy() @ wide.cpu().double().numpy().T)
    compiled = tc.compile(lambda x, w: passes(x, w)[0])

    def rounded() -> list[bool]:
        results = [r.detach().numpy() for r in (*passes(x, w), compiled(x, w), compiled(x, w))]
        pairs = zip(results, (*exact, exact[0], exact[0]), strict=True)
        return [bool(np.abs(a - b).max() > 1e-5 * np.abs(b).max()) for a, b in pairs]

    assert not any(rounded())
    tc.set_float32_matmul_precision("high")
    assert all(rounded())
    tc.backends.cudnn.allow_tf32 = False
    assert rounded() == [False, False, False, True, False, False]
    with tc.backends.cudnn.flags(allow_tf32=True):
        assert all(rounded())
    assert not tc.backends.cudnn.allow_tf32
    tc.set_float32_matmul_precision("highest")
    tc.backends.cudnn.allow_tf32 = True
    assert not any(rounded())


@pytest.mark.parametrize("provider", ["", "cublas"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_no_pass_of_an_exact_convolution_multiplies_tf32(
    size: int, stride: int, groups: int, provider: str
) -> None:
    pads = ((size // 2, size // 2),) * 2
    at = {"stride": (stride,) * 2, "padding": pads, "dilation": (1, 1), "groups": groups}
    batch = Batch(as_device("emu"))
    x, w = (batch.input(np.zeros(s, np.float32)) for s in
            ((256, 256, 56, 56), (256, 256 // groups, size, size)))  # fmt: skip
    y = convolution(x, w, **at)
    g = batch.input(np.zeros(y.shape, np.float32))
    batch.want("weight", [convolution_weight_gradient(g, x, kernel=(size, size), **at)])
    batch.want("result", [y])
    image = convolution_input_gradient(g, w, size=(56, 56), **at)
    batch.want("image", [image])
    made = {}
    for allowed in (False, True):
        with algorithms.settings.override(
            matmul_precision="high", cudnn_tf32=allowed, provider=provider
        ):
            kernels = lower.scheduled(batch.program(), Target.h200()).kernels
        made[allowed] = {kernel.choice.tier for kernel in kernels if kernel.choice is not None}
    assert made[True] & {*algorithms.TF32_TIERS, "cublas"}
    assert not made[False] & {*algorithms.TF32_TIERS, "cublas"}


# N, C, (H, W), O, kernel, stride, pads, dilation, groups
CONVOLUTIONS = (
    (3, 8, (13, 12), 40, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (2, 16, (9, 16), 24, (3, 2), (2, 1), ((1, 0), (0, 1)), (1, 2), 1),
    (4, 24, (8, 8), 16, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    (2, 8, (7, 8, 6), 16, (3, 2, 1), (1, 1, 2), ((1, 1), (0, 1), (0, 0)), (1, 1, 1), 1),
    (2, 64, (7, 11), 24, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (2, 72, (7, 5), 16, (2, 2), (1, 2), ((0, 1), (1, 1)), (1, 1), 1),
    (3, 8, (13, 17), 8, (5, 5), (3, 2), ((2, 2), (4, 1)), (1, 2), 1),
    (2, 24, (11, 7), 64, (7, 7), (2, 1), ((3, 3), (3, 3)), (1, 1), 1),
    (2, 64, (9, 8), 72, (1, 1), (2, 3), ((0, 0), (1, 0)), (1, 1), 1),
    (2, 128, (4, 4), 64, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (2, 32, (7, 9), 64, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 4),
    (2, 16, (8, 6), 32, (2, 3), (2, 1), ((0, 0), (1, 1)), (1, 1), 2),
    (2, 16, (8, 8), 16, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 2),
    (2, 16, (7, 7), 8, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    (2, 8, (9, 10), 16, (3, 4), (2, 3), ((2, 0), (0, 3)), (1, 1), 1),
    (1, 16, (40,), 16, (21,), (1,), ((10, 10),), (1,), 1),
    (1, 16, (80,), 16, (40,), (1,), ((20, 19),), (1,), 1),
)


@pytest.mark.parametrize("problem", CONVOLUTIONS)
def test_convolutions_and_their_gradients(tier: str, batch: Batch, problem: Any) -> None:
    """Beside the same in float64 by NumPy, from operands that a half type has."""
    n, c, size, o, kernel, stride, pads, dilation, groups = problem
    at = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}
    operands = Operands(batch, 8)
    (x, x64), (w, w64) = operands(n, c, *size), operands(o, c // groups, *kernel)
    y = convolution(x, w, **at)
    (g, g64) = operands(*y.shape)
    exact = Batch(CPU)
    wide = {
        "result": convolution(exact.input(x64), exact.input(w64), **at),
        "weight": convolution_weight_gradient(
            exact.input(g64), exact.input(x64), kernel=kernel, **at
        ),
        "input": convolution_input_gradient(exact.input(g64), exact.input(w64), size=size, **at),
    }  # fmt: skip
    batch.want("result", [y])
    batch.want("input", [convolution_input_gradient(g, w, size=size, **at)])
    batch.want("weight", [convolution_weight_gradient(g, x, kernel=kernel, **at)])
    for name, node in wide.items():
        exact.want(name, [node])
    expected = {name: values for name, (values,) in exact.run().items()}
    compare(batch.run(), expected, dict.fromkeys(expected, bfloat16))


@pytest.mark.parametrize("kernels", [(1,), (3, 1)], ids=["pixels", "windows too"])
def test_a_value_is_put_channels_last_once(
    tier: str, batch: Batch, kernels: tuple[int, ...]
) -> None:
    """Of strided pixels one copy serves result and weight gradient, or that of all pixels does."""
    operands, exact = Operands(batch, 13), Batch(CPU)
    x, x64 = operands(2, 16, 9, 8)
    image = exact.input(x64)
    for size in kernels:
        pads = ((size // 2, size // 2),) * 2
        at = {"stride": (2, 2), "padding": pads, "dilation": (1, 1), "groups": 1}
        w, w64 = operands(24, 16, size, size)
        y = convolution(x, w, **at)
        g, g64 = operands(*y.shape)
        taps = (size, size)
        batch.want(f"result {size}", [y])
        batch.want(f"weight {size}", [convolution_weight_gradient(g, x, kernel=taps, **at)])
        result = convolution(image, exact.input(w64), **at)
        weight = convolution_weight_gradient(exact.input(g64), image, kernel=taps, **at)
        exact.want(f"result {size}", [result])
        exact.want(f"weight {size}", [weight])
    found = lower.scheduled(batch.program(), Target.h200())
    copies = [n for n in found.stored if n.op is ew.contiguous and x in topological([n])]
    assert len(copies) == 1
    expected = {name: values for name, (values,) in exact.run().items()}
    compare(batch.run(), expected, dict.fromkeys(expected, bfloat16))


@pytest.mark.parametrize("problem", CONVOLUTIONS)
def test_convolutions_by_tf32(batch: Batch, problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their windows are read from the images with channels last: nothing larger is stored."""
    only = tuple(tier for tier in algorithms.TIERS if tier.name in (algorithms.TF32, CHANNELS_LAST))
    monkeypatch.setattr(algorithms, "TIERS", only)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    monkeypatch.setattr(algorithms.settings, "matmul_precision", "high")
    monkeypatch.setitem(TOLERANCE, "float32", 2**-9)  # both operands lose 13 of 23 bits
    n, c, size, o, kernel, stride, pads, dilation, groups = problem
    at = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}
    operands, exact = Operands(batch, 12), Batch(CPU)
    (x, x64), (w, w64) = (
        operands(n, c, *size, dtype=float32),
        operands(o, c // groups, *kernel, dtype=float32),
    )
    y = convolution(x, w, **at)
    batch.want("result", [y])
    exact.want("result", [convolution(exact.input(x64), exact.input(w64), **at)])
    if prod(kernel) == 1 and prod(y.shape) // o % 4 == 0:  # others read windows across k
        (g, g64) = operands(*y.shape, dtype=float32)
        batch.want("weight", [convolution_weight_gradient(g, x, kernel=kernel, **at)])
        exact.want("weight", [convolution_weight_gradient(
            exact.input(g64), exact.input(x64), kernel=kernel, **at)])  # fmt: skip
    kernels = lower.scheduled(batch.program(), Target.h200()).kernels
    stored = [node for kernel in kernels for node in kernel.stores if node.op is ew.contiguous]
    assert all(prod(node.shape) <= max(x64.size, w64.size) for node in stored)
    expected = {name: values for name, (values,) in exact.run().items()}
    compare(batch.run(), expected, dict.fromkeys(expected, float32))


@pytest.mark.parametrize("slices", [1, 3])
def test_every_tile_of_windows(
    tier: str, batch: Batch, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are zeros for some taps, in forward and weight gradient; 64 channels and 24."""
    operands, exact = Operands(batch, 11), Batch(CPU)
    at = {"stride": (1, 2), "padding": ((1, 1), (0, 1)), "dilation": (1, 1), "groups": 1}
    tiles = {8 * number + 8: tile for number, tile in enumerate(TILES[tier])}
    for outputs in tiles:
        size, channels = (13, 11), (24 if outputs % 16 else 64)
        (x, x64), (w, w64) = operands(3, channels, *size), operands(outputs, channels, 3, 3)
        y = convolution(x, w, **at)
        (g, g64) = operands(*y.shape)
        dw = convolution_weight_gradient(g, x, kernel=(3, 3), **at)
        inputs = [exact.input(values) for values in (x64, w64, g64)]
        pairs = ((y, convolution(*inputs[:2], **at)), (dw, convolution_weight_gradient(
            inputs[2], inputs[0], kernel=(3, 3), **at)))  # fmt: skip
        for name, (node, want) in zip(("result", "weight"), pairs, strict=True):
            batch.want(f"{name} {outputs}", [node])
            exact.want(f"{name} {outputs}", [want])

    def quickest_cut(product: Product, target: Target, others: Any) -> ProductCut[Any]:
        return split_k(tiles[product.m], product.k, slices)

    monkeypatch.setattr(mma_tiles, "quickest_cut", quickest_cut)
    expected = {name: values for name, (values,) in exact.run().items()}
    compare(batch.run(), expected, dict.fromkeys(expected, bfloat16))


def test_products_share_the_copy_along_k(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that two products turn is stored once, whichever side of them it is."""
    monkeypatch.setattr(algorithms.settings, "matmul_precision", "high")
    batch, size = Batch(CPU), 2048
    x, y, w = (
        common.buffer.leaf((size, size), float32, batch.device, slot=slot) for slot in range(3)
    )
    turned = contraction.transpose(w)
    batch.want("products", [contraction.matmul(x, w), contraction.matmul(y, w)])
    batch.want("other side", [contraction.matmul(turned, contraction.transpose(x))])
    batch.inputs = [x, y, w]
    found = lower.scheduled(batch.program(), Target.h200())
    assert [kernel.choice.tier for kernel in found.kernels if kernel.choice] == [
        algorithms.TMA_TF32
    ] * 3
    assert sum(node.op is ew.contiguous for node in found.stored) == 1


def test_copies_along_k_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large operand that lies along another axis costs more to turn than tf32 saves."""
    monkeypatch.setattr(algorithms.settings, "matmul_precision", "high")
    batch, h200 = Batch(CPU), Target.h200()
    weights, values = (
        common.buffer.leaf((96, 1024, width), float32, batch.device, slot=slot)
        for slot, width in enumerate((1024, 64))
    )
    tiers = tuple(tier for tier in algorithms.TIERS if tier.name != algorithms.MN_MAJOR)
    turned = contraction.matmul(contraction.transpose(weights), values)
    along = algorithms.choose(contraction.matmul(weights, values), h200, tiers)
    across = algorithms.choose(turned, h200, tiers)
    assert along.tier in (algorithms.TF32, algorithms.TMA_TF32)
    assert across.tier not in (algorithms.TF32, algorithms.TMA_TF32)
    assert f"not {algorithms.TF32}: " in across.reason
    assert algorithms.choose(turned, h200).tier == algorithms.MN_MAJOR  # which copies nothing


def test_the_choice_says_why() -> None:
    """Large products of half types go to the fastest tier that the machine has; others do not."""
    big, small = (Batch(CPU) for _ in range(2))
    shape = (2048, 2048)

    def product(batch: Batch, shape: tuple[int, int], dtype: DType) -> Node:
        a, b = (batch.input(np.zeros(shape, dtype.numpy)) for _ in range(2))
        return contraction.matmul(a, b)

    h200 = Target.h200()
    assert algorithms.choose(product(big, shape, bfloat16), h200).tier == "wgmma tma"
    odd = algorithms.choose(product(big, (2047, 2047), bfloat16), h200)
    assert odd.tier == "wgmma"
    assert "an operand is no matrix in memory" in odd.reason
    assert algorithms.choose(product(small, (3, 3), bfloat16), h200).tier == "register_tiled"
    with settings.override(matmul_precision="ieee"):
        exact = algorithms.choose(product(small, shape, float32), h200)
    assert exact.tier == "register_tiled"
    assert "float32 is no operand of wgmma" in exact.reason
