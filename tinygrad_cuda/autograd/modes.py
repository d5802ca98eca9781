"""Switches for the recording of history: no_grad, enable_grad, set_grad_enabled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from tinygrad_cuda.graph.node import mode

F = TypeVar("F", bound=Callable[..., Any])


class _GradMode:
    """A context manager and decorator that sets gradient mode for this thread."""

    enabled = True

    def __init__(self) -> None:
        self._old: list[bool] = []

    def __enter__(self) -> None:
        self._old.append(mode.gradients)
        mode.gradients = self.enabled

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.gradients = self._old.pop()

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            with type(self)():
                return function(*args, **options)

        return wrapper  # type: ignore[return-value]


class no_grad(_GradMode):
    """Inside, operations record no history.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0], device="cpu", requires_grad=True)
        >>> with tc.no_grad():
        ...     y = x * 2
        >>> y.requires_grad
        False
    """

    enabled = False

    def __new__(cls, function: Any = None) -> Any:
        # Also usable as a bare decorator, as in PyTorch.
        instance = super().__new__(cls)
        if function is None:
            return instance
        cls.__init__(instance)
        return instance(function)

    def __init__(self, function: Any = None) -> None:
        super().__init__()


class inference_mode(no_grad):
    """`no_grad` under PyTorch's name for pure inference."""


class enable_grad(_GradMode):
    """Inside, operations record history, also within `no_grad`."""


class set_grad_enabled(_GradMode):
    """Switches history on or off, at once and as a context manager."""

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.enabled = enabled
        self._old.append(mode.gradients)
        mode.gradients = enabled

    def __enter__(self) -> None:
        mode.gradients = self.enabled

    def __call__(self, function: F) -> F:
        mode.gradients = self._old.pop()
        enabled = self.enabled

        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            with set_grad_enabled(enabled):
                return function(*args, **options)

        return wrapper  # type: ignore[return-value]


def is_grad_enabled() -> bool:
    """Whether operations of this thread record history."""
    return mode.gradients
