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
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import numpy as np

from tinygrad_cuda.core.device import Device, as_device
from tinygrad_cuda.core.dtypes import DType, as_dtype
from tinygrad_cuda.core.errors import DataError
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.base import Size

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
        if not trusted:
            raise DataError(
                "load", f"the file needs {'.'.join(rest)}, a part of a program",
                expect="Tensors and plain values", actual=f"a {kind} of {rest[0]}",
                hint="load(path, weights_only=False) where you trust the file, "
                "or save the state_dict()",
            )  # fmt: skip
        return _named(rest) if kind == "name" else _rebuilt(rest, decode(value["values"]))
    raise KeyError(kind)


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
    try:
        value: Any = sys.modules.get(module) or importlib.import_module(module)
        for step in path.split("."):
            value = getattr(value, step)
    except (ImportError, AttributeError, ValueError):
        return None
    return value
