"""A program as launches: rewritten, scheduled, generated, compiled as one translation unit, run.

The machine below (a GPU, or the emulator) only has memory, a compiler and launches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from operator import attrgetter
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import numpy as np

from tinygrad_cuda.backend.base import replays
from tinygrad_cuda.backend.launch.launch_params import (
    FETCHED,
    NUMBERS,
    NUMBERS_WITHIN,
    OWN_CODES,
    WORD,
    ArgumentBuffer,
    LaunchParams,
    WordSource,
    dependencies,
    first_uses,
)
from tinygrad_cuda.backend.launch.report import Roofline, report
from tinygrad_cuda.backend.launch.run_chain import RunChain
from tinygrad_cuda.backend.launch.steady_replay import SteadyRuns
from tinygrad_cuda.backend.launch.validate import Validator
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.core.observer import Observer, watched
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.graph.program import NOTHING, Argument, Number, Program
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch, printed
from tinygrad_cuda.lowering.codegen.skeleton import TensorMap
from tinygrad_cuda.lowering.emit import tier_of
from tinygrad_cuda.lowering.lower import Lowered, lower
from tinygrad_cuda.lowering.schedule.arena import BLOCK
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.peak_memory import MemoryUse, memory_use
from tinygrad_cuda.lowering.target import Target


class Graphs(NamedTuple):
    """How a machine starts many launches as one.

    Attributes:
        replay: given a compiled unit, its launches, for each the earlier ones that it waits for,
            their parameters, memory of inputs that are fetched from the host each time, and that
            of numbers if they come with each run: all launches as one thing to `run` again and
            again.
        chain: given the runs of a turn and a count: as many turns of them as one `RunChain`.
    """

    replay: Callable[..., Any]
    chain: Callable[..., RunChain]


class Machine(Protocol):
    """What runs generated CUDA text."""

    error: Any  # four words: a bad index
    staged: type  # memory whose content waits on the host until a replay fetches it
    target: Target
    roofline: Roofline | None  # what it can do at most, where times mean something
    graphs: Graphs | None

    def allocate(self, nbytes: int) -> Any:
        """Memory with undefined content."""
        ...

    def reuse(self, nbytes: int, address: int, other: int = 0) -> Any:
        """The memory at that address, or else at the other, if it is free, or None."""
        ...

    def write(self, memory: Any, data: bytes) -> None:
        """Copies bytes of the host to the beginning of a piece of memory, after the work so far."""
        ...

    def stage(self, data: bytes) -> Any:
        """Bytes of the host that wait for a `replay` to fetch them."""
        ...

    def take(self, nbytes: int, address: int) -> Any:
        """Memory as from `allocate`, at that address if it is free there."""
        ...

    def together(self, sizes: tuple[int, ...], address: int) -> Sequence[Any] | None:
        """Pieces of memory without gaps between them, or None if there are none.

        Args:
            sizes: their bytes.
            address: where the first had better be.
        """
        ...

    def joined(self, pieces: Sequence[Any]) -> Any:
        """Such pieces as one part of memory."""
        ...

    def part(self, memory: Any, offset: int, nbytes: int) -> Any:
        """A part of allocated memory."""
        ...

    def arena(self, nbytes: int) -> Any:
        """Memory that all programs share; what it holds lasts for one run."""
        ...

    def to_host(self, storage: Any, shape: Shape, dtype: DType) -> np.ndarray[Any, Any]:
        """The value of a piece of memory."""
        ...

    def load(self, lowered: Lowered) -> Any:
        """The compiled kernels."""
        ...

    def launch(
        self, unit: Any, launch: PackedLaunch, words: bytes, touched: list[Any], fresh: list[Any]
    ) -> None:
        """Starts one kernel.

        Args:
            unit: what `load` returned.
            launch: the kernel and its grid.
            words: its parameters.
            touched: the memory that it may use.
            fresh: the part of the arena that it is the first to use.
        """
        ...

    def tensor_map(self, tensor: TensorMap, address: int) -> bytes:
        """What describes a value at an address to TMA."""
        ...

    def order(self, after: Sequence[tuple[int, ...]]) -> Sequence[int]:
        """An order of launches in which each follows those that it waits for."""
        ...

    def copy(self, target: Any, source: Any) -> None:
        """Copies memory after the work so far."""
        ...

    def watch_error(self, first: int, codes: Sequence[int]) -> None:
        """A run that may set the error word has begun.

        Args:
            first: the program's first code.
            codes: what this one and the next ones stand for in this run.
        """
        ...

    def timed(self, work: Sequence[Callable[[], None]]) -> Sequence[float | None]:
        """Does each piece of work; its microseconds, where the machine measures them."""
        ...


class RunListener(Protocol):
    """What is called before each run of a program starts."""

    def run(
        self,
        executable: LoweredExecutable,
        inputs: Sequence[Any],
        results: Sequence[Any],
        arguments: Sequence[Number],
    ) -> None:
        """The memory and the numbers of a run, see `LoweredExecutable.start`."""
        ...


listeners: list[RunListener] = []

CODES = 1 << 16  # a program has fewer checks than that
NEVER = 1 << 62  # runs: more than a program has
REPLAYS = 4  # graphs of a program, by which inputs they fetch
_first_codes = itertools.count(OWN_CODES, CODES)
address_of = attrgetter("address")


class LoweredExecutable:
    """A compiled program of generated kernels.

    Args:
        lowered: the program for the machine, if it is not to be lowered here.
    """

    def __init__(self, program: Program, machine: Machine, lowered: Lowered | None = None) -> None:
        self.program = program
        self.machine = machine
        lowered = lowered or lower(program, machine.target)
        self.schedule, self.arena = lowered.schedule, lowered.arena
        self.launches = lowered.launches
        self.unit: Any = machine.load(lowered) if self.launches else None
        self.overwrites = {
            node: buffer
            for kernel in self.schedule.kernels
            for node, buffer in kernel.overwrites.items()
        }
        self.checks = any(word.kind == "error" for launch in self.launches for word in launch.words)
        # Arguments that name a check differ from run to run; kernels get names of this program.
        self.codes = [
            node.attributes["code"].position
            for node in (topological(program.outputs) if self.checks else ())
            if node.op in indexing.CHECKS and isinstance(node.attributes["code"], Argument)
        ]
        self.first_code = next(_first_codes)
        # Where an output could not be written in place, its value is copied there at the end.
        self.copies = [
            (number, slot)
            for number, slot in program.overwrites.items()
            if self.schedule.outputs[number] not in self.overwrites
        ]
        self._lay_out()
        if settings.debug >= 3:
            print(self.explain())
        if settings.debug >= 4:
            print(printed(lowered.source))

    def _lay_out(self) -> None:
        """Where each word of the launches comes from, in the order of addresses of a run."""
        nodes = self.schedule.outputs
        values = [*self.program.inputs, *nodes, "error"]
        own = [*values, "arena", BLOCK, "exchange", "argument"]
        sources: dict[Any, WordSource] = {value: (number, 0) for number, value in enumerate(own)}
        for value, (offset, _) in self.arena.slots.items():
            sources[value] = sources[self.arena.inside.get(value, "arena")][0], offset
        slots = {node: slot for slot, node in enumerate(self.program.inputs)}
        self.results = [
            slots[self.overwrites[node]] if node in self.overwrites else None for node in nodes
        ]
        self.sizes = [prod(node.shape) * node.dtype.itemsize for node in nodes]
        exchanges = [w.operand for one in self.launches for w in one.words if w.kind == "exchange"]
        self.exchange_bytes = 0
        for value in dict.fromkeys(exchanges):
            sources[value] = sources["exchange"][0], self.exchange_bytes
            self.exchange_bytes += -(-value.nbytes // 16) * 16
        self.exchange_memory: Any = None
        self.numbers = ArgumentBuffer(self.launches)
        for value, number in self.numbers.table.items():
            sources[value] = sources["argument"][0], WORD * number
        self.sources = sources
        self.frame = LaunchParams(self.launches, sources, len(own), self.machine.tensor_map)
        # Where they are, and what has been sent there.
        self.number_memory: Any = None
        self.sent = b""
        self.after = dependencies(self.launches)
        self.first = first_uses(self.launches, self.arena.slots.keys() - self.arena.over.keys())
        self.fresh = [number for number, slot in enumerate(self.results) if slot is None]
        # Results that share memory with values before them: where each lies in one piece of memory.
        self.block = {nodes.index(node): start for node, start in self.arena.block.items()}
        self.arena_bytes = self.arena.nbytes  # and of what has had to lie behind it
        # Addresses of outputs in memory of their own, in the last run and in the one before.
        self._last = dict.fromkeys(self.fresh, 0)
        self._before = dict.fromkeys(self.fresh, 0)
        self.runs = 0
        # Runs whose launches are started one by one: one that comes again is worth a graph.
        self.graphs = self.machine.graphs if replays.cuda_graphs and self.launches else None
        self.singly = 1 if self.graphs else NEVER
        # By which inputs they fetch from the host themselves: graphs, the latest at the end.
        self.replays: dict[tuple[int, ...], Any] = {}
        written = set(self.program.overwrites.values())
        self.readable = set(range(len(self.program.inputs))) - written
        self._fetched: dict[int, Any] = {}  # memory for inputs that are fetched

    def run(
        self,
        inputs: Sequence[Any],
        arguments: Sequence[Number],
        spare: dict[int, Any] = NOTHING,
    ) -> list[Any]:
        results = self._outputs(inputs, spare)
        self.start(inputs, results, arguments)
        for number, slot in self.copies:
            self.machine.copy(inputs[slot], results[number])
            results[number] = inputs[slot]
        return results

    def start(
        self, inputs: Sequence[Any], results: Sequence[Any], arguments: Sequence[Number]
    ) -> None:
        """Runs it with outputs in memory that was chosen outside."""
        for listener in listeners:
            listener.run(self, inputs, results, arguments)
        codes, arguments = self.coded(arguments) if self.codes else ((), arguments)
        numbers = self.numbers.packed(arguments)
        self.runs += 1
        observer = watched.observer
        single = (
            settings.debug >= 2 or settings.sync or settings.validate or self.runs <= self.singly
            or (observer is not None and observer.launches_singly(self.program.device))
        )  # fmt: skip
        if not single:
            self._replay(inputs, results, numbers)
        else:
            validator = self._validator(inputs, arguments) if settings.validate else None
            memory = self.memory(inputs, results, self.runs == 1)
            self.frame.fill(list(map(address_of, memory)))
            if numbers != self.sent:
                self.machine.write(self.number_memory, numbers)
                self.sent = numbers
            self._launch_singly(memory, validator)
        if self.checks:
            self.machine.watch_error(self.first_code, codes)

    def memory(
        self, inputs: Sequence[Any], results: Sequence[Any], once: bool = False
    ) -> list[Any]:
        """All memory of a run, in the order of the frame's addresses.

        Args:
            inputs, results: that of these.
            once: whether what the run takes besides may be gone afterwards.
        """
        machine = self.machine
        block = self._block_memory(results, once) if self.block else None
        arena = machine.arena(self.arena.nbytes)
        if self.number_memory is None:
            self.number_memory = machine.allocate(self.numbers.nbytes)
        if self.exchange_memory is None:
            self.exchange_memory = machine.allocate(self.exchange_bytes)
            machine.write(self.exchange_memory, bytes(self.exchange_bytes))
        own = self.exchange_memory, self.number_memory
        return [*inputs, *results, machine.error, arena, arena if block is None else block, *own]

    def _block_memory(self, results: Sequence[Any], once: bool) -> Any:
        """Memory for values that lie where the block's results would be.

        That of these, if they lie there: they fill it, so nobody else has any of it. Otherwise the
        caller holds what an earlier run left in it, and these values lie behind the arena.
        """
        if results and self._in_block(results):
            return self.machine.joined([results[number] for number in self.block])
        nbytes = self.arena.block_bytes
        if once:
            return self.machine.allocate(nbytes)
        self.arena_bytes = self.arena.nbytes + nbytes
        return self.machine.part(self.machine.arena(self.arena_bytes), self.arena.nbytes, nbytes)

    def _in_block(self, results: Sequence[Any]) -> bool:
        """Whether the block's results lie behind one another."""
        pieces = [results[number] for number in self.block]
        if any(piece is None for piece in pieces):
            return False
        first = pieces[0].address
        starts = self.block.values()
        return all(piece.address - first == start for piece, start in zip(pieces, starts))

    def coded(self, arguments: Sequence[Number]) -> tuple[list[int], Sequence[Number]]:
        """The codes of the checks, and the numbers of the run with the same codes in every run."""
        if not self.codes:
            return [], arguments
        numbers = list(arguments)
        codes = [*map(int, map(numbers.__getitem__, self.codes))]
        for number, position in enumerate(self.codes):
            numbers[position] = self.first_code + number
        return codes, numbers

    def memory_use(self) -> MemoryUse:
        """What it takes besides its own numbers, by its plan."""
        return memory_use(self.program.inputs, self.schedule, self.arena)

    def watch(self, codes: Sequence[int]) -> None:
        """A run with these codes has been started."""
        if self.checks:
            self.machine.watch_error(self.first_code, codes)

    def new_frame(self) -> LaunchParams:
        """Parameters of the launches that nobody else writes."""
        return self.frame.twin()

    def steady_runs(self, slots: Sequence[int]) -> SteadyRuns | None:
        """Its runs in a loop where only the inputs in `slots` and some outputs move, by graphs."""
        fetched = self.readable.issuperset(slots) and len(slots) < FETCHED
        return SteadyRuns(self) if self.graphs and fetched and replays.steady_runs else None

    def chain(self, programs: Sequence[LoweredExecutable], length: int) -> RunChain:
        """Many turns of some runs, this one among them, behind one another."""
        graphs = self.machine.graphs if replays.multi_run_graphs else None
        looked_at = settings.sync or settings.validate or watched.observer is not None
        if graphs is None or settings.debug >= 2 or looked_at:
            return RunChain([one.start for one in programs])
        return graphs.chain(programs, length)

    def _outputs(self, inputs: Sequence[Any], spare: dict[int, Any]) -> list[Any]:
        """Memory for the outputs, that of an earlier run where it is free again."""
        results = [None if slot is None else inputs[slot] for slot in self.results]
        for number, piece in spare.items():
            results[number] = piece
        if self.block and self.runs and not self._in_block(results):
            self._take_block(results, spare)
        missing = [number for number in self.fresh if results[number] is None]
        if len(missing) > 1:  # first each its own, before another one takes it
            for number in missing:
                last, before = self._last[number], self._before[number]
                piece = self.machine.reuse(self.sizes[number], last, before)
                if piece is not None:
                    results[number] = self._taken(number, piece)
        for number in missing:
            if results[number] is None:
                results[number] = self.output_memory(number)
        return results

    def _take_block(self, results: list[Any], spare: dict[int, Any]) -> None:
        """Memory behind one another for the block's results, if there is some.

        Not in the first run: many a plan has one only, and what it leaves lasts.
        """
        for number in self.block:  # spare memory that lies elsewhere goes back
            results[number] = None
            spare.pop(number, None)
        sizes = tuple([self.sizes[number] for number in self.block])
        wanted = self._last[next(iter(self.block))]
        pieces = self.machine.together(sizes, wanted) or ()
        for number, piece in zip(self.block, pieces):
            results[number] = self._taken(number, piece)

    def output_memory(self, number: int) -> Any:
        """Memory for an output, the same as in the last run if it is free again."""
        return self._taken(number, self.machine.take(self.sizes[number], self._last[number]))

    def _taken(self, number: int, piece: Any) -> Any:
        """Notes an output's address: one of two in turn if the caller holds the last one."""
        last = self._last[number]
        if piece.address != last:
            self._before[number] = last
            self._last[number] = piece.address
        return piece

    def _replay(self, inputs: Sequence[Any], results: Sequence[Any], numbers: bytes) -> None:
        """Runs all launches as one."""
        memory = self.memory(inputs, results)
        if watched.observer is not None:
            watched.observer.ran(self, memory)
        staged: tuple[int, ...] = ()
        if self.machine.staged in map(type, inputs):
            staged = self._waiting(inputs)
            for slot in staged:
                memory[slot] = self.fetch_memory(slot, inputs[slot].nbytes)
        waiting = [inputs[slot] for slot in staged]
        within = self.sent_within(numbers)
        if numbers != self.sent:
            staged += (NUMBERS,)
            if not within:
                waiting.append(self.machine.stage(numbers))
        # A failure leaves none, so that the next is new.
        replay = self.replays.pop(staged, None)
        if replay is None:
            replay = self.new_replay(memory, staged)
        addresses = list(map(address_of, memory))
        self.sent = b""  # until it is enqueued
        replay.run(addresses, waiting, within)
        self.sent = numbers
        self.replays[staged] = replay
        if len(self.replays) > REPLAYS:
            del self.replays[next(iter(self.replays))]

    def sent_within(self, numbers: bytes) -> bytes:
        """The numbers if they are new and few enough to be parameters; else nothing."""
        few = self.numbers.nbytes <= NUMBERS_WITHIN
        return numbers if few and numbers != self.sent else b""

    def new_replay(self, memory: Sequence[Any], fetched: Sequence[int]) -> Any:
        """Its launches as a graph, which first fetches what goes to these parts of memory."""
        within = NUMBERS in fetched and self.numbers.nbytes <= NUMBERS_WITHIN
        assert self.graphs is not None
        return self.graphs.replay(
            self.unit,
            self.launches,
            self.after,
            self.new_frame(),
            [memory[position] for position in fetched if not (within and position == NUMBERS)],
            memory[NUMBERS] if within else None,
        )

    def _waiting(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Inputs that wait on the host and are not written to: the graph fetches them."""
        staged = self.machine.staged
        waiting = sorted(
            k for k in self.readable if type(inputs[k]) is staged and inputs[k].pending
        )
        return tuple(waiting[: FETCHED - 1])  # the last are the numbers

    def fetch_memory(self, slot: int, nbytes: int) -> Any:
        """Memory on the GPU for an input that its graph fetches from the host."""
        memory = self._fetched.get(slot)
        if memory is None:
            memory = self._fetched[slot] = self.machine.allocate(nbytes)
        return memory

    def _launch_singly(self, memory: list[Any], validator: Validator | None) -> None:
        pieces = self._pieces(memory)

        def starter(number: int) -> Callable[[], None]:
            return lambda: self._launch(number, pieces)

        order = self.machine.order(self.after) if len(self.after) > 1 else range(len(self.after))
        observer = watched.observer
        if observer is not None:
            observer.ran(self, memory)
            if validator is None and observer.launches_singly(self.program.device):
                self._launch_observed(order, starter, observer)
                return
        if settings.debug >= 2 and validator is None:
            times = self.machine.timed([starter(number) for number in order])
            for number, time in zip(order, times):
                print(report(self.launches[number], time, self.machine.roofline))
            return
        for number in order:
            self._launch(number, pieces)
            if validator is not None:
                self._validate(self.launches[number], pieces, validator)

    def _pieces(self, memory: Sequence[Any]) -> dict[Any, Any]:
        """The memory of each value of a run."""
        own = ("error", "arena", BLOCK, "exchange", "argument")
        pieces: dict[Any, Any] = dict(
            zip([*self.program.inputs, *self.schedule.outputs, *own], memory)
        )
        for value, piece in self.arena.slots.items():
            memory_of = pieces[self.arena.inside.get(value, "arena")]
            pieces[value] = self.machine.part(memory_of, *piece)
        return pieces

    def ready(self, inputs: Sequence[Any], results: Sequence[Any]) -> Callable[[], None]:
        """What starts the launches of a program without numbers, again and again.

        Nothing else may run on the machine meanwhile.
        """
        memory = self.memory(inputs, results)
        self.frame.fill(list(map(address_of, memory)))
        numbers = self.numbers.packed(())
        if numbers != self.sent:
            self.machine.write(self.number_memory, numbers)
            self.sent = numbers
        pieces, order = self._pieces(memory), range(len(self.launches))

        def run() -> None:
            for number in order:
                self._launch(number, pieces)

        return run

    def _launch_observed(
        self, order: Sequence[int], starter: Callable[[int], Callable[[], None]], observer: Observer
    ) -> None:
        """Reports each launch: when the host started it, and how long the device took."""
        spans: list[tuple[int, int]] = []

        def clocked(launch: Callable[[], None]) -> Callable[[], None]:
            def work() -> None:
                start = perf_counter_ns()
                launch()
                spans.append((start, perf_counter_ns()))

            return work

        times = self.machine.timed([clocked(starter(number)) for number in order])
        for number, (start, end), time in zip(order, spans, times):
            nanoseconds = None if time is None else 1e3 * time
            observer.kernel(self.program.device, self.launches[number], start, end, nanoseconds)

    def _launch(self, number: int, pieces: dict[Any, Any]) -> None:
        launch = self.launches[number]
        touched = [
            pieces[word.kind if word.kind in ("error", "exchange", "argument") else word.operand]
            for word in launch.words
            if word.kind not in ("unused", "map")  # a map's value has an address besides
        ]
        fresh = [pieces[value] for value in self.first[number]]
        self.machine.launch(self.unit, launch, self.frame.words(number), touched, fresh)

    def _validator(self, inputs: Sequence[Any], arguments: Sequence[Number]) -> Validator:
        """What each stored value should be, by NumPy."""
        arrays = [
            self.machine.to_host(storage, node.shape, node.dtype)
            for storage, node in zip(inputs, self.program.inputs)
        ]
        return Validator(self.program, self.schedule, arrays, arguments)

    def _validate(self, launch: PackedLaunch, pieces: dict[Any, Any], validator: Validator) -> None:
        for stage in launch.stages:
            for node in stage.kernel.stores:
                if node in validator.expected and stage.stores(node):
                    array = self.machine.to_host(pieces[node], node.shape, node.dtype)
                    validator.compare(stage, node, array)

    def describe(self) -> str:
        """One line a launch, and what the values between kernels take."""
        return "\n".join([*map(str, self.launches), self._memory()])

    def _memory(self) -> str:
        """What it takes, and the largest values at its peak."""
        return str(self.memory_use())

    def explain(self) -> str:
        """Why each kernel exists, what it fuses, the user's lines behind it; and the memory."""
        kernels = [_explained(n, kernel) for n, kernel in enumerate(self.schedule.kernels)]
        return "\n".join([*self.schedule.notes, *kernels, self._memory()])


def _explained(number: int, kernel: Kernel) -> str:
    sites = dict.fromkeys(describe_site(node.site) for node in kernel.nodes)
    tier = [f"  tier:  {text}"] if (text := tier_of(kernel)) else []
    lines = [f"{number}: {kernel!r}", f"  why:   {kernel.reason}", *tier]
    return "\n".join([*lines, *(f"  line:  {site}" for site in sites)])
