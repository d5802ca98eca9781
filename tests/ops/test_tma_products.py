"""Products on matrix units whose operands TMA brings: each tile against NumPy in float64."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.dtypes import bfloat16, float16
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.codegen import skeleton
from tinygrad_cuda.lowering.codegen.skeleton import FOLDER
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles, tma
from tinygrad_cuda.lowering.skeletons.contract.mma_tiles import TmaTile
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Plan, Product, split_k
from tinygrad_cuda.lowering.target import Target

Array = np.ndarray[Any, Any]
TOLERANCE = {"bfloat16": 2**-8, "float16": 2**-11}  # of the largest result
LAYOUTS = [(0, 1), (0, 0), (1, 0), (1, 1)]  # whether A and B lie transposed
TIER = "wgmma tma"
ALL_TIERS = algorithms.TIERS


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
    def plan(product: Product, target: Target, others: Any) -> Plan[Any]:
        return split_k(tile, product.k, slices)

    monkeypatch.setattr(mma_tiles, "plan", plan)


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


def product_with(monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], order: int) -> bool:
    """Whether the emulator computes right with a changed skeleton."""
    text = (FOLDER / "contract" / tma.TMA).read_text()
    assert change[0] in text
    parts = re.split(r"^//@ (\w+)\n", text.replace(*change), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    before = skeleton._sections
    with monkeypatch.context() as patched:
        patched.setattr(
            skeleton, "_sections", lambda file: sections if file == tma.TMA else before(file)
        )
        few_multiprocessors(patched, as_device("emu"))
        with settings.override(emu_order=order):
            batch = Batch(as_device("emu"))
            a, b = (numbers(s, r, 640).astype(bfloat16.numpy) for s, r in ((3, 256), (4, 128)))
            pair = batch.input(a), contraction.transpose(batch.input(b))
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
