"""Hooks on the gradients of a module: its outputs and inputs seen through identities.

What passes backward through the one is held until the other is reached.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.tensor import RemovableHandle, entered

_numbers = itertools.count()
Hooks = list[Callable[..., Any]]
Gradients = tuple[Any, ...]


def add_hook(
    hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any], prepend: bool = False
) -> RemovableHandle:
    """Adds a hook to a table of them, before the others or after; the handle takes it away."""
    handle = entered(hooks, next(_numbers), hook)
    if prepend:
        last = next(reversed(hooks))
        others = {key: value for key, value in hooks.items() if key != last}
        hooks_of_all = {last: hooks[last], **others}
        hooks.clear()
        hooks.update(hooks_of_all)
    return handle


class GradientHooks:
    """The hooks of one call of a module.

    Args:
        module: given to the hooks.
        before: hooks called with (module, grad_output).
        after: hooks called with (module, grad_input, grad_output).
    """

    def __init__(self, module: Any, before: Hooks, after: Hooks) -> None:
        self.module, self.before, self.after = module, before, after
        self.of_outputs: Gradients = ()
        self.waits_for_inputs = False

    def inputs(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs, whose gradients call the hooks `after`."""
        self.waits_for_inputs = any(_flows(value) for value in values)
        if not self.after or not self.waits_for_inputs:
            return values
        return _watched(values, self._leave)

    def outputs(self, result: Any) -> Any:
        """The result, whose gradients call the hooks `before`."""
        several = isinstance(result, tuple | list)
        values = tuple(result) if several else (result,)
        if not any(_flows(value) for value in values):
            return result
        results = _watched(values, self._enter)
        return type(result)(results) if several else results[0]

    def _enter(self, gradients: Gradients) -> Gradients:
        for hook in self.before:
            gradients = _replaced(gradients, hook(self.module, gradients))
        self.of_outputs = gradients
        if self.after and not self.waits_for_inputs:
            for hook in self.after:
                hook(self.module, (), gradients)
        return gradients

    def _leave(self, gradients: Gradients) -> Gradients:
        for hook in self.after:
            gradients = _replaced(gradients, hook(self.module, gradients, self.of_outputs))
        return gradients


def _flows(value: Any) -> bool:
    return isinstance(value, TensorBase) and value.requires_grad


def _replaced(old: Gradients, new: Any) -> Gradients:
    if new is None:
        return old
    given = tuple(new) if isinstance(new, tuple | list) else (new,)
    if len(given) != len(old):
        raise ArgumentError(
            "backward hook", "returned another number of gradients", expect=str(len(old)),
            actual=str(len(given)),
        )  # fmt: skip
    return given


def _watched(values: tuple[Any, ...], see: Callable[[Gradients], Gradients]) -> tuple[Any, ...]:
    """The Tensors that require grad, through one identity whose gradients `see` gets and gives."""
    positions = [position for position, value in enumerate(values) if _flows(value)]
    nodes = [values[position].node for position in positions]

    def passed(*gradients: Node | None) -> list[Node | None]:
        shown: list[Any] = [None] * len(values)
        for position, g in zip(positions, gradients):
            shown[position] = None if g is None else wrap(g)
        seen = see(tuple(shown))
        return [None if seen[position] is None else seen[position].node for position in positions]

    count = len(nodes)
    whole = common.custom(
        *(detached(node) for node in nodes), *nodes, results=count, function=passed, name="hooks"
    )
    results = list(values)
    for number, position in enumerate(positions):
        results[position] = wrap(whole if count == 1 else common.output(whole, index=number))
    return tuple(results)
