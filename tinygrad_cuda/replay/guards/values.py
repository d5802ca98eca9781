"""Python values, by the names under which a compiled function finds them, and their changes."""

from __future__ import annotations

import array
import ctypes
import gc
import keyword
import mmap
import re
import weakref
from _ctypes import CFuncPtr
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from operator import is_
from types import CellType, CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.errors import RawSite
from tinygrad_cuda.replay.guards.kinds import kinds
from tinygrad_cuda.replay.versioned_containers import DICTIONARIES

PLAIN = (bool, int, float, str, bytes, complex, type(None))
NOTHING: Any = object()
ARRAY = 1 << 20  # bytes of a NumPy array, and
MANY = 1000  # elements of a container, from which on a report names it
# What can stand behind a dot as it is; identifiers of other letters are normalized there.
ATTRIBUTE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
POINTER: type = ctypes._Pointer
CTYPES: tuple[type, ...] = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
RAW = (bytearray, memoryview, array.array, mmap.mmap, np.ndarray, np.void, POINTER, *CTYPES)
NATIVE: tuple[type, ...] = (CFuncPtr, ctypes.CDLL)
READERS = (ctypes.cast, ctypes.string_at, ctypes.wstring_at)
MAPPINGS = (dict, MappingProxyType)


class Fields(NamedTuple):
    """As the owner of a name: what an object holds itself, whatever its class says.

    A weak reference stands for what it refers to.
    """

    thing: Any

    def now(self) -> Any:
        """Its dictionary; an empty one if it is gone."""
        thing = referent(self.thing)
        return {} if thing is None else object.__getattribute__(thing, "__dict__")


class Inside(NamedTuple):
    """As a container: what an object of C refers to, in the order of its own."""

    thing: Any


class Called(NamedTuple):
    """As the owner of a name: a function whose results are compared."""

    function: Callable[[], Any]


class Name(NamedTuple):
    """A name, the globals, closure cell, object or class it belongs to, and its value there.

    A weak reference as the owner stands for what it refers to; under the name ``()`` it says
    whether that is gone. The name ``type()`` stands for the owner's class. `NOTHING` as the value
    says that there is none.
    """

    name: str
    owner: Any
    value: Any

    def key(self) -> tuple[str, int]:
        """What it has in common with another look at the name."""
        return self.name, 0 if type(self.owner) is Called else _identity(self.owner)

    def now(self) -> Any:
        """The value at this moment."""
        owner, name = self.owner, self.name
        kind = type(owner)
        if kind in DICTIONARIES:
            return owner.get(name, NOTHING)
        if kind is CellType:
            try:
                return owner.cell_contents
            except ValueError:  # deleted, or not assigned yet
                return NOTHING
        if kind is Fields:
            return owner.now().get(name, NOTHING)
        if kind is ContextVar:
            return owner.get(NOTHING)
        if kind is Called:
            return owner.function()
        if issubclass(kind, weakref.ref):
            owner = owner()
            if name == "()":
                return owner is None
        if name == "type()":
            return type(owner)
        return attribute_of(owner, name)

    def holds(self) -> bool:
        """Whether the value is the same at this moment."""
        now = self.now()
        return bool(now == self.value) if type(self.owner) is Called else same(now, self.value)

    def differs(self, number: int) -> str:
        """Python text that is true, or raises an error of a look-up, if it is another one now.

        The text calls the owner ``owner7``, the value ``value7`` and all of this ``name7``.
        """
        kind, name, owner = type(self.owner), self.name, f"owner{number}"
        if self.value is NOTHING:
            if kind in DICTIONARIES:
                return f"{name!r} in {owner}"
            if kind is Fields and not issubclass(type(self.owner.thing), weakref.ref):
                return f"{name!r} in {owner}.thing.__dict__"
            return f"not name{number}.holds()"
        now = ""
        if kind is CellType:
            now = f"{owner}.cell_contents"
        elif kind in DICTIONARIES:
            now = f"{owner}[{name!r}]"
        elif kind not in (Called, ContextVar, Fields) and not issubclass(kind, weakref.ref):
            if name == "type()":
                now = f"type({owner})"
            elif ATTRIBUTE.fullmatch(name) and not keyword.iskeyword(name):
                now = f"{owner}.{name}"
        return f"{now} is not value{number}" if now else f"not name{number}.holds()"


class Contents(NamedTuple):
    """What a list, dictionary, set, deque, array or buffer holds; by a name that leads to it.

    A weak reference as the container stands for what it refers to.
    """

    name: str
    container: Any
    items: list[Any]

    def key(self) -> int:
        """What it has in common with another look at the container."""
        return _identity(self.container)

    def holds(self) -> bool:
        """Whether it holds the same things at this moment."""
        now, items = items_of(self.container), self.items
        return len(now) == len(items) and (all(map(is_, now, items)) or all(map(same, now, items)))


