"""tc.cuda: is there a usable GPU, how much memory do tensors take, wait for it.

What programs call without asking first (seeds, memory figures, `empty_cache`) does nothing where
there is no GPU; what needs one raises.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.errors import OutOfMemoryError as OutOfMemoryError
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.core.shapes import readable
from tinygrad_cuda.cuda import amp, nvtx
from tinygrad_cuda.cuda.events import Event, Stream, StreamContext, require_own, runtime_of
from tinygrad_cuda.tensors import random
from tinygrad_cuda.tensors.legacy import ON_GPU
from tinygrad_cuda.tensors.tensor import Tensor

globals().update(ON_GPU)

__all__ = [
    "Event", "Stream", "StreamContext", "amp", "current_device", "current_stream",
    "default_stream", "device", "device_count", "empty_cache", "get_arch_list",
    "get_device_capability", "get_device_name",
    "get_device_properties", "get_rng_state", "get_rng_state_all", "init", "initial_seed",
    "ipc_collect", "is_available", "is_bf16_supported", "is_current_stream_capturing",
    "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated",
    "max_memory_cached", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_cached", "memory_reserved", "memory_stats", "memory_summary", "nvtx",
    "reset_max_memory_allocated", "reset_peak_memory_stats", "seed", "seed_all", "set_device",
    "set_rng_state", "set_rng_state_all", "set_stream", "stream", "synchronize", *ON_GPU,
]  # fmt: skip


# Which GPU ----------------------------------------------------------------------------------------


def is_available() -> bool:
    """Whether a GPU can be used; never raises."""
    return driver.available()


def device_count() -> int:
    """The number of usable GPUs."""
    return driver.device_count() if driver.available() else 0


def is_initialized() -> bool:
    """Whether a GPU can be used: asking for one makes it ready."""
    return is_available()


# PyTorch's word for whether the GPU was used: then a program keeps its random state, too. Here
# there is one stream of random numbers, on the host.
_initialized = False


def init() -> None:
    """Makes the GPU ready.

    Raises:
        DeviceError: there is no usable GPU.
    """
    runtime_of(None)


def current_device() -> int:
    """0: the GPU that ``"cuda"`` names.

    Raises:
        DeviceError: there is no usable GPU.
    """
    runtime_of(None)
    return 0


def set_device(device: Any) -> None:
    """Accepts the GPU that ``"cuda"`` names anyway.

    Raises:
        ArgumentError: it is another one.
        DeviceError: there is no usable GPU.
    """
    chosen = as_device(device)
    runtime_of(chosen)
    if chosen.index:
        raise ArgumentError(
            "set_device", "'cuda' always names the first GPU", expect="0", actual=str(chosen),
            hint=f"give the device: '{chosen}', or choose by CUDA_VISIBLE_DEVICES",
        )  # fmt: skip


def device(device: Any) -> AbstractContextManager[Any]:
    """A block in which new Tensors go to a GPU; None or a negative number changes nothing."""
    if device is None or (isinstance(device, int) and device < 0):
        return nullcontext()
    return as_device(device)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether there is a GPU: bfloat16 is stored and computed on every one."""
    return is_available()


def get_device_name(device: Any = None) -> str:
    """What the driver calls the GPU.

    Raises:
        DeviceError: there is no usable GPU.
    """
    return runtime_of(device).properties.name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Major and minor number of the architecture, such as ``(9, 0)``.

    Raises:
        DeviceError: there is no usable GPU.
    """
    return runtime_of(device).properties.capability


class _Properties:
    """What `get_device_properties` gives, by PyTorch's names."""

    def __init__(self, properties: driver.Properties) -> None:
        self.name = properties.name
        self.major, self.minor = properties.capability
        self.total_memory = properties.memory_bytes
        self.multi_processor_count = properties.multiprocessors
        self.max_threads_per_multi_processor = properties.threads_per_multiprocessor
        self.L2_cache_size = properties.l2_bytes

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count})"
        )


def get_device_properties(device: Any = None) -> _Properties:
    """Name, architecture, memory and multiprocessors of a GPU.

    Raises:
        DeviceError: there is no usable GPU.
    """
    return _Properties(runtime_of(device).properties)


def get_arch_list() -> list[str]:
    """The architectures of the GPUs here: kernels are compiled for them at run time."""
    return sorted({driver.device(k).properties.arch for k in range(device_count())})


