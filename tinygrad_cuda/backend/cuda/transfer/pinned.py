"""Arrays in page-locked memory of the host, which the GPU reads directly."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from tinygrad_cuda.backend.cuda.driver import DeviceHandle

Array = np.ndarray[Any, Any]


class Pinned:
    """The pinned arrays; each one's memory is freed with it.

    Args:
        gpu: the GPU that reads them.
    """

    def __init__(self, gpu: DeviceHandle) -> None:
        self._gpu = gpu
        # By identity; a finalizer of the array removes its entry.
        self._entries: dict[int, tuple[weakref.ref[Array], int]] = {}
        # An array's entry by its identity, without a call: every step of a loop asks for its batch.
        self.entry = self._entries.get

    def copy_of(self, array: Array) -> Array:
        """A copy in pinned memory, as long as it is not empty."""
        source = np.ascontiguousarray(array).reshape(array.shape)
        if not source.nbytes:
            return source.copy()
        self._gpu.enter()
        address = int(self._gpu.call("cuMemHostAlloc", source.nbytes, 0))
        memory: Any = (ctypes.c_char * source.nbytes).from_address(address)
        weakref.finalize(memory, _free, self._gpu, address).atexit = False
        result: Array = np.frombuffer(memory, np.uint8).view(source.dtype).reshape(source.shape)
        result[...] = source
        key = id(result)
        reference = weakref.ref(result, lambda _: self._entries.pop(key, None))
        self._entries[key] = reference, address
        return result

    def address_of(self, array: Array) -> int | None:
        """The address of an array that `copy_of` has made; None for another one."""
        entry = self.entry(id(array))
        return None if entry is None or entry[0]() is not array else entry[1]


def _free(gpu: DeviceHandle, address: int) -> None:
    # A copy or a graph may still read it.
    gpu.destroy("cuStreamSynchronize", gpu.stream)
    gpu.destroy("cuMemFreeHost", address)
