"""tc.types: PyTorch's names for annotations of numbers, devices and sizes."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tinygrad_cuda.core.device import Device as _device_type
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.layouts import layout
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = ["Device", "Number"]

Number: TypeAlias = builtins.int | builtins.float | builtins.bool
Device: TypeAlias = _device_type | str | builtins.int | None
_int, _float, _bool, _complex = builtins.int, builtins.float, builtins.bool, builtins.complex
_dtype, _device, _layout, _size = DType, _device_type, layout, Sequence[builtins.int]
_symint: TypeAlias = builtins.int
_TensorOrTensors: TypeAlias = Tensor | Sequence[Tensor]
PySymType: Any = builtins.int

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
