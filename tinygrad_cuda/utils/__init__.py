"""Around training: the loop, metrics; `data` and `checkpoint` where PyTorch has them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from

__all__ = [
    "_pytree", "benchmark", "checkpoint", "cpp_extension", "data", "dlpack", "hooks", "metrics",
    "model_zoo", "tensorboard", "training",
]  # fmt: skip

if TYPE_CHECKING:
    from tinygrad_cuda.utils import (
        _pytree,
        benchmark,
        checkpoint,
        cpp_extension,
        data,
        dlpack,
        hooks,
        metrics,
        model_zoo,
        tensorboard,
        training,
    )
else:  # imported when first used; for a type checker an unknown name stays an error
    _missing = missing_from(__name__, lambda: __all__)

    def __getattr__(name: str) -> object:
        if name in __all__:
            return importlib.import_module(f"{__name__}.{name}")
        raise _missing(name)
