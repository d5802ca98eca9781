"""Which Python values the code of a compiled function names: they are collected before its trace.

Code is read: the function's own, that of the functions, methods and Modules it names, and so on, up
to libraries. The owner of an attribute is undetermined before it runs, so a name counts for each
object that is reached. That may find a value too many, which costs a look at each replay. What no
name leads to is collected, or refused, while the function runs: see `watch`.
"""

from __future__ import annotations

import abc
import inspect
import io
import os
import sys
import sysconfig
import threading
import warnings
import weakref
from collections import ChainMap, UserDict, UserList, UserString, deque
from collections.abc import Callable, Container, Sequence
from contextvars import ContextVar
from enum import EnumMeta
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain, pairwise
from operator import attrgetter, methodcaller
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np

from tinygrad_cuda.replay.guards.bytecode import BY_TEXT, MATCHED, codes, only_written, reads_of
from tinygrad_cuda.replay.guards.kinds import kinds
from tinygrad_cuda.replay.guards.states import generators, moves, state_of
from tinygrad_cuda.replay.guards.values import (
    NATIVE,
    NOTHING,
    PLAIN,
    RAW,
    READERS,
    Called,
    Contents,
    Fields,
    Inside,
    Name,
    Names,
    attribute_of,
    is_collected,
    items_of,
    referent,
)
from tinygrad_cuda.replay.versioned_containers import (
    DICTIONARIES,
    LISTS,
    States,
    Watched,
    WatchedList,
)

PACKAGE = __package__.partition(".")[0]
# The interpreter's folders and those of installed packages: of the environment, the system, a
# user, PYTHONPATH. What they hold is a library's and not followed.
INSTALLED = ("site-packages", "dist-packages")
_FOLDERS = (
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    *(path for path in sys.path if Path(path).name in INSTALLED),
)
LIBRARIES = (*(f"{x}{os.sep}" for x in (*_FOLDERS, Path(__file__).parents[2])), "<frozen")
COUNTED = {*LISTS, *DICTIONARIES, States} - {list, dict}  # optimizers', which look after them
MUTABLE = (list, dict, set, deque, MappingProxyType)
# Containers of libraries.
WRAPPERS = (
    UserDict, UserList, UserString, ChainMap, weakref.WeakSet, weakref.WeakValueDictionary,
    weakref.WeakKeyDictionary,
)  # fmt: skip
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
# Methods that nobody names and that no call of Python shows while tracing: they are for pickling,
# copying and printing.
UNUSED = frozenset({
    "__copy__", "__deepcopy__", "__del__", "__dir__", "__getnewargs__", "__getnewargs_ex__",
    "__getstate__", "__init_subclass__", "__reduce__", "__reduce_ex__", "__repr__", "__setstate__",
    "__set_name__", "__sizeof__", "__subclasshook__",
})  # fmt: skip
CACHED = lru_cache(int)
METHODS = (BuiltinFunctionType, MethodWrapperType)
MAKING = frozenset({"__new__", "__init__", "__post_init__"})
# Descriptors that a class itself gives each time as one and the same thing.
SHOWN = (FunctionType, property, cached_property, staticmethod)
# What this package calls of classes that a user makes from its own.
CALLED = frozenset({"forward", "backward", "setup_context", "vmap", "jvp"})
# What code may ask of functions and classes that is no attribute which they hold.
OF_FUNCTIONS = ("__annotations__", "__closure__", "__code__", "__defaults__", "__doc__",
                "__globals__", "__kwdefaults__", "__module__", "__name__",
                "__qualname__")  # fmt: skip
OF_CLASSES = ("__name__", "__qualname__")
# How code looks at generators of random numbers, and at iterators, which it does not read on.
STATES = {"get_state"}, {"bit_generator", "state"}
LOOKS = {"repr"}, {"str"}, {"copy"}, {"deepcopy"}, {"gi_frame"}, {"length_hint"}
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# Attributes of schedulers, by what is asked; of an optimizer it is options of its groups.
REPORTED = {"last_epoch": "last_epoch", "get_last_lr": "_last_lr", "defaults": "defaults"}
# Else they look after what they hold, and a replay moves it on.
MANAGED = frozenset({"state", "param_groups", "steps", "base_lrs", "_steps", *REPORTED.values()})


