"""Realization: everything pending on a device becomes one plan, runs, and gets its storage."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Iterable, Sequence
from math import prod
from operator import call
from typing import Any, NamedTuple, Protocol

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.base import LINE, BadIndex, Executable, NoMemory
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import (
    ArgumentError,
    IndexError,
    OutOfMemoryError,
    RawSite,
    TgcError,
)
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.core.observer import watched
from tinygrad_cuda.engine.capture import (
    CapturedRun,
    Made,
    SuppliedFloat,
    SuppliedInt,
    begin,
    capturing,
    end,
    watching,
)
from tinygrad_cuda.engine.cell import Cell, elsewhere, local
from tinygrad_cuda.engine.finite import check_finite
from tinygrad_cuda.engine.history import keep_history, release
from tinygrad_cuda.engine.overwrite import overwritable
from tinygrad_cuda.engine.plan import Entry, cache, key_numbers
from tinygrad_cuda.engine.trace import Trace, storage_of
from tinygrad_cuda.engine.vmap_trace import refuse_examples, tracing
from tinygrad_cuda.graph.node import Node, mode, origin_of, topological
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.program import Number, Program

_locks: dict[Device, threading.RLock] = {}


def lock_of(device: Device) -> threading.RLock:
    """What a thread holds while it realizes on a device."""
    lock = _locks.get(device)
    return _locks.setdefault(device, new_lock()) if lock is None else lock


def realize(device: Device, extra: Iterable[Node] = ()) -> None:
    """Gives a storage to every pending cell of this thread on `device`, and to the nodes `extra`.

    Raises:
        IndexError: a computed index or label was out of range; no cell has changed.
        ArgumentError: so was a probability.
    """
    if tracing.stack:
        # Inside vmap: what stands for one example has no value, and the rest can wait.
        if nodes := refuse_examples(extra):
            with lock_of(device), uninterrupted:
                _run(device, [], nodes)
        return
    with lock_of(device), uninterrupted:
        cells = _pending_cells(device)
        _end_turn()
        nodes = [node for node in extra if node.storage is None]
        if not cells and not nodes:
            return
        try:
            if watched.observer is None:
                _run(device, cells, nodes)
            else:
                with watched.observer.span("run", "realize"):
                    _run(device, cells, nodes)
        except BadIndex as error:
            raise _report(error, cells) from None
        except OutOfMemoryError as error:
            raise _of_operation(error, [*(cell.node for cell in cells), *nodes]) from None
        except MemoryError as error:
            raise _out_of_memory(error, [*(cell.node for cell in cells), *nodes]) from None
        except Exception:
            # Not queued again: a value that cannot be computed fails only who looks at it.
            raise
        except BaseException:
            _queue_again(cells)
            raise


def _pending_cells(device: Device) -> list[Cell]:
    """This thread's cells that wait for a value on `device`; they wait no longer."""
    cells = []
    capture = capturing() if watching.on else None
    references = local.recorder.pending.pop(device, ())
    # Most are gone: what a call gave was only read by another.
    for cell in [*filter(None, map(call, references))]:
        cell.recorder = None
        if capture is not None and cell not in capture.cells:
            capture.born.add(cell)
        node = cell.node
        if node.storage is None:
            if node.device is device:
                cells.append(cell)
            else:
                # A write has moved it to another device since.
                cell.wait(node)
    return cells


def _out_of_memory(error: MemoryError, roots: list[Node]) -> OutOfMemoryError:
    """The error of a host without room, with the operation and the line that asked for it."""
    lacking = error.node if isinstance(error, NoMemory) else None
    site: RawSite | None = None
    if lacking is not None:
        # A program may serve several lines: that of what is pending is the user's.
        pending = topological(roots, stop=lambda node: node.storage is not None)
        like = (n for n in pending if n.op is lacking.op and n.outputs == lacking.outputs)
        largest = next(like, None)
        site = None if largest is None else largest.site
        lacking = largest or lacking
    else:
        lacking = max(roots, key=lambda node: prod(node.shape) * node.dtype.itemsize, default=None)
    if lacking is None:
        return OutOfMemoryError(
            "realize", "the host has no room", expect="free memory", actual=str(error)
        )
    nbytes = prod(lacking.shape) * lacking.dtype.itemsize
    name = origin_of(lacking).label
    return OutOfMemoryError(
        "full" if name == "constant" else name,
        f"no room on the {lacking.device} for {lacking.shape}",
        expect=f"{nbytes} bytes free, of {lacking.dtype.name}", actual=str(error),
        site=site or origin_of(lacking).site,
        hint="use a smaller batch, or free tensors that are no longer needed",
    )  # fmt: skip


