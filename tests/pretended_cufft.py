"""cuFFT in Python for the pretended GPU: what the package calls of `nvmath.bindings.cufft`.

Names, numbers and argument orders are those of nvmath-python 1.0. A transform is NumPy's, in
float64, of what lies at its addresses when its stream comes to it; it fills its workspace with
NaN, and a transform to real rows its operand, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from pretended_gpu import Driver, pretended_gpu

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.libraries import cufft
from tinygrad_cuda.core.device import as_device

Array = np.ndarray[Any, Any]


class LibraryError(Exception):
    """What the bindings raise."""


class Type(enum.IntEnum):
    """The kinds of transforms."""

    C2C = 41
    R2C = 42
    C2R = 44
    Z2Z = 105
    D2Z = 106
    Z2D = 108


DTYPES = {"C": np.complex64, "R": np.float32, "Z": np.complex128, "D": np.float64}


@dataclass
class Plan:
    """What a plan was made with."""

    kind: Type | None = None
    n: int = 0
    batches: int = 0
    stride: int = 0
    apart: int = 0
    result: int = 0  # elements of a result's row
    nbytes: int = 0
    stream: int = 0
    workspace: int = 0


class CufftModule:
    """The module.

    Attributes:
        transforms: what was transformed: kind, points, rows and direction.
        plans: by their handles.
        refuses: whether it makes no plan.
    """

    Type = Type

    def __init__(self, driver: Driver) -> None:
        self.driver, self.cuFFTError = driver, LibraryError
        self.plans: dict[int, Plan] = {}
        self.numbers = itertools.count(1)
        self.transforms: list[tuple[str, int, int, int]] = []
        self.refuses = False

    def get_version(self) -> int:
        return 12100

    def create(self) -> int:
        number = next(self.numbers)
        self.plans[number] = Plan()
        return number

    def set_auto_allocation(self, plan: int, auto_allocate: int) -> None:
        assert auto_allocate == 0 and self.plans[plan].kind is None

    def make_plan_many64(
        self, plan: int, rank: int, n: Sequence[int], inembed: Sequence[int], istride: int,
        idist: int, onembed: Sequence[int], ostride: int, odist: int, type: int, batch: int,
    ) -> int:  # fmt: skip
        if self.refuses or rank != 1 or min(n[0], istride, idist, ostride, odist, batch) < 1:
            raise LibraryError("CUFFT_INVALID_SIZE")
        kind = Type(type)
        half = n[0] // 2 + 1
        assert inembed == [half if kind.name[2] in "RD" else n[0]]
        assert onembed == [half if kind.name[0] in "RD" else n[0]] == [odist] and ostride == 1
        nbytes = n[0] * batch * np.dtype(DTYPES[kind.name[0]]).itemsize if n[0] > 100 else 0
        self.plans[plan] = Plan(kind, n[0], batch, istride, idist, odist, nbytes)
        return nbytes

    def set_work_area(self, plan: int, work_area: int) -> None:
        self.driver.inside(work_area, max(self.plans[plan].nbytes, 1))
        self.plans[plan].workspace = work_area

    def set_stream(self, plan: int, stream: int) -> None:
        self.plans[plan].stream = stream

    def exec_c2c(self, plan: int, idata: int, odata: int, direction: int) -> None:
        self._start(plan, Type.C2C, idata, odata, direction)

    def exec_z2z(self, plan: int, idata: int, odata: int, direction: int) -> None:
        self._start(plan, Type.Z2Z, idata, odata, direction)

    def exec_r2c(self, plan: int, idata: int, odata: int) -> None:
        self._start(plan, Type.R2C, idata, odata, -1)

    def exec_d2z(self, plan: int, idata: int, odata: int) -> None:
        self._start(plan, Type.D2Z, idata, odata, -1)

    def exec_c2r(self, plan: int, idata: int, odata: int) -> None:
        self._start(plan, Type.C2R, idata, odata, 1)

    def exec_z2d(self, plan: int, idata: int, odata: int) -> None:
        self._start(plan, Type.Z2D, idata, odata, 1)

    def _view(
        self, address: int, letter: str, shape: tuple[int, int], apart: int, step: int
    ) -> Array:
        """Rows at an address."""
        dtype = np.dtype(DTYPES[letter])
        extent = (shape[0] - 1) * apart + (shape[1] - 1) * step + 1
        self.driver.inside(address, extent * dtype.itemsize)
        memory = (ctypes.c_byte * (extent * dtype.itemsize)).from_address(address)
        strides = (apart * dtype.itemsize, step * dtype.itemsize)
        return np.lib.stride_tricks.as_strided(np.frombuffer(memory, dtype), shape, strides)

    def _start(self, plan: int, kind: Type, source: int, result: int, direction: int) -> None:
        of = replace(self.plans[plan])
        assert of.kind is kind and of.workspace
        first, last, half = kind.name[0], kind.name[2], of.n // 2 + 1
        points = half if last in "RD" else of.n

        def run() -> None:
            x = self._view(source, first, (of.batches, points), of.apart, of.stride)
            out = self._view(result, last, (of.batches, of.result), of.result, 1)
            if last in "RD":
                value = np.fft.irfft(x, of.n, norm="forward")
            elif first in "RD":
                value = np.fft.rfft(x)
            else:
                value = np.fft.fft(x) if direction < 0 else np.fft.ifft(x, norm="forward")
            if last in "RD":
                x[:] = np.nan
            out[:] = value.astype(out.dtype)
            self.driver.inside(of.workspace, of.nbytes)
            ctypes.memset(of.workspace, 0xFF, of.nbytes)
            self.transforms.append((kind.name, of.n, of.batches, direction))

        next(s for s in self.driver.streams if int(s) == of.stream).give(run)


@contextlib.contextmanager
def pretended_cufft() -> Iterator[CufftModule]:
    """Device ``cuda`` is the pretended GPU inside, on which this library is installed."""
    with pretended_gpu() as driver, pytest.MonkeyPatch.context() as patch:
        library = CufftModule(driver)
        patch.setattr(cufft.Cufft, "bindings", staticmethod(lambda op="": library))
        machine: Any = registry.get(as_device("cuda"))
        machine.target = replace(machine.target, libraries=("cufft",))
        yield library


__all__ = ["CufftModule", "pretended_cufft"]
