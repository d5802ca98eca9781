"""Parameter: a Tensor that a Module trains; Buffer: one that it only keeps.

A handle on the cell of the Tensor it is made from, with a `.grad` of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.capture import structure
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import empty, tensor
from tinygrad_cuda.tensors.tensor import Tensor


class Parameter(Tensor):
    """A Tensor that registers itself when it becomes an attribute of a `Module`.

    It shares the storage cell of `data`: a write to one shows in the other.

    Args:
        data: its value, of any shape and a floating dtype.
        requires_grad: whether gradients are collected in ``.grad``.

    Raises:
        ArgumentError: `data` is not a Tensor.
        DTypeError: `data` is not floating, and requires_grad is true.

    Example:
        >>> import tinygrad_cuda as tc
        >>> weight = Parameter(tc.tensor([1.0, 2.0], device="cpu"))
        >>> (weight * weight).sum().backward()
        >>> weight.grad.tolist()
        [2.0, 4.0]
    """

    __slots__ = ()

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        source = empty(0) if data is None else data
        if not isinstance(source, TensorBase):
            raise ArgumentError(
                "Parameter",
                "needs a Tensor",
                expect="a Tensor",
                actual=type(source).__name__,
                hint="Parameter(tc.tensor(data))",
            )
        self = object.__new__(cls)
        self._retained = None
        share_cell(self, source)
        if requires_grad:
            self.requires_grad_()
        return self

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        """Everything is done by `__new__`: a Tensor itself is not constructed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copy = type(self)(self.copy_with_cell(memo), self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        array = np.array(self.array())
        facts = (type(self), array, self.dtype, str(self.device), self.requires_grad)
        return _rebuild, facts, self.__dict__ or None

    def __copy__(self) -> Parameter:
        """Another Parameter of the same memory."""
        copy = type(self)(self.detach(), self.requires_grad)
        copy.__dict__.update(self.__dict__)
        return copy

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor):
    """A Tensor that registers itself as a buffer when it becomes an attribute of a `Module`.

    It shares the storage cell of `data`: a write to one shows in the other.

    Args:
        data: its value.
        persistent: whether `state_dict` contains it.

    Raises:
        ArgumentError: `data` is not a Tensor.
    """

    __slots__ = ("persistent",)
    persistent: bool

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        source = empty(0) if data is None else data
        if not isinstance(source, TensorBase):
            raise ArgumentError(
                "Buffer", "needs a Tensor", expect="a Tensor", actual=type(source).__name__
            )
        self = object.__new__(cls)
        self._retained = None
        self.persistent = persistent
        share_cell(self, source)
        return self

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        """Everything is done by `__new__`: a Tensor itself is not constructed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        copy = type(self)(self.copy_with_cell(memo), persistent=self.persistent)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        array = np.array(self.array())
        return _rebuild_buffer, (array, self.dtype, str(self.device), self.persistent)


def share_cell(parameter: Tensor, source: Tensor) -> None:
    """Points a Parameter to the cell of another Tensor; its leaf, if it has one, stays."""
    leaf = parameter.leaf if hasattr(parameter, "chain") else None
    value = source.detach() if source.requires_grad else source
    structure.version += 1
    parameter.cell = value.cell
    parameter.chain = value.chain if leaf is None else (*value.chain, (common.variable, leaf))
    parameter._node = None
    parameter._strides = value._strides


# Without a shape yet --------------------------------------------------------------------------


class UninitializedParameter(Parameter):
    """A Parameter without elements, until `materialize` gives it a shape.

    Args:
        requires_grad: whether gradients are collected.
        device, dtype: of the value to come.
    """

    __slots__ = ()

    def __new__(
        cls, requires_grad: bool = True, device: Any = None, dtype: Any = None
    ) -> UninitializedParameter:
        made = super().__new__(cls, empty(0, device=device, dtype=dtype), requires_grad)
        assert isinstance(made, UninitializedParameter)
        return made

    def __init__(
        self, requires_grad: bool = True, device: Any = None, dtype: Any = None
    ) -> None:  # fmt: skip
        """Everything is done by `__new__`."""

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Makes it an ordinary Parameter of this shape, with values still to be written."""
        _materialize(self, shape, device, dtype)
        self.__class__ = Parameter  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> UninitializedParameter:
        copy = type(self)(self.requires_grad, self.device, self.dtype)
        memo[id(self)] = copy
        return copy


class UninitializedBuffer(Buffer):
    """A buffer without elements, until `materialize` gives it a shape."""

    __slots__ = ()

    def __new__(
        cls, requires_grad: bool = False, device: Any = None, dtype: Any = None,
        persistent: bool = True,
    ) -> UninitializedBuffer:  # fmt: skip
        made = super().__new__(cls, empty(0, device=device, dtype=dtype), persistent=persistent)
        assert isinstance(made, UninitializedBuffer)
        if requires_grad:
            made.requires_grad_()
        return made

    def __init__(
        self, requires_grad: bool = False, device: Any = None, dtype: Any = None,
        persistent: bool = True,
    ) -> None:  # fmt: skip
        """Everything is done by `__new__`."""

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Makes it an ordinary Buffer of this shape, with values still to be written."""
        _materialize(self, shape, device, dtype)
        self.__class__ = Buffer  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> UninitializedBuffer:
        copy = type(self)(self.requires_grad, self.device, self.dtype, self.persistent)
        memo[id(self)] = copy
        return copy


def is_lazy(param: Any) -> bool:
    """Whether this is a Parameter or a buffer that has no shape yet."""
    return isinstance(param, UninitializedParameter | UninitializedBuffer)


def _materialize(value: Tensor, shape: Any, device: Any, dtype: Any) -> None:
    share_cell(
        value,
        empty(
            *shape, device=value.device if device is None else device,
            dtype=value.dtype if dtype is None else dtype,
        ),
    )  # fmt: skip


# Pickling ---------------------------------------------------------------------------------------


def _rebuild(
    kind: type[Parameter], array: Any, dtype: DType, device: str, requires_grad: bool
) -> Parameter:
    return kind(tensor(array, dtype=dtype, device=device), requires_grad)


def _rebuild_buffer(array: Any, dtype: DType, device: str, persistent: bool) -> Buffer:
    return Buffer(tensor(array, dtype=dtype, device=device), persistent=persistent)
