"""What a compiled function returns: fresh Tensors in the shape of the first result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tinygrad_cuda.capture.signature import Given
from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.engine.cell import Branch, Cell, settled
from tinygrad_cuda.graph.node import Node, holding
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.views import SelectAt, base_chain, moves

Build = Callable[["Fresh"], Any]
Steps = tuple[Any, ...]


class ResultHistory(Exception):
    """A result has a history that a gradient could pass through: no replay can give it."""


def has_history(node: Node) -> bool:
    """Whether a gradient could pass through."""
    return node.requires_grad and node.spent is None


class OutputSpec:
    """A cell that each replay makes again: everything about its node but the storage.

    Args:
        node: realized.
        source: number of its storage among the values of a replay.

    Raises:
        ResultHistory: a gradient could pass through the node's history.
    """

    __slots__ = ("op", "outputs", "device", "requires_grad", "site", "spent", "source")

    def __init__(self, node: Node, source: int) -> None:
        if has_history(node):
            raise ResultHistory
        self.op = node.op
        self.outputs, self.device, self.site = node.outputs, node.device, node.site
        self.requires_grad, self.spent = node.requires_grad, node.spent
        self.source = source

    def node(self, storage: Any) -> Node:
        """A node that holds the storage."""
        node = holding(self.op, self.outputs, self.device, storage, self.site)
        node.requires_grad, node.spent = self.requires_grad, self.spent
        return node


class Result(NamedTuple):
    """A Tensor that a call has returned.

    Attributes:
        source: the number of its storage among the values of a replay; -1 if it was there before.
        given: its number among the Tensor arguments, or -1.
        outputs, device, requires_grad: its node's.
        steps: the operations between its cell and it.
    """

    source: int
    given: int
    outputs: Any
    device: Any
    requires_grad: bool
    steps: tuple[Any, ...]


class Fresh:
    """The cells and Tensors that one replay makes; equal ones are made once.

    Args:
        values: storages, by number.
        given: the Tensors among the arguments.
        made: cells by their output_specs, and Tensors by their keys, as far as they are there.
    """

    __slots__ = ("values", "given", "made")

    def __init__(
        self, values: list[Any], given: Sequence[Any], made: dict[Any, Any] | None = None
    ) -> None:
        self.values, self.given = values, given
        self.made = {} if made is None else made

    def cell(self, output_spec: OutputSpec) -> Cell:
        """The cell of a value that is made again, once."""
        cell = self.made.get(output_spec)
        if cell is None:
            cell = self.made[output_spec] = settled(
                output_spec.node(self.values[output_spec.source])
            )
        return cell


class OutputSpecs:
    """Describes how to make again what a call has returned.

    Args:
        source: the number of a storage among the values of a replay.
        outer: cells that were there before the call.
        given: the arguments.

    Attributes:
        output_specs: by the cells that a replay makes again.
        shown: by the number of a storage, the keys of the Tensors made again that show it.
    """

    def __init__(self, source: Callable[[Any], int], outer: dict[Cell, int], given: Given) -> None:
        self.source, self.outer, self.arguments = source, outer, given
        self.given = {id(tensor): number for number, tensor in enumerate(given.tensors)}
        self.output_specs: dict[Cell, OutputSpec] = {}
        self.shown: dict[int, set[int]] = {}

    def output_spec(self, cell: Cell) -> OutputSpec:
        """How a cell made inside is made again.

        Raises:
            ResultHistory: its value has one.
        """
        spec = self.output_specs.get(cell)
        if spec is None:
            node = cell.node
            spec = self.output_specs[cell] = OutputSpec(node, self.source(node.storage))
        return spec

    def of(self, leaf: Any) -> Build:
        """How to make a leaf of what was returned again.

        Raises:
            ResultHistory: it is a Tensor that has one.
            CompileError: it cannot be made again.
        """
        return self._of_tensor(leaf) if isinstance(leaf, TensorBase) else lambda fresh: leaf

    def result(self, leaf: Any) -> Any:
        """A leaf of what was returned; a Tensor as a `Result`."""
        if not isinstance(leaf, TensorBase):
            return leaf
        tensor: Any = leaf
        given = self.given.get(id(tensor), -1)
        output_spec = self.output_specs.get(tensor.cell) if given < 0 else None
        steps = tuple([step[0] for step in tensor.chain])
        moved = any(map(moves, tensor.chain))
        source = -1 if output_spec is None or moved else output_spec.source
        node = tensor.cell.node
        requires_grad = bool(tensor.requires_grad)
        return Result(source, given, node.outputs, node.device, requires_grad, steps)

    def _of_tensor(self, tensor: Any) -> Build:
        argument = self.given.get(id(tensor))
        if argument is not None:
            return lambda fresh: fresh.given[argument]
        cell, chain = tensor.cell, tensor.chain
        if tensor.leaf is not None:
            if cell not in self.outer:
                raise CompileError(
                    "compile", "a compiled function returns a leaf that it makes itself",
                    expect="results of operations, or tensors from outside",
                    actual=f"a leaf of shape {tuple(tensor.shape)} that requires grad",
                    hint="return it without grad and call requires_grad_() outside",
                )  # fmt: skip
            return lambda fresh: tensor
        if chain and tensor.requires_grad and has_history(tensor.node):
            raise ResultHistory
        if cell in self.outer:
            number = self.arguments.number_of(cell)
            if number is not None:
                return self._of_argument(tensor, number)
            if not any(isinstance(detail, SelectAt) for _, detail in chain):
                return lambda fresh: tensor
            return _built(tensor, lambda fresh: (cell, ()), self._fresh_steps(chain))
        output_spec = self.output_spec(cell)
        self.shown.setdefault(output_spec.source, set()).add(id(tensor))
        return _built(tensor, lambda fresh: (fresh.cell(output_spec), ()), self._fresh_steps(chain))

    def _of_argument(self, tensor: Any, number: int) -> Build:
        """A view of an argument: of the Tensor that the caller of a replay gives."""
        if any(op is common.variable for op, _ in tensor.chain):
            raise CompileError(
                "compile", "a compiled function returns a view of a leaf among its arguments",
                expect="an argument itself, or a value of its own",
                actual=f"a view of shape {tuple(tensor.shape)}", hint="return x.clone()",
            )  # fmt: skip
        given = self.arguments
        viewed = given.originals[number] is not given.tensors[number]

        def base(fresh: Fresh) -> tuple[Cell, Steps]:
            original = fresh.given[number]
            return original.cell, base_chain(original.chain) if viewed else ()

        return _built(tensor, base, self._fresh_steps(tensor.chain))

    def _fresh_steps(self, chain: Steps) -> Callable[[Fresh], Steps]:
        """The steps of a result, with branches and indices of its own where it has any."""
        indices = {
            number: self._of_tensor(detail.index)
            for number, (_, detail) in enumerate(chain)
            if isinstance(detail, SelectAt)
        }
        if not indices and not any(op is common.detach for op, _ in chain):
            return lambda fresh: chain

        def made(fresh: Fresh) -> Steps:
            steps = []
            for number, (op, detail) in enumerate(chain):
                if op is common.detach:
                    detail = Branch()
                elif number in indices:
                    detail = SelectAt(detail.axis, indices[number](fresh))
                steps.append((op, detail))
            return tuple(steps)

        return made


_new = object.__new__


def _built(
    tensor: Any, base: Callable[[Fresh], tuple[Cell, Steps]], steps: Callable[[Fresh], Steps]
) -> Build:
    """A Tensor like this one, on the cell and behind the steps that `base` gives."""
    key, kind, strides = id(tensor), type(tensor), tensor._strides

    def build(fresh: Fresh) -> Any:
        made = fresh.made.get(key)
        if made is None:
            made = fresh.made[key] = _new(kind)
            made.cell, first = base(fresh)
            made.chain = (*first, *steps(fresh))
            made._node = made._retained = None
            made._strides = strides
        return made

    return build
