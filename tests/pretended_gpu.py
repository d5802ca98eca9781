"""A CUDA driver in Python, for machines without one: the emulator runs the kernels.

Work is done as late as CUDA allows: a stream runs when something waits for it, the kernels of a
graph run in any order that its edges permit, and freed memory is gone. So code that reads, writes
or frees too early fails each time.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import re
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import backend, compiler, raw_kernel, timing
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.backend.cuda.graphs import graph_replay as replay
from tinygrad_cuda.backend.cuda.libraries.library import Library
from tinygrad_cuda.backend.emu import runtime as emulator
from tinygrad_cuda.backend.emu.backend import new_buffer
from tinygrad_cuda.backend.emu.raw_kernel import EmulatedRawKernel
from tinygrad_cuda.backend.emu.tensor_map import tensor_map
from tinygrad_cuda.backend.launch.raw_text import RawLaunch, raw_text
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.replay.guards import discovery, watch

# A driver and its libraries are no code of a compiled function's program, and read any memory.
for guards in (discovery, watch):
    guards.LIBRARIES = (*guards.LIBRARIES, str(Path(__file__).with_name("pretended_")))

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 1,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "L2_CACHE_SIZE": 50 << 20,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
    "CLOCK_RATE": 1_000_000,
    "MEMORY_CLOCK_RATE": 1_000_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 1024,
    "MEMORY_POOLS_SUPPORTED": 1,
}
MEMORY = 1 << 30  # bytes of the card


class Ticket:
    """A point in a stream's work, which an event marks."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.time = stream, -1

    @property
    def done(self) -> bool:
        return self.time >= 0


class Stream:
    """Work in order."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.captured: list[Callable[[], None]] | None = None  # while it is being captured

    def give(self, work: Callable[[], None]) -> None:
        """Work of a library, which has no kernel here."""
        (self.waiting if self.captured is None else self.captured).append(work)

    def __int__(self) -> int:
        return id(self)  # a handle, as the driver's

    def step(self) -> None:
        self.waiting.popleft()()

    def run(self) -> None:
        while self.waiting:
            self.step()

    def run_to(self, ticket: Ticket) -> None:
        while not ticket.done:
            self.step()


class Kernel:
    """A kernel of a module of generated text, or one of the two that are no generated text."""

    def __init__(self, source: str, name: str) -> None:
        self.name = name
        self.module = (
            None if name in ("tgc_fetch", "tgc_delay") else emulator.EmulatedModule(source)
        )
        self.parameter_bytes = 8 if name == "tgc_delay" else 464
        if self.module is not None:
            launch = emulator._Launch(
                word_count=-1, machine=emulator._machine(self.module._library)
            )
            self.module._kernel(name)(ctypes.byref(launch))
            self.parameter_bytes = int(launch.error.first)

    def words(self, parameters: int) -> bytes:
        """The bytes of the one parameter."""
        pointer = ctypes.c_void_p.from_address(int(parameters)).value
        return ctypes.string_at(pointer, self.parameter_bytes)


class RawFunction:
    """A kernel of a user's text, whose parameters lie apart."""

    def __init__(self, source: str, name: str) -> None:
        text = raw_text(source, name)
        self.name, self.kernel = name, EmulatedRawKernel(text)
        self.sizes = [struct.calcsize(parameter.letter) for parameter in text.parameters]

    def arguments(self, parameters: int) -> tuple[bytes, ...]:
        """The bytes of each parameter, which the driver reads while it is called."""
        pointers = (ctypes.c_void_p * len(self.sizes)).from_address(int(parameters))
        return tuple(ctypes.string_at(p, size) for p, size in zip(pointers, self.sizes))


