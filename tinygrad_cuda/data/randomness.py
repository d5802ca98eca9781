"""Where random transforms draw from: a stream for each sample, so that workers change nothing.

A DataLoader says which pass runs, a data set which sample it makes; whoever calls a
transform directly draws from the default stream, which ``tc.manual_seed`` sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from zlib import crc32

import numpy as np

from tinygrad_cuda.tensors.random import default_generator


class _Stream:
    """The random numbers of a sample, made when one is asked for: most samples draw none."""

    def __init__(self, *key: int) -> None:
        self.key = key
        self.generator: np.random.Generator | None = None

    def get(self) -> np.random.Generator:
        if self.generator is None:
            self.generator = np.random.default_rng(self.key)
        return self.generator


_pass: ContextVar[tuple[int, int] | None] = ContextVar("pass", default=None)
_sample: ContextVar[_Stream | None] = ContextVar("sample", default=None)


@contextmanager
def loading(seed: int, epoch: int) -> Iterator[None]:
    """Samples made in this context belong to a pass over a data set."""
    token = _pass.set((seed % 2**64, epoch))
    try:
        yield
    finally:
        _pass.reset(token)


@contextmanager
def sample(index: Any) -> Iterator[None]:
    """Random transforms in this context draw what (seed, epoch, index) determine.

    Of two contexts the inner one decides: the index in the data set that holds the samples.
    Outside of a pass nothing changes.
    """
    current = _pass.get()
    if current is None:
        yield
        return
    # A key that is no number has one of its own.
    number = int(index) if hasattr(index, "__index__") else crc32(repr(index).encode())
    token = _sample.set(_Stream(*current, number % 2**64))
    try:
        yield
    finally:
        _sample.reset(token)


@contextmanager
def sample_randomness(seed: int, epoch: int, index: int) -> Iterator[None]:
    """Both at once: random transforms draw what (seed, epoch, index) determine.

    Args:
        seed: of the loader.
        epoch: the number of the pass.
        index: of the sample in the data set.

    Example:
        >>> def draw(index):
        ...     with sample_randomness(seed=1, epoch=0, index=index):
        ...         return randomness().random()
        >>> draw(3) == draw(3), draw(3) == draw(4)
        (True, False)
    """
    with loading(seed, epoch), sample(index):
        yield


def randomness() -> np.random.Generator:
    """The stream of the sample that is being made, or a new one of the default Generator's."""
    generator = _sample.get()
    if generator is not None:
        return generator.get()
    seed, number = default_generator.take()
    return np.random.default_rng([seed % 2**64, number])
