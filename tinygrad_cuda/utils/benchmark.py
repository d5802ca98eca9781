"""tc.utils.benchmark: how long a statement takes, its Tensors computed, and devices waited for."""

from __future__ import annotations

import ast
import importlib
import timeit
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cpu.threads import get_num_threads, set_num_threads
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.engine.realize import realize_all

__all__ = ["Measurement", "TaskSpec", "Timer", "timer"]

WARM_UP = 2  # turns at least: a plan is made in the first, and replayed from the second on
OVERHEAD = 1e-4  # of a block's time, that of the clock and the wait at most


def timer() -> float:
    """Seconds, after all that was asked of the devices is done.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.utils.benchmark.timer() <= tc.utils.benchmark.timer()
        True
    """
    settle()
    return perf_counter()


def settle() -> None:
    """Computes what is pending, and waits for it."""
    realize_all()
    for backend in registry.used():
        backend.synchronize()


@dataclass(frozen=True)
class TaskSpec:
    """What was timed, by PyTorch's names."""

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self) -> str:
        """The label, or the statement."""
        title = self.label or self.stmt
        return f"{title}: {self.sub_label}" if self.sub_label else title


@dataclass
class Measurement:
    """Times of a statement.

    Attributes:
        number_per_run: how often it ran in each of the times.
        raw_times: seconds of each.
        task_spec: what was timed.
    """

    number_per_run: int
    raw_times: list[float]
    task_spec: TaskSpec
    metadata: dict[Any, Any] | None = field(default=None, repr=False)

    @cached_property
    def times(self) -> list[float]:
        """Seconds of one run of the statement, by each time."""
        return [time / self.number_per_run for time in self.raw_times]

    @property
    def mean(self) -> float:
        """The mean of `times`."""
        return float(np.mean(self.times))

    @property
    def median(self) -> float:
        """The median of `times`."""
        return float(np.median(self.times))

    @property
    def iqr(self) -> float:
        """From the first quarter of `times` to the last: their spread."""
        low, high = np.quantile(self.times, (0.25, 0.75))
        return float(high - low)

    def meets_confidence(self, threshold: float = 0.1) -> bool:
        """Whether the spread is below this part of the median, of four times at least."""
        return len(self.times) >= 4 and self.iqr < threshold * self.median

    @property
    def has_warnings(self) -> bool:
        """Whether the spread is a tenth of the median or more."""
        return not self.meets_confidence()

    @property
    def title(self) -> str:
        """What was timed."""
        return self.task_spec.title

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """Measurements of one task and one number of runs become one."""
        merged: dict[tuple[TaskSpec, int], Measurement] = {}
        for one in measurements:
            key = one.task_spec, one.number_per_run
            whole = merged.setdefault(key, Measurement(one.number_per_run, [], one.task_spec))
            whole.raw_times = [*whole.raw_times, *one.raw_times]
        return list(merged.values())

    def __repr__(self) -> str:
        times, spec = self.times, self.task_spec
        lines = [f"<{type(self).__qualname__} of {self.title}>"]
        if len(times) == 1:
            lines.append(f"  {_seconds(times[0])}")
        else:
            lines += [f"  Median: {_seconds(self.median)}", f"  IQR:    {_seconds(self.iqr)}"]
        runs = f"{self.number_per_run} runs per measurement"
        lines.append(f"  {len(times)} measurements, {runs}, {spec.num_threads} thread(s)")
        if len(times) >= 4 and self.has_warnings:
            lines.append("  WARNING: the interquartile range is a tenth of the median or more")
        return "\n".join(lines)


