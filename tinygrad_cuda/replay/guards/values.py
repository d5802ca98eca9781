"""Python values, by the names under which a compiled function finds them, and their changes."""

from __future__ import annotations

import array
import ctypes
import gc
import keyword
import mmap
import re
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from operator import itemgetter
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
FUNCTION = ".__func__"  # behind the name of a class method
POINTER: type = ctypes._Pointer
CTYPES: tuple[type, ...] = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
RAW = (bytearray, memoryview, array.array, mmap.mmap, np.ndarray, np.void, POINTER, *CTYPES)
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
        if kind is CellType:
            try:
                return owner.cell_contents
            except ValueError:  # deleted, or not assigned yet
                return NOTHING
        if kind in DICTIONARIES:
            return owner.get(name, NOTHING)
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
        value = getattr(owner, name.removesuffix(FUNCTION), NOTHING)
        return getattr(value, "__func__", NOTHING) if name.endswith(FUNCTION) else value

    def differs(self, owner: str, value: str) -> str:
        """Python text that is true, or raises an error of a look-up, if it is another one now."""
        kind, name, absent = type(self.owner), self.name, self.value is NOTHING
        if kind is CellType:
            return "True" if absent else f"{owner}.cell_contents is not {value}"
        if kind in DICTIONARIES or kind is Fields:
            table = owner
            if kind is Fields:
                weak = issubclass(type(self.owner.thing), weakref.ref)
                table = f"{owner}.now()" if weak else f"{owner}.thing.__dict__"
            return f"{name!r} in {table}" if absent else f"{table}[{name!r}] is not {value}"
        if kind is Called:
            return f"{owner}.function() != {value}"
        if kind is ContextVar:
            return f"{owner}.get(nothing) is not {value}"
        if issubclass(kind, weakref.ref):
            owner = f"{owner}()"
            if name == "()":
                return f"({owner} is None) is not {value}"
        if name == "type()":
            return f"type({owner}) is not {value}"
        if name.endswith(FUNCTION):
            return f"getattr({owner}, {name.removesuffix(FUNCTION)!r}).__func__ is not {value}"
        if absent or not ATTRIBUTE.fullmatch(name) or keyword.iskeyword(name):
            return f"getattr({owner}, {name!r}, nothing) is not {value}"
        return f"{owner}.{name} is not {value}"


class Stable(NamedTuple):
    """Names of globals or builtins that hold functions, classes and Python modules."""

    namespace: dict[str, Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    get: Callable[[Any], Any]

    def now(self) -> tuple[Any, ...]:
        """The values at this moment."""
        return tuple(self.namespace.get(name, NOTHING) for name in self.names)


def stable(namespace: dict[str, Any], pairs: dict[str, Any]) -> Stable:
    """What is stable among some globals: a look at all of them is one call."""
    names, values = tuple(pairs), tuple(pairs.values())
    # Of one name an itemgetter gives no tuple.
    get = itemgetter(*names, *names) if len(names) == 1 else itemgetter(*names)
    return Stable(namespace, names, values * 2 if len(names) == 1 else values, get)


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


class Names:
    """What the code of a function names.

    Attributes:
        values: the names, in a fixed order.
        stable: functions, classes and modules among the globals.
        absent: globals and `Fields`, and names that they must not have: those of builtins and of
            methods.
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
        self.stable: list[Stable] = []
        self.absent: list[tuple[Any, frozenset[str]]] = []
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
        stable_names = {id(group.namespace): {*group.names} for group in other.stable}
        groups = []
        for namespace, names, things, _ in self.stable:
            wanted = stable_names.get(id(namespace), set())
            pairs = {name: thing for name, thing in zip(names, things) if name in wanted}
            if pairs:
                groups.append(stable(namespace, pairs))
        self.stable = groups
        gone = {_identity(namespace): missing for namespace, missing in other.absent}
        none = frozenset[str]()
        self.absent = [
            (namespace, missing & gone.get(_identity(namespace), none))
            for namespace, missing in self.absent
        ]

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
            now = named.now()
            if not (now == named.value if type(named.owner) is Called else same(now, named.value)):
                yield named.name, named.value is NOTHING
        for name, container, contained in self.contents:
            now = items_of(container)
            if len(now) != len(contained) or not all(map(same, now, contained)):
                yield name, False
        for namespace, names, values, _ in self.stable:
            for name, value in zip(names, values):
                if namespace.get(name, NOTHING) is not value:
                    yield name, False
        for namespace, missing in self.absent:
            held = namespace.now() if type(namespace) is Fields else namespace
            if not held.keys().isdisjoint(missing):
                yield str(min(held.keys() & missing)), True

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


def items_of(container: Any) -> list[Any]:
    """What a container holds, in its order: of a dictionary the keys, then the values."""
    container = referent(container)
    if container is None:
        return [NOTHING]  # it is gone
    if issubclass(type(container), RAW):
        return bytes_of(container)
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
    """Whether the collector of garbage knows what an object of C refers to."""
    return gc.is_tracked(thing)


def _referents(thing: Any) -> list[Any]:
    """What an object of C refers to, but not what its own dictionary holds."""
    referents = gc.get_referents(thing)
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
