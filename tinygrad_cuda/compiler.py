"""tc.compiler: what programs ask and say about compilation, under PyTorch's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinygrad_cuda.capture import compile
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.engine.capture import capturing

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin", "disable",
    "is_compiling", "is_dynamo_compiling", "is_exporting", "reset", "set_stance",
]  # fmt: skip


def is_compiling() -> bool:
    """Whether `tc.compile` is recording the function that asks."""
    return capturing() is not None


is_dynamo_compiling = is_compiling


def is_exporting() -> bool:
    """False."""
    return False


def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
    """The function itself, also as ``@disable()``: inside `tc.compile` it is recorded as any other.

    What it computes is the same; what may not be recorded is refused with its line.
    """
    return fn if callable(fn) else lambda function: function


def allow_in_graph(fn: Any) -> Any:
    """The function itself: every function is recorded."""
    return fn


def assume_constant_result(fn: Any) -> Any:
    """The function itself: it is called whenever the function around it is recorded."""
    return fn


def reset() -> None:
    """Accepted as in PyTorch: a function records anew by itself when what it reads has changed."""


def cudagraph_mark_step_begin() -> None:
    """Accepted as in PyTorch: outputs never alias those of an earlier call."""


def set_stance(stance: str = "default", **options: Any) -> None:
    """Accepted as in PyTorch."""


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
