"""detect_nan: stop at the first op that makes a non-finite value, forward or backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph.node import mode as modes

F = TypeVar("F", bound=Callable[..., Any])


class detect_nan:
    """Inside, the first op that makes inf or nan from finite operands raises and says which.

    Every operation is computed at its call and checked, and so is every operation of a backward
    pass, which is named by the forward operation and line it belongs to. Operands that are not
    finite already (a mask of -inf, say) excuse an op. Slow: meant for the hunt alone. A context
    manager, and a decorator with or without ().

    Raises:
        NonFiniteError: names the op, the line, the element and the range of the operands.

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

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        instance = super().__new__(cls)
        return instance if function is None else instance(function)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._blocks: list[tuple[ExitStack, bool]] = []

    def __enter__(self) -> None:
        # What was recorded before is none of this block's business.
        realize_all()
        stack = ExitStack()
        stack.enter_context(settings.override(eager=True))
        self._blocks.append((stack, modes.now.finite))
        modes.now.finite = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack, before = self._blocks.pop()
        with stack:
            try:
                if error is None:
                    realize_all()
            finally:
                modes.now.finite = before

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            with detect_nan():
                return function(*args, **options)

        return wrapper  # type: ignore[return-value]


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
