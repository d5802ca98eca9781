"""What a compiled function looks at before it replays: arguments, modes, Modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad_cuda.core.device import chosen
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.trees import leaves, parts_of, rebuilt
from tinygrad_cuda.engine.capture import ViewArgument
from tinygrad_cuda.graph.node import Node, mode
from tinygrad_cuda.nn.hooks import of_all
from tinygrad_cuda.replay.guards.values import PLAIN, same
from tinygrad_cuda.replay.versioned_containers import DICTIONARIES, LISTS
from tinygrad_cuda.tensors.autocast import state as autocast
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import defaults, get_default_device
from tinygrad_cuda.tensors.views import SelectAt, apply_step, base_chain, moves, put_through


class Given:
    """The arguments of one call.

    A view is replaced by its value, so that views of one shape share a program wherever they
    begin; or stands for itself, if the function may write to it or to what it views.

    Args:
        args, options: as the caller gave them.
        by_chain: views stand for themselves.

    Attributes:
        tensors: all Tensors among them, in order.
        cells: their cells, each once; views stand in a cell of their own.
        args, options: as the function gets them.
        views: arguments that are views, whose values stand in cells of their own.
        originals: the Tensors as the caller gave them.
        key: equal for calls that may share a program.
        history: one of them has a history that a gradient could pass through.
    """

    __slots__ = (
        "tensors", "cells", "args", "options", "key", "history", "views", "originals",
        "_viewed", "_by_chain",
    )  # fmt: skip

    def __init__(
        self, args: tuple[Any, ...], options: dict[str, Any], by_chain: bool = False
    ) -> None:
        self.tensors: list[Any] = []
        self.history = False
        self.views: list[ViewArgument] = []
        self._viewed: dict[int, Any] = {}  # by the Tensors that stand for them
        self._by_chain = by_chain
        # Devices by identity: their hash is Python, and every call hashes the key.
        device = chosen.stack[-1] if chosen.stack else defaults.device or get_default_device()
        facts: list[Any] = [mode.now.gradients, id(device), defaults.dtype]
        if autocast.on:
            facts += sorted(autocast.on.items())
        self.args, self.options = args, options
        taken, named = [self._take(value, facts) for value in args], {}
        if options:
            facts.append(tuple(options))
            named = {name: self._take(value, facts) for name, value in options.items()}
        self.originals = self.tensors
        if self.views:
            self.originals = [self._viewed.get(id(x), x) for x in self.tensors]
            self.args, self.options = tuple(taken), named
        cells = self.cells = [tensor.cell for tensor in self.tensors]
        if len(set(cells)) != len(cells):
            self.cells = list(dict.fromkeys(cells))
            facts.append(tuple([self.cells.index(cell) for cell in cells]))
        self.key = tuple(facts)

    def _take(self, value: Any, facts: list[Any]) -> Any:
        """Notes the facts of one argument; a view is replaced by its value."""
        if isinstance(value, TensorBase):
            return self._take_tensor(value, facts)
        kind = type(value)
        if kind in PLAIN or isinstance(value, np.number | np.bool_):
            # Tells 0.0 from -0.0, and NaN is equal to itself.
            facts.append((kind, value if value and value == value else repr(value)))
        elif (parts := parts_of(value)) is not None:
            facts.append(parts.kind)
            return parts.made([self._take(part, facts) for part in parts.children])
        elif isinstance(value, np.ndarray):
            raise ArgumentError(
                "compile", "a NumPy array is an argument of a compiled function",
                expect="Tensors, Python numbers and strings, and lists, tuples and dicts of them",
                actual=f"{kind.__name__} of shape {value.shape}",
                hint="tc.from_numpy(array) shares its memory and is read again at each call",
            )  # fmt: skip
        else:
            facts.append(_Same(value))
        return value

    def _take_tensor(self, value: Any, facts: list[Any]) -> Any:
        chain = value.chain
        node = value.node if chain else value.cell.node
        steps: Any = ()
        if chain:
            steps = tuple([step[0] for step in chain])
            if any(map(moves, chain)):
                self.history = self.history or (node.requires_grad and mode.now.gradients)
                steps = "view"
                if self._by_chain:
                    base = value.cell.node
                    steps = ("view", base.shape, base.dtype, *map(_step_fact, chain))
                else:
                    value = self._value_of(value)
                    node = value.node
                    if value.chain:
                        base = value.cell.node
                        steps = ("view", base.shape, base.dtype, *map(_step_fact, value.chain))
        if node.requires_grad and mode.now.gradients and value.leaf is None:
            self.history = True
        self.tensors.append(value)
        facts.append(
            (
                node.shape, node.dtype, id(node.device), node.requires_grad, value._strides, steps,
                type(value),
            )
        )  # fmt: skip
        # Indices of the views that stand for themselves are arguments as well.
        for _, detail in value.chain:
            if isinstance(detail, SelectAt):
                self._take_tensor(detail.index, facts)
        return value

    def restored(self, result: Any) -> Any:
        """What a call returns, with its views for the Tensors that stood for them."""
        flat = leaves(result)
        restored = [self._restored(leaf) for leaf in flat]
        if all(a is b for a, b in zip(flat, restored)):
            return result
        return rebuilt(result, iter(restored))

    def _restored(self, leaf: Any) -> Any:
        original = self._viewed.get(id(leaf))
        if original is not None or not isinstance(leaf, TensorBase) or not leaf.chain:
            return leaf if original is None else original
        number = self.number_of(leaf.cell)
        if number is None or self.originals[number] is self.tensors[number]:
            return leaf
        view: Any = self.originals[number]
        made = view.with_chain((*base_chain(view.chain), *leaf.chain))
        made._strides = leaf._strides
        return made

    def number_of(self, cell: Any) -> int | None:
        """Which Tensor argument, as the function gets it, is the first of a cell."""
        if cell not in self.cells:
            return None
        return next(number for number, x in enumerate(self.tensors) if x.cell is cell)

    def _value_of(self, view: Any) -> Any:
        """The value of a view, in a cell of its own that follows the writes during a call."""
        for value in self.tensors:
            if self._viewed.get(id(value)) is view:
                return value
        chain = base_chain(view.chain)
        # Steps that repeat elements stay: a write through them is checked, or fills.
        repeating = tuple(filter(moves, view.chain[len(chain) :]))
        value = wrap(view.with_chain(chain).realized())
        value.chain = repeating
        value._strides = view._strides
        vars(value).update(vars(view))

        def read(node: Node) -> Node:
            for step in chain:
                node = apply_step(step, node)
            return node

        def write(base: Node, node: Node) -> Node:
            return put_through(base, chain, node)

        self.views.append(ViewArgument(value.cell, view.cell, read, write))
        self._viewed[id(value)] = view
        return value


def _step_fact(step: Any) -> Any:
    """A step between a tensor and its view: equal for views that show the same elements."""
    op, detail = step
    if isinstance(detail, SelectAt):
        return op, detail.axis
    fact = (op, tuple(sorted(detail.items())) if isinstance(detail, dict) else detail)
    try:
        hash(fact)
    except TypeError:
        return op, _Same(detail)
    return fact


class _Same:
    """An argument that is compared by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def difference(new: tuple[Any, ...], old: tuple[Any, ...]) -> str:
    """The first thing in which two keys differ, in words."""
    names = ("gradient mode", "the default device", "the default dtype")
    for number, (now, before) in enumerate(zip(new, old)):
        if now != before:
            what = names[number] if number < len(names) else "an argument"
            now, before = _shown(now), _shown(before)
            return f"{what} is {now}, before {before}" if now != before else f"{what} has changed"
    return f"there are {len(new)} facts about arguments, before {len(old)}"


