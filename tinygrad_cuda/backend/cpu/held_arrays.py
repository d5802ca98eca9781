"""What a run of the cpu device holds in memory: the arrays that its steps make, and let go.

Only a profiler that asks for memory has it counted. What NumPy needs inside of one call is not
seen, nor are single numbers. Arrays are known by their ids: a reference to one would keep its
memory from the values that come after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.backend.cpu.lowering import ARGUMENTS, NumpyProgram
from tinygrad_cuda.core.observer import MemoryChange
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common


class HeldArrays:
    """The arrays of one run that own memory, by the slots of its table that refer to them.

    An array that was made is in the table until its slot is emptied, so that its id is its own.

    Args:
        lowered: the program that runs.
        values: its table before the first step.
        inputs: the storages that it reads: no memory of the run's.
        changes: what is taken and let go is entered here.
    """

    def __init__(
        self,
        lowered: NumpyProgram,
        values: list[Any],
        inputs: Sequence[Any],
        changes: list[MemoryChange],
    ) -> None:
        self._lowered, self._values, self._changes = lowered, values, changes
        before = [value for slot, value in enumerate(values) if slot != ARGUMENTS]
        self._others = {owner for value in (*before, *inputs) for owner in _owners(value)}
        self._slots: dict[int, dict[int, int]] = {}  # ids and bytes of what each slot refers to
        self._holders: dict[int, int] = {}  # how many slots refer to an array, by its id
        self._number = -1
        self._node: Node | None = None

    def after(self, nodes: Sequence[Node]) -> None:
        """A step has run.

        Args:
            nodes: that it computed; none if it let values go.
        """
        if not nodes:
            self._let_go([slot for slot in self._slots if self._values[slot] is None])
            return
        self._number += 1
        self._node = nodes[-1]
        for node in nodes:
            slot = self._lowered.slot(node)
            if slot >= 0 and self._values[slot] is not None:
                self._take(node, slot)

    def end(self, results: Sequence[Any], outputs: Sequence[Node]) -> None:
        """The run has ended: its table goes, and its results stay.

        Args:
            results: their storages.
            outputs: the nodes whose values they are.
        """
        stay: set[int] = set()
        for node, result in zip(outputs, results):
            for owner, nbytes in _owners(result).items():
                if owner in self._others or owner in stay:
                    continue
                stay.add(owner)
                if owner not in self._holders:  # a copy: of a view, or of what another one has
                    op = None if node.op is common.buffer else node
                    self._changes.append(MemoryChange(-1, op, nbytes))
        gone = {o: n for held in self._slots.values() for o, n in held.items() if o not in stay}
        if gone:
            self._changes.append(MemoryChange(-1, None, -sum(gone.values())))

    def _take(self, node: Node, slot: int) -> None:
        owners = _owners(self._values[slot])
        self._slots[slot] = {o: nbytes for o, nbytes in owners.items() if o not in self._others}
        for owner, nbytes in self._slots[slot].items():
            holders = self._holders.get(owner, 0)
            self._holders[owner] = holders + 1
            if not holders:
                self._changes.append(MemoryChange(self._number, node, nbytes))

    def _let_go(self, slots: Sequence[int]) -> None:
        for slot in slots:
            for owner, nbytes in self._slots.pop(slot).items():
                self._holders[owner] -= 1
                if not self._holders[owner]:
                    del self._holders[owner]
                    self._changes.append(MemoryChange(self._number, self._node, -nbytes))


def _owners(value: Any) -> dict[int, int]:
    """The arrays whose memory a value lies in: the bytes of each, by its id."""
    if isinstance(value, (tuple, list)):
        return {owner: nbytes for one in value for owner, nbytes in _owners(one).items()}
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        value = value.base
    return {id(value): value.nbytes} if isinstance(value, np.ndarray) else {}
