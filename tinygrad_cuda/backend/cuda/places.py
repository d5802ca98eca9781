"""Graphs by the addresses they were made for, of which a loop has few by turns."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

GRAPHS = 8  # of one loop
SEEN = 8  # combinations of places that are remembered, to know one that comes again
IDLE = 64  # runs after which a graph makes room for another one

Places = tuple[int, ...]
G = TypeVar("G")


class ByPlaces(Generic[G]):
    """What was made for places that came again.

    Attributes:
        graphs: by their places.
        runs: how often one of them has run.
        used: the number of each one's last run.
    """

    def __init__(self) -> None:
        self.graphs: dict[Places, G] = {}
        self.runs = 0
        self.used: dict[Places, int] = {}
        self._seen: deque[Places] = deque(maxlen=SEEN)

    def ran(self, places: Places) -> None:
        """The graph of these places has been started."""
        runs = self.runs = self.runs + 1
        self.used[places] = runs

    def wanted(self, places: Places) -> bool:
        """Whether places that have no graph are to get one: they have come before."""
        if places in self._seen and self._room():
            return True
        self._seen.append(places)
        return False

    def forget(self) -> None:
        """Drops what knows addresses that are no longer right."""
        self.graphs.clear()
        self.used.clear()
        self._seen.clear()

    def _room(self) -> bool:
        """Whether there may be one graph more; one that has not run for long goes."""
        if len(self.graphs) >= GRAPHS:
            oldest = min(self.graphs, key=self.used.__getitem__)
            if self.runs - self.used[oldest] < IDLE:
                return False
            del self.graphs[oldest], self.used[oldest]
        return True
