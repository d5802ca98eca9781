"""get(device): the backend of a device; a device that cannot be used is an error, never a swap."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from tinygrad_cuda.backend.base import Backend
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.locks import forks_wait, new_lock

_backends: dict[Device, Backend] = {}
_lock = new_lock()

# Module and class of each kind. A backend is imported when its device is first used: the code
# generator alone is half of the package.
BACKENDS = {
    "cpu": ("tinygrad_cuda.backend.cpu.backend", "CpuBackend"),
    "cuda": ("tinygrad_cuda.backend.cuda.backend", "CudaBackend"),
    "meta": ("tinygrad_cuda.backend.meta", "MetaBackend"),
    "emu": ("tinygrad_cuda.backend.emu.backend", "EmuBackend"),
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
                module, name = BACKENDS[device.kind]
                with forks_wait:
                    if device.kind == "cuda":
                        imported = _imported_beside_driver(module, device.index)
                    else:
                        imported = importlib.import_module(module)
                made: Backend = getattr(imported, name)(device)
                backend = _backends[device] = made
    return backend


def used() -> list[Backend]:
    """The backends of the devices that this process has used."""
    return list(_backends.values())


def _imported_beside_driver(module: str, index: int) -> Any:
    """The module of a GPU's backend, imported while the driver makes the context: both take long.

    What goes wrong there is raised again when the backend asks for the GPU.
    """
    runtime = importlib.import_module("tinygrad_cuda.backend.cuda.driver")
    beginning = threading.Thread(target=runtime.begin, args=(index,))
    beginning.start()
    try:
        return importlib.import_module(module)
    finally:
        beginning.join()


def usable(kind: str) -> bool:
    """Whether a device of this kind can be used here; the driver is asked once."""
    if kind != "cuda":
        return True
    runtime = importlib.import_module("tinygrad_cuda.backend.cuda.driver")
    return bool(runtime.available())
