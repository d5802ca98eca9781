"""What one traced call reads, runs and writes, so that it can be done again without recording.

A Capture belongs to one thread; nothing here costs anything while none is under way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import CPU, Device
from tinygrad_cuda.core.errors import CompileError, RawSite
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.graph.node import Node, node_made

# Where a value of a replay comes from: ("cell", k), ("constant", k), ("copy", k) of a constant,
# or ("run", run, output).
Source = tuple[Any, ...]


class _Watching:
    """How many captures, recordings of one example and autocasts are under way, in all threads.

    So that an operation asks one number while there are none.
    """

    def __init__(self) -> None:
        self.on = 0

    def count(self, change: int) -> None:
        """One more, or one less."""
        with _lock:
            self.on += change


class _Structure:
    """Raised when a Module changes, or a Tensor shows another cell or becomes a leaf or none.

    So that a replay compares one number, and looks at the Modules only if it has moved.
    """

    def __init__(self) -> None:
        self.version = 0


_lock = new_lock()
watching = _Watching()
structure = _Structure()


class _Mine(threading.local):
    capture: Capture | None = None


_mine = _Mine()


class SuppliedFloat(float):
    """A number that each replay computes anew; `source` says which."""

    source: tuple[Any, ...] = ()


class SuppliedInt(int):
    """An integer that each replay computes anew; `source` says which."""

    source: tuple[Any, ...] = ()


def supplied(value: Any, *source: Any) -> Any:
    """The number, with where a replay gets it from: an event and a name of the event's own."""
    kind = SuppliedInt if isinstance(value, int) else SuppliedFloat
    number = kind(value)
    number.source = source
    return number


class Stale(Exception):
    """A replay does not fit any more; the text says why."""


# The reason of a step that made its optimizer's state, the first one or the first after a clear.
STATE_MADE = "the optimizer's state, which it made"


class StepEvent:
    """What an optimizer's step does on the host.

    Attributes:
        unsteady: what the step has made that another one will not make; or None.
    """

    unsteady: str | None = None


class Made(NamedTuple):
    """What an out-of-memory error says of a value: the user's operation, its line, the bytes."""

    op: str
    site: RawSite | None
    nbytes: int


class CapturedRun(NamedTuple):
    """One run of a plan; `graph` is what was asked for, whatever the plan makes arguments of it."""

    device: Device
    executable: Any
    inputs: list[Source]
    numbers: list[Any]
    overwrites: dict[int, int]
    outputs: int
    sites: list[RawSite | None]
    graph: tuple[Any, ...]
    made: list[Made]  # of each output


class Draws:
    """Random numbers taken from one stream of a Generator; a replay takes as many.

    Args:
        generator: it has `reserve(count) -> (seed, first)`.
        seed, first: of the stream, and its next number, when the first one was taken.

    Attributes:
        count: by how much the stream has advanced in the end.
    """

    def __init__(self, generator: Any, seed: int, first: int) -> None:
        self.generator = generator
        self.seed, self.first = seed, first
        self.count = 0
        self._targets: list[tuple[list[Any], int, int | None]] = []

    def target(self, numbers: list[Any], position: int, offset: int | None) -> None:
        """Has the seed (offset None) or a number written to ``numbers[position]``."""
        self._targets.append((numbers, position, offset))

    def __call__(self, frame: Any) -> None:
        seed, first = self.generator.reserve(self.count)
        for numbers, position, offset in self._targets:
            numbers[position] = seed if offset is None else first + offset


@dataclass(slots=True, eq=False)
class HostDraw:
    """A constant that NumPy draws anew in each replay.

    Args:
        draw: gives the array from the seed and number of a random node.
        device: where the array goes.
        numbers: seed and number of the first call, with where a replay gets them from.
        constant: its number among the constants, which follow the cells in a replay's values.
    """

    draw: Callable[[int, int], Any]
    device: Device
    numbers: list[int]
    constant: int

    def __call__(self, frame: Any) -> None:
        array = self.draw(*self.numbers)
        position = len(frame.cells) + self.constant
        frame.values[position] = registry.get(self.device).from_host(array)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the host that is repeated as it is: a scheduler's step, a seed."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __call__(self, frame: Any) -> None:
        self.function(*self.arguments)


