"""tc.fx: marks that programs for PyTorch's symbolic tracing set; there is no such tracing here."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tinygrad_cuda.core.names import missing_from

T = TypeVar("T")

__all__ = ["wrap"]


def wrap(fn_or_name: T) -> T:
    """The function, or its name, itself: nothing is traced symbolically."""
    return fn_or_name


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
