"""Settings of a process by PyTorch's names: how values are printed, and what changes nothing."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.plan import forgetting
from tinygrad_cuda.tensors import representation

__all__ = [
    "get_num_interop_threads", "set_flush_denormal", "set_num_interop_threads",
    "set_printoptions", "set_warn_always",
]  # fmt: skip

_interop = [1]


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
    linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """How Tensors are printed from now on; what is left out stays.

    Args:
        precision: digits after the point, 4 at first.
        threshold: more elements than this are shown at the edges only, 1000 at first.
        edgeitems: elements at each edge, 3 at first.
        linewidth: characters of a line, 80 at first.
        profile: ``default``, ``short`` (precision 2, edges 2) or ``full`` (everything).
        sci_mode: powers of ten always, never, or (None) where the numbers ask for it.

    Raises:
        ArgumentError: the profile is another word.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.set_printoptions(precision=2)
        >>> tc.tensor([1.2345], device="cpu")
        tensor([1.23])
        >>> tc.set_printoptions(profile="default")
    """
    if profile is not None and profile not in representation.PROFILES:
        raise ArgumentError(
            "set_printoptions", "unknown profile", expect=", ".join(representation.PROFILES),
            actual=repr(profile),
        )  # fmt: skip
    options = representation.options
    before = dict(vars(options))
    if profile is not None:
        options.__dict__.update(vars(representation.Options()), **representation.PROFILES[profile])
    given: dict[str, Any] = {
        "precision": precision, "threshold": threshold, "edgeitems": edgeitems,
        "linewidth": linewidth,
    }  # fmt: skip
    options.__dict__.update({name: value for name, value in given.items() if value is not None})
    options.sci_mode = sci_mode
    if vars(options) != before:
        for forget in forgetting:  # a compiled function may have printed what it made
            forget()


def get_num_interop_threads() -> int:
    """What `set_num_interop_threads` was given; 1 at first."""
    return _interop[0]


def set_num_interop_threads(int: int) -> None:
    """Accepted as in PyTorch: on the host one operation runs at a time."""
    _interop[0] = int


def set_warn_always(b: bool) -> None:
    """Accepted as in PyTorch: Python's filters decide about warnings."""


def set_flush_denormal(mode: bool) -> bool:
    """False: subnormal numbers are not flushed to zero."""
    return False
