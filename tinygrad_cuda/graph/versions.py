"""Whether a value that PyTorch saves for a gradient was written in place since: its version check.

A node is a value, so a gradient is right all the same; the check is for those who want an error
where PyTorch would refuse. It costs a look at one flag while it is off.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

from tinygrad_cuda.core.errors import GradientError, RawSite, describe_site, is_internal, user_site
from tinygrad_cuda.graph.node import Node, made_by, mode
from tinygrad_cuda.graph.saved import (
    COMPOSED,
    MAY_DEFER,
    SAVED,
    SAVED_AGAIN,
    SAVED_ONCE,
    STEPPED,
    UNCOUNTED,
    Arguments,
    SavedResult,
    saved_by,
    tensors_in,
)


class Write:
    """A value of a Tensor was replaced in place.

    Attributes:
        unit: the call that wrote.
        value: what was there before, in words.
        site: the user's line.
    """

    __slots__ = ("unit", "value", "site")

    def __init__(self, unit: VersionUnit, value: str, site: RawSite | None) -> None:
        self.unit, self.value, self.site = unit, value, site


class Version:
    """A value of a cell, or of what ``data`` shows; `write` says what has replaced it."""

    __slots__ = ("write",)

    def __init__(self) -> None:
        self.write: Write | None = None


class VersionUnit:
    """One call by the user: what it makes inside nobody else can write.

    Attributes:
        name: of the function, if the table has it.
        saved: versions of arguments that PyTorch would save; whether it saves a copy where
            the call itself writes to them: of the first argument, in the form in place; and
            whether its gradient may save them again.
        results: which results it would save, see `saved_by`.
        origin: of what a gradient does, the call that it is the gradient of.
        operand: and by which operand, where that matters.
    """

    __slots__ = (
        "name", "saved", "results", "origin", "operand", "_gradients", "_made", "_last", "_behind",
        "_given", "__weakref__",
    )  # fmt: skip

    def __init__(self, name: str | None, arguments: Arguments) -> None:
        self.name = name
        self.origin: VersionUnit | None = None
        self.operand: int | None = None
        self._gradients: dict[int | None, VersionUnit] = {}
        self.saved: list[tuple[Version, bool, bool]] = []
        self.results: list[SavedResult] = []
        self._made: dict[str, list[Version]] = {"result": [], "integers": []}
        # The last value that was made, which the call gives.
        self._last: ref[Node] | None = None
        # What is saved and requires grad, as nodes, and of the results those that were made; with
        # the operand whose gradient alone saves them again.
        self._behind: list[tuple[ref[Node], int | None]] = []
        # Values of arguments: a view's is recorded by whoever reads it first.
        self._given: list[ref[Node]] = []
        if name is not None:
            given = [*tensors_in([*arguments.values()])]
            self._given = [ref(tensor.node) for tensor in given]
            # Without a gradient nothing is saved, whatever history the memory has.
            if mode.now.gradients and any(tensor.requires_grad for tensor in given):
                self._save(name, arguments)

    def _save(self, name: str, arguments: Arguments) -> None:
        tensors, self.results = saved_by(name, arguments)
        for tensor, copied, again in tensors:
            self.saved.append((version_of(tensor), copied, again))
            if tensor.requires_grad:
                self._behind.append((ref(tensor.node), None))

    def gradient(self, operand: int | None) -> VersionUnit:
        """What the gradient of this call by an operand does."""
        if self.origin is not None:
            return self
        if all(result.operand is None for result in self.results):
            operand = None
        if operand not in self._gradients:
            made = self._gradients[operand] = VersionUnit(None, {})
            made.origin, made.operand = self, operand
        return self._gradients[operand]

    def was_given(self, node: Node) -> bool:
        """Whether a value is that of an argument, which the call has not made."""
        return any(given() is node for given in self._given)

    def gave(self, node: Node) -> bool:
        """Whether a value is what the call gives."""
        return self._last is not None and self._last() is node

    def made(self, node: Node, holder: Any) -> None:
        """A Tensor has come of the call, or was written by it."""
        self._last = ref(node)
        if self.results:
            kind = "result" if node.outputs[0][1].is_floating else "integers"
            self._made[kind].append(versions.current(holder))
            again = [r.operand for r in self.results if r.kind == kind and r.again]
            if node.requires_grad and again:
                self._behind.append((ref(node), None if None in again else again[0]))

    def behind(self, operand: int) -> list[Node]:
        """What a gradient by an operand saves again, as far as a history still refers to it."""
        own = [reference for reference, whose in self._behind if whose in (None, operand)]
        return [node for reference in own if (node := reference()) is not None]

    def write(self, again: bool = False, operand: int | None = None) -> Write | None:
        """A write to what PyTorch would have saved, if there was one.

        Args:
            again: to what its gradient would have saved again.
            operand: by which that gradient is.
        """
        if self.origin is not None:
            saved = self.origin.name in SAVED_AGAIN
            return self.origin.write(True, self.operand) if saved else None
        for version, copied, more in self.saved:
            if again and not more:
                continue
            if version.write is not None and not (copied and version.write.unit is self):
                return version.write
        return self.write_to_result(again, operand)

    def write_to_result(self, again: bool = False, operand: int | None = None) -> Write | None:
        """As `write`, of the results alone."""
        for result in self.results:
            if again and not result.again_by(operand):
                continue
            made, number = self._made[result.kind], result.number
            for version in made[number : number + 1 or None] if number else made:
                if version.write is not None and version.write.unit is not self:
                    return version.write
        return None


def version_of(tensor: Any) -> Version:
    """The version that a Tensor shows."""
    return versions.current(holder_of(tensor))


def holder_of(tensor: Any) -> Any:
    """What counts a Tensor's versions: its cell, or the handle that ``data`` gave."""
    for _, detail in reversed(tensor.chain):
        if getattr(detail, "silent", False):
            return detail
    return tensor.cell


