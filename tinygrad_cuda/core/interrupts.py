"""Ctrl-C waits while state is half changed: a step happens whole or not at all.

Python calls the handler of SIGINT between any two instructions of the main thread. Inside of
``with uninterrupted:`` the signal is noted alone, and the handler from before is called at the end,
or at a `check` where all can be taken back.
"""

from __future__ import annotations

import os
import threading

# Without the enumerations of `signal`, which cost more than the calls.
from _signal import SIGINT, getsignal, signal  # type: ignore[import-not-found]
from threading import get_ident
from typing import Any


class _Uninterrupted:
    """A context manager, reentrant; in other threads, which no signal interrupts, it does nothing.

    Attributes:
        arrived: the signal that waits, as its handler takes it; or None.
        firm: how many `indivisible` blocks are open, in which `check` does nothing.
    """

    __slots__ = ("arrived", "depth", "firm", "handler", "main")

    def __init__(self) -> None:
        self.arrived: tuple[Any, ...] | None = None
        self.depth = self.firm = 0
        self.handler: Any = None
        self.main = threading.main_thread().ident

    def note(self, *signal_and_frame: Any) -> None:
        """The handler of SIGINT meanwhile."""
        self.arrived = signal_and_frame

    def __enter__(self) -> None:
        if get_ident() != self.main:
            return
        if not self.depth:
            handler = getsignal(SIGINT)
            if callable(handler):
                signal(SIGINT, _note)
                # From here on nothing raises: an earlier signal was raised by that call.
                self.handler, self.arrived = handler, None
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        if get_ident() != self.main:
            return
        self.depth -= 1
        if self.depth or self.handler is None:
            return
        handler, self.handler = self.handler, None
        if getsignal(SIGINT) is _note:
            signal(SIGINT, handler)
        arrived, self.arrived = self.arrived, None
        if arrived is not None:
            handler(*arrived)

    def check(self) -> None:
        """Calls the handler now, where nothing is half changed yet, if a signal has arrived.

        Raises:
            KeyboardInterrupt: by Python's own handler.
        """
        if self.arrived is not None and not self.firm and get_ident() == self.main:
            arrived, self.arrived = self.arrived, None
            self.handler(*arrived)

    def after_fork(self) -> None:
        """The thread that has forked is the main one of the child."""
        self.main = get_ident()


class _Indivisible:
    """`uninterrupted` for what cannot be taken back once it has begun."""

    __slots__ = ()

    def __enter__(self) -> None:
        uninterrupted.__enter__()
        if get_ident() == uninterrupted.main:
            uninterrupted.firm += 1

    def __exit__(self, *error: object) -> None:
        if get_ident() == uninterrupted.main:
            uninterrupted.firm -= 1
        uninterrupted.__exit__()


uninterrupted = _Uninterrupted()
indivisible = _Indivisible()
_note = uninterrupted.note  # one object, by which it is recognised

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uninterrupted.after_fork)
