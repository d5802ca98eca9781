"""The tuner: candidates for a product or a convolution are run and timed once, the quickest is
remembered.

A plan's problems (`lowering.tuning`) that the machine's table lacks are measured while the plan is
compiled, each as a program of its own over operands in memory. Candidates are the cuts of all tiers
that the model of time does not expect to be far slower than its choice, `PER_TIER` of each at most.
All get the same operands. One whose values differ from those of the model's choice by more than the
dtype's tolerance is refused and said. How a time is taken is the machine's: a GPU's is in
`backend/cuda/tuner.py`, the emulator's is the wall's.

The table only grows, and its choices are part of the target, so of each plan's key.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import numpy as np

from tinygrad_cuda.backend.launch.executable import LoweredExecutable, Machine
from tinygrad_cuda.backend.launch.tuning_cache import TuningCache
from tinygrad_cuda.core.config import TUNING, settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.lowering.algorithms import Option, options
from tinygrad_cuda.lowering.lower import Lowered, lower
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.lowering.tuning import Decision, TuningProblem, cut_text
from tinygrad_cuda.lowering.tuning_table import OneChoice, Tuned, TuningTable

OFF, CACHED, ON = TUNING
PER_TIER = 6  # cuts of a tier that are measured at most
WITHIN = 3.0  # times the least estimate: slower candidates are not measured
# Candidates that are measured twice: clocks of a GPU rise while the first ones run.
AGAIN, NEAR = 8, 1.2  # at most, and times the least that they took
WORTH = 0.99  # of the time of the model's choice that another one takes at most
ROUNDS = 4  # of a plan: a measured choice may put other problems into it
COMPARED = 1 << 20  # elements at the beginning, middle and end of a large result that are compared
# Of elements behind an epilogue, such as a comparison, which jumps where sums differ in last bits.
JUMPS = 1e-4
PERIOD = 1048573  # a prime: values of operands repeat after so many
# Differences over the largest value: sums in another order, and (float32) operands as tf32.
TOLERANCE = {"float64": 1e-11, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
ROUNDED = 1e-2  # the same for float32 whose operands may be rounded to tf32 or bfloat16

Array = np.ndarray[Any, Any]


class TunedMachine(Machine, Protocol):
    """A machine whose kernels can be timed."""

    tuner: Tuner

    def from_host(self, array: Array) -> Any:
        """Memory with a copy of the array."""
        ...

    def precompile(self, lowered: Lowered) -> None:
        """Compiles what `load` will ask for; several threads call it."""
        ...

    def poison(self, memory: Any) -> None:
        """Fills memory with what no result is."""
        ...

    def installed(self) -> Mapping[str, str]:
        """The target's libraries that this process can call, with their versions."""
        ...

    def measured(self, run: Callable[[], None], name: str) -> float:
        """The microseconds of a run with a cold L2 cache.

        Args:
            run: starts the launches.
            name: of the candidate.
        """
        ...


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A program of a problem.

    Attributes:
        option: its tier and cut; None of the model's choice.
        name: for a reader.
    """

    option: Option | None
    name: str
    lowered: Lowered


class Tuner:
    """The table of one machine.

    Args:
        machine: which it measures; its target gets the table.
    """

    def __init__(self, machine: TunedMachine) -> None:
        self.machine, self.mode = machine, OFF
        self.table = TuningTable({})
        self._libraries: Mapping[str, str] | None = None  # those installed, once asked for
        self._failed = set[str]()  # keys of problems that no kernel could be run for
        self.cache = TuningCache(_named(machine.target))

    def switch(self, mode: str) -> None:
        """Chooses by estimates alone, by what was measured, or measures what is missing."""
        if mode == OFF:
            self.table = TuningTable({})
        elif self.mode == OFF:
            self.cache = TuningCache(_named(self.machine.target))
            if self._libraries is None:
                self._libraries = self.machine.installed()
            self.table = TuningTable(self.cache.read(), self._libraries)
        self.mode = mode
        self._put()

    def _put(self) -> None:
        """The table becomes the target's."""
        table = None if self.mode == OFF else self.table
        self.machine.target = replace(self.machine.target, tuning=table)

    def lowered(self, program: Program) -> Lowered:
        """A program for the machine, after its problems were measured if they are to be."""
        made = lower(program, self.machine.target)
        for _ in range(ROUNDS if self.mode == ON else 0):
            decisions = made.schedule.decisions.items()
            seen = self.table.entries.keys() | self._failed
            missing = [one for key, one in decisions if key not in seen]
            if not missing:
                break
            quiet = min(settings.debug, 1)
            with settings.override(debug=quiet, validate=False, sync=False):
                new = dict(filter(None, map(self._tuned, missing)))
            if not new:
                break
            self.table = self.table.with_more(new)
            self._put()
            made = lower(program, self.machine.target)
        return made

    def _tuned(self, decision: Decision) -> tuple[str, Tuned] | None:
        """A problem's key and its quickest kernel; None, and a warning, if nothing could be run."""
        problem = decision.problem
        try:
            tuned = _Measurement(self.machine, problem).tuned()
        except TgcError as error:
            self._failed.add(problem.key)
            warnings.warn(
                f"tinygrad_cuda: {problem.name} is not tuned: {error}", RuntimeWarning, stacklevel=2
            )
            return None
        self.cache.write(problem.key, tuned)
        if settings.debug >= 1:
            print(f"tuned {described(tuned)}", file=sys.stderr)
        return problem.key, tuned


