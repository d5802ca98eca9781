"""Samplers: the order in which a DataLoader visits a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.tensors.random import Generator, default_generator

T = TypeVar("T")
DRAWN_AT_ONCE = 1 << 16  # indices that one call draws


class Shuffler:
    """Random choices that depend on a seed and an epoch, and on nothing else.

    Args:
        generator: gives the seed, another one for each that asks; the default stream, which
            ``tc.manual_seed`` sets, when left out.
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
        self._number: int | None = None  # among those that have their seed from the generator

    def current_seed(self) -> int:
        """The seed of a pass that begins now."""
        if self.seed is not None:
            return self.seed % 2**64
        if self._number is None:
            self._number = self.generator.take_order()
        seed = self.generator.initial_seed() % 2**64
        if self._number:
            sequence = np.random.SeedSequence([seed, self._number])
            (seed,) = sequence.generate_state(1, np.uint64).tolist()
        return seed

    def random(self, epoch: int) -> np.random.Generator:
        """A fresh stream for an epoch."""
        return np.random.default_rng([self.current_seed(), epoch])


class Sampler(Generic[T]):
    """An order of indices: subclasses write ``__iter__`` and ``__len__``.

    Args:
        data_source: accepted as in PyTorch's older releases; nothing is done with it.
    """

    def __init__(self, data_source: Any = None) -> None:
        """Accepts what programs pass on."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no __len__")


class SequentialSampler(Sampler[Any]):
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


class SeededSampler(Sampler[Any]):
    """A random order, another one each epoch, that depends on (seed, epoch) and on nothing else.

    Subclasses write ``draw`` and ``__len__``.

    Args:
        generator: gives the seed; the default stream, which ``tc.manual_seed`` sets, when left out.
        seed: the seed itself, instead of a generator.

    Raises:
        ArgumentError: generator and seed are both given.
    """

    def __init__(self, generator: Generator | None = None, *, seed: int | None = None) -> None:
        self.shuffler = Shuffler(generator, seed)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass the given epoch, as when a run is resumed."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        """The seed and the number of the next pass."""
        return {"seed": self.shuffler.current_seed(), "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Makes the next pass the one that `state_dict` was called before.

        From then on the seed is the one of the state, whatever ``tc.manual_seed`` sets.
        """
        self.shuffler.seed = state["seed"]
        self.epoch = state["epoch"]

    def __iter__(self) -> Iterator[int]:
        random = self.shuffler.random(self.epoch)
        self.epoch += 1
        return self.draw(random)

    def draw(self, random: np.random.Generator) -> Iterator[int]:
        """The indices of one epoch, from its own stream of random numbers."""
        raise NotImplementedError(f"{type(self).__name__} has no draw")


class RandomSampler(SeededSampler):
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
        super().__init__(generator, seed=seed)
        _check_flag("RandomSampler", "replacement", replacement)
        if num_samples is not None:
            _check_count("RandomSampler", num_samples)
        self.data_source = data_source
        self.replacement = replacement
        self.num_samples = num_samples

    def draw(self, random: np.random.Generator) -> Iterator[int]:
        n, left = len(self.data_source), len(self)
        if left and not n:
            raise ArgumentError(
                "RandomSampler",
                "there is nothing to draw from",
                expect="a data set with samples",
                actual="length 0",
            )
        if self.replacement:
            # In parts: the count may exceed any memory.
            for done in range(0, left, DRAWN_AT_ONCE):
                yield from random.integers(0, n, min(DRAWN_AT_ONCE, left - done)).tolist()
            return
        while left > 0:
            order = random.permutation(n)[:left].tolist()
            left -= len(order)
            yield from order

    def __len__(self) -> int:
        return len(self.data_source) if self.num_samples is None else self.num_samples