class Commit(NamedTuple):
    """The end of an event in two parts, such as an optimizer's step."""

    event: Any


class ViewArgument(NamedTuple):
    """An argument that is a view: the function gets its value in a cell of its own.

    Attributes:
        cell, base: the cell of the value, and that of the viewed tensor.
        read: the view's value from that of the base.
        write: the value of the base from its old one and the view's new one.
    """

    cell: Any
    base: Any
    read: Callable[[Node], Node]
    write: Callable[[Node, Node], Node]


class LeafRecord:
    """A leaf whose gradient was looked at, added to or dropped.

    Attributes:
        leaf: what holds the gradient; weak, as all here.
        before, cell: its gradient before the call and that one's cell, or None.
        dropped: the first thing that happened to the gradient was to be dropped.
    """

    def __init__(self, leaf: Any, dropped: bool) -> None:
        self.leaf = weakref.ref(leaf)
        self.before = None if leaf.grad is None else weakref.ref(leaf.grad)
        self.cell = None if leaf.grad is None else weakref.ref(leaf.grad.cell)
        self.dropped = dropped


class Capture:
    """What the calls between `begin` and `end` do in this thread.

    Attributes:
        cells: cells that were there before: those given to `begin` first, others as they are met.
        handles: Tensors through which these were seen, with cell and chain as they were.
        leaves: by identity, the leaves met.
        events: runs of plans and what the host does, in order.
        constants: storages made inside from Python data.
        born: cells made inside.
        modules: Modules called, with what `snapshot` said of them.
        lacking: weak references to Tensors that do not have an attribute, and its name.
        views: arguments that are views; `written_bases` are those written during the call, and
            `written_views` says whether one was written through the argument.
        refused: the first look at a value that was refused.
        drawn: by the numbers of constants, what draws them anew.
    """

    def __init__(
        self, cells: Sequence[Any], snapshot: Callable[[Any], Any], views: Sequence[ViewArgument]
    ) -> None:
        self.views = views
        self.written_bases: set[Any] = set()
        self.written_views = False
        self._copying = False
        self.refused: CompileError | None = None
        self.drawn: set[int] = set()
        self.cells: dict[Any, int] = {}
        self.outputs: list[Any] = []
        self.handles: dict[int, tuple[weakref.ref[Any], Any, Any]] = {}
        self.leaves: dict[int, LeafRecord] = {}
        self.events: list[Any] = []
        self.constants: list[Any] = []
        self.born: weakref.WeakSet[Any] = weakref.WeakSet()
        self.modules: list[tuple[Any, Any]] = []
        self.lacking: list[tuple[Any, str]] = []
        self.snapshot = snapshot
        self._sources: dict[int, tuple[weakref.ref[Any], Source]] = {}
        self._copied: dict[int, Source] = {}
        self._forgotten: list[weakref.ref[Any]] = []
        self._streams: dict[int, Draws] = {}
        for cell in cells:
            self._add_cell(cell)

    # What is met -------------------------------------------------------------------------------

    def _add_cell(self, cell: Any) -> None:
        if self.source(cell.node.storage)[0] == "cell":
            # A clone that nobody has written yet: in a later call the two may hold two values.
            _set_apart(cell)
        node = cell.node
        self.cells[cell] = number = len(self.cells)
        self.outputs.append(node.outputs)
        self._sources[id(node.storage)] = weakref.ref(node.storage), ("cell", number)

    def met(self, cell: Any) -> None:
        """A cell is read, or any cell is about to be written."""
        if cell not in self.cells and cell not in self.born and cell.is_computed():
            self._add_cell(cell)

    def saw(self, handle: Any) -> None:
        """A Tensor on a realized cell is read."""
        self.met(handle.cell)
        seen = self.handles.get(id(handle))
        if handle.cell in self.cells and (seen is None or seen[0]() is not handle):
            self.handles[id(handle)] = weakref.ref(handle), handle.cell, handle.chain
            leaf = handle.leaf
            if leaf is not None:
                self.saw_leaf(leaf)

    def saw_leaf(self, leaf: Any, dropped: bool = False) -> None:
        """A leaf is about to have its gradient read, written or dropped."""
        seen = self.leaves.get(id(leaf))
        if seen is None or seen.leaf() is not leaf:
            self.leaves[id(leaf)] = LeafRecord(leaf, dropped)

    def saw_module(self, module: Any) -> None:
        """An outermost Module is called."""
        if all(module is not seen for seen, _ in self.modules):
            self.modules.append((module, self.snapshot(module)))

    def written(self, cell: Any) -> None:
        """A cell holds another value: views and what they view share it."""
        if self._copying:
            return
        through = [view for view in self.views if view.cell is cell]
        bases = {view.base for view in self.views if view.base is cell}
        bases.update(view.base for view in through)
        self._copying = True
        try:
            for view in through:
                view.base.put(view.write(view.base.node, cell.node))
            for view in self.views:
                if view.base in bases and view.cell is not cell:
                    view.cell.put(view.read(view.base.node))
        finally:
            self._copying = False
        self.written_bases |= bases
        self.written_views = self.written_views or bool(through)

    # What happens --------------------------------------------------------------------------------

    def draw(self, generator: Any, seed: int, number: int) -> tuple[int, int]:
        """The same numbers, with where a replay gets them from."""
        draws = self._stream(generator, seed, number)
        draws.count = number - draws.first + 1
        return self.peek(generator, seed, number)

    def peek(self, generator: Any, seed: int, number: int) -> tuple[int, int]:
        """Where a stream is, with where a replay gets that from."""
        draws = self._stream(generator, seed, number)
        return supplied(seed, draws, None), supplied(number, draws, number - draws.first)

    def draws(self, storage: Any) -> bool:
        """Whether each replay computes a constant anew."""
        kind, number, *_ = self.source(storage)
        return kind == "constant" and number in self.drawn

    def _stream(self, generator: Any, seed: int, number: int) -> Draws:
        draws = self._streams.get(id(generator))
        if draws is None:
            draws = self._streams[id(generator)] = Draws(generator, seed, number)
            self.events.append(draws)
        return draws

    def drawn_on_host(
        self, storage: Any, draw: Callable[[int, int], Any], device: Device, seed: int, number: int
    ) -> None:
        """A constant's value comes from a stream of random numbers.

        Args:
            storage: entered among the constants before.
            draw, device, seed, number: see `HostDraw`.
        """
        constant = self.source(storage)[1]
        self.events.append(HostDraw(draw, device, [seed, number], constant))
        self.drawn.add(constant)

    def seeded(self, generator: Any) -> None:
        """The Generator has begun another stream."""
        self._streams.pop(id(generator), None)

    def rewound(self, generator: Any, seed: int, number: int) -> None:
        """The Generator was set to another number, such as one that it was at before.

        Raises:
            CompileError: it was not there within this call.
        """
        draws = self._stream(generator, *generator.position())
        if seed != draws.seed or number < draws.first:
            raise CompileError(
                "set_state", "a Generator is set to a state from outside the compiled function",
                expect="a state that get_state() gave within the same call",
                actual=f"number {number} of seed {seed}",
                hint="set the state before the call, or use manual_seed()",
            )  # fmt: skip
        draws.count = number - draws.first

    def protect(self, device: Device, storages: list[Any], overwrites: dict[int, int]) -> None:
        """Copies constants that a plan is about to overwrite: every replay needs them anew.

        The plan stays the one of the plain program, and with it every bit. Entered constants,
        drawn ones among them, are referenced by their list: no plan overwrites them.
        """
        forgotten = {id(reference()) for reference in self._forgotten}
        for slot in overwrites.values():
            storage = storages[slot]
            if self.unknown(storage) and id(storage) not in forgotten:
                self.constants.append(duplicate(device, storage))
                self._copied[id(storage)] = ("copy", len(self.constants) - 1)

    def source(self, storage: Any) -> Source:
        """Where a storage comes from; an unknown one is a constant from now on."""
        entry = self._sources.get(id(storage))
        if entry is not None and entry[0]() is storage:
            return entry[1]
        return ("constant", -1)

    def unknown(self, storage: Any) -> bool:
        """Whether a storage was there before the call and has not been met."""
        return storage is not None and self.source(storage) == ("constant", -1)

    def constant(self, storage: Any) -> Source:
        """Enters a storage among the constants."""
        self.constants.append(storage)
        source = ("constant", len(self.constants) - 1)
        self._sources[id(storage)] = weakref.ref(storage), source
        return source

    def forget(self, storage: Any) -> None:
        """Takes back the last constant: no replay will need it, and its plan may overwrite it."""
        if self.constants and self.constants[-1] is storage:
            self.constants.pop()
            del self._sources[id(storage)]
            self._forgotten.append(weakref.ref(storage))

    def settled(self, storage: Any) -> Source:
        """Where a storage comes from; an unknown one is entered among the constants."""
        source = self.source(storage)
        return self.constant(storage) if source == ("constant", -1) else source

    def ran(self, run: CapturedRun, outputs: list[Any]) -> None:
        """A plan has run; the inputs of `run` are storages, for which their sources are noted."""
        count = sum(isinstance(event, CapturedRun) for event in self.events)
        sources = [self._copied.get(id(x)) or self.settled(x) for x in run.inputs]
        self._copied = {}
        self.events.append(run._replace(inputs=sources))
        for number, storage in enumerate(outputs):
            self._sources[id(storage)] = weakref.ref(storage), ("run", count, number)

    def refuse(self, node: Node) -> None:
        """Raises if a value that is looked at depends on the call's inputs.

        Raises:
            CompileError: it does.
        """
        seen, stack = {node}, [node]
        while stack:
            node = stack.pop()
            storage = node.storage
            if node.op.kind == "leaf" and node.op.name.startswith("random"):
                break
            if storage is not None and type(storage) is not tuple:
                kind, number, *_ = self.source(storage)
                if kind != "constant" or number in self.drawn:
                    break
                continue
            fresh = [source for source in node.sources if source not in seen]
            seen.update(fresh)
            stack += fresh
        else:
            return
        error = CompileError(
            "compile", "a value is looked at inside a compiled function",
            expect="no print, item(), bool(), numpy() or move between devices on values that "
            "depend on the inputs, parameters or random numbers",
            actual=f"{node.op.name} {tuple(node.shape)} {node.dtype.name}",
            hint="return the tensor and look at it outside, or choose with tc.where(...)",
        )  # fmt: skip
        # The function may catch it and do something else than it would without compilation.
        self.refused = self.refused or error
        raise error


