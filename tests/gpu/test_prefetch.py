"""Batches copied ahead on a stream of their own: the values of plain copies, and no more memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.data import DataLoader, Dataset
from tinygrad_cuda.data.prefetch import prefetched
from tinygrad_cuda.data.randomness import randomness

SPAWN = {"multiprocessing_context": "spawn"}

# What a pretended GPU can run in a few seconds.
PRETENDED = (
    "test_memory_stays",
    "test_a_loader_left_early_goes_on_elsewhere",
    "test_on_another_device_it_makes_tensors",
)


@pytest.fixture(autouse=True)
def on_the_gpu(some_gpu: str) -> Iterator[None]:
    tc.set_default_device(some_gpu)
    yield
    tc.set_default_device(None)


def batches(count: int, size: int = 1 << 16) -> Iterator[Any]:
    """One array that is written anew for each batch: copies must have read it in time."""
    array = np.empty(size, np.float32)
    for number in range(count):
        array[:] = number
        yield {"x": array, "y": (np.array([number, -number]), "text")}


def work(x: Any) -> Any:
    """A while of work for the GPU, so that copies run ahead of it."""
    for _ in range(3):
        x = x.reshape(256, -1).matmul(tc.eye(256)).reshape(-1)
    return x


def test_values_under_load() -> None:
    """200 batches, the work on each behind that on the one before."""
    found = []
    for batch in prefetched(batches(200)):
        y, text = batch["y"]
        assert text == "text"
        found.append((work(batch["x"]).sum(), y))
    for number, (total, y) in enumerate(found):
        assert total.item() == number * (1 << 16)
        assert y.tolist() == [number, -number]


def test_memory_stays() -> None:
    gpu = runtime.device(0)
    totals = []
    for number, batch in enumerate(prefetched(batches(60))):
        total = work(batch["x"]).sum()
        del batch
        if number in (10, 50):
            assert total.item() == number * (1 << 16)
            totals.append(gpu.memory_allocated())
    assert totals[0] == totals[1]


def test_leaving_early() -> None:
    """The copy under way may not land in memory that has a new owner by then."""
    for turn in range(40):
        iterator: Any = prefetched(batches(3, 1 << 20))
        next(iterator)
        iterator.close()
        del iterator
        mine = [tc.full((1 << 20,), float(turn)) + 0 for _ in range(4)]
        for tensor in mine:
            assert tensor.min().item() == tensor.max().item() == turn


class Rows(Dataset):
    """Row k is k; noise is drawn for each sample."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        return np.full(4096, index, np.float32), randomness().random(), index


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, **SPAWN}])
def test_a_loader_with_pinned_memory(workers: dict[str, Any]) -> None:
    """Two passes of 200 batches under load: the values of a plain loader, whoever makes them."""
    pinned = DataLoader(Rows(), 2, shuffle=True, seed=4, pin_memory=True, **workers)
    plain = DataLoader(Rows(), 2, shuffle=True, seed=4)
    for _ in range(2):
        results = []
        for rows, noise, indices in pinned:
            total = work(rows.reshape(-1).repeat(8)).sum()
            results.append((total, noise, indices))
        for (total, noise, indices), (rows, same, expected) in zip(results, plain, strict=True):
            assert indices.tolist() == expected.tolist()
            assert noise.tolist() == same.tolist()
            assert total.item() == pytest.approx(8 * rows.sum().item(), rel=1e-5)


def test_a_loader_left_early_goes_on_elsewhere() -> None:
    """What was copied ahead is not counted as handed out."""
    loader = DataLoader(Rows(), 8, shuffle=True, seed=4, pin_memory=True, num_workers=2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    other = DataLoader(Rows(), 8)
    with pytest.raises(ArgumentError):
        other.load_state_dict(loader.state_dict())
    other = DataLoader(Rows(), 8, shuffle=True, pin_memory=True)
    other.load_state_dict(loader.state_dict())
    left = [batch[2].tolist() for batch in other]
    assert len(left) == 47
    assert left == [batch[2].tolist() for batch in iterator]


def test_on_another_device_it_makes_tensors() -> None:
    tc.set_default_device("cpu")
    assert [batch["x"][0].item() for batch in prefetched(batches(3, 4))] == [0, 1, 2]
