"""What the engine hands to a backend, and what a backend must offer.

A Program is a plan's own graph: fresh nodes whose leaves are numbered inputs, free of storages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node


class Argument(NamedTuple):
    """Stands in an attribute for a number that each run of the program supplies."""

    position: int


Number = bool | int | float
NOTHING: Mapping[int, Any] = {}


class NoMemory(MemoryError):
    """There was no room on the host for the value of a node of a program."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


@dataclass(frozen=True, eq=False)
class Program:
    """A graph to run many times.

    Attributes:
        device: where it runs.
        outputs: the values wanted, in order; an input may itself be wanted.
        inputs: ``buffer`` nodes; number k has the attribute ``slot`` = k.
        overwrites: for an output's position, the input slot whose storage it shall take: nobody
            reads that input after the run. The output is then the node of an ``assign``.

    A run supplies numbers too, to which attributes refer by `Argument`.
    """

    device: Device
    outputs: tuple[Node, ...]
    inputs: tuple[Node, ...]
    overwrites: dict[int, int] = field(default_factory=dict)


class Storage(Protocol):
    """A realized value: row-major, without gaps."""

    @property
    def nbytes(self) -> int: ...


LINE = 32  # a check's code, without these lower bits, says which line of the user's it stands for


class BadIndex(Exception):
    """A position outside its range, found by a run that therefore changed nothing.

    Args:
        code: which check, by its ``code`` attribute.
        position: of the bad element in the index, row-major.
        index, limit: the value found and the first value that is too large; of a check of
            numbers between 0 and 1 the value's bits as a double, and 1.
    """

    def __init__(self, code: int, position: int, index: int, limit: int) -> None:
        super().__init__(code, position, index, limit)
        self.code, self.position, self.index, self.limit = code, position, index, limit


class Executable(Protocol):
    """A compiled program."""

    def run(
        self,
        inputs: Sequence[Any],
        arguments: Sequence[Number],
        spare: Mapping[int, Any] = NOTHING,
    ) -> list[Any]:
        """Storages of the outputs; work may still be under way on the device.

        Args:
            inputs, arguments: as the program numbers them.
            spare: for some outputs a storage that may be used again, such as the last run's.
        """
        ...

    def describe(self) -> str:
        """What runs: one line a kernel, for `explain`."""
        ...


class Backend(Protocol):
    """One device."""

    device: Device

    def from_host(self, array: np.ndarray[Any, Any]) -> Any:
        """A storage with a copy of the array."""
        ...

    def to_host(self, storage: Any, shape: Shape, dtype: DType) -> np.ndarray[Any, Any]:
        """The value as an array; waits for the device. A read-only view on cpu."""
        ...

    def compile(self, program: Program) -> Executable:
        """Prepares a program for many runs."""
        ...

    def synchronize(self) -> None:
        """Waits for all work."""
        ...

    def take_error(self, wait: bool = True) -> BadIndex | None:
        """The first bad index since the last call; clears it.

        Args:
            wait: look once the device is done; otherwise only at plans that have finished.
        """
        ...
