"""tc.cuda: is there a usable GPU, how much memory do tensors take, wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import runtime
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.cuda import amp
from tinygrad_cuda.tensor import random

__all__ = [
    "amp", "device_count", "empty_cache", "is_available", "is_bf16_supported", "manual_seed",
    "manual_seed_all", "max_memory_allocated", "memory_allocated", "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """Whether a GPU can be used; never raises."""
    return runtime.available()


def device_count() -> int:
    """The number of usable GPUs."""
    return runtime.device_count() if runtime.available() else 0


def is_bf16_supported() -> bool:
    """Whether there is a GPU: bfloat16 is stored and computed on every one."""
    return is_available()


def manual_seed(seed: int) -> None:
    """`tc.manual_seed`: one stream of random numbers serves every device."""
    random.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """`tc.manual_seed`, again."""
    random.manual_seed(seed)


def _runtime(device: Any) -> runtime.Device:
    place = as_device("cuda" if device is None else device)
    registry.get(place)
    return runtime.device(place.index)


def synchronize(device: Any = None) -> None:
    """Waits for all work on the GPU."""
    _runtime(device).synchronize()


def memory_allocated(device: Any = None) -> int:
    """Bytes that live tensors hold."""
    return _runtime(device).memory_allocated()


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that live tensors ever held."""
    return _runtime(device).max_memory_allocated()


def empty_cache(device: Any = None) -> None:
    """Returns unused pool memory to the driver."""
    _runtime(device).empty_cache()


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