class _Measurement:
    """The candidates of one problem."""

    def __init__(self, machine: TunedMachine, problem: TuningProblem) -> None:
        self.machine, self.problem = machine, problem
        self.refused: list[str] = []
        usual = lower(problem.program, replace(machine.target, tuning=None))
        self.usual = _Candidate(None, _usual_name(usual), usual)
        inputs = [_values(node, seed) for seed, node in enumerate(problem.program.inputs)]
        self.inputs = [machine.from_host(array) for array in inputs]

    def tuned(self) -> Tuned:
        """The quickest candidate."""
        candidates = self._candidates()
        machine = self.machine
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._precompile, [self.usual, *candidates]))
        expected, run = self._run(self.usual)
        times = {self.usual: machine.measured(run, self.usual.name)}
        for candidate in candidates:
            uninterrupted.check()
            time = self._time(candidate, expected)
            if time is not None:
                times[candidate] = time
        least = min(times.values())
        near = [one for one, time in times.items() if time <= NEAR * least]
        for one in dict.fromkeys([self.usual, *sorted(near, key=times.__getitem__)[:AGAIN]]):
            _, run = self._run(one)
            times[one] = min(times[one], machine.measured(run, one.name))
        return self._entry(times)

    def _entry(self, times: dict[_Candidate, float]) -> Tuned:
        order = sorted(times, key=times.__getitem__)
        best, usual = order[0], times[self.usual]
        if times[best] > WORTH * usual:
            best = self.usual
        tier, cut = (best.option.tier, best.option.cut) if best.option else ("", "")
        return Tuned(
            self.problem.name, tier, cut, round(times[best], 3), self.usual.name, round(usual, 3),
            tuple((one.name, round(times[one], 3)) for one in order), tuple(self.refused),
        )  # fmt: skip

    def _candidates(self) -> list[_Candidate]:
        """Programs that are not the model's choice, nor each other's."""
        texts = {self.usual.lowered.source}
        made = []
        problem = self.problem
        target = replace(self.machine.target, tuning=TuningTable({}, problem.libraries))
        for option in shortlist(options(problem.node, target, problem.last)):
            name = f"{option.tier} {option.cut}".strip()
            one = Tuned(problem.name, option.tier, option.cut, 0, "", 0)
            table = OneChoice(one, problem.libraries)
            try:
                lowered = lower(problem.program, replace(target, tuning=table))
            except TgcError as error:
                self._refuse(name, f"it cannot be made: {error}")
                continue
            taken = any(d.tuned is not None for d in lowered.schedule.decisions.values())
            if taken and lowered.source not in texts:
                texts.add(lowered.source)
                made.append(_Candidate(option, name, lowered))
        return made

    def _precompile(self, candidate: _Candidate) -> None:
        with suppress(TgcError):  # it is raised again when the candidate is loaded
            self.machine.precompile(candidate.lowered)

    def _run(self, candidate: _Candidate) -> tuple[list[Array], Callable[[], None]]:
        """Some of the values that a candidate computes, and what runs it again."""
        machine, (node,) = self.machine, self.problem.program.outputs
        executable = LoweredExecutable(self.problem.program, machine, candidate.lowered)
        nbytes = prod(node.shape) * node.dtype.itemsize
        result = machine.allocate(nbytes)
        machine.poison(result)
        run = executable.ready(self.inputs, [result])
        run()
        parts = _compared(nbytes, node.dtype.itemsize)
        return [self._part(result, at, size, node.dtype) for at, size in parts], run

    def _part(self, result: Any, at: int, nbytes: int, dtype: DType) -> Array:
        """Values of a part of a result."""
        part = self.machine.part(result, at, nbytes)
        return self.machine.to_host(part, (nbytes // dtype.itemsize,), dtype)

    def _time(self, candidate: _Candidate, expected: Sequence[Array]) -> float | None:
        """A candidate's microseconds, if its values are right."""
        try:
            values, run = self._run(candidate)
        except TgcError as error:
            self._refuse(candidate.name, f"it cannot be run: {error}")
            return None
        dtype = self.problem.node.dtype
        if off := difference(values, expected, dtype, self.problem.plain):
            self._refuse(candidate.name, off)
            return None
        return self.machine.measured(run, candidate.name)

    def _refuse(self, name: str, reason: str) -> None:
        self.refused.append(f"{name}: {reason}")
        warnings.warn(
            f"tinygrad_cuda: a kernel is not taken for {self.problem.name}: {name}: {reason}",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip


def shortlist(candidates: Sequence[Option]) -> list[Option]:
    """Those that are measured: of each tier the quickest by the model, unless far too slow.

    A library's kernels are not in the model: they are all measured, and make no other one slow.
    """
    counts: dict[str, int] = {}
    made = []
    least = min((one.clocks for one in candidates if one.modelled), default=0.0)
    for one in candidates:
        counts[one.tier] = counts.get(one.tier, 0) + 1
        quick = one.clocks <= WITHIN * least or not one.modelled
        if counts[one.tier] <= PER_TIER and quick:
            made.append(one)
    return made


def described(tuned: Tuned) -> str:
    """A line about a choice: the problem, the kernel, its time, and the model's."""
    line = f"{tuned.problem}: {tuned.name}, {tuned.microseconds:.2f} us"
    if tuned.tier:
        line += f" (the model: {tuned.model}, {tuned.model_microseconds:.2f} us)"
    refused = f", {len(tuned.refused)} refused" if tuned.refused else ""
    return f"{line}; {len(tuned.times)} candidates{refused}"


def difference(
    values: Sequence[Array], expected: Sequence[Array], dtype: DType, plain: bool
) -> str:
    """How values differ from the expected ones by more than another order of sums; else nothing.

    Args:
        dtype: of the product.
        plain: whether nothing follows its sum; else a few elements may differ.
    """
    rounded = dtype.name == "float32" and settings.matmul_precision in ("high", "medium")
    tolerance = ROUNDED if rounded else TOLERANCE.get(dtype.name, 0.0)
    for value, other in zip(values, expected, strict=True):
        a, b = value.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(b)
        largest = float(np.abs(b[finite]).max(initial=0.0))
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= tolerance * largest
        wrong = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
        if wrong.sum() > (0 if plain else JUMPS * wrong.size):
            at = int(wrong.argmax())
            return f"{wrong.sum()} of {wrong.size} values differ, such as {a[at]:g} for {b[at]:g}"
    return ""


def _named(target: Target) -> str:
    return f"{target.name} {target.sm} {target.multiprocessors} multiprocessors"


def _usual_name(lowered: Lowered) -> str:
    """The model's choice for a reader."""
    choices = [kernel.choice for kernel in lowered.schedule.kernels if kernel.choice]
    return ", ".join(f"{one.tier} {cut_text(one.cut)}".strip() for one in choices) or "one kernel"


def _compared(nbytes: int, itemsize: int) -> list[tuple[int, int]]:
    """Parts of a result, as their first byte and their bytes."""
    part = COMPARED * itemsize
    if nbytes <= 3 * part:
        return [(0, nbytes)]
    middle = nbytes // 2 // part * part
    return [(0, part), (middle, part), (nbytes - part, part)]


def _values(node: Node, seed: int) -> Array:
    """Values of an operand, the same each time."""
    count, random = prod(node.shape), np.random.default_rng(seed)
    period = min(count, PERIOD)
    few: Array = random.uniform(-1, 1, period)
    if not node.dtype.is_floating:
        few = random.integers(0, 2, period)
    return np.resize(few.astype(node.dtype.numpy), count).reshape(node.shape)
