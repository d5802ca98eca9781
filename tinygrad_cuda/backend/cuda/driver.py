"""The CUDA driver: the only file that touches it, behind one availability gate.

`available` and `reason` try it once, never at import; `device` gives the GPU's object.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy.typing as npt

from tinygrad_cuda.backend.cuda.handles import (
    RECENT,
    DriverEvent,
    KernelHandle,
    LaunchAttributes,
    LoadedCall,
    LoadedKernels,
    LoadedModule,
)
from tinygrad_cuda.backend.cuda.pool import Allocation, DevicePool, size_class
from tinygrad_cuda.backend.cuda.transfer.pinned_ring import LARGEST_STAGED, PinnedRing, Staged
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError, CudaError, DeviceError, TgcError
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.lowering.codegen.skeleton import MAP_WORDS, TensorMap

OLDEST_DRIVER = 13000  # NVRTC 13's cubins and the binding's entry points need it
PARAMETER_BYTES = 4096  # of a kernel's parameters: CUDA's limit before 12.1
TENSOR_MAPS = 4096  # that are remembered: a driver takes 5 us to make one
MAP_TYPES = {
    "float16": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    "bfloat16": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
    "float32": "CU_TENSOR_MAP_DATA_TYPE_FLOAT32",
}
HINTS = {
    "CUDA_ERROR_OUT_OF_MEMORY": "use a smaller batch, or free tensors that are no longer needed",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the code was compiled for another GPU model",
    "CUDA_ERROR_INVALID_IMAGE": "the compiled code is damaged or newer than the driver",
    "CUDA_ERROR_INVALID_SOURCE": "the compiled code is damaged or newer than the driver",
    "CUDA_ERROR_NOT_FOUND": 'the module has no kernel of that name; is it extern "C"?',
    "CUDA_ERROR_INVALID_VALUE": "an argument of that call is outside its range",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "fewer threads a block, or fewer registers a thread",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel used memory that is not its own; TGC_SYNC=1 says which",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "a vector access was not aligned; TGC_SYNC=1 says which",
    "CUDA_ERROR_LAUNCH_FAILED": "a kernel crashed; TGC_SYNC=1 says which",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "a kernel ran too long for a GPU that drives a display",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "the GPU's memory is faulty; see nvidia-smi",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver was updated; restart the machine",
}
# After one of these every call in the process fails: the context is lost.
LOSING = {214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999}


# The gate ---------------------------------------------------------------------------------------


class _Gate:
    """The outcome of the one try at the driver."""

    def __init__(self) -> None:
        self.tried = False
        self.driver: Any = None
        self.count = 0
        self.reason = ""
        self.forked = False
        self.devices: dict[int, DeviceHandle] = {}
        self.lock = new_lock()

    def open(self) -> None:
        with self.lock:
            if not self.tried:
                self.reason = self._try()
                self.tried = True

    def _try(self) -> str:
        """Initialises the driver; returns why it is of no use, or nothing."""
        try:
            from cuda.bindings import driver
        except ImportError as error:
            return f"the package cuda-python is not installed ({error}): pip install cuda-python"
        try:
            (status,) = driver.cuInit(0)
            if status:
                return f"the NVIDIA driver finds no usable GPU ({_describe(driver, status)})"
            _, version = driver.cuDriverGetVersion()
            if version < OLDEST_DRIVER:
                return (
                    f"the NVIDIA driver is too old: it knows CUDA {version // 1000}."
                    f"{version % 1000 // 10}, and 13.0 (driver 580) or newer is needed"
                )
            status, count = driver.cuDeviceGetCount()
        except RuntimeError as error:  # what the binding raises when there is no libcuda
            missing = type(error).__name__ == "DynamicLibNotFoundError"
            detail = "there is no libcuda" if missing else str(error).splitlines()[0]
            return f"the NVIDIA driver is not installed or too old ({detail})"
        if status or count == 0:
            return "the NVIDIA driver finds no GPU"
        self.driver, self.count = driver, count
        return ""

    def after_fork(self) -> None:
        self.lock = new_lock()
        if self.driver is not None:
            self.forked = True
            self.reason = (
                "this process was forked after CUDA was initialised, and CUDA does not survive that"
            )


def _describe(driver: Any, status: Any) -> str:
    _, text = driver.cuGetErrorString(status)
    return f"{status.name}: {text.decode() if text else 'no description'}"


_gate = _Gate()


class _Current(threading.local):
    """The Device whose context is current in this thread."""

    device: DeviceHandle | None = None


_current = _Current()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_gate.after_fork)


def available() -> bool:
    """Whether there is a GPU that this process can use."""
    _gate.open()
    return _gate.driver is not None and not _gate.forked


def reason() -> str:
    """Why there is no usable GPU, or how many there are, in one sentence."""
    if available():
        return f"{_gate.count} CUDA GPU{'s' * (_gate.count != 1)} can be used"
    return _gate.reason


def device_count() -> int:
    """The number of usable GPUs; 0 where there is none."""
    return _gate.count if available() else 0


def device(index: int = 0) -> DeviceHandle:
    """The GPU of that number; always the same object.

    Raises:
        DeviceError: there is no usable GPU, or not that many.
    """
    handle = _gate.devices.get(index)
    if handle is not None and not _gate.forked:
        return handle
    _require(index)
    with _gate.lock:
        if index not in _gate.devices:
            _gate.devices[index] = DeviceHandle(index, _gate.driver)
        return _gate.devices[index]


def begin(index: int) -> None:
    """Makes a GPU ready, if that can be done: what fails is raised by `device` again."""
    with suppress(TgcError):
        device(index)


def _require(index: int) -> None:
    if not available():
        hint = "use device 'cpu', or 'emu' to run the CUDA source itself on the CPU"
        if _gate.forked:
            hint = (
                "start workers with multiprocessing.get_context('spawn'), or before the first use "
                "of the GPU"
            )
        raise DeviceError(
            "cuda",
            "no GPU can be used in this process",
            expect="an NVIDIA GPU and its driver (580 or newer)",
            actual=reason(),
            hint=hint,
        )
    if not 0 <= index < _gate.count:
        raise DeviceError(
            "cuda", "no such GPU", expect=f"an index below {_gate.count}", actual=f"cuda:{index}"
        )


# The device -------------------------------------------------------------------------------------


class Properties(NamedTuple):
    """What a GPU is; sizes in bytes, bandwidth in bytes a second."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes: int
    multiprocessor_shared_bytes: int
    clock_hz: int
    bandwidth: float

    @property
    def arch(self) -> str:
        """The compiler's name for the GPU, such as ``sm_90``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


class DeviceHandle:
    """One GPU: its context, streams, memory, copies and launches. Made by `device`."""

    def __init__(self, index: int, driver: Any) -> None:
        self.index = index
        self.driver = driver
        self.lost = ""
        self._gate = _gate  # globals may be gone when destructors run at exit
        self._finalizing = sys.is_finalizing
        # Of the last runs, the last launches of each: one thing a run to append.
        self.launches: deque[Sequence[LaunchAttributes]] = deque(maxlen=RECENT)
        self._handle = self.call("cuDeviceGet", index)
        self._context = self.call("cuDevicePrimaryCtxRetain", self._handle)
        self.enter()
        self.properties = self._read_properties()
        flags = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.stream = self.call("cuStreamCreate", flags)
        self.copy_stream = self.call("cuStreamCreate", flags)
        self._arena: Allocation | None = None
        self.pool = DevicePool(
            self._allocate_segment, self._free_segment, self.memory_info, settings.pool_limit
        )
        self._has_pools = self._attribute("MEMORY_POOLS_SUPPORTED")
        self._words = (ctypes.c_uint64 * (PARAMETER_BYTES // 8))()
        self._bytes = memoryview(self._words).cast("B")
        self._pointer = (ctypes.c_void_p * 1)(ctypes.addressof(self._words))
        self._parameters = ctypes.addressof(self._pointer)
        self._modules: dict[bytes, LoadedModule] = {}
        self._tensor_maps: dict[Any, bytes] = {}
        self._memory_type = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        self.pinned_ring: PinnedRing | None = None
        self.lock = new_lock()

    # Calls and errors

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls the driver; returns its result, if it has one.

        Raises:
            CudaError: the driver reports a failure, of this call or of an earlier launch.
        """
        status, *results = getattr(self.driver, name)(*arguments)
        if status:
            raise self.error(name, status)
        return results[0] if results else None

    def error(self, call: str, status: Any) -> CudaError:
        """The exception for a failed call; remembers when the context is lost with it."""
        code = int(status)
        actual = f"{call} returned {code}, {_describe(self.driver, status)}"
        hint = HINTS.get(status.name)
        if code in LOSING:
            launches = [launch for run in self.launches for launch in run][-RECENT:]
            recent = "\n".join(f"  {launch}" for launch in launches) or "  none"
            self.lost = f"{actual}\nthe last launches, newest last:\n{recent}"
            return self._lost_error(hint)
        return CudaError(
            "cuda", "a driver call failed", expect=f"{call} succeeds", actual=actual, hint=hint
        )

    def _lost_error(self, hint: str | None = None) -> CudaError:
        return CudaError(
            "cuda",
            f"the context of GPU {self.index} is lost: this process can no longer use it",
            expect="every kernel so far ran without a fault",
            actual=self.lost,
            hint=hint or "restart the process; run it with TGC_SYNC=1 to find the kernel",
        )

    def enter(self) -> None:
        """Makes this GPU current in the calling thread.

        Raises:
            DeviceError: the process was forked after CUDA was initialised.
            CudaError: the context was lost.
        """
        if _current.device is self and not (self.lost or _gate.forked):
            return
        if _gate.forked:
            _require(self.index)
        if self.lost:
            raise self._lost_error()
        self.call("cuCtxSetCurrent", self._context)
        _current.device = self

    def destroy(self, name: str, handle: Any) -> None:
        """Gives a handle back; quiet, since destructors call it, also while Python shuts down."""
        if not (handle is None or self._finalizing() or self._gate.forked or self.lost):
            getattr(self.driver, name)(handle)

    def synchronize(self) -> None:
        """Waits for all work of the compute stream; a kernel's failure is raised here."""
        self.enter()
        self.call("cuStreamSynchronize", self.stream)

    # Properties

    def _attribute(self, name: str) -> int:
        kind = getattr(self.driver.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + name)
        return int(self.call("cuDeviceGetAttribute", kind, self._handle))

    def _read_properties(self) -> Properties:
        name = self.call("cuDeviceGetName", 256, self._handle)
        read = self._attribute
        bits = read("GLOBAL_MEMORY_BUS_WIDTH")
        return Properties(
            name=name.split(b"\0")[0].decode(),
            capability=(read("COMPUTE_CAPABILITY_MAJOR"), read("COMPUTE_CAPABILITY_MINOR")),
            multiprocessors=read("MULTIPROCESSOR_COUNT"),
            threads_per_multiprocessor=read("MAX_THREADS_PER_MULTIPROCESSOR"),
            memory_bytes=int(self.call("cuDeviceTotalMem", self._handle)),
            l2_bytes=read("L2_CACHE_SIZE"),
            shared_bytes=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            multiprocessor_shared_bytes=read("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            clock_hz=read("CLOCK_RATE") * 1000,
            bandwidth=read("MEMORY_CLOCK_RATE") * 1000 * 2 * bits / 8,
        )

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the GPU, other processes counted in."""
        self.enter()
        status, free, total = self.driver.cuMemGetInfo()
        if status:
            raise self.error("cuMemGetInfo", status)
        return int(free), int(total)

    # Memory

    def allocate(self, nbytes: int) -> Allocation:
        """Device memory, its content undefined; it is free again when the object dies.

        Its next user is ordered after its last one by the compute stream.

        Raises:
            OutOfMemoryError: no room, after idle memory was given back and garbage collected.
        """
        self.enter()
        return self.pool.allocate(nbytes)

    def arena(self, nbytes: int) -> Allocation:
        """Memory that programs share, since they run one after another; it only grows.

        Raises:
            OutOfMemoryError: no room for a larger one.
        """
        arena = self._arena
        if arena is None or arena.nbytes < nbytes:
            if arena is not None:
                arena = self._arena = None
                self.pool.trim()  # its room may serve the larger one
            arena = self._arena = self.allocate(size_class(nbytes))
        return arena

    def memory_allocated(self) -> int:
        """Bytes in use now."""
        return self.pool.allocated

    def max_memory_allocated(self) -> int:
        """The most bytes in use at once."""
        return self.pool.peak

    def empty_cache(self) -> int:
        """Gives idle memory back to the driver; returns its bytes."""
        self.synchronize()
        self._arena = None
        idle = self.pool.trim()
        self.call("cuStreamSynchronize", self.stream)
        return idle

    def _allocate_segment(self, nbytes: int) -> int | None:
        self.enter()
        if self._has_pools:
            status, address = self.driver.cuMemAllocAsync(nbytes, self.stream)
        else:
            status, address = self.driver.cuMemAlloc(nbytes)
        if status == self.driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            return None
        if status:
            raise self.error("cuMemAllocAsync", status)
        return int(address)

    def _free_segment(self, address: int) -> None:
        if self._has_pools:
            self.call("cuMemFreeAsync", address, self.stream)
        else:
            self.call("cuMemFree", address)

    # Copies, all in the order of the compute stream

    def copy_in(self, address: int, source: npt.NDArray[Any]) -> None:
        """Host to device; the array may be changed as soon as this returns.

        Raises:
            ArgumentError: the array is not contiguous.
        """
        if source.nbytes:
            _check_contiguous(source)
            self.enter()
            if source.nbytes <= LARGEST_STAGED:
                with self.lock:
                    self.ring().copy_in(address, source)
                return
            nbytes, pointer = _host_bytes(source)
            # From pageable memory the driver stages the bytes before it returns, and does not wait
            # for the stream.
            self.call("cuMemcpyHtoDAsync", address, pointer, nbytes, self.stream)
            (kind,) = self.call("cuPointerGetAttributes", 1, [self._memory_type], pointer)
            if int(kind):  # the driver knows this memory: it is pinned and still being read
                self.call("cuStreamSynchronize", self.stream)

    def stage(
        self, source: npt.NDArray[Any], allocate: Callable[[int], Allocation]
    ) -> Staged | Allocation:
        """A copy of a contiguous array for the GPU, which a small one reaches when it is needed.

        Args:
            source: may be changed as soon as this returns.
            allocate: gives memory of a number of bytes.
        """
        if 0 < source.nbytes <= LARGEST_STAGED:
            self.enter()
            with self.lock:
                return self.ring().stage(source, allocate)
        memory = allocate(source.nbytes)
        self.copy_in(memory.address, source)
        return memory

    def ring(self) -> PinnedRing:
        """The pinned memory through which small arrays go."""
        return self.pinned_ring or self._new_ring()

    def _new_ring(self) -> PinnedRing:
        self.enter()
        with self.lock:
            if self.pinned_ring is None:
                self.pinned_ring = PinnedRing(self)
            return self.pinned_ring

    def copy_out(self, address: int, destination: npt.NDArray[Any]) -> None:
        """Device to host; waits for all work of the compute stream.

        Raises:
            ArgumentError: the array is not contiguous.
        """
        nbytes, pointer = _host_bytes(destination)
        self.enter()
        if nbytes:
            self.call("cuMemcpyDtoHAsync", pointer, address, nbytes, self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Device to device; the ranges must not overlap."""
        if nbytes:
            self.enter()
            self.call("cuMemcpyDtoDAsync", destination, source, nbytes, self.stream)

    def fill(self, address: int, nbytes: int, byte: int = 0) -> None:
        """Sets each byte."""
        if nbytes:
            self.enter()
            self.call("cuMemsetD8Async", address, byte, nbytes, self.stream)

    # Code

    def load(self, cubin: bytes) -> LoadedModule:
        """Machine code made ready; the same bytes give the same module."""
        module = self._modules.get(cubin)
        if module is None:
            self.enter()
            module = self._modules[cubin] = LoadedModule(self, cubin)
        return module

    def launch(
        self,
        function: KernelHandle,
        grid: int,
        block: int,
        shared_bytes: int,
        words: bytes,
        label: object = None,
    ) -> None:
        """Starts a kernel on the compute stream; see the kernel's one struct parameter.

        Args:
            function: from `Module.function`.
            grid, block: number of blocks, and of threads in each.
            shared_bytes: dynamic shared memory of a block.
            words: the struct's bytes; read before this returns.
            label: what stands behind the kernel, such as the user's line; formatted on failure.

        Raises:
            ArgumentError: `words` is not as long as the struct.
            CudaError: the launch failed, or, under TGC_SYNC=1, the kernel did.
        """
        self.enter()
        function.prepare(len(words), shared_bytes)
        parameters = self._parameters
        with self.lock:
            self._bytes[: len(words)] = words
            self.launches.append((LaunchAttributes(function.name, label),))
            (status,) = self.driver.cuLaunchKernel(
                function.handle, grid, 1, 1, block, 1, 1, shared_bytes, self.stream, parameters, 0
            )
        if status:
            raise self.error(f"cuLaunchKernel({function.name}, {grid} x {block})", status)
        if settings.sync:
            self.call("cuStreamSynchronize", self.stream)

    def launch_named(
        self,
        unit: LoadedKernels,
        name: str,
        sizes: tuple[int, int, int],
        words: bytes,
        label: object = None,
    ) -> None:
        """Starts a kernel of a program, or the library's call of that name.

        Args:
            unit: the program's.
            name: of the launch.
            sizes: blocks, threads of a block and bytes of its shared memory, of a kernel.
            words: its parameters; read before this returns.
            label: what stands behind it, such as the user's line.
        """
        call = unit.call(name)
        if call is None:
            self.launch(unit.function(name), *sizes, words, label)
        else:
            self.launch_call(call, words, label)

    def launch_call(self, call: LoadedCall, words: bytes, label: object = None) -> None:
        """Starts a library's call on the compute stream.

        Args:
            call: of the library.
            words: its parameters; read before this returns.
            label: what stands behind it, such as the user's line.

        Raises:
            CudaError: the call failed, or, under TGC_SYNC=1, what it started did.
        """
        self.enter()
        with self.lock:
            self.launches.append((LaunchAttributes(call.name, label),))
            call.start(words, self.stream)
        if settings.sync:
            self.call("cuStreamSynchronize", self.stream)

    def launch_raw(
        self,
        function: KernelHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: Sequence[bytes],
        label: object = None,
    ) -> None:
        """Starts a kernel of several parameters on the compute stream.

        Args:
            grid, block: blocks, and threads of a block, in x, y and z.
            shared_bytes: dynamic shared memory of a block.
            arguments: the bytes of each; read before this returns.
            label: what stands behind the kernel, such as the user's line.

        Raises:
            CudaError: the launch failed, or, under TGC_SYNC=1, the kernel did.
        """
        self.enter()
        function.allow_shared(shared_bytes)
        values = [ctypes.create_string_buffer(value, 8) for value in arguments]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        with self.lock:
            self.launches.append((LaunchAttributes(function.name, label),))
            (status,) = self.driver.cuLaunchKernel(
                function.handle, *grid, *block, shared_bytes, self.stream,
                ctypes.addressof(pointers), 0,
            )  # fmt: skip
        if status:
            raise self.error(f"cuLaunchKernel({function.name}, {grid} x {block})", status)
        if settings.sync:
            self.call("cuStreamSynchronize", self.stream)

    def tensor_map(self, tensor: TensorMap, address: int) -> bytes:
        """What describes a value at an address to TMA.

        Raises:
            CudaError: the GPU takes no map of this form.
        """
        key = tensor.node.dtype, tensor[1:], address
        words = self._tensor_maps.get(key)
        if words is None:
            if len(self._tensor_maps) >= TENSOR_MAPS:
                self._tensor_maps.clear()
            words = self._tensor_maps[key] = self._encoded(tensor, address)
        return words

    def _encoded(self, tensor: TensorMap, address: int) -> bytes:
        driver, axes, pixels = self.driver, len(tensor.shape), tensor.pixels
        swizzle = f"{tensor.swizzle}B" if tensor.swizzle else "NONE"
        steps = (1, *pixels.steps, 1) if pixels else (1,) * axes
        box: tuple[Any, ...] = ([driver.cuuint32_t(size) for size in tensor.box],)
        if pixels:
            box = (list(pixels.lower), list(pixels.upper), *tensor.box)
        made = self.call(
            "cuTensorMapEncodeIm2col" if pixels else "cuTensorMapEncodeTiled",
            getattr(driver.CUtensorMapDataType, MAP_TYPES[tensor.node.dtype.name]),
            axes,
            address + tensor.offset,
            [driver.cuuint64_t(size) for size in tensor.shape],
            [driver.cuuint64_t(stride) for stride in tensor.strides],
            *box,
            [driver.cuuint32_t(step) for step in steps],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return struct.pack(f"<{MAP_WORDS}Q", *map(int, made.opaque))

    def timed(self, work: Callable[[], None]) -> float:
        """Microseconds of GPU time between the start and the end of what `work` submits."""
        start, end = DriverEvent(self), DriverEvent(self)
        start.record()
        work()
        end.record()
        return end.microseconds_since(start)


def _host_bytes(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Size and address of an array's data."""
    _check_contiguous(array)
    return array.nbytes, int(array.__array_interface__["data"][0])


def _check_contiguous(array: npt.NDArray[Any]) -> None:
    if not array.flags.c_contiguous:
        raise ArgumentError(
            "copy",
            "only contiguous arrays are copied",
            expect="a C-contiguous array",
            actual=f"shape {array.shape}, strides {array.strides}",
            hint="numpy.ascontiguousarray(x)",
        )


__all__ = [
    "available",
    "reason",
    "device_count",
    "device",
    "DeviceHandle",
    "Properties",
    "Allocation",
    "LoadedModule",
    "KernelHandle",
    "DriverEvent",
    "LaunchAttributes",
]
