"""tc.cuda.nvtx: ranges that Nsight Systems shows, by the optional package `nvtx`.

Without that package nothing happens but one warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


@lru_cache(maxsize=1)
def library() -> Any:
    """The package `nvtx`, or None; its absence is said once."""
    try:
        import nvtx
    except ImportError:
        warnings.warn(
            "nvtx: ranges go nowhere, since the package nvtx is not installed; "
            "pip install 'tinygrad_cuda[profile]' has it",
            UserWarning,
            stacklevel=3,
        )
        return None
    return nvtx


_open: list[str] = []


def range_push(msg: str) -> int:
    """Opens a range inside those that are open.

    Returns:
        How many ranges were open before.

    Example:
        >>> import warnings
        >>> import tinygrad_cuda as tc
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     tc.cuda.nvtx.range_push("load"), tc.cuda.nvtx.range_pop()
        (0, 0)
    """
    if (nvtx := library()) is not None:
        nvtx.push_range(msg)
    _open.append(msg)
    return len(_open) - 1


def range_pop() -> int:
    """Closes the range that was opened last.

    Returns:
        How many ranges are still open; -1 if none was.
    """
    if not _open:
        return -1
    _open.pop()
    if (nvtx := library()) is not None:
        nvtx.pop_range()
    return len(_open)


def range_start(msg: str) -> Any:
    """Opens a range that may end in another thread; gives what `range_end` takes."""
    return None if (nvtx := library()) is None else nvtx.start_range(msg)


def range_end(range_id: Any) -> None:
    """Closes a range that `range_start` opened."""
    if (nvtx := library()) is not None and range_id is not None:
        nvtx.end_range(range_id)


def mark(msg: str) -> None:
    """Marks a moment."""
    if (nvtx := library()) is not None:
        nvtx.mark(msg)


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A range as a ``with`` block or a decorator.

    Args:
        msg: what is shown; a format that takes the other arguments.
    """
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
