"""The tuning table: measured choices of kernels, plain data of a `Target`.

A backend's tuner fills it, and the choice of tiers reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

NONE: Mapping[str, str] = MappingProxyType({})


class Tuned(NamedTuple):
    """The measured choice of a problem.

    Attributes:
        problem: for a reader.
        tier, cut: the quickest kernel's, see `cut_text`; empty: what the model of time says.
        microseconds: its time.
        model: the tier and cut of the model of time.
        model_microseconds: their time.
        times: each candidate and its microseconds, the quickest first.
        refused: candidates that cannot be taken, and why.
    """

    problem: str
    tier: str
    cut: str
    microseconds: float
    model: str
    model_microseconds: float
    times: tuple[tuple[str, float], ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The kernel for a reader."""
        return f"{self.tier} {self.cut}".strip() or self.model


class TuningTable:
    """Measured choices by the keys of their problems; equal if they choose the same.

    Attributes:
        entries: the choices.
        libraries: those of `config.PROVIDERS` whose calls may be chosen, with their versions.
    """

    __slots__ = ("entries", "libraries", "_digest")

    def __init__(self, entries: Mapping[str, Tuned], libraries: Mapping[str, str] = NONE) -> None:
        self.entries, self.libraries = dict(entries), dict(libraries)
        chosen = sorted((key, tuned.tier, tuned.cut) for key, tuned in self.entries.items())
        text = json.dumps([chosen, self.libraries])
        self._digest = hashlib.sha256(text.encode()).hexdigest()

    def with_more(self, entries: Mapping[str, Tuned]) -> TuningTable:
        """The table with further choices."""
        return TuningTable({**self.entries, **entries}, self.libraries)

    def get(self, key: str) -> Tuned | None:
        """The choice of a problem, if it was measured."""
        return self.entries.get(key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TuningTable) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)


class OneChoice(TuningTable):
    """A table that has one kernel make any problem: a candidate's, while it is measured."""

    __slots__ = ("_tuned",)

    def __init__(self, tuned: Tuned, libraries: Mapping[str, str] = NONE) -> None:
        super().__init__({"": tuned}, libraries)
        self._tuned = tuned

    def get(self, key: str) -> Tuned | None:
        return self._tuned
