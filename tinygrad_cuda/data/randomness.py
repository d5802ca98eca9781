"""Where random transforms draw from: a stream for each sample, so that workers change nothing.

A DataLoader wraps the making of each sample in `sample_randomness`; whoever calls a transform
directly draws from the default stream, which ``tc.manual_seed`` sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from tinygrad_cuda.tensor.random import default_generator

_current: ContextVar[np.random.Generator | None] = ContextVar("sample_randomness", default=None)


@contextmanager
def sample_randomness(seed: int, epoch: int, index: int) -> Iterator[np.random.Generator]:
    """Random transforms in this context draw what (seed, epoch, index) determine.

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
    generator = np.random.default_rng([seed % 2**64, epoch, index % 2**64])
    token = _current.set(generator)
    try:
        yield generator
    finally:
        _current.reset(token)


def randomness() -> np.random.Generator:
    """The stream of the sample that is being made, or a new one of the default Generator's."""
    found = _current.get()
    if found is None:
        seed, number = default_generator.take()
        found = np.random.default_rng([seed % 2**64, number])
    return found
