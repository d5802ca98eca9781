"""TGC_VALIDATE=1: what each kernel stores against NumPy.

The first that differs is an error that names kernel, node and line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tinygrad_cuda.backend.base import BadIndex
from tinygrad_cuda.backend.cpu.backend import ReferenceExecutable
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.graph.node import Node, origin_of
from tinygrad_cuda.graph.program import Number, Program
from tinygrad_cuda.lowering.codegen.skeleton import Stage
from tinygrad_cuda.lowering.schedule.kernel_dag import Schedule

Array = np.ndarray[Any, Any]

# Of the largest magnitude in the value: the order of a sum is free.
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
# What is near zero but for rounding, or is divided by such a value, differs by more. By how much is
# seen from NumPy itself, each result rounded at random (Parker, Monte Carlo Arithmetic, 1997): by
# ten times the largest change of a few runs.
ROUNDING = {"float64": 2.0**-51, "float32": 2.0**-22, "float16": 2.0**-9, "bfloat16": 2.0**-6}
ROUNDED = ("elementwise", "reduction", "contraction", "kernel")
RUNS, MARGIN = 3, 10.0  # runs rounded at random; times their largest change


class Validator:
    """The reference values of all that one run of a program stores.

    Args:
        program, schedule: what is run.
        inputs, arguments: what it is given.

    Attributes:
        expected: values by node; none where a bad index ends the program.
    """

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        inputs: list[Array],
        arguments: Sequence[Number],
    ) -> None:
        self.program, self.inputs, self.arguments = program, inputs, arguments
        nodes = [node for node in schedule.stored if len(node.outputs) == 1]
        try:
            self.expected = dict(zip(nodes, self._reference(nodes).run(inputs, arguments)))
        except BadIndex:
            self.expected = {}

    def _reference(self, nodes: list[Node]) -> ReferenceExecutable:
        program = self.program
        wanted = Program(CPU, tuple(nodes), program.inputs, {})
        return ReferenceExecutable(wanted)

    def compare(self, stage: Stage, node: Node, actual: Array) -> None:
        """Raises where a stored value is not what NumPy says.

        Raises:
            TgcError: names the kernel, the node, the element and the user's line.
        """
        expected, actual = _parts(self.expected[node]), _parts(actual)
        tolerance = TOLERANCE.get(node.dtype.to_real().name, 0.0)
        bound = tolerance * _largest(expected)
        wrong = _wrong(actual, expected, bound)
        if wrong.any() and tolerance:
            bound = max(bound, MARGIN * self._change(node))
            wrong = _wrong(actual, expected, bound)
        if wrong.any():
            raise _error(stage, node, actual, expected, wrong, bound)

    def _change(self, node: Node) -> float:
        """By how much NumPy's value changes where each step rounds otherwise."""
        expected, largest = _parts(self.expected[node]).astype(np.float64), 0.0
        reference, rng = self._reference([node]), np.random.default_rng(0)
        for step in reference.steps:
            if step.node.op.kind in ROUNDED:
                step.call = partial(_rounded, rng, step.call)
        for _ in range(RUNS):
            try:
                (other,) = reference.run(self.inputs, self.arguments)
            except BadIndex:  # an index that is computed
                continue
            with np.errstate(invalid="ignore"):
                largest = max(largest, _largest(_parts(other).astype(np.float64) - expected))
        return largest


def _rounded(
    rng: np.random.Generator, call: Callable[..., Any], *sources: Any, **attributes: Any
) -> Any:
    """What a step gives, its last bits changed."""
    result = call(*sources, **attributes)
    if isinstance(result, tuple):
        return tuple(_noisy(part, rng) for part in result)
    return _noisy(np.asarray(result), rng)


def _noisy(values: Array, rng: np.random.Generator) -> Array:
    if values.dtype.kind == "c":
        return np.asarray(_noisy(values.real, rng) + 1j * _noisy(values.imag, rng), values.dtype)
    size = ROUNDING.get(values.dtype.name)
    if size is None:
        return values
    factor = 1.0 + size * rng.standard_normal(values.shape)
    return np.asarray(values.astype(np.float64) * factor).astype(values.dtype)


def _parts(values: Array) -> Array:
    """Complex numbers as pairs of their parts, one more axis; others as they are."""
    return np.stack((values.real, values.imag), -1) if values.dtype.kind == "c" else values


def _largest(values: Array) -> float:
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    return float(finite.max()) if finite.size else 0.0


def _wrong(actual: Array, expected: Array, bound: float) -> Array:
    """Where two values differ by more than a bound."""
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong: Array = ~((a == b) | (np.abs(a - b) <= bound) | (np.isnan(a) & np.isnan(b)))
    return wrong


def _error(
    stage: Stage, node: Node, actual: Array, expected: Array, wrong: Array, bound: float
) -> TgcError:
    where = tuple(int(axis_index) for axis_index in np.argwhere(wrong)[0])
    return TgcError(
        "validate",
        f"kernel '{stage.name}' stores another {origin_of(node).op.name} than NumPy",
        expect=f"{expected[where]} at {where} of {node.shape} {node.dtype.name}",
        actual=f"{actual[where]}; {int(wrong.sum())} of {wrong.size} elements differ by more than "
        f"{bound:.3g}",
        site=node.site,
        hint="TGC_DEBUG=4 prints the kernel",
    )
