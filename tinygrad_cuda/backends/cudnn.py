"""tc.backends.cudnn: attributes that may be read and set; none of them changes a result.

No convolution goes through cuDNN, whatever ``enabled`` says; `is_available` tells the truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

enabled = True
benchmark = False
deterministic = False
allow_tf32 = True
benchmark_limit = 10  # PyTorch's default


def is_available() -> bool:
    """Whether cuDNN is used: it is not."""
    return False


def version() -> int | None:
    """None: there is no cuDNN."""
    return None


@contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
) -> Iterator[None]:
    """Sets the attributes for a block.

    Example:
        >>> import tinygrad_cuda as tc
        >>> with tc.backends.cudnn.flags(enabled=False):
        ...     tc.backends.cudnn.enabled
        False
    """
    names = globals()
    given = {
        "enabled": enabled, "benchmark": benchmark, "benchmark_limit": benchmark_limit,
        "deterministic": deterministic, "allow_tf32": allow_tf32,
    }  # fmt: skip
    before = {name: names[name] for name in given}
    names.update(given)
    try:
        yield
    finally:
        names.update(before)