def _shown(fact: Any) -> str:
    if isinstance(fact, tuple) and len(fact) == 7:
        shape, dtype, _, requires_grad, _, steps, _ = fact
        grad = " that requires grad" if requires_grad else ""
        return f"a {'view' if 'view' in steps else 'tensor'} {shape} {dtype.name}{grad}"
    if isinstance(fact, tuple) and len(fact) == 2:
        return repr(fact[1])
    return repr(fact.value) if isinstance(fact, _Same) else str(fact)


# Modules ----------------------------------------------------------------------------------------


def snapshot(module: Any) -> list[tuple[Any, dict[str, Any]]]:
    """All that a Module and those below hold: flags, parameters, buffers, hooks, attributes."""
    return [(m, {k: _copied(x) for k, x in vars(m).items()}) for m in (*module.modules(), of_all)]


def _copied(value: Any) -> Any:
    return type(value)(value) if type(value) in (set, *LISTS, *DICTIONARIES) else value


def changed_attribute(modules: list[tuple[Any, list[tuple[Any, dict[str, Any]]]]]) -> str | None:
    """The first attribute in which one of the Modules differs from its snapshot."""
    for module, recorded in modules:
        now = [*module.modules(), of_all]
        if len(now) != len(recorded) or any(a is not b for a, (b, _) in zip(now, recorded)):
            return "modules"
        for one, fields in recorded:
            if vars(one).keys() != fields.keys():
                return f"{type(one).__name__}.{min(vars(one).keys() ^ fields.keys())}"
            for name, value in vars(one).items():
                if not _same_contents(value, fields[name]):
                    return f"{type(one).__name__}.{name}"
    return None


def _same_contents(a: Any, b: Any) -> bool:
    """The same by `values.same`, equal sets, or containers of such."""
    if type(a) is not type(b):
        return False
    if type(a) in DICTIONARIES:
        return a.keys() == b.keys() and all(_same_contents(a[k], b[k]) for k in a)
    if type(a) in (tuple, *LISTS):
        return len(a) == len(b) and all(map(_same_contents, a, b))
    return same(a, b) or (type(a) is set and bool(a == b))


def owner_module(function: Callable[..., Any]) -> Any:
    """The Module that is called, or whose method is called; or None."""
    for thing in (function, getattr(function, "__self__", None)):
        if hasattr(thing, "named_modules") and hasattr(thing, "forward"):
            return thing
    return None
