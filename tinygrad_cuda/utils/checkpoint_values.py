"""What checkpoints hold besides Tensors and plain values: NumPy's, namespaces, whole modules.

Values are rebuilt from their parts alone. What needs a class or a function of a program, such as a
whole module, names it, and is rebuilt only where the reader says that it trusts the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any

import numpy as np

from tinygrad_cuda.core.device import Device, as_device
from tinygrad_cuda.core.dtypes import DType, as_dtype
from tinygrad_cuda.core.errors import ArgumentError, DataError
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.base import Size

_safe: dict[tuple[str, str], Any] = {}  # by module and name, what any file may name
NAMESPACES = {"argparse": argparse.Namespace, "types": types.SimpleNamespace}


def encoded(
    value: Any, encode: Callable[[Any], Any], store: Callable[[np.ndarray[Any, Any]], str]
) -> Any:
    """What stands in the structure for a value of one of these kinds; None for another.

    Args:
        encode: of the parts of a value.
        store: puts an array into the file, and gives its name there.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": store(value)}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": store(np.asarray(value))}
    if isinstance(value, set | frozenset):
        return {type(value).__name__: [encode(element) for element in sorted(value, key=repr)]}
    if isinstance(value, Size):
        return {"size": list(value)}
    if isinstance(value, DType | Device):
        return {
            "dtype" if isinstance(value, DType) else "device": str(getattr(value, "name", value))
        }
    if isinstance(value, PurePath):
        return {"path": str(value)}
    for name, kind in NAMESPACES.items():
        if type(value) is kind:
            return {"namespace": name, "values": encode(vars(value))}
    if isinstance(value, Module) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        return {"object": _name_of(type(value)), "values": encode(dict(vars(value)))}
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return {"name": _name_of(value)} if _named(_name_of(value)) is value else None
    return None


def decoded(
    value: dict[str, Any], decode: Callable[[Any], Any], arrays: dict[str, Any], trusted: bool
) -> Any:
    """The value that `encoded` was given.

    Raises:
        DataError: it needs a class or a function of a program, and the file is not trusted.
        KeyError: the structure stands for none.
    """
    (kind, rest), *_ = value.items()
    if kind == "array":
        return arrays[rest]
    if kind == "scalar":
        return arrays[rest][()]
    if kind in ("set", "frozenset"):
        return {"set": set, "frozenset": frozenset}[kind]([decode(element) for element in rest])
    if kind == "size":
        return Size(rest)
    if kind in ("dtype", "device"):
        return as_dtype(rest) if kind == "dtype" else as_device(rest)
    if kind == "path":
        return PurePath(rest)
    if kind == "namespace":
        return NAMESPACES[rest](**decode(value["values"]))
    if kind in ("object", "name"):
        if not trusted and tuple(rest) not in _safe:
            raise DataError(
                "load", f"the file needs {'.'.join(rest)}, a part of a program",
                expect="Tensors and plain values", actual=f"a {kind} of {rest[0]}",
                hint="load(path, weights_only=False) where you trust the file, "
                "or save the state_dict()",
            )  # fmt: skip
        return _named(rest) if kind == "name" else _rebuilt(rest, decode(value["values"]))
    raise KeyError(kind)


def add_safe_globals(safe_globals: Iterable[Any]) -> None:
    """Lets `load` rebuild objects of some classes without ``weights_only=False``.

    A file of `save` names them; of torch.save's files no class of a program is read at all.

    Args:
        safe_globals: classes and functions that a program has at the top of a Python module.

    Raises:
        ArgumentError: one of them is no class and no function.

    Example:
        >>> import dataclasses, io
        >>> import tinygrad_cuda as tc
        >>> with tc.serialization.safe_globals([tc.nn.Linear]):
        ...     tc.serialization.get_safe_globals()
        [<class 'tinygrad_cuda.nn.linear.Linear'>]
    """
    for value in safe_globals:
        if not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            raise ArgumentError(
                "add_safe_globals", "a value is no class and no function",
                expect="a list of classes and functions", actual=type(value).__name__,
            )  # fmt: skip
        module, name = _name_of(value)
        _safe[module, name] = value


def get_safe_globals() -> list[Any]:
    """The classes and functions that `add_safe_globals` was given."""
    return list(_safe.values())


def clear_safe_globals() -> None:
    """Takes back all that `add_safe_globals` was given."""
    _safe.clear()


class safe_globals:
    """A block in which `load` may rebuild objects of some classes; see `add_safe_globals`.

    Args:
        safe_globals: classes and functions.
    """

    def __init__(self, safe_globals: Iterable[Any]) -> None:
        self.safe_globals = list(safe_globals)

    def __enter__(self) -> None:
        self._before = dict(_safe)
        add_safe_globals(self.safe_globals)

    def __exit__(self, *error: object) -> None:
        _safe.clear()
        _safe.update(self._before)


def _rebuilt(name: list[str], values: dict[str, Any]) -> Any:
    kind = _named(name)
    if not isinstance(kind, type) or not (
        issubclass(kind, Module) or dataclasses.is_dataclass(kind)
    ):
        raise DataError(
            "load", f"{'.'.join(name)} is no module", expect="a Module or a dataclass that exists",
            actual=type(kind).__name__, hint="import or define the class before loading",
        )  # fmt: skip
    made = kind.__new__(kind)
    vars(made).update(values)
    return made


def _name_of(value: Any) -> list[str]:
    return [value.__module__ or "", value.__qualname__]


def _named(name: list[str]) -> Any:
    """The class or function of that name, or None."""
    module, path = name
    if (module, path) in _safe:
        return _safe[module, path]
    try:
        value: Any = sys.modules.get(module) or importlib.import_module(module)
        for step in path.split("."):
            value = getattr(value, step)
    except (ImportError, AttributeError, ValueError):
        return None
    return value
