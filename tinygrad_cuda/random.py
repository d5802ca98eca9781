"""tc.random: the default stream of random numbers, as in `torch.random`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.tensors.random import (
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """Afterwards the default stream goes on where it was before the block.

    Args:
        devices: accepted as in PyTorch; one stream serves every device.
        enabled: with False nothing is taken back.

    Example:
        >>> import tinygrad_cuda as tc
        >>> _ = tc.manual_seed(1)
        >>> with tc.random.fork_rng():
        ...     inside = tc.rand(2, device="cpu")
        >>> inside.equal(tc.rand(2, device="cpu"))
        True
    """
    state = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(state)


__all__ = [
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
