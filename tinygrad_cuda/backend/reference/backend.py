"""Interprets a program node by node with the NumPy reference of each row.

Half types are computed in float32 and rounded once a node; values are freed as soon as dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

from tinygrad_cuda.backend.base import NOTHING, Argument, BadIndex, Number, Program
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.cost import flops
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, indexing
from tinygrad_cuda.graph.order import topological

Array = np.ndarray[Any, Any]
HALF = ("float16", "bfloat16")


def _constant(shape: Shape, dtype: DType, value: Any) -> Array:
    return np.broadcast_to(np.asarray(value).astype(dtype.numpy), shape)


def _arange(shape: Shape, dtype: DType, start: Any, step: Any) -> Array:
    wide = np.float64 if dtype.is_floating else np.int64
    return (np.asarray(start, wide) + np.asarray(step, wide) * np.arange(shape[0])).astype(
        dtype.numpy
    )


_LEAVES: dict[str, Callable[..., Array]] = {
    "constant": _constant,
    "scalar": _constant,
    "arange": _arange,
}


class _Step:
    """One node, bound to its places in the table of values."""

    __slots__ = ("node", "place", "sources", "attributes", "call", "free", "dynamic")

    def __init__(self, node: Node, place: int, sources: tuple[int, ...]) -> None:
        self.node = node
        self.place = place
        self.sources = sources
        self.attributes = node.attributes
        self.call = _callable(node)
        self.free: tuple[int, ...] = ()
        self.dynamic = any(_has_argument(value) for value in node.attributes.values())


def _has_argument(value: Any) -> bool:
    return isinstance(value, Argument) or (
        isinstance(value, tuple) and any(isinstance(item, Argument) for item in value)
    )


def _resolve(value: Any, arguments: Sequence[Number]) -> Any:
    if isinstance(value, Argument):
        return arguments[value.position]
    if isinstance(value, tuple):
        return tuple(
            arguments[item.position] if isinstance(item, Argument) else item for item in value
        )
    return value


def _callable(node: Node) -> Callable[..., Any]:
    """The reference of a node's row; for half types with a detour over float32."""
    op = node.op
    if op.kind == "leaf":
        function = _LEAVES.get(op.name, op.numpy)
        shape, dtype = node.shape, node.dtype
        assert function is not None
        return lambda **attributes: function(shape, dtype, **attributes)
    numpy = op.numpy
    assert numpy is not None, op.name
    halves = [source.dtype.name in HALF for source in node.sources]
    if op.kind in ("movement", "identity") or not any(halves):
        return numpy
    results = tuple(dtype.numpy for _, dtype in node.outputs)

    def in_float32(*arrays: Array, **attributes: Any) -> Any:
        wide = [a.astype(np.float32) if half else a for a, half in zip(arrays, halves)]
        found = numpy(*wide, **attributes)
        if len(results) > 1:
            return tuple(part.astype(dtype) for part, dtype in zip(found, results))
        return found.astype(results[0])

    return in_float32


def evaluate(node: Node, sources: Sequence[Any]) -> Any:
    """The value of one node from those of its sources; a tuple for several results.

    Raises:
        BadIndex: the node checks positions and one is out of range.
    """
    if node.op in indexing.CHECKS:
        _check(sources[0], **node.attributes)
    with np.errstate(all="ignore"):
        return _callable(node)(*sources, **node.attributes)


def report(node: Node, microseconds: float) -> str:
    """What TGC_DEBUG=2 prints of a node: its shape, time and rates, in aligned columns."""
    moved = sum(prod(one.shape) * one.dtype.itemsize for one in (*node.sources, node))
    shape = f"{node.dtype.name}{list(node.shape)}"
    return (
        f"{node.op.name:<24} {shape:<32} {microseconds:>9.1f} us "
        f"{flops(node) / microseconds / 1e3:>8.1f} GFLOP/s {moved / microseconds / 1e3:>7.1f} GB/s"
    )


class ReferenceExecutable:
    """A program as a list of steps over a table of values."""

    def __init__(self, program: Program) -> None:
        self.program = program
        order = topological(program.outputs)
        places = {node: place for place, node in enumerate(order)}
        self.size = len(order)
        self.inputs = [
            (node.attributes["slot"], places[node]) for node in order if node.op is common.buffer
        ]
        self.steps = [
            _Step(node, places[node], tuple(places[source] for source in node.sources))
            for node in order
            if node.op is not common.buffer
        ]
        self.outputs = [places[node] for node in program.outputs]
        kept = set(self.outputs)
        last: dict[int, _Step] = {}
        for step in self.steps:
            for place in (*step.sources, step.place):
                last[place] = step
        for place, step in last.items():
            if place not in kept:
                step.free += (place,)

    def run(
        self,
        inputs: Sequence[Any],
        arguments: Sequence[Number],
        spare: Mapping[int, Any] = NOTHING,
    ) -> list[Any]:
        values: list[Any] = [None] * self.size
        timed = settings.debug >= 2
        for slot, place in self.inputs:
            values[place] = inputs[slot]
        with np.errstate(all="ignore"):
            for step in self.steps:
                attributes = step.attributes
                if step.dynamic:
                    attributes = {k: _resolve(v, arguments) for k, v in attributes.items()}
                op = step.node.op
                sources = [values[place] for place in step.sources]
                if op in indexing.CHECKS:
                    _check(sources[0], **attributes)
                start = perf_counter() if timed else 0.0
                values[step.place] = step.call(*sources, **attributes)
                if timed:
                    print(report(step.node, 1e6 * (perf_counter() - start)))
                for place in step.free:
                    values[place] = None
        taken = {id(array) for array in inputs}
        results = [_owned(values[place], taken) for place in self.outputs]
        for position, slot in self.program.overwrites.items():
            inputs[slot][...] = results[position]
            results[position] = inputs[slot]
        return results

    def describe(self) -> str:
        """One line a node, in the order of execution."""
        return "\n".join(repr(step.node) for step in self.steps)


def _owned(value: Any, taken: set[int]) -> Array:
    """A contiguous array that shares memory with none of those taken; it is then one of them."""
    array: Array = np.asarray(value)
    fresh = array.flags.owndata and array.flags.c_contiguous and array.flags.writeable
    if not fresh or id(array) in taken:
        array = np.array(array, order="C", copy=True)
    taken.add(id(array))
    return array


def _check(value: Array, what: str, code: int, limit: int | None = None) -> None:
    """What a check's row reports: positions below a limit, or numbers between 0 and 1."""
    right = (value >= 0) & ((value <= 1) if limit is None else (value < limit))
    if right.all():
        return
    position = int(np.flatnonzero(~right)[0])
    found = value.reshape(-1)[position]
    if limit is not None:
        raise BadIndex(code, position, int(found), limit)
    raise BadIndex(code, position, int(np.float64(found).view(np.int64)), 1)


class ReferenceBackend:
    """The CPU: storages are NumPy arrays."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def from_host(self, array: Array) -> Array:
        return np.array(array, order="C", copy=True)

    def to_host(self, storage: Array, shape: Shape, dtype: DType) -> Array:
        view = storage.view()
        view.flags.writeable = False
        return view

    def compile(self, program: Program) -> ReferenceExecutable:
        return ReferenceExecutable(program)

    def synchronize(self) -> None:
        """NumPy is never ahead of the program."""

    def take_error(self, wait: bool = True) -> BadIndex | None:
        """A bad index raises during the run itself."""
        return None
