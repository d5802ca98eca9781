"""tc.compile: the first calls of a signature are recorded, the later ones replayed."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from tinygrad_cuda.backend.base import BadIndex, NoMemory
from tinygrad_cuda.capture.fast_replay import MISS, FastReplay, fast_replay
from tinygrad_cuda.capture.frame_replay import ReplayFrame
from tinygrad_cuda.capture.multi_step_replay import MultiStepReplay, multi_step_replay
from tinygrad_cuda.capture.program import CapturedProgram, Change
from tinygrad_cuda.capture.results import ResultHistory
from tinygrad_cuda.capture.signature import Given, difference, owner_module, snapshot
from tinygrad_cuda.capture.unrepeated import ArgumentsBefore, lacking_of
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import CompileError, OutOfMemoryError
from tinygrad_cuda.core.interrupts import SIGINT, SIGTERM, getsignal, indivisible
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.core.observer import watched
from tinygrad_cuda.engine.capture import (
    STATE_MADE,
    Capture,
    Stale,
    StepEvent,
    begin,
    capturing,
    end,
    structure,
    watching,
)
from tinygrad_cuda.engine.cell import local
from tinygrad_cuda.engine.plan import forgetting
from tinygrad_cuda.engine.realize import realize_all, run_error
from tinygrad_cuda.graph.node import mode
from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.replay.guards.discovery import Extra, home_of, names_of
from tinygrad_cuda.replay.guards.values import Names
from tinygrad_cuda.replay.guards.watch import Watch, refuse
from tinygrad_cuda.replay.switches import switches

SIGNATURES = 64  # of one function at most; the least recently used is dropped first
PROGRAMS = 8  # of one signature at most: training and evaluation, frozen and not, ...
MET = 200  # values that calls meet while they are traced and that no name leads to
ATTEMPTS = 3  # calls in a row that leave something new behind


_all: weakref.WeakSet[Compiled] = weakref.WeakSet()


def _forget() -> None:
    """Has every compiled function traced again."""
    for compiled in [*_all]:
        compiled.forget()


switches.listen(_forget)
forgetting.append(_forget)


class Ready(NamedTuple):
    """A program to run many times, the first call's arguments, and that call."""

    turns: MultiStepReplay
    given: Given
    frame: ReplayFrame


