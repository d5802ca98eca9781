"""tc.backends: switches that PyTorch programs set, and what is true of them here.

Kernels are chosen by measurement and their results do not vary from run to run, in any setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad_cuda.backends import cuda, cudnn, mkldnn, mps, openmp
from tinygrad_cuda.backends.cuda import (
    get_float32_matmul_precision,
    set_float32_matmul_precision,
)
from tinygrad_cuda.core.names import missing_from


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Accepted as in PyTorch: every operation gives the same bits each time, in either mode."""


def are_deterministic_algorithms_enabled() -> bool:
    """True."""
    return True


__all__ = [
    "are_deterministic_algorithms_enabled", "cuda", "cudnn", "get_float32_matmul_precision",
    "mkldnn", "mps", "openmp", "set_float32_matmul_precision", "use_deterministic_algorithms",
]  # fmt: skip

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
