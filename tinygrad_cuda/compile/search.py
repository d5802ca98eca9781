"""Which Python values the code of a compiled function names: they are found before it is traced.

Code is read: the function's own, that of the functions, methods and Modules it names, and so on, up
to libraries. What an attribute belongs to is not known before it runs, so a name counts for each
object that is reached. That may find a value too many, which costs a look at each replay; it misses
what no name leads to: files, the environment, the clock, how far an iterator is, ``getattr`` with a
computed name.
"""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from tinygrad_cuda.compile.names import MANY, NOTHING, PLAIN, Contents, Name, Names, items_of
from tinygrad_cuda.compile.writes import codes, only_written
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.optim.lr_scheduler import LRScheduler
from tinygrad_cuda.optim.optimizer import Optimizer
from tinygrad_cuda.optim.watched import DICTIONARIES, LISTS, States
from tinygrad_cuda.tensor.base import TensorBase

PACKAGE = __package__.partition(".")[0]
# Where the interpreter and what was installed lie; what is there is a library's, not the user's.
_FOLDERS = (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),)
LIBRARIES = (*(f"{x}{os.sep}" for x in (*_FOLDERS, Path(__file__).parents[1])), "<frozen")
COUNTED = {*LISTS, *DICTIONARIES, States} - {list, dict}  # optimizers', which look after them
MUTABLE = (list, dict, set, deque)
# Methods that nobody names where they are called; the others are for printing and saving.
IMPLICIT = frozenset({
    "__abs__", "__add__", "__and__", "__bool__", "__call__", "__contains__", "__enter__", "__eq__",
    "__exit__", "__float__", "__floordiv__", "__ge__", "__getattr__", "__getitem__", "__gt__",
    "__iadd__", "__imul__", "__index__", "__int__", "__invert__", "__isub__", "__iter__",
    "__itruediv__", "__le__", "__len__", "__lt__", "__matmul__", "__mod__", "__mul__", "__ne__",
    "__neg__", "__next__", "__or__", "__pos__", "__pow__", "__radd__", "__rmatmul__", "__rmul__",
    "__rpow__", "__rsub__", "__rtruediv__", "__setitem__", "__sub__", "__truediv__", "__xor__",
})  # fmt: skip
MAKING = frozenset({"__new__", "__init__", "__post_init__"})
# What this package calls of classes that a user makes from its own.
CALLED = frozenset({"forward", "backward", "setup_context", "vmap", "jvp"})
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# What schedulers tell of themselves, by what is asked; of an optimizer it is options of its groups.
REPORTED = {"last_epoch": "last_epoch", "get_last_lr": "_last_lr"}
# Else they look after what they hold, and a replay moves it on.
MANAGED = frozenset({"state", "param_groups", "steps", "base_lrs", "_steps", *REPORTED.values()})


def names_of(function: Any, arguments: Sequence[Any]) -> Names:
    """What a function names.

    Args:
        function: anything that can be called.
        arguments: Tensors, plain values and other objects; these are asked for names, too.
    """
    search = _Search(function)
    search.wait("an argument", *arguments)
    return search.run()


class _Reached:
    """An object, class or Python module in which names are looked up.

    Args:
        thing: it.
        below: it is a Module inside one that is reached.
        own: its class, or it if it is one, and bases, as far as they are the user's.
        hidden: what it looks after itself; None for all but what is `REPORTED`.
    """

    __slots__ = ("thing", "below", "own", "hidden", "fields", "known", "tried")

    def __init__(
        self, thing: Any, below: bool, own: list[type], hidden: frozenset[str] | None
    ) -> None:
        self.thing, self.below, self.own, self.hidden = thing, below, own, hidden
        fields = getattr(thing, "__dict__", None)
        self.fields = fields if type(fields) is dict and not isinstance(thing, type) else {}
        self.known = set().union(*map(vars, own))
        self.tried = 0  # names

    def asked(self, name: str) -> str:
        """Under which name it has what it is asked for; none if it does not tell."""
        if self.hidden is None or name in self.hidden:
            name = REPORTED.get(name, "")
        return name if name in self.fields or name in self.known else ""


