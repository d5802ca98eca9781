"""Autograd as the user calls it: modes, grad, backward, Function, gradcheck."""

import importlib
from typing import TYPE_CHECKING

from tinygrad_cuda.autograd import anomaly, functional, graph, modes
from tinygrad_cuda.autograd.anomaly import (
    detect_anomaly,
    detect_nan,
    set_detect_anomaly,
    set_detect_nan,
)
from tinygrad_cuda.autograd.function import Function
from tinygrad_cuda.autograd.gradcheck import gradcheck, gradgradcheck
from tinygrad_cuda.autograd.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from tinygrad_cuda.autograd.variable import Variable
from tinygrad_cuda.autograd.versioning import check_versions
from tinygrad_cuda.core.names import also_named, missing_from
from tinygrad_cuda.tensors.backward import backward, grad

__all__ = [
    "Function",
    "Variable",
    "backward",
    "check_versions",
    "detect_anomaly",
    "detect_nan",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_grad_enabled",
    "no_grad",
    "profiler",
    "set_detect_anomaly",
    "set_detect_nan",
    "set_grad_enabled",
]


# PyTorch's names of these modules.
also_named(__name__, {"anomaly_mode": anomaly, "grad_mode": modes})

if TYPE_CHECKING:
    from tinygrad_cuda.autograd import profiler
else:  # the profiler is imported when first used; for a type checker an unknown name is an error
    _missing = missing_from(__name__, lambda: __all__)

    def __getattr__(name: str) -> object:
        if name == "profiler":
            return importlib.import_module(f"{__name__}.profiler")
        raise _missing(name)
