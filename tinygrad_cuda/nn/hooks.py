"""Hooks on the gradients of a module: its outputs and inputs seen through identities.

What passes backward through the one is held until the other is reached.
"""

from __future__ import annotations

import itertools
import warnings
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
        self.count = 0

    def inputs(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs, whose gradients call the hooks `after`."""
        self.count = len(values)
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
            none = (None,) * self.count
            for hook in self.after:
                if any(
                    part is not None for part in _replaced(none, hook(self.module, none, gradients))
                ):
                    raise ArgumentError(
                        "backward hook", "returned a gradient of an input that needs none",
                        expect="None, since no input requires grad", actual="a gradient",
                    )  # fmt: skip
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


# Of all modules ---------------------------------------------------------------------------------


class HooksOfAll:
    """Hooks on the calls of every module, by the four kinds; called before a module's own.

    Attributes:
        present: whether there is one.
        changes: how often one was added or taken away; recorded calls compare it.
    """

    KINDS = ("forward_pre", "forward", "backward_pre", "backward")

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, Callable[..., Any]]] = {kind: {} for kind in self.KINDS}
        self.with_kwargs: set[int] = set()
        self.always: set[int] = set()
        self.present, self.changes = False, 0

    def add(self, kind: str, hook: Callable[..., Any], *noted: set[int]) -> RemovableHandle:
        """Adds a hook of a kind, and its key to the sets `noted`."""
        table = self.tables[kind]
        handle = add_hook(table, hook)
        for keys in noted:
            keys.add(next(reversed(table)))
        self._look()

        def remove() -> None:
            handle.remove()
            self._look()

        return RemovableHandle(remove)

    def _look(self) -> None:
        self.present, self.changes = any(self.tables.values()), self.changes + 1


of_all = HooksOfAll()


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """As `Module.register_forward_pre_hook`, on every module there is.

    Returns:
        A handle whose `remove()` takes the hook away.
    """
    return of_all.add("forward_pre", hook)


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """As `Module.register_forward_hook`, on every module there is.

    Args:
        hook: what is called.
        with_kwargs, always_call: as there.

    Returns:
        A handle whose `remove()` takes the hook away.

    Example:
        >>> import tinygrad_cuda as tc
        >>> from tinygrad_cuda import nn
        >>> seen = []
        >>> with nn.modules.module.register_module_forward_hook(
        ...     lambda module, inputs, output: seen.append(type(module).__name__)
        ... ):
        ...     _ = nn.Sequential(nn.ReLU(), nn.Tanh())(tc.ones(1, device="cpu"))
        >>> seen
        ['ReLU', 'Tanh', 'Sequential']
    """
    noted = [of_all.with_kwargs] * with_kwargs + [of_all.always] * always_call
    return of_all.add("forward", hook, *noted)


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """As `Module.register_full_backward_pre_hook`, on every module there is.

    Returns:
        A handle whose `remove()` takes the hook away.
    """
    return of_all.add("backward_pre", hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """As `Module.register_full_backward_hook`, on every module there is.

    Returns:
        A handle whose `remove()` takes the hook away.
    """
    return of_all.add("backward", hook)


# Called where a module is given a Parameter, a buffer or a Module, by the table it enters.
_registrations: dict[str, dict[int, Callable[..., Any]]] = {
    "_parameters": {}, "_buffers": {}, "_modules": {},
}  # fmt: skip


def registered(module: Any, table: str, name: str, value: Any) -> Any:
    """What enters a table of a module, as the hooks on registrations leave it."""
    if value is None and table == "_parameters":
        return value  # PyTorch calls no hook for a Parameter that is None
    for hook in list(_registrations[table].values()):
        replaced = hook(module, name, value)
        value = value if replaced is None else replaced
    return value


def register_module_parameter_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls ``hook(module, name, parameter)`` wherever a module is given a Parameter.

    Args:
        hook: may return another Parameter that is taken instead.

    Returns:
        A handle whose `remove()` takes the hook away.

    Example:
        >>> from tinygrad_cuda import nn
        >>> names = []
        >>> with nn.modules.module.register_module_parameter_registration_hook(
        ...     lambda module, name, parameter: names.append(name)
        ... ):
        ...     _ = nn.Linear(2, 3, device="cpu")
        >>> names
        ['weight', 'bias']
    """
    return add_hook(_registrations["_parameters"], hook)


def register_module_buffer_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls ``hook(module, name, buffer)`` wherever a module is given a buffer, or None for one.

    Args:
        hook: may return another Tensor that is taken instead.

    Returns:
        A handle whose `remove()` takes the hook away.
    """
    return add_hook(_registrations["_buffers"], hook)


def register_module_module_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls ``hook(module, name, submodule)`` wherever a module is given a Module, or None for one.

    Args:
        hook: may return another Module that is taken instead.

    Returns:
        A handle whose `remove()` takes the hook away.
    """
    return add_hook(_registrations["_modules"], hook)


class ForwardHooks:
    """One call of a module that has hooks.

    Args:
        module: whose `forward` is called.
        inputs, options: its arguments.
    """

    def __init__(self, module: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.module, self.inputs, self.options = module, inputs, options
        self.output: Any = None
        self.done: set[int] = set()
        self.named = module._hooks_with_kwargs | of_all.with_kwargs

    def _of(self, kind: str) -> list[tuple[int, Callable[..., Any]]]:
        own = getattr(self.module, f"_{kind}_hooks")
        return [*of_all.tables[kind].items(), *own.items()]

    def run(self) -> Any:
        """The output as the hooks leave it."""
        for key, hook in self._of("forward_pre"):
            self._replace_inputs(hook, key in self.named)
        before, after = ([hook for _, hook in self._of(kind)] for kind in KINDS_OF_GRADIENTS)
        gradients = GradientHooks(self.module, before, after) if before or after else None
        if gradients is not None:
            self.inputs = gradients.inputs(self.inputs)
        self.output = self.module.forward(*self.inputs, **self.options)
        for key, hook in self._of("forward"):
            self.done.add(key)
            replaced = self._call(key, hook)
            self.output = self.output if replaced is None else replaced
        return self.output if gradients is None else gradients.outputs(self.output)

    def _replace_inputs(self, hook: Callable[..., Any], named: bool) -> None:
        if not named:
            if (replaced := hook(self.module, self.inputs)) is not None:
                self.inputs = replaced if isinstance(replaced, tuple) else (replaced,)
            return
        pair = hook(self.module, self.inputs, self.options)
        if pair is None:
            return
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ArgumentError(
                "forward pre-hook", "with_kwargs wants both kinds of arguments",
                expect="None, or (inputs, options)", actual=type(pair).__name__,
            )  # fmt: skip
        self.inputs, self.options = pair

    def _call(self, key: int, hook: Callable[..., Any]) -> Any:
        extra = (self.options,) if key in self.named else ()
        return hook(self.module, self.inputs, *extra, self.output)

    def after_error(self) -> None:
        """Calls the hooks that are called in any case, and were not yet."""
        always = self.module._hooks_always | of_all.always
        for key, hook in self._of("forward"):
            if key not in always or key in self.done:
                continue
            try:
                self._call(key, hook)
            except Exception as error:
                warnings.warn(f"a hook that is always called raised: {error}", stacklevel=2)


KINDS_OF_GRADIENTS = ("backward_pre", "backward")