class Names:
    """What the code of a function names.

    Attributes:
        values: the names, in a fixed order.
        contents: of the containers among the values and within these.
        moving: iterators and generators of random numbers, with their states.
        sites: of names, a line that reads them.
        seen: by identity, all that was reached.
        modules: Modules among the values.
        refused: names that lead to what cannot be compared, and what that is.
        refused_codes: of functions that are refused if they run: a name, and what it leads to.
        cached: code that need not run where its results count; None for any.
        codes: of all functions that were read; `names` are the names in them.
    """

    def __init__(self) -> None:
        self.values: list[Name] = []
        self.contents: list[Contents] = []
        self.moving: list[tuple[str, Any, Any]] = []
        self.sites: dict[str, RawSite] = {}
        self.seen: dict[int, Any] = {}
        self.modules: list[Any] = []
        self.refused: list[tuple[str, str]] = []
        self.refused_codes: dict[CodeType, tuple[str, str]] = {}
        self.cached: list[CodeType | None] = []
        self.codes: set[CodeType] = set()
        self.names: set[str] = set()

    def restrict(self, other: Names) -> None:
        """Leaves out what another search, of less code, has not reached."""
        values = {named.key() for named in other.values}
        self.values = [named for named in self.values if named.key() in values]
        containers = {contents.key() for contents in other.contents}
        self.contents = [contents for contents in self.contents if contents.key() in containers]

    def later(self) -> Names:
        """The same names and containers with their values at this moment."""
        names = Names()
        names.values = [named._replace(value=named.now()) for named in self.values]
        names.contents = [
            contents._replace(items=items_of(contents.container)) for contents in self.contents
        ]
        return names

    def changed(self) -> str | None:
        """The first name whose value is another one now, or holds something else."""
        return next((name for name, _ in self.changes()), None)

    def changes(self) -> Iterator[tuple[str, bool]]:
        """All such names, and whether there was no value before."""
        for named in self.values:
            if not named.holds():
                yield named.name, named.value is NOTHING
        for contents in self.contents:
            if not contents.holds():
                yield contents.name, False

    def remarks(self) -> Iterator[str]:
        """What takes time to look at: long containers and large arrays."""
        for name, owner, contained in self.contents:
            container = referent(owner)
            if isinstance(container, np.ndarray) and container.nbytes > ARRAY:
                yield f"compares all {container.nbytes} bytes of {name} before each replay"
            elif len(contained) > MANY:
                yield f"looks at all {len(container)} items of {name} before each replay"

    def tensors(self) -> Iterator[Any]:
        """All Tensors among them."""
        for named in self.values:
            if issubclass(type(named.value), kinds.tensor):
                yield named.value
        for contents in self.contents:
            yield from (value for value in contents.items if issubclass(type(value), kinds.tensor))


def _identity(owner: Any) -> int:
    """The identity of the owner of a name, or of a container."""
    return id(owner.thing if type(owner) in (Fields, Inside) else owner)


def referent(owner: Any) -> Any:
    """What the owner of a name or a container is, where a weak reference stands for it."""
    return owner() if issubclass(type(owner), weakref.ref) else owner


def attribute_of(thing: Any, name: str) -> Any:
    """An attribute; `NOTHING` without it, and where its code fails, as that of lazy modules may."""
    try:
        return getattr(thing, name)
    except Exception:
        return NOTHING


def items_of(container: Any) -> list[Any]:
    """What a container holds, in its order: of a dictionary the keys, then the values."""
    container = referent(container)
    if container is None:
        return [NOTHING]  # it is gone
    if issubclass(type(container), RAW):
        return bytes_of(container)
    if type(container) is Fields:
        container = container.now()
    if type(container) is Inside:
        return _referents(container.thing)
    if issubclass(type(container), MAPPINGS):
        return [*container, *container.values()]
    return [*container]


def functions_of(code: CodeType) -> list[FunctionType]:
    """The functions that have some code, where no name leads to them: only the collector does."""
    functions = [thing for thing in gc.get_referrers(code) if type(thing) is FunctionType]
    return [function for function in functions if function.__code__ is code]


def is_collected(thing: Any) -> bool:
    """Whether the collector of garbage lists what an object of C refers to."""
    return gc.is_tracked(thing)


def referents_of(thing: Any) -> list[Any]:
    """What an object refers to, as it tells the collector of garbage."""
    return gc.get_referents(thing)


def _referents(thing: Any) -> list[Any]:
    """What an object of C refers to, but not what its own dictionary holds."""
    referents = referents_of(thing)
    try:
        fields = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return referents
    hidden = {id(fields), *map(id, fields.values())}
    return [x for x in referents if id(x) not in hidden]


def bytes_of(buffer: Any) -> list[Any]:
    """What an array or buffer is and holds; of an array of objects these."""
    if isinstance(buffer, np.ndarray):
        what = f"{buffer.dtype.str} {buffer.shape}"
        return [what, *buffer.flat] if buffer.dtype.hasobject else [what, buffer.tobytes()]
    if isinstance(buffer, np.void):
        return [buffer.dtype.str, buffer.tobytes()]
    if isinstance(buffer, POINTER):
        return [type(buffer).__name__, bytes(buffer.contents) if buffer else b""]  # type: ignore[attr-defined]
    return [type(buffer).__name__, bytes(buffer)]


def same(a: Any, b: Any) -> bool:
    """Whether two values are one thing, or plain values of one type of one text."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if issubclass(type(a), np.generic) and type(a) is not np.void:
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if type(a) in (float, complex):  # by their texts 0.0 is not -0.0, and NaN is NaN
        return repr(a) == repr(b)
    return bool(type(a) in PLAIN and a == b)
