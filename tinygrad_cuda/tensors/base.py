"""The handle behind Tensor: a storage cell seen through a chain of aliasing steps.

Reading folds the chain over the cell's node; writing puts one functional update into the cell.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import (
    ArgumentError,
    CompileError,
    DTypeError,
    GradientError,
    RawSite,
    ShapeError,
    TgcError,
)
from tinygrad_cuda.core.shapes import Shape, as_ints, contiguous_strides
from tinygrad_cuda.engine.capture import capturing, structure, watching
from tinygrad_cuda.engine.cell import Branch, Cell, Leaf, Recorder, detached, local, settled
from tinygrad_cuda.engine.realize import check_errors, count_nodes, realize, realize_cell
from tinygrad_cuda.engine.shared import LARGE, SharedCell, exported, holding_array
from tinygrad_cuda.engine.vmap_trace import check_write, tracing
from tinygrad_cuda.graph.node import (
    Node,
    Op,
    Outputs,
    holding,
    made_by,
    mode,
    node_made,
    site_of,
)
from tinygrad_cuda.graph.ops import common, elementwise, indexing, movement
from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.tensors.views import (
    FILLS,
    ComplexView,
    SelectAt,
    Step,
    apply_step,
    first_position,
    joined,
    moves,
    put_through,
    seen_through,
    shared_through,
)

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

_nothing = nullcontext()
# Tensor itself, which is defined above this module.
_concrete: Any = None


def _warn_of_no_leaf(node: Node) -> None:
    """Tells who reads the gradient of a result that `backward` stores none for."""
    warnings.warn(
        "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed: backward() "
        f"does not fill it\n  actual: {made_by(node)}\n"
        "  hint:   call .retain_grad() on it before backward(), or read .grad of the leaf",
        UserWarning,
        stacklevel=3,
    )


# The detail of the reshape that ends a view of one element.
_NUMBER = {"shape": ()}


class TensorBase:
    """The cell of a Tensor, its chain, and access to values and gradients."""

    __slots__ = ("cell", "chain", "_node", "_strides", "_retained", "_own_form", "__weakref__")

    cell: Cell
    chain: tuple[Step, ...]
    _node: Node | None
    _strides: Shape | None
    _retained: Any
    _own_form: bool  # set where the shape was changed in place

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        global _concrete
        if _concrete is None:
            _concrete = cls

    # Nodes ---------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The value as a node of the graph."""
        cell = self.cell
        if cell.shared and self.chain and (part := self._part()) is not None:
            return part
        node = cell.node
        if node.storage is None and cell.recorder is not local.recorder:
            self._settle()
            node = cell.node
        if watching.on and node.storage is not None and (capture := capturing()) is not None:
            capture.saw(self)
            node = cell.node
            view = self._node
            if view is not None and capture.unknown(view.storage):
                # A view that was computed before the call: a replay has the tensor it views.
                self._node = None
        chain = self.chain
        if not chain:
            return node
        own = self._node
        if own is None:
            # First: an interrupt in between must not leave a node that no write takes back.
            cell.add_alias(self)
            own = self._node = self._fold(chain)
        elif own.storage is None and node.storage is not None and len(chain) == 1:
            step, leaf = chain[0]
            if step is common.variable:
                leaf.variable(node)  # the value has come since the node was made
        return own

    def described(self) -> Node:
        """A node of its shape, dtype and device: memory that others write is not compared."""
        cell = self.cell
        if not cell.shared or watching.on:
            return self.node
        assert isinstance(cell, SharedCell)
        return self._node or self._fold(self.chain, cell.described())

    def _fold(self, chain: tuple[Step, ...], node: Node | None = None) -> Node:
        """A chain applied to the cell's node; a view keeps its history where none is recorded.

        Args:
            node: another one for the cell's.
        """
        cell = self.cell
        node = node or cell.node
        old, mode.now.gradients = mode.now.gradients, True
        try:
            for step in chain:
                if step[0] is common.variable or step[0] is common.detach:
                    cell.add_alias(step[1])
                node = apply_step(step, node)
        finally:
            mode.now.gradients = old
        return node

    def _settle(self) -> None:
        """The value waits in another thread's list, or its realization failed."""
        if self.cell.error is not None:
            raise self.cell.error.anew()
        if self.cell.recorder is not None:
            realize_cell(self.cell)

    def forget_node(self) -> None:
        """Called by the cell when its value is replaced."""
        self._node = None

    def write(self, value: Node, op: str, fills: bool | None = None) -> None:
        """Replaces what this Tensor shows; every alias sees it.

        Args:
            fills: the op writes one number, which PyTorch lets it do to repeated elements; by
                its name if left out.

        Raises:
            ShapeError: elements repeat, and the op does not fill.
            GradientError: the Tensor is a leaf that requires grad, or a view of one, outside
                `no_grad`.
        """
        cell, chain = self.cell, self.chain
        if watching.on and cell.node.storage is None and cell.recorder is not local.recorder:
            self._settle()  # so that a captured call knows the cell
        old = cell.node
        if (
            (not chain or (len(chain) == 1 and chain[0][0] is common.variable))
            and not (mode.now.gradients or old.requires_grad or value.requires_grad)
            and not (tracing.stack or settings.eager)
        ):
            # What a step does to each of its elements, without the cases below.
            base = old.sources[0] if old.storage is None and old.op is common.assign else old
            cell.put(value if base.storage is None else common.assign(base, value))
            local.recorder.recorded += 1
            return
        if tracing.stack:
            check_write(op, cell, value)
        # What follows the last detach decides how the write meets history.
        depth, to_leaf, of_leaf = 0, False, False
        for position, (step, _) in enumerate(chain):
            if step is common.detach:
                depth, to_leaf = position + 1, False
            elif step is common.variable:
                to_leaf = of_leaf = True
        if mode.now.gradients and to_leaf:
            raise GradientError(
                op,
                "a leaf that requires grad was written in place",
                expect="a tensor without grad, a result, or a write under no_grad()",
                actual=f"a leaf of shape {tuple(self.shape)} that requires grad",
                hint="write inside `with tc.no_grad():`, or to a clone()",
            )
        shown = self.node
        if value is shown:
            # Its own value: nothing changes, even where elements repeat.
            if versions.on:
                versions.touched(self)
            return
        fills = op in FILLS if fills is None else fills
        if not mode.now.gradients:
            value = detached(value)
        base = old
        branch: Branch | None = chain[depth - 1][1] if depth else None
        if branch is not None and mode.now.gradients and (value.requires_grad or branch.node):
            # The detached handle and its views see the history, the others the value alone.
            seen, own = self._fold(chain[:depth]), value
            value = put_through(seen, chain[depth:], value, shown if fills else None)
            if not value.requires_grad:
                value = common.with_history(value, seen, passes=False)
            new = put_through(old, chain[:depth], value)
        else:
            branch = None
            new = put_through(old, chain, value, shown if fills else None)
        if old.requires_grad and not new.requires_grad and not of_leaf:
            # The tensor still has its history: under no_grad that of the value before.
            new = common.with_history(new, old, passes=not mode.now.gradients)
        elif versions.on and mode.now.gradients and old.requires_grad and new.requires_grad:
            new = common.with_second_history(new, old)
        if base.storage is None and base.op is common.assign:
            base = base.sources[0]
        if base.storage is not None and not new.requires_grad:
            new = common.assign(detached(base), new)
        count_nodes(1)
        silent = versions.on and depth > 0 and chain[depth - 1][1].silent
        with versions.paused() if silent else _nothing:
            cell.put(new)
        if versions.on and branch is not None:
            versions.apart(new, (own, old))
        if silent:
            versions.written(chain[depth - 1][1], old, new)
        if branch is not None:
            cell.add_alias(branch)
            branch.take(value)
        if settings.eager:
            _compute_now(new.device)

    def first_position(self, op: str) -> int:
        """Where in the memory of its cell this Tensor begins, in elements.

        Args:
            op: what asks, for the error.

        Raises:
            CompileError: it shows a view that is an argument of a compiled function.
        """
        node = self.node  # a compiled function has read it
        if watching.on and self.stands_for_view():
            refuse_place(op, f"where a view of shape {tuple(node.shape)} begins")
        return first_position(self.cell.node.shape, self.chain)

    def stands_for_view(self) -> bool:
        """Whether it shows the value of a view among a compiled function's arguments.

        Where such a view begins, and in what memory, differs from call to call.
        """
        capture = capturing()
        return capture is not None and any(view.cell is self.cell for view in capture.views)

    def show(self, source: Tensor) -> None:
        """Shows the cell of another Tensor from now on; the leaf, if there is one, stays."""
        structure.version += 1
        value = source.detach()
        leaf, before = self.leaf, self.node
        if leaf is None and before.requires_grad and source.node.shape == before.shape:
            # The history stays that of before, as PyTorch's does.
            branch: Branch = value.chain[-1][1]
            branch.take(common.with_history(detached(source.node), before))
            value.cell.add_alias(branch)
        self.cell = value.cell
        self.chain = value.chain if leaf is None else (*value.chain, (common.variable, leaf))
        self._node = None
        self._strides = value._strides

    def alias(self, op: Op, strides: Shape | None = None, **attributes: Any) -> Tensor:
        """Another Tensor on the same cell, seen through one more movement."""
        return self.alias_through(((op, attributes),), strides)

    def alias_through(self, steps: Iterable[Step], strides: Shape | None = None) -> Tensor:
        """Another Tensor on the same cell, seen through more movements."""
        source, chain = self._viewed()
        # Applied at once, so that a bad argument is an error here; the node is reused.
        for op, attributes in steps:
            source = op(source, **attributes)
            chain = joined(chain, op, attributes)
        return self._alias(chain, source, strides)

    def alias_as(self, steps: Iterable[tuple[Op, Any, Shape]], strides: Shape) -> Tensor:
        """As `alias_through`, of movements that the caller has checked, with the shape of each."""
        source, chain = self._viewed()
        now, device, dtype = mode.now, source.device, source.dtype
        needs = source.requires_grad and now.gradients and dtype.category > 1
        site = now.site or site_of(sys._getframe(1))
        for op, attributes, shape in steps:
            source = node_made(op, (source,), attributes, ((shape, dtype),), device, needs, site)
            chain = joined(chain, op, attributes)
        return self._alias(chain, source, strides)

    def number_at(self, starts: Sequence[int]) -> Tensor | None:
        """A view of one element whose node is made when it is asked for; None of what may be new.

        A loop over `x[i, j].item()` makes no nodes: the value is there and has no history.
        """
        if self.cell.shared:
            return None
        node = self.cell.node
        if self.chain or node.storage is None or node.requires_grad or watching.on:
            return None
        ones = (1,) * len(starts)
        detail = {"starts": tuple(starts), "shape": ones, "steps": ones}
        tensor = self.with_chain(((movement.slice_, detail), (movement.reshape, _NUMBER)))
        tensor._strides = None
        return tensor

    def number(self) -> Any:
        """The value of a view by `number_at` on cpu that has no node yet, as a Python number."""
        if self.cell.shared:
            return None
        chain, node = self.chain, self.cell.node
        if self._node is not None or len(chain) != 2 or chain[1][1] is not _NUMBER:
            return None
        if watching.on or node.storage is None or node.device.kind != "cpu":
            return None
        check_errors(node.device)
        return node.storage.item(chain[0][1]["starts"])

    def select_at(self, axis: int, index: Tensor) -> Tensor:
        """One position of a dimension as another Tensor on the same cell.

        Args:
            index: a 0-d int64 Tensor on this device, checked, of which nobody else has the cell.
        """
        source, chain = self._viewed()
        step = SelectAt(axis, index)
        strides = self.strides[:axis] + self.strides[axis + 1 :]
        return self._alias((*chain, (indexing.gather, step)), step.read(source), strides)

    def complex_view(self, view: ComplexView, strides: Shape) -> Tensor:
        """Parts of complex numbers, or numbers as such parts, on the same cell."""
        source, chain = self._viewed()
        step = (elementwise.complex_, view)
        return self._alias((*chain, step), view.read(source), strides)

    def _viewed(self) -> tuple[Node, tuple[Step, ...]]:
        """What a new view is made of: the node and the chain."""
        source = self.described() if self.cell.shared else self.node
        if not mode.now.gradients and source.requires_grad:
            # A view made under no_grad has no history, now or later.
            return detached(source), self.chain_without_history()
        return source, self.chain

    def _alias(self, chain: tuple[Step, ...], node: Node, strides: Shape | None) -> Tensor:
        if self.cell.shared:
            made = self.with_chain(chain)
            made._strides = strides
            return made  # whose node is made when it is asked for, of what the memory holds then
        tensor: Tensor = _new(_concrete)
        tensor.cell = self.cell
        tensor.chain = chain
        tensor._node = node
        tensor._strides = strides
        tensor._retained = None
        self.cell.add_alias(tensor)
        return tensor

    def _part(self) -> Node | None:
        """The value of a part of large memory that others write, which is read without the rest.

        None where this is no such part, or somebody asks what it is a view of.
        """
        cell, chain = self.cell, self.chain
        assert isinstance(cell, SharedCell)
        if watching.on or tracing.stack or versions.on or cell.described().requires_grad:
            return None
        for op, detail in chain:
            if op is common.detach:
                if detail.node is not None:
                    return None
            elif op.kind != "movement":
                return None
        part = seen_through(chain, cell.memory)
        if cell.memory.nbytes < max(LARGE, 2 * part.nbytes):
            return None
        return holding_array(part.copy())

    def chain_without_history(self) -> tuple[Step, ...]:
        """The chain of `detach()`."""
        chain = self.chain if self.leaf is None else self.chain[:-1]
        if chain and chain[-1][0] is common.detach and chain[-1][1].node is None:
            chain = chain[:-1]
        return (*chain, (common.detach, Branch()))

    def with_chain(self, chain: tuple[Step, ...]) -> Tensor:
        """Another Tensor on the same cell, of the same strides, seen through a chain."""
        tensor: Tensor = _new(_concrete)
        tensor.cell = self.cell
        tensor.chain = chain
        tensor._node = None
        tensor._strides = self._strides
        tensor._retained = None
        return tensor

    def copy_with_cell(self, memo: dict[int, Any]) -> Tensor:
        """A copy without history, for `deepcopy`: what shares a cell shares one afterwards, too.

        The value is shared until somebody writes.
        """
        base = memo.get(id(self.cell))
        if base is None:
            base = memo[id(self.cell)] = wrap(detached(self.cell.node))
        copy: Tensor = base.with_chain(tuple(filter(moves, self.chain)))
        copy._strides = self._strides
        return copy

    def with_step(self, step: Step) -> Tensor:
        """Another Tensor on the same cell, seen through one more step."""
        return self.with_chain((*self.chain, step))

    # Facts ---------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """The sizes of all dimensions."""
        return _new_tuple(Size, (self.described() if self.cell.shared else self.node).shape)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return (self.described() if self.cell.shared else self.node).dtype

    @property
    def device(self) -> Device:
        """Where the value lives."""
        cell = self.cell
        return (self.described() if cell.shared else cell.node).device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through this Tensor."""
        return self.node.requires_grad

    @property
    def leaf(self) -> Leaf | None:
        """The accumulator of a leaf that requires grad."""
        chain = self.chain
        return chain[-1][1] if chain and chain[-1][0] is common.variable else None

    def _is_alias(self) -> bool:
        """Whether this shows a part or another shape of what another Tensor shows."""
        moved = any(step not in (common.detach, common.variable) for step, _ in self.chain)
        return moved and not getattr(self, "_own_form", False)

    @property
    def accumulator(self) -> Leaf | None:
        """Where gradients of this Tensor arrive; a leaf that is frozen for a while keeps it."""
        leaf = self.leaf
        return self._retained if leaf is None else leaf

    @property
    def is_leaf(self) -> bool:
        """True unless the Tensor is the result of an operation that recorded history."""
        return self.leaf is not None or not self.requires_grad

    @property
    def grad(self) -> Tensor | None:
        """The gradient accumulated by `backward`, of the same shape, or None."""
        leaf = self.accumulator
        if watching.on and leaf is not None and (capture := capturing()) is not None:
            capture.saw_leaf(leaf)
        if leaf is None:
            if self.requires_grad:
                _warn_of_no_leaf(self.node)
            return None
        gradient: Tensor | None = leaf.grad
        return gradient

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        leaf = self.accumulator
        if leaf is None:
            if value is None:
                return
            if not self.is_leaf:
                raise GradientError(
                    "grad",
                    "only a leaf holds a gradient",
                    expect="a leaf",
                    actual=made_by(self.node),
                    hint="retain_grad() keeps a result's gradient",
                )
            leaf = self._retained = Leaf()
        if value is not None:
            self._check_gradient(value)
        if watching.on and (capture := capturing()) is not None:
            capture.saw_leaf(leaf, dropped=value is None)
        leaf.grad = value

    def _check_gradient(self, value: Any) -> None:
        """Raises for what cannot be assigned to ``.grad``."""
        fits = isinstance(value, TensorBase) and value is not self
        if not fits or value.dtype is not self.dtype:
            raise DTypeError(
                "grad", "this is no gradient of the Tensor",
                expect=f"None, or another {self.dtype.name} Tensor",
                actual=value.dtype.name if fits else type(value).__name__,
            )  # fmt: skip
        if value.shape != self.shape:
            raise ShapeError(
                "grad", "shapes differ", expect=str(self.shape), actual=str(value.shape)
            )

    @property
    def strides(self) -> Shape:
        """Strides in elements, as PyTorch would give them."""
        return contiguous_strides(self.shape) if self._strides is None else self._strides

    # Values --------------------------------------------------------------------------------

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """The value as a NumPy array.

        On cpu it shares memory with this Tensor: a write to one shows in the other, and in views
        of this Tensor. Clones, recorded gradients and whatever else has the value keep theirs.
        Elsewhere it is a copy.

        Args:
            force: of a Tensor that requires grad too, without its history.

        Raises:
            GradientError: the Tensor requires grad, gradients are on, and `force` is not given.
        """
        requires_grad = self.requires_grad
        if requires_grad and (force or not mode.now.gradients):
            return self.with_chain(self.chain_without_history()).exported()
        if requires_grad:
            raise GradientError(
                "numpy",
                "the tensor requires grad",
                expect="a tensor without history, since NumPy records none",
                actual=made_by(self.node),
                hint="use .detach().numpy()",
            )
        return self.exported()

    def item(self) -> Any:
        """The one element as a Python number.

        Raises:
            ArgumentError: there is not exactly one element.
        """
        number = self.number()
        if number is not None:
            return number
        if prod(self.node.shape) != 1:
            raise ArgumentError(
                "item",
                "only one element can become a Python number",
                expect="1 element",
                actual=f"{prod(self.node.shape)} elements, shape {tuple(self.shape)}",
                hint="use .tolist(), or reduce first, e.g. .sum().item()",
            )
        return self.array().item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self.array().tolist()

    def realized(self) -> Node:
        """The node, with its storage; takes everything pending on the device with it."""
        node = self.node
        if node.storage is None:
            realize(node.device, (node,))
        return node

    def array(self) -> np.ndarray[Any, Any]:
        """The value in host memory: a read-only view on cpu, a copy elsewhere."""
        if watching.on and (capture := capturing()) is not None:
            capture.refuse(self.node)
        if self.device.kind == "cpu" and self.chain and not self.cell.shared:
            return self._host_view()
        node = self.realized()
        array = registry.get(node.device).to_host(node.storage, node.shape, node.dtype)
        try:
            check_errors(node.device)
        except TgcError:
            # What views have cached is the value of a write that did not happen.
            self.cell.forget_aliases()
            raise
        return array

    def _host_view(self) -> np.ndarray[Any, Any]:
        """The chain as NumPy views of the cell's array."""
        base = self.cell.node
        if base.storage is None:
            realize(base.device, (base,))
        array = registry.get(base.device).to_host(base.storage, base.shape, base.dtype)
        chain = self.chain
        if len(chain) == 2 and chain[0][0] is movement.slice_ and chain[1][1] == {"shape": ()}:
            # A number: `x[i, j].item()` is called in loops.
            check_errors(base.device)
            return np.asarray(array[chain[0][1]["starts"]])
        view: np.ndarray[Any, Any] = seen_through(chain, array)
        view.flags.writeable = False
        check_errors(base.device)
        return view

    def exported(self) -> np.ndarray[Any, Any]:
        """On cpu an array that shares memory with this Tensor, elsewhere a copy of its own."""
        if watching.on and (capture := capturing()) is not None:
            capture.refuse(self.node)
        if self.device.kind == "cpu":
            check_errors(self.device)
            shared: np.ndarray[Any, Any] = shared_through(self.chain, exported(self.cell))
            return shared
        array = self.array()
        return array if array.flags.writeable else array.copy()


