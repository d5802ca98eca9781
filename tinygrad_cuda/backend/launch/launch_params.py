"""The parameters of a program's launches: written once, and from then on only what moved.

Also the numbers that they read from memory, and which launches wait for which.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any

from tinygrad_cuda.backend.base import BadIndex
from tinygrad_cuda.core.trees import picking
from tinygrad_cuda.graph.program import Number
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch
from tinygrad_cuda.lowering.codegen.skeleton import TensorMap

OWN_CODES = 1 << 62  # from here on, a check's code is a number that its program has for it
WORD = 8  # bytes
FETCHED = 8  # arrays that the first kernel of a replay fetches from the host
NUMBERS_WITHIN = 32 * WORD  # bytes of numbers that come with that kernel's parameters
NUMBERS = -1  # the index of the numbers' memory in that of a run
_MASK = 2**64 - 1

# Where the address of a word comes from: which of a run's values, and the bytes beyond it.
WordSource = tuple[int, int]


def bad_index(words: Sequence[int], runs: Mapping[int, Sequence[int]]) -> BadIndex:
    """What an error word says.

    Args:
        words: the first four of it.
        runs: for the first code of each program that has run, what its codes stand for.
    """
    code, index, limit, position = words
    code -= 1
    for first, codes in runs.items():
        if first <= code < first + len(codes):
            code = codes[code - first]
            break
    return BadIndex(code, position, index, limit)


class ArgumentBuffer:
    """The layout in memory of the number arguments that a program's launches read.

    Args:
        launches: in order of execution.
    """

    def __init__(self, launches: Sequence[PackedLaunch]) -> None:
        arguments = [w.operand for launch in launches for w in launch.words if w.kind == "argument"]
        # The slot of each argument's position and C type.
        self.table: dict[tuple[int, str], int] = {}
        for argument in arguments:
            self.table.setdefault(argument, len(self.table))
        self.positions = [position for position, _ in self.table]
        self.format = "<" + "".join("d" if ctype == "double" else "Q" for _, ctype in self.table)
        self.nbytes = WORD * len(self.table)
        self._pack = struct.Struct(self.format).pack
        self._pick = picking(self.positions) if self.positions else None

    def packed(self, arguments: Sequence[Number]) -> bytes:
        """The bytes of a run's numbers."""
        if self._pick is None:
            return b""
        numbers = self._pick(arguments)
        try:
            return self._pack(*numbers)
        except struct.error:  # a negative integer, or one that came as a float
            kinds = self.format[1:]
            whole = [n if kind == "d" else int(n) & _MASK for n, kind in zip(numbers, kinds)]
            return self._pack(*whole)


class LaunchParams:
    """All words of a program's launches in one buffer: addresses, and tensor maps of them.

    Only those that differ from the last run's are written.

    Args:
        launches: in order of execution.
        sources: of each value or scratch memory that the launches use, of ``"error"``, and of each
            number by its word's operand.
        count: how many addresses a run has.
        encode: the bytes of a tensor map of a value at an address.
    """

    def __init__(
        self,
        launches: Sequence[PackedLaunch],
        sources: dict[Any, WordSource],
        count: int,
        encode: Callable[[TensorMap, int], bytes],
    ) -> None:
        self._starts = [0]
        self._encode = encode
        self._address_words: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._maps: list[list[tuple[int, int, TensorMap]]] = [[] for _ in range(count)]
        self._users: list[set[int]] = [set() for _ in range(count)]
        self._last_addresses: list[int] | None = None
        for number, launch in enumerate(launches):
            start = self._starts[-1]
            for position, word in enumerate(launch.words, start):
                if word.kind != "unused":
                    value, offset = sources[word.memory]
                    if word.kind == "map":
                        self._maps[value].append((position, offset, word.operand))
                    else:
                        self._address_words[value].append((position, offset))
                    self._users[value].add(number)
            self._starts.append(start + len(launch.words))
        self._words = array("Q", bytes(8 * self._starts[-1]))
        self._bytes = memoryview(self._words).cast("B")

    def twin(self) -> LaunchParams:
        """Parameters of the same launches that change apart from these."""
        other = copy(self)
        other._last_addresses = None
        other._words = array("Q", bytes(self._bytes.nbytes))
        other._bytes = memoryview(other._words).cast("B")
        return other

    def fill(self, addresses: list[int]) -> set[int]:
        """Writes what differs from the last run; the launches whose words changed."""
        old = self._last_addresses
        if addresses == old:
            return set()
        changed: set[int] = set()
        self._last_addresses = None  # so that an interruption lets the next run write everything
        for number, value in enumerate(addresses):
            if old is None or value != old[number]:
                for position, offset in self._address_words[number]:
                    self._words[position] = value + offset
                for position, offset, tensor in self._maps[number]:
                    words = self._encode(tensor, value + offset)
                    self._bytes[WORD * position : WORD * position + len(words)] = words
                changed |= self._users[number]
        self._last_addresses = addresses
        return changed if old is not None else set(range(len(self._starts) - 1))

    def words(self, launch: int) -> bytes:
        """The parameters of a launch."""
        return bytes(self._bytes[8 * self._starts[launch] : 8 * self._starts[launch + 1]])


def dependencies(launches: Sequence[PackedLaunch]) -> list[tuple[int, ...]]:
    """For each launch the earlier ones that it waits for, without those that others imply.

    These are the edges between kernels (data, overwriting, memory taken over, checks that come
    first), and those from the first to the second stage of a split kernel.
    """
    launches_of: dict[object, list[int]] = {}  # of each kernel, by their numbers
    for number, launch in enumerate(launches):
        for stage in launch.stages:
            launches_of.setdefault(stage.kernel, []).append(number)
    complete: list[int] = []  # a bit for each launch behind one
    result = []
    for number, launch in enumerate(launches):
        wanted = {n for stage in launch.stages for k in stage.kernel.before for n in launches_of[k]}
        wanted |= {n for stage in launch.stages for n in launches_of[stage.kernel] if n < number}
        assert all(n < number for n in wanted), f"{launch.name} stands before its sources"
        before, direct = 0, []
        for other in sorted(wanted, reverse=True):
            if not before >> other & 1:
                direct.append(other)
                before |= complete[other] | 1 << other
        complete.append(before)
        result.append(tuple(sorted(direct)))
    return result


def first_uses(launches: Sequence[PackedLaunch], items: Collection[Any]) -> list[list[Any]]:
    """For each launch those of the values and scratch memories that no earlier one uses."""
    seen: set[Any] = set()
    uses = []
    for launch in launches:
        used = dict.fromkeys(w.operand for w in launch.words if w.kind in ("value", "scratch"))
        uses.append([value for value in used if value in items and value not in seen])
        seen.update(used)
    return uses
