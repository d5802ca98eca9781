"""Workers of a DataLoader, threads and spawned processes: same batches, errors, ends, seeds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.errors import ArgumentError, DataError, ShapeError
from tinygrad_cuda.data import (
    ChainDataset,
    DataLoader,
    Dataset,
    ImageDataset,
    IterableDataset,
    default_collate,
    get_worker_info,
)
from tinygrad_cuda.data.randomness import randomness

NOISE, WHO, BROKEN, STRANGE, KILLED, INITIAL, CUDA = range(7)
initial: list[int] = []


class TwoParts(Exception):
    """Cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


class Probe(Dataset):
    """Tells about the worker that makes the sample, or fails, as the index says."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        kind, number = divmod(index, 10)
        if kind == BROKEN:
            raise ShapeError("probe", "it is broken", expect="nothing", actual=f"sample {number}")
        if kind == STRANGE:
            raise TwoParts("one", "two")
        if kind == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == NOISE:
            return randomness().random(), number
        info = get_worker_info()
        assert info is not None
        assert info.dataset.__class__ is Probe
        if kind == WHO:
            return info.id, info.num_workers, info.seed, os.getpid()
        return (len(initial), initial[-1]) if kind == INITIAL else "cuda" in sys.modules


class Order(list[int]):
    """The indices of the next pass."""

    def of(self, kind: int, count: int = 4) -> None:
        self[:] = [10 * kind + number for number in range(count)]


def note_worker(number: int) -> None:
    initial.append(number)


def as_tensors(samples: list[Any]) -> Any:
    """A collate_fn that makes Tensors, keeping an array and a text beside them."""
    return {"batch": default_collate(samples), "array": np.asarray(samples), "text": "a text"}


def steered(order: Order, **options: Any) -> DataLoader:
    return DataLoader(Probe(), 2, sampler=order, num_workers=2, seed=7, **options)


@pytest.fixture(scope="module")
def order() -> Order:
    return Order()


@pytest.fixture(scope="module")
def spawned(order: Order) -> DataLoader:
    """One pair of processes for all tests that leave them alive."""
    return steered(
        order,
        collate_fn=as_tensors,
        multiprocessing_context="spawn",
        persistent_workers=True,
        worker_init_fn=note_worker,
        timeout=60,
    )


def noise(loader: DataLoader) -> list[Any]:
    return [(batch["batch"][0].tolist(), batch["array"].tolist()) for batch in loader]


def test_processes_make_the_batches_of_the_main_thread(spawned: DataLoader, order: Order) -> None:
    """Random numbers included, which also change from pass to pass; Tensors are on the default."""
    order.of(NOISE, 7)
    plain = DataLoader(Probe(), 2, sampler=order, seed=7, collate_fn=as_tensors)
    threads = steered(order, collate_fn=as_tensors)
    state = spawned.state_dict()
    for loader in (plain, threads):
        loader.load_state_dict(state)
    first, second = noise(spawned), noise(spawned)
    assert first != second
    assert [first, second] == [noise(plain), noise(plain)] == [noise(threads), noise(threads)]
    batch = next(iter(spawned))
    assert isinstance(batch["batch"][0], tc.Tensor)
    assert batch["batch"][0].device == tc.tensor(0).device
    assert type(batch["array"]) is np.ndarray
    assert batch["array"].flags.writeable
    assert batch["text"] == "a text"


def test_worker_info_of_processes(spawned: DataLoader, order: Order) -> None:
    """Two workers in turn, each in a process of its own that stays, with a seed of its own."""
    order.of(WHO, 8)
    passes = [[batch["array"].tolist() for batch in spawned] for _ in range(2)]
    workers = [batch[0] for batch in passes[0]]
    assert [worker[0] for worker in workers] == [0, 1, 0, 1]
    assert {worker[1] for worker in workers} == {2}
    assert len({worker[2] for worker in workers}) == 2
    assert len({worker[3] for worker in workers} - {os.getpid()}) == 2
    assert [b[0][3] for b in passes[1]] == [worker[3] for worker in workers]
    order.of(INITIAL)
    assert [batch["array"][0].tolist() for batch in spawned] == [[1, 0], [1, 1]]
    assert get_worker_info() is None


def test_processes_leave_the_gpu_alone(spawned: DataLoader, order: Order) -> None:
    """They make Tensors, and have not even loaded the driver's binding."""
    order.of(CUDA)
    assert not any(batch["array"].any() for batch in spawned)


def test_errors_of_processes(spawned: DataLoader, order: Order) -> None:
    """The type is the original one; the worker's own lines and the sample are in the notes."""
    order[:] = [0, 1, 20, 21]
    iterator = iter(spawned)
    next(iterator)
    with pytest.raises(ShapeError, match="it is broken") as caught:
        next(iterator)
    notes = "\n".join(caught.value.__notes__)
    assert "worker 1" in notes
    assert "sample 20" in notes
    assert "in __getitem__" in notes
    order.of(STRANGE)
    with pytest.raises(DataError, match="TwoParts") as strange:
        list(spawned)
    assert "onetwo" in str(strange.value)
    order.of(WHO, 2)
    assert len(list(spawned)) == 1


def processes() -> list[Any]:
    return multiprocessing.active_children()


