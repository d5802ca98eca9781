"""Graphs by the addresses they were made for, of which a loop has few by turns.

It stays in this package: each launch asks it.
Without it a compiled call of denoiser_sample takes 209 % longer (H200).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

from tinygrad_cuda.backend.base import replays

GRAPHS = 8  # of one loop; as many combinations are remembered, to recognise one that recurs
IDLE = 64  # runs after which a graph may be dropped for another one

Addresses = tuple[int, ...]
G = TypeVar("G")


class GraphsByAddress(Generic[G]):
    """What was built for addresses that recurred.

    Args:
        capacity: how many at most.
    """

    def __init__(self, capacity: int = GRAPHS) -> None:
        self._capacity = capacity
        self._made: dict[Addresses, list[Any]] = {}  # a graph, and the number of its last run
        self._runs = 0  # how often one of them has run
        self._seen: deque[Addresses] = deque(maxlen=capacity if replays.graphs_by_address else 0)

    def __len__(self) -> int:
        return len(self._made)

    def find(self, addresses: Addresses) -> G | None:
        """The graph of these addresses, which is about to run; or None."""
        made = self._made.get(addresses)
        if made is None:
            return None
        made[1] = self._runs = self._runs + 1
        graph: G = made[0]
        return graph

    def keep(self, addresses: Addresses, graph: G) -> None:
        """Notes the graph of these addresses, which has been started."""
        self._runs += 1
        self._made[addresses] = [graph, self._runs]

    def wanted(self, addresses: Addresses) -> bool:
        """Whether addresses without a graph are to get one: they have occurred before."""
        if addresses in self._seen and self._has_capacity():
            return True
        self._seen.append(addresses)
        return False

    def forget(self) -> None:
        """Drops all graphs, whose addresses are no longer right."""
        self._made.clear()
        self._seen.clear()

    def _has_capacity(self) -> bool:
        """Whether there may be one graph more; one that has not run for long goes."""
        if len(self._made) >= self._capacity:
            oldest = min(self._made, key=lambda addresses: self._made[addresses][1])
            if self._runs - self._made[oldest][1] < IDLE:
                return False
            del self._made[oldest]
        return True
