"""Switches for the recording of history: no_grad, enable_grad, set_grad_enabled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar

from tinygrad_cuda.graph.node import mode

F = TypeVar("F", bound=Callable[..., Any])


class _GradMode:
    """A context manager and decorator that sets gradient mode for this thread."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._old: list[bool] = []

    def __enter__(self) -> None:
        now = mode.now
        self._old.append(now.gradients)
        now.gradients = self.enabled

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.now.gradients = self._old.pop()

    def __call__(self, function: F) -> F:
        enabled = self.enabled
        if inspect.isgeneratorfunction(function):
            return _around_steps(function, enabled)  # type: ignore[no-any-return]

        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            with _GradMode(enabled):
                return function(*args, **options)

        return wrapper  # type: ignore[return-value]


def _around_steps(function: Any, enabled: bool) -> Any:
    """A generator whose body runs in the mode, while its consumer keeps its own."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **options)
        step: Callable[[], Any] = functools.partial(next, generator)
        try:
            while True:
                with _GradMode(enabled):
                    try:
                        value = step()
                    except StopIteration as stop:
                        return stop.value
                try:
                    step = functools.partial(generator.send, (yield value))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = functools.partial(generator.throw, error)
        finally:
            with _GradMode(enabled):
                generator.close()

    return wrapper


class no_grad(_GradMode):
    """Inside, operations record no history; a context manager, and a decorator with or without ().

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0], device="cpu", requires_grad=True)
        >>> with tc.no_grad():
        ...     y = x * 2
        >>> y.requires_grad
        False
    """

    _default = False

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        instance = super().__new__(cls)
        if function is None:
            return instance
        instance.__init__()  # type: ignore[misc]
        return instance(function)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__(self._default)


class enable_grad(no_grad):
    """Inside, operations record history, also within `no_grad`."""

    _default = True


class inference_mode(_GradMode):
    """`no_grad` under PyTorch's name for pure inference; ``inference_mode(False)`` records."""

    def __new__(cls, mode: Any = True) -> Any:
        instance = super().__new__(cls)
        if isinstance(mode, bool):
            return instance
        instance.__init__()  # type: ignore[misc]
        return instance(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode)


class set_grad_enabled(_GradMode):
    """Switches history on or off, at once; as a context manager until the block ends."""

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        self._switched = True
        self._old.append(_switch(mode))

    def __enter__(self) -> None:
        # The constructor has switched already, the first time.
        old = _switch(self.enabled)
        if not self._switched:
            self._old.append(old)
        self._switched = False

    def __call__(self, function: F) -> F:
        if self._switched:
            _switch(self._old.pop())
            self._switched = False
        return super().__call__(function)


def _switch(enabled: bool) -> bool:
    """Sets gradient mode; returns what it was."""
    old = mode.now.gradients
    mode.now.gradients = enabled
    return old


def is_grad_enabled() -> bool:
    """Whether operations of this thread record history."""
    return mode.now.gradients
