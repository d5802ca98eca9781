"""Many runs behind one another, which a machine may start as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tinygrad_cuda.backend.launch.launch_params import ArgumentBuffer, LaunchParams
from tinygrad_cuda.graph.program import Number
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch


class Runnable(Protocol):
    """What a chain needs of a compiled program."""

    unit: Any
    numbers: ArgumentBuffer

    @property
    def launches(self) -> Sequence[PackedLaunch]:
        """In an order of execution."""
        ...

    @property
    def after(self) -> Sequence[tuple[int, ...]]:
        """For each launch the earlier ones that it waits for."""
        ...

    def new_frame(self) -> LaunchParams:
        """Parameters of its launches that nobody else writes."""
        ...

    def memory(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """All memory of a run, in the order of the frame's addresses; that of numbers is last."""
        ...

    def coded(self, arguments: Sequence[Number]) -> tuple[list[int], Sequence[Number]]:
        """The codes of the checks, and the arguments of the run as the kernels get them."""
        ...

    def watch(self, codes: Sequence[int]) -> None:
        """A run with these codes has been started."""
        ...

    def start(
        self, inputs: Sequence[Any], results: Sequence[Any], arguments: Sequence[Number]
    ) -> None:
        """Runs it, on this memory."""
        ...


class RunChain(Protocol):
    """Turns of one or more runs that are added one by one and may start together."""

    def add(
        self, inputs: Sequence[Any], results: Sequence[Any], arguments: Sequence[Number]
    ) -> None:
        """The next run, on this memory."""
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
        programs: the runs of one turn.
    """

    def __init__(self, programs: Sequence[Runnable]) -> None:
        self.programs = programs
        self.next = 0

    def add(
        self, inputs: Sequence[Any], results: Sequence[Any], arguments: Sequence[Number]
    ) -> None:
        """The next run, on this memory."""
        self.programs[self.next].start(inputs, results, arguments)
        self.next = (self.next + 1) % len(self.programs)

    def again(self, mark: Any, arguments: Sequence[Sequence[Number]]) -> bool:
        """Never: there is nothing here that could be started as a whole."""
        return False

    def twin(self) -> SingleRuns:
        """Itself, since it remembers nothing."""
        return self

    def flush(self, mark: Any = None) -> None:
        """Starts what was added and has not been started."""
