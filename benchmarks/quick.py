"""Keeps the measuring thread on a CPU that others do not slow down.

A virtual machine's CPU is half a core, whose other half may work for somebody else: then it takes
1.4 to 2 times as long for everything, for seconds, while the CPU beside it does not. A row that
the host bounds would tell of the neighbour. Every peer is measured in this way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

TURNS = 20_000  # of the loop by which CPUs are compared, about half a millisecond
TRIES = 3
ALIKE = 1.15  # times the quickest that is still quick


class QuickCpu:
    """Where this thread runs while it measures; threads that exist already stay free."""

    def __init__(self) -> None:
        self._every = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        self._best = 0.0  # seconds of the loop on the quickest CPU seen; 0 before the first look

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Ends with the thread as free as it was, so that new ones and processes are, too."""
        try:
            yield
        finally:
            if self._every:
                os.sched_setaffinity(0, self._every)

    def settle(self) -> None:
        """Stays on a CPU that is as quick as the best one seen, or moves to the quickest."""
        if len(self._every) < 2 or _loop() <= ALIKE * self._best:
            return
        found = {}
        for cpu in sorted(self._every):
            os.sched_setaffinity(0, {cpu})
            found[cpu] = _loop()
        quickest = min(found, key=found.__getitem__)
        os.sched_setaffinity(0, {quickest})
        self._best = min(self._best or found[quickest], found[quickest])


def _loop() -> float:
    """Seconds of a fixed loop, the best of some tries."""
    samples = []
    for _ in range(TRIES):
        start = time.perf_counter()
        for _ in range(TURNS):
            pass
        samples.append(time.perf_counter() - start)
    return min(samples)
