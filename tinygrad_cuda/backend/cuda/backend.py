"""The GPU as a device: generated text through NVRTC, launched on the compute stream."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.backend.base import BadIndex, Program
from tinygrad_cuda.backend.cuda import runtime
from tinygrad_cuda.backend.cuda.arena import Piece
from tinygrad_cuda.backend.cuda.compiler import REPORT, compile_source, resources
from tinygrad_cuda.backend.cuda.executable import CudaExecutable
from tinygrad_cuda.backend.cuda.frame import Frame, bad_index
from tinygrad_cuda.backend.cuda.pack import Launch
from tinygrad_cuda.backend.cuda.replay import Label, Replay
from tinygrad_cuda.backend.cuda.report import LANES, Roof, taken
from tinygrad_cuda.backend.cuda.template import THREADS
from tinygrad_cuda.backend.cuda.timing import times
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape

ERROR_BYTES = 32
ERROR_SLOTS = 16  # plans with index checks that may be under way without a look at their outcome

Array = np.ndarray[Any, Any]


class CudaBackend:
    """One GPU.

    Raises:
        DeviceError: there is no usable GPU of this number.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.gpu = runtime.device(device.index)
        self.error = self.gpu.allocate(ERROR_BYTES)
        self.gpu.fill(self.error.address, ERROR_BYTES)
        gpu = self.gpu.properties
        # A multiplication and an addition a clock in each lane.
        flops = 2.0 * LANES * gpu.multiprocessors * gpu.clock_hz
        self.roof: Roof | None = Roof(gpu.bandwidth, flops)
        self._copies = _ErrorCopies(self.gpu)

    # The backend

    def from_host(self, array: Array) -> runtime.Allocation:
        allocation = self.gpu.allocate(array.nbytes)
        self.gpu.copy_in(allocation.address, np.ascontiguousarray(array))
        return allocation

    def to_host(self, storage: runtime.Allocation | Piece, shape: Shape, dtype: DType) -> Array:
        array = np.empty(shape, dtype.numpy)
        self.gpu.copy_out(storage.address, array.reshape(-1).view(np.uint8))
        return array

    def compile(self, program: Program) -> CudaExecutable:
        return CudaExecutable(program, self)

    def synchronize(self) -> None:
        self.gpu.synchronize()

    def take_error(self, wait: bool = True) -> BadIndex | None:
        error = self._copies.look(wait)
        if error is not None:
            self.gpu.fill(self.error.address, ERROR_BYTES)
            self._copies.forget()
        return error

    # The machine under the executable

    def allocate(self, nbytes: int) -> runtime.Allocation:
        return self.gpu.allocate(nbytes)

    def reuse(self, wanted: Sequence[tuple[int, int]]) -> Sequence[runtime.Allocation | None]:
        return self.gpu.pool.reuse(wanted)

    def part(self, memory: runtime.Allocation, offset: int, nbytes: int) -> Piece:
        return Piece(memory.address + offset, nbytes)

    def arena(self, nbytes: int) -> runtime.Allocation:
        return self.gpu.arena(nbytes)

    def load(self, source: str) -> runtime.Module:
        report = settings.debug >= 5
        binary = compile_source(source, self.gpu.properties.arch, REPORT if report else ())
        if report:
            for name, used in resources(binary.log).items():
                print(taken(name, used))
        return self.gpu.load(binary.cubin)

    def launch(
        self,
        unit: runtime.Module,
        launch: Launch,
        words: bytes,
        touched: list[Any],
        fresh: list[Any],
    ) -> None:
        function = unit.function(launch.name)
        self.gpu.launch(function, launch.blocks, THREADS, launch.shared, words, Label(launch))

    def order(self, after: Sequence[tuple[int, ...]]) -> Sequence[int]:
        return range(len(after))

    def replay(
        self,
        unit: runtime.Module,
        launches: Sequence[Launch],
        after: Sequence[tuple[int, ...]],
        frame: Frame,
    ) -> Replay:
        return Replay(self.gpu, unit, launches, after, frame)

    def copy(self, target: runtime.Allocation, source: runtime.Allocation) -> None:
        self.gpu.copy(target.address, source.address, source.nbytes)

    def watch_error(self, codes: Sequence[int]) -> None:
        self._copies.add(self.error.address, codes)

    def timed(self, work: Sequence[Callable[[], None]]) -> Sequence[float]:
        return times(self.gpu, work)


class _ErrorCopies:
    """Copies of the error word in host memory, each behind a plan that may have set it."""

    def __init__(self, gpu: runtime.Device) -> None:
        self.gpu = gpu
        self.memory = int(gpu.call("cuMemHostAlloc", ERROR_BYTES * ERROR_SLOTS, 0))
        self.slots = [
            (ctypes.c_longlong * 4).from_address(self.memory + ERROR_BYTES * slot)
            for slot in range(ERROR_SLOTS)
        ]
        self.events = [runtime.Event(gpu, timing=False) for _ in range(ERROR_SLOTS)]
        self.free = list(range(ERROR_SLOTS))
        self.pending: deque[tuple[int, Sequence[int]]] = deque()
        self.found: BadIndex | None = None

    def add(self, address: int, codes: Sequence[int]) -> None:
        """Copies the word as it will be when all work so far is done."""
        if not self.free:
            self.events[self.pending[0][0]].synchronize()
            self._take()
        slot = self.free.pop()
        target = self.memory + ERROR_BYTES * slot
        self.gpu.call("cuMemcpyDtoHAsync", target, address, ERROR_BYTES, self.gpu.stream)
        self.events[slot].record()
        self.pending.append((slot, codes))

    def look(self, wait: bool) -> BadIndex | None:
        """The first error among the copies that have arrived, or None."""
        if wait and self.pending:
            self.events[self.pending[-1][0]].synchronize()
        while self.pending and self.found is None:
            if not (wait or self.events[self.pending[0][0]].done()):
                break
            self._take()
        return self.found

    def _take(self) -> None:
        """Reads the oldest copy, which has arrived."""
        slot, codes = self.pending.popleft()
        self.free.append(slot)
        if self.slots[slot][0] and self.found is None:
            self.found = bad_index(list(self.slots[slot]), codes)

    def forget(self) -> None:
        """What is under way would report the same error again."""
        self.found = None
        while self.pending:
            slot, _ = self.pending.popleft()
            self.events[slot].synchronize()
            self.free.append(slot)
