"""Which assigns of a plan may take the storage of the value they replace.

They may when, after the plan, nobody can read the old value: no other cell, no unspent history,
no array handed out. Who else holds a node is read off its reference count, so an unknown holder
can only cause a copy, never a wrong value.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain
from typing import Any

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU, Device
from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.core.reference_counts import counts_of
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common

# On cpu a new array costs nothing and the old one is freed at once.
spared = {CPU}


def overwritable(
    trace: Trace, wanted: list[Node], outputs: list[int], storages: list[Any], device: Device
) -> dict[int, int]:
    """Which outputs take the storage of an input.

    Args:
        trace: the plan's trace, just made.
        wanted: the nodes that get a storage; the only list of them besides the trace's own.
        outputs: their value numbers.
        storages: of the inputs, by slot; nothing else of the engine refers to them.
        device: where the plan runs.

    Returns:
        Position among `outputs` -> input slot.
    """
    if device in spared:
        return {}
    # First, while nothing here refers to single nodes.
    referenced = _referenced(trace)
    slots = {trace.value_numbers[node]: slot for slot, node in enumerate(trace.inputs)}
    storage_counts = counts_of(storages)
    lasting = _read_later(wanted, referenced)
    sharing: dict[int, list[Node]] = {}
    values = trace.value_numbers
    for node in trace.singles:
        if node.storage is not None:
            sharing.setdefault(values[node], []).append(node)
    result: dict[int, int] = {}
    taken: set[int] = set()
    for position, value in enumerate(outputs):
        target = trace.assigns.get(value)
        if target is None or target in taken:
            continue
        nodes, slot = sharing[target], slots[target]
        if not lasting.isdisjoint(nodes):
            reason = "a gradient that may still be asked for reads the old value"
        elif not referenced.isdisjoint(nodes) or storage_counts[slot] > len(nodes):
            reason = "another tensor or array still holds the old value"
        else:
            result[position] = slot
            taken.add(target)
            continue
        if settings.debug >= 3:
            line = describe_site(trace.owners[value].site)
            print(f"copied instead of overwritten: {line}: {reason}", file=sys.stderr)
    return result


def _referenced(trace: Trace) -> set[Node]:
    """Nodes that something refers to other than the trace and its readers."""
    nodes = trace.singles
    counts = counts_of(nodes)
    # A node has a value number in the trace, and is among its owners or those that share a value.
    expected = Counter(dict.fromkeys(nodes, 2))
    read = [node.sources for node in nodes if node.storage is None]
    expected.update(chain(trace.inputs, chain.from_iterable(read)))
    return {node for node, count in zip(nodes, counts) if count != expected[node]}


def _read_later(wanted: list[Node], referenced: set[Node]) -> set[Node]:
    """What is still read after the plan by nodes whose sources stay."""
    roots = set(wanted)
    stack = [
        node for node in wanted
        if node.storage is None and node.requires_grad and node.spent is None
        and node.op is not common.variable
    ]  # fmt: skip
    stack += [node for node in referenced if node.storage is None and node not in roots]
    lasting: set[Node] = set()
    while stack:
        for source in stack.pop().sources:
            if source not in lasting:
                lasting.add(source)
                if source.storage is None and source not in roots:
                    stack.append(source)
    return lasting
