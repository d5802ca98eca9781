"""A model's forward graph at several sizes of its dynamic axes, and the formulas of their numbers.

The same graph is recorded at each size; what differs between recordings is a number that follows a
dynamic axis, or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.engine.vmap_trace import Recording
from tinygrad_cuda.graph.batching import example
from tinygrad_cuda.graph.node import Node, gradient_mode, made_by, topological
from tinygrad_cuda.tensors.base import TensorBase, wrap

OP = "onnx.export"
# A number of a check's line, which no value depends on.
IGNORED = {"code", "leaf", "function"}


@dataclass(frozen=True)
class Axis:
    """A dynamic axis: its name, where it can be read, and its size in each recording."""

    name: str
    argument: int
    dim: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Formula:
    """A number that follows dynamic axes: ``factor * prod(size ** power) + offset``.

    Attributes:
        powers: pairs of an axis and its power, at least one.
    """

    factor: float
    powers: tuple[tuple[Axis, int], ...]
    offset: int = 0

    def __str__(self) -> str:
        text = "*".join(
            "*".join([axis.name] * power) if power > 0 else f"{axis.name}**{power}"
            for axis, power in self.powers
        )
        text = text if self.factor == 1 else f"{self.factor:g}*{text}"
        return text if not self.offset else f"{text}{self.offset:+d}"


Number = int | float | Formula


@dataclass(eq=False)
class Step:
    """One operation in all recordings.

    Attributes:
        nodes: the node of each recording.
        sources: the steps it reads.
        axes: the dynamic ones.
        readers: how many steps and results read it.
    """

    nodes: tuple[Node, ...]
    sources: tuple[Step, ...]
    axes: tuple[Axis, ...]
    readers: int = 0
    names: list[str] = field(default_factory=list)

    @property
    def op(self) -> str:
        return self.nodes[0].op.name

    @property
    def node(self) -> Node:
        return self.nodes[0]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(node.shape for node in self.nodes)

    def attribute(self, name: str) -> Any:
        """An attribute that is the same at all sizes.

        Raises:
            ArgumentError: it is not.
        """
        values = [node.attributes[name] for node in self.nodes]
        if any(value != values[0] for value in values):
            raise self.error(f"its {name}", values)
        return values[0]

    def number(self, of: Callable[[Node], Any], what: str) -> Number:
        """A number that may follow dynamic axes, from what it is in each recording."""
        values = [of(node) for node in self.nodes]
        if all(value == values[0] or (value != value and values[0] != values[0])
               for value in values):  # fmt: skip
            number: Number = values[0]
            return number
        formula = _fitted(values, self.axes)
        if formula is None:
            raise self.error(what, values)
        return formula

    def numbers(self, of: Callable[[Node], Sequence[int]], what: str) -> list[Number]:
        """Several of them."""
        count = len(of(self.node))
        return [self.number(lambda node, k=k: of(node)[k], what) for k in range(count)]  # type: ignore[misc]

    def dims(self) -> list[Number]:
        """The sizes of the first result."""
        return self.numbers(lambda node: node.shape, "its shape")

    def error(self, what: str, values: Sequence[Any]) -> ArgumentError:
        """What to raise where a dependence on a dynamic axis has no formula."""
        sizes = "; ".join(
            f"{value!r} at " + ", ".join(f"{axis.name}={axis.sizes[k]}" for axis in self.axes)
            for k, value in enumerate(values)
        )
        return ArgumentError(
            OP, f"{what} depends on a dynamic axis in no simple way",
            expect="a multiple of the axis' size, plus a constant",
            actual=f"{made_by(self.node)}: {sizes}",
            hint="leave the axis out of dynamic_axes, or write sizes as -1",
        )  # fmt: skip


def _fitted(values: list[Any], axes: tuple[Axis, ...]) -> Formula | None:
    """The formula of a number; the last recording, where all axes differ, has to agree."""
    first = values[0]
    if not all(isinstance(value, int | float) for value in values):
        return None
    powers = []
    for k, axis in enumerate(axes, 1):
        power = {1: 0, 2: 1, 4: 2, 0.5: -1}.get(values[k] / first if first else 1)
        if power is None or (power < 0 and isinstance(first, int)):
            return _affine(values, axes)
        if power:
            powers.append((axis, power))
    base = prod(axis.sizes[0] ** power for axis, power in powers)
    last = prod(axis.sizes[-1] ** power for axis, power in powers)
    factor = first / base
    whole = isinstance(first, int)
    if not powers or (whole and factor != int(factor)) or not np.isclose(values[-1], factor * last):
        return _affine(values, axes)
    return Formula(int(factor) if whole else factor, tuple(powers))


def _affine(values: list[Any], axes: tuple[Axis, ...]) -> Formula | None:
    """``factor * size + offset`` of a whole number that follows one axis."""
    moving = [axis for k, axis in enumerate(axes, 1) if values[k] != values[0]]
    if len(moving) != 1 or not all(isinstance(value, int) for value in values):
        return None
    (axis,) = moving
    factor, rest = divmod(values[axes.index(axis) + 1] - values[0], axis.sizes[0])
    offset = values[0] - factor * axis.sizes[0]
    if rest or factor * axis.sizes[-1] + offset != values[-1]:
        return None
    return Formula(factor, ((axis, 1),), offset)


@dataclass
class Recorded:
    """The graph in all recordings.

    Attributes:
        inputs, outputs: steps of the arguments and results, in order.
        steps: all of them, sources first.
        axes: the dynamic ones.
    """

    inputs: list[Step]
    outputs: list[Step]
    steps: list[Step]
    axes: tuple[Axis, ...]


def record(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    dynamic: dict[int, dict[int, str]],
    stored: Callable[[Node], bool],
) -> Recorded:
    """Records a call without values, at several sizes of its dynamic axes.

    Args:
        model, args, options: the call; Tensors anywhere in `args` and `options` are its inputs.
        dynamic: names of dynamic axes by the number of an input and a dimension.
        stored: whether a node is a parameter or buffer of the model.

    Raises:
        ArgumentError: the graph depends on the sizes otherwise, or on values.
    """
    given = [value for value in leaves((args, options)) if isinstance(value, TensorBase)]
    axes = _axes(given, dynamic)
    count = len(axes[0].sizes) if axes else 1
    calls = [_recorded(model, args, options, dynamic, axes, k) for k in range(count)]

    def has_value(node: Node) -> bool:
        return stored(node) or node.storage is not None

    orders = [topological(results, has_value) for _, results in calls]
    steps = _merged(orders, axes)
    by_node = {step.node: step for step in steps}
    outputs = [by_node[node] for node in calls[0][1]]
    for read in [*outputs, *(source for step in steps for source in step.sources)]:
        read.readers += 1
    inputs = [
        by_node.get(nodes[0]) or Step(nodes, (), axes)
        for nodes in zip(*(inputs for inputs, _ in calls))
    ]
    return Recorded(inputs, outputs, steps, axes)


def _axes(given: list[Any], dynamic: dict[int, dict[int, str]]) -> tuple[Axis, ...]:
    """Dynamic axes with the sizes to record: one doubled at a time, then all at three times.

    A size of 1 is recorded as 2: other operations are recorded for single rows.
    """
    first: dict[str, tuple[int, int, int]] = {}
    for argument, names in dynamic.items():
        for dim, name in names.items():
            size = max(given[argument].shape[dim], 2)
            if first.setdefault(name, (argument, dim, size))[2] != size:
                raise ArgumentError(
                    OP, f"the dynamic axis {name!r} has two sizes",
                    expect=str(first[name][2]), actual=f"{size} in input {argument}",
                )  # fmt: skip
    count = len(first)
    return tuple(
        Axis(name, argument, dim, tuple(
            size * (3 if k > count else 2 if k == position else 1) for k in range(count + 2)
        ))
        for position, (name, (argument, dim, size)) in enumerate(first.items(), 1)
    )  # fmt: skip


def _recorded(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    dynamic: dict[int, dict[int, str]],
    axes: tuple[Axis, ...],
    k: int,
) -> tuple[list[Node], list[Node]]:
    """The nodes of the inputs and of the results in recording `k`."""
    sizes = {axis.name: axis.sizes[k] for axis in axes}
    inputs: list[Node] = []
    with Recording("error", OP) as recording, gradient_mode(False):

        def placeholders() -> Iterator[Any]:
            for value in leaves((args, options)):
                if not isinstance(value, TensorBase):
                    yield value
                    continue
                shape = list(value.shape)
                for dim, name in dynamic.get(len(inputs), {}).items():
                    shape[dim] = sizes[name]
                node = example.leaf(tuple(shape), value.dtype, value.device)
                recording.examples.add(node)
                inputs.append(node)
                yield wrap(node)

        called, named = rebuilt((args, options), placeholders())
        results = leaves(model(*called, **named))
        for result in results:
            if not isinstance(result, TensorBase):
                raise ArgumentError(
                    OP, "the model returned something other than Tensors",
                    expect="a Tensor, or tuples, lists and dicts of them",
                    actual=type(result).__name__,
                )  # fmt: skip
        return inputs, [result.node for result in results]


def _merged(orders: list[list[Node]], axes: tuple[Axis, ...]) -> list[Step]:
    """The steps of all recordings, which have to be the same graph."""
    steps: list[Step] = []
    position: list[dict[Node, int]] = [{} for _ in orders]
    for at, nodes in enumerate(zip(*orders)):
        places = [
            [own[source] for source in node.sources if source in own]
            for node, own in zip(nodes, position)
        ]
        if any(node.op is not nodes[0].op for node in nodes) or places.count(places[0]) != len(
            places
        ):
            raise _other_graph(nodes, axes)
        for node, own in zip(nodes, position):
            own[node] = at
        step = Step(nodes, tuple(steps[k] for k in places[0]), axes)
        _check_attributes(step)
        steps.append(step)
    if any(len(order) != len(orders[0]) for order in orders):
        longest = max(orders, key=len)
        raise _other_graph((longest[min(map(len, orders))],), axes)
    return steps


def _check_attributes(step: Step) -> None:
    """Attributes have the same names; stored values are the same."""
    names = {name for node in step.nodes for name in node.attributes}
    for name in names - IGNORED:
        if any(name not in node.attributes for node in step.nodes):
            raise step.error(f"its {name}", [node.attributes.get(name) for node in step.nodes])
    if step.node.storage is not None and len(set(step.nodes)) > 1:
        arrays = [stored_array(node) for node in step.nodes]
        if not all(np.array_equal(arrays[0], array) for array in arrays):
            raise step.error("its value", [array.shape for array in arrays])


def _other_graph(nodes: Sequence[Node], axes: tuple[Axis, ...]) -> ArgumentError:
    return ArgumentError(
        OP, "other operations are recorded at another size of a dynamic axis",
        expect=f"the same graph at all sizes of {', '.join(axis.name for axis in axes)}",
        actual="; ".join(dict.fromkeys(made_by(node) for node in nodes)),
        hint="leave the axis out of dynamic_axes, or let no Python code depend on its size",
    )  # fmt: skip


def stored_array(node: Node) -> np.ndarray[Any, Any]:
    """The value of a node that has one."""
    array: np.ndarray[Any, Any] = registry.get(node.device).to_host(
        node.storage, node.shape, node.dtype
    )
    return array
