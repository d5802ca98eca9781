"""Copies to the GPU on a stream of their own, while the compute stream works on something else."""

from __future__ import annotations

import ctypes
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.handles import DriverEvent
from tinygrad_cuda.backend.cuda.pool import Allocation, size_class

SLOTS = 8  # pinned slots of one size


class Prefetch:
    """A copy in flight.

    Attributes:
        storage: where the array will be.
    """

    __slots__ = ("storage", "_gpu", "_copied", "_settled")

    def __init__(self, gpu: DeviceHandle, storage: Allocation, copied: Future[DriverEvent]) -> None:
        self.storage = storage
        self._gpu, self._copied, self._settled = gpu, copied, False

    def wait_for_source(self) -> None:
        """Waits until the array has been read, and may be changed."""
        self._copied.result()

    def settle(self) -> Allocation:
        """Lets the compute stream's later work wait for the copy; the host waits for the source."""
        if not self._settled:
            self._settled = True
            self._copied.result().hold(self._gpu.stream)
        return self.storage

    def __del__(self) -> None:
        # The memory goes back to the pool, whose next user is ordered by the compute stream.
        if not self._gpu._finalizing() and not self._gpu.lost:
            self.settle()


class Prefetcher:
    """Pinned slots and the order of copies; a thread of its own fills the slots.

    A slot is written again when its last copy is done. A copy waits for the compute stream as it
    was when the copy was asked for, since its memory may have had a user there.

    Args:
        gpu: where the copies go.
    """

    def __init__(self, gpu: DeviceHandle) -> None:
        self._gpu = gpu
        # By size, oldest first: a slot's address and the event behind its last copy.
        self._slots: dict[int, deque[tuple[int, DriverEvent]]] = defaultdict(deque)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="Prefetcher")

    def start(self, array: np.ndarray[Any, Any]) -> Prefetch:
        """Starts to copy an array; `Prefetch.wait_for_source` says when it may be changed."""
        gpu = self._gpu
        source = np.ascontiguousarray(array)
        storage = gpu.allocate(source.nbytes)
        free = DriverEvent(gpu, timing=False).record(gpu.stream)
        return Prefetch(gpu, storage, self._thread.submit(self._fill, storage, source, free))

    def _fill(
        self, storage: Allocation, source: np.ndarray[Any, Any], free: DriverEvent
    ) -> DriverEvent:
        """The copy to pinned memory, and the one from there behind it; the event behind both."""
        size = size_class(source.nbytes)
        slot = self._slot(size)
        ctypes.memmove(slot, source.ctypes.data, source.nbytes)
        free.hold(self._gpu.copy_stream)
        if source.nbytes:
            self.copy(storage.address, slot, source.nbytes)
        copied = DriverEvent(self._gpu, timing=False).record(self._gpu.copy_stream)
        self._slots[size].append((slot, copied))
        return copied

    def copy(self, address: int, slot: int, nbytes: int) -> None:
        """From pinned memory to the GPU, on the copy stream."""
        gpu = self._gpu
        gpu.call("cuMemcpyHtoDAsync", address, slot, nbytes, gpu.copy_stream)

    def _slot(self, size: int) -> int:
        """A slot that no copy reads any more."""
        slots = self._slots[size]
        if slots and (len(slots) >= SLOTS or slots[0][1].done()):
            slot, copied = slots.popleft()
            copied.synchronize()
            return slot
        self._gpu.enter()
        return int(self._gpu.call("cuMemHostAlloc", size, 0))
