"""tc.accelerator: the GPU, if there is one, without naming its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinygrad_cuda import cuda
from tinygrad_cuda.core.device import Device, as_device
from tinygrad_cuda.core.names import missing_from

__all__ = [
    "current_accelerator", "current_device_idx", "current_device_index", "device_count",
    "empty_cache", "is_available", "max_memory_allocated", "memory_allocated",
    "set_device_idx", "set_device_index", "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """Whether a GPU can be used."""
    return cuda.is_available()


def device_count() -> int:
    """The number of usable GPUs."""
    return cuda.device_count()


def current_accelerator(check_available: bool = False) -> Device | None:
    """``device("cuda")``, or None where no GPU can be used."""
    return as_device("cuda") if cuda.is_available() else None


def current_device_index() -> int:
    """The GPU that ``"cuda"`` names.

    Raises:
        DeviceError: there is no usable GPU.
    """
    return cuda.current_device()


def set_device_index(device: Any) -> None:
    """See `tc.cuda.set_device`."""
    cuda.set_device(device)


def synchronize(device: Any = None) -> None:
    """Waits for all work on the GPU; does nothing where there is none."""
    if cuda.is_available():
        cuda.synchronize(device)


current_device_idx, set_device_idx = current_device_index, set_device_index
empty_cache = cuda.empty_cache
memory_allocated = cuda.memory_allocated
max_memory_allocated = cuda.max_memory_allocated

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
