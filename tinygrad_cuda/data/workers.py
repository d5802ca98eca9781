"""Workers that make batches ahead: threads, or processes that are spawned.

Each worker is an executor of one thread or process; batch k is made by worker k modulo their
number, as in PyTorch.
"""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import random
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError, DataError
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.data.dataset import (
    IterableDataset,
    as_indices,
    collate,
    each,
    fetch,
    gather,
)
from tinygrad_cuda.data.randomness import loading, sample
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import set_default_device, tensor
from tinygrad_cuda.tensors.random import manual_seed

_THREAD = threading.local()


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker is.

    Attributes:
        id: its number, from 0.
        num_workers: how many there are.
        seed: a seed of its own.
        dataset: the data set; in a process its own copy.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """What the worker is that runs this code; None outside of workers.

    Example:
        >>> get_worker_info() is None
        True
    """
    return getattr(_THREAD, "info", None)


@dataclass(frozen=True)
class Recipe:
    """How batches of a pass are made; goes to spawned processes as it is.

    Attributes:
        dataset, collate_fn: as given to the DataLoader.
        batch_size: samples in a batch of an iterable data set; None for single samples.
        drop_last: leave out a short last batch of an iterable data set.
        batched: orders are lists of indices, not indices.
    """

    dataset: Any
    collate_fn: Callable[[Any], Any] | None
    batch_size: int | None
    drop_last: bool
    batched: bool

    def make(self, seed: int, epoch: int, order: Any) -> Any:
        """One batch of a data set with an index, or one sample when batching is off."""
        with loading(seed, epoch):
            if not self.batched:
                one = fetch(self.dataset, order)
                if self.collate_fn is None:
                    return one
                with sample(order):
                    return self.collate_fn(one)
            if self.collate_fn is None:
                return gather(self.dataset, as_indices(order))
            return self.collate_fn(each(self.dataset, order))

    def stream(self, seed: int, epoch: int) -> Iterator[Any]:
        """The batches of an iterable data set, or this worker's part of them."""
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        numbers = itertools.count(start, step)  # of the samples, if workers take them in turn
        samples, ended = iter(self.dataset), False
        while not ended:
            part: list[Any] = []
            with loading(seed, epoch):  # not around the yield, where the user's code runs
                while not ended and len(part) < (self.batch_size or 1):
                    with sample(next(numbers)):
                        for one in itertools.islice(samples, 1):
                            part.append(one)
                            break
                        else:
                            ended = True
                short = self.batch_size is not None and len(part) < self.batch_size
                if not part or (short and self.drop_last):
                    return
                if self.batch_size is None:
                    made = part[0] if self.collate_fn is None else self.collate_fn(part[0])
                else:
                    made = (self.collate_fn or collate)(part)
            yield made


END = "the end of an iterable data set"


# Inside a worker --------------------------------------------------------------------------------


def _begin(info: WorkerInfo, init: Callable[[int], None] | None) -> None:
    """The first thing that a worker does; what fails then fails its first batch."""
    _THREAD.info = info
    _THREAD.streams = {}
    _THREAD.failed = None
    try:
        if init is not None:
            init(info.id)
    except Exception as error:
        _THREAD.failed = error


def _work(recipe: Recipe, seed: int, epoch: int, turn: int, order: Any) -> Any:
    """One batch; the next one of a stream where there is no order."""
    if _THREAD.failed is not None:
        raise _THREAD.failed
    if not isinstance(recipe.dataset, IterableDataset):
        return recipe.make(seed, epoch, order)
    if turn not in _THREAD.streams:
        _THREAD.streams[turn] = recipe.stream(seed, epoch)
    return next(_THREAD.streams[turn], END)


def _forget(turn: int) -> None:
    """A pass over a stream is over."""
    _THREAD.streams.pop(turn, None)


