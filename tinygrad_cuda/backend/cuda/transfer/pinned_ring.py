"""A ring of pinned staging buffers through which small arrays go to the GPU.

The host copies them there, and does not wait. A copy from pageable memory is staged by the driver,
at about twice the time of this. An array that only a replayed graph reads goes without a copy by
the driver: a kernel of the graph fetches it.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tinygrad_cuda.backend.cuda.handles import DriverCalls, DriverEvent
from tinygrad_cuda.backend.cuda.pool import Allocation
from tinygrad_cuda.backend.launch.launch_params import FETCHED, NUMBERS_WITHIN
from tinygrad_cuda.lowering.codegen.skeleton import FOLDER, THREADS

LARGEST_STAGED = 512 << 10  # bytes; the driver's own staging of larger ones overlaps with the copy
PARTS = 4  # of the ring: three may be read while one is written
PART = LARGEST_STAGED  # bytes of one part of the ring, which is small so that it stays in the cache
ALIGNMENT = 256  # bytes between the starts of arrays
SWEEP_PERIOD = 64  # references to arrays of a part after which dead ones are dropped
FETCH_BYTES = 16  # bytes of a thread's access


class Sent:
    """A small array that has been sent from the host to the GPU: behind the work so far.

    Attributes:
        nbytes: how long it is.
        pending: it is not on the GPU, and no graph has read it.
        address: where it is on the GPU.
    """

    __slots__ = (
        "nbytes", "pending", "address", "_ring", "_part", "_source_address", "_allocate", "_memory",
        "_source", "__weakref__",
    )  # fmt: skip

    nbytes: int
    pending: bool
    address: int
    _ring: PinnedRing
    _part: _Part | None
    _source_address: int
    _allocate: Callable[[int], Allocation]
    _memory: Allocation | None
    _source: object  # whose memory it is, if it is not the ring's

    def upload(self) -> bool:
        """Nothing is to be done."""
        return False

    def address_for_fetch(self) -> int:
        """Where it can be read."""
        return self.address


class Staged(Sent):
    """A small array in a staging buffer until it is needed on the GPU.

    Whoever asks for its `address` has it copied there, and it is a `Sent` from then on; a graph may
    read it where it waits, once: what is read again had better be there.

    Args:
        ring: which holds it.
        part: of the ring, in which it waits.
        source_address: where it waits.
        nbytes: how long it is.
        allocate: returns memory on the GPU.
    """

    __slots__ = ()

    def __init__(
        self,
        ring: PinnedRing,
        part: _Part,
        source_address: int,
        nbytes: int,
        allocate: Callable[[int], Allocation],
    ) -> None:
        self.nbytes, self.pending = nbytes, True
        self._source = None
        self._part = part
        self._ring, self._source_address, self._allocate = ring, source_address, allocate
        self._memory = None

    if not TYPE_CHECKING:

        @property
        def address(self) -> int:
            """Where it is on the GPU, behind the work so far of the compute stream."""
            self.upload()
            return _address.__get__(self)

    def upload(self) -> bool:
        """Has it copied, if it has not been; says whether."""
        with self._ring.device.lock:
            if self._memory is not None:  # another thread was faster
                return False
            memory = self._allocate(self.nbytes)
            self._ring.send(memory.address, self.address_for_fetch(), self.nbytes)
            self._memory = memory
            _address.__set__(self, memory.address)
            self.__class__ = Sent  # type: ignore[assignment]
            return True

    def address_for_fetch(self) -> int:
        """Where it can be read by what is enqueued before anything else is staged."""
        if self._memory is not None:  # another thread has had it copied meanwhile
            return self._memory.address
        self.pending = False
        if self._part is not None and self._part is not self._ring.part:
            self._part.read_since = True
        return self._source_address


_new = object.__new__
_address: Any = vars(Sent)["address"]


def from_pinned(
    ring: PinnedRing,
    source: object,
    source_address: int,
    nbytes: int,
    allocate: Callable[[int], Allocation],
) -> Staged:
    """An array whose own pinned memory is its staging buffer, since nobody changes it."""
    piece = _new(Staged)
    piece.nbytes, piece.pending, piece._source = nbytes, nbytes <= LARGEST_STAGED, source
    piece._ring, piece._part, piece._source_address, piece._allocate = (
        ring,
        None,
        source_address,
        allocate,
    )
    piece._memory = None
    return piece


class _Part:
    """A part of the ring.

    Attributes:
        read: behind the work that reads it, unless `read_since` says that there was more since.
        pieces: arrays in it.
    """

    def __init__(self, device: DriverCalls, number: int) -> None:
        self.number = number
        self.read = DriverEvent(device, timing=False)
        self.read_since = False
        self.pieces: list[weakref.ref[Staged]] = []


class PinnedRing:
    """A pinned staging buffer in parts; a part is written again when the GPU has read it.

    Args:
        device: the GPU.
    """

    def __init__(self, device: DriverCalls) -> None:
        self.device = device
        self._memory = int(device.call("cuMemHostAlloc", PARTS * PART, 0))
        self._bytes = memoryview((ctypes.c_char * (PARTS * PART)).from_address(self._memory))
        self._bytes = self._bytes.cast("B")
        self._parts = [_Part(device, number) for number in range(PARTS)]
        self.part = self._parts[0]
        self._used = 0  # bytes of the part

    def copy_in(self, address: int, source: npt.NDArray[Any]) -> None:
        """Copies at most `LARGEST_STAGED` bytes of host memory, which may be changed afterwards."""
        self.send(address, self._put(source, source.nbytes), source.nbytes)

    def stage(self, source: npt.NDArray[Any], allocate: Callable[[int], Allocation]) -> Staged:
        """Copies at most `LARGEST_STAGED` bytes; `allocate` returns memory on the GPU."""
        nbytes = source.nbytes
        piece = Staged(self, self.part, self._put(source, nbytes), nbytes, allocate)
        pieces = self.part.pieces
        if len(pieces) % SWEEP_PERIOD == SWEEP_PERIOD - 1:
            pieces[:] = [reference for reference in pieces if reference() is not None]
        pieces.append(weakref.ref(piece))
        return piece

    def send(self, address: int, source_address: int, nbytes: int) -> None:
        """Copies from the ring to the GPU, behind the work so far."""
        device = self.device
        (status,) = device.driver.cuMemcpyHtoDAsync(address, source_address, nbytes, device.stream)
        if status:
            raise device.error("cuMemcpyHtoDAsync", status)

    def _put(self, source: npt.NDArray[Any], nbytes: int) -> int:
        """Copies a contiguous array into the ring and returns its address there."""
        if self._used + nbytes > PART:
            self._turn()
        start = self.part.number * PART + self._used
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._bytes[start : start + nbytes] = _bytes_of(source)
        return self._memory + start

    def _turn(self) -> None:
        """Makes the next part free: what is still pending there goes to the GPU."""
        self.part.read.record()
        self.part.read_since = False
        self.part = part = self._parts[(self.part.number + 1) % PARTS]
        self._used = PART  # nothing fits until it is free
        for reference in part.pieces:
            piece = reference()
            if piece is not None and piece.upload():
                part.read_since = True
        part.pieces.clear()
        if part.read_since:
            part.read.record()
            part.read_since = False
        part.read.synchronize()
        self._used = 0

    def __del__(self) -> None:
        self.device.destroy("cuMemFreeHost", getattr(self, "_memory", None))


def _bytes_of(source: Any) -> memoryview:
    """A contiguous array's memory."""
    try:
        return memoryview(source).cast("B")
    except ValueError:  # a dtype that the buffer protocol lacks, such as bfloat16
        return memoryview(source.reshape(-1).view(np.uint8))


