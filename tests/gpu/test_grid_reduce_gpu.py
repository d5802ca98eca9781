"""Rows that all blocks of the GPU hold together: beside PyTorch, and the same bits every time."""

from __future__ import annotations

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.schedule import fuse_grid_reduce
from tinygrad_cuda.lowering.schedule.kernel_dag import Schedule
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.nn import functional as F

SHAPE = (96, 40, 64, 64)  # 63 MB of float32

Arrays = list["np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many kernels of each new plan hold their rows."""
    found: list[int] = []

    def spied(schedule: Schedule, target: Target) -> None:
        fuse_grid_reduce.fuse_grid_reduce(schedule, target)
        found.append(sum(kernel.grid is not None for kernel in schedule.kernels))

    monkeypatch.setattr(lower, "fuse_grid_reduce", spied)
    cache.clear()
    return found


def arrays(seed: int, *shapes: tuple[int, ...]) -> Arrays:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def normalized(given: Arrays, device: str, dtype: tc.dtype = tc.float32) -> Arrays:
    x, other, weight, bias, cotangent = (
        tc.tensor(one, device=device, dtype=dtype if one.ndim > 1 else tc.float32) for one in given
    )
    inputs = [one.requires_grad_() for one in (x, other, weight, bias)]
    y = F.softplus(F.batch_norm(x, None, None, weight, bias, training=True) + other)
    y.backward(cotangent)
    gradients = [one.grad for one in inputs]
    realize_all()
    return [one.detach().float().cpu().numpy() for one in (y, *gradients) if one is not None]


@pytest.mark.parametrize("dtype", [tc.float32, tc.bfloat16], ids=str)
def test_batch_norm_beside_pytorch(cuda_device: str, dtype: tc.dtype, held: list[int]) -> None:
    torch = pytest.importorskip("torch")
    given = arrays(1, SHAPE, SHAPE, (40,), (40,), SHAPE)
    found = normalized(given, cuda_device, dtype)
    assert 1 in held
    half = getattr(torch, str(dtype).rsplit(".", 1)[-1])
    x, other, weight, bias, cotangent = (
        torch.tensor(one, device=cuda_device).to(half if one.ndim > 1 else torch.float32)
        for one in given
    )
    wide = [one.double().requires_grad_() for one in (x, other, weight, bias)]
    normal = torch.nn.functional.batch_norm(wide[0], None, None, wide[2], wide[3], True)
    y = torch.nn.functional.softplus(normal + wide[1])
    y.backward(cotangent.double())
    tolerance = 1e-5 if dtype is tc.float32 else 2e-2
    expected = [y, *(one.grad for one in wide)]
    for one, exact in zip(found, expected, strict=True):
        reference = exact.detach().cpu().numpy()
        assert np.abs(one - reference).max() <= tolerance * np.abs(reference).max()


def test_the_same_bits_a_hundred_times(cuda_device: str, held: list[int]) -> None:
    """However the blocks come to run, and with other values in the launches between."""
    given = [arrays(seed, SHAPE, (40,), (40,)) for seed in (1, 2)]
    tensors = [[tc.tensor(one, device=cuda_device) for one in these] for these in given]

    @tc.compile
    def step(x, weight, bias):
        return F.batch_norm(x, None, None, weight, bias, training=True)

    first = [step(*these).cpu().numpy() for these in tensors]
    assert 1 in held
    for these, found in zip(given, first, strict=True):
        exact = F.batch_norm(
            *map(tc.tensor, these[:1]), None, None, *map(tc.tensor, these[1:]), True
        )
        np.testing.assert_allclose(found, exact.numpy(), rtol=1e-4, atol=2e-5)
    for turn in range(100):
        y = step(*tensors[turn % 2])
        if turn % 10 > 7:
            np.testing.assert_array_equal(y.cpu().numpy(), first[turn % 2])


def test_two_in_one_plan_run_one_after_the_other(cuda_device: str, held: list[int]) -> None:
    """As branches of a graph their blocks could wait for each other's room for ever."""
    given = arrays(3, SHAPE, SHAPE, (40,), (40,))

    @tc.compile
    def both(x, other, weight, bias):
        return [F.batch_norm(one, None, None, weight, bias, training=True) for one in (x, other)]

    tensors = [tc.tensor(one, device=cuda_device) for one in given]
    for _ in range(20):
        found = both(*tensors)
    assert 2 in held
    exact = [F.batch_norm(tc.tensor(one), None, None, *map(tc.tensor, given[2:]), training=True)
             for one in given[:2]]  # fmt: skip
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one.cpu().numpy(), other.numpy(), rtol=1e-4, atol=2e-5)