ARGUMENT, PARAMETER = "an argument", "a parameter"  # names of what no name leads to
HEAP, COLLECTED = 1 << 9, 1 << 14  # a class's flags: allocated; its objects show referents
# Objects of C that are followed otherwise, or hold nothing of the user's.
NO_CONTAINERS = (
    BuiltinFunctionType, MethodType, ModuleType, CodeType, FrameType, type, property, partial,
    MemberDescriptorType, GetSetDescriptorType, threading.local, staticmethod, classmethod,
)  # fmt: skip
NO_FIELDS: dict[str, Any] = {}


class Extra:
    """What a function reached while it ran: to be read, too, before it is traced again.

    Attributes:
        functions: that no name leads to, and Python modules, by identity.
        names: of attributes, which were computed, and whether other code has them.
        owned: globals and attributes of Python modules, with what they belong to.
        objects: of libraries, whose methods were called, by identity: all that they hold counts.
    """

    def __init__(self) -> None:
        self.functions: dict[int, Any] = {}
        self.names: dict[str, bool] = {}
        self.owned: dict[tuple[str, int], Name] = {}
        self.objects: dict[int, Any] = {}

    def __len__(self) -> int:
        return sum(map(len, self._parts())) - sum(self.names.values())

    def _parts(self) -> tuple[dict[Any, Any], ...]:
        return self.functions, self.names, self.owned, self.objects

    def add(self, more: Extra) -> bool:
        """Adds what another call has reached; whether some of it is new."""
        before = len(self)
        # A name that was new stays so: that it is known by now must not hide what else is new.
        names = {name: self.names.get(name, True) and other for name, other in more.names.items()}
        for mine, new in zip(self._parts(), more._parts()):
            mine.update(new)
        self.names.update(names)
        return len(self) > before


def home_of(function: Any) -> str:
    """The package of a function: one that is installed may name values of its own package."""
    root = getattr(function, "__wrapped__", function)
    root = root.func if isinstance(root, partial) else root
    return _module_of(root).partition(".")[0]


def names_of(
    function: Any, arguments: Sequence[Any], extra: Extra | None = None,
    ran: Container[CodeType] | None = None,
) -> Names:  # fmt: skip
    """What a function names.

    Args:
        function: anything that can be called.
        arguments: Tensors, plain values and other objects; these are asked for names, too.
        extra: what earlier calls have reached.
        ran: no other code is read.
    """
    search = _Search(function, ran)
    search.wait(ARGUMENT, *arguments)
    if extra is not None:
        search.add(extra)
    return search.run()


class _Reached:
    """An object, class or Python module in which names are looked up.

    Args:
        thing: it.
        below: it is a Module inside one that is reached.
        own: its class, or it if it is one, and bases, as far as they are the user's.
        hidden: what it looks after itself; None for all but what is `REPORTED`.
        weak: the weak reference that leads to it.
    """

    def __init__(
        self, thing: Any, below: bool, own: list[type], hidden: frozenset[str] | None, weak: Any
    ) -> None:
        self.thing, self.below, self.own, self.hidden, self.weak = thing, below, own, hidden, weak
        self.fields = fields_of(thing)
        self.of_classes = set().union(*map(vars, own))
        self.tried = self.tried_missing = 0  # names
        # Whether to look an attribute up may run the user's code.
        self.described = _described(type(thing))
        self.special = hasattr(type(thing), "__getattr__") or "__getattribute__" in self.of_classes

    def asked(self, name: str) -> str:
        """Under which name it has what it is asked for; none without a name."""
        if self.hidden is None or name in self.hidden:
            name = REPORTED.get(name, "")
        has = name in self.fields or name in self.of_classes or name in self.described
        return name if has else ""


def fields_of(thing: Any) -> dict[str, Any]:
    """What an object or module holds itself; `NO_FIELDS` if it has no dictionary."""
    kind = type(thing)
    if issubclass(kind, type):
        return NO_FIELDS
    get = getattr if issubclass(kind, threading.local) else object.__getattribute__
    try:
        fields = get(thing, "__dict__")
    except AttributeError:
        return NO_FIELDS
    return fields if type(fields) is dict else NO_FIELDS


