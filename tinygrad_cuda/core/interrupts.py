"""Signals wait while state is half changed: a step happens whole or not at all.

Python calls the handlers of signals between any two instructions of the main thread. Inside of
``with uninterrupted:`` a signal is noted alone, and the handler from before is called at the end,
or at a `check` where all can be taken back. A signal without a handler in Python, such as SIGTERM
at first, ends the process at once.
"""

from __future__ import annotations

# Without the enumerations of `signal`, which cost more than the calls.
import _signal  # type: ignore[import-not-found]
import os
import threading
from _signal import SIGINT, SIGTERM, getsignal, signal
from collections.abc import Callable
from threading import get_ident
from typing import Any

# Those that programs have handlers for: to stop, to save, to give up after some time.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
NUMBERS: tuple[int, ...] = tuple(
    int(getattr(_signal, name)) for name in _NAMES if hasattr(_signal, name)
)


class _Deferring:
    """The handler of a signal from the first block on: calls the one from before, at once or later.

    It stays, since to set a handler costs a system call, twice a replay 1.5 us. Each stands for
    one handler alone: a user's own may call the one that it has replaced.
    """

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, *signal_and_frame: Any) -> None:
        if uninterrupted.depth or uninterrupted.firm:
            uninterrupted.arrived[signal_and_frame[0]] = self.handler, signal_and_frame
        else:
            self.handler(*signal_and_frame)


class _Uninterrupted:
    """A context manager, reentrant; in other threads, which no signal interrupts, it does nothing.

    A replay, whose host's time counts, has no context manager: it counts `firm` itself, in the
    object of its thread (`of_this_thread`), and looks whether SIGINT's or SIGTERM's handler was
    just set. Handlers of other signals are seen by the blocks around computations.

    Args:
        main: the thread whose signals wait; None for an object that no signal reaches.

    Attributes:
        arrived: the signals that wait, by number: their handlers and what these take.
        installed: the handlers that were installed at the last look, those of SIGINT and SIGTERM
            first.
        depth: how many blocks are open that are not `indivisible`.
        firm: how many `indivisible` blocks are open, in which `check` does nothing.
    """

    __slots__ = ("arrived", "depth", "firm", "installed", "main")

    def __init__(self, main: int | None) -> None:
        self.installed: list[Any] = [None, None]
        self.arrived: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self.depth = self.firm = 0
        self.main = main

    def __enter__(self) -> None:
        if get_ident() != self.main:
            return
        if not self.depth and [*map(getsignal, NUMBERS)] != self.installed:
            self.install()
        self.depth += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if get_ident() != self.main:
            return
        self.depth -= 1
        if self.arrived:
            self.end()

    def install(self) -> None:
        """Puts handlers that wait before those installed; one that is not Python's stays."""
        if self.main is not None:
            for number in NUMBERS:
                handler = getsignal(number)
                if type(handler) is not _Deferring and callable(handler):
                    signal(number, _Deferring(handler))
        self.installed = [*map(getsignal, NUMBERS)]

    def end(self) -> None:
        """Calls the handlers of the signals that wait, if no block is open any more."""
        if not (self.depth or self.firm):
            self.deliver()

    def deliver(self) -> None:
        """Calls the handlers of the signals that wait, whatever one of them raises."""
        handler, arguments = self.arrived.pop(next(iter(self.arrived)))
        try:
            handler(*arguments)
        finally:
            if self.arrived:
                self.deliver()

    def check(self) -> None:
        """Calls the handlers now, where nothing is half changed yet, if signals have arrived.

        Raises:
            KeyboardInterrupt: by Python's own handler.
        """
        if self.arrived and not self.firm and get_ident() == self.main:
            self.deliver()

    def after_fork(self) -> None:
        """The thread that has forked is the main one of the child, which has no other."""
        if self.main != get_ident():
            self.main = get_ident()
            self.depth = self.firm = 0
            self.arrived.clear()


class _Indivisible:
    """`uninterrupted` for what cannot be taken back once it has begun."""

    __slots__ = ()

    def __enter__(self) -> None:
        if get_ident() == uninterrupted.main:
            if not uninterrupted.firm and [*map(getsignal, NUMBERS)] != uninterrupted.installed:
                uninterrupted.install()
            uninterrupted.firm += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if get_ident() == uninterrupted.main:
            uninterrupted.firm -= 1
            if uninterrupted.arrived:
                uninterrupted.end()


uninterrupted = _Uninterrupted(threading.main_thread().ident)
indivisible = _Indivisible()


def of_this_thread() -> _Uninterrupted:
    """What a replay of this thread counts itself in: `uninterrupted` in the main one."""
    return uninterrupted if get_ident() == uninterrupted.main else _Uninterrupted(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uninterrupted.after_fork)

__all__ = [
    "SIGINT", "SIGTERM", "getsignal", "indivisible", "of_this_thread", "uninterrupted",
]  # fmt: skip
