"""Replays of one program behind one another: what steps=n and tc.loop do once there is a program.

The guards are checked once, the memory of all replays is laid out before the first, and the host
writes only the parameters in which one replay differs from the one that it replaces.
It stays in this package: it is how `steps=n` runs, and reads a `CapturedProgram` field by field.
Without it many steps of mlp_64 in one call take 745 % longer (H200).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import prod
from typing import Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.launch.graphs_by_address_replay import Addresses, GraphsByAddress
from tinygrad_cuda.backend.launch.run_chain import Numbers
from tinygrad_cuda.capture.frame_replay import ReplayFrame, RunEvent
from tinygrad_cuda.capture.program import CapturedProgram
from tinygrad_cuda.capture.results import Fresh
from tinygrad_cuda.capture.signature import Given
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.core.observer import watched
from tinygrad_cuda.engine.capture import Stale
from tinygrad_cuda.engine.realize import lock_of
from tinygrad_cuda.replay.switches import switches

# Given a turn's number and the values of a replay, puts there the memory of that turn's arguments
# and of what it returns.
Put = Callable[[int, list[Any]], None]
TurnNumbers = list[Numbers]  # of each run of a turn

LENGTH = 32  # turns in one graph; even, since a loop's results alternate between two buffers
SEGMENTS, VARIANTS = 64, 3  # graphs of a call's turns at most; how many may be on other addresses
ALIGNMENT = 16  # bytes that kernels may read at once


class MultiStepReplay:
    """What is the same in all replays of a program that follow one another.

    Args:
        program: one for which `can_chain` holds.
    """

    def __init__(self, program: CapturedProgram) -> None:
        self.program = program
        self.events = program.run_events
        self.device = self.events[0].device
        backend: Any = registry.get(self.device)
        self.backend = backend
        self.executables = [event.executable for event in self.events]
        # An output that overwrites an input is that input, also where a later run reads it.
        same: dict[int, int] = {}
        self.inputs: dict[RunEvent, list[int]] = {}
        self.outputs: dict[RunEvent, list[int]] = {}
        self.sizes: dict[int, int] = {}
        for event, start in zip(self.events, program.offsets):
            inputs = self.inputs[event] = [same.get(number, number) for number in event.inputs]
            for output, slot in enumerate(event.executable.results):
                if slot is not None:
                    same[start + output] = inputs[slot]
                else:
                    self.sizes[start + output] = event.executable.sizes[output]
            numbers = range(start, start + len(event.executable.results))
            self.outputs[event] = [same.get(number, number) for number in numbers]
        self.gradients = gradient_sources(program)
        self.results = program.results
        returned = {result.source for result in self.results}
        hidden = [k for k in self.sizes if k not in returned and k not in self.gradients]
        self.hidden = {k: backend.allocate(self.sizes[k]) for k in hidden}
        self.chains: dict[tuple[int, bool], Any] = {}
        self.graphs: GraphsByAddress[Any] = GraphsByAddress(SEGMENTS * VARIANTS)
        self.last: dict[int, deque[int]] = {}  # where memory that went outside was, by number

    def _chain(self, length: int) -> Any:
        key = length, settings.debug >= 2 or settings.sync or watched.observer is not None
        if key not in self.chains:
            self.chains[key] = self.executables[0].chain(self.executables, length)
        return self.chains[key]

    def memory(self, number: int, nbytes: int) -> Any:
        """Memory that a caller keeps; where it was in an earlier call, if that is free."""
        last = self.last.setdefault(number, deque(maxlen=2))
        for address in last:
            storage = self.backend.reuse(nbytes, address)
            if storage is not None:
                return storage
        storage = self.backend.allocate(nbytes)
        last.append(storage.address)
        return storage

    def run(self, frame: ReplayFrame, count: int, put: Put) -> tuple[int, list[Any]]:
        """Runs up to `count` turns.

        Args:
            frame: from ``program.frame``, which has prepared the first turn.
            count: at least 1.
            put: see `Put`.

        Returns:
            how many turns ran: fewer if the next one would be another program; the values.
        """
        program = self.program
        for gradient in program.gradients:
            gradient.drop()
        if program.overwritten:
            frame.own(program.overwritten)
        values = frame.values + program.constants
        values += [None] * (program.offsets[-1] - len(values))
        for number, memory in self.hidden.items():
            values[number] = memory
        for event, start in zip(self.events, program.offsets):
            for output, memory in event.spare.items():
                values[start + output] = memory
            event.spare = {}
        for number in self.gradients:
            if values[number] is None:
                values[number] = self.memory(number, self.sizes[number])
        with lock_of(self.device):
            return self._turns(frame, count, put, values), values

    def _turns(self, frame: ReplayFrame, count: int, put: Put, values: list[Any]) -> int:
        done = 0
        while done < count:
            length = min(count - done, LENGTH)
            numbers: list[TurnNumbers] = []
            try:
                for turn in range(done, done + length):
                    numbers.append(self._host(frame, turn))
            except Stale:
                count = done + len(numbers)
            except TgcError as error:
                # Who took the report has cleared the word that keeps these turns from writing.
                if error.reported:
                    numbers.clear()
                raise
            finally:
                self._start(done, length, numbers, put, values)
            done += len(numbers)
        return done

    def _host(self, frame: ReplayFrame, turn: int) -> TurnNumbers:
        """What the host does in a turn; the numbers of its runs."""
        program = self.program
        rows: TurnNumbers = []
        if turn:
            for step in program.early:
                step.prepare()
        for event in program.events:
            if type(event) is RunEvent:
                rows.append(tuple(event.numbers))
            else:
                event(frame)
        return rows

    def _start(
        self, done: int, length: int, numbers: list[TurnNumbers], put: Put, values: list[Any]
    ) -> None:
        """Starts the turns whose numbers are computed, of a segment of this length.

        Where all memory is where it was in an earlier call, they are a graph of their own, which
        from the next such call on is launched as it stands.
        """
        if not numbers:
            return
        chain, mark = self._chain(length), None
        whole = len(numbers) == length and done < SEGMENTS * LENGTH
        if whole and settings.debug < 2 and watched.observer is None:
            mark = self._mark(done, len(numbers), put, values)
            chain = self._own_chain(length, mark) or chain
            if chain.again(mark, [run for runs in numbers for run in runs]):
                put(done + length - 1, values)
                return
        position = 0
        for turn, runs in enumerate(numbers, done):
            put(turn, values)
            for event, run in zip(self.events, runs):
                inputs = [values[number] for number in self.inputs[event]]
                outputs = [values[number] for number in self.outputs[event]]
                chain.add(position, inputs, outputs, run)
                position += 1
        chain.flush(mark)

    def _own_chain(self, length: int, mark: Addresses) -> Any:
        """The chain of turns that have come before on these addresses; None the first time."""
        chain = self.graphs.find(mark)
        if chain is None and self.graphs.wanted(mark):
            chain = self._chain(length).twin()
            self.graphs.keep(mark, chain)
        return chain

    def _mark(self, done: int, count: int, put: Put, values: list[Any]) -> Addresses:
        """Where turns are in a call, and all their addresses: two turns determine the others'."""
        marks: list[list[Any]] = [executable.memory((), ()) for executable in self.executables]
        for turn in range(done, done + min(count, 2)):
            put(turn, values)
            marks.append(list(values))
        addresses = [-1 if v is None else v.address for pieces in marks for v in pieces]
        return done, count, *addresses

    def finish(self, given: Given, values: list[Any]) -> Fresh:
        """Leaves the last turn's gradients."""
        fresh = Fresh(values, given.originals)
        for gradient in self.program.gradients:
            gradient.leave(fresh)
        return fresh


