"""detect_nan: stop at the first op that makes a non-finite value, forward or backward."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError
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
    step is looked at raises, too, since that step came too late.

    Args:
        function: the one to decorate, without ().
        every: look at one of so many entries, the first one included.
        sample: look as often as the time for it stays below this share of the time since the
            first entry; 0.05 costs 5 % at most, once the first look has been made up for.
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
        self._blocks: list[_Entered] = []
        self._schedule = _Schedule(every, sample)
        self._repro = None if repro is None else os.fspath(repro)

    def __enter__(self) -> None:
        now = modes.now
        before = now.finite, now.unchecked, now.repro
        stack = ExitStack()
        looked = self._schedule.begins()
        self._blocks.append(_Entered(stack, before, looked))
        if not looked:
            return
        # What was recorded before is none of this block's business.
        realize_all()
        stack.enter_context(settings.override(eager=True))
        now.finite, now.unchecked, now.repro = True, self._schedule.left_out, self._repro

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block = self._blocks.pop()
        if not block.looked:
            return
        now = modes.now
        with block.stack:
            try:
                if error is None:
                    realize_all()
            finally:
                now.finite, now.unchecked, now.repro = block.before
        self._schedule.ends()

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            with self:
                return function(*args, **options)

        return wrapper  # type: ignore[return-value]


class _Entered(NamedTuple):
    """A `with` block that was entered: what was on before, and whether it is looked at."""

    stack: ExitStack
    before: tuple[bool, int, str | None]
    looked: bool


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
        self._first = self._start = self._spent = self._last = 0.0

    def begins(self) -> bool:
        """Whether the entry that begins now is looked at."""
        self._entries += 1
        if self.every is not None:
            looked = (self._entries - 1) % self.every == 0
        elif self.sample is not None:
            self._start = time.perf_counter()
            if self._entries == 1:
                self._first = self._start
            allowed = self.sample * (self._start - self._first)
            looked = self._entries == 1 or self._spent + self._last <= allowed
        else:
            looked = True
        if not looked:
            self.left_out += 1
        return looked

    def ends(self) -> None:
        """An entry that was looked at has ended."""
        self.left_out = 0
        if self.sample is not None:
            self._last = time.perf_counter() - self._start
            self._spent += self._last


def set_detect_nan(mode: bool) -> None:
    """Switches the check of `detect_nan` on or off for this thread, until it is switched again.

    Values are then checked when they are computed, which may be later than the call; the error
    names the line of the op all the same.
    """
    realize_all()
    modes.now.finite = mode


class set_detect_anomaly:
    """`set_detect_nan` under PyTorch's name; as a context manager until the block ends.

    Args:
        mode: whether to check.
        check_nan: with False nothing is checked; errors name their lines in any case.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = modes.now.finite
        set_detect_nan(mode and check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        modes.now.finite = self._before


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
