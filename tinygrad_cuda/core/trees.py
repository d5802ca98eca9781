"""Nested tuples, lists and dicts as a list of what they hold, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any


def leaves(value: Any) -> list[Any]:
    """What a nested structure holds, in order; anything else is one leaf."""
    found: list[Any] = []
    if isinstance(value, tuple | list):
        for item in value:
            found.extend(leaves(item))
    elif isinstance(value, dict):
        for item in value.values():
            found.extend(leaves(item))
    else:
        found.append(value)
    return found


def rebuilt(like: Any, values: Iterator[Any]) -> Any:
    """The structure of `like` with its leaves taken from `values`, in order."""
    if isinstance(like, tuple | list):
        items = [rebuilt(item, values) for item in like]
        if isinstance(like, tuple) and hasattr(like, "_fields"):
            return type(like)(*items)
        return type(like)(items)
    if isinstance(like, dict):
        pairs = [(key, rebuilt(item, values)) for key, item in like.items()]
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
        return [found for p, v in zip(prefix, value) for found in spread(p, v)]
    if isinstance(prefix, dict):
        if not isinstance(value, dict) or list(prefix) != list(value):
            raise ValueError
        return [found for key, v in value.items() for found in spread(prefix[key], v)]
    return [prefix] * len(leaves(value))


def picking(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that takes the items at these places out of a sequence, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda items: ()
    (place,) = places
    return lambda items: (items[place],)
