"""tinygrad_cuda: a graph-based autodiff framework for NVIDIA GPUs. `import tinygrad_cuda as tc`."""

from __future__ import annotations

import importlib
from math import e, inf, nan, pi
from typing import TYPE_CHECKING, Any

from tinygrad_cuda import (
    autograd,
    backends,
    cuda,
    distributions,
    einops_support,
    fft,
    kernels,
    linalg,
    random,
    special,
)
from tinygrad_cuda.autograd import (
    detect_nan,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from tinygrad_cuda.autograd.anomaly import (
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_anomaly_enabled,
)
from tinygrad_cuda.autograd.batched import vmap
from tinygrad_cuda.backend.cpu.threads import get_num_threads, set_num_threads
from tinygrad_cuda.backends import (
    are_deterministic_algorithms_enabled,
    get_float32_matmul_precision,
    set_float32_matmul_precision,
    use_deterministic_algorithms,
)
from tinygrad_cuda.capture import compile, loop
from tinygrad_cuda.core import version as __version__
from tinygrad_cuda.core.device import Device as device
from tinygrad_cuda.core.dtypes import (
    UNSUPPORTED,
    bfloat16,
    complex64,
    complex128,
    finfo,
    float16,
    float32,
    float64,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tinygrad_cuda.core.dtypes import DType as dtype
from tinygrad_cuda.core.dtypes import bool_ as bool
from tinygrad_cuda.core.dtypes import float16 as half
from tinygrad_cuda.core.dtypes import float32 as float
from tinygrad_cuda.core.dtypes import float64 as double
from tinygrad_cuda.core.dtypes import int16 as short
from tinygrad_cuda.core.dtypes import int32 as int
from tinygrad_cuda.core.dtypes import int64 as long
from tinygrad_cuda.core.errors import (
    ArgumentError,
    CompileError,
    CudaError,
    DataError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexError,
    LinAlgError,
    MissingFileError,
    NameTakenError,
    NonFiniteError,
    OutOfMemoryError,
    ShapeError,
    TgcError,
    UnknownNameError,
)
from tinygrad_cuda.core.layouts import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    layout,
    memory_format,
    preserve_format,
    sparse_coo,
    strided,
)
from tinygrad_cuda.core.names import unknown_name
from tinygrad_cuda.kernels import tune
from tinygrad_cuda.tensors import functions as _functions
from tinygrad_cuda.tensors.arguments import checked_names
from tinygrad_cuda.tensors.autocast import (
    autocast,
    get_autocast_dtype,
    is_autocast_enabled,
    set_autocast_dtype,
)
from tinygrad_cuda.tensors.base import Size
from tinygrad_cuda.tensors.functions import *
from tinygrad_cuda.tensors.keywords import creates, takes_out
from tinygrad_cuda.tensors.legacy import ON_HOST, set_default_tensor_type, typename
from tinygrad_cuda.tensors.linalg.decomposing import householder_product as orgqr
from tinygrad_cuda.tensors.linalg.decomposing import lu_packed as lu
from tinygrad_cuda.tensors.linalg.decomposing import lu_solve_of as lu_solve
from tinygrad_cuda.tensors.linalg.factorizing import cholesky_of as cholesky
from tinygrad_cuda.tensors.linalg.factorizing import inv as inverse
from tinygrad_cuda.tensors.linalg.factorizing import pinv as pinverse
from tinygrad_cuda.tensors.linalg.factorizing import qr_of as qr
from tinygrad_cuda.tensors.linalg.factorizing import svd_v as svd
from tinygrad_cuda.tensors.math import abs as absolute
from tinygrad_cuda.tensors.math import acos as arccos
from tinygrad_cuda.tensors.math import asin as arcsin
from tinygrad_cuda.tensors.math import atan as arctan
from tinygrad_cuda.tensors.math import atan2 as arctan2
from tinygrad_cuda.tensors.math import div as divide
from tinygrad_cuda.tensors.math import div as true_divide
from tinygrad_cuda.tensors.math import ge as greater_equal
from tinygrad_cuda.tensors.math import gt as greater
from tinygrad_cuda.tensors.math import le as less_equal
from tinygrad_cuda.tensors.math import lt as less
from tinygrad_cuda.tensors.math import mul as multiply
from tinygrad_cuda.tensors.math import ne as not_equal
from tinygrad_cuda.tensors.math import neg as negative
from tinygrad_cuda.tensors.math import sub as subtract
from tinygrad_cuda.tensors.math import trunc as fix
from tinygrad_cuda.tensors.shaping import chunk as unsafe_chunk
from tinygrad_cuda.tensors.shaping import split as unsafe_split
from tinygrad_cuda.tensors.shaping import split_with_sizes as unsafe_split_with_sizes
from tinygrad_cuda.tensors.shaping import vstack as row_stack
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    *(name for name in vars(_functions) if not name.startswith("_")),
    "ArgumentError",
    "CompileError",
    "CudaError",
    "DTypeError",
    "DataError",
    "DeviceError",
    "Future",
    "GradientError",
    "IndexError",
    "LinAlgError",
    "MissingFileError",
    "NameTakenError",
    "NonFiniteError",
    "OutOfMemoryError",
    "RawKernel",
    "ShapeError",
    "Size",
    "Tensor",
    "TgcError",
    "UnknownNameError",
    "__version__",
    "absolute",
    "accelerator",
    "adaptive_avg_pool1d",
    "adaptive_max_pool1d",
    "alpha_dropout",
    "alpha_dropout_",
    "amp",
    "arccos",
    "arcsin",
    "arctan",
    "arctan2",
    "are_deterministic_algorithms_enabled",
    "array_api",
    "autocast",
    "autograd",
    "avg_pool1d",
    "backends",
    "batch_norm",
    "bfloat16",
    "bilinear",
    "binary_cross_entropy_with_logits",
    "bool",
    "cdouble",
    "celu",
    "celu_",
    "cfloat",
    "chalf",
    "channel_shuffle",
    "channels_last",
    "channels_last_3d",
    "cholesky",
    "compile",
    "compiler",
    "complex128",
    "complex64",
    "contiguous_format",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "ctc_loss",
    "cuda",
    "custom_op",
    "data",
    "detect_nan",
    "determinism_report",
    "device",
    "distributed",
    "distributions",
    "divide",
    "double",
    "draw",
    "dropout",
    "dropout_",
    "dtype",
    "e",
    "einops_support",
    "embedding",
    "embedding_bag",
    "enable_grad",
    "export_cuda",
    "feature_alpha_dropout",
    "feature_alpha_dropout_",
    "fft",
    "finfo",
    "fix",
    "float",
    "float16",
    "float32",
    "float64",
    "func",
    "fx",
    "get_autocast_dtype",
    "get_float32_matmul_precision",
    "get_num_threads",
    "greater",
    "greater_equal",
    "group_norm",
    "half",
    "hardshrink",
    "hinge_embedding_loss",
    "hub",
    "iinfo",
    "inf",
    "inference_mode",
    "instance_norm",
    "int",
    "int16",
    "int32",
    "int64",
    "int8",
    "inverse",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_autocast_enabled",
    "is_grad_enabled",
    "jit",
    "kernel",
    "kernels",
    "kl_div",
    "layer_norm",
    "layout",
    "less",
    "less_equal",
    "linalg",
    "load",
    "long",
    "loop",
    "lu",
    "lu_solve",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool3d",
    "memory_format",
    "multiply",
    "multiprocessing",
    "nan",
    "negative",
    "newaxis",
    "nn",
    "no_grad",
    "not_equal",
    "onnx",
    "optim",
    "overrides",
    "orgqr",
    "pi",
    "pinverse",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "preserve_format",
    "profiler",
    "qr",
    "random",
    "record_modules",
    "relu_",
    "rms_norm",
    "row_stack",
    "rrelu",
    "rrelu_",
    "save",
    "selu",
    "selu_",
    "serialization",
    "set_anomaly_enabled",
    "set_autocast_dtype",
    "set_default_tensor_type",
    "set_float32_matmul_precision",
    "set_grad_enabled",
    "set_num_threads",
    "short",
    "sparse_coo",
    "special",
    "strided",
    "subtract",
    "summary",
    "svd",
    "testing",
    "threshold",
    "threshold_",
    "triplet_margin_loss",
    "true_divide",
    "tune",
    "typename",
    "types",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "use_deterministic_algorithms",
    "utils",
    "version",
    "vmap",
    *ON_HOST,
    *UNSUPPORTED,
]

