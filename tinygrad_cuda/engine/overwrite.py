"""Which assigns of a plan may take the storage of the value they replace.

They may when, after the plan, nobody can read the old value: no other cell, no unspent history,
no array handed out. Who else holds a node is read off its reference count, so an unknown holder
can only cause a copy, never a wrong value.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from typing import Any

from tinygrad_cuda.core.device import CPU, Device
from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise

# On cpu a new array costs nothing and the old one is freed at once.
spared = {CPU}


def overwritable(
    trace: Trace, wanted: list[Node], outputs: list[int], device: Device
) -> dict[int, int]:
    """Position among `outputs` -> input slot whose storage that output takes."""
    candidates = [place for place in outputs if place in trace.assigns]
    if not candidates:
        return {}
    slots = {trace.places[node]: slot for slot, node in enumerate(trace.inputs)}
    if device in spared:
        return {}
    free = _unread(trace, wanted)
    result: dict[int, int] = {}
    taken: set[int] = set()
    for place in candidates:
        target = trace.assigns[place]
        if target in free and target not in taken:
            result[outputs.index(place)] = slots[target]
            taken.add(target)
    return result


def _unread(trace: Trace, wanted: list[Node]) -> set[int]:
    """Places of inputs that nobody can read after the plan."""
    readers: Counter[Node] = Counter()
    holders: dict[int, list[Node]] = {place: [] for place in trace.assigns.values()}
    for node in trace.nodes:
        if node.storage is None:
            readers.update(node.sources)
        elif trace.places.get(node) in holders:
            holders[trace.places[node]].append(node)
    kept = _kept(trace, wanted, readers)
    storage_limit = _baseline()[1]
    free = set()
    for place, nodes in holders.items():
        if kept.isdisjoint(nodes) and _storage_references(nodes) - len(nodes) <= storage_limit:
            # Here a node is held by `nodes` as well, and its first by the list of inputs too.
            for node in nodes:
                if _others(node, trace, readers) > 1 + (trace.owners[place] is node):
                    break
            else:
                free.add(place)
    return free


def _kept(trace: Trace, wanted: list[Node], readers: Counter[Node]) -> set[Node]:
    """What is still read after the plan by nodes that keep their sources."""
    roots = set(wanted)
    stack = []
    for node in trace.nodes:
        if node.storage is not None:
            continue
        if node in roots:
            if node.requires_grad and node.spent is None and node.op is not common.variable:
                stack.append(node)
        elif _others(node, trace, readers) > 0:
            stack.append(node)
    kept: set[Node] = set()
    while stack:
        for source in stack.pop().sources:
            if source not in kept:
                kept.add(source)
                if source.storage is None and source not in roots:
                    stack.append(source)
    return kept


def _others(node: Node, trace: Trace, readers: Counter[Node]) -> int:
    """How often the node is held by something other than the trace and its readers."""
    return _count(node, trace, readers) - _baseline()[0]


def _counted(node: Node, trace: Trace, readers: Counter[Node]) -> int:
    """`_count` at the call depth of `_others`, since each frame holds its arguments."""
    return _count(node, trace, readers)


def _storage_references(nodes: list[Node]) -> int:
    storage: Any = nodes[0].storage
    return sys.getrefcount(storage)


@cache
def _baseline() -> tuple[int, int]:
    """References that the machinery itself holds to a node and to a storage.

    Counted on a graph that nobody else holds, so that it is right for any version of Python.
    """
    node = common.buffer.leaf((1,), float32, CPU)
    node.storage = [object()]
    trace = Trace([elementwise.neg(elementwise.neg(node))])
    storages = trace.storages()
    readers: Counter[Node] = Counter()
    for node in trace.nodes:
        if node.storage is None:
            readers.update(node.sources)
    count = 0
    for node in trace.nodes:
        if node.storage is None and readers[node]:
            count = _counted(node, trace, readers)
    first = trace.nodes[:1]
    return count, _storage_references(first) - len(first) * len(storages)


def _count(node: Node, trace: Trace, readers: Counter[Node]) -> int:
    """References to the node that neither its readers nor the list of owners explain."""
    place = trace.places.get(node)
    owned = -1 if place is None else int(trace.owners[place] is node)
    return sys.getrefcount(node) - readers[node] - owned
