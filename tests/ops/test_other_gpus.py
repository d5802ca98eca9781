"""A GPU with other numbers: its products and convolutions are cut for it, and their values hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.compiler import REPORT, compile_source, resources
from tinygrad_cuda.core.device import CPU, as_device
from tinygrad_cuda.core.dtypes import bfloat16
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import contraction, movement
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.convolution import convolution, convolution_weight_gradient
from tinygrad_cuda.lowering.lower import Lowered, lower
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Product, quickest_cut
from tinygrad_cuda.lowering.target import Target, traffic_of

EMU = as_device("emu")
LOWERING = Path(tc.__file__).parent / "lowering"
SMALL = Target("small", (7, 5), 16, 48 << 10, 64 << 10, 4 << 20, 200)
T4 = Target.of_architecture((7, 5))
H200 = Target.h200()

AT: dict[str, Any] = {
    "stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1,
}  # fmt: skip
Make = Callable[[Batch, Any], Node]


def random(batch: Batch, rng: Any, *shape: int) -> Node:
    return batch.input(rng.standard_normal(shape).astype(np.float32))


def product(m: int, n: int, k: int) -> Make:
    """With an epilogue."""
    return lambda batch, rng: ew.neg(
        contraction.matmul(random(batch, rng, m, k), random(batch, rng, k, n))
    )


def image(n: int, c: int, size: int, o: int) -> Make:
    return lambda batch, rng: convolution(
        random(batch, rng, n, c, size, size), random(batch, rng, o, c, 3, 3), **AT
    )


def weights(n: int, c: int, size: int, o: int) -> Make:
    return lambda batch, rng: convolution_weight_gradient(
        random(batch, rng, n, o, size, size), random(batch, rng, n, c, size, size),
        kernel=(3, 3), **AT,
    )  # fmt: skip


# What is cut otherwise on a small GPU.
CASES: dict[str, Make] = {
    "square": product(250, 270, 130),
    "split": product(24, 40, 3000),
    "streamed": product(4, 3000, 90),
    "direct": image(20, 4, 12, 6),
    "weights": weights(40, 4, 10, 5),
    "tiles": image(4, 24, 12, 24),
    "implicit": image(4, 40, 9, 40),
}


def recorded(device: Any, name: str) -> Batch:
    batch = Batch(device)
    batch.want(name, [CASES[name](batch, np.random.default_rng(3))])
    return batch


def lowered(name: str, target: Target) -> Lowered:
    return lower(recorded(EMU, name).program(), target)


@pytest.mark.parametrize("name", CASES)
def test_a_small_gpu_gets_other_cuts_with_the_same_values(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    device = device_or_skip("emu", request)
    small, large = lowered(name, SMALL), lowered(name, H200)
    assert small.source != large.source
    assert all(launch.shared <= SMALL.block_shared for launch in small.launches)
    monkeypatch.setattr(registry.get(device), "target", SMALL)
    (found,), (expected,) = recorded(device, name).run()[name], recorded(CPU, name).run()[name]
    np.testing.assert_allclose(found, expected, atol=3e-4, rtol=1e-4)


# sm_75 ------------------------------------------------------------------------------------------


def half(batch: Batch, rng: Any, *shape: int) -> Node:
    return batch.input(rng.standard_normal(shape).astype(np.float16))


HALF_CASES: dict[str, Make] = {
    "square": lambda batch, rng: ew.neg(
        contraction.matmul(half(batch, rng, 250, 136), half(batch, rng, 136, 270))
    ),
    "split": lambda batch, rng: contraction.matmul(
        half(batch, rng, 24, 3000), half(batch, rng, 3000, 40)
    ),
    "transposed": lambda batch, rng: contraction.matmul(
        movement.permute(half(batch, rng, 200, 264), axes=(1, 0)), half(batch, rng, 200, 272)
    ),
    "image": lambda batch, rng: convolution(
        half(batch, rng, 4, 40, 9, 9), half(batch, rng, 48, 40, 3, 3), **AT
    ),
}


def of_halves(device: Any, name: str) -> Batch:
    batch = Batch(device)
    batch.want(name, [HALF_CASES[name](batch, np.random.default_rng(3))])
    return batch


@pytest.mark.parametrize("name", HALF_CASES)
def test_turing_multiplies_float16_by_its_matrix_units(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    device = device_or_skip("emu", request)
    monkeypatch.setattr(mma_tiles, "clocks", lambda *_: 0.0)
    made = lower(of_halves(EMU, name).program(), T4)
    (choice,) = [kernel.choice for kernel in made.schedule.kernels if kernel.kind == "contract"]
    assert choice is not None
    assert (choice.tier, choice.cut.tile.stages) == ("mma", 2)
    assert all(launch.shared <= T4.block_shared for launch in made.launches)
    monkeypatch.setattr(registry.get(device), "target", T4)
    (found,), (expected,) = of_halves(device, name).run()[name], of_halves(CPU, name).run()[name]
    largest = np.abs(expected.astype(np.float32)).max()
    np.testing.assert_allclose(found, expected, atol=2e-3 * largest, rtol=0)


@pytest.mark.parametrize("tile", mma_tiles.SYNCHRONOUS_TILES, ids=str)
def test_its_kernels_compile_without_spills(
    tile: mma_tiles.MmaTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setattr(mma_tiles, "SYNCHRONOUS_TILES", (tile,))
    monkeypatch.setattr(mma_tiles, "clocks", lambda *_: 0.0)
    source = lower(of_halves(EMU, "square").program(), T4).source
    assert "m16n8k8.row.col.f32.f16" in source
    log = compile_source(source, "sm_75", REPORT).log
    assert not any(used.spill_stores for used in resources(log).values()), log


def test_turing_has_no_other_format() -> None:
    """Its units multiply no bfloat16 and no tf32; float32 units do."""
    for dtype in (bfloat16.numpy, np.float32):
        batch = Batch(EMU)
        a, b = (batch.input(np.zeros((512, 512), dtype)) for _ in "ab")
        batch.want("", [contraction.matmul(a, b)])
        (kernel,) = lower(batch.program(), T4).schedule.kernels
        assert kernel.choice is not None
        assert kernel.choice.tier == "register_tiled"


@pytest.mark.parametrize(("multiprocessors", "parts"), [(8, 16), (16, 32), (60, 118), (132, 256)])
def test_a_sum_is_split_by_the_number_of_multiprocessors(multiprocessors: int, parts: int) -> None:
    target = replace(H200, multiprocessors=multiprocessors)
    assert quickest_cut(Product(1, 64, 64, 1 << 16, 4), target).slices == parts


def test_tiles_fit_the_shared_memory_of_a_block() -> None:
    for size in (40, 300, 2000):
        for itemsize in (4, 8):
            found = quickest_cut(Product(1, size, size, size, itemsize), SMALL)
            assert found.tile.shared(itemsize) <= SMALL.block_shared


def test_a_plan_is_of_its_target(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The plan cache holds one plan for each target."""
    machine = registry.get(device_or_skip("emu", request))
    a, b = tc.ones(24, 3000, device="emu"), tc.ones(3000, 40, device="emu")

    def kernels() -> str:
        made = cache.made
        text = tc.explain(a @ b)
        assert (a @ b).sum().item() == 24 * 40 * 3000
        return f"{cache.made - made}" + text

    first = kernels()
    monkeypatch.setattr(machine, "target", SMALL)
    assert kernels() != first


