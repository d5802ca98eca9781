"""Counts of references: what a variable, a list and somebody else add to them."""

from __future__ import annotations

import importlib
import sys

import pytest

from tinygrad_cuda.core import reference_counts
from tinygrad_cuda.core.reference_counts import NAMED, counts_of, reference_count


def test_holders_are_counted() -> None:
    """A variable's own reference, which Python 3.14 borrows, counts as one holder everywhere."""
    thing = [0]
    assert reference_count(thing) == NAMED
    other = thing
    assert reference_count(thing) == NAMED + 1
    holder = {"thing": other}
    del other
    assert reference_count(thing) == NAMED + 1
    assert counts_of([thing]) == [2]
    holder.clear()
    assert counts_of([thing]) == [1]
    assert counts_of([[0]]) == [0]


def test_python_without_its_global_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "abiflags", "t")
    with pytest.raises(ImportError, match="a usual build of Python"):
        importlib.reload(reference_counts)
