"""Matrix products by cuBLASLt, through the bindings of nvmath-python: the extra `cublas`.

A product's descriptors and its algorithm, the heuristic's first, are made once for each shape, so
that a plan has the same bits in every run. Memory, workspace included, comes from the plan.
"""

from __future__ import annotations

import struct
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from tinygrad_cuda.backend.cuda.handles import DriverCalls
from tinygrad_cuda.backend.cuda.libraries.library import Library
from tinygrad_cuda.core.errors import ArgumentError, CudaError
from tinygrad_cuda.lowering.codegen.library_call import LibraryMatrix, LibraryProduct

WORD = 8  # bytes
ALIGNED = 16  # bytes: of the memory of values, whoever has allocated it
ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# cudaDataType of library_types.h.
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
# cublasComputeType_t of cublas_api.h.
COMPUTE_TYPES = {
    "COMPUTE_32F": 68, "COMPUTE_32F_PEDANTIC": 69, "COMPUTE_32F_FAST_TF32": 77, "COMPUTE_64F": 70,
}  # fmt: skip
TRANSPOSED = 1  # CUBLAS_OP_T
# Of sums whose k is split: parts are added in a fixed order and in the type of the sum.
REDUCTIONS = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
# By whether there is a bias, and the activation.
EPILOGUES = {
    (False, ""): "DEFAULT", (False, "relu"): "RELU", (False, "gelu"): "GELU",
    (True, ""): "BIAS", (True, "relu"): "RELU_BIAS", (True, "gelu"): "GELU_BIAS",
}  # fmt: skip


def installed() -> dict[str, str]:
    """The library and its version, on which its algorithms depend; nothing if it is not there."""
    try:
        return {"cublas": str(CublasLt.bindings("tune").get_version())}
    except ArgumentError:
        return {}


class CublasLt(Library):
    """cuBLASLt on one GPU.

    Args:
        gpu: whose context and streams it uses.

    Raises:
        ArgumentError: the library is not installed.
        CudaError: it does not start.
    """

    extra, title, file, made = "cublas", "cuBLASLt", "libcublasLt", "products"

    def __init__(self, gpu: DriverCalls) -> None:
        self.lt = self.bindings()
        super().__init__(gpu, self.lt, self.lt.cuBLASLtError)
        self.handle = self.call("create")
        self._products: dict[LibraryProduct, LoadedProduct] = {}

    @staticmethod
    def imported() -> Any:
        from nvmath.bindings import cublasLt

        return cublasLt

    def product(self, product: LibraryProduct) -> LoadedProduct:
        """A product ready to launch; the same object for the same product."""
        with self.lock:
            loaded = self._products.get(product)
            if loaded is None:
                self.gpu.enter()
                loaded = self._products[product] = LoadedProduct(self, product)
            return loaded


