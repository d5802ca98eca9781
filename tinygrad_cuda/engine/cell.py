"""Storage cells, leaves, and each thread's weak list of cells that wait for their value.

A cell is a storage; the node in it is a value. An in-place write puts a new node into the cell.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.core.interrupts import of_this_thread
from tinygrad_cuda.engine.capture import capturing, watching
from tinygrad_cuda.graph.node import Node, mode, node_made, topological
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.versions import versions

EARLIER = 8  # nodes of a leaf that may be gone, before a write looks which are


class Leaf:
    """Where the gradients of one leaf Tensor arrive.

    Attributes:
        grad: the accumulated gradient, a Tensor, or None.
        hooks: called with each arriving gradient; may replace it.
        owner: the leaf Tensor, weakly, once one has been made.
    """

    __slots__ = ("grad", "hooks", "owner", "_source", "_node", "_earlier", "__weakref__")

    def __init__(self) -> None:
        self.grad: Any = None
        self.hooks: dict[int, Callable[[Any], Any]] = {}
        self.owner: weakref.ref[Any] | None = None
        self._source: Node | None = None
        # Weak, since the node refers to the leaf: no reference cycle for each new value.
        self._node: weakref.ref[Node] | None = None
        # The leaf's nodes for values that were replaced while a history referred to them.
        self._earlier: list[weakref.ref[Node]] = []

    def earlier(self) -> list[Node]:
        """The leaf's nodes for values before the last write that some history still refers to."""
        return [node for reference in self._earlier if (node := reference()) is not None]

    def variable(self, source: Node) -> Node:
        """The leaf's node for the value `source`: one node for as long as the value stays."""
        node = None if self._node is None else self._node()
        if self._source is not source or node is None:
            value = detached(source)
            attributes = {"leaf": self}
            # Its line is that where the value was made or written.
            node = node_made(
                common.variable, (value,), attributes, value.outputs, value.device, True, value.site
            )
            self._source = source
            self._node = weakref.ref(node)
        share(node, source)
        return node

    def forget_node(self) -> None:
        """Called by the cell when its value is replaced."""
        reference = self._node
        if reference is not None and reference() is not None:
            earlier = self._earlier
            if earlier and earlier[-1]() is None:
                earlier[-1] = reference
            else:
                earlier.append(reference)
                if len(earlier) > EARLIER:
                    earlier[:] = [r for r in earlier if r() is not None]
        self._source = self._node = None


class Branch:
    """The history of what was written through one `detach()`; others see the value alone.

    Attributes:
        node: the value with its history, or None while there is none.
        silent: a write through it is not noted by `check_versions`: that of ``data``.
    """

    __slots__ = ("node", "silent", "_current", "__weakref__")

    def __init__(self) -> None:
        self.node: Node | None = None
        self.silent = False
        self._current = False

    def take(self, node: Node) -> None:
        """A value with history has been written."""
        self.node = node
        self._current = True

    def value(self, source: Node) -> Node:
        """What the detached handle and its views see of `source`."""
        if self.node is None:
            return detached(source)
        if not self._current:
            # Others have written since: their value, and the history from before.
            self.take(common.with_history(detached(source), self.node))
        return self.node

    def forget_node(self) -> None:
        """Called by the cell when its value is replaced."""
        self._current = False


