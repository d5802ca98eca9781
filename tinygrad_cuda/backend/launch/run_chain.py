"""Many runs behind one another, which a machine may start as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tinygrad_cuda.graph.program import Number


class RunChain(Protocol):
    """Turns of one or more runs that are added one by one and may start together."""

    def add(
        self,
        number: int,
        inputs: Sequence[Any],
        results: Sequence[Any],
        arguments: Sequence[Number],
    ) -> None:
        """Run `number` of the chain, in order from 0, on this memory."""
        ...

    def again(self, mark: Any, arguments: Sequence[Sequence[Number]]) -> bool:
        """Starts the same turns with other numbers, if they are the last ones with this mark."""
        ...

    def twin(self) -> RunChain:
        """A chain of the same turns that keeps parameters of its own."""
        ...

    def flush(self, mark: Any = None) -> None:
        """Starts what was added and has not been started."""
        ...


class SingleRuns:
    """The same calls without a graph: each run is started when it is added.

    Args:
        starts: of each run of one turn what starts it on inputs and results with its numbers.
    """

    def __init__(
        self, starts: Sequence[Callable[[Sequence[Any], Sequence[Any], Sequence[Number]], None]]
    ) -> None:
        self.starts = starts

    def add(
        self,
        number: int,
        inputs: Sequence[Any],
        results: Sequence[Any],
        arguments: Sequence[Number],
    ) -> None:
        """Run `number` of the chain, in order from 0, on this memory."""
        self.starts[number % len(self.starts)](inputs, results, arguments)

    def again(self, mark: Any, arguments: Sequence[Sequence[Number]]) -> bool:
        """Never: there is nothing here that could be started as a whole."""
        return False

    def twin(self) -> SingleRuns:
        """Itself, since it remembers nothing."""
        return self

    def flush(self, mark: Any = None) -> None:
        """Starts what was added and has not been started."""