class Size(tuple[int, ...]):
    """A shape; prints like PyTorch's ``torch.Size``.

    Raises:
        ShapeError: a size is no integer.
    """

    __slots__ = ()

    def __new__(cls, sizes: Iterable[Any] = ()) -> Size:
        values = tuple(sizes)
        for size in values:
            if not isinstance(size, int):
                values = as_ints("Size", values, "a size")
                break
        return tuple.__new__(cls, values)

    def numel(self) -> int:
        """The number of elements."""
        return prod(self)

    # A part of a shape is a shape, too.

    def __getitem__(self, key: Any) -> Any:
        part = tuple.__getitem__(self, key)
        return Size(part) if type(part) is tuple else part

    def __add__(self, other: Any) -> Size:
        return Size((*self, *other)) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> Size:
        return Size((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: Any) -> Size:
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"Size({list(self)})"


def node_of(tensor: TensorBase, recorder: Recorder) -> Node:
    """What `tensor.node` gives, in most cases without that call; the recorder is this thread's."""
    cell = tensor.cell
    if cell.shared and tensor.chain:
        return tensor.node
    node = cell.node
    if watching.on or (node.storage is None and cell.recorder is not recorder):
        return tensor.node
    if tensor.chain:
        own = tensor._node
        return tensor.node if own is None or own.storage is None else own
    return node


def the_class() -> type[Tensor]:
    """`Tensor`, for modules that it imports."""
    made: type[Tensor] = _concrete
    return made


def wrap(node: Node) -> Tensor:
    """A Tensor with a cell of its own that holds `node`."""
    if node.storage is None:
        return pending(node, local.recorder)
    tensor: Tensor = _new(_concrete)
    tensor.cell, tensor.chain = settled(node), ()
    tensor._node = tensor._strides = tensor._retained = None
    if versions.on:
        versions.made(node, tensor.cell)
    if settings.eager:
        _compute_now(node.device)
    return tensor


def pending(
    node: Node, recorder: Recorder, strides: Shape | None = None, recorded: int = 1
) -> Tensor:
    """A Tensor whose value is to come, as `wrap` gives it.

    Args:
        node: without a value.
        recorder: this thread's.
        strides: of the Tensor, if they are not those of its shape.
        recorded: how many nodes have been recorded for it.
    """
    tensor: Tensor = _new(_concrete)
    tensor.chain = ()
    tensor._strides = strides
    tensor._node = tensor._retained = None
    # As `Cell.wait` does, without the call: every operation comes here.
    cell = Cell()
    cell.node = node
    cell.aliases = cell.error = None
    cell.recorder = recorder
    try:
        recorder.pending[node.device].append(ref(cell))
    except KeyError:
        recorder.pending[node.device] = [ref(cell)]
    tensor.cell = cell
    count = recorder.recorded = recorder.recorded + recorded
    if count > recorder.limit:
        count_nodes(0)
    if versions.on:
        versions.made(node, tensor.cell)
    if settings.eager:
        _compute_now(node.device)
    return tensor


def refuse_place(op: str, what: str) -> None:
    """Refuses a place in memory that the call of a compiled function asks for.

    Raises:
        CompileError: always.
    """
    capture = capturing()
    error = CompileError(
        op, "a place in memory is asked for inside a compiled function",
        expect="Python values that are the same in each call", actual=what,
        hint="ask for it outside and pass what depends on it as an argument",
    )  # fmt: skip
    if capture is not None:
        capture.refused = capture.refused or error
    raise error


_new = object.__new__
_new_tuple = tuple.__new__


def arrived(outputs: Outputs, device: Device, storage: Any, site: RawSite | None) -> Tensor:
    """A value that has come from another device, as `wrap` shows it where nobody watches.

    Every argument of a step is made here.
    """
    tensor: Tensor = _new(_concrete)
    tensor.cell, tensor.chain = settled(holding(common.buffer, outputs, device, storage, site)), ()
    tensor._node = tensor._strides = tensor._retained = None
    return tensor


def _compute_now(device: Device) -> None:
    """`TGC_EAGER`: the value, and any error that comes with it, at the call."""
    realize(device)
    check_errors(device)
