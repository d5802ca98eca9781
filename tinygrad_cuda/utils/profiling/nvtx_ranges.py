"""`tc.profiler.emit_nvtx`: the spans of the host as NVTX ranges, for Nsight Systems."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from tinygrad_cuda.core.observer import MemoryChange, watched
from tinygrad_cuda.cuda import nvtx
from tinygrad_cuda.utils.profiling.session import refuse_second


class _NvtxObserver(threading.local):
    """Opens a range for each span; kernels run as they do without it."""

    def __init__(self) -> None:
        self.entering: Any = None

    def launches_singly(self, device: Any) -> bool:
        """Nothing is timed here."""
        return False

    @contextmanager
    def span(self, kind: str, name: str, nbytes: int = 0) -> Iterator[None]:
        """Work of the host inside a `with` block."""
        nvtx.range_push(name)
        try:
            yield
        finally:
            nvtx.range_pop()

    def call(self, module: Any) -> AbstractContextManager[Any] | None:
        """A range for a Module's call."""
        return self._entered(module, type(module).__name__)

    def compiled_call(self, compiled: Any) -> AbstractContextManager[Any] | None:
        """A range for a call of what `tc.compile` made."""
        function = compiled.function
        name = getattr(function, "__qualname__", type(function).__name__)
        return self._entered(compiled, f"compiled {name}")

    def _entered(self, callee: Any, name: str) -> AbstractContextManager[Any] | None:
        if self.entering is callee:
            self.entering = None
            return None
        self.entering = callee
        return self.span("module", name)

    def kernel(
        self, device: Any, work: Any, start: int, end: int, nanoseconds: float | None = None
    ) -> None:
        """Nothing: Nsight sees kernels by itself."""

    def ran(self, executable: Any, memory: Sequence[Any]) -> list[MemoryChange] | None:
        """Nothing: there is no table."""


class emit_nvtx:
    """A ``with`` block in which Modules, backward passes, steps and ranges are NVTX ranges.

    Programs run as they do without it, replayed graphs too. Without the package `nvtx` there is one
    warning, and nothing happens.

    Args:
        enabled: False makes it do nothing.
        record_shapes: accepted as in PyTorch.

    Raises:
        ArgumentError: a profiler is active.
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self._enabled = enabled

    def __enter__(self) -> Self:
        if self._enabled:
            refuse_second("emit_nvtx")
            if nvtx.library() is not None:
                watched.observer = _NvtxObserver()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._enabled:
            watched.observer = None
