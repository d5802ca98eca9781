"""tc.summary: the modules of a model with shapes, parameters, FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any
from weakref import WeakSet

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType, float32
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.observer import scopes
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.core.trees import leaves
from tinygrad_cuda.engine.cell import pending_nodes
from tinygrad_cuda.graph.node import Node, gradient_mode, topological
from tinygrad_cuda.lowering.schedule.cost import flops
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import get_default_device, zeros
from tinygrad_cuda.utils.drawing import record_modules
from tinygrad_cuda.utils.plans import noting_plans
from tinygrad_cuda.utils.profiling.work import scope_of


def summary(
    model: Module,
    input_data: Any = None,
    *,
    input_size: Sequence[Any] | None = None,
    dtypes: Sequence[DType] | None = None,
    depth: int | None = None,
) -> ModelSummary:
    """What the modules of a model give, hold and cost in one forward pass; nothing is computed.

    The pass is recorded in evaluation mode and without gradients, and dropped; only values at
    which it looks itself, as by ``item()``, are computed. FLOPs are those of the model of cost, a
    multiplication and an addition counting two. Bytes are what a module reads and writes at least:
    its inputs, parameters and outputs.

    Args:
        model: the model.
        input_data: a Tensor, a tuple or list of arguments, or a dict of arguments by name.
        input_size: instead of it the shape of the input, or a list of the shapes of several.
        dtypes: of those inputs; float32 if left out.
        depth: how many levels of modules below the model are shown; all if left out.

    Raises:
        ArgumentError: neither or both of input_data and input_size are given.

    Example:
        >>> import tinygrad_cuda as tc
        >>> model = tc.nn.Sequential(tc.nn.Linear(4, 3), tc.nn.ReLU()).to("cpu")
        >>> result = tc.summary(model, input_size=(2, 4))
        >>> [(row.path, row.output_shapes[0], row.parameters) for row in result.rows]
        [('Sequential', (2, 3), 15), ('Sequential.0', (2, 3), 15), ('Sequential.1', (2, 3), 0)]
        >>> result.total_flops > 0
        True
    """
    if (input_data is None) == (input_size is None):
        raise ArgumentError(
            "summary", "it takes an input or its size", expect="one of input_data and input_size",
            actual="neither" if input_data is None else "both",
            hint="tc.summary(model, input_size=(32, 1, 28, 28))",
        )  # fmt: skip
    if input_size is not None:
        input_data = _made(model, input_size, dtypes)
    named = input_data if isinstance(input_data, dict) else {}
    inputs = () if named else input_data
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    calls = _Calls(model)
    with calls.watching(), _evaluating(model), gradient_mode(False), record_modules():
        result = model(*inputs, **named)
    calls.count(result, [*inputs, *named.values()])
    return ModelSummary(model, calls.rows, (inputs, named), depth)


class ModuleRow:
    """One module.

    Attributes:
        path: the model's class and the names of attributes, such as ``Net.body.0``.
        kind: its class.
        depth: 0 of the model.
        output_shapes: of the Tensors that its last call gave.
        calls: how often it was called.
        parameters, trainable: how many numbers, with those of the modules inside.
        flops: with those of the modules inside.
        nbytes: of its inputs, parameters and outputs.
        output_bytes: of its outputs.
    """

    def __init__(self, path: str, module: Module, depth: int) -> None:
        self.path, self.kind, self.depth = path, type(module).__name__, depth
        self.output_shapes: list[Shape] = []
        self.calls = self.flops = self.nbytes = self.output_bytes = 0
        self.module = module

    @property
    def parameters(self) -> int:
        """How many numbers its parameters are."""
        return _elements(self.module.parameters())

    @property
    def trainable(self) -> int:
        """How many of them require grad."""
        return _elements(p for p in self.module.parameters() if p.requires_grad)


class ModelSummary:
    """The modules of a model; its text is a table.

    Attributes:
        rows: the modules in the order of their first calls.
        total_parameters, trainable_parameters: of the model, called or not.
        total_flops: of one forward pass.
        input_bytes, parameter_bytes: of the inputs and of all parameters.
        output_bytes: that modules without modules inside give, together.
    """

    def __init__(
        self, model: Module, rows: list[ModuleRow], inputs: Any, depth: int | None
    ) -> None:
        self.rows, self.depth = rows, depth
        self.total_parameters = _elements(model.parameters())
        self.trainable_parameters = _elements(p for p in model.parameters() if p.requires_grad)
        self.total_flops = rows[0].flops
        self.input_bytes = sum(map(_nbytes, _tensors(inputs)))
        self.parameter_bytes = sum(map(_nbytes, model.parameters()))
        outer = {row.path.rpartition(".")[0] for row in rows}
        self.output_bytes = sum(row.output_bytes for row in rows if row.path not in outer)

    def __str__(self) -> str:
        shown = [row for row in self.rows if self.depth is None or row.depth <= self.depth]
        table: list[tuple[str, ...]] = [("module", "output shape", "parameters", "FLOPs", "bytes")]
        for row in shown:
            name = f"{'  ' * row.depth}{row.path.split('.')[-1]}"
            name += f" ({row.kind})" if row.depth else ""
            name += f" x{row.calls}" if row.calls > 1 else ""
            shapes = ", ".join(map(str, row.output_shapes))
            numbers = (f"{n:,}" for n in (row.parameters, row.flops, row.nbytes))
            table.append((name, shapes, *numbers))
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = [
            "  ".join(
                cell.rjust(width) if number > 1 else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(line, widths))
            ).rstrip()
            for line in table
        ]
        rule = "-" * max(map(len, lines))
        fixed = self.total_parameters - self.trainable_parameters
        totals = (
            f"parameters: {self.total_parameters:,} ({self.trainable_parameters:,} trainable, "
            f"{fixed:,} not), {self.parameter_bytes:,} bytes",
            f"forward pass: {self.total_flops:,} FLOPs, inputs {self.input_bytes:,} bytes, "
            f"outputs of layers {self.output_bytes:,} bytes",
        )
        return "\n".join([lines[0], rule, *lines[1:], rule, *totals])


class _Calls:
    """The calls of a forward pass, by the path of the module."""

    def __init__(self, model: Module) -> None:
        self.model = model
        self.by_path: dict[str, ModuleRow] = {}
        self._open = 0
        # What waited for a value before the pass: a look in it computes that as well.
        self._before: set[Node] = set()
        self._counted: WeakSet[Node] = WeakSet()

    @property
    def rows(self) -> list[ModuleRow]:
        """In the order of first calls."""
        return list(self.by_path.values())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on all modules, inside a `with` block."""
        handles = []
        try:
            for module in self.model.modules():
                handles.append(module.register_forward_pre_hook(self._enter))
                handles.append(module.register_forward_hook(self._leave))
            self._before.update(pending_nodes())
            with noting_plans(self._note):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: Module, inputs: Any) -> None:
        path = self._path()
        row = self.by_path.setdefault(path, ModuleRow(path, module, self._open))
        row.calls += 1
        row.nbytes += sum(map(_nbytes, _tensors(inputs)))
        self._open += 1

    def _leave(self, module: Module, inputs: Any, output: Any) -> None:
        self._open -= 1
        row, outputs = self.by_path[self._path()], _tensors(output)
        row.output_shapes = [tuple(tensor.shape) for tensor in outputs]
        row.output_bytes += sum(map(_nbytes, outputs))
        row.nbytes += sum(map(_nbytes, (*outputs, *module.parameters())))

    def _note(self, device: Device, wanted: list[Node]) -> None:
        """Counts what is about to be computed: afterwards nodes have lost their sources."""
        self._add(topological(wanted, _has_value))

    def _add(self, nodes: Iterable[Node]) -> None:
        """Adds the FLOPs of nodes to the modules in which they were recorded."""
        for node in nodes:
            scope = scope_of(node.site)
            if scope is None or _has_value(node) or node in self._before or node in self._counted:
                continue
            self._counted.add(node)
            work, names = flops(node), scope.module.split(".")
            for length in range(1, len(names) + 1):
                if (row := self.by_path.get(".".join(names[:length]))) is not None:
                    row.flops += work

    @staticmethod
    def _path() -> str:
        here = scopes.here
        assert here is not None
        return here.module

    def count(self, result: Any, inputs: Any) -> None:
        """Adds the FLOPs of what was recorded between the inputs and the result."""
        state = [*self.model.parameters(), *self.model.buffers(), *_tensors(inputs)]
        self._before.update(node for t in state for node in (t.node, t.cell.node))
        ends = [tensor.node for tensor in _tensors(result)]
        self._add(topological(ends, lambda node: node in self._before or _has_value(node)))


def _has_value(node: Node) -> bool:
    return node.storage is not None


@contextmanager
def _evaluating(model: Module) -> Iterator[None]:
    """Evaluation mode inside a `with` block: no statistics are written, nothing is drawn."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _made(model: Module, size: Sequence[Any], dtypes: Sequence[DType] | None) -> Any:
    """Inputs of zeros on the model's device."""
    sizes = [size] if all(isinstance(length, int) for length in size) else list(size)
    kinds = list(dtypes) if dtypes is not None else [float32] * len(sizes)
    if len(kinds) != len(sizes):
        raise ArgumentError(
            "summary", "there is not a dtype for each input", expect=f"{len(sizes)} dtypes",
            actual=str(len(kinds)),
        )  # fmt: skip
    first = next(iter(model.parameters()), None)
    device = get_default_device() if first is None else first.device
    return tuple(zeros(*s, dtype=kind, device=device) for s, kind in zip(sizes, kinds))


def _tensors(value: Any) -> list[TensorBase]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, TensorBase)]


def _nbytes(tensor: TensorBase) -> int:
    return prod(tensor.shape) * tensor.dtype.itemsize


def _elements(tensors: Iterable[TensorBase]) -> int:
    return sum(prod(tensor.shape) for tensor in tensors)
