"""Errors for arguments that are no Tensors, looked for only after a call has failed."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tinygrad_cuda.core.errors import DTypeError, TgcError
from tinygrad_cuda.tensors.base import TensorBase

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def no_tensor(op: str, name: str, value: Any) -> DTypeError:
    """The error for an argument that is no Tensor."""
    arrays = hasattr(value, "__array__") or isinstance(value, list | tuple | int | float)
    return DTypeError(
        op, f"{name} is no Tensor", expect="Tensor",
        actual="None" if value is None else type(value).__name__,
        hint="tc.as_tensor(...) makes a Tensor of arrays, lists and numbers" if arrays else None,
    )  # fmt: skip


def require_real(op: str, *values: Any) -> None:
    """Raises where one of some arguments is a Tensor of complex numbers."""
    for value in values:
        if isinstance(value, TensorBase) and value.dtype.is_complex:
            raise DTypeError(
                op, "complex numbers are not supported", expect="a real dtype",
                actual=value.dtype.name, hint="x.real, x.imag and x.abs() are real",
            )  # fmt: skip


def plain_number(op: str, name: str, value: Any) -> Any:
    """The Python number of an argument that is one: a Tensor's or a NumPy scalar's own.

    It has no dtype: the operands decide the result's, and an unsigned one does not wrap.

    Raises:
        DTypeError: a Tensor that requires grad, or that is no number.
    """
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, TensorBase):
        return value
    if value.shape or value.requires_grad:
        raise DTypeError(
            op, f"{name} is no number", expect="a number, or a 0-d Tensor that requires no grad",
            actual="one that requires grad" if value.requires_grad else f"shape {value.shape}",
        )  # fmt: skip
    return value.item()


class Parameters:
    """The parameters of a function that are annotated as Tensors.

    Attributes:
        names: of all that may be positional, in their order.
        tensors: of those that must be Tensors.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        plain: Any = inspect.unwrap(function)
        code, kinds = plain.__code__, plain.__annotations__
        self.op = plain.__name__
        self.names = code.co_varnames[: code.co_argcount]
        every = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self.tensors = frozenset(name for name in every if kinds.get(name) == "Tensor")

    def check(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Raises for an argument that is no Tensor where the function takes nothing else."""
        error = self.error(args, options)
        if error is not None:
            raise error

    def error(self, args: tuple[Any, ...], options: dict[str, Any]) -> DTypeError | None:
        """What `check` raises."""
        for name, value in (*zip(self.names, args), *options.items()):
            if name in self.tensors and not isinstance(value, TensorBase):
                return no_tensor(self.op, name, value)
        return None


def checks_tensors(function: F) -> F:
    """Marks a function that checks its arguments itself: it is called often."""
    marked: Any = function
    marked.checks_tensors = True
    return function


def unchanged(op: str, input: Tensor) -> Tensor:
    """The input of a function that has nothing to do to it."""
    if not isinstance(input, TensorBase):
        raise no_tensor(op, "input", input)
    return input


def takes_tensors(function: F, module: str, name: str) -> F:
    """The function, whose failures for want of a Tensor name the argument.

    Args:
        module, name: where it is public, so that it can be pickled.
    """
    parameters = Parameters(function)
    if not parameters.tensors or hasattr(function, "checks_tensors"):
        return function

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except (AttributeError, TypeError) as failure:
            refusal = None
            if not isinstance(failure, TgcError):
                refusal = parameters.error(args, options)
            if refusal is None:
                raise
            raise refusal from None

    wrapper.__module__, wrapper.__qualname__ = module, name
    return wrapper  # type: ignore[return-value]


def checked_names(
    names: dict[str, Any], module: str, public: Iterable[str]
) -> dict[str, Callable[..., Any]]:
    """Functions among the public names of a module, by `takes_tensors`; aliases stay one object.

    All of them can be pickled.
    """
    made: dict[int, Callable[..., Any]] = {}
    checked: dict[str, Callable[..., Any]] = {}
    for name in public:
        function = names.get(name)
        if isinstance(function, FunctionType):
            if id(function) not in made:
                made[id(function)] = _named(takes_tensors(function, module, name), module, name)
            checked[name] = made[id(function)]
    return checked


def _named(function: F, module: str, name: str) -> F:
    """Has a function that was made by another one be of the module where it is public.

    Pickles name a function by its module; where it was made, another has its name, or none.
    """
    home = sys.modules.get(function.__module__)
    if getattr(home, function.__qualname__, None) is not function:
        function.__module__, function.__qualname__ = module, name
    return function
