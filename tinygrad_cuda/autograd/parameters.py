"""The parameters of what `gradcheck` checks: those of a Module, or that a function refers to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import float64
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def is_model(value: Any) -> bool:
    """Whether a value is a Module, whose class is of a higher package."""
    return hasattr(value, "named_parameters") and hasattr(value, "named_buffers")


def prepared(model: Any, inputs: Sequence[Any], exact: bool) -> tuple[Any, list[Any]]:
    """A copy of a model, which may be written to; in float64 with its inputs if `exact`."""
    model = copy.deepcopy(model)
    if not exact:
        return model, list(inputs)
    return model.double(), [_double(x) for x in inputs]


def _double(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.dtype.is_floating or x.dtype is float64:
        return x
    needs = x.requires_grad
    return tensor(x.detach().array().astype(np.float64), device=x.device, requires_grad=needs)


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Leaves that require grad by their names: of a Module, or of what a function refers to."""
    leaves: dict[str, Any] = {}
    for name, value in _referred(function):
        if isinstance(value, TensorBase):
            if value.leaf is not None and value.requires_grad:
                leaves.setdefault(name, value)
        else:
            for path, parameter in value.named_parameters():
                if parameter.requires_grad:
                    leaves.setdefault(f"{name}.{path}" if name else path, parameter)
    return _each_once(leaves)


def _each_once(leaves: dict[str, Any]) -> dict[str, Any]:
    seen: list[Any] = []
    first = {}
    for name, value in leaves.items():
        if all(value.leaf is not leaf for leaf in seen):
            seen.append(value.leaf)
            first[name] = value
    return first


def _referred(function: Any) -> Iterator[tuple[str, Any]]:
    """Tensors and Modules that a function refers to, with the names by which it does."""
    if is_model(function):
        yield "", function
        return
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield from _parts("self", owner)
    plain = getattr(function, "__func__", function)
    plain = getattr(plain, "__wrapped__", plain)
    if not isinstance(plain, FunctionType):
        return
    for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or ()):
        try:
            yield from _parts(name, cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for name in _names(plain.__code__):
        if name in plain.__globals__:
            yield from _parts(name, plain.__globals__[name])


def _names(code: CodeType) -> set[str]:
    """Names that a code and the functions in it look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, TensorBase) or (is_model(value) and not isinstance(value, type)):
        yield name, value
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _parts(f"{name}[{index}]", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(f"{name}[{key!r}]", part)
    elif isinstance(value, FunctionType) and not value.__module__.startswith("tinygrad_cuda"):
        for inner, part in _referred_once(value):
            yield inner, part


def _referred_once(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function that is called by the checked one has in its closure."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if isinstance(value, TensorBase) or (is_model(value) and not isinstance(value, type)):
            yield name, value


@contextmanager
def moved_to(values: Iterable[tuple[Any, Array]]) -> Iterator[None]:
    """Leaves with other values inside a `with` block."""
    pairs = list(values)
    before = [x.detach().clone() for x, _ in pairs]
    try:
        _write(pairs)
        yield
    finally:
        _write([(x, old) for (x, _), old in zip(pairs, before)])


def _write(pairs: Iterable[tuple[Any, Any]]) -> None:
    with gradient_mode(False):
        for x, value in pairs:
            new = value if isinstance(value, TensorBase) else tensor(value, device=x.device)
            x.copy_(new)


@contextmanager
def unchanged_buffers(function: Callable[..., Any]) -> Iterator[None]:
    """Buffers of Modules, such as running means, are afterwards what they were before."""
    buffers = [
        buffer for _, value in _referred(function) if is_model(value)
        for _, buffer in value.named_buffers()
    ]  # fmt: skip
    before = [buffer.detach().clone() for buffer in buffers]
    try:
        yield
    finally:
        _write(zip(buffers, before))
