"""Times of kernels inside replayed graphs, by the optional package `cupti-python`.

CUPTI notes when each kernel of the process begins and ends; nothing has to be launched singly.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any, NamedTuple

BUFFER_BYTES = 8 << 20  # of one that CUPTI fills
FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: buffers that are not full, too


class TimedKernel(NamedTuple):
    """One kernel; times in nanoseconds of the host's `perf_counter_ns`.

    Attributes:
        name: of the kernel.
        device: the GPU's number.
        start, end: when it ran.
    """

    name: str
    device: int
    start: int
    end: int


class KernelActivity:
    """Collects the kernels that run between `begin` and `end`.

    Args:
        cupti: the module of that name in the package `cupti`.
    """

    def __init__(self, cupti: Any) -> None:
        self._cupti = cupti
        self._kinds = (cupti.ActivityKind.CONCURRENT_KERNEL, cupti.ActivityKind.KERNEL)
        self._records: list[tuple[str, int, int, int]] = []
        self._registered = False

    def begin(self) -> None:
        """Starts to collect."""
        if not self._registered:
            self._cupti.activity_register_callbacks(_buffer, self._completed)
            self._registered = True
        self._cupti.activity_enable(self._kinds[0])

    def end(self) -> list[TimedKernel]:
        """Stops, and gives what was collected, in order; the device must have finished."""
        self._cupti.activity_flush_all(FORCED)
        self._cupti.activity_disable(self._kinds[0])
        # Both clocks run on; their distance is taken between two looks at the host's.
        first, there, second = perf_counter_ns(), self._cupti.get_timestamp(), perf_counter_ns()
        ahead = (first + second) // 2 - int(there)
        records, self._records = self._records, []
        kernels = [TimedKernel(n, d, s + ahead, e + ahead) for n, d, s, e in records]
        return sorted(kernels, key=lambda kernel: kernel.start)

    def _completed(self, activities: Iterable[Any]) -> None:
        # The records are CUPTI's memory: it is used again when this returns.
        for record in activities:
            if record.kind in self._kinds:
                times = int(record.start), int(record.end)
                self._records.append((str(record.name), int(record.device_id), *times))


def _buffer() -> tuple[int, int]:
    """Size of a new buffer, and how many records it may take: any number."""
    return BUFFER_BYTES, 0


def kernel_activity() -> KernelActivity | None:
    """What collects times of kernels; None without the package, or where CUPTI does not load."""
    try:
        from cupti import cupti
    except (ImportError, RuntimeError):
        return None
    return KernelActivity(cupti)
