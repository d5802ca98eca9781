"""First and second derivatives of a sample as graph, and their check by central differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from execution import Batch, Prepare, Results, erased, read
from sampling import Array, Sample, generator

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import CPU, Device
from tinygrad_cuda.graph.gradient import backward
from tinygrad_cuda.graph.node import Node, node_made
from tinygrad_cuda.graph.ops import common

STEP = 1e-5
# Truncation is STEP**2 times the third derivative, rounding 2**-52 / STEP.
TOLERANCE = 2e-7
SMALL = 16


def variable(source: Node) -> Node:
    return node_made(
        common.variable, (source,), {"leaf": None}, source.outputs, source.device, True, None
    )


@dataclass
class Derived:
    """What was recorded of one sample: places of its inputs and which results exist.

    Attributes:
        leaves: the inputs' numbers of the differentiable operands' buffers.
        seeds: those of the cotangents of the sample's results.
        weights: those of the cotangents of the gradients.
        reached: which leaves have a gradient; the others' is zero.
        reached_twice: the same of leaves, then seeds, for the second derivative.
    """

    leaves: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    reached: list[bool] = field(default_factory=list)
    reached_twice: list[bool] = field(default_factory=list)


def record(batch: Batch, sample: Sample, order: int = 2, views: bool = True) -> Derived:
    """Adds results, gradients and second derivatives of a sample to a program.

    Args:
        batch: receives them, labelled by the sample's name and ``y``, ``g`` or ``h``.
        sample: differentiated with respect to the buffers of its floating operands.
        order: 1 for gradients alone.
        views: False to differentiate with respect to the operands instead of their buffers.
    """
    rng = generator("seeds", sample.name)
    derived = Derived()
    operands, variables = [], []
    for source in sample.sources:
        array = source.buffer if views else np.array(source.value, order="C")
        node = batch.input(array)
        if node.dtype.is_floating:
            derived.leaves.append(len(batch.inputs) - 1)
            node = variable(node)
            variables.append(node)
        operands.append(read(node, source) if views else node)
    results = batch.record(sample, operands)
    seeds = [_seed(batch, derived.seeds, node, rng, order) for node in results]
    with_history = [(y, v) for y, v in zip(results, seeds) if y.requires_grad]
    first = backward(
        [y for y, _ in with_history], [v for _, v in with_history], variables, create_graph=True,
        retain_graph=True,
    )  # fmt: skip
    derived.reached = [node in first for node in variables]
    gradients = [first[node] for node in variables if node in first]
    batch.want(f"{sample.name} y", results)
    batch.want(f"{sample.name} g", gradients)
    if order == 2:
        weights = [_seed(batch, derived.weights, node, rng, 1) for node in gradients]
        pairs = [(g, w) for g, w in zip(gradients, weights) if g.requires_grad]
        wanted = [*variables, *seeds]
        second = backward([g for g, _ in pairs], [w for _, w in pairs], wanted)
        derived.reached_twice = [node in second for node in wanted]
        batch.want(f"{sample.name} h", [second[node] for node in wanted if node in second])
    return derived


def _seed(
    batch: Batch, places: list[int], node: Node, rng: np.random.Generator, order: int
) -> Node:
    places.append(len(batch.inputs))
    seed = batch.input(np.asarray(rng.uniform(0.5, 1.5, node.shape)).astype(node.dtype.numpy))
    return variable(seed) if order == 2 else seed


def derivatives(samples: Sequence[Sample], device: Device, prepare: Prepare = erased) -> Results:
    """Gradients and second derivatives of all samples from one program."""
    batch = Batch(device, prepare)
    for sample in samples:
        record(batch, sample)
    return {label: found for label, found in batch.run().items() if not label.endswith(" y")}


class Check:
    """Central differences of one sample on the reference backend."""

    def __init__(self, sample: Sample, order: int = 2) -> None:
        self.sample = sample
        self.batch = Batch(CPU)
        self.derived = record(self.batch, sample, order)
        program = self.batch.program()
        self.call = self.batch.runner(registry.get(CPU).compile(program))
        self.arrays = self.batch.arrays
        self.order = order
        self.base = self.results(self.arrays)

    def results(self, arrays: Sequence[Array]) -> dict[str, list[Array]]:
        found = self.call(arrays)
        return {kind: found.get(f"{self.sample.name} {kind}", []) for kind in "ygh"}

    def run(self) -> None:
        """Raises AssertionError where a derivative differs from the differences."""
        self._order("y", "g", self.derived.seeds, self.derived.leaves, self.derived.reached)
        if self.order == 2:
            inputs = self.derived.leaves + self.derived.seeds
            twice = self.derived.reached_twice
            self._order("g", "h", self.derived.weights, inputs, twice)

    def _order(
        self, of: str, kind: str, seeds: list[int], inputs: list[int], reached: list[bool]
    ) -> None:
        """Compares <seed, d of / d input> along directions with the recorded products."""
        found = iter(self.base[kind])
        for place, there in zip(inputs, reached, strict=True):
            gradient = next(found) if there else np.zeros(self.arrays[place].shape)
            for what, direction in self._directions(place):
                slope = self._slope(of, seeds, place, direction)
                product = float(np.sum(gradient * direction))
                close = abs(slope - product) <= TOLERANCE * (1 + abs(slope) + abs(product)) * (
                    1 + np.sqrt(direction.size)
                )
                assert close, (
                    f"{self.sample.name}: d{of} along {what} of input {place} is {slope}, "
                    f"the recorded gradient gives {product}"
                )

    def _directions(self, place: int) -> list[tuple[str, Array]]:
        """One random direction, and every axis of a small input."""
        x = self.arrays[place]
        rng = generator("directions", self.sample.name, place)
        # What no operand reads holds NaN.
        random = np.where(np.isnan(x), 0.0, rng.uniform(-1, 1, x.shape))
        found = [("a random direction", random)]
        if 1 < x.size <= SMALL:
            for index in np.ndindex(x.shape):
                unit = np.zeros(x.shape)
                unit[index] = 1
                found.append((f"element {index}", unit))
        return found

    def _slope(self, of: str, seeds: list[int], place: int, direction: Array) -> float:
        ends = []
        for sign in (1, -1):
            moved = list(self.arrays)
            moved[place] = self.arrays[place] + sign * STEP * direction
            ends.append(self.results(moved)[of])
        total = 0.0
        for seed, up, down in zip(seeds, *ends, strict=True):
            total += float(np.sum(self.arrays[seed] * (up - down)))
        return total / (2 * STEP)

    def jacobian(self) -> None:
        """Every entry of small Jacobians: rows from the graph, columns by differences."""
        results = self.base["y"]
        leaves = [
            (number, place) for number, place in enumerate(self.derived.leaves)
            if self.derived.reached[number]
        ]  # fmt: skip
        sizes = [self.arrays[place].size for _, place in leaves] + [y.size for y in results]
        if not sizes or max(sizes) > SMALL:
            return
        rows = self._rows(results)
        for position, (_, place) in enumerate(leaves):
            for column, index in enumerate(np.ndindex(self.arrays[place].shape)):
                ends = []
                for sign in (1, -1):
                    moved = list(self.arrays)
                    moved[place] = self.arrays[place].copy()
                    moved[place][index] += sign * STEP
                    ends.append(np.concatenate([y.ravel() for y in self.results(moved)["y"]]))
                slopes = (ends[0] - ends[1]) / (2 * STEP)
                found = np.array([row[position].ravel()[column] for row in rows])
                np.testing.assert_allclose(
                    found, slopes, rtol=1e-6, atol=1e-6,
                    err_msg=f"{self.sample.name}: Jacobian, input {place}, element {index}",
                )  # fmt: skip

    def _rows(self, results: list[Array]) -> list[list[Array]]:
        rows = []
        for number, result in enumerate(results):
            for index in np.ndindex(result.shape):
                arrays = list(self.arrays)
                for seed in self.derived.seeds:
                    arrays[seed] = np.zeros(arrays[seed].shape)
                arrays[self.derived.seeds[number]][index] = 1
                rows.append(self.results(arrays)["g"])
        return rows