# Random numbers -----------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """`tc.manual_seed`: one stream of random numbers serves every device."""
    random.manual_seed(seed)


def seed() -> None:
    """`tc.seed`."""
    random.seed()


manual_seed_all, seed_all = manual_seed, seed


def initial_seed() -> int:
    """`tc.initial_seed`."""
    return random.initial_seed()


def get_rng_state(device: Any = None) -> Tensor:
    """`tc.get_rng_state`."""
    return random.get_rng_state()


def get_rng_state_all() -> list[Tensor]:
    """The state of the one stream, for each GPU."""
    return [random.get_rng_state() for _ in range(device_count())]


def set_rng_state(new_state: Tensor, device: Any = None) -> None:
    """`tc.set_rng_state`."""
    random.set_rng_state(new_state)


def set_rng_state_all(new_states: Any) -> None:
    """Takes up the one stream where `get_rng_state_all` was called."""
    for state in new_states:
        random.set_rng_state(state)


# Work and memory ----------------------------------------------------------------------------------


def synchronize(device: Any = None) -> None:
    """Waits for all work on the GPU.

    Raises:
        DeviceError: there is no usable GPU.
    """
    runtime_of(device).synchronize()


def current_stream(device: Any = None) -> Stream:
    """The one stream that computes."""
    return Stream(device)


default_stream = current_stream


def stream(stream: Stream | None) -> StreamContext:
    """A block in which nothing changes: there is one stream.

    Raises:
        ArgumentError: it is another library's stream, on which nothing can be launched.
    """
    return StreamContext(stream)


def set_stream(stream: Stream | None) -> None:
    """Changes nothing: there is one stream.

    Raises:
        ArgumentError: it is another library's stream, on which nothing can be launched.
    """
    require_own("set_stream", stream)


def is_current_stream_capturing() -> bool:
    """False: what is captured here is no concern of a program's."""
    return False


def memory_allocated(device: Any = None) -> int:
    """Bytes that live tensors hold; 0 where there is no GPU."""
    return runtime_of(device).memory_allocated() if is_available() else 0


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that live tensors ever held; 0 where there is no GPU."""
    return runtime_of(device).max_memory_allocated() if is_available() else 0


def memory_reserved(device: Any = None) -> int:
    """Bytes that the pool holds, in use or not; 0 where there is no GPU."""
    return runtime_of(device).pool.reserved if is_available() else 0


max_memory_reserved = memory_cached = max_memory_cached = memory_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Starts `max_memory_allocated` anew from what is in use now."""
    if is_available():
        runtime_of(device).pool.reset_peak()


reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the GPU.

    Raises:
        DeviceError: there is no usable GPU.
    """
    return runtime_of(device).memory_info()


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Figures of the pool by PyTorch's names; empty where there is no GPU.

    Example:
        >>> import tinygrad_cuda as tc
        >>> stats = tc.cuda.memory_stats()
        >>> ("allocated_bytes.all.current" in stats) == tc.cuda.is_available()
        True
    """
    if not is_available():
        return OrderedDict()
    pool = runtime_of(device).pool
    return OrderedDict(
        {
            "allocated_bytes.all.current": pool.allocated,
            "allocated_bytes.all.peak": pool.peak,
            "reserved_bytes.all.current": pool.reserved,
            "inactive_split_bytes.all.current": pool.reserved - pool.allocated,
        }
    )


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Bytes in use, their peak, and what the pool holds, as a table; zeros without a GPU.

    Args:
        device: which GPU.
        abbreviated: accepted as in PyTorch.

    Example:
        >>> import tinygrad_cuda as tc
        >>> "in use by tensors and plans" in tc.cuda.memory_summary()
        True
    """
    inside, peak = memory_allocated(device), max_memory_allocated(device)
    reserved = memory_reserved(device)
    rows = (
        ("in use by tensors and plans", inside),
        ("the most at once", peak),
        ("held by the pool", reserved),
        ("held and not in use", reserved - inside),
    )
    return "\n".join(f"{name:<28} {nbytes:>16,} bytes  {readable(nbytes)}" for name, nbytes in rows)


def empty_cache(device: Any = None) -> None:
    """Returns unused pool memory to the driver; does nothing where there is no GPU."""
    if is_available():
        runtime_of(device).empty_cache()


def ipc_collect() -> None:
    """Does nothing: no memory is shared with other processes."""


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