# What writes its result to a Tensor if it is given one, at the top as in PyTorch, not as a method.
_WITH_OUT = """
    abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr all amax amin aminmax
    angle any arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin asin asinh atan
    atan2 atanh baddbmm bernoulli bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor bmm bucketize cat ceil chain_matmul cholesky
    cholesky_inverse cholesky_solve clamp clamp_max clamp_min clip column_stack complex concat
    concatenate conj_physical copysign cos cosh cross cummax cummin cumprod cumsum deg2rad diag
    diff digamma div divide dot dstack eq erf erfc erfinv exp exp2 expm1 fix float_power floor
    floor_divide fmax fmin fmod frac frexp gather gcd ge geqrf ger greater greater_equal gt
    heaviside histc histogram hstack hypot i0 igamma igammac index_add index_copy index_reduce
    index_select inner inverse isin isneginf isposinf kron kthvalue lcm ldexp le lerp less
    less_equal lgamma log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp
    logical_and logical_not logical_or logical_xor logit logsumexp lt lu lu_solve lu_unpack
    masked_select matmul matrix_power max maximum mean median min minimum mm mode msort mul
    multinomial multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum narrow_copy
    ne neg negative nextafter nonzero norm normal not_equal ormqr outer polar polygamma pow prod
    qr quantile rad2deg reciprocal remainder renorm round row_stack rsqrt scatter scatter_add
    scatter_reduce searchsorted sgn sigmoid sign signbit sin sinc sinh softmax sort sqrt square
    stack std sub subtract sum svd take take_along_dim tan tanh tensordot topk triangular_solve
    tril triu true_divide trunc var vdot vstack where xlogy
"""
_CREATING = """
    arange bartlett_window blackman_window empty empty_like eye full full_like hamming_window
    hann_window kaiser_window linspace logspace ones ones_like rand rand_like randint
    randint_like randn randn_like randperm scalar_tensor tensor zeros zeros_like
"""
for _name in _WITH_OUT.split():
    globals()[_name] = takes_out(globals()[_name])
