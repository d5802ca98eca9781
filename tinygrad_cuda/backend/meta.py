"""The device ``meta``: Tensors with shape, dtype and strides, and no values.

A model of any size can be built there; nothing is computed, and looking at a value is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np

from tinygrad_cuda.backend.base import BadIndex
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import DeviceError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.program import NOTHING, Number, Program
from tinygrad_cuda.lowering.tuning_table import Tuned


class Nothing:
    """The storage of a value that is not there.

    Args:
        nbytes: that it would take.
    """

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class _Executable:
    """A program that is never computed."""

    def __init__(self, program: Program) -> None:
        self._sizes = [prod(node.shape) * node.dtype.itemsize for node in program.outputs]

    def run(
        self,
        inputs: Sequence[Any],
        arguments: Sequence[Number],
        spare: dict[int, Any] = NOTHING,
    ) -> list[Any]:
        return [Nothing(size) for size in self._sizes]

    def describe(self) -> str:
        return "nothing runs on meta"


class MetaBackend:
    """The device without values."""

    target = None

    def __init__(self, device: Device) -> None:
        self.device = device

    def from_host(self, array: np.ndarray[Any, Any]) -> Nothing:
        """Forgets the values."""
        return Nothing(array.nbytes)

    def to_host(self, storage: Any, shape: Shape, dtype: DType) -> NoReturn:
        """Raises: there is no value.

        Raises:
            DeviceError: always.
        """
        raise DeviceError(
            "meta", "the tensor has no values", expect="a device that computes: cpu, cuda",
            actual=f"{dtype.name} {tuple(shape)} on meta",
            hint="module.to_empty(device=...) gives a module memory; then load its state",
        )  # fmt: skip

    def compile(self, program: Program) -> _Executable:
        """Notes the sizes of the results."""
        return _Executable(program)

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def tune(self, mode: str) -> None:
        """There are no kernels."""

    def tuned(self) -> tuple[Tuned, ...]:
        """No choices."""
        return ()

    def take_error(self, wait: bool = True) -> BadIndex | None:
        """No index is looked at."""
        return None
