"""Activations that write to their input, under PyTorch's names with an underscore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad_cuda.tensor.tensor import Tensor


def in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with ``inplace=True``."""

    def wrapped(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(input, *args, inplace=True, **options)

    wrapped.__name__ = f"{function.__name__}_"
    wrapped.__doc__ = f"`{function.__name__}`, written to the input."
    return wrapped
