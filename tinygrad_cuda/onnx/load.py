"""Reads an ONNX file as a Module, whose forward pass interprets the graph's nodes in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import IO, Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError, DataError, MissingFileError
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.onnx.library import ALIASES, BUFFERS, onnx_library
from tinygrad_cuda.onnx.operators import OPERATORS
from tinygrad_cuda.onnx.operators.call import DTYPES, OP, NodeCall, Operator, Value
from tinygrad_cuda.tensors import functions as T
from tinygrad_cuda.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]
# What programs compute of shapes: of whole numbers this is done on the host, without Tensors.
SHAPE_ARITHMETIC = {
    "Add", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Gather", "Identity",
    "Max", "Min", "Mod", "Mul", "Range", "ReduceProd", "ReduceSum", "Reshape", "Size", "Shape",
    "Slice", "Squeeze", "Sub", "Unsqueeze", "Where",
}  # fmt: skip


def load(f: str | PathLike[str] | IO[bytes]) -> ONNXModule:
    """Reads an ONNX file as a Module.

    Floating-point initializers are its parameters, others and running statistics its buffers, by
    their names; so the state dict of an exported model comes back. It trains like any Module.

    Args:
        f: a path, or a file opened for reading bytes.

    Raises:
        ArgumentError: the package onnx is not installed, or an operator has no function here.
        DataError: the file is no ONNX model.

    Example:
        >>> import io
        >>> import tinygrad_cuda as tc
        >>> model, file = tc.nn.Linear(4, 2), io.BytesIO()
        >>> tc.onnx.export(model, tc.ones(1, 4), file, dynamic_axes={"input": {0: "batch"}})
        >>> again = tc.onnx.load(io.BytesIO(file.getvalue()))
        >>> list(again.state_dict()), again(tc.ones(3, 4)).shape
        (['weight', 'bias'], Size([3, 2]))
    """
    onnx = onnx_library(OP)
    try:
        model = onnx.load_model(f)
    except FileNotFoundError:
        raise MissingFileError(
            OP,
            "there is no such file",
            expect="an ONNX file",
            actual=fspath(f),  # type: ignore[arg-type]
        ) from None
    except (onnx.checker.ValidationError, ValueError, TypeError) as error:
        raise DataError(
            OP, "the file cannot be read", expect="an ONNX model", actual=str(error)
        ) from None
    except Exception as error:  # google.protobuf.message.DecodeError, a package of its own
        if type(error).__name__ != "DecodeError":
            raise
        raise DataError(
            OP, "the file cannot be read", expect="an ONNX model", actual=str(error)
        ) from None
    return ONNXModule(model)


@dataclass(frozen=True)
class NodePlan:
    """A node as it is computed.

    Attributes:
        node: ONNX's own, for shape arithmetic on the host.
        kind, inputs, outputs: from it; an empty name is a missing operand.
        attributes: with graphs as `GraphPlan`.
    """

    node: Any
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    operator: Operator | None


@dataclass(frozen=True)
class GraphPlan:
    """A graph's nodes, in order.

    Attributes:
        constants: initializers of an inner graph.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodePlan, ...]
    constants: Mapping[str, Array]


