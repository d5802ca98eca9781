"""DataLoader: batches of Tensors from a data set, in an order that (seed, epoch) determine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.data.dataset import collate, gather
from tinygrad_cuda.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from tinygrad_cuda.tensor.creation import tensor
from tinygrad_cuda.tensor.random import Generator

AHEAD = 2  # batches that each worker prepares ahead


class DataLoader:
    """Iterates over a data set in batches of Tensors on the default device.

    Data sets made of arrays (`TensorDataset`, `MNIST`, a `Subset` of them) are indexed once per
    batch; other samples are gathered one by one.

    Args:
        dataset: anything with a length and an index.
        batch_size: samples in a batch; None gives single samples, as the data set returns them.
        shuffle: another random order each epoch.
        sampler: an order of indices, instead of shuffle.
        batch_sampler: lists of indices, instead of batch_size, shuffle, sampler and drop_last.
        num_workers: threads that prepare batches ahead; NumPy releases the lock while it copies.
            The order of the batches does not depend on it.
        collate_fn: makes a batch from a list of samples, instead of `default_collate`.
        pin_memory: not available; only False is accepted.
        drop_last: leaves out the last batch when it is short.
        generator: gives the seed of the order; the default stream, which ``tc.manual_seed`` sets,
            when left out.
        seed: the seed itself, instead of a generator.

    Raises:
        ArgumentError: arguments that exclude each other, or values that make no sense.

    Example:
        >>> loader = DataLoader(range(5), batch_size=2)
        >>> [batch.tolist() for batch in loader], len(loader)
        ([[0, 1], [2, 3], [4]], 3)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> None:
        if num_workers < 0:
            _refuse("num_workers is negative", "0 or more", str(num_workers))
        if pin_memory:
            _refuse("pin_memory is not available", "pin_memory=False", "pin_memory=True")
        if sampler is not None and shuffle:
            _refuse("two orders", "sampler or shuffle=True", "both")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler or drop_last):
            _refuse(
                "batch_sampler decides everything",
                "no batch_size, shuffle, sampler or drop_last beside it",
                f"batch_size={batch_size}, shuffle={shuffle}, sampler={sampler}, "
                f"drop_last={drop_last}",
            )
        if batch_size is None and drop_last:
            _refuse("there are no batches", "a batch_size for drop_last=True", "batch_size=None")
        if sampler is None and batch_sampler is None:
            sampler = (
                RandomSampler(dataset, generator=generator, seed=seed)
                if shuffle
                else SequentialSampler(dataset)
            )
        if sampler is not None and batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.dataset = dataset
        self.batch_size = batch_size if sampler is not None else None
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        batches = self._in_threads(order) if self.num_workers else map(self._fetch, order)
        # Tensors are made here, in the user's own thread.
        return batches if self.collate_fn is not None else map(to_tensors, batches)

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        order = self._order()
        if not isinstance(order, Sized):
            raise TypeError(f"{type(order).__name__} has no length")
        return len(order)

    def _order(self) -> Iterable[Any]:
        """Lists of indices, or single indices when batching is off."""
        order = self.sampler if self.batch_sampler is None else self.batch_sampler
        assert order is not None  # __init__ made one of them
        return order

    def _fetch(self, indices: Any) -> Any:
        """One batch, or one sample when batching is off."""
        if self.batch_sampler is None:
            sample = self.dataset[indices]
            return sample if self.collate_fn is None else self.collate_fn(sample)
        if self.collate_fn is not None:
            return self.collate_fn([self.dataset[index] for index in indices])
        return gather(self.dataset, np.asarray(indices, dtype=np.int64))

    def _in_threads(self, order: Iterable[Any]) -> Iterator[Any]:
        """The batches in order, with a few more being prepared by threads."""
        waiting: deque[Future[Any]] = deque()
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="DataLoader")
        try:
            for indices in order:
                waiting.append(pool.submit(self._fetch, indices))
                if len(waiting) > self.num_workers * AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def default_collate(samples: Sequence[Any]) -> Any:
    """Gathers samples of equal structure into Tensors with a new first axis.

    Numbers and arrays become Tensors on the default device, tuples and lists become lists, mappings
    stay mappings, named tuples keep their type, texts are listed.

    Args:
        samples: at least one.

    Raises:
        ShapeError: arrays of one position differ in shape.
        ArgumentError: a sample is of a kind that cannot be gathered.

    Example:
        >>> images, labels = default_collate([(np.zeros(2), 1), (np.ones(2), 0)])
        >>> tuple(images.shape), labels.tolist()
        ((2, 2), [1, 0])
    """
    return to_tensors(collate(samples))


def to_tensors(batch: Any) -> Any:
    """Turns the arrays inside a batch into Tensors on the default device."""
    if isinstance(batch, np.ndarray | np.generic):
        return tensor(batch)
    if isinstance(batch, Mapping):
        return {key: to_tensors(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(to_tensors, batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map(to_tensors, batch))
    return batch


def _refuse(message: str, expect: str, actual: str) -> None:
    raise ArgumentError("DataLoader", message, expect=expect, actual=actual)
