"""Realization: everything pending on a device becomes one plan, runs, and gets its storage."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.base import BadIndex
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import IndexError, RawSite
from tinygrad_cuda.engine.cell import NODE_LIMIT, Cell, Recorder, local
from tinygrad_cuda.engine.overwrite import overwritable
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.trace import Trace, dear_values, storage_of
from tinygrad_cuda.graph.node import Node, mode
from tinygrad_cuda.graph.ops import common

_locks: dict[Device, threading.RLock] = {}


def _lock(device: Device) -> threading.RLock:
    return _locks.setdefault(device, threading.RLock())


def realize(device: Device, extra: Iterable[Node] = ()) -> None:
    """Gives a storage to every pending cell of this thread on `device`, and to the nodes `extra`.

    Raises:
        IndexError: a computed index or label was out of range; no cell has changed.
    """
    with _lock(device):
        recorder = local.recorder
        cells = []
        for reference in recorder.pending.pop(device, ()):
            cell = reference()
            if cell is not None:
                cell.recorder = None
                if cell.node.storage is None:
                    cells.append(cell)
        recorder.clear_lines()
        nodes = [node for node in extra if node.storage is None]
        if not cells and not nodes:
            return
        try:
            _run(device, cells, nodes)
        except BadIndex as error:
            raise _report(error, cells) from None
        except BaseException:
            _queue_again(recorder, cells)
            raise


def realize_all() -> None:
    """Realizes what this thread has pending, on every device."""
    for device in list(local.recorder.pending):
        realize(device)


def realize_cell(cell: Cell) -> None:
    """Realizes one cell that another thread recorded."""
    with _lock(cell.node.device):
        if cell.node.storage is None:
            _run(cell.node.device, [cell], [])


def explain(nodes: list[Node]) -> str:
    """What would run to compute these nodes alone; runs nothing."""
    wanted = [node for node in dict.fromkeys(nodes) if node.storage is None]
    if not wanted:
        return "nothing to run: the values are there already"
    trace = Trace(wanted)
    inputs = {trace.places[node] for node in trace.inputs}
    places = dict.fromkeys(trace.places[node] for node in wanted)
    outputs = [place for place in places if place not in inputs]
    return cache.find(wanted[0].device, trace, outputs, {})[0].describe()


def _queue_again(recorder: Recorder, cells: list[Cell]) -> None:
    for cell in cells:
        if cell.node.storage is None and cell.recorder is None:
            node, cell.recorder = cell.node, None
            cell.put(node)


def _run(device: Device, cells: list[Cell], nodes: list[Node]) -> None:
    wanted = list(dict.fromkeys([*(cell.node for cell in cells), *nodes]))
    multiples: dict[Node, list[Node]] = {}
    for node in dear_values(wanted):
        if len(node.outputs) > 1:
            multiples[node] = [common.output(node, index=k) for k in range(len(node.outputs))]
            wanted.extend(multiples[node])
        else:
            wanted.append(node)
    wanted = list(dict.fromkeys(wanted))
    trace = Trace(wanted)
    storages = trace.storages()
    inputs = {trace.places[node]: slot for slot, node in enumerate(trace.inputs)}
    places = dict.fromkeys(trace.places[node] for node in wanted)
    outputs = [place for place in places if place not in inputs]
    if outputs:
        overwrites = overwritable(trace, wanted, outputs, _pinned(cells, trace), device)
        executable, numbers = cache.find(device, trace, outputs, overwrites)
        found = dict(zip(outputs, executable.run(storages, numbers)))
    else:
        found = {}
    for node in wanted:
        place = trace.places[node]
        node.storage = found[place] if place in found else storages[inputs[place]]
    for node, parts in multiples.items():
        node.storage = tuple(part.storage for part in parts)
    _release([*wanted, *multiples])


def _pinned(cells: list[Cell], trace: Trace) -> set[int]:
    """Outputs that must be written to the address their cell shares with the outside."""
    return {trace.places[cell.node] for cell in cells if cell.pinned} & set(trace.assigns)


def _release(wanted: list[Node]) -> None:
    """Drops the sources of nodes through which no gradient can pass any more."""
    for node in wanted:
        if node.requires_grad and node.op is not common.variable and node.spent is None:
            for source in node.sources:
                # A gradient through this node would raise: its history is gone already.
                if source.requires_grad and source.spent is not None:
                    node.spent = source.spent
                    break
            else:
                continue
        node.sources = ()


# Where a loop comes round -----------------------------------------------------------------------


def begin_call(site: RawSite | None) -> None:
    """An outermost ``Module.__call__`` begins; realizes an earlier turn of the loop, if pending."""
    recorder = local.recorder
    if recorder.backward_finished:
        realize_all()
    elif not mode.gradients and site is not None:
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


def end_backward(nodes: int) -> None:
    """A backward pass over this many nodes has been recorded."""
    recorder = local.recorder
    recorder.backward_finished = True
    count_nodes(3 * nodes)


def count_nodes(count: int) -> None:
    """Counts recorded nodes; a trace that grows without end is cut."""
    recorder = local.recorder
    recorder.recorded += count
    if recorder.recorded > NODE_LIMIT:
        realize_all()


# Bad indices ------------------------------------------------------------------------------------

_codes = itertools.count()
_checks: OrderedDict[int, tuple[str, RawSite | None]] = OrderedDict()
CHECKS_REMEMBERED = 65536


def register_check(what: str, site: RawSite | None) -> int:
    """A code for a ``check_index`` node, by which a bad index finds its line again."""
    code = next(_codes)
    _checks[code] = (what, site)
    if len(_checks) > CHECKS_REMEMBERED:
        _checks.popitem(last=False)
    return code


def _index_error(error: BadIndex) -> IndexError:
    what, site = _checks.get(error.code, ("index", None))
    return IndexError(
        "index",
        f"{what}[{error.position}] is out of range",
        expect=f"0 <= {what} < {error.limit}",
        actual=str(error.index),
        site=site,
    )


def _report(error: BadIndex, cells: list[Cell]) -> IndexError:
    """Puts cells back to what they held before the failed plan."""
    failure = _index_error(error)
    for cell in cells:
        node = cell.node
        if node.storage is not None:
            continue
        while node.op is common.variable or node.op is common.detach:
            node = node.sources[0]
        if node.op is common.assign and node.sources[0].storage is not None:
            cell.put(node.sources[0])
        else:
            cell.error = failure
    return failure


def check_errors(device: Device, wait: bool = True) -> None:
    """Raises what kernels reported since the last look.

    Args:
        device: where to look.
        wait: wait for the device; otherwise look only at what has finished.
    """
    error = registry.get(device).take_error(wait)
    if error is not None:
        raise _index_error(error)


__all__ = [
    "begin_backward", "begin_call", "check_errors", "count_nodes", "end_backward", "realize",
    "realize_all", "realize_cell", "register_check", "storage_of",
]  # fmt: skip
