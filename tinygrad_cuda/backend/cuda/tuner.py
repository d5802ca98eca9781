"""How long the launches of a candidate take on a GPU whose caches hold none of its operands.

A program's operands were mostly written long before they are read, so a time with a warm L2 cache
would favour kernels that read them twice. So, for each candidate of a problem, over equal operands:

- it runs `WARM_UP` times, so that its code is loaded and the clocks are up;
- then `REPEATS` times a buffer of twice the L2 cache is written, an event recorded, the candidate
  launched, another event recorded. All of that is queued behind a kernel that only waits, so that
  the pace of the host is not measured;
- its time is the median, less that of two events with nothing between them.

The quickest candidates are measured a second time by `backend.launch.tuner`, which takes the less.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.timing import times

WARM_UP = 2
REPEATS = 9
LEAST = 32 << 20  # bytes that are written at least
BYTE = 0x5A


def cold_time(gpu: DeviceHandle, run: Callable[[], None]) -> float:
    """The microseconds of a run that finds nothing in the L2 cache.

    Args:
        run: starts the launches on the compute stream.
    """
    nbytes = max(2 * gpu.properties.l2_bytes, LEAST)
    buffer = gpu.allocate(nbytes)

    def flush() -> None:
        gpu.fill(buffer.address, nbytes, BYTE)

    for _ in range(WARM_UP):
        run()
    spans = times(gpu, [flush, run] * REPEATS)
    return median(spans[1::2])
