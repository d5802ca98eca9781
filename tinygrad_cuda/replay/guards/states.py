"""How far an iterator or a generator of random numbers is: what reading it changes."""

from __future__ import annotations

import io
import sys
import warnings
from itertools import count
from types import BuiltinFunctionType, GeneratorType
from typing import Any

import numpy as np

UNKNOWN: Any = object()
DEPTH = 8  # of iterators over iterators


def generators() -> tuple[type, ...]:
    """NumPy's classes of random numbers; none where nobody has imported them, which takes long."""
    random = vars(sys.modules.get("numpy.random", sys))
    return tuple(random[n] for n in ("Generator", "RandomState", "BitGenerator") if n in random)


def moves(value: Any) -> bool:
    """Whether to read a value changes it, where nobody can see it."""
    kind = type(value)
    if issubclass(kind, generators()):
        return True
    if issubclass(kind, io.IOBase):
        return not value.closed and value.readable() and not value.writable()
    return hasattr(kind, "__next__")


def state_of(value: Any, depth: int = 0) -> Any:
    """Something that is equal as long as nobody has read on; `UNKNOWN` without such a thing."""
    if isinstance(value, generators()):
        return _random_state(value)
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        if frame is None:
            return None
        return frame.f_lasti, [(name, id(x)) for name, x in frame.f_locals.items()]
    if isinstance(value, np.flatiter):
        return value.index
    if isinstance(value, count):  # cannot be pickled any more
        return repr(value)
    if isinstance(value, io.IOBase):
        try:
            return value.tell()
        except OSError:
            return UNKNOWN
    return _reduced(value, depth)


def _random_state(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.BitGenerator):
        return repr(value.state)
    kind, key, *rest = value.get_state(legacy=True)
    return kind, np.asarray(key).tobytes(), rest


def _reduced(value: Any, depth: int) -> Any:
    """The state of an iterator of C, as pickle would keep it."""
    if depth > DEPTH:
        return UNKNOWN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            parts = value.__reduce__()
        except (TypeError, AttributeError):
            return UNKNOWN
    if not isinstance(parts, tuple):
        return UNKNOWN
    states: list[Any] = []
    for part in parts:
        for element in part if isinstance(part, tuple) else (part,):
            inner = _part(element, depth)
            if inner is UNKNOWN:
                return UNKNOWN
            states.append(inner)
    return states


def _part(value: Any, depth: int) -> Any:
    if isinstance(value, int | str | float | range):
        return value
    if isinstance(value, BuiltinFunctionType | type):
        return value.__name__
    if isinstance(value, list | tuple):
        return [id(x) for x in value] if depth or len(value) < 64 else (id(value), len(value))
    return state_of(value, depth + 1) if hasattr(type(value), "__next__") else id(value)