class Node:
    """A kernel node of a graph, with its parameters."""

    def __init__(self, parameters: Any, before: Sequence[Node]) -> None:
        p = parameters
        assert (p.gridDimY, p.gridDimZ, p.blockDimY, p.blockDimZ) == (1, 1, 1, 1)
        self.before = list(before)
        self.grid, self.block = parameters.gridDimX, parameters.blockDimX
        self.shared, self.kernel = parameters.sharedMemBytes, parameters.func
        self.words = self.kernel.words(parameters.kernelParams)


class ChildNode:
    """A graph inside a graph: what a library was captured doing, in its order."""

    def __init__(self, child: Any, before: Sequence[Any]) -> None:
        self.before, self.words = list(before), [*child.nodes]


class Driver:
    """The functions of `cuda.bindings.driver` that the package calls."""

    CUDA_KERNEL_NODE_PARAMS = CUlaunchConfig = CUgraphEdgeData = SimpleNamespace

    def __init__(self, **attributes: int) -> None:
        from cuda.bindings import driver

        self.attributes = ATTRIBUTES | attributes
        self.real = driver
        self.ok = driver.CUresult.CUDA_SUCCESS
        self.memory: dict[int, Any] = {}  # of the card, by address
        self.host: dict[int, Any] = {}  # pinned
        self.streams: list[Stream] = []
        self.modules: dict[int, str] = {}
        self.chance = random.Random(0)
        self.clock = 0
        self.launched: list[str] = []

    def __getattr__(self, name: str) -> Any:
        """Enumerations are the real ones; a function that is missing here is an error."""
        if name.startswith("cu"):
            raise AttributeError(f"the pretended driver has no {name}")
        return getattr(self.real, name)

    # The card

    def cuInit(self, flags: int) -> Any:
        return (self.ok,)

    def cuDeviceGet(self, index: int) -> Any:
        return self.ok, index

    def cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        return self.ok, "context"

    def cuCtxSetCurrent(self, context: Any) -> Any:
        return (self.ok,)

    def cuDeviceGetName(self, length: int, device: Any) -> Any:
        return self.ok, b"Pretended GPU\0".ljust(length, b"\0")

    def cuDeviceTotalMem(self, device: Any) -> Any:
        return self.ok, MEMORY

    def cuDeviceGetAttribute(self, kind: Any, device: Any) -> Any:
        return self.ok, self.attributes[kind.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuMemGetInfo(self) -> Any:
        return self.ok, MEMORY - self.used(), MEMORY

    def cuGetErrorString(self, status: Any) -> Any:
        return self.ok, status.name.lower().encode()

    def used(self) -> int:
        return sum(buffer.nbytes for buffer in self.memory.values())

    # Streams and events

    def cuStreamCreate(self, flags: int) -> Any:
        self.streams.append(Stream())
        return self.ok, self.streams[-1]

    def cuStreamBeginCapture(self, stream: Stream, mode: Any) -> Any:
        assert stream.captured is None and not stream.waiting
        stream.captured = []
        return (self.ok,)

    def cuStreamEndCapture(self, stream: Stream) -> Any:
        assert stream.captured is not None
        graph = SimpleNamespace(nodes=stream.captured)
        stream.captured = None
        return self.ok, graph

    def cuStreamSynchronize(self, stream: Stream) -> Any:
        stream.run()
        return (self.ok,)

    def cuStreamWaitEvent(self, stream: Stream, event: Any, flags: int) -> Any:
        ticket = event.ticket
        if ticket is not None:
            stream.waiting.append(lambda: ticket.stream.run_to(ticket))
        return (self.ok,)

    def cuEventCreate(self, flags: int) -> Any:
        return self.ok, SimpleNamespace(ticket=None)

    def cuEventDestroy(self, event: Any) -> Any:
        return (self.ok,)

    def cuEventRecord(self, event: Any, stream: Stream) -> Any:
        ticket = event.ticket = Ticket(stream)

        def reached() -> None:
            self.clock += 1000
            ticket.time = self.clock

        stream.waiting.append(reached)
        return (self.ok,)

    def cuEventSynchronize(self, event: Any) -> Any:
        if event.ticket is not None:
            event.ticket.stream.run_to(event.ticket)
        return (self.ok,)

    def cuEventQuery(self, event: Any) -> Any:
        """Whoever asks again and again sees the work go on."""
        ticket = event.ticket
        if ticket is None or ticket.done:
            return (self.ok,)
        ticket.stream.step()
        return (self.real.CUresult.CUDA_ERROR_NOT_READY,)

    def cuEventElapsedTime(self, start: Any, end: Any) -> Any:
        return self.ok, (end.ticket.time - start.ticket.time) / 1e6  # ms

    # Memory

    def cuMemAllocAsync(self, nbytes: int, stream: Stream) -> Any:
        if nbytes > MEMORY - self.used():
            return self.real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        buffer = new_buffer(nbytes)
        self.memory[buffer.address] = buffer
        return self.ok, buffer.address

    def cuMemFreeAsync(self, address: int, stream: Stream) -> Any:
        stream.waiting.append(lambda: self.memory.__delitem__(address))
        return (self.ok,)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> Any:
        buffer = new_buffer(-(-nbytes // 16) * 16)  # the kernel that fetches reads 16 at a time
        self.host[buffer.address] = buffer
        return self.ok, buffer.address

    def cuMemFreeHost(self, address: int) -> Any:
        self.host.pop(address).bytes.fill(0xFF)
        return (self.ok,)

    def cuPointerGetAttributes(self, count: int, kinds: Any, address: int) -> Any:
        return self.ok, [int(self.is_pinned(address))]

    def is_pinned(self, address: int) -> bool:
        return any(b.address <= address < b.address + b.nbytes for b in self.host.values())

    def inside(self, address: int, nbytes: int) -> int:
        """The address, if that many bytes of the card are there."""
        for buffer in self.memory.values():
            if buffer.address <= address and address + nbytes <= buffer.address + buffer.nbytes:
                return address
        raise AssertionError(f"{nbytes} bytes at {address:#x} are not the card's memory")

    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> Any:
        data = None if self.is_pinned(source) else ctypes.string_at(source, nbytes)

        def copy() -> None:
            if data is None and not self.is_pinned(source):
                raise AssertionError("a copy reads pinned memory that was freed")
            ctypes.memmove(self.inside(target, nbytes), data or source, nbytes)

        stream.waiting.append(copy)
        return (self.ok,)

    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> Any:
        stream.waiting.append(lambda: ctypes.memmove(target, self.inside(source, nbytes), nbytes))
        return (self.ok,)

    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> Any:
        stream.waiting.append(
            lambda: ctypes.memmove(self.inside(target, nbytes), self.inside(source, nbytes), nbytes)
        )
        return (self.ok,)

    def cuMemsetD8Async(self, target: int, byte: int, nbytes: int, stream: Stream) -> Any:
        stream.waiting.append(lambda: ctypes.memset(self.inside(target, nbytes), byte, nbytes))
        return (self.ok,)

    # Code

    def cuModuleLoadData(self, cubin: bytes) -> Any:
        return self.ok, cubin.decode()

    def cuModuleGetFunction(self, source: str, name: bytes) -> Any:
        own = name.startswith(b"tgc_")  # the package's, of one structure
        if not own and re.search(rf"__global__[^;{{]*\b{name.decode()}\(", source):
            return self.ok, RawFunction(source, name.decode())
        return self.ok, Kernel(source, name.decode())

    def cuFuncGetParamInfo(self, kernel: Any, index: int) -> Any:
        if isinstance(kernel, RawFunction):
            if index >= len(kernel.sizes):
                return self.real.CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0
            return self.ok, 0, kernel.sizes[index]
        return self.ok, 0, kernel.parameter_bytes

    def cuFuncSetAttribute(self, kernel: Kernel, kind: Any, value: int) -> Any:
        return (self.ok,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, kernel: Kernel, threads: int, shared: int
    ) -> Any:
        return self.ok, 2

    def cuTensorMapEncodeTiled(self, kind: Any, axes: int, address: int, *rest: Any) -> Any:
        shape, strides, box, apart, _, swizzle, *_ = rest
        sizes = [[int(n) for n in numbers] for numbers in (shape, strides, box)]
        assert len(shape) == axes and [int(n) for n in apart] == [1] * axes
        itemsize = 4 if kind.name.endswith("FLOAT32") else 2
        width = int("".join(filter(str.isdigit, swizzle.name)) or 0)
        words = tensor_map(address, itemsize, *sizes, width)
        return self.ok, SimpleNamespace(opaque=words.tolist())

    def cuTensorMapEncodeIm2col(self, kind: Any, axes: int, address: int, *rest: Any) -> Any:
        shape, strides, lower, upper, channels, count, steps, _, swizzle, *_ = rest
        sizes = [[int(n) for n in numbers] for numbers in (shape, strides, steps)]
        assert len(shape) == axes and sizes[2][0] == sizes[2][-1] == 1
        itemsize = 4 if kind.name.endswith("FLOAT32") else 2
        width = int("".join(filter(str.isdigit, swizzle.name)) or 0)
        pixels = (tuple(lower), tuple(upper), tuple(sizes[2][1:-1]))
        words = tensor_map(address, itemsize, *sizes[:2], (channels, count), width, pixels)
        return self.ok, SimpleNamespace(opaque=words.tolist())

    def cuLaunchKernel(self, kernel: Any, *rest: Any) -> Any:
        gx, gy, gz, bx, by, bz, shared, stream, parameters, extra = rest
        if isinstance(kernel, RawFunction):
            sizes, arguments = ((gx, gy, gz), (bx, by, bz)), kernel.arguments(parameters)
            stream.waiting.append(lambda: self.execute_raw(kernel, *sizes, shared, arguments))
            return (self.ok,)
        assert (gy, gz, by, bz, extra) == (1, 1, 1, 1, 0)
        words = kernel.words(parameters)
        stream.waiting.append(lambda: self.execute(kernel, gx, bx, shared, words))
        return (self.ok,)

    def execute_raw(
        self, kernel: RawFunction, grid: Any, block: Any, shared: int, arguments: Any
    ) -> None:
        self.launched.append(kernel.name)
        memory = tuple(self.memory.values())
        kernel.kernel.launch(RawLaunch(grid, block, shared, arguments, memory, None))

    def execute(self, kernel: Kernel, grid: int, block: int, shared: int, words: bytes) -> None:
        self.launched.append(kernel.name)
        self.clock += 1000
        numbers = np.frombuffer(words, np.uint64)
        if kernel.name == "tgc_delay":
            self.clock += int(numbers[0])
        elif kernel.name == "tgc_fetch":
            self.fetch(numbers, grid * block)
        else:
            pinned = [b for b in self.host.values() if b.nbytes <= backend.ERROR_BYTES]
            ranges = [(b.address, b.nbytes) for b in [*self.memory.values(), *pinned]]
            assert kernel.module is not None
            kernel.module.launch(kernel.name, grid, block, shared, numbers, ranges)

    def fetch(self, words: Any, threads: int) -> None:
        """What the kernel in fetch.cuh does: 16 bytes a thread of each array, then numbers."""
        for source, target, count in words[:24].reshape(8, 3).tolist():
            nbytes = 16 * min(count, threads)
            if nbytes:
                assert self.is_pinned(source) and self.is_pinned(source + nbytes - 1)
                ctypes.memmove(self.inside(target, nbytes), source, nbytes)
        target, count = words[24:26].tolist()
        if count:
            data = words[26 : 26 + min(count, threads)].tobytes()
            ctypes.memmove(self.inside(target, len(data)), data, len(data))

    # Graphs

    def cuGraphCreate(self, flags: int) -> Any:
        return self.ok, SimpleNamespace(nodes=[])

    def cuGraphDestroy(self, graph: Any) -> Any:
        return (self.ok,)

    def cuGraphAddKernelNode(self, graph: Any, before: Any, count: int, parameters: Any) -> Any:
        assert count == len(before)
        graph.nodes.append(Node(parameters, before))
        return self.ok, graph.nodes[-1]

    def cuGraphAddDependencies(
        self, graph: Any, before: Any, after: Any, edges: Any, count: int
    ) -> Any:
        assert count == len(before) == len(after) == len(edges) == 1
        assert edges[0].from_port == 1  # a plain edge comes with its node
        assert isinstance(before[0], Node) and isinstance(after[0], Node)  # both are kernels
        after[0].before.append(before[0])
        return (self.ok,)

    def cuGraphAddChildGraphNode(self, graph: Any, before: Any, count: int, child: Any) -> Any:
        assert count == len(before)
        graph.nodes.append(ChildNode(child, before))
        return self.ok, graph.nodes[-1]

    def cuGraphExecChildGraphNodeSetParams(self, executable: Any, node: Any, child: Any) -> Any:
        assert len(child.nodes) == len(executable.words[node])  # the same kernels
        executable.words[node] = [*child.nodes]
        return (self.ok,)

    def cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        return self.ok, SimpleNamespace(words={n: n.words for n in graph.nodes})

    def cuGraphUpload(self, executable: Any, stream: Stream) -> Any:
        return (self.ok,)

    def cuGraphExecKernelNodeSetParams(self, executable: Any, node: Node, parameters: Any) -> Any:
        executable.words[node] = Node(parameters, ()).words
        return (self.ok,)

    def cuGraphExecDestroy(self, executable: Any) -> Any:
        return (self.ok,)

    def cuGraphLaunch(self, executable: Any, stream: Stream) -> Any:
        words = dict(executable.words)

        def run() -> None:
            done: set[Any] = set()
            while len(done) < len(words):
                ready = [n for n in words if n not in done and done.issuperset(n.before)]
                node = self.chance.choice(ready)
                if isinstance(node, ChildNode):
                    for work in words[node]:
                        work()
                else:
                    self.execute(node.kernel, node.grid, node.block, node.shared, words[node])
                done.add(node)

        stream.waiting.append(run)
        return (self.ok,)


@contextlib.contextmanager
def pretended_gpu(alone: bool = True, **attributes: int) -> Iterator[Driver]:
    """Device ``cuda`` is the pretended GPU inside, without libraries; nothing stays of it.

    Args:
        alone: it is lowered for as the emulator is, whose blocks run one after the other.
        attributes: of the device, by the end of the driver's names.
    """
    device, driver = as_device("cuda"), Driver(**attributes)
    gate = runtime._Gate()
    gate.tried, gate.driver, gate.count = True, driver, 1

    def compiled(source: str, arch: str, options: tuple[str, ...] = ()) -> compiler.Binary:
        return compiler.Binary(source.encode(), arch, str(hash(source)), "", cached=False)

    def bindings(op: str = "") -> Any:
        raise Library.absent(op, "a library of the machine's would write to pretended addresses")

    plans.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "_gate", gate)
        patch.setattr(Library, "bindings", staticmethod(bindings))
        for module in (replay, timing, raw_kernel):
            patch.setattr(module, "compile_source", compiled)
        patch.setattr(
            backend, "compile_many", lambda sources, *given: [compiled(s, *given) for s in sources]
        )
        patch.delitem(registry._backends, device, raising=False)
        made: Any = registry.get(device)
        if alone:
            made.target = Target.emu()
        try:
            yield driver
        finally:
            made.gpu.synchronize()
            plans.clear()
            del registry._backends[device]


__all__ = ["pretended_gpu", "Driver"]
