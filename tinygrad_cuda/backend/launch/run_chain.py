"""Many runs behind one another, which a machine may start as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinygrad_cuda.graph.program import Number

Memory = Sequence[Any]  # of a run's inputs, or of its results
Numbers = Sequence[Number]  # of a run


class RunChain:
    """Turns of one or more runs, added one by one; here each starts when it is added.

    Args:
        starts: of each run of one turn what starts it on inputs and results with its numbers.
    """

    def __init__(self, starts: Sequence[Callable[[Memory, Memory, Numbers], None]]) -> None:
        self.runs = starts

    def add(self, number: int, inputs: Memory, results: Memory, arguments: Numbers) -> None:
        """Run `number` of the chain, in order from 0, on this memory."""
        self.runs[number % len(self.runs)](inputs, results, arguments)

    def again(self, mark: Any, arguments: Sequence[Numbers]) -> bool:
        """Starts the same turns with other numbers, if they are the last ones with this mark.

        Here never: there is nothing that could be started as a whole.
        """
        return False

    def twin(self) -> RunChain:
        """A chain of the same turns that keeps parameters of its own; this one, which has none."""
        return self

    def flush(self, mark: Any = None) -> None:
        """Starts what was added and has not been started."""
