"""Rows that all blocks of a GPU hold together, on the emulator, which runs one block, beside cpu.

The thresholds of size are lowered; what is refused must have the right values all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from execution import device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend.emu.runtime import KernelFault
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.codegen import pack
from tinygrad_cuda.lowering.codegen.skeleton import Exchange
from tinygrad_cuda.lowering.schedule import fuse_grid_reduce, fusion
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule
from tinygrad_cuda.lowering.skeletons import grid_reduce as texts
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.nn import functional as F

Tensor = tc.Tensor
Program = Callable[..., Tensor]

SHAPE = (4, 6, 32, 32)  # images, channels


@pytest.fixture(autouse=True)
def small_is_large(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    device_or_skip("emu", request)
    monkeypatch.setattr(fusion, "LONG_ROW", 1 << 10)
    monkeypatch.setattr(Target, "cached", 0)
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels of all plans that are made."""
    found: list[Kernel] = []

    def spied(schedule: Schedule, target: Target) -> None:
        fuse_grid_reduce.fuse_grid_reduce(schedule, target)
        found.extend(schedule.kernels)

    monkeypatch.setattr(lower, "fuse_grid_reduce", spied)
    return found


def held(kernels: list[Kernel]) -> list[list[str]]:
    """The reductions of each kernel that holds its rows."""
    return [[node.op.name for node in kernel.anchors] for kernel in kernels if kernel.grid]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def results(program: Program, device: str, arrays: list[np.ndarray], dtype: tc.dtype, back: bool):
    """Its value and, with `back`, gradients of all arrays but the last, which is passed back."""
    inputs = [
        tc.tensor(array, device=device, dtype=dtype if array.ndim > 1 else tc.float32)
        for array in arrays
    ]
    for one in inputs[:-1] if back else ():
        one.requires_grad_()
    y = program(*inputs[:-1])
    if back:
        y.backward(inputs[-1].to(y.dtype))
    wanted = [y, *(one.grad for one in inputs[:-1])] if back else [y]
    return [one.detach().float().numpy() for one in wanted if one is not None]


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def residual(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(batch_norm(x, weight, bias) + other)


def standardized(x: Tensor) -> Tensor:
    """Rows in front; their run of neighbours is too long for a tile."""
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


def unit(x: Tensor) -> Tensor:
    """No mean: a sum that goes on with its own rows."""
    return x / x.square().sum((0, 2, 3), keepdim=True).sqrt()


CHANNELS = [normal(6, seed=7), normal(6, seed=8)]
PROGRAMS: dict[str, tuple[Program, list[np.ndarray]]] = {
    "batch norm": (batch_norm, [normal(*SHAPE) * 2 + 3, *CHANNELS, normal(*SHAPE, seed=1)]),
    "with a residual": (
        residual,
        [normal(*SHAPE) - 1, normal(*SHAPE, seed=2), *CHANNELS, normal(*SHAPE, seed=1)],
    ),
    "a partial last turn": (
        batch_norm,
        [normal(3, 8, 24, 28), normal(8), normal(8, seed=3), normal(3, 8, 24, 28, seed=1)],
    ),
    "rows in front": (standardized, [normal(13, 8192), normal(13, 8192, seed=1)]),
    "no mean": (unit, [normal(*SHAPE), normal(*SHAPE, seed=1)]),
}


@pytest.mark.parametrize("back", [False, True], ids=["forward", "with gradients"])
@pytest.mark.parametrize("dtype", [tc.float32, tc.bfloat16, tc.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(
    name: str, dtype: tc.dtype, back: bool, kernels: list[Kernel]
) -> None:
    program, arrays = PROGRAMS[name]
    found = results(program, "emu", arrays, dtype, back)
    assert held(kernels), "no kernel holds its rows"
    expected = results(program, "cpu", arrays, dtype, back)
    tolerance = 3e-6 if dtype is tc.float32 else 2e-2 if dtype is tc.bfloat16 else 3e-3
    for one, exact in zip(found, expected, strict=True):
        assert np.abs(one - exact).max() <= tolerance * np.abs(exact).max()


def test_a_batch_norm_with_its_gradients_is_one_kernel(kernels: list[Kernel]) -> None:
    program, arrays = PROGRAMS["batch norm"]
    results(program, "emu", arrays, tc.float32, back=True)
    wide = [kernel for kernel in kernels if kernel.numel == arrays[0].size]
    assert held(wide) == [["welford", "sum", "sum"]]
    assert len(wide) == 1


def test_blocks_tell_each_other_no_more_than_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tickets, then of each row the totals, then what each of its tiles contributes."""
    asked: list[int] = []
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(texts, "Exchange", lambda nbytes: asked.append(nbytes) or Exchange(nbytes))
    fill = texts.fill

    def spied(*where: str, **values: Any) -> str:
        if "parts_at" in values:
            told.append(values)
        return fill(*where, **values)

    monkeypatch.setattr(texts, "fill", spied)
    program, arrays = PROGRAMS["batch norm"]
    results(program, "emu", arrays, tc.float32, back=True)
    assert told
    rows, numbers = 6, 4  # mean, deviations and two sums
    assert asked == [8 * (2 + rows * numbers * (1 + values["parts"])) for values in told]


def test_gradients_of_an_earlier_plan_are_one_kernel(kernels: list[Kernel]) -> None:
    """The mean is in memory by then: the sums of the backward pass hold the rows alone."""
    _, arrays = PROGRAMS["batch norm"]

    def looked_at(*inputs: Tensor) -> Tensor:
        y = batch_norm(*inputs)
        y.detach().numpy()
        return y

    found = results(looked_at, "emu", arrays, tc.float32, back=True)
    assert held(kernels) == [["welford"], ["sum", "sum"]]
    for one, exact in zip(found, results(batch_norm, "cpu", arrays, tc.float32, True), strict=True):
        np.testing.assert_allclose(one, exact, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("special", [[np.inf], [np.inf, np.inf], [np.inf, -np.inf], [np.nan]])
def test_the_mean_of_infinities_is_infinite(special: list[float], kernels: list[Kernel]) -> None:
    """In one tile or in two, the first of a row among these."""
    x = normal(13, 8192)
    x[0, : len(special)] = special
    x[1, -5000::4999][: len(special)] = special

    def centred(x: Tensor) -> Tensor:
        variance, mean = tc.var_mean(x, 1, keepdim=True)
        return tc.where(variance.isnan(), x - mean, (x - mean) / variance)

    (found,) = results(centred, "emu", [x, x], tc.float32, back=False)
    assert held(kernels) == [["welford"]]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found[:2], x[:2] - x[:2].mean(1, keepdims=True))


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    x = normal(*SHAPE) + np.float32(3e4)
    (found,) = results(batch_norm, "emu", [x, *CHANNELS, x], tc.float32, back=False)
    wide = x.astype(np.float64)
    weight, bias = (one.astype(np.float64).reshape(1, -1, 1, 1) for one in CHANNELS)
    mean, variance = wide.mean((0, 2, 3), keepdims=True), wide.var((0, 2, 3), keepdims=True)
    exact = (wide - mean) / np.sqrt(variance + 1e-5) * weight + bias
    # A float32 near 3e4 has a last place of 2e-3, and so has the mean.
    assert np.abs(found - exact).max() < 8e-3


def test_what_is_not_finite_stays_in_its_row() -> None:
    x = normal(*SHAPE)
    x[1, 2, 3, 4], x[0, 5, 0, 0] = np.inf, np.nan
    (found,) = results(batch_norm, "emu", [x, *CHANNELS, x], tc.float32, back=False)
    assert np.isnan(found[:, 5]).all() and np.isnan(found[:, 2]).all()
    assert np.isfinite(found[:, [0, 1, 3, 4]]).all()


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_any_order_of_threads_gives_the_same_bits(order: int) -> None:
    program, arrays = PROGRAMS["batch norm"]
    first = results(program, "emu", arrays, tc.float32, back=True)
    with settings.override(emu_order=order):
        for one, other in zip(
            first, results(program, "emu", arrays, tc.float32, True), strict=True
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("while (!tgc_emu_mbarrier_try_wait(barrier, parity)) {}", ""),
        ("try_wait(barrier, parity)", "try_wait(barrier, parity ^ 1)"),
        ("tgc_emu_mbarrier_arrive(barrier, bytes)", "tgc_emu_mbarrier_arrive(barrier, 0)"),
    ],
    ids=["no wait", "wrong phase", "no bytes expected"],
)
def test_faults_of_bulk_copies_show(part: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies take effect at the wait for their barrier at the latest."""
    program, arrays = PROGRAMS["batch norm"]
    right = results(program, "emu", arrays, tc.float32, back=True)
    text = pack.grid_reduce_prelude()
    assert part in text
    monkeypatch.setattr(pack, "grid_reduce_prelude", lambda: text.replace(part, other))

    def same(order: int) -> bool:
        cache.clear()
        with settings.override(emu_order=order):
            try:
                found = results(program, "emu", arrays, tc.float32, back=True)
            except KernelFault:
                return False
        return all(np.array_equal(*pair) for pair in zip(found, right, strict=True))

    assert not all(same(order) for order in range(5))


def test_launches_one_after_another_tell_their_words_apart() -> None:
    """The same memory between blocks, other values."""
    _, arrays = PROGRAMS["batch norm"]
    for turn in range(4):
        changed = [arrays[0] * (turn + 1) + turn, *arrays[1:]]
        (found,) = results(batch_norm, "emu", changed, tc.float32, back=False)
        (exact,) = results(batch_norm, "cpu", changed, tc.float32, back=False)
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=2e-5)


def softmax(x: Tensor) -> Tensor:
    """Maxima and sums, one behind the other."""
    return x.softmax(1)


def absolute(x: Tensor) -> Tensor:
    """A sum that needs a finished mean, and is not linear in it."""
    away = x - x.mean((0, 2, 3), keepdim=True)
    return away / away.abs().mean((0, 2, 3), keepdim=True)


def turned(x: Tensor, other: Tensor) -> Tensor:
    """An operand that does not lie as the rows do."""
    return x - x.mean((0, 2, 3), keepdim=True) + other.permute(0, 1, 3, 2)


@pytest.mark.parametrize(
    ("program", "arrays"),
    [
        (softmax, [normal(7, 8192), normal(7, 8192)]),
        (absolute, [normal(*SHAPE), normal(*SHAPE)]),
        (turned, [normal(*SHAPE), normal(*SHAPE, seed=2), normal(*SHAPE)]),
    ],
    ids=["softmax", "absolute", "turned"],
)
def test_what_does_not_fit_takes_the_other_way(
    program: Program, arrays: list[np.ndarray], kernels: list[Kernel]
) -> None:
    found = results(program, "emu", arrays, tc.float32, back=True)
    for one, exact in zip(found, results(program, "cpu", arrays, tc.float32, True), strict=True):
        np.testing.assert_allclose(one, exact, rtol=1e-4, atol=2e-5)
    assert all("max" not in names and "abs" not in names for names in held(kernels))


def test_two_of_them_never_run_at_one_time(kernels: list[Kernel]) -> None:
    """Blocks that wait for each other would take each other's room."""
    _, arrays = PROGRAMS["batch norm"]
    x, weight, bias, other = (tc.tensor(array, device="emu") for array in arrays)
    found = batch_norm(x, weight, bias), batch_norm(other, weight, bias)
    found[0].numpy()  # both are pending, so both are of one plan
    first, second = (kernel for kernel in kernels if kernel.grid)
    assert second.waits_for(first) or first.waits_for(second)
