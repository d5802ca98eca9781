"""The cpu device: `CpuExecutable` runs the NumPy steps that backend/cpu/lowering.py makes.

`ReferenceExecutable` interprets a program node by node; tests compare the steps with it. Half
types are computed in float32 and rounded once a node; values are freed as soon as dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from tinygrad_cuda.backend.base import BadIndex, NoMemory
from tinygrad_cuda.backend.cpu.held_arrays import HeldArrays
from tinygrad_cuda.backend.cpu.lowering import ARGUMENTS, NumpyProgram
from tinygrad_cuda.backend.cpu.rows import check, has_argument, reference_of, resolved
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.core.observer import Observer, watched
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, topological
from tinygrad_cuda.graph.ops import common, indexing, numeric
from tinygrad_cuda.graph.program import NOTHING, Number, Program
from tinygrad_cuda.lowering.providers import require_provider
from tinygrad_cuda.lowering.schedule.cost import flops
from tinygrad_cuda.lowering.tuning_table import Tuned

Array = np.ndarray[Any, Any]


class _InterpreterStep:
    """One node, bound to its positions in the table of values."""

    __slots__ = ("node", "position", "sources", "attributes", "call", "free", "dynamic")

    def __init__(self, node: Node, position: int, sources: tuple[int, ...]) -> None:
        self.node = node
        self.position = position
        self.sources = sources
        self.attributes = node.attributes
        self.call = reference_of(node)
        self.free: tuple[int, ...] = ()
        self.dynamic = any(has_argument(value) for value in node.attributes.values())


def report(node: Node, microseconds: float) -> str:
    """What TGC_DEBUG=2 prints of a node: its shape, time and rates, in aligned columns."""
    moved = sum(prod(one.shape) * one.dtype.itemsize for one in (*node.sources, node))
    shape = f"{node.dtype.name}{list(node.shape)}"
    return (
        f"{node.op.name:<24} {shape:<32} {microseconds:>9.1f} us "
        f"{flops(node) / microseconds / 1e3:>8.1f} GFLOP/s {moved / microseconds / 1e3:>7.1f} GB/s"
    )


class ReferenceExecutable:
    """A program as a list of steps over a table of values: what values mean."""

    def __init__(self, program: Program) -> None:
        self.program = program
        order = topological(program.outputs)
        numbers = {node: number for number, node in enumerate(order)}
        self.size = len(order)
        self.inputs = [
            (node.attributes["slot"], numbers[node]) for node in order if node.op is common.buffer
        ]
        self.steps = [
            _InterpreterStep(node, numbers[node], tuple(numbers[source] for source in node.sources))
            for node in order
            if node.op is not common.buffer
        ]
        self.outputs = [numbers[node] for node in program.outputs]
        lasting = set(self.outputs)
        last: dict[int, _InterpreterStep] = {}
        for step in self.steps:
            for number in (*step.sources, step.position):
                last[number] = step
        for number, step in last.items():
            if number not in lasting:
                step.free += (number,)

    def run(
        self,
        inputs: Sequence[Any],
        arguments: Sequence[Number],
        spare: dict[int, Any] = NOTHING,
    ) -> list[Any]:
        values: list[Any] = [None] * self.size
        for slot, index in self.inputs:
            values[index] = inputs[slot]
        with np.errstate(all="ignore"):
            for step in self.steps:
                attributes = step.attributes
                if step.dynamic:
                    attributes = {k: resolved(v, arguments) for k, v in attributes.items()}
                op = step.node.op
                sources = [values[index] for index in step.sources]
                if op in indexing.CHECKS:
                    check(sources[0], **attributes)
                values[step.position] = step.call(*sources, **attributes)
                for index in step.free:
                    values[index] = None
        taken = {id(array) for array in inputs}
        results = [_owned(values[index], taken) for index in self.outputs]
        for position, slot in self.program.overwrites.items():
            inputs[slot][...] = results[position]
            results[position] = inputs[slot]
        return results

    def describe(self) -> str:
        """One line a node, in the order of execution."""
        return "\n".join(repr(step.node) for step in self.steps)


class CpuExecutable:
    """A program as the cpu device runs it: see backend/cpu/lowering.py."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lowered = NumpyProgram(program)

    def run(
        self,
        inputs: Sequence[Any],
        arguments: Sequence[Number],
        spare: dict[int, Any] = NOTHING,
    ) -> list[Any]:
        lowered = self.lowered
        values = lowered.initial.copy()
        values[ARGUMENTS] = arguments
        for slot, index in lowered.inputs:
            values[index] = inputs[slot]
        held: HeldArrays | None = None
        with np.errstate(all="ignore"):
            if watched.observer is not None:
                held = self._run_observed(values, inputs, watched.observer)
            elif settings.debug >= 2:
                self._run_timed(values)
            else:
                self._run(values)
        taken = {id(array) for array in inputs} | lowered.static
        results = [
            self._owned(values[index], taken, number)
            for number, index in enumerate(lowered.outputs)
        ]
        for position, slot in self.program.overwrites.items():
            inputs[slot][...] = results[position]
            results[position] = inputs[slot]
        if held is not None:
            held.end(results, self.program.outputs)
        return results

    def _run(self, values: list[Any]) -> None:
        steps = self.lowered.steps
        step = None
        try:
            for step in steps:
                if uninterrupted.arrived:
                    uninterrupted.check()  # no input is overwritten before the end
                step(values)
        except MemoryError as error:
            raise self._no_memory(0 if step is None else steps.index(step), error) from None

    def _no_memory(self, number: int, error: MemoryError) -> NoMemory:
        """The host had no room for the results of a step."""
        owners = self.lowered.owners
        owner = owners[number] if owners else None
        return NoMemory(owner or self.program.outputs[0], str(error))

    def _owned(self, value: Any, taken: set[int], number: int) -> Array:
        try:
            return _owned(value, taken)
        except MemoryError as error:
            raise NoMemory(self.program.outputs[number], str(error)) from None

    def _run_observed(
        self, values: list[Any], inputs: Sequence[Any], observer: Observer
    ) -> HeldArrays | None:
        """Reports each step that computes something, with its nodes; what it took, if asked."""
        device, lowered = self.program.device, self.lowered
        changes = observer.ran(self, ())
        held = None if changes is None else HeldArrays(lowered, values, inputs, changes)
        number = 0
        try:
            for step, nodes in zip(lowered.steps, lowered.members):
                if uninterrupted.arrived:
                    uninterrupted.check()
                start = perf_counter_ns()
                step(values)
                if nodes:
                    observer.kernel(device, nodes, start, perf_counter_ns())
                if held is not None:
                    held.after(nodes)
                number += 1
        except MemoryError as error:
            raise self._no_memory(number, error) from None
        return held

    def _run_timed(self, values: list[Any]) -> None:
        """Prints a line a step, named by its last node."""
        for step, owner in zip(self.lowered.steps, self.lowered.owners):
            start = perf_counter()
            step(values)
            if owner is not None:
                print(report(owner, 1e6 * (perf_counter() - start)))

    def describe(self) -> str:
        """One line a node, in the order of execution."""
        return "\n".join(map(repr, self.lowered.nodes))