for _name in _CREATING.split():
    globals()[_name] = creates(globals()[_name])
# PyTorch's first names for Tensors of a dtype, and dtypes that exist by name only.
globals().update(ON_HOST)
globals().update(UNSUPPORTED)
chalf, cfloat, cdouble = UNSUPPORTED["complex32"], complex64, complex128
newaxis = None


def _assert(condition: Any, message: str = "") -> None:
    """Python's assertion as a function, as in PyTorch."""
    assert condition, message


globals().update(checked_names(globals(), __name__, __all__))

# Imported when first used: layers, optimizers and data sets are half of the import time.
_LATE_MODULES = (
    "_C", "_dynamo", "_utils", "_vmap_internals", "accelerator", "amp", "array_api", "compiler",
    "data", "distributed", "func", "futures", "fx", "hub", "jit", "multiprocessing", "nn", "onnx",
    "optim", "overrides", "profiler", "serialization", "testing", "types", "utils", "version",
)  # fmt: skip
_LATE_NAMES = {
    "Future": "futures",
    "RawKernel": "kernels.raw",
    "custom_op": "kernels.custom",
    "kernel": "kernels.elementwise",
    "load": "utils.checkpoints", "save": "utils.checkpoints",
    "determinism_report": "utils.determinism",
    "export_cuda": "utils.cuda_export",
    "draw": "utils.drawing", "record_modules": "utils.drawing", "summary": "utils.summary",
}  # fmt: skip
# PyTorch has these of nn.functional here too.
_LATE_NAMES |= dict.fromkeys(
    (
        "adaptive_avg_pool1d", "avg_pool1d", "bilinear", "celu", "celu_", "channel_shuffle",
        "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d", "group_norm", "hardshrink", "layer_norm", "max_pool1d",
        "max_pool1d_with_indices", "max_pool2d", "max_pool3d", "pixel_shuffle",
        "pixel_unshuffle", "prelu", "relu_", "rms_norm", "rrelu", "rrelu_", "selu", "selu_",
        "threshold", "threshold_",
    ),
    "nn.functional",
)  # fmt: skip
_LATE_NAMES |= dict.fromkeys(
    (
        "adaptive_max_pool1d", "alpha_dropout", "alpha_dropout_", "batch_norm",
        "binary_cross_entropy_with_logits", "cosine_embedding_loss", "ctc_loss", "dropout",
        "dropout_", "embedding", "embedding_bag", "feature_alpha_dropout",
        "feature_alpha_dropout_", "hinge_embedding_loss", "instance_norm", "kl_div",
        "margin_ranking_loss", "poisson_nll_loss", "triplet_margin_loss",
    ),
    "nn.positional",
)  # fmt: skip

