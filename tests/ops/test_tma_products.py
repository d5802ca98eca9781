"""Products on matrix units whose operands TMA brings: each tile against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import Batch, change_skeleton, device_or_skip
from programs import Inputs, launches

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.dtypes import bfloat16, float16, float32
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.skeletons.contract import mma, mma_tiles, tma
from tinygrad_cuda.lowering.skeletons.contract.mma_tiles import TmaTile
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Product, ProductCut, split_k
from tinygrad_cuda.lowering.target import Target

Array = np.ndarray[Any, Any]
TOLERANCE = {"bfloat16": 2**-8, "float16": 2**-11}  # of the largest result
LAYOUTS = [(0, 1), (0, 0), (1, 0), (1, 1)]  # whether A and B lie transposed
TIER = "wgmma tma"
ALL_TIERS = algorithms.TIERS
JOINED_TILE = TmaTile(64, 128, 64, 1, 0.4, 3)


@pytest.fixture(params=["emu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device whose products are all made by this tier."""
    device = device_or_skip(request.param, request)
    only = tuple(tier for tier in algorithms.TIERS if tier.name == TIER)
    monkeypatch.setattr(algorithms, "TIERS", only)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    if registry.get(device).target.architecture != (9, 0):
        pytest.skip("TMA and wgmma are of sm_90a")
    return device


def with_tile(monkeypatch: pytest.MonkeyPatch, tile: Any, slices: int = 1) -> None:
    def quickest_cut(product: Product, target: Target, others: Any) -> ProductCut[Any]:
        return split_k(tile, product.k, slices)

    monkeypatch.setattr(mma_tiles, "quickest_cut", quickest_cut)


