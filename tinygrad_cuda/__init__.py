"""tinygrad_cuda: a graph-based autodiff framework for NVIDIA GPUs. `import tinygrad_cuda as tc`."""

from __future__ import annotations

from tinygrad_cuda import autograd, cuda
from tinygrad_cuda.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from tinygrad_cuda.core.device import Device as device_type
from tinygrad_cuda.core.device import as_device as device
from tinygrad_cuda.core.dtypes import DType as dtype
from tinygrad_cuda.core.dtypes import (
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from tinygrad_cuda.core.dtypes import bool_ as bool
from tinygrad_cuda.core.errors import (
    ArgumentError,
    CompileError,
    CudaError,
    DataError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexError,
    OutOfMemoryError,
    ShapeError,
    TgcError,
)
from tinygrad_cuda.tensor.creation import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    get_default_device,
    get_default_dtype,
    linspace,
    ones,
    ones_like,
    set_default_device,
    set_default_dtype,
    tensor,
    zeros,
    zeros_like,
)
from tinygrad_cuda.tensor.tensor import Tensor