def fetch_source() -> str:
    """The text of the kernel that fetches arrays."""
    prelude = (FOLDER / "device.cuh").read_text()
    return f"{prelude}\n{(FOLDER / 'fetch.cuh').read_text()}"


class FetchParams:
    """The fetch kernel's parameters, of which only those that differ from the last run are written.

    Args:
        targets: for each array where it goes, and its bytes.
        numbers: where the numbers go that come with the parameters, or 0.

    Attributes:
        changed: they differ from those that the driver was given last.
    """

    def __init__(self, targets: Sequence[tuple[int, int]], numbers: int) -> None:
        words = array("Q", bytes(8 * (3 * FETCHED + 2) + NUMBERS_WITHIN))
        for k, (to, nbytes) in enumerate(targets):
            words[3 * k + 1 : 3 * k + 3] = array("Q", [to, -(-nbytes // FETCH_BYTES)])
        words[3 * FETCHED] = numbers
        self._count = 0  # bytes of the numbers
        self._words = self._numbers = memoryview(words)
        self.move(self._words)
        self.changed = True

    def move(self, words: memoryview) -> None:
        """Moves the parameters to this memory."""
        words[:] = self._words
        self._words = words
        self._numbers = words.cast("B")[8 * (3 * FETCHED + 2) :]
        self.changed = False

    def tobytes(self) -> bytes:
        """The parameters."""
        return self._words.tobytes()

    def fill(self, staged: Sequence[Staged], numbers: bytes) -> None:
        """Writes the parameters of a run.

        Args:
            staged: the arrays, each of which is fetched from its staging buffer.
            numbers: at most `NUMBERS_WITHIN` bytes, 8 each.
        """
        words, position = self._words, 0
        for piece in staged:
            address = piece.address_for_fetch()
            if words[position] != address:
                words[position] = address
                self.changed = True
            position += 3
        count = len(numbers)
        if count or self._count:
            self._count = count
            words[3 * FETCHED + 1] = count // 8
            self._numbers[:count] = numbers
            self.changed = True


def fetch_blocks(sizes: Sequence[int]) -> int:
    """Blocks of the kernel: a thread has one access to the longest array."""
    return max(1, -(-max(sizes, default=0) // (FETCH_BYTES * THREADS)))