class Compiled:
    """A function or Module whose calls are replayed; `tc.compile` makes it.

    Attributes that it does not have are those of what it was made from.

    Args:
        function: what is compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._programs: OrderedDict[Any, list[CapturedProgram]] = OrderedDict()
        # Signatures that cannot be replayed, and the version of structure at which that was so.
        self._recorded: dict[Any, int] = {}
        self._attempts: Counter[Any] = Counter()  # of each signature
        # Signatures whose calls write to a view among the arguments; tensors that calls have
        # written while a view of them was an argument.
        self._writing: set[Any] = set()
        self._written_bases: weakref.WeakSet[Any] = weakref.WeakSet()
        # What the last of them left: what changes it later is not the call.
        self._left: dict[Any, tuple[int, Names]] = {}
        self._fast: FastReplay | None = None  # of the program that was replayed last
        self._extra = Extra()  # what calls have reached that no name leads to
        self._lock = new_lock()
        _all.add(self)
        if not hasattr(function, "parameters"):
            functools.update_wrapper(self, function)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **options: Any) -> Any:
        observer = watched.observer
        if observer is not None and (seen := observer.compiled_call(self)) is not None:
            with seen:
                return self(*args, **options)
        recorder = local.recorder
        now = recorder.mode
        if (watching.on and capturing() is not None) or settings.eager or now.finite or versions.on:
            return self.function(*args, **options)
        with self._lock:
            if recorder.pending:
                realize_all()
            fast = self._fast
            if fast is not None and not options and not settings.validate:
                signals = recorder.signals
                handlers = signals.installed
                if getsignal(SIGINT) is not handlers[0] or getsignal(SIGTERM) is not handlers[1]:
                    signals.install()
                signals.firm += 1
                try:
                    result = fast.replay(args, now.gradients)
                except OutOfMemoryError as error:
                    raise fast.program.named(error) from None
                finally:
                    signals.firm -= 1
                    if signals.arrived:
                        signals.end()
                if result is not MISS:
                    return result
            given = self._given(args, options)
            key = given.key
            stays_recorded = self._recorded and self._recorded.get(key) == structure.version
            if given.history or stays_recorded:
                return self.function(*args, **options)
            return self._replayed_or_traced(given)

    def _replayed_or_traced(self, given: Given) -> Any:
        """The call by a program of its signature that fits, or traced."""
        programs, reason = self._programs.get(given.key, []), ""
        for program in programs:
            try:
                return self._replayed(given, program, programs)
            except Stale as stale:
                reason = reason or str(stale)
        return self._trace(given, reason or self._why(given.key))[0]

    def _replayed(
        self, given: Given, program: CapturedProgram, programs: list[CapturedProgram]
    ) -> Any:
        """The call done again by a program of its signature.

        Raises:
            Stale: the program does not fit any more; nothing has happened.
        """
        if settings.validate:
            program.frame(given)  # it holds values, which a plan then would not overwrite
            return self._validated(given, program)
        with indivisible:
            try:
                result = program.run(given, program.frame(given))
            except (BadIndex, NoMemory) as error:
                raise run_error(error) from None
            except OutOfMemoryError as error:
                raise program.named(error) from None
            if programs[0] is not program:
                programs.remove(program)
                programs.insert(0, program)
            self._fast = fast_replay(program, given)
        return result

    def again(self, args: tuple[Any, ...]) -> Any:
        """A call by the program of its signature, each plan started by itself.

        Raises:
            Stale: there is no such program, or it does not fit any more.
        """
        with self._lock:
            realize_all()
            given = self._given(args, {})
            programs = self._programs.get(given.key, [])
            if given.history or not programs:
                raise Stale("it has not been called with such arguments")
            return self._replayed(given, programs[0], programs)

    def ready(self, args: tuple[Any, ...], options: dict[str, Any]) -> Ready | None:
        """A program that many calls like this one can repeat behind one another, if there is one.

        The caller holds the lock, and runs at least one turn.
        """
        if capturing() or settings.eager or settings.validate or mode.now.finite or versions.on:
            return None
        if local.recorder.pending:
            realize_all()
        given = self._given(args, options)
        if given.history:
            return None
        for program in self._programs.get(given.key, ()):
            turns = multi_step_replay(program)
            if turns is not None:
                try:
                    return Ready(turns, given, program.frame(given))
                except Stale:
                    continue
        return None

    def _given(self, args: tuple[Any, ...], options: dict[str, Any]) -> Given:
        """The arguments of a call; views by what they show if such a call has written to it."""
        given = Given(args, options)
        if given.views and (
            given.key in self._writing
            or any(view.base in self._written_bases for view in given.views)
        ):
            return Given(args, options, by_chain=True)
        return given

    def _why(self, key: Any) -> str:
        """Why there is no program for a key."""
        if not self._programs:
            return "its first call"
        return difference(key, next(reversed(self._programs)))

    def _trace(self, given: Given, reason: str) -> tuple[Any, CapturedProgram | None]:
        """Calls the function as it is, and keeps what it did if another call can repeat it."""
        version, left = self._left.get(given.key, (-1, None))
        if version != structure.version or (left is not None and left.changed() is not None):
            self._attempts.pop(given.key, None)
        before = ArgumentsBefore(given)
        names = names_of(self.function, before.followed, self._extra)
        gradients = mode.now.gradients
        self._report(f"is traced: {reason}")
        for remark in names.remarks():
            self._report(remark)
        refuse(names)
        result, capture, watch = self._captured(given, names)
        returned = result  # as the function sees its arguments
        if given.views:
            result = given.restored(result)
        if capture.written_bases:
            self._written_bases.update(capture.written_bases)
            if capture.written_views:
                self._writing.add(given.key)
            self._report("is traced again: it writes to what a view among its arguments shows")
            return result, None
        missed = self._extra.add(watch.extra)
        watch.narrowed(lambda ran: names_of(self.function, before.followed, self._extra, ran))
        names.seen.clear()  # what is weakly referred to may go
        try:
            program = CapturedProgram(capture, given, returned, names)
        except ResultHistory:
            if given.views:  # the function had copies of what holds them
                before.check(returned, capture, names)
            self._recorded[given.key] = structure.version
            self._report("is recorded each time: a gradient may still pass through what it returns")
            return result, None
        before.check(returned, capture, names)
        program.lacking = lacking_of(capture, given, names)
        change = _unsteady(capture, program)
        if gradients is not mode.now.gradients:
            change = Change("gradient mode")
        change = change or program.changed()
        if change is None and missed:
            what = "which functions it calls that no name leads to"
            # Each such call has reached something new: not for ever.
            change = Change(what, new=len(self._extra) < MET)
        if change is not None:
            self._count(given.key, change, names)
            return result, None
        self._attempts.pop(given.key, None)
        self._left.pop(given.key, None)
        self._recorded.pop(given.key, None)
        programs = self._programs.get(given.key, [])
        self._keep(given.key, [program, *programs][:PROGRAMS])
        return result, program

    def _count(self, key: Any, change: Change, names: Names) -> None:
        """Notes that a call has left behind what a replay would not.

        Raises:
            CompileError: so have all those before it.
        """
        self._attempts[key] += not change.new
        if len(self._left) >= SIGNATURES:
            self._left.clear()
        self._left[key] = structure.version, names.later()
        self._report(f"is traced again: its call has changed {change.text}")
        if self._attempts[key] >= ATTEMPTS:
            raise _never_steady(change)

    def _captured(self, given: Given, names: Names) -> tuple[Any, Capture, Watch]:
        """What a call returns, what it did to Tensors, and what else it read.

        Raises:
            CompileError: it has looked at a value, or at what cannot be followed.
        """
        watch = Watch(names, home_of(self.function))
        # A frame computes what waits in another thread.
        capture = Capture(ReplayFrame(given.cells).cells, snapshot, given.views)
        try:
            begin(capture)
            watch.begin()
            for module in filter(None, (owner_module(self.function), *names.modules)):
                capture.saw_module(module)
            result = self.function(*given.args, **given.options)
            watch.end()
            realize_all()
        finally:
            try:
                watch.end()
                end()
            except KeyboardInterrupt:
                watch.end()
                end()  # it had come before anything was done
                raise
        # The function may have caught them.
        for error in (watch.error, capture.refused):
            if error is not None:
                raise error
        watch.moved()
        return result, capture, watch

    def _validated(self, given: Given, program_before: CapturedProgram) -> Any:
        """Traces the call although there is a program, and compares."""
        result, program = self._trace(given, "TGC_VALIDATE compares")
        line = None if program is None else program_before.departs(program)
        if line is not None:
            raise CompileError(
                "compile", "the function does something else than when it was traced",
                expect="the same operations with the same Python values",
                actual=f"another graph from here on: {line}",
                hint="Python values that change are read once; pass them as tensors",
            )  # fmt: skip
        return result

    def _keep(self, key: Any, programs: list[CapturedProgram]) -> None:
        if not switches.compiled_replay:
            return
        self._programs[key] = programs
        self._programs.move_to_end(key)
        if len(self._programs) > SIGNATURES:
            self._programs.popitem(last=False)

    def forget(self) -> None:
        """Drops all programs."""
        with self._lock:
            self._programs.clear()
            self._fast = None

    def _report(self, text: str) -> None:
        if settings.debug >= 1:
            name = getattr(self.function, "__qualname__", type(self.function).__name__)
            print(f"compile: {name} {text}", file=sys.stderr)

    # As what it was made from ---------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name == "function" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.function, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __reduce__(self) -> Any:
        return Compiled, (self.function,)

    def __repr__(self) -> str:
        return f"compiled {self.function!r}"


def _unsteady(capture: Capture, program: CapturedProgram) -> Change | None:
    """What the call has made or replaced that a replay would not; or None."""
    for event in capture.events:
        if isinstance(event, StepEvent) and event.unsteady is not None:
            # A program that clears the state before each call is right, and never repeated.
            return Change(event.unsteady, new=event.unsteady == STATE_MADE)
    for reference, cell, chain in capture.handles.values():
        handle = reference()
        if handle is not None and (handle.cell is not cell or handle.chain != chain):
            return Change(f"what a tensor of shape {tuple(handle.shape)} refers to")
    if program.escaped is not None:
        return Change(f"what holds a tensor made inside: {program.escaped}")
    return None


def _never_steady(change: Change) -> CompileError:
    return CompileError(
        "compile", "each call leaves something behind that a replay would not",
        expect="tensors written in place, results returned, and Python values left alone",
        actual=f"{ATTEMPTS} calls in a row have changed {change.text}", site=change.site,
        hint="return tensors instead of keeping them, write state with copy_(), count outside",
    )  # fmt: skip
