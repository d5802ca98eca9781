"""The plan cache: a trace seen before finds its executable; numbers that vary become arguments.

Without it a trace costs 106 us a node instead of 0.7: it is scheduled and compiled again.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.base import Backend, Executable
from tinygrad_cuda.core.config import decisive, settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.core.observer import Scopes, watched
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.graph.program import Number, Program

# Traces in the cache; the least recently used is dropped first.
CAPACITY = 2048


class Entry:
    """All plans of one structure."""

    def __init__(self, trace: Trace) -> None:
        self.varying = set(trace.always)
        self.plans: dict[tuple[Any, ...], Executable] = {}
        # Numbers that are arguments are not stored: they may hold their origin.
        self.last: tuple[Any, ...] | None = None
        self.positions: list[int] = []
        self._renew(len(trace.numbers))

    def _renew(self, count: int) -> None:
        fixed = [i for i in range(count) if i not in self.varying]
        positions = sorted(self.varying)
        # At once: another thread may be copied by a fork in between.
        self.fixed, self.positions, self.plans = fixed, positions, {}

    def key(self, trace: Trace) -> tuple[Any, ...]:
        """The key of the plan; numbers that differ from the last trace's vary from now on.

        It distinguishes 0.0 from -0.0, and is equal to itself for NaN.
        """
        key = self._fixed_numbers(trace)
        if key not in self.plans and self.last is not None:
            changed = [i for i, n, last in zip(self.fixed, key, self.last) if n != last]
            self.varying.update(changed)
            self._renew(len(trace.numbers))
            key = self._fixed_numbers(trace)
        self.last = key
        return key

    def _fixed_numbers(self, trace: Trace) -> tuple[Any, ...]:
        return key_numbers([trace.numbers[i] for i in self.fixed])


def key_numbers(numbers: Sequence[Number]) -> tuple[Any, ...]:
    """Numbers as part of a key: 0.0 and -0.0 are two, and NaN is equal to itself."""
    return tuple([n if n and n == n else repr(n) for n in numbers])


class PlanCache:
    """Finds or makes the executable of a trace.

    Attributes:
        made: how many plans were made so far that were new; constant in a steady loop.
        keeps: whether a trace that was seen before runs what was compiled then. Otherwise it is
            scheduled again; which of its numbers are arguments follows from the earlier ones.
    """

    keeps = False

    def __init__(self) -> None:
        self.entries: OrderedDict[Any, Entry] = OrderedDict()
        # By the calls that record them, and guards by their roots; see `replay.plan_lookup`.
        self.signatures: dict[Any, Any] = {}
        self.guards: dict[Any, Any] = {}
        self.made = 0
        self._lock = new_lock()

    def find(
        self, device: Device, trace: Trace, outputs: list[int], overwrites: dict[int, int]
    ) -> tuple[Executable, list[Number], Entry]:
        """The executable, the numbers to run it with, and its entry in the cache."""
        backend = registry.get(device)
        with self._lock:
            structure = (
                device,
                backend.target,
                tuple(trace.records),
                tuple(outputs),
                tuple(overwrites.items()),
                decisive(settings),
                # Where errors or profiles name lines, a plan does not serve programs at others.
                tuple([node.site for node in trace.owners])
                if settings.validate or settings.sync or Scopes.root is not None
                else None,
            )
            entry = self.entries.get(structure)
            if entry is None:
                entry = self.entries[structure] = Entry(trace)
                if len(self.entries) > CAPACITY:
                    self.entries.popitem(last=False)
            else:
                self.entries.move_to_end(structure)
            key = entry.key(trace)
            executable = entry.plans.get(key)
            if executable is None or not self.keeps:
                program = trace.program(device, outputs, overwrites, entry.varying)
                new, executable = executable is None, _compiled(backend, program)
                entry.plans[key] = executable
                self.made += new
                if new and settings.debug >= 1:
                    sizes = f"{len(trace.owners)} nodes, {len(trace.inputs)} inputs"
                    text = f"plan {self.made} on {device}: {sizes}, {len(outputs)} outputs"
                    print(text, file=sys.stderr)
            return executable, [trace.numbers[i] for i in entry.positions], entry

    def clear(self) -> None:
        """Forgets all plans."""
        self.entries.clear()
        self.forget_signatures()

    def forget_signatures(self) -> None:
        """Forgets by which calls plans are recorded."""
        self.signatures.clear()
        self.guards.clear()


def _compiled(backend: Backend, program: Program) -> Executable:
    observer = watched.observer
    if observer is None:
        return backend.compile(program)
    with observer.span("plan", "schedule and compile a plan"):
        return backend.compile(program)


cache = PlanCache()


# What rooms above remember of plans; each is called when settings that decide results change.
forgetting: list[Callable[[], None]] = []


def decide(field: str, value: str | bool) -> None:
    """Changes a setting that plans depend on, from here on.

    Plans are looked up by the calls that record them, which do not say it: all are forgotten.

    Args:
        field: of `settings`, such as ``matmul_precision``.
        value: one of those in `config`; empty leaves the choice to the model of time.
    """
    if getattr(settings, field) != value:
        setattr(settings, field, value)
        cache.clear()
        for forget in forgetting:
            forget()
