"""What exporters of single operations write to: the nodes, constants and sizes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType, bool_
from tinygrad_cuda.core.errors import DTypeError
from tinygrad_cuda.onnx.recording import Axis, Formula, Number, Recorded, Step

INT64_MAX = 2**63 - 1  # negative, the end of a Slice that goes back to the first element


class Writer:
    """An ONNX graph that grows.

    Args:
        helper: the module `onnx.helper`.
        recorded: the graph that is exported.
        input_names: of its inputs.
        opset: the version of the ONNX operators.

    Attributes:
        nodes: the ONNX nodes, in order.
    """

    def __init__(
        self, helper: Any, recorded: Recorded, input_names: Sequence[str], opset: int
    ) -> None:
        self.helper = helper
        self.recorded = recorded
        self.opset = opset
        self.nodes: list[Any] = []
        self._inputs = list(input_names)
        self._taken = set(input_names)
        self._constants: dict[Any, str] = {}
        self._sizes: dict[Any, str] = {}

    def inner(self) -> Writer:
        """A writer of the body of a node, with names that nothing outside has."""
        inner = Writer(self.helper, self.recorded, self._inputs, self.opset)
        inner._taken = self._taken
        return inner

    def name(self, wanted: str) -> str:
        """A name that no value has yet."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name

    def reserve(self, names: Iterable[str]) -> None:
        """Takes names that are given."""
        self._taken.update(names)

    def result(self, name: str, value: str) -> None:
        """Gives a value the name of a result of the graph."""
        self.nodes.append(self.helper.make_node("Identity", [value], [name], name=name))

    def needed(self, results: Sequence[str]) -> tuple[list[Any], set[str]]:
        """The nodes on which results depend, and the names that they read."""
        read, nodes = set(results), []
        for node in reversed(self.nodes):
            if read.isdisjoint(node.output):
                continue
            nodes.append(node)
            read.update(node.input)
            for attribute in node.attribute:
                read.update(name for inner in attribute.g.node for name in inner.input)
        return nodes[::-1], read

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Writes a node with one result, and gives its name."""
        return self.add_many(kind, inputs, 1, **attributes)[0]

    def add_many(
        self, kind: str, inputs: Iterable[str], results: int, **attributes: Any
    ) -> list[str]:
        """Writes a node with several results."""
        names = [self.name(kind.lower()) for _ in range(results)]
        self.nodes.append(
            self.helper.make_node(kind, list(inputs), names, name=names[0], **attributes)
        )
        return names

    def constant(self, value: Any, dtype: DType | np.dtype[Any] | type | None = None) -> str:
        """A node of the type Constant; equal ones are one."""
        numpy = dtype.numpy if isinstance(dtype, DType) else dtype
        array = np.ascontiguousarray(np.asarray(value, numpy)).reshape(np.shape(value))
        key = (array.tobytes(), array.dtype.str, array.dtype.name, array.shape)
        if key not in self._constants:
            tensor = self.tensor("value", array)
            self._constants[key] = self.add("Constant", value=tensor)
        return self._constants[key]

    def tensor(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        """An ONNX tensor of a NumPy array."""
        kind = self.kind(array.dtype)
        return self.helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)

    def kind(self, dtype: DType | np.dtype[Any]) -> int:
        """ONNX's number of a dtype."""
        numpy = dtype.numpy if isinstance(dtype, DType) else dtype
        if numpy.kind == "c":
            raise DTypeError(
                "onnx.export", "complex numbers are not exported", expect="a real dtype",
                actual=numpy.name, hint="tc.view_as_real(x) gives pairs of real numbers",
            )  # fmt: skip
        if numpy.name == "bfloat16":
            return 16  # onnx.TensorProto.BFLOAT16
        kind: int = self.helper.np_dtype_to_tensor_dtype(numpy)
        return kind

    def ints(self, numbers: Sequence[Number]) -> str:
        """A vector of whole numbers, some of which may follow dynamic axes."""
        if not any(isinstance(number, Formula) for number in numbers):
            return self.constant(np.array(numbers, np.int64))
        parts: list[str] = []
        fixed: list[Number] = []
        for number in numbers:
            if not isinstance(number, Formula):
                fixed.append(number)
                continue
            if fixed:
                parts.append(self.constant(np.array(fixed, np.int64)))
                fixed = []
            parts.append(self._size(number))
        if fixed:
            parts.append(self.constant(np.array(fixed, np.int64)))
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=0)

    def target(self, dims: Sequence[Number]) -> str:
        """The shape of a Reshape: one size that follows a dynamic axis is left to the runtime."""
        moving = [k for k, number in enumerate(dims) if isinstance(number, Formula)]
        rest = [int(number) for number in dims if not isinstance(number, Formula)]
        if len(moving) == 1 and all(rest):
            return self.constant(np.array(
                [-1 if k == moving[0] else number for k, number in enumerate(dims)], np.int64
            ))  # fmt: skip
        return self.ints(dims)

    def number(self, value: Number, dtype: DType) -> str:
        """A 0-d number."""
        if not isinstance(value, Formula):
            return self.constant(value, dtype)
        if dtype.is_floating:
            size = self._size(Formula(1, value.powers), floating=True)
            size = self.add("Mul", size, self.constant(value.factor, np.float64))
            size = self.add("Add", size, self.constant(value.offset, np.float64))
            size = self.add("Cast", size, to=self.kind(dtype))
        else:
            size = self.add("Cast", self._size(value), to=self.kind(dtype))
        return self.add("Squeeze", size, self.constant([0], np.int64))

    def _axis(self, axis: Axis) -> str:
        if axis.name not in self._sizes:
            name = self._inputs[axis.argument]
            self._sizes[axis.name] = self.add("Shape", name, start=axis.dim, end=axis.dim + 1)
        return self._sizes[axis.name]

    def _size(self, number: Formula, floating: bool = False) -> str:
        """A vector of one number; in float64 where powers may be negative."""
        key = (number.factor, number.powers, number.offset, floating)
        if key in self._sizes:
            return self._sizes[key]
        value = ""
        for axis, power in number.powers:
            size = self._axis(axis)
            if floating:
                size = self.add("Cast", size, to=self.kind(np.dtype(np.float64)))
            if power < 0:
                size = self.add("Reciprocal", size)
            for _ in range(abs(power)):
                value = self.add("Mul", value, size) if value else size
        if number.factor != 1:
            value = self.add("Mul", value, self.constant([int(number.factor)], np.int64))
        if number.offset:
            value = self.add("Add", value, self.constant([number.offset], np.int64))
        self._sizes[key] = value
        return value

    # Operands -----------------------------------------------------------------------------------

    def value(self, step: Step) -> str:
        """The name of a step's first result; a constant is written when it is asked for."""
        if not step.names:
            step.names = [self.add("Expand", self.operand(step), self.ints(step.dims()))]
        return step.names[0]

    def operands(self, step: Step) -> list[str]:
        """Operands of an elementwise operation: ONNX broadcasts, so expansions are left out."""
        stripped = [_unexpanded(source) for source in step.sources]
        shapes = step.shapes
        if not _fits([small.shapes for small in stripped], shapes):
            # All are expanded: one of them in fact, the others by ONNX.
            return [self.value(step.sources[0]), *map(self.operand, stripped[1:])]
        return [self.operand(small) for small in stripped]

    def operand(self, step: Step) -> str:
        """A value that may be broadcast: a constant is a 0-d number."""
        if step.op in ("constant", "scalar") and not step.names:
            return self.number(
                step.number(lambda node: node.attributes["value"], "its value"), step.node.dtype
            )
        return self.value(step)


def _unexpanded(step: Step) -> Step:
    """What an operand was before it was expanded, without leading axes of size 1."""
    if step.op != "expand":
        return step
    (source,) = step.sources
    if source.op == "reshape" and len(source.sources[0].shapes[0]) < len(source.shapes[0]):
        (small,) = source.sources
        if all(
            large[len(large) - len(own) :] == own and prod(large) == prod(own)
            for large, own in zip(source.shapes, small.shapes)
        ):
            return small
    return source


def _fits(
    small: list[tuple[tuple[int, ...], ...]], full: tuple[tuple[int, ...], ...]
) -> bool:  # fmt: skip
    """Whether shapes broadcast to the full shape in each recording."""
    return all(
        np.broadcast_shapes(*(shapes[k] for shapes in small)) == shape
        for k, shape in enumerate(full)
    )


def is_zero(step: Step) -> bool:
    """Whether a step is the constant 0."""
    return step.op == "constant" and step.attribute("value") == 0 and step.node.dtype is not bool_
