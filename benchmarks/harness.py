"""Runs workloads on the peers: the same results first, then medians of wall and device time."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.program import Program, Unavailable, Variant, in_full_precision
from benchmarks.quick import QuickCpu
from benchmarks.workload import (
    Array,
    Function,
    ModelTraining,
    Operation,
    Repetition,
    Training,
    Workload,
)

COMPARED_STEPS = 20
# Of steps whose rounding differs, and of those of a tenth of a second, fewer tell as much.
COMPARED_MODEL_STEPS = 8
# Single operations are the device's alone, so that fewer steps tell as much.
WARM_UP_SECONDS, REPEAT_SECONDS, OPERATION_SECONDS = 0.1, 0.1, 0.05
REPEATS, STEPS_AT_MOST = 5, 1000
DEVICE_REPEATS = 5
# Calls between two events, which themselves take a microsecond or two, by microseconds of a call;
# all must fit into the queue of a GPU that is kept busy meanwhile.
DEVICE_CALLS = ((100, 30), (10_000, 10), (float("inf"), 2))
FIRST_CALLS = 3
LEFT_OUT = "left out by --without"
UNAVAILABLE = "the library has no such kernel"
# Of results by their dtype, and of losses by what products are computed in, over the largest value.
# A loss is a mean of many rounded values, which differs by less than the rounding of one: 2^-8 in
# bfloat16, 2^-11 in tf32. Eight steps change every program's loss by more than 1 %.
TOLERANCE = {
    "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2, "ieee": 1e-4, "tf32": 5e-4, "bf16": 4e-3
}  # fmt: skip
TF32_RESULTS = 2e-3  # of single values: libraries round or cut operands to tf32


@dataclass
class Times:
    """Microseconds a step: the quartiles of some repeats."""

    median: float
    lower: float
    upper: float
    repeats: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Times:
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1)
        lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, lower, upper, len(samples))


@dataclass
class Row:
    """One workload on one variant of a peer.

    Attributes:
        first: seconds from nothing to the end of the first three calls, or of the first one that
            runs many steps; compiling included.
        wall: host included, synchronized at the end of each repeat.
        device: the GPU's time alone, data on the device; None where it cannot be told apart.
        together: steps of one call.
        difference: largest relative difference of results from the first peer's; of losses, once
            all are there, from the median of the peers'.
        losses: of the first steps, for training.
        tolerance: of the difference.
        peak: most bytes of device memory at once, parameters and batches among them.
        failure: why there is nothing here.
    """

    workload: str
    variant: str
    title: str
    first: float | None = None
    wall: Times | None = None
    device: Times | None = None
    together: int = 1
    difference: float | None = None
    agrees: bool = True
    losses: list[float] = field(default_factory=list)
    tolerance: float = TOLERANCE["float32"]
    peak: int | None = None
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Effort:
    """How long to measure: fully, or just so that the suite is known to run."""

    compared: int = COMPARED_STEPS
    warm_up: float = WARM_UP_SECONDS
    repeat: float = REPEAT_SECONDS
    operation: float = OPERATION_SECONDS
    repeats: int = REPEATS
    at_most: int = STEPS_AT_MOST
    device_repeats: int = DEVICE_REPEATS

    def of(self, workload: Workload) -> Effort:
        """Less where a call takes milliseconds, or where only the device's time counts."""
        if isinstance(workload, Operation):
            return replace(
                self, **{name: getattr(self, name) / 10 for name in ("warm_up", "repeat")}
            )
        if isinstance(workload, ModelTraining):
            return replace(self, warm_up=self.warm_up / 2, repeat=self.repeat / 2)
        if isinstance(workload, Function):
            return replace(self, repeat=self.operation)
        return self


SMOKE = Effort(2, warm_up=0, repeat=0, operation=0, repeats=1, at_most=1, device_repeats=0)


@dataclass
class Prepared:
    """A row, and the program that is ready to be timed; None where there is nothing to time."""

    row: Row
    workload: Workload
    program: Program | None = None


@contextmanager
def failures(row: Row) -> Iterator[None]:
    """Writes an error into the row instead of ending the suite."""
    try:
        yield
    except Unavailable as error:
        row.failure = f"{UNAVAILABLE}: {str(error).strip()[:200]}"
    except Exception as error:
        row.failure = f"{type(error).__name__}: {str(error).strip()[:300]}"
        traceback.print_exc(limit=-6, file=sys.stderr)


