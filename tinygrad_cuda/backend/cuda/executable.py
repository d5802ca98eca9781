"""A program as launches: rewritten, scheduled, generated, compiled as one translation unit, run.

The machine below (a GPU, or the emulator) only has memory, a compiler and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from tinygrad_cuda.backend.base import Number, Program
from tinygrad_cuda.backend.cuda.arena import plan_arena
from tinygrad_cuda.backend.cuda.codegen import stages
from tinygrad_cuda.backend.cuda.pack import Launch, packed, translation_unit
from tinygrad_cuda.backend.cuda.report import report
from tinygrad_cuda.backend.cuda.template import Word
from tinygrad_cuda.backend.cuda.validate import Validator, compare
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.rewrite import simplify
from tinygrad_cuda.graph.rewrite.products import turn_products
from tinygrad_cuda.graph.schedule import Kernel, schedule


class Memory(Protocol):
    """A piece of a machine's memory."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


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

    def load(self, source: str) -> Any:
        """A compiled translation unit."""
        ...

    def launch(
        self, unit: Any, launch: Launch, words: np.ndarray[Any, Any], touched: list[Any]
    ) -> None:
        """Starts one kernel."""
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


class CudaExecutable:
    """A compiled program of generated kernels."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.machine = machine
        outputs = turn_products(simplify(program.outputs))
        places = {number: program.inputs[slot] for number, slot in program.overwrites.items()}
        self.schedule = schedule(outputs, places)
        self.slots = {node: slot for slot, node in enumerate(program.inputs)}
        made = {kernel: stages(kernel) for kernel in self.schedule.kernels}
        self.arena = plan_arena(self.schedule, made)
        self.launches = packed([made[kernel] for kernel in self.schedule.kernels])
        self.source = translation_unit(self.launches)
        self.unit = machine.load(self.source) if self.launches else None
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
        if settings.debug >= 3:
            print(self.explain())
        if settings.debug >= 4:
            print(self.source)

    def run(self, inputs: Sequence[Any], arguments: Sequence[Number]) -> list[Any]:
        expected = self._expected(inputs, arguments) if settings.validate else {}
        memory: dict[Any, Any] = {node: inputs[slot] for node, slot in self.slots.items()}
        arena = self.machine.allocate(self.arena.nbytes)
        for item, (offset, nbytes) in self.arena.places.items():
            memory[item] = self.machine.part(arena, offset, nbytes)
        for node in self.schedule.outputs:
            place = self.places.get(node)
            memory[node] = inputs[self.slots[place]] if place is not None else self._allocate(node)
        for launch in self.launches:
            self._launch(launch, memory, arguments)
            if settings.validate:
                self._validate(launch, memory, expected)
        if self.checks:
            self.machine.watch_error()
        results = [memory[node] for node in self.schedule.outputs]
        for number, slot in self.copies:
            self.machine.copy(inputs[slot], results[number])
            results[number] = inputs[slot]
        return results

    def _launch(self, launch: Launch, memory: dict[Any, Any], arguments: Sequence[Number]) -> None:
        touched: list[Any] = []
        words = np.array(
            [self._word(word, memory, arguments, touched) for word in launch.words], np.uint64
        )
        if settings.debug < 2:
            self.machine.launch(self.unit, launch, words, touched)
            return
        time = self.machine.timed(lambda: self.machine.launch(self.unit, launch, words, touched))
        print(report(launch, time))

    def _expected(self, inputs: Sequence[Any], arguments: Sequence[Number]) -> dict[Node, Any]:
        """What each stored value should be, by NumPy."""
        arrays = [
            self.machine.to_host(storage, node.shape, node.dtype)
            for storage, node in zip(inputs, self.program.inputs)
        ]
        return Validator(self.program, self.schedule).expected(arrays, arguments)

    def _validate(self, launch: Launch, memory: dict[Any, Any], expected: dict[Node, Any]) -> None:
        for stage in launch.stages:
            for node in stage.kernel.stores:
                if node in expected and stage.stores(node):
                    found = self.machine.to_host(memory[node], node.shape, node.dtype)
                    compare(stage, node, found, expected[node])

    def _allocate(self, node: Node) -> Any:
        return self.machine.allocate(prod(node.shape) * node.dtype.itemsize)

    def _word(
        self, word: Word, memory: dict[Any, Any], arguments: Sequence[Number], touched: list[Any]
    ) -> int:
        if word.kind == "argument":
            value = 0 if word.item is None else arguments[word.item]
            if word.text.startswith("double"):
                return int(np.float64(value).view(np.uint64))
            return int(value) & (2**64 - 1)
        piece = self.machine.error if word.kind == "error" else memory[word.item]
        touched.append(piece)
        return int(piece.address)

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
