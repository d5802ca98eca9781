"""True times of single launches: they queue up behind a busy GPU, which hides the host's pace."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence

from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.cuda.driver import DeviceHandle, DriverEvent, KernelHandle

LAUNCHES = 200  # behind one delay; the driver's queue takes more
DELAY_PER_LAUNCH = 40_000  # nanoseconds; the host needs about 10,000 for a launch and an event
FIRST_DELAY = 300_000  # nanoseconds besides, until the host begins to enqueue

SOURCE = """
struct tgc_delay_params { long long nanoseconds; };
extern "C" __global__ void tgc_delay(const __grid_constant__ tgc_delay_params p) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while ((long long)(now - start) < p.nanoseconds);
}
"""


def times(gpu: DeviceHandle, work: Sequence[Callable[[], None]]) -> list[float]:
    """Does each piece of work once; the microseconds that the GPU took for each.

    The time between two events with nothing between them is taken off.
    """
    delay = gpu.load(compile_source(SOURCE, gpu.properties.arch).cubin).function("tgc_delay")
    results: list[float] = []
    for start in range(0, len(work), LAUNCHES):
        results += _timed(gpu, delay, work[start : start + LAUNCHES])
    return results


def _timed(
    gpu: DeviceHandle, delay: KernelHandle, work: Sequence[Callable[[], None]]
) -> list[float]:
    events = [DriverEvent(gpu) for _ in range(len(work) + 3)]
    nanoseconds = FIRST_DELAY + DELAY_PER_LAUNCH * len(work)
    gpu.launch(delay, 1, 1, 0, struct.pack("<q", nanoseconds), "the delay before timed launches")
    for event in events[:3]:
        event.record()
    for event, launch in zip(events[3:], work):
        launch()
        event.record()
    between = [b.microseconds_since(a) for a, b in itertools.pairwise(events)]
    empty = min(between[:2])
    return [max(time - empty, 0.001) for time in between[2:]]
