"""What a function does while it is traced that no name leads to: it is read, too, or refused.

The interpreter reports each call that Python code makes. So a replay never lacks what a plain call
would read from the clock, a file or a generator of random numbers; nothing of this is asked then.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from operator import attrgetter, methodcaller
from string import Formatter
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)  # fmt: skip
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import PACKAGE_FOLDER, CompileError, RawSite
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.replay.generated_functions import function_from
from tinygrad_cuda.replay.guards.bytecode import NAMING, instructions, loads_of, reads_of
from tinygrad_cuda.replay.guards.discovery import (
    COLLECTED,
    LIBRARIES,
    NO_FIELDS,
    PACKAGE,
    Extra,
    by_statement,
    fields_of,
)
from tinygrad_cuda.replay.guards.states import UNKNOWN, state_of
from tinygrad_cuda.replay.guards.values import NOTHING, RAW, Name, Names, functions_of, referents_of
from tinygrad_cuda.replay.guards.volatile import DIRECTLY, DRAWING, HIDING, is_volatile, module_of

# Of these packages, or of the interpreter, objects of C without referents never change.
CONSTANT = frozenset({
    "builtins", "datetime", "decimal", "ml_dtypes", "numpy", "zoneinfo", "_struct", PACKAGE,
})  # fmt: skip
IMPORTING = "<frozen importlib"
# Files of this package: those that run plans, and those that trace.
RUNNING, TRACING = (os.path.join(PACKAGE_FOLDER, name, "") for name in ("backend", "capture"))
HINT = "call it outside and pass what it gives as an argument"


class Watch:
    """The calls of one thread from `begin` to `end`.

    Args:
        names: what is read of the function.
        home: the package that the function is of.

    Attributes:
        extra: what was reached besides.
        error: the first refusal.
    """

    def __init__(self, names: Names, home: str) -> None:
        self.names, self.home = names, home
        self.extra = Extra()
        self.error: CompileError | None = None
        self.before: Any = None
        self.on = False
        self.kinds: dict[CodeType, str] = {}
        self.ran: dict[CodeType, None] = {}  # the user's code, in order
        self.entered: set[CodeType] = set()  # libraries' too
        self.unseen = False  # whether code may have run that the interpreter does not report
        self.pending: list[tuple[FrameType, Any]] = []
        self.hidden = {named.name: _hides(named) for named in names.values if _hides(named)}
        self.hidden.update(dict.fromkeys((*NAMING, *FORMATS), 1))
        self.states = [(name, thing, state) for name, thing, state in names.moving]
        shared = getattr(np.random.mtrand, "_rand")  # noqa: B009
        self.states.append(("numpy.random", shared, state_of(shared)))

    def begin(self) -> None:
        """Has the interpreter report this thread's calls."""
        with uninterrupted:
            self.before, self.on = sys.getprofile(), True
            sys.setprofile(self._event)

    def end(self) -> None:
        """Gives the interpreter's profiler back; a second time changes nothing."""
        with uninterrupted:
            if self.on:
                self.on = False
                # A refusal has taken it away already.
                sys.setprofile(self.before if callable(self.before) else None)
                if hasattr(self.before, "enable"):  # cProfile's
                    self.before.enable()

    # Events ---------------------------------------------------------------------------------------

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        kind = self.kinds.get(frame.f_code) or self._kind(frame)
        if kind == "package":
            return  # most calls are this package's
        if event == "c_call":
            self._called_c(frame, argument)
        elif event == "call":
            self._called(frame)
        elif event == "return" and self.pending:
            self._returned(frame, argument)

    def _kind(self, frame: FrameType) -> str:
        """Whose code runs in a frame: "user", "library" or "package"."""
        code = frame.f_code
        kind = self.kinds.get(code)
        if kind is None:
            path = code.co_filename
            name = str(frame.f_globals.get("__name__"))
            if path.startswith(PACKAGE_FOLDER):
                kind = "package"
            elif path.startswith(LIBRARIES) and name.partition(".")[0] != self.home:
                kind = "library"
            else:
                # Libraries make functions from text, too: those are of no Python module.
                kind = "user" if not path.startswith("<") or _of_module(name) else "library"
            self.kinds[code] = kind
        return kind

    def _user_frame(self, frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
        """The user's frame under libraries' ones, and the outermost of these."""
        outermost = None
        while frame is not None:
            kind = self._kind(frame)
            if kind == "user":
                return (None, None) if _by_a_plan(frame) else (frame, outermost)
            if kind == "package" or frame.f_code.co_filename.startswith(IMPORTING):
                return None, None
            outermost, frame = frame, frame.f_back
        return None, None

    def _called_c(self, frame: FrameType, function: Any) -> None:
        name = function.__name__
        owner = getattr(function, "__self__", None)
        if name in LOOKING and type(owner) is ModuleType:
            if self._kind(frame) == "user" and not _by_a_plan(frame):
                self._looked_up(frame, name)
            return
        if name in FORMATS and type(owner) is str:
            self._reached(_named_in(owner))
            return
        read = type(owner) is ContextVar or name in ("__reduce_ex__", "__getstate__")
        if read and self._user_frame(frame)[0] is not None:
            self.extra.objects[id(owner)] = owner
            return
        module = module_of(function, owner)
        self.unseen = self.unseen or (module, name) in HIDING
        hidden = id(owner) in self.names.seen and _is_opaque(owner)
        directly = (module, name) in DIRECTLY or name == "__subclasses__"
        if not (hidden or directly or is_volatile(module, name, owner)):
            return
        user, outermost = self._user_frame(frame)
        if user is None or (directly and outermost is not None and not _inspects(outermost)):
            return
        shown = f"{module}.{name}" if outermost is None else outermost.f_code.co_qualname
        error = self._error(user, f"it calls {shown}")
        if outermost is not None and module not in DRAWING:
            # Of a logger, say, that notes the time nothing comes back.
            self.pending.append((outermost, error))
        else:
            self._refuse(error)

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        kind = self._kind(frame)
        self.entered.add(code)
        if kind == "user":
            if code not in self.ran and not _by_a_plan(frame):
                self.ran[code] = None
                if code in self.names.refused_codes:
                    name, what = self.names.refused_codes[code]
                    self._refuse(_error(reads_of(code).sites.get(name), what, HINT))
                for name, site, called in loads_of(code):
                    if self.hidden.get(name, 0) > called:
                        what = f"no trace sees what {name} reads, handed on or by a computed name"
                        self._refuse(_error(site, what, HINT))
                if code not in self.names.codes:
                    self._met(frame)
        elif code in COUNTING:
            if frame.f_back is not None and self._kind(frame.f_back) == "user":
                self._refuse(self._error(frame.f_back, f"it calls threading.{code.co_name}"))
        elif kind == "library" and code.co_name == "import_module":
            if self._user_frame(frame)[0] is not None:
                self.pending.append((frame, None))
        elif kind == "library" and code.co_argcount:
            thing = frame.f_locals.get(code.co_varnames[0])
            searched = type(thing) is type(os.environ) or id(thing) in self.names.seen
            if searched and fields_of(thing) is not NO_FIELDS and type(thing) is not ModuleType:
                user, _ = self._user_frame(frame)
                if user is not None:
                    self.pending.append((frame, thing))

    def _returned(self, frame: FrameType, result: Any) -> None:
        things = [thing for other, thing in self.pending if other is frame]
        if not things:
            return
        self.pending = [pair for pair in self.pending if pair[0] is not frame]
        if result is None:
            return
        for thing in things:
            if type(thing) is CompileError:
                self._refuse(thing)
            elif thing is None:
                self.extra.functions[id(result)] = result  # a Python module
            else:
                self.extra.objects[id(thing)] = thing

    # What is reached ------------------------------------------------------------------------------

    def _met(self, frame: FrameType) -> None:
        """A function that no name leads to."""
        code = frame.f_code
        back = frame.f_back
        while back is not None:
            if back.f_code.co_filename.startswith(IMPORTING):
                return  # a module that is imported inside
            back = back.f_back
        self.extra.functions.update((id(thing), thing) for thing in functions_of(code))

    def _looked_up(self, frame: FrameType, builtin: str) -> None:
        """An attribute or global by a name that was computed."""
        call = _call_of(frame)
        if builtin in ("globals", "vars") and (call is None or not call.args):
            key = _key_after(frame)
            if builtin == "vars" and frame.f_globals is not frame.f_locals:
                return  # as locals()
            if key is None:
                self._refuse(self._error(frame, f"it looks at {builtin}()", "name the global"))
            self._belongs(frame.f_globals, str(key))
            return
        owner = _value(call.args[0], frame) if call is not None and call.args else None
        if builtin == "vars":
            if _key_after(frame) is not None:
                return  # its text was read
            if owner is None:
                self._refuse(self._error(frame, "it calls vars of what cannot be followed"))
            self.extra.objects[id(owner)] = owner
            return
        if call is not None and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
            name: Any = call.args[1].value
            if not isinstance(owner, ModuleType):
                return  # its text was read
        else:
            name = _value(call.args[1], frame) if call is not None and len(call.args) > 1 else None
        if not isinstance(name, str):
            error = self._error(
                frame, f"it calls {builtin} with a name that cannot be followed",
                "compute the name in a statement of its own, or use a dictionary",
            )  # fmt: skip
            self._refuse(error)
        if isinstance(owner, ModuleType):
            self._belongs(owner, name)
        self._reached({name})

    def _belongs(self, owner: Any, name: str) -> None:
        named = Name(name, owner, NOTHING)
        self.extra.owned[named.key()] = named

    def _reached(self, names: set[str]) -> None:
        """Names of attributes that are computed."""
        self.extra.names.update((name, name in self.names.names) for name in names)

    def narrowed(self, search: Callable[[set[CodeType]], Names]) -> None:
        """Leaves out of the names what only code reads that has not run.

        A call that would run it differs in a value that the code read which has run.

        Args:
            search: gives the names that some code reads.
        """
        cached = any(code not in self.entered for code in self.names.cached)
        if not self.unseen and not cached:
            self.names.restrict(search(self.entered))

    def moved(self) -> None:
        """Refuses what has been read on: iterators, generators of random numbers."""
        for name, thing, state in self.states:
            now = state_of(thing)
            if now != state or now is UNKNOWN:
                site = self.names.sites.get(name) or self._site_of_drawing()
                raise _error(site, f"it reads on in {name}, a {type(thing).__name__}", HINT)

    def _site_of_drawing(self) -> RawSite | None:
        """The first line that names a method of NumPy's generators."""
        words = {*dir(np.random.RandomState), *dir(np.random.Generator)}
        for code in self.ran:
            for step in instructions(code):
                if isinstance(step.argval, str) and step.argval in words:
                    return code, step.offset
        return next(((code, -1) for code in self.ran), None)

    # Refusals -------------------------------------------------------------------------------------

    def _error(self, frame: FrameType, what: str, hint: str = HINT) -> CompileError:
        return _error((frame.f_code, frame.f_lasti), what, hint)

    def _refuse(self, error: CompileError) -> None:
        self.error = self.error or error
        raise error


def _by_a_plan(frame: FrameType | None) -> bool:
    """Whether a plan that runs has called: a replay runs it, too.

    So is what a library does that is loaded then, wherever it is installed.
    """
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith((RUNNING, TRACING)):
            return path.startswith(RUNNING)
        frame = frame.f_back
    return False


def _of_module(name: str) -> bool:
    """Whether code of a name is the user's, of a Python module that is there."""
    return name in sys.modules and name.partition(".")[0] != PACKAGE


COUNTING = (threading.active_count.__code__, threading.enumerate.__code__)
FORMATS = frozenset({"format", "format_map"})
LOOKING = frozenset({"getattr", "hasattr", "vars", "globals"})


def refuse(names: Names) -> None:
    """Refuses what is reached and can neither be compared nor seen while it is read.

    Raises:
        CompileError: the first of it, with the line that names it.
    """
    for name, what in names.refused:
        raise _error(names.sites.get(name), what, HINT)


def _error(site: RawSite | None, what: str, hint: str) -> CompileError:
    return CompileError(
        "compile", "a compiled function reads what a replay would not read again",
        expect="Tensors, arguments and Python values that names lead to", actual=what, site=site,
        hint=hint,
    )  # fmt: skip


def _hides(named: Name) -> int:
    """Whether no trace sees a value called: 1 where C calls it, 2 ever."""
    value = inner = named.value
    if issubclass(type(value), partial):
        inner = value.func
    elif issubclass(type(value), defaultdict):
        inner = value.default_factory
    if type(inner) is BuiltinFunctionType:
        name, owner = inner.__name__, inner.__self__
        looking = name in (FORMATS if type(owner) is str else LOOKING)
        hides = looking or is_volatile(module_of(inner, owner), name, owner)
        return hides + (hides and inner is not value)
    renamed = (inner is attrgetter or inner is methodcaller) and named.name not in NAMING
    slot = type(inner) in (WrapperDescriptorType, MethodWrapperType)
    return 2 * (renamed or (slot and inner.__name__ in NAMING))


def _named_in(text: str) -> set[str]:
    """Attributes that a text asks for when it is formatted: ``"{0.scale}"``."""
    names: set[str] = set()
    try:
        fields = [*Formatter().parse(text)]
    except ValueError:  # the function's own line will raise it
        return names
    for _, field, form, _ in fields:
        parts = re.split(r"[.\[\]]", field or "")
        names.update(part for part in parts[1:] if part.isidentifier())
        if form:
            names |= _named_in(form)
    return names


def _inspects(frame: FrameType) -> bool:
    """Whether a library hands on what the interpreter says of itself."""
    return frame.f_globals.get("__name__") == "inspect"


def _is_opaque(thing: Any) -> bool:
    """Whether an object of a class of C changes where nobody can see it: a hash, a compressor.

    Of one without a length that refers to nothing but its class, the collector shows nothing.
    """
    kind = type(thing)
    if by_statement(kind) or issubclass(kind, RAW) or kind.__module__.split(".")[0] in CONSTANT:
        return False
    return not kind.__flags__ & COLLECTED or (
        referents_of(thing) == [kind] and not hasattr(kind, "__len__")
    )


def _call_of(frame: FrameType) -> ast.Call | None:
    """The present call of a frame, from its source."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last is None or start is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, n) for n in range(first, last + 1)]
    if not any(lines):
        return None
    parts = [line.encode() for line in lines]
    parts[-1] = parts[-1][:end]
    parts[0] = parts[0][start:]
    try:
        tree = ast.parse(b"(" + b"".join(parts) + b"\n)", mode="eval")
    except SyntaxError:
        return None
    return tree.body if isinstance(tree.body, ast.Call) else None


PURE = (
    ast.Expression, ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.operator, ast.JoinedStr,
    ast.FormattedValue, ast.Subscript, ast.Load, ast.UnaryOp, ast.unaryop, ast.IfExp, ast.Compare,
    ast.cmpop, ast.Tuple,
)  # fmt: skip


def _value(node: ast.expr, frame: FrameType) -> Any:
    """What an expression without calls gives in a frame; None if it has calls."""
    if not all(isinstance(part, PURE) for part in ast.walk(node)):
        return None
    text = f"def value():\n    return {ast.unparse(node)}"
    try:
        return function_from(text, {**frame.f_globals, **frame.f_locals})()
    except Exception:  # the function's own line will raise it
        return None


def _key_after(frame: FrameType) -> str | None:
    """The constant by which the result of a call is looked up at once."""
    steps = [s for s in instructions(frame.f_code) if s.offset > frame.f_lasti]
    ends = {"BINARY_SUBSCR", "BINARY_OP"}
    if steps[0].argval == "get":
        steps, ends = steps[1:], {"PRECALL", "CALL"}
    key, *rest = steps
    if key.opname != "LOAD_CONST" or not isinstance(key.argval, str):
        return None
    after = rest[1] if "CALL" in ends and rest[0].opname.startswith("LOAD_") else rest[0]
    return key.argval if after.opname in ends and after.argrepr in ("", "[]") else None
