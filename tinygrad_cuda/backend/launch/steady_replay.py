"""The runs of a steady loop: memory as the last run had it, but for arguments and results.

It stays in this package: it writes the launch parameters of each run itself.
Without it a compiled call of denoiser_sample takes 58 % longer (H200).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any, Protocol

from tinygrad_cuda.backend.launch.graphs_by_address_replay import GraphsByAddress
from tinygrad_cuda.backend.launch.launch_params import NUMBERS, ArgumentBuffer
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.observer import watched
from tinygrad_cuda.graph.program import Number

_address_of = attrgetter("address")


class ReplayedProgram(Protocol):
    """What steady runs need of a compiled program; see `LoweredExecutable`."""

    machine: Any
    arena_bytes: int
    numbers: ArgumentBuffer
    checks: bool
    sent: bytes
    first_code: int

    def start(
        self, inputs: Sequence[Any], results: Sequence[Any], arguments: Sequence[Number]
    ) -> None: ...

    def memory(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]: ...

    def coded(self, arguments: Sequence[Number]) -> tuple[list[int], Sequence[Number]]: ...

    def watch(self, codes: Sequence[int]) -> None: ...

    def fetch_memory(self, slot: int, nbytes: int) -> Any: ...

    def new_replay(self, memory: Sequence[Any], fetched: Sequence[int]) -> Any: ...

    def sent_within(self, numbers: bytes) -> bytes: ...


class SteadyRuns:
    """Starts a program on memory that it has seen, as graphs whose parameters stay as they are.

    The arguments and results of a loop alternate between few addresses. Each combination that comes
    again gets a graph of its own, so that nothing of it is written again but what it fetches.

    Args:
        executable: the program.
    """

    def __init__(self, executable: ReplayedProgram) -> None:
        self.executable = executable
        self.graphs: GraphsByAddress[Any] = GraphsByAddress()
        self._fixed: list[int] = []  # addresses of everything else
        self._arena = 0
        self._key: tuple[int, ...] = ()
        self._waiting: list[Any] = []
        self._numbers: list[Number] = []
        self._zeros = False
        self._codes: Sequence[int] = ()
        self._packed = b""
        machine = executable.machine
        self._staged, self._arena_of = machine.staged, machine.arena
        self._watch = machine.watch_error if executable.checks else None

    def start(
        self,
        given: Sequence[Any],
        fresh: Sequence[Any],
        fixed: list[int],
        numbers: Sequence[Number],
    ) -> bool:
        """Runs it if there is a graph of these addresses; otherwise `run` is to be called.

        Args:
            given: the arguments' memory.
            fresh: the results' memory.
            fixed: addresses of the other inputs and outputs.
            numbers: of the run.
        """
        executable = self.executable
        self._key = ()
        if settings.debug or settings.sync or settings.validate or watched.observer is not None:
            return False
        arena = self._arena_of(executable.arena_bytes).address
        if arena != self._arena or fixed is not self._fixed:
            if arena != self._arena or fixed != self._fixed:
                self.graphs.forget()
            self._fixed, self._arena = fixed, arena
        # Zeros by identity, since 0.0 == -0.0.
        if numbers != self._numbers or (self._zeros and not all(map(is_, numbers, self._numbers))):
            self._take(numbers)
        send = self._packed != executable.sent
        key: list[int] = [send]
        staged = self._staged
        waiting = self._waiting = []
        for piece in given:
            if type(piece) is staged and piece.pending:
                waiting.append(piece)
                key.append(0)
            else:
                key.append(piece.address)
        for piece in fresh:
            key.append(piece.address)
        addresses = self._key = tuple(key)
        graph = self.graphs.find(addresses)
        if graph is None:
            return False
        graph.relaunch(waiting, self._send() if send else b"")
        executable.sent = self._packed
        if self._watch is not None:
            self._watch(executable.first_code, self._codes)
        return True

    def run(self, inputs: Sequence[Any], results: Sequence[Any], numbers: Sequence[Number]) -> None:
        """Runs it on these inputs and outputs, which `start` did not know."""
        executable = self.executable
        if not self._key or not self.graphs.wanted(self._key):
            executable.start(inputs, results, numbers)
            return
        memory = executable.memory(inputs, results)
        slots = [inputs.index(piece) for piece in self._waiting]
        for slot in slots:
            memory[slot] = executable.fetch_memory(slot, inputs[slot].nbytes)
        if self._key[0]:
            slots.append(NUMBERS)
        graph = executable.new_replay(memory, slots)
        within = self._send() if self._key[0] else b""
        graph.run(list(map(_address_of, memory)), self._waiting, within)
        executable.sent = self._packed
        executable.watch(self._codes)
        self.graphs.keep(self._key, graph)

    def _take(self, numbers: Sequence[Number]) -> None:
        """Has the numbers' bytes and codes ready."""
        codes, plain = self.executable.coded(numbers)
        if codes != self._codes:
            self._codes = codes  # otherwise they are compared by identity
        self._packed = self.executable.numbers.packed(plain)
        self._numbers = list(numbers)
        self._zeros = 0 in self._numbers

    def _send(self) -> bytes:
        """The numbers as parameters of the graph; none where they wait to be fetched."""
        executable = self.executable
        within = executable.sent_within(self._packed)
        if not within:
            self._waiting.append(executable.machine.stage(self._packed))
        executable.sent = b""  # until it is enqueued
        return within