def test_a_killed_process_is_an_error(spawned: DataLoader, order: Order) -> None:
    """Not a hang; the other worker is ended with it."""
    order.of(WHO)
    assert len(list(spawned)) == 2
    assert len(processes()) == 2
    order.of(KILLED)
    with pytest.raises(DataError, match="worker 0"):
        list(spawned)
    assert not processes()


def test_what_cannot_be_pickled_is_refused() -> None:
    loader = DataLoader(
        [1, 2], num_workers=1, collate_fn=lambda batch: batch, multiprocessing_context="spawn"
    )
    with pytest.raises(ArgumentError, match="pickle"):
        list(loader)


# Threads ----------------------------------------------------------------------------------------


def test_worker_info_and_errors_of_threads() -> None:
    order = Order()
    order.of(WHO, 6)
    loader = steered(order, persistent_workers=True)
    assert [batch[0].tolist() for batch in loader] == [[0, 0], [1, 1], [0, 0]]
    order.of(STRANGE)
    with pytest.raises(TwoParts, match="onetwo") as caught:
        list(loader)
    assert "sample 30" in "\n".join(caught.value.__notes__)
    order.of(NOISE)
    assert len(list(loader)) == 2


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("DataLoader")}


@pytest.mark.parametrize("persistent", [False, True])
def test_leaving_early_and_starting_anew(persistent: bool) -> None:
    """Without persistent_workers no thread is left; with them the same threads serve again."""
    order = Order()
    order.of(NOISE, 8)
    others = threads()
    loader = steered(order, persistent_workers=persistent)
    for _ in loader:
        break
    alive = threads() - others
    assert len(alive) == (2 if persistent else 0)
    assert len(list(loader)) == 4
    assert threads() - others == alive
    del loader
    assert not any(thread.is_alive() for thread in alive)


def test_a_worker_that_cannot_begin() -> None:
    def fail(number: int) -> None:
        raise ValueError(f"worker {number} will not")

    order = Order()
    order.of(NOISE)
    with pytest.raises(ValueError, match="worker 0 will not"):
        list(steered(order, worker_init_fn=fail))


def test_timeout() -> None:
    """A worker that does not come back is an error, and nobody waits for it."""
    gate = threading.Event()

    class Stuck(Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            assert gate.wait(60)
            return index

    try:
        with pytest.raises(DataError, match=r"0\.01 s"):
            list(DataLoader(Stuck(), num_workers=1, timeout=0.01))
    finally:
        gate.set()


def test_random_transforms_do_not_depend_on_the_batches() -> None:
    """Neither on their size, nor on the number of workers, nor on a collate_fn."""

    def shake(image: Any) -> Any:
        return image + randomness().random()

    data = ImageDataset(np.zeros((9, 2, 2), np.uint8), np.arange(9), shake)
    found = [
        np.concatenate([np.asarray(x.tolist()) for x, _ in DataLoader(data, seed=1, **options)])
        for options in (
            {"batch_size": 9},
            {"batch_size": 2},
            {"batch_size": 4, "num_workers": 2},
            {"batch_size": 4, "collate_fn": default_collate},
        )
    ]
    assert len(np.unique(found[0][:, 0, 0, 0])) == 9
    for other in found[1:]:
        assert np.array_equal(other, found[0])


# Streams ----------------------------------------------------------------------------------------


class Count(IterableDataset):
    """Numbers from `first` up to `end`, shared among the workers, each with a random number."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(self.first + start, self.end, step))

    def __len__(self) -> int:
        return self.end - self.first


def test_streams() -> None:
    """Single samples and batches, short ones and not, chained, and shared among threads."""
    stream = Count(0, 7)
    loader = DataLoader(stream, 3)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(loader) == 3
    short = DataLoader(stream, 3, drop_last=True)
    assert len(short) == len(list(short)) == 2
    assert list(DataLoader(Count(0, 2), None)) == [0, 1]
    chained = DataLoader(ChainDataset([Count(0, 2), Count(7, 9)]), 3)
    assert [batch.tolist() for batch in chained] == [[0, 1, 7], [8]]
    both = stream + Count(7, 9)
    assert isinstance(both, ChainDataset)
    assert len(both) == 9
    for _ in range(2):
        shared = DataLoader(stream, 2, num_workers=2, persistent_workers=True)
        for _ in range(2):
            assert [batch.tolist() for batch in shared] == [[0, 2], [1, 3], [4, 6], [5]]
    for wrong in ({"shuffle": True}, {"sampler": [0]}):
        with pytest.raises(ArgumentError, match="IterableDataset"):
            DataLoader(stream, **wrong)


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_resume(workers: int) -> None:
    loader = DataLoader(Count(0, 12), 2, num_workers=workers)
    whole, states = [], []
    for batch in loader:
        whole.append(batch.tolist())
        states.append(loader.state_dict())
    for number, state in enumerate(states):
        other = DataLoader(Count(0, 12), 2, num_workers=workers)
        other.load_state_dict(state)
        assert [batch.tolist() for batch in other] == whole[number + 1 :]


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": 1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"multiprocessing_context": "spawn"},
        {"num_workers": 1, "prefetch_factor": 0},
        {"num_workers": 1, "timeout": -1},
        {"num_workers": 1, "multiprocessing_context": "fork"},
    ],
)
def test_refused_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="DataLoader"):
        DataLoader([1, 2], **arguments)