class _Search:
    """Follows names from a function to values, and from values to functions."""

    def __init__(self, function: Any, ran: Container[CodeType] | None) -> None:
        self.collected, self.ran = Names(), ran
        # Of all code read so far, and whether it does more with them than write to them.
        self.names: dict[tuple[str, bool], None] = {}
        self.missing: dict[str, None] = {}  # names that an object may lack
        self.texts: set[str] = set()  # and its strings
        self.waiting: deque[tuple[str, Any, Any]] = deque([("the function", function, None)])
        self.objects: list[_Reached] = []
        self.optimizers: dict[str, Any] = {}  # by the names that lead to them
        self.decimal = False  # whether its context is looked at
        self.abstract = False  # whether a class is reached that others may be registered with,
        self.tests = False  # and something that asks
        self.functions: list[Any] = []  # that were read, or weak references to them
        # Names with attributes, and the code that loads them.
        self.chains: set[tuple[tuple[str, ...], CodeType]] = set()
        self.groups: list[Any] = []  # of optimizers, reached by themselves
        self.arguments: list[Any] = []  # Tensors among them, which the next call has others of
        self.taken: set[tuple[str, int]] = set()
        self.seen = self.collected.seen
        self.home = home_of(function)

    def add(self, extra: Extra) -> None:
        """Reads what earlier calls have reached."""
        self.wait("a function", *extra.functions.values())
        for name in [name for name, x in list(sys.modules.items()) if id(x) in extra.functions]:
            self._take_module(name)
        self.names |= dict.fromkeys((name, True) for name in sorted(extra.names))
        self.missing |= dict.fromkeys(sorted(extra.names))
        for named in extra.owned.values():
            self._take(named._replace(value=named.now()))
        for thing in extra.objects.values():
            self._whole(type(thing).__name__, thing)
            self.wait(type(thing).__name__, thing)

    def run(self) -> Names:
        """Follows what waits and looks up all names in all objects, until that finds no more."""
        while self.waiting:
            while self.waiting:
                self._visit(*self.waiting.popleft())
            names, missing = list(self.names), list(self.missing)
            for one in self.objects:
                for name, read in names[one.tried :]:
                    if name == "__dict__" and read and not _is_ours(type(one.thing)):
                        classes = one.own if ("type", True) in self.names else ()
                        for thing in (one.thing, *classes):
                            self._whole(name, thing)
                    name = one.asked(name)
                    if name:
                        self._look_up(name, read, one)
                for name in missing[one.tried_missing :]:
                    self._look_up_missing(name, one)
                one.tried, one.tried_missing = len(names), len(missing)
            self._take_own_names()
        self._take_groups()
        self._take_states()
        self._refuse_states()
        asked = self.collected.names = {name for name, read in self.names if read}
        for name in sorted(asked & {*chain(*map(fields_of, self.arguments))}):
            self.collected.refused.append((name, f"it reads {name} of an argument, a Tensor"))
        return self.collected

    def _take_own_names(self) -> None:
        """What code asks of functions and classes themselves: ``f.__name__``."""
        classes = [kind for one in self.objects for kind in one.own]
        for names, owners in ((OF_FUNCTIONS, self.functions), (OF_CLASSES, classes)):
            for name in names:
                if (name, True) in self.names:
                    for owner in owners:
                        self._take(Name(name, owner, getattr(referent(owner), name)))

    def _take_states(self) -> None:
        """What functions of C refer to beside their attributes."""
        names = {name for name, _ in self.names}
        if self.abstract and (self.tests or MATCHED in names):
            self._take_called("isinstance", abc.get_cache_token)
        for one in self.objects:
            if issubclass(type(one.thing), SimpleNamespace):
                self._take_fields(one)
        for name in sorted(names & kinds.settings.keys()):
            self._take_called(name, kinds.settings[name])
        for name, thing, _ in self.collected.moving:
            drawing = isinstance(thing, generators())
            if any(words <= names for words in (STATES if drawing else LOOKS)):
                self._take_called(name, partial(state_of, thing))

    def _take_fields(self, one: _Reached) -> None:
        """What C compares and prints without a name: all but what code only writes to."""
        for name, value in one.fields.items():
            if (name, False) not in self.names or (name, True) in self.names:
                self._take(Name(name, one.weak or one.thing, value))

    def _take_called(self, name: str, function: Callable[[], Any]) -> None:
        """What a function gives, which is called before each replay."""
        self.collected.values.append(Name(name, Called(function), function()))

    def _take_groups(self) -> None:
        """Options of optimizers' groups, by the strings in the code; all where none is there."""
        things = [one.thing for one in self.objects]
        optimizers = [thing for thing in things if issubclass(type(thing), kinds.optimizer)]
        groups = list(self.groups)
        if ("param_groups", True) in self.names:
            groups += chain.from_iterable(thing.param_groups for thing in optimizers)
        for group in groups:
            self._take_contents("params", group["params"])
            asked = sorted(self.texts & group.keys())
            for name in asked or sorted(group):
                if name != "params":
                    self._take(Name(name, group, group[name]))

    def _refuse_states(self) -> None:
        """A step changes what an optimizer keeps, in replays, too: no name has its counts."""
        refusal = "state", "it reads the state of an optimizer"
        for names, code in self.chains:
            for name, attribute in pairwise(names):
                thing = self.optimizers.get(name)
                if attribute == "state" and thing is not None and not self._steps_itself(thing):
                    self.collected.refused_codes[code] = refusal

    # What is reached ------------------------------------------------------------------------------

    def wait(self, name: str, *values: Any) -> None:
        """Values to follow, with the name that leads to them."""
        self.waiting.extend((name, value, None) for value in values)

    def _visit(self, name: str, value: Any, weak: Any) -> None:
        """Follows a value; plain ones lead nowhere."""
        kind = type(value)
        if kind in PLAIN or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        self.abstract = self.abstract or issubclass(kind, abc.ABCMeta)
        self.tests = self.tests or value is isinstance or value is issubclass
        if value is sys.modules:  # names tried in all that they hold: hours in a large process
            self.collected.refused.append((name, "it reads sys.modules: all that is imported"))
            return
        if issubclass(kind, kinds.tensor):
            self._visit_tensor(name, value)
            return
        if issubclass(kind, kinds.module):
            self._visit_module(name, value)
            return
        self.wait(name, *_within(value))
        for part in ("func", "args", "keywords") if issubclass(kind, partial) else ():
            self._compare(Name(part, value, getattr(value, part)))
        if issubclass(kind, NATIVE) or any(value is function for function in READERS):
            self.collected.refused.append((name, f"it names {name}, which may read any memory"))
        elif kind is FunctionType:
            self._read(value, weak)
        elif kind is type(CACHED):
            self._visit_cached(value)
        elif issubclass(kind, RAW):
            self._take_contents(name, value, weak)
            if issubclass(kind, np.ndarray) and value.dtype.hasobject:
                self.wait(name, *value.flat)
        elif kind in COUNTED:
            if kind is Watched:
                self.groups.append(value)
            elif kind is WatchedList:
                self.wait(name, *value)
        elif issubclass(kind, (*MUTABLE, tuple, frozenset)):
            self._visit_container(name, value, weak)
        elif issubclass(kind, weakref.ref):
            self._visit_weak(name, value, value())
        elif kind in PROXIES:
            self._visit_weak(name, None, value)
        elif kind is ContextVar:
            self._take(Name(name, value, value.get(NOTHING)))
        elif kind in (attrgetter, methodcaller, MemberDescriptorType):
            slot = kind is MemberDescriptorType
            texts = [value.__name__] if slot else _texts(value.__reduce__())
            words = chain.from_iterable(text.split(".") for text in texts)
            self.names |= dict.fromkeys((word, True) for word in words)
        elif moves(value) and not self._is_own(kind):
            self._take_moving(name, value)
        elif issubclass(kind, kinds.dataset) and not self._is_own(kind):
            self._whole(name, value)
        elif issubclass(kind, (kinds.scaler, WRAPPERS)):
            self._whole(name, value)
            if self._is_own(kind):
                self._reach(value)
        elif kind is not CodeType and _is_foreign(kind):
            what = f"{kind.__module__}.{kind.__name__}, an array of another library"
            self.collected.refused.append((name, f"it names a {what}"))
        elif not issubclass(kind, (ModuleType, type, BuiltinFunctionType)) or self._is_own(value):
            self._visit_object(name, value, weak)

    def _visit_tensor(self, name: str, value: Any) -> None:
        """A Tensor's hooks, and the attributes that the user gave it."""
        self.wait(name, *(value.leaf.hooks.values() if value.leaf is not None else ()))
        if name == ARGUMENT:
            self.arguments.append(value)
        elif fields_of(value) or name != PARAMETER:
            self._reach(value)

    def _visit_object(self, name: str, value: Any, weak: Any) -> None:
        kind = type(value)
        if issubclass(kind, kinds.optimizer):
            self.optimizers.setdefault(name, value)
        iterating = [base for base in kind.__mro__ if "__next__" in vars(base)]
        if moves(value) and not all(map(by_statement, iterating)):
            self._take_moving(name, value)
        if issubclass(kind, EnumMeta):
            self._visit_container(name, value._member_map_, None)
            self._visit_container(name, value._value2member_map_, None)
        if kind is weakref.finalize:
            self._take(Name("alive", value, value.alive))
        self._reach(value, weak=weak)
        self._visit_inside(name, value)

    def _visit_cached(self, value: Any) -> None:
        """A function whose results are cached need not run where it counts."""
        function = getattr(value, "__wrapped__", None)
        if type(function) is not FunctionType:
            self.collected.cached.append(None)
        elif self._is_own(function):
            self.collected.cached.append(function.__code__)

    def _take_moving(self, name: str, value: Any) -> None:
        """An iterator or generator, which may be read on."""
        self.collected.moving.append((name, value, state_of(value)))
        if isinstance(value, np.flatiter):
            self.wait(name, value.base)

    def _visit_container(self, name: str, value: Any, weak: Any) -> None:
        mutable = issubclass(type(value), MUTABLE)
        elements = self._take_contents(name, value, weak) if mutable else value
        self.wait(name, *(element for element in elements if type(element) not in PLAIN))
        if type(value).__module__ != "builtins":
            self._reach(value, weak=weak)

    def _visit_inside(self, name: str, value: Any) -> None:
        """What an object of C refers to, where it says so to the collector of garbage."""
        if not is_collected(value) or not self._shows_inside(value):
            return
        if items_of(Inside(value)):
            self.wait(name, *self._take_contents(name, Inside(value)))

    def _shows_inside(self, value: Any) -> bool:
        """Whether a class of C keeps in an object what no attribute leads to."""
        kind = type(value)
        if issubclass(kind, (FunctionType, BaseException, io.IOBase, *NO_CONTAINERS)):
            return False
        if not by_statement(kind):
            return fields_of(value) is NO_FIELDS
        slots = any(vars(base).get("__slots__") for base in kind.__mro__)
        bases = [base for base in kind.__mro__ if not by_statement(base)]
        return self._is_own(kind) and not slots and any(x.__flags__ & COLLECTED for x in bases)

    def _visit_weak(self, name: str, reference: Any, target: Any) -> None:
        """What a weak reference refers to may die."""
        if reference is None:
            try:
                target = target.__reduce_ex__.__self__
            except ReferenceError:
                return
            reference = weakref.ref(target)
        if target is not None:
            self._take(Name("()", reference, False))
            self.waiting.append((name, target, reference))

    def _visit_module(self, name: str, value: Any) -> None:
        self.collected.modules.append(value)
        for module in value.modules():
            self.seen[id(module)] = module
            if module is value or self._is_own(type(module)):
                self._reach(module, below=module is not value)
            for hooks in HOOKS:
                self.wait(name, *vars(module)[hooks].values())
        self.wait(PARAMETER, *value.parameters())

    def _whole(self, name: str, value: Any) -> None:
        """An object of a library whose methods are called: all it holds."""
        fields = vars(value) if issubclass(type(value), type) else fields_of(value)
        if fields is not NO_FIELDS and id(fields) not in self.seen:
            self.seen[id(fields)] = fields
            # A class gives another view of its attributes each time.
            self._take_contents(name, fields if type(fields) is dict else Fields(value))
            self.wait(name, *fields.values())

    def _read(self, function: FunctionType, weak: Any) -> None:
        """Takes the names in a function's code, and the values that it finds without an object."""
        if not self._is_own(function):
            return
        self.functions.append(weak or function)
        if fields_of(function):
            self._reach(function, weak=weak)
        if self.ran is not None and function.__code__ not in self.ran:
            return
        namespace, code = function.__globals__, function.__code__
        reads, written = reads_of(code), only_written(code)
        self.collected.codes.update(codes(code))
        for name, site in reads.sites.items():
            self.collected.sites.setdefault(name, site)
        self.texts |= reads.texts
        for part in codes(code):
            self.names |= dict.fromkeys((name, name not in written) for name in part.co_names)
            self.names |= dict.fromkeys((name, True) for name in reads.implied)
            used = set(part.co_names)
            if used & BY_TEXT:
                parts = chain.from_iterable(text.split(".") for text in reads.texts)
                words = sorted(filter(str.isidentifier, parts))
                self.names |= dict.fromkeys((name, True) for name in words)
                self.missing |= dict.fromkeys(words)
            if reads.catches:
                self.missing |= dict.fromkeys(used - reads.globals)
        for name in sorted(reads.globals):
            self._take_global(name, namespace, name not in written)
        self._take_imported(function, reads.imported)
        self.chains |= {(names, code) for names in reads.chains}
        self._take_chains(function, reads.chains)
        self._take_closure(function, written, weak or function)

    def _take_closure(self, function: FunctionType, written: frozenset[str], owner: Any) -> None:
        """The function's code, defaults and variables of its closure."""
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            value = getattr(function, name)
            if value is not None:  # no call lacks a default that is not there
                self.collected.values.append(Name(name, owner, value))
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            named = Name(name, cell, None)
            self._take(named._replace(value=named.now()), name not in written)
        defaults = function.__defaults__ or ()
        arguments = code.co_varnames[: code.co_argcount]
        given = zip(arguments[len(arguments) - len(defaults) :], defaults)
        for name, value in (*given, *(function.__kwdefaults__ or {}).items()):
            if name not in written or not self._only_holds(value):
                self.wait(name, value)
        if function.__kwdefaults__:
            self._take_contents("__kwdefaults__", function.__kwdefaults__)

    def _take_global(self, name: str, namespace: dict[str, Any], read: bool) -> None:
        """A global, or a builtin, which no global may hide."""
        if name in namespace:
            self._take(Name(name, namespace, namespace[name]), read)
            self._take_context(namespace[name])
            return
        self._take(Name(name, namespace, NOTHING))
        builtins = namespace.get("__builtins__", {})
        builtins = vars(builtins) if isinstance(builtins, ModuleType) else builtins
        if name in builtins:
            self._take(Name(name, builtins, builtins[name]))

    def _take_context(self, value: Any) -> None:
        """What decimal numbers are rounded to belongs to the thread, how to warn to a module."""
        errors = vars(sys.modules.get("numpy._core.umath", np)).get("_extobj_contextvar")
        if value is np and errors is not None:
            self.wait("errstate", errors)
        if value is warnings or value is warnings.warn:
            self._take(Name("filters", warnings, warnings.filters))
        decimal: Any = sys.modules.get("decimal")
        own = decimal is not None and (value is decimal or value is decimal.Decimal)
        if own and not self.decimal:
            self.decimal = True
            self._take_called("decimal", lambda: repr(decimal.getcontext()))

    def _take_imported(self, function: Any, imported: frozenset[tuple[str, str]]) -> None:
        """What a function imports each time it runs."""
        package = str(function.__globals__.get("__package__") or "")
        above = accumulate(package.split("."), "{}.{}".format) if package else ()
        prefixes = ["", *(f"{name}." for name in above)]
        for module_name, name in sorted(imported):
            for whole in (f"{prefix}{module_name}".rstrip(".") for prefix in prefixes):
                if whole in sys.modules:
                    self._take_module(whole)
                    module = sys.modules[whole]
                    if name and not _is_ours(module):
                        self._take(Name(name, module, attribute_of(module, name)))

    def _take_module(self, name: str) -> None:
        """A Python module that is imported by its name."""
        self._take(Name(name, sys.modules, sys.modules[name]))

    def _take_chains(self, function: FunctionType, chains: frozenset[tuple[str, ...]]) -> None:
        """Attributes of libraries' modules: ``np.pi``, ``sys.argv``."""
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        for base, *attributes in sorted(chains):
            if base in cells:
                value = Name(base, cells[base], None).now()
            else:
                value = function.__globals__.get(base, sys.modules.get(base))
            for name in attributes:
                if type(value) is not ModuleType or _is_ours(value) or self._is_own(value):
                    break
                inner = vars(value).get(name, NOTHING)
                if inner is NOTHING:
                    break
                self._take(Name(name, value, inner))
                value = inner

    def _reach(self, thing: Any, below: bool = False, weak: Any = None) -> None:
        """An object, a class or a Python module that names may be looked up in."""
        kind = type(thing)
        is_class = issubclass(kind, type)
        bases = (*thing.__mro__, *kind.__mro__) if is_class else kind.__mro__
        own = [base for base in bases if self._is_own(base)]
        hidden: frozenset[str] | None = frozenset()
        if issubclass(kind, (kinds.optimizer, kinds.scheduler)):
            steps_itself = self._steps_itself(thing)
            hidden = frozenset() if steps_itself else MANAGED
            if steps_itself and isinstance(thing, kinds.optimizer):
                groups, states = thing.param_groups, thing.state
                for container in (groups, *groups, states, *states.values()):
                    self._take_contents("of an optimizer", container)
        if not own and not issubclass(kind, (kinds.module, kinds.tensor)) and _is_ours(kind):
            hidden = None
        if own and not is_class and not issubclass(kind, kinds.module) and weak is None:
            self.collected.values.append(Name("type()", thing, kind))
        lowest = thing if is_class else kind
        if own and len(lowest.__mro__) > 2:
            self._compare(Name("__mro__", lowest, lowest.__mro__))
        if issubclass(kind, BaseException):
            self._take(Name("args", weak or thing, thing.args))
        one = _Reached(thing, below, own, hidden, weak)
        self.objects.append(one)
        for owner in own:
            for name in sorted(vars(owner).keys() & self._implicit(owner, is_class)):
                self._take_from_class(name, one)

    def _implicit(self, kind: type, is_class: bool) -> set[str]:
        """Methods of a class that nobody names where they are called."""
        names = {
            name
            for name, value in vars(kind).items()
            if name.startswith("__")
            and name.endswith("__")
            and name not in UNUSED
            and (is_class or name not in MAKING)
            and type(value) in (FunctionType, staticmethod, classmethod)
        }
        return names | CALLED if _is_ours(kind) else names

    def _steps_itself(self, thing: Any) -> bool:
        """Whether an optimizer's or scheduler's step is the user's, all of it."""
        step = getattr(type(thing), "step", None)
        step = inspect.unwrap(step) if isinstance(step, FunctionType) else None
        return step is not None and self._is_own(step) and "super" not in step.__code__.co_names

    def _only_holds(self, value: Any) -> bool:
        """Whether to write to a value runs none of the user's code."""
        kind = type(value)
        return kind in PLAIN or (issubclass(kind, MUTABLE) and not self._is_own(kind))

    def _compare(self, named: Name) -> bool:
        """Lists one name with its value, if it is a new one; whether it is."""
        new = named.key() not in self.taken
        if new:
            self.taken.add(named.key())
            self.collected.values.append(named)
        return new

    def _take(self, named: Name, read: bool = True) -> None:
        """Lists one name with its value, which is followed."""
        if not read and self._only_holds(named.value):
            return  # nothing comes of it
        if self._compare(named):
            if named.value is not NOTHING:
                self.wait(named.name, named.value)
            if named.name == MATCHED and isinstance(named.value, tuple):
                self.names |= dict.fromkeys((name, True) for name in named.value)

    def _take_contents(self, name: str, container: Any, weak: Any = None) -> list[Any]:
        """Lists a container with all that it holds, which is not followed."""
        items = items_of(container)
        self.collected.contents.append(Contents(name, weak or container, items))
        return items

    def _look_up(self, name: str, read: bool, one: _Reached) -> None:
        """An attribute that an object has."""
        if name in one.fields and not self._is_data(name, one):
            value = one.fields[name]
            # What a Module below holds itself is looked at with the Module that is called.
            if not (one.below and (type(value) in PLAIN or issubclass(type(value), kinds.tensor))):
                owner = one.weak or one.thing
                owner = Fields(owner) if one.special else owner
                self._take(Name(name, owner, value), read)
            return
        if name in one.of_classes:
            self._take_from_class(name, one, read)
        else:
            value = attribute_of(one.thing, name)
            self._take(Name(name, one.weak or one.thing, value), read)

    def _is_data(self, name: str, one: _Reached) -> bool:
        """Whether a class's descriptor goes before what its object holds."""
        value = next((vars(kind)[name] for kind in one.own if name in vars(kind)), None)
        return hasattr(type(value), "__set__")

    def _take_from_class(self, name: str, one: _Reached, read: bool = True) -> None:
        """An attribute of an object's class, or of a class; methods are followed."""
        thing = one.thing
        owner, *others = (kind for kind in one.own if name in vars(kind))
        for other in others:  # for super()
            self._take(Name(name, Fields(other), vars(other)[name]), read)
        value = vars(owner)[name]
        if isinstance(value, MemberDescriptorType):
            holder = one.weak or thing
            self._take(Name(name, holder, attribute_of(thing, name)), read)
            return
        if not one.special and not hasattr(type(value), "__get__"):
            self._take(Name(name, one.weak or thing, value), read)
            return
        if not read and self._only_holds(value):
            return
        self.wait(name, value)
        self._take_method(name, owner, value, one)
        dunder = name.startswith("__") and name.endswith("__")
        in_fields = one.fields is not NO_FIELDS and not issubclass(type(thing), kinds.module)
        if in_fields and not dunder and one.weak is None and name not in one.fields:
            self._take(Name(name, Fields(thing), NOTHING))

    def _take_method(self, name: str, owner: type, value: Any, one: _Reached) -> None:
        """A descriptor of a class: it must not be replaced, nor hidden by a class below."""
        is_class = issubclass(type(one.thing), type)
        below = one.thing if is_class and owner in one.thing.__mro__ else type(one.thing)
        shown = value.__func__ if type(value) is staticmethod else value
        if type(value) in SHOWN and getattr(below, name, NOTHING) is shown:
            self._take(Name(name, below, shown))
            return
        for kind in below.__mro__[: below.__mro__.index(owner) + 1]:
            self._take(Name(name, Fields(kind), vars(kind).get(name, NOTHING)))

    def _look_up_missing(self, name: str, one: _Reached) -> None:
        """An attribute that an object may get."""
        if one.below or one.hidden is None or name in one.hidden or one.weak is not None:
            return
        if name not in one.fields and name not in one.of_classes:
            owner = Fields(one.thing) if one.special else one.thing
            if type(owner) is not Fields or one.fields is not NO_FIELDS:
                named = Name(name, owner, NOTHING)
                if named.now() is NOTHING:
                    self._take(named)

    def _is_own(self, thing: Any) -> bool:
        """Whether a function, class or Python module is the user's, not a library's."""
        module = _module_of(thing)
        root = module.partition(".")[0]
        if root == self.home and root != PACKAGE:
            return True
        if isinstance(thing, FunctionType):
            path = thing.__code__.co_filename
        else:
            file = attribute_of(sys.modules.get(module), "__file__")
            path = file if isinstance(file, str) else ""
        return not path.startswith(LIBRARIES) and bool(path or root not in sys.stdlib_module_names)


