"""Asynchronous copies of larger pinned arrays to the GPU, beside the compute stream.

A step's batch crosses the bus while the GPU works on the step before: its memory is one of a few
that are used in turn, and the copy waits only for the last work that has used this one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.handles import DriverEvent
from tinygrad_cuda.backend.cuda.pool import Allocation

SMALLEST = 256 << 10  # bytes; a graph fetches less in a few microseconds, without other calls
SIZES = 8  # sizes whose memory is reused at most
TURNS = 4  # allocations of one size that are reused at most
LARGEST_REUSED = 64 << 20  # bytes of a reused allocation; larger copies take long anyway


class _CopyBuffer:
    """Memory on the GPU with its events."""

    __slots__ = ("memory", "free", "copied")

    def __init__(self, device: DeviceHandle, nbytes: int) -> None:
        self.memory: Allocation = device.allocate(nbytes)
        self.free, self.copied = (
            DriverEvent(device, timing=False),
            DriverEvent(device, timing=False),
        )


class AsyncCopy:
    """An array on the GPU, or in flight: later work of the compute stream waits for it.

    Attributes:
        address, nbytes: of its memory on the GPU.
    """

    __slots__ = ("address", "nbytes", "_buffer", "_source", "_returned", "__weakref__")

    def __init__(
        self, buffer: _CopyBuffer, nbytes: int, source: object, returned: deque[_CopyBuffer]
    ) -> None:
        self.address, self.nbytes = buffer.memory.address, nbytes
        self._buffer, self._returned = buffer, returned
        self._source = source  # stays as it is until the GPU has read it

    def __del__(self) -> None:
        # One atomic append and no lock: this may run in any thread, and at exit.
        self._returned.append(self._buffer)


class AsyncCopier:
    """Copies pinned arrays on the copy stream.

    Args:
        device: the GPU.
    """

    def __init__(self, device: DeviceHandle) -> None:
        self.device = device
        self._idle: dict[int, deque[_CopyBuffer]] = {}  # by size, the longest free first
        self._returned: deque[_CopyBuffer] = deque()

    def send(self, source: Any, address: int) -> AsyncCopy:
        """Starts to copy an array in pinned memory at `address`, which nobody changes."""
        device, nbytes = self.device, int(source.nbytes)
        device.enter()
        with device.lock:
            idle = self._idle.get(nbytes)
            if idle:
                buffer = idle.popleft()
            else:
                buffer = _CopyBuffer(device, nbytes)
                buffer.free.record()  # the memory may have had a user
            # Only now: returned buffers wait for work up to here, this one for earlier work.
            self._take_back()
            driver, work, copies = device.driver, device.stream, device.copy_stream
            copied = buffer.copied.handle
            # On every step of a loop: the driver's own functions, and one check at the end.
            results = (
                driver.cuStreamWaitEvent(copies, buffer.free.handle, 0),
                driver.cuMemcpyHtoDAsync(buffer.memory.address, address, nbytes, copies),
                driver.cuEventRecord(copied, copies),
                driver.cuStreamWaitEvent(work, copied, 0),
            )
            failed = [status for (status,) in results if status]
            if failed:
                raise device.error("cuMemcpyHtoDAsync and its events", failed[0])
        return AsyncCopy(buffer, nbytes, source, self._returned)

    def _take_back(self) -> None:
        """Records an event behind the work that may use buffers without a reference."""
        device = self.device
        while self._returned:
            buffer = self._returned.popleft()
            nbytes = buffer.memory.nbytes
            idle = self._idle.get(nbytes)
            if idle is None:
                if len(self._idle) >= SIZES:
                    self._idle.clear()
                idle = self._idle[nbytes] = deque()
            if nbytes <= LARGEST_REUSED and len(idle) < TURNS:
                (status,) = device.driver.cuEventRecord(buffer.free.handle, device.stream)
                if status:
                    raise device.error("cuEventRecord", status)
                idle.append(buffer)
