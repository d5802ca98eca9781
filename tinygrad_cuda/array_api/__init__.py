"""The namespace of the Python array API standard, 2024.12: `x.__array_namespace__()` gives it.

Thin functions with the standard's names, signatures and dtypes over those of the package, which has
PyTorch's. Its arrays are Tensors.
"""

from math import e, inf, nan, pi

from tinygrad_cuda.array_api import fft, linalg
from tinygrad_cuda.array_api.creation import *
from tinygrad_cuda.array_api.data_types import *
from tinygrad_cuda.array_api.data_types import namespace_info as __array_namespace_info__
from tinygrad_cuda.array_api.elementwise import *
from tinygrad_cuda.array_api.linalg import matmul, matrix_transpose, tensordot, vecdot
from tinygrad_cuda.array_api.manipulation import *
from tinygrad_cuda.array_api.reductions import *
from tinygrad_cuda.core.dtypes import bool_ as bool
from tinygrad_cuda.core.dtypes import (
    complex64,
    complex128,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

__array_api_version__ = "2024.12"
newaxis = None
