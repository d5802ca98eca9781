"""What the engine hands to a backend, and what a backend must offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.program import NOTHING, Number, Program
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.lowering.tuning_table import Tuned


class Replays:
    """What a backend may recognise of earlier runs; `replay` switches it.

    Attributes:
        cuda_graphs: a program that runs again is replayed as a graph.
        graphs_by_address: addresses that come again have graphs of their own.
        steady_runs: a loop's runs look at nothing but the memory of its arguments and results.
        multi_run_graphs: many runs behind one another are one graph.
    """

    cuda_graphs = graphs_by_address = steady_runs = multi_run_graphs = False


replays = Replays()


class NoMemory(MemoryError):
    """There was no room on the host for the value of a node of a program."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


LINE = 32  # a check's code, without these lower bits, says which line of the user's it stands for


class BadIndex(Exception):
    """A position outside its range, detected by a run that therefore changed nothing.

    Args:
        code: which check, by its ``code`` attribute.
        position: of the bad element in the index, row-major.
        index, limit: the value and the first value that is too large; of a check of
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
        spare: dict[int, Any] = NOTHING,
    ) -> list[Any]:
        """Storages of the outputs; work may still be in flight on the device.

        Args:
            inputs, arguments: as the program numbers them.
            spare: for some outputs a storage that may be used again, such as the last run's; one
                that is taken out is not used.
        """
        ...

    def describe(self) -> str:
        """What runs: one line a kernel, for `explain`."""
        ...


class Backend(Protocol):
    """One device."""

    device: Device

    @property
    def target(self) -> Target | None:
        """The machine that programs are lowered for; None where none are."""
        ...

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

    def tune(self, mode: str) -> None:
        """Chooses kernels so from here on.

        Args:
            mode: one of `config.TUNING`.
        """
        ...

    def tuned(self) -> Sequence[Tuned]:
        """The measured choices that plans are made with."""
        ...

    def take_error(self, wait: bool = True) -> BadIndex | None:
        """The first bad index since the last call; clears it.

        Args:
            wait: look once the device is done; otherwise only at plans that have finished.
        """
        ...
