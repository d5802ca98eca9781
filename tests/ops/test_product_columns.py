"""Products and convolutions that reduce their columns in their epilogue, beside NumPy in float64.

What is reduced must be what memory has: results are compared with sums of the values stored, and
differ by the order of a float32 sum alone.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import Batch, change_skeleton, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.compiler import REPORT, compile_source, resources
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU, as_device
from tinygrad_cuda.core.dtypes import bfloat16, float16, float32
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.schedule import fuse_column_sums, fuse_product_columns
from tinygrad_cuda.lowering.skeletons.contract import mma, mma_tiles, tma_pixels
from tinygrad_cuda.lowering.skeletons.contract.mma_tiles import TmaTile
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Product, ProductCut, split_k
from tinygrad_cuda.lowering.target import Target

Array = np.ndarray[Any, Any]
TILES = {
    "wgmma tma": mma_tiles.TMA_TILES, "wgmma": mma_tiles.WGMMA_TILES,
    algorithms.TMA_TF32: mma_tiles.TMA_TF32_TILES, algorithms.TF32: mma_tiles.TF32_TILES,
}  # fmt: skip
EVERY_TILE = [(tier, number) for tier, tiles in TILES.items() for number in range(len(tiles))]
ALL_TIERS = algorithms.TIERS
CONVOLVING = ("channels last", "wgmma tma", "wgmma", algorithms.TMA_TF32, algorithms.MN_MAJOR)
SPILLED = 8  # bytes of a thread that it stores once a tile
SMALL_TILE = TmaTile(64, 128, 64, 1, 0.4, 3, ping_pong=True)


@pytest.fixture(params=["emu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One with wgmma; two multiprocessors, so that a block computes many tiles."""
    device = device_or_skip(request.param, request)
    backend = registry.get(device)
    if backend.target.architecture != (9, 0):
        pytest.skip("wgmma is of sm_90a")
    if request.param == "emu":
        monkeypatch.setattr(backend, "target", replace(backend.target, multiprocessors=2))
        monkeypatch.setattr(tma_pixels, "LEAST_IMAGES", 0)
    monkeypatch.setattr(fuse_product_columns, "WORTH", 0)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    return device


def made_by(monkeypatch: pytest.MonkeyPatch, tier: str, tile: Any = None) -> None:
    """Lets one tier make all products, with one tile if it is given."""
    only = tuple(one for one in ALL_TIERS if one.name in (tier, "channels last"))
    monkeypatch.setattr(algorithms, "TIERS", only)
    if tile is not None:

        def quickest_cut(product: Product, target: Target, others: Any) -> ProductCut[Any]:
            return split_k(tile, product.k, 1)

        monkeypatch.setattr(mma_tiles, "quickest_cut", quickest_cut)


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def spread(node: Node, like: Node) -> Node:
    return mv.expand(mv.reshape(node, shape=(1, *node.shape)), shape=like.shape)


class Reductions:
    """A program of products, their masked results and reductions of the columns of these."""

    def __init__(self, device: Any) -> None:
        self.batch = Batch(device)

    def add(self, name: str, sizes: tuple[int, int, int], dtype: Any, moments: bool) -> None:
        """As behind a batch norm: g = product where y > 0.

        Args:
            name: of the results.
            sizes: m, n, k.
            dtype: of operands and result.
            moments: whether mean and M2 of g are wanted, or sums of g and of g (y - mean).
        """
        batch, (m, n, k) = self.batch, sizes
        a, b, y = (
            batch.input(numbers(seed, *shape).astype(dtype.numpy))
            for seed, shape in ((1, (m, k)), (2, (n, k)), (3, (m, n)))
        )
        mean = batch.input(numbers(4, n))
        product = contraction.matmul(a, contraction.transpose(b))
        g = ew.where(ew.gt(y, common.full_like(y, 0.0)), product, common.full_like(y, 0.0))
        wide, centred = (ew.cast(one, dtype=float32) for one in (g, y))
        centred = ew.sub(centred, spread(mean, centred))
        if moments:
            both = rd.welford(wide, axes=(0,))
            batch.want(name, [g, *(common.output(both, index=i) for i in (0, 1))])
        else:
            batch.want(name, [g, *(rd.sum(x, axes=(0,)) for x in (wide, ew.mul(wide, centred)))])

    def check(self, carried: int) -> None:
        """Runs the program, whose products carry so many reductions in all."""
        target = registry.get(self.batch.device).target
        kernels = lower(self.batch.program(), target).schedule.kernels
        columns = [kernel.pair[1] for kernel in kernels if kernel.pair]
        assert sum(len(kernel.anchors) for kernel in columns) == carried, kernels
        mean = numbers(4, 1 << 10).astype(np.float64)
        for number, (name, (g, *found)) in enumerate(self.batch.run().items()):
            arrays = self.batch.arrays[4 * number :]
            a, b, y = (arrays[i].astype(np.float64) for i in range(3))
            check_product(g, np.where(y > 0, a @ b.T, 0), name)
            check = check_moments if "moments" in name else check_sums
            check(g.astype(np.float64), y - mean[: y.shape[1]], found, name)