class _Search:
    """Follows names from a function to values, and from values to functions."""

    def __init__(self, function: Any) -> None:
        self.found = Names()
        # Of all code read so far, and whether it does more with them than write to them.
        self.names: dict[tuple[str, bool], None] = {}
        self.texts: set[str] = set()  # and its strings
        self.waiting: deque[tuple[str, Any]] = deque([("the function", function)])
        self.objects: list[_Reached] = []
        self.known: set[tuple[str, int]] = set()
        self.seen: dict[int, Any] = {}
        root = getattr(function, "__wrapped__", function)
        root = root.func if isinstance(root, partial) else root
        # A function of an installed package may name values of that package.
        self.home = _module_of(root).partition(".")[0]

    def run(self) -> Names:
        """Follows what waits and looks up all names in all objects, until that finds no more."""
        while self.waiting:
            while self.waiting:
                self._visit(*self.waiting.popleft())
            names = list(self.names)
            for one in self.objects:
                for name, read in names[one.tried :]:
                    name = one.asked(name)
                    if name:
                        self._look_up(name, read, one)
                one.tried = len(names)
        optimizers = [one.thing for one in self.objects if isinstance(one.thing, Optimizer)]
        if ("param_groups", True) in self.names:
            for group in chain.from_iterable(thing.param_groups for thing in optimizers):
                for name in sorted(self.texts & group.keys() - {"params"}):
                    self._take(Name(name, group, group[name]))
        return self.found

    # What is met ----------------------------------------------------------------------------------

    def wait(self, name: str, *values: Any) -> None:
        """Values to follow, found by a name."""
        self.waiting.extend((name, value) for value in values)

    def _visit(self, name: str, value: Any) -> None:
        """Follows a value; plain ones lead nowhere."""
        if type(value) in PLAIN or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        if isinstance(value, TensorBase):
            self.wait(name, *(value.leaf.hooks.values() if value.leaf is not None else ()))
            return
        self.wait(name, *_within(value))
        if isinstance(value, FunctionType):
            self._read(value)
        elif isinstance(value, np.ndarray):
            self.found.contents.append(Contents(name, value, items_of(value)))
        elif isinstance(value, (*MUTABLE, tuple, frozenset)) and type(value) not in COUNTED:
            items = items_of(value)
            if isinstance(value, MUTABLE):
                self.found.contents.append(Contents(name, value, items))
            if len(items) <= MANY:
                self.wait(name, *(item for item in items if type(item) not in PLAIN))
            if type(value).__module__ != "builtins":
                self._reach(value)
        elif isinstance(value, Module):
            for module in value.modules():
                self.seen[id(module)] = module
                if module is value or self._is_own(type(module)):
                    self._reach(module, below=module is not value)
                for hooks in HOOKS:
                    self.wait(name, *vars(module)[hooks].values())
            self.wait(name, *value.parameters())
        elif not isinstance(value, (ModuleType, type)) or self._is_own(value):
            self._reach(value)

    def _read(self, function: FunctionType) -> None:
        """Takes the names in a function's code, and the values that it finds without an object."""
        if not self._is_own(function):
            return
        place, code = function.__globals__, function.__code__
        written = only_written(code)
        for part in codes(code):
            texts = {text for text in part.co_consts if isinstance(text, str)}
            self.texts |= texts
            self.names |= dict.fromkeys((name, name not in written) for name in part.co_names)
            if "getattr" in part.co_names:
                names = sorted(filter(str.isidentifier, texts))
                self.names |= dict.fromkeys((name, True) for name in names)
            for name in part.co_names:
                if name in place:
                    self._take_global(Name(name, place, place[name]), name not in written)
                elif isinstance(sys.modules.get(name), ModuleType):  # imported inside
                    self.wait(name, sys.modules[name])
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            named = Name(name, cell, None)
            self._take(named._replace(value=named.now()), name not in written)
        defaults = function.__defaults__ or ()
        arguments = code.co_varnames[: code.co_argcount]
        given = zip(arguments[len(arguments) - len(defaults) :], defaults)
        for name, value in (*given, *(function.__kwdefaults__ or {}).items()):
            if name not in written or not self._only_holds(value):
                self.wait(name, value)

    def _reach(self, thing: Any, below: bool = False) -> None:
        """An object, a class or a Python module that names may be looked up in."""
        kinds = thing.__mro__ if isinstance(thing, type) else type(thing).__mro__
        own = [kind for kind in kinds if self._is_own(kind)]
        hidden: frozenset[str] | None = frozenset()
        if isinstance(thing, Optimizer | LRScheduler):
            steps_itself = self._steps_itself(thing)
            hidden = frozenset() if steps_itself else MANAGED
            if steps_itself and isinstance(thing, Optimizer):
                groups, states = thing.param_groups, thing.state
                for held in (groups, *groups, states, *states.values()):
                    self.found.contents.append(Contents("of an optimizer", held, items_of(held)))
        if not own and not isinstance(thing, Module) and _is_ours(type(thing)):
            hidden = None
        self.objects.append(_Reached(thing, below, own, hidden))
        methods = IMPLICIT | MAKING if isinstance(thing, type) else IMPLICIT
        for kind in own:
            names = methods | CALLED if _is_ours(kind) else methods
            for name in sorted(vars(kind).keys() & names):
                self.wait(name, vars(kind)[name])

    def _steps_itself(self, thing: Any) -> bool:
        """Whether an optimizer's or scheduler's step is the user's, all of it."""
        step = getattr(type(thing), "step", None)
        step = inspect.unwrap(step) if isinstance(step, FunctionType) else None
        return step is not None and self._is_own(step) and "super" not in step.__code__.co_names

    def _take_global(self, named: Name, read: bool) -> None:
        """A module or a library's function that is imported by its own name stays what it is."""
        value = named.value
        imported = isinstance(value, ModuleType) or (
            isinstance(value, FunctionType | BuiltinFunctionType | type)
            and value.__name__ == named.name
            and not self._is_own(value)
        )
        if not imported:
            self._take(named, read)
        elif isinstance(value, ModuleType):
            self.wait(named.name, value)

    def _only_holds(self, value: Any) -> bool:
        """Whether to write to a value runs none of the user's code."""
        kind = type(value)
        return kind in PLAIN or (issubclass(kind, MUTABLE) and not self._is_own(kind))

    def _take(self, named: Name, read: bool = True) -> None:
        """Keeps one name with its value, which is followed."""
        key = named.name, id(named.place)
        if not read and self._only_holds(named.value):
            return  # nothing comes of it
        if key not in self.known and named.value is not NOTHING:
            self.known.add(key)
            self.found.values.append(named)
            self.wait(named.name, named.value)

    def _look_up(self, name: str, read: bool, one: _Reached) -> None:
        """An attribute that an object has."""
        thing = one.thing
        if name in one.fields:
            value = one.fields[name]
            # What a Module below holds itself is looked at with the Module that is called.
            if not (one.below and (type(value) in PLAIN or isinstance(value, TensorBase))):
                self._take(Name(name, thing, value), read)
            return
        value = next(vars(kind)[name] for kind in one.own if name in vars(kind))
        if isinstance(value, MemberDescriptorType):
            self._take(Name(name, thing, getattr(thing, name, NOTHING)), read)
        elif hasattr(value, "__get__"):
            self.wait(name, value)
        else:
            self._take(Name(name, thing, value), read)

    def _is_own(self, thing: Any) -> bool:
        """Whether a function, class or Python module is the user's, not a library's."""
        module = _module_of(thing)
        root = module.partition(".")[0]
        if root == self.home and root != PACKAGE:
            return True
        if isinstance(thing, FunctionType):
            path = thing.__code__.co_filename
        else:
            path = getattr(sys.modules.get(module), "__file__", None) or ""
        return not path.startswith(LIBRARIES) and bool(path or root not in sys.stdlib_module_names)


def _within(value: Any) -> tuple[Any, ...]:
    """The functions and objects that a callable is made of."""
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, cached_property):
        return (value.func,)
    fields = getattr(value, "__dict__", None)
    # By functools.wraps, lru_cache and tc.compile.
    wrapped = fields.get("__wrapped__") if isinstance(fields, dict) else None
    return () if wrapped is None else (wrapped,)


def _module_of(thing: Any) -> str:
    if isinstance(thing, ModuleType):
        return thing.__name__
    return str(getattr(thing, "__module__", None) or "")


def _is_ours(kind: type) -> bool:
    """Whether a class is one of this package, or made from one."""
    return any(_module_of(base).partition(".")[0] == PACKAGE for base in kind.__mro__)
