"""Long elementwise values are computed a block at a time, while the block lies in the cache.

A chain is a connected set of elementwise nodes of one shape; only what is read outside of it is
written to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.backend.cpu.pool import pool
from tinygrad_cuda.core.shapes import Shape

Array = np.ndarray[Any, Any]
Index = tuple[int | slice, ...]

# Elements of a block: at the least a call's own time is a tenth of what it computes; more of them
# as long as all arrays of a chain fill half of a 1 MB second-level cache.
BLOCK, LONGEST, BLOCK_BYTES = 1 << 15, 1 << 16, 1 << 19
# Values of fewer elements lie in the cache anyway.
SMALLEST = BLOCK


# Where a member's block lies: in a buffer if not negative, or in the result of a later member.
_NONE, _LENT = -1, -2


@dataclass(slots=True, eq=False)
class Member:
    """One node of a chain.

    Attributes:
        call: of blocks; with ``out=`` if `takes_out`.
        sources: positions among the chain's arrays: those it reads, then its members.
        result: the slot of the value if it is read outside, else -1.
        reuses: the array that is read here for the last time and may hold the result, or -1.
    """

    call: Callable[..., Any]
    takes_out: bool
    sources: tuple[int, ...]
    dtype: np.dtype[Any]
    result: int
    reuses: int


class ElementwiseChain:
    """A chain as one step of an executable.

    Args:
        shape: of every member.
        read: slots of what it reads.
        members: sources first.
        each: bytes that it reads for an element.
    """

    def __init__(
        self, shape: Shape, read: Sequence[int], members: Sequence[Member], each: int
    ) -> None:
        self.shape, self.read, self.members = shape, list(read), list(members)
        self.size = prod(shape)
        self._assign_buffers()
        results = [member.dtype for member in members if member.result >= 0]
        each += sum(dtype.itemsize for dtype in (*self.buffers, *results))
        self.block = LONGEST if LONGEST * each <= BLOCK_BYTES else BLOCK
        # Of a run that is not over flat arrays: the blocks, and what they are of each operand.
        self._blocks: list[tuple[Index, Shape]] = []
        self._parts: dict[Shape, list[Index]] = {}

    def _assign_buffers(self) -> None:
        """Members that stay inside share block buffers once they are read for the last time.

        What a result is computed from lies in the result's own block where nothing else does.
        """
        first = len(self.read)
        last: dict[int, int] = {}
        for number, member in enumerate(self.members):
            for source in (*member.sources, first + number):
                last[source] = number
        self.buffers: list[np.dtype[Any]] = []
        self.buffer_of: list[int] = []
        free: dict[np.dtype[Any], list[int]] = {}
        lent: set[int] = set()
        for number, member in enumerate(self.members):
            dying = {s - first for s in member.sources if s >= first and last[s] == number}
            for source in dying:
                # Elementwise: a result may overwrite what it is computed from.
                if self.buffer_of[source] >= 0:
                    free.setdefault(self.members[source].dtype, []).append(self.buffer_of[source])
            buffer, reader = _NONE, last[first + number]
            if member.takes_out and member.result < 0:
                available = free.get(member.dtype)
                if reader not in lent and self._lends(reader, member.dtype):
                    lent.add(reader)
                    buffer = _LENT - reader
                elif available:
                    buffer = available.pop()
                else:
                    buffer = len(self.buffers)
                    self.buffers.append(member.dtype)
            self.buffer_of.append(buffer)

    def _lends(self, number: int, dtype: np.dtype[Any]) -> bool:
        """Whether a member's result lies in an array of its own, of that dtype."""
        member = self.members[number]
        return (
            member.result >= 0 and member.takes_out and member.reuses < 0 and member.dtype == dtype
        )

    def __call__(self, values: list[Any]) -> None:
        arrays = [values[slot] for slot in self.read]
        shape, flat = self.shape, True
        for array in arrays:
            if array.size != 1 and not (array.shape == shape and array.flags.c_contiguous):
                flat = False
                break
        results = self._results(values, arrays)
        if flat:
            arrays = [a.reshape(-1) if a.size != 1 else a.reshape(()) for a in arrays]
            outputs = [None if a is None else a.reshape(-1) for a in results]
            self._run_flat(arrays, outputs)
        else:
            self._run_blocks(arrays, results)

    def _results(self, values: list[Any], arrays: list[Array]) -> list[Array | None]:
        """The arrays of what is read outside, by member; None of the others."""
        results: list[Array | None] = []
        for member in self.members:
            if member.result < 0:
                results.append(None)
                continue
            buffer = None
            if member.reuses >= 0:
                buffer = arrays[member.reuses]
                flags = buffer.flags
                if not (flags.c_contiguous and flags.owndata and flags.writeable):
                    buffer = None
            if buffer is None:
                buffer = pool.take(self.shape, member.dtype)
            values[member.result] = buffer
            results.append(buffer)
        return results

    def _run_flat(self, arrays: list[Array], outputs: list[Array | None]) -> None:
        size, block = self.size, self.block
        buffers = [np.empty(min(block, size), dtype) for dtype in self.buffers]
        for start in range(0, size, block):
            end = min(start + block, size)
            if end - start < len(buffers[0]) if buffers else False:
                buffers = [buffer[: end - start] for buffer in buffers]
            blocks = [array[start:end] if array.shape else array for array in arrays]
            parts = [None if array is None else array[start:end] for array in outputs]
            self._run_block(blocks, parts, buffers)

    def _run_blocks(self, arrays: list[Array], outputs: list[Array | None]) -> None:
        if not self._blocks:
            self._blocks = list(_blocks(self.shape, self.block))
        operands = [self._parts_of(array.shape) for array in arrays]
        buffers: list[Array] = []
        for number, (index, shape) in enumerate(self._blocks):
            if not buffers or buffers[0].shape != shape:
                buffers = [np.empty(shape, dtype) for dtype in self.buffers]
            blocks = [array[parts[number]] for array, parts in zip(arrays, operands)]
            results = [None if array is None else array[index] for array in outputs]
            self._run_block(blocks, results, buffers)

    def _parts_of(self, shape: Shape) -> list[Index]:
        """What each block is of an operand of a shape."""
        parts = self._parts.get(shape)
        if parts is None:
            parts = self._parts[shape] = [_within(index, shape) for index, _ in self._blocks]
        return parts

    def _run_block(
        self, blocks: list[Any], parts: list[Array | None], buffers: list[Array]
    ) -> None:
        add = blocks.append
        for member, part, number in zip(self.members, parts, self.buffer_of):
            sources = [blocks[source] for source in member.sources]
            if member.takes_out:
                out = part
                if out is None:
                    out = buffers[number] if number >= 0 else parts[_LENT - number]
                member.call(*sources, out=out)
                add(out)
            elif part is None:
                add(member.call(*sources))
            else:
                part[...] = member.call(*sources)
                add(part)


def _blocks(shape: Shape, block: int) -> Iterator[tuple[Index, Shape]]:
    """Parts of an array of about a block each: their indices and shapes."""
    axis, inner = len(shape) - 1, 1
    while axis > 0 and inner * shape[axis] <= block:
        inner *= shape[axis]
        axis -= 1
    rows = max(1, block // inner)
    length, rest = shape[axis], shape[axis + 1 :]
    for leading in np.ndindex(*shape[:axis]):
        for start in range(0, length, rows):
            end = min(start + rows, length)
            yield (*leading, slice(start, end)), (end - start, *rest)


def _within(index: Index, shape: Shape) -> Index:
    """The part of an operand that broadcasts against a part of the result."""
    if not shape:
        return ()
    return tuple(
        part if size != 1 else 0 if isinstance(part, int) else slice(0, 1)
        for part, size in zip(index, shape)
    )
