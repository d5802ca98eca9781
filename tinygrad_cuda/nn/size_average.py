"""`size_average` and `reduce`: what said how losses are reduced before PyTorch 1.0."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def reduction_of(size_average: bool | None, reduce: bool | None) -> str:
    """The word for both, of which None means True; warns, as PyTorch does.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     reduction_of(False, None), reduction_of(None, False)
        ('sum', 'none')
    """
    word = "none" if reduce is False else "sum" if size_average is False else "mean"
    warnings.warn(f"size_average and reduce are older words: reduction={word!r}", stacklevel=4)
    return word


def accepts_size_average(function: F) -> F:
    """The function, with `size_average` and `reduce` by name instead of `reduction`."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        if "size_average" in options or "reduce" in options:
            older = options.pop("size_average", None), options.pop("reduce", None)
            if older != (None, None):
                options["reduction"] = reduction_of(*older)
        return function(*arguments, **options)

    return cast(F, wrapper)
