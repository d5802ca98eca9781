"""A program as launches: rewritten, scheduled, generated, compiled as one translation unit, run.

The machine below (a GPU, or the emulator) only has memory, a compiler and launches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from tinygrad_cuda.backend.base import Number, Program
from tinygrad_cuda.backend.cuda.arena import plan_arena
from tinygrad_cuda.backend.cuda.codegen import stages
from tinygrad_cuda.backend.cuda.pack import Launch, packed, translation_unit
from tinygrad_cuda.backend.cuda.report import report
from tinygrad_cuda.backend.cuda.validate import Validator, compare
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.rewrite import simplify
from tinygrad_cuda.graph.rewrite.products import turn_products
from tinygrad_cuda.graph.schedule import Kernel, schedule


class Machine(Protocol):
    """What runs generated CUDA text."""

    error: Any  # four words: a bad index

    def allocate(self, nbytes: int) -> Any:
        """Memory with undefined content."""
        ...

    def part(self, memory: Any, offset: int, nbytes: int) -> Any:
        """A part of allocated memory."""
        ...

    def to_host(self, storage: Any, shape: Shape, dtype: DType) -> np.ndarray[Any, Any]:
        """The value of a piece of memory."""
        ...

    def load(self, source: str, launches: Sequence[Launch]) -> Any:
        """A compiled translation unit."""
        ...

    def launch(self, unit: Any, launch: Launch, words: bytes, touched: Sequence[Any]) -> None:
        """Starts one kernel with its parameters; it touches no other memory than this."""
        ...

    def launch_all(
        self, unit: Any, words: Sequence[bytes], touched: Sequence[Sequence[Any]]
    ) -> None:
        """Starts all launches of a unit in an order that their dependencies allow."""
        ...

    def copy(self, target: Any, source: Any) -> None:
        """Copies memory after the work so far."""
        ...

    def watch_error(self) -> None:
        """Takes note of the error word as it is after the work so far."""
        ...

    def timed(self, work: Callable[[], None]) -> float | None:
        """Does the work; its microseconds, where the machine can tell."""
        ...


class _Layout:
    """Where the words of a launch come from: places in the table of memory, or arguments."""

    def __init__(self, launch: Launch, places: dict[Any, int]) -> None:
        self.launch = launch
        self.touched: list[int] = []
        self.sources: list[tuple[bool, int | None]] = []  # (is memory, place or position)
        formats = []
        for word in launch.words:
            memory = word.kind != "argument"
            place = places["error" if word.kind == "error" else word.item] if memory else word.item
            self.sources.append((memory, place))
            if memory:
                self.touched.append(place)
            formats.append("d" if not memory and word.text.startswith("double") else "Q")
        self.doubles = [text == "d" for text in formats]
        self.struct = struct.Struct("<" + "".join(formats))

    def pack(self, addresses: Sequence[int], arguments: Sequence[Number]) -> bytes:
        words: list[Any] = []
        for (memory, place), double in zip(self.sources, self.doubles):
            if place is None:
                words.append(0)
            elif memory:
                words.append(addresses[place])
            else:
                number = arguments[place]
                words.append(float(number) if double else int(number) & _WORD)
        return self.struct.pack(*words)


_WORD = 2**64 - 1


class CudaExecutable:
    """A compiled program of generated kernels."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.machine = machine
        outputs = turn_products(simplify(program.outputs))
        places = {number: program.inputs[slot] for number, slot in program.overwrites.items()}
        self.schedule = schedule(outputs, places)
        made = {kernel: stages(kernel) for kernel in self.schedule.kernels}
        self.arena = plan_arena(self.schedule, made)
        self.launches = packed([made[kernel] for kernel in self.schedule.kernels])
        self.source = translation_unit(self.launches)
        self.unit = machine.load(self.source, self.launches) if self.launches else None
        self.places = {
            node: buffer
            for kernel in self.schedule.kernels
            for node, buffer in kernel.places.items()
        }
        self.checks = any(word.kind == "error" for launch in self.launches for word in launch.words)
        # Where an output could not be written in place, its value is copied there at the end.
        self.copies = [
            (number, slot)
            for number, slot in program.overwrites.items()
            if self.schedule.outputs[number] not in self.places
        ]
        self._lay_out()
        if settings.debug >= 3:
            print(self.explain())
        if settings.debug >= 4:
            print(self.source)

    def _lay_out(self) -> None:
        """The table of memory: inputs, fresh outputs, parts of the arena, the error word."""
        self.fresh = [node for node in self.schedule.outputs if node not in self.places]
        items = [*self.program.inputs, *self.fresh, *self.arena.places, "error"]
        places = {item: place for place, item in enumerate(items)}
        for node, buffer in self.places.items():
            places[node] = places[buffer]
        self.items = places
        self.layouts = [_Layout(launch, places) for launch in self.launches]
        self.results = [places[node] for node in self.schedule.outputs]
        self.sizes = [prod(node.shape) * node.dtype.itemsize for node in self.fresh]
        self._parts: list[Any] = []
        self._base = -1

    def run(self, inputs: Sequence[Any], arguments: Sequence[Number]) -> list[Any]:
        machine = self.machine
        expected = self._expected(inputs, arguments) if settings.validate else {}
        arena = machine.allocate(self.arena.nbytes)
        if arena.address != self._base:
            self._base = arena.address
            self._parts = [machine.part(arena, *place) for place in self.arena.places.values()]
        memory = [*inputs, *map(machine.allocate, self.sizes), *self._parts, machine.error]
        addresses = [piece.address for piece in memory]
        words = [layout.pack(addresses, arguments) for layout in self.layouts]
        touched = [[memory[place] for place in layout.touched] for layout in self.layouts]
        if settings.debug >= 2 or settings.validate:
            for launch, own, pieces in zip(self.launches, words, touched):
                self._look(launch, own, pieces)
                if settings.validate:
                    self._validate(launch, memory, expected)
        elif self.launches:
            machine.launch_all(self.unit, words, touched)
        if self.checks:
            machine.watch_error()
        results = [memory[place] for place in self.results]
        for number, slot in self.copies:
            machine.copy(inputs[slot], results[number])
            results[number] = inputs[slot]
        return results

    def _look(self, launch: Launch, words: bytes, touched: list[Any]) -> None:
        """One launch by itself, with its line of TGC_DEBUG=2."""
        time = self.machine.timed(lambda: self.machine.launch(self.unit, launch, words, touched))
        if settings.debug >= 2:
            print(report(launch, time))

    def _expected(self, inputs: Sequence[Any], arguments: Sequence[Number]) -> dict[Node, Any]:
        """What each stored value should be, by NumPy."""
        arrays = [
            self.machine.to_host(storage, node.shape, node.dtype)
            for storage, node in zip(inputs, self.program.inputs)
        ]
        return Validator(self.program, self.schedule).expected(arrays, arguments)

    def _validate(self, launch: Launch, memory: list[Any], expected: dict[Node, Any]) -> None:
        for stage in launch.stages:
            for node in stage.kernel.stores:
                if node in expected and stage.stores(node):
                    piece = memory[self.items[node]]
                    found = self.machine.to_host(piece, node.shape, node.dtype)
                    compare(stage, node, found, expected[node])

    def describe(self) -> str:
        """One line a launch."""
        return "\n".join(str(launch) for launch in self.launches)

    def explain(self) -> str:
        """Why each kernel exists, what it fuses, and the user's lines behind it."""
        return "\n".join(_explained(kernel) for kernel in self.schedule.kernels)


def _explained(kernel: Kernel) -> str:
    sites = dict.fromkeys(describe_site(node.site) for node in kernel.nodes)
    return "\n".join(
        [repr(kernel), f"  why:   {kernel.reason}", *(f"  line:  {site}" for site in sites)]
    )