def _owned(value: Any, taken: set[int]) -> Array:
    """A contiguous array that shares memory with none of those taken; it is then one of them."""
    array: Array = np.asarray(value)
    fresh = array.flags.owndata and array.flags.c_contiguous and array.flags.writeable
    if not fresh or id(array) in taken:
        copy = np.empty(array.shape, array.dtype)
        numeric.copy_into(copy, array)
        array = copy
    taken.add(id(array))
    return array


class CpuBackend:
    """The CPU: storages are NumPy arrays."""

    target = None

    def __init__(self, device: Device) -> None:
        self.device = device

    def from_host(self, array: Array) -> Array:
        return np.array(array, order="C", copy=True)

    def to_host(self, storage: Array, shape: Shape, dtype: DType) -> Array:
        view = storage.view()
        view.flags.writeable = False
        return view

    def compile(self, program: Program) -> CpuExecutable:
        if settings.provider:
            require_provider(program.outputs, self.device.kind, ())
        return CpuExecutable(program)

    def synchronize(self) -> None:
        """NumPy is never ahead of the program."""

    def tune(self, mode: str) -> None:
        """NumPy has no kernels to choose from."""

    def tuned(self) -> tuple[Tuned, ...]:
        """No choices."""
        return ()

    def take_error(self, wait: bool = True) -> BadIndex | None:
        """A bad index raises during the run itself."""
        return None
