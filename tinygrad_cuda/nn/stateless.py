"""A Module called with other parameters than its own: functional_call and stack_module_state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.shaping import stack
from tinygrad_cuda.tensors.tensor import Tensor


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """``module(*args, **kwargs)`` with the given Tensors instead of its parameters and buffers.

    Args:
        module: is as it was afterwards; buffers that it writes are written in the Tensors given.
        parameter_and_buffer_dicts: Tensors by name, as `named_parameters` has them; or several
            such dicts. What is not named stays the module's own.
        args: the positional arguments: a tuple, or the only one.
        kwargs: the keyword arguments.
        tie_weights: a parameter with several names is replaced under all of them.
        strict: raise if a name is missing.

    Raises:
        ArgumentError: a name that the module lacks, or (strict) one that is missing.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer = tc.nn.Linear(2, 1, bias=False, device="cpu")
        >>> weight = tc.tensor([[1.0, 10.0]], device="cpu")
        >>> x = tc.tensor([2.0, 3.0], device="cpu")
        >>> tc.func.functional_call(layer, {"weight": weight}, (x,)).tolist()
        [32.0]
    """
    given: dict[str, Any] = {}
    dicts = parameter_and_buffer_dicts
    for named in [dicts] if isinstance(dicts, dict) else dicts:
        given.update(named)
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        args = (args,)
    replacements = _places(module, given, tie_weights, strict)
    with _replaced(replacements):
        return module(*args, **(kwargs or {}))


def _places(
    module: Module, given: dict[str, Any], tie_weights: bool, strict: bool
) -> list[tuple[dict[str, Any], str, Any]]:
    """For each Tensor given the table and the name under which it is to stand."""
    tables: dict[str, tuple[dict[str, Any], str]] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        for table in (owner._parameters, owner._buffers):
            for name in table:
                tables[f"{path}.{name}" if path else name] = (table, name)
    unknown = [name for name in given if name not in tables]
    missing = [name for name in tables if name not in given] if strict else []
    if unknown or missing:
        raise ArgumentError(
            "functional_call",
            "the names do not fit the module",
            expect="the names of its parameters and buffers",
            actual="; ".join(
                f"{what}: {', '.join(names)}"
                for what, names in (("unknown", unknown), ("missing", missing))
                if names
            ),
        )
    replacements = []
    for name, value in given.items():
        table, key = tables[name]
        replacements.append((table, key, value))
        if tie_weights and table[key] is not None:
            for other, (also, also_key) in tables.items():
                if other not in given and also[also_key] is table[key]:
                    replacements.append((also, also_key, value))
    return replacements


@contextmanager
def _replaced(replacements: Iterable[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    """Replaces parameters and buffers by the Tensors, until the block ends."""
    before = []
    try:
        for table, name, value in replacements:
            before.append((table, name, table[name]))
            table[name] = value
        yield
    finally:
        for table, name, value in reversed(before):
            table[name] = value


def stack_module_state(
    models: Sequence[Module],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters, and the buffers, of several modules, stacked along a new dimension 0.

    With `vmap` over `functional_call` that is an ensemble in one pass. The parameters are new
    leaves that require grad where the first model's do.

    Raises:
        ArgumentError: there are no models, or of different kinds.
    """
    kinds = {type(model) for model in models}
    if len(kinds) != 1:
        raise ArgumentError(
            "stack_module_state",
            "the models are of several classes",
            expect="several models of one class",
            actual=", ".join(sorted(kind.__name__ for kind in kinds)) or "none",
        )
    parameters: dict[str, Tensor] = {}
    for name, first in models[0].named_parameters():
        parts = [dict(model.named_parameters())[name].detach() for model in models]
        parameters[name] = stack(parts).requires_grad_(first.requires_grad)
    buffers = {
        name: stack([dict(model.named_buffers())[name] for model in models])
        for name, _ in models[0].named_buffers()
    }
    return parameters, buffers