def _of_operation(error: OutOfMemoryError, roots: list[Node]) -> OutOfMemoryError:
    """A device's error with the operation and line of a pending value."""
    pending = topological(roots, stop=lambda node: node.storage is not None)
    return named_error(error, [_made(node) for node in pending if node.storage is None])


def named_error(error: OutOfMemoryError, made: list[Made]) -> OutOfMemoryError:
    """A device's error with the operation and line of the value of that size, or of the largest."""
    if error.op != "allocate" or not made:
        return error
    # The last one: what it is computed from may be of its size, and is not stored.
    largest = next((value for value in reversed(made) if value.nbytes == error.nbytes), None)
    largest = largest or max(made, key=lambda value: value.nbytes)
    return error.moved(largest.op, largest.site)


def _made(node: Node) -> Made:
    origin = origin_of(node)
    op = "full" if origin.label == "constant" else origin.label
    return Made(op, origin.site, prod(node.shape) * node.dtype.itemsize)


def realize_all() -> None:
    """Realizes what this thread has pending, on every device."""
    pending = local.recorder.pending
    if pending:
        for device in list(pending):
            realize(device)


def realize_cell(cell: Cell) -> None:
    """Realizes one cell that another thread recorded; a captured call then finds it computed."""
    capture = capturing() if watching.on else None
    if capture is not None:
        end()
    try:
        with lock_of(cell.node.device), uninterrupted:
            if cell.node.storage is None:
                _run(cell.node.device, [cell], [])
            cell.recorder = None  # what is written next waits in the list of who writes it
    finally:
        if capture is not None:
            begin(capture)


elsewhere.compute = realize_cell


def explain(nodes: list[Node]) -> tuple[str, Program | None]:
    """What would run to compute these nodes alone, and its plan; runs nothing."""
    plan = _planned(nodes)
    if plan is None:
        return "nothing to run: the values are there already", None
    return plan[0].describe(), plan[1]


def planned(nodes: list[Node]) -> Executable | None:
    """The compiled plan that would compute these nodes alone; None if all have values."""
    plan = _planned(nodes)
    return None if plan is None else plan[0]


def _planned(nodes: list[Node]) -> tuple[Executable, Program] | None:
    wanted = [node for node in dict.fromkeys(nodes) if node.storage is None]
    if not wanted:
        return None
    trace = Trace(wanted)
    inputs = {trace.value_numbers[node] for node in trace.inputs}
    values = dict.fromkeys(trace.value_numbers[node] for node in wanted)
    outputs = [value for value in values if value not in inputs]
    device = wanted[0].device
    executable, _, entry = cache.find(device, trace, outputs, {})
    return executable, trace.program(device, outputs, {}, entry.varying)


def run_again(
    lock: threading.RLock,
    executable: Executable,
    storages: Sequence[Any],
    numbers: Sequence[Number],
    spare: dict[int, Any],
) -> list[Any]:
    """Runs a plan without a trace.

    Raises:
        IndexError: a computed index or label was out of range.
    """
    with lock, uninterrupted:
        try:
            return executable.run(storages, numbers, spare)
        except (BadIndex, NoMemory) as error:
            raise run_error(error) from None


def run_error(error: BadIndex | NoMemory) -> TgcError:
    """What a run without a trace has reported, with the line of the user's."""
    return value_error(error) if isinstance(error, BadIndex) else _out_of_memory(error, [])


def _queue_again(cells: Iterable[Cell]) -> None:
    for cell in cells:
        if cell.node.storage is None and cell.recorder is None:
            cell.wait(cell.node)


class TracedRun(NamedTuple):
    """A run of the plan that a trace has found: what it computes, and what it overwrites."""

    wanted: list[Node]
    trace: Trace
    outputs: list[int]
    overwrites: dict[int, int]
    executable: Executable
    entry: Entry


class Lesson(Protocol):
    """What a lookup that has failed keeps of how a trace runs the same graph; it holds no node."""

    def learn(self, run: TracedRun) -> None:
        """Called after the run, before its results are there."""
        ...


