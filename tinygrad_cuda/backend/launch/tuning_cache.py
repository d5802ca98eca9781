"""Measured choices on disk, a file for each problem and machine: what one process has measured, the
next one reads.

A file is moved into place in one step, and is read only if this user alone could have written it. A
file that is damaged, or of another format, is a miss.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.ownership import distrust, own_folder, read_own, write_own
from tinygrad_cuda.lowering.tuning_table import Tuned

FORMAT = 1  # of an entry: those of another format are measured anew


class TuningCache:
    """The files of one machine, in `settings.cache_dir/tuning`.

    Args:
        machine: all that tells its times from another's: its name, architecture and size.
    """

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self._refused = set[Path]()

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return settings.cache_dir / "tuning" / re.sub(r"\W+", "_", self.machine)

    def read(self) -> dict[str, Tuned]:
        """All choices that are whole, by the keys of their problems."""
        folder = self.folder
        try:
            if not settings.cache or distrust(folder) is not None:
                return {}
            files = sorted(folder.glob("*.json"))
        except OSError:
            return {}
        made = (_unpacked(read_own(path), self.machine) for path in files)
        return dict(entry for entry in made if entry is not None)

    def write(self, key: str, tuned: Tuned) -> None:
        """Stores a choice; a folder that cannot be written is said once."""
        folder = self.folder
        if not settings.cache or folder in self._refused:
            return
        try:
            if reason := own_folder(folder):
                self._refuse(folder, reason)
                return
            name = hashlib.sha256(key.encode()).hexdigest()[:40]
            write_own(folder / f"{name}.json", _packed(key, tuned, self.machine))
        except OSError as error:
            self._refuse(folder, error.strerror or str(error))

    def _refuse(self, folder: Path, reason: str) -> None:
        self._refused.add(folder)
        warnings.warn(
            f"tinygrad_cuda: measured choices cannot be kept in {folder} ({reason}); the next "
            "process measures them again. TGC_CACHE_DIR names another folder.",
            RuntimeWarning,
            stacklevel=2,
        )


def _packed(key: str, tuned: Tuned, machine: str) -> bytes:
    entry = {"format": FORMAT, "machine": machine, "key": key, **tuned._asdict()}
    return json.dumps({"entry": entry, "sha256": _digest(entry)}, indent=1).encode()


def _unpacked(data: bytes | None, machine: str) -> tuple[str, Tuned] | None:
    """The key and the choice of a file, or None if it is damaged or another machine's."""
    try:
        whole = json.loads(data or b"")
        entry = dict(whole["entry"])
        if whole["sha256"] != _digest(entry):
            return None
        if (entry.pop("format"), entry.pop("machine")) != (FORMAT, machine):
            return None
        key = str(entry.pop("key"))
        entry["times"] = tuple((str(name), float(time)) for name, time in entry["times"])
        return key, Tuned(**{**entry, "refused": tuple(entry["refused"])})
    except (ValueError, KeyError, TypeError):
        return None


def _digest(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()
