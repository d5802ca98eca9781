"""Keywords that PyTorch's functions share: ``out=``, and what creation functions accept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tinygrad_cuda.core import layouts
from tinygrad_cuda.core.errors import DTypeError, GradientError
from tinygrad_cuda.graph.node import mode
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.layout import in_format

F = TypeVar("F", bound=Callable[..., Any])


def written(op: str, result: Any, out: Any) -> Any:
    """The result in `out`, which takes its shape, as PyTorch's functions do with ``out=``.

    Raises:
        DTypeError: the dtype of `out` is of a lower kind.
        GradientError: gradients would flow through the result or `out`.
    """
    if not isinstance(result, TensorBase):
        for value, target in zip(result, out):
            written(op, value, target)
        return type(result)(*out) if hasattr(result, "_fields") else out
    if mode.now.gradients and (result.requires_grad or out.requires_grad):
        raise GradientError(
            op, "out= passes no gradient", expect="tensors without grad, or no_grad()",
            actual="a tensor that requires grad", hint="use the result instead of out=",
        )  # fmt: skip
    if result.dtype.category > out.dtype.category:
        raise DTypeError(
            op, "the result does not fit out=", expect=f"a dtype that holds {result.dtype.name}",
            actual=out.dtype.name,
        )  # fmt: skip
    if out.node.shape != result.node.shape:
        out.resize_(result.node.shape)
    return out.copy_(result)


def takes_out(function: F) -> F:
    """The function with PyTorch's keyword ``out``: a Tensor, or several, for the result."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        if not options:
            return function(*arguments)
        if "out" not in options:
            return function(*arguments, **options)
        out = options.pop("out")
        result = function(*arguments, **options)
        return result if out is None else written(function.__name__, result, out)

    return cast(F, wrapper)


def creates(function: F) -> F:
    """A creation function with ``layout``, ``memory_format``, ``pin_memory`` and ``out``.

    ``pin_memory=True`` pins where there is a usable GPU; ``layout`` names what is the case anyway.
    """
    plain = takes_out(function)

    @functools.wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        if not options:
            return function(*arguments)
        options.pop("layout", None)
        order = options.pop("memory_format", layouts.preserve_format)
        pinned = options.pop("pin_memory", False)
        result = in_format(function.__name__, plain(*arguments, **options), order)
        return result.pin_memory() if pinned else result

    return cast(F, wrapper)
