"""detect_nan: stop at the first op that makes a non-finite value, forward or backward."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph.node import mode as modes

F = TypeVar("F", bound=Callable[..., Any])


class detect_nan:
    """Inside, the first op that makes inf or nan from finite operands raises and says which.

    Every operation is computed at its call and checked, and so is every operation of a backward
    pass, which is named by the forward operation and line it belongs to. Operands that are not
    finite already (a mask of -inf, say) excuse an op. Slow: meant for the hunt alone. A context
    manager, and a decorator with or without ().

    With `every` or `sample` it may stay on while training: entered once a step, it looks at some
    steps and leaves the others as they are. A parameter that is not finite already when a
    step is looked at raises, too, since that step came too late. With `sample` a step that is
    looked at runs the plan that it always runs, of which each value is checked first; the error
    comes where the values are computed, and values that nobody asks for are not.

    Args:
        function: the one to decorate, without ().
        every: look at one of so many entries, the first one included.
        sample: look at the first entry, and then as often as looks take less than this share of
            all time inside the block; 0.02 costs 2 % at most, once the first has been made up for.
        repro: a folder into which the operands of the op (``OP.npz``) and a script of ten lines
            that computes it again (``OP.py``) are written.

    Raises:
        NonFiniteError: names the op, the line, the element and the range of the operands; with
            `repro` a note names the script.
        ArgumentError: `every` is less than 1, `sample` is not between 0 and 1, or both are given.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0, 4.0], device="cpu")
        >>> with tc.detect_nan():
        ...     (x - 2).sqrt()
        Traceback (most recent call last):
        ...
        tinygrad_cuda.NonFiniteError: [sqrt] made nan from finite values
        ...
    """

    def __new__(cls, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        instance = super().__new__(cls)
        if function is None:
            return instance
        instance.__init__(None, **options)  # type: ignore[misc]
        return instance(function)

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        every: int | None = None,
        sample: float | None = None,
        repro: str | os.PathLike[str] | None = None,
    ) -> None:
        self._blocks: list[_Entered | float] = []
        self._schedule = _Schedule(every, sample)
        self._repro = None if repro is None else os.fspath(repro)

    def __enter__(self) -> None:
        schedule = self._schedule
        start = time.perf_counter()
        if not schedule.begins():
            self._blocks.append(start)
            return
        now = modes.now
        before = now.finite, now.unchecked, now.repro
        stack = ExitStack()
        self._blocks.append(_Entered(stack, before, start, now.judging))
        # What was recorded before is none of this block's business.
        realize_all()
        if schedule.sample is None:
            stack.enter_context(settings.override(eager=True))
        now.finite, now.unchecked, now.repro = True, schedule.left_out, self._repro

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block = self._blocks.pop()
        if isinstance(block, float):
            self._schedule.passed(time.perf_counter() - block)
            return
        now = modes.now
        with block.stack:
            try:
                if error is None:
                    realize_all()
            finally:
                now.finite, now.unchecked, now.repro = block.before
        self._schedule.looked(time.perf_counter() - block.start, now.judging - block.judging)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            with self:
                return function(*args, **options)

        return wrapper  # type: ignore[return-value]


class _Entered(NamedTuple):
    """A `with` block that is looked at.

    Attributes:
        stack: what is left at its end.
        before: what was on before.
        start: when it was entered, in seconds.
        judging: the seconds that this thread had spent on checks by then.
    """

    stack: ExitStack
    before: tuple[bool, int, str | None]
    start: float
    judging: float


class _Schedule:
    """Which entries are looked at.

    Attributes:
        left_out: how many entries were not, since the last that was.
    """

    def __init__(self, every: int | None, sample: float | None) -> None:
        if every is not None and sample is not None:
            raise ArgumentError("detect_nan", "two schedules", expect="every or sample",
                                actual=f"every={every}, sample={sample}")  # fmt: skip
        if every is not None and every < 1:
            raise ArgumentError("detect_nan", "every counts entries", expect="at least 1",
                                actual=str(every))  # fmt: skip
        if sample is not None and not 0 < sample < 1:
            raise ArgumentError("detect_nan", "sample is a share of the time",
                                expect="0 < sample < 1", actual=str(sample))  # fmt: skip
        self.every, self.sample = every, sample
        self.left_out = 0
        self._entries = 0
        # Seconds inside the block, and when there is room for the next look.
        self._inside = self._due = 0.0
        self._spent = self._last = 0.0
        self._recovers = False

    def begins(self) -> bool:
        """Whether the entry that begins now is looked at."""
        if self.every is not None:
            looked = self._entries % self.every == 0
            self._entries += 1
        else:
            looked = self.sample is None or self._inside >= self._due
        if not looked:
            self.left_out += 1
        return looked

    def passed(self, seconds: float) -> None:
        """An entry that was not looked at has ended, and took some seconds."""
        self._inside += seconds
        if self._recovers:
            # It has waited for the device, or found its plan anew, on account of the look.
            self._recovers = False
            self._charge(seconds)

    def looked(self, seconds: float, judging: float) -> None:
        """An entry that was looked at has ended: its seconds, and those of the checks alone."""
        self.left_out = 0
        if self.sample is None:
            return
        # Of the first the checks alone: it compiles what every step needs.
        first = not self._spent
        self._last = judging if first and judging else seconds
        self._inside += seconds
        self._recovers = not first
        self._charge(self._last)

    def _charge(self, seconds: float) -> None:
        """Adds to what looks have cost; the next, of the last one's size, has to fit as well."""
        self._spent += seconds
        self._due = (self._spent + self._last) / self.sample if self.sample else 0.0