class PlanLookup(Protocol):
    """What may run a plan without a trace."""

    def __call__(self, device: Device, wanted: list[Node]) -> bool | Lesson:
        """True if it has run all that is wanted; else what is to be learned, or False.

        Args:
            device: where.
            wanted: nodes without a value, each once.
        """
        ...


def trace_always(device: Device, wanted: list[Node]) -> bool:
    """The slow path: no plan is looked up without a trace."""
    return False


# The hook of what has seen such graphs before.
run_cached_plan: PlanLookup = trace_always


def _run(device: Device, cells: list[Cell], nodes: list[Node]) -> None:
    wanted = list(dict.fromkeys([*[cell.node for cell in cells], *nodes]))
    lesson = run_cached_plan(device, wanted)
    if lesson is True:
        return
    multiples: dict[Node, list[Node]] = {}
    for node in keep_history(wanted) if any(node.requires_grad for node in wanted) else ():
        if len(node.outputs) > 1:
            multiples[node] = [common.output(node, index=k) for k in range(len(node.outputs))]
            wanted.extend(multiples[node])
        else:
            wanted.append(node)
    wanted = list(dict.fromkeys(wanted))
    trace = Trace(wanted)
    storages = trace.storages()
    number_of = trace.value_numbers.__getitem__
    inputs = dict(zip(map(number_of, trace.inputs), range(len(storages))))
    outputs = [value for value in dict.fromkeys(map(number_of, wanted)) if value not in inputs]
    if outputs:
        if mode.now.finite:
            check_finite(device, trace, storages)
        overwrites: dict[int, int] = {}
        if trace.assigns:
            overwrites = overwritable(trace, wanted, outputs, storages, device)
        capture = capturing() if watching.on else None
        if capture is not None:
            capture.protect(device, storages, overwrites)
        executable, numbers, entry = cache.find(device, trace, outputs, overwrites)
        results = executable.run(storages, numbers)
        computed = dict(zip(outputs, results))
        if capture is not None:
            sites = [owner.site for owner in trace.owners]
            supplied = SuppliedInt | SuppliedFloat
            same = key_numbers([n for n in trace.numbers if not isinstance(n, supplied)])
            graph = (*trace.records, *outputs, *same)
            made = [_made(trace.owners[value]) for value in outputs]
            run = CapturedRun(
                device, executable, storages, numbers, overwrites, len(results), sites, graph, made
            )
            capture.ran(run, results)
        if lesson is not False:
            lesson.learn(TracedRun(wanted, trace, outputs, overwrites, executable, entry))
    else:
        computed = {}
    for node, value in zip(wanted, map(number_of, wanted)):
        node.storage = computed[value] if value in computed else storages[inputs[value]]
        node.piece = None
    for node, parts in multiples.items():
        node.storage = tuple(part.storage for part in parts)
        node.piece = None
    release([*wanted, *multiples], trace.inputs)


# Where a loop comes round -----------------------------------------------------------------------


def begin_call(site: RawSite | None) -> None:
    """An outermost ``Module.__call__`` begins; realizes an earlier turn of the loop, if pending."""
    recorder = local.recorder
    if recorder.backward_finished:
        realize_all()
    elif not mode.now.gradients and site is not None:
        line = (site[0], site[1])
        if line in recorder.call_lines:
            realize_all()
        recorder.call_lines.add(line)


def begin_backward(site: RawSite | None) -> None:
    """A backward pass begins; realizes an earlier one from the same line, if pending."""
    recorder = local.recorder
    if site is not None:
        line = (site[0], site[1])
        if line in recorder.backward_lines:
            realize_all()
        recorder.backward_lines.add(line)


def _end_turn() -> None:
    """What is pending is about to get its value: the next line may begin another turn."""
    recorder = local.recorder
    recorder.recorded = 0
    recorder.backward_finished = False
    if recorder.backward_lines:
        recorder.backward_lines = set()
    if recorder.call_lines:
        recorder.call_lines = set()


def end_backward() -> None:
    """A backward pass has been recorded: about twice as many nodes as its forward pass."""
    recorder = local.recorder
    recorder.backward_finished = True
    count_nodes(2 * recorder.recorded)


