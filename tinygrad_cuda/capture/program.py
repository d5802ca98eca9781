"""A captured call as a program: what it depends on, the plans to run, where their results go."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from tinygrad_cuda.backend import registry
from tinygrad_cuda.capture.frame_replay import GradientSlot, ReplayFrame, RunEvent, outputs_of
from tinygrad_cuda.capture.results import Fresh, OutputSpec, OutputSpecs, Result
from tinygrad_cuda.capture.signature import Given, changed_attribute
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import uint8
from tinygrad_cuda.core.errors import CompileError, OutOfMemoryError, RawSite, describe_site
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.engine.capture import (
    Call,
    Capture,
    CapturedRun,
    Commit,
    Draws,
    HostDraw,
    Stale,
    StepEvent,
    structure,
)
from tinygrad_cuda.engine.cell import Cell
from tinygrad_cuda.engine.realize import named_error
from tinygrad_cuda.graph.compare import same_value
from tinygrad_cuda.replay.guards.values import PLAIN, Names, same
from tinygrad_cuda.tensors.base import TensorBase

Event = Callable[[ReplayFrame], None]


class Change(NamedTuple):
    """A Python value that a call has changed.

    Attributes:
        text: which one.
        site: where it is read.
        new: it was not there before, as in a cache, and neither were others that changed.
    """

    text: str
    site: RawSite | None = None
    new: bool = False


@dataclass(frozen=True, slots=True)
class ForeseenStep:
    """A step whose numbers depend on what the host does in the call before it.

    It computes them when it comes.

    Attributes:
        step: the optimizer's.
        before: the step of the same optimizer that precedes it in the call.
    """

    step: Any
    before: Any

    def prepare(self) -> None:
        """Compares what a replay could not follow, before anything of the call has run.

        Raises:
            Stale: the step would be another graph.
        """
        self.step.foresee(self.before)

    def __call__(self, frame: ReplayFrame) -> None:
        try:
            self.step.prepare()
        except Stale as stale:
            raise CompileError(
                "compile", f"{stale}, between two steps of one call",
                expect="the same steps as when the function was traced", actual=str(stale),
            ) from None  # fmt: skip


class CapturedProgram:
    """What one captured call did, for calls with the same key.

    Args:
        capture: the call, everything realized.
        given: its arguments.
        result: what it returned.
        names: Python values it read, as they were.

    Raises:
        ResultHistory: something it leaves has a history that a gradient could pass through.
        CompileError: it leaves what no replay can make.
    """

    def __init__(self, capture: Capture, given: Given, result: Any, names: Names) -> None:
        self.version = structure.version
        self.names, self.modules, self.key = names, capture.modules, given.key
        self.runs = [event for event in capture.events if isinstance(event, CapturedRun)]
        _settle(capture, result)
        self.capture = capture
        self.constants = list(capture.constants)
        self.drawn = capture.drawn  # numbers of constants that each replay draws
        first = len(capture.cells) + len(self.constants)
        self.offsets = [*accumulate((run.outputs for run in self.runs), initial=first)]
        output_specs = OutputSpecs(self._number_of, capture.cells, given)
        returned = leaves(result)
        self.builds = [output_specs.of(leaf) for leaf in returned]
        self.shown = output_specs.shown
        self.arguments = len(given.cells)
        self.leaves = [output_specs.result(leaf) for leaf in returned]
        self.results = [leaf for leaf in self.leaves if isinstance(leaf, Result)]
        self.keys = [id(leaf) for leaf in returned]  # of the Tensors in `shown`
        self.structure = rebuilt(result, iter([None] * len(returned)))
        # A tuple, and nothing nested in it.
        self.flat = type(result) is tuple and self.structure == (None,) * len(returned)
        self.lacking: list[tuple[int, str]] = []  # attributes that arguments must not have
        self.multi_step: Any = None  # how its replays follow one another, once somebody asks
        self.fast: Any = None  # and how they are done where nothing else has happened
        self._find_cells(given)
        self._find_gradients(output_specs)
        self.escaped = escaped(capture, output_specs)
        self._find_writes()
        self._find_handles(given)
        self._lay_out(output_specs)
        # Of a call that is over nothing stays but its state.
        del self.capture

    # Making it ------------------------------------------------------------------------------------

    def _number_of(self, storage: Any) -> int:
        """The number of a storage among the values of a replay."""
        return self._number(self.capture.source(storage))

    def _number(self, source: tuple[Any, ...]) -> int:
        if source[0] == "cell":
            return int(source[1])
        if source[0] in ("constant", "copy"):
            return len(self.capture.cells) + int(source[1])
        return int(self.offsets[source[1]] + source[2])

    def _find_cells(self, given: Given) -> None:
        """Which cells are reached through the leaf whose gradient they hold, not by themselves."""
        self.cells = list(self.capture.cells)[len(given.cells) :]
        self.outputs = self.capture.outputs[len(given.cells) :]
        self.leaf_cells: list[tuple[int, Any]] = []
        for record in self.capture.leaves.values():
            leaf, cell = record.leaf(), record.cell and record.cell()
            if leaf is not None and cell in self.cells:
                self.leaf_cells.append((self.cells.index(cell), leaf))

    def _find_gradients(self, output_specs: OutputSpecs) -> None:
        self.with_gradient: list[Any] = []
        self.without_gradient: list[Any] = []
        self.gradients: list[GradientSlot] = []
        self.late: list[GradientSlot] = []
        shown = Counter(output_specs.output_specs.keys())
        records = [r for r in self.capture.leaves.values() if r.leaf() is not None]
        leaves: list[Any] = [record.leaf() for record in records]
        shown.update(leaf.grad.cell for leaf in leaves if leaf.grad is not None)
        self.hooks = [leaf.hooks for leaf in leaves]
        self.hooked = list(map(list, self.hooks))
        for record, leaf in zip(records, leaves):
            if not record.dropped:
                (self.with_gradient if record.before else self.without_gradient).append(leaf)
            after = leaf.grad
            if after is not None and record.before is not None and record.before() is after:
                continue
            if after is None and record.before is None and not record.dropped:
                continue
            build = output_specs.of(after)
            simple = after is not None and not after.chain and shown[after.cell] == 1
            output_spec = output_specs.output_specs.get(after.cell) if simple else None
            gradient = GradientSlot(leaf, output_spec, build, after is None)
            # An old gradient that is read is dropped at the end.
            read = any(leaf is other for _, other in self.leaf_cells)
            (self.late if read else self.gradients).append(gradient)

    def _find_writes(self) -> None:
        """Which cells that were there before hold something else now, by the run behind it."""
        self.writes: dict[int, list[tuple[int, OutputSpec]]] = {}
        self.written: list[int] = []  # numbers of cells
        for cell, index in self.capture.cells.items():
            node = cell.node
            source = self.capture.source(node.storage)
            if source == ("cell", index):
                continue
            self.written.append(index)
            run = source[1] if source[0] == "run" else -1
            self.writes.setdefault(run, []).append((index, OutputSpec(node, self._number(source))))
        self.overwritten = sorted(
            {
                run.inputs[slot][1]
                for run in self.runs
                for slot in run.overwrites.values()
                if run.inputs[slot][0] == "cell"
            }
        )

    def _find_handles(self, given: Given) -> None:
        """Tensors that must still show the same cells; arguments that are also read otherwise."""
        state = self.state_cells = set(self.cells) - {self.cells[k] for k, _ in self.leaf_cells}
        self.handles: list[tuple[Any, Cell, Any]] = []
        self.bound: list[tuple[int, Any]] = []
        for reference, cell, chain in self.capture.handles.values():
            handle = reference()
            if handle is None or any(handle is tensor for tensor in given.tensors):
                continue
            if cell in state:
                self.handles.append((handle, cell, chain))
            elif cell in given.cells:
                number = next(n for n, tensor in enumerate(given.tensors) if tensor.cell is cell)
                self.bound.append((number, given.tensors[number]))
        named = {tensor.cell for tensor in self.names.tensors()}
        for module, _ in self.modules:
            named.update(thing.cell for thing in (*module.parameters(), *module.buffers()))
        changed = [gradient.leaf for gradient in (*self.gradients, *self.late)]
        changed += [*self.with_gradient, *self.without_gradient]
        for number, tensor in enumerate(given.tensors):
            leaf = tensor.leaf
            own = leaf is not None and any(leaf is other for other in changed)
            if own or tensor.cell in named:
                self.bound.append((number, tensor))

    def _unused(self, run: CapturedRun, offset: int) -> list[int]:
        """Outputs in memory of their own that neither a result, a cell nor a later run reads."""
        return [
            output
            for output in range(run.outputs)
            if offset + output not in self.used and output not in run.overwrites
        ]

    def _lay_out(self, output_specs: OutputSpecs) -> None:
        """The events in order, with numbers wired to what supplies them."""
        self.early: list[Any] = []
        self.events: list[Event] = []
        self.run_events: list[RunEvent] = []
        self.used = {self._number(source) for run in self.runs for source in run.inputs}
        self.used.update(output_spec.source for output_spec in output_specs.output_specs.values())
        self.used.update(
            output_spec.source for writes in self.writes.values() for _, output_spec in writes
        )
        steps: dict[int, Any] = {}  # the last one of each optimizer
        calls = False
        for event in self.capture.events:
            if isinstance(event, CapturedRun):
                number = len(self.run_events)
                inputs = [self._number(source) for source in event.inputs]
                unused = self._unused(event, self.offsets[number])
                run_event = RunEvent(event, inputs, self.writes.pop(number, []), unused)
                self.run_events.append(run_event)
                self.events.append(run_event)
                _supply(event.numbers)
            elif isinstance(event, Draws | HostDraw | Call):
                self.events.append(event)
                calls = calls or isinstance(event, Call)
                if isinstance(event, HostDraw):
                    _supply(event.numbers)
            elif isinstance(event, Commit):
                self.events.append(event.event.commit)
                steps[id(event.event.optimizer)] = event.event
            else:
                before = steps.get(id(event.optimizer))
                if calls or before is not None:
                    event = ForeseenStep(event, before)
                    self.events.append(event)
                self.early.append(event)
        self.last = [write for writes in self.writes.values() for write in writes]
        self._lend_memory()

    def _lend_memory(self) -> None:
        """Lets the run that computes a new gradient have the memory of the old one."""
        for gradient in self.gradients:
            if gradient.output_spec is None or gradient.output_spec.source < self.offsets[0]:
                continue
            number = bisect_right(self.offsets, gradient.output_spec.source) - 1
            output = gradient.output_spec.source - self.offsets[number]
            run = self.runs[number]
            if run.device is not CPU and output not in run.overwrites:
                gradient.run, gradient.output = self.run_events[number], output

    # Running it -----------------------------------------------------------------------------------

    def frame(self, given: Given) -> ReplayFrame:
        """The cells of a call and what they hold, if it may be replayed.

        Raises:
            Stale: it may not; the text says why.
        """
        self.check(given)
        cells = self.cells
        if self.leaf_cells:
            cells = list(cells)
            for index, leaf in self.leaf_cells:
                if leaf.grad.chain:
                    raise Stale("a gradient is a view now")
                cells[index] = leaf.grad.cell
        given_cells = given.cells + cells
        if not self.state_cells.isdisjoint(given.cells) or (
            self.leaf_cells and len(set(given_cells)) != len(given_cells)
        ):
            raise Stale("an argument shares memory with the function's state")
        if given.views:
            written = {given_cells[index] for index in self.written}
            if any(view.base in written for view in given.views):
                raise Stale("an argument is a view of a tensor that the call writes")
        frame = ReplayFrame(given_cells)
        if list(map(outputs_of, frame.nodes[len(given.cells) :])) != self.outputs:
            raise Stale("the shape of a tensor that it reads has changed")
        for step in self.early:
            step.prepare()
        return frame

    def changed(self) -> Change | None:
        """What is another Python value now than when it was traced."""
        name = changed_attribute(self.modules)
        if name is not None:
            return Change(f"the Module's attribute {name}")
        names = list(self.names.changes())
        for name, new in names:
            site = self.names.sites.get(name.partition(".")[0])
            return Change(f"the Python value {name}", site, new and all(new for _, new in names))
        return None

    def check(self, given: Given) -> None:
        """Compares all but the values of Tensors.

        Raises:
            Stale: a replay would do something else.
        """
        version = structure.version
        if self.version != version:
            name = changed_attribute(self.modules)
            if name is not None:
                raise Stale(f"{name} has changed")
            for handle, cell, chain in self.handles:
                if handle.cell is not cell or handle.chain != chain:
                    raise Stale(f"a tensor of shape {tuple(cell.node.shape)} was replaced")
            if list(map(list, self.hooks)) != self.hooked:
                raise Stale("a gradient has other hooks")
            self.version = version
        name = self.names.changed()
        if name is not None:
            raise Stale(f"{name} is another value")
        if any(leaf.grad is None for leaf in self.with_gradient):
            raise Stale("a parameter has no gradient")
        if any(leaf.grad is not None for leaf in self.without_gradient):
            raise Stale("a parameter has a gradient")
        for number, name in self.lacking:
            if name in vars(given.originals[number]):
                raise Stale(f"an argument has the attribute {name}")
        for number, tensor in self.bound:
            if not _same_handle(given.tensors[number], tensor):
                raise Stale(f"tensor {number} among the arguments is also the function's state")

    def run(self, given: Given, frame: ReplayFrame) -> Any:
        """Does again what the captured call did; returns what it returned."""
        for gradient in self.gradients:
            gradient.drop()
        if self.overwritten:
            frame.own(self.overwritten)
        frame.values += self.constants
        for event in self.events:
            event(frame)
        frame.write(self.last)
        fresh = Fresh(frame.values, given.originals)
        for gradient in (*self.gradients, *self.late):
            gradient.leave(fresh)
        return self.build(fresh)

    def build(self, fresh: Fresh) -> Any:
        """What a call returns, in the structure of the captured one's result."""
        made = [build(fresh) for build in self.builds]
        if self.structure is None:
            return made[0]
        return tuple(made) if self.flat else rebuilt(self.structure, iter(made))

    def named(self, error: OutOfMemoryError) -> OutOfMemoryError:
        """The error of a replay out of memory, with the operation and line of the value."""
        return named_error(error, [made for run in self.runs for made in run.made])

    # Comparing ------------------------------------------------------------------------------------

    def departs(self, other: CapturedProgram) -> str | None:
        """Where another capture of the same call did something else, as a line; or None."""
        for mine, theirs in zip(self.runs, other.runs):
            equal = mine.graph == theirs.graph and mine.inputs == theirs.inputs
            equal = equal and self._same_numbers(mine, theirs)
            if not equal or _constants(self, mine) != _constants(other, theirs):
                lines = zip(mine.sites, theirs.sites)
                site = next((b for a, b in lines if a != b), theirs.sites[-1])
                return describe_site(site)
        if len(self.runs) != len(other.runs):
            return f"{len(other.runs)} plans instead of {len(self.runs)}"
        if len(self.leaves) != len(other.leaves):
            return f"{len(other.leaves)} results instead of {len(self.leaves)}"
        for a, b in zip(self.leaves, other.leaves):
            if type(a) is not type(b) or (type(a) in PLAIN and not same(a, b)):
                return f"it returns {b!r} instead of {a!r}"
        return None

    def _same_numbers(self, mine: CapturedRun, theirs: CapturedRun) -> bool:
        """Whether the numbers of optimizers' steps, computed for the replay, are the new call's."""
        if any(isinstance(step, ForeseenStep) for step in self.early):
            return True  # such a step computes its numbers when it comes
        pairs = zip(mine.numbers, theirs.numbers)
        return all(
            same_value(float(a), float(b))
            for a, b in pairs
            if any(isinstance(first, StepEvent) for first in getattr(b, "source", ())[:1])
        )