def few_multiprocessors(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    """Two, so that a block computes many tiles of outputs."""
    backend = registry.get(device)
    monkeypatch.setattr(backend, "target", replace(backend.target, multiprocessors=2))


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(found: Any, want: Array, dtype: str = "bfloat16") -> None:
    error = np.abs(found.float().numpy().astype(np.float64) - want).max()
    assert error <= TOLERANCE[dtype] * np.abs(want).max()


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("number", range(len(mma_tiles.TMA_TILES)))
def test_every_tile_in_every_layout(
    device: Any, number: int, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that no tile divides, the last of k among them."""
    tile = mma_tiles.TMA_TILES[number]
    with_tile(monkeypatch, tile, slices)
    batch, expected = Batch(device), {}
    m, n, k = tile.m + 8, tile.n + 16, 3 * tile.k + 8
    for dtype in (bfloat16, float16):
        for turned_a, turned_b in LAYOUTS:
            a = numbers(1, *((k, m) if turned_a else (m, k))).astype(dtype.numpy)
            b = numbers(2, *((n, k) if turned_b else (k, n))).astype(dtype.numpy)
            x, y = (
                contraction.transpose(batch.input(values)) if turned else batch.input(values)
                for values, turned in ((a, turned_a), (b, turned_b))
            )
            name = f"{dtype.name} {turned_a}{turned_b}"
            batch.want(name, [contraction.matmul(x, y)])
            a, b = (values.astype(np.float64) for values in (a, b))
            expected[name] = (a.T if turned_a else a) @ (b.T if turned_b else b)
    found = batch.run()
    for name, want in expected.items():
        (values,) = found[name]
        error = np.abs(values.astype(np.float64) - want).max()
        assert error <= TOLERANCE[name.split()[0]] * np.abs(want).max(), name


@pytest.mark.parametrize("number", range(len(mma_tiles.TMA_TF32_TILES)))
def test_tf32_in_every_layout(device: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands that do not lie along k are stored so before."""
    only = tuple(t for t in ALL_TIERS if t.name == algorithms.TMA_TF32)
    monkeypatch.setattr(algorithms, "TIERS", only)
    tile = mma_tiles.TMA_TF32_TILES[number]
    with_tile(monkeypatch, tile)
    m, n, k = tile.m + 8, tile.n + 16, 3 * tile.k + 4
    tc.set_float32_matmul_precision("high")
    try:
        for turned_a, turned_b in LAYOUTS:
            a = numbers(1, *((k, m) if turned_a else (m, k)))
            b = numbers(2, *((n, k) if turned_b else (k, n)))
            x, y = tc.tensor(a, device=device), tc.tensor(b, device=device)
            found = (x.T if turned_a else x) @ (y.T if turned_b else y)
            a, b = (values.astype(np.float64) for values in (a, b))
            want = (a.T if turned_a else a) @ (b.T if turned_b else b)
            assert np.abs(found.numpy() - want).max() <= 1e-3 * np.abs(want).max()
    finally:
        tc.set_float32_matmul_precision("highest")


@pytest.fixture
def mn_major(device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device, whose products of tf32 are all made without a copy along k."""
    only = tuple(t for t in ALL_TIERS if t.name == algorithms.MN_MAJOR)
    monkeypatch.setattr(algorithms, "TIERS", only)
    monkeypatch.setattr(settings, "matmul_precision", "high")
    return device


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("number", range(len(mma_tiles.MN_MAJOR_TILES)))
def test_tf32_across_k_in_every_layout(
    mn_major: Any, number: int, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A from registers, B transposed in shared memory, or both; no tile divides the sizes."""
    tile = mma_tiles.MN_MAJOR_TILES[number]
    with_tile(monkeypatch, tile, slices)
    batch, expected = Batch(mn_major), {}
    m, n, k = tile.m + 12, tile.n + 20, 7 * tile.k + 4
    for turned_a, turned_b in ((1, 0), (1, 1), (0, 0)):
        a = numbers(1, *((k, m) if turned_a else (m, k)))
        b = numbers(2, *((n, k) if turned_b else (k, n)))
        x, y = (
            contraction.transpose(batch.input(values)) if turned else batch.input(values)
            for values, turned in ((a, turned_a), (b, turned_b))
        )
        name = f"{turned_a}{turned_b}"
        batch.want(name, [contraction.matmul(x, y)])
        a, b = (values.astype(np.float64) for values in (a, b))
        expected[name] = (a.T if turned_a else a) @ (b.T if turned_b else b)
    found = batch.run()
    for name, want in expected.items():
        (values,) = found[name]
        assert np.abs(values - want).max() <= 1e-3 * np.abs(want).max(), name


@pytest.mark.parametrize("number", [0, 1, 5])
def test_tf32_across_k_of_batches_and_many_tiles(
    mn_major: Any, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring goes on from tile to tile and from matrix to matrix; a bias behind the sum."""
    few_multiprocessors(monkeypatch, mn_major)
    tile = mma_tiles.MN_MAJOR_TILES[number]
    with_tile(monkeypatch, tile)
    m, n, k = tile.m + 4, tile.n + 4, 5 * tile.k - 3
    a, b, bias = numbers(3, 2, k, m), numbers(4, 2, k, n), numbers(5, n)
    x, y, z = (tc.tensor(values, device=mn_major) for values in (a, b, bias))
    want = np.matmul(a.astype(np.float64).transpose(0, 2, 1), b.astype(np.float64)) + bias
    found = (x.transpose(1, 2) @ y + z).numpy()
    assert np.abs(found - want).max() <= 1e-3 * np.abs(want).max()


@pytest.mark.parametrize("number", [0, 2, 6])
@pytest.mark.parametrize("slices", [1, 2])
def test_a_block_computes_many_tiles(
    device: Any, number: int, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring goes on from tile to tile, of which slices have different turns."""
    few_multiprocessors(monkeypatch, device)
    tile = mma_tiles.TMA_TILES[number]
    with_tile(monkeypatch, tile, slices)
    m, n, k = 3 * tile.m, 2 * tile.n + 8, 5 * tile.k
    a, b = (tc.tensor(numbers(s, r, k), device=device).bfloat16() for s, r in ((3, m), (4, n)))
    exact = a.float().numpy().astype(np.float64) @ b.float().numpy().astype(np.float64).T
    check(a @ b.T, exact)


def with_plan(monkeypatch: pytest.MonkeyPatch, tile: Any, slices: int = 1, **how: Any) -> None:
    def quickest_cut(product: Product, target: Target, others: Any) -> ProductCut[Any]:
        return replace(split_k(tile, product.k, slices), **how)

    monkeypatch.setattr(mma_tiles, "quickest_cut", quickest_cut)


@pytest.mark.parametrize("shares", [3, 4, 5])
@pytest.mark.parametrize("number", [0, 1])
def test_blocks_share_the_steps_of_tiles(
    device: Any, number: int, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of two tiles or of one, and what helpers add behind them, in the order of k."""
    tile = mma_tiles.TMA_TILES[number]
    with_plan(monkeypatch, tile, shares=shares)
    for m, n, steps in ((tile.m + 8, tile.n, 5), (tile.m, tile.n, 7)):
        k = steps * tile.k - 8
        a, b = (tc.tensor(numbers(s, k, r), device=device).bfloat16() for s, r in ((3, m), (4, n)))
        bias = tc.tensor(numbers(5, n), device=device)
        exact = a.float().numpy().astype(np.float64).T @ b.float().numpy().astype(np.float64)
        found = [(a.T @ b).float() + bias for _ in range(3)]
        for one in found:
            check(one, exact + numbers(5, n))
            assert (one.numpy() == found[0].numpy()).all()


@pytest.mark.parametrize("slices", [2, 3, 4])
@pytest.mark.parametrize("number", range(3))
def test_a_cluster_adds_the_slices_of_a_tile(
    device: Any, number: int, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the shared memory of its blocks, with bias and residual behind the sum."""
    tile = (*mma_tiles.CLUSTER_TILES, JOINED_TILE, TmaTile(128, 64, 64, 2, 0.5, 6))[number]
    with_plan(monkeypatch, tile, slices, cluster=True)
    m, n, k = tile.m + 8, tile.n + 16, 5 * tile.k - 8
    a, b = (tc.tensor(numbers(s, r, k), device=device).bfloat16() for s, r in ((3, m), (4, n)))
    bias, rest = (tc.tensor(numbers(*of), device=device) for of in ((5, n), (6, m, n)))
    exact = a.float().numpy().astype(np.float64) @ b.float().numpy().astype(np.float64).T
    exact += numbers(5, n) + numbers(6, m, n)
    found = [(a @ b.T).float() + bias + rest for _ in range(2)]
    check(found[0], exact)
    assert (found[0].numpy() == found[1].numpy()).all()


def test_blocks_join_sums_where_that_is_the_quickest() -> None:
    """A weight's gradient alone by shares, behind an update by slices; few rows by pairs."""
    h200 = Target.h200()
    new = Inputs()

    def about(made: Node) -> str:
        return "\n".join(launch.text for launch in launches(new.program(made), h200))

    def gradient() -> Node:
        x, y = (new(8192, size, dtype=bfloat16) for size in (768, 3072))
        return contraction.matmul(contraction.transpose(x), y)

    assert "stream-K 132" in about(gradient())
    updated = ew.sub(new(768, 3072), ew.cast(gradient(), dtype=float32))
    assert "split-K 3" in about(updated)
    few = contraction.matmul(new(64, 4096, dtype=bfloat16), new(4096, 4096, dtype=bfloat16))
    assert "split-K 2 in a cluster" in about(few)


def test_batches_and_heads(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of a batch, one for all of a batch, and heads that lie between the rows."""
    with_tile(monkeypatch, mma_tiles.TMA_TILES[6])
    x = tc.tensor(numbers(5, 3, 72, 64), device=device).bfloat16()
    w = tc.tensor(numbers(6, 40, 64), device=device).bfloat16()
    heads = tc.tensor(numbers(7, 2, 72, 3, 16), device=device).bfloat16().transpose(1, 2)
    for a, b in ((x, x.transpose(1, 2)), (x, w.T), (heads, heads.transpose(2, 3))):
        exact = (side.float().numpy().astype(np.float64) for side in (a, b))
        check(a @ b, np.matmul(*exact))


def test_parts_and_epilogues(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a matrix that begins later in memory; bias and activation behind the product."""
    with_tile(monkeypatch, mma_tiles.TMA_TILES[6])
    x = tc.tensor(numbers(8, 100, 96), device=device).bfloat16()
    bias = tc.tensor(numbers(9, 72), device=device).bfloat16()
    a, b = x[16:88, 8:72], x[3:75, 16:80]
    exact = [side.float().numpy().astype(np.float64) for side in (a, b, bias)]
    check((a @ b.T + bias).relu(), np.maximum(exact[0] @ exact[1].T + exact[2], 0))
    wide = tc.tensor(numbers(9, 72), device=device)  # eight of these are 32 bytes
    signs = np.sign(numbers(11, 72, 72))
    scale = tc.tensor(signs, device=device).bfloat16()
    check((a @ b.T + wide.bfloat16()) * scale, (exact[0] @ exact[1].T + exact[2]) * signs)


def test_steps_of_training_move_the_maps(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay whose operands lie elsewhere than before reads them there."""
    with_tile(monkeypatch, mma_tiles.TMA_TILES[6])
    w = tc.tensor(numbers(10, 64, 64), device=device).bfloat16()

    @tc.compile
    def step(x: tc.Tensor) -> tc.Tensor:
        return x @ w

    held = []
    for seed in range(5):
        x = tc.tensor(numbers(seed, 72, 64), device=device).bfloat16()
        exact = x.float().numpy().astype(np.float64) @ w.float().numpy().astype(np.float64)
        held.append((x, step(x), exact))
    for _, found, exact in held:
        check(found, exact)


# By name: what stands in the skeleton, and what would be wrong there.
FAULTS = {
    "no wait for a free slot": ("tgc_barrier_wait(empty + slot, parity);", ""),
    "no wait for a full slot": ("tgc_barrier_wait(full + slot, parity);", ""),
    "another parity of free slots": ("unsigned parity = 1;", "unsigned parity = 0;"),
    "fewer bytes": ("@bytes_a@ + @bytes_b@);", "@bytes_a@);"),
    "a slot is given back early": ("tgc_wgmma_wait<1>();", ""),
    "no wait for the last products": ("tgc_wgmma_wait<0>();", ""),
    "no fence before products": ("tgc_wgmma_fence();", ""),
    "a sum that goes on": ("step > 0 || k_first > k_begin", "true"),
    "the ring begins anew with a tile": ("turn++;", ""),
    "both multiply the same slots": ("turn = turns(virtual_block);", ""),
}


# Of operands that lie across k.
MN_MAJOR_FAULTS = {
    "no wait for transposed boxes": ("@await_ready@", ""),
    "boxes are transposed before they come": (
        "tgc_barrier_wait(full + slot, parity);\n#pragma unroll 1\n      for (int box",
        "\n#pragma unroll 1\n      for (int box",
    ),
    "no fence behind transposed boxes": ("tgc_proxy_fence();", ""),
    "a box is stored while others load it": ("__syncwarp();  // all of the box", "  // all"),
    "registers change under products": (
        "tgc_wgmma_wait<0>();  // the registers", "tgc_wgmma_wait<1>();  // the registers",
    ),
    "operands in two orders of k": (
        "i * @k_step@ + chunk % 2 * @k_half@", "i + chunk % 2 * 4",
    ),
}  # fmt: skip


def product_with(
    monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], order: int, dtype: Any = bfloat16
) -> bool:
    """Whether the emulator computes right with a changed skeleton; tf32 lies across k."""
    with monkeypatch.context() as patched:
        change_skeleton(patched, tma.TMA, *change)
        few_multiprocessors(patched, as_device("emu"))
        with settings.override(emu_order=order):
            batch = Batch(as_device("emu"))
            a, b = (numbers(s, r, 640).astype(dtype.numpy) for s, r in ((3, 256), (4, 128)))
            pair = batch.input(a), contraction.transpose(batch.input(b))
            if dtype is float32:
                a, b = (numbers(s, 640, r) for s, r in ((3, 256), (4, 128)))
                pair = contraction.transpose(batch.input(a)), batch.input(b)
                a, b = a.T, b.T
            batch.want("product", [contraction.matmul(*pair)])
            try:
                ((found,),) = batch.run().values()
            except TgcError:
                return False
    want = a.astype(np.float64) @ b.astype(np.float64).T
    error = np.abs(found.astype(np.float64) - want).max()
    return bool(error <= TOLERANCE["bfloat16"] * np.abs(want).max())


@pytest.fixture
def on_emu(monkeypatch: pytest.MonkeyPatch) -> None:
    only = tuple(tier for tier in algorithms.TIERS if tier.name == TIER)
    monkeypatch.setattr(algorithms, "TIERS", only)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    with_tile(monkeypatch, TmaTile(64, 64, 64, 1, 0.4, 3, ping_pong=True))


@pytest.mark.usefixtures("on_emu")
@pytest.mark.parametrize("order", range(5))
def test_right_whenever_copies_take_effect(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, copies and products in any order that the barriers allow."""
    assert product_with(monkeypatch, ("", ""), order)


@pytest.mark.usefixtures("on_emu")
@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not all(product_with(monkeypatch, FAULTS[name], order) for order in range(5))


@pytest.fixture
def mn_major_on_emu(monkeypatch: pytest.MonkeyPatch) -> None:
    only = tuple(tier for tier in algorithms.TIERS if tier.name == algorithms.MN_MAJOR)
    monkeypatch.setattr(algorithms, "TIERS", only)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    monkeypatch.setattr(settings, "matmul_precision", "high")
    with_tile(monkeypatch, mma_tiles.MnMajorTile(128, 64, 32, 2, 0.2, 3))


@pytest.mark.usefixtures("mn_major_on_emu")
@pytest.mark.parametrize("order", range(5))
def test_mn_major_whenever_copies_take_effect(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert product_with(monkeypatch, ("", ""), order, float32)


@pytest.mark.usefixtures("mn_major_on_emu")
@pytest.mark.parametrize("name", MN_MAJOR_FAULTS)
def test_each_planted_fault_of_mn_major_operands_shows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = MN_MAJOR_FAULTS[name]
    assert not all(product_with(monkeypatch, change, order, float32) for order in range(5))


# Of sums that blocks leave each other, in memory or in the shared memory of a cluster.
JOINING_FAULTS = {
    "no wait for a share's sums": (
        tma.TMA, "tgc_grid_flag_await(@flags@, from * @warps@ + warp, seen + piece + 1);", "",
    ),
    "a share is published early": (tma.TMA, "number < @tiles@ && lane == 0", "lane == 0"),
    "a share nobody waits for is not counted": (
        tma.TMA, "number < @tiles@ && lane == 0", "false",
    ),
    "the sums of the last launch": (
        tma.TMA, "+ warp, seen + piece + 1);\n#p", "+ warp, seen);\n#p",
    ),
    "a helper's first piece counts as its last": (
        tma.TMA, "last ? @pieces@ - piece : 1", "@pieces@ - piece",
    ),
    "a helper's sums are not added": (tma.TMA, "@next_helper@\n", "break;\n"),
    "pieces of a helper in one memory": (
        tma.TMA, "helper * @pieces@ + piece", "helper * @pieces@",
    ),
    "no barrier of the cluster": (mma.MMA, "@meet@", "__syncwarp();"),
    "the sums of one block": (mma.MMA, "tgc_cluster_load<@fragment@>(own, rank)",
                              "tgc_cluster_load<@fragment@>(own, 0)"),
}  # fmt: skip


def joined_with(
    monkeypatch: pytest.MonkeyPatch, change: tuple[str, str, str], cut: ProductCut[Any], order: int
) -> bool:
    """Whether three launches of a changed skeleton compute right on the emulator."""
    k = cut.chunk * cut.slices
    with monkeypatch.context() as patched:
        change_skeleton(patched, *change)
        patched.setattr(mma_tiles, "quickest_cut", lambda *of: cut)
        with settings.override(emu_order=order):
            batch = Batch(as_device("emu"))
            pairs = [
                [numbers(s + 2 * run, r, k).astype(bfloat16.numpy) for s, r in ((3, 128), (4, 128))]
                for run in range(3)
            ]
            a, b = map(batch.input, pairs[0])
            batch.want("product", [contraction.matmul(a, contraction.transpose(b))])
            run = batch.runner(registry.get(as_device("emu")).compile(batch.program()))
            for pair in pairs:
                try:
                    ((found,),) = run(pair).values()
                except TgcError:
                    return False
                a64, b64 = (values.astype(np.float64) for values in pair)
                error = np.abs(found.astype(np.float64) - a64 @ b64.T).max()
                if not error <= TOLERANCE["bfloat16"] * np.abs(a64 @ b64.T).max():
                    return False
    return True


JOINED = {
    "shares": ProductCut(JOINED_TILE, 640, 1, shares=5),
    "cluster": ProductCut(JOINED_TILE, 192, 3, cluster=True),
}


@pytest.mark.usefixtures("on_emu")
@pytest.mark.parametrize("kind", JOINED)
@pytest.mark.parametrize("order", range(5))
def test_sums_are_joined_whenever_blocks_run(
    kind: str, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads and copies in any order that flags and barriers allow, in launch after launch."""
    assert joined_with(monkeypatch, (tma.TMA, "", ""), JOINED[kind], order)


@pytest.mark.usefixtures("on_emu")
@pytest.mark.parametrize("name", JOINING_FAULTS)
def test_each_planted_fault_of_joined_sums_shows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = JOINING_FAULTS[name]
    cut = JOINED["cluster" if "cluster" in change[1] or change[0] == mma.MMA else "shares"]
    assert not all(joined_with(monkeypatch, change, cut, order) for order in range(5))