def count_nodes(count: int) -> None:
    """Counts recorded nodes; a trace that grows without end is cut."""
    recorder = local.recorder
    recorder.recorded += count
    if recorder.recorded > recorder.limit:
        realize_all()


# Bad indices ------------------------------------------------------------------------------------

# What is right in a check: an index, one that may count from the end, or 0 <= x <= 1.
INDEX, SIGNED_INDEX, UNIT = "index", "signed index", "unit"
# What is said of a check: the operation, the name of its values, the line, what is right.
_Check = tuple[str, str, RawSite | None, str]

_serials = itertools.count()
_lines: list[_Check] = [("index", "index", None, INDEX)]
_numbers: dict[Any, int] = {}  # of a line
_lines_lock = new_lock()


def register_check(op: str, what: str, site: RawSite | None, domain: str = INDEX) -> int:
    """A code for a check, by which a bad value finds its line again.

    Args:
        op: the user's name of the operation.
        what: the user's name of the values: index, target, input.
        site: the user's line.
        domain: which values are right: `INDEX`, `SIGNED_INDEX` or `UNIT`.
    """
    # The code object by identity: its hash is slow, and the list keeps it alive.
    key = (op, what, domain, id(site[0]), site[1:]) if site else (op, what, domain)
    line = _numbers.get(key)
    if line is None:
        with _lines_lock:
            line = len(_lines)
            _lines.append((op, what, site, domain))
        _numbers[key] = line
    code = line << LINE | next(_serials) & (1 << LINE) - 1
    # A compiled function may keep its code for ever: another one is no other program.
    return code if capturing() is None else SuppliedInt(code)


def described_check(code: int) -> tuple[str, str, str]:
    """What a check was registered with, besides its line."""
    op, what, _, domain = _lines[code >> LINE]
    return op, what, domain


def value_error(error: BadIndex) -> IndexError | ArgumentError:
    """What kernels reported, with the line of the check."""
    failure = _value_error(error)
    failure.reported = True
    return failure


def _value_error(error: BadIndex) -> IndexError | ArgumentError:
    op, what, site, domain = _lines[error.code >> LINE]
    problem = f"{what}[{error.position}] is out of range"
    if domain == UNIT:
        (value,) = struct.unpack("d", struct.pack("q", error.index))
        expect = f"0 <= {what} <= 1"
        return ArgumentError(op, problem, expect=expect, actual=str(value), site=site)
    low = -error.limit if domain == SIGNED_INDEX else 0
    expect = f"{low} <= {what} < {error.limit}"
    return IndexError(op, problem, expect=expect, actual=str(error.index), site=site)


def _report(error: BadIndex, cells: list[Cell]) -> IndexError | ArgumentError:
    """Restores every cell to its value before the failed plan.

    New values that read the bad index are lost; the others are queued again.
    """
    failure = value_error(error)
    faulty = _faulty([cell.node for cell in cells], error.code)
    for cell in cells:
        node = cell.node
        while node.op is common.variable or node.op is common.detach:
            node = node.sources[0]
        if node.op is common.assign and node.sources[0].storage is not None:
            cell.put(node.sources[0])
        elif cell.node in faulty:
            # Another object: the one that is raised holds the frames, and they the cells.
            cell.error = failure.anew()
        else:
            _queue_again((cell,))
    return failure


def _faulty(roots: list[Node], code: int) -> set[Node]:
    """Pending nodes that depend on the check with this code."""
    faulty: set[Node] = set()
    for node in topological(roots, stop=lambda node: node.storage is not None):
        if node.storage is None and (
            node.attributes.get("code") == code or not faulty.isdisjoint(node.sources)
        ):
            faulty.add(node)
    return faulty


def check_errors(device: Device, wait: bool = True) -> None:
    """Raises what kernels reported since the last look.

    Args:
        device: where to look.
        wait: wait for the device; otherwise look only at what has finished.
    """
    error = registry.get(device).take_error(wait)
    if error is not None:
        raise value_error(error)


__all__ = [
    "INDEX", "SIGNED_INDEX", "UNIT", "begin_backward", "begin_call", "check_errors",
    "count_nodes", "described_check", "end_backward", "lock_of", "named_error", "realize",
    "realize_all", "realize_cell", "register_check", "run_again", "storage_of", "value_error",
]  # fmt: skip