def multi_step_replay(program: CapturedProgram) -> MultiStepReplay | None:
    """How a program's replays follow one another; None if they must be single calls."""
    if program.multi_step is None:
        possible = switches.multi_step and can_chain(program)
        program.multi_step = MultiStepReplay(program) if possible else False
    return program.multi_step or None


def can_chain(program: CapturedProgram) -> bool:
    """Whether all that a replay leaves behind is written in place, returned, or a gradient."""
    events = program.run_events
    if not events or program.late or program.last or program.drawn:
        return False
    device = events[0].device
    if device is CPU:
        return False
    if any(e.device is not device or e.copies or e.executable.copies for e in events):
        return False
    if any(index < program.arguments for index in program.overwritten):
        return False
    for event, run, start in zip(events, program.runs, program.offsets):
        for index, output_spec in event.writes:
            slot = run.overwrites.get(output_spec.source - start)
            if slot is None or run.inputs[slot] != ("cell", index):
                return False
    sources = {result.source for result in program.results if result.given < 0}
    gradients = gradient_sources(program)
    fresh = {  # values in memory of their own
        start + output
        for event, start in zip(events, program.offsets)
        for output, slot in enumerate(event.executable.results)
        if slot is None
    }
    simple = all(gradient.none or gradient.output_spec for gradient in program.gradients)
    return simple and sources | gradients <= fresh and sources.isdisjoint(gradients)


def gradient_sources(program: CapturedProgram) -> set[int]:
    """The values that become gradients."""
    return {g.output_spec.source for g in program.gradients if g.output_spec is not None}


def whole_words(shape: tuple[int, ...], itemsize: int) -> bool:
    """Whether one value after another keeps the alignment that kernels count on."""
    return prod(shape) == 1 or prod(shape) * itemsize % ALIGNMENT == 0
