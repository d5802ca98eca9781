"""DataLoader: batches of Tensors from a data set, in an order that (seed, epoch) determine."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.data.dataset import IterableDataset, collate
from tinygrad_cuda.data.prefetch import prefetched
from tinygrad_cuda.data.sampler import BatchSampler, RandomSampler, SequentialSampler, Shuffler
from tinygrad_cuda.data.workers import Recipe, Workers
from tinygrad_cuda.data.workers import get_worker_info as get_worker_info
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.random import Generator

AHEAD = 2  # batches that each worker prepares ahead
# What the order and the workers are made of when a loader is made.
FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader:
    """Iterates over a data set in batches of Tensors on the default device.

    Data sets made of arrays (`TensorDataset`, `MNIST`, a `Subset` of them) are indexed once per
    batch; other samples are gathered one by one. What random transforms draw for a sample depends
    on (seed, epoch, index) alone, so neither workers nor the batch size change it.

    Args:
        dataset: anything with a length and an index, or an `IterableDataset`.
        batch_size: samples in a batch; None gives single samples, as the data set returns them.
        shuffle: another random order each epoch.
        sampler: an order of indices, instead of shuffle.
        batch_sampler: lists of indices, instead of batch_size, shuffle, sampler and drop_last.
        num_workers: workers that prepare batches ahead; the order does not depend on it.
        collate_fn: makes a batch from a list of samples, instead of `default_collate`.
        pin_memory: on a GPU, copy each batch through pinned memory while the GPU works on the one
            before; elsewhere nothing is copied ahead. Arrays of a collate_fn become Tensors too.
        drop_last: leaves out the last batch when it is short.
        timeout: seconds that a batch may take a worker; 0 is no limit.
        worker_init_fn: called in each worker with its number; see `get_worker_info`.
        multiprocessing_context: None for threads (NumPy releases the lock while it works),
            ``"spawn"`` for processes: these import the program again, and data set, collate_fn and
            worker_init_fn are pickled to them.
        generator: gives the seed of the order; the default stream, which ``tc.manual_seed`` sets,
            when left out.
        prefetch_factor: batches that each worker prepares ahead; 2 if left out.
        persistent_workers: keep the workers between epochs.
        pin_memory_device: accepted as in PyTorch.
        in_order: accepted as in PyTorch: batches always come in order.
        seed: the seed itself, instead of a generator.

    Raises:
        ArgumentError: arguments that exclude each other, or values that make no sense.
        DataError: while iterating: a worker was killed or is late. What a sample raises arrives as
            it is, with a note that names worker and samples.

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
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
    ) -> None:
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler or drop_last):
            _refuse(
                "batch_sampler decides everything",
                "no batch_size, shuffle, sampler or drop_last beside it",
                f"batch_size={batch_size}, shuffle={shuffle}, sampler={sampler}, "
                f"drop_last={drop_last}",
            )
        if sampler is not None and shuffle:
            _refuse("two orders", "sampler or shuffle=True", "both")
        if batch_size is None and drop_last:
            _refuse("there are no batches", "a batch_size for drop_last=True", "batch_size=None")
        spawn = _is_spawn(multiprocessing_context)
        _check_workers(num_workers, timeout, spawn, prefetch_factor, persistent_workers)
        streaming = isinstance(dataset, IterableDataset)
        if streaming and (shuffle or sampler is not None or batch_sampler is not None):
            _refuse("an IterableDataset has its own order",
                    "no shuffle, sampler or batch_sampler", "one of them")  # fmt: skip
        self._shuffler = Shuffler(generator, seed)
        if sampler is None and batch_sampler is None and not streaming:
            sampler = SequentialSampler(dataset)
            if shuffle:
                sampler = RandomSampler(dataset, generator=generator, seed=seed)
                self._shuffler = sampler.shuffler
        if sampler is not None and batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.dataset = dataset
        self.batch_size = batch_size if sampler is not None or streaming else None
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.prefetch_factor = prefetch_factor or (AHEAD if num_workers else None)
        self.persistent_workers = persistent_workers
        self._spawn = spawn
        batched = batch_sampler is not None
        self._recipe = Recipe(dataset, collate_fn, self.batch_size, drop_last, batched)
        self._persistent: Workers | None = None
        self.generator, self.multiprocessing_context = generator, multiprocessing_context
        self._epoch = self._done = self._skip = 0
        self._start: dict[str, Any] | None = None  # the state when the present pass began

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and "_start" in self.__dict__:
            _refuse(f"{name} is fixed", "another DataLoader for another value", repr(value))
        super().__setattr__(name, value)

    # Passes ---------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        start = self.state_dict() if self._skip else self._boundary()
        skip, self._skip = self._skip, 0
        seed, epoch = start["seed"], start["epoch"]
        orders = self._orders()
        orders = itertools.islice(iter(orders), 0 if self._is_stream() else skip, None)
        self._start, self._done, self._epoch = {**start, "batches": 0}, skip, epoch + 1
        batches = self._batches(orders, seed, epoch)
        if self._is_stream():
            batches = itertools.islice(batches, skip, None)
        if self.pin_memory:
            batches = prefetched(batches)
        elif self.collate_fn is None:
            batches = map(to_tensors, batches)  # in the user's own thread
        return self._counted(batches, self._start)

    def _counted(self, batches: Iterator[Any], start: dict[str, Any]) -> Iterator[Any]:
        try:
            for batch in batches:
                if self._start is start:  # no later pass has begun
                    self._done += 1
                yield batch
            if self._start is start:
                self._start, self._done = None, 0
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _batches(self, orders: Iterator[Any], seed: int, epoch: int) -> Iterator[Any]:
        """The batches of a pass as arrays."""
        if not self.num_workers:
            if self._is_stream():
                yield from self._recipe.stream(seed, epoch)
            else:
                for order in orders:
                    yield self._recipe.make(seed, epoch, order)
            return
        workers = self._workers(seed, epoch)
        try:
            yield from workers.batches(orders, seed, epoch, self.prefetch_factor or AHEAD)
        finally:
            if workers.lost or not self.persistent_workers:
                if self._persistent is workers:
                    self._persistent = None
                workers.close()

    def _workers(self, seed: int, epoch: int) -> Workers:
        """Those of earlier passes, or new ones."""
        if self._persistent is not None:
            return self._persistent
        # Workers of another epoch have other seeds: what draws from NumPy's own state differs.
        (own,) = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64).tolist()
        workers = Workers(
            self._recipe, self.num_workers, self._spawn, own >> 2, self.worker_init_fn, self.timeout
        )
        if self.persistent_workers:
            self._persistent = workers
            weakref.finalize(self, workers.close)
        return workers

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        if self._is_stream():
            count = len(self.dataset)
            size = self.batch_size or 1
            return count // size if self.drop_last else -(-count // size)
        orders = self._orders()
        if not isinstance(orders, Sized):
            raise TypeError(f"{type(orders).__name__} has no length")
        return len(orders)

    def _is_stream(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    def _orders(self) -> Iterable[Any]:
        """Lists of indices, or single indices when batching is off."""
        if self._is_stream():
            return itertools.repeat(None)
        orders = self.sampler if self.batch_sampler is None else self.batch_sampler
        assert orders is not None  # __init__ made one of them
        return orders

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass the given one, from 0."""
        self._epoch, self._skip, self._start = epoch, 0, None
        change = getattr(self._stateful(), "set_epoch", None)
        if change is not None:
            change(epoch)

    # Resuming -------------------------------------------------------------------------------------

    def _boundary(self) -> dict[str, Any]:
        """The state between two passes."""
        state = getattr(self._stateful(), "state_dict", None)
        return {
            "seed": self._shuffler.current_seed(),
            "epoch": self._epoch,
            "batches": 0,
            "order": self._kind(),
            "sampler": None if state is None else state(),
        }

    def _kind(self) -> list[Any]:
        """What must be the same for a state to fit."""
        sizes = self.batch_sampler if self.batch_size is None else self
        return [type(self._stateful()).__name__, getattr(sizes, "batch_size", None), self.drop_last]

    def _stateful(self) -> Any:
        """The sampler that decides the order."""
        if self.sampler is not None:
            return self.sampler
        own = hasattr(self.batch_sampler, "state_dict")
        return self.batch_sampler if own else getattr(self.batch_sampler, "sampler", None)

    def state_dict(self) -> dict[str, Any]:
        """The position of the present pass: its first state, and the batches that it has yielded.

        Batches that workers have prepared ahead are not counted.
        """
        if self._start is not None:
            return {**self._start, "batches": self._done}
        return {**self._boundary(), "batches": self._skip}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass give what was left when `state_dict` was called.

        Raises:
            ArgumentError: the state is of a loader with another order.
        """
        wanted = {*self._boundary()}
        if not isinstance(state, Mapping) or {*state} != wanted or state["order"] != self._kind():
            raise ArgumentError(
                "DataLoader.load_state_dict", "the state is of another loader",
                expect=f"{', '.join(sorted(wanted))}; order {self._kind()}", actual=str(state),
            )  # fmt: skip
        sampler, within = self._stateful(), state["batches"]
        if not self._is_stream() and isinstance(self._orders(), Sized) and within > len(self):
            raise ArgumentError(
                "DataLoader.load_state_dict", "the pass has not so many batches",
                expect=f"batches <= {len(self)}", actual=str(within),
            )  # fmt: skip
        if state["sampler"] is not None:
            sampler.load_state_dict(state["sampler"])
        self._shuffler.seed = int(state["seed"])
        self._epoch, self._skip = int(state["epoch"]), int(state["batches"])
        self._start, self._done = None, 0


def _is_spawn(context: Any) -> bool:
    name = context if isinstance(context, str) else getattr(context, "_name", None)
    if context is not None and name != "spawn":
        raise ArgumentError(
            "DataLoader", "workers cannot be started so",
            expect='None for threads, or "spawn" for processes', actual=repr(context),
            hint="a forked process inherits locks and a GPU context that it cannot use",
        )  # fmt: skip
    return context is not None


def _check_workers(
    count: int, timeout: float, spawn: bool, ahead: int | None, persistent: bool
) -> None:
    if count < 0:
        _refuse("num_workers is negative", "0 or more", str(count))
    if timeout < 0:
        _refuse("timeout is negative", "0 for none, or seconds", str(timeout))
    if ahead is not None and ahead < 1:
        _refuse("prefetch_factor makes no sense", "1 or more", str(ahead))
    if not count and (spawn or ahead is not None or persistent or timeout):
        _refuse(
            "there are no workers",
            "num_workers > 0 for multiprocessing_context, prefetch_factor, persistent_workers and "
            "timeout",
            "num_workers=0",
        )


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


def default_convert(data: Any) -> Any:
    """Turns the arrays in nested values into Tensors on the default device; adds no axis.

    Texts and Python numbers stay what they are, tuples become lists, as in PyTorch.

    Example:
        >>> default_convert((np.array([1, 2]), 3, "a"))[1:]
        [3, 'a']
    """
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(default_convert, data))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return [default_convert(value) for value in data]
    texts = isinstance(data, np.ndarray | np.generic) and data.dtype.kind in "SUO"
    return data if texts else to_tensors(data)


def to_tensors(batch: Any) -> Any:
    """Turns the arrays inside a batch into Tensors on the default device."""
    if isinstance(batch, np.ndarray | np.generic):
        return tensor(batch)
    if isinstance(batch, Mapping):
        return {key: to_tensors(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(to_tensors, batch))
    if isinstance(batch, tuple | list):
        return [to_tensors(part) for part in batch]
    return batch


def _refuse(message: str, expect: str, actual: str) -> None:
    raise ArgumentError("DataLoader", message, expect=expect, actual=actual)