class SubsetRandomSampler(SeededSampler):
    """The given indices in a random order, another one each epoch.

    Args:
        indices: positions in a data set.
        generator: gives the seed; the default stream, which ``tc.manual_seed`` sets, when left out.
        seed: the seed itself, instead of a generator.

    Example:
        >>> sorted(SubsetRandomSampler([8, 2, 5]))
        [2, 5, 8]
    """

    def __init__(
        self,
        indices: Sequence[int] | NDArray[Any],
        generator: Generator | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(generator, seed=seed)
        self.indices = indices

    def draw(self, random: np.random.Generator) -> Iterator[int]:
        return (int(self.indices[position]) for position in random.permutation(len(self.indices)))

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(SeededSampler):
    r"""Draws indices with given probabilities.

    .. math:: p_i = w_i / \sum_j w_j

    Args:
        weights: n numbers, none negative; they need not add up to 1.
        num_samples: how many indices an epoch has.
        replacement: whether an index may come more than once.
        generator: gives the seed; the default stream, which ``tc.manual_seed`` sets, when left out.
        seed: the seed itself, instead of a generator.

    Raises:
        ArgumentError: num_samples is not positive, a weight is negative or not finite, or fewer
            than num_samples weights are positive where no index may come twice.

    Example:
        >>> set(WeightedRandomSampler([0.0, 1.0, 3.0], 100))
        {1, 2}
    """

    def __init__(
        self,
        weights: Sequence[float] | NDArray[Any],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(generator, seed=seed)
        _check_count("WeightedRandomSampler", num_samples)
        _check_flag("WeightedRandomSampler", "replacement", replacement)
        self.weights = np.asarray(weights, dtype=np.float64)
        self.num_samples = num_samples
        self.replacement = replacement
        finite = self.weights.ndim == 1 and np.isfinite(self.weights).all()
        positive = np.count_nonzero(self.weights > 0)
        needed = 1 if replacement else num_samples
        if not finite or (self.weights < 0).any() or positive < needed:
            raise ArgumentError(
                "WeightedRandomSampler",
                "bad weights",
                expect=f"a list of finite numbers, none negative, at least {needed} positive",
                actual=f"shape {self.weights.shape}, {positive} positive, least "
                f"{self.weights.min(initial=np.inf)}",
            )

    def draw(self, random: np.random.Generator) -> Iterator[int]:
        chances = self.weights / self.weights.sum()
        drawn = random.choice(len(chances), self.num_samples, self.replacement, chances)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[Any]):
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
        _check_flag("BatchSampler", "drop_last", drop_last)
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(iter(self.sampler))  # the epoch begins here, not at the first batch

    def _batches(self, indices: Iterator[int]) -> Iterator[list[int]]:
        batch = []
        for index in indices:
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


def _check_flag(op: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise DTypeError(op, f"{name} is no bool", expect="True or False", actual=repr(value))


def _check_count(op: str, num_samples: int) -> None:
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
        raise ArgumentError(
            op, "bad num_samples", expect="a whole number of at least 1", actual=repr(num_samples)
        )


class DistributedSampler(SeededSampler):
    """The share of one process in an order that all of a group agree on.

    Args:
        dataset: anything with a length.
        num_replicas, rank: how many processes, and which of them this is; 1 and 0 if left out.
        shuffle: another order each epoch, which `set_epoch` chooses.
        seed: the same in all processes.
        drop_last: leave out what does not divide; else the first indices come again.

    Raises:
        ArgumentError: the rank is not one of the group's.

    Example:
        >>> list(DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
        [1, 3, 0]
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None,
        shuffle: bool = True, seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(seed=seed)
        self.num_replicas, self.rank = num_replicas or 1, rank or 0
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError(
                "DistributedSampler", "the rank is not one of the group's",
                expect=f"0 to {self.num_replicas - 1}", actual=str(self.rank),
            )  # fmt: skip
        self.dataset, self.shuffle, self.drop_last = dataset, shuffle, drop_last

    def __iter__(self) -> Iterator[int]:
        # As in PyTorch, the epoch changes by `set_epoch` alone.
        return self.draw(self.shuffler.random(self.epoch))

    def draw(self, random: np.random.Generator) -> Iterator[int]:
        n, total = len(self.dataset), len(self) * self.num_replicas
        order = random.permutation(n) if self.shuffle else np.arange(n)
        whole = np.resize(order, total) if n else order
        return iter(whole[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        n = len(self.dataset)
        return n // self.num_replicas if self.drop_last else -(-n // self.num_replicas)
