"""cuBLASLt in Python for the pretended GPU: what the package calls of `nvmath.bindings.cublasLt`.

Names, numbers, argument orders and sizes of attributes are those of nvmath-python 1.0; what a call
multiplies is read from its descriptors alone, when its stream comes to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from pretended_gpu import Driver, pretended_gpu

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.libraries import cublas
from tinygrad_cuda.core.device import as_device

Array = np.ndarray[Any, Any]
TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}


class LibraryError(Exception):
    """What the bindings raise."""


class MatmulDescAttribute(enum.IntEnum):
    TRANSA = 3
    TRANSB = 4
    EPILOGUE = 7
    BIAS_POINTER = 8


class MatrixLayoutAttribute(enum.IntEnum):
    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6


class MatmulPreferenceAttribute(enum.IntEnum):
    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class Epilogue(enum.IntEnum):
    DEFAULT = 1
    RELU = 2
    BIAS = 4
    RELU_BIAS = 6
    GELU = 32
    GELU_BIAS = 36


# Of the attributes: numbers of one enumeration are equal to those of another.
SIZES: dict[str, str] = {
    "TRANSA": "<i4", "TRANSB": "<i4", "EPILOGUE": "<u4", "BIAS_POINTER": "<u8",
    "BATCH_COUNT": "<i4", "STRIDED_BATCH_OFFSET": "<i8", "MAX_WORKSPACE_BYTES": "<u8",
    **{member.name: "<u4" for member in list(MatmulPreferenceAttribute)[1:]},
}  # fmt: skip


@dataclass
class Described:
    """A descriptor: what it was created with, and the attributes that were set."""

    created: tuple[int, ...]
    attributes: dict[str, int] = field(default_factory=dict)

    def set(self, attribute: enum.IntEnum, data: int, nbytes: int) -> None:
        kind = np.dtype(SIZES[attribute.name])
        if nbytes != kind.itemsize:
            raise LibraryError("CUBLAS_STATUS_INVALID_VALUE")
        self.attributes[attribute.name] = int(
            np.frombuffer(ctypes.string_at(data, nbytes), kind)[0]
        )


class MatmulHeuristicResult:
    """An algorithm, which this library has one of."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(96)
        self.ptr = ctypes.addressof(self.memory)