def _set_apart(cell: Any) -> None:
    """Gives a cell a storage of its own with the same content."""
    old = cell.node
    own = node_made(old.op, (), old.attributes, old.outputs, old.device, False, old.site)
    own.storage = duplicate(old.device, old.storage)
    if old.requires_grad:
        own.requires_grad, own.sources, own.spent = True, old.sources, old.spent
    cell.node = own
    cell.forget_aliases()


def duplicate(device: Device, storage: Any) -> Any:
    """Memory of its own with the same content."""
    if device is CPU:
        return np.array(storage, order="C")
    backend: Any = registry.get(device)
    copy = backend.allocate(storage.nbytes)
    backend.copy(copy, storage)
    return copy


# One thread's capture -------------------------------------------------------------------------


def capturing() -> Capture | None:
    """This thread's capture, if one is under way."""
    return _mine.capture if watching.on else None


def begin(capture: Capture) -> None:
    """Starts to capture in this thread."""
    with uninterrupted:
        watching.count(1)
        _mine.capture = capture


def end() -> None:
    """Stops to capture in this thread, if it does."""
    with uninterrupted:
        if _mine.capture is not None:
            _mine.capture = None
            watching.count(-1)


def repeated(function: Callable[..., Any], *arguments: Any) -> None:
    """Notes a call of the host that each replay repeats."""
    capture = capturing()
    if capture is not None:
        capture.events.append(Call(function, arguments))