def check_product(g: Array, want: Array, name: str) -> None:
    rounding = {"bfloat16": 2**-8, "float16": 2**-11}.get(name.split()[0], 1e-3)
    assert np.abs(g.astype(np.float64) - want).max() <= rounding * np.abs(want).max(), name


def check_sums(g: Array, centred: Array, found: list[Array], name: str) -> None:
    """Sums of the values that were stored, to the rounding of float32."""
    for value, terms in zip(found, (g, g * centred), strict=True):
        error = np.abs(value.astype(np.float64) - terms.sum(0))
        assert (error <= 1e-6 * np.abs(terms).sum(0) + 1e-12).all(), (name, error.max())


def check_moments(g: Array, centred: Array, found: list[Array], name: str) -> None:
    mean, m2 = found
    assert np.allclose(mean, g.mean(0), rtol=1e-5, atol=1e-6), name
    assert np.allclose(m2, ((g - g.mean(0)) ** 2).sum(0), rtol=1e-5), name


@pytest.mark.parametrize(("tier", "number"), EVERY_TILE)
def test_every_tile_reduces_its_columns(
    device: Any, tier: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows one more than tiles have, a prime, and few; columns that no tile divides."""
    tile = TILES[tier][number]
    made_by(monkeypatch, tier, tile)
    reductions = Reductions(device)
    tf32 = "tf32" in tier
    sizes = [(2 * tile.m + 1, tile.n + 16), (4 * tile.m // 3 * 2 - 1, tile.n), (67, 22)]
    dtypes = (float32,) if tf32 else (bfloat16, float16)
    for m, n in sizes:
        for dtype in dtypes:
            for moments in (False, True):
                name = f"{dtype.name} {m} {n} {'moments' if moments else 'sums'}"
                reductions.add(name, (m, n, 3 * tile.k + 8), dtype, moments)
    with settings.override(matmul_precision="high" if tf32 else "highest"):
        reductions.check(len(sizes) * len(dtypes) * 3)


@pytest.mark.parametrize(
    ("tier", "tile"),
    [("wgmma tma", TmaTile(64, 64, 64, 1, 0.4, 3, ping_pong=True)),
     ("wgmma tma", TmaTile(128, 128, 64, 2, 0.4, 3)),
     ("wgmma", mma_tiles.WGMMA_TILES[4])],
)  # fmt: skip
@pytest.mark.parametrize("n", [64, 62, 8])
def test_a_warpgroup_adds_its_tiles(
    device: Any, tier: str, tile: Any, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven tiles below each other, which blocks have in turn; the last has five rows."""
    made_by(monkeypatch, tier, tile)
    reductions = Reductions(device)
    for name, moments in (("bfloat16 sums", False), ("bfloat16 moments", True)):
        reductions.add(name, (10 * tile.m + 5, n, 136), bfloat16, moments)
    reductions.check(3)


def test_columns_of_odd_products_have_a_kernel(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread stores single values there, of columns that change from one to the next."""
    made_by(monkeypatch, "wgmma tma", SMALL_TILE)
    reductions = Reductions(device)
    reductions.add("bfloat16 sums", (130, 63, 136), bfloat16, False)
    reductions.check(0)


def test_a_product_whose_columns_alone_are_wanted_is_not_stored(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by(monkeypatch, "wgmma tma", SMALL_TILE)
    batch, (m, n, k) = Batch(device), (130, 128, 72)
    a, b = (numbers(s, r, k).astype(bfloat16.numpy) for s, r in ((1, m), (2, n)))
    product = contraction.matmul(batch.input(a), contraction.transpose(batch.input(b)))
    batch.want("sum", [rd.sum(ew.cast(product, dtype=float32), axes=(0,))])
    (kernel,) = lower(batch.program(), registry.get(device).target).schedule.kernels
    assert kernel.pair and kernel.stores == kernel.pair[1].stores
    ((found,),) = batch.run().values()
    exact = (a.astype(np.float64) @ b.astype(np.float64).T).astype(bfloat16.numpy)
    assert np.allclose(found, exact.astype(np.float64).sum(0), atol=0.2)


def test_a_column_kernel_that_reads_the_result_anyway_keeps_its_sums() -> None:
    """Where more other values meet the result than an epilogue may read for its columns alone."""

    def carried(others: int) -> int:
        batch, (m, n, k) = Batch(as_device("emu")), (65536, 64, 576)
        shapes = ((m, k), (k, n), *[(m, n)] * others)
        a, b, *z = (batch.input(np.zeros(shape, bfloat16.numpy)) for shape in shapes)
        y = contraction.matmul(a, b)
        wide, *met = (ew.cast(one, dtype=float32) for one in (y, *z))
        sums = [wide, *(ew.mul(wide, other) for other in met)]
        batch.want("all", [y, *(rd.sum(x, axes=(0,)) for x in sums)])
        kernels = lower(batch.program(), Target.h200()).schedule.kernels
        return sum(len(kernel.pair[1].anchors) for kernel in kernels if kernel.pair)

    assert [carried(others) for others in (0, 1, 3)] == [1, 2, 0]


def test_sums_far_from_zero_keep_their_deviations(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean 2^18, deviations of 128: a difference of squares would lose most of them."""
    made_by(monkeypatch, algorithms.TMA_TF32, mma_tiles.TMA_TF32_TILES[6])
    batch = Batch(device)
    a, b = (batch.input(np.round(numbers(s, n, 64) * 4)) for s, n in ((1, 1000), (2, 64)))
    product = contraction.matmul(a, contraction.transpose(b))
    y = ew.add(product, common.full_like(product, 4096.0 * 64))
    both = rd.welford(y, axes=(0,))
    batch.want("all", [y, *(common.output(both, index=i) for i in (0, 1))])
    with settings.override(matmul_precision="high"):
        (pair,) = (k.pair for k in lower(batch.program(), registry.get(device).target)
                   .schedule.kernels if k.pair)  # fmt: skip
        assert [node.op for node in pair[1].anchors] == [rd.welford]
        ((y_, mean, m2),) = batch.run().values()
    exact = y_.astype(np.float64)
    assert np.allclose(mean, exact.mean(0), rtol=2e-7)
    assert np.allclose(m2, ((exact - exact.mean(0)) ** 2).sum(0), rtol=1e-4)


def random_operand(k: random.Random, batch: Batch, m: int, n: int, dtype: Any) -> Node:
    """Small integers for each output: as they lie, of a column, of a row, sliced or transposed."""
    shape = k.choice(((m, n), (1, n), (m, 1), (m + 1, n), (n, m)))
    values = np.random.default_rng(k.getrandbits(32)).integers(-2, 3, shape)
    node = batch.input(values.astype(dtype.numpy))
    if shape == (m + 1, n):
        return mv.slice_(node, starts=(1, 0), shape=(m, n), steps=(1, 1))
    if shape == (n, m):
        return contraction.transpose(node)
    return mv.expand(node, shape=(m, n))


def random_program(k: random.Random, batch: Batch, dtype: Any) -> None:
    """A product with an epilogue, and reductions of columns of what is made of it.

    All values are small integers: whatever the order of their sums, results are the same.
    """
    m, n, length = k.randrange(1, 400), 2 * k.randrange(4, 100), 8 * k.randrange(1, 12)
    a, b = (
        batch.input(np.random.default_rng(k.getrandbits(32)).integers(-1, 2, s).astype(dtype.numpy))
        for s in ((m, length), (n, length))
    )
    y = contraction.matmul(a, contraction.transpose(b))
    combine = (ew.add, ew.sub, ew.mul, ew.maximum)
    for _ in range(k.randrange(3)):
        y = k.choice(combine)(y, random_operand(k, batch, m, n, dtype))
    found = [y] if k.random() < 0.8 else []
    wide = ew.cast(y, dtype=float32)
    for _ in range(k.randrange(1, 4)):
        value = wide
        for _ in range(k.randrange(3)):
            other = ew.cast(random_operand(k, batch, m, n, dtype), dtype=float32)
            value = k.choice(combine)(value, other)
        found.append(k.choice((rd.sum, rd.sum, rd.max))(value, axes=(0,)))
    batch.want("all", found)


@pytest.mark.parametrize("seed", range(24))
def test_random_epilogues_and_columns(
    device: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers: exactly as NumPy computes the same program."""
    k = random.Random(seed)
    tier = k.choice(tuple(TILES))
    made_by(monkeypatch, tier, k.choice(TILES[tier]))
    dtype = float32 if "tf32" in tier else k.choice((bfloat16, float16))
    results = []
    for where in (device, CPU):
        batch = Batch(where)
        random_program(random.Random(seed), batch, dtype)
        with settings.override(matmul_precision="high"):
            results.append(batch.run()["all"])
    for found, want in zip(*results, strict=True):
        assert np.array_equal(found, want)


def block_gradients(device: Any, dtype: Any, size: tuple[int, int]) -> list[Array]:
    """Statistics and gradients of a residual block with a stride and a shortcut."""
    f = tc.nn.functional
    images = 3 if str(device) == "emu" else 16  # of so many bytes that TMA describes them
    x = tc.tensor(numbers(1, images, 64, *size), device=device).to(dtype)
    shapes = ((64, 64, 3, 3), (64, 64, 3, 3), (128, 64, 3, 3), (128, 64, 1, 1))
    weights, scales, shifts = [], [], []
    for i, shape in enumerate(shapes):
        weight = tc.tensor(0.05 * numbers(2 + i, *shape), device=device).to(dtype)
        weights.append(weight.detach().requires_grad_())
        scales.append(tc.tensor(1 + 0.1 * numbers(9, shape[0]), device=device, requires_grad=True))
        shifts.append(tc.zeros(shape[0], device=device, requires_grad=True))
    running = [tc.zeros(64, device=device), tc.ones(64, device=device)]

    def norm(y: Any, number: int) -> Any:
        statistics = running if number == 0 else (None, None)
        return f.batch_norm(y, *statistics, scales[number], shifts[number], training=True)

    h = norm(f.conv2d(x, weights[0], padding=1), 0).relu()
    h = norm(f.conv2d(h, weights[1], padding=1), 1).relu()
    z = norm(f.conv2d(h, weights[2], stride=2, padding=1), 2)
    z = (z + norm(f.conv2d(h, weights[3], stride=2), 3)).relu()
    loss = (z.float() * tc.tensor(numbers(8, *z.shape), device=device)).sum()
    loss.backward()
    wanted = [loss, *running, *(leaf.grad for leaf in (*weights, *scales, *shifts))]
    return [one.detach().float().numpy().astype(np.float64) for one in wanted]


@pytest.mark.parametrize("size", [(13, 11), (8, 8)])
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32])
def test_networks_of_convolutions(
    device: Any, dtype: Any, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch norms behind convolutions, forward and backward, beside the same without."""
    monkeypatch.setattr(algorithms, "TIERS", [t for t in ALL_TIERS if t.name in CONVOLVING])
    monkeypatch.setattr(settings, "matmul_precision", "high")
    joined: list[Any] = []

    def noting(schedule: Any, product: Any, parts: Any) -> None:
        joined.extend(node.op for part in parts for node in part.own.anchors)
        fuse_column_sums.join(schedule, product, parts)

    monkeypatch.setattr(fuse_product_columns, "join", noting)
    monkeypatch.setattr(fuse_product_columns, "WORTH", 0)
    plans.clear()
    found = block_gradients(device, dtype, size)
    assert joined.count(rd.welford) == 4 and joined.count(rd.sum) >= 2
    monkeypatch.setattr(fuse_product_columns, "WORTH", 1 << 60)
    plans.clear()
    for number, pair in enumerate(zip(found, block_gradients(device, dtype, size), strict=True)):
        one, other = pair
        # Rounded operands of the next product may turn a pixel's mask: of statistics there are none
        # before, and gradients are compared in the mean.
        tolerance = 1e-5 if number in (1, 2) else 2**-6
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other)
    assert joined.count(rd.welford) == 4
    plans.clear()


# By name: what stands in the skeleton, and what would be wrong there.
FAULTS = {
    "warps are joined before they are done": (
        "tgc_named_barrier(3 + group, 128);\n  if (own)", "\n  if (own)",
    ),
    "sums are staged where others are read": (
        "tgc_named_barrier(3 + group, 128);  // sums", "// sums",
    ),
    "rows beyond the last one count": ("@bounds@{", "{"),
    "lanes are left out": ("tgc_strided_reduce<@strips@>", "tgc_strided_reduce<2 * @strips@>"),
}  # fmt: skip


def columns_with(monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], order: int) -> bool:
    """Whether the emulator computes right with a changed skeleton."""
    with monkeypatch.context() as patched:
        change_skeleton(patched, mma.MMA, *change)
        with settings.override(emu_order=order):
            reductions = Reductions(as_device("emu"))
            reductions.add("bfloat16 sums", (700, 128, 136), bfloat16, False)
            try:
                reductions.check(2)
            except (AssertionError, TgcError):
                return False
    return True


@pytest.fixture
def on_emu(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = registry.get(as_device("emu"))
    monkeypatch.setattr(backend, "target", replace(backend.target, multiprocessors=2))
    monkeypatch.setattr(fuse_product_columns, "WORTH", 0)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    made_by(monkeypatch, "wgmma tma", SMALL_TILE)


@pytest.mark.usefixtures("on_emu")
@pytest.mark.parametrize("order", range(5))
def test_right_in_any_order(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, copies and products in any order that the barriers allow."""
    assert columns_with(monkeypatch, ("", ""), order)


@pytest.mark.usefixtures("on_emu")
@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not all(columns_with(monkeypatch, FAULTS[name], order) for order in range(5))


@pytest.mark.parametrize("tier", ["wgmma tma", algorithms.TMA_TF32])
def test_running_values_leave_the_sums_their_registers(
    tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tile with 128 sums a thread; a few bytes that live across the tile are spilled."""
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setattr(fuse_product_columns, "WORTH", 0)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    dtype = float32 if "tf32" in tier else bfloat16
    spilled = {}
    for tile in TILES[tier]:
        made_by(monkeypatch, tier, tile)
        reductions = Reductions(as_device("emu"))
        for moments in (False, True):
            reductions.add(str(moments), (8192, tile.n, 576), dtype, moments)
        with settings.override(matmul_precision="high"):
            made = lower(reductions.batch.program(), Target.h200())
        log = compile_source(made.source, "sm_90a", REPORT).log
        assert "serialized" not in log, log
        for launch in made.launches:
            if any(stage.kernel.pair and not stage.second for stage in launch.stages):
                spilled[tile, launch.name] = resources(log)[launch.name].spill_stores
    assert len(spilled) == 2 * len(TILES[tier]) and max(spilled.values()) <= SPILLED
