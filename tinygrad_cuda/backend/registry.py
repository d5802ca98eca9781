"""get(device): the backend of a device; a device that cannot be used is an error, never a swap."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tinygrad_cuda.backend.base import Backend
from tinygrad_cuda.backend.cuda import runtime
from tinygrad_cuda.backend.cuda.backend import CudaBackend
from tinygrad_cuda.backend.emulator.backend import EmuBackend
from tinygrad_cuda.backend.reference.backend import ReferenceBackend
from tinygrad_cuda.core.device import Device

_backends: dict[Device, Backend] = {}
_lock = threading.Lock()


_makers: dict[str, Callable[[Device], Backend]] = {
    "cpu": ReferenceBackend,
    "cuda": CudaBackend,
    "emu": EmuBackend,
}


def get(device: Device) -> Backend:
    """The one backend of `device`, made at first use.

    Raises:
        DeviceError: the device cannot be used here; the text says why.
    """
    backend = _backends.get(device)
    if backend is None:
        with _lock:
            backend = _backends.get(device)
            if backend is None:
                backend = _backends[device] = _makers[device.kind](device)
    return backend


def usable(kind: str) -> bool:
    """Whether a device of this kind can be used here; the driver is asked once."""
    return runtime.available() if kind == "cuda" else True
