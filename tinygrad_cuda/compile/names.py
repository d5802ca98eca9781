"""Python values, by the names under which a compiled function finds them, and their changes."""

from __future__ import annotations

from collections.abc import Iterator
from types import CellType
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.optim.watched import DICTIONARIES
from tinygrad_cuda.tensor.base import TensorBase

PLAIN = (bool, int, float, str, bytes, complex, type(None))
NOTHING: Any = object()
ARRAY = 1 << 20  # bytes of a NumPy array up to which its content is looked at
MANY = 1000  # items of a container: a report names it, and what they hold is not looked at


class Name(NamedTuple):
    """A name, the globals, closure cell, object or class it belongs to, and its value there."""

    name: str
    place: Any
    value: Any

    def now(self) -> Any:
        """The value at this moment."""
        kind = type(self.place)
        if kind is CellType:
            try:
                return self.place.cell_contents
            except ValueError:  # deleted, or not assigned yet
                return NOTHING
        if kind in DICTIONARIES:
            return self.place.get(self.name, NOTHING)
        return getattr(self.place, self.name, NOTHING)


class Contents(NamedTuple):
    """What a list, dictionary, set or deque holds; by the name through which it was found."""

    name: str
    container: Any
    items: list[Any]


class Names:
    """What the code of a function names.

    Attributes:
        values: the names, in a fixed order.
        contents: of the containers among the values and within these.
    """

    def __init__(self) -> None:
        self.values: list[Name] = []
        self.contents: list[Contents] = []

    def changed(self) -> str | None:
        """The first name whose value is another one now, or holds something else."""
        for named in self.values:
            if not same(named.now(), named.value):
                return named.name
        for name, container, items in self.contents:
            now = items_of(container)
            if len(now) != len(items) or not all(map(same, now, items)):
                return name
        return None

    def remarks(self) -> Iterator[str]:
        """What may surprise: containers that take time to look at, arrays that take too much."""
        for name, container, items in self.contents:
            if isinstance(container, np.ndarray) and container.nbytes > ARRAY:
                yield f"does not look at the content of the array {name}, which is above 1 MiB"
            elif len(items) > MANY:
                yield f"looks at all {len(container)} items of {name} before each replay"

    def tensors(self) -> Iterator[TensorBase]:
        """All Tensors among them."""
        for named in self.values:
            if isinstance(named.value, TensorBase):
                yield named.value
        for contents in self.contents:
            yield from (item for item in contents.items if isinstance(item, TensorBase))


def items_of(container: Any) -> list[Any]:
    """What a container holds, in its order: of a dictionary the keys, then the values."""
    if isinstance(container, np.ndarray):
        small = container.nbytes <= ARRAY and not container.dtype.hasobject
        return [f"{container.dtype.str} {container.shape}", container.tobytes() if small else b""]
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def same(a: Any, b: Any) -> bool:
    """Whether two values are one thing, or plain values of one type that are written alike."""
    # By their texts 0.0 is not -0.0, and NaN is NaN.
    return a is b or (type(a) is type(b) and type(a) in PLAIN and repr(a) == repr(b))