if TYPE_CHECKING:
    from tinygrad_cuda import (
        accelerator,
        amp,
        array_api,
        compiler,
        data,
        distributed,
        func,
        fx,
        hub,
        jit,
        multiprocessing,
        nn,
        onnx,
        optim,
        overrides,
        profiler,
        serialization,
        testing,
        types,
        utils,
        version,
    )
    from tinygrad_cuda.futures import Future
    from tinygrad_cuda.kernels.custom import custom_op
    from tinygrad_cuda.kernels.elementwise import kernel
    from tinygrad_cuda.kernels.raw import RawKernel
    from tinygrad_cuda.nn.functional import (
        adaptive_avg_pool1d,
        avg_pool1d,
        bilinear,
        celu,
        celu_,
        channel_shuffle,
        conv1d,
        conv2d,
        conv3d,
        conv_tbc,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
        group_norm,
        hardshrink,
        layer_norm,
        max_pool1d,
        max_pool1d_with_indices,
        max_pool2d,
        max_pool3d,
        pixel_shuffle,
        pixel_unshuffle,
        prelu,
        relu_,
        rms_norm,
        rrelu,
        rrelu_,
        selu,
        selu_,
        threshold,
        threshold_,
    )
    from tinygrad_cuda.nn.positional import (
        adaptive_max_pool1d,
        alpha_dropout,
        alpha_dropout_,
        batch_norm,
        binary_cross_entropy_with_logits,
        cosine_embedding_loss,
        ctc_loss,
        dropout,
        dropout_,
        embedding,
        embedding_bag,
        feature_alpha_dropout,
        feature_alpha_dropout_,
        hinge_embedding_loss,
        instance_norm,
        kl_div,
        margin_ranking_loss,
        poisson_nll_loss,
        triplet_margin_loss,
    )
    from tinygrad_cuda.utils.checkpoints import load, save
    from tinygrad_cuda.utils.cuda_export import export_cuda
    from tinygrad_cuda.utils.determinism import determinism_report
    from tinygrad_cuda.utils.drawing import draw, record_modules
    from tinygrad_cuda.utils.summary import summary
else:  # for a type checker an unknown name stays an error

    def __getattr__(name: str) -> object:
        if name in _LATE_MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name in _LATE_NAMES:
            module = importlib.import_module(f"{__name__}.{_LATE_NAMES[name]}")
            return globals().setdefault(name, getattr(module, name))
        if name == "torch":  # as PyTorch has itself: torch.torch.Tensor is in annotations
            return importlib.import_module(__name__)
        if name.startswith("_foreach_"):
            foreach = importlib.import_module(f"{__name__}.tensors.foreach")
            return globals().setdefault(name, getattr(foreach, name))
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise unknown_name(__name__, name, lambda: __all__)