class Versions:
    """What was written in place, while the check is on.

    Attributes:
        on: whether it is.
    """

    def __init__(self) -> None:
        self.on = False
        self.clear()

    def clear(self) -> None:
        """Forgets all writes: what was recorded before is not checked."""
        self._units: WeakKeyDictionary[Node, VersionUnit] = WeakKeyDictionary()
        self._writes: WeakKeyDictionary[Node, Write] = WeakKeyDictionary()
        self._versions: WeakKeyDictionary[Any, Version] = WeakKeyDictionary()
        self._frame: FrameType | None = None
        self._unit = VersionUnit(None, {})

    # While recording ------------------------------------------------------------------------------

    def current(self, holder: Any) -> Version:
        """The version of a cell, or of what ``data`` shows."""
        version = self._versions.get(holder)
        if version is None:
            version = self._versions[holder] = Version()
        return version

    def made(self, node: Node, cell: Any) -> None:
        """A Tensor has this value."""
        unit = self._current()
        if not unit.was_given(node):
            self._units.setdefault(node, unit)
        unit.made(node, cell)

    def written(self, holder: Any, old: Node, new: Node, shown: Iterable[Node] = ()) -> None:
        """A Tensor, and others that show the same memory, have another value from now on.

        Args:
            holder: see `holder_of`.
            old, new: the values of the cell.
            shown: the old value as each of the Tensors has it.
        """
        unit = self._current()
        before = list(shown)
        if unit.name not in UNCOUNTED:
            write = Write(unit, made_by(old), user_site())
            self.current(holder).write = write
            self._versions[holder] = Version()
            for node in before:
                self._writes[node] = write
        if not mode.now.gradients and new is not old:
            # Nothing was saved for it.
            self._units[new] = VersionUnit(None, {})
        # The write itself may read the value before: what it was computed by belongs to it.
        stack = [new] if mode.now.gradients else []
        while stack:
            node = stack.pop()
            if node in before or unit.was_given(node):
                continue
            if self._units.get(node, unit) is unit:
                self._units[node] = unit
                stack += [source for source in node.sources if source not in self._units]
        unit.made(new, holder)

    def apart(self, node: Node, ends: Iterable[Node]) -> None:
        """A value written through `detach()`: the others that show it have its number alone.

        Args:
            node: the value as they have it.
            ends: what was written, and the value before.
        """
        own, ended = self._units.get(node), set(ends)
        stack = [node] if own is not None else []
        while stack:
            popped = stack.pop()
            if popped not in ended and self._units.get(popped) is own:
                self._units[popped] = VersionUnit(None, {})
                stack += popped.sources

    def touched(self, tensor: Any) -> None:
        """A Tensor has become another view of its memory, or is said to be written."""
        self.written(holder_of(tensor), tensor.cell.node, tensor.cell.node)

    def belongs(self, node: Node, unit: VersionUnit) -> None:
        """A node is part of what a call does, or of its gradient."""
        self._units.setdefault(node, unit)

    def demand(self, version: Version, node: Node) -> None:
        """Raises if the version of a value that was saved for a gradient is another now."""
        if version.write is not None:
            raise _written(version.write, node)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, nothing is noted."""
        before, self.on = self.on, False
        try:
            yield
        finally:
            self.on = before

    def _current(self) -> VersionUnit:
        """The call of the user that is under way: the outermost one that the table has."""
        frame: FrameType | None = sys._getframe(2)
        entry, innermost = None, None
        while frame is not None and is_internal(frame.f_code.co_filename):
            entry = frame
            if _is_in_table(frame):
                innermost = frame
            frame = frame.f_back
        entry = innermost or entry
        if entry is None or entry is not self._frame:
            name = None if innermost is None else _name(innermost)
            arguments = {} if innermost is None else _arguments(innermost)
            self._frame, self._unit = entry, VersionUnit(name, arguments)
        return self._unit


class Check:
    """The check of one backward pass.

    Args:
        order: its history.

    Raises:
        GradientError: from `enter` and `read`, a value that is needed was written in place.
    """

    def __init__(self, order: Iterable[Node]) -> None:
        self._history = set(order)
        self._inherited: dict[Node, VersionUnit] = {}
        self._entered: set[VersionUnit] = set()
        # Composed functions of which the pass visits some parts alone: what those read is needed.
        self._parted: set[VersionUnit] = set()

    def unit(self, node: Node) -> VersionUnit | None:
        """The call that has made a node: its own, or that which reads it."""
        return versions._units.get(node) or self._inherited.get(node)

    def enter(self, node: Node) -> None:
        """The pass has come to a node: looks at all that its call has saved."""
        unit = self.unit(node)
        if unit is None:
            return
        for source in node.sources:
            self._inherited.setdefault(source, unit)
        if unit not in self._entered:
            self._entered.add(unit)
            if unit.name in COMPOSED and not unit.gave(node):
                self._parted.add(unit)
                return
            if unit.name in STEPPED and not unit.gave(node):
                self._entered.discard(unit)
                return
            write = unit.write()
            if write is not None:
                raise _written(write, node)

    def read(self, node: Node, gs: Iterable[Any], part: Node, operand: int) -> None:
        """The rule of a node has made `part` of the cotangents `gs`, for one of its operands.

        Of a call that the table lacks, what the rule has read is what was saved. A gradient of a
        gradient saves what it reads of that which the call has saved.
        """
        unit = self.unit(node)
        tabled = unit is not None and unit.name is not None and unit not in self._parted
        if unit is not None and unit.origin is not None:
            name = unit.origin.name
            tabled = name in SAVED_ONCE or name in SAVED_AGAIN or unit.origin.write() is None
        stack, seen = [part], {g for g in gs if g is not None}
        while stack:
            popped = stack.pop()
            if popped in seen:
                continue
            seen.add(popped)
            if popped is node or popped in self._history or popped in node.sources:
                if not tabled:
                    self._demand(popped, node, unit)
            else:
                if unit is not None and (unit.name or unit.origin):
                    versions.belongs(popped, unit.gradient(operand))
                stack += popped.sources

    def named(self, node: Node) -> bool:
        """Whether the call that has made a node is in the table, or a gradient of one that is."""
        unit = self.unit(node)
        return unit is not None and (unit.name is not None or unit.origin is not None)

    def behind(self, node: Node, operand: int) -> list[Node]:
        """What a gradient depends on, beside its cotangents: on all that the call has saved."""
        unit = self.unit(node)
        again = mode.now.gradients and unit is not None and unit.name in SAVED_AGAIN
        return unit.behind(operand) if unit is not None and again else []

    def belongs(self, part: Node, node: Node, operand: int) -> None:
        """Part of the gradient of a node, with all that it depends on."""
        unit = self.unit(node)
        if unit is not None:
            versions.belongs(part, unit.gradient(operand))

    def _demand(self, value: Node, node: Node, unit: VersionUnit | None) -> None:
        """Raises if a value, or one that a user can write and that it was made of, is another."""
        stack, seen = [value], {value}
        while stack:
            popped = stack.pop()
            write = versions._writes.get(popped)
            if write is not None and write.unit is not unit:
                raise _written(write, node)
            own = versions._units.get(popped)
            if unit is not None and own is not None and own is unit.origin:
                # A gradient reads results as they were computed, before a half dtype rounds them.
                write = own.write_to_result()
                if write is not None:
                    raise _written(write, node)
            other = own is not None and own is not unit and own.name not in COMPOSED
            if popped is node or other:
                continue
            stack += [source for source in popped.sources if source not in seen]
            seen.update(popped.sources)


# Calls --------------------------------------------------------------------------------------------

# By code: the name of the function that a frame runs, or the local that holds the function or name.
_names: dict[CodeType, tuple[str, str]] = {}


def _name(frame: FrameType) -> str:
    """The function of a frame without underscores; a wrapper goes by what it wraps."""
    code = frame.f_code
    if code not in _names:
        # What swaps its arguments calls the function itself.
        swaps = code.co_qualname.startswith("_reflected")
        holder = next((n for n in ("function", "name") if n in code.co_freevars), "")
        _names[code] = ("", "") if swaps else (code.co_name.strip("_"), holder)
    name, holder = _names[code]
    if not holder:
        return name
    value = frame.f_locals.get(holder)
    text = value if isinstance(value, str) else getattr(value, "__name__", "")
    return text.strip("_")


def _is_in_table(frame: FrameType) -> bool:
    name = _name(frame)
    if name not in MAY_DEFER:
        return name in SAVED
    row = SAVED[name]
    return not callable(row) or row(_arguments(frame)) is not None


def _unwrapped(function: Any) -> Any:
    """The function whose parameters have names; the form in place of one calls that one."""
    while True:
        function = inspect.unwrap(function)
        code = getattr(function, "__code__", None)
        if code is None or not code.co_flags & inspect.CO_VARARGS:
            return function
        inner = inspect.getclosurevars(function).nonlocals.get("function")
        if inner is None:
            return function
        function = inner


def _arguments(frame: FrameType) -> Arguments:
    """The arguments of a frame's call by parameter; of a wrapper, those of what it wraps."""
    code, values = frame.f_code, frame.f_locals
    count = code.co_argcount
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    named = {name: values.get(name) for name in names}
    rest = code.co_varnames[len(names) :]
    more = values.get(rest[0], ()) if code.co_flags & inspect.CO_VARARGS else ()
    star = bool(code.co_flags & inspect.CO_VARARGS)
    options = values.get(rest[star], {}) if code.co_flags & inspect.CO_VARKEYWORDS else {}
    if "function" in code.co_freevars:
        function = _unwrapped(values["function"])
        given = [named[name] for name in code.co_varnames[:count]]
        try:
            bound = inspect.signature(function).bind(*given, *more, **options)
        except (TypeError, ValueError):
            return {**named, "": more, **options}
        return dict(bound.arguments)
    if more:
        named[rest[0]] = more
    return {**named, **options}


def _written(write: Write, node: Node) -> GradientError:
    return GradientError(
        "backward",
        "a value that the gradient needs was modified by an inplace operation",
        expect="the value that was there when the operation was recorded",
        actual=f"{write.value}\nwritten in place at {describe_site(write.site)}",
        site=node.site,
        hint="write to a clone(), use the operation that is not in place, or leave the check off: "
        "gradients use the values as recorded",
    )


versions = Versions()