def _begin_process(content: bytes, number: int, count: int, seed: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process sees it, and ends this one
    set_default_device("cpu")  # the GPU belongs to the process that trains
    manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (for data sets that use the global state)
    try:
        _THREAD.recipe, init = pickle.loads(content)
    except Exception as error:
        _begin(WorkerInfo(number, count, seed, None), None)
        _THREAD.recipe, _THREAD.failed = None, error
        return
    _begin(WorkerInfo(number, count, seed, _THREAD.recipe.dataset), init)


@dataclass
class _Failure:
    """An exception sent from a process; the content is None if it cannot be pickled."""

    content: bytes | None
    name: str
    text: str


@dataclass
class _Moved:
    """A Tensor sent from a process."""

    array: Any


def _work_in_process(seed: int, epoch: int, turn: int, order: Any) -> Any:
    try:
        batch = _work(_THREAD.recipe, seed, epoch, turn, order)
        moved = [_Moved(x.array()) if isinstance(x, TensorBase) else x for x in leaves(batch)]
        return rebuilt(batch, iter(moved))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        try:
            content = pickle.dumps(error)
            pickle.loads(content)
        except Exception:
            return _Failure(None, type(error).__name__, text)
        return _Failure(content, type(error).__name__, text)


# Outside ----------------------------------------------------------------------------------------


class Workers:
    """Some workers, ready to make batches.

    Args:
        recipe: how batches are made.
        count: how many there are.
        spawn: processes instead of threads.
        seed: worker k gets seed + k.
        init: called with its number in each worker, before anything else.
        timeout: seconds that a batch may take; 0 is no limit.

    Attributes:
        lost: a worker has died or is late; none of them can be used again.

    Raises:
        ArgumentError: processes are asked for, and the recipe or init cannot be pickled.
    """

    def __init__(
        self, recipe: Recipe, count: int, spawn: bool, seed: int,
        init: Callable[[int], None] | None, timeout: float,
    ) -> None:  # fmt: skip
        self.recipe, self.count, self.spawn, self.timeout = recipe, count, spawn, timeout
        self.pools: list[ThreadPoolExecutor | ProcessPoolExecutor] = []
        self.lost = False
        self._turns = itertools.count()
        content = _pickled(recipe, init) if spawn else b""
        for number in range(count):
            if spawn:
                context = multiprocessing.get_context("spawn")
                arguments: Any = (content, number, count, seed + number)
                self.pools.append(ProcessPoolExecutor(1, context, _begin_process, arguments))
            else:
                info = WorkerInfo(number, count, seed + number, recipe.dataset)
                name = f"DataLoader-{number}"
                self.pools.append(ThreadPoolExecutor(1, name, _begin, (info, init)))

    def batches(self, orders: Iterable[Any], seed: int, epoch: int, ahead: int) -> Iterator[Any]:
        """The batches in order, `ahead` of them in flight for each worker."""
        waiting: deque[tuple[int, Any, Future[Any]]] = deque()
        streaming = isinstance(self.recipe.dataset, IterableDataset)
        ended: set[int] = set()
        turn = next(self._turns)
        try:
            for number, order in enumerate(orders):
                if streaming and len(ended) == self.count:
                    break
                if number % self.count in ended:
                    continue
                waiting.append((number, order, self._submit(number, seed, epoch, turn, order)))
                if len(waiting) > self.count * ahead:
                    yield from self._next(waiting, ended)
            while waiting:
                yield from self._next(waiting, ended)
        finally:
            for _, _, future in waiting:
                future.cancel()
            if streaming and not self.lost:
                for pool in self.pools:
                    pool.submit(_forget, turn)

    def _submit(self, number: int, seed: int, epoch: int, turn: int, order: Any) -> Future[Any]:
        pool = self.pools[number % self.count]
        try:
            if self.spawn:
                return pool.submit(_work_in_process, seed, epoch, turn, order)
            return pool.submit(_work, self.recipe, seed, epoch, turn, order)
        except BrokenProcessPool as error:  # it died while it had nothing to do
            dead: Future[Any] = Future()
            dead.set_exception(error)
            return dead

    def _next(self, waiting: deque[tuple[int, Any, Future[Any]]], ended: set[int]) -> Iterator[Any]:
        number, order, future = waiting.popleft()
        batch = self._result(number % self.count, order, future)
        if isinstance(batch, str) and batch == END:
            ended.add(number % self.count)
        else:
            yield batch

    def _result(self, worker: int, order: Any, future: Future[Any]) -> Any:
        kind = "process" if self.spawn else "thread"
        try:
            batch = future.result(self.timeout or None)
        except BrokenProcessPool as error:
            self.lost = True
            raise DataError(
                "DataLoader", f"worker {worker} has ended without a word",
                expect="a batch", actual=str(error),
                hint="it was killed (out of memory?), or the script starts its work outside of "
                "if __name__ == '__main__', where each process would start it again",
            ) from None  # fmt: skip
        except FutureTimeoutError as error:
            if future.done():  # the data set's own
                raise error
            self.lost = True
            raise DataError(
                "DataLoader", f"worker {worker} is late", expect=f"a batch within {self.timeout} s",
                actual="none", hint="a larger timeout, or 0 for none",
            ) from None  # fmt: skip
        except Exception as error:
            error.add_note(f"in DataLoader worker {worker} ({kind}), for samples {order}")
            raise
        if isinstance(batch, _Failure):
            raise _raised(batch, worker, order)
        if not self.spawn:
            return batch
        values = [tensor(x.array) if isinstance(x, _Moved) else x for x in leaves(batch)]
        return rebuilt(batch, iter(values))

    def close(self) -> None:
        """Ends them; waits for what they are doing, unless one of them is lost."""
        for pool in self.pools if self.lost else ():
            processes = getattr(pool, "_processes", None) or {}
            for process in list(processes.values()):
                process.kill()
        for pool in self.pools:
            pool.shutdown(wait=self.spawn or not self.lost, cancel_futures=True)


def _pickled(recipe: Recipe, init: Callable[[int], None] | None) -> bytes:
    try:
        return pickle.dumps((recipe, init))
    except Exception as error:
        raise ArgumentError(
            "DataLoader", "this cannot be pickled to a process",
            expect="a data set, collate_fn and worker_init_fn from the top of a module",
            actual=f"{type(error).__name__}: {error}",
            hint="multiprocessing_context=None makes the workers threads",
        ) from error  # fmt: skip


def _raised(failure: _Failure, worker: int, order: Any) -> Exception:
    """The exception of a process, with the traceback that it had there."""
    note = f"in DataLoader worker {worker} (process), for samples {order}\n{failure.text}"
    if failure.content is None:
        return DataError(
            "DataLoader", f"worker {worker} has failed with {failure.name}", expect="a batch",
            actual=note,
        )  # fmt: skip
    error: Exception = pickle.loads(failure.content)
    error.add_note(note)
    return error
