"""The GPU as a device: generated text through NVRTC, launched on the compute stream."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import xor
from typing import Any

import numpy as np

from tinygrad_cuda.backend.base import LINE, BadIndex
from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.backend.cuda.compiler import (
    REPORT,
    Binary,
    architecture_of,
    compile_many,
    kernel_names,
    resources,
    taken,
)
from tinygrad_cuda.backend.cuda.graphs.graph_replay import Label, Replay
from tinygrad_cuda.backend.cuda.graphs.multi_run_replay import MultiRunGraph
from tinygrad_cuda.backend.cuda.handles import LoadedCall, LoadedKernels
from tinygrad_cuda.backend.cuda.libraries.cublas import CublasLt, installed
from tinygrad_cuda.backend.cuda.libraries.cudnn import Cudnn
from tinygrad_cuda.backend.cuda.libraries.cufft import Cufft
from tinygrad_cuda.backend.cuda.raw_kernel import LoadedRawKernel
from tinygrad_cuda.backend.cuda.timing import times
from tinygrad_cuda.backend.cuda.transfer.async_copy import SMALLEST, AsyncCopier, AsyncCopy
from tinygrad_cuda.backend.cuda.transfer.pinned import Pinned
from tinygrad_cuda.backend.cuda.transfer.pinned_ring import Staged, from_pinned
from tinygrad_cuda.backend.cuda.transfer.prefetch import Prefetch, Prefetcher
from tinygrad_cuda.backend.cuda.tuner import cold_time
from tinygrad_cuda.backend.launch.executable import Graphs, LoweredExecutable
from tinygrad_cuda.backend.launch.launch_params import bad_index
from tinygrad_cuda.backend.launch.raw_text import RawText
from tinygrad_cuda.backend.launch.report import Roofline
from tinygrad_cuda.backend.launch.tuner import OFF, Tuner
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.core.observer import DTOH, HTOD, watched
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.lowering.codegen.library_call import (
    LibraryAttention,
    LibraryCall,
    LibraryConvolution,
    LibraryTransform,
)
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch
from tinygrad_cuda.lowering.codegen.skeleton import TensorMap
from tinygrad_cuda.lowering.lower import Lowered
from tinygrad_cuda.lowering.schedule.arena import ArenaPiece
from tinygrad_cuda.lowering.target import Target, traffic_of
from tinygrad_cuda.lowering.tuning_table import Tuned

ERROR_BYTES = 64  # bytes: the error word's four words of 8, the address of the host's, and room
POISON = 0xFF  # a byte: NaN in floats, -1 in signed integers
HOST_MAPPED = 2  # CU_MEMHOSTALLOC_DEVICEMAP: kernels may write it
UPLOADS, UPLOAD_SIZES = 4, 256  # recent addresses of uploads for each size; sizes
RUNS_REMEMBERED = 1024  # programs with index checks that may be in flight

Array = np.ndarray[Any, Any]


class CudaBackend:
    """One GPU.

    Raises:
        DeviceError: there is no usable GPU of this number.
    """

    staged: type = Staged
    writes_in_place = True  # raw kernels, where nobody else reads the value

    def __init__(self, device: Device) -> None:
        self.device = device
        self.gpu = driver.device(device.index)
        self._lock = new_lock()
        self._uploads: dict[int, deque[int]] = {}  # addresses of recent ones by size, oldest first
        self._prefetcher: Prefetcher | None = None
        self._cublas: CublasLt | None = None
        self._cudnn: Cudnn | None = None
        self._cufft: Cufft | None = None
        self.pinned, self.copier = Pinned(self.gpu), AsyncCopier(self.gpu)
        self._mirror = _ErrorMirror(self.gpu)
        self.error = self._mirror.word
        # Every step looks at it and is watched by it.
        self.take_error, self.watch_error = self._mirror.look, self._mirror.watch
        self.arena = self.gpu.arena
        gpu = self.gpu.properties
        self.target = Target.of_gpu(
            gpu.name, gpu.capability, gpu.multiprocessors, gpu.shared_bytes,
            gpu.multiprocessor_shared_bytes, gpu.l2_bytes,
            traffic_of(gpu.bandwidth, gpu.clock_hz),
        )  # fmt: skip
        # A multiplication and an addition a clock in each lane.
        flops = 2.0 * self.target.lanes * gpu.multiprocessors * gpu.clock_hz
        self.roofline: Roofline | None = Roofline(gpu.bandwidth, flops)
        self.graphs: Graphs | None = Graphs(
            partial(Replay, self.gpu), partial(MultiRunGraph, self.gpu)
        )
        self.tuner = Tuner(self)
        self.tuner.switch(settings.tune)

    # The backend

    def from_host(
        self, array: Array, observed: bool = False
    ) -> driver.Allocation | Staged | AsyncCopy:
        if watched.observer is not None and not observed:
            with watched.observer.span("copy", HTOD, array.nbytes):
                return self.from_host(array, True)
        entry = self.pinned.entry(id(array))
        if entry is None or entry[0]() is not array:
            return self.gpu.stage(np.ascontiguousarray(array), self._for_upload)
        nbytes = array.nbytes
        if nbytes >= SMALLEST:
            return self.copier.send(array, entry[1])
        ring = self.gpu.pinned_ring or self.gpu.ring()
        return from_pinned(ring, array, entry[1], nbytes, self._for_upload)

    def adopt(self, address: int, nbytes: int, owner: object) -> Adopted:
        """Memory of another library as the storage of a value."""
        return Adopted(address, nbytes, owner, self.gpu.synchronize)

    def upload(self, array: Array) -> Prefetch:
        """Starts to copy an array on a stream of its own; see `Prefetcher.start`."""
        if self._prefetcher is None:
            self._prefetcher = Prefetcher(self.gpu)
        return self._prefetcher.start(array)

    def _for_upload(self, nbytes: int) -> driver.Allocation:
        """Memory of an earlier upload of that size, if it is free: graphs hold its address.

        The oldest first, so that several arrays of one size have equal addresses in each step.
        """
        with self._lock:
            addresses = self._uploads.get(nbytes)
            if addresses is None:
                if len(self._uploads) >= UPLOAD_SIZES:
                    self._uploads.clear()
                addresses = self._uploads[nbytes] = deque(maxlen=UPLOADS)
            for number, address in enumerate(addresses):
                memory = self.gpu.pool.reuse(nbytes, address)
                if memory is not None:
                    del addresses[number]
                    addresses.append(address)
                    return memory
            memory = self.gpu.allocate(nbytes)
            if memory.address not in addresses:
                addresses.append(memory.address)
            return memory

    def to_host(self, storage: driver.Allocation | ArenaPiece, shape: Shape, dtype: DType) -> Array:
        if watched.observer is None:
            return self._to_host(storage, shape, dtype)
        with watched.observer.span("copy", DTOH, storage.nbytes):
            return self._to_host(storage, shape, dtype)

    def _to_host(
        self, storage: driver.Allocation | ArenaPiece, shape: Shape, dtype: DType
    ) -> Array:
        array = np.empty(shape, dtype.numpy)
        self.gpu.copy_out(storage.address, array.reshape(-1).view(np.uint8))
        return array

    def compile(self, program: Program) -> LoweredExecutable:
        lowered = self.tuner.lowered(program) if self.tuner.mode != OFF else None
        return LoweredExecutable(program, self, lowered)

    def synchronize(self) -> None:
        self.gpu.synchronize()

    def raw_kernel(self, text: RawText) -> LoadedRawKernel:
        """A kernel of the user's, compiled and loaded."""
        return LoadedRawKernel(text, self.gpu)

    def copy_of(self, storage: Any, nbytes: int) -> driver.Allocation:
        """The first bytes of a storage in memory of their own."""
        memory = self.gpu.allocate(nbytes)
        self.gpu.copy(memory.address, storage.address, nbytes)
        return memory

    def memory_in_use(self) -> int:
        """Bytes that tensors, plans and parameters hold, in whole size classes."""
        return self.gpu.memory_allocated()

    def tune(self, mode: str) -> None:
        """Chooses kernels by the model of time, or by what was measured."""
        self.tuner.switch(mode)

    def tuned(self) -> list[Tuned]:
        """The measured choices."""
        return list(self.tuner.table.entries.values())

    # The machine under the executable

    def allocate(self, nbytes: int) -> driver.Allocation:
        return self.gpu.allocate(nbytes)

    def write(self, memory: driver.Allocation, data: bytes) -> None:
        self.gpu.copy_in(memory.address, np.frombuffer(data, np.uint8))

    def stage(self, data: bytes) -> Staged | driver.Allocation:
        return self.gpu.stage(np.frombuffer(data, np.uint8), self.gpu.allocate)

    def take(self, nbytes: int, address: int) -> driver.Allocation:
        return self.gpu.pool.take(nbytes, address)

    def reuse(self, nbytes: int, address: int, other: int = 0) -> driver.Allocation | None:
        return self.gpu.pool.reuse(nbytes, address, other)

    def together(self, sizes: tuple[int, ...], address: int) -> list[driver.Allocation] | None:
        return self.gpu.pool.together(sizes, address)

    def joined(self, pieces: Sequence[driver.Allocation]) -> ArenaPiece:
        return ArenaPiece(pieces[0].address, sum(piece.nbytes for piece in pieces))

    def part(self, memory: driver.Allocation, offset: int, nbytes: int) -> ArenaPiece:
        return ArenaPiece(memory.address + offset, nbytes)

    def precompile(self, lowered: Lowered) -> None:
        """Compiles what `load` will ask for."""
        self._compiled(lowered.units())

    def poison(self, memory: driver.Allocation) -> None:
        """Fills memory with NaN, or with the largest numbers."""
        self.gpu.fill(memory.address, memory.nbytes, POISON)

    def installed(self) -> dict[str, str]:
        """Libraries whose bindings are there, with their versions."""
        return installed()

    def measured(self, run: Callable[[], None], name: str) -> float:
        """The microseconds of a run with a cold L2 cache."""
        return cold_time(self.gpu, run)

    def _compiled(self, units: Sequence[str], options: tuple[str, ...] = ()) -> list[Binary]:
        own = self.gpu.properties.arch
        arch = max((architecture_of(unit, own) for unit in units), default=own)
        return compile_many(units, arch, options) if units else []

    def load(self, lowered: Lowered) -> LoadedKernels:
        report = settings.debug >= 5
        units = lowered.units()
        binaries = self._compiled(units, REPORT if report else ())
        if report:
            for binary in binaries:
                for name, used in resources(binary.log).items():
                    print(taken(name, used))
        return LoadedKernels(
            {
                name: self.gpu.load(binary.cubin)
                for binary, unit in zip(binaries, units)
                for name in kernel_names(unit)
            },
            {
                launch.name: self._call(launch.library)
                for launch in lowered.launches
                if launch.library is not None
            },
        )

    def _call(self, call: LibraryCall) -> LoadedCall:
        """A library's call ready to run; libraries are loaded when a plan first needs them."""
        if isinstance(call, LibraryTransform):
            if self._cufft is None:
                self._cufft = Cufft(self.gpu)
            return self._cufft.transform(call)
        if isinstance(call, LibraryConvolution | LibraryAttention):
            if self._cudnn is None:
                self._cudnn = Cudnn(self.gpu)
            return self._cudnn.graph(call)
        if self._cublas is None:
            self._cublas = CublasLt(self.gpu)
        return self._cublas.product(call)

    def launch(
        self,
        unit: LoadedKernels,
        launch: PackedLaunch,
        words: bytes,
        touched: list[Any],
        fresh: list[Any],
    ) -> None:
        if launch.together:
            function = unit.function(launch.name)
            function.prepare(len(words), launch.shared)
            function.require_together(launch.blocks, launch.threads, launch.shared)
        sizes = launch.blocks, launch.threads, launch.shared
        self.gpu.launch_named(unit, launch.name, sizes, words, Label(launch))

    def tensor_map(self, tensor: TensorMap, address: int) -> bytes:
        return self.gpu.tensor_map(tensor, address)

    def order(self, after: Sequence[tuple[int, ...]]) -> Sequence[int]:
        return range(len(after))

    def copy(self, target: driver.Allocation, source: driver.Allocation) -> None:
        self.gpu.copy(target.address, source.address, source.nbytes)

    def timed(self, work: Sequence[Callable[[], None]]) -> Sequence[float]:
        return times(self.gpu, work)


