"""Pinned memory through which small arrays go to the GPU: the host copies them, and does not wait.

A copy from pageable memory is staged by the driver, at about twice the time of this.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tinygrad_cuda.backend.cuda.handles import Event

if TYPE_CHECKING:
    from tinygrad_cuda.backend.cuda.runtime import Device

LARGEST = 512 << 10  # bytes; of larger arrays the driver's own staging overlaps with the copy
PARTS = 4
PART = LARGEST  # bytes of one part of the ring, which is small so that it stays in the cache
ALIGNMENT = 256


class Staging:
    """A ring of pinned memory in parts; a part is written again when the GPU has read it.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory = int(device.call("cuMemHostAlloc", PARTS * PART, 0))
        self._read = [Event(device, timing=False) for _ in range(PARTS)]
        self._part = 0
        self._used = 0  # bytes of the part

    def copy_in(self, address: int, source: int, nbytes: int) -> None:
        """Copies at most `LARGEST` bytes of host memory, which may be changed afterwards."""
        used = self._used
        if used + nbytes > PART:
            self._read[self._part].record()
            self._part = (self._part + 1) % PARTS
            self._read[self._part].synchronize()
            used = 0
        self._used = used + -(-nbytes // ALIGNMENT) * ALIGNMENT
        place = self._memory + self._part * PART + used
        ctypes.memmove(place, source, nbytes)
        device = self._device
        (status,) = device.driver.cuMemcpyHtoDAsync(address, place, nbytes, device.stream)
        if status:
            raise device.error("cuMemcpyHtoDAsync", status)

    def __del__(self) -> None:
        self._device.destroy("cuMemFreeHost", getattr(self, "_memory", None))
