"""Which fast paths are on: all, those that ``TGC_FAST`` names, or none with ``TGC_SLOW=1``.

A fast path recognises what was seen before and leaves work out. A switch is read where hooks are
filled and objects are made, never in a call: so what exists is dropped when a switch changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

from tinygrad_cuda.core.config import settings


class Switches:
    """One for each fast path; the comment says what it leaves out."""

    templated_calls: bool  # a composed function's Python, where its graph was recorded before
    backward_templates: bool  # the gradient rules of a backward pass that has come before
    update_templates: bool  # an optimizer's apply_single, where its graph was recorded before
    group_updates: bool  # recording the updates of a group where nothing else is pending
    plan_cache: bool  # scheduling and generating a graph whose trace has come before
    plan_lookup: bool  # tracing a graph whose calls have come before
    plan_guards: bool  # walking over such a graph: a function is written for it
    compiled_replay: bool  # the Python of a function under tc.compile
    fast_replay: bool  # looking at each cell, gradient, argument and name of a compiled call
    dirty_tracking: bool  # counting who refers to state that nobody has touched
    output_recycling: bool  # making the Tensors that a compiled call returns
    multi_step: bool  # starting each step of steps=n by itself
    watched_options: bool  # comparing an optimizer's options and state that nobody has written
    cuda_graphs: bool  # launching each kernel of a program by itself
    graphs_by_address: bool  # writing parameters of a graph when addresses come again
    steady_runs: bool  # looking up the memory of everything but arguments and results
    multi_run_graphs: bool  # starting the graph of each step of steps=n by itself

    def __init__(self, on: Collection[str]) -> None:
        self._listeners: list[Callable[[], None]] = []
        self.set(on)

    def listen(self, listener: Callable[[], None]) -> None:
        """Has a function called now and after each change: it fills hooks and drops what exists."""
        self._listeners.append(listener)
        listener()

    def set(self, on: Collection[str]) -> None:
        """Switches these on and the others off."""
        for name in FAST_PATHS:
            setattr(self, name, name in on)
        for listener in self._listeners:
            listener()

    def on(self) -> tuple[str, ...]:
        """The names of those that are on."""
        return tuple(name for name in FAST_PATHS if getattr(self, name))

    @contextmanager
    def only(self, *names: str) -> Iterator[None]:
        """Leaves these on inside a `with` block, and no other."""
        before = self.on()
        self.set(names)
        try:
            yield
        finally:
            self.set(before)

    def without(self, *names: str) -> AbstractContextManager[None]:
        """Switches these off inside a `with` block."""
        return self.only(*(name for name in self.on() if name not in names))


FAST_PATHS = tuple(Switches.__annotations__)


def chosen(slow: bool, fast: tuple[str, ...]) -> tuple[str, ...]:
    """The names that are on by the two settings; one that is none warns."""
    names = {name.removeprefix("-") for name in fast}
    for name in sorted(names.difference(FAST_PATHS)):
        warnings.warn(
            f"TGC_FAST: {name} is no fast path; there are {', '.join(FAST_PATHS)}",
            UserWarning,
            stacklevel=2,
        )
    if slow:
        return ()
    off = {name[1:] for name in fast if name.startswith("-")}
    wanted = names - off or FAST_PATHS
    return tuple(name for name in FAST_PATHS if name in wanted and name not in off)


switches = Switches(chosen(settings.slow, settings.fast))