class CublasLt:
    """The module.

    Attributes:
        products: what was multiplied: compute type, epilogue, sizes of the result, batches.
        choices: how many times the heuristic was asked.
        refuses: whether it has no algorithm.
    """

    MatmulDescAttribute, Epilogue = MatmulDescAttribute, Epilogue
    MatrixLayoutAttribute = MatrixLayoutAttribute
    MatmulPreferenceAttribute = MatmulPreferenceAttribute
    MatmulHeuristicResult = MatmulHeuristicResult

    def __init__(self, driver: Driver) -> None:
        self.driver, self.cuBLASLtError = driver, LibraryError
        self.made: dict[int, Described] = {}
        self.numbers = itertools.count(1000)
        self.products: list[SimpleNamespace] = []
        self.choices, self.refuses = 0, False
        self.preference: Described | None = None

    def _make(self, *created: int) -> int:
        number = next(self.numbers)
        self.made[number] = Described(created)
        return number

    def get_version(self) -> int:
        return 130100

    def create(self) -> int:
        return self._make()

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        return self._make(compute_type, scale_type)

    def matmul_desc_set_attribute(self, desc: int, attr: int, buf: int, size: int) -> None:
        self.made[desc].set(MatmulDescAttribute(attr), buf, size)

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        if ld < rows or min(rows, cols) < 1:
            raise LibraryError("CUBLAS_STATUS_INVALID_VALUE")
        return self._make(type, rows, cols, ld)

    def matrix_layout_set_attribute(self, layout: int, attr: int, buf: int, size: int) -> None:
        self.made[layout].set(MatrixLayoutAttribute(attr), buf, size)

    def matmul_preference_create(self) -> int:
        return self._make()

    def matmul_preference_set_attribute(self, pref: int, attr: int, buf: int, size: int) -> None:
        self.made[pref].set(MatmulPreferenceAttribute(attr), buf, size)

    def matmul_preference_destroy(self, pref: int) -> None:
        self.preference = self.made.pop(pref)

    def matmul_algo_get_heuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int,
        requested: int, results: int, count: int,
    ) -> None:  # fmt: skip
        assert requested == 1 and preference in self.made and c == d
        self._sizes(desc, a, b, d)
        self.choices += 1
        ctypes.c_int.from_address(count).value = 0 if self.refuses else 1
        ctypes.c_uint64.from_address(results).value = 77

    def _sizes(self, desc: int, a: int, b: int, d: int) -> tuple[int, int, int]:
        """n, m and k, by columns; a mismatch is an error, as in the library."""
        of = self.made[desc].attributes
        (n, k), (k2, m) = (
            tuple(reversed(self.made[x].created[1:3]))
            if of[transposed]
            else self.made[x].created[1:3]
            for x, transposed in ((a, "TRANSA"), (b, "TRANSB"))
        )
        batches = {self.made[x].attributes.get("BATCH_COUNT", 1)
                   for x in (a, b, d)}  # fmt: skip
        if k != k2 or self.made[d].created[1:3] != (n, m) or len(batches) > 1:
            raise LibraryError("CUBLAS_STATUS_INVALID_VALUE")
        return n, m, k

    def _view(self, layout: int, address: int) -> Array:
        """The matrices at an address: (batch, rows, columns)."""
        described = self.made[layout]
        kind, rows, columns, stride = described.created
        batches = described.attributes.get("BATCH_COUNT", 1)
        apart = described.attributes.get("STRIDED_BATCH_OFFSET", 0)
        dtype = np.dtype(TYPES[kind])
        extent = (batches - 1) * apart + (columns - 1) * stride + rows
        self.driver.inside(address, extent * dtype.itemsize)
        memory = (ctypes.c_byte * (extent * dtype.itemsize)).from_address(address)
        strides = tuple(dtype.itemsize * step for step in (apart, 1, stride))
        flat = np.frombuffer(memory, dtype)
        return np.lib.stride_tricks.as_strided(flat, (batches, rows, columns), strides)

    def matmul(
        self, handle: int, desc: int, alpha: int, a: int, adesc: int, b: int, bdesc: int, beta: int,
        c: int, cdesc: int, d: int, ddesc: int, algo: int, workspace: int, size: int, stream: int,
    ) -> None:  # fmt: skip
        compute, scale = self.made[desc].created
        of = dict(self.made[desc].attributes)
        ctype = ctypes.c_double if scale == 1 else ctypes.c_float
        assert (ctype.from_address(alpha).value, ctype.from_address(beta).value) == (1, 0)
        assert ctypes.c_uint64.from_address(algo).value == 77 and (c, cdesc) == (d, ddesc)
        n, m, k = self._sizes(desc, adesc, bdesc, ddesc)
        epilogue = Epilogue(of["EPILOGUE"])

        def run() -> None:
            self.driver.inside(workspace, size)
            wide = np.float64 if compute == 70 else np.float32
            first, second = (
                self._view(layout, address).astype(wide).swapaxes(1, 2 if of[transposed] else 1)
                for layout, address, transposed in ((adesc, a, "TRANSA"), (bdesc, b, "TRANSB"))
            )  # fmt: skip
            value = first @ second
            if "BIAS" in epilogue.name:
                address = of["BIAS_POINTER"]
                dtype = np.dtype(TYPES[self.made[ddesc].created[0]])
                self.driver.inside(address, n * dtype.itemsize)
                memory = (ctypes.c_byte * (n * dtype.itemsize)).from_address(address)
                value = value + np.frombuffer(memory, dtype).astype(wide)[:, None]
            if "RELU" in epilogue.name:
                value = np.where(value <= 0, 0, value)
            if "GELU" in epilogue.name:
                inner = np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)
                with np.errstate(invalid="ignore"):  # 0 times infinity
                    value = value * 0.5 * (1 + np.tanh(inner))
            out = self._view(ddesc, d)
            out[:] = value.astype(out.dtype)
            self.products.append(
                SimpleNamespace(compute=compute, epilogue=epilogue.name, n=n, m=m, k=k,
                                batches=out.shape[0])
            )  # fmt: skip

        next(s for s in self.driver.streams if int(s) == stream).give(run)


@contextlib.contextmanager
def pretended_cublas() -> Iterator[CublasLt]:
    """Device ``cuda`` is the pretended GPU inside, on which this library is installed."""
    with pretended_gpu() as driver, pytest.MonkeyPatch.context() as patch:
        library = CublasLt(driver)
        patch.setattr(cublas.CublasLt, "bindings", staticmethod(lambda op="": library))
        machine: Any = registry.get(as_device("cuda"))
        machine.target = replace(machine.target, libraries=("cublas",))
        yield library


__all__ = ["CublasLt", "pretended_cublas"]
