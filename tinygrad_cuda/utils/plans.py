"""Calls a function with each plan before it runs: its nodes lose their sources when it has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.engine import realize
from tinygrad_cuda.graph.node import Node


@contextmanager
def noting_plans(note: Callable[[Device, list[Node]], None]) -> Iterator[None]:
    """Inside a `with` block, `note` has the device and the nodes that this thread realizes.

    Args:
        note: called before each run; what it raises ends the run.
    """
    thread, lookup = threading.get_ident(), realize.run_cached_plan

    def noted(device: Device, wanted: list[Node]) -> bool | realize.Lesson:
        if threading.get_ident() == thread:
            note(device, wanted)
        return lookup(device, wanted)

    realize.run_cached_plan = noted
    try:
        yield
    finally:
        realize.run_cached_plan = lookup
