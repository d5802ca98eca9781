"""How long the launches of a candidate take on a GPU whose caches hold none of its operands.

A program's operands were mostly written long before they are read, so a time with a warm L2 cache
would favour kernels that read them twice. So, for each candidate of a problem, over equal operands:

- it runs `WARM_UP` times, so that its code is loaded and the clocks are up;
- then `REPEATS` times (of a long one `FEW`) a buffer of twice the L2 cache is written, an event
  recorded, the candidate launched, another event recorded. All of that is queued behind a kernel
  that only waits, so that the pace of the host is not measured;
- its time is the mean of the middle third, less that of two events with nothing between them: on
  some GPUs the clock of events has steps of half a microsecond, which a median does not average.

Launches follow one another in the stream. A plan's graph lets the next kernel begin earlier, so
candidates of several launches are a little quicker there than here.

The quickest candidates are measured a second time by `backend.launch.tuner`, which takes the less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.timing import times

WARM_UP = 2  # runs
FEW, REPEATS = 3, 15  # runs whose times are taken, of long runs and of others
LONG = 2000.0  # microseconds of a run from which on few are enough
LEAST = 32 << 20  # bytes that are written at least
BYTE = 0x5A  # arbitrary: what is written over the L2 cache


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
    time = middle(times(gpu, [flush, run] * FEW)[1::2])
    return time if time > LONG else middle(times(gpu, [flush, run] * REPEATS)[1::2])


def middle(spans: Sequence[float]) -> float:
    """The mean of the middle third."""
    third = len(spans) // 3
    return fmean(sorted(spans)[third : len(spans) - third])
