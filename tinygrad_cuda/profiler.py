"""tc.profiler: where time and memory go. The logic is in `tinygrad_cuda.utils.profiling`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.utils.profiling.averages import EventList, FunctionEventAvg
from tinygrad_cuda.utils.profiling.events import FunctionEvent
from tinygrad_cuda.utils.profiling.memory_timeline import MemoryTimeline, predict_memory
from tinygrad_cuda.utils.profiling.nvtx_ranges import emit_nvtx
from tinygrad_cuda.utils.profiling.roofline import MeasuredRoof
from tinygrad_cuda.utils.profiling.script import run_script
from tinygrad_cuda.utils.profiling.session import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)

__all__ = [
    "EventList", "FunctionEvent", "FunctionEventAvg", "MeasuredRoof", "MemoryTimeline",
    "ProfilerAction", "ProfilerActivity", "emit_nvtx", "predict_memory", "profile",
    "record_function", "run_script", "schedule", "supported_activities",
    "tensorboard_trace_handler",
]  # fmt: skip

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
