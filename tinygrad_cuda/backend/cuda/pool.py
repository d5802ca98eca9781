"""A caching allocator of device memory: free pieces by size class, last freed first used.

Knows no driver: segments come from and go back through two functions, so it is tested anywhere.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from itertools import accumulate

from tinygrad_cuda.core.errors import OutOfMemoryError
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.core.shapes import readable

GRANULE = 512  # every address is a multiple of it
SEGMENT = 32 << 20  # small allocations are cut from segments of this size
LARGE = 4 << 20  # from here on an allocation has a segment of its own
COARSE = 2 << 20  # the step of large sizes, that of the driver's own memory
BLOCKS = 2  # of the same bytes: a caller may hold a step's results during the next
FITS = 8  # a large piece may serve a request that leaves less than an eighth of it


def size_class(nbytes: int) -> int:
    """The size that really is set aside: eight steps an octave, of 512 bytes to 2 MiB.

    Example:
        >>> [size_class(n) for n in (0, 512, 513, 9000, 16385)]
        [512, 512, 1024, 9216, 18432]
    """
    step = max(GRANULE, min(1 << max(0, (nbytes - 1).bit_length() - 4), COARSE))
    return max(1, -(-nbytes // step)) * step


class _Segment:
    """Memory from the driver, cut from the front; `live` of its pieces are in use.

    Attributes:
        sizes: of its pieces, if it was made for several that lie in it without gaps.
    """

    __slots__ = ("address", "size", "cut", "live", "sizes")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.cut = 0
        self.live = 0
        self.sizes: tuple[int, ...] = ()


_Piece = tuple[int, int, _Segment]  # address, size class, the segment it was cut from


class Allocation:
    """A piece of device memory; it goes back to the pool when the last reference to it dies."""

    __slots__ = ("address", "nbytes", "_piece", "_returned", "__weakref__")

    def __init__(self, nbytes: int, piece: _Piece, returned: deque[_Piece]) -> None:
        self.address, self.nbytes, self._piece, self._returned = piece[0], nbytes, piece, returned

    def __del__(self) -> None:
        # One atomic append and no lock: this may run inside the pool, in any thread, at exit.
        self._returned.append(self._piece)

    def __repr__(self) -> str:
        return f"Allocation({self.nbytes} bytes at {self.address:#x})"


class DevicePool:
    """Hands out device memory and takes it back.

    Args:
        allocate_segment: takes a number of bytes, returns an address, or None if there is no room.
        free_segment: gives back an address that `allocate_segment` returned.
        free_memory: (free, total) bytes of the GPU, for the error text.
        limit: bytes the pool may hold; 0 is no limit.
    """

    def __init__(
        self,
        allocate_segment: Callable[[int], int | None],
        free_segment: Callable[[int], None],
        free_memory: Callable[[], tuple[int, int]],
        limit: int = 0,
    ) -> None:
        self.limit = limit
        self.reserved = 0
        self.describe_live: Callable[[], str] | None = None  # the owners of live memory, for errors
        self._allocate_segment = allocate_segment
        self._free_segment = free_segment
        self._free_memory = free_memory
        self._free: dict[int, dict[int, _Piece]] = {}  # by size, by address, last freed last
        self._segments: list[_Segment] = []
        self._returned: deque[_Piece] = deque()
        self._sizes: dict[int, int] = {}
        self._allocated = 0
        self._peak = 0
        self._lock = new_lock()

    @property
    def allocated(self) -> int:
        """Bytes in use now, in whole size classes."""
        with self._lock:
            self._take_back()
            return self._allocated

    @property
    def peak(self) -> int:
        """The most bytes that were in use at once since the start or `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Restarts `peak` from the memory in use now."""
        self._peak = self.allocated

    def allocate(self, nbytes: int) -> Allocation:
        """Memory of at least `nbytes` bytes, its content undefined.

        Raises:
            OutOfMemoryError: there is no room, after free segments and garbage were given back.
        """
        return self.take(nbytes, 0)

    def take(self, nbytes: int, address: int) -> Allocation:
        """The same, at that address if it is free and of that size class.

        Raises:
            OutOfMemoryError: there is no room, after free segments and garbage were given back.
        """
        size = self._sizes.get(nbytes)
        if size is None:
            size = self._sizes[nbytes] = size_class(nbytes)
        with self._lock:
            if self._returned:
                self._take_back()
            pieces = self._free.get(size)
            piece = pieces.pop(address, None) if pieces else None
            if piece is None:
                piece = self._find(size) or self._grow(size) or self._insist(nbytes, size)
            return self._hand_out(nbytes, piece)

    def reuse(self, nbytes: int, address: int, other: int = 0) -> Allocation | None:
        """The memory at that address, or else at the other, if free and of that size class."""
        with self._lock:
            if self._returned:
                self._take_back()
            pieces = self._free.get(self._sizes.get(nbytes, 0))
            if not pieces:
                return None
            piece = pieces.pop(address, None) or pieces.pop(other, None)
            return None if piece is None else self._hand_out(nbytes, piece)

    def together(self, sizes: tuple[int, ...], address: int) -> list[Allocation] | None:
        """Pieces behind one another, without gaps; each goes back by itself.

        None if there are none: at most `BLOCKS` segments are made for the same bytes, however many
        of their pieces somebody keeps, and none without room for all. Programs with the same
        results in another order have the same segments.

        Args:
            sizes: of each, multiples of `GRANULE`.
            address: where the first had better be.
        """
        with self._lock:
            self._take_back()
            nbytes = sum(sizes)
            made = [s for s in self._segments if s.sizes and sum(s.sizes) == nbytes]
            idle = [segment for segment in made if not segment.live]
            segment = min(idle, key=lambda segment: segment.address != address, default=None)
            if segment is None and len(made) < BLOCKS:
                segment = self._new_block(nbytes)
            if segment is None:
                return None
            pieces = self._cut_again(segment, sizes)
            return [self._hand_out(piece[1], piece) for piece in pieces]

    def _cut_again(self, segment: _Segment, sizes: tuple[int, ...]) -> list[_Piece]:
        """Pieces of an idle segment; what has one of their sizes is no larger from now on."""
        starts = accumulate(segment.sizes[:-1], initial=segment.address)
        for size, at in zip(segment.sizes, starts):
            del self._free[size][at]
        segment.sizes = sizes
        self._sizes.update(zip(sizes, sizes))
        starts = accumulate(sizes[:-1], initial=segment.address)
        return [(at, size, segment) for at, size in zip(starts, sizes)]

    def _new_block(self, nbytes: int) -> _Segment | None:
        # What single pieces took before has no other use.
        self._give_back([s for s in self._segments if not (s.live or s.sizes)])
        nbytes = max(nbytes, LARGE)
        whole = self._grow(nbytes)
        if whole is None and self.trim():
            whole = self._grow(nbytes)
        return None if whole is None else whole[2]

    def trim(self) -> int:
        """Gives segments without a piece in use back to the driver; returns their bytes."""
        with self._lock:
            self._take_back()
            return self._give_back([segment for segment in self._segments if segment.live == 0])

    def _give_back(self, idle: list[_Segment]) -> int:
        gone = set(idle)
        self._segments = [segment for segment in self._segments if segment not in gone]
        for size, pieces in self._free.items():
            self._free[size] = {at: p for at, p in pieces.items() if p[2] not in gone}
        for segment in idle:
            self._free_segment(segment.address)
            self.reserved -= segment.size
        return sum(segment.size for segment in idle)

    def _hand_out(self, nbytes: int, piece: _Piece) -> Allocation:
        piece[2].live += 1
        allocated = self._allocated = self._allocated + piece[1]
        if allocated > self._peak:
            self._peak = allocated
        return Allocation(nbytes, piece, self._returned)

    def _take_back(self) -> None:
        returned = self._returned
        while returned:
            piece = returned.popleft()
            address, size, segment = piece
            try:
                self._free[size][address] = piece
            except KeyError:
                self._free[size] = {address: piece}
            segment.live -= 1
            self._allocated -= size

    def _find(self, size: int) -> _Piece | None:
        pieces = self._free.get(size)
        if pieces:
            return pieces.popitem()[1]
        if size < LARGE:
            for segment in self._segments:
                if segment.size - segment.cut >= size:
                    return self._cut(segment, size)
            return None
        near = [other for other, pieces in self._free.items() if pieces and self._fits(other, size)]
        return self._free[min(near)].popitem()[1] if near else None

    @staticmethod
    def _fits(other: int, size: int) -> bool:
        """Whether a piece of another size wastes little."""
        return size < other <= size + size // FITS

    def _grow(self, size: int) -> _Piece | None:
        """A piece of a new segment, or of one just large enough where a whole one has no room."""
        for amount in (SEGMENT, size) if size < LARGE else (size,):
            if not self.limit or self.reserved + amount <= self.limit:
                address = self._allocate_segment(amount)
                if address is not None:
                    segment = _Segment(address, amount)
                    self._segments.append(segment)
                    self.reserved += amount
                    return self._cut(segment, size)
        return None

    def _cut(self, segment: _Segment, size: int) -> _Piece:
        address = segment.address + segment.cut
        segment.cut += size
        return address, size, segment

    def _insist(self, nbytes: int, size: int) -> _Piece:
        """The last tries: give back what is idle, then collect garbage and give that back."""
        for collect in (False, True):
            if collect:
                gc.collect()
                self._take_back()
            piece = self._find(size)
            if piece is None and self.trim():
                piece = self._grow(size)
            if piece is not None:
                return piece
        free, total = self._free_memory()
        pieces = sum(segment.live for segment in self._segments)
        limit = f", limit {readable(self.limit)}" if self.limit else ""
        owners = f"\n{self.describe_live()}" if self.describe_live is not None else ""
        error = OutOfMemoryError(
            "allocate",
            f"no room for {readable(nbytes)} on the GPU",
            expect=f"{nbytes} bytes free",
            actual=f"{readable(self._allocated)} live in {pieces} allocation{'s' * (pieces != 1)}, "
            f"{readable(self.reserved)} held by the pool{limit}; "
            f"{readable(free)} of {readable(total)} free on the GPU{owners}",
            hint="use a smaller batch, or free tensors that are no longer needed",
        )
        error.nbytes = nbytes
        raise error
