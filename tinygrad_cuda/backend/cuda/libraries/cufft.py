"""Fourier transforms by cuFFT, through the bindings of nvmath-python: the extra `cufft`.

A plan of cuFFT is made once for each shape. Calls have one workspace, of the GPU's pool: the
schedule lets no two of them run at the same time.
"""

from __future__ import annotations

import struct
from typing import Any

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.libraries.library import Library, SharedWorkspace
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.lowering.codegen.library_call import LibraryTransform

WORD = 8  # bytes
FORWARD, INVERSE = -1, 1  # of cufft.h
WITH_SIGN = ("C2C", "Z2Z")
# Of an element of the operand, in bytes; addresses are multiples of a complex one.
ITEMSIZES = {"C2C": 8, "R2C": 4, "C2R": 8, "Z2Z": 16, "D2Z": 8, "Z2D": 16}
ALIGNED = {kind: 16 if "Z" in kind else 8 for kind in ITEMSIZES}


class Cufft(Library):
    """cuFFT on one GPU.

    Args:
        gpu: whose context, streams and memory it uses.

    Raises:
        ArgumentError: the library is not installed.
    """

    extra, title, file, made = "cufft", "cuFFT", "libcufft", "transforms"

    def __init__(self, gpu: DeviceHandle) -> None:
        module = self.bindings()
        super().__init__(gpu, module, module.cuFFTError)
        self.workspace = SharedWorkspace(gpu.allocate)
        self._transforms: dict[LibraryTransform, LoadedTransform] = {}

    @staticmethod
    def imported() -> Any:
        from nvmath.bindings import cufft

        return cufft

    def transform(self, transform: LibraryTransform) -> LoadedTransform:
        """A transform ready to launch; the same object for the same transform."""
        with self.lock:
            loaded = self._transforms.get(transform)
            if loaded is None:
                self.gpu.enter()
                loaded = self._transforms[transform] = LoadedTransform(self, transform)
            return loaded


class LoadedTransform:
    """A plan of cuFFT.

    Args:
        library: which transforms.
        transform: what.

    Raises:
        CudaError: the library has no plan for it.
    """

    def __init__(self, library: Cufft, transform: LibraryTransform) -> None:
        self.library, self.transform = library, transform
        self.name = f"cufft_{transform.kind.lower()}"
        call, first, last = library.call, transform.kind[0], transform.kind[-1]
        n, half = transform.n, transform.n // 2 + 1
        source, result = (half if last in "RD" else n), (half if first in "RD" else n)
        self._plan = call("create")
        call("set_auto_allocation", self._plan, 0)
        nbytes = call(
            "make_plan_many64", self._plan, 1, [n], [source], transform.stride, transform.apart,
            [result], 1, result, int(getattr(library.module.Type, transform.kind)),
            transform.batches,
        )  # fmt: skip
        self.memory = library.workspace.of(nbytes)
        call("set_work_area", self._plan, self.memory.address)
        self._execute = f"exec_{transform.kind.lower()}"
        sign = INVERSE if transform.inverse else FORWARD
        self._sign = (sign,) if transform.kind in WITH_SIGN else ()

    def start(self, words: bytes, stream: Any) -> None:
        """Transforms on a stream.

        Args:
            words: of the launch's parameters, 8 bytes each.
            stream: the compute stream, or one that is captured.
        """
        transform, library = self.transform, self.library
        values = struct.unpack(f"<{len(words) // WORD}Q", words)
        source, result = (values[word] for word in transform.words)
        source += transform.offset * ITEMSIZES[transform.kind]
        for address in (source, result):
            if address % ALIGNED[transform.kind]:  # another library's memory
                raise ArgumentError(
                    "kernels.provider", "memory of a transform is not aligned",
                    expect=f"addresses that are multiples of {ALIGNED[transform.kind]} bytes",
                    actual=f"{address:#x}", hint="x.clone() has memory of its own",
                )  # fmt: skip
        with library.lock:  # the stream is part of the plan
            library.call("set_stream", self._plan, int(stream))
            library.call(self._execute, self._plan, source, result, *self._sign)

    def captured(self, words: bytes) -> Any:
        """The transform as a graph of its own, which whoever asks destroys."""
        return self.library.captured(lambda stream: self.start(words, stream))


__all__ = ["Cufft", "LoadedTransform"]