# The numbers of machines --------------------------------------------------------------------------


def folded(node: ast.AST) -> int | None:
    """The value of an expression of numbers."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if not isinstance(node, ast.BinOp):
        return None
    left, right = folded(node.left), folded(node.right)
    if left is None or right is None:
        return None
    made = {ast.LShift: int.__lshift__, ast.Mult: int.__mul__}.get(type(node.op))
    return made(left, right) if made else None


def numbers(path: Path) -> Iterator[tuple[int, int]]:
    """Each line with a number."""
    for node in ast.walk(ast.parse(path.read_text())):
        value = folded(node)
        if value is not None and isinstance(node, ast.expr):
            yield node.lineno, value


def of_machines() -> set[int]:
    """What tells machines apart: the numbers of the H200, and its registers."""
    names = [field.name for field in fields(H200)] + ["tile_shared", "large", "cached"]
    values = [getattr(H200, name) for name in names]
    return {value for value in values if type(value) is int} | {1 << 16}


def test_only_the_target_has_numbers_of_a_machine() -> None:
    found = {
        f"{path.relative_to(LOWERING)}:{line}: {value}"
        for path in LOWERING.rglob("*.py")
        if path.name != "target.py"
        for line, value in numbers(path)
        if value in of_machines()
    }
    assert not found


@pytest.mark.parametrize("bandwidth", [4.79e12, 4.83e12, 6144 / 8 * 2 * 3201e6])
def test_the_h200_is_what_its_driver_says(bandwidth: float) -> None:
    """Drivers differ in the memory's clock by two parts in a hundred."""
    assert traffic_of(bandwidth, 1980e6) == H200.traffic
    assert (H200.large, H200.cached, H200.tile_shared) == (16 << 20, 48 << 20, 64 << 10)
    assert (H200.lanes, SMALL.lanes) == (128, 64)
    assert (SMALL.large, SMALL.tile_shared) == ((4 << 20) // 3, 48 << 10)
