"""tc.overrides: the ``__torch_function__`` protocol for functions of a program's own.

The package's functions take Tensors and do not ask their arguments for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "handle_torch_function", "has_torch_function", "is_tensor_like", "is_tensor_method_or_property",
    "wrap_torch_function",
]  # fmt: skip


def is_tensor_like(inp: Any) -> bool:
    """Whether it is a Tensor, or of a class with ``__torch_function__``.

    Example:
        >>> import tinygrad_cuda as tc
        >>> is_tensor_like(tc.ones(1, device="cpu")), is_tensor_like(1.0)
        (True, False)
    """
    return isinstance(inp, Tensor) or hasattr(inp, "__torch_function__")


def _overloaded(arguments: Iterable[Any]) -> list[Any]:
    """Arguments whose classes have the method: one of each, subclasses before their bases."""
    found: list[Any] = []
    for argument in arguments:
        kind = type(argument)
        if hasattr(kind, "__torch_function__") and all(kind is not type(x) for x in found):
            before = (n for n, other in enumerate(found) if issubclass(kind, type(other)))
            found.insert(next(before, len(found)), argument)
    return found


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Whether the class of one of some arguments has ``__torch_function__``; Tensors have not.

    Example:
        >>> import tinygrad_cuda as tc
        >>> has_torch_function((tc.ones(1, device="cpu"), 2))
        False
    """
    return bool(_overloaded(relevant_args))


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """What the arguments' classes make of a call.

    Args:
        public_api: the function that was called.
        relevant_args: those of its arguments that may have ``__torch_function__``.
        args, kwargs: all of them, as they are handed on.

    Raises:
        ArgumentError: each of them returned NotImplemented.

    Example:
        >>> class Logged:
        ...     @classmethod
        ...     def __torch_function__(cls, function, types, args=(), kwargs=None):
        ...         return function.__name__
        >>> handle_torch_function(len, (Logged(),), Logged())
        'len'
    """
    overloaded = _overloaded(relevant_args)
    types = tuple(map(type, overloaded))
    for argument in overloaded:
        result = argument.__torch_function__(public_api, types, args, kwargs)
        if result is not NotImplemented:
            return result
    raise ArgumentError(
        "handle_torch_function", f"no argument's class computes {public_api.__name__}",
        expect="a __torch_function__ that returns something",
        actual=", ".join(kind.__name__ for kind in types) or "none has __torch_function__",
    )  # fmt: skip


def wrap_torch_function(
    dispatcher: Callable[..., Iterable[Any]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function asks some of its arguments for ``__torch_function__`` first.

    Args:
        dispatcher: is given the function's arguments, and returns those to ask.

    Example:
        >>> @wrap_torch_function(lambda a: (a,))
        ... def double(a):
        ...     return a + a
        >>> double(2)
        4
    """

    def inner(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            relevant = tuple(dispatcher(*args, **kwargs))
            if has_torch_function(relevant):
                return handle_torch_function(wrapped, relevant, *args, **kwargs)
            return function(*args, **kwargs)

        return wrapped

    return inner


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Whether a function is one of Tensor's methods, or reads one of its properties.

    Example:
        >>> import tinygrad_cuda as tc
        >>> is_tensor_method_or_property(tc.Tensor.tolist), is_tensor_method_or_property(len)
        (True, False)
    """
    values = [value for kind in Tensor.__mro__[:-1] for value in vars(kind).values()]
    return any(func is value or func is getattr(value, "fget", value) for value in values) or (
        getattr(func, "__name__", "") == "__get__"
    )


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
