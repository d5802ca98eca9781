"""Loading a state by name: everything is checked before anything is written."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """Names that a state lacks, and names in it that the module lacks."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return (
            f"_IncompatibleKeys(missing_keys={self.missing_keys}, "
            f"unexpected_keys={self.unexpected_keys})"
        )


def load(
    own: Mapping[str, Tensor], given: Mapping[str, Any], strict: bool,
    report: Callable[[IncompatibleKeys], None] | None = None,
    replace: Callable[[str, Tensor], None] | None = None,
) -> IncompatibleKeys:  # fmt: skip
    """Writes the Tensors or arrays `given` into the Tensors `own`.

    Args:
        own: what is written to.
        given: the values.
        strict: refuse names that differ.
        report: sees the names that differ when the others are written, and may change them.
        replace: puts a given Tensor in the place of its own, by its name; else they are written to.

    Raises:
        ArgumentError: names differ, and strict is true; or a value is no array.
        ShapeError: a value has another shape.
    """
    missing = [name for name in own if name not in given]
    unexpected = [name for name in given if name not in own]
    if report is None and strict and (missing or unexpected):
        raise _names_differ(missing, unexpected, own, given)
    values = {name: given[name] for name in own if name in given}
    for name, value in values.items():
        if not hasattr(value, "shape"):
            raise ArgumentError(
                "load_state_dict", f"{name} is no Tensor", expect="a Tensor or a NumPy array",
                actual=type(value).__name__,
            )  # fmt: skip
    _check_shapes(own, values)
    for name, value in values.items():
        if own[name].ndim == 0 and value.ndim == 1:
            values[name] = value[0]
    with gradient_mode(False):
        for name, value in values.items():
            target = own[name]
            if replace is not None:
                replace(name, _in_place_of(target, value))
            else:
                target.copy_(value)
    keys = IncompatibleKeys(missing, unexpected)
    if report is not None:
        report(keys)
        if strict and (missing or unexpected):
            raise _names_differ(missing, unexpected, own, given)
    return keys


def _in_place_of(own: Tensor, given: Any) -> Tensor:
    """What takes the place of a Parameter, which keeps its `requires_grad`, or of a buffer."""
    value = given if isinstance(given, Tensor) else tensor(given)
    if not isinstance(own, Parameter):
        return value
    if not isinstance(value, Parameter):
        return Parameter(value, own.requires_grad)
    value.requires_grad_(own.requires_grad)
    return value


def _names_differ(
    missing: list[str], unexpected: list[str], own: Mapping[str, Tensor], given: Mapping[str, Any]
) -> ArgumentError:
    parts = []
    if missing:
        parts.append("missing: " + ", ".join(missing))
    if unexpected:
        parts.append("unexpected: " + ", ".join(unexpected))
    parts += [
        f"{name}: {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
        for name in of_other_shapes(own, given)
    ]
    hints = []
    for name in unexpected:
        near = difflib.get_close_matches(name, missing, 1)
        hints += [f"{name} may be {near[0]}"] if near else []
    return ArgumentError(
        "load_state_dict",
        "the names do not fit the module",
        expect=", ".join(own),
        actual="\n".join(parts),
        hint="; ".join([*hints[:3], "strict=False loads what fits"]),
    )


def _check_shapes(own: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    wrong = of_other_shapes(own, values)
    if wrong:
        raise ShapeError(
            "load_state_dict",
            "shapes differ",
            expect="\n".join(f"{name}: {tuple(own[name].shape)}" for name in wrong),
            actual="\n".join(f"{name}: {tuple(values[name].shape)}" for name in wrong),
            hint="build the model with the sizes of the state, or leave these names out of it and "
            "load with strict=False",
        )


def of_other_shapes(own: Mapping[str, Tensor], given: Mapping[str, Any]) -> list[str]:
    """The names in both whose shapes differ.

    One element fits a Tensor without dimensions, which PyTorch had not before 0.4.
    """
    both = [(name, target) for name, target in own.items() if hasattr(given.get(name), "shape")]
    return [
        name for name, target in both
        if (shape := tuple(given[name].shape)) != tuple(target.shape)
        and not (shape == (1,) and target.ndim == 0)
    ]  # fmt: skip
