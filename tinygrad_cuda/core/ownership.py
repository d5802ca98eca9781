"""Files of caches that are the user's own: what others could have put there is not run.

On Windows, whose files have no owner in this sense, everything is taken as the user's own.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def own_folder(path: Path) -> str | None:
    """Makes a folder that only this user writes to, or says why it cannot be used.

    Raises:
        OSError: it cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return distrust(path)


def distrust(path: Path) -> str | None:
    """Why somebody else could have written to a folder; None if nobody else could.

    A folder of the user's own is closed to others; its entries are judged one by one.

    Raises:
        OSError: it is missing, or cannot be looked at.
    """
    if not hasattr(os, "getuid"):
        return None
    info = path.stat()
    if info.st_uid != os.getuid():
        return f"it belongs to user {info.st_uid}"
    if info.st_mode & _OTHERS:
        path.chmod(stat.S_IMODE(info.st_mode) & ~_OTHERS)
    for parent in path.resolve().parents:
        if reason := _replaceable(parent):
            return reason
    return None


def _replaceable(parent: Path) -> str | None:
    """Why another user could replace a folder inside this one."""
    info = parent.stat()
    if info.st_uid not in (0, os.getuid()):
        return f"{parent} belongs to user {info.st_uid}"
    if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
        return f"{parent} can be written by every user"
    return None


def read_own(path: Path) -> bytes | None:
    """A file's bytes; None if it is missing, or is not this user's alone."""
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or not is_own(info):
                return None
            return file.read()
    except OSError:
        return None


def write_own(path: Path, data: bytes) -> None:
    """Writes a file of this user's alone in one step: readers see the old one, the new or none.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o600)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        if os.name == "nt" and path.exists():
            return  # Windows refuses to replace a file that another process reads: it stays
        raise


def is_own(info: os.stat_result) -> bool:
    """Whether a file belongs to this user, and nobody else may write to it."""
    return not hasattr(os, "getuid") or (info.st_uid == os.getuid() and not info.st_mode & _OTHERS)