class Suite:
    """Runs workloads on the variants of peers.

    Args:
        device: "cuda" or "cpu".
        effort: how long to measure.
        folder: where the first result of each workload is kept, for others to be compared with.
        end: when to begin no further measurement, on the clock `time.time`.
        without: patterns of "variant/workload" that are left out, separated by commas.
    """

    def __init__(
        self,
        device: str,
        effort: Effort,
        folder: Path,
        end: float = float("inf"),
        without: str = "",
    ) -> None:
        self.device, self.effort, self.folder = device, effort, folder
        self.end, self.without = end, without.split(",")
        self.cpu = QuickCpu()

    def rows(self, name: str, workload: Workload, variants: dict[str, Variant]) -> Iterator[Row]:
        """Measures each variant that can run the workload."""
        for ready in self.prepared(name, workload, variants):
            yield self.timed(ready)

    def prepared(
        self, name: str, workload: Workload, variants: dict[str, Variant]
    ) -> Iterator[Prepared]:
        """Each variant after its first calls, which are compared; without a program if it fails."""
        for key, variant in variants.items():
            if not variant.runs(workload):
                continue
            ready = Prepared(Row(name, key, variant.title, tolerance=tolerance(workload)), workload)
            if any(fnmatch(f"{key}/{name}", pattern) for pattern in self.without):
                ready.row.failure = LEFT_OUT
            elif time.time() > self.end:
                ready.row.failure = "not measured: the time given to the suite was over"
            else:
                with failures(ready.row):
                    ready.program = self._first_calls(ready.row, workload, variant)
            yield ready

    def timed(self, ready: Prepared) -> Row:
        """The row with its times; its program ends."""
        row, program = ready.row, ready.program
        ready.program = None
        if program is not None:
            with failures(row):
                self._measure(row, ready.workload, program)
        del program
        gc.collect()
        return row

    def _first_calls(self, row: Row, workload: Workload, variant: Variant) -> Program:
        start = time.perf_counter()
        program = variant.build(workload, self.device)
        row.together = program.steps
        found: list[Array] = []
        calls = 0
        trains = isinstance(workload, Training | ModelTraining)
        compared = self.effort.compared if trains else 1
        if trains and not in_full_precision(workload):
            compared = min(compared, COMPARED_MODEL_STEPS)
        if isinstance(workload, Repetition):
            compared = workload.together
        first = FIRST_CALLS if program.steps == 1 else 1
        while calls * program.steps < compared or calls < first:
            program.call(calls)
            calls += 1
            if trains:
                found += program.results()[:1]
            elif calls * program.steps == compared:
                found = program.results()
            if calls == first:
                program.synchronize()
                row.first = time.perf_counter() - start
        self._compare(row, trains, found)
        program.settle()
        return program

    def _measure(self, row: Row, workload: Workload, program: Program) -> None:
        program.resume()
        program.reset_peak()
        with self.cpu.kept():
            row.wall = self._wall(program, self.effort.of(workload))
        row.peak = program.peak_bytes()
        if self.effort.device_repeats:
            row.device = self._device(program, row.wall.median * program.steps)

    def _compare(self, row: Row, trains: bool, found: list[Array]) -> None:
        if trains:
            losses = np.concatenate([x.reshape(-1) for x in found])[: self.effort.compared]
            row.losses = [float(value) for value in losses]
            found = [losses]
        if not found:
            return
        path = self.folder / f"{row.workload}.npz"
        if not path.exists():
            # Another process may write the same file: whole files only, and the first one stays.
            own = self.folder / f"{row.workload}.{os.getpid()}.npz"
            np.savez(own, *found)
            with suppress(FileExistsError):
                os.link(own, path)
        with np.load(path) as reference:
            row.difference = max(map(difference, found, reference.values()))
        row.agrees = row.difference <= row.tolerance

    def _wall(self, program: Program, effort: Effort) -> Times:
        calls = 0

        def run(count: int) -> float:
            nonlocal calls
            start = time.perf_counter()
            for _ in range(count):
                program.call(calls)
                calls += 1
            program.synchronize()
            return (time.perf_counter() - start) / count

        each = run(1)
        end = time.perf_counter() + effort.warm_up
        while time.perf_counter() < end:
            each = run(1 if each > effort.warm_up else 5)
        count = max(1, min(round(effort.repeat / each), effort.at_most))
        samples = []
        for _ in range(effort.repeats):
            if effort.repeats > 1:
                self.cpu.settle()
            samples.append(1e6 * run(count) / program.steps)
        return Times.of(samples)

    def _device(self, program: Program, host: float) -> Times | None:
        calls = next(count for most, count in DEVICE_CALLS if host < most)
        samples = []
        for _ in range(self.effort.device_repeats):
            sample = program.device_microseconds(calls, host)
            program.synchronize()
            if sample is None:
                return None
            samples.append(sample / program.steps)
        return Times.of(samples)


def tolerance(workload: Workload) -> float:
    """By how much results may differ, relative to the largest."""
    if isinstance(workload, Operation) and workload.precision == "tf32":
        return TF32_RESULTS
    if isinstance(workload, Function | Operation):
        return TOLERANCE[workload.dtype]
    return TOLERANCE[getattr(workload, "precision", "ieee")]


def compare_losses(rows: list[dict[str, Any]]) -> None:
    """Sets by how much the losses of each row differ from the median of the peers'.

    Of three peers one may round otherwise than the others, which Adam's first steps magnify; the
    difference is then its own, and not that of all others.

    Args:
        rows: of all workloads, as in the JSON.
    """
    for name in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == name and row["losses"]]
        peers: dict[str, Array] = {}
        for row in own:
            peers.setdefault(row["variant"].split("_")[0], np.array(row["losses"]))
        for row in own:
            median = np.median(list(peers.values()), axis=0)
            row["difference"] = difference(np.array(row["losses"]), median)
            row["agrees"] = row["difference"] <= row["tolerance"]


def difference(found: Array, expected: Array) -> float:
    """The largest difference, relative to the largest expected value; NaN counts as infinite."""
    if found.shape != expected.shape:
        return float("inf")
    scale = float(np.abs(expected).max(initial=0)) or 1.0
    worst = float(np.abs(found - expected).max(initial=0)) / scale
    return worst if np.isfinite(worst) else float("inf")
