"""Writes a model's forward graph as an ONNX file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import IO, Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.trees import leaves
from tinygrad_cuda.graph.node import Node, made_by
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.onnx.exporters import EXPORTERS
from tinygrad_cuda.onnx.library import ALIASES, BUFFERS, onnx_library
from tinygrad_cuda.onnx.recording import OP, Number, Recorded, Step, record, stored_array
from tinygrad_cuda.onnx.writer import Writer
from tinygrad_cuda.tensors.base import TensorBase

OLDEST, NEWEST = 18, 23  # reductions take their axes as an input from 18 on
EXTERNAL = 2**31 - 2**20  # bytes: beyond, protobuf wants the data beside the file
EXTERNAL_VALUE = 1024  # bytes of a weight that goes there with them


class _Exporting(threading.local):
    on = False


_exporting = _Exporting()


def is_in_onnx_export() -> bool:
    """Whether this thread is recording a model for `export`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.onnx.is_in_onnx_export()
        False
    """
    return _exporting.on


def export(
    model: Module | Callable[..., Any],
    args: Any,
    f: str | PathLike[str] | IO[bytes],
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int = 20,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    do_constant_folding: bool = True,
    external_data: bool | None = None,
    verbose: bool | None = None,
    dynamo: bool | None = None,
) -> None:
    """Writes the forward graph of a model, as it is in `eval()`, to an ONNX file.

    The model is recorded, not run. Parameters and buffers are initializers with the names of the
    state dict; what the graph does not read is left out. With dynamic axes it is recorded at
    several sizes: numbers in the graph become formulas of the sizes, and what follows them
    otherwise is an error.

    Args:
        model: a Module, or a function of Tensors.
        args: its argument or a tuple of them; Tensors give shapes and dtypes, also inside lists
            and dicts, and are the inputs in that order.
        f: a path, or a file opened for writing bytes.
        kwargs: further arguments by name.
        input_names, output_names: of all inputs and results, in order; else ``input``, or
            ``input_0`` and so on.
        opset_version: of the ONNX operators, 18 to 23.
        dynamic_axes: for an input's name the dimensions of any size, ``{0: "batch"}`` or ``[0]``;
            dimensions of one name have one size. Those of a result follow from the inputs'; its
            name is accepted.
        dynamic_shapes: the same under the newer name, or in the order of the inputs.
        export_params: only True; weights are part of the file.
        keep_initializers_as_inputs: only False; initializers are no inputs.
        external_data: whether weights lie in a file beside it; else where they must, above 2 GB.
        do_constant_folding, verbose, dynamo: accepted for PyTorch's sake; without effect.

    Raises:
        ArgumentError: the package onnx is not installed; an option asks for another kind of file;
            an operation has no counterpart in ONNX; the graph depends on values, or on a dynamic
            axis in no simple way. No file is written.

    Example:
        >>> import io
        >>> import tinygrad_cuda as tc
        >>> model = tc.nn.Sequential(tc.nn.Linear(4, 2), tc.nn.ReLU())
        >>> file = io.BytesIO()
        >>> tc.onnx.export(model, tc.ones(1, 4), file, dynamic_axes={"input": {0: "batch"}})
        >>> tc.onnx.load(io.BytesIO(file.getvalue()))(tc.ones(3, 4)).shape
        Size([3, 2])
    """
    onnx = onnx_library(OP)
    if not OLDEST <= opset_version <= NEWEST:
        raise ArgumentError(
            OP, "there is no export to this opset", expect=f"{OLDEST} to {NEWEST}",
            actual=str(opset_version),
        )  # fmt: skip
    _check_weights(export_params, keep_initializers_as_inputs)
    args = args if isinstance(args, tuple) else (args,)
    options = dict(kwargs or {})
    given = [value for value in leaves((args, options)) if isinstance(value, TensorBase)]
    inputs = _names("input", input_names, len(given))
    axes = _named_axes(dynamic_axes or dynamic_shapes or {}, inputs, output_names or ())
    dynamic = _dynamic(inputs, given, axes)
    state = _NamedState(model)
    with _evaluating(model):
        recorded = record(model, args, options, dynamic, state.has)
    outputs = _names("output", output_names, len(recorded.outputs))
    written = _model(onnx, recorded, state, inputs, outputs, opset_version)
    onnx.checker.check_model(written, full_check=True)
    big = written.ByteSize() > EXTERNAL if external_data is None else external_data
    least = 0 if external_data else EXTERNAL_VALUE
    onnx.save_model(written, f, save_as_external_data=big, size_threshold=least)


class _NamedState:
    """The names of a model's parameters and buffers.

    Attributes:
        names: the first name of each node.
        aliases: further names, with the first one.
        buffers: the names that are no parameters.
    """

    def __init__(self, model: Any) -> None:
        self.names: dict[Node, str] = {}
        self.aliases: dict[str, str] = {}
        self.buffers: list[str] = []
        self._by_storage: dict[int, Node] = {}
        if not isinstance(model, Module):
            return
        for name, tensor in model.named_parameters(remove_duplicate=False):
            self._take(name, tensor.realized())
        persistent = model.state_dict()
        for name, buffer in model.named_buffers(remove_duplicate=False):
            if name not in persistent:
                continue  # a table that the model computes: a constant of the graph
            self._take(name, buffer.realized())
            self.buffers.append(name)

    def _take(self, name: str, node: Node) -> None:
        first = self.name_of(node)
        if first is not None:
            self.aliases[name] = first
            return
        self.names[node] = name
        self._by_storage[id(node.storage)] = node

    def name_of(self, node: Node) -> str | None:
        """The name of a node, of another one that shares its storage, or None."""
        name = self.names.get(node)
        if name is None and node.storage is not None:
            same = self._by_storage.get(id(node.storage))
            if same is not None and same.outputs == node.outputs:
                return self.names[same]
        return name

    def has(self, node: Node) -> bool:
        """Whether a node is a parameter or buffer."""
        return self.name_of(node) is not None


def _names(stem: str, given: Sequence[str] | None, count: int) -> list[str]:
    """Names of inputs or results."""
    if given is None:
        return [stem] if count == 1 else [f"{stem}_{k}" for k in range(count)]
    if len(given) != count or len(set(given)) != count:
        raise ArgumentError(
            OP, f"{stem}_names do not fit", expect=f"{count} different names", actual=str(given)
        )
    return list(given)


def _check_weights(stored: bool, as_inputs: bool) -> None:
    if not stored or as_inputs:
        raise ArgumentError(
            OP, "weights are initializers of the file, and no inputs",
            expect="export_params=True, keep_initializers_as_inputs=False",
            actual=f"{bool(stored)}, {bool(as_inputs)}",
        )  # fmt: skip


def _named_axes(axes: Any, inputs: list[str], results: Sequence[str]) -> dict[str, Any]:
    """Dynamic axes by names of inputs; those of results follow."""
    named = axes if isinstance(axes, Mapping) else dict(zip(inputs, axes))
    if len(axes) > len(inputs) and named is not axes:
        raise ArgumentError(
            OP, "dynamic_shapes has more entries than there are inputs",
            expect=f"at most {len(inputs)}", actual=str(len(axes)),
        )  # fmt: skip
    return {name: dims for name, dims in named.items() if name not in results}


def _dynamic(
    inputs: list[str], given: list[Any], axes: Mapping[str, Any]
) -> dict[int, dict[int, str]]:
    """Dynamic axes by the number of their input."""
    dynamic: dict[int, dict[int, str]] = {}
    for name, dims in axes.items():
        if name not in inputs or dims is None:
            if name in inputs:
                continue
            raise ArgumentError(
                OP, "dynamic_axes name no input", expect=", ".join(inputs), actual=repr(name),
                hint="the sizes of results follow from those of the inputs",
            )  # fmt: skip
        position = inputs.index(name)
        pairs = dims if isinstance(dims, Mapping) else {dim: f"{name}_{dim}" for dim in dims}
        rank = len(given[position].shape)
        for dim in pairs:
            if not -rank <= dim < rank:
                raise ArgumentError(
                    OP, f"input {name!r} has no dimension {dim}", expect=f"-{rank} to {rank - 1}",
                    actual=str(dim),
                )  # fmt: skip
        dynamic[position] = {dim % rank: str(axis) for dim, axis in pairs.items()}
    return dynamic


@contextmanager
def _evaluating(model: Any) -> Any:
    """The model in `eval()`, while a thread says that it exports."""
    modules = list(model.modules()) if isinstance(model, Module) else []
    training = [module for module in modules if module.training]
    _exporting.on = True
    try:
        for module in training:
            module.training = False
        yield
    finally:
        _exporting.on = False
        for module in training:
            module.training = True


def _model(
    onnx: Any, recorded: Recorded, state: _NamedState, inputs: list[str], outputs: list[str],
    opset: int,
) -> Any:  # fmt: skip
    """The ONNX model."""
    helper = onnx.helper
    writer = Writer(helper, recorded, [*inputs, *outputs], opset)
    writer.reserve({*state.names.values()})
    for step, name in zip(recorded.inputs, inputs):
        step.names = [name]
    for step in recorded.steps:
        if not step.names:
            step.names = _written(writer, step, state)
    for step, name in zip(recorded.outputs, outputs):
        writer.result(name, writer.value(step))
    nodes, read = writer.needed(outputs)
    by_name = {name: step for step in recorded.steps for name in step.names}
    initializers = [
        writer.tensor(name, stored_array(by_name[name].node))
        for name in dict.fromkeys(state.names.values())
        if name in read and name in by_name
    ]
    graph = helper.make_graph(
        nodes, "tinygrad_cuda",
        [_described(writer, name, step) for name, step in zip(inputs, recorded.inputs)],
        [_described(writer, name, step) for name, step in zip(outputs, recorded.outputs)],
        initializers,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(
        graph, producer_name="tinygrad_cuda", opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets),
    )  # fmt: skip
    names = {tensor.name for tensor in initializers}
    helper.set_model_props(model, {
        BUFFERS: "\n".join(name for name in state.buffers if name in names),
        ALIASES: "\n".join(f"{k}={v}" for k, v in state.aliases.items() if v in names),
    })  # fmt: skip
    return model


def _written(writer: Writer, step: Step, state: _NamedState) -> list[str]:
    """The names of a step's results."""
    node = step.node
    if (name := state.name_of(node)) is not None:
        return [name]
    if node.storage is not None:
        return [writer.constant(stored_array(node))]
    exporter = EXPORTERS.get(step.op)
    if exporter is None:
        raise ArgumentError(
            OP, f"{step.op} has no counterpart in ONNX", expect="operations that ONNX has",
            actual=made_by(node),
        )  # fmt: skip
    return exporter(writer, step)


def _described(writer: Writer, name: str, step: Step) -> Any:
    """An input or a result with its dtype and shape; a size that follows an axis is a name."""
    dims: Iterable[Number] = step.dims()
    shape = [dim if isinstance(dim, int) else str(dim) for dim in dims]
    return writer.helper.make_tensor_value_info(name, writer.kind(step.node.dtype), shape)
