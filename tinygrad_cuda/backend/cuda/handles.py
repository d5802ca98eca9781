"""What the driver hands out: modules, kernels and events.

They call the driver only through their `Device`, which has passed the availability gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from tinygrad_cuda.core.errors import ArgumentError, CudaError

PLAIN_SHARED_BYTES = 48 << 10  # more dynamic shared memory has to be asked for
RECENT = 16  # launches in the account of a failure


class DriverCalls(Protocol):
    """A GPU as its handles see it: the driver behind the availability gate."""

    driver: Any
    properties: Any
    stream: Any
    lock: Any

    def enter(self) -> None:
        """Makes its context the thread's."""
        ...

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the driver; raises what it reports."""
        ...

    def error(self, call: str, status: Any) -> CudaError:
        """What a status of the driver says."""
        ...

    def destroy(self, name: str, handle: Any) -> None:
        """Gives a handle back, at exit too."""
        ...


class LaunchAttributes(NamedTuple):
    """One launch, for the account given when a kernel fails later."""

    name: str
    label: object

    def __str__(self) -> str:
        return f"{self.name}  {self.label}" if self.label is not None else self.name


class KernelHandle:
    """A kernel ready to launch."""

    __slots__ = ("handle", "name", "parameter_bytes", "_device", "_shared_bytes")

    def __init__(self, device: DriverCalls, handle: Any, name: str) -> None:
        self.handle = handle
        self.name = name
        self._device = device
        self._shared_bytes = PLAIN_SHARED_BYTES
        status, _, size = device.driver.cuFuncGetParamInfo(handle, 0)
        self.parameter_bytes = 0 if status else int(size)

    def attribute(self, name: str) -> int:
        """A number such as NUM_REGS, LOCAL_SIZE_BYTES or MAX_THREADS_PER_BLOCK."""
        self._device.enter()
        kind = getattr(self._device.driver.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_" + name)
        return int(self._device.call("cuFuncGetAttribute", kind, self.handle))

    def require_together(self, blocks: int, threads: int, shared_bytes: int) -> None:
        """Checks that all blocks of a launch run at one time: those that wait for each other must.

        Raises:
            CudaError: they do not.
        """
        device = self._device
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        blocks_per_sm = int(device.call(name, self.handle, threads, shared_bytes))
        most = blocks_per_sm * device.properties.multiprocessors
        if blocks > most:
            raise CudaError(
                self.name, "blocks that wait for each other do not run at one time",
                expect=f"at most {most} blocks, {blocks_per_sm} on a multiprocessor",
                actual=f"{blocks}",
            )  # fmt: skip

    def parameter_sizes(self) -> list[int]:
        """The bytes of each parameter, as the kernel was compiled."""
        self._device.enter()
        sizes: list[int] = []
        while True:
            status, _, size = self._device.driver.cuFuncGetParamInfo(self.handle, len(sizes))
            if status:
                return sizes
            sizes.append(int(size))

    def prepare(self, words_bytes: int, shared_bytes: int) -> None:
        """Checks the parameters' size and asks for large shared memory, once.

        Raises:
            ArgumentError: the words are not as long as the kernel's struct.
            CudaError: the GPU has less shared memory than that.
        """
        if words_bytes != self.parameter_bytes:
            raise ArgumentError(
                self.name,
                "the parameters have another size than the kernel's",
                expect=f"{self.parameter_bytes} bytes",
                actual=f"{words_bytes} bytes",
            )
        self.allow_shared(shared_bytes)

    def allow_shared(self, shared_bytes: int) -> None:
        """Asks for large shared memory, once.

        Raises:
            CudaError: the GPU has less shared memory than that.
        """
        if shared_bytes > self._shared_bytes:
            most = self._device.properties.shared_bytes
            if shared_bytes > most:
                raise CudaError(
                    self.name,
                    "the kernel wants more shared memory than a block can have",
                    expect=f"at most {most} bytes on {self._device.properties.name}",
                    actual=f"{shared_bytes} bytes",
                )
            kind = self._device.driver.CUfunction_attribute
            self._device.call(
                "cuFuncSetAttribute",
                self.handle,
                kind.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared_bytes,
            )
            self._shared_bytes = shared_bytes


class LoadedModule:
    """Loaded machine code; its kernels by name."""

    def __init__(self, device: DriverCalls, cubin: bytes) -> None:
        self._device = device
        self._handle = device.call("cuModuleLoadData", cubin)
        self._functions: dict[str, KernelHandle] = {}

    def function(self, name: str) -> KernelHandle:
        """The kernel of that name.

        Raises:
            CudaError: the module has none.
        """
        if name not in self._functions:
            self._device.enter()
            handle = self._device.call("cuModuleGetFunction", self._handle, name.encode())
            self._functions[name] = KernelHandle(self._device, handle, name)
        return self._functions[name]


class LoadedCall(Protocol):
    """A library's call that is ready to run; its name is for errors."""

    name: str

    def start(self, words: bytes, stream: Any) -> None:
        """Runs on a stream; `words` are the launch's parameters."""
        ...

    def captured(self, words: bytes) -> Any:
        """What it runs as a graph, which whoever asks destroys."""
        ...


class LoadedKernels:
    """The kernels of a program, which are in several modules, and the calls of libraries.

    Args:
        modules: those that have them, by the names of the kernels.
        calls: by the names of their launches.
    """

    def __init__(
        self, modules: Mapping[str, LoadedModule], calls: Mapping[str, LoadedCall]
    ) -> None:
        self._modules, self._calls = modules, calls

    def call(self, name: str) -> LoadedCall | None:
        """The library's call of that name, if it is no kernel."""
        return self._calls.get(name)

    def function(self, name: str) -> KernelHandle:
        """The kernel of that name."""
        return self._modules[name].function(name)


class DriverEvent:
    """A point in a stream's work."""

    def __init__(self, device: DriverCalls, timing: bool = True) -> None:
        self._device = device
        flags = device.driver.CUevent_flags
        kind = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        device.enter()
        self.handle = device.call("cuEventCreate", int(kind))

    def record(self, stream: Any = None) -> DriverEvent:
        """Marks the end of what the stream was given so far."""
        self._device.enter()
        self._device.call("cuEventRecord", self.handle, stream or self._device.stream)
        return self

    def synchronize(self) -> None:
        """Waits until the stream has come here."""
        self._device.enter()
        self._device.call("cuEventSynchronize", self.handle)

    def done(self) -> bool:
        """Whether the stream has come here already; does not wait."""
        self._device.enter()
        driver = self._device.driver
        (status,) = driver.cuEventQuery(self.handle)
        if status == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        if status:
            raise self._device.error("cuEventQuery", status)
        return True

    def hold(self, stream: Any) -> None:
        """Lets a stream's later work wait for this point; the host goes on."""
        self._device.enter()
        self._device.call("cuStreamWaitEvent", stream, self.handle, 0)

    def microseconds_since(self, start: DriverEvent) -> float:
        """The time between two recorded points; waits for this one."""
        self.synchronize()
        return 1e3 * float(self._device.call("cuEventElapsedTime", start.handle, self.handle))

    def __del__(self) -> None:
        self._device.destroy("cuEventDestroy", getattr(self, "handle", None))