def set_detect_nan(mode: bool) -> None:
    """Switches the check of `detect_nan` on or off for this thread, until it is switched again.

    Values are then checked when they are computed, which may be later than the call; the error
    names the line of the op all the same.
    """
    realize_all()
    modes.now.finite = mode


class _Anomaly(threading.local):
    """The mode that `set_anomaly_enabled` has set in this thread."""

    def __init__(self) -> None:
        self.enabled, self.check_nan = False, True


_anomaly = _Anomaly()


def is_anomaly_enabled() -> bool:
    """Whether anomalies are looked for in this thread, by this name or as `detect_nan`."""
    return _anomaly.enabled or modes.now.finite


def is_anomaly_check_nan_enabled() -> bool:
    """Whether values are checked where anomalies are looked for."""
    return _anomaly.check_nan


def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
    """`set_detect_nan` under PyTorch's name.

    Args:
        enabled: whether to check.
        check_nan: with False nothing is checked; errors name their lines in any case.

    Raises:
        DTypeError: an argument is no bool; also a TypeError.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.set_anomaly_enabled(True)
        >>> tc.is_anomaly_enabled(), tc.is_anomaly_check_nan_enabled()
        (True, True)
        >>> tc.set_anomaly_enabled(False)
    """
    for name, value in (("enabled", enabled), ("check_nan", check_nan)):
        if not isinstance(value, bool):
            raise DTypeError(
                "set_anomaly_enabled", f"{name} is no bool", expect="True or False",
                actual=type(value).__name__,
            )  # fmt: skip
    _anomaly.enabled, _anomaly.check_nan = enabled, check_nan
    set_detect_nan(enabled and check_nan)


class set_detect_anomaly:
    """`set_detect_nan` under PyTorch's name; as a context manager until the block ends.

    Args:
        mode: whether to check.
        check_nan: with False nothing is checked; errors name their lines in any case.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = modes.now.finite, _anomaly.enabled, _anomaly.check_nan
        set_anomaly_enabled(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        try:
            # What the block recorded is checked, although nobody has looked at it yet.
            if modes.now.finite and error[0] is None:
                realize_all()
        finally:
            modes.now.finite, _anomaly.enabled, _anomaly.check_nan = self._before


class detect_anomaly(set_detect_anomaly):
    """As ``set_detect_anomaly(True)``, for a `with` block.

    Example:
        >>> import tinygrad_cuda as tc
        >>> with tc.autograd.detect_anomaly():
        ...     tc.tensor([0.0], device="cpu").log().tolist()
        Traceback (most recent call last):
        ...
        tinygrad_cuda.NonFiniteError: [log] made -inf from finite values
        ...
    """

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__(True, check_nan)