class ONNXModule(Module):
    """The graph of an ONNX model; `load` makes it.

    Args:
        model: an `onnx.ModelProto`.

    Attributes:
        input_names, output_names: of the graph, in order.

    Raises:
        ArgumentError: an operator or a data type has no counterpart here.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._onnx = onnx_library(OP)
        if model.functions:
            model = self._onnx.inliner.inline_local_functions(model)
        versions = {opset.domain: opset.version for opset in model.opset_import}
        self.opset: int = versions.get("", versions.get("ai.onnx", 1))
        graph = model.graph
        initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._graph = _planned(self._onnx, graph, frozenset(initializers))
        self._places: dict[str, tuple[Module, str]] = {}
        self._arrays: dict[str, Array] = {}
        self._constants: dict[tuple[int, Any], tuple[Array, Tensor]] = {}
        notes = {entry.key: entry.value for entry in model.metadata_props}
        buffers = {*notes.get(BUFFERS, "").split("\n"), *_statistics(self._graph)}
        for name, tensor in initializers.items():
            self._hold(name, _array(self._onnx, tensor, name), name in buffers)
        for line in filter(None, notes.get(ALIASES, "").split("\n")):
            name, _, first = line.partition("=")
            owner, own = self._places[first]
            self._add_value(name, getattr(owner, own))
        self.input_names = list(self._graph.inputs)
        self.output_names = list(self._graph.outputs)

    def _hold(self, name: str, array: Array, buffer: bool) -> None:
        """Makes an initializer a parameter or a buffer."""
        value = T.tensor(array)
        if value.dtype.is_floating and not buffer:
            self._add_value(name, Parameter(value))
        else:
            self._add_value(name, value)
            if not value.dtype.is_floating:
                self._arrays[name] = array

    def _add_value(self, name: str, value: Tensor) -> None:
        """Registers a value under its name, whose dots are Modules inside Modules."""
        owner: Module = self
        *path, own = name.split(".")
        for part in path:
            inner = owner._modules.get(part)
            if (inner is None and hasattr(owner, part)) or not part:
                # The name of a value already, or of a method.
                owner, own = self, name.replace(".", "_")
                break
            if inner is None:
                inner = Module()
                owner.add_module(part, inner)
            owner = inner
        if hasattr(owner, own):
            own = f"{own}_"
        if isinstance(value, Parameter):
            owner.register_parameter(own, value)
        else:
            owner.register_buffer(own, value)
        self._places[name] = owner, own

    def forward(self, *inputs: Value, **named: Value) -> Any:
        """Computes the graph.

        Args:
            inputs, named: by position or by name: Tensors, lists of them for sequences.

        Returns:
            The result, or a tuple of several.
        """
        given = dict(zip(self.input_names, inputs), **named)
        if len(inputs) + len(named) != len(given) or given.keys() - set(self.input_names):
            raise ArgumentError(
                OP, "other inputs than the model has", expect=", ".join(self.input_names),
                actual=f"{len(inputs)} by position, {', '.join(named) or 'none'} by name",
            )  # fmt: skip
        values: dict[str, Value] = {
            name: getattr(owner, own) for name, (owner, own) in self._places.items()
        }
        for name in self.input_names:
            if name not in given and name not in values:
                raise ArgumentError(
                    OP, f"the input {name!r} is missing", expect=", ".join(self.input_names),
                    actual=", ".join(given) or "none",
                )  # fmt: skip
        values.update(given)
        results = self._run(self._graph, values)
        results = [self._tensor(value, values) for value in results]
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, graph: GraphPlan, values: dict[str, Value]) -> list[Value]:
        """The results of a graph, from values of all names that it may read."""
        values[""] = None
        values.update(graph.constants)
        device = next(
            (value.device for value in values.values() if isinstance(value, Tensor)),
            T.get_default_device(),
        )
        for plan in graph.nodes:
            results = self._computed(plan, values, device)
            values.update(zip(plan.outputs, results))
            values[""] = None
        return [values[name] for name in graph.outputs]

    def _computed(self, plan: NodePlan, values: dict[str, Value], device: Any) -> Sequence[Value]:
        if plan.operator is None:
            return [plan.attributes["constant"]]
        operands = [values[name] for name in plan.inputs]
        if plan.kind in SHAPE_ARITHMETIC and self._is_shape(plan, operands):
            return self._on_host(plan, operands)

        def run(graph: GraphPlan, given: Sequence[Value]) -> list[Value]:
            return self._run(graph, {**values, **dict(zip(graph.inputs, given))})

        call = NodeCall(
            plan.kind, plan.attributes, self.opset, sum(map(bool, plan.outputs)), run, device
        )
        arguments = [
            self._read(plan.inputs[k], value) if k in plan.operator.host
            else self._made(value, device)
            for k, value in enumerate(operands)
        ]  # fmt: skip
        made = plan.operator.function(call, *arguments)
        return made if isinstance(made, tuple) else (made,)

    def _is_shape(self, plan: NodePlan, operands: list[Value]) -> bool:
        """Whether whole numbers on the host are all that a node reads."""
        return all(
            value is None or (isinstance(value, np.ndarray) and value.dtype.kind in "iub")
            for value in operands
        ) and any(value is not None for value in operands)

    def _on_host(self, plan: NodePlan, operands: list[Value]) -> Sequence[Value]:
        evaluator = self._onnx.reference.ReferenceEvaluator(plan.node, opsets={"": self.opset})
        feeds = {name: value for name, value in zip(plan.inputs, operands) if name}
        return [np.asarray(value) for value in evaluator.run(None, feeds)]

    def _read(self, name: str, value: Value) -> Value:
        """An operand that is read on the host."""
        if isinstance(value, Tensor):
            array = self._arrays.get(name)
            return value.numpy() if array is None else array
        return value

    def _made(self, value: Value, device: Any) -> Value:
        """An operand as a Tensor; a constant is made one once."""
        if not isinstance(value, np.ndarray):
            return value
        cached = self._constants.get((id(value), device))
        if cached is None:
            cached = value, T.tensor(value, device=device)
            if value.size > 16:
                # Of a node Constant, which lives on: an array of a shape is another each time.
                self._constants[id(value), device] = cached
        return cached[1]

    def _tensor(self, value: Value, values: dict[str, Value]) -> Value:
        """A result of the graph."""
        if isinstance(value, list):
            return [self._tensor(part, values) for part in value]
        device = next((v.device for v in values.values() if isinstance(v, Tensor)), None)
        return T.tensor(value, device=device) if isinstance(value, np.ndarray) else value


def _planned(onnx: Any, graph: Any, initializers: frozenset[str] = frozenset()) -> GraphPlan:
    """A graph and those inside it; all operators without a function are named at once."""
    missing: dict[str, None] = {}
    plan = _graph(onnx, graph, initializers, missing)
    if missing:
        raise ArgumentError(
            OP, "operators have no function here", expect="those that docs/onnx.md lists",
            actual=", ".join(missing),
        )  # fmt: skip
    return plan


def _graph(
    onnx: Any, graph: Any, initializers: frozenset[str], missing: dict[str, None]
) -> GraphPlan:
    nodes = tuple(_node(onnx, node, missing) for node in graph.node)
    constants = {
        tensor.name: _array(onnx, tensor, tensor.name)
        for tensor in graph.initializer if tensor.name not in initializers
    }  # fmt: skip
    return GraphPlan(
        tuple(value.name for value in graph.input if value.name not in initializers),
        tuple(value.name for value in graph.output), nodes, constants,
    )  # fmt: skip


def _node(onnx: Any, node: Any, missing: dict[str, None]) -> NodePlan:
    kind = node.op_type
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        attributes[attribute.name] = _attribute(onnx, attribute, missing)
    operator = OPERATORS.get(kind)
    if node.domain not in ("", "ai.onnx"):
        operator, kind = None, f"{node.domain}.{kind}"
    if kind == "Constant":
        attributes = {"constant": _constant(attributes)}
    elif operator is None:
        missing[kind] = None
    return NodePlan(node, kind, tuple(node.input), tuple(node.output), attributes, operator)


def _attribute(onnx: Any, attribute: Any, missing: dict[str, None]) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return _array(onnx, value, attribute.name)
    if isinstance(value, onnx.GraphProto):
        return _graph(onnx, value, frozenset(), missing)
    if isinstance(value, Sequence) and value and isinstance(value[0], bytes):
        return [text.decode() for text in value]
    return value


def _constant(attributes: dict[str, Any]) -> Array:
    """The array of a node Constant, in one of its forms."""
    for name, dtype in (("value_int", np.int64), ("value_ints", np.int64),
                        ("value_float", np.float32), ("value_floats", np.float32)):  # fmt: skip
        if name in attributes:
            return np.array(attributes[name], dtype)
    if "value" not in attributes:
        raise ArgumentError(
            OP, "a constant is no array of numbers", expect="value, value_ints or value_floats",
            actual=", ".join(attributes),
        )  # fmt: skip
    array: Array = attributes["value"]
    return array


def _array(onnx: Any, tensor: Any, name: str) -> Array:
    if tensor.data_type not in DTYPES:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        raise ArgumentError(
            OP, f"Tensors have no dtype like that of {name!r}",
            expect=", ".join(dtype.name for dtype in DTYPES.values()), actual=kind.lower(),
        )  # fmt: skip
    array: Array = onnx.numpy_helper.to_array(tensor)
    return array.astype(DTYPES[tensor.data_type].numpy, copy=True)


def _statistics(graph: GraphPlan) -> set[str]:
    """Initializers that are running means and variances: nothing trains them."""
    return {
        name for node in graph.nodes if node.kind == "BatchNormalization"
        for name in node.inputs[3:5]
    }  # fmt: skip
