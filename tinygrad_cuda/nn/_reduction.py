"""nn._reduction: how a loss is reduced, as a number and by its older words."""

from __future__ import annotations

import warnings

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.nn.size_average import reduction_of

_NUMBERS = {"none": 0, "mean": 1, "elementwise_mean": 1, "sum": 2}


def get_enum(reduction: str) -> int:
    """The number of a reduction: 0, 1, 2 for ``none``, ``mean``, ``sum``.

    Raises:
        ArgumentError: there is no such reduction.

    Example:
        >>> get_enum("mean")
        1
    """
    if reduction not in _NUMBERS:
        raise ArgumentError(
            "reduction", "there is no such reduction", expect="'none', 'mean' or 'sum'",
            actual=repr(reduction),
        )  # fmt: skip
    return _NUMBERS[reduction]


def legacy_get_string(
    size_average: bool | None, reduce: bool | None, emit_warning: bool = True
) -> str:
    """The reduction that ``size_average`` and ``reduce`` said before PyTorch 1.0.

    Example:
        >>> legacy_get_string(False, None, emit_warning=False)
        'sum'
    """
    with warnings.catch_warnings():
        if not emit_warning:
            warnings.simplefilter("ignore")
        return reduction_of(size_average, reduce)


def legacy_get_enum(
    size_average: bool | None, reduce: bool | None, emit_warning: bool = True
) -> int:
    """The number of `legacy_get_string`."""
    return get_enum(legacy_get_string(size_average, reduce, emit_warning))