class Cell:
    """One storage; `settled` and `pending` create it, since a constructor takes longer.

    Attributes:
        node: the value it holds now.
        aliases: weak references to Tensors that cache a node computed from this cell.
        recorder: the thread's list in which the cell waits, or None.
        error: what a failed realization left instead of a value.
        memory, holder: of a cell that others write as well, see `shared`; else not set.
    """

    __slots__ = ("node", "aliases", "recorder", "error", "memory", "holder", "__weakref__")
    shared: ClassVar[bool] = False  # whether others write to its memory as well

    node: Node
    aliases: list[weakref.ref[Any]] | None
    recorder: Recorder | None
    error: TgcError | None
    memory: Any
    holder: Any

    def put(self, node: Node) -> None:
        """Replaces the value; every alias sees it."""
        capture = capturing() if watching.on else None
        if capture is not None:
            capture.met(self)
        if versions.on:
            versions.written(self, self.node, node, self._shown())
        # In this order: wherever an interrupt falls, every alias sees what the cell holds.
        self.forget_aliases()
        self.error = None
        self.node = node
        if node.storage is None and self.recorder is None:
            self.wait(node)
        if capture is not None and capture.views:
            capture.written(self)

    def is_computed(self) -> bool:
        """Whether its value is there; one that waits in another thread is computed for that."""
        if self.node.storage is None and self.recorder not in (None, local.recorder):
            elsewhere.compute(self)
        return self.node.storage is not None

    def _shown(self) -> Iterator[Node]:
        """The value as the cell and all its aliases have it."""
        yield self.node
        for reference in self.aliases or ():
            alias = reference()
            node = alias.node if isinstance(alias, Branch) else getattr(alias, "_node", None)
            node = node() if isinstance(node, weakref.ref) else node
            if node is not None:
                yield node

    def wait(self, node: Node) -> None:
        """Enters this thread's list of cells whose value is pending."""
        recorder = local.recorder
        pending = recorder.pending.get(node.device)
        if pending is None:
            pending = recorder.pending[node.device] = []
        # First, so that no interrupt leaves a cell that waits and is in no list.
        pending.append(weakref.ref(self))
        self.recorder = recorder

    def forget_aliases(self) -> None:
        """Has every alias compute its node again; each registers again when it does."""
        for reference in self.aliases or ():
            alias = reference()
            if alias is not None:
                alias.forget_node()
        self.aliases = None

    def add_alias(self, alias: Any) -> None:
        """Has `alias.forget_node()` called at the next write."""
        aliases = self.aliases
        if aliases is None:
            aliases = self.aliases = []
        elif len(aliases) >= 8 and len(aliases) & (len(aliases) - 1) == 0:
            aliases[:] = [reference for reference in aliases if reference() is not None]
        aliases.append(weakref.ref(alias))


def settled(node: Node) -> Cell:
    """A cell whose value is there."""
    cell = Cell()
    cell.node = node
    cell.aliases = cell.recorder = cell.error = None
    if watching.on and (capture := capturing()) is not None:
        capture.born.add(cell)
    return cell


class Recorder:
    """What one thread has recorded since its last realization.

    Attributes:
        mode: what is on in this thread, read together with the recorder.
        signals: where replays of this thread have signals wait.
    """

    # A trace longer than this is realized even if nobody asks.
    limit = 10_000

    def __init__(self) -> None:
        self.pending: dict[Device, list[weakref.ref[Cell]]] = {}
        self.recorded = 0
        self.limit = Recorder.limit  # which takes longer to find there
        self.mode = mode.now
        self.signals = of_this_thread()
        # Lines at which a loop comes round; see `realize.begin_call`.
        self.backward_lines: set[tuple[Any, int]] = set()
        self.call_lines: set[tuple[Any, int]] = set()
        self.backward_finished = False


class _Local(threading.local):
    def __init__(self) -> None:
        self.recorder = Recorder()


local = _Local()


class _Elsewhere:
    """How a cell that waits in another thread is computed; `engine.realize` says it."""

    compute: Callable[[Cell], None]


elsewhere = _Elsewhere()


def pending_nodes() -> list[Node]:
    """What this thread has recorded and live cells wait for, on all devices, sources first."""
    references = [r for waiting in local.recorder.pending.values() for r in waiting]
    roots = [cell.node for reference in references if (cell := reference()) is not None]
    order = topological(roots, lambda node: node.storage is not None)
    return [node for node in order if node.storage is None]


def _recorder_after_fork() -> None:
    local.recorder.signals = of_this_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_recorder_after_fork)


def share(node: Node, source: Node) -> None:
    """An identity of a realized value is itself realized, in the same storage."""
    if source.storage is not None and node.storage is None:
        node.storage = source.storage
        node.sources = ()


def detached(source: Node) -> Node:
    """The same value without history."""
    if not source.requires_grad:
        return source
    node = common.detach(source)
    node.requires_grad = False
    share(node, source)
    return node
