"""NumPy's elementwise functions of Tensors: ``np.exp(t)`` and ``np.float64(2) * t`` are Tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.tensors import math, special
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.linalg import products

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

# NumPy's names that differ from PyTorch's.
NAMES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin",
    "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh",
    "degrees": "rad2deg", "divide": "div", "equal": "eq", "fabs": "abs", "greater": "gt",
    "greater_equal": "ge", "invert": "bitwise_not", "left_shift": "bitwise_left_shift",
    "less": "lt", "less_equal": "le", "multiply": "mul", "negative": "neg", "not_equal": "ne",
    "power": "pow", "radians": "deg2rad", "right_shift": "bitwise_right_shift", "rint": "round",
    "subtract": "sub",
}  # fmt: skip


def _function_of(ufunc: Any) -> Callable[..., Any] | None:
    name = NAMES.get(ufunc.__name__, ufunc.__name__)
    for module in (math, special, products):
        function: Callable[..., Any] | None = getattr(module, name, None)
        if function is not None and callable(function):
            return function
    return None


def _operand(value: Any) -> Any:
    """A number as it is, so that it takes the Tensor's dtype; an array as a Tensor of cpu."""
    if isinstance(value, np.generic):
        return value.item()
    return tensor(value, device="cpu") if isinstance(value, np.ndarray) else value


def applied(like: Tensor, ufunc: Any, method: str, inputs: tuple[Any, ...], options: Any) -> Any:
    """A call of a NumPy function of which one operand is a Tensor.

    What has a counterpart here is recorded in the graph. All else, and what is written to an
    array by ``out=``, is computed by NumPy from the values.

    Raises:
        GradientError: NumPy computes, and an operand requires grad.
        ArgumentError: the result is to be written to a Tensor.
    """
    function = _function_of(ufunc)
    if method == "__call__" and not options and function is not None:
        return function(*(_operand(value) for value in inputs))
    out = options.get("out", ())
    if any(isinstance(target, TensorBase) for target in out):
        raise ArgumentError(
            ufunc.__name__, "NumPy cannot write to a Tensor", expect="out= of NumPy arrays",
            actual="a Tensor", hint="t.copy_(...) writes to it",
        )  # fmt: skip
    arrays = (np.asarray(value) if isinstance(value, TensorBase) else value for value in inputs)
    result = getattr(ufunc, method)(*arrays, **options)
    if out or result is None:
        return result
    if isinstance(result, tuple):
        return tuple(tensor(part, device=like.device) for part in result)
    return tensor(result, device=like.device)
