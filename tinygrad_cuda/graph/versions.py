"""Whether a value that a gradient reads was written in place since: PyTorch's version check.

A node is a value, so a gradient is right all the same; the check is for those who want to be told
where PyTorch would refuse. It costs a look at one flag while it is off.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from tinygrad_cuda.core.errors import GradientError, RawSite, describe_site, is_internal, user_site
from tinygrad_cuda.graph.node import Node, made_by

# Functions whose gradient PyTorch computes from the result, where ours reads what it was made of.
FROM_RESULT = frozenset(
    ("softmax", "log_softmax", "softmin", "logsumexp", "tanh", "sigmoid", "exp", "exp2", "expm1")
    + ("sqrt", "rsqrt", "reciprocal", "relu", "tan", "threshold", "hardsigmoid")
)
# And from the operands (too), where ours reads the result (alone).
FROM_OPERANDS = frozenset(
    ("div", "divide", "true_divide", "truediv", "rtruediv", "elu", "celu", "selu", "softplus")
)
FROM_BOTH = frozenset(("logsumexp",))
# Functions that keep nothing a user can write to but integers: their own intermediate values.
FROM_NOTHING = frozenset(("cross_entropy", "nll_loss"))


_NAMED = FROM_RESULT | FROM_OPERANDS | FROM_BOTH | FROM_NOTHING


class Unit:
    """One call by the user of a function of the package: what it makes inside nobody can write."""

    __slots__ = ("name", "__weakref__")

    def __init__(self, name: str | None) -> None:
        self.name = name


class Write:
    """A value of a Tensor was replaced in place."""

    __slots__ = ("unit", "site")

    def __init__(self, unit: Unit, site: RawSite | None) -> None:
        self.unit = unit
        self.site = site


class Versions:
    """What was written in place, while the check is on.

    Attributes:
        on: whether it is.
    """

    def __init__(self) -> None:
        self.on = False
        self.clear()

    def clear(self) -> None:
        """Forgets all writes: what was recorded before is not checked."""
        self._units: WeakKeyDictionary[Node, Unit] = WeakKeyDictionary()
        self._writes: WeakKeyDictionary[Node, Write] = WeakKeyDictionary()
        self._frame: FrameType | None = None
        self._unit = Unit(None)

    # While recording ------------------------------------------------------------------------------

    def made(self, node: Node) -> None:
        """A Tensor has this value."""
        unit = self._units[node] = self._current()
        if unit.name is None and node.op.name in FROM_OPERANDS:
            unit.name = node.op.name  # an operator has no function of that name

    def written(self, old: Iterable[Node], new: Node) -> None:
        """A Tensor, and others that show the same memory, have another value from now on."""
        unit = self._current()
        before = set(old)
        write = Write(unit, user_site())
        for node in before:
            self._writes[node] = write
        # The write itself may read the value before: what it was computed by belongs to it.
        stack = [new]
        while stack:
            node = stack.pop()
            if node not in before and self._units.get(node, unit) is unit:
                self._units[node] = unit
                stack += [source for source in node.sources if source not in self._units]

    def demand(self, node: Node) -> None:
        """Raises if a value that was saved for a gradient is another now."""
        write = self._writes.get(node)
        if write is not None:
            raise _written(node, write, node)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, nothing is noted."""
        self.on = False
        try:
            yield
        finally:
            self.on = True

    def _current(self) -> Unit:
        """The call of the user that is under way."""
        frame: FrameType | None = sys._getframe(2)
        entry, name = None, None
        while frame is not None and is_internal(frame.f_code.co_filename):
            entry = frame
            called = _name(frame)
            if called in _NAMED:
                name = called
            frame = frame.f_back
        if entry is None or entry is not self._frame:
            self._frame, self._unit = entry, Unit(name)
        elif name is not None:
            self._unit.name = name
        return self._unit


class Check:
    """The check of one backward pass.

    Args:
        order: its history.

    Raises:
        GradientError: from `read`, a value that is needed was written in place.
    """

    def __init__(self, order: Iterable[Node]) -> None:
        self._history = set(order)
        self._inherited: dict[Node, Unit] = {}
        self._results: dict[Unit, Node] = {}

    def unit(self, node: Node) -> Unit | None:
        """The call that has made a node: its own, or that which reads it."""
        return versions._units.get(node) or self._inherited.get(node)

    def enter(self, node: Node) -> None:
        """The pass has come to a node."""
        unit = self.unit(node)
        if unit is not None:
            self._results.setdefault(unit, node)
            for source in node.sources:
                self._inherited.setdefault(source, unit)

    def read(self, node: Node, gs: Iterable[Any], part: Node) -> None:
        """The rule of a node has made `part` of the cotangents `gs`: looks at what it has read."""
        unit = self.unit(node)
        name = None if unit is None else unit.name
        if name in FROM_NOTHING:
            return
        if name in FROM_RESULT and unit is not None:
            write = versions._writes.get(self._results[unit])
            if write is not None and write.unit is not unit:
                raise _written(self._results[unit], write, node)
            if name not in FROM_BOTH:
                return
        stop = {g for g in gs if g is not None}
        stack, seen = [part], set(stop)
        while stack:
            found = stack.pop()
            if found in seen:
                continue
            seen.add(found)
            if found is node or found in self._history or found in node.sources:
                self._demand(found, node, unit)
            else:
                stack += found.sources

    def _demand(self, value: Node, node: Node, unit: Unit | None) -> None:
        """Raises if a value, or one that a user can write and that it was made of, is another."""
        stack, seen = [value], {value}
        if unit is not None and unit.name in FROM_OPERANDS and value is self._results[unit]:
            stack = list(value.sources)
        while stack:
            found = stack.pop()
            write = versions._writes.get(found)
            if write is not None and write.unit is not unit:
                raise _written(found, write, node)
            own = versions._units.get(found)
            if found is node or (own is not None and own is not unit):
                continue
            stack += [source for source in found.sources if source not in seen]
            seen.update(found.sources)


def _name(frame: FrameType) -> str:
    """The function of a frame; a wrapper goes by what it wraps."""
    name = frame.f_code.co_name
    if name == "wrapper":
        name = getattr(frame.f_locals.get("function"), "__name__", name)
    return name.strip("_")


def _written(value: Node, write: Write, node: Node) -> GradientError:
    return GradientError(
        "backward",
        "a value that the gradient needs was modified by an inplace operation",
        expect="the value that was there when the operation was recorded",
        actual=f"{made_by(value)}\nwritten in place at {describe_site(write.site)}",
        site=node.site,
        hint="write to a clone(), use the operation that is not in place, or leave the check off: "
        "gradients use the values as recorded",
    )


versions = Versions()
