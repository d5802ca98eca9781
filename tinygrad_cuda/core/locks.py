"""Locks that a forked child can take: what another thread held is free there.

A fork copies the memory of one thread alone; a lock that another one held would never be released.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_made: WeakSet[Any] = WeakSet()


def new_lock() -> threading.RLock:
    """A reentrant lock that is free after a fork, unless the thread that forks holds it."""
    lock = threading.RLock()
    _made.add(lock)
    return lock


def _release_those_of_other_threads() -> None:
    for lock in list(_made):
        if not lock._is_owned():
            lock._at_fork_reinit()


# Held for a moment by what a fork must not cut, in any thread: the fork waits. OpenBLAS joins its
# own threads at a fork, which never ends beside a product; a module that another thread imports
# stays locked in the child. Whoever holds it takes no other lock of this package.
forks_wait = new_lock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=forks_wait.acquire,
        after_in_parent=forks_wait.release,
        after_in_child=forks_wait.release,
    )
    os.register_at_fork(after_in_child=_release_those_of_other_threads)
