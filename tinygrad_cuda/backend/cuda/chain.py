"""Many runs behind one another as one CUDA graph: what a call pays for a step is its parameters.

The memory of each run is given from outside; a chain allocates nothing but the graph.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from tinygrad_cuda.backend.base import Number
from tinygrad_cuda.backend.cuda.frame import Frame
from tinygrad_cuda.backend.cuda.pack import Launch
from tinygrad_cuda.backend.cuda.replay import launch_graph
from tinygrad_cuda.backend.cuda.runtime import Device, Module
from tinygrad_cuda.backend.cuda.template import THREADS
from tinygrad_cuda.core.config import settings


class Runnable(Protocol):
    """What a chain needs of a compiled program."""

    unit: Any

    @property
    def launches(self) -> Sequence[Launch]:
        """In an order of execution."""
        ...

    @property
    def after(self) -> Sequence[tuple[int, ...]]:
        """For each launch the earlier ones that it waits for."""
        ...

    def new_frame(self) -> Frame:
        """Parameters of its launches that nobody else writes."""
        ...

    def memory(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """All memory of a run, in the order of the frame's addresses."""
        ...

    def numbers(self, arguments: Sequence[Number]) -> tuple[list[int], Sequence[Number]]:
        """The codes of the checks, and the numbers of the run as the kernels get them."""
        ...

    def watch(self, codes: Sequence[int]) -> None:
        """A run with these codes has been started."""
        ...

    def start(
        self, inputs: Sequence[Any], results: Sequence[Any], arguments: Sequence[Number]
    ) -> None:
        """Runs it, on this memory."""
        ...


class Singly:
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

    def flush(self) -> None:
        """Starts what was added and has not been started."""


class Chain:
    """Turns of one or more runs as a graph, which starts when all its turns have been added.

    The first launches of a run wait for the last ones of the run before it; within a run the
    edges are the program's.

    Args:
        gpu: where it runs.
        programs: the runs of one turn.
        length: how many turns the graph has.
    """

    def __init__(self, gpu: Device, programs: Sequence[Runnable], length: int) -> None:
        self.gpu = gpu
        self.programs = [*programs] * length
        self.frames = [program.new_frame() for program in self.programs]
        self.starts = [0]
        for program in self.programs:
            self.starts.append(self.starts[-1] + len(program.launches))
        self.next = 0
        self.graph: Any = None
        self.updated = 0

    def add(
        self, inputs: Sequence[Any], results: Sequence[Any], arguments: Sequence[Number]
    ) -> None:
        """The next run, on this memory."""
        number = self.next
        program, frame = self.programs[number], self.frames[number]
        addresses = [piece.address for piece in program.memory(inputs, results)]
        codes, numbers = program.numbers(arguments)
        changed = frame.fill(addresses, numbers)
        program.watch(codes)
        if self.graph is not None:
            start = self.starts[number]
            for launch in changed:
                self.graph.update(start + launch, frame.words(launch))
        self.next += 1
        if self.next == len(self.programs):
            self._start()

    def _start(self) -> None:
        if self.graph is None:
            self.graph = self._built()
        self.next = 0
        self.graph.launch()
        if settings.debug >= 1:
            updates, self.updated = self.graph.updates - self.updated, self.graph.updates
            print(f"replay: {self.starts[-1]} launches, {updates} updated", file=sys.stderr)

    def _built(self) -> Any:
        parts: list[tuple[Module, Launch, tuple[int, ...], bytes]] = []
        last: tuple[int, ...] = ()
        for program, frame in zip(self.programs, self.frames):
            start = len(parts)
            for number, launch in enumerate(program.launches):
                before = tuple(start + other for other in program.after[number]) or last
                parts.append((program.unit, launch, before, frame.words(number)))
            if program.launches:
                waited = {other for before in program.after for other in before}
                last = tuple(start + k for k in range(len(program.launches)) if k not in waited)
        return launch_graph(self.gpu, parts)

    def flush(self) -> None:
        """Starts what was added and has not been started, one launch after another."""
        count, self.next = self.next, 0
        for program, frame in zip(self.programs[:count], self.frames):
            for number, launch in enumerate(program.launches):
                function = program.unit.function(launch.name)
                words = frame.words(number)
                self.gpu.launch(function, launch.blocks, THREADS, launch.shared, words, launch.site)
