"""What a compiled function returns: fresh Tensors in the shape of the first result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.engine.cell import Branch, Cell, settled
from tinygrad_cuda.graph.node import Node, holding
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.optim.watched import LISTS
from tinygrad_cuda.tensor.base import TensorBase

Build = Callable[["Fresh"], Any]


class Mould:
    """A cell that each replay makes anew: everything about its node but the storage.

    Args:
        node: realized, without a history that a gradient could pass through.
        source: number of its storage among the values of a replay.
    """

    __slots__ = ("op", "outputs", "device", "requires_grad", "site", "spent", "source", "plain")

    def __init__(self, node: Node, source: int) -> None:
        self.op = node.op
        self.outputs, self.device, self.site = node.outputs, node.device, node.site
        self.requires_grad, self.spent = node.requires_grad, node.spent
        self.source = source
        self.plain = not node.requires_grad

    def node(self, storage: Any) -> Node:
        """A node that holds the storage."""
        found = holding(self.op, self.outputs, self.device, storage, self.site)
        found.requires_grad, found.spent = self.requires_grad, self.spent
        return found


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
        made: cells by their moulds, and Tensors by their keys, as far as they are there.
    """

    __slots__ = ("values", "given", "made")

    def __init__(
        self, values: list[Any], given: Sequence[Any], made: dict[Any, Any] | None = None
    ) -> None:
        self.values, self.given = values, given
        self.made = {} if made is None else made

    def cell(self, mould: Mould) -> Cell:
        """The cell cast in a mould."""
        found = self.made.get(mould)
        if found is None:
            found = self.made[mould] = settled(mould.node(self.values[mould.source]))
        return found


def has_history(node: Node) -> bool:
    """Whether a gradient could pass through."""
    return node.requires_grad and node.spent is None


class History(Exception):
    """A result has a history that a gradient could pass through: no replay can give it."""


class Moulds:
    """Finds how to make anew what a call has returned.

    Args:
        source: the number of a storage among the values of a replay.
        known: cells that were there before the call.
        given: the Tensors among the arguments.
        cells: theirs.

    Attributes:
        moulds: by the cells that a replay makes anew.
        shown: by the number of a storage, the keys of the Tensors made anew that show it.
    """

    def __init__(
        self,
        source: Callable[[Any], int],
        known: dict[Cell, int],
        given: list[Any],
        cells: list[Cell],
    ) -> None:
        self.source, self.known, self.argument_cells = source, known, cells
        self.given = {id(tensor): number for number, tensor in enumerate(given)}
        self.moulds: dict[Cell, Mould] = {}
        self.shown: dict[int, set[int]] = {}

    def mould(self, cell: Cell) -> Mould:
        """The mould of a cell made inside.

        Raises:
            History: its value has one.
        """
        found = self.moulds.get(cell)
        if found is None:
            node = cell.node
            if has_history(node):
                raise History
            found = self.moulds[cell] = Mould(node, self.source(node.storage))
        return found

    def of(self, result: Any) -> Build:
        """How to make a result again.

        Raises:
            History: a Tensor of it has one.
            CompileError: it holds what cannot be made again.
        """
        if isinstance(result, TensorBase):
            return self._of_tensor(result)
        if type(result) in (tuple, *LISTS):
            parts = [self.of(item) for item in result]
            kind = type(result)

            def build_all(fresh: Fresh) -> Any:
                made = []
                for part in parts:
                    made.append(part(fresh))
                return tuple(made) if kind is tuple else made

            return build_all
        if isinstance(result, tuple) and hasattr(result, "_fields"):
            parts, named = [self.of(item) for item in result], type(result)
            return lambda fresh: named(*[part(fresh) for part in parts])
        if isinstance(result, dict):
            items = {key: self.of(item) for key, item in result.items()}
            mapping = type(result)
            return lambda fresh: mapping({key: part(fresh) for key, part in items.items()})
        return lambda fresh: result

    def result(self, leaf: Any) -> Any:
        """A leaf of what was returned; a Tensor as a `Result`."""
        if not isinstance(leaf, TensorBase):
            return leaf
        tensor: Any = leaf
        given = self.given.get(id(tensor), -1)
        mould = self.moulds.get(tensor.cell) if given < 0 else None
        steps = tuple([step[0] for step in tensor.chain])
        moved = any(op.kind == "movement" for op in steps)
        source = -1 if mould is None or moved else mould.source
        node = tensor.cell.node
        requires_grad = bool(tensor.requires_grad)
        return Result(source, given, node.outputs, node.device, requires_grad, steps)

    def _of_tensor(self, tensor: Any) -> Build:
        number = self.given.get(id(tensor))
        if number is not None:
            return lambda fresh: fresh.given[number]
        cell, key, kind, strides = tensor.cell, id(tensor), type(tensor), tensor._strides
        chain = tensor.chain
        if tensor.leaf is not None:
            if cell not in self.known:
                raise CompileError(
                    "compile",
                    "a compiled function returns a leaf that it makes itself",
                    expect="results of operations, or tensors from outside",
                    actual=f"a leaf of shape {tuple(tensor.shape)} that requires grad",
                    hint="return it without grad and call requires_grad_() outside",
                )
            return lambda fresh: tensor
        if cell in self.known:
            if cell in self.argument_cells:
                raise CompileError(
                    "compile",
                    "a compiled function returns a view of an argument",
                    expect="an argument itself, or a value of its own",
                    actual=f"a view of shape {tuple(tensor.shape)}",
                    hint="return x.clone()",
                )
            return lambda fresh: tensor
        mould = self.mould(cell)
        if chain and tensor.requires_grad and has_history(tensor.node):
            raise History
        self.shown.setdefault(mould.source, set()).add(key)
        detaches = any(step[0] is common.detach for step in chain)

        def build(fresh: Fresh) -> Any:
            made = fresh.made.get(key)
            if made is None:
                made = fresh.made[key] = _new(kind)
                made.cell = fresh.cell(mould)
                made.chain = _fresh_chain(chain) if detaches else chain
                made._node = made._retained = None
                made._strides = strides
            return made

        return build


_new = object.__new__


def _fresh_chain(chain: tuple[Any, ...]) -> tuple[Any, ...]:
    detach = common.detach
    return tuple([(detach, Branch()) if step[0] is detach else step for step in chain])
