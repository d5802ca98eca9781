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
from collections.abc import Callable
from threading import get_ident
from typing import Any


class _Deferring:
    """The handler of SIGINT from the first block on: calls the one from before, at once or later.

    It stays, since to set a handler costs a system call, twice a replay 1.5 us. Each stands for
    one handler alone: a user's own may call the one that it has replaced.
    """

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, *signal_and_frame: Any) -> None:
        if uninterrupted.depth:
            uninterrupted.arrived = self.handler, signal_and_frame
        else:
            self.handler(*signal_and_frame)


class _Uninterrupted:
    """A context manager, reentrant; in other threads, which no signal interrupts, it does nothing.

    Attributes:
        arrived: the signal that waits: its handler and what it takes; or None.
        installed: the handler that was in place at the last look.
        firm: how many `indivisible` blocks are open, in which `check` does nothing.
    """

    __slots__ = ("arrived", "depth", "firm", "installed", "main")

    def __init__(self) -> None:
        self.installed: Any = None
        self.arrived: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        self.depth = self.firm = 0
        self.main = threading.main_thread().ident

    def __enter__(self) -> None:
        if get_ident() != self.main:
            return
        if not self.depth and getsignal(SIGINT) is not self.installed:
            self.install()
        self.depth += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if get_ident() != self.main:
            return
        self.depth -= 1
        if not self.depth and self.arrived is not None:
            self.deliver()

    def hold(self) -> bool:
        """Begins an `indivisible` block without its context manager, which takes 0.1 us longer.

        Returns:
            whether `release` must end it: not in other threads.
        """
        if get_ident() != self.main:
            return False
        if not self.depth and getsignal(SIGINT) is not self.installed:
            self.install()
        self.depth += 1
        self.firm += 1
        return True

    def release(self) -> None:
        """Ends a block that `hold` has begun."""
        self.firm -= 1
        self.depth -= 1
        if not self.depth and self.arrived is not None:
            self.deliver()

    def install(self) -> None:
        """Puts a handler that waits before the one in place; one that is not Python's stays."""
        handler = getsignal(SIGINT)
        if type(handler) is not _Deferring and callable(handler):
            signal(SIGINT, _Deferring(handler))
            handler = getsignal(SIGINT)
        self.installed = handler

    def deliver(self) -> None:
        """Calls the handler of the signal that waits."""
        assert self.arrived is not None
        (handler, arguments), self.arrived = self.arrived, None
        handler(*arguments)

    def check(self) -> None:
        """Calls the handler now, where nothing is half changed yet, if a signal has arrived.

        Raises:
            KeyboardInterrupt: by Python's own handler.
        """
        if self.arrived is not None and not self.firm and get_ident() == self.main:
            self.deliver()

    def after_fork(self) -> None:
        """The thread that has forked is the main one of the child."""
        self.main = get_ident()


class _Indivisible:
    """`uninterrupted` for what cannot be taken back once it has begun."""

    __slots__ = ()

    def __enter__(self) -> None:
        uninterrupted.hold()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if get_ident() == uninterrupted.main:
            uninterrupted.release()


uninterrupted = _Uninterrupted()
indivisible = _Indivisible()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uninterrupted.after_fork)