def _is_foreign(kind: type) -> bool:
    """Whether a class is of arrays whose content no other library can compare."""
    return hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__")


def by_statement(kind: type) -> bool:
    """Whether a class statement made a class: then it has slots, or its objects a dictionary.

    Classes of C are allocated, too, more of them with each version of Python.
    """
    slots = "__slots__" in vars(kind)
    return bool(kind.__flags__ & HEAP and (slots or kind.__dictoffset__))


def _described(kind: type) -> set[str]:
    """Attributes for which a class of C, or its slots, have descriptors."""
    if issubclass(kind, (FunctionType, type, *NO_CONTAINERS)) or _is_ours(kind):
        return set()
    descriptors = (GetSetDescriptorType, MemberDescriptorType)
    fields = chain.from_iterable(vars(base).items() for base in kind.__mro__)
    names = {name for name, value in fields if type(value) in descriptors}
    return names - {"__dict__", "__weakref__"}


def _texts(value: Any) -> list[str]:
    """All strings in nested tuples."""
    if isinstance(value, tuple):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def _within(value: Any) -> tuple[Any, ...]:
    """The functions and objects that a callable is made of."""
    if type(value) is MethodType:
        return value.__func__, value.__self__
    if issubclass(type(value), partial):
        return value.func, value.args, value.keywords
    if issubclass(type(value), staticmethod | classmethod):
        return (value.__func__,)
    if issubclass(type(value), property):
        return value.fget, value.fset
    if issubclass(type(value), cached_property):
        return (value.func,)
    if type(value) in METHODS and not isinstance(value.__self__, ModuleType):
        return (value.__self__,)  # a method of an object of C
    # By functools.wraps, lru_cache and tc.compile; and by singledispatch.
    fields = fields_of(value)
    wrapped = [fields[name] for name in ("__wrapped__", "registry") if name in fields]
    return tuple(wrapped)


def _module_of(thing: Any) -> str:
    if issubclass(type(thing), ModuleType):
        return str(thing.__name__)
    return str(getattr(thing, "__module__", None) or "")


def _is_ours(kind: Any) -> bool:
    """Whether a class is one of this package, or made from one; or a module is."""
    if not isinstance(kind, type):
        return _module_of(kind).partition(".")[0] == PACKAGE
    return any(_module_of(base).partition(".")[0] == PACKAGE for base in kind.__mro__)
