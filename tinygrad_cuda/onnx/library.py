"""The package onnx, which reads and writes the files; an extra, imported on first use."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.locks import forks_wait

# Keys of a file's metadata: names of buffers, and further names of parameters (a line each).
BUFFERS, ALIASES = "tinygrad_cuda.buffers", "tinygrad_cuda.aliases"


def onnx_library(op: str) -> Any:
    """The package onnx.

    Raises:
        ArgumentError: it is not installed.
    """
    try:
        with forks_wait:
            import onnx
            import onnx.inliner
            import onnx.reference
    except ImportError:
        raise ArgumentError(
            op, "the package onnx is not installed", expect="pip install tinygrad_cuda[onnx]",
            actual="an import that fails",
        ) from None  # fmt: skip
    return onnx
