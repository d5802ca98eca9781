"""Records samples into programs, runs them on a backend, and finds the sample that breaks one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from sampling import Array, Sample, Source

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import CPU, Device, as_device
from tinygrad_cuda.core.dtypes import from_numpy
from tinygrad_cuda.core.errors import DeviceError
from tinygrad_cuda.graph.node import LeafOp, Node, node_made, topological
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.program import Argument, Program
from tinygrad_cuda.lowering.codegen import skeleton

Results = dict[str, list[Array]]
# Makes a program's outputs from recorded nodes.
Prepare = Callable[[Sequence[Node]], Sequence[Node]]


def erased(outputs: Sequence[Node]) -> list[Node]:
    """The graph without the nodes that only carry autograd, as the engine makes a program."""
    found: dict[Node, Node] = {}
    for node in topological(outputs):
        if node.op in (common.variable, common.detach, common.custom):
            found[node] = found[node.sources[0]]
        elif node.op is common.output and node.sources[0].op is common.custom:
            found[node] = found[node.sources[0].sources[node.attributes["index"]]]
        else:
            sources = tuple(found[source] for source in node.sources)
            unchanged = all(a is b for a, b in zip(sources, node.sources))
            found[node] = (
                node
                if unchanged
                else node_made(
                    node.op, sources, node.attributes, node.outputs, node.device, False, node.site
                )
            )
    return [found[node] for node in outputs]


class Batch:
    """A program in the making: inputs, the numbers of a run, and labelled outputs."""

    def __init__(self, device: Device = CPU, prepare: Prepare = erased) -> None:
        self.device = device
        self.prepare = prepare
        self.inputs: list[Node] = []
        self.arrays: list[Array] = []
        self.numbers: list[Any] = []
        self.outputs: list[Node] = []
        self.labels: list[tuple[str, int]] = []

    def input(self, array: Array) -> Node:
        node = common.buffer.leaf(
            array.shape, from_numpy(array.dtype), self.device, slot=len(self.inputs)
        )
        self.inputs.append(node)
        self.arrays.append(array)
        return node

    def want(self, label: str, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.labels.append((label, len(self.outputs)))
            self.outputs.append(node)

    def record(self, sample: Sample, sources: Sequence[Node]) -> tuple[Node, ...]:
        """The sample's nodes; `Argument`s are renumbered into this program's."""
        first = len(self.numbers)
        self.numbers.extend(sample.numbers)
        attributes = {name: _shift(v, first) for name, v in sample.attributes.items()}
        plain = {name: _resolve(v, sample.numbers) for name, v in sample.attributes.items()}
        if isinstance(sample.op, LeafOp) and sample.build is None:
            assert sample.leaf is not None
            return (sample.op.leaf(*sample.leaf, self.device, **attributes),)
        if sample.build is not None:
            return sample.build(*sources, **attributes)
        node = sample.op(*sources, **plain)
        if not sample.numbers:
            return (node,)
        return (
            node_made(
                node.op, node.sources, attributes, node.outputs, node.device, node.requires_grad,
                node.site,
            ),
        )  # fmt: skip

    def program(self) -> Program:
        outputs = tuple(self.prepare(self.outputs))
        return Program(self.device, outputs, tuple(self.inputs), {})

    def run(self) -> Results:
        backend = registry.get(self.device)
        return self.runner(backend.compile(self.program()))(self.arrays)

    def runner(self, executable: Any) -> Callable[[Sequence[Array]], Results]:
        """A function from the inputs' values to the labelled results."""
        backend = registry.get(self.device)

        def run(arrays: Sequence[Array]) -> Results:
            storages = [backend.from_host(array) for array in arrays]
            found = executable.run(storages, self.numbers)
            results: Results = {}
            for (label, place), storage in zip(self.labels, found, strict=True):
                node = self.outputs[place]
                value = backend.to_host(storage, node.shape, node.dtype)
                results.setdefault(label, []).append(np.array(value))
            error = backend.take_error()
            assert error is None, error
            return results

        return run


def _shift(value: Any, by: int) -> Any:
    if isinstance(value, Argument):
        return Argument(value.position + by)
    if type(value) is tuple:
        return tuple(_shift(item, by) for item in value)
    return value


def _resolve(value: Any, numbers: tuple[Any, ...]) -> Any:
    if isinstance(value, Argument):
        return numbers[value.position]
    if type(value) is tuple:
        return tuple(_resolve(item, numbers) for item in value)
    return value


def read(node: Node, source: Source) -> Node:
    """The operand: the buffer seen through its index rewrites."""
    for op, attributes in source.steps:
        node = op(node, **attributes)
    return node


def collected(samples: Sequence[Sample], device: Device, prepare: Prepare = erased) -> Batch:
    """All samples recorded into one program."""
    batch = Batch(device, prepare)
    for sample in samples:
        nodes = batch.record(sample, [read(batch.input(s.buffer), s) for s in sample.sources])
        batch.want(sample.name, nodes)
    return batch


def values(samples: Sequence[Sample], device: Device, prepare: Prepare = erased) -> Results:
    """The results of all samples from one program."""
    return collected(samples, device, prepare).run()


def located(
    run: Callable[[Sequence[Sample], Device], Results], samples: Sequence[Sample], device: Device
) -> Results:
    """Runs all samples together; where that raises, says which samples raise by themselves."""
    try:
        return run(samples, device)
    except Exception as error:
        guilty = _bisect(run, samples, device, limit=4)
        texts = "\n".join(f"{name}: {text}" for name, text in guilty)
        pytest.fail(f"{type(error).__name__}: {error}\nsamples that raise:\n{texts}", pytrace=False)


def _bisect(
    run: Callable[[Sequence[Sample], Device], Results],
    samples: Sequence[Sample],
    device: Device,
    limit: int,
) -> list[tuple[str, str]]:
    try:
        run(samples, device)
        return []
    except Exception as error:
        if len(samples) == 1:
            return [(samples[0].name, f"{type(error).__name__}: {error}"[:2000])]
    middle = len(samples) // 2
    found = _bisect(run, samples[:middle], device, limit)
    if len(found) < limit:
        found += _bisect(run, samples[middle:], device, limit - len(found))
    return found


def change_skeleton(patch: pytest.MonkeyPatch, file: str, old: str, new: str) -> None:
    """Has kernels written with a skeleton in which one text stands in place of another.

    Args:
        file: its name, such as ``contract_mma.cuh``.
    """
    before = skeleton._sections
    sections = {name: text.replace(old, new) for name, text in before(file).items()}
    assert old == new or sections != before(file)
    patch.setattr(skeleton, "_sections", lambda name: sections if name == file else before(name))


def device_or_skip(kind: str, request: pytest.FixtureRequest) -> Device:
    """A device other than the reference; skips with the reason where this machine has none."""
    if kind == "cuda":
        return as_device(request.getfixturevalue("cuda_device"))
    device = as_device(kind)
    try:
        registry.get(device)
    except DeviceError as error:
        pytest.skip(str(error))
    return device
