"""tc.jit: what programs written for TorchScript call; a function stays the function it is.

`tc.compile` is what makes a function faster here.
"""

from __future__ import annotations

import builtins
import functools
import typing
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tinygrad_cuda.core.names import also_named, missing_from
from tinygrad_cuda.nn.module import Module

T = TypeVar("T")

__all__ = [
    "Attribute", "Final", "ScriptFunction", "ScriptModule", "annotate", "export", "fork", "freeze",
    "ignore", "is_scripting", "is_tracing", "isinstance", "optimize_for_inference", "script",
    "script_if_tracing", "script_method",
    "trace", "trace_module", "unused", "wait",
]  # fmt: skip

_TYPING = ("Any", "Callable", "Dict", "List", "Optional", "Tuple", "Union")
ScriptModule = Module
ScriptFunction = Callable[..., Any]


@functools.cache
def _note(name: str) -> None:
    """Once a process: a program that calls this for its speed should hear what to call."""
    warnings.warn(
        f"jit.{name} returns what it is given: there is no TorchScript; tc.compile makes a "
        "function faster",
        stacklevel=3,
    )


def script(obj: T, *args: Any, **options: Any) -> T:
    """The function, class or Module itself; the first call warns that nothing is compiled.

    Args:
        obj: what is to be called as before.
        args, options: accepted as in PyTorch.

    Example:
        >>> import tinygrad_cuda as tc
        >>> @tc.jit.ignore
        ... def twice(x):
        ...     return x * 2
        >>> twice(3)
        6
    """
    _note("script")
    return obj


def trace(func: T, example_inputs: Any = None, *args: Any, **options: Any) -> T:
    """The function or Module itself; the first call warns that nothing is compiled."""
    _note("trace")
    return func


def trace_module(mod: T, inputs: Any = None, *args: Any, **options: Any) -> T:
    """The Module itself; the first call warns that nothing is compiled."""
    _note("trace_module")
    return mod


def ignore(drop: Any = False, **options: Any) -> Any:
    """The function itself, also as ``@ignore()``."""
    return drop if callable(drop) else lambda function: function


def unused(fn: T) -> T:
    """The function itself."""
    return fn


def export(fn: T) -> T:
    """The function itself."""
    return fn


def _overload(fn: T) -> T:
    """The function itself; its other signatures, of which it is one, were for TorchScript."""
    return fn


_overload_method = _overload


def freeze(mod: T, *args: Any, **options: Any) -> T:
    """The Module itself."""
    return mod


def optimize_for_inference(mod: T, *args: Any, **options: Any) -> T:
    """The Module itself."""
    return mod


def fork(func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """The result of the function, which is called at once."""
    return func(*args, **kwargs)


def wait(future: T) -> T:
    """The result that `fork` returned."""
    return future


def script_method(fn: T) -> T:
    """The method itself."""
    return fn


def script_if_tracing(fn: T) -> T:
    """The function itself."""
    return fn


def annotate(the_type: Any, the_value: T) -> T:
    """The value itself."""
    return the_value


class Attribute:
    """A value with its type, as in PyTorch."""

    def __init__(self, value: Any, type: Any) -> None:
        self.value, self.type = value, type


def is_scripting() -> bool:
    """False."""
    return False


def is_tracing() -> bool:
    """False."""
    return False


def isinstance(obj: Any, target_type: Any) -> bool:
    """Python's own."""
    return builtins.isinstance(obj, target_type)


# Where older programs import the words of their annotations from.
_annotations = ModuleType(f"{__name__}.annotations", "Names of `typing`.")
_annotations.__dict__.update({name: getattr(typing, name) for name in _TYPING})
also_named(__name__, {"annotations": _annotations})

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