class LoadedProduct:
    """Descriptors and algorithm of one product.

    Args:
        library: which multiplies.
        product: what.

    Raises:
        CudaError: the library has no algorithm for it.
    """

    def __init__(self, library: CublasLt, product: LibraryProduct) -> None:
        self.library, self.product, self.name = library, product, "cublaslt_matmul"
        call, lt = library.call, library.lt
        wide = product.compute == "COMPUTE_64F"
        scale = "float64" if wide else "float32"
        self._one, self._zero = (np.array([x], np.dtype(scale)) for x in (1, 0))
        self._desc = call("matmul_desc_create", COMPUTE_TYPES[product.compute], DATA_TYPES[scale])
        attributes = lt.MatmulDescAttribute
        for name, transposed in zip(("TRANSA", "TRANSB"), product.transposed):
            self._set(getattr(attributes, name), TRANSPOSED if transposed else 0, np.int32)
        epilogue = EPILOGUES[product.bias is not None, product.activation]
        self._set(attributes.EPILOGUE, int(getattr(lt.Epilogue, epilogue)), np.uint32)
        self._layouts = [
            self._layout(matrix) for matrix in (product.first, product.second, product.result)
        ]
        if product.bias is not None:
            self._set_bias(ALIGNED)  # an address that is aligned as they all are
        self._algorithm = self._first_algorithm()

    def _set(self, attribute: Any, value: int, kind: Any) -> None:
        data = np.array([value], kind)
        self.library.call(
            "matmul_desc_set_attribute", self._desc, int(attribute), data.ctypes.data, data.nbytes
        )

    def _set_bias(self, address: int) -> None:
        self._set(self.library.lt.MatmulDescAttribute.BIAS_POINTER, address, np.uint64)

    def _layout(self, matrix: LibraryMatrix) -> int:
        call, attributes = self.library.call, self.library.lt.MatrixLayoutAttribute
        kind = DATA_TYPES[self.product.dtype]
        layout = call("matrix_layout_create", kind, matrix.rows, matrix.columns, matrix.stride)
        if self.product.batches > 1:
            pairs = (
                (attributes.BATCH_COUNT, self.product.batches, np.int32),
                (attributes.STRIDED_BATCH_OFFSET, matrix.apart, np.int64),
            )
            for attribute, value, dtype in pairs:
                data = np.array([value], dtype)
                call("matrix_layout_set_attribute", layout, int(attribute), data.ctypes.data,
                     data.nbytes)  # fmt: skip
        return int(layout)

    def _first_algorithm(self) -> Any:
        """What the heuristic recommends first, for memory aligned as the plan has it."""
        library, product = self.library, self.product
        call, kinds = library.call, library.lt.MatmulPreferenceAttribute
        first, second, result = map(
            self._alignment, (product.first, product.second, product.result)
        )
        limits: dict[Any, npt.NDArray[Any]] = {
            kinds.MAX_WORKSPACE_BYTES: np.array([product.workspace], np.uint64),
            kinds.REDUCTION_SCHEME_MASK: np.array([REDUCTIONS], np.uint32),
            kinds.MIN_ALIGNMENT_A_BYTES: np.array([first], np.uint32),
            kinds.MIN_ALIGNMENT_B_BYTES: np.array([second], np.uint32),
            kinds.MIN_ALIGNMENT_C_BYTES: np.array([result], np.uint32),
            kinds.MIN_ALIGNMENT_D_BYTES: np.array([result], np.uint32),
        }
        heuristic, count = library.lt.MatmulHeuristicResult(), np.zeros(1, np.int32)
        preference = call("matmul_preference_create")
        try:
            for kind, data in limits.items():
                call("matmul_preference_set_attribute", preference, int(kind), data.ctypes.data,
                     data.nbytes)  # fmt: skip
            one, two, three = self._layouts
            call("matmul_algo_get_heuristic", library.handle, self._desc, one, two, three, three,
                 preference, 1, heuristic.ptr, count.ctypes.data)  # fmt: skip
        finally:
            call("matmul_preference_destroy", preference)
        if not count[0]:
            raise CudaError(
                "cublas", "cuBLASLt has no algorithm for a product", expect="one at least",
                actual=str(product), hint=library.hint(),
            )  # fmt: skip
        return heuristic

    def _alignment(self, matrix: LibraryMatrix) -> int:
        """Bytes to whose multiples an operand's first element is aligned."""
        return gcd(ALIGNED, matrix.offset * ITEMSIZES[self.product.dtype])

    def start(self, words: bytes, stream: Any) -> None:
        """Multiplies on a stream.

        Args:
            words: of the launch's parameters, 8 bytes each.
            stream: the compute stream, or one that is captured.
        """
        product, library = self.product, self.library
        values = struct.unpack(f"<{len(words) // WORD}Q", words)
        first, second, result, workspace, *bias = (values[word] for word in product.words)
        for address in (first, second, result, *bias):
            if address % ALIGNED:  # another library's memory, for which no algorithm was asked
                raise ArgumentError(
                    "kernels.provider", "memory of a product is not aligned",
                    expect=f"addresses that are multiples of {ALIGNED} bytes",
                    actual=f"{address:#x}", hint="x.clone() has memory of its own",
                )  # fmt: skip
        itemsize = ITEMSIZES[product.dtype]
        first += product.first.offset * itemsize
        second += product.second.offset * itemsize
        one, two, three = self._layouts
        with library.lock:  # the bias's address is part of the descriptor
            if product.bias is not None:
                self._set_bias(bias[0] + product.bias * itemsize)
            library.call(
                "matmul", library.handle, self._desc, self._one.ctypes.data, first, one, second,
                two, self._zero.ctypes.data, result, three, result, three, self._algorithm.ptr,
                workspace, product.workspace, int(stream),
            )  # fmt: skip

    def captured(self, words: bytes) -> Any:
        """The product as a graph of its own, which whoever asks destroys."""
        return self.library.captured(lambda stream: self.start(words, stream))


__all__ = ["CublasLt", "LoadedProduct", "installed"]
