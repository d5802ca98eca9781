"""Nested tuples, lists and dicts as a list of what they hold, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any


def leaves(value: Any) -> list[Any]:
    """What a nested structure holds, in order; anything else is one leaf."""
    result: list[Any] = []
    if isinstance(value, tuple | list):
        for child in value:
            result.extend(leaves(child))
    elif isinstance(value, dict):
        for child in value.values():
            result.extend(leaves(child))
    else:
        result.append(value)
    return result


def rebuilt(like: Any, values: Iterator[Any]) -> Any:
    """The structure of `like` with its leaves taken from `values`, in order."""
    if isinstance(like, tuple | list):
        children = [rebuilt(child, values) for child in like]
        if isinstance(like, tuple) and hasattr(like, "_fields"):
            return type(like)(*children)
        return type(like)(children)
    if isinstance(like, dict):
        pairs = [(key, rebuilt(child, values)) for key, child in like.items()]
        return type(like)(pairs)
    return next(values)


def spread(prefix: Any, value: Any) -> list[Any]:
    """For each leaf of `value` what `prefix` says about it; a leaf of `prefix` holds for all below.

    Raises:
        ValueError: the structures do not match.
    """
    if isinstance(prefix, tuple | list):
        if not isinstance(value, tuple | list) or len(prefix) != len(value):
            raise ValueError
        return [leaf for p, v in zip(prefix, value) for leaf in spread(p, v)]
    if isinstance(prefix, dict):
        if not isinstance(value, dict) or list(prefix) != list(value):
            raise ValueError
        return [leaf for key, v in value.items() for leaf in spread(prefix[key], v)]
    return [prefix] * len(leaves(value))


def picking(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that returns the elements at these positions of a sequence, as a tuple."""
    if len(positions) > 1:
        return itemgetter(*positions)
    if not positions:
        return lambda sequence: ()
    (position,) = positions
    return lambda sequence: (sequence[position],)
