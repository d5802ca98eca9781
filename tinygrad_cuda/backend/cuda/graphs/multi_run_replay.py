"""Many runs behind one another as one CUDA graph: what a call pays for a step is its parameters.

The memory of each run is given from outside; a chain allocates nothing but the graph.
It is not in `replay`, which may not import the driver.
Without it many steps of mlp_64 in one call take 185 % longer (H200).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph
from tinygrad_cuda.backend.cuda.graphs.graph_replay import Part, kernel_nodes
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.backend.launch.run_chain import Memory, Numbers, RunChain
from tinygrad_cuda.core.config import settings


class MultiRunGraph(RunChain):
    """Turns of one or more runs as a graph, which starts when all its turns have been added.

    The first launches of a run wait for the last ones of the run before it; within a run the
    edges are the program's.

    Args:
        gpu: where it runs.
        programs: the runs of one turn.
        length: how many turns the graph has.
        origin: a chain of the same turns, whose description of the graph is used again.
    """

    def __init__(
        self,
        gpu: DeviceHandle,
        programs: Sequence[LoweredExecutable],
        length: int,
        origin: MultiRunGraph | None = None,
    ) -> None:
        self.gpu, self.turn, self.length, self.origin = gpu, programs, length, origin
        self.programs = [*programs] * length
        self.frames = [program.new_frame() for program in self.programs]
        self.starts = [*accumulate((len(one.launches) for one in self.programs), initial=0)]
        self.added = 0  # runs, since the last start
        # The numbers of all runs, where each run's begin, their memory, and what is there.
        self.offsets = [*accumulate((one.numbers.nbytes for one in self.programs), initial=0)]
        self.numbers = bytearray(self.offsets[-1])
        self.memory = gpu.allocate(len(self.numbers))
        self.sent: bytearray | None = None
        self.graph: Any = None
        self.updated = 0
        self.mark: Any = None  # by which the caller identifies the last turns

    def twin(self) -> MultiRunGraph:
        """A chain of the same turns that keeps parameters of its own."""
        return MultiRunGraph(self.gpu, self.turn, self.length, self.origin or self)

    def again(self, mark: Any, arguments: Sequence[Numbers]) -> bool:
        """Starts the turns of the last call again, if they have this mark.

        Args:
            mark: of what decides their addresses.
            arguments: of each run.
        """
        if self.mark is None or self.mark != mark:
            self.mark = None
            return False
        for number, one in enumerate(arguments):
            self._count(number, one)
        self._start()
        return True

    def _count(self, number: int, arguments: Numbers) -> None:
        """Takes the numbers of a run."""
        program = self.programs[number]
        codes, arguments = program.coded(arguments)
        program.watch(codes)
        first, last = self.offsets[number : number + 2]
        self.numbers[first:last] = program.numbers.packed(arguments)

    def add(self, number: int, inputs: Memory, results: Memory, arguments: Numbers) -> None:
        """Run `number` of the chain, in order from 0, on this memory."""
        program, frame = self.programs[number], self.frames[number]
        # An arena that grew with a later run would leave the first ones on the old one.
        for one in () if number else self.turn:
            one.memory((), ())
        addresses = [piece.address for piece in program.memory(inputs, results)]
        addresses[-1] = self.memory.address + self.offsets[number]
        changed = frame.fill(addresses)
        self._count(number, arguments)
        if self.graph is not None:
            start = self.starts[number]
            for launch in changed:
                self.graph.update(start + launch, frame.words(launch))
        self.added = number + 1

    def _start(self) -> None:
        if self.graph is None:
            self.graph = self._made()
        self._send()
        self.graph.launch()
        if settings.debug >= 1:
            updates, self.updated = self.graph.updates - self.updated, self.graph.updates
            print(f"replay: {self.starts[-1]} launches, {updates} updated", file=sys.stderr)

    def _send(self) -> None:
        """Has the numbers where the kernels read them."""
        if self.sent != self.numbers:
            self.sent = None  # until they are enqueued
            self.gpu.copy_in(self.memory.address, np.frombuffer(self.numbers, np.uint8))
            self.sent = self.numbers.copy()

    def _made(self) -> Any:
        if self.origin is None or self.origin.graph is None:
            return self._built()
        graph = self.origin.graph.twin()
        for program, frame, start in zip(self.programs, self.frames, self.starts):
            for launch in range(len(program.launches)):
                graph.update(start + launch, frame.words(launch))
        return graph

    def _built(self) -> Any:
        parts: list[Part] = []
        last: tuple[int, ...] = ()
        for program, frame in zip(self.programs, self.frames):
            start = len(parts)
            for number, launch in enumerate(program.launches):
                before = tuple(start + other for other in program.after[number]) or last
                parts.append((program.unit, launch, before, frame.words(number)))
            if program.launches:
                waited = {other for before in program.after for other in before}
                last = tuple(start + k for k in range(len(program.launches)) if k not in waited)
        return CudaGraph(self.gpu, kernel_nodes(self.gpu, parts))

    def flush(self, mark: Any = None) -> None:
        """Starts what was added: as a graph, or one launch after another if it is not all of it.

        Args:
            mark: by what `again` recognises these turns; of all that decides their parameters.
        """
        count, self.added = self.added, 0
        if count == len(self.programs):
            self._start()
            self.mark = mark
            return
        self._send()
        for program, frame in zip(self.programs[:count], self.frames):
            for number, launch in enumerate(program.launches):
                words = frame.words(number)
                sizes = launch.blocks, launch.threads, launch.shared
                self.gpu.launch_named(program.unit, launch.name, sizes, words, launch.site)