class Timer:
    """Times a statement as `timeit` does; what it makes is computed in each run.

    Tensors are computed late: the value of the statement's last expression, and all that is pending
    and held by a variable, is asked for at the end of each run, and the devices are waited for
    before a clock is read. Plans are made before, in a warm-up.

    Args:
        stmt: what is timed, as Python.
        setup: Python that runs once before each time, whose names `stmt` may use.
        global_setup: accepted as in PyTorch, for C++.
        timer: a clock, in seconds; it should wait for the devices, as `timer` does.
        globals: names that both may use; `tc` is there anyway.
        label, sub_label, description, env: what the result says of it.
        num_threads: of NumPy's products meanwhile.
        language: ``python`` alone.

    Raises:
        ArgumentError: `stmt` is no text, or another language.
        SyntaxError: it is no Python.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.ones(64, 64, device="cpu")
        >>> timer = tc.utils.benchmark.Timer("x @ x", globals={"x": x})
        >>> timer.timeit(10).mean > 0
        True
    """

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Callable[[], float] = timer,
        globals: dict[str, Any] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        language: str = "python",
    ) -> None:
        if not isinstance(stmt, str) or str(language).lower() not in ("python", "py"):
            raise ArgumentError(
                "Timer", "only Python's text can be timed", expect="stmt: str, language='python'",
                actual=f"{type(stmt).__name__}, {language!r}",
                hint="for a function f: Timer('f()', globals={'f': f})",
            )  # fmt: skip
        self._spec = TaskSpec(
            stmt, setup, global_setup, label, sub_label, description, env, num_threads
        )
        names = dict(globals or {})
        names.setdefault("tc", importlib.import_module("tinygrad_cuda"))
        self._clock = timer
        self._run = _timed(stmt, setup, names)
        self._idle = _timed("pass", "pass", {})

    def _time(self, number: int) -> float:
        with _threads(self._spec.num_threads):
            return self._run(number, self._clock)

    def _measured(self, number: int, times: list[float]) -> Measurement:
        return Measurement(number, times, self._spec)

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """The time of so many runs, after a warm-up."""
        self._time(max(number // 100, WARM_UP))
        return self._measured(number, [self._time(number)])

    def blocked_autorange(
        self,
        callback: Callable[[int, float], NoReturn] | None = None,
        min_run_time: float = 0.2,
    ) -> Measurement:
        """Times of blocks that are so long that the clock is none of them, for some seconds.

        Args:
            callback: called with the number of runs and the seconds of each block.
            min_run_time: seconds in all at least.
        """
        number = self._block_size(min_run_time)
        times = self._blocks(number, min_run_time, callback)
        return self._measured(number, times)

    def adaptive_autorange(
        self,
        threshold: float = 0.1,
        *,
        min_run_time: float = 0.01,
        max_run_time: float = 10.0,
        callback: Callable[[int, float], NoReturn] | None = None,
    ) -> Measurement:
        """Times of blocks until their spread is small.

        Args:
            threshold: the spread, as a part of the median.
            min_run_time, max_run_time: seconds in all.
            callback: called with the number of runs and the seconds of each block.
        """
        number = self._block_size(0.05)
        times: list[float] = []
        while sum(times) < max_run_time:
            times += self._blocks(number, min_run_time, callback)
            measured = self._measured(number, times)
            if measured.meets_confidence(threshold):
                break
        return self._measured(number, times)

    def _blocks(
        self, number: int, seconds: float, callback: Callable[[int, float], NoReturn] | None
    ) -> list[float]:
        times: list[float] = []
        while sum(times) < seconds:
            time = self._time(number)
            times.append(time)
            if callback is not None:
                callback(number, time)
        return times

    def _block_size(self, seconds: float) -> int:
        """How many runs make the time of reading the clock small."""
        self._time(WARM_UP)
        overhead = float(np.median([self._idle(0, self._clock) for _ in range(5)]))
        number = 1
        while True:
            time = self._time(number)
            if time > max(seconds / 1000, min(overhead / OVERHEAD, seconds)):
                return number
            number *= 10


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """NumPy's products by so many threads."""
    before = get_num_threads()
    set_num_threads(number)
    try:
        yield
    finally:
        set_num_threads(before)


def _timed(
    stmt: str, setup: str, names: dict[str, Any]
) -> Callable[[int, Callable[[], float]], float]:
    """Seconds of so many runs of a statement, which follow its setup, by a clock.

    The value of a last expression lives until it is computed: what nobody holds would not be.
    """
    body = ast.parse(stmt, "<stmt>").body
    if body and isinstance(body[-1], ast.Expr):
        body[-1] = ast.Assign([ast.Name("_value", ast.Store())], body[-1].value)
    body += ast.parse("_compute()\n_value = None").body
    text = ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))
    space = names | {"_compute": realize_all}
    return lambda number, clock: timeit.Timer(text, setup, clock, space).timeit(number)


def _seconds(time: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if time >= size:
            return f"{time / size:.4g} {unit}"
    return f"{time * 1e9:.4g} ns"


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
