"""Nested tuples, lists, dicts and dataclasses as a list of what they hold, and back."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

PACKAGE = __package__.partition(".")[0]


class Parts(NamedTuple):
    """What a container holds.

    Attributes:
        kind: its type, and its keys or its length; equal for containers that differ in values.
        children: the values.
        made: gives such a container of other values.
    """

    kind: tuple[Any, ...]
    children: list[Any]
    made: Callable[[list[Any]], Any]


def parts_of(value: Any) -> Parts | None:
    """The parts of a container that holds nothing besides; None for anything else.

    Subclasses of lists and dicts may hold more, unless they have no slots; such ones are made
    as lists and dicts.
    """
    kind = type(value)
    bare = vars(kind).get("__slots__") == () and not isinstance(value, defaultdict)
    if kind is list or kind is tuple or (bare and isinstance(value, list)):
        return Parts((kind, len(value)), [*value], tuple if kind is tuple else list)
    if isinstance(value, tuple):
        fields = hasattr(kind, "_fields")
        return Parts((kind, len(value)), [*value], lambda x: kind(*x)) if fields else None
    if kind is dict or kind is OrderedDict or (bare and isinstance(value, dict)):
        keys, made = tuple(value), OrderedDict if kind is OrderedDict else dict
        return Parts((kind, keys), [*value.values()], lambda x: made(zip(keys, x)))
    names = record_fields(value)
    if names is None or isinstance(value, list | dict):
        return None
    children = [getattr(value, name) for name in names]
    return Parts((kind, names), children, lambda x: record(kind, names, x))


def record_fields(value: Any) -> tuple[str, ...] | None:
    """The fields of an instance of a dataclass, or of a SimpleNamespace, that holds nothing else.

    None for anything else, and for classes of this package, which stand for leaves. Fields without
    a value are left out.
    """
    kind = type(value)
    if isinstance(value, SimpleNamespace):
        return tuple(vars(value))
    own_class = kind.__module__.partition(".")[0] == PACKAGE
    if own_class or not hasattr(kind, "__dataclass_fields__"):
        return None
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    own = getattr(value, "__dict__", {})
    return tuple(names) if own.keys() <= set(names) else None


def record(kind: Any, names: Sequence[str], values: Sequence[Any]) -> Any:
    """An instance of a class with these fields, whatever `__init__` would do."""
    made = kind.__new__(kind)
    for name, value in zip(names, values):
        object.__setattr__(made, name, value)
    return made


def leaves(value: Any) -> list[Any]:
    """What a nested structure holds, in order; anything else is one leaf."""
    result: list[Any] = []
    if isinstance(value, tuple | list):
        for child in value:
            result.extend(leaves(child))
    elif isinstance(value, dict):
        for child in value.values():
            result.extend(leaves(child))
    elif (names := record_fields(value)) is not None:
        for name in names:
            result.extend(leaves(getattr(value, name)))
    else:
        result.append(value)
    return result


def described(value: Any) -> list[Any]:
    """Types, keys and leaves by identity: equal as long as nothing in a structure is replaced."""
    parts = parts_of(value)
    if parts is None:
        return [id(value)]
    return [parts.kind, *(fact for child in parts.children for fact in described(child))]


def rebuilt(like: Any, values: Iterator[Any]) -> Any:
    """The structure of `like` with its leaves taken from `values`, in order."""
    if isinstance(like, tuple | list):
        children = [rebuilt(child, values) for child in like]
        if isinstance(like, tuple) and hasattr(like, "_fields"):
            return type(like)(*children)
        return type(like)(children)
    if isinstance(like, dict):
        pairs = {key: rebuilt(child, values) for key, child in like.items()}
        if isinstance(like, defaultdict):
            return type(like)(like.default_factory, pairs)
        return type(like)(pairs)
    names = record_fields(like)
    if names is not None:
        children = [rebuilt(getattr(like, name), values) for name in names]
        return record(type(like), names, children)
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
