"""tc.autograd.profiler: `tc.profiler` by the names it had before: profile, ranges, NVTX."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.utils.profiling import session
from tinygrad_cuda.utils.profiling.averages import EventList, FunctionEventAvg, rows_of
from tinygrad_cuda.utils.profiling.events import FunctionEvent
from tinygrad_cuda.utils.profiling.nvtx_ranges import emit_nvtx
from tinygrad_cuda.utils.profiling.session import ProfilerActivity, record_function

__all__ = [
    "EventList", "FunctionEvent", "FunctionEventAvg", "emit_nvtx", "profile", "record_function",
]  # fmt: skip

DEVICES = "cuda", "emu"


class profile:
    """`tc.profiler.profile` of a whole ``with`` block, with the options that came before it.

    Args:
        enabled: False makes it do nothing.
        use_cuda: also note kernels and copies of ``cuda`` and ``emu``.
        use_device: the same, by the device's name.
        record_shapes, with_flops, profile_memory, with_stack, with_modules: as there.
        use_kineto: accepted as in PyTorch.
        use_cpu: False notes no work of the host.
        experimental_config, acc_events, custom_trace_id_callback: accepted as in PyTorch.

    Raises:
        ArgumentError: another device, nothing is to be noted, or another profiler is active.

    Example:
        >>> import tinygrad_cuda as tc
        >>> with tc.autograd.profiler.profile(profile_memory=True) as prof:
        ...     y = tc.ones(1000, device="cpu").exp()
        >>> "Self CPU Mem" in prof.key_averages().table(sort_by="self_cpu_time_total")
        True
    """

    def __init__(
        self,
        enabled: bool = True,
        *,
        use_cuda: bool = False,
        use_device: str | None = None,
        record_shapes: bool = False,
        with_flops: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_modules: bool = False,
        use_kineto: bool = False,
        use_cpu: bool = True,
        experimental_config: Any = None,
        acc_events: bool = False,
        custom_trace_id_callback: Any = None,
    ) -> None:
        if use_device is not None and use_device not in DEVICES:
            raise ArgumentError(
                "profile", "no such device is profiled", expect=" or ".join(DEVICES),
                actual=repr(use_device),
            )  # fmt: skip
        self.enabled = enabled
        device = use_cuda or use_device is not None
        activities = [kind for kind, on in zip(ProfilerActivity, (use_cpu, device)) if on]
        self._profile = session.profile(
            activities, record_shapes=record_shapes, profile_memory=profile_memory,
            with_stack=with_stack, with_modules=with_modules, with_flops=with_flops,
        )  # fmt: skip
        self._ended = False

    def __enter__(self) -> Self:
        if self.enabled:
            self._profile.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self.enabled:
            self._profile.stop()
            self._ended = True

    def _finished(self) -> session.profile:
        """What was recorded.

        Raises:
            ArgumentError: nothing was, or it has not ended.
        """
        if not self._ended:
            raise ArgumentError(
                "profile", "nothing was recorded", expect="the end of a block with enabled=True",
                actual="it has not ended" if self.enabled else "enabled=False",
            )  # fmt: skip
        return self._profile

    @property
    def function_events(self) -> list[FunctionEvent]:
        """Each event by itself, in the order in which they began."""
        return self._finished().events()

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of the host."""
        return sum(event.self_cpu_time_total for event in self.function_events)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Sums over the recording by op, as `tc.profiler.profile.key_averages` has them."""
        return self._finished().key_averages(group_by_input_shape, group_by_stack_n)

    def total_average(self) -> FunctionEventAvg:
        """All events as one."""
        return self.key_averages().total_average()

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
    ) -> str:
        """A row for each event, as text; its arguments are those of `EventList.table`."""
        recorded = self._finished()
        rows = EventList(
            rows_of(recorded.events()), "event", recorded.notes(),
            with_flops=recorded.with_flops, profile_memory=recorded.profile_memory,
        )  # fmt: skip
        return rows.table(
            sort_by, row_limit, max_src_column_width, max_name_column_width,
            max_shapes_column_width, header, top_level_events_only,
        )  # fmt: skip

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the recording for Perfetto and chrome://tracing."""
        self._finished().export_chrome_trace(path)

    def export_stacks(
        self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total"
    ) -> None:
        """Writes a line for each stack; needs `with_stack`."""
        self._finished().export_stacks(path, metric)

    def __repr__(self) -> str:
        return self.table() if self._ended else "<unfinished profile>"

    __str__ = __repr__


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
