"""Samplers: the order in which a DataLoader visits a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.tensor.random import Generator, default_generator


class Shuffler:
    """Random choices that depend on a seed and an epoch, and on nothing else.

    Args:
        generator: gives the seed; the default stream, which ``tc.manual_seed`` sets, when left out.
        seed: the seed itself, instead of a generator.

    Raises:
        ArgumentError: both are given.
    """

    def __init__(self, generator: Generator | None, seed: int | None) -> None:
        if generator is not None and seed is not None:
            raise ArgumentError(
                "shuffle", "two sources of the order", expect="generator or seed", actual="both"
            )
        self.generator = default_generator if generator is None else generator
        self.seed = seed

    def random(self, epoch: int) -> np.random.Generator:
        """A fresh stream for an epoch."""
        seed = self.generator.initial_seed() if self.seed is None else self.seed
        return np.random.default_rng([seed % 2**64, epoch])


class Sampler:
    """An order of indices: subclasses write ``__iter__`` and ``__len__``."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no __len__")


class SequentialSampler(Sampler):
    """0, 1, 2, ...

    Args:
        data_source: anything with a length.

    Example:
        >>> list(SequentialSampler("abc"))
        [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """A random order, another one each epoch, that depends on (seed, epoch) and on nothing else.

    Args:
        data_source: anything with a length.
        replacement: whether an index may come more than once.
        num_samples: how many indices an epoch has; the length of the data source when left out.
        generator: gives the seed; the default stream, which ``tc.manual_seed`` sets, when left out.
        seed: the seed itself, instead of a generator.

    Raises:
        ArgumentError: num_samples is not positive, there is nothing to draw from, or generator and
            seed are both given.

    Example:
        >>> sampler = RandomSampler(range(4), seed=3)
        >>> first, second = list(sampler), list(sampler)
        >>> sampler.set_epoch(0)
        >>> list(sampler) == first, sorted(second)
        (True, [0, 1, 2, 3])
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        if num_samples is not None and num_samples <= 0:
            raise ArgumentError(
                "RandomSampler", "bad num_samples", expect="at least 1", actual=str(num_samples)
            )
        self.data_source = data_source
        self.replacement = replacement
        self.num_samples = num_samples
        self.shuffler = Shuffler(generator, seed)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass the given epoch, as when a run is resumed."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        random = self.shuffler.random(self.epoch)
        self.epoch += 1
        return self._draw(random)

    def _draw(self, random: np.random.Generator) -> Iterator[int]:
        n, left = len(self.data_source), len(self)
        if left and not n:
            raise ArgumentError(
                "RandomSampler",
                "there is nothing to draw from",
                expect="a data set with samples",
                actual="length 0",
            )
        if self.replacement:
            yield from random.integers(0, n, left).tolist()
            return
        while left > 0:
            order = random.permutation(n)[:left].tolist()
            left -= len(order)
            yield from order

    def __len__(self) -> int:
        return len(self.data_source) if self.num_samples is None else self.num_samples


class BatchSampler(Sampler):
    """Gathers the indices of another sampler into lists.

    Args:
        sampler: gives the indices.
        batch_size: indices in a batch.
        drop_last: leaves out the last batch when it is short.

    Raises:
        ArgumentError: batch_size is not a positive whole number.

    Example:
        >>> list(BatchSampler(SequentialSampler("abcde"), 2, drop_last=False))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ArgumentError(
                "BatchSampler",
                "bad batch_size",
                expect="a whole number of at least 1",
                actual=repr(batch_size),
            )
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(f"{type(self.sampler).__name__} has no length")
        whole, rest = divmod(len(self.sampler), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)
