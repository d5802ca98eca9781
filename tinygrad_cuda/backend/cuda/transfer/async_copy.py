"""Larger pinned arrays on their way to the GPU, beside the compute stream.

A step's batch crosses the bus while the GPU works on the step before: its memory is one of a few
that take turns, and the copy waits only for the last work that has used this one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.handles import DriverEvent
from tinygrad_cuda.backend.cuda.pool import Allocation

SMALLEST = 256 << 10  # bytes; a graph fetches less in a few microseconds, without other calls
SIZES = 8  # sizes of which memory is kept
TURNS = 4  # pieces of memory of one size that are kept
LARGEST_REUSED = 64 << 20  # bytes of which memory is kept; copies of more take long in any case


class _Place:
    """Memory on the GPU with its events."""

    __slots__ = ("memory", "free", "copied")

    def __init__(self, device: DeviceHandle, nbytes: int) -> None:
        self.memory: Allocation = device.allocate(nbytes)
        self.free, self.copied = (
            DriverEvent(device, timing=False),
            DriverEvent(device, timing=False),
        )


class Ferried:
    """An array on the GPU, or on the way there: later work of the compute stream finds it.

    Attributes:
        address, nbytes: where it is there, and how long.
    """

    __slots__ = ("address", "nbytes", "_place", "_source", "_returned", "__weakref__")

    def __init__(self, place: _Place, nbytes: int, source: object, returned: deque[_Place]) -> None:
        self.address, self.nbytes = place.memory.address, nbytes
        self._place, self._returned = place, returned
        self._source = source  # stays as it is until the GPU has read it

    def __del__(self) -> None:
        # One atomic append and no lock: this may run in any thread, and at exit.
        self._returned.append(self._place)


class Ferry:
    """Copies pinned arrays on the copy stream.

    Args:
        device: the GPU.
    """

    def __init__(self, device: DeviceHandle) -> None:
        self.device = device
        self._idle: dict[int, deque[_Place]] = {}  # by size, the longest free first
        self._returned: deque[_Place] = deque()

    def send(self, source: Any, place: int) -> Ferried:
        """Starts to copy an array in pinned memory at `place`, which nobody changes."""
        device, nbytes = self.device, int(source.nbytes)
        device.enter()
        with device.lock:
            idle = self._idle.get(nbytes)
            if idle:
                found = idle.popleft()
            else:
                found = _Place(device, nbytes)
                found.free.record()  # the memory may have had a user
            # Only now: what has just come back waits for the work of today, this one for earlier.
            self._take_back()
            driver, work, copies = device.driver, device.stream, device.copy_stream
            copied = found.copied.handle
            # Every step of a loop comes here: the driver's own functions, and one look at the end.
            results = (
                driver.cuStreamWaitEvent(copies, found.free.handle, 0),
                driver.cuMemcpyHtoDAsync(found.memory.address, place, nbytes, copies),
                driver.cuEventRecord(copied, copies),
                driver.cuStreamWaitEvent(work, copied, 0),
            )
            failed = [status for (status,) in results if status]
            if failed:
                raise device.error("cuMemcpyHtoDAsync and its events", failed[0])
        return Ferried(found, nbytes, source, self._returned)

    def _take_back(self) -> None:
        """Marks where the work ends that may use memory which nobody holds any more."""
        while self._returned:
            place = self._returned.popleft()
            nbytes = place.memory.nbytes
            if nbytes not in self._idle and len(self._idle) >= SIZES:
                self._idle.clear()
            idle = self._idle.setdefault(nbytes, deque())
            if nbytes <= LARGEST_REUSED and len(idle) < TURNS:
                place.free.record()
                idle.append(place)