def _same_handle(a: Any, b: Any) -> bool:
    """Whether two Tensors are one, or views that show the same and hold no gradient."""
    if a is b:
        return True
    plain = a._retained is None and b._retained is None
    return plain and a.cell is b.cell and a.chain == b.chain and bool(a.chain)


def _settle(capture: Capture, result: Any) -> None:
    """Enters what a call has left behind, and what it returns from outside, in its capture."""
    for cell in [*capture.cells, *capture.born]:
        if cell.node.storage is not None:
            capture.settled(cell.node.storage)
    for leaf in (x for x in leaves(result) if isinstance(x, TensorBase) and x.cell.is_computed()):
        # From outside, and never read: it is handed through, not made again.
        if capture.unknown(leaf.cell.node.storage):
            capture.saw(leaf)


def escaped(capture: Capture, output_specs: OutputSpecs) -> str | None:
    """The line of a Tensor made inside that something outside holds, besides the result."""

    def strays() -> list[Cell]:
        # The chain of a view that is gone holds its indices.
        capture.handles = {key: x for key, x in capture.handles.items() if x[0]() is not None}
        return [cell for cell in capture.born if cell not in output_specs.output_specs]

    if strays():
        gc.collect()
    for cell in strays():
        return describe_site(cell.node.site)
    return None


def _constants(program: CapturedProgram, run: CapturedRun) -> list[bytes]:
    """The contents of what a run reads that was made inside from Python data."""
    backend: Any = registry.get(run.device)
    contents = []
    for kind, number, *_ in run.inputs:
        if kind in ("constant", "copy") and number not in program.drawn:
            storage = program.constants[number]
            contents.append(backend.to_host(storage, (storage.nbytes,), uint8).tobytes())
    return contents


def _supply(numbers: list[Any]) -> None:
    """Wires numbers that each replay computes again to the events that compute them."""
    for position, value in enumerate(numbers):
        source = getattr(value, "source", None)
        if source:
            source[0].target(numbers, position, *source[1:])
