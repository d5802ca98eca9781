"""What a profiler hooks into: the observer of what runs, and the scopes around recorded lines.

Without a profiler `watched.observer` is None and `scopes.on` False: each place that could report
tests one attribute.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, NamedTuple, Protocol

HTOD, DTOH = "Memcpy HtoD", "Memcpy DtoH"  # spans of copies, by CUPTI's names


class MemoryChange(NamedTuple):
    """Memory that a value took or let go.

    Attributes:
        kernel: the number of the kernel, or NumPy step, that did so; -1 at the end of the run.
        node: of a value that is stored it; else one that the kernel computes. None at the end.
        nbytes: that it took; below 0 if it let them go.
    """

    kernel: int
    node: Any
    nbytes: int


class Observer(Protocol):
    """What is called while a profiler is active; times are `time.perf_counter_ns` of the host."""

    def launches_singly(self, device: Any) -> bool:
        """Whether kernels of this device are launched one by one, so that each can be timed."""
        ...

    def span(self, kind: str, name: str, nbytes: int = 0) -> AbstractContextManager[Any]:
        """Work of the host inside a `with` block.

        Args:
            kind: ``record``, ``module``, ``plan``, ``run``, ``copy`` or ``user``.
            name: what the tables show.
            nbytes: that a copy moves.
        """
        ...

    def call(self, module: Any) -> AbstractContextManager[Any] | None:
        """A Module is called: what that call is to stand in; None from inside of it."""
        ...

    def compiled_call(self, compiled: Any) -> AbstractContextManager[Any] | None:
        """The same of what `tc.compile` made."""
        ...

    def kernel(
        self, device: Any, work: Any, start: int, end: int, nanoseconds: float | None = None
    ) -> None:
        """One kernel, or one NumPy step, has run.

        Args:
            device: where.
            work: a `PackedLaunch`, or the nodes of a NumPy step.
            start, end: when the host started it and went on.
            nanoseconds: that the device took, where it has a clock of its own.
        """
        ...

    def ran(self, executable: Any, memory: Sequence[Any]) -> list[MemoryChange] | None:
        """A plan is about to run in this memory, which is empty on cpu.

        Returns:
            Where a run on cpu enters what its steps take and let go; None if nobody asks.
        """
        ...


class Observing:
    """Who observes this process.

    Attributes:
        observer: the active profiler's, or None.
    """

    __slots__ = ("observer",)

    def __init__(self) -> None:
        self.observer: Observer | None = None


watched = Observing()


class LineScope:
    """A Module's call, or a `record_function` block, and what it stands in.

    Args:
        kind: ``module`` or ``user``.
        name: of the Module below its parent, or of the block.
        parent: the scope around it, or None.
        owner: the Module.
    """

    __slots__ = ("kind", "name", "parent", "owner", "_inner", "_codes")

    def __init__(self, kind: str, name: str, parent: LineScope | None, owner: Any = None) -> None:
        self.kind, self.name, self.parent, self.owner = kind, name, parent, owner
        self._inner: dict[tuple[str, str], LineScope] = {}
        self._codes: dict[int, ScopedCode] = {}

    def inner(self, kind: str, name: str, owner: Any = None) -> LineScope:
        """The scope of this name inside; the same one each time, so that lines stay equal."""
        scope = self._inner.get((kind, name))
        if scope is None:
            scope = self._inner[kind, name] = LineScope(kind, name, self, owner)
        scope.owner = owner
        return scope

    def code(self, code: CodeType) -> ScopedCode:
        """A code object inside this scope; the same one each time."""
        scoped = self._codes.get(id(code))
        if scoped is None:
            scoped = self._codes[id(code)] = ScopedCode(code, self)
        return scoped

    def outwards(self) -> Iterator[LineScope]:
        """This scope and those around it, innermost first."""
        scope: LineScope | None = self
        while scope is not None and scope.name:
            yield scope
            scope = scope.parent

    @property
    def module(self) -> str:
        """The path of the innermost Module, such as ``Net.body.0``; empty outside of Modules."""
        names = [scope.name for scope in self.outwards() if scope.kind == "module"]
        return ".".join(reversed(names))

    @property
    def ranges(self) -> list[str]:
        """Names of the `record_function` blocks around, innermost first."""
        return [scope.name for scope in self.outwards() if scope.kind == "user"]


class ScopedCode:
    """A code object as a line's origin, with the scope in which the line was passed."""

    __slots__ = ("code", "scope", "co_filename", "co_firstlineno")

    def __init__(self, code: CodeType, scope: LineScope) -> None:
        self.code, self.scope = code, scope
        self.co_filename, self.co_firstlineno = code.co_filename, code.co_firstlineno

    def co_positions(
        self,
    ) -> Iterable[tuple[int | None, int | None, int | None, int | None]]:
        """As that of a code object."""
        return self.code.co_positions()


class Scopes(threading.local):
    """The innermost open scope of each thread.

    Attributes:
        root: of the active profiler; None while none records scopes.
        here: the innermost open scope of this thread.
    """

    root: LineScope | None = None

    def __init__(self) -> None:
        self._root: LineScope | None = None
        self._here: LineScope | None = None

    @property
    def here(self) -> LineScope | None:
        """The innermost open scope, the root outside of all; None while none is recorded."""
        root = Scopes.root
        if root is not self._root:
            self._root = self._here = root
        return self._here

    @here.setter
    def here(self, scope: LineScope | None) -> None:
        self._here = scope


scopes = Scopes()
