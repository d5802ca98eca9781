"""A program as launches: rewritten, scheduled, generated, compiled as one translation unit, run.

The machine below (a GPU, or the emulator) only has memory, a compiler and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from tinygrad_cuda.backend.base import Number, Program
from tinygrad_cuda.backend.cuda.codegen import stages
from tinygrad_cuda.backend.cuda.pack import Launch, packed, translation_unit
from tinygrad_cuda.backend.cuda.report import report
from tinygrad_cuda.backend.cuda.template import Scratch, Word
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


@dataclass
class _Step:
    """A launch with the places of its words in the table of memory."""

    launch: Launch
    words: list[Word]
    free: list[Any]


class CudaExecutable:
    """A compiled program of generated kernels."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.machine = machine
        outputs = turn_products(simplify(program.outputs))
        places = {number: program.inputs[slot] for number, slot in program.overwrites.items()}
        self.schedule = schedule(outputs, places)
        self.slots = {node: slot for slot, node in enumerate(program.inputs)}
        self.launches = packed([stages(kernel) for kernel in self.schedule.kernels])
        self.source = translation_unit(self.launches)
        self.unit = machine.load(self.source) if self.launches else None
        self.places = {
            node: buffer
            for kernel in self.schedule.kernels
            for node, buffer in kernel.places.items()
        }
        self.steps = self._steps()
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

    def _steps(self) -> list[_Step]:
        """The launches, each with the memory that nobody needs after it."""
        kept = set(self.schedule.outputs)
        steps, seen = [], set(kept) | set(self.slots)
        for launch in reversed(self.launches):
            free = []
            for word in launch.words:
                if word.kind in ("value", "scratch") and word.item not in seen:
                    seen.add(word.item)
                    free.append(word.item)
            steps.append(_Step(launch, launch.words, free))
        return steps[::-1]

    def run(self, inputs: Sequence[Any], arguments: Sequence[Number]) -> list[Any]:
        expected = self._expected(inputs, arguments) if settings.validate else {}
        memory: dict[Any, Any] = {node: inputs[slot] for node, slot in self.slots.items()}
        for node in self.schedule.outputs:
            place = self.places.get(node)
            memory[node] = inputs[self.slots[place]] if place is not None else self._allocate(node)
        for step in self.steps:
            self._launch(step, memory, arguments)
            self._validate(step, memory, expected)
            for item in step.free:
                del memory[item]
        if self.checks:
            self.machine.watch_error()
        results = [memory[node] for node in self.schedule.outputs]
        for number, slot in self.copies:
            self.machine.copy(inputs[slot], results[number])
            results[number] = inputs[slot]
        return results

    def _launch(self, step: _Step, memory: dict[Any, Any], arguments: Sequence[Number]) -> None:
        touched: list[Any] = []
        words = np.zeros(len(step.words), np.uint64)
        for number, word in enumerate(step.words):
            words[number] = self._word(word, memory, arguments, touched)
        if settings.debug < 2:
            self.machine.launch(self.unit, step.launch, words, touched)
            return
        time = self.machine.timed(
            lambda: self.machine.launch(self.unit, step.launch, words, touched)
        )
        print(report(step.launch, time))

    def _expected(self, inputs: Sequence[Any], arguments: Sequence[Number]) -> dict[Node, Any]:
        """What each stored value should be, by NumPy."""
        arrays = [
            self.machine.to_host(storage, node.shape, node.dtype)
            for storage, node in zip(inputs, self.program.inputs)
        ]
        return Validator(self.program, self.schedule).expected(arrays, arguments)

    def _validate(self, step: _Step, memory: dict[Any, Any], expected: dict[Node, Any]) -> None:
        for stage in step.launch.stages:
            for node in stage.kernel.stores:
                if node in expected and node in memory and stage.stores(node):
                    found = self.machine.to_host(memory[node], node.shape, node.dtype)
                    compare(stage, node, found, expected[node])

    def _allocate(self, item: Any) -> Any:
        if isinstance(item, Scratch):
            return self.machine.allocate(item.nbytes)
        assert isinstance(item, Node)
        return self.machine.allocate(prod(item.shape) * item.dtype.itemsize)

    def _word(
        self, word: Word, memory: dict[Any, Any], arguments: Sequence[Number], touched: list[Any]
    ) -> Any:
        if word.kind == "argument":
            value = 0 if word.item is None else arguments[word.item]
            if word.text.startswith("double"):
                return np.float64(value).view(np.uint64)
            return np.uint64(int(value) & (2**64 - 1))
        if word.kind == "error":
            piece = self.machine.error
        else:
            piece = memory.get(word.item)
            if piece is None:
                assert word.write or isinstance(word.item, Scratch), f"{word.item} is not made yet"
                piece = memory[word.item] = self._allocate(word.item)
        touched.append(piece)
        return np.uint64(piece.address)

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
