"""The emulator as a device: generated CUDA text, compiled and executed on the CPU.

For correctness, never for speed: every access is checked, fresh memory is poisoned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from tinygrad_cuda.backend.base import BadIndex
from tinygrad_cuda.backend.emu.compiler import compile_source, toolchain
from tinygrad_cuda.backend.emu.raw_kernel import EmulatedRawKernel
from tinygrad_cuda.backend.emu.runtime import EmulatedModule
from tinygrad_cuda.backend.emu.tensor_map import tensor_map
from tinygrad_cuda.backend.launch.executable import Graphs, LoweredExecutable
from tinygrad_cuda.backend.launch.launch_params import bad_index
from tinygrad_cuda.backend.launch.raw_text import RawText
from tinygrad_cuda.backend.launch.report import Roofline
from tinygrad_cuda.backend.launch.tuner import OFF, Tuner
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.observer import DTOH, HTOD, watched
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch
from tinygrad_cuda.lowering.codegen.skeleton import TensorMap
from tinygrad_cuda.lowering.lower import Lowered
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.lowering.tuning_table import Tuned

ALIGNMENT = 256  # as a GPU's allocator gives it
POISON = 0xFF  # a byte: NaN in floats, -1 in signed integers
REPEATS = 3  # of a run whose time is taken

Array = np.ndarray[Any, Any]


class EmuBuffer:
    """Memory of the emulated device, or a part of it."""

    __slots__ = ("bytes", "address", "nbytes", "counter", "__weakref__")

    def __init__(self, data: Array) -> None:
        self.bytes = data
        self.address = data.ctypes.data
        self.nbytes = data.nbytes
        self.counter: EmuMemory | None = None  # of whole pieces

    def __del__(self) -> None:
        # No weak reference: memory that has one is not recycled.
        if self.counter is not None:
            self.counter.drop(self.nbytes)


class EmuMemory:
    """Counts what the emulated devices hold.

    Attributes:
        allocated: bytes in use.
        peak: the most at once since the start or `reset_peak`.
    """

    def __init__(self) -> None:
        self.allocated = self.peak = 0

    def add(self, buffer: EmuBuffer) -> None:
        """A new buffer, counted until it dies."""
        self.allocated += buffer.nbytes
        self.peak = max(self.peak, self.allocated)
        buffer.counter = self

    def reset_peak(self) -> None:
        """Restarts `peak` from what is in use now."""
        self.peak = self.allocated

    def drop(self, nbytes: int) -> None:
        """A counted buffer has died."""
        self.allocated -= nbytes


memory = EmuMemory()


def new_buffer(nbytes: int, fill: int = POISON) -> EmuBuffer:
    """Fresh memory, every byte of it `fill`."""
    buffer = _uncounted(nbytes, fill)
    memory.add(buffer)
    return buffer


def _uncounted(nbytes: int, fill: int = POISON) -> EmuBuffer:
    padded = np.full(nbytes + ALIGNMENT, fill, np.uint8)
    offset = -padded.ctypes.data % ALIGNMENT
    return EmuBuffer(padded[offset : offset + nbytes])


class EmuBackend:
    """A device that runs CUDA text on the CPU.

    Raises:
        DeviceError: the machine has no C++ compiler.
    """

    staged: type = type(None)  # nothing waits on the host
    writes_in_place = False  # a raw kernel with a fault has changed nothing
    graphs: Graphs | None = None  # what a launch costs here is the kernel itself

    def __init__(self, device: Device) -> None:
        toolchain()
        self.device = device
        self.error = new_buffer(64, 0)
        self.target = Target.emu()
        self.roofline: Roofline | None = None
        self._arena = new_buffer(0)
        self._runs: dict[int, Sequence[int]] = {}  # the one that has set the error word
        self.tuner = Tuner(self)
        self.tuner.switch(settings.tune)

    # The backend

    def from_host(self, array: Array) -> EmuBuffer:
        if watched.observer is None:
            return self._from_host(array)
        with watched.observer.span("copy", HTOD, array.nbytes):
            return self._from_host(array)

    def _from_host(self, array: Array) -> EmuBuffer:
        buffer = new_buffer(array.nbytes)
        buffer.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer

    def to_host(self, storage: EmuBuffer, shape: Shape, dtype: DType) -> Array:
        if watched.observer is None:
            return self._to_host(storage, shape, dtype)
        with watched.observer.span("copy", DTOH, storage.nbytes):
            return self._to_host(storage, shape, dtype)

    def _to_host(self, storage: EmuBuffer, shape: Shape, dtype: DType) -> Array:
        array: Array = storage.bytes.copy().view(dtype.numpy).reshape(shape)
        return array

    def compile(self, program: Program) -> LoweredExecutable:
        lowered = self.tuner.lowered(program) if self.tuner.mode != OFF else None
        return LoweredExecutable(program, self, lowered)

    def synchronize(self) -> None:
        """A launch has ended when it returns."""

    def take_error(self, wait: bool = True) -> BadIndex | None:
        words = self.error.bytes.view(np.int64).tolist()
        if not words[0]:
            return None
        self.error.bytes.fill(0)
        runs, self._runs = self._runs, {}
        return bad_index(words[:4], runs)

    def raw_kernel(self, text: RawText) -> EmulatedRawKernel:
        """A kernel of the user's, compiled."""
        return EmulatedRawKernel(text)

    def copy_of(self, storage: EmuBuffer, nbytes: int) -> EmuBuffer:
        """The first bytes of a storage in memory of their own."""
        memory = new_buffer(nbytes)
        memory.bytes[:] = storage.bytes[:nbytes]
        return memory

    def memory_in_use(self) -> int:
        """Bytes that all emulated devices hold."""
        return memory.allocated

    def tune(self, mode: str) -> None:
        """Chooses kernels by the model of time, or by what was measured."""
        self.tuner.switch(mode)

    def tuned(self) -> list[Tuned]:
        """The measured choices."""
        return list(self.tuner.table.entries.values())

    # The machine under the executable

    def allocate(self, nbytes: int) -> EmuBuffer:
        return new_buffer(nbytes)

    def write(self, memory: EmuBuffer, data: bytes) -> None:
        memory.bytes[: len(data)] = np.frombuffer(data, np.uint8)

    def stage(self, data: bytes) -> EmuBuffer:
        """Memory with these bytes: nothing waits on the host."""
        return self.from_host(np.frombuffer(data, np.uint8))

    def take(self, nbytes: int, address: int) -> EmuBuffer:
        """Outputs are always new memory, every byte of it poisoned."""
        return new_buffer(nbytes)

    def reuse(self, nbytes: int, address: int, other: int = 0) -> None:
        """Nothing is ever given out again."""

    def together(self, sizes: tuple[int, ...], address: int) -> list[EmuBuffer]:
        """New memory, each piece checked and counted by itself."""
        whole = _uncounted(sum(sizes))
        starts = accumulate(sizes, initial=0)
        pieces = [self.part(whole, start, size) for start, size in zip(starts, sizes)]
        for piece in pieces:
            memory.add(piece)
        return pieces

    def joined(self, pieces: Sequence[EmuBuffer]) -> EmuBuffer:
        owner: Any = pieces[0].bytes.base  # of all of them
        start = pieces[0].address - owner.ctypes.data
        return EmuBuffer(owner[start : start + sum(piece.nbytes for piece in pieces)])

    def part(self, memory: EmuBuffer, offset: int, nbytes: int) -> EmuBuffer:
        return EmuBuffer(memory.bytes[offset : offset + nbytes])

    def arena(self, nbytes: int) -> EmuBuffer:
        if self._arena.nbytes < nbytes:
            self._arena = new_buffer(0)  # the old one goes before the new one comes
            self._arena = new_buffer(nbytes)
        self._arena.bytes[:nbytes].fill(POISON)  # what the last run left must not look right
        return self._arena

    def load(self, lowered: Lowered) -> EmulatedModule:
        return EmulatedModule(lowered.source)

    def copy(self, target: EmuBuffer, source: EmuBuffer) -> None:
        target.bytes[:] = source.bytes

    def watch_error(self, first: int, codes: Sequence[int]) -> None:
        """The word is looked at directly; its codes are those of the run that wrote it."""
        if not self._runs and self.error.bytes.any():
            self._runs[first] = codes

    def timed(self, work: Sequence[Callable[[], None]]) -> Sequence[None]:
        """Does the work; the emulator's times say nothing about a GPU."""
        for launch in work:
            launch()
        return [None] * len(work)

    def precompile(self, lowered: Lowered) -> None:
        """Compiles what `load` will ask for."""
        compile_source(lowered.source)

    def poison(self, memory: EmuBuffer) -> None:
        memory.bytes.fill(POISON)

    def installed(self) -> dict[str, str]:
        """No library multiplies here."""
        return {}

    def measured(self, run: Callable[[], None], name: str) -> float:
        """Of a run here, which says little about a GPU; a test may put another clock here."""
        spans = []
        for _ in range(REPEATS):
            start = perf_counter()
            run()
            spans.append(perf_counter() - start)
        return 1e6 * median(spans)

    def tensor_map(self, tensor: TensorMap, address: int) -> bytes:
        words = tensor_map(
            address + tensor.offset, tensor.node.dtype.itemsize, tensor.shape, tensor.strides,
            tensor.box, tensor.swizzle, tensor.pixels,
        )  # fmt: skip
        return words.tobytes()

    def order(self, after: Sequence[tuple[int, ...]]) -> Sequence[int]:
        """The plan's order; under TGC_EMU_LAUNCHES any other that its edges allow."""
        if not settings.emu_launches:
            return range(len(after))
        chance = random.Random(settings.emu_launches)
        waiting = list(range(len(after)))
        order: list[int] = []
        while waiting:
            ready = [number for number in waiting if set(after[number]).issubset(order)]
            order.append(chance.choice(ready))
            waiting.remove(order[-1])
        return order

    def launch(
        self,
        unit: EmulatedModule,
        launch: PackedLaunch,
        words: bytes,
        touched: list[EmuBuffer],
        fresh: list[EmuBuffer],
    ) -> None:
        for piece in fresh:
            piece.bytes.fill(POISON)
        ranges = [(piece.address, piece.nbytes) for piece in touched if piece.nbytes]
        numbers = np.frombuffer(words, np.uint64)
        site = launch.stages[0].kernel.stores[0].site
        sizes = launch.blocks, launch.threads, launch.shared
        together = launch.blocks if launch.stages[0].waits else launch.cluster
        unit.launch(launch.name, *sizes, numbers, ranges, site=site, cluster=together)