class Adopted:
    """Memory of another library on this GPU, which nobody here writes.

    Args:
        owner: keeps the memory; let go when all work that may read it is done.
        wait: for that work.
    """

    __slots__ = ("address", "nbytes", "_owner", "_wait", "__weakref__")

    def __init__(self, address: int, nbytes: int, owner: object, wait: Callable[[], None]) -> None:
        self.address, self.nbytes, self._owner, self._wait = address, nbytes, owner, wait

    def __del__(self) -> None:
        with suppress(Exception):  # at exit the driver may be gone before
            self._wait()


class _ErrorMirror:
    """The error word's copy in host memory, which a kernel with a bad index writes.

    So a look costs no call of the driver, and what follows a clean run waits for nothing.

    Args:
        gpu: whose kernels write it.
    """

    def __init__(self, gpu: driver.DeviceHandle) -> None:
        self.gpu = gpu
        self.word = gpu.allocate(ERROR_BYTES)
        self.address = int(gpu.call("cuMemHostAlloc", ERROR_BYTES, HOST_MAPPED))
        self.words = (ctypes.c_longlong * 4).from_address(self.address)
        self.clear()
        there = np.array([self.address], np.uint64)
        gpu.copy_in(self.word.address + 4 * there.itemsize, there)
        # Of runs that may be under way: the first code of a program, what its codes stand for.
        self.runs: dict[int, Sequence[int]] = {}
        self.error: BadIndex | None = None

    def clear(self) -> None:
        ctypes.memset(self.address, 0, ERROR_BYTES)
        self.gpu.fill(self.word.address, 4 * 8)

    def watch(self, first: int, codes: Sequence[int]) -> None:
        """A run begins whose checks have these codes."""
        before = self.runs.get(first)
        if before is codes:
            return
        if before is None:
            if len(self.runs) >= RUNS_REMEMBERED:
                self.error = self.look(wait=True)
        elif before != codes and max(map(xor, before, codes), default=0) >> LINE:
            # The same program from other lines: an error of the earlier run must not be theirs.
            self.error = self.look(wait=True)
        self.runs[first] = codes

    def look(self, wait: bool = True) -> BadIndex | None:
        """The first error since the last look, or None."""
        if self.error is not None:
            error, self.error = self.error, None
            return error
        if wait and self.runs:
            self.gpu.synchronize()
        if not self.words[0]:
            if wait:
                self.runs.clear()
            return None
        self.gpu.synchronize()  # what is under way writes no more, and all words are there
        error = bad_index(list(self.words), self.runs)
        self.runs.clear()
        self.clear()
        return error
